//! PodSecurity: holds pods to the level that their namespace's labels ask for, and warns of what another level would
//! refuse. Follows `k8s.io/pod-security-admission`.
//!
//! Labels `pod-security.kubernetes.io/{enforce,audit,warn}` and each with `-version`; what holds without them, and who is
//! exempt, is told by the plugin's configuration. Enforced are pods alone; what
//! makes pods is only warned about, so that its author hears of it.

mod checks;
mod policy;
mod told;

use std::collections::BTreeMap;

use serde_json::Value;

use self::checks::evaluate;
use self::policy::{Level, LevelVersion, Policy};
pub use self::told::PodSecuritySettings;
use super::{Call, Operation};
use crate::status::{Cause, Result, aggregate, quote};

/// Pods that a namespace's new level is checked against at most.
const MOST_PODS: usize = 3000;

/// Subresources of pods that change nothing a level looks at.
const IGNORED: [&str; 8] = ["exec", "attach", "binding", "eviction", "log", "portforward", "proxy", "status"];

/// Kinds that make pods, and where their template lies.
const TEMPLATES: [(&str, &str, &str); 8] = [
    ("", "replicationcontrollers", "/spec/template"),
    ("", "podtemplates", "/template"),
    ("apps", "replicasets", "/spec/template"),
    ("apps", "deployments", "/spec/template"),
    ("apps", "statefulsets", "/spec/template"),
    ("apps", "daemonsets", "/spec/template"),
    ("batch", "jobs", "/spec/template"),
    ("batch", "cronjobs", "/spec/jobTemplate/spec/template"),
];

pub fn validate(call: &Call<'_>, new: &Value) -> Result<()> {
    if call.is("", "namespaces") {
        return namespace(call, new);
    }
    if call.concerns("", "pods") {
        return pod(call, new);
    }
    let template = TEMPLATES.iter().find(|(group, plural, _)| call.is(group, plural));
    if let Some(pod) = template.and_then(|(_, _, path)| new.pointer(path)).filter(|t| t.is_object()) {
        if is_exempt(call) {
            return Ok(());
        }
        let (policy, errors) = policy_of(call);
        let unjudged = |of: LevelVersion| of.level == Level::Privileged;
        if errors.is_empty() && unjudged(policy.audit) && unjudged(policy.warn) || is_exempt_pod(call, pod) {
            return Ok(());
        }
        note_errors(&errors);
        note_violations(&policy, pod);
        warn(&policy, pod);
    }
    Ok(())
}

fn policy_of(call: &Call<'_>) -> (Policy, Vec<Cause>) {
    let Some(namespace) = call.server.store.get(&"namespaces".into(), "", call.namespace) else {
        return (told(call).defaults, Vec::new());
    };
    let labels = &namespace.keys.labels;
    let get = |label: &str| labels.iter().find(|(key, _)| **key == *label).map(|(_, value)| &**value);
    policy::read(get, &told(call).defaults)
}

fn told<'a>(call: &Call<'a>) -> &'a PodSecuritySettings {
    &call.server.admission.settings().pod_security
}

/// Whether the place of a call or its author is exempt, which the audit log hears of.
fn is_exempt(call: &Call<'_>) -> bool {
    let why = told(call).exempts(call);
    why.into_iter().for_each(|why| note("exempt", why));
    why.is_some()
}

/// The same for the runtime class of a pod.
fn is_exempt_pod(call: &Call<'_>, pod: &Value) -> bool {
    let exempt = told(call).exempts_pod(pod);
    if exempt {
        note("exempt", "runtimeClass");
    }
    exempt
}

/// Tells the audit log; keys are of the group.
fn note(key: &str, value: &str) {
    super::note(&format!("pod-security.kubernetes.io/{key}"), value);
}

fn note_errors(errors: &[Cause]) {
    if !errors.is_empty() {
        let texts: Vec<String> = errors.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        note("error", &format!("Failed to parse policy: {}", aggregate(&texts)));
    }
}

