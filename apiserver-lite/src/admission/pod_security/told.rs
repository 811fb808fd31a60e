//! What the plugin is told at the start: levels for namespaces that name none, and who is exempt.
//!
//! A PodSecurityConfiguration of `pod-security.admission.config.k8s.io`. Follows `admission/api/validation` and
//! `admission/admission.go` of `k8s.io/pod-security-admission`.

use serde_json::{Name, Value};

use super::policy::{self, Level, Policy};
use crate::admission::Call;
use crate::names;
use crate::status::quote;
use crate::tree::text;

#[derive(Debug, Default)]
pub struct PodSecuritySettings {
    /// What holds where a namespace's labels say nothing.
    pub(super) defaults: Policy,
    users: Vec<String>,
    namespaces: Vec<String>,
    runtime_classes: Vec<String>,
}

impl PodSecuritySettings {
    /// # Errors
    /// When it is something else, or names what there is not.
    pub fn read(configuration: &Value) -> Result<Self, String> {
        const GROUP: &str = "pod-security.admission.config.k8s.io";
        let (group, version) = text(configuration, "apiVersion").split_once('/').unwrap_or_default();
        let known = group == GROUP && matches!(version, "v1" | "v1beta1" | "v1alpha1");
        if text(configuration, "kind") != "PodSecurityConfiguration" || !known {
            return Err(format!("must be a PodSecurityConfiguration of {GROUP}/v1"));
        }
        check(configuration)?;
        let said = &configuration["defaults"];
        let (defaults, errors) = policy::read(
            |label| {
                let name = label.strip_prefix("pod-security.kubernetes.io/")?;
                said[name].as_str().filter(|text| !text.is_empty())
            },
            &Policy::default(),
        );
        if let Some(error) = errors.first() {
            let name = error.field.split_once('/').map_or("", |(_, name)| name.trim_end_matches(']'));
            return Err(format!("defaults.{name}: {}", error.message));
        }
        // Only labels make a namespace warned of what is enforced in it.
        let level = |name: &str| policy::parse_level(text(said, name)).unwrap_or_default();
        let warn = policy::LevelVersion {
            level: level("warn"),
            version: policy::parse_version(text(said, "warn-version")).unwrap_or_default(),
        };
        let named =
            |list: &str, complaints: fn(&str) -> Vec<String>| exempt(&configuration["exemptions"], list, complaints);
        Ok(PodSecuritySettings {
            defaults: Policy { warn, ..defaults },
            users: named(
                "usernames",
                |name| if name.is_empty() { vec!["must not be empty".into()] } else { Vec::new() },
            )?,
            namespaces: named("namespaces", names::dns_label)?,
            runtime_classes: named("runtimeClasses", names::dns_subdomain)?,
        })
    }

    pub(super) fn has_namespace(&self, name: &str) -> bool {
        self.namespaces.iter().any(|exempt| exempt == name)
    }

    /// What makes the author of a call, or the place of it, exempt, in the word of the audit log.
    pub(super) fn exempts(&self, call: &Call<'_>) -> Option<&'static str> {
        if self.has_namespace(call.namespace) {
            return Some("namespace");
        }
        self.users.contains(&call.user.name).then_some("user")
    }

    /// Whether the runtime class of a pod, or of a template of one, is exempt.
    pub(super) fn exempts_pod(&self, pod: &Value) -> bool {
        pod["spec"]["runtimeClassName"]
            .as_str()
            .is_some_and(|class| self.runtime_classes.iter().any(|own| own == class))
    }

    /// Tells who labels an exempt namespace that this does nothing; None where the labels say nothing else than what holds
    /// anyway.
    pub(super) fn ignored(&self, name: &str, policy: &Policy, labels: &Value) -> Option<String> {
        if policy.is_privileged() || policy.is_like(&self.defaults) {
            return None;
        }
        let modes = [("enforce", policy.enforce), ("audit", policy.audit), ("warn", policy.warn)];
        let said = |mode: &str| {
            let label = format!("pod-security.kubernetes.io/{mode}");
            !labels[&label].is_null() || !labels[format!("{label}-version")].is_null()
        };
        let shown: Vec<String> = modes
            .into_iter()
            .filter(|(mode, at)| at.level != Level::Privileged && said(mode))
            .map(|(mode, at)| format!("{mode}={at}"))
            .collect();
        let (name, shown) = (quote(name), shown.join(", "));
        Some(format!("namespace {name} is exempt from Pod Security, and the policy ({shown}) will be ignored"))
    }
}

const LEVELS: [&str; 6] = ["enforce", "enforce-version", "audit", "audit-version", "warn", "warn-version"];
const EXEMPTIONS: [&str; 3] = ["usernames", "namespaces", "runtimeClasses"];

/// Refuses what no field is for, and what a field cannot hold: that somebody meant to be held to a level, or to be exempt,
/// is not to go unnoticed.
fn check(configuration: &Value) -> Result<(), String> {
    only(configuration, "", &["apiVersion", "kind", "defaults", "exemptions"])?;
    let defaults = only(&configuration["defaults"], "defaults", &LEVELS)?;
    if let Some((name, _)) = defaults.iter().find(|(_, value)| !(value.is_null() || value.is_string())) {
        return Err(format!("defaults.{name}: must be a text"));
    }
    let exemptions = only(&configuration["exemptions"], "exemptions", &EXEMPTIONS)?;
    if let Some((name, _)) = exemptions.iter().find(|(_, value)| !(value.is_null() || value.is_array())) {
        return Err(format!("exemptions.{name}: must be a list"));
    }
    Ok(())
}

/// The members of an object that may have only these.
fn only<'a>(value: &'a Value, path: &str, names: &[&str]) -> Result<Vec<(&'a Name, &'a Value)>, String> {
    if !(value.is_null() || value.is_object()) {
        return Err(format!("{path}: must be an object"));
    }
    let members: Vec<_> = value.as_object().into_iter().flatten().collect();
    let before = if path.is_empty() { String::new() } else { format!("{path}.") };
    let unknown = members.iter().filter(|(name, _)| !names.contains(&name.as_str()));
    let unknown: Vec<String> =
        unknown.map(|(name, _)| format!("unknown field {}", quote(&format!("{before}{name}")))).collect();
    if unknown.is_empty() { Ok(members) } else { Err(format!("strict decoding error: {}", unknown.join(", "))) }
}

