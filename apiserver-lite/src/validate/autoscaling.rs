//! Horizontal pod autoscalers, in the form in which they are stored.

use serde_json::Value;

use super::{amounts, has, list, text};
use crate::field_error::Report;
use crate::names;

const METRICS: [&str; 5] = ["ContainerResource", "External", "Object", "Pods", "Resource"];

/// `old` is the spec as it was; null for a new one. What was accepted once stays good.
pub fn check(report: &mut Report, spec: &Value, old: &Value) {
    let (least, most) = (spec["minReplicas"].as_i64(), spec["maxReplicas"].as_i64().unwrap_or(0));
    let lowest = if report.rules.scales_to_zero || old["minReplicas"] == 0 { 0 } else { 1 };
    if let Some(least) = least.filter(|l| *l < lowest) {
        report.bad("minReplicas", least, format_args!("must be greater than or equal to {lowest}"));
    }
    if most == 0 {
        report.miss("maxReplicas", "must be set and greater than 0");
    } else if most < 1 {
        report.bad("maxReplicas", most, "must be greater than 0");
    }
    if let Some(least) = least.filter(|l| most < *l) {
        let _ = least;
        report.bad("maxReplicas", most, "must be greater than or equal to `minReplicas`");
    }
    report.at("scaleTargetRef", |r| {
        // Of what is in no group only one kind can be scaled.
        let of_core = |target: &Value| target["kind"] == "ReplicationController";
        let (target, was) = (&spec["scaleTargetRef"], &old["scaleTargetRef"]);
        let excused = was.is_object() && wrong_version(was, of_core(target)).is_some();
        reference(r, target, of_core(target), excused);
    });
    let described = |metric: &&Value| has(&metric["object"], "describedObject");
    let mut was = list(old, "metrics").iter().filter(described);
    let excused = was.any(|m| wrong_version(&m["object"]["describedObject"], true).is_some());
    report.each(spec, "metrics", |r, item| metric(r, item, excused));
    if least == Some(0) && !list(spec, "metrics").iter().any(|m| ["Object", "External"].contains(&text(m, "type"))) {
        let why = "must specify at least one Object or External metric to support scaling to zero replicas";
        report.refuse("metrics", why);
    }
    report.with(spec, "behavior", |r, behavior| {
        for name in ["scaleUp", "scaleDown"] {
            r.with(behavior, name, rules);
        }
    });
}

/// `groupless`: the version may be one of the core. `excused`: whatever it is.
fn reference(report: &mut Report, reference: &Value, groupless: bool, excused: bool) {
    report.need_named(reference, "kind", names::path_segment);
    report.need_named(reference, "name", names::path_segment);
    if let Some(why) = wrong_version(reference, groupless).filter(|_| !excused) {
        report.bad("apiVersion", text(reference, "apiVersion"), why);
    }
}

/// What is wrong with the version that a reference names.
fn wrong_version(reference: &Value, groupless: bool) -> Option<String> {
    let version = text(reference, "apiVersion");
    match version.split('/').collect::<Vec<_>>()[..] {
        [_, _, _, ..] => Some(format!("unexpected GroupVersion string: {version}")),
        [group, _] if !group.is_empty() => None,
        _ => (!groupless).then(|| "apiVersion must specify API group".to_owned()),
    }
}

fn rules(report: &mut Report, rules: &Value) {
    if let Some(window) = rules["stabilizationWindowSeconds"].as_i64() {
        if window < 0 {
            report.bad("stabilizationWindowSeconds", window, "must be greater than or equal to zero");
        }
        if window > 3600 {
            report.bad("stabilizationWindowSeconds", window, "must be less than or equal to 3600");
        }
    }
    report.maybe_choice(rules, "selectPolicy", &["Disabled", "Max", "Min"]);
    if list(rules, "policies").is_empty() {
        report.miss("policies", "must specify at least one Policy");
    }
    report.each(rules, "policies", |r, policy| {
        let kind = text(policy, "type");
        if !["Percent", "Pods"].contains(&kind) {
            r.at("type", |r| r.not_supported(kind, &["Percent", "Pods"]));
        }
        for name in ["value", "periodSeconds"] {
            let number = policy[name].as_i64().unwrap_or(0);
            if number <= 0 {
                r.bad(name, number, "must be greater than zero");
            }
            if name == "periodSeconds" && number > 1800 {
                r.bad(name, number, "must be less than or equal to 1800");
            }
        }
    });
    if amounts::quantity(&rules["tolerance"]).is_some_and(|t| t.sign() < 0) {
        report.bad("tolerance", &rules["tolerance"], "must be greater or equal to zero");
    }
}

fn metric(report: &mut Report, metric: &Value, excused: bool) {
    let kind = text(metric, "type");
    if kind.is_empty() {
        report.miss("type", "must specify a metric source type");
    }
    let unknown = |report: &mut Report| {
        if !METRICS.contains(&kind) {
            report.at("type", |r| r.not_supported(kind, &METRICS));
        }
    };
    unknown(report);
    let sources = ["object", "external", "pods", "resource", "containerResource"];
    let present: Vec<&str> = sources.into_iter().filter(|s| has(metric, s)).collect();
    if let Some(first) = present.first() {
        report.at(first, |r| source(r, first, &metric[*first], excused));
    }
    let expected = sources.into_iter().find(|s| s.eq_ignore_ascii_case(kind));
    match expected {
        Some(expected) if !present.contains(&expected) => {
            report.miss(expected, "must populate information for the given metric source");
        }
        Some(_) => {}
        None => unknown(report),
    }
    if present.len() != 1 {
        let mut others: Vec<&str> = present.into_iter().filter(|p| Some(*p) != expected).collect();
        others.sort_unstable();
        others.into_iter().for_each(|name| report.refuse(name, "must populate the given metric source only"));
    }
}

