//! `persistentvolumeclaim-protection-controller`, `persistentvolume-protection-controller` and
//! `ephemeral-volume-controller`: storage in use stays, and pods get the claims that they bring along.

use std::time::Duration;

use serde_json::json;

use super::events::Recorder;
use super::feed::Change;
use super::index::Index;
use super::ownership::done;
use super::pods::{PodDigest, is_terminal};
use super::queue::Queue;
use super::runner::Controller;
use crate::client::{Client, unchanged};
use crate::status::Result;
use crate::store::{Key, ObjectRef, ResourceId};

const CLAIMS: &str = "persistentvolumeclaims";
const VOLUMES: &str = "persistentvolumes";

/// Adds or removes a finalizer.
pub async fn hold(client: &Client, resource: &str, key: &Key, finalizer: &str, wanted: bool) -> Result<()> {
    let written = client.update(resource, &key.namespace, &key.name, |value| {
        let metadata = &mut value["metadata"];
        let mut list = metadata["finalizers"].as_array().cloned().unwrap_or_default();
        let before = list.len();
        list.retain(|f| f != finalizer);
        if wanted {
            if list.len() < before {
                return Err(unchanged());
            }
            list.push(finalizer.into());
        } else if list.len() == before {
            return Err(unchanged());
        }
        match list.is_empty() {
            true => drop(metadata.as_object_mut().and_then(|m| m.remove("finalizers"))),
            false => metadata["finalizers"] = list.into(),
        }
        Ok(())
    });
    done(written.await.map(|_| ())).map(|_| ())
}

/// Keeps claims that a pod uses.
pub struct Claims {
    client: Client,
    /// Pods of each namespace that have volumes of claims and are not over.
    pods: Index,
}

impl Claims {
    const FINALIZER: &str = "kubernetes.io/pvc-protection";

    pub fn new(client: Client) -> Self {
        Claims { client, pods: Index::default() }
    }
}

impl Controller for Claims {
    const NAME: &'static str = "persistentvolumeclaim-protection-controller";
    type Key = Key;

    fn watched(&self) -> Vec<ResourceId> {
        [CLAIMS, "pods"].map(Into::into).into()
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Key>) {
        let object = change.object;
        if change.resource == 0 {
            if !change.deleted() {
                queue.add(object.key.clone());
            }
            return;
        }
        let ended = change.deleted() || is_terminal(object);
        // Only the beginning and the end of a pod matter.
        if ended || change.previous.is_none() {
            let uses = |pod: &ObjectRef| !is_terminal(pod) && !PodDigest::of(pod).claims.is_empty();
            self.pods.observe(change, |pod| uses(pod).then_some(&*pod.key.namespace));
            if ended {
                for claim in &PodDigest::of(object).claims {
                    queue.add(Key::new(&object.key.namespace, claim));
                }
            }
        }
    }

    async fn sync(&mut self, key: &Key) -> Result<Option<Duration>> {
        let Some(claim) = self.client.get(CLAIMS, &key.namespace, &key.name) else { return Ok(None) };
        if !claim.keys.deleting {
            hold(&self.client, CLAIMS, key, Self::FINALIZER, true).await?;
            return Ok(None);
        }
        let mut users = self.pods.get(&key.namespace).filter(|p| !is_terminal(p));
        if !users.any(|p| PodDigest::of(p).claims.contains(&key.name)) {
            hold(&self.client, CLAIMS, key, Self::FINALIZER, false).await?;
        }
        Ok(None)
    }
}

/// Keeps volumes that are bound.
pub struct Volumes {
    client: Client,
}

impl Volumes {
    const FINALIZER: &str = "kubernetes.io/pv-protection";

    pub fn new(client: Client) -> Self {
        Volumes { client }
    }
}

impl Controller for Volumes {
    const NAME: &'static str = "persistentvolume-protection-controller";
    type Key = Key;

    fn watched(&self) -> Vec<ResourceId> {
        vec![VOLUMES.into()]
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Key>) {
        if !change.deleted() {
            queue.add(change.object.key.clone());
        }
    }

    async fn sync(&mut self, key: &Key) -> Result<Option<Duration>> {
        let Some(volume) = self.client.get(VOLUMES, "", &key.name) else { return Ok(None) };
        let bound = volume.value()["status"]["phase"] == "Bound";
        if !volume.keys.deleting || !bound {
            hold(&self.client, VOLUMES, key, Self::FINALIZER, !volume.keys.deleting).await?;
        }
        Ok(None)
    }
}

/// Makes the claims of volumes that live as long as their pod.
pub struct Ephemeral {
    client: Client,
    recorder: Recorder,
}

impl Ephemeral {
    pub fn new(client: Client, recorder: Recorder) -> Self {
        Ephemeral { client, recorder }
    }
}

impl Controller for Ephemeral {
    const NAME: &'static str = "ephemeral-volume-controller";
    type Key = Key;

    fn watched(&self) -> Vec<ResourceId> {
        vec!["pods".into()]
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Key>) {
        let new = change.previous.is_none() && !change.object.keys.deleting;
        if new && PodDigest::of(change.object).brings_claims {
            queue.add(change.object.key.clone());
        }
    }

    async fn sync(&mut self, key: &Key) -> Result<Option<Duration>> {
        let found = self.client.get("pods", &key.namespace, &key.name);
        let Some(pod) = found.filter(|p| !p.keys.deleting) else { return Ok(None) };
        let value = pod.without_owners();
        for volume in value["spec"]["volumes"].as_array().into_iter().flatten() {
            let template = &volume["ephemeral"]["volumeClaimTemplate"];
            if !template.is_object() {
                continue;
            }
            let name = format!("{}-{}", key.name, volume["name"].as_str().unwrap_or_default());
            if let Some(claim) = self.client.get(CLAIMS, &key.namespace, &name) {
                if !claim.keys.owners.contains(&pod.keys.uid) {
                    let text = format!(
                        "PVC {}/{name} was not created for pod {}/{} (pod is not owner)",
                        key.namespace, key.namespace, key.name
                    );
                    self.recorder.warn("ephemeral_volume", ("Pod", "v1", &pod), "EphemeralVolumeFailed", text);
                }
                continue;
            }
            let mut claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": template["spec"],
                "metadata": {"name": name, "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": key.name,
                    "uid": pod.keys.uid, "controller": true, "blockOwnerDeletion": true}]}});
            for part in ["labels", "annotations"] {
                if !template["metadata"][part].is_null() {
                    claim["metadata"][part] = template["metadata"][part].clone();
                }
            }
            match self.client.create(CLAIMS, &key.namespace, claim).await {
                Err(error) if error.is_already_exists() => {}
                made => made.map(|_| ())?,
            }
        }
        Ok(None)
    }
}
