//! Kinds with a few rules each: disruption budgets, leases, priority and runtime classes, API services.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::shapes::TOLERATION;
use super::{amounts, has, meta, scheduling, selector, text, workload};
use crate::field_error::{Report, go_struct};
use crate::go_value::shown;
use crate::names;

pub fn disruption_budget(report: &mut Report, spec: &Value) {
    if has(spec, "minAvailable") && has(spec, "maxUnavailable") {
        let shown = go_struct(&[
            ("MinAvailable", &spec["minAvailable"]),
            ("Selector", &spec["selector"]),
            ("MaxUnavailable", &spec["maxUnavailable"]),
            ("UnhealthyPodEvictionPolicy", &spec["unhealthyPodEvictionPolicy"]),
        ]);
        report.invalid(shown, "minAvailable and maxUnavailable cannot be both set");
    }
    for name in ["minAvailable", "maxUnavailable"] {
        report.with(spec, name, |r, value| {
            workload::count_or_percent(r, value);
            workload::at_most_all(r, value);
        });
    }
    report.with(spec, "selector", selector::check);
    report.maybe_choice(spec, "unhealthyPodEvictionPolicy", &["AlwaysAllow", "IfHealthyBudget"]);
}

fn strategy(report: &mut Report, strategy: &str) {
    if strategy.contains('/') {
        report.at("strategy", |r| r.complaints(strategy, names::qualified_name(strategy)));
    } else if strategy != "OldestEmulationVersion" {
        report.at("strategy", |r| r.not_supported(strategy, &["OldestEmulationVersion"]));
    }
}

pub fn lease(report: &mut Report, spec: &Value) {
    if let Some(seconds) = spec["leaseDurationSeconds"].as_i64().filter(|s| *s <= 0) {
        report.bad("leaseDurationSeconds", seconds, "must be greater than 0");
    }
    report.not_negative(spec, "leaseTransitions");
    report.with(spec, "strategy", |r, said| strategy(r, said.as_str().unwrap_or_default()));
    if !text(spec, "preferredHolder").is_empty() && text(spec, "strategy").is_empty() {
        report.refuse("preferredHolder", "may only be specified if `strategy` is defined");
    }
}

pub fn lease_candidate(report: &mut Report, spec: &Value) {
    report.need(spec, "leaseName");
    let (emulated, binary) = (text(spec, "emulationVersion"), text(spec, "binaryVersion"));
    let version = |text: &str| crate::cel::parse_version(text).ok();
    if !emulated.is_empty() && version(emulated).is_none() {
        report.bad("emulationVersion", emulated, "must be a valid semantic version");
    }
    if report.need(spec, "binaryVersion") && version(binary).is_none() {
        report.bad("binaryVersion", binary, "must be a valid semantic version");
    }
    if let (Some(emulated), Some(found)) = (version(emulated), version(binary))
        && found < emulated
    {
        report.bad("binaryVersion", binary, "must be greater than or equal to `emulationVersion`");
    }
    if report.need(spec, "strategy") {
        let said = text(spec, "strategy");
        if said == "OldestEmulationVersion" && emulated.is_empty() {
            report.miss("emulationVersion", "must be specified when `strategy` is 'OldestEmulationVersion'");
        }
        report.at("strategy", |r| strategy(r, said));
    }
}

/// Priorities above this belong to the system.
const HIGHEST: i64 = 1_000_000_000;

pub fn priority_class(report: &mut Report, object: &Value) {
    let (name, value) = (text(&object["metadata"], "name"), object["value"].as_i64().unwrap_or(0));
    if name.starts_with("system-") {
        let known = [("system-cluster-critical", 2 * HIGHEST), ("system-node-critical", 2 * HIGHEST + 1000)];
        let error = match known.iter().find(|(known, _)| *known == name) {
            None => Some(format!("{name} is not a known system priority class")),
            Some((_, fixed)) if *fixed != value => Some(format!("value of {name} PriorityClass must be {fixed}")),
            Some(_) if object["globalDefault"] == true => {
                Some(format!("globalDefault of {name} PriorityClass must be false"))
            }
            Some(_) => None,
        };
        if let Some(error) = error {
            let why =
                format!("priority class names with 'system-' prefix are reserved for system use only. error: {error}");
            report.down(&["metadata", "name"], |r| r.forbidden(&why));
        }
    } else if value > HIGHEST {
        let why = format!("maximum allowed value of a user defined priority is {HIGHEST}");
        report.refuse("value", &why);
    }
    if object["preemptionPolicy"] == "" {
        report.miss("preemptionPolicy", "");
    } else {
        report.maybe_choice(object, "preemptionPolicy", &["PreemptLowerPriority", "Never"]);
    }
}

pub fn priority_class_update(report: &mut Report, new: &Value, old: &Value) {
    if new["value"].as_i64().unwrap_or(0) != old["value"].as_i64().unwrap_or(0) {
        report.refuse("value", "may not be changed in an update.");
    }
    report.immutable(new, old, "preemptionPolicy");
}

