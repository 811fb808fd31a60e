//! Giving a pod CPUs, memory and devices, on NUMA nodes that suit all of them.
//!
//! What one container takes is taken in one step, so that pods which come in at the same time never get the same. Device
//! plugins are asked without any lock on CPUs and memory: one that hangs holds up only pods that want devices by their
//! nodes.

use std::collections::BTreeSet;

use proto::api::core::v1::{Container, Pod};

use super::cpu_policy::CpuError;
use super::cpu_set::CpuSet;
use super::memory_policy::{Reusable, StaticMemory};
use super::merge::Policy;
use super::numa::{Hint, Hints};
use super::{Managers, State, counts};
use crate::device_plugins::{AllocateError, Devices, Pool};
use crate::metrics;
use crate::pod::spec::{PodExt as _, is_sidecar};

/// Why a pod is refused; the texts are the kubelet's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("Resources cannot be allocated with Topology locality")]
    Locality,
    #[error("{0}")]
    Smt(CpuError),
    /// A pod with resources of its own leaves nothing of them for containers that have no part to themselves.
    #[error("{0}")]
    NothingToShare(String),
    #[error("Allocate failed due to {0}, which is unexpected")]
    Unexpected(String),
}

impl Refusal {
    pub(super) fn unexpected(why: String) -> Self {
        Self::Unexpected(why)
    }

    /// The reason in the pod's status.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Locality => "TopologyAffinityError",
            Self::Smt(_) => "SMTAlignmentError",
            Self::NothingToShare(_) => "EmptyPodSharedPoolError",
            Self::Unexpected(_) => "UnexpectedAdmissionError",
        }
    }
}

impl From<CpuError> for Refusal {
    fn from(error: CpuError) -> Self {
        match error {
            CpuError::TooFew(why) => Self::Unexpected(why),
            smt => Self::Smt(smt),
        }
    }
}

impl From<AllocateError> for Refusal {
    fn from(error: AllocateError) -> Self {
        Self::Unexpected(error.to_string())
    }
}

/// The container in hand, and what all agreed on for it.
#[derive(Clone, Copy)]
struct InHand<'a> {
    pod: &'a Pod,
    container: &'a Container,
    /// It is over before the next one begins, which may then use what it had.
    passes_on: bool,
    hint: Hint,
}

/// What init containers of the pod have had and later ones may use.
#[derive(Default)]
struct Reuse {
    cpus: CpuSet,
    memory: Reusable,
}

/// Containers in the order in which they get something, and whether each is over before the next begins.
fn takers(pod: &Pod) -> impl Iterator<Item = (&Container, bool)> {
    let spec = pod.spec();
    spec.init_containers.iter().map(|c| (c, !is_sidecar(c))).chain(spec.containers.iter().map(|c| (c, false)))
}

impl Managers {
    /// Whether the pod is to get anything here.
    pub fn concern(&self, pod: &Pod) -> bool {
        let (spec, wanted) = (pod.spec(), self.wanted);
        let mut containers = spec.init_containers.iter().chain(&spec.containers);
        self.cpus.is_some() && (wanted.pod_cpus(pod) > 0 || containers.clone().any(|c| wanted.cpus(pod, c) > 0))
            || self.memory.is_some()
                && (!wanted.pod_memory(pod).is_empty() || containers.any(|c| !wanted.memory(pod, c).is_empty()))
    }

    /// Gives every container of the pod what it asks for. What it has stays with it; containers in `running` are not
    /// looked at again.
    ///
    /// # Errors
    /// See [`Refusal`]. The pod has nothing then, but for one of which something runs: that keeps what it has until it is
    /// ended and [`Managers::release`]d.
    pub async fn admit(&self, devices: &Devices, pod: &Pod, running: &BTreeSet<String>) -> Result<(), Refusal> {
        metrics::TOPOLOGY_REQUESTS.inc(&[]);
        let begun = tokio::time::Instant::now();
        let turn = if self.aligns() && devices.concern(pod) { Some(self.turn.lock().await) } else { None };
        let held = devices.held(pod.uid());
        let outcome = self.admit_all(devices, pod, running).await;
        drop(turn);
        let scope = if self.pod_scope { "pod" } else { "container" };
        if outcome.is_err() {
            metrics::TOPOLOGY_ERRORS.inc(&[]);
            devices.restore(pod.uid(), held);
            if running.is_empty() {
                self.take_back(|uid| uid == pod.uid());
            }
        }
        if self.merger.policy.guarantees() {
            let family = if outcome.is_ok() { &metrics::ALIGNED } else { &metrics::ALIGNED_FAILURES };
            family.inc(&["numa_node", scope]);
        }
        self.save().await;
        metrics::TOPOLOGY_MS.observe(&[], begun.elapsed().as_secs_f64() * 1000.0);
        outcome
    }

