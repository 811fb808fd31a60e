//! Plugins that are off unless they are asked for, each a rule about one thing: AlwaysDeny, AlwaysPullImages,
//! DenyServiceExternalIPs, ExtendedResourceToleration, LimitPodHardAntiAffinityTopology, NamespaceExists.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Call, Operation};
use crate::field_error::Report;
use crate::status::{ApiError, Result};
use crate::validate::is_extended;

const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

fn items<'a>(object: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    object[name].as_array().into_iter().flatten()
}

/// AlwaysDeny: nobody changes anything. What the server does itself is nobody's.
pub fn refuse(call: &Call<'_>) -> Result<()> {
    match call.user.name.is_empty() {
        true => Ok(()),
        false => Err(call.refuse(call.old, "admission control is denying all modifications")),
    }
}

pub fn refuse_write(call: &Call<'_>, _: &mut Value) -> Result<()> {
    refuse(call)
}

/// Whether a call brings images into a pod that were not in it.
fn brings_images(call: &Call<'_>, new: &Value) -> bool {
    let images = |pod: &Value| -> BTreeSet<String> {
        let containers = CONTAINERS.iter().flat_map(|list| items(&pod["spec"], list));
        containers.filter_map(|c| c["image"].as_str()).map(ToOwned::to_owned).collect()
    };
    call.is("", "pods")
        && match call.old.filter(|_| call.operation == Operation::Update) {
            Some(old) => !images(new).is_subset(&images(old)),
            None => true,
        }
}

/// AlwaysPullImages: who may not read an image from its registry gets it from no node either.
pub fn pull_always(call: &Call<'_>, new: &mut Value) -> Result<()> {
    if brings_images(call, new) {
        set_always(&mut new["spec"]);
    }
    Ok(())
}

fn set_always(spec: &mut Value) {
    for list in CONTAINERS {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            container["imagePullPolicy"] = "Always".into();
        }
    }
    for volume in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        if volume["image"].is_object() {
            volume["image"]["pullPolicy"] = "Always".into();
        }
    }
}

/// AlwaysPullImages: nobody after it has taken that back.
pub fn pulls_always(call: &Call<'_>, new: &Value) -> Result<()> {
    if !brings_images(call, new) {
        return Ok(());
    }
    match not_always(&new["spec"]) {
        complaints if complaints.is_empty() => Ok(()),
        complaints => Err(call.refuse(Some(new), crate::status::aggregate(&complaints))),
    }
}

fn not_always(spec: &Value) -> Vec<String> {
    let container = |r: &mut Report, container: &Value| {
        let policy = container["imagePullPolicy"].as_str().unwrap_or_default();
        if policy != "Always" {
            r.at("imagePullPolicy", |r| r.not_supported(policy, &["Always"]));
        }
    };
    Report::told(|r| r.at("spec", |r| CONTAINERS.into_iter().for_each(|list| r.each(spec, list, container))))
}

/// DenyServiceExternalIPs: no service takes addresses that it had not.
pub fn no_external_addresses(call: &Call<'_>, new: &Value) -> Result<()> {
    if !call.is("", "services") || !adds_addresses(new, call.old) {
        return Ok(());
    }
    Err(call.refuse(Some(new), "Use of external IPs is denied by admission control."))
}

fn adds_addresses(new: &Value, old: Option<&Value>) -> bool {
    items(&new["spec"], "externalIPs")
        .any(|ip| old.is_none_or(|old| items(&old["spec"], "externalIPs").all(|o| o != ip)))
}

/// ExtendedResourceToleration: who asks for a resource runs on the nodes that are kept for it.
pub fn tolerate_resources(call: &Call<'_>, new: &mut Value) -> Result<()> {
    if call.is("", "pods") {
        tolerate(&mut new["spec"]);
    }
    Ok(())
}

