//! What a worker tells of its pod: the status, the conditions of resizes, the deadline.

use std::sync::Arc;
use std::time::Duration;

use proto::api::core::v1::{PodCondition, PodStatus, ResourceRequirements};
use tokio::time::Instant;

use crate::cgroups::pod_limits;
use crate::clock::unix_nanos;
use crate::events::EventType;
use crate::pod::resize::{Given, Plan};
use crate::pod::spec::PodExt;
use crate::pod::step::Actions;
use crate::status::conditions::{RESIZE_IN_PROGRESS, RESIZE_PENDING};
use crate::status::generate::{DEADLINE_EXCEEDED, Override};
use crate::status::manager::{CONTAINERS_FOLLOW, END_FOLLOWS};
use crate::status::{Inputs, generate, in_use, terminate};

use super::admission::Rejection;
use super::worker::Worker;

/// As long as the kubelet waits for the volumes of a pod before it looks why they do not come.
const VOLUME_PATIENCE: Duration = Duration::from_secs(123);

impl Worker {
    /// Computes the status and hands it on. `terminal`: nothing will be started any more.
    pub(super) fn tell(&mut self, terminal: bool) {
        let may_run = self.renew_status(terminal);
        self.shared.status.set(&self.uid, self.status.clone(), may_run);
    }

    /// [`Worker::tell`] in the middle of a start, where the status with the containers is likely to follow soon.
    pub(super) fn tell_before_containers(&mut self) {
        let may_run = self.renew_status(false);
        self.shared.status.set_before_next(&self.uid, self.status.clone(), may_run, CONTAINERS_FOLLOW);
    }

    /// [`Worker::tell`] once everything has stopped, and while what the pod had is being given back.
    pub(super) fn tell_before_end(&mut self) {
        let may_run = self.renew_status(true);
        self.shared.status.set_before_next(&self.uid, self.status.clone(), may_run, END_FOLLOWS);
    }

    /// Computes the status; whether containers may run.
    fn renew_status(&mut self, terminal: bool) -> bool {
        if terminal {
            self.forget_resizes();
        }
        self.status = Arc::new(self.status_now(terminal));
        // A pod is not over while its claims are its own.
        self.observed.running().next().is_some() || self.shared.dra.has(&self.uid)
    }

    /// The last status: every container has ended.
    pub(super) fn tell_last(&mut self) {
        self.forget_resizes();
        self.status = Arc::new(terminate(&self.pod, self.status_now(true)));
        self.shared.status.set(&self.uid, self.status.clone(), false);
    }

    fn status_now(&self, terminal: bool) -> PodStatus {
        let host_ips = self.shared.host_ips();
        let verdicts = self.verdicts.of(&self.pod);
        let mut status = generate(&Inputs {
            pod: &self.pod,
            observed: &self.observed,
            old: &self.status,
            start_errors: &self.start_errors,
            probes: &verdicts,
            runtime: &self.shared.runtime_name,
            host_ips: &host_ips,
            terminal,
            imposed: self.imposed.as_ref(),
            recursive_read_only: self.shared.mounts_read_only_recursively(&self.observed),
            stop_signals: self.shared.config.stop_signals,
            resize: self.resize_conditions(),
            now: crate::clock::now(),
        });
        if self.pod.phase() == "Running" {
            status.resources = Some(self.resources_in_use());
        }
        if self.shared.config.device_health {
            self.shared.devices.annotate(&self.uid, &mut status);
            self.shared.dra.annotate(&self.pod, &mut status);
        }
        if !self.shared.config.device_health_messages {
            leave_messages_out(&mut status);
        }
        status
    }

    /// What the pod has as a whole while it runs.
    fn resources_in_use(&self) -> ResourceRequirements {
        let allocations = &self.shared.allocations;
        let under_way = allocations.in_progress(&self.uid).is_some();
        // Until a resize is carried out the pod has what it had, whatever it is allocated.
        let has = allocations.given_to(&self.pod).filter(|_| under_way);
        let has = has.as_ref().unwrap_or(&self.pod);
        let given = pod_limits(has, &self.shared.config.resources, 0);
        in_use(has, &given, self.shared.cgroups.found(&self.pod))
    }

    pub(super) fn until_deadline(&self) -> Option<Duration> {
        let limit = self.pod.spec().active_deadline_seconds?;
        let begun = self.status.start_time.as_ref()?.seconds;
        let end = begun.saturating_add(limit).saturating_mul(1_000_000_000);
        Some(Duration::from_nanos(end.saturating_sub(unix_nanos()).max(0).unsigned_abs()))
    }

