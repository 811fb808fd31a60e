//! What requests and limits mean to the runtime: CPU shares and quota, memory limits, OOM score.
//!
//! Pure arithmetic on a pod's spec and the node's memory. Quantities are read with the codec's parser; one that does
//! not parse counts as absent, because the API server has already refused it.
//!
//! Followed: `pkg/kubelet/cm/helpers_linux.go`, `pkg/kubelet/qos/policy.go`, `resourcehelper`.

use std::collections::BTreeMap;

use proto::api::core::v1::{Container, Pod, ResourceRequirements};
use proto::apimachinery::pkg::api::resource::Quantity;
use proto::cri::{HugepageLimit, LinuxContainerResources};

use super::memory_qos::MemoryQos;
use super::quantity::{amount, milli, thousandths, whole};
use super::spec::{PodExt, is_sidecar};

pub type ResourceList = BTreeMap<String, Quantity>;

pub const MIN_SHARES: i64 = 2;
pub const MAX_SHARES: i64 = 262_144;
const MIN_QUOTA_MICROS: i64 = 1000;
/// Default `cpuCFSQuotaPeriod`.
pub const CFS_PERIOD_MICROS: i64 = 100_000;

/// What the node decides about resources.
#[derive(Debug, Clone)]
pub struct NodeResources {
    pub memory_bytes: i64,
    /// `cpuCFSQuota`.
    pub enforce_quota: bool,
    pub period_micros: i64,
    /// Page sizes as the runtime names them: `2MB`, `1GB`.
    pub hugepage_sizes: Vec<String>,
    /// Whether containers may use swap at all, with cgroup v2.
    pub limited_swap: bool,
    /// Whether the kernel counts swap by cgroup.
    pub swap_controller: bool,
    pub single_process_oom_kill: Option<bool>,
    pub cgroup_v2: bool,
    pub swap_bytes: i64,
    /// Only with cgroup v2.
    pub memory_qos: Option<MemoryQos>,
}

