//! CPUs, memory and NUMA nodes that containers have to themselves: the CPU, the memory and the topology manager.
//!
//! A pod comes in by [`Managers::admit`], which asks everybody who gives resources where they could come from, merges the
//! answers and takes what was agreed on; it leaves by [`Managers::release`]. In between its containers are created with
//! what they have ([`Managers::place`]), and those that share CPUs follow every change of the shared ones ([`reconcile`]).
//! Which CPUs or memory are picked is a pure function of machine, state and request. The state is on disk before a pod is
//! admitted, in the kubelet's files, so that neither a restart nor a change to the kubelet and back moves a container.
//!
//! Followed: `pkg/kubelet/cm/{cpumanager,memorymanager,topologymanager}`.

mod admit;
mod counts;
mod cpu_policy;
mod cpu_set;
mod cpu_spread;
mod cpu_state;
mod cpu_take;
mod memory_policy;
mod memory_state;
mod merge;
mod numa;
mod open;
mod reconcile;
mod topology;
mod wanted;
mod whole_pod;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod whole_pod_tests;

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proto::api::core::v1::{Container, Pod};
use proto::cri::LinuxContainerResources;
use tokio::sync::Notify;

use crate::metrics;
use crate::pod::spec::PodExt as _;

pub use admit::Refusal;
pub use cpu_set::CpuSet;
pub use memory_state::Block;
pub use numa::{Hint, Hints, NodeMask, each_mask};
pub use open::Settings;
pub use reconcile::reconcile;

use cpu_policy::StaticCpus;
use cpu_state::CpuState;
use memory_policy::StaticMemory;
use memory_state::MemoryState;
use merge::Merger;
use wanted::Wanted;

/// See the module's documentation.
pub struct Managers {
    root: PathBuf,
    /// `None` under the policy none.
    cpus: Option<StaticCpus>,
    /// `None` under the policy None.
    memory: Option<StaticMemory>,
    merger: Merger,
    /// All containers of a pod on the same nodes.
    pod_scope: bool,
    /// Containers with CPUs of their own have no CPU quota (gate DisableCPUQuotaWithExclusiveCPUs).
    without_quota: bool,
    wanted: Wanted,
    state: Mutex<State>,
    /// One pod at a time takes devices by their nodes.
    turn: tokio::sync::Mutex<()>,
    /// The text of both files as they are on disk.
    written: tokio::sync::Mutex<(String, String)>,
    /// The CPUs that a container was last given, by its id.
    applied: Mutex<HashMap<String, CpuSet>>,
    changed: Notify,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct State {
    cpus: CpuState,
    memory: MemoryState,
}

impl Managers {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn applied(&self) -> MutexGuard<'_, HashMap<String, CpuSet>> {
        self.applied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The CPUs that the container has to itself; empty for none. What it was given counts, not what it asks for by now. Of
    /// a pod that has them as a whole containers may share some, which the state does not tell: there it counts too who
    /// asked for CPUs.
    pub fn exclusive(&self, pod: &Pod, container: &Container) -> CpuSet {
        let state = self.state();
        let shares = state.cpus.pods.contains_key(pod.uid()) && self.wanted.cpus(pod, container) == 0;
        state.cpus.of(pod.uid(), &container.name).filter(|_| !shares).cloned().unwrap_or_default()
    }

    /// Whether some container of the pod has CPUs to itself and is to run without a quota.
    pub fn lifts_quota(&self, pod: &Pod) -> bool {
        let spec = pod.spec();
        let mut containers = spec.init_containers.iter().chain(&spec.containers);
        self.without_quota && containers.any(|container| !self.exclusive(pod, container).is_empty())
    }

    /// The CPUs that the container runs on: its own or the shared ones. Empty where nothing is managed.
    fn cpus_of(&self, uid: &str, container: &str) -> CpuSet {
        let state = self.state();
        state.cpus.of(uid, container).unwrap_or(&state.cpus.shared).clone()
    }

    /// The memory that the container has, to itself or with others of its pod.
    pub fn memory_of(&self, uid: &str, container: &str) -> Vec<Block> {
        self.state().memory.of(uid, container).cloned().unwrap_or_default()
    }

    /// CPUs that containers may have to themselves; empty under the policy none.
    pub fn allocatable_cpus(&self) -> CpuSet {
        self.cpus.as_ref().map(StaticCpus::allocatable).unwrap_or_default()
    }

    /// Memory that containers may have to themselves; empty under the policy None.
    pub fn allocatable_memory(&self) -> Vec<Block> {
        self.memory.as_ref().map(StaticMemory::allocatable).unwrap_or_default()
    }

