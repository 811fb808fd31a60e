//! `taint-eviction-controller`: pods leave nodes with NoExecute taints that they do not tolerate, or no longer.
//!
//! How long a pod tolerates a taint counts from when the two are first seen together, whenever the taint was added; what
//! is decided then stays while it is tainted, as upstream's queue of evictions keeps it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt as _;
use tokio::time::Instant;

use super::events::Recorder;
use super::feed::Change;
use super::index::{Index, by_node};
use super::pods::{evict, is_terminal};
use super::queue::Queue;
use super::runner::{Controller, Work};
use crate::client::Client;
use crate::scheduler::{Taint, Toleration, tolerations};
use crate::store::{Key, ObjectRef, ResourceId};

pub struct TaintEviction {
    client: Client,
    recorder: Recorder,
    pods: Index,
    /// Pods that tolerate what is on their node for a while.
    leaving: HashMap<Key, Leaving>,
}

/// When a pod has to leave.
struct Leaving {
    at: Instant,
    /// It is being made to: that it goes by now is not against what was said of it.
    is_begun: bool,
}

/// What there is to do about a pod.
pub(super) enum Step {
    /// Nothing, but for another look after a while.
    Wait(Option<Duration>),
    Evict(ObjectRef),
}

impl Step {
    /// Does it. `reason` and `why` are those of the pod's condition.
    pub fn work(self, client: &Client, reason: &'static str, why: &'static str) -> Work {
        let client = client.clone();
        let work = async move {
            match self {
                Step::Wait(again) => Ok(again),
                Step::Evict(pod) => evict(&client, &pod, reason, why).await.map(|()| None),
            }
        };
        work.boxed()
    }
}

impl TaintEviction {
    pub fn new(client: Client, recorder: Recorder) -> Self {
        TaintEviction { client, recorder, pods: Index::default(), leaving: HashMap::new() }
    }

    /// The pod may stay after all, or somebody else deleted it.
    fn cancel(&mut self, pod: &ObjectRef) {
        if self.leaving.remove(&pod.key).is_some_and(|leaving| !leaving.is_begun) {
            self.say(pod, "Cancelling deletion of");
        }
    }

    fn say(&self, pod: &ObjectRef, what: &str) {
        let text = format!("{what} Pod {}/{}", pod.key.namespace, pod.key.name);
        self.recorder.say("taint-eviction-controller", ("Pod", "v1", pod), "TaintManagerEviction", text);
    }
}

/// What a pod says of taints.
#[derive(Debug, PartialEq)]
enum Stay {
    /// It does not tolerate one of them.
    Not,
    /// Seconds, by the shortest of the tolerations that it has for them.
    For(u64),
    Always,
}

/// The first toleration that fits a taint decides, as upstream.
fn stay(tolerations: &[Toleration], taints: &[Taint]) -> Stay {
    let mut shortest: Option<i64> = None;
    for taint in taints {
        let Some(toleration) = tolerations.iter().find(|t| t.tolerates(taint)) else { return Stay::Not };
        shortest = [shortest, toleration.seconds].into_iter().flatten().min();
    }
    shortest.map_or(Stay::Always, |seconds| Stay::For(seconds.max(0).unsigned_abs()))
}

/// NoExecute taints of a node. Kept with the node, because every new pod on it asks.
fn evicting(node: &ObjectRef) -> Arc<[Taint]> {
    node.digest(|value| -> Arc<[Taint]> {
        let taints = value["spec"]["taints"].as_array().into_iter().flatten();
        let evicting = taints.filter(|t| t["effect"] == "NoExecute");
        evicting.map(Taint::parse).collect()
    })
}

impl Controller for TaintEviction {
    const NAME: &'static str = "taint-eviction-controller";
    type Key = Key;

    fn watched(&self) -> Vec<ResourceId> {
        ["pods", "nodes"].map(Into::into).into()
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Key>) {
        if change.resource == 0 {
            self.pods.observe(change, by_node);
            let node = |pod: &ObjectRef| by_node(pod).map(str::to_owned);
            let moved = change.previous.is_none_or(|old| node(old) != node(change.object));
            if change.deleted() {
                self.cancel(change.object);
            }
            // Tolerations may be added.
            let moved = moved || self.leaving.contains_key(&change.object.key);
            if !change.deleted() && moved && by_node(change.object).is_some() {
                queue.add(change.object.key.clone());
            }
        } else if !change.deleted() {
            // Most writes of a node are heartbeats.
            let before = change.previous.map(evicting);
            if *evicting(change.object) != *before.as_deref().unwrap_or_default() {
                self.pods.get(&change.object.key.name).for_each(|pod| queue.add(pod.key.clone()));
            }
        }
    }

    fn begin(&mut self, key: &Key) -> Option<Work> {
        let why = "Taint manager: deleting due to NoExecute taint";
        Some(self.next(key).work(&self.client, "DeletionByTaintManager", why))
    }
}

