//! Waiting until the volume of a driver that has to attach it is attached to this node, and stays so.
//!
//! A pod that comes back to a node may meet a detach under way, while the volume still looks attached. Whoever detaches
//! leaves alone what the node's status has in `volumesInUse`, and takes the volume out of `volumesAttached` before he begins.
//! So the volume is this node's once the API server has heard of the use, and the node then lists it as attached.
//!
//! A node may get the object of its own attachment, and neither list nor watch: it looks again, ever more seldom, and as soon
//! as the node lists the volume.
//!
//! Followed: `operation_generator.go` (`GenerateVerifyControllerAttachedVolumeFunc`), `csi_attacher.go`
//! (`verifyAttachmentStatus`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proto::api::core::v1::Node;
use proto::api::storage::v1::VolumeAttachment;
use tokio::sync::watch;

use crate::volumes::claims::Claims;

const FIRST_LOOK: Duration = Duration::from_millis(200);
const LAST_LOOK: Duration = Duration::from_secs(4);
/// gRPC's `ResourceExhausted`: the attacher's word that the node can have no further volume of this driver.
const RESOURCE_EXHAUSTED: i32 = 8;

/// Why a volume is not attached; the text is the attacher's, or the kubelet's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotAttached {
    pub why: String,
    /// The node has reached its limit.
    pub exhausted: bool,
}

impl From<String> for NotAttached {
    fn from(why: String) -> Self {
        Self { why, exhausted: false }
    }
}

/// What the API server has of this node.
#[derive(Clone)]
pub struct Reported {
    /// The last change of the volumes in use that it has heard of.
    pub heard: watch::Receiver<u64>,
    /// The node, which is at least as new.
    pub node: watch::Receiver<Arc<Node>>,
}

/// A volume that the node is to list as attached.
pub struct Listed {
    pub node: Reported,
    /// As node statuses name it.
    pub volume: String,
    /// The change by which it came into use.
    pub change: u64,
}

impl Listed {
    /// What is missing, in the kubelet's words.
    fn missing(&self) -> Option<&'static str> {
        if *self.node.heard.borrow() < self.change {
            return Some("Volume has not been added to the list of VolumesInUse in the node's volume status");
        }
        (!lists(&self.node.node.borrow(), &self.volume)).then_some("Volume not attached according to node status")
    }

    /// Returns when nothing is missing.
    async fn complete(&mut self) {
        let heard = self.node.heard.wait_for(|heard| *heard >= self.change).await.is_ok();
        if !heard || self.node.node.wait_for(|node| lists(node, &self.volume)).await.is_err() {
            // The agent ends.
            std::future::pending::<()>().await;
        }
    }
}

fn lists(node: &Node, volume: &str) -> bool {
    node.status.as_ref().is_some_and(|status| status.volumes_attached.iter().any(|v| v.name == volume))
}

/// What the attacher has to say to the driver on this node, once the volume is attached; `listed` is what the node has to
/// say before, where a controller attaches.
///
/// # Errors
/// The attacher's own, or it takes longer than `patience`.
pub async fn wait(
    api: &dyn Claims,
    name: &str,
    mut listed: Option<&mut Listed>,
    patience: Duration,
) -> Result<BTreeMap<String, String>, NotAttached> {
    let mut lacks = String::new();
    let waited = tokio::time::timeout(patience, async {
        let mut wait = FIRST_LOOK;
        loop {
            // Before the attachment is read: it may be deleted until the node says that the volume is used.
            let missing = listed.as_ref().and_then(|listed| listed.missing());
            match api.attachment(name).await {
                Ok(found) => match (attached(found)?, missing) {
                    (Ok(metadata), None) => return Ok(metadata),
                    (Ok(_), Some(missing)) => lacks = missing.into(),
                    (Err(why), _) => lacks = why,
                },
                // The controller has not made it yet; before that the authorizer may not know it either.
                Err(error) if error.is_not_found() || error.code() == 403 => lacks = late(name),
                Err(error) => return Err(format!("volume attachment {name} cannot be read: {error}").into()),
            }
            match &mut listed {
                Some(listed) if missing.is_some() => tokio::select! {
                    () = listed.complete() => continue,
                    () = tokio::time::sleep(wait) => {}
                },
                _ => tokio::time::sleep(wait).await,
            }
            wait = (wait * 2).min(LAST_LOOK);
        }
    });
    let waited = waited.await;
    waited.unwrap_or_else(|_| Err(if lacks.is_empty() { late(name) } else { lacks }.into()))
}

/// What an attachment says: the attacher's data, or what it waits for.
fn attached(found: VolumeAttachment) -> Result<Result<BTreeMap<String, String>, String>, NotAttached> {
    let metadata = found.metadata.unwrap_or_default();
    if metadata.deletion_timestamp.is_some() {
        // It is made anew when it is gone, if the volume is wanted.
        return Ok(Err("volume attachment is being deleted".into()));
    }
    let status = found.status.unwrap_or_default();
    if status.attached {
        return Ok(Ok(status.attachment_metadata));
    }
    match status.attach_error {
        Some(error) => Err(NotAttached { why: error.message, exhausted: error.error_code == Some(RESOURCE_EXHAUSTED) }),
        None => Ok(Err(late(&metadata.name))),
    }
}

