//! What the node, its pods and their containers use: read when somebody asks, never before.
//!
//! The runtime is asked what runs, when something has moved there since it was asked last, and once per container for a
//! process in it; everything else is read from the cgroup that the process is in. Rates need an earlier reading: that of the last request, or one taken a moment before.
//!
//! Followed: kubelet `stats/cri_stats_provider.go`, stats API v1alpha1.

mod cadvisor;
mod cgroup;
mod detail;
mod disk_usage;
mod exposition;
mod file_systems;
mod files;
mod left;
mod local_storage;
mod logs;
mod mounted;
mod network;
mod processes;
mod running;
mod still;
mod summary;
mod used;
mod volumes;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use proto::cri;
use tokio::time::Instant;

pub use self::cadvisor::SCRAPE_ERROR;
use self::cgroup::{Cgroup, Reading, Wanted};
use self::disk_usage::Asker;
pub use self::disk_usage::{Held, Walks};
pub use self::exposition::resource_metrics;
pub use self::left::{FileSystem, Left, file_system};
pub use self::local_storage::{ContainerStorage, PodStorage};
pub use self::running::RunningPod;
pub use self::summary::{Memory, Summary};
pub use self::used::Used;
use crate::cri::{CriClient, CriError};
use crate::csi::Drivers;
use crate::metrics::{Labels, Snapshot};
use crate::pod::labels;

/// Time between the two readings of a rate when nobody has asked lately.
const MOMENT: Duration = Duration::from_millis(200);
/// An earlier reading older than this says little about now.
const STALE: Duration = Duration::from_secs(120);

/// A container or sandbox as its process leads to it.
#[derive(Debug)]
struct Found {
    id: String,
    /// As the runtime was asked for it.
    image: String,
    pid: u32,
    cgroup: Cgroup,
    /// The cgroup around it: its pod's, where pods have cgroups.
    around: Option<Cgroup>,
    /// Nanoseconds since 1970.
    started_at: i64,
    /// What its rows on the page that is scraped most are called by: of a sandbox the pod's.
    labels: OnceLock<Labels>,
}

/// What runs of one pod.
#[derive(Debug, Default)]
struct PodFound {
    name: String,
    namespace: String,
    created_at: i64,
    sandbox: Option<Arc<Found>>,
    containers: Vec<(String, Arc<Found>)>,
}

impl PodFound {
    /// The labels of a container of this pod, or without a name of its sandbox. Made once for each of them.
    fn labels_of(&self, found: &Found, container: Option<&str>) -> Labels {
        let made = || {
            let of_pod = [("namespace", self.namespace.clone()), ("pod", self.name.clone())];
            container.map(|name| ("container", name.to_owned())).into_iter().chain(of_pod).collect()
        };
        found.labels.get_or_init(made).clone()
    }
}

/// A reading and the rate since the one before, in billionths of a core.
#[derive(Debug, Clone, Default)]
struct Measured {
    reading: Reading,
    nano_cores: Option<u64>,
}

/// CPU time at an earlier request, and the rate that ended there.
#[derive(Debug, Clone, Copy)]
struct Before {
    at: Instant,
    cpu_nanos: u64,
    nano_cores: Option<u64>,
}

impl Before {
    /// The first look.
    fn new(at: Instant, cpu_nanos: u64) -> Self {
        Before { at, cpu_nanos, nano_cores: None }
    }

    /// The rate up to now, from which the next one is taken; sooner than after a [`MOMENT`] it is the one before. `None`
    /// where there is none yet.
    fn rate(&mut self, now: Instant, cpu_nanos: u64) -> Option<u64> {
        let passed = now.duration_since(self.at);
        if passed >= MOMENT {
            let used = u128::from(cpu_nanos.saturating_sub(self.cpu_nanos)) * 1_000_000_000;
            let nano_cores = u64::try_from(used / passed.as_nanos()).ok();
            *self = Before { at: now, cpu_nanos, nano_cores };
        }
        self.nano_cores
    }
}

/// Where things are that are looked at.
struct Places {
    node: String,
    root_dir: PathBuf,
    pod_logs_dir: PathBuf,
    /// They tell how full their volumes are.
    drivers: Arc<Drivers>,
    /// Shared with all who look at the same folders.
    walks: Arc<Walks>,
}

/// What runs, by pod uid.
type Pods = BTreeMap<String, PodFound>;

