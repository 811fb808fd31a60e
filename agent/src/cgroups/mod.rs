//! The cgroups that pods run in: one parent for all, one for each QoS tier, one for each pod.
//!
//! In reduced mode (`cgroupsPerQOS: false`) the agent owns none and the runtime chooses. Otherwise the parent is made at
//! start with what the reservations leave, a pod's cgroup before its first sandbox, and a pod's cgroup is removed with
//! everything in it when the pod is gone. cgroup v2 only.
//!
//! Followed: kubelet `pkg/kubelet/cm`.

mod limits;
mod name;
mod systemd;
mod tree;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto::api::core::v1::Pod;

pub use limits::{Limits, burstable_milli_cpu, kubepods_limits, pod_limits, reserved_limits};
pub use name::{CgroupName, Driver};
pub use tree::{CgroupError, Tree};

use crate::config::Configuration;
use crate::cri::CriClient;
use crate::metrics;
use crate::node::Resources;
use crate::pod::memory_qos::Kept;
use crate::pod::resources::{MIN_SHARES, NodeResources, QosClass, milli_cpu_to_shares, qos_class};
use crate::pod::spec::PodExt;

/// Where cgroup v2 is mounted.
pub const MOUNT: &str = "/sys/fs/cgroup";
/// Whether cgroups are those of version 2.
pub fn is_unified() -> bool {
    Path::new(MOUNT).join("cgroup.controllers").exists()
}

/// A runtime that has just started may not answer yet.
const ASK_AGAIN: Duration = Duration::from_secs(2);

const TIERS: [QosClass; 3] = [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort];

