//! Where a pod may run: affinity, node selectors, tolerations, topology spread.

use serde_json::Value;

use super::{list, selector, text};
use crate::field_error::Report;
use crate::names;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
pub const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub fn affinity(report: &mut Report, affinity: &Value) {
    report.with(affinity, "nodeAffinity", |r, node| {
        r.with(node, REQUIRED, node_selector);
        r.each(node, PREFERRED, |r, term| {
            weight(r, term);
            r.at("preference", |r| node_term(r, &term["preference"], true));
        });
    });
    for name in ["podAffinity", "podAntiAffinity"] {
        report.with(affinity, name, |r, pods| {
            r.each(pods, REQUIRED, pod_term);
            r.each(pods, PREFERRED, |r, term| {
                weight(r, term);
                r.at("podAffinityTerm", |r| pod_term(r, &term["podAffinityTerm"]));
            });
        });
    }
}

fn weight(report: &mut Report, term: &Value) {
    let weight = term["weight"].as_i64().unwrap_or(0);
    if !(1..=100).contains(&weight) {
        report.bad("weight", weight, "must be in the range 1-100");
    }
}

/// Terms of which one has to select the node.
pub fn node_selector(report: &mut Report, selector: &Value) {
    if list(selector, "nodeSelectorTerms").is_empty() {
        return report.miss("nodeSelectorTerms", "must have at least one node selector term");
    }
    report.each(selector, "nodeSelectorTerms", |r, term| node_term(r, term, false));
}