fn note_violations(policy: &Policy, pod: &Value) {
    if !crate::audit::is_on() {
        return;
    }
    let violations = evaluate(policy.audit, pod);
    if !violations.is_empty() {
        note("audit-violations", &would_violate(policy.audit, &violations));
    }
}

fn would_violate(level: LevelVersion, violations: &[checks::Violation]) -> String {
    format!("would violate PodSecurity {}: {}", quote(&level.to_string()), checks::details(violations))
}

fn warn(policy: &Policy, pod: &Value) {
    let violations = evaluate(policy.warn, pod);
    if !violations.is_empty() {
        crate::warning::add(would_violate(policy.warn, &violations));
    }
}

fn pod(call: &Call<'_>, new: &Value) -> Result<()> {
    if IGNORED.contains(&call.subresource) || is_exempt(call) {
        return Ok(());
    }
    let (policy, errors) = policy_of(call);
    if errors.is_empty() && policy.is_privileged() {
        note("enforce-policy", &LevelVersion::default().to_string());
        return Ok(());
    }
    if call.old.is_some_and(|old| !is_significant(new, old)) || is_exempt_pod(call, new) {
        return Ok(());
    }
    note_errors(&errors);
    note("enforce-policy", &policy.enforce.to_string());
    note_violations(&policy, new);
    let violations = evaluate(policy.enforce, new);
    if !violations.is_empty() {
        let level = quote(&policy.enforce.to_string());
        return Err(call.refuse(Some(new), format!("violates PodSecurity {level}: {}", checks::details(&violations))));
    }
    warn(&policy, new);
    Ok(())
}

/// Whether an update changes what a level looks at: images, containers added, annotations for seccomp.
fn is_significant(new: &Value, old: &Value) -> bool {
    let annotation = |pod: &Value, key: &str| pod["metadata"]["annotations"][key].clone();
    let differs = |key: &str| annotation(new, key) != annotation(old, key);
    let containers = |pod: &Value, list: &str| pod["spec"][list].as_array().cloned().unwrap_or_default();
    if differs(checks::SECCOMP_POD) {
        return true;
    }
    let changed = |new: &Value, old: &Value| {
        let name = new["name"].as_str().unwrap_or_default();
        new["image"] != old["image"] || differs(&format!("{}{name}", checks::SECCOMP_CONTAINER))
    };
    ["containers", "initContainers"].into_iter().any(|list| {
        let (new, old) = (containers(new, list), containers(old, list));
        new.len() != old.len() || new.iter().zip(&old).any(|(n, o)| changed(n, o))
    }) || containers(new, "ephemeralContainers").iter().any(|n| {
        let old = containers(old, "ephemeralContainers");
        old.iter().find(|o| o["name"] == n["name"]).is_none_or(|o| changed(n, o))
    })
}

/// Labels have to make sense; a stricter level warns of the pods it would refuse.
fn namespace(call: &Call<'_>, new: &Value) -> Result<()> {
    let told = told(call);
    let labels = &new["metadata"]["labels"];
    let (wanted, errors) = policy::of(labels, &told.defaults);
    let name = new["metadata"]["name"].as_str().unwrap_or_default();
    let ignored = || told.ignored(name, &wanted, labels).into_iter().for_each(crate::warning::add);
    let invalid = |errors: Vec<Cause>| Err(crate::write::invalid("", "Namespace", name, errors));
    let (Operation::Update, Some(old)) = (call.operation, call.old) else {
        if !errors.is_empty() {
            return invalid(errors);
        }
        if told.has_namespace(name) {
            ignored();
        }
        return Ok(());
    };
    let (before, old_errors) = policy::of(&old["metadata"]["labels"], &told.defaults);
    if !errors.is_empty() && errors != old_errors {
        return invalid(errors);
    }
    let (to, from) = (wanted.enforce, before.enforce);
    let relaxed = to.version == from.version && to.level <= from.level;
    if to != from && to.level != Level::Privileged && !relaxed {
        if told.has_namespace(name) {
            ignored();
        } else {
            let snapshot = call.server.store.snapshot(&"pods".into());
            let pods = snapshot.range(Some(call.name), None).map(|pod| (pod.key.name.to_string(), pod.value()));
            of_existing(told, call.name, to, pods).into_iter().for_each(crate::warning::add);
        }
    }
    Ok(())
}

