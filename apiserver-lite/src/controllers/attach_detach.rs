//! `persistentvolume-attach-detach-controller`: which volumes of storage drivers are to be attached to which node.
//!
//! For each node, what its pods use and what its VolumeAttachments say are compared: missing ones are made, the driver's
//! own attacher does the rest. One that no pod uses goes once the node says that it has let go of the volume
//! (`volumesInUse`), or the node is gone or `out-of-service`; a node that is not ready keeps it for [`LONGEST_HOLD`].
//! Volumes of drivers that need no attaching (`attachRequired: false`) are none of its business.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::events::Recorder;
use super::feed::Change;
use super::index::Index;
use super::ownership::done;
use super::podgc::OUT_OF_SERVICE;
use super::pods::{PodDigest, condition, is_terminal};
use super::queue::Queue;
use super::runner::Controller;
use crate::client::{Client, unchanged};
use crate::status::Result;
use crate::store::{Key, ObjectRef, ResourceId};
use crate::write::DeleteOptions;

const ATTACHMENTS: &str = "volumeattachments.storage.k8s.io";
const DRIVERS: &str = "csidrivers.storage.k8s.io";
const CLAIMS: &str = "persistentvolumeclaims";
const VOLUMES: &str = "persistentvolumes";
const COMPONENT: &str = "attachdetach-controller";
/// How long a node that is not ready keeps a volume that no pod uses any more, as upstream's `maxWaitForUnmountDuration`.
const LONGEST_HOLD: Duration = Duration::from_secs(360);

/// A volume that a node is to have.
struct Wanted {
    driver: String,
    /// As node statuses name it.
    unique: String,
    volume: String,
    /// At one node at a time.
    exclusive: bool,
    pod: ObjectRef,
}

pub struct AttachDetach {
    client: Client,
    recorder: Recorder,
    /// Pods that have claims, by node.
    pods: Index,
    /// VolumeAttachments by node.
    attachments: Index,
    /// Nodes whose pods wait for something that is not there yet.
    waiting: HashSet<Box<str>>,
    /// Since when no pod uses an attachment, by its name.
    unwanted: HashMap<Box<str>, Instant>,
}

impl AttachDetach {
    pub fn new(client: Client, recorder: Recorder) -> Self {
        let (pods, attachments) = (Index::default(), Index::default());
        AttachDetach { client, recorder, pods, attachments, waiting: HashSet::new(), unwanted: HashMap::new() }
    }
}

/// The name that the node computes as well.
fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    let hash = digest(&SHA256, format!("{handle}{driver}{node}").as_bytes());
    let hex: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("csi-{hex}")
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn uses_claims(pod: &ObjectRef) -> bool {
    !is_terminal(pod) && !PodDigest::of(pod).claims.is_empty()
}

/// Whether the node says that it holds a volume.
fn in_use(node: &Value, unique: &str) -> bool {
    node["status"]["volumesInUse"].as_array().is_some_and(|list| list.iter().any(|v| v == unique))
}

fn is_ready(node: &Value) -> bool {
    condition(node, "Ready").is_some_and(|c| c["status"] == "True")
}

/// How much longer a node keeps a volume that no pod has used for a while; None when it has let go of it, or nobody waits
/// for that any more. A node that is ready keeps it as long as it says so.
fn hold(node: &Value, unique: &str, unused: Duration) -> Option<Duration> {
    if !in_use(node, unique) || is_out_of_service(node) {
        return None;
    }
    let left = LONGEST_HOLD.saturating_sub(unused);
    (is_ready(node) || !left.is_zero()).then_some(left)
}

/// Nobody is there to let go of volumes any more.
fn is_out_of_service(node: &Value) -> bool {
    node["spec"]["taints"].as_array().is_some_and(|taints| taints.iter().any(|t| text(t, "key") == OUT_OF_SERVICE))
}

impl Controller for AttachDetach {
    const NAME: &'static str = "persistentvolume-attach-detach-controller";
    /// A node.
    type Key = Box<str>;