/// Names of one kind of exemption.
fn exempt(exemptions: &Value, list: &str, complaints: fn(&str) -> Vec<String>) -> Result<Vec<String>, String> {
    let mut out: Vec<String> = Vec::new();
    for (at, name) in exemptions[list].as_array().into_iter().flatten().enumerate() {
        let path = format!("exemptions.{list}[{at}]");
        let Some(name) = name.as_str() else { return Err(format!("{path}: must be a text")) };
        let complaints = complaints(name);
        if !complaints.is_empty() {
            return Err(format!("{path}: Invalid value: {}: {}", quote(name), complaints.join(", ")));
        }
        if out.iter().any(|known| known == name) {
            return Err(format!("{path}: Duplicate value: {}", quote(name)));
        }
        out.push(name.to_owned());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(rest: Value) -> Result<PodSecuritySettings, String> {
        let mut configuration = rest;
        configuration["apiVersion"] = "pod-security.admission.config.k8s.io/v1".into();
        configuration["kind"] = "PodSecurityConfiguration".into();
        PodSecuritySettings::read(&configuration)
    }

    #[test]
    fn defaults_hold_where_labels_say_nothing() {
        let told =
            read(json!({"defaults": {"enforce": "baseline", "enforce-version": "v1.30", "audit": "restricted"}}));
        let told = told.expect("good");
        let shown = |policy: &Policy| [policy.enforce, policy.audit, policy.warn].map(|at| at.to_string());
        assert_eq!(shown(&told.defaults), ["baseline:v1.30", "restricted:latest", "privileged:latest"]);
        let of = |labels: Value| shown(&policy::of(&labels, &told.defaults).0);
        assert_eq!(of(Value::Null), shown(&told.defaults));
        let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
        assert_eq!(of(labels), ["restricted:v1.30", "restricted:latest", "restricted:v1.30"]);
        let labels = json!({"pod-security.kubernetes.io/audit": "nonsense"});
        assert_eq!(of(labels)[1], "privileged:latest", "what makes no sense is not judged by the default");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (rest, why) in [
            (json!({"defaults": {"warn": "strict"}}), "defaults.warn: Invalid value: \"strict\": must be one of"),
            (json!({"defaults": {"warn-version": "1.2"}}), "defaults.warn-version: Invalid value: \"1.2\": must be"),
            (json!({"exemptions": {"namespaces": ["A"]}}), "exemptions.namespaces[0]: Invalid value: \"A\": "),
            (json!({"exemptions": {"usernames": ["a", "a"]}}), "exemptions.usernames[1]: Duplicate value: \"a\""),
            (json!({"exemptions": {"usernames": [""]}}), "exemptions.usernames[0]: Invalid value: \"\": "),
            (json!({"exemptions": {"runtimeClasses": ["a_b"]}}), "exemptions.runtimeClasses[0]: Invalid value: "),
            (json!({"deflaults": {}}), "strict decoding error: unknown field \"deflaults\""),
            (json!({"defaults": {"enfore": "restricted"}}), "strict decoding error: unknown field \"defaults.enfore\""),
            (
                json!({"exemptions": {"users": [], "groups": []}}),
                "strict decoding error: unknown field \"exemptions.groups\", unknown field \"exemptions.users\"",
            ),
            (json!({"defaults": {"enforce": 5}}), "defaults.enforce: must be a text"),
            (json!({"defaults": "restricted"}), "defaults: must be an object"),
            (json!({"exemptions": []}), "exemptions: must be an object"),
            (json!({"exemptions": {"namespaces": "kube-system"}}), "exemptions.namespaces: must be a list"),
            (json!({"exemptions": {"namespaces": [1]}}), "exemptions.namespaces[0]: must be a text"),
        ] {
            let error = read(rest).expect_err(why);
            assert!(error.starts_with(why), "{error}");
        }
        assert!(PodSecuritySettings::read(&json!({"kind": "PodSecurityConfiguration"})).is_err());
        assert!(read(json!({"defaults": null, "exemptions": {"usernames": null}})).is_ok(), "nothing is said");
    }

    #[test]
    fn labels_of_an_exempt_namespace_are_told_to_do_nothing() {
        let told = read(json!({
            "defaults": {"enforce": "baseline"},
            "exemptions": {"namespaces": ["own"], "runtimeClasses": ["sandboxed"]},
        }));
        let told = told.expect("good");
        assert!(told.has_namespace("own") && !told.has_namespace("other"));
        assert!(told.exempts_pod(&json!({"spec": {"runtimeClassName": "sandboxed"}})));
        assert!(!told.exempts_pod(&json!({"spec": {}})));
        let ignored = |labels: Value| told.ignored("own", &policy::of(&labels, &told.defaults).0, &labels);
        assert_eq!(ignored(json!({})), None, "it is the default");
        assert_eq!(
            ignored(json!({"pod-security.kubernetes.io/audit": "restricted"})).as_deref(),
            Some(
                "namespace \"own\" is exempt from Pod Security, and the policy (audit=restricted:latest) will be ignored"
            )
        );
    }
}
