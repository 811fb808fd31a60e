//! What an object counts for: the resources it uses, and the scopes of quotas that it falls into.
//!
//! Follows `pkg/quota/v1/evaluator/core` and the generic object count of `k8s.io/apiserver/pkg/quota/v1`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proto::quantity::{Format, Quantity};
use proto::time::{Timestamp, parse_rfc3339};
use serde_json::Value;

use crate::admission::resources::{self, Resources};
use crate::admission::storage::class_of;
use crate::admission::{Call, Operation};
use crate::resource::Resource;

const CLASS_SUFFIX: &str = ".storageclass.storage.k8s.io/";
/// Devices of a class: `gpu.deviceclass.resource.k8s.io/devices`.
const DEVICES_SUFFIX: &str = ".deviceclass.resource.k8s.io/devices";
const DEVICE_CLAIMS: &str = "count/resourceclaims.resource.k8s.io";
/// Devices that a claim can get at most, which is what one for all devices counts for.
const MOST_DEVICES: i64 = 32;

/// Resources of pods that quotas know by name; counts and extended resources come on top.
const POD_RESOURCES: [&str; 11] = [
    "count/pods",
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
];

/// How objects of a resource are counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Counter {
    Pods,
    Services,
    Claims,
    DeviceClaims,
    /// One each: `count/NAME`, and for a few kinds an older name.
    Objects {
        count: String,
        alias: Option<&'static str>,
    },
}

/// `count/pods`, `count/deployments.apps`.
fn count_name(resource: &Resource) -> String {
    format!("count/{}", crate::status::qualified(&resource.group, &resource.plural))
}

fn whole(number: usize) -> Quantity {
    Quantity::from_integer(i64::try_from(number).unwrap_or(i64::MAX), Format::DecimalSi)
}

impl Counter {
    /// The counter of a resource; None for what quotas leave out.
    pub fn of(resource: &Resource) -> Option<Self> {
        match (&*resource.group, &*resource.plural) {
            ("" | "events.k8s.io", "events") | ("authentication.k8s.io" | "authorization.k8s.io", _) => None,
            ("", "pods") => Some(Counter::Pods),
            ("", "services") => Some(Counter::Services),
            ("", "persistentvolumeclaims") => Some(Counter::Claims),
            ("resource.k8s.io", "resourceclaims") => Some(Counter::DeviceClaims),
            (group, plural) => {
                let aliases = ["configmaps", "resourcequotas", "replicationcontrollers", "secrets"];
                let alias = aliases.into_iter().find(|a| group.is_empty() && *a == plural);
                Some(Counter::Objects { count: count_name(resource), alias })
            }
        }
    }

    /// Whether a call can change how much is used.
    pub fn handles(&self, call: &Call<'_>) -> bool {
        let (create, update) = (call.operation == Operation::Create, call.operation == Operation::Update);
        match (self, call.subresource) {
            (Counter::Pods, "") => create,
            (Counter::Pods, "resize") => update,
            (Counter::Services, _) => create || update,
            (Counter::Claims, "" | "status") | (Counter::DeviceClaims, "") => create || update,
            (Counter::Objects { .. }, "") => create,
            _ => false,
        }
    }

    /// Whether a quota's resource is one that this counter counts.
    pub fn counts(&self, name: &str) -> bool {
        match self {
            Counter::Pods => {
                POD_RESOURCES.contains(&name)
                    || name.starts_with("hugepages-")
                    || name.strip_prefix("requests.").is_some_and(|n| n.starts_with("hugepages-") || is_extended(n))
            }
            Counter::Services => {
                matches!(name, "count/services" | "services" | "services.nodeports" | "services.loadbalancers")
            }
            Counter::Claims => {
                let of_class = |resource: &str| name.strip_suffix(resource).is_some_and(|c| c.ends_with(CLASS_SUFFIX));
                matches!(name, "count/persistentvolumeclaims" | "persistentvolumeclaims" | "requests.storage")
                    || of_class("persistentvolumeclaims")
                    || of_class("requests.storage")
            }
            Counter::DeviceClaims => name == DEVICE_CLAIMS || name.ends_with(DEVICES_SUFFIX),
            Counter::Objects { count, alias } => name == count || *alias == Some(name),
        }
    }

