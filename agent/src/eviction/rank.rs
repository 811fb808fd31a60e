//! Who has to go first. Pods of which nothing is known go before all others.
//!
//! Followed: `pkg/kubelet/eviction/helpers.go`, the ranking functions.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use proto::api::core::v1::Pod;

use super::pressure::Disks;
use super::usage::{Parts, PodUsage, requested, signed};
use crate::config::Signal;
use crate::pod::spec::PodExt;

/// By uid.
pub type Usages = HashMap<String, PodUsage>;

/// Orders pods by who is to be evicted first for a signal.
pub fn rank(pods: &mut [Arc<Pod>], usages: &Usages, signal: Signal, disks: Disks) {
    match signal {
        Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => {
            by_excess(pods, usages, |pod, usage| {
                let request = requested(pod, "memory");
                (usage.memory > request, usage.memory.saturating_sub(request))
            });
        }
        Signal::PidAvailable => pods.sort_by_key(|pod| {
            let usage = usages.get(pod.uid());
            (priority(pod), usage.is_some(), Reverse(usage.map_or(0, |u| u.processes)))
        }),
        _ => {
            let (parts, inodes) = (Parts::of(signal, disks), signal.resource() == "inodes");
            by_excess(pods, usages, |pod, usage| {
                let held = usage.disk(pod, parts);
                let used = signed(if inodes { held.inodes } else { held.bytes });
                let request = requested(pod, "ephemeral-storage");
                // Nothing can be requested of inodes, yet the kubelet takes the request for storage off them too.
                (used > if inodes { 0 } else { request }, used.saturating_sub(request))
            });
        }
    }
}

/// Those above their request first, then by priority, then by how far they are above it.
fn by_excess(pods: &mut [Arc<Pod>], usages: &Usages, excess: impl Fn(&Pod, &PodUsage) -> (bool, i64)) {
    pods.sort_by_cached_key(|pod| match usages.get(pod.uid()) {
        None => (false, false, priority(pod), Reverse(0)),
        Some(usage) => {
            let (exceeds, by) = excess(pod, usage);
            (true, !exceeds, priority(pod), Reverse(by))
        }
    });
}

fn priority(pod: &Pod) -> i32 {
    pod.spec().priority.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{ContainerStorage, Held, PodStorage};
    use proto::api::core::v1::{Container, PodSpec, ResourceRequirements};
    use proto::apimachinery::pkg::api::resource::Quantity;
    use proto::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    fn pod(name: &str, priority: i32, requests: &[(&str, &str)]) -> Arc<Pod> {
        let requests = requests.iter().map(|(k, v)| ((*k).to_owned(), Quantity { string: (*v).into() })).collect();
        let resources = Some(ResourceRequirements { requests, ..Default::default() });
        let container = Container { name: "c".into(), resources, ..Default::default() };
        Arc::new(Pod {
            metadata: Some(ObjectMeta { name: name.into(), uid: name.into(), ..Default::default() }),
            spec: Some(PodSpec { containers: vec![container], priority: Some(priority), ..Default::default() }),
            ..Default::default()
        })
    }

    fn order(mut pods: Vec<Arc<Pod>>, usages: &[(&str, PodUsage)], signal: Signal) -> Vec<String> {
        let usages: Usages = usages.iter().map(|(uid, usage)| ((*uid).to_owned(), usage.clone())).collect();
        rank(&mut pods, &usages, signal, Disks::default());
        pods.iter().map(|p| p.name().to_owned()).collect()
    }

    #[test]
    fn memory_goes_by_excess_then_priority_then_amount() {
        let memory = |bytes| PodUsage { memory: bytes, ..PodUsage::default() };
        let pods = vec![
            pod("within", 0, &[("memory", "500")]),
            pod("above-high", 10, &[("memory", "10")]),
            pod("above-little", 0, &[("memory", "100")]),
            pod("above-much", 0, &[("memory", "50")]),
            pod("unknown", 100, &[]),
        ];
        let usages = [
            ("within", memory(400)),
            ("above-high", memory(9000)),
            ("above-little", memory(110)),
            ("above-much", memory(100)),
        ];
        let found = order(pods, &usages, Signal::MemoryAvailable);
        assert_eq!(found, ["unknown", "above-much", "above-little", "above-high", "within"]);
    }

    #[test]
    fn processes_go_by_priority_then_number() {
        let with = |processes| PodUsage { processes, ..PodUsage::default() };
        let pods = vec![pod("few", 0, &[]), pod("many", 0, &[]), pod("high", 5, &[])];
        let found = order(pods, &[("few", with(1)), ("many", with(9)), ("high", with(99))], Signal::PidAvailable);
        assert_eq!(found, ["many", "few", "high"]);
    }

    #[test]
    fn disks_go_by_what_lies_on_them() {
        let with = |bytes, inodes| {
            let held = Some(Held { bytes, inodes });
            let containers = [("c".to_owned(), ContainerStorage { root: held, logs: None })].into();
            PodUsage { storage: PodStorage { containers, ..PodStorage::default() }, ..PodUsage::default() }
        };
        let pods =
            || vec![pod("bytes", 0, &[]), pod("inodes", 0, &[]), pod("asked", 0, &[("ephemeral-storage", "1k")])];
        let usages = [("bytes", with(500, 2)), ("inodes", with(5, 50)), ("asked", with(900, 1))];
        assert_eq!(order(pods(), &usages, Signal::NodefsAvailable), ["bytes", "inodes", "asked"]);
        assert_eq!(order(pods(), &usages, Signal::NodefsInodesFree)[0], "inodes");
    }
}
