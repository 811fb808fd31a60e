//! The manager's part in resizes: whether the node agrees to what a changed spec wants.
//!
//! What it agrees to is allocated and goes to the worker at once; what it cannot give now waits (`Deferred`) until pods
//! go, and what it can never give is refused (`Infeasible`). The worker tells either as a condition.
//!
//! Followed: `pkg/kubelet/allocation/allocation_manager.go`.

use std::collections::BTreeMap;
use std::sync::Arc;

use proto::api::core::v1::{Container, Node, Pod, ResourceRequirements};
use proto::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};

use crate::events::EventType;
use crate::metrics;
use crate::pod::allocation::Allocation;
use crate::pod::quantity::milli;
use crate::pod::resources::{NodeResources, QosClass, bytes_of, counted, counted_requests, may_swap, qos_class};
use crate::pod::spec::{PodExt, find_container};

use super::admission::check_resources;
use super::allocations::Pending;
use super::manager::Manager;

pub(super) const DEFERRED: &str = "Deferred";
pub(super) const INFEASIBLE: &str = "Infeasible";

impl Manager {
    /// The pod as it is allocated.
    pub(super) fn allocated(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        self.shared.allocations.allocated_to(pod).map_or_else(|| pod.clone(), Arc::new)
    }

    /// A pod's source has changed it: resizes are judged, and the worker gets what is allocated.
    pub(super) fn changed_by_source(&mut self, uid: &str) {
        let Some(entry) = self.pods.get(uid) else { return };
        let (pod, Some(mailbox)) = (entry.pod.clone(), entry.mailbox.clone()) else { return };
        self.judge(&pod);
        mailbox.update(self.allocated(&pod));
    }

    /// Looks again at resizes that wait for room; `trigger` is what metrics call the reason to do so.
    pub(super) fn retry_resizes(&mut self, trigger: &str) {
        let mut waiting = self.shared.allocations.deferred();
        // Pods that are not known yet may hold what there seems to be.
        if waiting.is_empty() || !self.sources_ready() {
            return;
        }
        // Within the same priority and class the longest wait comes first: the sort is stable.
        waiting.sort_by_key(|uid| {
            let pod = self.pods.get(uid).map(|e| &e.pod);
            let priority = pod.and_then(|p| p.spec().priority).unwrap_or(0);
            let guaranteed = pod.is_some_and(|p| qos_class(p) == QosClass::Guaranteed);
            let grows = pod.is_some_and(|p| grows(p, &self.allocated(p)));
            (grows, std::cmp::Reverse(priority), !guaranteed)
        });
        for uid in waiting {
            self.changed_by_source(&uid);
            let allocations = &self.shared.allocations;
            if allocations.pending(&uid).is_none() && allocations.in_progress(&uid).is_some() {
                metrics::DEFERRED_RESIZES_ACCEPTED.inc(&[trigger]);
            }
        }
    }

    /// What containers have to themselves stays as it is. Metrics and people have words of their own for it.
    fn pinned(&self, pod: &Pod, allocation: &Allocation) -> Option<(&'static str, String)> {
        let fixed = &self.shared.config.fixed_resources;
        if qos_class(pod) != QosClass::Guaranteed || fixed.is_empty() {
            return None;
        }
        let changed = |name: &str| {
            let containers = pod.spec().init_containers.iter().chain(&pod.spec().containers);
            containers.into_iter().any(|container| {
                let of = |own: Option<&ResourceRequirements>| own.and_then(|r| r.requests.get(name)).map_or(0, milli);
                of(container.resources.as_ref()) != of(allocation.containers.get(&container.name))
            })
        };
        let (name, manager, policy) = fixed.iter().find(|(name, ..)| changed(name))?;
        tracing::debug!(pod = pod.name(), resource = name, "a resize is infeasible alongside a static policy");
        let detail = match *name {
            "cpu" => "guaranteed_pod_cpu_manager_static_policy",
            _ => "guaranteed_pod_memory_manager_static_policy",
        };
        let why = format!("Resize is infeasible for Guaranteed Pods alongside {manager} Manager policy {policy:?}");
        Some((detail, why))
    }

