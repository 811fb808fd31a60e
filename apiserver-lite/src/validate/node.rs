//! Nodes.

use std::collections::HashSet;

use serde_json::Value;

use super::{amounts, ip, list, scheduling, text, texts};
use crate::field_error::{Report, go_struct};
use crate::names;

const TAINTS: &str = "scheduler.alpha.kubernetes.io/taints";
const AVOID_PODS: &str = "scheduler.alpha.kubernetes.io/preferAvoidPods";

/// Annotations that meant something before there were fields for it, and are still read.
fn annotations(report: &mut Report, object: &Value) {
    let said = |key: &str| object["metadata"]["annotations"][key].as_str().filter(|said| !said.is_empty());
    report.down(&["metadata", "annotations"], |r| {
        match said(TAINTS).map(old_taints) {
            None => {}
            Some(Ok(all)) => r.at(TAINTS, |r| taints(r, &all)),
            Some(Err(why)) => r.invalid(TAINTS, why),
        }
        match said(AVOID_PODS).map(|said| decoded(said, "v1.AvoidPods", |v| v.is_object())) {
            None => {}
            Some(Ok(all)) => {
                for (index, entry) in list(&all, "preferAvoidPods").iter().enumerate() {
                    r.at(AVOID_PODS, |r| r.index(index, |r| avoided(r, entry)));
                }
            }
            Some(Err(why)) => r.bad("AvoidPods", AVOID_PODS, why),
        }
    });
}

/// Taints as they were before there was a field for them.
fn old_taints(said: &str) -> Result<Vec<Value>, String> {
    let Value::Array(all) = decoded(said, "[]v1.Taint", Value::is_array)? else { return Ok(Vec::new()) };
    all.iter().try_for_each(|taint| fits(taint, "v1.Taint", taint.is_object()))?;
    Ok(all)
}

/// What an annotation's JSON holds, or why it cannot be that, in the words of Go's decoder.
fn decoded(said: &str, kind: &str, is_one: impl Fn(&Value) -> bool) -> Result<Value, String> {
    let value = proto::json::parse(said.as_bytes()).map_err(|why| why.to_string())?.value;
    let one = is_one(&value);
    fits(&value, kind, one).map(|()| value)
}

fn fits(value: &Value, kind: &str, fits: bool) -> Result<(), String> {
    if fits || value.is_null() {
        return Ok(());
    }
    Err(format!("json: cannot unmarshal {} into Go value of type {kind}", crate::go_value::json_kind(value)))
}

/// One entry of those whose pods a node would rather not have. Upstream names Go's fields here.
fn avoided(report: &mut Report, entry: &Value) {
    let controller = &entry["podSignature"]["podController"];
    if !controller.is_object() {
        report.miss("PodSignature", "");
    } else if controller["controller"] != true {
        report.down(&["PodSignature", "PodController"], |r| r.bad("Controller", false, "must point to a controller"));
    }
}

/// Upstream reports those of the spec under the metadata.
fn spec_taints(report: &mut Report, spec: &Value) {
    report.down(&["metadata", "taints"], |r| taints(r, list(spec, "taints")));
}

/// Taints; called at their list.
fn taints(report: &mut Report, all: &[Value]) {
    let mut seen: HashSet<(&str, &str)> = HashSet::new();
    for (index, taint) in all.iter().enumerate() {
        let (key, value, effect) = (text(taint, "key"), text(taint, "value"), text(taint, "effect"));
        report.index(index, |r| {
            r.at("key", |r| r.complaints(key, names::qualified_name(key)));
            let complaints = names::label_value(value);
            if !complaints.is_empty() {
                r.bad("value", value, complaints.join(";"));
            }
            r.choice(taint, "effect", &scheduling::EFFECTS);
            if !seen.insert((effect, key)) {
                let empty = Value::String(String::new());
                let shown = go_struct(&[
                    ("Key", &taint["key"]),
                    ("Value", if taint["value"].is_null() { &empty } else { &taint["value"] }),
                    ("Effect", &taint["effect"]),
                    ("TimeAdded", &taint["timeAdded"]),
                ]);
                r.duplicate_because(shown, "taints must be unique by key and effect pair");
            }
        });
    }
}