/// Why pods cannot have cgroups; the operator's to mend.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(
        "cgroupsPerQOS needs cgroup v2 at {MOUNT} with its controllers; set cgroupsPerQOS: false and \
         enforceNodeAllocatable: [none] to leave cgroups to the runtime ({0})"
    )]
    NoHierarchy(CgroupError),
    #[error("cannot make the cgroup of all pods: {0}")]
    Parent(#[from] Failure),
    /// Of `enforceNodeAllocatable`; `which` is System or Kube.
    #[error("Failed to enforce {which} Reserved Cgroup Limits on {name:?}: {reason}")]
    Reserved { which: &'static str, name: String, reason: String },
}

/// Why one cgroup could not be made, limited or removed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Kernel(#[from] CgroupError),
    #[error(transparent)]
    Systemd(#[from] systemd::SystemdError),
}

/// What the cgroups are made from.
pub struct Settings {
    pub mount: PathBuf,
    pub driver: Driver,
    /// `cgroupRoot`.
    pub root: String,
    pub node: NodeResources,
    pub pod_pids_limit: i64,
}

/// The cgroups of this node's pods.
pub struct Cgroups {
    /// `None` in reduced mode.
    owned: Option<Owned>,
    /// `cgroupRoot` as it is handed on in reduced mode.
    root: String,
}

struct Owned {
    settings: Settings,
    tree: Tree,
    parent: CgroupName,
    pods: Mutex<Pods>,
}

/// The pods that have, or are about to have, a cgroup.
#[derive(Default)]
struct Pods {
    /// Milli-CPU that each asks for as part of the Burstable tier, and the memory that is kept for it, by uid.
    asked: HashMap<String, (i64, Kept)>,
    /// Their sums, kept so that a pod costs one addition.
    sum: i64,
    kept: Kept,
    /// What the tiers last had of it; None where that failed.
    given: Option<Kept>,
    /// What the Burstable tier was last given; None where that failed.
    shares: Option<i64>,
}

/// The version from which on kubelets want a runtime that says which driver it uses.
const LOSES_SUPPORT: &str = "1.37.0";

/// Whom the runtime wants to make cgroups: asked three times, else as configured.
pub async fn driver(cri: &CriClient, config: &Configuration) -> Driver {
    let configured = Driver::named(&config.cgroup_driver);
    for attempt in 1..=3 {
        match cri.runtime_config(proto::cri::RuntimeConfigRequest {}).await {
            Ok(answer) => {
                return match answer.linux.map(|l| l.cgroup_driver()) {
                    Some(proto::cri::CgroupDriver::Systemd) => Driver::Systemd,
                    Some(proto::cri::CgroupDriver::Cgroupfs) => Driver::Cgroupfs,
                    None => configured,
                };
            }
            Err(error) if error.is_unimplemented() => {
                metrics::RUNTIME_LOSING_SUPPORT.set(&[LOSES_SUPPORT], 1.0);
                break;
            }
            Err(error) => {
                tracing::warn!(%error, attempt, "the runtime does not say which cgroup driver it uses");
                tokio::time::sleep(ASK_AGAIN).await;
            }
        }
    }
    configured
}

/// Whether `cgroupRoot` is there, below the hierarchy at `mount`; the top itself always is. Controllers that it lacks are
/// this agent's to enable.
///
/// # Errors
/// In the kubelet's words.
pub fn check_root(mount: &Path, root: &str, driver: Driver) -> Result<(), String> {
    let parts: Vec<String> = root.split('/').filter(|part| !part.is_empty()).map(|part| format!("{part:?}")).collect();
    if parts.is_empty() || !mount.join("cgroup.controllers").exists() {
        return Ok(());
    }
    let path = mount.join(CgroupName::of_root(root).path(driver)).join("cgroup.controllers");
    std::fs::metadata(&path).map(drop).map_err(|error| {
        let (named, why) = (parts.join(" "), crate::api::io_words(&error));
        format!(
            "invalid configuration: could not read controllers for cgroup [{named}]: open {}: {why}",
            path.display()
        )
    })
}

impl Cgroups {
    /// Reduced mode: the agent makes no cgroups.
    pub fn reduced(config: &Configuration) -> Self {
        Self { owned: None, root: config.cgroup_root.clone() }
    }

    /// Makes the parent of all pods and its tiers. `left` is what reservations leave of the node, `pids` its limit of
    /// processes.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(settings: Settings, left: &Resources, pids: Option<i64>) -> Result<Self, StartError> {
        let tree = Tree::new(&settings.mount);
        tree.controllers().map_err(StartError::NoHierarchy)?;
        let parent = CgroupName::kubepods(&settings.root);
        let root = settings.root.clone();
        let limits = kubepods_limits(left, &settings.node, pids);
        let owned = Owned { settings, tree, parent, pods: Mutex::new(Pods::new()) };
        owned.make(&owned.parent, &limits).await?;
        // The tiers share huge pages freely; pods are limited one by one.
        let least = Limits { cpu_shares: Some(MIN_SHARES), ..Limits::default() };
        for class in [QosClass::Burstable, QosClass::BestEffort] {
            owned.make(&owned.parent.tier(class), &least).await?;
        }
        Ok(Self { owned: Some(owned), root })
    }

    /// Limits the cgroups of `systemReservedCgroup` and `kubeReservedCgroup` as `enforceNodeAllocatable` asks; somebody else
    /// has made them. What was limited, for people.
    ///
    /// # Errors
    /// One is not there or cannot be limited; nothing was reserved.
    pub async fn enforce_reserved(&self, config: &Configuration) -> Result<Vec<String>, StartError> {
        let Some(owned) = &self.owned else { return Ok(Vec::new()) };
        let parts = [
            ("System", "system", &config.system_reserved_cgroup, &config.system_reserved),
            ("Kube", "kube", &config.kube_reserved_cgroup, &config.kube_reserved),
        ];
        let mut done = Vec::new();
        for (which, word, name, list) in parts {
            let asked = |suffix: &str| {
                let key = format!("{word}-reserved{suffix}");
                config.enforce_node_allocatable.contains(&key)
            };
            let compressible = asked("-compressible");
            if !compressible && !asked("") {
                continue;
            }
            let failed = |reason: String| StartError::Reserved { which, name: name.clone(), reason };
            let limits = reserved_limits(list, compressible);
            if list.is_empty() {
                return Err(failed("cgroup is not configured properly: nothing is reserved".into()));
            }
            let cgroup = CgroupName::existing(name, owned.settings.driver);
            if !owned.tree.exists(&owned.path(&cgroup)) {
                return Err(failed("cgroup does not exist".into()));
            }
            owned.limit(&cgroup, &limits).await.map_err(|e| failed(e.to_string()))?;
            done.push(format!("Updated limits on {word} reserved cgroup {name}"));
        }
        Ok(done)
    }

    /// `cgroup_parent` of a pod's sandbox.
    pub fn runtime_parent(&self, pod: &Pod) -> String {
        match &self.owned {
            Some(owned) => owned.name(pod).for_runtime(owned.settings.driver),
            None => self.root.clone(),
        }
    }

    /// Makes the pod's cgroup unless it is there, and lets the Burstable tier weigh what its pods ask for. Limits are set
    /// when a cgroup is made: later they belong to resizes. `unlimited`: the pod's CPUs are limited by being its own.
    ///
    /// # Errors
    /// The kernel or systemd refuses.
    pub async fn ensure(&self, pod: &Pod, unlimited: bool) -> Result<(), Failure> {
        let Some(owned) = &self.owned else { return Ok(()) };
        let name = owned.name(pod);
        owned.pods().note(pod.uid(), Some(owned.asked(pod)));
        if !owned.tree.exists(&owned.path(&name)) {
            let mut limits = pod_limits(pod, &owned.settings.node, owned.settings.pod_pids_limit);
            if unlimited {
                limits.cpu_quota = limits.cpu_quota.map(|(_, period)| (-1, period));
            }
            let timer = metrics::CGROUP_MANAGER.time(&["create"]);
            owned.make(&name, &limits).await?;
            drop(timer);
        }
        let _timer = metrics::CGROUP_MANAGER.time(&["update"]);
        owned.weigh().await
    }

    /// Sets part of the limits of a pod's cgroup, for a resize.
    ///
    /// # Errors
    /// The kernel or systemd refuses.
    pub async fn set(&self, pod: &Pod, limits: &Limits) -> Result<(), Failure> {
        let Some(owned) = &self.owned else { return Ok(()) };
        owned.pods().note(pod.uid(), Some(owned.asked(pod)));
        owned.limit(&owned.name(pod), limits).await
    }

    /// Bytes that the pod uses now; `None` where the agent does not own its cgroup or cannot read it.
    pub fn memory_usage(&self, pod: &Pod) -> Option<i64> {
        let owned = self.owned.as_ref()?;
        let file = owned.settings.mount.join(owned.path(&owned.name(pod))).join("memory.current");
        std::fs::read_to_string(file).ok()?.trim().parse().ok()
    }

    /// Removes a pod's cgroup, in whichever tier it is, with all that still runs in it.
    ///
    /// # Errors
    /// Something in it does not end.
    pub async fn remove(&self, uid: &str) -> Result<(), Failure> {
        let Some(owned) = &self.owned else { return Ok(()) };
        for class in TIERS {
            let name = owned.parent.pod(class, uid);
            if owned.tree.exists(&owned.path(&name)) {
                let timer = metrics::CGROUP_MANAGER.time(&["destroy"]);
                owned.remove(name).await?;
                drop(timer);
            }
        }
        owned.pods().note(uid, None);
        owned.weigh().await
    }

    /// Removes the cgroups of pods that nobody knows any more, left by an agent that was killed.
    pub async fn remove_orphans(&self, known: &HashSet<String>) {
        let Some(owned) = &self.owned else { return };
        for class in TIERS {
            let tier = owned.parent.tier(class);
            for child in owned.tree.children(&owned.path(&tier)) {
                let Some(uid) = name::pod_uid(&child).filter(|uid| !known.contains(uid)) else { continue };
                // A pod that has come since is noted before its cgroup is made.
                if owned.pods().asked.contains_key(&uid) {
                    continue;
                }
                match owned.remove(owned.parent.pod(class, &uid)).await {
                    Ok(()) => tracing::info!(uid, "removed the cgroup of a pod that is gone"),
                    Err(error) => tracing::warn!(uid, %error, "cannot remove the cgroup of a pod that is gone"),
                }
            }
        }
    }
}

