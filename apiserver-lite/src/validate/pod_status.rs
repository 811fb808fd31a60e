//! What the status of a pod may say: conditions, addresses, and what became of its containers, devices and claims.

use std::collections::HashSet;

use serde_json::Value;

use super::pod_update::annotation_updates;
use super::shapes::ADDRESS;
use super::{ip, list, meta, text};
use crate::field_error::{IMMUTABLE, Report, same};
use crate::go_value::{Shape, shown};
use crate::names;

/// A status as a node or a controller writes it.
pub fn status(report: &mut Report, new: &Value, old: &Value) {
    report.at("metadata", |r| meta::update(r, "", &new["metadata"], &old["metadata"]));
    annotation_updates(report, new, old);
    let (now, was) = (&new["status"], &old["status"]);
    report.at("metadata", |r| {
        r.each(now, "conditions", |r, condition| {
            if let Some(seen) = condition["observedGeneration"].as_i64().filter(|g| *g < 0) {
                r.bad("observedGeneration", seen, "must be a non-negative integer");
            }
            let kind = text(condition, "type");
            if !["PodScheduled", "Ready", "Initialized"].contains(&kind) {
                r.at("Type", |r| r.complaints(kind, names::qualified_name(kind)));
            }
        });
    });
    report.at("status", |r| {
        if now["nominatedNodeName"] != was["nominatedNodeName"] {
            r.named(now, "nominatedNodeName", names::dns_subdomain);
        }
        if !same(&now["qosClass"], &was["qosClass"]) {
            r.bad("qosClass", text(now, "qosClass"), IMMUTABLE);
        }
        let restart = text(&old["spec"], "restartPolicy");
        for (name, restart) in [
            ("containerStatuses", restart),
            ("initContainerStatuses", restart),
            ("ephemeralContainerStatuses", "Never"),
        ] {
            terminated(r, now, was, name, restart, &old["spec"]);
        }
        let mut seen: Vec<&str> = Vec::new();
        r.each(now, "resourceClaimStatuses", |r, status| {
            let name = text(status, "name");
            if !list(&new["spec"], "resourceClaims").iter().any(|c| text(c, "name") == name) {
                r.bad("name", name, "must match the name of an entry in `spec.resourceClaims`");
            }
            if seen.contains(&name) {
                r.at("name", |r| r.duplicate(name));
            }
            seen.push(name);
            // Upstream tells of it by the other name.
            if let Some(claim) = status["resourceClaimName"].as_str() {
                r.at("name", |r| r.complaints(claim, names::dns_subdomain(claim)));
            }
        });
        r.with(now, "extendedResourceClaimStatus", |r, status| extended_claim(r, status, &new["spec"]));
        addresses(r, now, "podIPs");
        if let Some(first) = list(now, "hostIPs").first()
            && first["ip"] != now["hostIP"]
        {
            r.at("hostIPs", |r| r.index(0, |r| r.bad("ip", text(first, "ip"), "must be equal to `hostIP`")));
        }
        addresses(r, now, "hostIPs");
        for name in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
            r.each(now, name, |r, container| user(r, &container["user"], &new["spec"]));
        }
        for (name, declared) in [("containerStatuses", "containers"), ("initContainerStatuses", "initContainers")] {
            r.each(now, name, |r, container| allocated(r, container, list(&new["spec"], declared)));
        }
        r.each(now, "ephemeralContainerStatuses", |r, container| {
            if !list(container, "allocatedResourcesStatus").is_empty() {
                r.refuse("allocatedResourcesStatus", "must not be specified in container status");
            }
        });
    });
}

/// Who a container was found to run as.
fn user(report: &mut Report, user: &Value, spec: &Value) {
    let linux = &user["linux"];
    if !linux.is_object() {
        return;
    }
    match spec["os"]["name"].as_str() {
        Some("windows") => report.refuse("linux", "cannot be set for a windows pod"),
        None | Some("linux") => report.at("linux", |r| {
            let most = i64::from(i32::MAX);
            r.between(linux, "uid", 0, most);
            r.between(linux, "gid", 0, most);
            r.each(linux, "supplementalGroups", |r, group| {
                if let Some(group) = group.as_i64().filter(|g| !(0..=most).contains(g)) {
                    r.invalid(group, format_args!("must be between 0 and {most}, inclusive"));
                }
            });
        }),
        Some(_) => {}
    }
}

