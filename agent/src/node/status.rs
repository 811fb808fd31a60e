//! The node's status as a tree, from facts; a pure function.

use std::net::IpAddr;

use proto::cri;
use serde_json::{Map, Value, json};

use super::resources::Resources;
use super::{KUBELET_VERSION, Machine, NodeSignals, RuntimeState};
use crate::config::FeatureGates;

/// Names of an image in the status at most; digests come first.
const MAX_NAMES: usize = 5;

/// Everything that the status is made of.
pub struct Facts<'a> {
    pub name: &'a str,
    pub machine: &'a Machine,
    pub capacity: &'a Resources,
    /// What a node must have some of to be ready.
    pub required: &'a [&'a str],
    pub allocatable: &'a Resources,
    /// None when they cannot be told now; those that are known stay.
    pub addresses: Option<&'a [IpAddr]>,
    /// Somebody named them.
    pub given: bool,
    pub runtime: &'a RuntimeState,
    /// Why it is not known what runs, None when it is.
    pub pleg: Option<&'a str>,
    pub signals: &'a NodeSignals,
    pub images: &'a [Value],
    pub port: i32,
    pub gates: &'a FeatureGates,
    /// An external cloud controller sets the addresses: those that the node has stay.
    pub external_cloud: bool,
    /// RFC 3339, seconds.
    pub now: &'a str,
}

/// Builds the new status; `old` is the status that the API server has, null for a new node. What others own in it (other
/// conditions, attached volumes) is kept.
pub fn build(old: &Value, facts: &Facts<'_>) -> Value {
    let mut status = old.as_object().cloned().unwrap_or_default();
    let mut put = |name: &str, value: Value| {
        let empty = value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty);
        if empty || value.is_null() {
            status.remove(name);
        } else {
            status.insert(name.into(), value);
        }
    };
    let kept = old.get("addresses").filter(|a| a.as_array().is_some_and(|a| !a.is_empty()));
    match (kept, facts.addresses) {
        (_, None) => {}
        (Some(_), _) if facts.external_cloud => {}
        // What is found here need not be what the cloud controller says later.
        (None, _) if facts.external_cloud && !facts.given => put("addresses", addresses(&[], facts.name)),
        (_, Some(found)) => put("addresses", addresses(found, facts.name)),
    }
    let capacity = quantities(facts.capacity, old.get("capacity"));
    // Nothing is reserved of what others say the node has.
    put("allocatable", quantities(facts.allocatable, Some(&capacity)));
    put("capacity", capacity);
    put("nodeInfo", node_info(facts));
    put("daemonEndpoints", json!({"kubeletEndpoint": {"Port": facts.port}}));
    put("images", Value::Array(facts.images.to_vec()));
    put("runtimeHandlers", Value::Array(facts.runtime.handlers.iter().map(handler).collect()));
    if let Some(features) = &facts.runtime.features {
        put("features", json!({"supplementalGroupsPolicy": features.supplemental_groups_policy}));
    }
    put("volumesInUse", json!(facts.signals.volumes_in_use.names));
    if facts.gates.enabled("NodeDeclaredFeatures") {
        let declared = declared_features(&declared_by_gates(facts.gates), facts.runtime.features.as_ref());
        put("declaredFeatures", json!(declared));
    }
    let conditions = conditions(old.get("conditions"), facts);
    put("conditions", conditions);
    Value::Object(status)
}

/// Images as the status lists them: the largest first, at most `limit` (all when negative).
pub fn images(list: &[cri::Image], limit: i32) -> Vec<Value> {
    let mut sorted: Vec<_> = list.iter().collect();
    sorted.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.id.cmp(&b.id)));
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let entry = |image: &&cri::Image| {
        let names: Vec<&String> = image.repo_digests.iter().chain(&image.repo_tags).take(MAX_NAMES).collect();
        let mut entry = Map::new();
        if !names.is_empty() {
            entry.insert("names".into(), json!(names));
        }
        if image.size > 0 {
            entry.insert("sizeBytes".into(), json!(i64::try_from(image.size).unwrap_or(i64::MAX)));
        }
        Value::Object(entry)
    };
    sorted.iter().take(limit).map(entry).collect()
}

fn addresses(found: &[IpAddr], name: &str) -> Value {
    let mut list: Vec<_> = found.iter().map(|a| json!({"type": "InternalIP", "address": a.to_string()})).collect();
    list.push(json!({"type": "Hostname", "address": name}));
    Value::Array(list)
}

