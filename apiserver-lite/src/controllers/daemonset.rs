//! `daemonset-controller`: one pod on every node that can take it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::FutureExt as _;
use proto::time::Timestamp;
use serde_json::{Value, json};

use super::events::Recorder;
use super::feed::Change;
use super::history::{self, HASH_LABEL, Revision};
use super::index::{Index, by_owner};
use super::ownership::{self, DAEMON_SET};
use super::pods::{PodDigest, is_terminal};
use super::queue::Queue;
use super::runner::{Controller, Work};
use crate::client::{Client, unchanged};
use crate::scheduler::{Taint, Toleration, fits_node, tolerations};
use crate::selectors::LabelSelector;
use crate::status::Result;
use crate::store::{Key, ObjectRef, ResourceId};

const COMPONENT: &str = "daemonset-controller";
const GENERATION_LABEL: &str = "pod-template-generation";
/// Wait before a failed pod of a node is replaced again; doubles up to the longest.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const LONGEST_BACKOFF: Duration = Duration::from_secs(900);

/// Taints that daemons bear: their key and effect.
const BORNE: &[(&str, &str)] = &[
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];

/// Failed pods in a row, and when the last of them was replaced, by the set's uid and the node.
type Failures = HashMap<(Box<str>, Box<str>), (u32, tokio::time::Instant)>;

pub struct DaemonSets {
    client: Client,
    recorder: Recorder,
    pods: Index,
    sets: HashMap<Box<str>, (Key, LabelSelector)>,
    /// Shared with the work that goes on.
    failures: Arc<Mutex<Failures>>,
}

impl DaemonSets {
    pub fn new(client: Client, recorder: Recorder) -> Self {
        DaemonSets { client, recorder, pods: Index::default(), sets: HashMap::new(), failures: Arc::default() }
    }
}

/// What of a node decides whether daemons belong there.
fn relevant(node: &ObjectRef) -> (Value, Value, bool) {
    let value = node.value();
    let ready = super::pods::condition(&value, "Ready").is_some_and(|c| c["status"] == "True");
    (value["metadata"]["labels"].clone(), value["spec"]["taints"].clone(), ready)
}