    fn watched(&self) -> Vec<ResourceId> {
        ["pods", ATTACHMENTS, "nodes", CLAIMS, VOLUMES, DRIVERS].map(Into::into).into()
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Box<str>>) {
        let object = change.object;
        match change.resource {
            0 => {
                let before = change.previous.is_some_and(uses_claims);
                if before || uses_claims(object) {
                    self.pods.observe(change, |pod| {
                        let node = pod.field("spec.nodeName");
                        (uses_claims(pod) && !node.is_empty()).then_some(node)
                    });
                    queue.add(object.field("spec.nodeName").into());
                }
            }
            1 => {
                // Of an attachment everything but its status is fixed.
                let node: Box<str> = text(&object.value()["spec"], "nodeName").into();
                self.attachments.observe(change, |_| Some(&*node));
                if change.deleted() {
                    self.unwanted.remove(&object.key.name);
                }
                queue.add(node.clone());
                self.queue_waiting(queue);
            }
            2 => {
                let seen = |node: &ObjectRef| {
                    let value = node.value();
                    (value["status"]["volumesInUse"].clone(), is_out_of_service(&value), is_ready(&value))
                };
                if change.deleted() || change.previous.map(seen) != Some(seen(object)) {
                    queue.add(object.key.name.clone());
                }
            }
            _ => self.queue_waiting(queue),
        }
    }

    async fn sync(&mut self, node: &Box<str>) -> Result<Option<Duration>> {
        if node.is_empty() {
            return Ok(None);
        }
        let (wanted, unknown) = self.wanted(node);
        let mut waits = !unknown.is_empty();
        let mut present: BTreeMap<Box<str>, ObjectRef> = BTreeMap::new();
        for attachment in self.attachments.get(node) {
            present.insert(attachment.key.name.clone(), attachment.clone());
        }
        for (name, want) in &wanted {
            if !present.contains_key(&**name) {
                waits |= !self.attach(node, name, want).await?;
            }
        }
        let object = self.client.get("nodes", "", node).map(|n| n.value());
        let (mut attached, mut leaving, mut again) = (Vec::new(), Vec::new(), None);
        for (name, attachment) in &present {
            let value = attachment.value();
            let unique = match wanted.get(&**name) {
                Some(want) => want.unique.clone(),
                None => self.unique(&value),
            };
            let is_attached = value["status"]["attached"] == true && !attachment.keys.deleting;
            let is_wanted = wanted.contains_key(&**name);
            if is_wanted {
                self.unwanted.remove(name);
            }
            // While it is not known what a pod wants, nothing that may be its is taken.
            let stays = is_wanted || attachment.keys.deleting || !name.starts_with("csi-");
            if !stays && !self.may_be_of(&value, &unknown) {
                let unused = self.unwanted.entry(name.clone()).or_insert_with(Instant::now).elapsed();
                match object.as_ref().and_then(|node| hold(node, &unique, unused)) {
                    // Of a node that is ready now, what it says later tells.
                    Some(Duration::ZERO) => {}
                    Some(left) => again = Some(again.map_or(left, |least: Duration| least.min(left))),
                    None => {
                        leaving.push((name, unique, is_attached, unused));
                        continue;
                    }
                }
            }
            if is_attached {
                attached.push(unique);
            }
        }
        if object.is_some() {
            self.show(node, attached.clone()).await?;
        }
        // Its agent says first that it uses a volume, and looks then whether it is shown: one of both sees the other.
        let now = self.client.get("nodes", "", node).map(|n| n.value());
        let mut kept = false;
        let mut refused = Ok(());
        for (name, unique, is_attached, unused) in leaving {
            if now.as_ref().and_then(|now| hold(now, &unique, unused)).is_some() {
                if is_attached {
                    attached.push(unique);
                    kept = true;
                }
                continue;
            }
            let deleted = done(self.client.delete(ATTACHMENTS, "", name, &DeleteOptions::default()).await);
            // One that has to stay keeps no other one attached.
            refused = refused.and(deleted.map(|_| ()));
        }
        if kept {
            self.show(node, attached).await?;
        }
        match waits {
            true => self.waiting.insert(node.clone()),
            false => self.waiting.remove(node),
        };
        refused.map(|()| again)
    }
}

impl AttachDetach {
    fn queue_waiting(&self, queue: &mut Queue<Box<str>>) {
        for node in &self.waiting {
            queue.add(node.clone());
        }
    }

