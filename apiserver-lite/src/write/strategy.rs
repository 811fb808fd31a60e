//! What is peculiar to kinds in a write, as data where data will do.

use serde_json::{Map, Name, Value, json};

use super::claim_sources;
use crate::apply::same_struct_but;
use crate::request::User;
use crate::resource::Resource;
use crate::status::{ApiError, Result};

/// A resource with a `status` that only its subresource may write.
pub fn has_status(resource: &Resource) -> bool {
    resource.subresource("status").is_some() && !writes_its_status(resource)
}

/// Kinds whose own endpoint writes their status, too: their strategy upstream leaves alone whatever it is given.
pub fn writes_its_status(resource: &Resource) -> bool {
    (&*resource.group, &*resource.plural) == ("networking.k8s.io", "servicecidrs")
}

/// Kinds that a PUT creates when they are missing.
pub fn creates_on_update(resource: &Resource) -> bool {
    matches!(
        (&*resource.group, &*resource.plural),
        ("", "endpoints" | "events" | "limitranges" | "services")
            | ("events.k8s.io", "events")
            | ("coordination.k8s.io", "leases")
            | ("node.k8s.io", "runtimeclasses")
            | ("rbac.authorization.k8s.io", "clusterrolebindings" | "clusterroles" | "rolebindings" | "roles")
    )
}

/// Kinds whose PUT has to name the version that it replaces.
pub fn needs_version(resource: &Resource) -> bool {
    resource.custom
        || matches!(
            (&*resource.group, &*resource.plural),
            ("admissionregistration.k8s.io" | "apiextensions.k8s.io" | "apiregistration.k8s.io", _)
                | ("coordination.k8s.io" | "internal.apiserver.k8s.io" | "node.k8s.io", _)
                | ("storagemigration.k8s.io", _)
                | ("certificates.k8s.io", "clustertrustbundles" | "podcertificaterequests")
                | ("policy", "poddisruptionbudgets")
                | ("storage.k8s.io", "csidrivers" | "csinodes" | "csistoragecapacities" | "volumeattachments")
        )
}

/// Kinds that begin with a `metadata.generation`.
fn has_generation(resource: &Resource) -> bool {
    resource.custom
        || matches!(
            (&*resource.group, &*resource.plural),
            ("apps", "daemonsets" | "deployments" | "replicasets" | "statefulsets")
                | ("batch", _)
                | ("", "pods" | "replicationcontrollers" | "podtemplates")
                | ("networking.k8s.io", "ingressclasses" | "ingresses" | "networkpolicies")
                | ("policy" | "discovery.k8s.io" | "admissionregistration.k8s.io" | "apiextensions.k8s.io", _)
                | ("flowcontrol.apiserver.k8s.io" | "scheduling.k8s.io", _)
                | ("resource.k8s.io", "deviceclasses" | "resourceslices" | "devicetaintrules")
        )
}

/// Kinds that count changes of their desired state in `metadata.generation`: almost those that begin with one.
fn counts_changes(resource: &Resource) -> bool {
    match (&*resource.group, &*resource.plural) {
        // What a class is worth cannot change, and what can is not counted.
        ("scheduling.k8s.io", "priorityclasses") => false,
        // Its count begins with the first change.
        ("storage.k8s.io", "csidrivers") => true,
        _ => has_generation(resource),
    }
}

/// Whether two objects want the same, whatever their metadata and status. Nothing is copied for it: mostly they do, and
/// where they do not the first difference ends it.
fn same_desire(resource: &Resource, a: &Value, b: &Value) -> bool {
    const UNDESIRED: &[&str] = &["metadata", "status", "kind", "apiVersion"];
    match (a.as_object(), b.as_object()) {
        // Custom objects are what they say; those of built-in kinds have members whether the tree spells them out or not.
        (Some(a), Some(b)) if resource.custom => {
            // A status that has no subresource is a member like any other.
            let wanted = |key: &str| key == "status" && !has_status(resource);
            let desired = |(key, _): &(&Name, &Value)| wanted(key) || !UNDESIRED.contains(&key.as_str());
            a.iter().filter(desired).eq(b.iter().filter(desired))
        }
        (Some(a), Some(b)) => same_struct_but(resource.stored.set(), resource.stored.id, UNDESIRED, a, b),
        _ => a == b,
    }
}

