//! All other groups.

use serde_json::{Value, json};

use super::{Object, below, each, has, inside, made, set, set_absent, set_number, set_unsaid, text};

pub(super) fn apply(group: &str, plural: &str, object: &mut Object) {
    match (group, plural) {
        ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => role_binding(object),
        ("networking.k8s.io", "networkpolicies") => network_policy(object),
        ("networking.k8s.io", "ingressclasses") => {
            if let Some(parameters) = below(object, &["spec", "parameters"]) {
                set_unsaid(parameters, "scope", "Cluster");
            }
        }
        ("discovery.k8s.io", "endpointslices") => {
            for port in each(object, "ports") {
                if !has(port, "name") {
                    port.insert("name".into(), "".into());
                }
                set_unsaid(port, "protocol", "TCP");
            }
        }
        ("storage.k8s.io", "storageclasses") => {
            set_unsaid(object, "reclaimPolicy", "Delete");
            set_unsaid(object, "volumeBindingMode", "Immediate");
        }
        ("storage.k8s.io", "csidrivers") => driver(object),
        ("scheduling.k8s.io", "priorityclasses") => set_unsaid(object, "preemptionPolicy", "PreemptLowerPriority"),
        ("flowcontrol.apiserver.k8s.io", "flowschemas") => {
            if let Some(spec) = made(object, "spec") {
                set_number(spec, "matchingPrecedence", 1000);
            }
        }
        ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations") => priority_level(object),
        ("node.k8s.io", "runtimeclasses") => {
            if let Some(overhead) = inside(object, "overhead") {
                super::pod::whole_millis_of(overhead, &["podFixed"]);
            }
        }
        ("resource.k8s.io", "resourceslices") => {
            if let Some(spec) = inside(object, "spec") {
                each(spec, "devices").for_each(device);
            }
        }
        ("resource.k8s.io", "devicetaintrules") => {
            if let Some(taint) = below(object, &["spec", "taint"]) {
                device_taint(taint);
            }
        }
        ("resource.k8s.io", "resourceclaims") => {
            if let Some(spec) = inside(object, "spec") {
                device_claim(spec);
            }
        }
        ("resource.k8s.io", "resourceclaimtemplates") => {
            if let Some(spec) = below(object, &["spec", "spec"]) {
                device_claim(spec);
            }
        }
        ("apiregistration.k8s.io", "apiservices") => {
            if let Some(service) = below(object, &["spec", "service"]) {
                set_absent(service, "port", 443);
            }
        }
        _ => {}
    }
}

fn role_binding(object: &mut Object) {
    const GROUP: &str = "rbac.authorization.k8s.io";
    // A binding without a role has one that says nothing.
    if let Some(reference) = made(object, "roleRef") {
        set(reference, "apiGroup", GROUP);
    }
    for subject in each(object, "subjects") {
        if matches!(text(subject, "kind"), "User" | "Group") {
            set(subject, "apiGroup", GROUP);
        }
    }
}

fn network_policy(object: &mut Object) {
    let Some(spec) = made(object, "spec") else { return };
    for rules in ["ingress", "egress"] {
        for rule in each(spec, rules) {
            each(rule, "ports").for_each(|port| set_unsaid(port, "protocol", "TCP"));
        }
    }
    if spec.get("policyTypes").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        let types = if has(spec, "egress") { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
        spec.insert("policyTypes".into(), types);
    }
}

fn driver(object: &mut Object) {
    let Some(spec) = made(object, "spec") else { return };
    set(spec, "attachRequired", true);
    for name in ["podInfoOnMount", "storageCapacity", "requiresRepublish", "seLinuxMount"] {
        set(spec, name, false);
    }
    set_unsaid(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
    if spec.get("volumeLifecycleModes").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        spec.insert("volumeLifecycleModes".into(), json!(["Persistent"]));
    }
}

fn priority_level(object: &mut Object) {
    let Some(spec) = inside(object, "spec") else { return };
    for (part, shares) in [("exempt", 0), ("limited", 30)] {
        if let Some(part) = inside(spec, part) {
            set(part, "nominalConcurrencyShares", shares);
            set(part, "lendablePercent", 0);
        }
    }
    if let Some(queues) = below(spec, &["limited", "limitResponse", "queuing"]) {
        set_number(queues, "handSize", 8);
        set_number(queues, "queues", 64);
        set_number(queues, "queueLengthLimit", 50);
    }
}