/// Our own amounts, and extended resources of others.
fn quantities(own: &Resources, others: Option<&Value>) -> Value {
    let mut map: Map<String, Value> = own.iter().map(|(k, v)| (k.clone(), json!(v.to_string()))).collect();
    for (name, amount) in others.and_then(Value::as_object).into_iter().flatten() {
        let extended = name.contains('/') && !name.contains("kubernetes.io/");
        if extended && !map.contains_key(name) {
            map.insert(name.clone(), amount.clone());
        }
    }
    Value::Object(map)
}

fn node_info(facts: &Facts<'_>) -> Value {
    let machine = facts.machine;
    let mut info = json!({
        "machineID": machine.machine_id,
        "systemUUID": machine.system_uuid,
        "bootID": machine.boot_id,
        "kernelVersion": machine.kernel_version,
        "osImage": machine.os_image,
        "containerRuntimeVersion": facts.runtime.version,
        "kubeletVersion": KUBELET_VERSION,
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": machine.architecture,
    });
    if machine.swap_bytes > 0
        && let Some(map) = info.as_object_mut()
    {
        map.insert("swap".into(), json!({"capacity": i64::try_from(machine.swap_bytes).unwrap_or(i64::MAX)}));
    }
    info
}

fn handler(handler: &cri::RuntimeHandler) -> Value {
    let features = handler.features.unwrap_or_default();
    json!({
        "name": handler.name,
        "features": {
            "recursiveReadOnlyMounts": features.recursive_read_only_mounts,
            "userNamespaces": features.user_namespaces,
        },
    })
}