fn source(report: &mut Report, kind: &str, source: &Value, excused: bool) {
    let wanted = &source["target"];
    let (value, average) = (has(wanted, "value"), has(wanted, "averageValue"));
    let utilization = has(wanted, "averageUtilization");
    match kind {
        "object" => report.at("describedObject", |r| reference(r, &source["describedObject"], true, excused)),
        "resource" | "containerResource" => {
            let name = text(source, "name");
            if name.is_empty() {
                report.miss("name", "must specify a resource name");
            } else if kind == "containerResource" {
                report.at("name", |r| amounts::container_name(r, name));
            }
            if kind == "containerResource" {
                if text(source, "container").is_empty() {
                    report.miss("container", "must specify a container");
                }
                report.named(source, "container", names::dns_label);
            }
        }
        _ => {}
    }
    if ["object", "external", "pods"].contains(&kind) {
        report.at("metric", |r| {
            if text(&source["metric"], "name").is_empty() {
                r.miss("name", "must specify a metric name");
            }
            r.named(&source["metric"], "name", names::path_segment);
        });
    }
    report.at("target", |r| {
        target(r, wanted);
        match kind {
            "object" if !value && !average => r.miss("averageValue", "must set either a target value or averageValue"),
            "external" => {
                if !value && !average {
                    r.miss("averageValue", "must set either a target value for metric or a per-pod target");
                }
                if value && average {
                    r.refuse("value", "may not set both a target value for metric and a per-pod target");
                }
            }
            "pods" if !average => r.miss("averageValue", "must specify a positive target averageValue"),
            "resource" | "containerResource" => {
                if !utilization && !average {
                    let why = "must set either a target raw value or a target utilization";
                    r.miss("averageUtilization", why);
                }
                if utilization && average {
                    r.refuse("averageValue", "may not set both a target raw value and a target utilization");
                }
            }
            _ => {}
        }
    });
}

fn target(report: &mut Report, target: &Value) {
    let kind = text(target, "type");
    if kind.is_empty() {
        report.miss("type", "must specify a metric target type");
    }
    if !["Utilization", "Value", "AverageValue"].contains(&kind) {
        report.bad("type", kind, "must be either Utilization, Value, or AverageValue");
    }
    for name in ["value", "averageValue"] {
        if amounts::quantity(&target[name]).is_some_and(|q| q.sign() <= 0) {
            report.bad(name, &target[name], "must be positive");
        }
    }
    if let Some(percent) = target["averageUtilization"].as_i64().filter(|p| *p < 1) {
        report.bad("averageUtilization", percent, "must be greater than 0");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::field_error::Rules;

    fn told(target: &Value, described: &str, old: &Value) -> Vec<String> {
        let spec = spec(target, described);
        Report::told(|r| check(r, &spec, old))
    }

    fn spec(target: &Value, described: &str) -> Value {
        let described = json!({"kind": "Service", "name": "s", "apiVersion": described});
        let object = json!({"describedObject": described, "metric": {"name": "m"},
            "target": {"type": "Value", "value": "1"}});
        json!({"maxReplicas": 2, "scaleTargetRef": target, "metrics": [{"type": "Object", "object": object}]})
    }

    fn target(kind: &str, version: &str) -> Value {
        json!({"kind": kind, "name": "a", "apiVersion": version})
    }

    #[test]
    fn what_is_scaled_is_in_a_group() {
        let new = Value::Null;
        assert!(told(&target("Deployment", "apps/v1"), "v1", &new).is_empty());
        assert!(told(&target("ReplicationController", ""), "", &new).is_empty());
        let group = "scaleTargetRef.apiVersion: Invalid value: \"v1\": apiVersion must specify API group";
        assert_eq!(told(&target("Deployment", "v1"), "v1", &new), [group]);
        let slashes = "scaleTargetRef.apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c";
        assert_eq!(told(&target("ReplicationController", "a/b/c"), "v1", &new), [slashes]);
        let described = told(&target("Deployment", "apps/v1"), "a/b/c", &new);
        assert_eq!(described.len(), 1, "{described:?}");
        assert!(described[0].starts_with("metrics[0].object.describedObject.apiVersion: "), "{described:?}");
        let was = spec(&target("Deployment", "v1"), "x/y/z");
        assert!(told(&target("Deployment", "v2"), "a/b/c", &was).is_empty(), "it was wrong before");
    }

    #[test]
    fn none_may_run_where_that_is_switched_on_or_was() {
        let mut zero = spec(&target("Deployment", "apps/v1"), "v1");
        zero["minReplicas"] = 0.into();
        let one = "minReplicas: Invalid value: 0: must be greater than or equal to 1";
        assert_eq!(Report::told(|r| check(r, &zero, &Value::Null)), [one]);
        assert!(Report::told(|r| check(r, &zero, &zero)).is_empty());
        let told = |spec: &Value| {
            Report::told(|r| {
                r.rules = Rules { scales_to_zero: true, ..Rules::default() };
                check(r, spec, &Value::Null);
            })
        };
        assert!(told(&zero).is_empty());
        zero["metrics"] = json!([]);
        assert!(told(&zero)[0].contains("must specify at least one Object or External metric"));
        zero["minReplicas"] = (-1).into();
        assert_eq!(told(&zero), ["minReplicas: Invalid value: -1: must be greater than or equal to 0"]);
    }
}
