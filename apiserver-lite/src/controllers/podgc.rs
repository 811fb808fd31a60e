//! `pod-garbage-collector-controller`: removes pods that no node will finish: those whose node is gone, those that were
//! deleted before they had a node or from one that is out of service, and the oldest of too many that are over.

use std::collections::BTreeSet;
use std::time::Duration;

use super::feed::Change;
use super::index::{Index, by_node};
use super::pods::{PodDigest, condition, is_terminal};
use super::queue::Queue;
use super::runner::Controller;
use crate::client::Client;
use crate::scheduler::set_condition;
use crate::status::Result;
use crate::store::{Key, ObjectRef, ResourceId};
use crate::write::DeleteOptions;

/// A node that is gone this long does not come back under its name.
const QUARANTINE: Duration = Duration::from_secs(40);
/// The taint by which a person says that a node is down and will not come back with what it ran.
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// Pods that are over and still kept, as `--terminated-pod-gc-threshold`.
const KEPT: usize = 12_500;
/// How many of those beyond it are looked at whenever there is one more.
const AT_ONCE: usize = 100;

pub struct PodGc {
    client: Client,
    pods: Index,
    /// Pods that are over, by their age.
    over: BTreeSet<(i64, Key)>,
}

impl PodGc {
    pub fn new(client: Client) -> Self {
        PodGc { client, pods: Index::default(), over: BTreeSet::new() }
    }
}

impl Controller for PodGc {
    const NAME: &'static str = "pod-garbage-collector-controller";
    type Key = Key;

    fn watched(&self) -> Vec<ResourceId> {
        ["pods", "nodes"].map(Into::into).into()
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Key>) {
        let object = change.object;
        if change.resource == 1 {
            if change.deleted() {
                self.pods.get(&object.key.name).for_each(|pod| queue.add_after(pod.key.clone(), QUARANTINE));
            } else if is_out_of_service(object) {
                let ending = self.pods.get(&object.key.name).filter(|pod| pod.keys.deleting);
                ending.for_each(|pod| queue.add(pod.key.clone()));
            }
            return;
        }
        self.pods.observe(change, by_node);
        if is_terminal(object) || change.previous.is_some_and(is_terminal) {
            let entry = (PodDigest::of(object).created, object.key.clone());
            match change.deleted() {
                true => self.over.remove(&entry),
                false => self.over.insert(entry),
            };
            too_many(&self.over, KEPT).for_each(|pod| queue.add(pod.clone()));
        }
        if change.deleted() {
            return;
        }
        match by_node(object) {
            None if object.keys.deleting => queue.add(object.key.clone()),
            None => {}
            Some(node) => {
                let new = change.previous.and_then(by_node).is_none();
                if !new && !object.keys.deleting {
                    return;
                }
                match self.client.get("nodes", "", node) {
                    None if new => queue.add_after(object.key.clone(), QUARANTINE),
                    Some(node) if object.keys.deleting && is_out_of_service(&node) => queue.add(object.key.clone()),
                    _ => {}
                }
            }
        }
    }

    async fn sync(&mut self, key: &Key) -> Result<Option<Duration>> {
        let Some(pod) = self.client.get("pods", &key.namespace, &key.name) else { return Ok(None) };
        let node = by_node(&pod).map(|name| self.client.get("nodes", "", name));
        let orphan = matches!(node, Some(None));
        let left_behind = pod.keys.deleting && node.flatten().as_ref().is_some_and(is_out_of_service);
        let unassigned = by_node(&pod).is_none() && pod.keys.deleting;
        let crowd = self.over.len() > KEPT && is_terminal(&pod);
        if !(orphan || unassigned || left_behind || crowd) {
            return Ok(None);
        }
        if !is_terminal(&pod) {
            let marked = self.client.update_status("pods", &key.namespace, &key.name, |value| {
                value["status"]["phase"] = "Failed".into();
                if orphan {
                    let generation = value["metadata"]["generation"].clone();
                    let why = "PodGC: node no longer exists";
                    set_condition(value, "DisruptionTarget", "True", "DeletionByPodGC", why, generation);
                }
                Ok(())
            });
            match marked.await {
                Err(error) if error.is_not_found() => return Ok(None),
                marked => marked.map(|_| ())?,
            }
        }
        let options = DeleteOptions { grace_seconds: Some(0), ..DeleteOptions::default() };
        self.client.delete_object("pods", &pod, options).await?;
        Ok(None)
    }
}

/// The oldest of those that are beyond what is kept. Not only the very first: that may be one which a policy lets nobody
/// delete. While a crowd is read at the start, the first of it will do.
fn too_many(over: &BTreeSet<(i64, Key)>, kept: usize) -> impl Iterator<Item = &Key> {
    over.iter().take(over.len().saturating_sub(kept).min(AT_ONCE)).map(|(_, pod)| pod)
}

/// Not ready, and tainted by hand.
fn is_out_of_service(node: &ObjectRef) -> bool {
    let value = node.value();
    let taints = value["spec"]["taints"].as_array().into_iter().flatten();
    taints.into_iter().any(|t| t["key"] == OUT_OF_SERVICE)
        && condition(&value, "Ready").is_none_or(|ready| ready["status"] != "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing was removed any more when the oldest pod was one that a policy does not let go.
    #[test]
    fn a_pod_that_has_to_stay_does_not_keep_the_others() {
        let over: BTreeSet<(i64, Key)> = (0..5).map(|age| (age, Key::new("n", &age.to_string()))).collect();
        let names = |kept| -> Vec<_> { too_many(&over, kept).map(|pod| pod.name.to_string()).collect() };
        assert_eq!(names(5), Vec::<String>::new());
        assert_eq!(names(4), ["0"]);
        assert_eq!(names(3), ["0", "1"], "one had to stay, and there is one more by now");
    }
}