/// Features that schedulers and the API server look for, sorted: those that need nothing but their gate, and those of
/// which the runtime says that it has what they need.
pub fn declared_features(by_gates: &[&'static str], runtime: Option<&cri::RuntimeFeatures>) -> Vec<&'static str> {
    let host_network = runtime.is_some_and(|features| features.user_namespaces_host_network);
    by_gates.iter().filter(|name| **name != USER_NAMESPACES_HOST_NETWORK || host_network).copied().collect()
}

pub const USER_NAMESPACES_HOST_NETWORK: &str = "UserNamespacesHostNetworkSupport";
pub const RESTART_ALL_CONTAINERS: &str = "RestartAllContainersOnContainerExits";

/// What the gates say of the features that are declared, sorted.
pub fn declared_by_gates(gates: &FeatureGates) -> Vec<&'static str> {
    const DECLARED: &[(&str, &str)] = &[
        ("ExtendWebSocketsToKubelet", "ExtendWebSocketsToKubelet"),
        ("InPlacePodLevelResourcesVerticalScaling", "InPlacePodLevelResourcesVerticalScaling"),
        ("InPlacePodVerticalScalingInitContainers", "InPlacePodVerticalScalingInitContainers"),
        (RESTART_ALL_CONTAINERS, RESTART_ALL_CONTAINERS),
        (USER_NAMESPACES_HOST_NETWORK, USER_NAMESPACES_HOST_NETWORK),
    ];
    DECLARED.iter().filter(|(_, gate)| gates.enabled(gate)).map(|(name, _)| *name).collect()
}

fn conditions(old: Option<&Value>, facts: &Facts<'_>) -> Value {
    let signals = facts.signals;
    let pressure = |on: bool, resource: &str, bad: &str, good: &str| -> (bool, String, String) {
        let word = if on { bad } else { good };
        (on, format!("KubeletHas{word}{resource}"), message(resource, on))
    };
    let mut not_ready: Vec<String> = Vec::new();
    not_ready.extend(facts.runtime.not_ready.clone());
    not_ready.extend(facts.pleg.map(str::to_owned));
    not_ready.extend(facts.runtime.network_not_ready.clone());
    not_ready.extend(signals.csi_node.clone());
    not_ready.extend(signals.not_ready.iter().cloned());
    not_ready.extend(signals.shutting_down.then(|| "node is shutting down".to_owned()));
    let missing: Vec<&str> = facts.required.iter().filter(|r| !facts.capacity.contains_key(**r)).copied().collect();
    if !missing.is_empty() {
        not_ready.push(format!("missing node capacity for resources: {}", missing.join(", ")));
    }
    let ready = match not_ready.as_slice() {
        [] => (true, "KubeletReady".to_owned(), "kubelet is posting ready status".to_owned()),
        [one] => (false, "KubeletNotReady".to_owned(), one.clone()),
        many => (false, "KubeletNotReady".to_owned(), format!("[{}]", many.join(", "))),
    };
    let own = [
        ("MemoryPressure", pressure(signals.memory_pressure, "Memory", "Insufficient", "Sufficient")),
        ("DiskPressure", pressure(signals.disk_pressure, "DiskPressure", "", "No")),
        ("PIDPressure", pressure(signals.pid_pressure, "PID", "Insufficient", "Sufficient")),
        ("Ready", ready),
    ];
    let mut list: Vec<Value> = old.and_then(Value::as_array).cloned().unwrap_or_default();
    for (kind, (on, reason, message)) in own {
        let status = if on { "True" } else { "False" };
        let at = list.iter().position(|c| c.get("type").and_then(Value::as_str) == Some(kind));
        let before = at.map(|at| &list[at]);
        let same = before.is_some_and(|b| b.get("status").and_then(Value::as_str) == Some(status));
        let since = before.filter(|_| same).and_then(|b| b.get("lastTransitionTime").cloned());
        let condition = json!({
            "type": kind,
            "status": status,
            "lastHeartbeatTime": facts.now,
            "lastTransitionTime": since.unwrap_or_else(|| json!(facts.now)),
            "reason": reason,
            "message": message,
        });
        match at {
            Some(at) => list[at] = condition,
            None => list.push(condition),
        }
    }
    Value::Array(list)
}

fn message(resource: &str, on: bool) -> String {
    match (resource, on) {
        ("Memory", true) => "kubelet has insufficient memory available",
        ("Memory", false) => "kubelet has sufficient memory available",
        ("DiskPressure", true) => "kubelet has disk pressure",
        ("DiskPressure", false) => "kubelet has no disk pressure",
        (_, true) => "kubelet has insufficient PID available",
        (_, false) => "kubelet has sufficient PID available",
    }
    .to_owned()
}

/// Whether the condition Ready is true.
pub fn is_ready(status: &Value) -> bool {
    let conditions = status.get("conditions").and_then(Value::as_array);
    conditions.is_some_and(|all| all.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
}

/// Whether two statuses differ in more than heartbeats.
pub fn differ(old: &Value, new: &Value) -> bool {
    let still = |status: &Value| {
        let mut status = status.clone();
        for condition in status.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(map) = condition.as_object_mut() {
                map.remove("lastHeartbeatTime");
            }
        }
        status
    };
    still(old) != still(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts<'a>(
        runtime: &'a RuntimeState,
        signals: &'a NodeSignals,
        machine: &'a Machine,
        resources: &'a Resources,
        gates: &'a FeatureGates,
        now: &'a str,
    ) -> Facts<'a> {
        Facts {
            name: "node-a",
            machine,
            capacity: resources,
            required: &[],
            allocatable: resources,
            addresses: Some(&[]),
            given: false,
            runtime,
            pleg: None,
            signals,
            images: &[],
            port: 10250,
            gates,
            external_cloud: false,
            now,
        }
    }

    /// What an administrator had advertised was never there for pods, and stayed when it was taken back.
    #[test]
    fn what_others_say_that_the_node_has_is_there_for_pods() {
        let (machine, gates) = (Machine::default(), FeatureGates::default());
        let own: Resources = [("example.com/gpu".to_owned(), super::super::resources::count(2))].into();
        let (up, signals) = (RuntimeState::default(), NodeSignals::default());
        let next = |old: &Value| build(old, &facts(&up, &signals, &machine, &own, &gates, "t"));
        let advertised =
            next(&json!({"capacity": {"example.com/dongle": "4"}, "allocatable": {"example.com/dongle": "3"}}));
        let both = json!({"example.com/dongle": "4", "example.com/gpu": "2"});
        assert_eq!((&advertised["capacity"], &advertised["allocatable"]), (&both, &both));
        let back = next(&json!({"allocatable": {"example.com/dongle": "4"}}));
        assert_eq!(back["allocatable"], json!({"example.com/gpu": "2"}));
    }

    #[test]
    fn conditions_keep_their_transition_time_and_strangers_stay() {
        let (machine, resources, gates) = (Machine::default(), Resources::new(), FeatureGates::default());
        let (up, signals) = (RuntimeState::default(), NodeSignals::default());
        let old = json!({"conditions": [{"type": "Other", "status": "True"}]});
        let first = build(&old, &facts(&up, &signals, &machine, &resources, &gates, "t1"));
        let second = build(&first, &facts(&up, &signals, &machine, &resources, &gates, "t2"));
        assert!(!differ(&first, &second));
        let list = second["conditions"].as_array().expect("a list");
        let types: Vec<_> = list.iter().map(|c| c["type"].as_str().expect("text")).collect();
        assert_eq!(types, ["Other", "MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]);
        assert_eq!((&list[4]["lastTransitionTime"], &list[4]["lastHeartbeatTime"]), (&json!("t1"), &json!("t2")));
        assert_eq!(list[2]["reason"], "KubeletHasNoDiskPressure");

        let down = RuntimeState { not_ready: Some("container runtime is down".into()), ..RuntimeState::default() };
        let third = build(&second, &facts(&down, &signals, &machine, &resources, &gates, "t3"));
        assert!(differ(&second, &third));
        let ready = &third["conditions"][4];
        assert_eq!(
            (&ready["status"], &ready["message"], &ready["lastTransitionTime"]),
            (&json!("False"), &json!("container runtime is down"), &json!("t3"))
        );

        let signals = NodeSignals { disk_pressure: true, shutting_down: true, ..NodeSignals::default() };
        let fourth = build(&second, &facts(&up, &signals, &machine, &resources, &gates, "t4"));
        let (disk, ready) = (&fourth["conditions"][2], &fourth["conditions"][4]);
        assert_eq!((&disk["status"], &disk["lastTransitionTime"]), (&json!("True"), &json!("t4")));
        assert_eq!(
            (&disk["reason"], &disk["message"]),
            (&json!("KubeletHasDiskPressure"), &json!("kubelet has disk pressure"))
        );
        assert_eq!((&ready["reason"], &ready["message"]), (&json!("KubeletNotReady"), &json!("node is shutting down")));
    }

    /// A node whose disk did not say its size was ready, and its pods ran without a limit there.
    #[test]
    fn a_node_is_not_ready_before_its_drivers_have_a_place_and_without_what_pods_need() {
        let (machine, gates, up) = (Machine::default(), FeatureGates::default(), RuntimeState::default());
        let resources: Resources = [("cpu".to_owned(), super::super::resources::count(2))].into();
        let signals = NodeSignals { csi_node: Some("CSINode is not yet initialized".into()), ..NodeSignals::default() };
        let shown = |signals: &NodeSignals, required: &[&str]| {
            let facts = Facts { required, ..facts(&up, signals, &machine, &resources, &gates, "t") };
            build(&Value::Null, &facts)["conditions"][3]["message"].as_str().unwrap_or_default().to_owned()
        };
        let missing = "missing node capacity for resources: pods, ephemeral-storage";
        assert_eq!(shown(&signals, &["cpu"]), "CSINode is not yet initialized");
        assert_eq!(shown(&NodeSignals::default(), &["cpu", "pods", "ephemeral-storage"]), missing);
        assert_eq!(
            shown(&signals, &["cpu", "pods", "ephemeral-storage"]),
            format!("[CSINode is not yet initialized, {missing}]")
        );
    }

    #[test]
    fn a_cloud_controller_has_the_say_on_addresses_and_wrong_ones_change_nothing() {
        let (machine, resources, gates) = (Machine::default(), Resources::new(), FeatureGates::default());
        let (up, signals) = (RuntimeState::default(), NodeSignals::default());
        let own: [IpAddr; 1] = ["10.0.2.15".parse().expect("an address")];
        let internal = |address: &str| json!({"type": "InternalIP", "address": address});
        let hostname = json!({"type": "Hostname", "address": "node-a"});
        let before = json!({"addresses": [internal("192.0.2.1")]});
        let shown = |old: &Value, found: Option<&[IpAddr]>, given, external_cloud| {
            let facts = facts(&up, &signals, &machine, &resources, &gates, "t");
            let facts = Facts { addresses: found, given, external_cloud, ..facts };
            build(old, &facts).get("addresses").cloned().unwrap_or_default()
        };
        let (found, none) = (Some(&own[..]), Value::Null);
        assert_eq!(shown(&before, found, false, false), json!([internal("10.0.2.15"), hostname]));
        assert_eq!(shown(&before, None, true, false), before["addresses"]);
        assert_eq!(shown(&none, None, true, false), Value::Null);
        assert_eq!(shown(&before, found, true, true), before["addresses"]);
        assert_eq!(shown(&none, found, false, true), json!([hostname]));
        assert_eq!(shown(&none, found, true, true), json!([internal("10.0.2.15"), hostname]));
    }

    #[test]
    fn images_are_sorted_by_size_with_digests_first() {
        let image = |id: &str, size, tags: usize| cri::Image {
            id: id.into(),
            size,
            repo_digests: vec![format!("{id}@sha256:0")],
            repo_tags: (0..tags).map(|n| format!("{id}:{n}")).collect(),
            ..cri::Image::default()
        };
        let list = images(&[image("a", 1, 1), image("b", 9, 9)], 50);
        assert_eq!(list[0]["sizeBytes"], 9);
        assert_eq!(list[0]["names"].as_array().map(Vec::len), Some(5));
        assert_eq!(list[1]["names"], json!(["a@sha256:0", "a:0"]));
        assert_eq!(images(&[image("a", 1, 1), image("b", 9, 9)], 1).len(), 1);
    }
}
