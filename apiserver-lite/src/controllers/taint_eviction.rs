//! `taint-eviction-controller`: pods leave nodes with NoExecute taints that they do not tolerate, or no longer.

use std::sync::Arc;
use std::time::Duration;

use proto::time::Timestamp;

use super::events::Recorder;
use super::feed::Change;
use super::index::{Index, by_node};
use super::pods::{is_terminal, seconds};
use super::queue::Queue;
use super::runner::Controller;
use crate::client::Client;
use crate::scheduler::{Taint, set_condition, tolerations};
use crate::status::Result;
use crate::store::{Key, ObjectRef, ResourceId};
use crate::write::DeleteOptions;

pub struct TaintEviction {
    client: Client,
    recorder: Recorder,
    pods: Index,
}

impl TaintEviction {
    pub fn new(client: Client, recorder: Recorder) -> Self {
        TaintEviction { client, recorder, pods: Index::default() }
    }
}

/// NoExecute taints of a node, and when each was added. Kept with the node, because every new pod on it asks.
fn evicting(node: &ObjectRef) -> Arc<[(Taint, i64)]> {
    node.digest(|value| -> Arc<[(Taint, i64)]> {
        let taints = value["spec"]["taints"].as_array().into_iter().flatten();
        let evicting = taints.filter(|t| t["effect"] == "NoExecute");
        evicting.map(|t| (Taint::parse(t), seconds(&t["timeAdded"]))).collect()
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

    async fn sync(&mut self, key: &Key) -> Result<Option<Duration>> {
        let Some(pod) = self.client.get("pods", &key.namespace, &key.name) else { return Ok(None) };
        if pod.keys.deleting || is_terminal(&pod) {
            return Ok(None);
        }
        let Some(node) = by_node(&pod).and_then(|n| self.client.get("nodes", "", n)) else { return Ok(None) };
        let taints = evicting(&node);
        if taints.is_empty() {
            return Ok(None);
        }
        let tolerations = tolerations(&pod.without_owners()["spec"]);
        let mut leave_at: Option<i64> = None;
        for (taint, added) in &*taints {
            let mut fitting = tolerations.iter().filter(|t| t.tolerates(taint)).peekable();
            let until = match fitting.peek() {
                None => Some(0),
                Some(_) => fitting.filter_map(|t| t.seconds).map(|s| added.saturating_add(s.max(0))).min(),
            };
            leave_at = [leave_at, until].into_iter().flatten().min();
        }
        let Some(leave_at) = leave_at else { return Ok(None) };
        let left = leave_at - Timestamp::now().seconds;
        if left > 0 {
            return Ok(Some(Duration::from_secs(left.unsigned_abs())));
        }
        let text = format!("Marking for deletion Pod {}/{}", key.namespace, key.name);
        self.recorder.say("taint-eviction-controller", ("Pod", "v1", &pod), "TaintManagerEviction", text);
        let marked = self.client.update_status("pods", &key.namespace, &key.name, |value| {
            let generation = value["metadata"]["generation"].clone();
            let why = "Taint manager: deleting due to NoExecute taint";
            set_condition(value, "DisruptionTarget", "True", "DeletionByTaintManager", why, generation);
            Ok(())
        });
        match marked.await {
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
        self.client.delete_object("pods", &pod, DeleteOptions::default()).await?;
        Ok(None)
    }
}