/// Names of features that a node says it has: in order, each once.
fn declared_features(report: &mut Report, status: &Value) {
    let all = texts(status, "declaredFeatures");
    report.at("declaredFeatures", |r| {
        for (index, name) in all.iter().enumerate() {
            if let Some(why) = feature_name(name) {
                r.index(index, |r| r.invalid(*name, why));
            }
            match all.get(index + 1) {
                Some(next) if next == name => r.index(index + 1, |r| r.duplicate(*next)),
                Some(next) if next < name => {
                    r.index(index + 1, |r| r.invalid(*next, "list must be sorted alphabetically"));
                }
                _ => {}
            }
        }
    });
}

/// What is wrong with the name of a feature: `MyFeature`, or `MyFeature/mySubFeature`.
fn feature_name(name: &str) -> Option<String> {
    const LONGEST: usize = 253;
    let quoted = crate::status::quote(name);
    if name.len() > LONGEST {
        return Some(format!("invalid feature name {quoted}: must be no more than {LONGEST} characters"));
    }
    let word = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_alphabetic()) && word.chars().all(|c| c.is_ascii_alphanumeric())
    };
    if name.split('/').all(word) && name.starts_with(|c: char| c.is_ascii_uppercase()) {
        return None;
    }
    Some(format!(
        "invalid feature name {quoted}: must start with an UpperCamelCase segment, with subsequent segments separated by \
         '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes"
    ))
}

fn resources(report: &mut Report, object: &Value) {
    for name in ["capacity", "allocatable"] {
        for (resource, amount) in object["status"][name].as_object().into_iter().flatten() {
            report.down(&["status", name, resource], |r| amounts::amount(r, resource, amount));
        }
    }
}

pub fn check(report: &mut Report, object: &Value) {
    let spec = &object["spec"];
    annotations(report, object);
    spec_taints(report, spec);
    resources(report, object);
    if let Some(capacity) = object["status"]["nodeInfo"]["swap"]["capacity"].as_i64().filter(|c| *c <= 0) {
        // Upstream's path.
        report.down(&["metadata", "nodeSwapStatus"], |r| r.bad("capacity", capacity, "must be greater than zero"));
    }
    report.at("status", |r| declared_features(r, &object["status"]));
    let ranges = texts(spec, "podCIDRs");
    report.at("spec", |r| {
        r.each(spec, "podCIDRs", |r, range| {
            let range = range.as_str().unwrap_or_default();
            ip::check_range(r, range);
        });
        if ranges.len() < 2 {
            return;
        }
        if ranges.len() > 2 || !ip::is_dual_stack(ranges.iter().copied()) {
            r.bad("podCIDRs", &spec["podCIDRs"], "may specify no more than one CIDR for each IP family");
        }
        for index in (0..ranges.len()).filter(|i| ranges[..*i].contains(&ranges[*i])) {
            r.at("podCIDRs", |r| r.index(index, |r| r.duplicate(ranges[index])));
        }
    });
}