impl TaintEviction {
    /// Decides about a pod, and says what is decided.
    fn next(&mut self, key: &Key) -> Step {
        let found = self.client.get("pods", &key.namespace, &key.name);
        let Some(pod) = found.filter(|pod| !pod.keys.deleting && !is_terminal(pod)) else { return Step::Wait(None) };
        let Some(node) = by_node(&pod).and_then(|n| self.client.get("nodes", "", n)) else { return Step::Wait(None) };
        // It is still there: the last attempt failed.
        if let Some(leaving) = self.leaving.get_mut(key) {
            leaving.is_begun = false;
        }
        let taints = evicting(&node);
        if taints.is_empty() {
            self.cancel(&pod);
            return Step::Wait(None);
        }
        match stay(&tolerations(&pod.without_owners()["spec"]), &taints) {
            Stay::Always => {
                self.cancel(&pod);
                return Step::Wait(None);
            }
            Stay::Not => self.cancel(&pod),
            Stay::For(seconds) => {
                let now = Instant::now();
                let at = now.checked_add(Duration::from_secs(seconds)).unwrap_or_else(|| now + Queue::<Key>::LONG);
                let leaving = self.leaving.entry(key.clone()).or_insert(Leaving { at, is_begun: false });
                let left = leaving.at.saturating_duration_since(now);
                if !left.is_zero() {
                    return Step::Wait(Some(left));
                }
                leaving.is_begun = true;
            }
        }
        self.say(&pod, "Marking for deletion");
        Step::Evict(pod)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::feed::Feed;
    use super::*;

    #[test]
    fn the_first_fitting_toleration_of_each_taint_counts() {
        let taint = |key: &str| Taint::parse(&json!({"key": key, "effect": "NoExecute"}));
        let spec = json!({"tolerations": [
            {"key": "a", "operator": "Exists", "tolerationSeconds": 60},
            {"key": "b", "operator": "Exists", "tolerationSeconds": 30},
            {"key": "a", "operator": "Exists", "tolerationSeconds": 10},
            {"key": "c", "operator": "Exists"}]});
        let stay = |keys: &[&str]| stay(&tolerations(&spec), &keys.iter().map(|k| taint(k)).collect::<Vec<_>>());
        assert_eq!(stay(&["a"]), Stay::For(60));
        assert_eq!(stay(&["a", "b", "c"]), Stay::For(30));
        assert_eq!(stay(&["c"]), Stay::Always);
        assert_eq!(stay(&["c", "d"]), Stay::Not);
    }

    /// A taint without a time counted from 1970, and who tolerated it for a while had to go at once.
    #[tokio::test]
    async fn tolerated_seconds_count_from_when_the_taint_is_seen() {
        let server = crate::serve::testing::server().await;
        let client = Client::new(server.clone(), "system:kube-controller-manager", "test");
        let mut controller = TaintEviction::new(client.clone(), Recorder::start(client.clone()));
        let (mut feed, mut queue) = (Feed::open(&server.store, &controller.watched()), Queue::default());
        let taints = json!([{"key": "mine", "effect": "NoExecute"}]);
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"taints": taints}});
        client.create("nodes", "", node).await.expect("a node");
        let tolerations =
            json!([{"key": "mine", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 100}]);
        let spec = json!({"nodeName": "n", "containers": [{"name": "c", "image": "i"}], "tolerations": tolerations});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec});
        client.create("pods", "default", pod).await.expect("a pod");
        let mut look = async || {
            feed.drain(|change| controller.observe(change, &mut queue)).expect("in time");
            controller.sync(&Key::new("default", "p")).await.expect("it goes")
        };
        let first = look().await.expect("it stays for a while");
        assert!(first > Duration::from_secs(90) && first <= Duration::from_secs(100), "{first:?}");
        assert!(look().await.is_some_and(|again| again <= first));
        let untainted = client.update("nodes", "", "n", |node| {
            node["spec"]["taints"] = Value::Array(Vec::new());
            Ok(())
        });
        untainted.await.expect("written");
        assert_eq!(look().await, None);
        let told = async || loop {
            let events = server.store.snapshot(&"events".into());
            if events.range(None, None).any(|e| e.value()["message"] == "Cancelling deletion of Pod default/p") {
                return;
            }
            tokio::task::yield_now().await;
        };
        tokio::time::timeout(Duration::from_secs(10), told()).await.expect("it is told");
    }

    /// Whatever kept the eviction of one pod waiting kept those of all others.
    #[tokio::test]
    async fn pods_leave_while_the_eviction_of_another_one_goes_on() {
        let server = crate::serve::testing::server().await;
        let client = Client::new(server.clone(), "system:kube-controller-manager", "test");
        let mut controller = TaintEviction::new(client.clone(), Recorder::start(client.clone()));
        let mut feed = Feed::open(&server.store, &controller.watched());
        let mut queue = Queue::default();
        let taints = json!([{"key": "mine", "effect": "NoExecute"}]);
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"taints": taints}});
        client.create("nodes", "", node).await.expect("a node");
        let now = json!([{"key": "mine", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}]);
        for (name, tolerations) in [("a", json!([])), ("b", now)] {
            let containers = json!([{"name": "c", "image": "i"}]);
            let spec = json!({"nodeName": "n", "containers": containers, "tolerations": tolerations});
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
            client.create("pods", "default", pod).await.expect("a pod");
        }
        feed.drain(|change| controller.observe(change, &mut queue)).expect("in time");
        let is_leaving = |name: &str| client.get("pods", "default", name).is_none_or(|pod| pod.keys.deleting);
        let waiting = controller.begin(&Key::new("default", "a")).expect("work");
        let b = Key::new("default", "b");
        assert_eq!(controller.begin(&b).expect("work").await.expect("it goes"), None);
        assert!(is_leaving("b") && !is_leaving("a"));
        // It was told that the pod goes, and not that it does not once it is gone.
        assert!(controller.leaving.get(&b).is_some_and(|leaving| leaving.is_begun));
        assert_eq!(waiting.await.expect("it goes"), None);
        assert!(is_leaving("a"));
    }
}
