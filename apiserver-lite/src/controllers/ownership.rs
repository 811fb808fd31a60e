//! Controllers and what they own: references to owners, taking in orphans, letting go of what no longer belongs, and pods
//! made from templates.

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::client::{Client, unchanged};
use crate::status::{ApiError, Result};
use crate::store::ObjectRef;
use crate::write::DeleteOptions;

/// A kind of owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerKind {
    pub kind: &'static str,
    pub api_version: &'static str,
    /// The resource's name in the store.
    pub resource: &'static str,
}

pub const REPLICA_SET: OwnerKind =
    OwnerKind { kind: "ReplicaSet", api_version: "apps/v1", resource: "replicasets.apps" };
pub const REPLICATION_CONTROLLER: OwnerKind =
    OwnerKind { kind: "ReplicationController", api_version: "v1", resource: "replicationcontrollers" };
pub const DEPLOYMENT: OwnerKind =
    OwnerKind { kind: "Deployment", api_version: "apps/v1", resource: "deployments.apps" };
pub const DAEMON_SET: OwnerKind = OwnerKind { kind: "DaemonSet", api_version: "apps/v1", resource: "daemonsets.apps" };
pub const STATEFUL_SET: OwnerKind =
    OwnerKind { kind: "StatefulSet", api_version: "apps/v1", resource: "statefulsets.apps" };
pub const JOB: OwnerKind = OwnerKind { kind: "Job", api_version: "batch/v1", resource: "jobs.batch" };
pub const CRON_JOB: OwnerKind = OwnerKind { kind: "CronJob", api_version: "batch/v1", resource: "cronjobs.batch" };

impl OwnerKind {
    /// The reference that makes an object the controller of another.
    pub fn reference(&self, owner: &ObjectRef) -> Value {
        json!({"apiVersion": self.api_version, "kind": self.kind, "name": owner.key.name, "uid": owner.keys.uid,
            "controller": true, "blockOwnerDeletion": true})
    }

    /// How events name an object.
    pub fn about<'a>(&self, object: &'a ObjectRef) -> (&'static str, &'static str, &'a ObjectRef) {
        (self.kind, self.api_version, object)
    }
}

