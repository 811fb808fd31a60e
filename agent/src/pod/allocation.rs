//! What a pod has been allocated: the requests and limits that this node agreed to, as against what its spec wants.
//!
//! They differ while a resize waits or was refused. Everything below admission works with the pod as it is allocated.
//!
//! Followed: `pkg/kubelet/allocation`.

use std::collections::BTreeMap;

use proto::api::core::v1::{Container, Pod, ResourceRequirements};
use proto::apimachinery::pkg::api::resource::Quantity;

use super::quantity::milli;
use super::resources::ResourceList;
use super::spec::PodExt;

/// Requests and limits by container, and those of the pod as a whole.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Allocation {
    pub containers: BTreeMap<String, ResourceRequirements>,
    pub pod: Option<ResourceRequirements>,
}

impl Allocation {
    /// What the pod's spec asks for.
    pub fn of(pod: &Pod) -> Self {
        let spec = pod.spec();
        let all = spec.init_containers.iter().chain(&spec.containers);
        let containers = all.map(|c| (c.name.clone(), c.resources.clone().unwrap_or_default())).collect();
        Self { containers, pod: spec.resources.clone() }
    }

    /// The pod with this allocation in place of its own wishes; `None` when they are the same.
    pub fn applied_to(&self, pod: &Pod) -> Option<Pod> {
        let differs = |c: &Container| self.containers.get(&c.name).is_some_and(|own| !same(own, requirements(c)));
        let spec = pod.spec();
        let pod_differs = !same(self.pod.as_ref().unwrap_or(&EMPTY), spec.resources.as_ref().unwrap_or(&EMPTY));
        if !pod_differs && !spec.init_containers.iter().chain(&spec.containers).any(differs) {
            return None;
        }
        let mut allocated = pod.clone();
        let spec = allocated.spec.get_or_insert_default();
        for container in spec.init_containers.iter_mut().chain(&mut spec.containers) {
            if let Some(own) = self.containers.get(&container.name) {
                container.resources = Some(own.clone());
            }
        }
        spec.resources.clone_from(&self.pod);
        Some(allocated)
    }
}

static EMPTY: std::sync::LazyLock<ResourceRequirements> = std::sync::LazyLock::new(Default::default);

fn requirements(container: &Container) -> &ResourceRequirements {
    container.resources.as_ref().unwrap_or(&EMPTY)
}

/// Whether two sets of requests and limits mean the same amounts.
pub fn same(a: &ResourceRequirements, b: &ResourceRequirements) -> bool {
    let equal = |a: &ResourceList, b: &ResourceList| {
        let alike = |a: &Quantity, b: &Quantity| a == b || milli(a) == milli(b);
        a.len() == b.len() && a.iter().all(|(name, value)| b.get(name).is_some_and(|v| alike(v, value)))
    };
    equal(&a.requests, &b.requests) && equal(&a.limits, &b.limits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::PodSpec;

    fn pod(cpu: &str) -> Pod {
        let requests = [("cpu".to_owned(), Quantity { string: cpu.into() })].into();
        let resources = Some(ResourceRequirements { requests, ..Default::default() });
        let container = Container { name: "main".into(), resources, ..Default::default() };
        Pod { spec: Some(PodSpec { containers: vec![container], ..Default::default() }), ..Default::default() }
    }

    #[test]
    fn an_allocation_stands_in_for_what_the_spec_wants() {
        let allocation = Allocation::of(&pod("1"));
        assert_eq!(allocation.applied_to(&pod("1000m")), None, "the same amount, written in another way");
        let allocated = allocation.applied_to(&pod("2")).expect("another amount");
        assert_eq!(allocated, pod("1"));
    }
}