impl Pods {
    /// As the tiers are made.
    fn new() -> Self {
        Self { given: Some(Kept::default()), shares: Some(MIN_SHARES), ..Self::default() }
    }

    /// Takes a pod in, or out with `None`.
    fn note(&mut self, uid: &str, asked: Option<(i64, Kept)>) {
        let before = match asked {
            Some(asked) => self.asked.insert(uid.to_owned(), asked),
            None => self.asked.remove(uid),
        };
        let ((gone, freed), (come, kept)) = (before.unwrap_or_default(), asked.unwrap_or_default());
        let moved = |sum: i64, minus: i64, plus: i64| sum.saturating_sub(minus).saturating_add(plus);
        self.sum = moved(self.sum, gone, come);
        self.kept.min = moved(self.kept.min, freed.min, kept.min);
        self.kept.low = moved(self.kept.low, freed.low, kept.low);
    }
}

impl Owned {
    fn pods(&self) -> MutexGuard<'_, Pods> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the pod adds to what its tier has.
    fn asked(&self, pod: &Pod) -> (i64, Kept) {
        let kept = self.settings.node.memory_qos.as_ref().map(|qos| qos.of_pod(pod));
        (burstable_milli_cpu(pod), kept.unwrap_or_default())
    }

    /// Memory is kept for a pod only where all above it keep as much.
    async fn keep_memory(&self) -> Result<(), Failure> {
        let kept = {
            let mut pods = self.pods();
            let kept = pods.kept;
            if pods.given.replace(kept) == Some(kept) {
                return Ok(());
            }
            kept
        };
        let kept_by_all = async {
            self.limit(&self.parent, &Limits { memory_kept: Some(kept), ..Limits::default() }).await?;
            let burstable = Kept { min: 0, low: kept.low };
            let tier = self.parent.tier(QosClass::Burstable);
            self.limit(&tier, &Limits { memory_kept: Some(burstable), ..Limits::default() }).await
        };
        // To be written again the next time.
        kept_by_all.await.inspect_err(|_| self.pods().given = None)
    }

