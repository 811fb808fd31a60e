//! Starting the managers: policies from the configuration and the machine, state from the files of before.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use proto::quantity::Quantity;

use super::cpu_policy::{Options, StaticCpus};
use super::cpu_set::CpuSet;
use super::memory_policy::{Amounts, StaticMemory};
use super::merge::{Merger, Policy};
use super::numa::NodeMask;
use super::topology::Topology;
use super::wanted::Wanted;
use super::{Managers, State, cpu_state, memory_state};
use crate::config::{Configuration, FeatureGates};

pub(super) const NO_CPUS: &str = "none";
pub(super) const STATIC_CPUS: &str = "static";
pub(super) const NO_MEMORY: &str = "None";
pub(super) const STATIC_MEMORY: &str = "Static";

/// More nodes than this make the search for the best too long (option max-allowable-numa-nodes).
const MAX_NODES: usize = 8;

/// What the configuration says of the managers.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    pub root_dir: PathBuf,
    pub cpu_policy: String,
    pub cpu_options: BTreeMap<String, String>,
    /// `reservedSystemCPUs`.
    pub reserved_cpus: CpuSet,
    /// CPUs of `systemReserved` and `kubeReserved`, rounded up.
    pub reserved_count: usize,
    pub memory_policy: String,
    /// Bytes by node and resource.
    pub reserved_memory: BTreeMap<u32, Amounts>,
    pub topology_policy: String,
    pub topology_scope: String,
    pub topology_options: BTreeMap<String, String>,
    /// The gate DisableCPUQuotaWithExclusiveCPUs.
    pub without_quota: bool,
    /// The gates PodLevelResources and PodLevelResourceManagers.
    pub pod_level: bool,
}

impl Settings {
    pub fn of(config: &Configuration, gates: &FeatureGates, root_dir: &Path) -> Self {
        let amount = |text: &String| text.parse::<Quantity>().ok();
        let reserved: i64 = [&config.system_reserved, &config.kube_reserved]
            .into_iter()
            .filter_map(|list| list.get("cpu").and_then(amount))
            .map(|amount| amount.milli_value())
            .fold(0, i64::saturating_add);
        let reserved_cpus: CpuSet = config.reserved_cpus().into_iter().collect();
        let by_config = usize::try_from(reserved.max(0)).unwrap_or(usize::MAX).div_ceil(1000);
        let mut reserved_memory: BTreeMap<u32, Amounts> = BTreeMap::new();
        for node in &config.reserved_memory {
            let limits = reserved_memory.entry(u32::try_from(node.numa_node).unwrap_or(u32::MAX)).or_default();
            for (name, text) in &node.limits {
                let bytes = amount(text).map_or(0, |amount| amount.value());
                limits.insert(name.clone(), u64::try_from(bytes).unwrap_or(0));
            }
        }
        Settings {
            root_dir: root_dir.to_owned(),
            cpu_policy: config.cpu_manager_policy.clone(),
            cpu_options: config.cpu_manager_policy_options.clone(),
            // With a list of CPUs their number counts as the reservation.
            reserved_count: if reserved_cpus.is_empty() { by_config } else { reserved_cpus.len() },
            reserved_cpus,
            memory_policy: config.memory_manager_policy.clone(),
            reserved_memory,
            topology_policy: config.topology_manager_policy.clone(),
            topology_scope: config.topology_manager_scope.clone(),
            topology_options: config.topology_manager_policy_options.clone(),
            without_quota: gates.enabled("DisableCPUQuotaWithExclusiveCPUs"),
            pod_level: gates.enabled("PodLevelResources") && gates.enabled("PodLevelResourceManagers"),
        }
    }
}

/// See [`Managers::open`].
pub(super) fn open(settings: &Settings, machine: &Topology) -> Result<Managers, String> {
    let policy = Policy::of(&settings.topology_policy);
    let option = |name: &str| settings.topology_options.get(name).map(String::as_str);
    let allowed = option("max-allowable-numa-nodes").and_then(|text| text.parse().ok()).unwrap_or(MAX_NODES);
    if policy != Policy::None && machine.nodes.len() > allowed {
        return Err(format!("unsupported on machines with more than {allowed} NUMA Nodes"));
    }
    if machine.nodes.keys().any(|node| *node >= NodeMask::MAX_NODES) {
        return Err(format!("a NUMA node has a number beyond {}", NodeMask::MAX_NODES - 1));
    }
    let closest = matches!(option("prefer-closest-numa-nodes"), Some("1" | "t" | "T" | "true" | "TRUE" | "True"));
    let cpus = (settings.cpu_policy == STATIC_CPUS)
        .then(|| {
            let options = Options::new(&settings.cpu_options, &machine.cpus, &settings.topology_policy)?;
            StaticCpus::new(machine.cpus.clone(), options, settings.reserved_count, settings.reserved_cpus.clone())
        })
        .transpose()
        .map_err(|e| format!("new static policy error: {e}"))?;
    let memory = (settings.memory_policy == STATIC_MEMORY)
        .then(|| StaticMemory::new(&machine.nodes, &settings.reserved_memory))
        .transpose()?;
    let mut state = State {
        cpus: restore(settings, cpu_state::FILE, "CPU", |text| {
            cpu_state::decode(text, if cpus.is_some() { STATIC_CPUS } else { NO_CPUS })
        })
        .map_err(|e| format!("start cpu manager error: {e}"))?,
        memory: restore(settings, memory_state::FILE, "memory", |text| {
            memory_state::decode(text, if memory.is_some() { STATIC_MEMORY } else { NO_MEMORY })
        })
        .map_err(|e| format!("start memory manager error: {e}"))?,
    };
    if !settings.pod_level {
        // What it was for is no longer looked at; the check below tells if something is missing then.
        state.cpus.pods.clear();
        state.memory.pods.clear();
    }
    match &cpus {
        Some(policy) => policy.validate(&mut state.cpus).map_err(|e| format!("start cpu manager error: {e}"))?,
        // Nothing is managed, whatever the file says.
        None => state.cpus = cpu_state::CpuState::default(),
    }
    if let Some(policy) = &memory {
        policy.validate(&mut state.memory).map_err(|e| format!("start memory manager error: {e}"))?;
    }
    let managers = Managers {
        root: settings.root_dir.clone(),
        cpus,
        memory,
        merger: Merger::new(policy, closest, &machine.nodes),
        pod_scope: settings.topology_scope == "pod",
        without_quota: settings.without_quota,
        wanted: Wanted { pod_level: settings.pod_level },
        state: Mutex::new(state),
        turn: tokio::sync::Mutex::default(),
        written: tokio::sync::Mutex::default(),
        applied: Mutex::default(),
        changed: tokio::sync::Notify::new(),
    };
    managers.told();
    Ok(managers)
}

/// What a file of before says; nothing where there is none.
fn restore<T: Default>(
    settings: &Settings,
    file: &str,
    what: &str,
    decode: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, String> {
    let path = settings.root_dir.join(file);
    let decoded = match std::fs::read_to_string(&path) {
        Ok(text) => decode(&text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(T::default()),
        Err(error) => Err(error.to_string()),
    };
    decoded.map_err(|error| {
        format!(
            "could not restore state from checkpoint: {error}, please drain this node and delete the {what} manager \
             checkpoint file {:?} before restarting Kubelet",
            path.display().to_string()
        )
    })
}
