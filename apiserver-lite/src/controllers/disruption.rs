//! `disruption-controller`: how many pods of each disruption budget may go right now.

use std::collections::HashMap;
use std::time::Duration;

use proto::time::Timestamp;
use serde_json::{Value, json};

use super::events::Recorder;
use super::feed::Change;
use super::ownership::{self, number_or_percent};
use super::pods::{PodDigest, is_active, seconds};
use super::queue::Queue;
use super::runner::Controller;
use crate::client::{Client, unchanged};
use crate::selectors::LabelSelector;
use crate::status::Result;
use crate::store::{Key, ObjectRef, ResourceId};

const BUDGETS: &str = "poddisruptionbudgets.policy";
const COMPONENT: &str = "controllermanager";
/// A pod whose eviction was granted and that is still there after this long is taken to stay.
const DISRUPTED: i64 = 120;
/// Workloads that say how many pods they expect: kind, and the resource.
const SCALES: &[(&str, &str)] = &[
    ("ReplicaSet", "replicasets.apps"),
    ("ReplicationController", "replicationcontrollers"),
    ("StatefulSet", "statefulsets.apps"),
];

pub struct Disruption {
    client: Client,
    recorder: Recorder,
    budgets: HashMap<Key, LabelSelector>,
}

impl Disruption {
    pub fn new(client: Client, recorder: Recorder) -> Self {
        Disruption { client, recorder, budgets: HashMap::new() }
    }

    /// Pods that the owners of these pods expect altogether.
    fn expected(&self, pods: &[ObjectRef]) -> i64 {
        let mut owners: HashMap<Box<str>, i64> = HashMap::new();
        for pod in pods {
            let digest = PodDigest::of(pod);
            let Some(owner) = &digest.controller else { continue };
            if owners.contains_key(&owner.uid) {
                continue;
            }
            let Some((_, resource)) = SCALES.iter().find(|(kind, _)| **kind == *owner.kind) else { continue };
            let found = self.client.get(resource, &pod.key.namespace, &owner.name).filter(|o| o.keys.uid == owner.uid);
            let Some(mut value) = found.map(|o| o.value()) else { continue };
            let mut uid = owner.uid.clone();
            // A deployment counts once, whatever its replica sets are doing.
            let above = super::pods::controller_of(&value).filter(|c| &*c.kind == "Deployment");
            if let Some(above) = above
                && let Some(deployment) = self.client.get("deployments.apps", &pod.key.namespace, &above.name)
            {
                value = deployment.value();
                uid = above.uid.clone();
            }
            owners.insert(uid, value["spec"]["replicas"].as_i64().unwrap_or(1));
        }
        owners.values().sum()
    }
}

impl Controller for Disruption {
    const NAME: &'static str = "disruption-controller";
    type Key = Key;

    fn watched(&self) -> Vec<ResourceId> {
        let scales = SCALES.iter().map(|(_, resource)| *resource);
        [BUDGETS, "pods"].into_iter().chain(scales).chain(["deployments.apps"]).map(Into::into).collect()
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Key>) {
        let object = change.object;
        match change.resource {
            0 if change.deleted() => drop(self.budgets.remove(&object.key)),
            0 => {
                let selector = LabelSelector::parse(&object.value()["spec"]["selector"]);
                self.budgets.insert(object.key.clone(), selector);
                queue.add(object.key.clone());
            }
            1 => {
                for state in [Some(object), change.previous].into_iter().flatten() {
                    let covering = self.budgets.iter().filter(|(key, selector)| {
                        key.namespace == state.key.namespace && selector.matches(&state.keys.labels)
                    });
                    covering.for_each(|(key, _)| queue.add(key.clone()));
                }
            }
            // Another size of a workload is another expectation.
            _ => {
                let inside = self.budgets.keys().filter(|k| k.namespace == object.key.namespace);
                inside.for_each(|key| queue.add(key.clone()));
            }
        }
    }

    async fn sync(&mut self, key: &Key) -> Result<Option<Duration>> {
        let found = self.client.get(BUDGETS, &key.namespace, &key.name);
        let Some(budget) = found.filter(|b| !b.keys.deleting) else { return Ok(None) };
        let value = budget.value();
        let selector = LabelSelector::parse(&value["spec"]["selector"]);
        let snapshot = self.client.store().snapshot(&"pods".into());
        let in_namespace = snapshot.range(Some(&key.namespace), None);
        let pods: Vec<ObjectRef> =
            in_namespace.filter(|p| is_active(p) && selector.matches(&p.keys.labels)).cloned().collect();
        if pods.is_empty() {
            self.recorder.say(
                COMPONENT,
                ("PodDisruptionBudget", "policy/v1", &budget),
                "NoPods",
                "No matching pods found".into(),
            );
        }
        let (expected, desired) = self.desired(&value, &pods);
        let now = Timestamp::now().seconds;
        let mut again = None;
        // Evictions that were granted and are not yet seen.
        let mut disrupted = value["status"]["disruptedPods"].as_object().cloned().unwrap_or_default();
        disrupted.retain(|name, time| {
            let left = seconds(time) + DISRUPTED - now;
            let there = pods.iter().any(|p| *p.key.name == **name);
            if there && left > 0 {
                let left = Duration::from_secs(left.unsigned_abs());
                again = Some(again.map_or(left, |a: Duration| a.min(left)));
            }
            there && left > 0
        });
        let healthy = pods.iter().filter(|p| PodDigest::of(p).ready && !disrupted.contains_key(&*p.key.name)).count();
        let healthy = i64::try_from(healthy).unwrap_or(i64::MAX);
        let allowed = if expected > 0 { (healthy - desired).max(0) } else { 0 };
        let written = self.client.update_status(BUDGETS, &key.namespace, &key.name, |new| {
            if new["metadata"]["uid"] != *budget.keys.uid
                || new["metadata"]["resourceVersion"] != value["metadata"]["resourceVersion"]
            {
                // An eviction came in between; its event brings us back.
                return Err(unchanged());
            }
            let status = &mut new["status"];
            status["currentHealthy"] = healthy.into();
            status["desiredHealthy"] = desired.into();
            status["expectedPods"] = expected.into();
            status["disruptionsAllowed"] = allowed.into();
            status["observedGeneration"] = value["metadata"]["generation"].clone();
            match (disrupted.is_empty(), status.as_object_mut()) {
                (true, Some(map)) => drop(map.remove("disruptedPods")),
                _ => status["disruptedPods"] = disrupted.clone().into(),
            }
            let (word, reason) = if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
            let mut condition = json!({"type": "DisruptionAllowed", "status": word, "reason": reason, "message": ""});
            condition["observedGeneration"] = value["metadata"]["generation"].clone();
            ownership::set_condition(new, condition);
            Ok(())
        });
        ownership::done(written.await.map(|_| ()))?;
        Ok(again)
    }
}

impl Disruption {
    /// Pods that are expected, and those that have to be healthy.
    fn desired(&self, budget: &Value, pods: &[ObjectRef]) -> (i64, i64) {
        let count = i64::try_from(pods.len()).unwrap_or(i64::MAX);
        let spec = &budget["spec"];
        if !spec["maxUnavailable"].is_null() {
            let expected = self.expected(pods);
            let unavailable = number_or_percent(&spec["maxUnavailable"], expected, true);
            return (expected, (expected - unavailable).max(0));
        }
        match &spec["minAvailable"] {
            minimum @ Value::String(_) => {
                let expected = self.expected(pods);
                (expected, number_or_percent(minimum, expected, true))
            }
            minimum => (count, minimum.as_i64().unwrap_or(1)),
        }
    }
}