/// The node that a pod is meant for, before the scheduler says so.
fn target(pod: &ObjectRef) -> Option<String> {
    let node = pod.field("spec.nodeName");
    if !node.is_empty() {
        return Some(node.to_owned());
    }
    let value = pod.value();
    let required = &value["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    let fields = required.as_array()?.iter().flat_map(|t| t["matchFields"].as_array().into_iter().flatten());
    let mut named = fields.filter(|f| f["key"] == "metadata.name");
    named.find_map(|f| f["values"][0].as_str().map(str::to_owned))
}

impl Controller for DaemonSets {
    const NAME: &'static str = "daemonset-controller";
    type Key = Key;

    fn watched(&self) -> Vec<ResourceId> {
        [DAEMON_SET.resource, "pods", "nodes"].map(Into::into).into()
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Key>) {
        let object = change.object;
        match change.resource {
            0 => {
                if change.deleted() {
                    self.sets.remove(&object.keys.uid);
                    let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
                    failures.retain(|(uid, _), _| *uid != object.keys.uid);
                } else {
                    let selector = LabelSelector::parse(&object.value()["spec"]["selector"]);
                    self.sets.insert(object.keys.uid.clone(), (object.key.clone(), selector));
                }
                queue.add(object.key.clone());
            }
            1 => {
                self.pods.observe(change, |p| by_owner(p).chain(p.keys.owners.is_empty().then_some("")));
                for state in [Some(object), change.previous].into_iter().flatten() {
                    let owners = state.keys.owners.iter().filter_map(|uid| self.sets.get(uid));
                    owners.for_each(|(key, _)| queue.add(key.clone()));
                }
                if object.keys.owners.is_empty() && !change.deleted() {
                    let fitting = self.sets.values().filter(|(key, selector)| {
                        key.namespace == object.key.namespace && selector.matches(&object.keys.labels)
                    });
                    fitting.for_each(|(key, _)| queue.add(key.clone()));
                }
            }
            _ => {
                let same = change.previous.is_some_and(|old| !change.deleted() && relevant(old) == relevant(object));
                if !same {
                    self.sets.values().for_each(|(key, _)| queue.add(key.clone()));
                }
            }
        }
    }

    fn begin(&mut self, key: &Key) -> Option<Work> {
        let owner = self.client.get(DAEMON_SET.resource, &key.namespace, &key.name)?;
        let mut hand = Self::new(self.client.clone(), self.recorder.clone());
        hand.pods = self.pods.part(&[&*owner.keys.uid, ""], |o| o.key.namespace == key.namespace);
        hand.failures = self.failures.clone();
        Some(hand.work(owner).boxed())
    }
}

impl DaemonSets {
    /// Work on a set, with the part of the state that was chosen for it as it is here.
    async fn work(self, set: ObjectRef) -> Result<Option<Duration>> {
        let value = set.value();
        let selector = LabelSelector::parse(&value["spec"]["selector"]);
        if selector.is_empty() {
            let text = "This daemon set is selecting all pods. A non-empty selector is required.";
            self.recorder.warn(COMPONENT, DAEMON_SET.about(&set), "SelectingAll", text.into());
            return Ok(None);
        }
        let pods = history::claim_pods(&self.client, DAEMON_SET, &set, &selector, &self.pods, |_| true).await?;
        let mut revisions = history::claim(&self.client, DAEMON_SET, &set, &selector).await?;
        if set.keys.deleting {
            return Ok(None);
        }
        let current = history::current(&self.client, DAEMON_SET, &set, &value, &mut revisions).await?;
        let mut by_node: BTreeMap<String, Vec<ObjectRef>> = BTreeMap::new();
        for pod in pods {
            if let Some(node) = target(&pod) {
                by_node.entry(node).or_default().push(pod);
            }
        }
        let (result, again) = self.manage(&set, &value, &current, &mut by_node).await;
        if result.is_ok() && value["spec"]["updateStrategy"]["type"] != "OnDelete" {
            self.roll(&set, &value, &current, &by_node).await?;
        }
        let status_again = self.write_status(&set, &value, &current, &by_node).await?;
        let live: Vec<&str> = by_node.values().flatten().filter_map(|p| p.label(HASH_LABEL)).collect();
        let used: Vec<&str> = live.into_iter().chain([current.name()]).collect();
        history::clean_up(&self.client, &value, &revisions, &used).await?;
        result?;
        Ok([again, status_again].into_iter().flatten().min())
    }
}

impl DaemonSets {
    /// Makes missing pods and deletes surplus, failed and misplaced ones.
    async fn manage(
        &self,
        set: &ObjectRef,
        value: &Value,
        current: &Revision,
        by_node: &mut BTreeMap<String, Vec<ObjectRef>>,
    ) -> (Result<()>, Option<Duration>) {
        let nodes = self.client.store().snapshot(&"nodes".into());
        let surge = value["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"] != 0
            && !value["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"].is_null();
        let (mut create, mut delete, mut again) = (Vec::new(), Vec::new(), None::<Duration>);
        for node in nodes.range(None, None) {
            let name = node.key.name.to_string();
            let (should_run, should_continue) = belongs(value, node);
            let mut here: Vec<ObjectRef> = by_node.get(&name).cloned().unwrap_or_default();
            here.retain(|p| !p.keys.deleting);
            if should_run {
                let mut kept = Vec::new();
                for pod in here {
                    if pod.field("status.phase") != "Failed" && pod.field("status.phase") != "Succeeded" {
                        kept.push(pod);
                        continue;
                    }
                    match self.back_off(set, &node.key.name) {
                        Some(wait) => again = Some(again.map_or(wait, |a| a.min(wait))),
                        None => {
                            let text = format!(
                                "Found failed daemon pod {}/{} on node {name}, will try to kill it",
                                pod.key.namespace, pod.key.name
                            );
                            self.recorder.warn(COMPONENT, DAEMON_SET.about(set), "FailedDaemonPod", text);
                            delete.push(pod);
                        }
                    }
                }
                let ending = by_node.get(&name).is_some_and(|p| p.iter().any(|p| p.keys.deleting && !is_terminal(p)));
                if kept.is_empty() && !by_node.get(&name).is_some_and(|p| p.iter().any(|p| !p.keys.deleting)) {
                    if !ending || surge {
                        create.push(name);
                    }
                } else if !surge && kept.len() > 1 {
                    // The oldest stays.
                    kept.sort_by_key(|p| {
                        (p.field("spec.nodeName").is_empty(), PodDigest::of(p).created, p.key.name.clone())
                    });
                    delete.extend(kept.split_off(1));
                }
            } else if !should_continue {
                delete.extend(here);
            }
        }
        // Pods that wait for nodes which do not exist.
        for (name, pods) in by_node.iter().filter(|(name, _)| nodes.get("", name).is_none()) {
            let _ = name;
            delete.extend(pods.iter().filter(|p| p.field("spec.nodeName").is_empty() && !p.keys.deleting).cloned());
        }
        let deleted = ownership::delete_pods(&self.client, &delete).await;
        for pod in &delete {
            self.recorder.say(
                COMPONENT,
                DAEMON_SET.about(set),
                "SuccessfulDelete",
                format!("Deleted pod: {}", pod.key.name),
            );
        }
        create.truncate(ownership::BURST);
        let pods = create.iter().map(|node| pod_for(value, set, current, node)).collect();
        let (made, created) = ownership::create_pods(&self.client, &set.key.namespace, pods).await;
        for pod in made {
            self.recorder.say(
                COMPONENT,
                DAEMON_SET.about(set),
                "SuccessfulCreate",
                format!("Created pod: {}", pod.key.name),
            );
            if let Some(node) = target(&pod) {
                by_node.entry(node).or_default().push(pod);
            }
        }
        if let Err(error) = &created {
            self.recorder.warn(COMPONENT, DAEMON_SET.about(set), "FailedCreate", format!("Error creating: {error}"));
        }
        (deleted.and(created), again)
    }

    /// Time until a node's failed pod may be replaced; None for now, which counts as a failure.
    fn back_off(&self, set: &ObjectRef, node: &str) -> Option<Duration> {
        let now = tokio::time::Instant::now();
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        // Work that goes on outlives its set. Nobody takes away what is noted after the news of the set's end; a set that is
        // still there now ends later than this is noted, because that takes the same lock.
        let there = self.client.get(DAEMON_SET.resource, &set.key.namespace, &set.key.name);
        if there.is_none_or(|there| there.keys.uid != set.keys.uid) {
            return Some(FIRST_BACKOFF);
        }
        let entry = failures.entry((set.keys.uid.clone(), node.into())).or_insert((0, now));
        if entry.0 > 0 {
            let wait = FIRST_BACKOFF.saturating_mul(1 << (entry.0 - 1).min(16)).min(LONGEST_BACKOFF);
            let due = entry.1 + wait;
            if due > now {
                return Some(due - now);
            }
            // Quiet for long: begins anew.
            if now - due > LONGEST_BACKOFF {
                entry.0 = 0;
            }
        }
        *entry = (entry.0 + 1, now);
        None
    }

    /// Replaces pods of older revisions, as many at once as may be unavailable or surge.
    async fn roll(
        &self,
        set: &ObjectRef,
        value: &Value,
        current: &Revision,
        by_node: &BTreeMap<String, Vec<ObjectRef>>,
    ) -> Result<()> {
        let nodes = self.client.store().snapshot(&"nodes".into());
        let wanted = nodes.range(None, None).filter(|n| belongs(value, n).0).count();
        let wanted = i64::try_from(wanted).unwrap_or(i64::MAX);
        let bounds = &value["spec"]["updateStrategy"]["rollingUpdate"];
        let unavailable = ownership::number_or_percent(&bounds["maxUnavailable"], wanted, true);
        let surge = ownership::number_or_percent(&bounds["maxSurge"], wanted, true);
        let minimum = value["spec"]["minReadySeconds"].as_i64().unwrap_or(0);
        let now = Timestamp::now().seconds;
        let (mut down, mut delete, mut create) = (0, Vec::new(), Vec::new());
        let mut surging = 0;
        for node in nodes.range(None, None).filter(|n| belongs(value, n).0) {
            let pods: Vec<&ObjectRef> = by_node.get(&*node.key.name).into_iter().flatten().collect();
            let living: Vec<&ObjectRef> = pods.iter().filter(|p| !p.keys.deleting).copied().collect();
            let newest = |p: &&ObjectRef| p.label(HASH_LABEL) == Some(current.hash());
            let (new, old): (Vec<&ObjectRef>, Vec<&ObjectRef>) = living.iter().partition(|p| newest(p));
            let available = |p: &&&ObjectRef| is_available(p, minimum, now);
            if surge > 0 {
                match (old.first(), new.first()) {
                    (Some(old), Some(new)) => {
                        surging += 1;
                        // The new one works, or the old one never did.
                        if available(&new) || !available(&old) {
                            delete.push((*old).clone());
                        }
                    }
                    (Some(old), None) if available(&old) => create.push(node.key.name.to_string()),
                    (Some(old), None) => delete.push((*old).clone()),
                    _ => {}
                }
                continue;
            }
            if !living.iter().any(|p| available(&p)) {
                down += 1;
                // Replacing what does not work costs nothing.
                delete.extend(old.into_iter().cloned());
            } else if let Some(old) = old.first() {
                create.push(old.key.name.to_string());
            }
        }
        if surge > 0 {
            create.truncate(usize::try_from((surge - surging).max(0)).unwrap_or(0));
            ownership::delete_pods(&self.client, &delete).await?;
            let pods = create.iter().map(|node| pod_for(value, set, current, node)).collect();
            let (made, result) = ownership::create_pods(&self.client, &set.key.namespace, pods).await;
            for pod in made {
                self.recorder.say(
                    COMPONENT,
                    DAEMON_SET.about(set),
                    "SuccessfulCreate",
                    format!("Created pod: {}", pod.key.name),
                );
            }
            return result;
        }
        create.truncate(usize::try_from((unavailable - down).max(0)).unwrap_or(0));
        let old = by_node.values().flatten().filter(|p| create.iter().any(|name| *name == *p.key.name));
        delete.extend(old.cloned());
        ownership::delete_pods(&self.client, &delete).await?;
        for pod in &delete {
            self.recorder.say(
                COMPONENT,
                DAEMON_SET.about(set),
                "SuccessfulDelete",
                format!("Deleted pod: {}", pod.key.name),
            );
        }
        Ok(())
    }

    async fn write_status(
        &self,
        set: &ObjectRef,
        value: &Value,
        current: &Revision,
        by_node: &BTreeMap<String, Vec<ObjectRef>>,
    ) -> Result<Option<Duration>> {
        let nodes = self.client.store().snapshot(&"nodes".into());
        let minimum = value["spec"]["minReadySeconds"].as_i64().unwrap_or(0);
        let now = Timestamp::now().seconds;
        let (mut wanted, mut scheduled, mut misplaced, mut ready, mut available, mut updated) = (0, 0, 0, 0, 0, 0);
        let mut again: Option<Duration> = None;
        for node in nodes.range(None, None) {
            let pods = by_node.get(&*node.key.name).into_iter().flatten().filter(|p| !p.keys.deleting);
            let mut pods: Vec<&ObjectRef> = pods.collect();
            if !belongs(value, node).0 {
                misplaced += i64::from(!pods.is_empty());
                continue;
            }
            wanted += 1;
            pods.sort_by_key(|p| std::cmp::Reverse(PodDigest::of(p).ready));
            let Some(pod) = pods.first() else { continue };
            scheduled += 1;
            let digest = PodDigest::of(pod);
            ready += i64::from(digest.ready);
            available += i64::from(is_available(pod, minimum, now));
            if digest.ready && !is_available(pod, minimum, now) {
                let left = Duration::from_secs((digest.ready_since + minimum - now).max(1).unsigned_abs());
                again = Some(again.map_or(left, |a| a.min(left)));
            }
            updated += i64::from(pods.iter().any(|p| p.label(HASH_LABEL) == Some(current.hash())));
        }
        let key = &set.key;
        let written = self.client.update_status(DAEMON_SET.resource, &key.namespace, &key.name, |new| {
            if new["metadata"]["uid"] != *set.keys.uid {
                return Err(unchanged());
            }
            let status = &mut new["status"];
            // These four are always there, the others only when they count something.
            status["currentNumberScheduled"] = scheduled.into();
            status["numberMisscheduled"] = misplaced.into();
            status["desiredNumberScheduled"] = wanted.into();
            status["numberReady"] = ready.into();
            status["observedGeneration"] = value["metadata"]["generation"].clone();
            let counts = [
                ("updatedNumberScheduled", updated),
                ("numberAvailable", available),
                ("numberUnavailable", wanted - available),
            ];
            for (name, count) in counts {
                match (count, status.as_object_mut()) {
                    (0, Some(map)) => drop(map.remove(name)),
                    (count, _) => status[name] = count.into(),
                }
            }
            Ok(())
        });
        ownership::done(written.await.map(|_| ()))?;
        Ok(again)
    }
}

fn is_available(pod: &ObjectRef, minimum: i64, now: i64) -> bool {
    let digest = PodDigest::of(pod);
    digest.ready && !pod.keys.deleting && (minimum == 0 || digest.ready_since + minimum <= now)
}

/// Whether a daemon should be started on a node, and whether one that is there may stay.
fn belongs(set: &Value, node: &ObjectRef) -> (bool, bool) {
    let spec = &set["spec"]["template"]["spec"];
    if spec["nodeName"].as_str().is_some_and(|n| !n.is_empty() && *n != *node.key.name) || !fits_node(spec, node) {
        return (false, false);
    }
    let host_network = spec["hostNetwork"] == true;
    let borne: Vec<Toleration> = extra_tolerations(host_network).iter().map(Toleration::parse).collect();
    let own = tolerations(spec);
    let value = node.value();
    let mut run = true;
    for taint in value["spec"]["taints"].as_array().into_iter().flatten().map(Taint::parse) {
        let tolerated = own.iter().chain(&borne).any(|t| t.tolerates(&taint));
        if !tolerated && *taint.effect == *"NoExecute" {
            return (false, false);
        }
        run &= tolerated || !taint.is_hard();
    }
    (run, true)
}

fn extra_tolerations(host_network: bool) -> Vec<Value> {
    let network = host_network.then_some(&("node.kubernetes.io/network-unavailable", "NoSchedule"));
    let all = BORNE.iter().chain(network);
    all.map(|(key, effect)| json!({"key": key, "operator": "Exists", "effect": effect})).collect()
}

/// What a template tolerates, with what all daemons do. One that says the same for a while only would make a daemon leave
/// its node again and again.
fn with_tolerations(mut given: Vec<Value>, extra: Vec<Value>) -> Vec<Value> {
    for toleration in extra {
        let same =
            |t: &&mut Value| ["key", "operator", "value", "effect"].iter().all(|k| t.get(k) == toleration.get(k));
        match given.iter_mut().find(same) {
            Some(given) => *given = toleration,
            None => given.push(toleration),
        }
    }
    given
}

/// The daemon for one node.
fn pod_for(value: &Value, set: &ObjectRef, current: &Revision, node: &str) -> Value {
    let mut pod = ownership::pod_from(&value["spec"]["template"], DAEMON_SET, set);
    pod["metadata"]["generateName"] = format!("{}-", set.key.name).into();
    pod["metadata"]["labels"][HASH_LABEL] = current.hash().into();
    if let Some(generation) = value["metadata"]["annotations"]["deprecated.daemonset.template.generation"].as_str() {
        pod["metadata"]["labels"][GENERATION_LABEL] = generation.into();
    }
    let spec = &mut pod["spec"];
    let extra = extra_tolerations(spec["hostNetwork"] == true);
    let given = spec["tolerations"].as_array().cloned().unwrap_or_default();
    let tolerations = with_tolerations(given, extra);
    spec["tolerations"] = tolerations.into();
    let required = &mut spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let field = json!([{"key": "metadata.name", "operator": "In", "values": [node]}]);
    match required["nodeSelectorTerms"].as_array_mut() {
        Some(terms) => terms.iter_mut().for_each(|t| t["matchFields"] = field.clone()),
        None => *required = json!({"nodeSelectorTerms": [{"matchFields": field}]}),
    }
    pod
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The one for a while was the first that fitted: the daemon left a node that was not ready, and came again.
    #[test]
    fn a_daemon_tolerates_for_ever_what_all_daemons_do() {
        let not_ready = |seconds: Value| {
            let mut toleration =
                json!({"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"});
            if seconds.is_i64() {
                toleration["tolerationSeconds"] = seconds;
            }
            toleration
        };
        let own = json!({"key": "mine", "operator": "Exists"});
        let all = with_tolerations(vec![not_ready(300.into()), own.clone()], extra_tolerations(false));
        assert_eq!(all[..2], [not_ready(Value::Null), own]);
        assert_eq!(all.len(), extra_tolerations(false).len() + 1);
    }
}
