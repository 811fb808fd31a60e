//! `disruption-controller`: how many pods of each disruption budget may go right now.
//!
//! Follows `pkg/controller/disruption/disruption.go`.

mod expected;
mod stale;

use std::collections::HashMap;
use std::time::Duration;

use proto::time::Timestamp;
use serde_json::{Map, Value, json};

use self::expected::Needs;
use self::stale::stale_in;
use super::events::Recorder;
use super::feed::Change;
use super::ownership;
use super::pods::{PodDigest, seconds};
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
/// Workloads whose size is looked at again when they change; those of other kinds are read with their pods' changes.
const SCALES: [&str; 4] = ["replicasets.apps", "replicationcontrollers", "statefulsets.apps", "deployments.apps"];

/// A budget, or a pod that was said to be about to go.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Work {
    Budget(Key),
    Pod(Key),
}

pub struct Disruption {
    client: Client,
    recorder: Recorder,
    budgets: HashMap<Key, LabelSelector>,
}

impl Disruption {
    pub fn new(client: Client, recorder: Recorder) -> Self {
        Disruption { client, recorder, budgets: HashMap::new() }
    }

    fn warn(&self, budget: &ObjectRef, reason: &'static str, text: String) {
        self.recorder.warn(COMPONENT, ("PodDisruptionBudget", "policy/v1", budget), reason, text);
    }
}

impl Controller for Disruption {
    const NAME: &'static str = "disruption-controller";
    type Key = Work;

    fn watched(&self) -> Vec<ResourceId> {
        [BUDGETS, "pods"].into_iter().chain(SCALES).map(Into::into).collect()
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Work>) {
        let object = change.object;
        match change.resource {
            0 if change.deleted() => drop(self.budgets.remove(&object.key)),
            0 => {
                let selector = LabelSelector::parse(&object.value()["spec"]["selector"]);
                self.budgets.insert(object.key.clone(), selector);
                queue.add(Work::Budget(object.key.clone()));
            }
            1 => {
                for state in [Some(object), change.previous].into_iter().flatten() {
                    let covering = self.budgets.iter().filter(|(key, selector)| {
                        key.namespace == state.key.namespace && selector.matches(&state.keys.labels)
                    });
                    covering.for_each(|(key, _)| queue.add(Work::Budget(key.clone())));
                }
                if !change.deleted()
                    && let Some(left) = stale_in(object, Timestamp::now().seconds)
                {
                    queue.add_after(Work::Pod(object.key.clone()), left);
                }
            }
            // Another size of a workload is another expectation.
            _ => {
                let inside = self.budgets.keys().filter(|k| k.namespace == object.key.namespace);
                inside.for_each(|key| queue.add(Work::Budget(key.clone())));
            }
        }
    }

    async fn sync(&mut self, work: &Work) -> Result<Option<Duration>> {
        match work {
            Work::Budget(key) => self.sync_budget(key).await,
            Work::Pod(key) => stale::sync(&self.client, key).await,
        }
    }
}

impl Disruption {
    async fn sync_budget(&self, key: &Key) -> Result<Option<Duration>> {
        let found = self.client.get(BUDGETS, &key.namespace, &key.name);
        let Some(budget) = found.filter(|b| !b.keys.deleting) else { return Ok(None) };
        let value = budget.value();
        let selector = LabelSelector::parse(&value["spec"]["selector"]);
        let snapshot = self.client.store().snapshot(&"pods".into());
        let in_namespace = snapshot.range(Some(&key.namespace), None);
        // Those too that are over or going away: they are what somebody expects.
        let pods: Vec<ObjectRef> = in_namespace.filter(|p| selector.matches(&p.keys.labels)).cloned().collect();
        if pods.is_empty() {
            let about = ("PodDisruptionBudget", "policy/v1", &budget);
            self.recorder.say(COMPONENT, about, "NoPods", "No matching pods found".into());
        }
        let needs = match Needs::of(&value["spec"], &pods, |pod| expected::owner(&self.client, pod)) {
            Ok(needs) => needs,
            Err(why) => {
                let text = format!("Failed to calculate the number of expected pods: {why}");
                self.warn(&budget, "CalculateExpectedPodCountFailed", text);
                self.write(&budget, &value, |new| fail_safe(new, &why)).await?;
                return Ok(None);
            }
        };
        if needs.unmanaged {
            let selector = super::autoscaler::go_selector(&value["spec"]["selector"]);
            let text = format!(
                "Pods selected by this PodDisruptionBudget (selector: {selector}) were found to be unmanaged. As a \
                 result, the status of the PDB cannot be calculated correctly, which may result in undefined behavior. \
                 To account for these pods please set \".spec.minAvailable\" field of the PDB to an integer value."
            );
            self.warn(&budget, "UnmanagedPods", text);
        }
        let (disrupted, again) = self.disrupted(key, &value, &pods);
        let healthy = pods
            .iter()
            .filter(|p| !p.keys.deleting && PodDigest::of(p).ready && !disrupted.contains_key(&*p.key.name))
            .count();
        let healthy = i64::try_from(healthy).unwrap_or(i64::MAX);
        let allowed = if needs.expected > 0 { (healthy - needs.healthy).max(0) } else { 0 };
        self.write(&budget, &value, |new| {
            let status = &mut new["status"];
            status["currentHealthy"] = healthy.into();
            status["desiredHealthy"] = needs.healthy.into();
            status["expectedPods"] = needs.expected.into();
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
        })
        .await?;
        Ok(again)
    }

