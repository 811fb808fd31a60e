//! What is kept from pods, and how that is enforced.

use std::collections::BTreeSet;

use proto::quantity::Quantity;

use crate::config::start::cpu_set;
use crate::config::{Configuration, FeatureGates};

pub(super) fn enforcement(c: &Configuration, _gates: &FeatureGates, errors: &mut Vec<String>) {
    let wanted = &c.enforce_node_allocatable;
    let has = |key: &str| wanted.iter().any(|w| w == key);
    for part in ["system-reserved", "kube-reserved"] {
        let compressible = format!("{part}-compressible");
        if has(part) && has(&compressible) {
            errors.push(format!(
                "both {part:?} and {compressible:?} cannot be specified together in enforceNodeAllocatable \
                 (--enforce-node-allocatable)"
            ));
        }
    }
    for (at, value) in wanted.iter().enumerate() {
        if wanted[..at].contains(value) {
            errors.push(format!(
                "duplicated enforcements {value:?} in enforceNodeAllocatable (--enforce-node-allocatable)"
            ));
            continue;
        }
        let cgroup = match value.as_str() {
            "pods" => None,
            "system-reserved" | "system-reserved-compressible" => {
                Some(("system", "systemReservedCgroup", &c.system_reserved_cgroup))
            }
            "kube-reserved" | "kube-reserved-compressible" => {
                Some(("kube", "kubeReservedCgroup", &c.kube_reserved_cgroup))
            }
            "none" => {
                if wanted.len() > 1 {
                    errors.push(
                        "enforceNodeAllocatable (--enforce-node-allocatable) may not contain additional enforcements \
                         when \"none\" is specified"
                            .into(),
                    );
                }
                continue;
            }
            other => {
                errors.push(format!(
                    "option {other:?} specified for enforceNodeAllocatable (--enforce-node-allocatable). Valid \
                     options are \"pods\", \"system-reserved\", \"system-reserved-compressible\", \"kube-reserved\", \
                     \"kube-reserved-compressible\" or \"none\""
                ));
                continue;
            }
        };
        if let Some((part, field, name)) = cgroup
            && name.is_empty()
        {
            errors.push(format!(
                "{field} (--{part}-reserved-cgroup) must be specified when \"{part}-reserved\" or \
                 \"{part}-reserved-compressible\" included in enforceNodeAllocatable (--enforce-node-allocatable)"
            ));
        }
        if !c.cgroups_per_qos {
            errors.push(format!(
                "cgroupsPerQOS (--cgroups-per-qos) must be set to true when {value:?} contained in \
                 enforceNodeAllocatable (--enforce-node-allocatable)"
            ));
        }
    }
    if !matches!(c.hairpin_mode.as_str(), "none" | "hairpin-veth" | "promiscuous-bridge") {
        errors.push(format!(
            "option {:?} specified for hairpinMode (--hairpin-mode). Valid options are \"none\", \"hairpin-veth\" or \
             \"promiscuous-bridge\"",
            c.hairpin_mode
        ));
    }
}

pub(super) fn reservations(c: &Configuration, _gates: &FeatureGates, errors: &mut Vec<String>) {
    if !c.reserved_system_cpus.is_empty() {
        if !c.system_reserved_cgroup.is_empty() || !c.kube_reserved_cgroup.is_empty() {
            errors.push(
                "can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup (--system-reserved-cgroup) \
                 or kubeReservedCgroup (--kube-reserved-cgroup)"
                    .into(),
            );
        }
        if let Err(error) = cpu_set(&c.reserved_system_cpus) {
            errors.push(format!(
                "unable to parse reservedSystemCPUs (--reserved-cpus) {}, error: {error}",
                c.reserved_system_cpus
            ));
        }
    }
    let mut seen = BTreeSet::new();
    for node in &c.reserved_memory {
        for (kind, amount) in &node.limits {
            if kind != "memory" && !kind.starts_with("hugepages-") {
                errors.push(format!(
                    "the limit type {kind:?} for NUMA node {} is not supported, only [memory \
                     hugepages-<HugePageSize>] is accepted",
                    node.numa_node
                ));
            }
            if amount.parse::<Quantity>().is_ok_and(|q| q.is_zero()) {
                errors.push(format!(
                    "reserved memory may not be zero for NUMA node {} and resource {kind:?}",
                    node.numa_node
                ));
            }
            if !seen.insert((node.numa_node, kind)) {
                errors.push(format!(
                    "the reserved memory has a duplicate value for NUMA node {} and resource {kind:?}",
                    node.numa_node
                ));
            }
        }
    }
}

pub(super) fn qos(c: &Configuration, gates: &FeatureGates, errors: &mut Vec<String>) {
    if let Some(factor) = c.memory_throttling_factor
        && (factor <= 0.0 || factor > 1.0)
    {
        errors.push(format!("memoryThrottlingFactor {factor} must be greater than 0 and less than or equal to 1.0"));
    }
    match c.memory_reservation_policy.as_str() {
        "None" => {}
        "TieredReservation" if gates.enabled("MemoryQoS") => {}
        "TieredReservation" => errors.push(
            "memoryReservationPolicy \"TieredReservation\" requires MemoryQoS feature gate to be enabled".into(),
        ),
        other => errors.push(format!(
            "option {other:?} specified for memoryReservationPolicy. Valid options are \"None\" or \"TieredReservation\""
        )),
    }
    if c.container_runtime_endpoint.is_empty() {
        errors.push("the containerRuntimeEndpoint was not specified or empty".into());
    }
}
