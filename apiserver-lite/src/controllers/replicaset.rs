//! `replicaset-controller` and `replicationcontroller-controller`: as many pods as asked for.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::FutureExt as _;
use proto::time::Timestamp;
use serde_json::{Name, Value, json};

use super::events::Recorder;
use super::feed::Change;
use super::index::{Index, by_owner};
use super::ownership::{self, OwnerKind, REPLICA_SET, REPLICATION_CONTROLLER};
use super::pods::{PodDigest, controller_of, is_active, is_terminal};
use super::queue::Queue;
use super::runner::{Controller, Work};
use crate::client::Client;
use crate::selectors::LabelSelector;
use crate::status::Result;
use crate::store::{Key, ObjectRef, ResourceId};

/// Of either kind; `RC` says which.
pub struct ReplicaSets<const RC: bool> {
    client: Client,
    recorder: Recorder,
    pods: Index,
    /// Selectors and places of the sets by uid.
    sets: HashMap<Box<str>, (Key, LabelSelector)>,
}

fn selector(kind: OwnerKind, value: &Value) -> LabelSelector {
    if kind == REPLICATION_CONTROLLER {
        LabelSelector::from_map(&value["spec"]["selector"])
    } else {
        LabelSelector::parse(&value["spec"]["selector"])
    }
}

impl<const RC: bool> ReplicaSets<RC> {
    const KIND: OwnerKind = if RC { REPLICATION_CONTROLLER } else { REPLICA_SET };

    pub fn new(client: Client, recorder: Recorder) -> Self {
        ReplicaSets { client, recorder, pods: Index::default(), sets: HashMap::new() }
    }

    /// The pods that count: owned ones, orphans taken in. Pods that no longer match are let go.
    async fn claim(&self, set: &ObjectRef, selector: &LabelSelector) -> Result<Vec<ObjectRef>> {
        let mut mine = Vec::new();
        for pod in self.pods.get(&set.keys.uid) {
            if PodDigest::of(pod).controller.as_ref().is_none_or(|c| c.uid != set.keys.uid) {
                continue;
            }
            if selector.matches(&pod.keys.labels) {
                mine.push(pod.clone());
            } else if !set.keys.deleting {
                ownership::release(&self.client, set, "pods", pod).await?;
            }
        }
        if set.keys.deleting {
            return Ok(mine);
        }
        let orphans = self.pods.get("").filter(|p| p.key.namespace == set.key.namespace);
        for orphan in orphans.filter(|p| is_active(p) && selector.matches(&p.keys.labels)) {
            if ownership::adopt(&self.client, Self::KIND, set, "pods", orphan).await? {
                mine.push(orphan.clone());
            }
        }
        Ok(mine)
    }

    /// Active pods of all sets of the set's controller, which spread over nodes together; without one only its own.
    fn related(&self, set: &ObjectRef, value: &Value) -> Vec<ObjectRef> {
        let controller = controller_of(value);
        let namespace = Some(&*set.key.namespace);
        let sets = self.client.store().snapshot(&Self::KIND.resource.into());
        let of_controller = |other: &&ObjectRef| match &controller {
            Some(controller) => other.keys.owners.contains(&controller.uid),
            None => other.keys.uid == set.keys.uid,
        };
        let sets: Vec<&ObjectRef> = sets.range(namespace, None).filter(of_controller).collect();
        let pods = self.client.store().snapshot(&"pods".into());
        let of_sets = |pod: &&ObjectRef| is_active(pod) && sets.iter().any(|s| pod.keys.owners.contains(&s.keys.uid));
        pods.range(namespace, None).filter(of_sets).cloned().collect()
    }