    /// Evictions that were granted and are not yet seen, and when the first of them is given up.
    fn disrupted(&self, key: &Key, budget: &Value, pods: &[ObjectRef]) -> (Map<String, Value>, Option<Duration>) {
        let now = Timestamp::now().seconds;
        let mut again: Option<Duration> = None;
        let mut disrupted = budget["status"]["disruptedPods"].as_object().cloned().unwrap_or_default();
        disrupted.retain(|name, time| {
            let Some(pod) = pods.iter().find(|p| *p.key.name == **name && !p.keys.deleting) else { return false };
            let left = seconds(time) + DISRUPTED - now;
            if left < 0 {
                // Upstream names the namespace twice.
                let namespace = &key.namespace;
                let text = format!("Pod was expected by PDB {namespace}/{namespace} to be deleted but it wasn't");
                self.recorder.warn(COMPONENT, ("Pod", "v1", pod), "NotDeleted", text);
                return false;
            }
            // Whole seconds: the time itself still counts, the next one no more.
            let left = Duration::from_secs(left.unsigned_abs() + 1);
            again = Some(again.map_or(left, |a| a.min(left)));
            true
        });
        (disrupted, again)
    }

    /// Writes a budget's status, unless an eviction came in between: its event brings us back.
    async fn write(&self, budget: &ObjectRef, seen: &Value, change: impl Fn(&mut Value) + Send + Sync) -> Result<()> {
        let key = &budget.key;
        let written = self.client.update_status(BUDGETS, &key.namespace, &key.name, |new| {
            if new["metadata"]["uid"] != *budget.keys.uid
                || new["metadata"]["resourceVersion"] != seen["metadata"]["resourceVersion"]
            {
                return Err(unchanged());
            }
            change(new);
            Ok(())
        });
        ownership::done(written.await.map(|_| ())).map(|_| ())
    }
}

/// Nothing may go as long as it is not known how many pods there should be.
fn fail_safe(budget: &mut Value, why: &str) {
    let status = &mut budget["status"];
    for count in ["currentHealthy", "desiredHealthy", "expectedPods"] {
        if status[count].is_null() {
            status[count] = 0.into();
        }
    }
    status["disruptionsAllowed"] = 0.into();
    let mut condition = json!({"type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed", "message": why});
    if status["observedGeneration"].is_i64() || status["observedGeneration"].is_u64() {
        condition["observedGeneration"] = status["observedGeneration"].clone();
    }
    ownership::set_condition(budget, condition);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod with these other parts.
    pub(super) fn pod(name: &str, mut value: Value) -> ObjectRef {
        let resource = crate::resource::Resources::built_in().lookup("", "v1", "pods").expect("it is served");
        value["metadata"]["name"] = name.into();
        value["metadata"]["namespace"] = "n".into();
        let fields = crate::resource::fields::of(&resource, &value);
        crate::store::encode(&resource, &mut value, fields, None).unsaved(Key::new("n", name), "")
    }

    #[test]
    fn a_budget_that_cannot_be_counted_allows_nothing_and_says_why() {
        let mut budget = json!({"status": {"disruptionsAllowed": 2, "currentHealthy": 3, "observedGeneration": 4}});
        fail_safe(&mut budget, "no matches");
        let status = &budget["status"];
        assert_eq!((&status["disruptionsAllowed"], &status["currentHealthy"]), (&json!(0), &json!(3)));
        let said = &status["conditions"][0];
        assert_eq!((&said["status"], &said["reason"]), (&json!("False"), &json!("SyncFailed")));
        assert_eq!((&said["message"], &said["observedGeneration"]), (&json!("no matches"), &json!(4)));
        let mut fresh = json!({"metadata": {}});
        fail_safe(&mut fresh, "x");
        assert_eq!(fresh["status"]["expectedPods"], 0);
        assert!(fresh["status"]["conditions"][0].get("observedGeneration").is_none());
    }
}
