//! `podgroup-protection-controller`: groups of pods that are scheduled as one stay while a pod is in them.
//!
//! Admission gives each group its finalizer; here it is taken away again. Runs only where groups are served.

use std::time::Duration;

use serde_json::Value;

use super::feed::Change;
use super::pods::is_terminal;
use super::protection::hold;
use super::queue::Queue;
use super::runner::Controller;
use crate::client::Client;
use crate::status::Result;
use crate::store::{Key, ObjectRef, ResourceId};

const GROUPS: &str = "podgroups.scheduling.k8s.io";
const FINALIZER: &str = "scheduling.k8s.io/podgroup-protection";

pub struct PodGroups {
    client: Client,
}

impl PodGroups {
    pub fn new(client: Client) -> Self {
        PodGroups { client }
    }
}

impl PodGroups {
    /// Whether a pod that is not over is in a group.
    fn is_used(&self, key: &Key) -> bool {
        let pods = self.client.store().snapshot(&"pods".into());
        let is_inside = |pod: &ObjectRef| !is_terminal(pod) && group_of(&pod.without_owners()) == Some(&*key.name);
        pods.range(Some(&key.namespace), None).any(is_inside)
    }
}

/// The group that a pod is in.
fn group_of(pod: &Value) -> Option<&str> {
    pod["spec"]["schedulingGroup"]["podGroupName"].as_str()
}

impl Controller for PodGroups {
    const NAME: &'static str = "podgroup-protection-controller";
    type Key = Key;

    fn watched(&self) -> Vec<ResourceId> {
        [GROUPS, "pods"].map(Into::into).into()
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Key>) {
        let object = change.object;
        if change.resource == 0 {
            if !change.deleted() && object.keys.deleting {
                queue.add(object.key.clone());
            }
        } else if change.deleted() || is_terminal(object) {
            let pod = object.without_owners();
            if let Some(group) = group_of(&pod) {
                queue.add(Key::new(&object.key.namespace, group));
            }
        }
    }

    async fn sync(&mut self, key: &Key) -> Result<Option<Duration>> {
        let found = self.client.get(GROUPS, &key.namespace, &key.name);
        if !found.is_some_and(|group| group.keys.deleting) {
            return Ok(None);
        }
        if !self.is_used(key) {
            hold(&self.client, GROUPS, key, FINALIZER, false).await?;
        }
        Ok(None)
    }
}