/// What to warn of where pods, which come with their names, are in a namespace that a new level is for.
fn of_existing<P: std::borrow::Borrow<Value>>(
    told: &PodSecuritySettings,
    namespace: &str,
    level: LevelVersion,
    pods: impl IntoIterator<Item = (String, P)>,
) -> Vec<String> {
    // Pods with the same violations are told together, under the first one's name.
    let mut violating: BTreeMap<String, (String, usize)> = BTreeMap::new();
    let mut total = 0;
    for (name, pod) in pods {
        let pod = pod.borrow();
        // The level will not hold for these.
        if told.exempts_pod(pod) {
            continue;
        }
        total += 1;
        if total > MOST_PODS {
            continue;
        }
        let violations = evaluate(level, pod);
        if !violations.is_empty() {
            violating.entry(checks::reasons(&violations)).or_insert((name, 0)).1 += 1;
        }
    }
    let mut out = Vec::new();
    if total > MOST_PODS {
        out.push(format!(
            "new PodSecurity enforce level only checked against the first {MOST_PODS} of {total} existing pods"
        ));
    }
    if violating.is_empty() {
        return out;
    }
    let (namespace, level) = (quote(namespace), quote(&level.to_string()));
    out.push(format!("existing pods in namespace {namespace} violate the new PodSecurity enforce level {level}"));
    let mut texts: Vec<String> = violating
        .into_iter()
        .map(|(reasons, (pod, count))| match count {
            1 => format!("{pod}: {reasons}"),
            2 => format!("{pod} (and 1 other pod): {reasons}"),
            more => format!("{pod} (and {} other pods): {reasons}", more - 1),
        })
        .collect();
    texts.sort();
    out.extend(texts);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn existing_pods_are_told_but_for_those_of_exempt_runtime_classes() {
        let told = PodSecuritySettings::read(&json!({
            "apiVersion": "pod-security.admission.config.k8s.io/v1", "kind": "PodSecurityConfiguration",
            "exemptions": {"runtimeClasses": ["sandboxed"]},
        }));
        let told = told.expect("good");
        let level = LevelVersion { level: Level::Baseline, ..LevelVersion::default() };
        let pod = |name: &str, class: &str| {
            (name.to_owned(), json!({"spec": {"hostNetwork": true, "runtimeClassName": class, "containers": []}}))
        };
        let pods = [pod("a", "sandboxed"), pod("b", "other"), pod("c", "sandboxed"), pod("d", "other")];
        let warnings = of_existing(&told, "n", level, pods);
        let first = "existing pods in namespace \"n\" violate the new PodSecurity enforce level \"baseline:latest\"";
        assert_eq!(warnings, [first, "b (and 1 other pod): host namespaces"]);
        let many = |class: &'static str| (0..=MOST_PODS).map(move |at| pod(&at.to_string(), class));
        assert!(of_existing(&told, "n", level, many("sandboxed")).is_empty(), "they do not count either");
        let warnings = of_existing(&told, "n", level, many("other"));
        let first = "new PodSecurity enforce level only checked against the first 3000 of 3001 existing pods";
        assert!(warnings[0] == first && warnings[2] == "0 (and 2999 other pods): host namespaces", "{warnings:?}");
    }

    #[test]
    fn only_updates_that_a_level_looks_at_are_significant() {
        let pod = |image: &str, label: &str| json!({"metadata": {"labels": {"a": label}}, "spec": {"containers": [{"name": "a", "image": image}]}});
        assert!(!is_significant(&pod("x", "1"), &pod("x", "2")));
        assert!(is_significant(&pod("y", "1"), &pod("x", "1")));
        let mut debugged = pod("x", "1");
        debugged["spec"]["ephemeralContainers"] = json!([{"name": "d", "image": "x"}]);
        assert!(is_significant(&debugged, &pod("x", "1")));
        assert!(!is_significant(&debugged, &debugged));
    }
}
