//! The static CPU policy: containers of Guaranteed pods that ask for whole CPUs get some to themselves.
//!
//! Pure over the machine, the options, who has what, and the request. Everybody else shares what is left; reserved CPUs
//! are never given away, and under strict-cpu-reservation not even shared.
//!
//! Followed: `pkg/kubelet/cm/cpumanager/policy_static.go`.

use std::collections::BTreeMap;

use super::cpu_set::CpuSet;
use super::cpu_spread::{Request, take_distributed};
use super::cpu_state::CpuState;
use super::cpu_take::{Manner, take_packed};
use super::numa::{Hint, Hints, NodeMask, each_mask};
use super::topology::{CpuTopology, Part};

/// `cpuManagerPolicyOptions`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    pub full_pcpus_only: bool,
    pub distribute_across_numa: bool,
    pub align_by_socket: bool,
    pub distribute_across_cores: bool,
    pub strict_reservation: bool,
    pub by_uncore: bool,
}

const FULL: &str = "full-pcpus-only";
const ACROSS_NUMA: &str = "distribute-cpus-across-numa";
const BY_SOCKET: &str = "align-by-socket";
const ACROSS_CORES: &str = "distribute-cpus-across-cores";
const STRICT: &str = "strict-cpu-reservation";
const BY_UNCORE: &str = "prefer-align-cpus-by-uncorecache";

impl Options {
    /// Reads what the configuration's check has let through.
    ///
    /// # Errors
    /// Options that contradict each other, the topology policy or the machine.
    pub fn new(
        options: &BTreeMap<String, String>,
        machine: &CpuTopology,
        topology_policy: &str,
    ) -> Result<Self, String> {
        let on = |name: &str| {
            matches!(options.get(name).map(String::as_str), Some("1" | "t" | "T" | "true" | "TRUE" | "True"))
        };
        let read = Options {
            full_pcpus_only: on(FULL),
            distribute_across_numa: on(ACROSS_NUMA),
            align_by_socket: on(BY_SOCKET),
            distribute_across_cores: on(ACROSS_CORES),
            strict_reservation: on(STRICT),
            by_uncore: on(BY_UNCORE),
        };
        for (one, other) in
            [(FULL, ACROSS_CORES), (ACROSS_NUMA, ACROSS_CORES), (BY_UNCORE, ACROSS_CORES), (BY_UNCORE, ACROSS_NUMA)]
        {
            if on(one) && on(other) {
                return Err(format!("static policy options {one} and {other} can not be used at the same time"));
            }
        }
        if read.align_by_socket && topology_policy == "single-numa-node" {
            return Err(format!(
                "Topolgy manager {topology_policy} policy is incompatible with CPUManager {BY_SOCKET} policy option"
            ));
        }
        if read.align_by_socket && machine.count(Part::Socket) > machine.count(Part::Node) {
            return Err(
                "Align by socket is not compatible with hardware where number of sockets are more than number of NUMA"
                    .into(),
            );
        }
        Ok(read)
    }
}

/// Why a container gets no CPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpuError {
    #[error("SMT Alignment Error: requested {wanted} cpus not multiple cpus per core = {per_core}")]
    NotWholeCores { wanted: usize, per_core: usize },
    #[error(
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {available}, requested CPUs = \
         {wanted}, CPUs per core = {per_core}"
    )]
    NoWholeCores { wanted: usize, available: usize, per_core: usize },
    #[error("{0}")]
    TooFew(String),
}

/// See the module's documentation.
#[derive(Debug, Clone)]
pub struct StaticCpus {
    machine: CpuTopology,
    options: Options,
    reserved: CpuSet,
    /// The reserved ones and all that share a core with one.
    reserved_cores: CpuSet,
}

