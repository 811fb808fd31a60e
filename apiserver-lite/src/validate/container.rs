//! Containers of all three lists: names, images, ports, variables, mounts and resources.

use serde_json::Value;

use super::amounts::{self, Owner};
use super::pod::Context;
use super::{list, names_of, probe, security, text, volume};
use crate::field_error::Report;
use crate::names;

pub const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
/// Fields that an ephemeral container may not have, in the order of the struct.
const NOT_EPHEMERAL: [&str; 9] = [
    "ports",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
];

/// Regular, init and ephemeral containers. Names are unique across them; a clash is told where the later list is.
pub fn lists(report: &mut Report, spec: &Value, context: &Context) {
    if list(spec, "containers").is_empty() {
        report.miss("containers", "");
    }
    let mut seen: Vec<&str> = Vec::new();
    report.each(spec, "containers", |r, item| {
        common(r, item, spec, context);
        unique(r, &mut seen, item);
        lifecycle(r, item, context);
        restart(r, item);
    });
    host_ports(report, spec, "containers", None);
    let mut seen = names_of(spec, "containers");
    for (index, item) in list(spec, "initContainers").iter().enumerate() {
        report.at("initContainers", |r| {
            r.index(index, |r| {
                common(r, item, spec, context);
                restart(r, item);
                unique(r, &mut seen, item);
            });
        });
        host_ports(report, spec, "initContainers", Some(index));
        report.at("initContainers", |r| {
            r.index(index, |r| {
                if text(item, "restartPolicy") == "Always" {
                    lifecycle(r, item, context);
                } else {
                    let why = "may not be set for init containers without restartPolicy=Always";
                    r.forbid(item, &["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"], why);
                }
            });
        });
    }
    let others = seen.clone();
    report.each(spec, "ephemeralContainers", |r, item| ephemeral(r, item, spec, context, &mut seen, &others));
}

fn unique<'a>(report: &mut Report, seen: &mut Vec<&'a str>, item: &'a Value) {
    let name = text(item, "name");
    if seen.contains(&name) {
        report.at("name", |r| r.duplicate(name));
    } else if !name.is_empty() {
        seen.push(name);
    }
}

fn ephemeral<'a>(
    report: &mut Report,
    item: &'a Value,
    spec: &Value,
    context: &Context,
    seen: &mut Vec<&'a str>,
    others: &[&str],
) {
    common(report, item, spec, context);
    image_spaces(report, item);
    unique(report, seen, item);
    let target = text(item, "targetContainerName");
    if !target.is_empty() && !others.contains(&target) {
        report.at("targetContainerName", |r| r.not_found(target));
    }
    let why = "cannot be set for an Ephemeral Container";
    for name in NOT_EPHEMERAL {
        let set = item.get(name).is_some_and(|v| match v {
            Value::Null => false,
            Value::Array(items) => !items.is_empty(),
            Value::Object(map) => !map.is_empty() || name != "resources",
            _ => true,
        });
        if set {
            report.refuse(name, why);
        }
    }
    report.each(item, "volumeMounts", |r, mount| {
        for name in ["subPath", "subPathExpr"] {
            if !text(mount, name).is_empty() {
                r.refuse(name, why);
            }
        }
    });
}

/// White space around an image's name; upstream looks at pods only, after everything else.
pub fn image_spaces(report: &mut Report, item: &Value) {
    let image = text(item, "image");
    if image.trim().len() != image.len() {
        report.bad("image", image, "must not have leading or trailing whitespace");
    }
}

fn lifecycle(report: &mut Report, item: &Value, context: &Context) {
    probe::hooks(report, item, context.grace, context.os);
    probe::all(report, item);
}

fn restart(report: &mut Report, item: &Value) {
    report.maybe_choice(item, "restartPolicy", &["Always", "Never", "OnFailure"]);
    let rules = list(item, "restartPolicyRules");
    if !rules.is_empty() && text(item, "restartPolicy").is_empty() {
        report.miss("restartPolicy", "must specify restartPolicy when restart rules are used");
    }
    if rules.len() > 20 {
        report.at("restartPolicyRules", |r| r.too_many(rules.len(), 20));
    }
    report.each(item, "restartPolicyRules", |r, rule| {
        r.choice(rule, "action", &["Restart", "RestartAllContainers"]);
        match rule.get("exitCodes").filter(|v| v.is_object()) {
            None => r.miss("exitCodes", "must be specified"),
            Some(codes) => r.at("exitCodes", |r| {
                r.choice(codes, "operator", &["In", "NotIn"]);
                let values = list(codes, "values");
                if values.len() > 255 {
                    r.at("values", |r| r.too_many(values.len(), 255));
                }
            }),
        }
    });
}

