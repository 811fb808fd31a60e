//! Whether a pod may run on this node at all: the agent's last word after the scheduler's.
//!
//! Pure: the pod, the node, the pods already admitted. A refused pod is Failed with the reason and text given here and
//! never reaches the runtime.
//!
//! Followed: `pkg/kubelet/lifecycle/predicate.go`, `pkg/kubelet/sysctl`, scheduler `AdmissionCheck`.

use std::collections::BTreeMap;
use std::sync::Arc;

use proto::api::core::v1::{ContainerPort, Node, Pod, Taint, Toleration};

use crate::pod::placement::matches_node;
use crate::pod::quantity::whole;
use crate::pod::resources::{counted, counted_requests};
use crate::pod::security::{has_nameless_apparmor, wants_apparmor};
use crate::pod::spec::{PodExt, is_sidecar};
use crate::pod::sysctl;

/// Why a pod is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    pub reason: String,
    pub message: String,
}

fn reject(reason: &str, message: impl Into<String>) -> Result<(), Rejection> {
    Err(Rejection { reason: reason.into(), message: message.into() })
}

fn predicate(name: &str, why: &str) -> Result<(), Rejection> {
    reject(name, format!("Predicate {name} failed: {why}"))
}

/// See the module's documentation. `others` are pods that hold resources now. What a critical pod lacks is no reason to
/// refuse it: it is returned, for others to make room.
pub fn admit(
    pod: &Pod,
    node: &Node,
    others: &[Arc<Pod>],
    unsafe_sysctls: &[String],
) -> Result<Vec<Shortage>, Rejection> {
    check_sysctls(pod, unsafe_sysctls)?;
    check_os(pod)?;
    check_groups_policy(pod, node)?;
    let missing = shortages(pod, node, others);
    if let Some(first) = missing.first().filter(|_| !pod.is_critical()) {
        return Err(first.rejection());
    }
    check_predicates(pod, node, others)?;
    check_apparmor(pod, *APPARMOR)?;
    Ok(missing)
}

fn check_predicates(pod: &Pod, node: &Node, others: &[Arc<Pod>]) -> Result<(), Rejection> {
    if !matches_node(pod, node) {
        return predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector");
    }
    let name = node.metadata.as_ref().map_or("", |m| &m.name);
    if !pod.spec().node_name.is_empty() && pod.spec().node_name != name {
        return predicate("NodeName", "node(s) didn't match the requested node name");
    }
    if host_ports(pod).iter().any(|wanted| others.iter().any(|o| host_ports(o).iter().any(|used| clash(wanted, used))))
    {
        return predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports");
    }
    let taints = node.spec.iter().flat_map(|s| &s.taints).filter(|t| t.effect == "NoExecute");
    for taint in taints.filter(|_| !pod.is_static()) {
        if !pod.spec().tolerations.iter().any(|t| tolerates(t, taint)) {
            return predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate");
        }
    }
    Ok(())
}

/// Whether the kernel has AppArmor on.
static APPARMOR: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| {
    let enabled = std::fs::read("/sys/module/apparmor/parameters/enabled");
    std::path::Path::new("/sys/kernel/security/apparmor").exists() && enabled.is_ok_and(|text| text.starts_with(b"Y"))
});

fn check_apparmor(pod: &Pod, enabled: bool) -> Result<(), Rejection> {
    // A pod that runs already has been judged when it came.
    if wants_apparmor(pod) && !enabled && matches!(pod.phase(), "" | "Pending") {
        return reject("AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host");
    }
    if wants_apparmor(pod) && has_nameless_apparmor(pod) && matches!(pod.phase(), "" | "Pending") {
        return reject("AppArmor", "Cannot enforce AppArmor: invalid empty AppArmor profile name: \"\"");
    }
    Ok(())
}

/// Namespaced and harmless: allowed without asking.
const SAFE_SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// The reason of a pod that wants sysctls it must not have.
pub const SYSCTL_FORBIDDEN: &str = "SysctlForbidden";