/// Sets what a new object begins with.
pub fn prepare_create(resource: &Resource, value: &mut Value, user: &User) {
    if has_generation(resource) {
        value["metadata"]["generation"] = 1.into();
    }
    // Nodes bring their status; every other kind begins without.
    if has_status(resource)
        && &*resource.plural != "nodes"
        && let Some(object) = value.as_object_mut()
    {
        object.remove("status");
    }
    match (&*resource.group, &*resource.plural) {
        ("", "pods") => {
            let class = crate::defaults::qos_class(value);
            value["status"] = json!({"phase": "Pending", "qosClass": class});
            if value["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
                value["status"]["conditions"] = json!([{
                    "type": "PodScheduled", "status": "False", "lastProbeTime": null, "lastTransitionTime": null,
                    "reason": "SchedulingGated",
                    "message": "Scheduling is blocked due to non-empty scheduling gates",
                }]);
            }
        }
        ("", "namespaces") => {
            value["status"] = json!({"phase": "Active"});
            let finalizers = value["spec"]["finalizers"].as_array_mut();
            match finalizers {
                Some(list) if list.iter().any(|f| f == "kubernetes") => {}
                Some(list) => list.push("kubernetes".into()),
                None => value["spec"] = json!({"finalizers": ["kubernetes"]}),
            }
            // One whose name was made up just now has no label yet.
            crate::defaults::name_label(value);
        }
        ("", "persistentvolumes") => {
            value["status"] = json!({"phase": "Pending", "lastPhaseTransitionTime": now()});
        }
        ("", "persistentvolumeclaims") => {
            value["status"] = json!({"phase": "Pending"});
            claim_sources::settle(&mut value["spec"], None);
        }
        ("", "serviceaccounts") => names_of_secrets(value),
        // The one kind that needs no name.
        ("", "limitranges") if value["metadata"]["name"].as_str().is_none_or(str::is_empty) => {
            value["metadata"]["name"] = crate::random::uuid().into();
        }
        ("discovery.k8s.io", "endpointslices") => drop_topology(value, None),
        // Whatever is served right here is available at once.
        ("apiregistration.k8s.io", "apiservices") if !value["spec"]["service"].is_object() => {
            value["status"] = json!({"conditions": [{
                "type": "Available", "status": "True", "lastTransitionTime": now(), "reason": "Local",
                "message": "Local APIServices are always available",
            }]});
        }
        ("batch", "jobs") => job_labels(value),
        ("apps", "daemonsets") => {
            let generation = template_generation(value).max(1);
            value["metadata"]["annotations"][TEMPLATE_GENERATION] = generation.to_string().into();
        }
        ("certificates.k8s.io", "certificatesigningrequests") => requester(value, user),
        ("apiextensions.k8s.io", "customresourcedefinitions") => crate::crd::prepare_definition(value, None),
        _ => {}
    }
}

fn now() -> String {
    proto::time::Timestamp::now().to_seconds_text()
}

/// The items of a list, to be changed; none where there is no list.
pub(super) fn items<'v>(object: &'v mut Value, name: &str) -> impl Iterator<Item = &'v mut Value> {
    object.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten()
}

/// An account names its secrets, and says nothing else of them.
fn names_of_secrets(value: &mut Value) {
    for secret in items(value, "secrets").filter_map(Value::as_object_mut) {
        secret.retain(|key, _| key == "name");
    }
}

/// Labels of nodes that endpoints had in an older version are not written any more; `old` is the stored slice, and
/// endpoints that did not change keep theirs.
fn drop_topology(value: &mut Value, old: Option<&Value>) {
    const NODE: &str = "kubernetes.io/hostname";
    if old.is_some_and(|old| old["endpoints"] == value["endpoints"]) {
        return;
    }
    let known = |node: &str| {
        let endpoints = old.into_iter().flat_map(|old| old["endpoints"].as_array().into_iter().flatten());
        endpoints.filter_map(|e| e["deprecatedTopology"][NODE].as_str()).any(|n| n == node)
    };
    for endpoint in items(value, "endpoints").filter_map(Value::as_object_mut) {
        let Some(topology) = endpoint.remove("deprecatedTopology") else { continue };
        // The node that an older version told there is not forgotten.
        if let Some(node) = topology[NODE].as_str().filter(|node| known(node)) {
            endpoint.entry("nodeName").or_insert_with(|| node.into());
        }
    }
}

