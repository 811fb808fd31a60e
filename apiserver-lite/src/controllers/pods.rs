//! What controllers need to know of a pod, read once per version of it and shared by all of them.

use std::sync::Arc;

use proto::time::parse_rfc3339;
use serde_json::Value;

use crate::client::Client;
use crate::scheduler::set_condition;
use crate::status::{ApiError, Result};
use crate::store::{Key, ObjectRef};
use crate::write::DeleteOptions;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerRef {
    pub uid: Box<str>,
    pub kind: Box<str>,
    pub name: Box<str>,
}

/// Times are in seconds since 1970, zero for none.
#[derive(Debug, Default, PartialEq)]
pub struct PodDigest {
    pub generation: i64,
    pub created: i64,
    pub started: i64,
    pub controller: Option<ControllerRef>,
    pub ready: bool,
    pub ready_since: i64,
    /// The most restarts of any container.
    pub restarts: i64,
    /// Restarts of all containers together, those for initialization included.
    pub all_restarts: i64,
    pub deletion_cost: i64,
    pub deletion_time: i64,
    pub finalizers: Box<[Box<str>]>,
    pub ips: Box<[Box<str>]>,
    /// Containers have other resources than the spec says.
    pub resized: bool,
    /// Claims of its volumes, those that it brings along included.
    pub claims: Box<[Box<str>]>,
    /// Those of them that are made for the pod.
    pub brought: Box<[Box<str>]>,
    /// It has claims of devices.
    pub asks_devices: bool,
    /// Since when it is said to be about to go, by others than its node.
    pub disrupted_since: i64,
    /// The group that it is scheduled with.
    pub group: Option<Box<str>>,
}

/// Seconds since 1970 of a time in an object; zero for none.
pub fn seconds(value: &Value) -> i64 {
    value.as_str().and_then(|t| parse_rfc3339(t).ok()).map_or(0, |t| t.seconds)
}

pub fn controller_of(value: &Value) -> Option<ControllerRef> {
    let owners = value["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    let owner = owners.into_iter().find(|o| o["controller"] == true)?;
    let text = |key: &str| owner[key].as_str().unwrap_or_default().into();
    Some(ControllerRef { uid: text("uid"), kind: text("kind"), name: text("name") })
}

/// A condition of an object by its type.
pub fn condition<'a>(value: &'a Value, kind: &str) -> Option<&'a Value> {
    value["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == kind)
}

impl PodDigest {
    pub fn of(pod: &ObjectRef) -> Arc<PodDigest> {
        pod.digest(|value| Arc::new(PodDigest::read(value)))
    }

    fn read(pod: &Value) -> Self {
        let (metadata, status) = (&pod["metadata"], &pod["status"]);
        let ready = condition(pod, "Ready").filter(|c| c["status"] == "True");
        let disrupted = condition(pod, "DisruptionTarget")
            .filter(|c| c["status"] == "True" && c["reason"] != "TerminationByKubelet");
        let containers = status["containerStatuses"].as_array().into_iter().flatten();
        let cost = &metadata["annotations"]["controller.kubernetes.io/pod-deletion-cost"];
        let texts = |list: &Value| -> Box<[Box<str>]> {
            list.as_array().into_iter().flatten().filter_map(Value::as_str).map(Into::into).collect()
        };
        let inits = status["initContainerStatuses"].as_array().into_iter().flatten();
        let restarts_of = |container: &Value| container["restartCount"].as_i64();
        let ips = status["podIPs"].as_array().into_iter().flatten().filter_map(|ip| ip["ip"].as_str());
        let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
        let name = metadata["name"].as_str().unwrap_or_default();
        PodDigest {
            generation: metadata["generation"].as_i64().unwrap_or(0),
            created: seconds(&metadata["creationTimestamp"]),
            started: seconds(&status["startTime"]),
            controller: controller_of(pod),
            ready: ready.is_some(),
            ready_since: ready.map_or(0, |c| seconds(&c["lastTransitionTime"])),
            restarts: containers.clone().filter_map(restarts_of).max().unwrap_or(0),
            all_restarts: containers.clone().chain(inits).filter_map(restarts_of).fold(0, i64::saturating_add),
            deletion_cost: cost.as_str().and_then(|t| t.parse().ok()).unwrap_or(0),
            deletion_time: seconds(&metadata["deletionTimestamp"]),
            finalizers: texts(&metadata["finalizers"]),
            ips: ips.map(Into::into).collect(),
            resized: status["allocatedResources"].is_object()
                || containers.into_iter().any(|c| c["allocatedResources"].is_object()),
            claims: volumes.clone().filter_map(|v| plain_claim(v).or_else(|| brought_claim(name, v))).collect(),
            brought: volumes.filter_map(|v| brought_claim(name, v)).collect(),
            asks_devices: pod["spec"]["resourceClaims"].as_array().is_some_and(|list| !list.is_empty()),
            disrupted_since: disrupted.map_or(0, |c| seconds(&c["lastTransitionTime"]).max(1)),
            group: pod["spec"]["schedulingGroup"]["podGroupName"].as_str().map(Into::into),
        }
    }
}