fn common(report: &mut Report, item: &Value, spec: &Value, context: &Context) {
    report.need_named(item, "name", names::dns_label);
    report.need(item, "image");
    report.choice(item, "terminationMessagePolicy", &["File", "FallbackToLogsOnError"]);
    ports(report, item);
    report.each(item, "env", |r, variable| environment(r, variable, context));
    env_from(report, item);
    volume::mounts(report, item, context);
    volume::devices(report, item, context);
    report.choice(item, "imagePullPolicy", &PULL_POLICIES);
    report.at("resources", |r| amounts::requirements(r, &item["resources"], Owner::Container, &context.claims));
    resize_policy(report, item, text(spec, "restartPolicy"));
    report.with(item, "securityContext", |r, security| security::container(r, security, context.host_users));
}

fn ports(report: &mut Report, item: &Value) {
    let mut seen: Vec<&str> = Vec::new();
    report.each(item, "ports", |r, port| {
        let name = text(port, "name");
        if !name.is_empty() {
            let complaints = names::port_name(name);
            r.at("name", |r| {
                if !complaints.is_empty() {
                    r.complaints(name, complaints);
                } else if seen.contains(&name) {
                    r.duplicate(name);
                } else {
                    seen.push(name);
                }
            });
        }
        match port["containerPort"].as_i64().unwrap_or(0) {
            0 => r.miss("containerPort", ""),
            _ => r.between(port, "containerPort", 1, 65535),
        }
        if port["hostPort"] != 0 {
            r.between(port, "hostPort", 1, 65535);
        }
        r.choice(port, "protocol", &["SCTP", "TCP", "UDP"]);
    });
}

/// A port of the node can be had once. Init containers run one after another, so each is looked at alone.
fn host_ports(report: &mut Report, spec: &Value, name: &str, only: Option<usize>) {
    let mut seen: Vec<String> = Vec::new();
    for (index, item) in list(spec, name).iter().enumerate().filter(|(i, _)| only.is_none_or(|o| o == *i)) {
        // Upstream counts an init container as the first of a list of its own.
        let shown = if only.is_some() { 0 } else { index };
        report.at(name, |r| {
            r.index(shown, |r| {
                r.each(item, "ports", |r, port| {
                    let Some(number) = port["hostPort"].as_i64().filter(|n| *n != 0) else { return };
                    let key = format!("{}/{}/{number}", text(port, "protocol"), text(port, "hostIP"));
                    if seen.contains(&key) {
                        r.at("hostPort", |r| r.duplicate(key.as_str()));
                    } else {
                        seen.push(key);
                    }
                });
            });
        });
    }
}

/// Fields of a pod that its variables may show.
const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

fn environment(report: &mut Report, variable: &Value, context: &Context) {
    report.need_named(variable, "name", names::variable);
    report.with(variable, "valueFrom", |r, from| {
        r.with(from, "fieldRef", |r, reference| field_reference(r, reference, &ENV_FIELDS));
        r.with(from, "resourceFieldRef", |r, reference| resource_reference(r, reference, false));
        for name in ["configMapKeyRef", "secretKeyRef"] {
            r.with(from, name, |r, reference| {
                let name = text(reference, "name");
                r.at("name", |r| r.complaints(name, names::dns_subdomain(name)));
                r.need_named(reference, "key", names::config_key);
            });
        }
        r.with(from, "fileKeyRef", |r, reference| {
            r.need_named(reference, "key", names::variable);
            let volume = text(reference, "volumeName");
            if r.need(reference, "volumeName") && !context.has_volume(volume) {
                r.at("volumeName", |r| r.not_found(volume));
            }
            if r.need(reference, "path") {
                r.at("path", |r| volume::local_path(r, text(reference, "path")));
            }
        });
        let sources = ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];
        let count = sources.iter().filter(|s| from.get(**s).is_some_and(|v| !v.is_null())).count();
        if count == 0 {
            let all = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
            r.invalid("", all);
        } else if !text(variable, "value").is_empty() {
            r.invalid("", "may not be specified when `value` is not empty");
        } else if count > 1 {
            r.invalid("", "may not have more than one field specified at a time");
        }
    });
}