/// How the devices of a container are: only such as it asked for, each once and in a health that is known.
fn allocated(report: &mut Report, status: &Value, declared: &[Value]) {
    let container = declared.iter().find(|c| text(c, "name") == text(status, "name"));
    report.each(status, "allocatedResourcesStatus", |r, resource| {
        let name = text(resource, "name");
        // A status may be of a container that the pod does not have (any more).
        if let Some(container) = container {
            let asked = &container["resources"];
            if name.starts_with("claim:") {
                let named = |claim: &Value| match text(claim, "request") {
                    "" => format!("claim:{}", text(claim, "name")),
                    request => format!("claim:{}/{request}", text(claim, "name")),
                };
                if !list(asked, "claims").iter().any(|claim| named(claim) == name) {
                    let why = "must match one of the container's resource claims in a format \
                               'claim:<claimName>/<request>' or 'claim:<claimName>' if request is empty";
                    r.bad("name", name, why);
                }
            } else if asked["requests"].get(name).is_none() {
                r.bad("name", name, "must match one of the container's resource requests");
            }
        }
        let mut seen = HashSet::new();
        r.each(resource, "resources", |r, device| {
            if !["Healthy", "Unhealthy", "Unknown"].contains(&text(device, "health")) {
                r.at("health", |r| r.not_supported(text(device, "health"), &["Healthy", "Unhealthy", "Unknown"]));
            }
            let id = text(device, "resourceID");
            if !seen.insert(id) {
                r.at("resourceID", |r| r.duplicate(id));
            }
        });
    });
}

/// Which extended resources of which containers a claim that the scheduler made stands for.
fn extended_claim(report: &mut Report, status: &Value, spec: &Value) {
    let mappings = list(status, "requestMappings");
    if mappings.is_empty() {
        report.miss("requestMappings", "at least one request mapping is required");
    }
    let mut seen = HashSet::new();
    for (index, mapping) in mappings.iter().enumerate() {
        let (name, resource, request) =
            (text(mapping, "containerName"), text(mapping, "resourceName"), text(mapping, "requestName"));
        let mut all = list(spec, "containers").iter().chain(list(spec, "initContainers"));
        let container = all.find(|c| text(c, "name") == name);
        report.at("requestMappings", |r| {
            r.index(index, |r| match container {
                Some(container) if container["resources"]["requests"].get(resource).is_some() => {}
                Some(_) => {
                    let why = "must match the extended resource name of an entry in \
                               spec.initContainers.resources.requests or spec.containers.resources.requests";
                    r.bad("resourceName", resource, why);
                }
                None => {
                    let why = "must match the name of an entry in spec.initContainers.name or spec.containers.name";
                    r.bad("containerName", name, why);
                }
            });
        });
        // Upstream's path.
        report.at("requestName", |r| r.complaints(request, names::dns_label(request)));
        if !seen.insert((name, resource, request)) {
            report.at("requestMappings", |r| {
                r.index(index, |r| {
                    for (field, value) in
                        [("containerName", name), ("resourceName", resource), ("requestName", request)]
                    {
                        r.at(field, |r| r.duplicate(value));
                    }
                });
            });
        }
    }
    report.need_named(status, "resourceClaimName", names::dns_subdomain);
}

/// Whether some rule of the pod may start all its containers over: then none has ended for good.
fn may_start_over(spec: &Value) -> bool {
    let all = list(spec, "initContainers").iter().chain(list(spec, "containers"));
    all.flat_map(|c| list(c, "restartPolicyRules")).any(|rule| rule["action"] == "RestartAllContainers")
}

/// Whether the container's own policy, or a rule of it, starts it again after an end with that code.
fn restarts_itself(container: &Value, code: i64) -> bool {
    let policy = text(container, "restartPolicy");
    if policy.is_empty() {
        return false;
    }
    let matches = |rule: &&Value| {
        let on = &rule["exitCodes"];
        let listed = list(on, "values").iter().any(|v| v.as_i64() == Some(code));
        match text(on, "operator") {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        }
    };
    if let Some(rule) = list(container, "restartPolicyRules").iter().find(matches) {
        return matches!(text(rule, "action"), "Restart" | "RestartAllContainers");
    }
    policy == "Always" || policy == "OnFailure" && code != 0
}