    /// What the pods of a node use, by the name of the attachment; and claims of which it is not known.
    fn wanted(&self, node: &str) -> (BTreeMap<String, Wanted>, HashSet<Key>) {
        let (mut wanted, mut unknown) = (BTreeMap::new(), HashSet::new());
        for pod in self.pods.get(node) {
            for claim in &PodDigest::of(pod).claims {
                let bound = self.client.get(CLAIMS, &pod.key.namespace, claim).map(|c| c.value());
                let volume = bound.as_ref().map_or("", |c| text(&c["spec"], "volumeName"));
                let found = if volume.is_empty() { None } else { self.client.get(VOLUMES, "", volume) };
                let Some(found) = found.map(|v| v.value()) else {
                    unknown.insert(Key::new(&pod.key.namespace, claim));
                    continue;
                };
                let csi = &found["spec"]["csi"];
                let (driver, handle) = (text(csi, "driver"), text(csi, "volumeHandle"));
                if !csi.is_object() || !self.attaches(driver) {
                    continue;
                }
                let shared = |mode: &Value| mode == "ReadWriteMany" || mode == "ReadOnlyMany";
                let exclusive = !found["spec"]["accessModes"].as_array().is_some_and(|modes| modes.iter().any(shared));
                wanted.insert(
                    attachment_name(handle, driver, node),
                    Wanted {
                        driver: driver.to_owned(),
                        unique: format!("kubernetes.io/csi/{driver}^{handle}"),
                        volume: volume.to_owned(),
                        exclusive,
                        pod: pod.clone(),
                    },
                );
            }
        }
        (wanted, unknown)
    }

    /// Whether the volume of an attachment may be that of one of these claims.
    fn may_be_of(&self, attachment: &Value, unknown: &HashSet<Key>) -> bool {
        if unknown.is_empty() {
            return false;
        }
        let volume = text(&attachment["spec"]["source"], "persistentVolumeName");
        self.client.get(VOLUMES, "", volume).is_none_or(|found| {
            let of = found.value()["spec"]["claimRef"].clone();
            unknown.contains(&Key::new(text(&of, "namespace"), text(&of, "name")))
        })
    }

    /// A driver that says nothing of itself is taken to need it.
    fn attaches(&self, driver: &str) -> bool {
        let found = self.client.get(DRIVERS, "", driver);
        found.is_none_or(|d| d.value()["spec"]["attachRequired"] != false)
    }

    /// The name that node statuses have for the volume of an attachment; empty when the volume is gone.
    fn unique(&self, attachment: &Value) -> String {
        let volume = text(&attachment["spec"]["source"], "persistentVolumeName");
        let found = self.client.get(VOLUMES, "", volume).map(|v| v.value());
        found.map_or_else(String::new, |v| {
            let csi = &v["spec"]["csi"];
            format!("kubernetes.io/csi/{}^{}", text(csi, "driver"), text(csi, "volumeHandle"))
        })
    }