fn late(name: &str) -> String {
    format!("timed out waiting for external-attacher of volume attachment {name}")
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use proto::api::core::v1::{AttachedVolume, NodeStatus, PersistentVolume, PersistentVolumeClaim};
    use proto::api::storage::v1::{VolumeAttachmentStatus, VolumeError};
    use proto::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

    use super::*;
    use crate::api::ApiError;
    use crate::volumes::claims::Found;

    struct Fixed(Mutex<VolumeAttachment>);

    impl Claims for Fixed {
        fn claim<'a>(&'a self, _: &'a str, _: &'a str) -> Found<'a, PersistentVolumeClaim> {
            Box::pin(std::future::ready(Err(ApiError::Standalone)))
        }
        fn volume<'a>(&'a self, _: &'a str) -> Found<'a, PersistentVolume> {
            Box::pin(std::future::ready(Err(ApiError::Standalone)))
        }
        fn attachment<'a>(&'a self, _: &'a str) -> Found<'a, VolumeAttachment> {
            Box::pin(std::future::ready(Ok(self.0.lock().unwrap().clone())))
        }
    }

    fn attachment(attached: bool, error: &str) -> VolumeAttachment {
        let attach_error = (!error.is_empty()).then(|| VolumeError { message: error.into(), ..VolumeError::default() });
        let status = VolumeAttachmentStatus { attached, attach_error, ..VolumeAttachmentStatus::default() };
        let metadata = ObjectMeta { name: "a".into(), ..ObjectMeta::default() };
        VolumeAttachment { metadata: Some(metadata), status: Some(status), ..VolumeAttachment::default() }
    }

    fn node(volumes: &[&str]) -> Arc<Node> {
        let volumes_attached =
            volumes.iter().map(|v| AttachedVolume { name: (*v).into(), ..AttachedVolume::default() }).collect();
        let status = NodeStatus { volumes_attached, ..NodeStatus::default() };
        Arc::new(Node { status: Some(status), ..Node::default() })
    }

    /// A volume that was being detached was given to the next pod, and taken away from under it.
    #[tokio::test(start_paused = true)]
    async fn a_volume_is_attached_when_attachment_and_node_say_so_and_nobody_detaches_it() {
        let api = Fixed(Mutex::new(attachment(true, "")));
        let ((heard, hears), (nodes, sees)) = (watch::channel(0), watch::channel(node(&["other"])));
        let mut listed = Listed { node: Reported { heard: hears, node: sees }, volume: "v".into(), change: 2 };
        let second = Duration::from_secs(1);
        let why = async |listed: &mut Listed| wait(&api, "a", Some(listed), second).await.map_err(|no| no.why);
        let not_in_use = "Volume has not been added to the list of VolumesInUse in the node's volume status";
        nodes.send_replace(node(&["v"]));
        heard.send_replace(1);
        assert_eq!(why(&mut listed).await, Err(not_in_use.into()), "it may be listed from the time before");
        nodes.send_replace(node(&["other"]));
        heard.send_replace(2);
        assert_eq!(why(&mut listed).await, Err("Volume not attached according to node status".into()));
        nodes.send_replace(node(&["v"]));
        assert_eq!(why(&mut listed).await, Ok(BTreeMap::new()));
        api.0.lock().unwrap().metadata.as_mut().unwrap().deletion_timestamp = Some(Time::default());
        assert_eq!(why(&mut listed).await, Err("volume attachment is being deleted".into()));
        *api.0.lock().unwrap() = attachment(false, "");
        assert_eq!(why(&mut listed).await, Err(late("a")));
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_node_says_is_seen_at_once() {
        let api = Fixed(Mutex::new(attachment(true, "")));
        let ((heard, hears), (nodes, sees)) = (watch::channel(0), watch::channel(node(&[])));
        let mut listed = Listed { node: Reported { heard: hears, node: sees }, volume: "v".into(), change: 1 };
        let began = tokio::time::Instant::now();
        let says = async {
            tokio::time::sleep(Duration::from_secs(10)).await;
            heard.send_replace(1);
            nodes.send_replace(node(&["v"]));
        };
        let patience = Duration::from_secs(60);
        let (waited, ()) = tokio::join!(wait(&api, "a", Some(&mut listed), patience), says);
        assert_eq!((waited, began.elapsed()), (Ok(BTreeMap::new()), Duration::from_secs(10)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_counts_until_the_volume_is_attached_after_all() {
        let patience = Duration::from_secs(1);
        let refused = Fixed(Mutex::new(attachment(false, "no slot")));
        assert_eq!(wait(&refused, "a", None, patience).await, Err("no slot".to_owned().into()));
        let in_the_end = Fixed(Mutex::new(attachment(true, "no slot")));
        assert_eq!(wait(&in_the_end, "a", None, patience).await, Ok(BTreeMap::new()));
    }
}