    /// Gives the Burstable tier the weight that its pods ask for together, and the memory that is kept for them, when
    /// either has changed.
    async fn weigh(&self) -> Result<(), Failure> {
        self.keep_memory().await?;
        let shares = {
            let mut pods = self.pods();
            let shares = milli_cpu_to_shares(pods.sum);
            if pods.shares.replace(shares) == Some(shares) {
                return Ok(());
            }
            shares
        };
        let tier = self.parent.tier(QosClass::Burstable);
        let weighed = self.limit(&tier, &Limits { cpu_shares: Some(shares), ..Limits::default() }).await;
        weighed.inspect_err(|_| self.pods().shares = None)
    }

    fn name(&self, pod: &Pod) -> CgroupName {
        self.parent.pod(qos_class(pod), pod.uid())
    }

    fn path(&self, name: &CgroupName) -> PathBuf {
        name.path(self.settings.driver)
    }

    async fn make(&self, name: &CgroupName, limits: &Limits) -> Result<(), Failure> {
        if self.settings.driver == Driver::Systemd {
            systemd::start_slice(name, limits).await?;
        }
        // systemd hands controllers down only where a unit needs them; ours are all on.
        let path = self.path(name);
        self.blocking({
            let limits = limits.clone();
            move |tree| tree.create(&path).and_then(|()| tree.limit(&path, &limits))
        })
        .await
    }

    async fn limit(&self, name: &CgroupName, limits: &Limits) -> Result<(), Failure> {
        if self.settings.driver == Driver::Systemd {
            systemd::set_properties(name, limits).await?;
        }
        let (path, limits) = (self.path(name), limits.clone());
        self.blocking(move |tree| tree.limit(&path, &limits)).await
    }

    async fn remove(&self, name: CgroupName) -> Result<(), Failure> {
        let path = self.path(&name);
        self.blocking(move |tree| tree.remove(&path)).await?;
        if self.settings.driver == Driver::Systemd {
            systemd::stop_slice(&name).await?;
        }
        Ok(())
    }

