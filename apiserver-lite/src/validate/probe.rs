//! Probes and lifecycle hooks of containers.

use serde_json::Value;

use super::container::port_number;
use super::{not_negative, text};
use crate::field_error::Report;
use crate::names;

/// Lifecycle hooks first, then the probes.
pub fn all(report: &mut Report, container: &Value) {
    if let Some(lifecycle) = container.get("lifecycle").filter(|l| l.is_object()) {
        report.at("lifecycle", |r| {
            for hook in ["postStart", "preStop"] {
                if let Some(handler) = lifecycle.get(hook).filter(|h| h.is_object()) {
                    r.at(hook, |r| check_handler(r, handler, &["exec", "httpGet", "tcpSocket", "sleep"]));
                }
            }
        });
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = container.get(name).filter(|p| p.is_object()) else { continue };
        report.at(name, |r| {
            check_handler(r, probe, &["exec", "httpGet", "tcpSocket", "grpc"]);
            for number in
                ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
            {
                not_negative(r, probe, number);
            }
            let successes = probe["successThreshold"].as_i64().unwrap_or(1);
            // Only readiness may ask for several successes.
            if name != "readinessProbe" && successes != 1 {
                r.at("successThreshold", |r| r.invalid(successes, "must be 1"));
            }
        });
    }
}

fn check_handler(report: &mut Report, handler: &Value, kinds: &[&str]) {
    let mut count = 0;
    for kind in kinds {
        let Some(action) = handler.get(*kind).filter(|a| a.is_object()) else { continue };
        count += 1;
        if count > 1 {
            report.at(kind, |r| r.forbidden("may not specify more than 1 handler type"));
            continue;
        }
        report.at(kind, |r| match *kind {
            "exec" if action["command"].as_array().is_none_or(Vec::is_empty) => {
                r.at("command", |r| r.required(""));
            }
            "httpGet" => {
                if text(action, "path").is_empty() {
                    r.at("path", |r| r.required(""));
                }
                r.at("port", |r| port(r, &action["port"]));
                let scheme = text(action, "scheme");
                if !["HTTP", "HTTPS"].contains(&scheme) {
                    r.at("scheme", |r| r.not_supported(scheme, &["HTTP", "HTTPS"]));
                }
            }
            "tcpSocket" | "grpc" => r.at("port", |r| port(r, &action["port"])),
            _ => {}
        });
    }
    if count == 0 {
        report.required("must specify a handler type");
    }
}

/// A port by number or by name.
fn port(report: &mut Report, value: &Value) {
    match value {
        Value::String(name) => report.complaints(name, names::port_name(name)),
        number => port_number(report, number.as_i64().unwrap_or(0)),
    }
}