/// A client that does not know which generation a status is of does not make the others forget it.
fn keep_observed(new: &mut Value, old: &Value) {
    const KEY: &str = "observedGeneration";
    let keep = |new: &mut Map<String, Value>, old: &Value| {
        if new.get(KEY).is_none_or(|said| said.is_null() || said == 0)
            && let Some(kept) = old.get(KEY).filter(|kept| !kept.is_null())
        {
            new.insert(KEY.into(), kept.clone());
        }
    };
    if let Some(status) = new.as_object_mut() {
        keep(status, old);
    }
    // There may be several conditions of one type; each takes after its own.
    let mut left: Vec<&Value> = old["conditions"].as_array().into_iter().flatten().collect();
    for condition in items(new, "conditions") {
        let Some(at) = left.iter().position(|was| was["type"] == condition["type"]) else { continue };
        let was = left.remove(at);
        if let Some(condition) = condition.as_object_mut() {
            keep(condition, was);
        }
    }
}

/// When a volume came into its phase: told by the client, else now where the phase is another.
fn phase_time(new: &mut Value, old: &Value) {
    const KEY: &str = "lastPhaseTransitionTime";
    let Some(status) = new.as_object_mut() else { return };
    let said = status.get(KEY).filter(|time| !time.is_null());
    let before = old.get(KEY).filter(|time| !time.is_null());
    if status.get("phase") != old.get("phase") {
        if said.is_none() || said == before {
            status.insert(KEY.into(), now().into());
        }
    } else if said.is_none()
        && let Some(before) = before
    {
        status.insert(KEY.into(), before.clone());
    }
}

/// What is told of devices goes with them when they are given back.
fn drop_freed_devices(new: &mut Value, old: &Value) {
    let same = |a: &Value, b: &Value| ["driver", "pool", "device"].iter().all(|key| a[*key] == b[*key]);
    let has = |status: &Value, device: &Value| {
        status["allocation"]["devices"]["results"].as_array().is_some_and(|all| all.iter().any(|r| same(r, device)))
    };
    let freed = |device: &Value| has(old, device) && !has(new, device);
    let Some(devices) = new["devices"].as_array() else { return };
    let kept: Vec<Value> = devices.iter().filter(|device| !freed(device)).cloned().collect();
    if kept.len() == devices.len() {
        return;
    }
    match kept.is_empty() {
        true => drop(new.as_object_mut().map(|status| status.remove("devices"))),
        false => new["devices"] = kept.into(),
    }
}

/// Where a daemon set counts the changes of its template.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn template_generation(value: &Value) -> i64 {
    let text = value["metadata"]["annotations"][TEMPLATE_GENERATION].as_str();
    text.and_then(|t| t.parse().ok()).unwrap_or(0)
}

/// A certificate is asked for by whoever sends the request, whatever it says.
fn requester(value: &mut Value, user: &User) {
    let Some(spec) = value["spec"].as_object_mut() else { return };
    let mut asked = user.to_value();
    for name in ["username", "uid", "groups", "extra"] {
        match asked[name].take() {
            Value::Null => drop(spec.remove(name)),
            value => drop(spec.insert(name.into(), value)),
        }
    }
}