/// A pod as a template says, owned by `owner`. It has no name yet.
pub fn pod_from(template: &Value, kind: OwnerKind, owner: &ObjectRef) -> Value {
    let mut metadata = json!({"ownerReferences": [kind.reference(owner)]});
    for key in ["labels", "annotations", "finalizers"] {
        let value = &template["metadata"][key];
        if !value.is_null() {
            metadata[key] = value.clone();
        }
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
}

/// Pods made at once, and with it the burst of one look.
pub const BURST: usize = 500;

/// Makes pods, first one, then twice as many each time that all went well, so that a template that is refused is not
/// refused hundreds of times.
///
/// # Errors
/// The first refusal; pods made before stay.
pub async fn create_pods(client: &Client, namespace: &str, mut pods: Vec<Value>) -> (Vec<ObjectRef>, Result<()>) {
    let mut made = Vec::new();
    let mut batch = 1;
    while !pods.is_empty() {
        let rest = pods.split_off(batch.min(pods.len()));
        let creates = pods.into_iter().map(|pod| client.create("pods", namespace, pod));
        let mut failure = None;
        for result in join_all(creates).await {
            match result {
                Ok(pod) => made.push(pod),
                // Whatever is made now would be deleted at once.
                Err(error) if is_terminating(&error) => return (made, Ok(())),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        if let Some(error) = failure {
            return (made, Err(error));
        }
        pods = rest;
        batch *= 2;
    }
    (made, Ok(()))
}

/// Refused because the namespace is going away.
pub fn is_terminating(error: &ApiError) -> bool {
    let details = error.status().details.as_ref();
    details.is_some_and(|d| d.causes.iter().any(|c| c.reason == "NamespaceTerminating"))
}

/// Deletes pods; the ones that are gone already count as deleted.
///
/// # Errors
/// The first refusal.
pub async fn delete_pods(client: &Client, pods: &[ObjectRef]) -> Result<()> {
    let deletes = pods.iter().map(|pod| client.delete_object("pods", pod, DeleteOptions::default()));
    join_all(deletes).await.into_iter().collect()
}

/// Makes an orphan one's own. False when somebody else was faster.
///
/// # Errors
/// As an update.
pub async fn adopt(
    client: &Client,
    kind: OwnerKind,
    owner: &ObjectRef,
    resource: &str,
    orphan: &ObjectRef,
) -> Result<bool> {
    let key = &orphan.key;
    let adopted = client.update(resource, &key.namespace, &key.name, |value| {
        let metadata = &mut value["metadata"];
        if metadata["uid"] != *orphan.keys.uid || metadata["deletionTimestamp"].is_string() {
            return Err(unchanged());
        }
        let reference = kind.reference(owner);
        match metadata["ownerReferences"].as_array_mut() {
            Some(list) if list.iter().any(|o| o["controller"] == true) => return Err(unchanged()),
            Some(list) => list.push(reference),
            None => metadata["ownerReferences"] = json!([reference]),
        }
        Ok(())
    });
    done(adopted.await.map(|_| ()))
}

/// Gives up an object that no longer matches. False when it was no longer ours.
///
/// # Errors
/// As an update.
pub async fn release(client: &Client, owner: &ObjectRef, resource: &str, object: &ObjectRef) -> Result<bool> {
    let key = &object.key;
    let released = client.update(resource, &key.namespace, &key.name, |value| {
        let metadata = &mut value["metadata"];
        let Some(list) = metadata["ownerReferences"].as_array_mut() else { return Err(unchanged()) };
        list.retain(|o| o["uid"] != *owner.keys.uid);
        if list.is_empty() {
            drop(metadata.as_object_mut().and_then(|m| m.remove("ownerReferences")));
        }
        Ok(())
    });
    done(released.await.map(|_| ()))
}

/// Whether a write happened: neither given up nor too late.
///
/// # Errors
/// Any other refusal.
pub fn done(result: Result<()>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.is_not_found() || error.code() == 304 => Ok(false),
        Err(error) => Err(error),
    }
}

/// `maxSurge` and its like: a number, or a part of a whole in percent.
pub fn number_or_percent(value: &Value, whole: i64, round_up: bool) -> i64 {
    match value {
        Value::String(text) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            let product = percent.saturating_mul(whole);
            if round_up { (product + 99).div_euclid(100) } else { product.div_euclid(100) }
        }
        value => value.as_i64().unwrap_or(0),
    }
}

/// Sets a condition of a workload's status; keeps the time of its last transition while the status stays. True when
/// anything changed.
pub fn set_condition(object: &mut Value, mut condition: Value) -> bool {
    let now = proto::time::Timestamp::now().to_seconds_text();
    condition["lastTransitionTime"] = now.into();
    if !object["status"]["conditions"].is_array() {
        object["status"]["conditions"] = json!([]);
    }
    let Some(list) = object["status"]["conditions"].as_array_mut() else { return false };
    let Some(old) = list.iter_mut().find(|c| c["type"] == condition["type"]) else {
        list.push(condition);
        return true;
    };
    // Of the conditions of workloads, only those of disruption budgets have a generation.
    if ["status", "reason", "message", "observedGeneration"].iter().all(|part| old[*part] == condition[*part]) {
        return false;
    }
    if old["status"] == condition["status"] {
        condition["lastTransitionTime"] = old["lastTransitionTime"].clone();
    }
    *old = condition;
    true
}

/// The same by the rules of deployments and replica sets: what only has other words stays as it is, and what changes goes
/// behind the others.
pub fn set_condition_last(object: &mut Value, mut condition: Value) -> bool {
    let old = super::pods::condition(object, condition["type"].as_str().unwrap_or_default());
    let same = |part: &str| old.is_some_and(|old| old[part] == condition[part]);
    if same("status") && same("reason") {
        return false;
    }
    condition["lastTransitionTime"] = match old.filter(|_| same("status")) {
        Some(old) => old["lastTransitionTime"].clone(),
        None => proto::time::Timestamp::now().to_seconds_text().into(),
    };
    push_condition(object, condition);
    true
}

/// Puts a condition behind the others, in place of the one of its type.
pub fn push_condition(object: &mut Value, condition: Value) {
    remove_condition(object, condition["type"].as_str().unwrap_or_default());
    match object["status"]["conditions"].as_array_mut() {
        Some(list) => list.push(condition),
        None => object["status"]["conditions"] = json!([condition]),
    }
}

/// Whether there is such a condition, whatever it says.
pub fn has_condition(object: &Value, kind: &str) -> bool {
    object["status"]["conditions"].as_array().is_some_and(|list| list.iter().any(|c| c["type"] == kind))
}

/// Removes a condition.
pub fn remove_condition(object: &mut Value, kind: &str) {
    if let Some(list) = object["status"]["conditions"].as_array_mut() {
        list.retain(|c| c["type"] != kind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn surge_rounds_up_and_unavailability_down() {
        assert_eq!(number_or_percent(&json!("25%"), 3, true), 1);
        assert_eq!(number_or_percent(&json!("25%"), 3, false), 0);
        assert_eq!(number_or_percent(&json!(2), 3, true), 2);
    }

    /// The condition of a disruption budget stayed at the generation in which its status last changed.
    #[test]
    fn a_condition_follows_the_generation_and_keeps_its_time() {
        let said = |generation: i64| json!({"type": "A", "status": "True", "reason": "R", "message": "", "observedGeneration": generation});
        let mut object = json!({"status": {"conditions": [said(1)]}});
        let then = "2020-01-01T00:00:00Z";
        object["status"]["conditions"][0]["lastTransitionTime"] = then.into();
        assert!(!set_condition(&mut object, said(1)));
        assert!(set_condition(&mut object, said(2)));
        let condition = &object["status"]["conditions"][0];
        assert_eq!((&condition["observedGeneration"], &condition["lastTransitionTime"]), (&json!(2), &json!(then)));
    }
}