pub fn runtime_class(report: &mut Report, object: &Value) {
    let handler = text(object, "handler");
    report.at("handler", |r| r.complaints(handler, names::dns_label(handler)));
    report.with(object, "overhead", |r, overhead| {
        let limits = json!({"limits": overhead["podFixed"]});
        amounts::requirements(r, &limits, amounts::Owner::Container, &[]);
    });
    report.with(object, "scheduling", |r, rules| {
        r.at("nodeSelector", |r| meta::label_map(r, &rules["nodeSelector"]));
        scheduling::tolerations(r, rules);
        let mut seen = HashSet::new();
        r.each(rules, "tolerations", |r, toleration| {
            if !seen.insert(["key", "operator", "value", "effect"].map(|name| text(toleration, name))) {
                r.duplicate(shown(toleration, &TOLERATION));
            }
        });
    });
}

/// The name of the service says what it serves.
pub fn api_service_name(name: &str, spec: &Value) -> Vec<String> {
    let complaints = names::path_segment(name);
    let wanted = format!("{}.{}", text(spec, "version"), text(spec, "group"));
    if complaints.is_empty() && name != wanted {
        return vec![format!("must be `spec.version+\".\"+spec.group`: {}", crate::status::quote(&wanted))];
    }
    complaints
}

pub fn api_service_status(report: &mut Report, status: &Value) {
    const KNOWN: [&str; 3] = ["True", "False", "Unknown"];
    report.each(status, "conditions", |r, condition| {
        let said = text(condition, "status");
        if !KNOWN.contains(&said) {
            r.at("status", |r| r.not_supported(said, &KNOWN));
        }
    });
}

pub fn api_service(report: &mut Report, object: &Value) {
    let spec = &object["spec"];
    let (group, version) = (text(spec, "group"), text(spec, "version"));
    report.at("spec", |r| {
        if group.is_empty() && version != "v1" {
            r.miss("group", "only v1 may have an empty group and it better be legacy kube");
        }
        r.named(spec, "group", names::dns_subdomain);
        r.at("version", |r| r.complaints(version, names::dns_1035_label(version)));
        for (field, most) in [("groupPriorityMinimum", 20000), ("versionPriority", 1000)] {
            let number = spec[field].as_i64().unwrap_or(0);
            if !(1..=most).contains(&number) {
                r.bad(field, number, format_args!("must be positive and less than {most}"));
            }
        }
        let insecure = spec["insecureSkipTLSVerify"] == true;
        let service = &spec["service"];
        if !service.is_object() {
            let bundle = text(spec, "caBundle");
            if !bundle.is_empty() {
                // Three bytes to each four letters, but for the padding.
                let bytes = bundle.trim_end_matches('=').len() * 3 / 4;
                r.bad("caBundle", format!("{bytes} bytes").as_str(), "local APIServices may not have a caBundle");
            }
            if insecure {
                r.bad("insecureSkipTLSVerify", true, "local APIServices may not have insecureSkipTLSVerify");
            }
            return;
        }
        r.at("service", |r| {
            r.need(service, "namespace");
            r.need(service, "name");
            if let Some(port) = service.get("port").and_then(Value::as_i64).filter(|p| !(1..=65535).contains(p)) {
                r.bad("port", port, "port is not valid: must be between 1 and 65535, inclusive");
            }
        });
        if insecure && !text(spec, "caBundle").is_empty() {
            r.bad("insecureSkipTLSVerify", true, "may not be true if caBundle is present");
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerations_of_a_class_are_told_apart_by_all_but_their_seconds() {
        let toleration = |seconds: i64| json!({"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
        let class = json!({"handler": "h", "scheduling": {"tolerations": [toleration(1), toleration(2)]}});
        let shown = r#"{"Key":"k","Operator":"Exists","Value":"","Effect":"NoExecute","TolerationSeconds":2}"#;
        assert_eq!(
            Report::told(|r| runtime_class(r, &class)),
            [format!("scheduling.tolerations[1]: Duplicate value: {shown}")]
        );
    }

    #[test]
    fn a_service_of_the_api_is_named_after_what_it_serves() {
        let spec = json!({"version": "v1", "group": "a.b"});
        assert!(api_service_name("v1.a.b", &spec).is_empty());
        assert_eq!(api_service_name("v2.a.b", &spec), [r#"must be `spec.version+"."+spec.group`: "v1.a.b""#]);
        assert_eq!(api_service_name("a/b", &spec), ["may not contain '/'"]);
    }

    #[test]
    fn candidates_for_leases_tell_strict_versions() {
        let told = |emulation: &str, binary: &str| {
            let spec = json!({"leaseName": "l", "emulationVersion": emulation, "binaryVersion": binary,
                "strategy": "OldestEmulationVersion"});
            Report::told(|r| r.at("spec", |r| lease_candidate(r, &spec)))
        };
        assert!(told("1.36.0", "1.36.2").is_empty());
        assert!(told("1.36.0-alpha.1", "1.36.0").is_empty(), "a release comes after what led to it");
        for bad in ["1.36", "01.36.0", "v1.36.0", "1.36.0-", "1.+3.0"] {
            let said = format!("spec.binaryVersion: Invalid value: \"{bad}\": must be a valid semantic version");
            assert_eq!(told("1.36.0", bad), [said]);
        }
        let said = "spec.binaryVersion: Invalid value: \"1.36.0-alpha.1\": must be greater than or equal to \
                    `emulationVersion`";
        assert_eq!(told("1.36.0", "1.36.0-alpha.1"), [said]);
    }
}
