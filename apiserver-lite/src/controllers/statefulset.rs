//! `statefulset-controller`: pods with names and volumes of their own, started and replaced in order.

mod claims;

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::FutureExt as _;
use proto::time::Timestamp;
use serde_json::{Value, json};

use super::events::Recorder;
use super::feed::Change;
use super::history::{self, HASH_LABEL, Revision};
use super::index::{Index, by_owner};
use super::ownership::{self, STATEFUL_SET};
use super::pods::{PodDigest, is_terminal};
use super::queue::Queue;
use super::runner::{Controller, Work};
use crate::client::{Client, unchanged};
use crate::selectors::LabelSelector;
use crate::status::Result;
use crate::store::{Key, ObjectRef, ResourceId};
use crate::write::DeleteOptions;

use claims::claim_name;

const COMPONENT: &str = "statefulset-controller";
const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

pub struct StatefulSets {
    client: Client,
    recorder: Recorder,
    pods: Index,
    sets: HashMap<Box<str>, (Key, LabelSelector)>,
}

impl StatefulSets {
    pub fn new(client: Client, recorder: Recorder) -> Self {
        StatefulSets { client, recorder, pods: Index::default(), sets: HashMap::new() }
    }
}

/// The number at the end of a pod's name, if the rest is the set's.
fn ordinal(set: &str, pod: &str) -> Option<i64> {
    let number = pod.strip_prefix(set)?.strip_prefix('-')?;
    // No sign and no leading zeros: that would be another name.
    number.parse::<i64>().ok().filter(|n| n.to_string() == number)
}

impl Controller for StatefulSets {
    const NAME: &'static str = "statefulset-controller";
    type Key = Key;

    fn watched(&self) -> Vec<ResourceId> {
        [STATEFUL_SET.resource, "pods", claims::CLAIMS].map(Into::into).into()
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Key>) {
        let object = change.object;
        if change.resource == 0 {
            if change.deleted() {
                self.sets.remove(&object.keys.uid);
            } else {
                let selector = LabelSelector::parse(&object.value()["spec"]["selector"]);
                self.sets.insert(object.keys.uid.clone(), (object.key.clone(), selector));
            }
            queue.add(object.key.clone());
            return;
        }
        if change.resource == 2 {
            // A pod may wait for the end of a claim that belongs to an earlier one.
            if change.deleted() || change.previous.is_some_and(|old| !old.keys.owners.is_empty()) {
                let fitting = self.sets.values().filter(|(key, _)| {
                    key.namespace == object.key.namespace && claims::may_be_of(&key.name, &object.key.name)
                });
                fitting.for_each(|(key, _)| queue.add(key.clone()));
            }
            return;
        }
        self.pods.observe(change, |p| by_owner(p).chain(p.keys.owners.is_empty().then_some("")));
        for state in [Some(object), change.previous].into_iter().flatten() {
            let owners = state.keys.owners.iter().filter_map(|uid| self.sets.get(uid));
            owners.for_each(|(key, _)| queue.add(key.clone()));
        }
        if object.keys.owners.is_empty() {
            let fitting = self.sets.values().filter(|(key, selector)| {
                key.namespace == object.key.namespace
                    && (selector.matches(&object.keys.labels) || ordinal(&key.name, &object.key.name).is_some())
            });
            fitting.for_each(|(key, _)| queue.add(key.clone()));
        }
    }

    fn begin(&mut self, key: &Key) -> Option<Work> {
        let owner = self.client.get(STATEFUL_SET.resource, &key.namespace, &key.name)?;
        let mut hand = Self::new(self.client.clone(), self.recorder.clone());
        hand.pods = self.pods.part(&[&*owner.keys.uid, ""], |o| o.key.namespace == key.namespace);
        Some(hand.work(owner).boxed())
    }
}