/// What was asked for stays; an approval writes conditions, the signer everything, but changes no decision.
fn certificate(subresource: &str, new: &mut Value, old: &Value) {
    new["spec"] = old["spec"].clone();
    if subresource.is_empty() {
        return;
    }
    let conditions = |of: &Value| of["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let before = conditions(old);
    let mut now = conditions(new);
    if subresource == "approval" {
        new["status"] = match &old["status"] {
            Value::Object(status) => Value::Object(status.clone()),
            _ => json!({}),
        };
    } else {
        // Who adds a decision or leaves one out is refused when all is looked at; the others stay as they were.
        for kind in ["Approved", "Denied"] {
            let decided: Vec<&Value> = before.iter().filter(|c| c["type"] == kind).collect();
            let places: Vec<&mut Value> = now.iter_mut().filter(|c| c["type"] == kind).collect();
            if places.len() == decided.len() {
                places.into_iter().zip(decided).for_each(|(place, kept)| *place = kept.clone());
            }
        }
    }
    let time = self::now();
    for condition in &mut now {
        let was = before.iter().find(|c| c["type"] == condition["type"]);
        if condition["lastUpdateTime"].is_null() {
            condition["lastUpdateTime"] = time.as_str().into();
        }
        if condition["lastTransitionTime"].is_null() {
            let same =
                was.filter(|was| was["status"] == condition["status"]).map(|was| was["lastTransitionTime"].clone());
            condition["lastTransitionTime"] = same.filter(|t| !t.is_null()).unwrap_or_else(|| time.as_str().into());
        }
    }
    match now.is_empty() {
        true => drop(new["status"].as_object_mut().map(|s| s.remove("conditions"))),
        false => new["status"]["conditions"] = now.into(),
    }
}

/// A job finds its pods by its own uid, unless it brings a selector. What it says of that itself stays, so that it is
/// refused where it is about another job.
fn job_labels(value: &mut Value) {
    if value["spec"]["manualSelector"] == true {
        return;
    }
    let fill = |place: &mut Value, text: &Value| {
        if place.is_null() {
            *place = text.clone();
        }
    };
    let (uid, name) = (value["metadata"]["uid"].clone(), value["metadata"]["name"].clone());
    // Who said no labels has those of the pods, and whatever comes to them.
    let own = &value["metadata"]["labels"];
    let shares = own.as_object().is_none_or(Map::is_empty) || *own == value["spec"]["template"]["metadata"]["labels"];
    let labels = &mut value["spec"]["template"]["metadata"]["labels"];
    for (key, text) in [("controller-uid", &uid), ("job-name", &name)] {
        fill(&mut labels[key], text);
        fill(&mut labels[format!("batch.kubernetes.io/{key}")], text);
    }
    fill(&mut value["spec"]["selector"]["matchLabels"]["batch.kubernetes.io/controller-uid"], &uid);
    if shares {
        value["metadata"]["labels"] = value["spec"]["template"]["metadata"]["labels"].clone();
    }
}

/// Prepares a replacement: what the client may not write stays as it was.
pub fn prepare_update(resource: &Resource, subresource: &str, new: &mut Value, old: &Value) {
    // Looking is cheaper than copying, and mostly the client sent what was there.
    let keep = |object: &mut Map<String, Value>, key: &str, old: &Value| match old.get(key) {
        Some(value) if object.get(key) == Some(value) => {}
        Some(value) => drop(object.insert(key.into(), value.clone())),
        None => drop(object.remove(key)),
    };
    let keep_member = |new: &mut Value, key: &str| {
        if let Some(object) = new.as_object_mut() {
            keep(object, key, old);
        }
    };
    match subresource {
        "status" => {
            let (Some(object), Some(before)) = (new.as_object_mut(), old.as_object()) else { return };
            let written = |key: &str| matches!(key, "metadata" | "status");
            object.retain(|key, _| written(key) || before.contains_key(key));
            before.keys().filter(|key| !written(key)).for_each(|key| keep(object, key, old));
            let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(metadata) = metadata {
                kept_with_status(resource).iter().for_each(|key| keep(metadata, key, &old["metadata"]));
            }
        }
        // These write past the strategy: what they change is no desired state.
        "binding" | "eviction" => return,
        "ephemeralcontainers" => super::pod_parts::ephemeral_containers(new, old),
        "resize" => super::pod_parts::resize(new, old),
        // Finalizing a namespace writes its own finalizers, and leaves its status to the status subresource.
        "finalize" => keep_member(new, "status"),
        "" if has_status(resource) => keep_member(new, "status"),
        _ => {}
    }
    match (&*resource.group, &*resource.plural, subresource) {
        ("", "namespaces", subresource) => {
            if subresource.is_empty() {
                keep_path(new, old, "finalizers");
            }
            crate::defaults::name_label(new);
        }
        ("", "pods", "") if new["status"]["qosClass"].is_null() => {
            new["status"]["qosClass"] = crate::defaults::qos_class(new).into();
        }
        ("apps", "daemonsets", "") => {
            let before = template_generation(old);
            let changed = new["spec"]["template"] != old["spec"]["template"];
            new["metadata"]["annotations"][TEMPLATE_GENERATION] = (before + i64::from(changed)).to_string().into();
        }
        ("certificates.k8s.io", "certificatesigningrequests", _) => certificate(subresource, new, old),
        ("", "serviceaccounts", "") => names_of_secrets(new),
        ("", "persistentvolumeclaims", "") => claim_sources::settle(&mut new["spec"], Some(&old["spec"])),
        ("discovery.k8s.io", "endpointslices", "") => drop_topology(new, Some(old)),
        ("", "pods", "status") if new["status"].is_object() => keep_observed(&mut new["status"], &old["status"]),
        ("", "persistentvolumes", "status") if new["status"].is_object() => {
            phase_time(&mut new["status"], &old["status"])
        }
        ("resource.k8s.io", "resourceclaims", "status") if new["status"].is_object() => {
            drop_freed_devices(&mut new["status"], &old["status"])
        }
        ("apiextensions.k8s.io", "customresourcedefinitions", "") => crate::crd::prepare_definition(new, Some(old)),
        _ => {}
    }
    let described = subresource.is_empty()
        && match (&*resource.group, &*resource.plural) {
            // Its annotations are handed down to its replica sets.
            ("apps", "deployments") => filled(new, "annotations") != filled(old, "annotations"),
            // Its labels say which service it belongs to.
            ("discovery.k8s.io", "endpointslices") => filled(new, "labels") != filled(old, "labels"),
            _ => false,
        };
    // A status leaves what is wanted as it was: that was seen to above.
    let may_want_more = subresource != "status" && counts_changes(resource);
    if may_want_more && (described || !same_desire(resource, new, old)) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
        new["metadata"]["generation"] = (generation + 1).into();
    }
}

