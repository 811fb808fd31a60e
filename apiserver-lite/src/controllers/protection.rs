//! `persistentvolumeclaim-protection-controller`, `persistentvolume-protection-controller` and
//! `ephemeral-volume-controller`: storage in use stays, and pods get the claims that they bring along.

use std::time::Duration;

use serde_json::{Value, json};

use super::events::Recorder;
use super::feed::Change;
use super::index::{Index, by_node};
use super::ownership::done;
use super::pods::{PodDigest, brought_claim, foreign_claim};
use super::queue::Queue;
use super::runner::Controller;
use crate::client::{Client, unchanged};
use crate::status::{ApiError, Result};
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
    /// Pods of each namespace that have a node and volumes of claims.
    pods: Index,
}

/// Whether a pod, which has a node, uses a claim. One that is over does so as well until it is deleted; of what it brought
/// along it uses what was made for itself, and only until its node is done with it.
fn uses(pod: &ObjectRef, claim: &ObjectRef) -> bool {
    if !PodDigest::of(pod).claims.contains(&claim.key.name) {
        return false;
    }
    let value = pod.without_owners();
    let mut volumes = value["spec"]["volumes"].as_array().into_iter().flatten();
    let is_shut_down = pod.keys.deleting && value["metadata"]["deletionGracePeriodSeconds"] == 0;
    volumes.any(|v| v["persistentVolumeClaim"]["claimName"] == *claim.key.name)
        || !is_shut_down && foreign_claim(pod, claim).is_none()
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
        let may_use = |pod: &ObjectRef| by_node(pod).is_some() && !PodDigest::of(pod).claims.is_empty();
        self.pods.observe(change, |pod| may_use(pod).then_some(&*pod.key.namespace));
        if change.deleted() || object.keys.deleting {
            for claim in &PodDigest::of(object).claims {
                queue.add(Key::new(&object.key.namespace, claim));
            }
        }
    }

    async fn sync(&mut self, key: &Key) -> Result<Option<Duration>> {
        let Some(claim) = self.client.get(CLAIMS, &key.namespace, &key.name) else { return Ok(None) };
        if !claim.keys.deleting {
            hold(&self.client, CLAIMS, key, Self::FINALIZER, true).await?;
            return Ok(None);
        }
        if !self.pods.get(&key.namespace).any(|pod| uses(pod, &claim)) {
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
    /// Pods of each namespace that bring claims along.
    pods: Index,
}

impl Ephemeral {
    pub fn new(client: Client, recorder: Recorder) -> Self {
        Ephemeral { client, recorder, pods: Index::default() }
    }

    /// Makes the claim of one of a pod's volumes.
    async fn provide(&self, pod: &ObjectRef, volume: &Value, name: &str) -> std::result::Result<(), String> {
        let key = &pod.key;
        if let Some(claim) = self.client.get(CLAIMS, &key.namespace, name) {
            return foreign_claim(pod, &claim).map_or(Ok(()), Err);
        }
        let template = &volume["ephemeral"]["volumeClaimTemplate"];
        let mut claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": template["spec"],
            "metadata": {"name": name, "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": key.name,
                "uid": pod.keys.uid, "controller": true, "blockOwnerDeletion": true}]}});
        for part in ["labels", "annotations"] {
            if !template["metadata"][part].is_null() {
                claim["metadata"][part] = template["metadata"][part].clone();
            }
        }
        let made = self.client.create(CLAIMS, &key.namespace, claim).await;
        made.map(|_| ()).map_err(|error| format!("create PVC {name}: {error}"))
    }
}

impl Controller for Ephemeral {
    const NAME: &'static str = "ephemeral-volume-controller";
    type Key = Key;

    fn watched(&self) -> Vec<ResourceId> {
        ["pods", CLAIMS].map(Into::into).into()
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Key>) {
        let object = change.object;
        if change.resource == 0 {
            let brings = |pod: &ObjectRef| !PodDigest::of(pod).brought.is_empty();
            self.pods.observe(change, |pod| brings(pod).then_some(&*pod.key.namespace));
            if change.previous.is_none() && brings(object) {
                queue.add(object.key.clone());
            }
        } else if change.deleted() {
            // It is made anew, or was that of an earlier pod and in the way of this one's.
            let brings = |pod: &&ObjectRef| PodDigest::of(pod).brought.contains(&object.key.name);
            self.pods.get(&object.key.namespace).filter(brings).for_each(|pod| queue.add(pod.key.clone()));
        }
    }

