//! What a deployment says of itself: counts, and whether it is available, gets on, or is stuck.

use std::time::Duration;

use proto::time::Timestamp;
use serde_json::{Value, json};

use super::{DEPLOYMENT, Deployments, Work, ownership};
use crate::client::unchanged;
use crate::controllers::pods::{condition, seconds};
use crate::status::Result;

/// Counts of a deployment's pods.
#[derive(Debug, PartialEq)]
struct Counts {
    replicas: i64,
    updated: i64,
    ready: i64,
    available: i64,
    terminating: i64,
}

fn counts(work: &Work) -> Counts {
    let sum = |key: &str| work.all().map(|s| s.status(key)).sum();
    Counts {
        replicas: sum("replicas"),
        updated: work.new.as_ref().map_or(0, |s| s.status("replicas")),
        ready: sum("readyReplicas"),
        available: sum("availableReplicas"),
        terminating: sum("terminatingReplicas"),
    }
}

fn is_complete(counts: &Counts, wanted: i64) -> bool {
    counts.updated == wanted && counts.replicas == wanted && counts.available == wanted
}

/// Every pod is of the current template and available, and no other is left.
pub(super) fn complete(work: &Work) -> bool {
    is_complete(&counts(work), work.replicas())
}

/// What a status is to tell of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tells {
    /// How many pods there are, and whether that is enough: while a deployment is paused, scaled or deleted, nothing is
    /// said of how it gets on, nor of what its replica sets fail at.
    Counts,
    Rollout,
}