/// Reads statistics on demand.
pub struct Stats {
    cri: CriClient,
    /// What ran when so much had moved.
    ran: Mutex<Option<(u64, Arc<Pods>)>>,
    places: Arc<Places>,
    /// Pods have cgroups around their containers'.
    pods_have_cgroups: bool,
    /// The cgroup of everything.
    root: Cgroup,
    logs: Arc<logs::Looked>,
    /// Those of the volumes that may hang.
    file_systems: file_systems::FileSystems,
    found: Arc<Mutex<HashMap<String, Arc<Found>>>>,
    /// When somebody asked last, as long as files are kept open for him.
    asked: Arc<Mutex<Option<Instant>>>,
    /// By cgroup, what the next rates are taken from.
    before: Mutex<HashMap<String, Before>>,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stats {
    /// `walks` is one for the whole agent, so that each folder is counted once for all who ask.
    pub fn new(
        cri: CriClient,
        node: &str,
        (root_dir, pod_logs_dir): (PathBuf, PathBuf),
        pods_have_cgroups: bool,
        drivers: Arc<Drivers>,
        walks: Arc<Walks>,
    ) -> Self {
        Stats {
            cri,
            ran: Mutex::default(),
            places: Arc::new(Places { node: node.to_owned(), root_dir, pod_logs_dir, drivers, walks }),
            pods_have_cgroups,
            root: Cgroup::root(),
            logs: Arc::default(),
            file_systems: file_systems::FileSystems::default(),
            found: Arc::default(),
            asked: Arc::default(),
            before: Mutex::default(),
        }
    }

    /// Everything of `/stats/summary`; without disks and networks when `only_cpu_and_memory`.
    ///
    /// # Errors
    /// The runtime does not say what runs.
    pub async fn summary(&self, only_cpu_and_memory: bool) -> Result<Summary, CriError> {
        let pods = self.pods().await?;
        let mut measured = self.measure(&pods);
        if measured.values().any(|m| m.nano_cores.is_none() && m.reading.cpu_nanos.is_some()) {
            tokio::time::sleep(MOMENT).await;
            measured = self.measure(&pods);
        }
        let image_fs = match only_cpu_and_memory {
            true => None,
            // Without it the rest is still worth having.
            false => self.cri.image_fs_info(cri::ImageFsInfoRequest {}).await.ok(),
        };
        let layers =
            if only_cpu_and_memory { HashMap::new() } else { self.layers(|container| Some(container.id)).await };
        let file_systems = match only_cpu_and_memory {
            true => HashMap::new(),
            false => self.file_systems.of_pods(&self.places.root_dir, &pods).await,
        };
        // Counting in large folders ends with this question.
        let asker = Asker::default();
        let (places, given_up) = (self.places.clone(), asker.given_up());
        let build = move || {
            let looked = summary::Looked { images: image_fs.as_ref(), layers: &layers, file_systems: &file_systems };
            summary::build(&places, &given_up, &pods, &measured, &looked, only_cpu_and_memory)
        };
        if only_cpu_and_memory {
            return Ok(build());
        }
        // The pods must not wait for it. A fault in there is one of this program.
        let built = tokio::task::spawn_blocking(build).await;
        drop(asker);
        built.map_err(|error| CriError::internal(format!("the summary broke off: {error}")))
    }

    /// What `/metrics/resource` has: CPU time, working set and swap of node, pods and containers, and no rates.
    ///
    /// # Errors
    /// The runtime does not say what runs.
    pub async fn used(&self) -> Result<Used, CriError> {
        let pods = self.pods().await?;
        Ok(tokio::task::block_in_place(|| Used::read(pods, &self.root)))
    }

    /// What containers have written into their file systems, where the runtime says so, by what `key` makes of them.
    async fn layers<K: Eq + Hash>(&self, key: impl Fn(cri::ContainerAttributes) -> Option<K>) -> HashMap<K, Held> {
        let answer = match self.cri.list_container_stats(cri::ListContainerStatsRequest::default()).await {
            Ok(answer) => answer.stats,
            Err(error) => {
                tracing::debug!(%error, "the runtime tells no statistics");
                return HashMap::new();
            }
        };
        let layer = |stats: cri::ContainerStats| {
            let layer = stats.writable_layer?;
            let inodes = layer.inodes_used.map_or(0, |n| n.value);
            Some((key(stats.attributes?)?, Held { bytes: layer.used_bytes?.value, inodes }))
        };
        answer.into_iter().filter_map(layer).collect()
    }

    /// Everything of `/metrics/cadvisor`. `now` is in milliseconds since 1970.
    ///
    /// # Errors
    /// The runtime does not say what runs.
    pub async fn containers(&self, now: i64) -> Result<Vec<Snapshot>, CriError> {
        let pods = self.pods().await?;
        let read = tokio::task::spawn_blocking(move || cadvisor::collect(&pods, now));
        read.await.map_err(|error| CriError::internal(format!("reading broke off: {error}")))
    }

    /// Pods with a ready sandbox and their running containers, as the runtime has them.
    ///
    /// # Errors
    /// The runtime does not say.
    pub async fn running(&self) -> Result<Vec<RunningPod>, CriError> {
        let (sandboxes, containers) = (self.cri.list_pod_sandboxes(None).await?, self.cri.list_containers(None).await?);
        let ready = sandboxes.into_iter().filter(|s| s.state == cri::PodSandboxState::SandboxReady as i32);
        Ok(ready.map(|sandbox| RunningPod::of(sandbox, &containers)).collect())
    }

    /// What runs. The runtime is asked only when something may have moved since the last time: its lists of a hundred pods
    /// cost as much as all their cgroups.
    async fn pods(&self) -> Result<Arc<Pods>, CriError> {
        let moved = self.cri.moves().count();
        let known = locked(&self.ran).as_ref().filter(|(then, _)| Some(*then) == moved).map(|(_, pods)| pods.clone());
        let pods = match known {
            Some(pods) => pods,
            None => {
                let (pods, whole) = self.listed().await?;
                let pods = Arc::new(pods);
                *locked(&self.ran) = moved.filter(|_| whole).map(|moved| (moved, pods.clone()));
                pods
            }
        };
        self.close_later();
        Ok(pods)
    }

    /// What runs, as the runtime lists it, and whether the place of all of it was found.
    async fn listed(&self) -> Result<(Pods, bool), CriError> {
        let (sandboxes, containers) = (self.cri.list_pod_sandboxes(None).await?, self.cri.list_containers(None).await?);
        let mut pods = Pods::new();
        let (mut alive, mut whole) = (HashSet::new(), true);
        for sandbox in sandboxes.iter().filter(|s| s.state == cri::PodSandboxState::SandboxReady as i32) {
            let Some(metadata) = &sandbox.metadata else { continue };
            alive.insert(sandbox.id.clone());
            let found = self.find(&sandbox.id, sandbox.created_at, None).await;
            whole &= found.is_some();
            let pod = pods.entry(metadata.uid.clone()).or_default();
            (pod.name, pod.namespace) = (metadata.name.clone(), metadata.namespace.clone());
            (pod.created_at, pod.sandbox) = (sandbox.created_at, found);
        }
        for container in containers.iter().filter(|c| c.state == cri::ContainerState::ContainerRunning as i32) {
            let label = |key: &str| container.labels.get(key).cloned().unwrap_or_default();
            let Some(pod) = pods.get_mut(&label(labels::POD_UID)) else { continue };
            alive.insert(container.id.clone());
            let image = container.image.as_ref().map_or("", |i| match i.user_specified_image.as_str() {
                "" => i.image.as_str(),
                written => written,
            });
            match self.find(&container.id, container.created_at, Some(image)).await {
                Some(found) => pod.containers.push((label(labels::CONTAINER_NAME), found)),
                None => whole = false,
            }
        }
        locked(&self.found).retain(|id, _| alive.contains(id));
        Ok((pods, whole))
    }

    /// Sees to it that files are not kept open for somebody who has stopped asking.
    fn close_later(&self) {
        if locked(&self.asked).replace(Instant::now()).is_some() {
            return;
        }
        let (found, asked, root) = (self.found.clone(), self.asked.clone(), self.root.clone());
        tokio::spawn(async move {
            loop {
                let Some(end) = locked(&asked).map(|at| at + STALE) else { return };
                tokio::time::sleep_until(end).await;
                let mut asked = locked(&asked);
                if asked.is_some_and(|at| at + STALE <= Instant::now()) {
                    *asked = None;
                    break;
                }
            }
            root.close();
            for found in locked(&found).values() {
                found.cgroup.close();
                found.around.iter().for_each(Cgroup::close);
            }
        });
    }

    /// Where a container's process is. Asked once: neither changes while it runs.
    /// `image` is `None` for a sandbox.
    async fn find(&self, id: &str, created_at: i64, image: Option<&str>) -> Option<Arc<Found>> {
        if let Some(found) = locked(&self.found).get(id) {
            return Some(found.clone());
        }
        let is_sandbox = image.is_none();
        let (started_at, info) = match is_sandbox {
            true => (created_at, self.cri.pod_sandbox_info(id).await.ok()?),
            false => {
                let answer = self.cri.container_status_verbose(id, true).await.ok()?;
                (answer.status.map_or(created_at, |s| s.started_at), answer.info)
            }
        };
        let info: serde_json::Value = serde_json::from_str(info.get("info")?).ok()?;
        let pid = u32::try_from(info.get("pid")?.as_u64()?).ok().filter(|pid| *pid > 0)?;
        let image = image.or_else(|| info.get("image")?.as_str()).unwrap_or_default().to_owned();
        let cgroup = Cgroup::of_process(pid).ok()?;
        // A sandbox shows the way to its pod's.
        let around = cgroup.parent().filter(|_| is_sandbox && self.pods_have_cgroups);
        let labels = OnceLock::new();
        let found = Arc::new(Found { id: id.to_owned(), image, pid, cgroup, around, started_at, labels });
        locked(&self.found).insert(id.to_owned(), found.clone());
        Some(found)
    }

    /// The cgroups of pods and containers by [`pod_key`] and [`container_key`]; a sandbox's only where no pod's is around
    /// it.
    fn cgroups_of(&self, pods: &Pods) -> Vec<(String, Cgroup)> {
        let mut found = Vec::with_capacity(pods.len() * 2);
        for (uid, pod) in pods {
            let of_container = |(name, found): &(String, Arc<Found>)| (container_key(uid, name), found.cgroup.clone());
            found.extend(pod.containers.iter().map(of_container));
            let Some(sandbox) = &pod.sandbox else { continue };
            found.push(match &sandbox.around {
                Some(around) => (pod_key(uid), around.clone()),
                None => (sandbox_key(uid), sandbox.cgroup.clone()),
            });
        }
        found
    }

    /// Readings by [`node_key`], [`own_key`], [`pods_key`], and those of [`Stats::cgroups_of`]. The files of a hundred pods
    /// take a moment, in which others go on.
    fn measure(&self, pods: &Pods) -> HashMap<String, Measured> {
        let mut cgroups = vec![(node_key(), self.root.clone())];
        cgroups.extend(Cgroup::of_process(std::process::id()).ok().map(|own| (own_key(), own)));
        cgroups.extend(Cgroup::of_pods().filter(|_| self.pods_have_cgroups).map(|all| (pods_key(), all)));
        cgroups.extend(self.cgroups_of(pods));
        let read = |(key, cgroup): (String, Cgroup)| (key, cgroup.read(Wanted::Everything));
        let readings: HashMap<String, Reading> =
            tokio::task::block_in_place(|| cgroups.into_iter().map(read).collect());
        let now = Instant::now();
        let mut before = locked(&self.before);
        before.retain(|key, last| readings.contains_key(key) && now.duration_since(last.at) < STALE);
        let rated = readings.into_iter().map(|(key, reading)| {
            let nano_cores = reading.cpu_nanos.and_then(|cpu| match before.get_mut(&key) {
                Some(last) => last.rate(now, cpu),
                None => {
                    before.insert(key.clone(), Before::new(now, cpu));
                    None
                }
            });
            (key, Measured { reading, nano_cores })
        });
        rated.collect()
    }
}

fn node_key() -> String {
    String::new()
}

fn pod_key(uid: &str) -> String {
    uid.to_owned()
}

/// All pods together.
fn pods_key() -> String {
    "/pods".into()
}

/// This agent.
fn own_key() -> String {
    "/agent".into()
}

fn sandbox_key(uid: &str) -> String {
    format!("{uid}//")
}

fn container_key(uid: &str, name: &str) -> String {
    format!("{uid}/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who asked twice within a moment used to wait for another one, and everything was read twice for him.
    #[test]
    fn a_rate_holds_for_a_moment() {
        let begun = Instant::now();
        let mut last = Before::new(begun, 1000);
        let mut rate = |millis: u64, cpu: u64| last.rate(begun + Duration::from_millis(millis), cpu);
        assert_eq!(rate(0, 1000), None);
        assert_eq!(rate(199, 5000), None, "too short to say");
        assert_eq!(rate(500, 501_000), Some(1_000_000), "half a millisecond in half a second");
        assert_eq!(rate(600, 900_000), Some(1_000_000));
        assert_eq!(rate(1500, 501_000), Some(0), "since the last one that counted");
        // A cgroup that began again.
        assert_eq!(rate(2500, 7), Some(0));
        assert_eq!(rate(3500, 1_000_007), Some(1_000_000));
    }
}
