//! `node-lifecycle-controller`: notices nodes that are silent, and turns what nodes say of themselves into taints.
//!
//! A node lives while its lease is renewed or it tells anew whether it is ready. After [`GRACE`] without either its
//! conditions become Unknown. Taints follow the conditions; those that evict pods are set only while some node is ready,
//! because when all seem dead the fault is more likely here, and in each zone only so many in a time ([`Pace`]).

mod pace;

use std::collections::HashMap;
use std::time::Duration;

use proto::time::{Timestamp, parse_rfc3339};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::events::Recorder;
use super::feed::Change;
use super::index::{Index, by_node};
use super::pods::{PodDigest, condition};
use super::queue::Queue;
use super::runner::Controller;
use crate::client::{Client, unchanged};
use crate::status::Result;
use crate::store::{ObjectRef, ResourceId};
use pace::{PERIOD, Pace, Zone};

/// Silence after which a node counts as lost, as `--node-monitor-grace-period`.
const GRACE: Duration = Duration::from_secs(50);
/// The same for a node that never said anything, as `--node-startup-grace-period`.
const STARTUP_GRACE: Duration = Duration::from_secs(60);
const COMPONENT: &str = "node-controller";

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// Conditions that keep pods off a node while they are true.
const PRESSURES: [(&str, &str); 4] = [
    ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "node.kubernetes.io/network-unavailable"),
];

pub struct NodeLifecycle {
    client: Client,
    recorder: Recorder,
    nodes: HashMap<Box<str>, Seen>,
    pods: Index,
    paces: HashMap<Zone, Pace>,
    /// Whether any node was ready when the last change of one was seen.
    any_ready: bool,
}

struct Seen {
    heard: Instant,
    /// Whether the condition Ready is true; a node that never said anything is not ready.
    is_ready: bool,
    zone: Zone,
    /// It was ready when it was lost, and its pods are still to be marked as not ready. Of a node that says itself that it
    /// is not ready, the agent still tells how its pods are.
    unmarked: bool,
}

const NODES: usize = 0;
const LEASES: usize = 1;

impl NodeLifecycle {
    pub fn new(client: Client, recorder: Recorder) -> Self {
        NodeLifecycle {
            client,
            recorder,
            nodes: HashMap::new(),
            pods: Index::default(),
            paces: HashMap::new(),
            any_ready: false,
        }
    }

    /// The evictions of all nodes depend on whether any is ready: they are looked at once more when that changes.
    fn watch_ready(&mut self, queue: &mut Queue<Box<str>>) {
        let any_ready = self.is_any_ready();
        if std::mem::replace(&mut self.any_ready, any_ready) != any_ready {
            for name in self.nodes.keys() {
                match any_ready {
                    // Most likely the others are about to tell that they are well, too.
                    true => queue.add_after(name.clone(), PERIOD),
                    false => queue.add(name.clone()),
                }
            }
        }
    }

    fn is_any_ready(&self) -> bool {
        self.nodes.values().any(|n| n.is_ready)
    }

    /// Whether a node that is not ready may get the taint that evicts its pods now, or when it is to be asked again.
    fn may_evict(&mut self, name: &str) -> std::result::Result<bool, Duration> {
        let Some(zone) = self.nodes.get(name).map(|n| n.zone.clone()) else { return Ok(false) };
        if !self.is_any_ready() {
            return Ok(false);
        }
        let of_zone = self.nodes.values().filter(|n| n.zone == zone);
        let (ready, others): (Vec<&Seen>, Vec<&Seen>) = of_zone.partition(|n| n.is_ready);
        let (ready, others) = (ready.len(), others.len());
        self.paces.entry(zone).or_default().take(Instant::now(), ready, others).map(|()| true)
    }
}

impl Controller for NodeLifecycle {
    const NAME: &'static str = "node-lifecycle-controller";
    type Key = Box<str>;