/// A container that ended for good does not run again.
fn terminated(report: &mut Report, now: &Value, was: &Value, name: &str, restart: &str, spec: &Value) {
    if restart == "Always" || may_start_over(spec) {
        return;
    }
    for (index, before) in list(was, name).iter().enumerate() {
        let end = &before["state"]["terminated"];
        let failed = end["exitCode"].as_i64().unwrap_or(0) != 0;
        let own = |c: &&Value| text(c, "name") == text(before, "name");
        let declared = match name {
            "containerStatuses" => list(spec, "containers"),
            "initContainerStatuses" => list(spec, "initContainers"),
            _ => &[],
        };
        let code = end["exitCode"].as_i64().unwrap_or(0);
        let restarts = declared.iter().find(own).is_some_and(|c| restarts_itself(c, code));
        if !end.is_object() || failed && restart == "OnFailure" || restarts {
            continue;
        }
        for _ in list(now, name).iter().filter(own).filter(|c| c["state"]["terminated"].is_null()) {
            let why = "may not be transitioned to non-terminated state";
            report.at(name, |r| r.index(index, |r| r.refuse("state", why)));
        }
    }
}

fn addresses(report: &mut Report, status: &Value, name: &str) {
    let all: Vec<&str> = list(status, name).iter().map(|a| text(a, "ip")).collect();
    report.each(status, name, |r, address| {
        let address = text(address, "ip");
        ip::check(r, address);
    });
    if all.len() < 2 {
        return;
    }
    let families = |report: &mut Report| {
        if all.len() > 2 || !ip::is_dual_stack(all.iter().copied()) {
            let why = "may specify no more than one IP for each IP family";
            report.bad(name, shown(&status[name], &Shape::List(&ADDRESS)), why);
        }
    };
    // Upstream looks at the addresses of a host in another order.
    if name == "podIPs" {
        families(report);
    }
    let mut seen = HashSet::new();
    for (index, address) in list(status, name).iter().enumerate() {
        if !seen.insert(&all[index]) {
            report.at(name, |r| r.index(index, |r| r.duplicate(shown(address, &ADDRESS))));
        }
    }
    if name != "podIPs" {
        families(report);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn users_of_containers_are_numbers_that_exist() {
        let pod = |user: Value, os: Value| json!({"metadata": {}, "spec": {"os": os}, "status": {"initContainerStatuses": [{"name": "i", "user": user}]}});
        let told = |pod: &Value| Report::told(|r| status(r, pod, pod));
        let bad = json!({"linux": {"uid": -1, "gid": 0, "supplementalGroups": [1, 2_147_483_648_i64]}});
        let at = "status.initContainerStatuses[0].linux";
        let why = "must be between 0 and 2147483647, inclusive";
        assert_eq!(
            told(&pod(bad.clone(), Value::Null)),
            [
                format!("{at}.uid: Invalid value: -1: {why}"),
                format!("{at}.supplementalGroups[1]: Invalid value: 2147483648: {why}"),
            ]
        );
        assert_eq!(
            told(&pod(bad, json!({"name": "windows"}))),
            [format!("{at}: Forbidden: cannot be set for a windows pod")]
        );
    }

    #[test]
    fn a_container_runs_again_after_its_end_only_by_its_own_policy_or_rules() {
        let rule = |action: &str| {
            json!({"name": "a", "restartPolicy": "Never", "restartPolicyRules": [
                {"action": action, "exitCodes": {"operator": "In", "values": [42]}}]})
        };
        assert!(restarts_itself(&rule("Restart"), 42) && !restarts_itself(&rule("Restart"), 1));
        assert!(restarts_itself(&json!({"restartPolicy": "OnFailure"}), 1));
        assert!(!restarts_itself(&json!({"restartPolicy": "OnFailure"}), 0));
        assert!(!restarts_itself(&json!({"name": "a"}), 1));
        assert!(may_start_over(&json!({"containers": [rule("RestartAllContainers")]})));
        assert!(!may_start_over(&json!({"containers": [rule("Restart")]})));
    }

    #[test]
    fn a_status_tells_only_of_devices_that_a_container_asked_for() {
        let pod = |statuses: Value| {
            json!({"metadata": {"name": "p"}, "spec": {"restartPolicy": "Always", "containers": [{"name": "c",
                "resources": {"requests": {"example.com/a": "1"}, "claims": [{"name": "x"}, {"name": "y", "request": "r"}]}}],
                "initContainers": [{"name": "i"}]}, "status": statuses})
        };
        let told = |statuses: Value| {
            let pod = pod(statuses);
            Report::told(|r| status(r, &pod, &pod))
        };
        let of = |name: &str| json!({"name": name, "resources": [{"resourceID": "1", "health": "Healthy"}]});
        let good = json!([of("example.com/a"), of("claim:x"), of("claim:y/r")]);
        assert!(told(json!({"containerStatuses": [{"name": "c", "allocatedResourcesStatus": good}]})).is_empty());
        assert!(told(json!({"containerStatuses": [{"name": "d", "allocatedResourcesStatus": [of("b")]}]})).is_empty());
        let at = "status.containerStatuses[0].allocatedResourcesStatus[0]";
        let found = told(json!({"containerStatuses": [{"name": "c", "allocatedResourcesStatus": [of("b")]}]}));
        let why = "must match one of the container's resource requests";
        assert_eq!(found, [format!("{at}.name: Invalid value: \"b\": {why}")]);
        let found = told(json!({"containerStatuses": [{"name": "c", "allocatedResourcesStatus": [of("claim:y")]}]}));
        assert!(
            found[0].contains("'claim:<claimName>/<request>' or 'claim:<claimName>' if request is empty"),
            "{found:?}"
        );
        let twice = json!([{"resourceID": "1", "health": "Fine"}, {"resourceID": "1", "health": "Unknown"}]);
        let twice = json!([{"name": "example.com/a", "resources": twice}]);
        let found = told(json!({"containerStatuses": [{"name": "c", "allocatedResourcesStatus": twice}]}));
        let health = "Unsupported value: \"Fine\": supported values: \"Healthy\", \"Unhealthy\", \"Unknown\"";
        let said = [
            format!("{at}.resources[0].health: {health}"),
            format!("{at}.resources[1].resourceID: Duplicate value: \"1\""),
        ];
        assert_eq!(found, said);
        let found = told(json!({"ephemeralContainerStatuses": [{"name": "e", "allocatedResourcesStatus": [of("b")]}]}));
        let why = "Forbidden: must not be specified in container status";
        assert_eq!(found, [format!("status.ephemeralContainerStatuses[0].allocatedResourcesStatus: {why}")]);
    }

    #[test]
    fn a_claim_of_extended_resources_maps_what_containers_asked_for() {
        let told = |claim: Value| {
            let pod = json!({"metadata": {"name": "p"}, "spec": {"restartPolicy": "Always", "containers": [
                {"name": "c", "resources": {"requests": {"example.com/a": "1"}}}]},
                "status": {"extendedResourceClaimStatus": claim}});
            Report::told(|r| status(r, &pod, &pod))
        };
        let mapping = |container: &str, resource: &str| json!({"containerName": container, "resourceName": resource, "requestName": "container-0-request-0"});
        let good = mapping("c", "example.com/a");
        assert!(told(json!({"resourceClaimName": "x", "requestMappings": [good]})).is_empty());
        let at = "status.extendedResourceClaimStatus";
        let said = [
            format!("{at}.requestMappings: Required value: at least one request mapping is required"),
            format!("{at}.resourceClaimName: Required value"),
        ];
        assert_eq!(told(json!({"requestMappings": []})), said);
        let found = told(json!({"resourceClaimName": "x", "requestMappings": [mapping("c", "b"), mapping("d", "b")]}));
        assert!(
            found[0].starts_with(&format!("{at}.requestMappings[0].resourceName: Invalid value: \"b\"")),
            "{found:?}"
        );
        assert!(
            found[1].starts_with(&format!("{at}.requestMappings[1].containerName: Invalid value: \"d\"")),
            "{found:?}"
        );
        let found = told(json!({"resourceClaimName": "x", "requestMappings": [good, good]}));
        assert_eq!(found.len(), 3, "{found:?}");
    }
}