impl StatefulSets {
    /// Work on a set, with the part of the state that was chosen for it as it is here.
    async fn work(self, set: ObjectRef) -> Result<Option<Duration>> {
        let value = set.value();
        let selector = LabelSelector::parse(&value["spec"]["selector"]);
        if selector.is_empty() {
            return Ok(None);
        }
        let named = |pod: &ObjectRef| ordinal(&set.key.name, &pod.key.name).is_some();
        let pods = history::claim_pods(&self.client, STATEFUL_SET, &set, &selector, &self.pods, named).await?;
        if set.keys.deleting {
            return Ok(None);
        }
        let mut revisions = history::claim(&self.client, STATEFUL_SET, &set, &selector).await?;
        let update = history::current(&self.client, STATEFUL_SET, &set, &value, &mut revisions).await?;
        let said = value["status"]["currentRevision"].as_str().unwrap_or_default();
        let current = revisions.iter().find(|r| r.name() == said).cloned().unwrap_or_else(|| update.clone());
        let plan = Plan { set, value, current, update };
        let result = self.step(&plan, &pods).await;
        let again = self.write_status(&plan).await?;
        let live = pods.iter().filter_map(|p| p.label(HASH_LABEL));
        let used: Vec<&str> = live.chain([plan.current.name(), plan.update.name()]).collect();
        history::clean_up(&self.client, &plan.value, &revisions, &used).await?;
        result?;
        Ok(again)
    }
}

/// A set and the revisions it moves between.
struct Plan {
    set: ObjectRef,
    value: Value,
    current: Revision,
    update: Revision,
}

impl Plan {
    fn start(&self) -> i64 {
        self.value["spec"]["ordinals"]["start"].as_i64().unwrap_or(0)
    }

    fn replicas(&self) -> i64 {
        self.value["spec"]["replicas"].as_i64().unwrap_or(1)
    }

    fn parallel(&self) -> bool {
        self.value["spec"]["podManagementPolicy"] == "Parallel"
    }

    fn partition(&self) -> i64 {
        self.value["spec"]["updateStrategy"]["rollingUpdate"]["partition"].as_i64().unwrap_or(0)
    }

    fn on_delete(&self) -> bool {
        self.value["spec"]["updateStrategy"]["type"] == "OnDelete"
    }

    /// The revision that a new pod of an ordinal gets: the old one below the partition only, whatever the update has come
    /// to. Defaults give every rolling update a partition.
    fn revision_for(&self, ordinal: i64) -> &Revision {
        let kept = match self.value["spec"]["updateStrategy"]["rollingUpdate"].is_null() {
            true => self.value["status"]["currentReplicas"].as_i64().unwrap_or(0),
            false => self.partition(),
        };
        if !self.on_delete() && ordinal < self.start() + kept { &self.current } else { &self.update }
    }

    fn minimum(&self) -> i64 {
        self.value["spec"]["minReadySeconds"].as_i64().unwrap_or(0)
    }

    fn is_available(&self, pod: &ObjectRef) -> bool {
        let digest = PodDigest::of(pod);
        let since = digest.ready_since + self.minimum();
        pod.field("status.phase") == "Running"
            && digest.ready
            && (self.minimum() == 0 || since <= Timestamp::now().seconds)
    }
}