fn tolerate(spec: &mut Value) {
    let containers = ["containers", "initContainers"].iter().flat_map(|list| items(spec, list));
    let requests = containers.flat_map(|c| c["resources"]["requests"].as_object().into_iter().flatten());
    let wanted: BTreeSet<String> =
        requests.map(|(name, _)| name.to_string()).filter(|name| is_extended(name)).collect();
    for name in wanted {
        let toleration = json!({"key": name, "operator": "Exists"});
        match spec.get_mut("tolerations").and_then(Value::as_array_mut) {
            // One that tolerates more is enough.
            Some(list)
                if list.iter().any(|t| t["key"] == *name && t["operator"] == "Exists" && t["effect"].is_null()) => {}
            Some(list) => list.push(toleration),
            None => spec["tolerations"] = json!([toleration]),
        }
    }
}

/// LimitPodHardAntiAffinityTopology: a pod keeps others away from its own node at most.
pub fn own_node_only(call: &Call<'_>, new: &Value) -> Result<()> {
    if !call.is("", "pods") {
        return Ok(());
    }
    match too_wide(&new["spec"]) {
        None => Ok(()),
        Some(key) => {
            let why = format!(
                "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey {key} but only key \
                 kubernetes.io/hostname is allowed"
            );
            Err(call.refuse(Some(new), why))
        }
    }
}

fn too_wide(spec: &Value) -> Option<&str> {
    let terms = items(&spec["affinity"]["podAntiAffinity"], "requiredDuringSchedulingIgnoredDuringExecution");
    terms.map(|t| t["topologyKey"].as_str().unwrap_or_default()).find(|key| *key != "kubernetes.io/hostname")
}

/// NamespaceExists: nothing happens in a namespace that is not there.
pub fn in_a_namespace(call: &Call<'_>, _new: &Value) -> Result<()> {
    if call.namespace.is_empty() || call.concerns("", "namespaces") {
        return Ok(());
    }
    match call.server.store.get(&"namespaces".into(), "", call.namespace) {
        Some(_) => Ok(()),
        None => Err(ApiError::not_found("", "namespaces", call.namespace)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_is_pulled_always() {
        let mut spec = json!({"containers": [{"imagePullPolicy": "Never"}], "initContainers": [{}],
            "volumes": [{"image": {"reference": "a"}}, {"emptyDir": {}}]});
        let told = not_always(&spec);
        assert_eq!(told.len(), 2);
        assert_eq!(
            told[1],
            "spec.containers[0].imagePullPolicy: Unsupported value: \"Never\": supported values: \"Always\""
        );
        set_always(&mut spec);
        assert!(not_always(&spec).is_empty());
        assert_eq!(spec["volumes"], json!([{"image": {"reference": "a", "pullPolicy": "Always"}}, {"emptyDir": {}}]));
    }

    #[test]
    fn addresses_that_were_there_may_stay() {
        let of = |ips: &[&str]| json!({"spec": {"externalIPs": ips}});
        assert!(adds_addresses(&of(&["1.2.3.4"]), None));
        assert!(!adds_addresses(&of(&["1.2.3.4"]), Some(&of(&["1.2.3.4", "1.2.3.5"]))));
        assert!(adds_addresses(&of(&["1.2.3.4"]), Some(&of(&[]))));
        assert!(!adds_addresses(&of(&[]), None));
    }

    #[test]
    fn a_resource_that_is_asked_for_is_tolerated() {
        let requests = json!({"resources": {"requests": {"example.com/gpu": "1", "cpu": "1"}}});
        let mut spec = json!({"containers": [requests]});
        tolerate(&mut spec);
        tolerate(&mut spec);
        assert_eq!(spec["tolerations"], json!([{"key": "example.com/gpu", "operator": "Exists"}]));
    }

    #[test]
    fn others_are_kept_away_from_a_node_alone() {
        let of = |key: &str| {
            let terms = json!([{"topologyKey": key}]);
            json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}})
        };
        assert_eq!(too_wide(&of("kubernetes.io/hostname")), None);
        assert_eq!(too_wide(&of("zone")), Some("zone"));
    }
}