fn env_from(report: &mut Report, item: &Value) {
    for (index, source) in list(item, "envFrom").iter().enumerate() {
        report.at("envFrom", |r| {
            r.index(index, |r| {
                r.named(source, "prefix", names::variable);
                for name in ["configMapRef", "secretRef"] {
                    r.with(source, name, |r, reference| r.need_named(reference, "name", names::dns_subdomain_stem));
                }
            });
            let count = ["configMapRef", "secretRef"].iter().filter(|s| source[**s].is_object()).count();
            match count {
                0 => r.invalid("", "must specify one of: `configMapRef` or `secretRef`"),
                1 => {}
                _ => r.invalid("", "may not have more than one field specified at a time"),
            }
        });
    }
}

/// A field of the pod, by its path, as variables and downward files show it.
pub fn field_reference(report: &mut Report, reference: &Value, allowed: &[&str]) {
    if !report.need(reference, "apiVersion") || !report.need(reference, "fieldPath") {
        return;
    }
    let path = text(reference, "fieldPath");
    let known = |path: &str| {
        ENV_FIELDS.contains(&path)
            || ["metadata.annotations", "metadata.labels", "spec.restartPolicy", "spec.schedulerName", "status.phase"]
                .contains(&path)
    };
    // What it was called once.
    let path = if path == "spec.host" { "spec.nodeName" } else { path };
    let subscripted = path.strip_suffix("']").and_then(|p| p.split_once("['")).filter(|(base, _)| !base.is_empty());
    if text(reference, "apiVersion") != "v1" {
        let version = text(reference, "apiVersion");
        return report.bad(
            "fieldPath",
            path,
            format_args!("error converting fieldPath: unsupported pod version: {version}"),
        );
    }
    if subscripted.is_none() && !known(path) {
        return report.bad(
            "fieldPath",
            path,
            format_args!("error converting fieldPath: field label not supported: {path}"),
        );
    }
    match subscripted {
        Some(("metadata.annotations", key)) => {
            let key = key.to_lowercase();
            report.complaints(&key, names::qualified_name(&key));
        }
        Some(("metadata.labels", key)) => report.complaints(key, names::qualified_name(key)),
        Some(_) => {
            let why = format!("error converting fieldPath: field label does not support subscript: {path}");
            report.bad("fieldPath", path, why);
        }
        None if !allowed.contains(&path) => {
            let mut sorted = allowed.to_vec();
            sorted.sort_unstable();
            report.at("fieldPath", |r| r.not_supported(path, &sorted));
        }
        None => {}
    }
}

const SHOWN_RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const BYTE_DIVISORS: [&str; 13] = ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

/// An amount that the container asks for, as variables and downward files show it.
pub fn resource_reference(report: &mut Report, reference: &Value, in_volume: bool) {
    let resource = text(reference, "resource");
    let huge = resource.starts_with("requests.hugepages-") || resource.starts_with("limits.hugepages-");
    if in_volume && text(reference, "containerName").is_empty() {
        report.miss("containerName", "");
    } else if resource.is_empty() {
        report.miss("resource", "");
    } else if !SHOWN_RESOURCES.contains(&resource) && !huge {
        report.at("resource", |r| r.not_supported(resource, &SHOWN_RESOURCES));
    }
    let divisor = text(reference, "divisor");
    if divisor.is_empty() || divisor == "0" {
        return;
    }
    const BYTES: &str = "only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported \
                         with the";
    let kind = match resource.split_once('.').map(|(_, kind)| kind) {
        Some("cpu") if !["1m", "1"].contains(&divisor) => {
            let why = "only divisor's values 1m and 1 are supported with the cpu resource";
            return report.bad("divisor", resource, why);
        }
        Some("memory") => "memory",
        Some("ephemeral-storage") => "local ephemeral storage",
        _ if huge => "hugepages",
        _ => return,
    };
    if !BYTE_DIVISORS.contains(&divisor) {
        report.bad("divisor", resource, format_args!("{BYTES} {kind} resource"));
    }
}

fn resize_policy(report: &mut Report, item: &Value, pod_restart: &str) {
    let mut seen = Vec::new();
    for (index, policy) in list(item, "resizePolicy").iter().enumerate() {
        let (resource, restart) = (text(policy, "resourceName"), text(policy, "restartPolicy"));
        report.at("resizePolicy", |r| {
            if seen.contains(&resource) {
                r.index(index, |r| r.duplicate(resource));
            }
            seen.push(resource);
            for (said, known) in [(resource, ["cpu", "memory"]), (restart, ["NotRequired", "RestartContainer"])] {
                if said.is_empty() {
                    r.required("");
                } else if !known.contains(&said) {
                    r.not_supported(said, &known);
                }
            }
            if pod_restart == "Never" && restart != "NotRequired" {
                r.invalid(restart, "must be 'NotRequired' when `restartPolicy` is 'Never'");
            }
        });
    }
}
