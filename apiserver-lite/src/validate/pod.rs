//! Pods and pod templates.

use serde_json::Value;

use super::amounts::{self, Owner};
use super::{container, ip, list, meta, scheduling, security, text, volume};
use crate::field_error::Report;
use crate::names;

/// What the checks of containers need to know of their pod.
pub struct Context<'a> {
    volumes: Vec<&'a Value>,
    /// Names of the pod's resource claims.
    pub claims: Vec<&'a str>,
    pub grace: Option<i64>,
    /// The pod shares the node's users.
    pub host_users: bool,
    /// Name of the system it runs on; empty where the pod does not say.
    pub os: &'a str,
}

impl<'a> Context<'a> {
    pub fn volume(&self, name: &str) -> Option<&'a Value> {
        self.volumes.iter().find(|v| text(v, "name") == name).copied()
    }

    pub fn has_volume(&self, name: &str) -> bool {
        self.volume(name).is_some()
    }
}

/// A pod's spec and annotations, as checked on create and on every update.
pub fn check(report: &mut Report, pod: &Value) {
    let specification = &pod["spec"];
    let annotations = &pod["metadata"]["annotations"];
    report.down(&["metadata", "annotations"], |r| security::annotations(r, annotations, specification));
    report.at("spec", |r| {
        spec(r, specification, Some(text(&pod["metadata"], "name")));
        if text(specification, "serviceAccountName").is_empty() {
            r.each(specification, "volumes", |r, volume| {
                r.with(volume, "projected", |r, projected| {
                    r.each(projected, "sources", |r, source| {
                        let why = "must not be specified when serviceAccountName is not set";
                        r.forbid(source, &["serviceAccountToken"], why);
                    });
                });
            });
        }
        for name in ["containers", "initContainers"] {
            r.each(specification, name, container::image_spaces);
        }
    });
}

/// A new pod.
pub fn create(report: &mut Report, pod: &Value) {
    check(report, pod);
    let spec = &pod["spec"];
    report.at("spec", |r| {
        if !list(spec, "ephemeralContainers").is_empty() {
            r.refuse("ephemeralContainers", "cannot be set on create");
        }
        if !text(spec, "nodeName").is_empty() && !list(spec, "schedulingGates").is_empty() {
            r.refuse("nodeName", "cannot be set until all schedulingGates have been cleared");
        }
        security::annotations_match(r, &pod["metadata"]["annotations"], spec);
    });
}

/// A pod template: labels, annotations and spec.
pub fn template(report: &mut Report, template: &Value) {
    // Upstream leaves `metadata` out of these paths.
    meta::labels(report, &template["metadata"]);
    let annotations = &template["metadata"]["annotations"];
    report.at("annotations", |r| security::annotations(r, annotations, &template["spec"]));
    report.at("spec", |r| {
        spec(r, &template["spec"], None);
        security::annotations_match(r, annotations, &template["spec"]);
        if !list(&template["spec"], "ephemeralContainers").is_empty() {
            r.refuse("ephemeralContainers", "ephemeral containers not allowed in pod template");
        }
    });
}

/// The spec of a pod with this name, or of a template.
pub fn spec(report: &mut Report, spec: &Value, pod: Option<&str>) {
    if spec["terminationGracePeriodSeconds"].is_null() {
        report.miss("terminationGracePeriodSeconds", "");
    }
    let volumes = volume::all(report, spec, pod.unwrap_or_default(), pod.is_some());
    let claims = list(spec, "resourceClaims").iter().map(|c| text(c, "name")).filter(|n| !n.is_empty()).collect();
    resource_claims(report, spec);
    let grace = spec["terminationGracePeriodSeconds"].as_i64();
    let context =
        Context { volumes, claims, grace, host_users: spec["hostUsers"] != false, os: text(&spec["os"], "name") };
    container::lists(report, spec, &context);
    amounts::pod_level(report, spec);
    if spec["hostNetwork"] == true {
        report.each(spec, "containers", |r, item| {
            r.each(item, "ports", |r, port| {
                let (host, own) = (port["hostPort"].as_i64().unwrap_or(0), port["containerPort"].as_i64().unwrap_or(0));
                if (pod.is_some() || host != 0) && host != own {
                    r.bad("hostPort", host, "must match `containerPort` when `hostNetwork` is true");
                }
            });
        });
    }
    report.choice(spec, "restartPolicy", &["Always", "OnFailure", "Never"]);
    report.choice(spec, "dnsPolicy", &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]);
    report.at("nodeSelector", |r| meta::label_map(r, &spec["nodeSelector"]));
    security::pod(report, spec);
    report.with(spec, "affinity", scheduling::affinity);
    dns(report, spec);
    report.each(spec, "readinessGates", |r, gate| {
        let kind = text(gate, "conditionType");
        r.at("conditionType", |r| r.complaints(kind, names::qualified_name(kind)));
    });
    let mut gates: Vec<&str> = Vec::new();
    report.each(spec, "schedulingGates", |r, gate| {
        let name = text(gate, "name");
        r.complaints(name, names::qualified_name(name));
        if gates.contains(&name) {
            r.duplicate(name);
        }
        gates.push(name);
    });
    scheduling::spread(report, spec);
    security::host_process(report, spec);
    security::host_users(report, spec);
    report.named(spec, "serviceAccountName", names::dns_subdomain);
    report.named(spec, "nodeName", names::dns_subdomain);
    report.between(spec, "activeDeadlineSeconds", 1, i64::from(i32::MAX));
    report.named(spec, "hostname", names::dns_label);
    report.named(spec, "subdomain", names::dns_label);
    host_name(report, spec);
    scheduling::tolerations(report, spec);
    report.each(spec, "hostAliases", |r, alias| {
        r.at("ip", |r| volume::address(r, text(alias, "ip")));
        r.each(alias, "hostnames", |r, name| {
            let name = name.as_str().unwrap_or_default();
            r.complaints(name, names::dns_subdomain(name));
        });
    });
    report.named(spec, "priorityClassName", names::dns_subdomain);
    report.with(spec, "runtimeClassName", |r, name| {
        let name = name.as_str().unwrap_or_default();
        r.complaints(name, names::dns_subdomain(name));
    });
    if spec["preemptionPolicy"] == "" {
        report.miss("preemptionPolicy", "");
    } else {
        report.maybe_choice(spec, "preemptionPolicy", &["PreemptLowerPriority", "Never"]);
    }
    report.with(spec, "overhead", |r, overhead| {
        let limits = serde_json::json!({"limits": overhead});
        amounts::requirements(r, &limits, Owner::Container, &[]);
    });
    security::operating_system(report, spec);
}

