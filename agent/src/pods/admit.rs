//! Admission as the loop sees it: the pod, the node as it is now, and the pods that are here already.

use std::sync::Arc;

use proto::api::core::v1::Pod;

use crate::events::EventType;
use crate::metrics;
use crate::pod::spec::PodExt;
use crate::status::generate::{Override, rejected};

use super::admission::{self, Rejection, Shortage};
use super::mailbox::KillRequest;
use super::manager::{Entry, Manager};
use super::preemption::{self, Victim};
use super::{Shared, device_admission, node_state, pod_features};

impl Rejection {
    /// For a pod that runs all the same.
    pub(super) fn into_kill(self) -> KillRequest {
        let message = format!("Pod was rejected: {}", self.message);
        KillRequest { imposed: Some(Override { reason: self.reason, message, disruption: None }), grace: None }
    }
}

impl Shared {
    /// An event and a count.
    pub(super) fn tell_refused(&self, pod: &Pod, refused: &Rejection) {
        self.recorder.pod(pod, EventType::Warning, &refused.reason, refused.message.clone());
        metrics::ADMISSION_REJECTIONS.inc(&[counted_as(&refused.reason)]);
    }

    /// Tells everybody that the pod, of which nothing runs, is not let in.
    pub(super) fn refuse(&self, pod: &Pod, refused: &Rejection) {
        self.tell_refused(pod, refused);
        let status = rejected(pod, &refused.reason, &refused.message, crate::clock::now());
        self.status.set(pod.uid(), Arc::new(status), false);
        self.status.finish(pod.uid());
    }
}

/// The reasons that the kubelet counts each by itself: resources of others' making have any names.
const COUNTED: &[&str] = &[
    "AppArmor",
    "Evicted",
    "InitContainerRestartPolicyForbidden",
    "InvalidNodeInfo",
    "NodeShutdown",
    "OutOfcpu",
    "OutOfephemeral-storage",
    "OutOfmemory",
    "OutOfpods",
    "PodFeatureUnsupported",
    "PodLevelResourcesNotSupported",
    "PodOSNotSupported",
    "PodOSSelectorNodeLabelDoesNotMatch",
    "SupplementalGroupsPolicyNotSupported",
    "SysctlForbidden",
    "TopologyAffinityError",
    "UnexpectedAdmissionError",
    "UnexpectedPredicateFailureType",
    "UnknownReason",
    "VolumeAttachmentLimitExceeded",
    "node(s) had taints that the pod didn't tolerate",
];

fn counted_as(reason: &str) -> &str {
    match reason {
        known if COUNTED.contains(&known) => known,
        other if other.starts_with("OutOf") => "OutOfExtendedResources",
        _ => "Other",
    }
}

impl Manager {
    /// Lets the pod in, or says why not. A critical pod for which there is no room takes that of others: it is in, and
    /// is to wait for the end of those.
    pub(super) fn admit(&self, pod: &Arc<Pod>) -> Result<Vec<Victim>, Rejection> {
        let signals = self.shared.signals.borrow().clone();
        node_state::check_pressure(pod, &signals)?;
        let node = device_admission::without_devices(&self.shared.node.borrow(), &self.shared.devices);
        let holders = self.holders(pod.uid());
        let missing = admission::admit(pod, &node, &holders, &self.shared.config.allowed_unsafe_sysctls)
            .map_err(|refused| self.refused_sooner(pod, &refused).unwrap_or(refused))?;
        let runtime = self.shared.runtime.borrow().features;
        pod_features::check(pod, &self.shared.config.features, runtime.as_ref())?;
        node_state::check_shutdown(&signals)?;
        if missing.is_empty() { Ok(Vec::new()) } else { self.preempt(pod, &holders, &missing) }
    }

    /// What comes before the rest of admission in the kubelet, but for sysctls: of two reasons it tells the first. Here CPUs,
    /// memory and devices are given out later, by the pod's own worker.
    fn refused_sooner(&self, pod: &Pod, refused: &Rejection) -> Option<Rejection> {
        let sooner = refused.reason != admission::SYSCTL_FORBIDDEN && device_admission::concerns(&self.shared, pod);
        sooner.then(|| device_admission::rehearse(&self.shared, pod).err()).flatten()
    }

    /// Ends as many pods as it takes.
    fn preempt(&self, pod: &Pod, holders: &[Arc<Pod>], missing: &[Shortage]) -> Result<Vec<Victim>, Rejection> {
        let chosen = preemption::choose(pod, holders, missing).map_err(|why| Rejection {
            reason: "UnexpectedAdmissionError".into(),
            message: format!(
                "Unexpected error while attempting to recover from admission failure: preemption: error finding a set \
                 of pods to preempt: {why}"
            ),
        })?;
        let signal = missing.first().map_or("", |m| m.resource.as_str());
        let end = |victim: &Arc<Pod>| {
            let mailbox = self.pods.get(victim.uid())?.mailbox.as_ref()?;
            tracing::info!(pod = victim.name(), namespace = victim.namespace(), by = pod.name(), "preempting a pod");
            self.shared.recorder.pod(victim, EventType::Warning, preemption::REASON, preemption::MESSAGE);
            mailbox.kill(KillRequest { imposed: Some(preemption::imposed()), grace: None });
            metrics::PREEMPTIONS.inc(&[signal]);
            Some(Victim::new(victim, mailbox.end()))
        };
        Ok(chosen.iter().filter_map(end).collect())
    }

    /// Other pods that hold resources of the node, as they are allocated.
    pub(super) fn holders(&self, uid: &str) -> Vec<Arc<Pod>> {
        // One that is known to have ended holds nothing, whatever the API still says of it; of a static pod
        // it may never say so. Nor does one that is in no source any more, though it may still be ending: as upstream, for
        // who comes in its place would be refused for good.
        let ended = |e: &Entry| {
            e.removed
                || e.mailbox.as_ref().is_none_or(|m| m.is_over())
                || self.shared.status.has_ended(e.pod.uid()).unwrap_or(false)
        };
        let others = self.pods.iter().filter(|(other, e)| *other != uid && !ended(e));
        others.map(|(_, e)| self.allocated(&e.pod)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_counted_by_few_reasons() {
        let counted = ["OutOfcpu", "OutOfexample.com/device", "NodeAffinity"].map(counted_as);
        assert_eq!(counted, ["OutOfcpu", "OutOfExtendedResources", "Other"]);
    }
}