    /// What an object uses.
    pub fn usage(&self, object: &Value) -> Resources {
        match self {
            Counter::Pods => pod(object),
            Counter::Services => service(object),
            Counter::Claims => claim(object),
            Counter::DeviceClaims => device_claim(object),
            Counter::Objects { count, alias } => {
                let names = std::iter::once(count.as_str()).chain(*alias);
                names.map(|n| (n.to_owned(), whole(1))).collect()
            }
        }
    }

    /// A quota on cpu or memory wants every container of a pod to say how much it needs.
    ///
    /// # Errors
    /// `must specify limits.cpu for: a,b; ...`.
    pub fn check_constraints(&self, hard: &Resources, object: &Value) -> Result<(), String> {
        if *self != Counter::Pods {
            return Ok(());
        }
        const WANTED: [&str; 6] = ["cpu", "limits.cpu", "limits.memory", "memory", "requests.cpu", "requests.memory"];
        let spec = &object["spec"];
        let said = |at: &Value| {
            let part = |name: &str| resources::parse(&at["resources"][name]);
            compute(&part("requests"), &part("limits"))
        };
        let of_pod = said(spec);
        let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for name in WANTED.into_iter().filter(|n| hard.contains_key(*n) && !of_pod.contains_key(*n)) {
            let lists = ["containers", "initContainers"].map(|list| spec[list].as_array());
            for container in lists.into_iter().flatten().flatten().filter(|c| !said(c).contains_key(name)) {
                missing.entry(name).or_default().insert(container["name"].as_str().unwrap_or_default());
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let texts = missing.into_iter().map(|(name, containers)| {
            let containers: Vec<&str> = containers.into_iter().collect();
            format!("{name} for: {}", containers.join(","))
        });
        Err(format!("must specify {}", texts.collect::<Vec<_>>().join("; ")))
    }

    /// Whether an object falls into all scopes of a quota.
    pub fn in_scopes(&self, quota: &Value, object: &Value) -> bool {
        scopes(quota).all(|(name, selector)| self.in_scope(name, selector, object))
    }

    /// Whether a quota has a scope of this name that an object falls into.
    pub fn falls_into(&self, quota: &Value, scope: &str, object: &Value) -> bool {
        scopes(quota).any(|(name, selector)| name == scope && self.in_scope(name, selector, object))
    }

    pub fn in_scope(&self, scope: &str, selector: Option<&Value>, object: &Value) -> bool {
        let spec = &object["spec"];
        match (self, scope) {
            (Counter::Pods, "Terminating") => is_terminating(spec),
            (Counter::Pods, "NotTerminating") => !is_terminating(spec),
            (Counter::Pods, "BestEffort") => crate::defaults::qos_class(object) == "BestEffort",
            (Counter::Pods, "NotBestEffort") => crate::defaults::qos_class(object) != "BestEffort",
            (Counter::Pods, "CrossNamespacePodAffinity") => crosses_namespaces(spec),
            (Counter::Pods, "PriorityClass") => {
                let class = spec["priorityClassName"].as_str().filter(|c| !c.is_empty());
                selected(selector, &class.into_iter().collect::<Vec<_>>())
            }
            (Counter::Claims, "VolumeAttributesClass") => {
                let status = &object["status"];
                let names = [
                    &spec["volumeAttributesClassName"],
                    &status["currentVolumeAttributesClassName"],
                    &status["modifyVolumeStatus"]["targetVolumeAttributesClassName"],
                ];
                let names: Vec<&str> = names.into_iter().filter_map(Value::as_str).filter(|n| !n.is_empty()).collect();
                selected(selector, &names)
            }
            _ => false,
        }
    }
}

/// The scopes of a quota, with what selects in them.
fn scopes(quota: &Value) -> impl Iterator<Item = (&str, Option<&Value>)> {
    let names = quota["spec"]["scopes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let selectors = quota["spec"]["scopeSelector"]["matchExpressions"].as_array().into_iter().flatten();
    names.map(|name| (name, None)).chain(selectors.map(|s| (s["scopeName"].as_str().unwrap_or_default(), Some(s))))
}

/// Whether one of an object's values fits a scope's selector; without a selector, whether there is any.
fn selected(selector: Option<&Value>, values: &[&str]) -> bool {
    let Some(selector) = selector else { return !values.is_empty() };
    let listed = |value: &str| selector["values"].as_array().into_iter().flatten().any(|v| v == value);
    match selector["operator"].as_str() {
        Some("In") => values.iter().any(|v| listed(v)),
        Some("NotIn") => values.is_empty() || values.iter().any(|v| !listed(v)),
        Some("DoesNotExist") => values.is_empty(),
        _ => !values.is_empty(),
    }
}

/// Resources with a domain that is not Kubernetes' own.
fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/")
}

fn is_terminating(spec: &Value) -> bool {
    spec["activeDeadlineSeconds"].as_i64().is_some_and(|s| s >= 0)
}

fn crosses_namespaces(spec: &Value) -> bool {
    ["podAffinity", "podAntiAffinity"].into_iter().any(|kind| {
        let affinity = &spec["affinity"][kind];
        let required = affinity["requiredDuringSchedulingIgnoredDuringExecution"].as_array().into_iter().flatten();
        let preferred = affinity["preferredDuringSchedulingIgnoredDuringExecution"].as_array().into_iter().flatten();
        required.chain(preferred.map(|p| &p["podAffinityTerm"])).any(|term| {
            term["namespaces"].as_array().is_some_and(|n| !n.is_empty()) || !term["namespaceSelector"].is_null()
        })
    })
}

/// Requests and limits under the names that quotas use.
fn compute(requests: &Resources, limits: &Resources) -> Resources {
    let mut out = Resources::from([("pods".to_owned(), whole(1))]);
    for name in ["cpu", "memory", "ephemeral-storage"] {
        if let Some(request) = requests.get(name) {
            out.insert(name.into(), *request);
            out.insert(format!("requests.{name}"), *request);
        }
        if let Some(limit) = limits.get(name) {
            out.insert(format!("limits.{name}"), *limit);
        }
    }
    for (name, request) in requests {
        if name.starts_with("hugepages-") {
            out.insert(name.clone(), *request);
            out.insert(format!("requests.{name}"), *request);
        } else if is_extended(name) {
            out.insert(format!("requests.{name}"), *request);
        }
    }
    out
}

/// How long a pod that is to go still counts, which is a whole grace longer than it should be there: who lost it with its
/// node may make another one. None for a pod that is to stay.
pub fn counts_for(pod: &Value) -> Option<Duration> {
    let metadata = &pod["metadata"];
    let grace = metadata["deletionGracePeriodSeconds"].as_i64()?;
    let deletion = parse_rfc3339(metadata["deletionTimestamp"].as_str()?).ok()?;
    let left = deletion.seconds.saturating_add(grace).saturating_sub(Timestamp::now().seconds);
    Some(Duration::from_secs(u64::try_from(left).unwrap_or(0)))
}

fn pod(object: &Value) -> Resources {
    let mut out = Resources::from([("count/pods".to_owned(), whole(1))]);
    // What is over, or should long be, uses nothing but its place in the store.
    let is_over = matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    if is_over || counts_for(object).is_some_and(|left| left.is_zero()) {
        return out;
    }
    let held = |part: &str| resources::held_by_pod(object, part);
    out.append(&mut compute(&held("requests"), &held("limits")));
    out
}

fn service(object: &Value) -> Resources {
    let spec = &object["spec"];
    let ports = || spec["ports"].as_array().into_iter().flatten();
    let node_ports = match spec["type"].as_str() {
        // They are not given out yet: what counts is what will be.
        Some("LoadBalancer") if spec["allocateLoadBalancerNodePorts"] == false => {
            ports().filter(|p| p["nodePort"].as_i64().unwrap_or(0) != 0).count()
        }
        Some("NodePort" | "LoadBalancer") => ports().count(),
        _ => 0,
    };
    let balancers = usize::from(spec["type"] == "LoadBalancer");
    let counts = [
        ("count/services", 1),
        ("services", 1),
        ("services.loadbalancers", balancers),
        ("services.nodeports", node_ports),
    ];
    counts.into_iter().map(|(name, number)| (name.to_owned(), whole(number))).collect()
}

fn claim(object: &Value) -> Resources {
    let spec = &object["spec"];
    let one = |name: &str| (name.to_owned(), whole(1));
    let mut out = Resources::from([one("count/persistentvolumeclaims"), one("persistentvolumeclaims")]);
    let class = class_of(object).unwrap_or_default();
    if !class.is_empty() {
        out.insert(format!("{class}{CLASS_SUFFIX}persistentvolumeclaims"), whole(1));
    }
    let storage = |list: &Value| -> Option<Quantity> { list["storage"].as_str()?.parse().ok() };
    let asked = storage(&spec["resources"]["requests"]);
    let allocated = storage(&object["status"]["allocatedResources"]).filter(|_| asked.is_some());
    if let Some(storage) = asked.max(allocated) {
        let storage = Quantity::from_integer(storage.value(), storage.format());
        out.insert("requests.storage".into(), storage);
        if !class.is_empty() {
            out.insert(format!("{class}{CLASS_SUFFIX}requests.storage"), storage);
        }
    }
    out
}

/// A claim and, by class, the devices that it can get: of alternatives the one that gets most.
fn device_claim(object: &Value) -> Resources {
    let devices = |request: &Value| {
        let count = match request["allocationMode"].as_str() {
            Some("All") => MOST_DEVICES,
            Some("ExactCount") => request["count"].as_i64().unwrap_or(0),
            _ => 0,
        };
        let class = request["deviceClassName"].as_str().unwrap_or_default();
        (format!("{class}{DEVICES_SUFFIX}"), Quantity::from_integer(count, Format::DecimalSi))
    };
    let mut out = Resources::from([(DEVICE_CLAIMS.to_owned(), whole(1))]);
    for request in object["spec"]["devices"]["requests"].as_array().into_iter().flatten() {
        let mut most = Resources::new();
        let alternatives = request["firstAvailable"].as_array().into_iter().flatten();
        for (class, count) in
            alternatives.chain(request["exactly"].is_object().then_some(&request["exactly"])).map(devices)
        {
            let known = most.entry(class).or_insert(count);
            *known = count.max(*known);
        }
        resources::add(&mut out, &most);
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(usage: &Resources) -> Vec<String> {
        usage.iter().map(|(name, quantity)| format!("{name}={quantity}")).collect()
    }

    #[test]
    fn pods_count_under_every_name_that_quotas_have_for_them() {
        let object = json!({"spec": {"containers": [
            {"name": "a", "resources": {"requests": {"cpu": "100m", "example.com/gpu": "2"}, "limits": {"memory": "1Gi"}}},
        ]}});
        assert_eq!(
            shown(&Counter::Pods.usage(&object)),
            [
                "count/pods=1",
                "cpu=100m",
                "limits.memory=1Gi",
                "pods=1",
                "requests.cpu=100m",
                "requests.example.com/gpu=2",
            ]
        );
        let over = json!({"spec": object["spec"], "status": {"phase": "Failed"}});
        assert_eq!(shown(&Counter::Pods.usage(&over)), ["count/pods=1"]);
        // It should be gone by now, and in the other case is given as long again.
        let mut going = object.clone();
        going["metadata"] = json!({"deletionTimestamp": "2020-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30});
        assert_eq!(shown(&Counter::Pods.usage(&going)), ["count/pods=1"]);
        let now = Timestamp::now();
        going["metadata"]["deletionTimestamp"] = now.to_seconds_text().into();
        assert_eq!(Counter::Pods.usage(&going), Counter::Pods.usage(&object));
        assert!(counts_for(&going).is_some_and(|left| left <= Duration::from_secs(30)));
        assert_eq!(counts_for(&object), None);
        assert!(Counter::Pods.counts("requests.example.com/gpu") && !Counter::Pods.counts("requests.storage"));
    }

    #[test]
    fn claims_count_for_their_class_too() {
        let object = json!({"spec": {"storageClassName": "gold", "resources": {"requests": {"storage": "1Gi"}}}});
        assert_eq!(
            shown(&Counter::Claims.usage(&object)),
            [
                "count/persistentvolumeclaims=1",
                "gold.storageclass.storage.k8s.io/persistentvolumeclaims=1",
                "gold.storageclass.storage.k8s.io/requests.storage=1Gi",
                "persistentvolumeclaims=1",
                "requests.storage=1Gi",
            ]
        );
        assert!(Counter::Claims.counts("gold.storageclass.storage.k8s.io/requests.storage"));
    }

    #[test]
    fn claims_of_devices_count_what_they_can_get_at_most() {
        let exactly = |class: &str, mode: &str, count: Value| json!({"deviceClassName": class, "allocationMode": mode, "count": count});
        let alternatives = [
            exactly("a", "ExactCount", json!(2)),
            exactly("a", "ExactCount", json!(3)),
            exactly("b", "All", Value::Null),
        ];
        let object = json!({"spec": {"devices": {"requests": [
            {"name": "x", "exactly": exactly("a", "ExactCount", json!(1))}, {"name": "y", "firstAvailable": alternatives},
        ]}}});
        assert_eq!(
            shown(&Counter::DeviceClaims.usage(&object)),
            [
                "a.deviceclass.resource.k8s.io/devices=4",
                "b.deviceclass.resource.k8s.io/devices=32",
                "count/resourceclaims.resource.k8s.io=1",
            ]
        );
        let set = crate::resource::Resources::built_in();
        let resource = set.lookup("resource.k8s.io", "v1", "resourceclaims").expect("served");
        assert_eq!(Counter::of(&resource), Some(Counter::DeviceClaims));
        assert!(Counter::DeviceClaims.counts("a.deviceclass.resource.k8s.io/devices"));
    }

    #[test]
    fn load_balancers_count_the_node_ports_they_will_get() {
        let mut object =
            json!({"spec": {"type": "LoadBalancer", "ports": [{"port": 1}, {"port": 2, "nodePort": 30001}]}});
        assert_eq!(Counter::Services.usage(&object)["services.nodeports"], whole(2));
        object["spec"]["allocateLoadBalancerNodePorts"] = false.into();
        assert_eq!(Counter::Services.usage(&object)["services.nodeports"], whole(1));
    }

    #[test]
    fn scopes_choose_pods() {
        let quota = |spec: Value| json!({"spec": spec});
        let pod = json!({"spec": {"priorityClassName": "high", "activeDeadlineSeconds": 5, "containers": []}});
        assert!(Counter::Pods.in_scopes(&quota(json!({})), &pod));
        assert!(Counter::Pods.in_scopes(&quota(json!({"scopes": ["Terminating", "BestEffort"]})), &pod));
        assert!(!Counter::Pods.in_scopes(&quota(json!({"scopes": ["NotTerminating"]})), &pod));
        let selector = |operator: &str, values: Value| {
            let expression = json!({"scopeName": "PriorityClass", "operator": operator, "values": values});
            quota(json!({"scopeSelector": {"matchExpressions": [expression]}}))
        };
        assert!(Counter::Pods.in_scopes(&selector("In", json!(["high"])), &pod));
        assert!(!Counter::Pods.in_scopes(&selector("NotIn", json!(["high"])), &pod));
        assert!(Counter::Pods.in_scopes(&selector("Exists", json!([])), &pod));
    }

    #[test]
    fn containers_that_say_nothing_are_named() {
        let hard = resources::parse(&json!({"requests.cpu": "1", "limits.memory": "1Gi", "pods": "3"}));
        let pod = json!({"spec": {"containers": [
            {"name": "b", "resources": {"requests": {"cpu": "1"}}}, {"name": "a"},
        ]}});
        let complaint = Counter::Pods.check_constraints(&hard, &pod).expect_err("incomplete");
        assert_eq!(complaint, "must specify limits.memory for: a,b; requests.cpu for: a");
    }
}
