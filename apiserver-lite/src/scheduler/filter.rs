//! Which nodes can take a pod, and why the others cannot; the order of checks and the wording are upstream's.

use std::borrow::Cow;

use super::node::NodeInfo;
use super::pod::PodInfo;
use super::topology::Topology;
use super::volumes::Volumes;
use crate::selectors::label;

/// Why a node cannot take a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub reasons: Vec<Cow<'static, str>>,
    /// Whether it could if other pods went.
    pub resolvable: bool,
}

impl Refusal {
    fn of(reason: &'static str, resolvable: bool) -> Self {
        Refusal { reasons: vec![reason.into()], resolvable }
    }
}

/// Checks a node; None when it can take the pod.
pub fn check(pod: &PodInfo, node: &NodeInfo, topology: &Topology<'_>, volumes: &Volumes) -> Option<Refusal> {
    if let Some(refusal) = check_static(pod, node) {
        return Some(refusal);
    }
    if node.pods.values().any(|p| p.ports.iter().any(|taken| pod.ports.iter().any(|p| p.conflicts(taken)))) {
        return Some(Refusal::of("node(s) didn't have free ports for the requested pod ports", true));
    }
    if let Some(refusal) = check_resources(pod, node) {
        return Some(refusal);
    }
    if let Some((reason, resolvable)) = volumes.refusal(node) {
        return Some(Refusal::of(reason, resolvable));
    }
    topology.refusal(pod, node).map(|(reason, resolvable)| Refusal::of(reason, resolvable))
}

/// What no other pod has an influence on.
fn check_static(pod: &PodInfo, node: &NodeInfo) -> Option<Refusal> {
    if node.offer.unschedulable {
        let taint = super::pod::Taint {
            key: "node.kubernetes.io/unschedulable".into(),
            value: "".into(),
            effect: "NoSchedule".into(),
        };
        if !pod.tolerates(&taint) {
            return Some(Refusal::of("node(s) were unschedulable", false));
        }
    }
    if !pod.node_name.is_empty() && *pod.node_name != *node.name() {
        return Some(Refusal::of("node(s) didn't match the requested node name", false));
    }
    if node.offer.taints.iter().any(|t| t.is_hard() && !pod.tolerates(t)) {
        return Some(Refusal::of("node(s) had untolerated taint(s)", false));
    }
    if !fits_affinity(pod, node) {
        return Some(Refusal::of("node(s) didn't match Pod's node affinity/selector", false));
    }
    None
}

/// Node selector and required node affinity.
pub fn fits_affinity(pod: &PodInfo, node: &NodeInfo) -> bool {
    let labels = node.labels();
    pod.node_selector.iter().all(|(key, value)| label(labels, key) == Some(value))
        && pod.required_nodes.as_ref().is_none_or(|terms| terms.iter().any(|t| t.matches(labels, node.name())))
}

fn check_resources(pod: &PodInfo, node: &NodeInfo) -> Option<Refusal> {
    let (wants, has, taken) = (&pod.requests, &node.offer.allocatable, &node.requested);
    let mut reasons: Vec<Cow<'static, str>> = Vec::new();
    let mut resolvable = true;
    if i64::try_from(node.pods.len()).unwrap_or(i64::MAX) >= node.offer.max_pods {
        reasons.push("Too many pods".into());
        resolvable &= node.offer.max_pods > 0;
    }
    let mut compare = |wants: i64, has: i64, taken: i64, reason: &dyn Fn() -> Cow<'static, str>| {
        if wants > 0 && wants > has.saturating_sub(taken) {
            reasons.push(reason());
            // More than the whole node: no pod that goes would help.
            resolvable &= wants <= has;
        }
    };
    compare(wants.milli_cpu, has.milli_cpu, taken.milli_cpu, &|| "Insufficient cpu".into());
    compare(wants.memory, has.memory, taken.memory, &|| "Insufficient memory".into());
    compare(wants.ephemeral_storage, has.ephemeral_storage, taken.ephemeral_storage, &|| {
        "Insufficient ephemeral-storage".into()
    });
    for (name, amount) in &wants.others {
        compare(*amount, has.other(name), taken.other(name), &|| format!("Insufficient {name}").into());
    }
    (!reasons.is_empty()).then_some(Refusal { reasons, resolvable })
}
