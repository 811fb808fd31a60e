//! Probes and lifecycle hooks of containers.

use serde_json::Value;

use super::text;
use crate::field_error::Report;
use crate::names;

/// Signals that a container on Linux may be stopped with, beside the real-time ones.
const SIGNALS: [&str; 33] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
];

/// Every signal that a system knows, sorted.
fn signals(os: &str) -> Vec<String> {
    if os == "windows" {
        return ["SIGKILL", "SIGTERM"].map(Into::into).into();
    }
    let mut all: Vec<String> =
        SIGNALS.iter().chain(&["SIGXFSZ", "SIGRTMIN", "SIGRTMAX"]).map(|s| (*s).into()).collect();
    all.extend((1..=15).map(|n| format!("SIGRTMIN+{n}")));
    all.extend((1..=14).map(|n| format!("SIGRTMAX-{n}")));
    all.sort();
    all
}

/// The signal that stops a container, which only means something on a system that is known.
fn stop_signal(report: &mut Report, signal: &str, os: &str) {
    if os.is_empty() {
        return report.forbidden("may not be set for containers with empty `spec.os.name`");
    }
    let known = signals(os);
    if !known.iter().any(|s| s == signal) {
        report.not_supported(signal, &known.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

/// The lifecycle hooks; a sleep has to end within the pod's grace period. `os` is the pod's system, empty for none.
pub fn hooks(report: &mut Report, container: &Value, grace: Option<i64>, os: &str) {
    report.with(container, "lifecycle", |r, lifecycle| {
        r.with(lifecycle, "stopSignal", |r, signal| stop_signal(r, signal.as_str().unwrap_or_default(), os));
        for hook in ["postStart", "preStop"] {
            r.with(lifecycle, hook, |r, handler| {
                check_handler(r, handler, &["exec", "httpGet", "tcpSocket", "sleep"], grace);
            });
        }
    });
}

pub fn all(report: &mut Report, container: &Value) {
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        report.with(container, name, |r, probe| {
            check_handler(r, probe, &["exec", "httpGet", "tcpSocket", "grpc"], None);
            for number in
                ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
            {
                r.not_negative(probe, number);
            }
            let grace = probe["terminationGracePeriodSeconds"].as_i64();
            if let Some(grace) = grace.filter(|g| *g <= 0) {
                r.bad("terminationGracePeriodSeconds", grace, "must be greater than 0");
            }
            let successes = probe["successThreshold"].as_i64().unwrap_or(0);
            // Only readiness may ask for several successes, and only it never ends a container.
            if name != "readinessProbe" && successes != 1 {
                r.bad("successThreshold", successes, "must be 1");
            } else if let (Some(grace), "readinessProbe") = (grace, name) {
                r.bad("terminationGracePeriodSeconds", grace, "must not be set for readinessProbes");
            }
        });
    }
}

fn check_handler(report: &mut Report, handler: &Value, kinds: &[&str], grace: Option<i64>) {
    let mut count = 0;
    for kind in kinds {
        let Some(action) = handler.get(*kind).filter(|a| a.is_object()) else { continue };
        count += 1;
        if count > 1 {
            report.refuse(kind, "may not specify more than 1 handler type");
            continue;
        }
        report.at(kind, |r| match *kind {
            "exec" if action["command"].as_array().is_none_or(Vec::is_empty) => r.miss("command", ""),
            "httpGet" => {
                r.need(action, "path");
                r.at("port", |r| port(r, &action["port"]));
                r.maybe_choice(action, "scheme", &["HTTP", "HTTPS"]);
                for header in super::list(action, "httpHeaders") {
                    let name = text(header, "name");
                    r.at("httpHeaders", |r| r.complaints(name, names::http_header(name)));
                }
            }
            "tcpSocket" | "grpc" => r.at("port", |r| port(r, &action["port"])),
            "sleep" => {
                let seconds = action["seconds"].as_i64().unwrap_or(0);
                if let Some(grace) = grace.filter(|g| seconds < 0 || seconds > *g) {
                    let why = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                    r.invalid(seconds, why);
                }
            }
            _ => {}
        });
    }
    if count == 0 {
        report.required("must specify a handler type");
    }
}

/// A port by number or by name.
pub fn port(report: &mut Report, value: &Value) {
    match value {
        Value::String(name) => report.complaints(name, names::port_name(name)),
        number => {
            let number = number.as_i64().unwrap_or(0);
            names::port(number).into_iter().for_each(|why| report.invalid(number, why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn stopped_by(signal: &str, os: &str) -> Vec<String> {
        Report::told(|r| hooks(r, &json!({"lifecycle": {"stopSignal": signal}}), None, os))
    }

    #[test]
    fn a_container_is_stopped_by_a_signal_of_its_system() {
        assert!(stopped_by("SIGUSR1", "linux").is_empty());
        assert!(stopped_by("SIGRTMIN+15", "linux").is_empty());
        assert!(stopped_by("SIGTERM", "windows").is_empty());
        assert_eq!(
            stopped_by("SIGUSR1", "windows"),
            ["lifecycle.stopSignal: Unsupported value: \"SIGUSR1\": supported values: \"SIGKILL\", \"SIGTERM\""]
        );
        assert_eq!(stopped_by("SIGNONE", "linux").len(), 1);
        assert_eq!(
            stopped_by("SIGTERM", ""),
            ["lifecycle.stopSignal: Forbidden: may not be set for containers with empty `spec.os.name`"]
        );
    }
}