fn check_sysctls(pod: &Pod, unsafe_allowed: &[String]) -> Result<(), Rejection> {
    let spec = pod.spec();
    for asked in spec.security_context.iter().flat_map(|s| &s.sysctls) {
        let name = sysctl::dotted(&asked.name);
        let allowed = SAFE_SYSCTLS.contains(&name.as_str())
            || unsafe_allowed
                .iter()
                .map(|pattern| sysctl::dotted(pattern))
                .any(|pattern| pattern.strip_suffix('*').map_or(name == pattern, |prefix| name.starts_with(prefix)));
        let why = if !allowed {
            "not allowlisted"
        } else if spec.host_ipc && sysctl::of_ipc(&name) {
            "not allowed with host ipc enabled"
        } else if spec.host_network && sysctl::of_network(&name) {
            "not allowed with host net enabled"
        } else {
            continue;
        };
        // By the name that the list would have, however it is spelled in the pod.
        return reject(SYSCTL_FORBIDDEN, format!("forbidden sysctl: {name:?} {why}"));
    }
    Ok(())
}

fn check_os(pod: &Pod) -> Result<(), Rejection> {
    if pod.meta().labels.get("kubernetes.io/os").is_some_and(|os| os != "linux") {
        let message = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
        return reject("PodOSSelectorNodeLabelDoesNotMatch", message);
    }
    if pod.spec().os.as_ref().is_some_and(|os| os.name != "linux") {
        return reject("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS");
    }
    Ok(())
}

fn check_groups_policy(pod: &Pod, node: &Node) -> Result<(), Rejection> {
    let wanted = pod.spec().security_context.as_ref().and_then(|s| s.supplemental_groups_policy.as_deref());
    let features = node.status.as_ref().and_then(|s| s.features.as_ref());
    let supported = features.and_then(|f| f.supplemental_groups_policy).unwrap_or(false);
    if wanted == Some("Strict") && !supported {
        let message = "SupplementalGroupsPolicy=Strict is not supported in this node";
        return reject("SupplementalGroupsPolicyNotSupported", message);
    }
    Ok(())
}

/// A resource of which the node has too little left: CPU in thousandths, the rest in whole units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    pub resource: String,
    pub requested: i64,
    pub used: i64,
    pub capacity: i64,
}

impl Shortage {
    /// What others would have to give up.
    pub fn missing(&self) -> i64 {
        self.requested.saturating_sub(self.capacity.saturating_sub(self.used))
    }

    fn rejection(&self) -> Rejection {
        let Shortage { resource, requested, used, capacity } = self;
        let message = format!(
            "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
        );
        Rejection { reason: format!("OutOf{resource}"), message }
    }
}

/// Whether what the pod requests is left over by the others.
pub fn check_resources(pod: &Pod, node: &Node, others: &[Arc<Pod>]) -> Result<(), Rejection> {
    shortages(pod, node, others).first().map_or(Ok(()), |first| Err(first.rejection()))
}

/// All that the others do not leave to the pod.
fn shortages(pod: &Pod, node: &Node, others: &[Arc<Pod>]) -> Vec<Shortage> {
    let none = BTreeMap::new();
    let allocatable = node.status.as_ref().map_or(&none, |s| &s.allocatable);
    let mut found = Vec::new();
    if let Some(capacity) = allocatable.get("pods").map(whole) {
        let used = i64::try_from(others.len()).unwrap_or(i64::MAX);
        if used.saturating_add(1) > capacity {
            found.push(Shortage { resource: "pods".into(), requested: 1, used, capacity });
        }
    }
    let wanted = counted_requests(pod);
    let mut used: BTreeMap<String, i64> = BTreeMap::new();
    for other in others {
        for (name, value) in counted_requests(other) {
            let slot = used.entry(name).or_default();
            *slot = slot.saturating_add(value);
        }
    }
    let rest = wanted.keys().map(String::as_str).filter(|n| !matches!(*n, "cpu" | "memory" | "ephemeral-storage"));
    for name in ["cpu", "memory", "ephemeral-storage"].into_iter().chain(rest) {
        let requested = wanted.get(name).copied().unwrap_or(0);
        // What the node does not know is somebody else's business, except for the basics.
        let Some(capacity) = allocatable.get(name).filter(|_| requested != 0) else { continue };
        let capacity = counted(name, capacity);
        let used = used.get(name).copied().unwrap_or(0);
        if requested > capacity.saturating_sub(used) {
            found.push(Shortage { resource: name.to_owned(), requested, used, capacity });
        }
    }
    found
}