pub fn update(report: &mut Report, new: &Value, old: &Value) {
    annotations(report, new);
    resources(report, new);
    report.at("status", |r| {
        declared_features(r, &new["status"]);
        let mut seen = HashSet::new();
        r.items(&new["status"], "addresses", |r, _, address| {
            if !seen.insert(address) {
                r.duplicate(go_struct(&[("Type", &address["type"]), ("Address", &address["address"])]));
            }
        });
    });
    let (now, before) = (&new["spec"], &old["spec"]);
    report.at("spec", |r| {
        let (ranges, had) = (texts(now, "podCIDRs"), texts(before, "podCIDRs"));
        let why = "node updates may not change podCIDR except from \"\" to valid";
        if !had.is_empty() && had.len() != ranges.len() {
            r.refuse("podCIDRs", why);
        } else {
            for _ in had.iter().zip(&ranges).filter(|(a, b)| a != b) {
                r.refuse("podCIDRs", why);
            }
        }
        let had = text(before, "providerID");
        if !had.is_empty() && had != text(now, "providerID") {
            r.refuse("providerID", "node updates may not change providerID except from \"\" to valid");
        }
    });
    spec_taints(report, now);
    if text(now, "externalID") != text(before, "externalID") {
        report.at("spec", |r| r.refuse("externalID", "may not be updated"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(object: &Value) -> Vec<String> {
        Report::told(|r| check(r, object))
    }

    fn annotated(key: &str, value: &str) -> Vec<String> {
        told(&json!({"metadata": {"name": "n", "annotations": {key: value}}}))
    }

    #[test]
    fn annotations_from_before_there_were_fields_are_read() {
        let good = r#"[{"key": "a", "value": "b", "effect": "NoSchedule"}]"#;
        assert!(annotated(TAINTS, good).is_empty());
        assert!(annotated(TAINTS, "").is_empty() && annotated(TAINTS, "null").is_empty());
        let bad = r#"[{"key": "a", "effect": "Never"}, {"key": "a", "effect": "Never"}]"#;
        let found = annotated(TAINTS, bad);
        let at = "metadata.annotations.scheduler.alpha.kubernetes.io/taints";
        assert!(found[0].starts_with(&format!("{at}[0].effect: Unsupported value: \"Never\"")), "{found:?}");
        assert!(found.iter().any(|f| f.starts_with(&format!("{at}[1]: Duplicate value"))), "{found:?}");
        for unreadable in ["[", "{}", "[1]"] {
            let found = annotated(TAINTS, unreadable);
            let said = format!("metadata.annotations: Invalid value: \"{TAINTS}\": ");
            assert!(found.len() == 1 && found[0].starts_with(&said), "{found:?}");
        }
    }

    #[test]
    fn many_taints_are_read_in_one_go() {
        let taint = |index: usize| json!({"key": format!("k{index}"), "effect": "NoSchedule"});
        let mut all: Vec<Value> = (0..100_000).map(taint).collect();
        all.push(taint(7));
        // The same key with another effect is another taint.
        all.push(json!({"key": "k7", "effect": "NoExecute"}));
        let since = std::time::Instant::now();
        let found = told(&json!({"metadata": {"name": "n"}, "spec": {"taints": all}}));
        assert!(found.len() == 1 && found[0].starts_with("metadata.taints[100000]: Duplicate value"), "{found:?}");
        assert!(since.elapsed().as_secs() < 20, "comparing each with each takes minutes: {:?}", since.elapsed());
    }

    #[test]
    fn who_is_avoided_is_a_controller() {
        let entry = |controller: Value| json!({"preferAvoidPods": [{"podSignature": controller}]}).to_string();
        assert!(annotated(AVOID_PODS, &entry(json!({"podController": {"controller": true}}))).is_empty());
        let at = format!("metadata.annotations.{AVOID_PODS}[0].PodSignature");
        assert_eq!(annotated(AVOID_PODS, &entry(Value::Null)), [format!("{at}: Required value")]);
        let said = format!("{at}.PodController.Controller: Invalid value: false: must point to a controller");
        assert_eq!(annotated(AVOID_PODS, &entry(json!({"podController": {"controller": false}}))), [said]);
        let found = annotated(AVOID_PODS, "not json");
        assert!(found[0].starts_with("metadata.annotations.AvoidPods: Invalid value: "), "{found:?}");
        let at = format!("metadata.annotations.AvoidPods: Invalid value: \"{AVOID_PODS}\": ");
        assert_eq!(annotated(AVOID_PODS, "{"), [format!("{at}unexpected end of JSON input")]);
        let said = "json: cannot unmarshal array into Go value of type v1.AvoidPods";
        assert_eq!(annotated(AVOID_PODS, "[]"), [format!("{at}{said}")]);
    }

    #[test]
    fn declared_features_are_names_in_order() {
        let of = |all: &[&str]| told(&json!({"metadata": {"name": "n"}, "status": {"declaredFeatures": all}}));
        assert!(of(&["Feature", "Feature/part", "Other2"]).is_empty());
        let sorted = "status.declaredFeatures[1]: Invalid value: \"A\": list must be sorted alphabetically";
        assert_eq!(of(&["B", "A"]), [sorted]);
        assert_eq!(of(&["B", "B"]), ["status.declaredFeatures[1]: Duplicate value: \"B\""]);
        for bad in ["feature", "", "A/", "A b", "A/1"] {
            let found = of(&[bad]);
            assert!(found.len() == 1 && found[0].contains("UpperCamelCase"), "{bad}: {found:?}");
        }
    }
}
