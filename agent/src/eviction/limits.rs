//! Limits that a pod has on the node's disk: sizes of empty directories, `ephemeral-storage` of the pod and its
//! containers. Who is above one goes, whatever the node has left.
//!
//! Followed: `localStorageEviction` of `pkg/kubelet/eviction/eviction_manager.go`.

use proto::api::core::v1::{Container, Pod};
use proto::apimachinery::pkg::api::resource::Quantity as Text;
use proto::quantity::{Format, Quantity};

use super::usage::{PodUsage, signed};
use crate::pod::quantity::whole;
use crate::pod::resources::pod_totals;
use crate::pod::spec::PodExt;

const RESOURCE: &str = "ephemeral-storage";

/// A limit that a pod is above.
#[derive(Debug, PartialEq, Eq)]
pub struct Excess {
    /// As the metric of evictions names it.
    pub signal: &'static str,
    pub message: String,
}

/// Whether there is anything to watch in a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limited {
    pub volumes: bool,
    /// Then what the containers have written counts too.
    pub storage: bool,
}

impl Limited {
    pub fn of(pod: &Pod) -> Option<Self> {
        let volumes = pod.spec().volumes.iter().any(|v| {
            let empty = v.volume_source.as_ref().and_then(|s| s.empty_dir.as_ref());
            empty.is_some_and(|e| e.size_limit.as_ref().is_some_and(|limit| whole(limit) > 0))
        });
        let storage = pod_limit(pod).is_some() || pod.spec().containers.iter().any(|c| limit_of(c).is_some());
        (volumes || storage).then_some(Limited { volumes, storage })
    }
}

/// The first limit that the pod is above. `images_apart`: layers of containers are not on the node's own file system.
pub fn exceeded(pod: &Pod, usage: &PodUsage, images_apart: bool) -> Option<Excess> {
    empty_dir(pod, usage).or_else(|| whole_pod(pod, usage)).or_else(|| container(pod, usage, images_apart))
}

fn empty_dir(pod: &Pod, usage: &PodUsage) -> Option<Excess> {
    pod.spec().volumes.iter().find_map(|volume| {
        let limit = volume.volume_source.as_ref()?.empty_dir.as_ref()?.size_limit.as_ref()?;
        let used = signed(usage.storage.volumes.get(&volume.name)?.bytes);
        let message = || format!("Usage of EmptyDir volume {:?} exceeds the limit {:?}. ", volume.name, told(limit));
        let bytes = whole(limit);
        (bytes > 0 && used > bytes).then(|| Excess { signal: "emptydirfs.limit", message: message() })
    })
}

fn whole_pod(pod: &Pod, usage: &PodUsage) -> Option<Excess> {
    let limit = pod_limit(pod)?;
    (usage.ephemeral_bytes(pod) > limit.value()).then(|| Excess {
        signal: "ephemeralpodfs.limit",
        message: format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "),
    })
}

fn container(pod: &Pod, usage: &PodUsage, images_apart: bool) -> Option<Excess> {
    pod.spec().containers.iter().find_map(|container| {
        let limit = limit_of(container)?;
        let storage = usage.container_storage(&container.name)?;
        let root = storage.root.filter(|_| !images_apart).unwrap_or_default();
        let used = signed(storage.logs.unwrap_or_default().bytes.saturating_add(root.bytes));
        (used > whole(limit)).then(|| Excess {
            signal: "ephemeralcontainerfs.limit",
            message: format!(
                "Container {} exceeded its local ephemeral storage limit {:?}. ",
                container.name,
                told(limit)
            ),
        })
    })
}

fn limit_of(container: &Container) -> Option<&Text> {
    container.resources.as_ref()?.limits.get(RESOURCE).filter(|limit| whole(limit) != 0)
}

/// Of all containers together.
fn pod_limit(pod: &Pod) -> Option<Quantity> {
    let milli = *pod_totals(pod).limits.get(RESOURCE)?;
    // The format of the first that has a limit, as a sum of quantities has it.
    let format = pod.spec().containers.iter().find_map(limit_of).and_then(|text| text.string.parse::<Quantity>().ok());
    Some(Quantity::from_milli(milli, format.map_or(Format::BinarySi, |q| q.format())))
}

