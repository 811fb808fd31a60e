//! What containers, and pods as a whole, ask to have to themselves.
//!
//! Containers of Guaranteed pods may. Where a pod has resources of its own these decide its class, so that its containers
//! are looked at one by one: those that would be Guaranteed alone may, under the gate PodLevelResourceManagers, and none
//! without it.

use proto::api::core::v1::{Container, Pod, ResourceRequirements};

use super::memory_policy::{Amounts, MEMORY};
use crate::pod::quantity::{milli, whole};
use crate::pod::resources::{QosClass, qos_class};
use crate::pod::spec::{PodExt as _, is_sidecar};

/// The rules, by whether resources of pods count (both gates, PodLevelResources and PodLevelResourceManagers).
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    pub pod_level: bool,
}

impl Wanted {
    /// What the pod asks for as a whole, where that counts.
    pub fn of_pod<'a>(&self, pod: &'a Pod) -> Option<&'a ResourceRequirements> {
        pod.spec().resources.as_ref().filter(|_| self.pod_level && qos_class(pod) == QosClass::Guaranteed)
    }

    /// What the container may have to itself.
    fn of<'a>(&self, pod: &Pod, container: &'a Container) -> Option<&'a ResourceRequirements> {
        let own = container.resources.as_ref();
        match &pod.spec().resources {
            _ if qos_class(pod) != QosClass::Guaranteed => None,
            None => own,
            Some(_) => own.filter(|own| self.pod_level && guaranteed(own)),
        }
    }

    /// CPUs that the container is to have to itself; 0 for none.
    pub fn cpus(&self, pod: &Pod, container: &Container) -> usize {
        self.of(pod, container).map_or(0, whole_cpus)
    }

    /// CPUs that the pod needs at the same time.
    pub fn pod_cpus(&self, pod: &Pod) -> usize {
        if let Some(own) = self.of_pod(pod) {
            return whole_cpus(own);
        }
        let (mut init, mut sidecars) = (0, 0);
        for container in &pod.spec().init_containers {
            let wanted = self.cpus(pod, container);
            if is_sidecar(container) {
                sidecars += wanted;
            } else {
                init = init.max(sidecars + wanted);
            }
        }
        let regular: usize = pod.spec().containers.iter().map(|container| self.cpus(pod, container)).sum();
        init.max(regular + sidecars)
    }

    /// Memory that the container is to have from given nodes; empty for none.
    pub fn memory(&self, pod: &Pod, container: &Container) -> Amounts {
        self.of(pod, container).map(amounts).unwrap_or_default()
    }

    /// Memory that the pod needs at the same time.
    pub fn pod_memory(&self, pod: &Pod) -> Amounts {
        if let Some(own) = self.of_pod(pod) {
            return amounts(own);
        }
        let (mut init, mut sidecars, mut sum) = (Amounts::new(), Amounts::new(), Amounts::new());
        for container in &pod.spec().init_containers {
            for (name, bytes) in self.memory(pod, container) {
                let beside = sidecars.entry(name.clone()).or_default();
                if is_sidecar(container) {
                    *beside = beside.saturating_add(bytes);
                } else {
                    let highest = init.entry(name).or_default();
                    *highest = (*highest).max(beside.saturating_add(bytes));
                }
            }
        }
        for container in &pod.spec().containers {
            for (name, bytes) in self.memory(pod, container) {
                let slot = sum.entry(name).or_default();
                *slot = slot.saturating_add(bytes);
            }
        }
        for (name, bytes) in &mut sum {
            let running = bytes.saturating_add(sidecars.get(name).copied().unwrap_or(0));
            *bytes = running.max(init.get(name).copied().unwrap_or(0));
        }
        sum
    }
}

/// The amount of CPUs if it is a whole number.
fn whole_cpus(resources: &ResourceRequirements) -> usize {
    let amount = resources.requests.get("cpu").or_else(|| resources.limits.get("cpu")).map_or(0, milli);
    if amount % 1000 == 0 { usize::try_from(amount / 1000).unwrap_or(0) } else { 0 }
}

fn amounts(resources: &ResourceRequirements) -> Amounts {
    let all = resources.limits.iter().chain(&resources.requests);
    let memory = all.filter(|(name, _)| *name == MEMORY || name.starts_with("hugepages-"));
    memory.map(|(name, amount)| (name.clone(), u64::try_from(whole(amount)).unwrap_or(0))).collect()
}

/// Whether limits are set and requests are the same.
fn guaranteed(resources: &ResourceRequirements) -> bool {
    ["cpu", MEMORY].into_iter().all(|name| {
        let limit = resources.limits.get(name).map_or(0, milli);
        limit > 0 && resources.requests.get(name).is_none_or(|request| milli(request) == limit)
    })
}