impl StatefulSets {
    /// Makes, replaces and removes pods as far as order allows now.
    async fn step(&self, plan: &Plan, pods: &[ObjectRef]) -> Result<()> {
        let at = |pod: &ObjectRef| ordinal(&plan.set.key.name, &pod.key.name).unwrap_or(-1);
        let range = plan.start()..plan.start() + plan.replicas();
        let (mut inside, mut surplus): (Vec<&ObjectRef>, Vec<&ObjectRef>) =
            pods.iter().partition(|p| range.contains(&at(p)));
        let by_number: HashMap<i64, &ObjectRef> = inside.iter().map(|p| (at(p), *p)).collect();
        inside.sort_by_key(|p| at(p));
        surplus.sort_by_key(|p| std::cmp::Reverse(at(p)));
        let (mut all_healthy, mut complete, mut made) = (true, true, 0);
        for number in range.clone() {
            match by_number.get(&number).copied() {
                // Others want work too, however many replicas somebody asks for. The new pods' news brings the next look.
                None if made == ownership::BURST => {
                    (all_healthy, complete) = (false, false);
                    break;
                }
                // Claims of an earlier pod are on their way out with it; their end brings the next look.
                None if self.claims_stale(plan, number) => {
                    (all_healthy, complete) = (false, false);
                    if !plan.parallel() {
                        return Ok(());
                    }
                }
                None => {
                    self.create(plan, number).await?;
                    made += 1;
                    (all_healthy, complete) = (false, false);
                    if !plan.parallel() {
                        return Ok(());
                    }
                }
                Some(pod) if is_terminal(pod) && !pod.keys.deleting => {
                    self.say_recreated(plan, pod);
                    self.delete(plan, pod).await?;
                    (all_healthy, complete) = (false, false);
                    if !plan.parallel() {
                        return Ok(());
                    }
                }
                Some(pod) => {
                    if pod.field("status.phase") == "Pending" && !pod.keys.deleting {
                        self.create_claims(plan, number).await?;
                        self.keep_claims(plan, pod, number).await?;
                    }
                    let healthy = !pod.keys.deleting && plan.is_available(pod);
                    all_healthy &= healthy;
                    if !healthy && !plan.parallel() {
                        // The next one waits for this one.
                        return Ok(());
                    }
                    self.keep_identity(plan, pod, number).await?;
                }
            }
        }
        for pod in &surplus {
            self.keep_claims(plan, pod, at(pod)).await?;
        }
        for pod in &surplus {
            if pod.keys.deleting {
                if plan.parallel() {
                    continue;
                }
                return Ok(());
            }
            if !plan.parallel() && !all_healthy {
                return Ok(());
            }
            self.delete(plan, pod).await?;
            if !plan.parallel() {
                return Ok(());
            }
        }
        if !complete {
            // One that is missing, or was made just now, is down as well, and not among those that were looked at here. Its
            // news brings the next look.
            return Ok(());
        }
        self.update(plan, &inside).await
    }

    /// Replaces pods of older revisions, from the highest number down to the partition, one after the other.
    async fn update(&self, plan: &Plan, pods: &[&ObjectRef]) -> Result<()> {
        if plan.on_delete() {
            return Ok(());
        }
        let lowest = plan.start() + plan.partition();
        let limit = &plan.value["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"];
        let limit = match limit.is_null() {
            true => 1,
            false => ownership::number_or_percent(limit, plan.replicas(), true).max(1),
        };
        let mut down = 0;
        for pod in pods.iter().rev() {
            let number = ordinal(&plan.set.key.name, &pod.key.name).unwrap_or(-1);
            if number < lowest {
                break;
            }
            if pod.label(HASH_LABEL) != Some(plan.update.name()) && !pod.keys.deleting {
                self.delete(plan, pod).await?;
                down += 1;
            } else if !plan.is_available(pod) || pod.keys.deleting {
                down += 1;
            }
            if down >= limit {
                break;
            }
        }
        Ok(())
    }

    async fn delete(&self, plan: &Plan, pod: &ObjectRef) -> Result<()> {
        self.client.delete_object("pods", pod, DeleteOptions::default()).await?;
        let text = format!("delete Pod {} in StatefulSet {} successful", pod.key.name, plan.set.key.name);
        self.recorder.say(COMPONENT, STATEFUL_SET.about(&plan.set), "SuccessfulDelete", text);
        Ok(())
    }

    fn say_recreated(&self, plan: &Plan, pod: &ObjectRef) {
        let about = STATEFUL_SET.about(&plan.set);
        let (set, pod_name) = (&plan.set.key, &pod.key.name);
        let text = |how: &str| format!("StatefulSet {}/{} is recreating {how} Pod {pod_name}", set.namespace, set.name);
        match pod.field("status.phase") {
            "Failed" => self.recorder.warn(COMPONENT, about, "RecreatingFailedPod", text("failed")),
            _ => self.recorder.say(COMPONENT, about, "RecreatingTerminatedPod", text("terminated")),
        }
    }