/// In the form that the API gives quantities.
fn told(text: &Text) -> String {
    text.string.parse::<Quantity>().map_or_else(|_| text.string.clone(), |q| q.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{ContainerStorage, Held, PodStorage};
    use proto::api::core::v1::{EmptyDirVolumeSource, PodSpec, ResourceRequirements, Volume, VolumeSource};

    fn pod(size: Option<&str>, limit: Option<&str>) -> Pod {
        let text = |s: &str| Text { string: s.into() };
        let empty_dir = EmptyDirVolumeSource { size_limit: size.map(text), ..Default::default() };
        let source = VolumeSource { empty_dir: Some(empty_dir), ..Default::default() };
        let limits = limit.map(|l| (RESOURCE.to_owned(), text(l))).into_iter().collect();
        let container = Container {
            name: "c".into(),
            resources: Some(ResourceRequirements { limits, ..Default::default() }),
            ..Default::default()
        };
        let volume = Volume { name: "v".into(), volume_source: Some(source) };
        let spec = PodSpec { containers: vec![container], volumes: vec![volume], ..Default::default() };
        Pod { spec: Some(spec), ..Default::default() }
    }

    fn usage(volume: u64, root: u64, logs: u64) -> PodUsage {
        let held = |bytes| Held { bytes, inodes: 1 };
        let containers = [("c".to_owned(), ContainerStorage { root: Some(held(root)), logs: Some(held(logs)) })].into();
        let volumes = [("v".to_owned(), held(volume))].into();
        PodUsage { storage: PodStorage { volumes, containers, ..PodStorage::default() }, ..PodUsage::default() }
    }

    #[test]
    fn an_empty_directory_may_be_as_large_as_its_limit() {
        let pod = pod(Some("1024Ki"), None);
        assert_eq!(exceeded(&pod, &usage(1 << 20, 0, 0), false), None);
        let excess = exceeded(&pod, &usage((1 << 20) + 1, 0, 0), false).unwrap();
        assert_eq!(excess.message, "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". ");
        assert_eq!(excess.signal, "emptydirfs.limit");
    }

    #[test]
    fn storage_counts_for_the_pod_with_volumes_and_for_the_container_without() {
        let pod = pod(None, Some("1Mi"));
        assert_eq!(exceeded(&pod, &usage(1 << 19, 1 << 18, 1 << 18), false), None);
        let excess = exceeded(&pod, &usage(1 << 20, 1, 0), false).unwrap();
        assert_eq!(excess.message, "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ");
        let excess = container(&pod, &usage(0, 1 << 20, 1), false).unwrap();
        assert_eq!(excess.message, "Container c exceeded its local ephemeral storage limit \"1Mi\". ");
        assert_eq!(container(&pod, &usage(0, 1 << 30, 1), true), None, "layers are on another file system");
    }

    #[test]
    fn memory_is_no_storage_but_has_its_own_limit() {
        let mut pod = pod(Some("2Mi"), Some("1Mi"));
        let volume = &mut pod.spec.as_mut().unwrap().volumes[0];
        volume.volume_source.as_mut().unwrap().empty_dir.as_mut().unwrap().medium = "Memory".into();
        assert_eq!(exceeded(&pod, &usage(3 << 19, 0, 0), false), None);
        let excess = exceeded(&pod, &usage(3 << 20, 0, 0), false).unwrap();
        assert_eq!(excess.signal, "emptydirfs.limit");
    }

    #[test]
    fn pods_without_limits_are_not_looked_at() {
        assert_eq!(Limited::of(&pod(None, None)), None);
        assert_eq!(Limited::of(&pod(Some("1"), None)), Some(Limited { volumes: true, storage: false }));
        assert_eq!(Limited::of(&pod(None, Some("1"))), Some(Limited { volumes: false, storage: true }));
    }
}
