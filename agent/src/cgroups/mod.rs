//! The cgroups that pods run in: one parent for all, one for each QoS tier, one for each pod.
//!
//! In reduced mode (`cgroupsPerQOS: false`) the agent owns none and the runtime chooses. Otherwise the parent is made at
//! start with what the reservations leave, a pod's cgroup before its first sandbox, and a pod's cgroup is removed with
//! everything in it when the pod is gone. cgroup v2 only.
//!
//! Followed: kubelet `pkg/kubelet/cm`.

mod limits;
mod name;
mod reserved;
mod systemd;
mod tree;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto::api::core::v1::Pod;
use tokio::time::Instant;

pub use limits::{
    Found, Limits, burstable_milli_cpu, cpu_shares, cpu_weight, kubepods_limits, pod_limits, reserved_limits,
};
pub use name::{CgroupName, Driver};
pub use reserved::MemoryReserved;
pub use tree::{CgroupError, Tree};

use crate::config::Configuration;
use crate::cri::CriClient;
use crate::metrics;
use crate::node::Resources;
use crate::pod::memory_qos::Kept;
use crate::pod::resources::{MIN_SHARES, NodeResources, QosClass, milli_cpu_to_shares, pod_totals, qos_class};
use crate::pod::spec::PodExt;

/// Where cgroup v2 is mounted.
pub const MOUNT: &str = "/sys/fs/cgroup";
/// Whether cgroups are those of version 2.
pub fn is_unified() -> bool {
    Path::new(MOUNT).join("cgroup.controllers").exists()
}

/// Whether the kernel counts swap by cgroup. With cgroup v2 the root has no such file: the agent's own cgroup is looked at.
pub fn counts_swap() -> bool {
    if !is_unified() {
        return Path::new(MOUNT).join("memory/memory.memsw.limit_in_bytes").exists();
    }
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
    own.is_some_and(|own| Path::new(MOUNT).join(own).join("memory.swap.max").exists())
}

/// A runtime that has just started may not answer yet.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// How long a tier keeps memory that is in use before it is looked at again; the kubelet's round of tiers.
const IN_USE: Duration = Duration::from_secs(60);

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
    /// `qosReserved` of memory, while its gate is on.
    pub memory_reserved: Option<MemoryReserved>,
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
    /// Held while tiers are written: what is written last is then what was asked for last. When they were last left more
    /// memory than wanted, because it was in use.
    tiers: tokio::sync::Mutex<Option<Instant>>,
}

/// The pods that have, or are about to have, a cgroup.
#[derive(Default)]
struct Pods {
    /// What each asks for, by uid.
    asked: HashMap<String, Asked>,
    /// Their sums, kept so that a pod costs one addition.
    sum: Asked,
    /// What the tiers last had of it; None where that failed.
    given: Option<Kept>,
    /// What the Burstable tier was last given; None where that failed.
    shares: Option<i64>,
    /// The limits that the Burstable and the BestEffort tier were last to get; None where those could not be set.
    memory: Option<[i64; 2]>,
}

/// What a pod adds to what its tier has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Asked {
    /// Of the Burstable tier.
    milli_cpu: i64,
    /// Memory that is kept for it.
    kept: Kept,
    /// Memory that a Guaranteed pod asks for, and a Burstable one, in bytes.
    guaranteed_memory: i64,
    burstable_memory: i64,
}

impl Asked {
    /// This with one pod's part exchanged for another.
    fn moved(self, minus: Self, plus: Self) -> Self {
        let moved = |sum: i64, minus: i64, plus: i64| sum.saturating_sub(minus).saturating_add(plus);
        Asked {
            milli_cpu: moved(self.milli_cpu, minus.milli_cpu, plus.milli_cpu),
            kept: Kept {
                min: moved(self.kept.min, minus.kept.min, plus.kept.min),
                low: moved(self.kept.low, minus.kept.low, plus.kept.low),
            },
            guaranteed_memory: moved(self.guaranteed_memory, minus.guaranteed_memory, plus.guaranteed_memory),
            burstable_memory: moved(self.burstable_memory, minus.burstable_memory, plus.burstable_memory),
        }
    }
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
        let owned = Owned::new(settings, tree, parent);
        owned.make(&owned.parent, &limits).await?;
        for class in [QosClass::Burstable, QosClass::BestEffort] {
            owned.make_tier(class).await?;
        }
        owned.weigh().await?;
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

    /// Sets part of the limits of a pod's cgroup, for a resize. Its tier follows, and if it does not now, at the next
    /// [`Cgroups::ensure`].
    ///
    /// # Errors
    /// The kernel or systemd refuses.
    pub async fn set(&self, pod: &Pod, limits: &Limits) -> Result<(), Failure> {
        let Some(owned) = &self.owned else { return Ok(()) };
        owned.pods().note(pod.uid(), Some(owned.asked(pod)));
        owned.limit(&owned.name(pod), limits).await?;
        if let Err(error) = owned.weigh().await {
            tracing::warn!(%error, "the tier of a pod that was resized does not follow yet");
        }
        Ok(())
    }

    /// Bytes that the pod uses now; `None` where the agent does not own its cgroup or cannot read it.
    pub fn memory_usage(&self, pod: &Pod) -> Option<i64> {
        let owned = self.owned.as_ref()?;
        used_memory(&owned.settings.mount.join(owned.path(&owned.name(pod))))
    }