    pub(super) fn deadline_passed(&mut self) -> bool {
        if !self.until_deadline().is_some_and(|left| left.is_zero()) {
            return false;
        }
        let message = "Pod was active on the node longer than the specified deadline";
        self.shared.recorder.pod(&self.pod, EventType::Normal, DEADLINE_EXCEEDED, message);
        let imposed = Override { reason: DEADLINE_EXCEEDED.into(), message: message.into(), disruption: None };
        self.imposed = Some(imposed);
        true
    }

    /// Refuses a pod that has waited for as long as it may for a volume of which the node can have no more; `limit` is what
    /// it is refused with. One that runs is left alone: what it misses is somebody else's fault.
    pub(super) fn turned_away(&mut self, limit: Option<String>, since: Instant) -> bool {
        let Some(message) = limit else { return false };
        if since.elapsed() < VOLUME_PATIENCE || self.observed.running().next().is_some() {
            return false;
        }
        let refused = Rejection { reason: "VolumeAttachmentLimitExceeded".into(), message };
        self.shared.tell_refused(&self.pod, &refused);
        self.imposed = self.imposed.take().or(refused.into_kill().imposed);
        true
    }

    pub(super) fn plan_resize(&self, actions: &mut Actions) -> Plan {
        let allocations = &self.shared.allocations;
        let containers = |name: &str| allocations.given(&self.uid, name);
        let given = Given { containers: &containers, pod: allocations.given_pod(&self.uid) };
        crate::pod::resize::plan(&self.pod, &self.observed, &given, actions)
    }

    /// Notes that a resize is under way, or that one has come to its end.
    pub(super) fn note_resize(&self) {
        let allocations = &self.shared.allocations;
        let containers = |name: &str| allocations.given(&self.uid, name);
        let given = Given { containers: &containers, pod: allocations.given_pod(&self.uid) };
        if crate::pod::resize::in_progress(&self.pod, &self.observed, &given) {
            if allocations.in_progress(&self.uid).is_none() {
                allocations.begin(&self.uid, self.pod.meta().generation, crate::clock::now());
            }
        } else if let Some(done) = allocations.finish(&self.uid) {
            let message = super::resizes::told(&self.pod, done.generation, "", "Pod resize completed");
            self.shared.recorder.pod(&self.pod, EventType::Normal, "ResizeCompleted", message);
        }
    }

    /// Nothing of the pod will be started any more: it is not resized either.
    fn forget_resizes(&self) {
        self.shared.allocations.clear_pending(&self.uid);
        self.shared.allocations.finish(&self.uid);
    }

    fn resize_conditions(&self) -> Vec<PodCondition> {
        let condition = |kind: &str, reason: &str, message: &str, generation, since| PodCondition {
            r#type: kind.into(),
            status: "True".into(),
            reason: reason.into(),
            message: message.into(),
            observed_generation: generation,
            last_transition_time: Some(since),
            last_probe_time: Some(since),
        };
        let pending = self.shared.allocations.pending(&self.uid);
        let under_way = self.shared.allocations.in_progress(&self.uid);
        let pending = pending.map(|p| condition(RESIZE_PENDING, p.reason, &p.message, p.generation, p.since));
        let under_way = under_way.map(|p| {
            let reason = if p.error.is_some() { "Error" } else { "" };
            condition(RESIZE_IN_PROGRESS, reason, p.error.as_deref().unwrap_or(""), p.generation, p.since)
        });
        pending.into_iter().chain(under_way).collect()
    }
}

/// Leaves of the health of devices only the word.
fn leave_messages_out(status: &mut PodStatus) {
    let of_containers = status.container_statuses.iter_mut().flat_map(|c| &mut c.allocated_resources_status);
    of_containers.flat_map(|r| &mut r.resources).for_each(|device| device.message = None);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{ContainerStatus, ResourceHealth, ResourceStatus};

    #[test]
    fn of_the_health_only_the_word_is_left() {
        let health = |message: Option<&str>| {
            let resources = vec![ResourceHealth {
                resource_id: "d".into(),
                health: "Unhealthy".into(),
                message: message.map(Into::into),
            }];
            let status = ResourceStatus { name: "claim:c".into(), resources };
            let container = ContainerStatus { allocated_resources_status: vec![status], ..Default::default() };
            PodStatus { container_statuses: vec![container], ..Default::default() }
        };
        let mut status = health(Some("too hot"));
        leave_messages_out(&mut status);
        assert_eq!(status, health(None));
    }
}
