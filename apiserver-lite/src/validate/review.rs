//! Reviews of access: what is asked about, by whom, and nothing else.

use serde_json::{Name, Value};

use super::{list, text};
use crate::field_error::{Raw, Report, ordered};
use crate::go_value::{Field, Shape, shown};
use crate::names;

const OTHER: Shape = Shape::Struct(&[Field("Path", "path", Shape::Text), Field("Verb", "verb", Shape::Text)]);

/// Every complaint about a review of access of this kind; its metadata are those that would be answered.
pub fn check(report: &mut Report, kind: &str, review: &Value) {
    let spec = &review["spec"];
    let local = kind == "LocalSubjectAccessReview";
    report.at("spec", |r| attributes(r, spec, kind != "SelfSubjectAccessReview"));
    let said = |(name, value): (&Name, &Value)| {
        let fixed = name == "managedFields" || local && name == "namespace";
        !fixed && !value.is_null() && !is_empty(value)
    };
    if review["metadata"].as_object().into_iter().flatten().any(said) {
        let why = if local { "must be empty except for namespace" } else { "must be empty" };
        report.bad("metadata", metadata(&review["metadata"]), why);
    }
    if !local {
        return;
    }
    report.at("spec", |r| {
        let (asked, other) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
        let namespace = text(asked, "namespace");
        if asked.is_object() && namespace != text(&review["metadata"], "namespace") {
            r.at("resourceAttributes", |r| r.bad("namespace", namespace, "must match metadata.namespace"));
        }
        if other.is_object() {
            r.bad("nonResourceAttributes", shown(other, &OTHER), "disallowed on this kind of request");
        }
    });
}

fn is_empty(value: &Value) -> bool {
    crate::field_error::same(value, &Value::Null) || value == "" || value.as_i64() == Some(0)
}

/// Metadata in the order that Go's type has them.
fn metadata(metadata: &Value) -> Raw {
    const KEYS: [&str; 15] = [
        "name",
        "generateName",
        "namespace",
        "selfLink",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "labels",
        "annotations",
        "ownerReferences",
        "finalizers",
        "managedFields",
    ];
    const ENTRY: [&str; 7] = ["manager", "operation", "apiVersion", "time", "fieldsType", "fieldsV1", "subresource"];
    let text = |key: &&str| match &metadata[*key] {
        Value::Null => None,
        Value::Array(entries) if *key == "managedFields" => {
            let entries: Vec<String> = entries.iter().map(|entry| ordered(entry, &ENTRY).0).collect();
            Some(format!("\"{key}\":[{}]", entries.join(",")))
        }
        value => Some(format!("\"{key}\":{value}")),
    };
    Raw(format!("{{{}}}", KEYS.iter().filter_map(text).collect::<Vec<_>>().join(",")))
}

/// Exactly one kind of attributes, and somebody to ask about.
fn attributes(report: &mut Report, spec: &Value, names_user: bool) {
    let (asked, other) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    match (asked.is_object(), other.is_object()) {
        (true, true) => {
            let why = "cannot be specified in combination with resourceAttributes";
            report.bad("nonResourceAttributes", shown(other, &OTHER), why);
        }
        (false, false) => {
            let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            report.bad("resourceAttributes", &Value::Null, why);
        }
        _ => {}
    }
    if names_user && text(spec, "user").is_empty() && list(spec, "groups").is_empty() {
        report.bad("user", "", "at least one of user or group must be specified");
    }
    report.with(spec, "resourceAttributes", |r, asked| {
        for name in ["fieldSelector", "labelSelector"] {
            r.with(asked, name, |r, said| selector(r, name, said));
        }
    });
}

/// A selector: its text, or what it requires.
fn selector(report: &mut Report, name: &str, selector: &Value) {
    let (raw, requirements) = (text(selector, "rawSelector"), list(selector, "requirements"));
    match (raw.is_empty(), requirements.is_empty()) {
        (false, false) => report.bad("rawSelector", raw, "may not specified at the same time as requirements"),
        (true, true) => {
            let why =
                format!("when spec.resourceAttributes.{name} is specified, requirements or rawSelector is required");
            report.miss("requirements", &why);
        }
        _ => {}
    }
    report.each(selector, "requirements", |r, requirement| {
        let key = text(requirement, "key");
        let by_label = name == "labelSelector";
        if !by_label && key.is_empty() {
            r.miss("key", "must be specified");
        }
        // Operators that are not known here may be those of a newer client.
        match text(requirement, "operator") {
            "In" | "NotIn" if list(requirement, "values").is_empty() => {
                r.miss("values", "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "Exists" | "DoesNotExist" if !list(requirement, "values").is_empty() => {
                r.refuse("values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
            }
            _ => {}
        }
        if by_label {
            r.at("key", |r| r.complaints(key, names::qualified_name(key)));
            r.each(requirement, "values", |r, value| {
                let value = value.as_str().unwrap_or_default();
                r.complaints(value, names::label_value(value));
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(kind: &str, review: &Value) -> Vec<String> {
        Report::told(|r| check(r, kind, review))
    }

    #[test]
    fn a_review_has_no_metadata() {
        let spec = json!({"user": "u", "resourceAttributes": {"verb": "get"}});
        let review = json!({"metadata": {"labels": {"a": "b"}, "name": "x"}, "spec": spec});
        let expected = r#"metadata: Invalid value: {"name":"x","labels":{"a":"b"}}: must be empty"#;
        assert_eq!(told("SubjectAccessReview", &review), [expected]);
        assert_eq!(told("SubjectAccessReview", &json!({"metadata": {"name": ""}, "spec": spec})), [""; 0]);
    }

    #[test]
    fn a_local_review_is_about_resources_of_its_namespace() {
        let spec = json!({"user": "u", "resourceAttributes": {"namespace": "t2"}});
        let expected = r#"spec.resourceAttributes.namespace: Invalid value: "t2": must match metadata.namespace"#;
        let review = json!({"metadata": {"namespace": "t1"}, "spec": spec});
        assert_eq!(told("LocalSubjectAccessReview", &review), [expected]);
        let review = json!({"metadata": {"namespace": "t1"},
            "spec": {"user": "u", "nonResourceAttributes": {"path": "/x"}}});
        let expected = "spec.nonResourceAttributes: Invalid value: {\"Path\":\"/x\",\"Verb\":\"\"}: disallowed on this \
                        kind of request";
        assert_eq!(told("LocalSubjectAccessReview", &review), [expected]);
    }

    #[test]
    fn a_selector_is_a_text_or_a_list_of_requirements() {
        let of = |selector: Value| {
            told("SelfSubjectAccessReview", &json!({"spec": {"resourceAttributes": {"fieldSelector": selector}}}))
        };
        let at = "spec.resourceAttributes.fieldSelector";
        assert_eq!(
            of(json!({})),
            [format!(
                "{at}.requirements: Required value: when {at} is specified, requirements or rawSelector is required"
            )]
        );
        assert_eq!(
            of(json!({"rawSelector": "a=b", "requirements": [{"operator": "In"}]})),
            [
                format!("{at}.rawSelector: Invalid value: \"a=b\": may not specified at the same time as requirements"),
                format!("{at}.requirements[0].key: Required value: must be specified"),
                format!(
                    "{at}.requirements[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'"
                ),
            ]
        );
        assert_eq!(of(json!({"requirements": [{"key": "a", "operator": "Newer"}]})), [""; 0]);
    }
}
