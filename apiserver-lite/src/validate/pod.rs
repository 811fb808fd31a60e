//! The spec of a pod, alone or in a workload's template.

use serde_json::Value;

use super::{container, text};
use crate::field_error::Report;
use crate::names;

/// Checks a pod's spec in the order that upstream does.
pub fn spec(report: &mut Report, spec: &Value) {
    volumes(report, spec);
    container::lists(report, spec);
    let one_of = |report: &mut Report, name: &str, allowed: &[&str]| {
        let said = text(spec, name);
        if said.is_empty() {
            report.at(name, |r| r.required(""));
        } else if !allowed.contains(&said) {
            report.at(name, |r| r.not_supported(said, allowed));
        }
    };
    one_of(report, "restartPolicy", &["Always", "OnFailure", "Never"]);
    one_of(report, "dnsPolicy", &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]);
    report.at("nodeSelector", |r| {
        for (key, value) in spec["nodeSelector"].as_object().into_iter().flatten() {
            r.complaints(key, names::qualified_name(key));
            let value = value.as_str().unwrap_or_default();
            r.complaints(value, names::label_value(value));
        }
    });
    for name in ["serviceAccountName", "nodeName"] {
        let said = text(spec, name);
        if !said.is_empty() {
            report.at(name, |r| r.complaints(said, names::dns_subdomain(said)));
        }
    }
    if let Some(seconds) = spec["activeDeadlineSeconds"].as_i64().filter(|s| !(1..=i64::from(i32::MAX)).contains(s)) {
        report.at("activeDeadlineSeconds", |r| r.invalid(seconds, "must be between 1 and 2147483647, inclusive"));
    }
    for name in ["hostname", "subdomain"] {
        let said = text(spec, name);
        if !said.is_empty() {
            report.at(name, |r| r.complaints(said, names::dns_label(said)));
        }
    }
    container::image_spaces(report, spec);
}

fn volumes(report: &mut Report, spec: &Value) {
    let mut seen: Vec<&str> = Vec::new();
    let list = spec["volumes"].as_array().map_or(&[][..], Vec::as_slice);
    report.at("volumes", |r| {
        for (index, volume) in list.iter().enumerate() {
            r.index(index, |r| {
                let complaints_before = r.errors.len();
                let name = text(volume, "name");
                source(r, volume);
                r.at("name", |r| {
                    if name.is_empty() {
                        r.required("");
                    } else {
                        r.complaints(name, names::dns_label(name));
                    }
                    if seen.contains(&name) {
                        r.duplicate(name);
                    }
                });
                if r.errors.len() == complaints_before {
                    seen.push(name);
                }
            });
        }
    });
}

/// A volume has one source.
fn source(report: &mut Report, volume: &Value) {
    let sources = volume.as_object().into_iter().flatten().filter(|(key, value)| *key != "name" && !value.is_null());
    match sources.count() {
        0 => report.required("must specify a volume type"),
        1 => {}
        // Upstream names each source after the first in the order of its struct; the usual pair is emptyDir with one.
        _ => {
            let mut found = container::SOURCES.iter().filter(|s| volume.get(**s).is_some_and(|v| !v.is_null())).skip(1);
            found.by_ref().for_each(|s| report.at(s, |r| r.forbidden("may not specify more than 1 volume type")));
        }
    }
    let path = &volume["hostPath"];
    if path.is_object() && volume.get("emptyDir").is_none_or(Value::is_null) {
        report.at("hostPath", |r| {
            r.at("path", |r| match text(path, "path") {
                "" => r.required(""),
                path if path.split('/').any(|part| part == "..") => r.invalid(path, "must not contain '..'"),
                _ => {}
            });
        });
    }
}
