//! What is told of CPUs and memory that are given away, while the gate PodLevelResourceManagers is on: from the node's or out
//! of a pod's own, and how many containers have which kind.
//!
//! Followed: the static policies of the kubelet, KEP-5526.

use proto::api::core::v1::{Container, Pod};

use super::wanted::Wanted;
use crate::metrics;
use crate::pod::spec::PodExt as _;

pub(super) const CPU: &str = "cpu";
pub(super) const MEMORY: &str = "memory";
/// Where it comes from.
const NODE: &str = "node";
const POD: &str = "pod";

impl Wanted {
    /// A container was given its own of the node's, of so many resources of that kind, or could not be.
    pub(super) fn count(&self, resource: &str, kinds: usize, given: bool) {
        if !self.pod_level {
            return;
        }
        if !given {
            metrics::RESOURCE_ALLOCATION_ERRORS.inc(&[resource, NODE]);
            return;
        }
        metrics::RESOURCE_ALLOCATIONS.add(&[resource, NODE], metrics::page::to_float(kinds as u64));
        metrics::RESOURCE_ASSIGNMENTS.inc(&["node_exclusive", resource]);
    }

    /// A pod was given all of its own, which its containers have parts of or share, or could not be.
    pub(super) fn count_pod(&self, resource: &str, pod: &Pod, given: bool, has_part: impl Fn(&Container) -> bool) {
        if !self.pod_level {
            return;
        }
        if !given {
            metrics::RESOURCE_ALLOCATION_ERRORS.inc(&[resource, POD]);
            return;
        }
        for container in pod.spec().init_containers.iter().chain(&pod.spec().containers) {
            metrics::RESOURCE_ALLOCATIONS.inc(&[resource, POD]);
            let kind = if has_part(container) { "pod_exclusive" } else { "pod_shared" };
            metrics::RESOURCE_ASSIGNMENTS.inc(&[kind, resource]);
        }
    }
}
