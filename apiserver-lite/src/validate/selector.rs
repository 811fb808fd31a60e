//! Label selectors: what they may say, and whether they select a set of labels.

use serde_json::Value;

use super::text;
use crate::field_error::Report;
use crate::names;

/// A workload's selector: present, not empty and well formed.
pub fn required(report: &mut Report, selector: &Value) {
    if selector.is_null() {
        report.required("");
        return;
    }
    let before = report.errors.len();
    check(report, selector);
    let empty = |name: &str| match &selector[name] {
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => true,
    };
    if empty("matchLabels") && empty("matchExpressions") {
        report.invalid(selector, "empty selector is invalid for deployment");
    } else if report.errors.len() > before {
        report.invalid(selector, "invalid label selector");
    }
}

/// Complaints about a selector; an empty one is fine.
pub fn check(report: &mut Report, selector: &Value) {
    report.at("matchLabels", |r| {
        for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
            r.complaints(key, names::qualified_name(key));
            let value = value.as_str().unwrap_or_default();
            r.complaints(value, names::label_value(value));
        }
    });
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

/// Whether a selector selects these labels. One that is absent or malformed is complained about elsewhere.
pub fn matches(selector: &Value, labels: &Value) -> bool {
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