impl Default for NodeResources {
    fn default() -> Self {
        Self {
            memory_bytes: 0,
            enforce_quota: true,
            period_micros: CFS_PERIOD_MICROS,
            hugepage_sizes: Vec::new(),
            limited_swap: false,
            swap_controller: false,
            single_process_oom_kill: None,
            cgroup_v2: false,
            swap_bytes: 0,
            memory_qos: None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QosClass {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl QosClass {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

/// The class in the status if set (the API server fixes it at creation), else computed.
pub fn qos_class(pod: &Pod) -> QosClass {
    match pod.status.as_ref().map_or("", |s| &s.qos_class) {
        "Guaranteed" => QosClass::Guaranteed,
        "Burstable" => QosClass::Burstable,
        "BestEffort" => QosClass::BestEffort,
        _ => compute_qos(pod),
    }
}

fn compute_qos(pod: &Pod) -> QosClass {
    let spec = pod.spec();
    let one;
    let parts: Vec<&ResourceRequirements> = match &spec.resources {
        Some(whole_pod) => {
            one = whole_pod;
            vec![one]
        }
        None => spec.containers.iter().chain(&spec.init_containers).map(requirements).collect(),
    };
    let (mut any, mut guaranteed) = (false, true);
    for r in &parts {
        for name in ["cpu", "memory"] {
            let (request, limit) = (milli_of(&r.requests, name), milli_of(&r.limits, name));
            any |= request > 0 || limit > 0;
            guaranteed &= limit > 0 && (request == limit || !r.requests.contains_key(name));
        }
    }
    match (any, guaranteed && !parts.is_empty()) {
        (false, _) => QosClass::BestEffort,
        (true, true) => QosClass::Guaranteed,
        (true, false) => QosClass::Burstable,
    }
}

fn requirements(container: &Container) -> &ResourceRequirements {
    static EMPTY: std::sync::LazyLock<ResourceRequirements> = std::sync::LazyLock::new(Default::default);
    container.resources.as_ref().unwrap_or(&EMPTY)
}

pub fn milli_of(list: &ResourceList, name: &str) -> i64 {
    list.get(name).map_or(0, milli)
}

pub fn bytes_of(list: &ResourceList, name: &str) -> i64 {
    list.get(name).map_or(0, whole)
}

/// `shares = milli * 1024 / 1000`, within the kernel's limits; nothing asked is the minimum.
pub fn milli_cpu_to_shares(milli_cpu: i64) -> i64 {
    if milli_cpu == 0 { MIN_SHARES } else { (milli_cpu.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES) }
}

/// What shares stand for, rounded up.
pub fn shares_to_milli_cpu(shares: i64) -> i64 {
    shares.saturating_mul(1000).saturating_add(1023) / 1024
}

/// Microseconds of CPU per period; zero for no limit.
pub fn milli_cpu_to_quota(milli_cpu: i64, period: i64) -> i64 {
    if milli_cpu == 0 { 0 } else { (milli_cpu.saturating_mul(period) / 1000).max(MIN_QUOTA_MICROS) }
}

/// Effective requests and limits of a pod: the sum of regular containers and sidecars, or the highest init container
/// together with the sidecars before it; whole-pod values win; overhead added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodTotals {
    /// Milli-units by resource name.
    pub requests: BTreeMap<String, i64>,
    pub limits: BTreeMap<String, i64>,
}

/// See [`PodTotals`].
pub fn pod_totals(pod: &Pod) -> PodTotals {
    let narrow = |all: Sums| all.into_iter().map(|(name, value)| (name, saturated(value.thousandths()))).collect();
    PodTotals { requests: narrow(requests(pod)), limits: narrow(limits(pod)) }
}

/// What the pod has of each resource as a whole: as [`PodTotals`], each in the form of the first amount that it is made of.
pub fn pod_amounts(pod: &Pod) -> ResourceRequirements {
    let list =
        |all: Sums| all.into_iter().map(|(name, value)| (name, Quantity { string: value.to_string() })).collect();
    ResourceRequirements { requests: list(requests(pod)), limits: list(limits(pod)), claims: Vec::new() }
}

/// [`PodTotals::requests`] as messages count them: see [`counted`].
pub fn counted_requests(pod: &Pod) -> BTreeMap<String, i64> {
    let counted = |(name, value): (String, Amount)| {
        let count = counted_thousandths(&name, value.thousandths());
        (name, count)
    };
    requests(pod).into_iter().map(counted).collect()
}

/// An amount as the kubelet's messages count it: thousandths of a CPU, whole units of all else, rounded up.
pub fn counted(name: &str, amount: &Quantity) -> i64 {
    counted_thousandths(name, thousandths(amount))
}

fn counted_thousandths(name: &str, value: i128) -> i64 {
    let unit = if name == "cpu" { 1 } else { 1000 };
    saturated(value.div_euclid(unit) + i128::from(value.rem_euclid(unit) != 0))
}

fn saturated(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

/// Exact, and with room for many quantities of 9 Ei.
type Amount = proto::quantity::Quantity;
/// By resource name.
type Sums = BTreeMap<String, Amount>;

fn add(sums: &mut Sums, list: &ResourceList) {
    for (name, value) in list {
        sums.entry(name.clone()).or_default().add(amount(value));
    }
}

fn requests(pod: &Pod) -> Sums {
    let mut requests = with_whole_pod(pod, |r| &r.requests);
    add(&mut requests, &pod.spec().overhead);
    requests
}

fn limits(pod: &Pod) -> Sums {
    let mut limits = with_whole_pod(pod, |r| &r.limits);
    for (name, value) in &pod.spec().overhead {
        // A limit that is not there stays "none".
        if let Some(limit) = limits.get_mut(name).filter(|limit| !limit.is_zero()) {
            limit.add(amount(value));
        }
    }
    limits
}

fn with_whole_pod(pod: &Pod, pick: fn(&ResourceRequirements) -> &ResourceList) -> Sums {
    let mut all = totals(pod, pick);
    if let Some(whole_pod) = &pod.spec().resources {
        all.extend(pick(whole_pod).iter().map(|(name, value)| (name.clone(), amount(value))));
    }
    all
}

fn totals(pod: &Pod, pick: fn(&ResourceRequirements) -> &ResourceList) -> Sums {
    let spec = pod.spec();
    let mut sum = Sums::new();
    for container in &spec.containers {
        add(&mut sum, pick(requirements(container)));
    }
    let (mut sidecars, mut highest) = (Sums::new(), Sums::new());
    for container in &spec.init_containers {
        let list = pick(requirements(container));
        let mut now = sidecars.clone();
        if is_sidecar(container) {
            add(&mut sum, list);
            add(&mut sidecars, list);
            now.clone_from(&sidecars);
        } else {
            add(&mut now, list);
        }
        raise(&mut highest, now);
    }
    raise(&mut sum, highest);
    sum
}

/// The greater of both, by name.
fn raise(sums: &mut Sums, to: Sums) {
    for (name, value) in to {
        if sums.get(&name).is_none_or(|has| *has < value) {
            sums.insert(name, value);
        }
    }
}

/// Resources of the sandbox: the summed limits of the pod, without the overhead, which the runtime is told beside them.
pub fn sandbox_resources(pod: &Pod, node: &NodeResources) -> LinuxContainerResources {
    let requests = with_whole_pod(pod, |r| &r.requests);
    let limits = with_whole_pod(pod, |r| &r.limits);
    let milli = |sums: &Sums, name: &str| sums.get(name).map(|value| saturated(value.thousandths()));
    let limit = |name: &str| milli(&limits, name).unwrap_or(0);
    linux_resources(milli(&requests, "cpu"), limit("cpu"), limit("memory"), node)
}

/// The overhead that the runtime class adds.
pub fn sandbox_overhead(pod: &Pod, node: &NodeResources) -> LinuxContainerResources {
    let overhead = &pod.spec().overhead;
    if overhead.is_empty() {
        return LinuxContainerResources::default();
    }
    let cpu = milli_of(overhead, "cpu");
    linux_resources(Some(cpu), cpu, milli_of(overhead, "memory"), node)
}

/// `memory` in milli-bytes like every total. A request of nothing is one, unlike none.
fn linux_resources(
    cpu_request: Option<i64>,
    cpu_limit: i64,
    memory_limit: i64,
    node: &NodeResources,
) -> LinuxContainerResources {
    // With only a limit, the limit is the request.
    let shares = cpu_request.unwrap_or(cpu_limit);
    let mut resources = LinuxContainerResources {
        cpu_shares: milli_cpu_to_shares(shares),
        memory_limit_in_bytes: memory_limit / 1000,
        cpu_period: if node.enforce_quota { node.period_micros } else { 0 },
        cpu_quota: if node.enforce_quota { milli_cpu_to_quota(cpu_limit, node.period_micros) } else { 0 },
        ..Default::default()
    };
    if node.cgroup_v2 && !node.single_process_oom_kill.unwrap_or(false) {
        resources.unified.insert("memory.oom.group".into(), "1".into());
    }
    resources
}

/// Resources of a container, without cpuset: that is the managers' business.
pub fn container_resources(pod: &Pod, container: &Container, node: &NodeResources) -> LinuxContainerResources {
    let own = requirements(container);
    let pod_level = pod.spec().resources.as_ref();
    let mut cpu_limit = milli_of(&own.limits, "cpu");
    let mut memory_limit = milli_of(&own.limits, "memory");
    if let Some(whole_pod) = pod_level {
        if cpu_limit == 0 {
            cpu_limit = milli_of(&whole_pod.limits, "cpu");
        }
        if memory_limit == 0 {
            memory_limit = milli_of(&whole_pod.limits, "memory");
        }
    }
    let cpu_request = own.requests.get("cpu").map(milli);
    let mut resources = linux_resources(cpu_request, cpu_limit, memory_limit, node);
    resources.oom_score_adj = oom_score_adj(pod, container, node.memory_bytes);
    let of_pod = pod_level.map(|whole_pod| &whole_pod.limits);
    resources.hugepage_limits = hugepage_limits(&own.limits, of_pod, &node.hugepage_sizes);
    limit_swap(&mut resources, pod, container, node);
    if let Some(qos) = &node.memory_qos {
        resources.unified.extend(qos.unified(pod, container));
    }
    resources
}

/// Whether the container may swap: only one of a Burstable pod that is not critical, and that asks for less memory than it
/// may use.
pub fn may_swap(pod: &Pod, container: &Container, node: &NodeResources) -> bool {
    let own = requirements(container);
    let request = bytes_of(&own.requests, "memory");
    node.limited_swap
        && node.cgroup_v2
        && node.swap_controller
        && node.swap_bytes != 0
        && node.memory_bytes != 0
        && qos_class(pod) == QosClass::Burstable
        && !pod.is_critical()
        && request != 0
        && request != bytes_of(&own.limits, "memory")
}

/// What a container may have in swap: a share of the node's that follows its request, or nothing. With cgroup v1 memory and
/// swap have one limit, which is then that of the memory, and without that nothing holds.
///
/// Followed: `configureContainerSwapResources`.
fn limit_swap(resources: &mut LinuxContainerResources, pod: &Pod, container: &Container, node: &NodeResources) {
    if !node.swap_controller {
        return;
    }
    if !node.cgroup_v2 {
        resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes;
        return;
    }
    let request = bytes_of(&requirements(container).requests, "memory");
    let share = match may_swap(pod, container, node) && request <= node.memory_bytes {
        true => i128::from(request) * i128::from(node.swap_bytes) / i128::from(node.memory_bytes),
        false => 0,
    };
    resources.unified.insert("memory.swap.max".to_owned(), share.to_string());
}

/// One entry per page size of the node, zero where nothing is asked. What the container does not say, the pod as a whole
/// may.
fn hugepage_limits(own: &ResourceList, of_pod: Option<&ResourceList>, sizes: &[String]) -> Vec<HugepageLimit> {
    let of = |limits: &ResourceList, size: &str| {
        let wanted = limits.iter().find_map(|(name, value)| {
            let suffix = name.strip_prefix("hugepages-")?;
            (runtime_page_size(suffix).as_deref() == Some(size)).then(|| whole(value))
        });
        wanted.map(|bytes| u64::try_from(bytes).unwrap_or(0))
    };
    let limit = |size: &str| of(own, size).or_else(|| of(of_pod?, size)).unwrap_or(0);
    sizes.iter().map(|size| HugepageLimit { page_size: size.clone(), limit: limit(size) }).collect()
}

/// `2Mi` as the runtime writes it: `2MB`.
fn runtime_page_size(quantity: &str) -> Option<String> {
    let digits = quantity.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &quantity[digits.len()..] {
        "Ki" => "KB",
        "Mi" => "MB",
        "Gi" => "GB",
        _ => return None,
    };
    Some(format!("{digits}{unit}"))
}

/// How readily the kernel kills the container: Guaranteed and node-critical last, BestEffort first, the rest by the
/// share of the node's memory that they asked for.
pub fn oom_score_adj(pod: &Pod, container: &Container, memory_capacity: i64) -> i64 {
    const GUARANTEED: i64 = -997;
    const BEST_EFFORT: i64 = 1000;
    let spec = pod.spec();
    if pod.is_critical() && spec.priority_class_name == "system-node-critical" {
        return GUARANTEED;
    }
    match qos_class(pod) {
        QosClass::Guaranteed => return GUARANTEED,
        QosClass::BestEffort => return BEST_EFFORT,
        QosClass::Burstable => {}
    }
    if memory_capacity <= 0 {
        return 999;
    }
    let request = |c: &Container| effective_memory_request(c);
    // What only the pod as a whole asks for is everybody's in equal parts.
    let mut surplus = 0;
    if let Some(whole_pod) = &spec.resources {
        let total = bytes_of(&whole_pod.requests, "memory");
        let all: Vec<&Container> =
            spec.containers.iter().chain(spec.init_containers.iter().filter(|c| is_sidecar(c))).collect();
        let sum: i64 = all.iter().map(|c| request(c)).sum();
        if total > sum && !all.is_empty() {
            surplus = (total - sum) / i64::try_from(all.len()).unwrap_or(1);
        }
    }
    let adjust = |container: &Container| {
        let asked = i128::from(request(container)) + i128::from(surplus);
        let share = asked * 1000 / i128::from(memory_capacity);
        (1000 - i64::try_from(share).unwrap_or(1000)).clamp(3, 999)
    };
    let own = adjust(container);
    // A sidecar must not die before the container that asked for the least: it may serve any of them.
    if is_sidecar(container) && spec.init_containers.iter().any(|c| c.name == container.name) {
        let least = spec.containers.iter().map(adjust).max().unwrap_or(own);
        return own.min(least);
    }
    own
}

fn effective_memory_request(container: &Container) -> i64 {
    let own = requirements(container);
    match own.requests.get("memory") {
        Some(request) => whole(request),
        None => bytes_of(&own.limits, "memory"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::PodSpec;

    fn list(entries: &[(&str, &str)]) -> ResourceList {
        entries.iter().map(|(k, v)| ((*k).to_owned(), Quantity { string: (*v).to_owned() })).collect()
    }

    fn container(name: &str, requests: &[(&str, &str)], limits: &[(&str, &str)]) -> Container {
        let resources = Some(ResourceRequirements { requests: list(requests), limits: list(limits), claims: vec![] });
        Container { name: name.into(), resources, ..Default::default() }
    }

    fn pod(containers: Vec<Container>) -> Pod {
        Pod { spec: Some(PodSpec { containers, ..Default::default() }), ..Default::default() }
    }

    fn node() -> NodeResources {
        NodeResources {
            memory_bytes: 24 << 30,
            hugepage_sizes: vec!["2MB".into(), "1GB".into()],
            swap_controller: true,
            ..Default::default()
        }
    }

    /// With cgroup v2 the limit of swap is one of its own, also of a container without a limit of memory.
    #[test]
    fn swap_is_limited_as_the_kernel_counts_it() {
        let v1 = NodeResources { limited_swap: true, swap_bytes: 12 << 30, ..node() };
        let v2 = NodeResources { cgroup_v2: true, ..v1.clone() };
        let none = NodeResources { limited_swap: false, ..v2.clone() };
        let uncounted = NodeResources { swap_controller: false, ..v2.clone() };
        let limited = container("limited", &[("memory", "4Mi")], &[("memory", "16Mi")]);
        let open = container("open", &[("memory", "8Mi")], &[]);
        let equal = container("equal", &[("memory", "8Mi")], &[("memory", "8Mi")]);
        let huge = container("huge", &[("memory", "25Gi")], &[]);
        let silent = container("silent", &[], &[]);
        let pod = pod([&limited, &open, &equal, &huge, &silent].map(Clone::clone).into());
        let swap = |container: &Container, node: &NodeResources| {
            let resources = container_resources(&pod, container, node);
            (resources.memory_swap_limit_in_bytes, resources.unified.get("memory.swap.max").cloned())
        };
        let bytes = |mebibytes: i64| (0, Some((mebibytes << 20).to_string()));
        assert_eq!((swap(&limited, &v2), swap(&open, &v2)), (bytes(2), bytes(4)));
        for container in [&equal, &huge, &silent] {
            assert_eq!(swap(container, &v2), bytes(0), "{}", container.name);
        }
        assert_eq!((swap(&limited, &none), swap(&open, &none)), (bytes(0), bytes(0)));
        assert_eq!((swap(&limited, &v1), swap(&open, &v1)), ((16 << 20, None), (0, None)));
        assert_eq!(swap(&limited, &uncounted), (0, None));
    }

    #[test]
    fn burstable_containers_are_sized_as_the_kubelet_sizes_them() {
        let main = container("main", &[("cpu", "10m"), ("memory", "4Mi")], &[("cpu", "50m"), ("memory", "16Mi")]);
        let p = pod(vec![main.clone(), container("none", &[], &[])]);
        assert_eq!(qos_class(&p), QosClass::Burstable);
        let r = container_resources(&p, &main, &node());
        assert_eq!((r.cpu_shares, r.cpu_quota, r.cpu_period), (10, 5000, 100_000));
        assert_eq!((r.memory_limit_in_bytes, r.memory_swap_limit_in_bytes, r.oom_score_adj), (16 << 20, 16 << 20, 999));
        let s = sandbox_resources(&p, &node());
        assert_eq!((s.cpu_shares, s.cpu_quota, s.memory_limit_in_bytes), (10, 5000, 16 << 20));
        let r = container_resources(&p, &p.spec().containers[1].clone(), &node());
        assert_eq!((r.cpu_shares, r.cpu_quota, r.memory_limit_in_bytes, r.oom_score_adj), (2, 0, 0, 999));
    }

    #[test]
    fn limits_alone_are_guaranteed() {
        let main = container("main", &[], &[("cpu", "20m"), ("memory", "8Mi")]);
        let p = pod(vec![main.clone()]);
        assert_eq!(qos_class(&p), QosClass::Guaranteed);
        let r = container_resources(&p, &main, &node());
        assert_eq!((r.cpu_shares, r.cpu_quota, r.oom_score_adj), (20, 2000, -997));
        assert_eq!(r.hugepage_limits.len(), 2);
    }

    #[test]
    fn nothing_asked_is_best_effort() {
        let p = pod(vec![container("main", &[], &[])]);
        assert_eq!(qos_class(&p), QosClass::BestEffort);
        assert_eq!(oom_score_adj(&p, &p.spec().containers[0], 1 << 30), 1000);
    }

    #[test]
    fn init_containers_count_by_the_highest_with_sidecars_before_them() {
        let mut side = container("side", &[("cpu", "100m")], &[]);
        side.restart_policy = Some("Always".into());
        let mut p = pod(vec![container("main", &[("cpu", "50m")], &[])]);
        let spec = p.spec.as_mut().unwrap();
        spec.init_containers = vec![side, container("big", &[("cpu", "300m")], &[])];
        assert_eq!(pod_totals(&p).requests["cpu"], 400);
    }

    #[test]
    fn overhead_is_told_beside_what_the_pod_itself_may_use() {
        let main = container("main", &[("cpu", "10m")], &[("cpu", "50m"), ("memory", "16Mi")]);
        let mut p = pod(vec![main]);
        p.spec.as_mut().unwrap().overhead = list(&[("cpu", "100m"), ("memory", "32Mi")]);
        let v2 = NodeResources { cgroup_v2: true, ..node() };
        let s = sandbox_resources(&p, &v2);
        assert_eq!((s.cpu_shares, s.cpu_quota, s.memory_limit_in_bytes), (10, 5000, 16 << 20));
        let o = sandbox_overhead(&p, &v2);
        assert_eq!(
            (o.cpu_shares, o.cpu_quota, o.cpu_period, o.memory_limit_in_bytes),
            (102, 10_000, 100_000, 32 << 20)
        );
        assert!(s.unified["memory.oom.group"] == "1" && o.unified == s.unified);
        let single = NodeResources { single_process_oom_kill: Some(true), ..v2 };
        assert!(sandbox_resources(&p, &single).unified.is_empty());
    }

    #[test]
    fn a_request_of_no_cpu_is_one_and_without_one_the_limit_of_the_pod_counts() {
        let zero = container("zero", &[("cpu", "0")], &[("cpu", "50m")]);
        let none = container("none", &[], &[]);
        let mut p = pod(vec![zero.clone(), none.clone()]);
        assert_eq!(container_resources(&p, &zero, &node()).cpu_shares, 2);
        let limits = list(&[("cpu", "500m")]);
        p.spec.as_mut().unwrap().resources = Some(ResourceRequirements { limits, ..Default::default() });
        assert_eq!(container_resources(&p, &none, &node()).cpu_shares, 512);
    }

    #[test]
    fn huge_pages_of_the_pod_are_those_of_containers_that_name_none() {
        let (own, none) = (container("own", &[], &[("hugepages-2Mi", "4Mi")]), container("none", &[], &[]));
        let mut p = pod(vec![own.clone(), none.clone()]);
        let limits = list(&[("hugepages-2Mi", "16Mi"), ("hugepages-1Gi", "2Gi")]);
        p.spec.as_mut().unwrap().resources = Some(ResourceRequirements { limits, ..Default::default() });
        let of = |c: &Container| container_resources(&p, c, &node()).hugepage_limits.iter().map(|l| l.limit).collect();
        let (own, none): (Vec<u64>, Vec<u64>) = (of(&own), of(&none));
        assert_eq!((own, none), (vec![4 << 20, 2 << 30], vec![16 << 20, 2 << 30]));
    }

    #[test]
    fn amounts_of_a_pod_are_written_as_the_first_of_them_is() {
        let a = container("a", &[("memory", "64M"), ("cpu", "1500m")], &[("memory", "128M")]);
        let b = container("b", &[("memory", "1Mi"), ("ephemeral-storage", "1Gi")], &[]);
        let mut p = pod(vec![a, b]);
        let spec = p.spec.as_mut().unwrap();
        spec.init_containers = vec![container("i", &[("cpu", "2")], &[("example.com/a", "3")])];
        spec.overhead = list(&[("memory", "1Mi")]);
        let want = ResourceRequirements {
            requests: list(&[("cpu", "2"), ("ephemeral-storage", "1Gi"), ("memory", "66097152")]),
            limits: list(&[("example.com/a", "3"), ("memory", "129048576")]),
            claims: vec![],
        };
        assert_eq!(pod_amounts(&p), want);
    }

    #[test]
    fn a_sidecar_outlives_only_the_container_that_asked_for_the_least() {
        let mut side = container("side", &[], &[]);
        side.restart_policy = Some("Always".into());
        let mut p = pod(vec![container("a", &[("memory", "100Mi")], &[]), container("b", &[("memory", "6Gi")], &[])]);
        p.spec.as_mut().unwrap().init_containers = vec![side.clone()];
        assert_eq!(oom_score_adj(&p, &side, 24 << 30), 996);
    }

    /// It was held against what the container asked for itself, without its part of what the pod asks for.
    #[test]
    fn what_a_pod_asks_for_as_a_whole_counts_for_its_sidecars_and_for_those_that_they_outlive() {
        let side = Container { restart_policy: Some("Always".into()), ..container("side", &[], &[]) };
        let mut p = pod(vec![container("a", &[("memory", "2Gi")], &[])]);
        let spec = p.spec.get_or_insert_default();
        spec.init_containers = vec![side.clone()];
        let requests = list(&[("memory", "6Gi")]);
        spec.resources = Some(ResourceRequirements { requests, ..Default::default() });
        // Two of the four that are left over are each one's.
        assert_eq!([&side, &p.spec().containers[0]].map(|c| oom_score_adj(&p, c, 20 << 30)), [800, 800]);
    }

    #[test]
    fn a_tiny_quota_is_raised_to_the_kernels_least() {
        assert_eq!(milli_cpu_to_quota(1, 100_000), 1000);
        assert_eq!(milli_cpu_to_quota(0, 100_000), 0);
        assert_eq!(milli_cpu_to_shares(1_000_000), MAX_SHARES);
    }
}