impl StaticCpus {
    /// `chosen` are the CPUs of `reservedSystemCPUs`; empty lets `count` of them be picked.
    ///
    /// # Errors
    /// When there are not as many to reserve.
    pub fn new(machine: CpuTopology, options: Options, count: usize, chosen: CpuSet) -> Result<Self, String> {
        let mut policy = Self { machine, options, reserved: CpuSet::default(), reserved_cores: CpuSet::default() };
        let reserved =
            if chosen.is_empty() { policy.take(&policy.machine.all(), count).unwrap_or_default() } else { chosen };
        if reserved.len() != count {
            return Err(format!(
                "[cpumanager] unable to reserve the required amount of CPUs (size of {reserved} did not equal {count})"
            ));
        }
        let cores = policy.machine.parts(&reserved, Part::Core);
        policy.reserved_cores = cores
            .into_iter()
            .map(|core| policy.machine.within(Part::Core, core))
            .fold(reserved.clone(), |all, core| all.union(&core));
        policy.reserved = reserved;
        Ok(policy)
    }

    /// CPUs that containers may have to themselves.
    pub fn allocatable(&self) -> CpuSet {
        self.machine.all().difference(&self.reserved)
    }

    /// CPUs that nobody has to himself and that may be given away.
    pub fn available(&self, state: &CpuState) -> CpuSet {
        state.shared.difference(&self.reserved)
    }

    pub fn full_pcpus_only(&self) -> bool {
        self.options.full_pcpus_only
    }

    /// How many of the CPUs are on each NUMA node.
    pub fn per_node(&self, cpus: &CpuSet) -> BTreeMap<u32, usize> {
        let mut counts: BTreeMap<u32, usize> =
            self.machine.parts(&self.machine.all(), Part::Node).into_iter().map(|node| (node, 0)).collect();
        for (_, place) in self.machine.only(cpus) {
            *counts.entry(place.node).or_default() += 1;
        }
        counts
    }

    /// Checks what an earlier agent left, or begins anew where it left nothing.
    ///
    /// # Errors
    /// When machine or reservations have changed, or somebody has changed the file.
    pub fn validate(&self, state: &mut CpuState) -> Result<(), String> {
        let mut all = self.machine.all();
        if self.options.strict_reservation {
            all = all.difference(&self.reserved);
        }
        if state.shared.is_empty() {
            if !state.assigned.is_empty() {
                return Err("default cpuset cannot be empty".into());
            }
            state.shared = all;
            return Ok(());
        }
        let reserved = self.reserved.intersection(&state.shared);
        if self.options.strict_reservation && !reserved.is_empty() {
            return Err(format!(
                "some of strictly reserved cpus: \"{reserved}\" are present in defaultCpuSet: \"{}\"",
                state.shared
            ));
        }
        if !self.options.strict_reservation && reserved != self.reserved {
            return Err(format!(
                "not all reserved cpus: \"{}\" are present in defaultCpuSet: \"{}\"",
                self.reserved, state.shared
            ));
        }
        let mut known = state.shared.clone();
        for (pod, containers) in &state.assigned {
            for (name, cpus) in containers {
                if !cpus.intersection(&state.shared).is_empty() {
                    return Err(format!(
                        "pod: {pod}, container: {name} cpuset: \"{cpus}\" overlaps with default cpuset \"{}\"",
                        state.shared
                    ));
                }
                known = known.union(cpus);
            }
        }
        known = state.pods.values().fold(known, |known, own| known.union(own));
        if known != all {
            return Err(format!(
                "current set of available CPUs \"{all}\" doesn't match with CPUs in state \"{known}\""
            ));
        }
        Ok(())
    }

    /// Picks CPUs for a container. `reusable` are those that init containers of its pod had.
    ///
    /// # Errors
    /// See [`CpuError`].
    pub fn allocate(
        &self,
        state: &CpuState,
        wanted: usize,
        nodes: Option<NodeMask>,
        reusable: &CpuSet,
    ) -> Result<CpuSet, CpuError> {
        self.check_cores(state, wanted, reusable)?;
        let free = self.available(state).union(reusable);
        let mut taken = CpuSet::default();
        if let Some(nodes) = nodes {
            let aligned = self.aligned(nodes, &free);
            let count = wanted.min(aligned.len());
            taken = self.take(&aligned, count).map_err(CpuError::TooFew)?;
        }
        let rest = self.take(&free.difference(&taken), wanted - taken.len()).map_err(CpuError::TooFew)?;
        Ok(taken.union(&rest))
    }