    /// Makes an attachment; false when another node still has the volume.
    async fn attach(&self, node: &str, name: &str, want: &Wanted) -> Result<bool> {
        if want.exclusive {
            let snapshot = self.client.store().snapshot(&ATTACHMENTS.into());
            let elsewhere = snapshot.range(None, None).find_map(|a| {
                let spec = a.value()["spec"].clone();
                let same = text(&spec["source"], "persistentVolumeName") == want.volume;
                (same && text(&spec, "nodeName") != node).then_some(())
            });
            if elsewhere.is_some() {
                let message = format!(
                    "Multi-Attach error for volume \"{}\" Volume is already exclusively attached to one node and \
                     can't be attached to another",
                    want.volume
                );
                self.recorder.warn(COMPONENT, ("Pod", "v1", &want.pod), "FailedAttachVolume", message);
                return Ok(false);
            }
        }
        let attachment = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
            "metadata": {"name": name},
            "spec": {"attacher": want.driver, "nodeName": node, "source": {"persistentVolumeName": want.volume}}});
        match self.client.create(ATTACHMENTS, "", attachment).await {
            Err(error) if error.is_already_exists() => Ok(true),
            made => made.map(|_| true),
        }
    }

    /// Writes what is attached into the node's status, where its agent looks for it.
    async fn show(&self, node: &str, mut attached: Vec<String>) -> Result<()> {
        attached.retain(|unique| !unique.is_empty());
        attached.sort();
        let list: Vec<Value> = attached.iter().map(|name| json!({"name": name, "devicePath": ""})).collect();
        let written = self.client.update_status("nodes", "", node, |value| {
            let status = &mut value["status"];
            let before = status["volumesAttached"].as_array().cloned().unwrap_or_default();
            let names = |list: &[Value]| list.iter().map(|v| text(v, "name").to_owned()).collect::<Vec<_>>();
            if names(&before) == names(&list) {
                return Err(unchanged());
            }
            match list.is_empty() {
                true => drop(status.as_object_mut().and_then(|s| s.remove("volumesAttached"))),
                false => status["volumesAttached"] = list.clone().into(),
            }
            Ok(())
        });
        done(written.await.map(|_| ())).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::super::feed::Feed;
    use super::*;

    #[test]
    fn the_name_of_an_attachment_is_what_the_node_computes() {
        let of_abc = "csi-ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(attachment_name("a", "b", "c"), of_abc);
    }

    /// A node that was down kept the volumes of pods that were gone until somebody removed or tainted it.
    #[tokio::test]
    async fn a_node_that_is_down_keeps_a_volume_that_nobody_uses_for_six_minutes() {
        let server = crate::serve::testing::server().await;
        let client = Client::new(server.clone(), "system:kube-controller-manager", "test");
        let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "d.example.com", "volumeHandle": "h"}}});
        client.create(VOLUMES, "", volume).await.expect("a volume");
        let name = attachment_name("h", "d.example.com", "n");
        let spec = json!({"attacher": "d.example.com", "nodeName": "n", "source": {"persistentVolumeName": "v"}});
        let attachment = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
            "metadata": {"name": name}, "spec": spec});
        client.create(ATTACHMENTS, "", attachment).await.expect("an attachment");
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {
            "volumesInUse": ["kubernetes.io/csi/d.example.com^h"], "conditions": [{"type": "Ready", "status": "True"}]}});
        client.create("nodes", "", node).await.expect("a node");

        let mut controller = AttachDetach::new(client.clone(), Recorder::start(client.clone()));
        let mut feed = Feed::open(&server.store, &controller.watched());
        let mut queue = Queue::default();
        let is_there = || client.get(ATTACHMENTS, "", &name).is_some();
        tokio::time::pause();
        let mut look = async || {
            feed.drain(|change| controller.observe(change, &mut queue)).expect("in time");
            let is_queued = queue.pop(Instant::now()).is_some_and(|key| {
                queue.done(&key);
                &*key == "n"
            });
            (is_queued, controller.sync(&"n".into()).await.expect("it goes"))
        };
        let (_, again) = look().await;
        assert!(again.is_some_and(|again| again <= LONGEST_HOLD) && is_there());
        tokio::time::advance(LONGEST_HOLD).await;
        assert_eq!(look().await.1, None);
        assert!(is_there(), "the node is ready");
        let lost = client.update_status("nodes", "", "n", |node| {
            node["status"]["conditions"][0]["status"] = "Unknown".into();
            Ok(())
        });
        lost.await.expect("written");
        assert!(look().await.0, "it is looked at again for that");
        assert!(!is_there());
    }

    #[test]
    fn what_a_node_holds_is_waited_for_as_long_as_it_may_let_go_of_it() {
        let mut node = json!({"status": {"volumesInUse": ["v"], "conditions": [{"type": "Ready", "status": "False"}]}});
        let minute = Duration::from_secs(60);
        assert_eq!(hold(&node, "v", minute), Some(LONGEST_HOLD - minute));
        assert_eq!(hold(&node, "v", LONGEST_HOLD), None);
        assert_eq!(hold(&node, "another", minute), None);
        node["status"]["conditions"][0]["status"] = "True".into();
        assert_eq!(hold(&node, "v", 9 * LONGEST_HOLD), Some(Duration::ZERO));
        node["spec"]["taints"] = json!([{"key": OUT_OF_SERVICE}]);
        assert_eq!(hold(&node, "v", minute), None);
    }

    #[test]
    fn a_node_holds_what_it_names_until_it_is_out_of_service() {
        let node = json!({"status": {"volumesInUse": ["kubernetes.io/csi/d^h"]}});
        assert!(in_use(&node, "kubernetes.io/csi/d^h") && !in_use(&node, "kubernetes.io/csi/d^x"));
        assert!(!is_out_of_service(&node));
        assert!(is_out_of_service(&json!({"spec": {"taints": [{"key": OUT_OF_SERVICE}]}})));
    }
}
