//! Label selectors: what they may say, and whether they select a set of labels.

use serde_json::Value;

use super::{list, text};
use crate::field_error::{Raw, Report, ordered};
use crate::names;

/// A selector as Go prints it.
pub fn shown(selector: &Value) -> Raw {
    let expressions = list(selector, "matchExpressions");
    let expressions: Vec<String> = expressions.iter().map(|e| ordered(e, &["key", "operator", "values"]).0).collect();
    let mut fields = Vec::new();
    if selector["matchLabels"].as_object().is_some_and(|l| !l.is_empty()) {
        fields.push(format!("\"matchLabels\":{}", selector["matchLabels"]));
    }
    if !expressions.is_empty() {
        fields.push(format!("\"matchExpressions\":[{}]", expressions.join(",")));
    }
    Raw(if selector.is_null() { "null".into() } else { format!("{{{}}}", fields.join(",")) })
}

/// A selector that selects nothing in particular.
pub fn is_empty(selector: &Value) -> bool {
    list(selector, "matchExpressions").is_empty() && selector["matchLabels"].as_object().is_none_or(|l| l.is_empty())
}

/// A workload's selector: present, well formed and not empty. `kind` is how upstream names the workload here. True
/// when the selector can be compared with labels.
pub fn required(report: &mut Report, selector: &Value, kind: &str) -> bool {
    if selector.is_null() {
        report.required("");
        return true;
    }
    let sound = report.sound(|r| check(r, selector));
    if is_empty(selector) {
        report.invalid(shown(selector), format_args!("empty selector is invalid for {kind}"));
    }
    sound
}

/// Complaints about a selector; an empty one is fine.
pub fn check(report: &mut Report, selector: &Value) {
    report.at("matchLabels", |r| super::meta::label_map(r, &selector["matchLabels"]));
    report.each(selector, "matchExpressions", |r, expression| {
        let values = expression["values"].as_array().map_or(&[][..], Vec::as_slice);
        match text(expression, "operator") {
            "In" | "NotIn" if values.is_empty() => {
                r.at("values", |r| r.required("must be specified when `operator` is 'In' or 'NotIn'"));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                r.at("values", |r| r.forbidden("may not be specified when `operator` is 'Exists' or 'DoesNotExist'"));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            operator => r.at("operator", |r| r.invalid(operator, "not a valid selector operator")),
        }
        let key = text(expression, "key");
        r.at("key", |r| r.complaints(key, names::qualified_name(key)));
        r.at("values", |r| {
            for (index, value) in values.iter().filter_map(Value::as_str).enumerate() {
                r.index(index, |r| r.complaints(value, names::label_value(value)));
            }
        });
    });
}

/// Whether a selector selects these labels; an absent one selects nothing.
pub fn matches(selector: &Value, labels: &Value) -> bool {
    if selector.is_null() {
        return false;
    }
    let label = |key: &str| labels.get(key).and_then(Value::as_str);
    let pairs = selector["matchLabels"].as_object().into_iter().flatten();
    let expressions = selector["matchExpressions"].as_array().into_iter().flatten();
    pairs.into_iter().all(|(key, value)| label(key) == value.as_str())
        && expressions.into_iter().all(|expression| {
            let found = label(text(expression, "key"));
            let listed = || expression["values"].as_array().is_some_and(|v| v.iter().any(|v| v.as_str() == found));
            match text(expression, "operator") {
                "In" => found.is_some() && listed(),
                "NotIn" => found.is_none() || !listed(),
                "Exists" => found.is_some(),
                "DoesNotExist" => found.is_none(),
                _ => true,
            }
        })
}
