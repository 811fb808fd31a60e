//! Why pods do not have their volumes, and which devices they got, as events tell it.

use proto::api::core::v1::ObjectReference;
use proto::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::events::EventType;

use super::MountSource;

/// Why a volume cannot be had; the text is that of an event. Trying again later may help.
#[derive(Debug, Clone, thiserror::Error)]
pub enum VolumeError {
    #[error("MountVolume.SetUp failed for volume {volume:?} : {why}")]
    SetUp { volume: String, why: String },
    /// A volume that no node has yet, or another has. `exhausted`: this one has as many as it can have.
    #[error("AttachVolume.Attach failed for volume {volume:?} : {why}")]
    Attach { volume: String, why: String, exhausted: bool },
    /// A volume that cannot be made ready for the pods of this node.
    #[error("MountVolume.MountDevice failed for volume {volume:?} : {why}")]
    Device { volume: String, why: String },
    /// A volume that cannot be had as device.
    #[error("MapVolume.{step} failed for volume {volume:?} : {why}")]
    Map { step: &'static str, volume: String, why: String },
    /// A volume that may not be used from this node.
    #[error("MountVolume.NodeAffinity check failed for volume {volume:?} : {why}")]
    Affinity { volume: String, why: String },
    /// What some volumes are cannot be told. Names in order with spaces between; `why` is of all of them.
    #[error(
        "Unable to attach or mount volumes: unmounted volumes=[{unmounted}], unattached volumes=[{unattached}], \
         failed to process volumes=[{unprocessed}]: {why}"
    )]
    Unprocessed { unmounted: String, unattached: String, unprocessed: String, why: String },
    /// A volume that the pod has, with the files of another group.
    #[error(
        "The requested fsGroup is {}, but the volume {volume} has GID {}. The volume may not be shareable.",
        .group.wanted, .group.found
    )]
    Shared { volume: String, group: OtherGroup },
    /// A container's mount of a volume, or its removal.
    #[error("{0}")]
    Mount(String),
}

/// The group that a pod wants a volume to have, and that of the pods which have it already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherGroup {
    pub wanted: u32,
    pub found: u32,
}

impl VolumeError {
    /// Reason of the event.
    pub fn reason(&self) -> &'static str {
        match self {
            VolumeError::Map { .. } => "FailedMapVolume",
            VolumeError::Shared { .. } => "AlreadyMountedVolume",
            _ => "FailedMount",
        }
    }

    /// What one volume is cannot be told.
    pub fn unprocessed(volume: &str, why: String) -> Self {
        let volume = volume.to_owned();
        VolumeError::Unprocessed { unmounted: volume.clone(), unattached: String::new(), unprocessed: volume, why }
    }

    /// What one volume is is known, and nothing can mount it.
    pub fn unmounted(volume: &str, why: String) -> Self {
        let (unattached, unprocessed) = (String::new(), String::new());
        VolumeError::Unprocessed { unmounted: volume.to_owned(), unattached, unprocessed, why }
    }
}

/// What is to be told of volumes that a pod has.
#[derive(Debug, Default)]
pub struct Told {
    /// Those that cannot be refreshed, or that other pods have in a way of their own.
    pub stale: Vec<VolumeError>,
    /// Sentences on those that it got as devices.
    pub mapped: Vec<String>,
    /// Those that should become larger.
    pub grown: Vec<Box<Growth>>,
    /// What the pod is turned away with, should it stay so: the node has as many volumes as it can have.
    pub limit: Option<String>,
}

/// What came of making a volume of a claim larger.
#[derive(Debug, Clone, PartialEq)]
pub struct Growth {
    /// Its own name.
    pub volume: String,
    pub claim: ObjectMeta,
    /// Why it did not become larger.
    pub outcome: Result<(), String>,
}

