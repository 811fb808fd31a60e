//! What a cgroup of pods may use, computed from pods and configuration.
//!
//! Pure arithmetic. Followed: kubelet `ResourceConfigForPod`, `getCgroupConfig` and the QoS container manager.

use proto::api::core::v1::{Container, Pod};

use crate::node::Resources;
use crate::pod::memory_qos::Kept;
use crate::pod::resources::{
    MIN_SHARES, NodeResources, QosClass, milli_cpu_to_quota, milli_cpu_to_shares, milli_of, pod_totals, qos_class,
};
use crate::pod::spec::{PodExt, is_sidecar};

/// Limits of one cgroup; `None` leaves what is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    pub cpu_shares: Option<i64>,
    /// Microseconds of each period; negative for no limit.
    pub cpu_quota: Option<(i64, i64)>,
    /// Bytes.
    pub memory: Option<i64>,
    /// What the kernel keeps for it.
    pub memory_kept: Option<Kept>,
    pub pids: Option<i64>,
    /// Page size as the kernel's files have it (`2MB`), bytes.
    pub huge_pages: Vec<(String, i64)>,
}

/// What the kernel has for a cgroup; `None` for no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Found {
    pub cpu_weight: i64,
    /// Microseconds of each period.
    pub cpu_quota: Option<(i64, i64)>,
    /// Bytes.
    pub memory: Option<i64>,
}

/// `cpu.weight` for shares, by the linear rule: 2 is 1, 262144 is 10000.
pub fn cpu_weight(shares: i64) -> i64 {
    1 + (shares.clamp(MIN_SHARES, crate::pod::resources::MAX_SHARES) - 2) * 9999 / 262_142
}

/// The rule of [`cpu_weight`] from the other side. Few shares have a weight of their own.
pub fn cpu_shares(weight: i64) -> i64 {
    (weight.clamp(1, 10_000) - 1) * 262_142 / 9999 + MIN_SHARES
}

/// Limits of a pod's cgroup. `pids` is `podPidsLimit`, not positive for none.
pub fn pod_limits(pod: &Pod, node: &NodeResources, pids: i64) -> Limits {
    let totals = pod_totals(pod);
    let of = |list: &std::collections::BTreeMap<String, i64>, name: &str| list.get(name).copied().unwrap_or(0);
    let (request, limit) = (of(&totals.requests, "cpu"), of(&totals.limits, "cpu"));
    let memory = of(&totals.limits, "memory") / 1000;
    // Each page size has its own file; a size that is not asked for is denied.
    let huge_pages = node.hugepage_sizes.iter().map(|size| (size.clone(), huge_page_bytes(&totals.limits, size)));
    let mut limits = Limits { huge_pages: huge_pages.collect(), ..Limits::default() };
    limits.pids = (pids > 0).then_some(pids);
    limits.memory_kept = node.memory_qos.as_ref().map(|qos| qos.of_pod(pod)).filter(|kept| *kept != Kept::default());
    match qos_class(pod) {
        QosClass::BestEffort => limits.cpu_shares = Some(MIN_SHARES),
        class => {
            let guaranteed = class == QosClass::Guaranteed;
            limits.cpu_shares = Some(milli_cpu_to_shares(if request == 0 { limit } else { request }));
            if (guaranteed || every_container_has(pod, "cpu")) && limit > 0 {
                let period = node.period_micros;
                let quota = if node.enforce_quota { milli_cpu_to_quota(limit, period) } else { -1 };
                limits.cpu_quota = Some((quota, period));
            }
            if (guaranteed || every_container_has(pod, "memory")) && memory > 0 {
                limits.memory = Some(memory);
            }
        }
    }
    limits
}

/// Whether the whole pod, or each container of it, has a limit. An init container without one has that of the sidecars that
/// run beside it by then.
fn every_container_has(pod: &Pod, name: &str) -> bool {
    let spec = pod.spec();
    if spec.resources.as_ref().is_some_and(|whole| milli_of(&whole.limits, name) > 0) {
        return true;
    }
    let has = |c: &Container| c.resources.as_ref().is_some_and(|r| milli_of(&r.limits, name) > 0);
    let mut sidecar_has = false;
    let init_has = |c: &Container| {
        let own = has(c);
        sidecar_has |= own && is_sidecar(c);
        own || sidecar_has
    };
    spec.containers.iter().all(has) && spec.init_containers.iter().all(init_has)
}

fn huge_page_bytes(limits: &std::collections::BTreeMap<String, i64>, size: &str) -> i64 {
    let (digits, unit) = size.split_at(size.len().saturating_sub(2));
    let name = format!("hugepages-{digits}{}i", unit.get(..1).unwrap_or_default());
    limits.get(&name).copied().unwrap_or(0) / 1000
}

/// Limits of the parent of all pods: what is left of the node after the reservations. Eviction thresholds stay in, so
/// that eviction comes before the kernel kills.
pub fn kubepods_limits(left: &Resources, node: &NodeResources, pids: Option<i64>) -> Limits {
    let value = |name: &str| left.get(name).map(proto::quantity::Quantity::value);
    let page = |size: &String| {
        let (digits, unit) = size.split_at(size.len().saturating_sub(2));
        let bytes = value(&format!("hugepages-{digits}{}i", unit.get(..1).unwrap_or_default())).unwrap_or(0);
        (size.clone(), bytes)
    };
    Limits {
        cpu_shares: left.get("cpu").map(|q| milli_cpu_to_shares(q.milli_value())),
        cpu_quota: None,
        memory: value("memory"),
        memory_kept: None,
        pids,
        huge_pages: node.hugepage_sizes.iter().map(page).collect(),
    }
}