/// A host name that is nobody's but the pod's: the kernel keeps no more than 64 bytes of it.
fn host_name(report: &mut Report, spec: &Value) {
    report.with(spec, "hostnameOverride", |r, name| {
        let name = name.as_str().unwrap_or_default();
        r.complaints(name, names::dns_subdomain(name));
        if name.len() > 64 {
            r.too_long(64);
        }
        for (other, set) in [("hostNetwork", &spec["hostNetwork"]), ("setHostnameAsFQDN", &spec["setHostnameAsFQDN"])] {
            if *set == true {
                r.forbidden(&format!("may not be specified when `{other}` is true"));
            }
        }
    });
}

fn resource_claims(report: &mut Report, spec: &Value) {
    let mut seen: Vec<&str> = Vec::new();
    report.each(spec, "resourceClaims", |r, claim| {
        let name = text(claim, "name");
        if r.need(claim, "name") {
            if seen.contains(&name) {
                r.at("name", |r| r.duplicate(name));
            } else {
                r.named(claim, "name", names::dns_label);
                seen.push(name);
            }
        }
        let said = |name: &str| claim.get(name).is_some_and(Value::is_string);
        let shown = || {
            crate::field_error::go_struct(&[
                ("Name", &claim["name"]),
                ("ResourceClaimName", &claim["resourceClaimName"]),
                ("ResourceClaimTemplateName", &claim["resourceClaimTemplateName"]),
            ])
        };
        match (said("resourceClaimName"), said("resourceClaimTemplateName")) {
            (true, true) => {
                let why = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified";
                r.invalid(shown(), why);
            }
            (false, false) => {
                r.invalid(shown(), "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`");
            }
            _ => {}
        }
        r.named(claim, "resourceClaimName", names::dns_subdomain);
        r.named(claim, "resourceClaimTemplateName", names::dns_subdomain);
    });
}

fn dns(report: &mut Report, spec: &Value) {
    let config = &spec["dnsConfig"];
    if text(spec, "dnsPolicy") == "None" {
        if !config.is_object() {
            return report.miss("dnsConfig", "must provide `dnsConfig` when `dnsPolicy` is None");
        }
        if list(config, "nameservers").is_empty() {
            let why = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            return report.at("dnsConfig", |r| r.miss("nameservers", why));
        }
    }
    report.with(spec, "dnsConfig", |r, config| {
        if list(config, "nameservers").len() > 3 {
            r.bad("nameservers", &config["nameservers"], "must not have more than 3 nameservers");
        }
        r.each(config, "nameservers", |r, server| {
            let server = server.as_str().unwrap_or_default();
            ip::check(r, server);
        });
        let searches = list(config, "searches");
        if searches.len() > 32 {
            r.bad("searches", &config["searches"], "must not have more than 32 search paths");
        }
        let length: usize = searches.iter().filter_map(Value::as_str).map(|s| s.len() + 1).sum();
        if length > 2048 + 1 {
            let why = "must not have more than 2048 characters (including spaces) in the search list";
            r.bad("searches", &config["searches"], why);
        }
        r.each(config, "searches", |r, search| {
            let search = search.as_str().unwrap_or_default();
            if search != "." {
                let search = search.strip_suffix('.').unwrap_or(search);
                r.complaints(search, names::subdomain_with_underscores(search));
            }
        });
        r.each(config, "options", |r, option| {
            if text(option, "name").is_empty() {
                r.required("must not be empty");
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_overriding_host_name_is_short_and_the_pods_own() {
        let told = |spec: Value| {
            let mut report = Report::default();
            host_name(&mut report, &spec);
            report.errors.into_iter().map(|e| format!("{}: {}", e.field, e.reason)).collect::<Vec<_>>()
        };
        assert_eq!(told(json!({"hostnameOverride": "www.example.com"})), [""; 0]);
        assert_eq!(told(json!({"hostnameOverride": "A"})), ["hostnameOverride: FieldValueInvalid"]);
        assert_eq!(told(json!({"hostnameOverride": "a".repeat(65)})), ["hostnameOverride: FieldValueTooLong"]);
        let shared = json!({"hostnameOverride": "a", "hostNetwork": true, "setHostnameAsFQDN": true});
        assert_eq!(told(shared), ["hostnameOverride: FieldValueForbidden"; 2]);
    }
}
