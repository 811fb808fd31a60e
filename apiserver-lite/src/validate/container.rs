//! Containers: names, images, ports, mounts and variables.

use serde_json::Value;

use super::{probe, text};
use crate::field_error::Report;
use crate::names;

/// Sources of volumes in the order that upstream looks at them.
pub const SOURCES: [&str; 9] =
    ["emptyDir", "hostPath", "nfs", "secret", "configMap", "downwardAPI", "projected", "persistentVolumeClaim", "csi"];

/// The regular and the init containers; their names are unique together.
pub fn lists(report: &mut Report, spec: &Value) {
    let volumes: Vec<&str> = spec["volumes"].as_array().into_iter().flatten().map(|v| text(v, "name")).collect();
    let mut seen = Vec::new();
    if spec["containers"].as_array().is_none_or(Vec::is_empty) {
        report.at("containers", |r| r.required(""));
    }
    for list in ["containers", "initContainers"] {
        let items = spec[list].as_array().map_or(&[][..], Vec::as_slice);
        report.at(list, |r| {
            for (index, item) in items.iter().enumerate() {
                r.index(index, |r| container(r, item, list == "initContainers", &volumes, &mut seen));
            }
        });
    }
}

/// White space around an image name; upstream complains about it after everything else.
pub fn image_spaces(report: &mut Report, spec: &Value) {
    for list in ["containers", "initContainers"] {
        report.each(spec, list, |r, item| {
            let image = text(item, "image");
            if image.trim().len() != image.len() {
                r.at("image", |r| r.invalid(image, "must not have leading or trailing whitespace"));
            }
        });
    }
}

fn container<'a>(report: &mut Report, item: &'a Value, init: bool, volumes: &[&str], seen: &mut Vec<&'a str>) {
    let name = text(item, "name");
    report.at("name", |r| {
        if name.is_empty() {
            r.required("");
        } else {
            r.complaints(name, names::dns_label(name));
        }
    });
    if text(item, "image").is_empty() {
        report.at("image", |r| r.required(""));
    }
    ports(report, item);
    environment(report, item);
    mounts(report, item, volumes);
    let policy = text(item, "imagePullPolicy");
    if !["Always", "IfNotPresent", "Never"].contains(&policy) {
        report.at("imagePullPolicy", |r| match policy {
            "" => r.required(""),
            policy => r.not_supported(policy, &["Always", "IfNotPresent", "Never"]),
        });
    }
    let sidecar = text(item, "restartPolicy") == "Always";
    if !init || sidecar {
        probe::all(report, item);
    } else {
        for name in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
            if item.get(name).is_some_and(|v| !v.is_null()) {
                report.at(name, |r| r.forbidden("may not be set for init containers without restartPolicy=Always"));
            }
        }
    }
    if !name.is_empty() && seen.contains(&name) {
        report.at("name", |r| r.duplicate(name));
    } else {
        seen.push(name);
    }
    let restart = text(item, "restartPolicy");
    if !["", "Always", "Never", "OnFailure"].contains(&restart) {
        report.at("restartPolicy", |r| r.not_supported(restart, &["Always", "Never", "OnFailure"]));
    }
}

fn ports(report: &mut Report, item: &Value) {
    let mut seen: Vec<String> = Vec::new();
    report.each(item, "ports", |r, port| {
        let name = text(port, "name");
        if !name.is_empty() {
            let complaints = names::port_name(name);
            r.at("name", |r| {
                if !complaints.is_empty() {
                    r.complaints(name, complaints);
                } else if seen.iter().any(|s| s == name) {
                    r.duplicate(name);
                } else {
                    seen.push(name.to_owned());
                }
            });
        }
        match port["containerPort"].as_i64().unwrap_or(0) {
            0 => r.at("containerPort", |r| r.required("")),
            number => r.at("containerPort", |r| port_number(r, number)),
        }
        if let Some(number) = port["hostPort"].as_i64().filter(|n| *n != 0) {
            r.at("hostPort", |r| port_number(r, number));
        }
        match text(port, "protocol") {
            "TCP" | "UDP" | "SCTP" => {}
            "" => r.at("protocol", |r| r.required("")),
            other => r.at("protocol", |r| r.not_supported(other, &["SCTP", "TCP", "UDP"])),
        }
    });
}

/// A port number that is given has to be one.
pub fn port_number(report: &mut Report, number: i64) {
    if !(1..=65535).contains(&number) {
        report.invalid(number, "must be between 1 and 65535, inclusive");
    }
}

fn environment(report: &mut Report, item: &Value) {
    report.each(item, "env", |r, variable| {
        let name = text(variable, "name");
        r.at("name", |r| {
            if name.is_empty() {
                r.required("");
            } else if name.bytes().any(|b| !(b' '..=b'~').contains(&b) || b == b'=') {
                let why = "a valid environment variable name must consist only of printable ASCII characters other than '='";
                r.invalid(name, why);
            }
        });
        let from = &variable["valueFrom"];
        if !from.is_object() {
            return;
        }
        r.at("valueFrom", |r| {
            let sources = ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];
            let count = sources.iter().filter(|s| from.get(**s).is_some_and(|v| !v.is_null())).count();
            for name in ["configMapKeyRef", "secretKeyRef"] {
                let Some(reference) = from.get(name).filter(|v| !v.is_null()) else { continue };
                let key = text(reference, "key");
                r.at(name, |r| {
                    r.at("key", |r| match key {
                        "" => r.required(""),
                        key => r.complaints(key, names::config_key(key)),
                    });
                });
            }
            if count == 0 {
                r.invalid(
                    "",
                    "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
                );
            } else if !text(variable, "value").is_empty() {
                r.invalid("", "may not be specified when `value` is not empty");
            } else if count > 1 {
                r.invalid("", "may not have more than one field specified at a time");
            }
        });
    });
}

fn mounts(report: &mut Report, item: &Value, volumes: &[&str]) {
    let mut seen: Vec<String> = Vec::new();
    report.each(item, "volumeMounts", |r, mount| {
        let (name, path) = (text(mount, "name"), text(mount, "mountPath"));
        if name.is_empty() {
            r.at("name", |r| r.required(""));
        } else if !volumes.contains(&name) {
            r.at("name", |r| r.not_found(name));
        }
        r.at("mountPath", |r| {
            if path.is_empty() {
                r.required("");
            } else if seen.iter().any(|s| s == path) {
                r.invalid(path, "must be unique");
            }
        });
        seen.push(path.to_owned());
    });
}