/// A device; an older version has what is told of it one level down.
fn device(device: &mut Object) {
    each(device, "taints").for_each(device_taint);
    if let Some(basic) = inside(device, "basic") {
        each(basic, "taints").for_each(device_taint);
    }
}

/// A taint begins when it is written.
fn device_taint(taint: &mut Object) {
    if !has(taint, "timeAdded") {
        taint.insert("timeAdded".into(), proto::time::Timestamp::now().to_seconds_text().into());
    }
}

fn device_claim(spec: &mut Object) {
    let Some(devices) = inside(spec, "devices") else { return };
    for request in each(devices, "requests") {
        if let Some(exact) = inside(request, "exactly") {
            device_request(exact);
        }
        each(request, "firstAvailable").for_each(device_request);
    }
}

fn device_request(request: &mut Object) {
    set(request, "allocationMode", "ExactCount");
    if text(request, "allocationMode") == "ExactCount" {
        set_number(request, "count", 1);
    }
    each(request, "tolerations").for_each(|toleration| set(toleration, "operator", "Equal"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaulted(group: &str, plural: &str, mut value: Value) -> Value {
        apply(group, plural, value.as_object_mut().unwrap());
        value
    }

    #[test]
    fn a_policy_is_about_egress_only_when_it_says_something_about_it() {
        let types = |spec: Value| {
            defaulted("networking.k8s.io", "networkpolicies", json!({"spec": spec}))["spec"]["policyTypes"].take()
        };
        assert_eq!(types(json!({})), json!(["Ingress"]));
        assert_eq!(types(json!({"egress": [{}]})), json!(["Ingress", "Egress"]));
        assert_eq!(types(json!({"policyTypes": ["Egress"]})), json!(["Egress"]));
    }

    #[test]
    fn an_empty_word_is_something_where_none_would_be_nothing() {
        for (group, plural, value, at, default) in [
            ("storage.k8s.io", "storageclasses", json!({}), "/volumeBindingMode", "Immediate"),
            ("storage.k8s.io", "csidrivers", json!({"spec": {}}), "/spec/fsGroupPolicy", "ReadWriteOnceWithFSType"),
            ("scheduling.k8s.io", "priorityclasses", json!({}), "/preemptionPolicy", "PreemptLowerPriority"),
            (
                "networking.k8s.io",
                "ingressclasses",
                json!({"spec": {"parameters": {}}}),
                "/spec/parameters/scope",
                "Cluster",
            ),
        ] {
            let done = defaulted(group, plural, value.clone());
            assert_eq!(done.pointer(at), Some(&json!(default)), "{plural}");
            let mut said = value;
            let (parent, name) = at.rsplit_once('/').expect("a path");
            said.pointer_mut(parent).expect("it is there")[name] = "".into();
            assert_eq!(defaulted(group, plural, said).pointer(at), Some(&json!("")), "{plural}");
        }
    }

    #[test]
    fn a_taint_of_a_device_has_its_time() {
        let taints = json!([{"key": "a", "effect": "NoExecute"}, {"key": "b", "timeAdded": "2020-01-01T00:00:00Z"}]);
        let slice = json!({"spec": {"devices": [{"name": "d", "taints": taints}]}});
        let done = defaulted("resource.k8s.io", "resourceslices", slice);
        let taints = &done["spec"]["devices"][0]["taints"];
        assert!(taints[0]["timeAdded"].as_str().is_some_and(|time| time.ends_with('Z')));
        assert_eq!(taints[1]["timeAdded"], "2020-01-01T00:00:00Z");
    }

    #[test]
    fn a_binding_without_a_role_names_a_group() {
        let group = "rbac.authorization.k8s.io";
        for (binding, name) in [(json!({}), json!(null)), (json!({"roleRef": {"name": "a"}}), json!("a"))] {
            let done = defaulted(group, "rolebindings", binding);
            assert_eq!((&done["roleRef"]["apiGroup"], &done["roleRef"]["name"]), (&json!(group), &name));
        }
    }

    #[test]
    fn a_device_is_asked_for_once() {
        let claim = json!({"spec": {"devices": {"requests": [{"exactly": {}}, {"firstAvailable": [{"allocationMode": "All"}]}]}}});
        let done = defaulted("resource.k8s.io", "resourceclaims", claim);
        assert_eq!(
            done["spec"]["devices"]["requests"][0]["exactly"],
            json!({"allocationMode": "ExactCount", "count": 1})
        );
        assert_eq!(done["spec"]["devices"]["requests"][1]["firstAvailable"], json!([{"allocationMode": "All"}]));
    }
}