    /// Whether the pod could have its CPUs and its memory, on the nodes where its devices are; it is given nothing.
    ///
    /// # Errors
    /// As [`Managers::admit`].
    pub fn rehearse(&self, devices: &Devices, pod: &Pod) -> Result<(), Refusal> {
        metrics::TOPOLOGY_REQUESTS.inc(&[]);
        let (mut state, mut reuse) = (self.state().clone(), Reuse::default());
        let mut take_all = || {
            if self.aligns() && self.pod_scope {
                let from_devices = devices.pod_hints(pod, &self.nodes());
                return self.take_together(&mut state, from_devices, pod, &mut reuse).map(drop);
            }
            let pool = Pool::default();
            takers(pod).try_for_each(|taker| {
                let from_devices = self.device_hints(devices, pod, taker.0, &pool);
                self.take_alone(&mut state, from_devices, (pod, taker), &mut reuse).map(drop)
            })
        };
        take_all().inspect_err(|_| metrics::TOPOLOGY_ERRORS.inc(&[]))
    }

    async fn admit_all(&self, devices: &Devices, pod: &Pod, running: &BTreeSet<String>) -> Result<(), Refusal> {
        let (mut reuse, mut pool) = (Reuse::default(), Pool::default());
        let mut pod_hint = None;
        if self.aligns() && self.pod_scope {
            let from_devices = devices.pod_hints(pod, &self.nodes());
            pod_hint = Some(self.take_together(&mut self.state(), from_devices, pod, &mut reuse)?);
        }
        for taker in takers(pod) {
            let hint = match pod_hint {
                Some(hint) => hint,
                None => {
                    let from_devices = self.device_hints(devices, pod, taker.0, &pool);
                    self.take_alone(&mut self.state(), from_devices, (pod, taker), &mut reuse)?
                }
            };
            devices.allocate_container(pod, taker.0, running, &mut pool, hint.nodes).await?;
        }
        self.told();
        Ok(())
    }

    fn aligns(&self) -> bool {
        self.merger.policy != Policy::None
    }

    /// Where the devices of a container could come from, if that matters.
    fn device_hints(&self, devices: &Devices, pod: &Pod, container: &Container, pool: &Pool) -> Vec<Hints> {
        if !self.aligns() {
            return Vec::new();
        }
        devices.hints(pod.uid(), container, pool, &self.nodes())
    }

    fn nodes(&self) -> Vec<u32> {
        self.merger.nodes.nodes().collect()
    }

    /// Takes CPUs and memory for all containers of a pod, by one opinion.
    fn take_together(
        &self,
        state: &mut State,
        from_devices: Vec<Hints>,
        pod: &Pod,
        reuse: &mut Reuse,
    ) -> Result<Hint, Refusal> {
        if self.wanted.of_pod(pod).is_some() {
            let hint = self.merge(from_devices, self.whole_pod_hints(state, pod))?;
            self.take_for_pod(state, pod, hint)?;
            return Ok(hint);
        }
        let hint = self.merge(from_devices, self.pod_hints(state, pod))?;
        for (container, passes_on) in takers(pod) {
            self.take(state, InHand { pod, container, passes_on, hint }, reuse)?;
        }
        Ok(hint)
    }

    /// Takes CPUs and memory for one container of a pod; see [`takers`].
    fn take_alone(
        &self,
        state: &mut State,
        from_devices: Vec<Hints>,
        (pod, (container, passes_on)): (&Pod, (&Container, bool)),
        reuse: &mut Reuse,
    ) -> Result<Hint, Refusal> {
        let hint = match self.aligns() {
            true => self.merge(from_devices, self.hints(state, pod, container, reuse))?,
            false => Hint { nodes: None, preferred: false },
        };
        self.take(state, InHand { pod, container, passes_on, hint }, reuse)?;
        Ok(hint)
    }

    fn merge(&self, mut hints: Vec<Hints>, own: Vec<Hints>) -> Result<Hint, Refusal> {
        hints.extend(own);
        self.merger.merge(&hints).ok_or(Refusal::Locality)
    }

    /// Where the CPUs and the memory of a container could come from.
    fn hints(&self, state: &State, pod: &Pod, container: &Container, reuse: &Reuse) -> Vec<Hints> {
        let (uid, mut hints) = (pod.uid(), Vec::new());
        let wanted = self.wanted.cpus(pod, container);
        if let Some(policy) = self.cpus.as_ref().filter(|_| wanted > 0) {
            hints.push(match state.cpus.of(uid, &container.name) {
                // Another number than it has: that cannot be met.
                Some(has) if has.len() != wanted => Some(Vec::new()),
                Some(has) => policy.hints(has, &CpuSet::default(), wanted),
                None => policy.hints(&policy.available(&state.cpus), &reuse.cpus, wanted),
            });
        }
        if self.memory.is_some() {
            let wanted = self.wanted.memory(pod, container);
            let found = match state.memory.of(uid, &container.name) {
                Some(has) => StaticMemory::hints_of(has, &wanted),
                None => StaticMemory::hints(&state.memory.machine, &wanted, &reuse.memory),
            };
            hints.extend(found.into_values());
        }
        hints
    }