/// Limits of what is reserved for the system or for the agent and the runtime. `compressible`: the weight alone, as what
/// has too little CPU is slow, and what has too little memory dies.
pub fn reserved_limits(list: &std::collections::BTreeMap<String, String>, compressible: bool) -> Limits {
    let amount = |name: &str| list.get(name)?.parse::<proto::quantity::Quantity>().ok();
    // Nothing reserved is no limit; as one it would end all that runs there.
    let whole = |name: &str| amount(name).filter(|_| !compressible).map(|q| q.value()).filter(|most| *most > 0);
    Limits {
        cpu_shares: amount("cpu").map(|q| milli_cpu_to_shares(q.milli_value())),
        memory: whole("memory"),
        pids: whole("pid"),
        ..Limits::default()
    }
}

/// Milli-CPU that a pod adds to the weight of the Burstable tier.
pub fn burstable_milli_cpu(pod: &Pod) -> i64 {
    match qos_class(pod) {
        QosClass::Burstable => pod_totals(pod).requests.get("cpu").copied().unwrap_or(0),
        QosClass::Guaranteed | QosClass::BestEffort => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{PodSpec, ResourceRequirements};
    use proto::apimachinery::pkg::api::resource::Quantity;

    fn container(requests: &[(&str, &str)], limits: &[(&str, &str)]) -> Container {
        let list = |entries: &[(&str, &str)]| {
            entries.iter().map(|(k, v)| ((*k).to_owned(), Quantity { string: (*v).to_owned() })).collect()
        };
        let resources = ResourceRequirements { requests: list(requests), limits: list(limits), claims: Vec::new() };
        Container { resources: Some(resources), ..Container::default() }
    }

    fn pod(containers: Vec<Container>) -> Pod {
        Pod { spec: Some(PodSpec { containers, ..PodSpec::default() }), ..Pod::default() }
    }

    #[test]
    fn of_a_reservation_that_is_compressible_only_the_weight_is_set() {
        let list = [("cpu", "500m"), ("memory", "1Gi"), ("pid", "100"), ("ephemeral-storage", "1Gi")];
        let list = list.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let all = Limits { cpu_shares: Some(512), memory: Some(1 << 30), pids: Some(100), ..Limits::default() };
        assert_eq!(reserved_limits(&list, false), all);
        assert_eq!(reserved_limits(&list, true), Limits { cpu_shares: Some(512), ..Limits::default() });
        assert_eq!(reserved_limits(&Default::default(), false), Limits::default());
    }

    #[test]
    fn weights_are_linear_in_shares() {
        assert_eq!([2, 1024, 262_144].map(cpu_weight), [1, 39, 10_000]);
    }

    #[test]
    fn a_burstable_pod_is_limited_only_when_every_container_is() {
        let node = NodeResources::default();
        let limited = container(&[("cpu", "100m")], &[("cpu", "200m"), ("memory", "1Mi")]);
        let all = pod_limits(&pod(vec![limited.clone(), limited.clone()]), &node, -1);
        assert_eq!((all.cpu_shares, all.cpu_quota, all.memory), (Some(204), Some((40_000, 100_000)), Some(2 << 20)));
        let some = pod_limits(&pod(vec![limited, container(&[], &[])]), &node, 50);
        assert_eq!((some.cpu_shares, some.cpu_quota, some.memory, some.pids), (Some(102), None, None, Some(50)));
    }

    /// What prepares a pod and may use what it likes had to do with what the regular containers may use.
    #[test]
    fn an_init_container_without_a_limit_leaves_its_pod_without_one() {
        let limited = container(&[("cpu", "100m")], &[("cpu", "200m"), ("memory", "1Mi")]);
        let open = container(&[("cpu", "100m")], &[]);
        let sidecar = |c: &Container| Container { restart_policy: Some("Always".into()), ..c.clone() };
        let limits = |init: &[Container]| {
            let mut pod = pod(vec![limited.clone()]);
            pod.spec.get_or_insert_default().init_containers = init.to_vec();
            let limits = pod_limits(&pod, &NodeResources::default(), 0);
            (limits.cpu_quota.map(|(quota, _)| quota), limits.memory)
        };
        assert_eq!(limits(std::slice::from_ref(&limited)), (Some(20_000), Some(1 << 20)));
        for without in [&open, &sidecar(&open)] {
            assert_eq!(limits(std::slice::from_ref(without)), (None, None));
            assert_eq!(limits(&[without.clone(), sidecar(&limited)]), (None, None));
            assert_eq!(limits(&[limited.clone(), without.clone()]), (None, None));
            assert_eq!(limits(&[sidecar(&limited), without.clone()]), (Some(40_000), Some(2 << 20)));
        }
    }

    #[test]
    fn a_best_effort_pod_has_the_least_weight_and_no_huge_pages() {
        let node = NodeResources { hugepage_sizes: vec!["2MB".into()], ..NodeResources::default() };
        let limits = pod_limits(&pod(vec![container(&[], &[])]), &node, 0);
        assert_eq!((limits.cpu_shares, limits.memory, limits.pids), (Some(2), None, None));
        assert_eq!(limits.huge_pages, [("2MB".to_owned(), 0)]);
    }

    #[test]
    fn only_burstable_pods_add_to_the_weight_of_their_tier() {
        let burstable = pod(vec![container(&[("cpu", "250m")], &[])]);
        let guaranteed = pod(vec![container(&[], &[("cpu", "1"), ("memory", "1Mi")])]);
        assert_eq!((burstable_milli_cpu(&burstable), burstable_milli_cpu(&guaranteed)), (250, 0));
    }
}