    /// Gives a pod its name and number as labels again, and its claims the owners that they should have.
    async fn keep_identity(&self, plan: &Plan, pod: &ObjectRef, number: i64) -> Result<()> {
        let claims_changed = self.keep_claims(plan, pod, number).await?;
        let (name, index) = (&*pod.key.name, number.to_string());
        if pod.label(POD_NAME) == Some(name) && pod.label(POD_INDEX) == Some(&*index) {
            if claims_changed {
                self.say_updated(plan, pod);
            }
            return Ok(());
        }
        let written = self.client.update("pods", &pod.key.namespace, name, |value| {
            if value["metadata"]["uid"] != *pod.keys.uid {
                return Err(unchanged());
            }
            value["metadata"]["labels"][POD_NAME] = name.into();
            value["metadata"]["labels"][POD_INDEX] = index.as_str().into();
            Ok(())
        });
        if ownership::done(written.await.map(|_| ()))? {
            self.say_updated(plan, pod);
        }
        Ok(())
    }

    fn say_updated(&self, plan: &Plan, pod: &ObjectRef) {
        let text = format!("update Pod {} in StatefulSet {} successful", pod.key.name, plan.set.key.name);
        self.recorder.say(COMPONENT, STATEFUL_SET.about(&plan.set), "SuccessfulUpdate", text);
    }

    async fn create(&self, plan: &Plan, number: i64) -> Result<()> {
        let name = format!("{}-{number}", plan.set.key.name);
        let about = STATEFUL_SET.about(&plan.set);
        self.create_claims(plan, number).await?;
        let pod = pod_for(plan, number, &name);
        match self.client.create("pods", &plan.set.key.namespace, pod).await {
            Ok(pod) => {
                self.keep_claims(plan, &pod, number).await?;
                let text = format!("create Pod {name} in StatefulSet {} successful", plan.set.key.name);
                self.recorder.say(COMPONENT, about, "SuccessfulCreate", text);
                Ok(())
            }
            Err(error) if ownership::is_terminating(&error) => Ok(()),
            // An orphan of that name is on its way out, or in.
            Err(error) if error.is_already_exists() => Err(error),
            Err(error) => {
                let text = format!("create Pod {name} in StatefulSet {} failed error: {error}", plan.set.key.name);
                self.recorder.warn(COMPONENT, about, "FailedCreate", text);
                Err(error)
            }
        }
    }

    async fn write_status(&self, plan: &Plan) -> Result<Option<Duration>> {
        let set = &plan.set;
        let snapshot = self.client.store().snapshot(&"pods".into());
        let mine = snapshot
            .range(Some(&set.key.namespace), None)
            .filter(|p| p.keys.owners.contains(&set.keys.uid) && ordinal(&set.key.name, &p.key.name).is_some());
        let living: Vec<&ObjectRef> = mine.filter(|p| !is_terminal(p)).collect();
        let count = |which: &dyn Fn(&ObjectRef) -> bool| {
            i64::try_from(living.iter().filter(|p| which(p)).count()).unwrap_or(i64::MAX)
        };
        let of =
            |revision: &Revision, pod: &ObjectRef| !pod.keys.deleting && pod.label(HASH_LABEL) == Some(revision.name());
        let updated = count(&|p| of(&plan.update, p));
        let ready = count(&|p| PodDigest::of(p).ready && p.field("status.phase") == "Running");
        let available = count(&|p| plan.is_available(p));
        let (mut current, mut current_name) = (count(&|p| of(&plan.current, p)), plan.current.name());
        // The update is through: it is the current revision from now on.
        if !plan.on_delete()
            && updated == plan.replicas()
            && count(&|_| true) == plan.replicas()
            && ready == plan.replicas()
        {
            (current, current_name) = (updated, plan.update.name());
        }
        let total = count(&|_| true);
        let key = &set.key;
        let written = self.client.update_status(STATEFUL_SET.resource, &key.namespace, &key.name, |new| {
            if new["metadata"]["uid"] != *set.keys.uid {
                return Err(unchanged());
            }
            let status = &mut new["status"];
            status["replicas"] = total.into();
            status["availableReplicas"] = available.into();
            status["observedGeneration"] = plan.value["metadata"]["generation"].clone();
            status["currentRevision"] = current_name.into();
            status["updateRevision"] = plan.update.name().into();
            if status["collisionCount"].is_null() {
                status["collisionCount"] = 0.into();
            }
            for (name, count) in [("readyReplicas", ready), ("currentReplicas", current), ("updatedReplicas", updated)]
            {
                match (count, status.as_object_mut()) {
                    (0, Some(map)) => drop(map.remove(name)),
                    (count, _) => status[name] = count.into(),
                }
            }
            Ok(())
        });
        ownership::done(written.await.map(|_| ()))?;
        let waits = ready > available && plan.minimum() > 0;
        Ok(waits.then(|| Duration::from_secs(1)))
    }
}