    /// Where the CPUs and the memory of all containers together could come from.
    fn pod_hints(&self, state: &State, pod: &Pod) -> Vec<Hints> {
        let (uid, spec, mut hints) = (pod.uid(), pod.spec(), Vec::new());
        let all = || spec.init_containers.iter().chain(&spec.containers);
        let wanted = self.wanted.pod_cpus(pod);
        if let Some(policy) = self.cpus.as_ref().filter(|_| wanted > 0) {
            let has = state.cpus.of_pod(uid);
            let changed = |container: &Container| {
                let had = state.cpus.of(uid, &container.name);
                had.is_some_and(|had| had.len() != self.wanted.cpus(pod, container))
            };
            hints.push(if all().any(changed) {
                Some(Vec::new())
            } else if has.len() == wanted {
                policy.hints(&has, &CpuSet::default(), wanted)
            } else {
                policy.hints(&policy.available(&state.cpus), &has, wanted)
            });
        }
        if self.memory.is_some() {
            let wanted = self.wanted.pod_memory(pod);
            let found = match all().find_map(|container| state.memory.of(uid, &container.name)) {
                Some(has) => StaticMemory::hints_of(has, &wanted),
                None => StaticMemory::hints(&state.memory.machine, &wanted, &Reusable::default()),
            };
            hints.extend(found.into_values());
        }
        hints
    }

    /// Takes CPUs and memory for a container by what all agreed on.
    fn take(&self, state: &mut State, in_hand: InHand, reuse: &mut Reuse) -> Result<(), Refusal> {
        self.take_cpus(state, in_hand, reuse)?;
        self.take_memory(state, in_hand, reuse)
    }

    fn take_cpus(&self, state: &mut State, in_hand: InHand, reuse: &mut Reuse) -> Result<(), Refusal> {
        let InHand { pod, container, passes_on, hint } = in_hand;
        let wanted = self.wanted.cpus(pod, container);
        let Some(policy) = self.cpus.as_ref().filter(|_| wanted > 0) else { return Ok(()) };
        metrics::CPU_PINNING.inc(&[]);
        let cpus = match state.cpus.of(pod.uid(), &container.name) {
            Some(has) => Ok(has.clone()),
            None => {
                let taken = policy.allocate(&state.cpus, wanted, hint.nodes, &reuse.cpus);
                self.wanted.count(counts::CPU, 1, taken.is_ok());
                taken
            }
        };
        if policy.full_pcpus_only() {
            let family = if cpus.is_ok() { &metrics::ALIGNED } else { &metrics::ALIGNED_FAILURES };
            family.inc(&["physical_cpu", "container"]);
        }
        let cpus = cpus.inspect_err(|_| metrics::CPU_PINNING_ERRORS.inc(&[]))?;
        reuse.cpus = if passes_on { reuse.cpus.union(&cpus) } else { reuse.cpus.difference(&cpus) };
        state.cpus.assign(pod.uid(), &container.name, cpus);
        Ok(())
    }

    fn take_memory(&self, state: &mut State, in_hand: InHand, reuse: &mut Reuse) -> Result<(), Refusal> {
        let InHand { pod, container, passes_on, hint } = in_hand;
        let wanted = self.wanted.memory(pod, container);
        if self.memory.is_none() || wanted.is_empty() {
            return Ok(());
        }
        metrics::MEMORY_PINNING.inc(&[]);
        if let Some(has) = state.memory.of(pod.uid(), &container.name) {
            reuse.memory.note(has, passes_on);
            return Ok(());
        }
        let blocks = StaticMemory::allocate(&mut state.memory.machine, &wanted, hint, &reuse.memory);
        self.wanted.count(counts::MEMORY, wanted.len(), blocks.is_ok());
        let blocks = blocks.map_err(|why| {
            metrics::MEMORY_PINNING_ERRORS.inc(&[]);
            Refusal::Unexpected(why)
        })?;
        reuse.memory.note(&blocks, passes_on);
        let containers = state.memory.assigned.entry(pod.uid().to_owned()).or_default();
        containers.insert(container.name.clone(), blocks.clone());
        StaticMemory::take_over(&mut state.memory, pod, &container.name, &blocks);
        Ok(())
    }
}
