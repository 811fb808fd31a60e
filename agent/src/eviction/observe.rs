//! Reads what the thresholds are about, and nothing else.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use proto::api::core::v1::Pod;

use super::pressure::{Disks, Observation, Observations};
use super::rank::Usages;
use super::usage::{PodUsage, signed};
use crate::config::{Signal, Threshold};
use crate::cri::CriError;
use crate::stats::{FileSystem, Left, Stats, file_system};

/// Looks at the node, and at pods when one of them has to go.
pub struct Observer {
    pub stats: Stats,
    root_dir: PathBuf,
    images: Option<PathBuf>,
    containers: Option<PathBuf>,
    pub disks: Disks,
}

impl Observer {
    /// Finds out which file systems there are.
    ///
    /// # Errors
    /// The runtime does not say where its own are.
    pub async fn new(stats: Stats, root_dir: PathBuf) -> Result<Self, (Stats, CriError)> {
        let paths = match stats.runtime_paths().await {
            Ok(paths) => paths,
            Err(error) => return Err((stats, error)),
        };
        let containers = paths.containers.or_else(|| paths.images.clone());
        let mut observer = Observer { stats, root_dir, images: paths.images, containers, disks: Disks::default() };
        let (node, images, containers) = observer.file_systems().await;
        let differ =
            |a: Option<FileSystem>, b: Option<FileSystem>| matches!((a, b), (Some(a), Some(b)) if a.id != b.id);
        observer.disks = Disks { images_apart: differ(node, images), containers_split: differ(images, containers) };
        Ok(observer)
    }

    /// Of the node's own files, the images and the containers.
    async fn file_systems(&self) -> (Option<FileSystem>, Option<FileSystem>, Option<FileSystem>) {
        let (root, images, containers) = (self.root_dir.clone(), self.images.clone(), self.containers.clone());
        let look = move || {
            let of = |path: Option<PathBuf>| path.and_then(|p| file_system(&p));
            (file_system(&root), of(images), of(containers))
        };
        tokio::task::spawn_blocking(look).await.unwrap_or_default()
    }

    /// What there is of everything that a threshold names.
    pub async fn observe(&self, thresholds: &[Threshold]) -> Observations {
        let wanted: BTreeSet<Signal> = thresholds.iter().map(|t| t.signal).collect();
        let mut seen = Observations::new();
        let disks = wanted.iter().any(|s| s.condition() == super::pressure::Condition::Disk);
        let (node, images, containers) = if disks { self.file_systems().await } else { Default::default() };
        for signal in wanted {
            let left = match signal {
                Signal::MemoryAvailable => Stats::memory_left(),
                Signal::AllocatableMemoryAvailable => Stats::memory_left_to_pods(),
                Signal::PidAvailable => Stats::processes_left(),
                Signal::NodefsAvailable => node.map(|f| f.bytes),
                Signal::NodefsInodesFree => node.and_then(inodes),
                Signal::ImagefsAvailable => images.map(|f| f.bytes),
                Signal::ImagefsInodesFree => images.and_then(inodes),
                Signal::ContainerfsAvailable => containers.map(|f| f.bytes),
                Signal::ContainerfsInodesFree => containers.and_then(inodes),
            };
            match left {
                Some(Left { available, capacity }) => {
                    seen.insert(signal, Observation { available: signed(available), capacity: signed(capacity) });
                }
                None => tracing::debug!(signal = signal.name(), "nothing is known about an eviction signal"),
            }
        }
        seen
    }

    /// What pods use of what a signal is about.
    pub async fn usages(&self, pods: &[Arc<Pod>], signal: Signal) -> Usages {
        if signal.condition() == super::pressure::Condition::Disk {
            return self.storage(pods, true).await;
        }
        let summary = match self.stats.summary(true).await {
            Ok(summary) => summary,
            Err(error) => {
                tracing::warn!(%error, "the runtime does not say what runs; evicting by priority alone");
                return HashMap::new();
            }
        };
        let usage = summary.pods.into_iter().map(|pod| {
            let working_set =
                |memory: Option<&crate::stats::Memory>| memory.and_then(|m| m.working_set_bytes).map(signed);
            let containers = pod.containers.iter();
            let usage = PodUsage {
                memory: working_set(pod.usage.memory.as_ref()).unwrap_or(0),
                processes: pod.processes.map_or(0, |p| signed(p.process_count)),
                container_memory: containers
                    .filter_map(|c| Some((c.name.clone(), working_set(c.usage.memory.as_ref())?)))
                    .collect(),
                ..PodUsage::default()
            };
            (pod.pod_ref.uid, usage)
        });
        usage.collect()
    }

    /// What pods hold on disk; with the layers of their containers too where `with_layers`.
    pub async fn storage(&self, pods: &[Arc<Pod>], with_layers: bool) -> Usages {
        let found = self.stats.storage(pods, with_layers).await;
        found.into_iter().map(|(uid, storage)| (uid, PodUsage { storage, ..PodUsage::default() })).collect()
    }
}

/// File systems that make inodes as they need them count none.
fn inodes(found: FileSystem) -> Option<Left> {
    Some(found.inodes).filter(|i| i.capacity > 0)
}
