//! `podgroup-protection-controller`: groups of pods that are scheduled as one stay while a pod is in them.
//!
//! Admission gives each group its finalizer; here it is taken away again. Runs only where groups are served.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::feed::Change;
use super::pods::{PodDigest, is_terminal};
use super::protection::hold;
use super::queue::Queue;
use super::runner::Controller;
use crate::client::Client;
use crate::status::Result;
use crate::store::{Key, ResourceId};

const GROUPS: &str = "podgroups.scheduling.k8s.io";
const FINALIZER: &str = "scheduling.k8s.io/podgroup-protection";

pub struct PodGroups {
    client: Client,
    pods: Members,
}

impl PodGroups {
    pub fn new(client: Client) -> Self {
        PodGroups { client, pods: Members::default() }
    }
}

/// Names of the pods of each group that are not over.
#[derive(Default)]
struct Members(HashMap<Key, HashSet<Box<str>>>);

impl Members {
    /// Takes in what happened to a pod; the group that it has left by ending.
    fn observe(&mut self, change: &Change<'_>) -> Option<Key> {
        let pod = change.object;
        let group = Key::new(&pod.key.namespace, PodDigest::of(pod).group.as_deref()?);
        if change.deleted() || is_terminal(pod) {
            if let Entry::Occupied(mut members) = self.0.entry(group.clone()) {
                members.get_mut().remove(&*pod.key.name);
                if members.get().is_empty() {
                    members.remove();
                }
            }
            return Some(group);
        }
        // The group is that of the beginning.
        if change.previous.is_none() {
            self.0.entry(group).or_default().insert((*pod.key.name).into());
        }
        None
    }

    /// Whether a pod is in the group.
    fn has(&self, group: &Key) -> bool {
        self.0.contains_key(group)
    }
}

impl Controller for PodGroups {
    const NAME: &'static str = "podgroup-protection-controller";
    type Key = Key;

    fn watched(&self) -> Vec<ResourceId> {
        [GROUPS, "pods"].map(Into::into).into()
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Key>) {
        if change.resource == 1 {
            self.pods.observe(&change).into_iter().for_each(|group| queue.add(group));
        } else if !change.deleted() && change.object.keys.deleting {
            queue.add(change.object.key.clone());
        }
    }

    async fn sync(&mut self, key: &Key) -> Result<Option<Duration>> {
        let found = self.client.get(GROUPS, &key.namespace, &key.name);
        if !found.is_some_and(|group| group.keys.deleting) {
            return Ok(None);
        }
        if !self.pods.has(key) {
            hold(&self.client, GROUPS, key, FINALIZER, false).await?;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::{EventKind, ObjectRef};

    fn pod(name: &str, group: Option<&str>, phase: &str) -> ObjectRef {
        let resource = crate::resource::Resources::built_in().lookup("", "v1", "pods").expect("it is served");
        let mut value = json!({"metadata": {"namespace": "n", "name": name}, "status": {"phase": phase}});
        value["spec"]["schedulingGroup"]["podGroupName"] = group.into();
        let fields = crate::resource::fields::of(&resource, &value);
        crate::store::encode(&resource, &mut value, fields, None).unsaved(Key::new("n", name), "")
    }

    #[test]
    fn a_group_has_the_pods_that_are_not_over() {
        let mut members = Members::default();
        let group = |name: &str| Key::new("n", name);
        let mut told = |kind: EventKind, object: &ObjectRef, previous: Option<&ObjectRef>| {
            let left = members.observe(&Change { resource: 1, kind, object, previous });
            (left, members.has(&group("g")), members.has(&group("h")))
        };
        let (one, other) = (pod("a", Some("g"), "Pending"), pod("b", None, "Running"));
        assert_eq!(told(EventKind::Added, &one, None), (None, true, false));
        assert_eq!(told(EventKind::Added, &other, None), (None, true, false));
        let runs = pod("a", Some("g"), "Running");
        assert_eq!(told(EventKind::Modified, &runs, Some(&one)), (None, true, false));
        let second = pod("c", Some("h"), "Running");
        assert_eq!(told(EventKind::Added, &second, None), (None, true, true));
        let over = pod("a", Some("g"), "Succeeded");
        assert_eq!(told(EventKind::Modified, &over, Some(&runs)), (Some(group("g")), false, true));
        assert_eq!(told(EventKind::Deleted, &other, Some(&other)), (None, false, true));
        assert_eq!(told(EventKind::Deleted, &second, Some(&second)), (Some(group("h")), false, false));
        assert_eq!(told(EventKind::Added, &over, None), (Some(group("g")), false, false));
    }
}