fn host_ports(pod: &Pod) -> Vec<&ContainerPort> {
    let spec = pod.spec();
    let sidecars = spec.init_containers.iter().filter(|c| is_sidecar(c));
    spec.containers.iter().chain(sidecars).flat_map(|c| &c.ports).filter(|p| p.host_port > 0).collect()
}

fn clash(a: &ContainerPort, b: &ContainerPort) -> bool {
    let any = |ip: &str| ip.is_empty() || ip == "0.0.0.0" || ip == "::";
    let protocol = |p: &ContainerPort| if p.protocol.is_empty() { "TCP".to_owned() } else { p.protocol.clone() };
    a.host_port == b.host_port
        && protocol(a) == protocol(b)
        && (a.host_ip == b.host_ip || any(&a.host_ip) || any(&b.host_ip))
}

pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    if !toleration.effect.is_empty() && toleration.effect != taint.effect {
        return false;
    }
    if !toleration.key.is_empty() && toleration.key != taint.key {
        return false;
    }
    match toleration.operator.as_str() {
        "Exists" => true,
        "" | "Equal" => !toleration.key.is_empty() && toleration.value == taint.value,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{Container, NodeStatus, PodSecurityContext, PodSpec, ResourceRequirements, Sysctl};
    use proto::apimachinery::pkg::api::resource::Quantity;
    use proto::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    fn quantities(entries: &[(&str, &str)]) -> BTreeMap<String, Quantity> {
        entries.iter().map(|(k, v)| ((*k).into(), Quantity { string: (*v).into() })).collect()
    }

    fn node() -> Node {
        Node {
            metadata: Some(ObjectMeta {
                name: "n".into(),
                labels: [("a".into(), "5".into())].into(),
                ..Default::default()
            }),
            status: Some(NodeStatus {
                allocatable: quantities(&[("cpu", "2"), ("memory", "1Gi"), ("pods", "2")]),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn pod(cpu: &str) -> Pod {
        let resources = ResourceRequirements { requests: quantities(&[("cpu", cpu)]), ..Default::default() };
        let container = Container { resources: Some(resources), ..Default::default() };
        Pod { spec: Some(PodSpec { containers: vec![container], ..Default::default() }), ..Default::default() }
    }

    #[test]
    fn too_big_is_told_in_the_units_of_the_resource() {
        let other = Arc::new(pod("500m"));
        let refused = admit(&pod("1000"), &node(), &[other], &[]).unwrap_err();
        assert_eq!(refused.reason, "OutOfcpu");
        let want = "Node didn't have enough resource: cpu, requested: 1000000, used: 500, capacity: 2000";
        assert_eq!(refused.message, want);
        let others = [Arc::new(pod("0")), Arc::new(pod("0"))];
        assert_eq!(admit(&pod("0"), &node(), &others, &[]).unwrap_err().reason, "OutOfpods");
    }

    #[test]
    fn more_than_thousandths_have_room_for_is_told_as_it_is() {
        let with = |memory: &str| {
            let mut pod = pod("0");
            let requests = quantities(&[("memory", memory)]);
            pod.spec.as_mut().unwrap().containers[0].resources =
                Some(ResourceRequirements { requests, ..Default::default() });
            pod
        };
        let refused = admit(&with("100Pi"), &node(), &[Arc::new(with("20Pi"))], &[]).unwrap_err();
        let want = "Node didn't have enough resource: memory, requested: 112589990684262400, used: 22517998136852480, \
                    capacity: 1073741824";
        assert_eq!(refused.message, want);
        let mut most = with("7Ei");
        most.spec.as_mut().unwrap().overhead = quantities(&[("memory", "7Ei"), ("cpu", "9000P")]);
        let refused = check_resources(&most, &node(), &[Arc::new(with("7Ei"))]).unwrap_err();
        assert!(refused.message.contains("cpu, requested: 9223372036854775807"), "{}", refused.message);
        let mut big = node();
        big.status.as_mut().unwrap().allocatable = quantities(&[("memory", "20Pi")]);
        assert!(check_resources(&with("12Pi"), &big, &[Arc::new(with("8Pi"))]).is_ok(), "just enough");
        assert!(check_resources(&with("12Pi"), &big, &[Arc::new(with("9Pi"))]).is_err());
    }

    #[test]
    fn a_critical_pod_is_told_what_it_lacks() {
        let mut critical = pod("1500m");
        critical.spec.as_mut().unwrap().priority = Some(2_000_000_000);
        let missing = admit(&critical, &node(), &[Arc::new(pod("1"))], &[]).unwrap();
        assert_eq!(missing.iter().map(|m| (m.resource.as_str(), m.missing())).collect::<Vec<_>>(), [("cpu", 500)]);
        critical.spec.as_mut().unwrap().node_name = "other".into();
        assert!(admit(&critical, &node(), &[Arc::new(pod("1"))], &[]).is_err(), "room would not help it");
    }

    #[test]
    fn selectors_and_expressions_must_match() {
        let mut p = pod("0");
        p.spec.as_mut().unwrap().node_selector = [("no".into(), "such".into())].into();
        let refused = admit(&p, &node(), &[], &[]).unwrap_err();
        assert_eq!(refused.message, "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector");
    }

    #[test]
    fn profiles_need_apparmor() {
        let mut p = pod("0");
        let profile = |kind: &str| proto::api::core::v1::AppArmorProfile { r#type: kind.into(), ..Default::default() };
        let context = |kind| PodSecurityContext { app_armor_profile: Some(profile(kind)), ..Default::default() };
        p.spec.as_mut().unwrap().security_context = Some(context("RuntimeDefault"));
        assert_eq!(check_apparmor(&p, false).unwrap_err().reason, "AppArmor");
        assert!(check_apparmor(&p, true).is_ok());
        p.spec.as_mut().unwrap().security_context = Some(context("Localhost"));
        assert!(check_apparmor(&p, true).unwrap_err().message.ends_with("invalid empty AppArmor profile name: \"\""));
        p.spec.as_mut().unwrap().security_context = Some(context("Unconfined"));
        assert!(check_apparmor(&p, false).is_ok());
    }

    #[test]
    fn sysctls_need_the_allow_list() {
        let mut p = pod("0");
        let sysctls = vec![Sysctl { name: "kernel.msgmax".into(), value: "1".into() }];
        p.spec.as_mut().unwrap().security_context = Some(PodSecurityContext { sysctls, ..Default::default() });
        let refused = admit(&p, &node(), &[], &[]).unwrap_err();
        assert_eq!(refused.message, "forbidden sysctl: \"kernel.msgmax\" not allowlisted");
        assert!(admit(&p, &node(), &[], &["kernel.msg*".into()]).is_ok());
        let told = |name: &str| {
            let mut p = p.clone();
            let context = p.spec.as_mut().unwrap().security_context.as_mut().unwrap();
            context.sysctls[0].name = name.into();
            admit(&p, &node(), &[], &[]).unwrap_err().message
        };
        assert_eq!(told("kernel/msgmax"), "forbidden sysctl: \"kernel.msgmax\" not allowlisted");
        assert_eq!(
            told("net/ipv4/conf/eth0.1/forwarding"),
            "forbidden sysctl: \"net.ipv4.conf.eth0/1.forwarding\" not allowlisted"
        );
    }
}