    fn watched(&self) -> Vec<ResourceId> {
        ["nodes", "leases.coordination.k8s.io", "pods"].map(Into::into).into()
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Box<str>>) {
        let key = &change.object.key;
        match change.resource {
            NODES if change.deleted() => {
                if self.nodes.remove(&key.name).is_some() {
                    let text = format!("Node {0} event: Removing Node {0} from Controller", key.name);
                    self.recorder.say(COMPONENT, ("Node", "v1", change.object), "RemovingNode", text);
                }
                self.watch_ready(queue);
            }
            NODES => {
                let is_ready =
                    condition(&change.object.without_owners(), "Ready").is_some_and(|c| c["status"] == "True");
                let zone = Zone::of(change.object);
                match self.nodes.get_mut(&key.name) {
                    Some(node) => {
                        (node.is_ready, node.zone) = (is_ready, zone);
                        // Many write to a node, and few of them are its agent.
                        if change.previous.is_none_or(|old| heartbeat(old) != heartbeat(change.object)) {
                            node.heard = Instant::now();
                        }
                    }
                    None => {
                        let seen = Seen { heard: Instant::now(), is_ready, zone, unmarked: false };
                        self.nodes.insert(key.name.clone(), seen);
                        let text = format!("Node {0} event: Registered Node {0} in Controller", key.name);
                        self.recorder.say(COMPONENT, ("Node", "v1", change.object), "RegisteredNode", text);
                    }
                }
                queue.add(key.name.clone());
                self.watch_ready(queue);
            }
            LEASES => {
                if &*key.namespace == "kube-node-lease"
                    && !change.deleted()
                    && change.previous.is_none_or(|old| renewed(old) < renewed(change.object))
                    && let Some(node) = self.nodes.get_mut(&key.name)
                {
                    node.heard = Instant::now();
                }
            }
            _ => self.pods.observe(change, by_node),
        }
    }

    async fn sync(&mut self, name: &Box<str>) -> Result<Option<Duration>> {
        let Some(object) = self.client.get("nodes", "", name) else { return Ok(None) };
        let Some(heard) = self.nodes.get(name).map(|n| n.heard) else { return Ok(None) };
        let mut value = object.value();
        let grace = if condition(&value, "Ready").is_some() { GRACE } else { STARTUP_GRACE };
        let (silent, mut lost) = (heard.elapsed(), false);
        if silent >= grace && condition(&value, "Ready").is_none_or(|c| c["status"] != "Unknown") {
            let written = self.client.update_status("nodes", "", name, |node| {
                lost = condition(node, "Ready").is_some_and(|c| c["status"] == "True");
                lose(node);
                Ok(())
            });
            value = written.await?.value();
        }
        if lost {
            let text = format!("Node {name} status is now: NodeNotReady");
            self.recorder.say(COMPONENT, ("Node", "v1", &object), "NodeNotReady", text);
        }
        let status = condition(&value, "Ready").map(|c| c["status"].as_str().unwrap_or_default().to_owned());
        let ready = status.as_deref() == Some("True");
        if let Some(node) = self.nodes.get_mut(name) {
            node.is_ready = ready;
            node.unmarked = !ready && (node.unmarked || lost);
        }
        let any_ready = self.is_any_ready();
        // One taint for the other is no further eviction.
        let (evict, later) = match (any_ready && !ready && status.is_some(), evicts(&value)) {
            (false, _) => (false, None),
            (true, true) => (true, None),
            (true, false) => match self.may_evict(name) {
                Ok(evict) => (evict, None),
                Err(wait) => (false, Some(wait)),
            },
        };
        let written = self.client.update("nodes", "", name, |node| {
            let taints = taints(node, evict);
            if taints == node["spec"]["taints"].as_array().cloned().unwrap_or_default() {
                return Err(unchanged());
            }
            match taints.is_empty() {
                true => drop(node["spec"].as_object_mut().and_then(|s| s.remove("taints"))),
                false => node["spec"]["taints"] = taints.into(),
            }
            Ok(())
        });
        match written.await {
            Err(error) if error.code() != 304 => return Err(error),
            _ => {}
        }
        if self.nodes.get(name).is_some_and(|n| n.unmarked) {
            self.mark_pods(name).await?;
            if let Some(node) = self.nodes.get_mut(name) {
                node.unmarked = false;
            }
        }
        let again = if silent < grace { grace - silent } else { grace };
        Ok(Some(later.map_or(again, |later| again.min(later))))
    }
}