impl Growth {
    /// Kind, reason and text of the event.
    pub fn told(&self, node: &str) -> (EventType, &'static str, String) {
        match &self.outcome {
            Ok(()) => {
                let text = format!("MountVolume.NodeExpandVolume succeeded for volume {:?} {node}", self.volume);
                (EventType::Normal, "FileSystemResizeSuccessful", text)
            }
            Err(why) => {
                let text = format!("NodeExpandVolume.NodeExpandVolume failed for volume {:?} : {why}", self.volume);
                (EventType::Warning, "VolumeResizeFailed", text)
            }
        }
    }

    /// The claim as events name it.
    pub fn claim(&self) -> ObjectReference {
        ObjectReference {
            api_version: "v1".into(),
            kind: "PersistentVolumeClaim".into(),
            namespace: self.claim.namespace.clone(),
            name: self.claim.name.clone(),
            uid: self.claim.uid.clone(),
            resource_version: self.claim.resource_version.clone(),
            ..Default::default()
        }
    }
}

impl Told {
    /// Tells of a device that the pod got just now.
    pub fn mapped(&mut self, volume: &str, source: &mut MountSource) {
        let Some(all) = source.mapped.take() else { return };
        let name = source.host_path.file_name().map_or_else(|| volume.into(), |name| name.to_string_lossy());
        let own = source.host_path.parent().unwrap_or(&source.host_path);
        let done = format!("MapVolume.MapPodDevice succeeded for volume {name:?}");
        self.mapped.push(format!("{done} globalMapPath {all:?}"));
        self.mapped.push(format!("{done} volumeMapPath {own:?}"));
    }
}

/// What is told of a pod whose volumes cannot all be had: each failed mount by itself, and those that never came to a
/// mount in one sentence that names all that is missing. `failed` has the pod's names of the volumes.
///
/// Followed: kubelet `WaitForAttachAndMount`; mounts tell of themselves.
pub fn all_told(failed: Vec<(&str, VolumeError)>) -> Vec<VolumeError> {
    let Missing { unmounted, unattached, unprocessed } = Missing::of(&failed);
    let (mut told, mut reasons) = (Vec::new(), Vec::new());
    for (_, error) in failed {
        match error {
            VolumeError::Unprocessed { why, .. } => reasons.push(why),
            error => told.push(error),
        }
    }
    if !reasons.is_empty() {
        reasons.sort_unstable();
        reasons.dedup();
        told.push(VolumeError::Unprocessed { unmounted, unattached, unprocessed, why: reasons.join("; ") });
    }
    told
}

/// The pod is turned away with this where the node can have no further volume, once it has waited for as long as it may;
/// `None` where nothing failed for that. `failed` has the pod's names of the volumes.
///
/// Followed: kubelet `VolumeAttachLimitExceededError`.
pub fn limit_exceeded(failed: &[(&str, VolumeError)]) -> Option<String> {
    let exhausted = |error: &VolumeError| matches!(error, VolumeError::Attach { exhausted: true, .. });
    failed.iter().any(|(_, error)| exhausted(error)).then(|| {
        let Missing { unmounted, unattached, unprocessed } = Missing::of(failed);
        format!(
            "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[{unmounted}], unattached \
             volumes=[{unattached}], failed to process volumes=[{unprocessed}]: context deadline exceeded"
        )
    })
}

/// A pod's names of the volumes that it does not have, in order with spaces between.
struct Missing {
    unmounted: String,
    unattached: String,
    unprocessed: String,
}

