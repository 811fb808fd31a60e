//! What a new object has to be, beyond its types: pure functions from a tree to complaints.
//!
//! The write path calls [`create`] for every object that is about to be stored, new or changed. Follows
//! `pkg/apis/*/validation`; the order of complaints is upstream's.
//!
//! Limits: metadata of every kind; pods and the pod templates and selectors of workloads; keys of ConfigMaps. Other
//! kinds are checked by their schema alone, and rules about what an update may change are not here yet.

mod container;
mod meta;
mod pod;
mod probe;
mod selector;

use serde_json::Value;

use crate::field_error::{FieldError, Report};
use crate::resource::Resource;

/// Every complaint about an object; none for a good one.
pub fn create(resource: &Resource, object: &Value) -> Vec<FieldError> {
    let mut report = Report::default();
    let (group, plural) = (&*resource.group, &*resource.plural);
    report.at("metadata", |r| meta::check(r, group, plural, &object["metadata"]));
    let spec = &object["spec"];
    match (group, plural) {
        ("", "pods") => report.at("spec", |r| pod::spec(r, spec)),
        ("", "configmaps") => config_map(&mut report, object),
        ("apps", "deployments" | "replicasets" | "daemonsets" | "statefulsets") => {
            report.at("spec", |r| workload(r, spec));
        }
        _ => {}
    }
    report.errors
}

/// Text of a property; empty where it is absent.
fn text<'a>(object: &'a Value, name: &str) -> &'a str {
    object.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn not_negative(report: &mut Report, object: &Value, name: &str) {
    if let Some(number) = object.get(name).and_then(Value::as_i64).filter(|n| *n < 0) {
        report.at(name, |r| r.invalid(number, "must be greater than or equal to 0"));
    }
}

fn workload(report: &mut Report, spec: &Value) {
    not_negative(report, spec, "replicas");
    not_negative(report, spec, "minReadySeconds");
    let before = report.errors.len();
    report.at("selector", |r| selector::required(r, &spec["selector"]));
    let sound = report.errors.len() == before;
    report.at("template", |r| {
        let labels = &spec["template"]["metadata"]["labels"];
        if sound && !selector::matches(&spec["selector"], labels) {
            r.at("metadata", |r| r.at("labels", |r| r.invalid(labels, "`selector` does not match template `labels`")));
        }
        r.at("metadata", |r| meta::labels(r, &spec["template"]["metadata"]));
        r.at("spec", |r| {
            let template = &spec["template"]["spec"];
            pod::spec(r, template);
            let policy = text(template, "restartPolicy");
            if policy == "Never" || policy == "OnFailure" {
                r.at("restartPolicy", |r| r.not_supported(policy, &["Always"]));
            }
        });
    });
}

fn config_map(report: &mut Report, object: &Value) {
    let mut size = 0;
    for name in ["data", "binaryData"] {
        report.at(name, |r| {
            for (key, value) in object[name].as_object().into_iter().flatten() {
                let complaints = crate::names::config_key(key);
                if !complaints.is_empty() {
                    r.key(key, |r| r.complaints(key, complaints));
                }
                if name == "data" && object["binaryData"].get(key).is_some() {
                    r.key(key, |r| r.invalid(key.as_str(), "duplicate of key present in binaryData"));
                }
                let length = value.as_str().map_or(0, str::len);
                // Binary values count decoded.
                size += if name == "data" { length } else { length / 4 * 3 };
            }
        });
    }
    if size > 1 << 20 {
        report.too_long(1 << 20);
    }
}