impl NodeLifecycle {
    /// Pods of a node that is not ready are not ready either, so that services leave them out.
    async fn mark_pods(&self, node: &str) -> Result<()> {
        for pod in self.pods.get(node).filter(|p| PodDigest::of(p).ready) {
            let marked = self.client.update_status("pods", &pod.key.namespace, &pod.key.name, |value| {
                let conditions = value["status"]["conditions"].as_array_mut();
                let ready = conditions.and_then(|c| c.iter_mut().find(|c| c["type"] == "Ready"));
                let Some(ready) = ready.filter(|c| c["status"] == "True") else { return Err(unchanged()) };
                ready["status"] = "False".into();
                ready["lastTransitionTime"] = Timestamp::now().to_seconds_text().into();
                Ok(())
            });
            match marked.await {
                Err(error) if error.code() != 304 && !error.is_not_found() => return Err(error),
                _ => self.recorder.warn(COMPONENT, ("Pod", "v1", pod), "NodeNotReady", "Node is not ready".into()),
            }
        }
        Ok(())
    }
}

/// When a node told whether it is ready, as it says itself; None for one that did not.
fn heartbeat(node: &ObjectRef) -> Option<Value> {
    condition(&node.without_owners(), "Ready").map(|ready| ready["lastHeartbeatTime"].clone())
}

/// When a lease was renewed.
fn renewed(lease: &ObjectRef) -> Option<Timestamp> {
    parse_rfc3339(lease.without_owners()["spec"]["renewTime"].as_str()?).ok()
}

/// Everything that a silent node said of itself is unknown.
fn lose(node: &mut Value) {
    let now = Timestamp::now().to_seconds_text();
    if !node["status"]["conditions"].is_array() {
        node["status"]["conditions"] = json!([]);
    }
    let created = node["metadata"]["creationTimestamp"].clone();
    let Some(list) = node["status"]["conditions"].as_array_mut() else { return };
    for kind in ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"] {
        match list.iter_mut().find(|c| c["type"] == kind) {
            Some(condition) if condition["status"] == "Unknown" => {}
            Some(condition) => {
                condition["status"] = "Unknown".into();
                condition["reason"] = "NodeStatusUnknown".into();
                condition["message"] = "Kubelet stopped posting node status.".into();
                condition["lastTransitionTime"] = now.as_str().into();
            }
            None => list.push(json!({"type": kind, "status": "Unknown", "reason": "NodeStatusNeverUpdated",
                "message": "Kubelet never posted node status.", "lastHeartbeatTime": created, "lastTransitionTime": now})),
        }
    }
}

/// Whether a node has a taint of ours that evicts its pods.
fn evicts(node: &Value) -> bool {
    let mut taints = node["spec"]["taints"].as_array().into_iter().flatten();
    taints.any(|t| t["effect"] == "NoExecute" && (t["key"] == NOT_READY || t["key"] == UNREACHABLE))
}