    fn judge(&self, pod: &Arc<Pod>) {
        let (uid, allocations) = (pod.uid(), &self.shared.allocations);
        let Some(allocation) = allocations.allocated(uid) else { return };
        if allocation.applied_to(pod).is_none() || pod.is_deleted() {
            allocations.clear_pending(uid);
            return;
        }
        let generation = pod.meta().generation;
        let node = self.shared.node.borrow().clone();
        let refused = if pod.is_static() {
            Some((INFEASIBLE, "static_pod", "In-place resize of static-pods is not supported".to_owned()))
        } else if swaps(pod, &self.allocated(pod), &self.shared.config.resources) {
            let why = "In-place resize of containers with swap is not supported.";
            Some((INFEASIBLE, "swap_limitation", why.to_owned()))
        } else if let Some((manager, why)) = self.pinned(pod, &allocation) {
            Some((INFEASIBLE, manager, why))
        } else if let Some(why) = beyond(pod, &node) {
            Some((INFEASIBLE, "insufficient_node_allocatable", why))
        } else {
            check_resources(pod, &node, &self.holders(uid)).err().map(|r| (DEFERRED, "", r.message))
        };
        let recorder = &self.shared.recorder;
        match refused {
            None => {
                allocations.resize(uid, Allocation::of(pod));
                allocations.clear_pending(uid);
                allocations.begin(uid, generation, crate::clock::now());
                let message = told(pod, generation, "", "Pod resize started");
                recorder.pod(pod, EventType::Normal, "ResizeStarted", message);
            }
            Some((reason, detail, message)) => {
                let since = crate::clock::now();
                if allocations.set_pending(uid, Pending { reason, message: message.clone(), generation, since }) {
                    if reason == INFEASIBLE {
                        metrics::INFEASIBLE_RESIZES.inc(&[detail]);
                    }
                    let event = if reason == DEFERRED { "ResizeDeferred" } else { "ResizeInfeasible" };
                    let text = told(pod, generation, &message, &format!("Pod resize {reason}"));
                    recorder.pod(pod, EventType::Warning, event, text);
                }
            }
        }
    }
}

/// Counts what a changed spec asks of the resources of its containers.
pub(super) fn count_requested(before: &Pod, now: &Pod) {
    for labels in requested(before, now) {
        metrics::REQUESTED_RESIZES.inc(&labels);
    }
}

/// Operation, requirement and resource of each change.
fn requested(before: &Pod, now: &Pod) -> Vec<[&'static str; 3]> {
    let (mut found, none) = (Vec::new(), ResourceRequirements::default());
    for container in now.spec().init_containers.iter().chain(&now.spec().containers) {
        let Some((_, was)) = find_container(before.spec(), &container.name) else { continue };
        let (was, is) = (was.resources.as_ref().unwrap_or(&none), container.resources.as_ref().unwrap_or(&none));
        for (requirement, was, is) in [("requests", &was.requests, &is.requests), ("limits", &was.limits, &is.limits)] {
            for resource in ["cpu", "memory"] {
                let of = |amounts: &BTreeMap<String, Quantity>| amounts.get(resource).map_or(0, milli);
                let operation = match (of(was), of(is)) {
                    (was, is) if was == is => continue,
                    (0, _) => "add",
                    (_, 0) => "remove",
                    (was, is) if is > was => "increase",
                    _ => "decrease",
                };
                found.push([operation, requirement, resource]);
            }
        }
    }
    found
}

fn grows(pod: &Pod, allocated: &Pod) -> bool {
    let (wanted, has) = (counted_requests(pod), counted_requests(allocated));
    ["cpu", "memory"].iter().any(|name| wanted.get(*name).unwrap_or(&0) > has.get(*name).unwrap_or(&0))
}

/// Whether a container gets other memory while it runs and may swap, before or after: how much it may have in swap follows
/// from what it requests, and stays as it was when it began.
fn swaps(pod: &Pod, allocated: &Pod, node: &NodeResources) -> bool {
    let memory = |c: &Container| c.resources.as_ref().map_or(0, |own| bytes_of(&own.requests, "memory"));
    let restarts = |c: &Container| {
        c.resize_policy.iter().any(|p| p.resource_name == "memory" && p.restart_policy == "RestartContainer")
    };
    let all = |pod: &Pod| pod.spec().containers.iter().chain(&pod.spec().init_containers).cloned().collect::<Vec<_>>();
    all(pod).iter().zip(&all(allocated)).any(|(wants, has)| {
        let either = || may_swap(pod, wants, node) || may_swap(allocated, has, node);
        memory(wants) != memory(has) && !restarts(has) && either()
    })
}

/// More than the node has even when it is empty.
fn beyond(pod: &Pod, node: &Node) -> Option<String> {
    let none = BTreeMap::new();
    let allocatable = node.status.as_ref().map_or(&none, |s| &s.allocatable);
    let wanted = counted_requests(pod);
    for name in ["memory", "cpu"] {
        let requested = wanted.get(name).copied().unwrap_or(0);
        let capacity = allocatable.get(name).map_or(0, |amount| counted(name, amount));
        if requested > capacity {
            return Some(format!(
                "Node didn't have enough capacity: {name}, requested: {requested}, capacity: {capacity}"
            ));
        }
    }
    None
}