/// The pod of a number.
fn pod_for(plan: &Plan, number: i64, name: &str) -> Value {
    let revision = plan.revision_for(number);
    let mut pod = ownership::pod_from(&revision.template(), STATEFUL_SET, &plan.set);
    pod["metadata"]["name"] = name.into();
    pod["metadata"]["generateName"] = format!("{}-", plan.set.key.name).into();
    for (key, text) in [(POD_NAME, name), (POD_INDEX, &number.to_string()), (HASH_LABEL, revision.name())] {
        pod["metadata"]["labels"][key] = text.into();
    }
    let spec = &mut pod["spec"];
    spec["hostname"] = name.into();
    spec["subdomain"] = plan.value["spec"]["serviceName"].clone();
    let templates = plan.value["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten();
    let claims: Vec<Value> = templates
        .map(|t| json!({"name": t["metadata"]["name"], "persistentVolumeClaim": {"claimName": claim_name(plan, t, number)}}))
        .collect();
    let mut volumes = spec["volumes"].as_array().cloned().unwrap_or_default();
    volumes.retain(|v| !claims.iter().any(|c| c["name"] == v["name"]));
    volumes.splice(0..0, claims);
    if !volumes.is_empty() {
        spec["volumes"] = volumes.into();
    }
    pod
}

#[cfg(test)]
mod tests {
    use super::super::feed::Feed;
    use super::*;

    /// Without a partition a pod that was deleted during a rollout came back with the old template.
    #[tokio::test]
    async fn pods_come_back_in_the_old_revision_below_the_partition_only() {
        let server = crate::serve::testing::server().await;
        let client = Client::new(server, "system:kube-controller-manager", "test");
        let labels = json!({"app": "web"});
        let spec = json!({"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}});
        let set = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "web"}, "spec": spec});
        let set = client.create(STATEFUL_SET.resource, "default", set).await.expect("a set");
        let revision = |number| Revision { object: set.clone(), number, data: Value::Null };
        let plan = |partition: i64| {
            let mut value = set.value();
            value["status"] = json!({"currentRevision": "web-1", "currentReplicas": 3});
            value["spec"]["updateStrategy"]["rollingUpdate"]["partition"] = partition.into();
            Plan { set: set.clone(), value, current: revision(1), update: revision(2) }
        };
        assert_eq!([0, 2].map(|number| plan(0).revision_for(number).number), [2, 2]);
        assert_eq!([0, 2].map(|number| plan(1).revision_for(number).number), [1, 2]);
    }

    /// Every ordinal was asked for an earlier pod's claim on each look, and a look came each second while there was one.
    #[tokio::test]
    async fn a_set_of_many_waits_for_the_news_of_a_claims_end() {
        let server = crate::serve::testing::server().await;
        let client = Client::new(server.clone(), "system:kube-controller-manager", "test");
        let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        let labels = json!({"app": "web"});
        let spec = json!({"replicas": 2147483647, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Delete"}});
        let set = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "web"}, "spec": spec});
        client.create(STATEFUL_SET.resource, "default", set).await.expect("a set");
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "web-0", "uid": "gone"});
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": claim,
            "metadata": {"name": "data-web-0", "ownerReferences": [owner]}});
        let claim = client.create(claims::CLAIMS, "default", claim).await.expect("a claim");

        let mut sets = StatefulSets::new(client.clone(), Recorder::start(client.clone()));
        let mut feed = Feed::open(&server.store, &sets.watched());
        let mut queue = Queue::default();
        let key = Key::new("default", "web");
        let mut next = |sets: &mut StatefulSets| {
            feed.drain(|change| sets.observe(change, &mut queue)).expect("in time");
            let next = queue.pop(tokio::time::Instant::now());
            queue.done(&key);
            next
        };
        assert_eq!(next(&mut sets), Some(key.clone()));
        assert_eq!(sets.sync(&key).await.expect("it goes"), None);
        assert!(client.get("pods", "default", "web-0").is_none());
        // Of its own writes.
        while next(&mut sets).is_some() {}
        client.delete_object(claims::CLAIMS, &claim, DeleteOptions::default()).await.expect("deleted");
        assert_eq!(next(&mut sets), Some(key.clone()));
    }

    /// The pod that a rolling update had just replaced was not counted as down, and the next one went before it was ready.
    #[tokio::test]
    async fn a_rolling_update_of_a_parallel_set_waits_for_the_pod_that_it_made() {
        let server = crate::serve::testing::server().await;
        let client = Client::new(server.clone(), "system:kube-controller-manager", "test");
        let labels = json!({"app": "web"});
        let spec = json!({"replicas": 3, "podManagementPolicy": "Parallel", "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}});
        let set = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "web"}, "spec": spec});
        client.create(STATEFUL_SET.resource, "default", set).await.expect("a set");
        let mut sets = StatefulSets::new(client.clone(), Recorder::start(client.clone()));
        let mut feed = Feed::open(&server.store, &sets.watched());
        let mut queue = Queue::default();
        let mut look = async || {
            feed.drain(|change| sets.observe(change, &mut queue)).expect("in time");
            sets.sync(&Key::new("default", "web")).await.expect("it goes");
        };
        let images = || {
            let image = |number: i64| {
                let pod = client.get("pods", "default", &format!("web-{number}")).map(|pod| pod.value());
                pod.map(|pod| pod["spec"]["containers"][0]["image"].as_str().unwrap_or_default().to_owned())
            };
            [0, 1, 2].map(|number| image(number).unwrap_or_default())
        };
        let start = async |name: &str| {
            let started = client.update_status("pods", "default", name, |pod| {
                pod["status"]["phase"] = "Running".into();
                pod["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
                Ok(())
            });
            started.await.expect("written");
        };
        look().await;
        assert_eq!(images(), ["i:1", "i:1", "i:1"]);
        for name in ["web-0", "web-1", "web-2"] {
            start(name).await;
        }
        let newer = client.update(STATEFUL_SET.resource, "default", "web", |set| {
            set["spec"]["template"]["spec"]["containers"][0]["image"] = "i:2".into();
            Ok(())
        });
        newer.await.expect("written");
        // Nobody plays the node: pods are gone as soon as they are deleted.
        for expected in [["i:1", "i:1", ""], ["i:1", "i:1", "i:2"], ["i:1", "i:1", "i:2"]] {
            look().await;
            assert_eq!(images(), expected);
        }
        start("web-2").await;
        look().await;
        assert_eq!(images(), ["i:1", "", "i:2"]);
    }

    #[test]
    fn a_pods_number_is_the_end_of_its_name() {
        assert_eq!(ordinal("web", "web-12"), Some(12));
        assert_eq!(ordinal("web", "web-012"), None);
        assert_eq!(ordinal("web", "web-a"), None);
        assert_eq!(ordinal("web", "webs-1"), None);
    }
}