impl Deployments {
    /// Writes counts and conditions; when to look again because of the deadline.
    pub(super) async fn write_status(&self, work: &Work, tells: Tells) -> Result<Option<Duration>> {
        let counts = counts(work);
        let key = &work.object.key;
        let written = self.client.update_status(DEPLOYMENT.resource, &key.namespace, &key.name, |value| {
            if value["metadata"]["uid"] != *work.object.keys.uid {
                return Err(unchanged());
            }
            set_status(value, work, &counts, tells);
            Ok(())
        });
        let object = match written.await {
            Ok(object) => object,
            Err(error) if error.is_not_found() || error.code() == 304 => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(time_to_deadline(&object.value()))
    }
}

/// In the order of the controller that others know, for each condition that changes goes behind the others.
fn set_status(value: &mut Value, work: &Work, counts: &Counts, tells: Tells) {
    let moved = has_moved(&value["status"], counts);
    set_counts(value, work, counts);
    if tells == Tells::Counts {
        return;
    }
    set_progress(value, work, counts, moved);
    // What the current replica set fails at counts before what older ones do.
    match work.new.iter().chain(&work.old).find_map(|s| condition(&s.value, "ReplicaFailure").cloned()) {
        Some(mut failure) => {
            failure["lastUpdateTime"] = failure["lastTransitionTime"].clone();
            set_failure(value, failure);
        }
        None => ownership::remove_condition(value, "ReplicaFailure"),
    }
}

/// As other conditions of deployments, but one that is new is as old as the replica set's.
fn set_failure(value: &mut Value, mut failure: Value) {
    let old = condition(value, "ReplicaFailure");
    if old.is_some_and(|old| old["status"] == failure["status"] && old["reason"] == failure["reason"]) {
        return;
    }
    if let Some(old) = old.filter(|old| old["status"] == failure["status"]) {
        failure["lastTransitionTime"] = old["lastTransitionTime"].clone();
    }
    ownership::push_condition(value, failure);
}

/// Whether the rollout has got on since a status was written.
fn has_moved(status: &Value, counts: &Counts) -> bool {
    let old = |key: &str| status[key].as_i64().unwrap_or(0);
    counts.updated > old("updatedReplicas")
        || counts.replicas - counts.updated < old("replicas") - old("updatedReplicas")
        || counts.ready > old("readyReplicas")
        || counts.available > old("availableReplicas")
}

fn set_counts(value: &mut Value, work: &Work, counts: &Counts) {
    let status = &mut value["status"];
    let unavailable = (work.total() - counts.available).max(0);
    let numbers = [
        ("replicas", counts.replicas),
        ("updatedReplicas", counts.updated),
        ("readyReplicas", counts.ready),
        ("availableReplicas", counts.available),
        ("unavailableReplicas", unavailable),
    ];
    for (key, number) in numbers {
        match (number, status.as_object_mut()) {
            (0, Some(map)) => drop(map.remove(key)),
            (number, _) => status[key] = number.into(),
        }
    }
    status["terminatingReplicas"] = counts.terminating.into();
    status["observedGeneration"] = work.value["metadata"]["generation"].clone();
    let enough = counts.available >= work.replicas() - work.slack().1;
    let (word, reason, message) = if enough {
        ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    } else {
        ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    };
    let now = Timestamp::now().to_seconds_text();
    ownership::set_condition_last(
        value,
        json!({"type": "Available", "status": word, "reason": reason, "message": message, "lastUpdateTime": now}),
    );
}

/// How many seconds a rollout may take without getting on.
fn deadline(value: &Value) -> Option<i64> {
    value["spec"]["progressDeadlineSeconds"].as_i64().filter(|d| *d != i64::from(i32::MAX))
}

/// Sets the condition Progressing; `moved` is whether the rollout has got on since the status was last written.
fn set_progress(value: &mut Value, work: &Work, counts: &Counts, moved: bool) {
    let Some(deadline) = deadline(&work.value) else {
        ownership::remove_condition(value, "Progressing");
        return;
    };
    let current = condition(value, "Progressing").cloned();
    let reason = current.as_ref().and_then(|c| c["reason"].as_str()).unwrap_or_default().to_owned();
    if counts.replicas == counts.updated && reason == "NewReplicaSetAvailable" {
        return;
    }
    let name = match &work.new {
        Some(new) => format!("ReplicaSet \"{}\"", new.object.key.name),
        None => format!("Deployment \"{}\"", work.object.key.name),
    };
    let (status, reason, message) = if is_complete(counts, work.replicas()) {
        ("True", "NewReplicaSetAvailable", format!("{name} has successfully progressed."))
    } else if moved {
        ("True", "ReplicaSetUpdated", format!("{name} is progressing."))
    } else if timed_out(current.as_ref(), deadline) {
        ("False", "ProgressDeadlineExceeded", format!("{name} has timed out progressing."))
    } else {
        return;
    };
    let now = Timestamp::now().to_seconds_text();
    let mut new =
        json!({"type": "Progressing", "status": status, "reason": reason, "message": message, "lastUpdateTime": now});
    if reason != "ReplicaSetUpdated" {
        ownership::set_condition_last(value, new);
        return;
    }
    // Each step on the way starts the deadline anew.
    let since = current.as_ref().filter(|c| c["status"] == "True").map(|c| c["lastTransitionTime"].clone());
    new["lastTransitionTime"] = since.unwrap_or_else(|| now.into());
    ownership::push_condition(value, new);
}

fn timed_out(progressing: Option<&Value>, deadline: i64) -> bool {
    let Some(condition) = progressing else { return false };
    match condition["reason"].as_str() {
        Some("ProgressDeadlineExceeded") => return true,
        Some("NewReplicaSetAvailable" | "DeploymentPaused") => return false,
        _ => {}
    }
    seconds(&condition["lastUpdateTime"]) + deadline < Timestamp::now().seconds
}

/// When a rollout that does not get on has to be looked at.
fn time_to_deadline(value: &Value) -> Option<Duration> {
    let deadline = deadline(value)?;
    let progressing = condition(value, "Progressing")?;
    if !matches!(
        progressing["reason"].as_str(),
        Some("ReplicaSetUpdated" | "NewReplicaSetCreated" | "FoundNewReplicaSet" | "DeploymentResumed")
    ) {
        return None;
    }
    let left = seconds(&progressing["lastUpdateTime"]) + deadline + 1 - Timestamp::now().seconds;
    Some(Duration::from_secs(left.max(1).unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::super::Set;
    use super::*;

    fn work(replicas: i64, new: Value) -> Work {
        let keys = crate::store::Key::new("n", "d");
        let value = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "generation": 3},
            "spec": {"replicas": replicas, "progressDeadlineSeconds": 600,
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}}});
        let resources = crate::resource::Resources::built_in();
        let make = |plural: &str, value: &mut Value| {
            let resource = resources.lookup("apps", "v1", plural).expect("it is served");
            crate::store::encode(&resource, value, Vec::new(), None).unsaved(keys.clone(), "")
        };
        let mut set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "d-1"},
            "spec": {"replicas": replicas}, "status": new});
        let object = make("replicasets", &mut set);
        let new = Set { object, value: set };
        Work { object: make("deployments", &mut value.clone()), value, new: Some(new), old: Vec::new() }
    }

    #[test]
    fn a_rollout_gets_on_and_completes() {
        let half = work(4, json!({"replicas": 4, "readyReplicas": 2, "availableReplicas": 2}));
        let mut value = half.value.clone();
        set_status(&mut value, &half, &counts(&half), Tells::Rollout);
        assert_eq!(condition(&value, "Progressing").expect("set")["reason"], "ReplicaSetUpdated");
        assert_eq!(condition(&value, "Available").expect("set")["status"], "False");
        assert_eq!(value["status"]["unavailableReplicas"], 2);
        let done = work(4, json!({"replicas": 4, "readyReplicas": 4, "availableReplicas": 4}));
        set_status(&mut value, &done, &counts(&done), Tells::Rollout);
        assert_eq!(condition(&value, "Progressing").expect("set")["reason"], "NewReplicaSetAvailable");
        assert_eq!(condition(&value, "Available").expect("set")["reason"], "MinimumReplicasAvailable");
        assert_eq!(value["status"].get("unavailableReplicas"), None);
        let order = |value: &Value| -> Vec<Value> {
            value["status"]["conditions"].as_array().into_iter().flatten().map(|c| c["type"].clone()).collect()
        };
        assert_eq!(order(&value), ["Available", "Progressing"], "what changes goes behind the others");
        let before = value.clone();
        set_status(&mut value, &done, &counts(&done), Tells::Rollout);
        assert_eq!(value, before);
        // One pod less is available, and the rollout was over: only one of them changes.
        let less = work(4, json!({"replicas": 4, "readyReplicas": 1, "availableReplicas": 1}));
        set_status(&mut value, &less, &counts(&less), Tells::Rollout);
        assert_eq!(order(&value), ["Progressing", "Available"]);
    }

    #[test]
    fn a_rollout_that_stands_still_runs_into_its_deadline() {
        let stuck = work(4, json!({"replicas": 4}));
        let mut value = stuck.value.clone();
        value["status"] = json!({"replicas": 4, "updatedReplicas": 4, "conditions": [{"type": "Progressing",
            "status": "True", "reason": "ReplicaSetUpdated", "lastUpdateTime": "2020-01-01T00:00:00Z"}]});
        set_progress(&mut value, &stuck, &counts(&stuck), false);
        assert_eq!(condition(&value, "Progressing").expect("set")["reason"], "ProgressDeadlineExceeded");
    }

    #[test]
    fn a_paused_deployment_says_nothing_new_of_its_failures() {
        let failure = |reason: &str| {
            json!({"replicas": 1, "conditions": [{"type": "ReplicaFailure", "status": "True", "reason": reason,
                "message": "m", "lastTransitionTime": "2020-01-01T00:00:00Z"}]})
        };
        let failing = work(4, failure("FailedCreate"));
        let mut value = failing.value.clone();
        set_status(&mut value, &failing, &counts(&failing), Tells::Counts);
        assert_eq!(condition(&value, "ReplicaFailure"), None);
        assert_eq!(value["status"]["replicas"], 1);
        set_status(&mut value, &failing, &counts(&failing), Tells::Rollout);
        let told = condition(&value, "ReplicaFailure").expect("it is told").clone();
        assert_eq!(told["lastUpdateTime"], "2020-01-01T00:00:00Z");
        assert_eq!(told["lastTransitionTime"], "2020-01-01T00:00:00Z");
        let mended = work(4, json!({"replicas": 4}));
        set_status(&mut value, &mended, &counts(&mended), Tells::Counts);
        assert_eq!(condition(&value, "ReplicaFailure"), Some(&told), "it stays while nothing rolls out");
        set_status(&mut value, &mended, &counts(&mended), Tells::Rollout);
        assert_eq!(condition(&value, "ReplicaFailure"), None);
        let mut both = work(4, failure("FailedDelete"));
        both.old = failing.new.into_iter().collect();
        set_status(&mut value, &both, &counts(&both), Tells::Rollout);
        assert_eq!(condition(&value, "ReplicaFailure").expect("it is told")["reason"], "FailedDelete");
    }
}