    /// Puts CPUs and NUMA nodes into what the container is created with.
    pub fn place(&self, pod: &Pod, container: &Container, resources: &mut LinuxContainerResources) {
        let (uid, name) = (pod.uid(), container.name.as_str());
        resources.cpuset_cpus = self.cpus_of(uid, name).to_string();
        let nodes = self.memory_of(uid, name).into_iter().flat_map(|block| block.numa_affinity);
        // One number after the other, as the kubelet writes it.
        let nodes: Vec<String> = nodes.collect::<CpuSet>().iter().map(|node| node.to_string()).collect();
        resources.cpuset_mems = nodes.join(",");
        if self.without_quota && resources.cpu_quota > 0 && !self.exclusive(pod, container).is_empty() {
            resources.cpu_quota = -1;
        }
    }

    /// The container of that id was created with this.
    pub fn placed(&self, id: &str, resources: Option<&LinuxContainerResources>) {
        let cpus = resources.and_then(|r| r.cpuset_cpus.parse::<CpuSet>().ok()).filter(|cpus| !cpus.is_empty());
        if let Some(cpus) = cpus {
            self.applied().insert(id.to_owned(), cpus);
        }
    }

    /// Nothing of the pod runs any more: what it had is free.
    pub async fn release(&self, uid: &str) {
        if self.take_back(|pod| pod == uid) {
            self.save().await;
        }
    }

    /// Takes back what pods of before have that are none any more; at once, so that none can come in between.
    pub fn keep_only(self: &Arc<Self>, known: impl Fn(&str) -> bool) {
        if self.take_back(|pod| !known(pod)) {
            let managers = self.clone();
            tokio::spawn(async move { managers.save().await });
        }
    }

    fn take_back(&self, from: impl Fn(&str) -> bool) -> bool {
        let mut state = self.state();
        let all = state.cpus.assigned.keys().chain(state.memory.assigned.keys());
        let all = all.chain(state.cpus.pods.keys()).chain(state.memory.pods.keys());
        let pods: BTreeSet<String> = all.filter(|pod| from(pod)).cloned().collect();
        for pod in &pods {
            state.cpus.release(pod);
            StaticMemory::release(&mut state.memory, pod);
        }
        drop(state);
        if !pods.is_empty() {
            self.told();
        }
        !pods.is_empty()
    }

    /// Shows the state in numbers, and lets containers on shared CPUs follow it.
    fn told(&self) {
        if let Some(policy) = &self.cpus {
            let number = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
            let state = self.state();
            metrics::CPU_SHARED_POOL.set(&[], number(policy.available(&state.cpus).len()) * 1000.0);
            metrics::CPU_EXCLUSIVE.set(&[], number(state.cpus.exclusive()));
            let all = state.cpus.assigned.keys().map(|pod| state.cpus.of_pod(pod));
            let given = all.fold(CpuSet::default(), |all, own| all.union(&own));
            for (node, count) in policy.per_node(&given) {
                metrics::CPU_PER_NODE.set(&[&node.to_string()], number(count));
            }
        }
        self.changed.notify_one();
    }

    /// Writes what has changed, before anybody relies on it.
    async fn save(&self) {
        let mut written = self.written.lock().await;
        let texts = {
            let state = self.state();
            let cpu_policy = if self.cpus.is_some() { open::STATIC_CPUS } else { open::NO_CPUS };
            let memory_policy = if self.memory.is_some() { open::STATIC_MEMORY } else { open::NO_MEMORY };
            let pod_level = self.wanted.pod_level;
            let cpus = cpu_state::encode(cpu_policy, &state.cpus, pod_level);
            (cpus, memory_state::encode(memory_policy, &state.memory, pod_level))
        };
        if *written == texts {
            return;
        }
        let (root, content) = (self.root.clone(), texts.clone());
        let writing = tokio::task::spawn_blocking(move || {
            crate::state_file::write(&root.join(cpu_state::FILE), content.0.as_bytes())?;
            crate::state_file::write(&root.join(memory_state::FILE), content.1.as_bytes())
        });
        match writing.await.unwrap_or_else(|broke| Err(std::io::Error::other(broke))) {
            Ok(()) => *written = texts,
            Err(error) => tracing::error!(%error, "failed to store who has which CPUs and memory"),
        }
    }

    /// What [`Managers::open`] would refuse; nothing is written.
    ///
    /// # Errors
    /// As there.
    pub fn check(settings: &Settings) -> Result<(), String> {
        open::open(settings, &topology::Topology::read(std::path::Path::new("/"))).map(drop)
    }

    /// Reads what an earlier agent left, and writes what there is now.
    ///
    /// # Errors
    /// When a file of before cannot be used, or the machine does not fit the policies; in the kubelet's words.
    pub async fn open(settings: &Settings) -> Result<Arc<Self>, String> {
        let machine = topology::Topology::read(std::path::Path::new("/"));
        let managers = Arc::new(open::open(settings, &machine)?);
        managers.save().await;
        Ok(managers)
    }
}