    /// What the kernel has for the pod now; `None` where the agent does not own its cgroup or it is not there.
    pub fn found(&self, pod: &Pod) -> Option<Found> {
        let owned = self.owned.as_ref()?;
        owned.tree.found(&owned.path(&owned.name(pod)))
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
    fn note(&mut self, uid: &str, asked: Option<Asked>) {
        let before = match asked {
            Some(asked) => self.asked.insert(uid.to_owned(), asked),
            None => self.asked.remove(uid),
        };
        self.sum = self.sum.moved(before.unwrap_or_default(), asked.unwrap_or_default());
    }
}

impl Owned {
    fn new(settings: Settings, tree: Tree, parent: CgroupName) -> Self {
        Self { settings, tree, parent, pods: Mutex::new(Pods::new()), tiers: tokio::sync::Mutex::new(None) }
    }

    fn pods(&self) -> MutexGuard<'_, Pods> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asked(&self, pod: &Pod) -> Asked {
        let kept = self.settings.node.memory_qos.as_ref().map(|qos| qos.of_pod(pod));
        let memory = || pod_totals(pod).requests.get("memory").copied().unwrap_or(0) / 1000;
        let (guaranteed_memory, burstable_memory) = match qos_class(pod) {
            _ if self.settings.memory_reserved.is_none() => (0, 0),
            QosClass::Guaranteed => (memory(), 0),
            QosClass::Burstable => (0, memory()),
            QosClass::BestEffort => (0, 0),
        };
        let (milli_cpu, kept) = (burstable_milli_cpu(pod), kept.unwrap_or_default());
        Asked { milli_cpu, kept, guaranteed_memory, burstable_memory }
    }

    /// Leaves the lower tiers what is not reserved for the pods of those above. Where more is in use the limit is what is
    /// in use, so that it grows no further and nothing is killed; `in_use` is when that was last so, and it is tried again a
    /// minute later.
    async fn reserve_memory(&self, in_use: &mut Option<Instant>) -> Result<(), Failure> {
        let Some(reserved) = &self.settings.memory_reserved else { return Ok(()) };
        let wanted = {
            let pods = self.pods();
            reserved.left(pods.sum.guaranteed_memory, pods.sum.burstable_memory)
        };
        let due = in_use.is_some_and(|since| since.elapsed() >= IN_USE);
        if self.pods().memory.replace(wanted) == Some(wanted) && !due {
            return Ok(());
        }
        *in_use = None;
        for (class, wanted) in [QosClass::Burstable, QosClass::BestEffort].into_iter().zip(wanted) {
            let tier = self.parent.tier(class);
            let used = used_memory(&self.settings.mount.join(self.path(&tier))).unwrap_or(0);
            let limits = Limits { memory: Some(wanted.max(used)), ..Limits::default() };
            self.limit(&tier, &limits).await.inspect_err(|_| self.pods().memory = None)?;
            if used > wanted {
                *in_use = Some(Instant::now());
            }
        }
        Ok(())
    }

    /// Memory is kept for a pod only where all above it keep as much.
    async fn keep_memory(&self) -> Result<(), Failure> {
        let kept = {
            let mut pods = self.pods();
            let kept = pods.sum.kept;
            if self.settings.node.memory_qos.is_some() {
                let bytes = |kept: i64| metrics::page::to_float(u64::try_from(kept).unwrap_or(0));
                metrics::MEMORY_MIN.set(&[], bytes(kept.min));
                metrics::MEMORY_LOW.set(&[], bytes(kept.low));
            }
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
        let mut tiers = self.tiers.lock().await;
        self.keep_memory().await?;
        self.reserve_memory(&mut tiers).await?;
        let shares = {
            let mut pods = self.pods();
            // What pods of before have stays until it is known who of them is there still.
            if pods.shares.is_none() && pods.asked.is_empty() {
                return Ok(());
            }
            let shares = milli_cpu_to_shares(pods.sum.milli_cpu);
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

    /// Makes the cgroup of a tier. The tiers share huge pages freely; pods are limited one by one. One that is there may have
    /// pods that an agent before this one has started: its weight is theirs.
    async fn make_tier(&self, class: QosClass) -> Result<(), Failure> {
        let tier = self.parent.tier(class);
        let has_pods = class == QosClass::Burstable && self.tree.exists(&self.path(&tier));
        if has_pods {
            self.pods().shares = None;
        }
        let least = Limits { cpu_shares: (!has_pods).then_some(MIN_SHARES), ..Limits::default() };
        self.make(&tier, &least).await
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

/// Bytes that a cgroup uses now.
fn used_memory(cgroup: &Path) -> Option<i64> {
    std::fs::read_to_string(cgroup.join("memory.current")).ok()?.trim().parse().ok()
}

/// How many processes the kernel allows: the least of its limits.
pub fn process_limit(proc: &Path) -> Option<i64> {
    let read = |file: &str| std::fs::read_to_string(proc.join("sys/kernel").join(file)).ok()?.trim().parse().ok();
    [read("pid_max"), read("threads-max")].into_iter().flatten().min()
}

#[cfg(test)]
mod tests;