impl Missing {
    fn of(failed: &[(&str, VolumeError)]) -> Self {
        let names = |of: &dyn Fn(&VolumeError) -> bool| {
            let mut names: Vec<&str> = failed.iter().filter(|(_, error)| of(error)).map(|(name, _)| *name).collect();
            names.sort_unstable();
            names.join(" ")
        };
        let has = |error: &VolumeError| matches!(error, VolumeError::Unprocessed { unprocessed, .. } if !unprocessed.is_empty());
        Self {
            unmounted: names(&|_| true),
            unattached: names(&|error| matches!(error, VolumeError::Attach { .. })),
            unprocessed: names(&has),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_told_of_once() {
        let host_path = "/r/pods/u/volumeDevices/kubernetes.io~csi/pv".into();
        let mut source = MountSource { host_path, block: true, mapped: Some("/r/all/pv".into()), ..Default::default() };
        let mut told = Told::default();
        told.mapped("data", &mut source);
        told.mapped("data", &mut source);
        assert_eq!(
            told.mapped,
            [
                "MapVolume.MapPodDevice succeeded for volume \"pv\" globalMapPath \"/r/all/pv\"",
                "MapVolume.MapPodDevice succeeded for volume \"pv\" volumeMapPath \"/r/pods/u/volumeDevices/kubernetes.io~csi\"",
            ]
        );
        let error = VolumeError::Map { step: "WaitForAttach", volume: "pv".into(), why: "no".into() };
        assert_eq!(
            (error.reason(), error.to_string().as_str()),
            ("FailedMapVolume", "MapVolume.WaitForAttach failed for volume \"pv\" : no")
        );
    }

    #[test]
    fn another_group_is_told_of_in_the_kubelets_words() {
        let error = VolumeError::Shared { volume: "pv".into(), group: OtherGroup { wanted: 2, found: 1 } };
        let text = "The requested fsGroup is 2, but the volume pv has GID 1. The volume may not be shareable.";
        assert_eq!((error.reason(), error.to_string().as_str()), ("AlreadyMountedVolume", text));
    }

    #[test]
    fn growing_is_told_in_the_kubelets_words() {
        let growth = |outcome| Growth { volume: "pv".into(), claim: ObjectMeta::default(), outcome }.told("n");
        let text = "MountVolume.NodeExpandVolume succeeded for volume \"pv\" n".to_owned();
        assert_eq!(growth(Ok(())), (EventType::Normal, "FileSystemResizeSuccessful", text));
        let text = "NodeExpandVolume.NodeExpandVolume failed for volume \"pv\" : no".to_owned();
        assert_eq!(growth(Err("no".into())), (EventType::Warning, "VolumeResizeFailed", text));
    }

    #[test]
    fn mounts_tell_of_themselves_and_the_rest_in_one_sentence() {
        let set_up = VolumeError::SetUp { volume: "cm".into(), why: "configmap \"x\" not found".into() };
        let attach = VolumeError::Attach { volume: "pv".into(), why: "not yet".into(), exhausted: false };
        let failed = vec![
            ("z", VolumeError::unprocessed("z", "error processing PVC n/z: PVC is not bound".into())),
            ("cm", set_up.clone()),
            ("disk", attach.clone()),
            ("b", VolumeError::unprocessed("b", "error processing PVC n/b: PVC is not bound".into())),
            ("raw", VolumeError::unmounted("raw", "no plugin".into())),
        ];
        let told: Vec<String> = all_told(failed).iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "MountVolume.SetUp failed for volume \"cm\" : configmap \"x\" not found",
                "AttachVolume.Attach failed for volume \"pv\" : not yet",
                "Unable to attach or mount volumes: unmounted volumes=[b cm disk raw z], unattached volumes=[disk], failed to \
                 process volumes=[b z]: error processing PVC n/b: PVC is not bound; error processing PVC n/z: PVC is not \
                 bound; no plugin",
            ]
        );
        let told = all_told(vec![("cm", VolumeError::SetUp { volume: "cm".into(), why: "no".into() })]);
        assert_eq!(told.len(), 1);
    }

    #[test]
    fn a_full_node_turns_a_pod_away_in_the_kubelets_words() {
        let attach = |exhausted| VolumeError::Attach { volume: "pv".into(), why: "too many".into(), exhausted };
        let other = VolumeError::unprocessed("b", "PVC is not bound".into());
        assert_eq!(limit_exceeded(&[("disk", attach(false)), ("b", other.clone())]), None);
        assert_eq!(
            limit_exceeded(&[("disk", attach(true)), ("a", attach(false)), ("b", other)]).as_deref(),
            Some(
                "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[a b disk], unattached \
                 volumes=[a disk], failed to process volumes=[b]: context deadline exceeded"
            )
        );
    }
}