/// The taints that a node should have: those of others, and ours as its conditions say.
fn taints(node: &Value, evict: bool) -> Vec<Value> {
    let status = |kind: &str| condition(node, kind).and_then(|c| c["status"].as_str()).unwrap_or_default();
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    if node["spec"]["unschedulable"] == true {
        wanted.push((UNSCHEDULABLE, "NoSchedule"));
    }
    let unwell = match status("Ready") {
        "True" => None,
        "Unknown" => Some(UNREACHABLE),
        _ => Some(NOT_READY),
    };
    if let Some(key) = unwell {
        wanted.push((key, "NoSchedule"));
        // A node that says nothing of itself yet has no pods to evict.
        if evict && !status("Ready").is_empty() {
            wanted.push((key, "NoExecute"));
        }
    }
    wanted.extend(PRESSURES.iter().filter(|(kind, _)| status(kind) == "True").map(|(_, key)| (*key, "NoSchedule")));
    let ours = |taint: &Value| {
        let key = taint["key"].as_str().unwrap_or_default();
        matches!(key, NOT_READY | UNREACHABLE)
            || taint["effect"] == "NoSchedule" && (key == UNSCHEDULABLE || PRESSURES.iter().any(|(_, k)| *k == key))
    };
    let is = |taint: &Value, (key, effect): (&str, &str)| taint["key"] == key && taint["effect"] == effect;
    let existing = node["spec"]["taints"].as_array().into_iter().flatten();
    let mut out: Vec<Value> = existing.filter(|t| !ours(t) || wanted.iter().any(|w| is(t, *w))).cloned().collect();
    for want in wanted {
        if !out.iter().any(|t| is(t, want)) {
            let now = Timestamp::now().to_seconds_text();
            out.push(json!({"key": want.0, "effect": want.1, "timeAdded": now}));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::feed::Feed;
    use super::*;
    use crate::write::DeleteOptions;

    fn node(ready: &str) -> Value {
        json!({"spec": {"taints": [{"key": "mine", "effect": "NoExecute"}, {"key": NOT_READY, "effect": "NoSchedule"}]},
            "status": {"conditions": [{"type": "Ready", "status": ready}, {"type": "DiskPressure", "status": "True"}]}})
    }

    fn keys(taints: &[Value]) -> Vec<String> {
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        taints.iter().map(|t| format!("{}:{}", text(&t["key"]), text(&t["effect"]))).collect()
    }

    #[test]
    fn a_ready_node_loses_its_taint_and_keeps_those_of_others() {
        let taints = taints(&node("True"), true);
        assert_eq!(keys(&taints), ["mine:NoExecute", "node.kubernetes.io/disk-pressure:NoSchedule"]);
    }

    #[test]
    fn a_lost_node_evicts_only_while_another_is_ready() {
        let has = |evict| keys(&taints(&node("Unknown"), evict)).contains(&format!("{UNREACHABLE}:NoExecute"));
        assert!(has(true) && !has(false));
    }

    /// The taints of the others stayed until each was looked at for another reason, up to fifty seconds later.
    #[tokio::test]
    async fn when_the_last_node_is_lost_no_other_one_is_emptied_any_more() {
        let server = crate::serve::testing::server().await;
        let client = Client::new(server.clone(), "system:kube-controller-manager", "test");
        let mut lifecycle = NodeLifecycle::new(client.clone(), Recorder::start(client.clone()));
        let mut feed = Feed::open(&server.store, &lifecycle.watched());
        let mut queue = Queue::default();
        let tell = async |name: &str, status: &str| {
            let written = client.update_status("nodes", "", name, |node| {
                node["status"]["conditions"] = json!([{"type": "Ready", "status": status}]);
                Ok(())
            });
            written.await.expect("written");
        };
        for (name, status) in [("well", "True"), ("lost", "Unknown"), ("other", "True")] {
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
            client.create("nodes", "", node).await.expect("a node");
            tell(name, status).await;
        }
        let is_emptied = || evicts(&client.get("nodes", "", "lost").expect("it is there").value());
        // Some nodes are ready, one is, none is.
        for (changes, emptied) in [(None, true), (Some("other"), true), (Some("well"), false)] {
            if let Some(name) = changes {
                tell(name, "False").await;
            }
            for _ in 0..3 {
                feed.drain(|change| lifecycle.observe(change, &mut queue)).expect("in time");
                while let Some(name) = queue.pop(Instant::now()) {
                    lifecycle.sync(&name).await.expect("it goes");
                    queue.done(&name);
                }
            }
            assert_eq!(is_emptied(), emptied, "{changes:?}");
        }
        client.delete("nodes", "", "other", &DeleteOptions::default()).await.expect("deleted");
        tell("well", "True").await;
        feed.drain(|change| lifecycle.observe(change, &mut queue)).expect("in time");
        assert_eq!(queue.pop(Instant::now()).as_deref(), Some("well"));
        assert_eq!(queue.pop(Instant::now()).as_deref(), None, "they may be well soon");
        assert_eq!(queue.pop(Instant::now() + PERIOD).as_deref(), Some("lost"));
    }

    /// The pods of a node that told of a fault of its own counted as not ready, though the agent said that they were.
    #[tokio::test]
    async fn pods_are_marked_when_their_node_is_lost_and_not_when_it_says_that_it_is_not_ready() {
        let server = crate::serve::testing::server().await;
        let client = Client::new(server.clone(), "system:kube-controller-manager", "test");
        let mut lifecycle = NodeLifecycle::new(client.clone(), Recorder::start(client.clone()));
        let mut feed = Feed::open(&server.store, &lifecycle.watched());
        let mut queue = Queue::default();
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
        client.create("nodes", "", node).await.expect("a node");
        let spec = json!({"nodeName": "n", "containers": [{"name": "c", "image": "i"}]});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec});
        client.create("pods", "default", pod).await.expect("a pod");
        let tell = async |resource: &str, namespace: &str, name: &str, ready: &str| {
            let written = client.update_status(resource, namespace, name, |object| {
                object["status"]["conditions"] = json!([{"type": "Ready", "status": ready}]);
                Ok(())
            });
            written.await.expect("written");
        };
        let is_ready = || {
            let pod = client.get("pods", "default", "p").expect("it is there").value();
            condition(&pod, "Ready").is_some_and(|c| c["status"] == "True")
        };
        tell("pods", "default", "p", "True").await;
        let mut look = async |silent: Duration| {
            feed.drain(|change| lifecycle.observe(change, &mut queue)).expect("in time");
            let seen = lifecycle.nodes.get_mut("n").expect("it was told of");
            seen.heard = seen.heard.checked_sub(silent).expect("long ago");
            lifecycle.sync(&"n".into()).await.expect("it goes");
        };
        for (status, silent, ready) in [("True", 0, true), ("False", 0, true), ("False", 50, true), ("True", 50, false)]
        {
            tell("nodes", "", "n", status).await;
            look(Duration::from_secs(silent)).await;
            assert_eq!(is_ready(), ready, "{status} {silent}");
        }
    }

    /// A dead node lived on while somebody labelled it or wrote to its lease.
    #[tokio::test]
    async fn only_what_a_node_says_itself_is_a_sign_of_its_life() {
        let server = crate::serve::testing::server().await;
        let client = Client::new(server.clone(), "system:kube-controller-manager", "test");
        let mut lifecycle = NodeLifecycle::new(client.clone(), Recorder::start(client.clone()));
        let mut feed = Feed::open(&server.store, &lifecycle.watched());
        let mut queue = Queue::default();
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
        client.create("nodes", "", node).await.expect("a node");
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-node-lease"}});
        client.create("namespaces", "", namespace).await.expect("a namespace");
        let at = |second: u32| format!("2020-01-01T00:00:0{second}.000000Z");
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "n"},
            "spec": {"holderIdentity": "n", "renewTime": at(5)}});
        client.create("leases.coordination.k8s.io", "kube-node-lease", lease).await.expect("a lease");
        // Whether it was heard since the last look, which is made to be long ago.
        let mut is_heard = || {
            feed.drain(|change| lifecycle.observe(change, &mut queue)).expect("in time");
            let seen = lifecycle.nodes.get_mut("n").expect("it was told of");
            let is_heard = seen.heard.elapsed() < GRACE;
            seen.heard = Instant::now().checked_sub(GRACE).expect("long ago");
            is_heard
        };
        assert!(is_heard());
        let tell = async |status: &str, second: u32| {
            let written = client.update_status("nodes", "", "n", |node| {
                let time = format!("2020-01-01T00:00:0{second}Z");
                node["status"]["conditions"] = json!([{"type": "Ready", "status": status, "lastHeartbeatTime": time}]);
                Ok(())
            });
            written.await.expect("written");
        };
        tell("True", 1).await;
        assert!(is_heard(), "it tells for the first time");
        tell("Unknown", 1).await;
        assert!(!is_heard(), "that was said of it");
        tell("Unknown", 2).await;
        assert!(is_heard());
        let labelled = client.update("nodes", "", "n", |node| {
            node["metadata"]["labels"]["by"] = "somebody".into();
            node["spec"]["unschedulable"] = true.into();
            Ok(())
        });
        labelled.await.expect("written");
        assert!(!is_heard());
        for (second, is_sign) in [(5, false), (4, false), (6, true)] {
            let written = client.update("leases.coordination.k8s.io", "kube-node-lease", "n", |lease| {
                lease["metadata"]["annotations"]["second"] = second.to_string().into();
                lease["spec"]["renewTime"] = at(second).into();
                Ok(())
            });
            written.await.expect("written");
            assert_eq!(is_heard(), is_sign, "{second}");
        }
    }

    #[test]
    fn a_silent_node_loses_every_condition() {
        let mut value = node("True");
        value["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z".into();
        lose(&mut value);
        assert!(value["status"]["conditions"].as_array().is_some_and(|c| c.len() == 4));
        assert!(value["status"]["conditions"].as_array().into_iter().flatten().all(|c| c["status"] == "Unknown"));
        assert_eq!(condition(&value, "Ready").expect("it has one")["reason"], "NodeStatusUnknown");
        assert_eq!(condition(&value, "PIDPressure").expect("it has one")["reason"], "NodeStatusNeverUpdated");
        let heard = &condition(&value, "PIDPressure").expect("it has one")["lastHeartbeatTime"];
        assert_eq!(heard, "2020-01-01T00:00:00Z");
    }
}