/// The claim that a volume of a pod names.
fn plain_claim(volume: &Value) -> Option<Box<str>> {
    volume["persistentVolumeClaim"]["claimName"].as_str().map(Into::into)
}

/// The claim that is made for a volume of a pod, and named for both.
pub fn brought_claim(pod: &str, volume: &Value) -> Option<Box<str>> {
    let name = volume["name"].as_str().unwrap_or_default();
    volume["ephemeral"].is_object().then(|| format!("{pod}-{name}").into())
}

/// Why a claim is not the one that was made for a pod, but that of an earlier pod of its name, say.
pub fn foreign_claim(pod: &ObjectRef, claim: &ObjectRef) -> Option<String> {
    let owner = controller_of(&claim.without_owners());
    let (Key { namespace, name }, of) = (&claim.key, &pod.key.name);
    owner
        .is_none_or(|owner| owner.uid != pod.keys.uid)
        .then(|| format!("PVC {namespace}/{name} was not created for pod {namespace}/{of} (pod is not owner)"))
}

/// Marks a pod as one that a controller makes go, and deletes it. One that is gone by then is no error.
///
/// # Errors
/// As a PUT of its status, and as a DELETE.
pub async fn evict(client: &Client, pod: &ObjectRef, reason: &str, why: &str) -> Result<()> {
    let Key { namespace, name } = &pod.key;
    let marked = client.update_status("pods", namespace, name, |value| {
        // Another one of its name, made meanwhile, stays.
        if value["metadata"]["uid"] != *pod.keys.uid {
            return Err(ApiError::not_found("", "pods", name));
        }
        let generation = value["metadata"]["generation"].clone();
        set_condition(value, "DisruptionTarget", "True", reason, why, generation);
        Ok(())
    });
    match marked.await {
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
        Ok(_) => client.delete_object("pods", pod, DeleteOptions::default()).await,
    }
}

/// Neither over nor going away.
pub fn is_active(pod: &ObjectRef) -> bool {
    !is_terminal(pod) && !pod.keys.deleting
}

/// Succeeded or failed.
pub fn is_terminal(pod: &ObjectRef) -> bool {
    matches!(pod.field("status.phase"), "Succeeded" | "Failed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn claims_are_told_by_volumes_and_no_other_mention() {
        let read = |volumes: Value, env: &str| {
            let spec = json!({"volumes": volumes, "containers": [{"name": "c", "env": [{"name": "claimName", "value": env}]}]});
            PodDigest::read(&json!({"metadata": {"name": "p"}, "spec": spec}))
        };
        let none = read(json!([{"name": "a", "emptyDir": {}}]), "\"ephemeral\":{");
        assert!(none.claims.is_empty() && none.brought.is_empty() && !none.asks_devices);
        let both = read(
            json!([{"name": "a", "persistentVolumeClaim": {"claimName": "x"}}, {"name": "b", "ephemeral": {"volumeClaimTemplate": {}}}]),
            "",
        );
        assert_eq!(*both.claims, ["x".into(), "p-b".into()]);
        assert_eq!(*both.brought, ["p-b".into()]);
        let devices = PodDigest::read(&json!({"spec": {"resourceClaims": [{"name": "d"}]}}));
        assert!(devices.asks_devices && !PodDigest::read(&json!({"spec": {"resourceClaims": []}})).asks_devices);
    }
}