/// `lenient`: values that are no labels were always accepted here.
fn node_term(report: &mut Report, term: &Value, lenient: bool) {
    report.each(term, "matchExpressions", |r, requirement| {
        let values = list(requirement, "values");
        match text(requirement, "operator") {
            "In" | "NotIn" if values.is_empty() => {
                r.miss("values", "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                r.refuse("values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
            }
            "Gt" | "Lt" if values.len() != 1 => {
                r.miss("values", "must be specified single value when `operator` is 'Lt' or 'Gt'");
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
            operator => r.bad("operator", operator, "not a valid selector operator"),
        }
        let key = text(requirement, "key");
        r.at("key", |r| r.complaints(key, names::qualified_name(key)));
        if !lenient {
            r.each(requirement, "values", |r, value| {
                let value = value.as_str().unwrap_or_default();
                r.complaints(value, names::label_value(value));
            });
        }
    });
    report.each(term, "matchFields", |r, requirement| {
        let operator = text(requirement, "operator");
        if !["In", "NotIn"].contains(&operator) {
            r.bad("operator", operator, "not a valid selector operator");
        } else if list(requirement, "values").len() != 1 {
            let why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            r.miss("values", why);
        }
        match text(requirement, "key") {
            "metadata.name" => r.each(requirement, "values", |r, value| {
                let value = value.as_str().unwrap_or_default();
                r.complaints(value, names::dns_subdomain(value));
            }),
            key => r.bad("key", key, "not a valid field selector key"),
        }
    });
}

fn pod_term(report: &mut Report, term: &Value) {
    for name in ["labelSelector", "namespaceSelector"] {
        report.with(term, name, selector::check);
    }
    for name in list(term, "namespaces").iter().filter_map(Value::as_str) {
        report.at("namespace", |r| r.complaints(name, names::dns_label(name)));
    }
    label_keys(report, term);
    report.at("topologyKey", |r| {
        let key = text(term, "topologyKey");
        if key.is_empty() {
            r.required("can not be empty");
        }
        r.complaints(key, names::qualified_name(key));
    });
}

fn label_keys(report: &mut Report, term: &Value) {
    let selected = &term["labelSelector"];
    for name in ["matchLabelKeys", "mismatchLabelKeys"] {
        if !list(term, name).is_empty() && !selected.is_object() {
            report.refuse(name, "must not be specified when labelSelector is not set");
            continue;
        }
        report.each(term, name, |r, key| {
            let key = key.as_str().unwrap_or_default();
            r.complaints(key, names::qualified_name(key));
        });
    }
    let keys = list(term, "matchLabelKeys");
    let mut known: Vec<&str> =
        selected["matchLabels"].as_object().into_iter().flatten().map(|(k, _)| k.as_str()).collect();
    for expression in list(selected, "matchExpressions") {
        let key = text(expression, "key");
        if let Some(index) = keys.iter().position(|k| k == key).filter(|_| known.contains(&key)) {
            report.index(index, |r| r.invalid(key, "exists in both matchLabelKeys and labelSelector"));
        }
        known.push(key);
    }
    report.each(term, "matchLabelKeys", |r, key| {
        if list(term, "mismatchLabelKeys").contains(key) {
            r.invalid(key, "exists in both matchLabelKeys and mismatchLabelKeys");
        }
    });
}

/// The tolerations of a pod or a runtime class.
pub fn tolerations(report: &mut Report, object: &Value) {
    let compares = report.rules.compares_tolerations;
    tolerations_at(report, object, "tolerations", compares);
}

/// As [`tolerations`], for a list by another name; `compares`: numbers may be compared.
pub fn tolerations_at(report: &mut Report, object: &Value, name: &str, compares: bool) {
    report.each(object, name, |r, toleration| {
        let (key, operator) = (text(toleration, "key"), text(toleration, "operator"));
        let (effect, value) = (text(toleration, "effect"), text(toleration, "value"));
        r.named(toleration, "key", names::qualified_name);
        if key.is_empty() && operator != "Exists" {
            let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            r.bad("operator", operator, why);
        }
        if !toleration["tolerationSeconds"].is_null() && effect != "NoExecute" {
            r.bad("effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set");
        }
        match operator {
            "" | "Equal" => {
                let complaints = names::label_value(value);
                if !complaints.is_empty() {
                    r.bad("operator", value, complaints.join(";"));
                }
            }
            "Exists" if !value.is_empty() => {
                r.bad("operator", value, "value must be empty when `operator` is 'Exists'");
            }
            "Exists" => {}
            "Lt" | "Gt" if compares => {
                if !value.parse::<i64>().is_ok_and(|number| number.to_string() == value) {
                    r.bad("value", value, "must be a valid decimal integer in canonical form");
                }
            }
            other => {
                let known: &[&str] = if compares { &["Equal", "Exists", "Lt", "Gt"] } else { &["Equal", "Exists"] };
                r.at("operator", |r| r.not_supported(other, known));
            }
        }
        if !effect.is_empty() {
            r.maybe_choice(toleration, "effect", &EFFECTS);
        }
    });
}

/// Whether a selector speaks of a label again: what a pod's label keys ask for is among its requirements already.
fn is_selected_twice(selector: &Value, key: &str) -> bool {
    let requirements = list(selector, "matchExpressions").iter().filter(|e| text(e, "key") == key).count();
    requirements > 1 || requirements == 1 && !selector["matchLabels"][key].is_null()
}

/// How evenly pods are spread.
pub fn spread(report: &mut Report, spec: &Value) {
    let all = list(spec, "topologySpreadConstraints");
    report.items(spec, "topologySpreadConstraints", |r, index, constraint| {
        let action = text(constraint, "whenUnsatisfiable");
        let skew = constraint["maxSkew"].as_i64().unwrap_or(0);
        if skew <= 0 {
            r.bad("maxSkew", skew, "must be greater than zero");
        }
        let key = text(constraint, "topologyKey");
        if key.is_empty() {
            r.miss("topologyKey", "can not be empty");
        }
        if !["DoNotSchedule", "ScheduleAnyway"].contains(&action) {
            r.at("whenUnsatisfiable", |r| r.not_supported(action, &["DoNotSchedule", "ScheduleAnyway"]));
        }
        let again = |c: &Value| text(c, "topologyKey") == key && text(c, "whenUnsatisfiable") == action;
        if all[index + 1..].iter().any(again) {
            let pair = format!("{{{key}, {action}}}");
            r.at("{topologyKey, whenUnsatisfiable}", |r| r.duplicate(pair.as_str()));
        }
        if let Some(domains) = constraint["minDomains"].as_i64() {
            if domains <= 0 {
                r.bad("minDomains", domains, "must be greater than zero");
            }
            if action != "DoNotSchedule" {
                let why = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
                r.bad("minDomains", domains, why);
            }
        }
        for name in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            r.maybe_choice(constraint, name, &["Honor", "Ignore"]);
        }
        let selected = &constraint["labelSelector"];
        if !list(constraint, "matchLabelKeys").is_empty() && !selected.is_object() {
            r.refuse("matchLabelKeys", "must not be specified when labelSelector is not set");
        }
        r.each(constraint, "matchLabelKeys", |r, key| {
            let key = key.as_str().unwrap_or_default();
            r.complaints(key, names::qualified_name(key));
            if is_selected_twice(selected, key) {
                r.invalid(key, "exists in both matchLabelKeys and labelSelector");
            }
        });
        r.with(constraint, "labelSelector", selector::check);
    });
}