    /// Under full-pcpus-only no core may be shared by two containers.
    pub fn check_cores(&self, state: &CpuState, wanted: usize, reusable: &CpuSet) -> Result<(), CpuError> {
        if !self.options.full_pcpus_only {
            return Ok(());
        }
        let per_core = self.machine.per(Part::Core).max(1);
        if !wanted.is_multiple_of(per_core) {
            return Err(CpuError::NotWholeCores { wanted, per_core });
        }
        let available = state.shared.difference(&self.reserved_cores).union(reusable).len();
        if wanted > available {
            return Err(CpuError::NoWholeCores { wanted, available, per_core });
        }
        Ok(())
    }

    /// Picks CPUs out of `free` and nothing else.
    ///
    /// # Errors
    /// When there are not as many.
    pub fn take(&self, free: &CpuSet, wanted: usize) -> Result<CpuSet, String> {
        let options = &self.options;
        if options.distribute_across_numa {
            let group = if options.full_pcpus_only { self.machine.per(Part::Core) } else { 1 };
            let (spread, by_socket) = (options.distribute_across_cores, options.align_by_socket);
            return take_distributed(&self.machine, free, Request { cpus: wanted, group, spread, by_socket });
        }
        let manner = Manner { spread: options.distribute_across_cores, by_uncore: options.by_uncore };
        take_packed(&self.machine, free, wanted, manner)
    }

    /// The free CPUs on these nodes; with align-by-socket on their sockets.
    fn aligned(&self, nodes: NodeMask, free: &CpuSet) -> CpuSet {
        let on_nodes = |cpus: &CpuSet| -> CpuSet {
            self.machine.only(cpus).filter(|(_, place)| nodes.contains(place.node)).map(|(cpu, _)| cpu).collect()
        };
        if !self.options.align_by_socket {
            return on_nodes(free);
        }
        let sockets = self.machine.parts(&on_nodes(&self.machine.all()), Part::Socket);
        self.machine.only(free).filter(|(_, place)| sockets.contains(&place.socket)).map(|(cpu, _)| cpu).collect()
    }

    /// Where `wanted` CPUs could come from. Those of `given` must all be part of it.
    pub fn hints(&self, available: &CpuSet, given: &CpuSet, wanted: usize) -> Hints {
        let nodes: Vec<u32> = self.machine.parts(&self.machine.all(), Part::Node).into_iter().collect();
        let within = |cpus: &CpuSet, mask: NodeMask| {
            self.machine.only(cpus).filter(|(_, place)| mask.contains(place.node)).count()
        };
        let all = self.machine.all();
        let (mut least, mut hints) = (nodes.len(), Vec::new());
        each_mask(&nodes, |mask| {
            if within(&all, mask) >= wanted {
                least = least.min(mask.count());
            }
            let all_given = within(given, mask) == given.len();
            if all_given && given.len() + within(&available.difference(given), mask) >= wanted {
                hints.push(Hint { nodes: Some(mask), preferred: false });
            }
        });
        for hint in &mut hints {
            let mask = hint.nodes.unwrap_or_default();
            hint.preferred =
                mask.count() == least || self.options.align_by_socket && self.on_fewest_sockets(mask, least);
        }
        Some(hints)
    }

    fn on_fewest_sockets(&self, mask: NodeMask, least_nodes: usize) -> bool {
        let per_socket = self.machine.count(Part::Node).checked_div(self.machine.count(Part::Socket)).unwrap_or(0);
        if per_socket == 0 {
            return false;
        }
        let cpus: CpuSet = self
            .machine
            .only(&self.machine.all())
            .filter(|(_, place)| mask.contains(place.node))
            .map(|(cpu, _)| cpu)
            .collect();
        self.machine.parts(&cpus, Part::Socket).len() == least_nodes.div_ceil(per_socket)
    }
}