    /// Makes or deletes pods; the failure that goes into the status.
    async fn replicate(&self, set: &ObjectRef, value: &Value, mut active: Vec<ObjectRef>) -> Result<()> {
        let wanted = usize::try_from(value["spec"]["replicas"].as_i64().unwrap_or(1)).unwrap_or(0);
        let about = Self::KIND.about(set);
        let who = if RC { "replication-controller" } else { "replicaset-controller" };
        if active.len() < wanted {
            let count = (wanted - active.len()).min(ownership::BURST);
            let mut pod = ownership::pod_from(&value["spec"]["template"], Self::KIND, set);
            pod["metadata"]["generateName"] = format!("{}-", set.key.name).into();
            let (made, result) = ownership::create_pods(&self.client, &set.key.namespace, vec![pod; count]).await;
            for pod in made {
                self.recorder.say(who, about, "SuccessfulCreate", format!("Created pod: {}", pod.key.name));
            }
            if let Err(error) = &result {
                self.recorder.warn(who, about, "FailedCreate", format!("Error creating: {error}"));
            }
            return result;
        }
        if active.len() > wanted {
            let surplus = (active.len() - wanted).min(ownership::BURST);
            rank(&mut active, &self.related(set, value));
            active.truncate(surplus);
            let result = ownership::delete_pods(&self.client, &active).await;
            for pod in &active {
                self.recorder.say(who, about, "SuccessfulDelete", format!("Deleted pod: {}", pod.key.name));
            }
            return result;
        }
        Ok(())
    }
}

/// Sorts pods so that those whose loss hurts least come first. `related` are those that one does not want on one node.
pub fn rank(pods: &mut [ObjectRef], related: &[ObjectRef]) {
    let mut on_node: HashMap<String, usize> = HashMap::new();
    for pod in related {
        *on_node.entry(pod.field("spec.nodeName").to_owned()).or_default() += 1;
    }
    let now = Timestamp::now().seconds;
    pods.sort_by_cached_key(|pod| {
        let digest = PodDigest::of(pod);
        let node = pod.field("spec.nodeName");
        let phase = match pod.field("status.phase") {
            "Pending" => 0,
            "Unknown" => 1,
            _ => 2,
        };
        // Ages count by their order of magnitude, so that chance decides among pods of about the same age.
        let age = |since: i64| if since == 0 { 0 } else { (now - since).max(1).ilog2() };
        let crowd = Reverse(on_node.get(node).copied().unwrap_or(0));
        (
            (!node.is_empty(), phase, digest.ready, digest.deletion_cost),
            (crowd, age(digest.ready_since), Reverse(digest.restarts), age(digest.created)),
        )
    });
}

impl<const RC: bool> Controller for ReplicaSets<RC> {
    const NAME: &'static str = if RC { "replicationcontroller-controller" } else { "replicaset-controller" };
    type Key = Key;

    fn watched(&self) -> Vec<ResourceId> {
        [Self::KIND.resource, "pods"].map(Into::into).into()
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Key>) {
        let object = change.object;
        if change.resource == 0 {
            if change.deleted() {
                self.sets.remove(&object.keys.uid);
            } else {
                let selector = selector(Self::KIND, &object.value());
                self.sets.insert(object.keys.uid.clone(), (object.key.clone(), selector));
            }
            queue.add(object.key.clone());
            return;
        }
        // Orphans are the group without a name.
        self.pods.observe(change, |pod| {
            let orphan = pod.keys.owners.is_empty().then_some("");
            by_owner(pod).chain(orphan)
        });
        for state in [Some(object), change.previous].into_iter().flatten() {
            for uid in &state.keys.owners {
                if let Some((key, _)) = self.sets.get(uid) {
                    queue.add(key.clone());
                }
            }
        }
        if object.keys.owners.is_empty() && !change.deleted() {
            let fitting = self.sets.values().filter(|(key, selector)| {
                key.namespace == object.key.namespace && selector.matches(&object.keys.labels)
            });
            fitting.for_each(|(key, _)| queue.add(key.clone()));
        }
    }

    fn begin(&mut self, key: &Key) -> Option<Work> {
        let owner = self.client.get(Self::KIND.resource, &key.namespace, &key.name)?;
        let mut hand = Self::new(self.client.clone(), self.recorder.clone());
        hand.pods = self.pods.part(&[&*owner.keys.uid, ""], |o| o.key.namespace == key.namespace);
        Some(hand.work(owner).boxed())
    }
}