    async fn sync(&mut self, key: &Key) -> Result<Option<Duration>> {
        let found = self.client.get("pods", &key.namespace, &key.name);
        let Some(pod) = found.filter(|p| !p.keys.deleting) else { return Ok(None) };
        let value = pod.without_owners();
        for volume in value["spec"]["volumes"].as_array().into_iter().flatten() {
            let Some(name) = brought_claim(&key.name, volume) else { continue };
            if let Err(why) = self.provide(&pod, volume, &name).await {
                let text = format!("ephemeral volume {}: {why}", volume["name"].as_str().unwrap_or_default());
                self.recorder.warn("ephemeral_volume", ("Pod", "v1", &pod), "FailedBinding", text.clone());
                return Err(ApiError::internal(text));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::super::feed::Feed;
    use super::*;
    use crate::write::DeleteOptions;

    fn object(plural: &str, mut value: Value) -> ObjectRef {
        let resource = crate::resource::Resources::built_in().lookup("", "v1", plural).expect("it is served");
        let key = Key::new("n", value["metadata"]["name"].as_str().unwrap_or_default());
        let fields = crate::resource::fields::of(&resource, &value);
        crate::store::encode(&resource, &mut value, fields, None).unsaved(key, "")
    }

    #[test]
    fn a_pod_uses_the_claims_that_it_names_and_those_that_were_made_for_itself() {
        let claim = |name: &str, owner: &str| {
            let owner = json!([{"kind": "Pod", "name": "p", "uid": owner, "controller": true}]);
            object(CLAIMS, json!({"metadata": {"name": name, "ownerReferences": owner}}))
        };
        let pod = |metadata: Value, phase: &str| {
            let mut metadata = metadata;
            (metadata["name"], metadata["uid"]) = ("p".into(), "1".into());
            let volumes = json!([{"name": "a", "persistentVolumeClaim": {"claimName": "c"}},
                {"name": "v", "ephemeral": {"volumeClaimTemplate": {}}}]);
            object("pods", json!({"metadata": metadata, "spec": {"volumes": volumes}, "status": {"phase": phase}}))
        };
        let going = json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30});
        let gone = json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0});
        for (metadata, phase, keeps_its_own) in [
            (json!({}), "Running", true),
            (json!({}), "Succeeded", true),
            (going, "Running", true),
            (gone, "Failed", false),
        ] {
            let pod = pod(metadata, phase);
            assert!(uses(&pod, &claim("c", "")), "{phase}");
            assert_eq!(uses(&pod, &claim("p-v", "1")), keeps_its_own, "{phase}");
            assert!(!uses(&pod, &claim("p-v", "2")) && !uses(&pod, &claim("d", "1")), "{phase}");
        }
    }

    async fn make(client: &Client, plural: &str, kind: &str, name: &str, spec: Value) {
        let value = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
        client.create(plural, "default", value).await.expect("it is made");
    }

    fn storage() -> Value {
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}})
    }

    /// A claim that a pod named which ran nowhere was Terminating as long as that pod waited.
    #[tokio::test]
    async fn a_claim_goes_unless_a_pod_that_has_a_node_uses_it() {
        let server = crate::serve::testing::server().await;
        let client = Client::new(server.clone(), "system:kube-controller-manager", "test");
        let mut controller = Claims::new(client.clone());
        let (mut feed, mut queue) = (Feed::open(&server.store, &controller.watched()), Queue::default());
        let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
        let spec = json!({"containers": [{"name": "c", "image": "i"}], "volumes": volumes});
        make(&client, "pods", "Pod", "waits", spec.clone()).await;
        let mut is_gone = async || {
            feed.drain(|change| controller.observe(change, &mut queue)).expect("in time");
            while let Some(key) = queue.pop(Instant::now()) {
                controller.sync(&key).await.expect("it goes");
                queue.done(&key);
                feed.drain(|change| controller.observe(change, &mut queue)).expect("in time");
            }
            client.get(CLAIMS, "default", "c").is_none()
        };
        let unused = async || {
            make(&client, CLAIMS, "PersistentVolumeClaim", "c", storage()).await;
            client.delete(CLAIMS, "default", "c", &DeleteOptions::default()).await.expect("it is to go");
        };
        unused().await;
        assert!(is_gone().await);
        let mut placed = spec;
        placed["nodeName"] = "n".into();
        make(&client, "pods", "Pod", "runs", placed).await;
        unused().await;
        assert!(!is_gone().await);
        let at_once = DeleteOptions { grace_seconds: Some(0), ..DeleteOptions::default() };
        client.delete("pods", "default", "runs", &at_once).await.expect("it is deleted");
        assert!(is_gone().await);
    }

    /// A pod that came back before the claim of the earlier one had gone never got one.
    #[tokio::test]
    async fn a_claim_of_an_earlier_pod_is_waited_for_to_go() {
        let server = crate::serve::testing::server().await;
        let client = Client::new(server.clone(), "system:kube-controller-manager", "test");
        let mut controller = Ephemeral::new(client.clone(), Recorder::start(client.clone()));
        let (mut feed, mut queue) = (Feed::open(&server.store, &controller.watched()), Queue::default());
        make(&client, CLAIMS, "PersistentVolumeClaim", "p-v", storage()).await;
        let volumes = json!([{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": storage()}}}]);
        let spec = json!({"containers": [{"name": "c", "image": "i"}], "volumes": volumes});
        make(&client, "pods", "Pod", "p", spec).await;
        let mut look = async || {
            feed.drain(|change| controller.observe(change, &mut queue)).expect("in time");
            let key = queue.pop(Instant::now()).expect("the pod is looked at");
            queue.done(&key);
            controller.sync(&key).await
        };
        let why = look().await.expect_err("it is tried again").to_string();
        assert!(why.contains("ephemeral volume v: PVC default/p-v was not created for pod default/p"), "{why}");
        hold(&client, CLAIMS, &Key::new("default", "p-v"), Claims::FINALIZER, false).await.expect("nobody uses it");
        client.delete(CLAIMS, "default", "p-v", &DeleteOptions::default()).await.expect("it goes");
        look().await.expect("there is room");
        let claim = client.get(CLAIMS, "default", "p-v").expect("it is made");
        let pod = client.get("pods", "default", "p").expect("it is there");
        assert_eq!(foreign_claim(&pod, &claim), None);
    }
}