/// The text of an event about a resize: what the spec wants, as JSON in the kubelet's order of fields.
pub fn told(pod: &Pod, generation: i64, error: &str, what: &str) -> String {
    let list = |containers: &[Container]| -> Vec<Value> {
        let one = |c: &Container| {
            let own = c.resources.clone().unwrap_or_default();
            let own = crate::wire_json::to_value("k8s.io.api.core.v1.ResourceRequirements", &own);
            json!({ "name": c.name, "resources": own })
        };
        containers.iter().map(one).collect()
    };
    let mut parts = Vec::new();
    for (name, containers) in [("initContainers", &pod.spec().init_containers), ("containers", &pod.spec().containers)]
    {
        if !containers.is_empty() {
            parts.push(format!("\"{name}\":{}", Value::Array(list(containers))));
        }
    }
    parts.push(format!("\"generation\":{generation}"));
    if !error.is_empty() {
        parts.push(format!("\"error\":{}", Value::from(error)));
    }
    format!("{what}: {{{}}}", parts.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::PodSpec;

    /// Nothing used to be counted of what was asked for.
    #[test]
    fn each_resource_of_each_container_is_a_request_of_its_own() {
        let pod = |requests: &[(&str, &str)], limits: &[(&str, &str)]| {
            let amounts = |list: &[(&str, &str)]| {
                list.iter().map(|(name, text)| ((*name).to_owned(), Quantity { string: (*text).into() })).collect()
            };
            let resources = ResourceRequirements {
                requests: amounts(requests),
                limits: amounts(limits),
                ..ResourceRequirements::default()
            };
            let container = Container { name: "main".into(), resources: Some(resources), ..Container::default() };
            let spec = PodSpec { containers: vec![container], ..PodSpec::default() };
            Pod { spec: Some(spec), ..Pod::default() }
        };
        let before = pod(&[("cpu", "1"), ("memory", "1Mi")], &[("cpu", "1")]);
        let now = pod(&[("cpu", "2"), ("memory", "1024Ki")], &[("memory", "1Gi")]);
        let want = [["increase", "requests", "cpu"], ["remove", "limits", "cpu"], ["add", "limits", "memory"]];
        assert_eq!(requested(&before, &now), want);
        assert_eq!(requested(&now, &before)[0], ["decrease", "requests", "cpu"]);
        assert!(requested(&now, &now).is_empty());
    }

    #[test]
    fn memory_of_containers_that_may_swap_changes_with_a_restart_only() {
        let container = |request: &str, policy: &str| {
            let list = |amount: &str| [("memory".to_owned(), Quantity { string: amount.into() })].into();
            let resources =
                ResourceRequirements { requests: list(request), limits: list("64Mi"), ..Default::default() };
            let policy = proto::api::core::v1::ContainerResizePolicy {
                resource_name: "memory".into(),
                restart_policy: policy.into(),
            };
            Container { resources: Some(resources), resize_policy: vec![policy], ..Default::default() }
        };
        let pod = |request, policy| Pod {
            spec: Some(PodSpec { containers: vec![container(request, policy)], ..Default::default() }),
            ..Default::default()
        };
        let node = NodeResources {
            memory_bytes: 1 << 30,
            swap_bytes: 1 << 30,
            limited_swap: true,
            swap_controller: true,
            cgroup_v2: true,
            ..Default::default()
        };
        let without = NodeResources { limited_swap: false, ..node.clone() };
        let cases = [
            ("16Mi", "NotRequired", &node, true),
            ("8Mi", "NotRequired", &node, false),
            ("64Mi", "NotRequired", &node, true),
            ("16Mi", "RestartContainer", &node, false),
            ("16Mi", "NotRequired", &without, false),
        ];
        for (request, policy, node, want) in cases {
            assert_eq!(swaps(&pod(request, policy), &pod("8Mi", policy), node), want, "{request} {policy}");
        }
    }

    #[test]
    fn events_tell_what_is_wanted() {
        let limits = [("cpu".to_owned(), Quantity { string: "200m".into() })].into();
        let resources = Some(ResourceRequirements { limits, ..Default::default() });
        let container = Container { name: "main".into(), resources, ..Default::default() };
        let pod =
            Pod { spec: Some(PodSpec { containers: vec![container], ..Default::default() }), ..Default::default() };
        assert_eq!(
            told(&pod, 2, "", "Pod resize started"),
            r#"Pod resize started: {"containers":[{"name":"main","resources":{"limits":{"cpu":"200m"}}}],"generation":2}"#
        );
        assert!(told(&pod, 2, "no \"room\"", "x").ends_with(r#","generation":2,"error":"no \"room\""}"#));
        assert!(beyond(&pod, &Node::default()).is_none());
    }
}