impl<const RC: bool> ReplicaSets<RC> {
    /// Work on a set, with the part of the state that was chosen for it as it is here.
    async fn work(self, set: ObjectRef) -> Result<Option<Duration>> {
        let kind = Self::KIND;
        let value = set.value();
        let selector = selector(kind, &value);
        let pods = self.claim(&set, &selector).await?;
        let active: Vec<ObjectRef> = pods.iter().filter(|p| is_active(p)).cloned().collect();
        let terminating = pods.iter().filter(|p| p.keys.deleting && !is_terminal(p)).count();
        let before = active.len();
        let result = match set.keys.deleting {
            true => Ok(()),
            false => self.replicate(&set, &value, active.clone()).await,
        };
        let status = Status::of(&value, &active);
        let written = self.client.update_status(kind.resource, &set.key.namespace, &set.key.name, |new| {
            if new["metadata"]["uid"] != *set.keys.uid {
                return Err(crate::client::unchanged());
            }
            status.write(new, &value, terminating, (!RC).then_some(()));
            let wanted = value["spec"]["replicas"].as_i64().unwrap_or(1);
            match &result {
                // The first stays while it goes on so: each try names another pod, and what is written brings the next
                // try at once.
                Err(_) if ownership::has_condition(new, "ReplicaFailure") => {}
                Err(error) => {
                    let short = i64::try_from(before).is_ok_and(|n| n < wanted);
                    let reason = if short { "FailedCreate" } else { "FailedDelete" };
                    let condition = json!({"type": "ReplicaFailure", "status": "True", "reason": reason,
                        "message": error.to_string()});
                    ownership::set_condition_last(new, condition);
                }
                Ok(()) => ownership::remove_condition(new, "ReplicaFailure"),
            }
            Ok(())
        });
        ownership::done(written.await.map(|_| ()))?;
        result?;
        Ok(status.again)
    }
}

/// What a set's pods amount to.
struct Status {
    replicas: usize,
    labeled: usize,
    ready: usize,
    available: usize,
    /// When the next pod has been ready long enough.
    again: Option<Duration>,
}

impl Status {
    fn of(set: &Value, active: &[ObjectRef]) -> Self {
        let labels = &set["spec"]["template"]["metadata"]["labels"];
        let template: Vec<(&Name, &Value)> = labels.as_object().into_iter().flatten().collect();
        let minimum = set["spec"]["minReadySeconds"].as_i64().unwrap_or(0);
        let now = Timestamp::now().seconds;
        let mut out = Status { replicas: active.len(), labeled: 0, ready: 0, available: 0, again: None };
        for pod in active {
            let has = |(key, value): &(&Name, &Value)| pod.label(key) == value.as_str();
            out.labeled += usize::from(template.iter().all(has));
            let digest = PodDigest::of(pod);
            if !digest.ready {
                continue;
            }
            out.ready += 1;
            let left = digest.ready_since + minimum - now;
            if minimum == 0 || left <= 0 {
                out.available += 1;
            } else {
                let left = Duration::from_secs(left.unsigned_abs());
                out.again = Some(out.again.map_or(left, |a| a.min(left)));
            }
        }
        out
    }

    fn write(&self, set: &mut Value, seen: &Value, terminating: usize, counts_terminating: Option<()>) {
        let status = &mut set["status"];
        status["replicas"] = self.replicas.into();
        // Counts of nothing are left out, as upstream's types leave them out.
        let mut count = |key: &str, count: usize| match (count, status.as_object_mut()) {
            (0, Some(map)) => drop(map.remove(key)),
            (count, _) => status[key] = count.into(),
        };
        count("fullyLabeledReplicas", self.labeled);
        count("readyReplicas", self.ready);
        count("availableReplicas", self.available);
        if counts_terminating.is_some() {
            status["terminatingReplicas"] = terminating.into();
        }
        status["observedGeneration"] = seen["metadata"]["generation"].clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only the set's own pods counted, and a rollout could leave all pods of its deployment on one node.
    #[tokio::test]
    async fn pods_go_from_where_most_of_their_deployment_are() {
        let server = crate::serve::testing::server().await;
        let client = Client::new(server, "system:kube-controller-manager", "test");
        let pod = async |name: &str, node: &str| {
            let spec = json!({"nodeName": node, "containers": [{"name": "c", "image": "i"}]});
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
            client.create("pods", "default", pod).await.expect("a pod")
        };
        let mut own = [pod("p", "a").await, pod("q", "b").await];
        let others = [own[0].clone(), own[1].clone(), pod("r", "b").await];
        rank(&mut own, &others);
        assert_eq!(own.map(|p| p.key.name.to_string()), ["q", "p"]);
    }
}