/// A map of the metadata; none and an empty one are the same.
fn filled<'v>(object: &'v Value, key: &str) -> Option<&'v Map<String, Value>> {
    object["metadata"][key].as_object().filter(|map| !map.is_empty())
}

fn keep_path(new: &mut Value, old: &Value, key: &str) {
    if let Some(kept) = old["spec"].get(key) {
        new["spec"][key] = kept.clone();
    }
}

/// Metadata that a status write may not change; most kinds take labels and annotations with it.
fn kept_with_status(resource: &Resource) -> &'static [&'static str] {
    if resource.custom {
        return &["labels", "annotations", "finalizers", "ownerReferences"];
    }
    match (&*resource.group, &*resource.plural) {
        ("apps", "deployments") => &["labels"],
        ("", "pods") => &["ownerReferences"],
        ("admissionregistration.k8s.io" | "apiregistration.k8s.io", _)
        | ("flowcontrol.apiserver.k8s.io" | "resource.k8s.io", _)
        | ("networking.k8s.io", "servicecidrs")
        | ("storage.k8s.io", "volumeattachments") => &["labels", "annotations", "finalizers", "ownerReferences"],
        _ => &[],
    }
}

/// Objects that a cluster cannot do without.
///
/// # Errors
/// 403.
pub fn check_delete(resource: &Resource, name: &str) -> Result<()> {
    const PRIORITIES: [&str; 2] = ["system-node-critical", "system-cluster-critical"];
    let is_class = (&*resource.group, &*resource.plural) == ("scheduling.k8s.io", "priorityclasses");
    if is_class && PRIORITIES.contains(&name) {
        let why = "this is a system priority class and cannot be deleted";
        return Err(ApiError::forbidden(&resource.group, &resource.plural, name, why));
    }
    Ok(())
}

/// Seconds that a delete without options leaves an object; None for at once.
pub fn default_grace(resource: &Resource, value: &Value) -> Option<i64> {
    match (&*resource.group, &*resource.plural) {
        ("", "pods") => Some(value["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30)),
        _ => None,
    }
}

/// Whether a delete that says nothing leaves dependents alone; None for kinds that take no part in their collection.
pub fn orphans(resource: &Resource) -> Option<bool> {
    match (&*resource.group, &*resource.plural) {
        ("" | "events.k8s.io", "events") => None,
        // What these two did before there was a garbage collector.
        ("", "replicationcontrollers") | ("batch", "jobs") => Some(true),
        _ => Some(false),
    }
}

#[cfg(test)]
mod tests;
