//! What a pod uses of what runs short, for ranking and for the words of its end.

use std::collections::BTreeMap;

use proto::api::core::v1::{Pod, Volume};

use super::pressure::Disks;
use crate::config::Signal;
use crate::pod::resources::pod_totals;
use crate::pod::spec::PodExt;
use crate::stats::{ContainerStorage, Held, PodStorage};

/// Of one pod. What was not measured is empty.
#[derive(Debug, Clone, Default)]
pub struct PodUsage {
    /// Working set in bytes.
    pub memory: i64,
    pub processes: i64,
    /// Working sets by container.
    pub container_memory: BTreeMap<String, i64>,
    pub storage: PodStorage,
}

/// Which parts of a pod lie on the file system that a signal is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    pub roots: bool,
    pub logs: bool,
    pub volumes: bool,
}

impl Parts {
    pub fn of(signal: Signal, disks: Disks) -> Self {
        let everything = Parts { roots: true, logs: true, volumes: true };
        let image_fs = matches!(signal, Signal::ImagefsAvailable | Signal::ImagefsInodesFree);
        let container_fs = matches!(signal, Signal::ContainerfsAvailable | Signal::ContainerfsInodesFree);
        match (disks.images_apart, disks.containers_split) {
            (true, false) if image_fs || container_fs => Parts { roots: true, logs: false, volumes: false },
            (true, false) => Parts { roots: false, ..everything },
            // Images alone are on that file system, and they are no pod's.
            (true, true) if image_fs => Parts { roots: false, logs: false, volumes: false },
            _ => everything,
        }
    }
}

impl PodUsage {
    /// Bytes and inodes of the pod in those parts.
    pub fn disk(&self, pod: &Pod, parts: Parts) -> Held {
        let containers = self.storage.containers.values().map(|c| {
            let root = c.root.filter(|_| parts.roots).unwrap_or_default();
            sum(root, c.logs.filter(|_| parts.logs).unwrap_or_default())
        });
        let local = pod.spec().volumes.iter().filter(|v| parts.volumes && is_local(v));
        let volumes = local.filter_map(|v| self.storage.volumes.get(&v.name).copied());
        containers.chain(volumes).fold(Held::default(), sum)
    }

    /// All that the pod holds on the node's disks, and that its limit is about.
    pub fn ephemeral_bytes(&self, pod: &Pod) -> i64 {
        let all = self.disk(pod, Parts { roots: true, logs: true, volumes: true });
        signed(sum(all, self.storage.other).bytes)
    }

    /// What a container has written.
    pub fn container_storage(&self, name: &str) -> Option<&ContainerStorage> {
        self.storage.containers.get(name)
    }
}

fn sum(a: Held, b: Held) -> Held {
    Held { bytes: a.bytes.saturating_add(b.bytes), inodes: a.inodes.saturating_add(b.inodes) }
}

pub fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A volume whose content is the pod's own and on the node's disk.
pub fn is_local(volume: &Volume) -> bool {
    volume.volume_source.as_ref().is_some_and(|source| {
        source.git_repo.is_some()
            || source.config_map.is_some()
            || source.empty_dir.as_ref().is_some_and(|e| e.medium.is_empty())
    })
}

/// What the pod requests of a resource, in whole units.
pub fn requested(pod: &Pod, resource: &str) -> i64 {
    pod_totals(pod).requests.get(resource).map_or(0, |milli| milli.div_euclid(1000) + i64::from(milli % 1000 != 0))
}