    async fn blocking(
        &self,
        work: impl FnOnce(Tree) -> Result<(), CgroupError> + Send + 'static,
    ) -> Result<(), Failure> {
        let tree = self.tree.clone();
        let root = self.settings.mount.clone();
        match tokio::task::spawn_blocking(move || work(tree)).await {
            Ok(result) => Ok(result?),
            Err(ended) => {
                let source = std::io::Error::other(ended);
                Err(CgroupError { what: "cannot work on", path: root, source }.into())
            }
        }
    }
}

/// How many processes the kernel allows: the least of its limits.
pub fn process_limit(proc: &Path) -> Option<i64> {
    let read = |file: &str| std::fs::read_to_string(proc.join("sys/kernel").join(file)).ok()?.trim().parse().ok();
    [read("pid_max"), read("threads-max")].into_iter().flatten().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_of_the_cgroups_is_somebody_elses_to_make() {
        let mount = std::env::temp_dir().join(format!("node-agent-cgroups-{}", crate::backoff::random_below(u32::MAX)));
        let check = |root: &str, driver| check_root(&mount, root, driver);
        assert_eq!(check("/none", Driver::Cgroupfs), Ok(()), "the older hierarchies are not looked at");
        for folder in ["", "a/b", "a.slice"] {
            std::fs::create_dir_all(mount.join(folder)).expect("a folder");
            std::fs::write(mount.join(folder).join("cgroup.controllers"), "cpu memory").expect("writes");
        }
        for (root, driver) in
            [("", Driver::Systemd), ("/", Driver::Cgroupfs), ("/a/b", Driver::Cgroupfs), ("/a", Driver::Systemd)]
        {
            assert_eq!(check(root, driver), Ok(()), "{root}");
        }
        let path = mount.join("a/c/cgroup.controllers");
        let words = format!(
            "invalid configuration: could not read controllers for cgroup [\"a\" \"c\"]: open {}: no such file or directory",
            path.display()
        );
        assert_eq!(check("/a/c/", Driver::Cgroupfs), Err(words));
        assert!(check("/a/b", Driver::Systemd).is_err());
        std::fs::remove_dir_all(mount).expect("removes");
    }

    #[test]
    fn the_sum_follows_pods_that_come_change_and_go() {
        let mut pods = Pods::default();
        let kept = |min, low| Kept { min, low };
        pods.note("a", Some((100, kept(0, 5))));
        pods.note("b", Some((250, kept(7, 0))));
        pods.note("a", Some((50, kept(0, 3))));
        assert_eq!((pods.sum, pods.kept), (300, kept(7, 3)));
        pods.note("b", None);
        pods.note("never", None);
        assert_eq!((pods.sum, pods.kept, pods.asked.len()), (50, kept(0, 3), 1));
    }

    #[tokio::test]
    async fn what_could_not_be_written_is_not_taken_for_written() {
        // No folder, so that every write fails.
        let mount = PathBuf::from("/dev/null");
        let node = NodeResources {
            memory_bytes: 1 << 30,
            enforce_quota: true,
            period_micros: 100_000,
            hugepage_sizes: Vec::new(),
            limited_swap: false,
            single_process_oom_kill: None,
            cgroup_v2: true,
            swap_bytes: 0,
            memory_qos: None,
        };
        let settings =
            Settings { mount: mount.clone(), driver: Driver::Cgroupfs, root: String::new(), node, pod_pids_limit: -1 };
        let (tree, parent) = (Tree::new(mount), CgroupName::kubepods(""));
        let owned = Owned { settings, tree, parent, pods: Mutex::new(Pods::new()) };
        assert!(owned.weigh().await.is_ok(), "there is nothing to write");
        owned.pods().note("a", Some((1000, Kept { min: 1, low: 2 })));
        for _ in 0..2 {
            assert!(owned.weigh().await.is_err());
        }
        owned.pods().given = Some(Kept { min: 1, low: 2 });
        for _ in 0..2 {
            assert!(owned.weigh().await.is_err());
        }
    }

    #[test]
    fn the_kernel_allows_as_many_processes_as_its_least_limit() {
        assert!(process_limit(Path::new("/proc")).is_some_and(|limit| limit > 300));
        assert_eq!(process_limit(Path::new("/nowhere")), None);
    }
}
