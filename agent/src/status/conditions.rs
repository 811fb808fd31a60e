//! The conditions that the agent owns.
//!
//! Transition times are kept from the old status while a condition's value stays; see [`carry_transition_times`].

use proto::api::core::v1::{ContainerStatus, Pod, PodCondition, PodStatus};
use proto::apimachinery::pkg::apis::meta::v1::Time;

use crate::pleg::observed::Observed;
use crate::pod::restart::{all_must_restart, may_restart_all, nothing_left};
use crate::pod::spec::{PodExt, is_sidecar};
use crate::pod::step::sandbox_change;

use super::phase::{FAILED, SUCCEEDED, any_regular_started};

pub const POD_SCHEDULED: &str = "PodScheduled";
pub const READY: &str = "Ready";
pub const INITIALIZED: &str = "Initialized";
pub const CONTAINERS_READY: &str = "ContainersReady";
pub const READY_TO_START: &str = "PodReadyToStartContainers";
pub const RESIZE_PENDING: &str = "PodResizePending";
pub const RESIZE_IN_PROGRESS: &str = "PodResizeInProgress";
pub use crate::pod::restart::ALL_CONTAINERS_RESTARTING;
pub const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// Conditions that only the agent writes.
pub fn is_owned(kind: &str) -> bool {
    matches!(
        kind,
        POD_SCHEDULED
            | READY
            | INITIALIZED
            | CONTAINERS_READY
            | READY_TO_START
            | RESIZE_PENDING
            | RESIZE_IN_PROGRESS
            | ALL_CONTAINERS_RESTARTING
    )
}

struct Verdict {
    status: bool,
    reason: &'static str,
    message: String,
}

impl Verdict {
    fn yes() -> Self {
        Self { status: true, reason: "", message: String::new() }
    }
    fn no(reason: &'static str, message: String) -> Self {
        Self { status: false, reason, message }
    }
    fn into_condition(self, pod: &Pod, kind: &str) -> PodCondition {
        PodCondition {
            r#type: kind.to_owned(),
            observed_generation: pod.meta().generation,
            status: if self.status { "True" } else { "False" }.to_owned(),
            reason: self.reason.to_owned(),
            message: self.message,
            ..Default::default()
        }
    }
}

/// All owned conditions for `status`, whose phase and container statuses are final. `foreign` are those of others,
/// `old` is the status told last.
pub fn owned(
    pod: &Pod,
    observed: &Observed,
    status: &PodStatus,
    old: &PodStatus,
    foreign: &[PodCondition],
) -> Vec<PodCondition> {
    let containers_ready = containers_ready(pod, status);
    let ready = pod_ready(pod, status, foreign);
    let ready_to_start =
        if sandbox_change(pod, observed).needed { Verdict::no("", String::new()) } else { Verdict::yes() };
    let mut owned = vec![
        ready_to_start.into_condition(pod, READY_TO_START),
        initialized(pod, status, old).into_condition(pod, INITIALIZED),
        ready.into_condition(pod, READY),
        containers_ready.into_condition(pod, CONTAINERS_READY),
        Verdict::yes().into_condition(pod, POD_SCHEDULED),
    ];
    if may_restart_all(pod) {
        let verdict = all_restarting(pod, observed, status, old);
        // Of all conditions the kubelet tells no generation with this one.
        let untold = PodCondition { observed_generation: 0, ..verdict.into_condition(pod, ALL_CONTAINERS_RESTARTING) };
        owned.push(untold);
    }
    owned
}

fn all_restarting(pod: &Pod, observed: &Observed, status: &PodStatus, old: &PodStatus) -> Verdict {
    match status.phase.as_str() {
        SUCCEEDED => Verdict::no("PodCompleted", String::new()),
        FAILED => Verdict::no("PodFailed", String::new()),
        _ if all_must_restart(pod, observed, old) && !nothing_left(pod, observed) => Verdict {
            status: true,
            reason: "RestartAllContainersStarted",
            message: "container exited with restart policy rule".into(),
        },
        _ => Verdict::no("", String::new()),
    }
}

fn containers_ready(pod: &Pod, status: &PodStatus) -> Verdict {
    let spec = pod.spec();
    let (mut unknown, mut unready) = (Vec::new(), Vec::new());
    let sidecars = spec.init_containers.iter().filter(|c| is_sidecar(c));
    for container in sidecars.chain(&spec.containers) {
        match find(status, &container.name) {
            None => unknown.push(container.name.as_str()),
            Some(s) if !s.ready => unready.push(container.name.as_str()),
            Some(_) => {}
        }
    }
    if status.phase == SUCCEEDED && unknown.is_empty() {
        return Verdict::no("PodCompleted", String::new());
    }
    if status.phase == FAILED {
        return Verdict::no("PodFailed", String::new());
    }
    match joined(&[("unknown", &unknown), ("unready", &unready)]) {
        Some(message) => Verdict::no("ContainersNotReady", message),
        None => Verdict::yes(),
    }
}

fn pod_ready(pod: &Pod, status: &PodStatus, foreign: &[PodCondition]) -> Verdict {
    let containers = containers_ready(pod, status);
    if !containers.status {
        return containers;
    }
    let mut problems = Vec::new();
    for gate in &pod.spec().readiness_gates {
        let kind = &gate.condition_type;
        match foreign.iter().find(|c| c.r#type == *kind) {
            None => problems.push(format!("corresponding condition of pod readiness gate {kind:?} does not exist.")),
            Some(c) if c.status != "True" => {
                problems.push(format!("the status of pod readiness gate {kind:?} is not \"True\", but {}", c.status))
            }
            Some(_) => {}
        }
    }
    if problems.is_empty() { Verdict::yes() } else { Verdict::no("ReadinessGatesNotReady", problems.join(", ")) }
}

/// Brings the conditions up to date that follow from which containers are ready.
pub fn renew_readiness(pod: &Pod, status: &mut PodStatus, now: Time) {
    let renewed =
        [(CONTAINERS_READY, containers_ready(pod, status)), (READY, pod_ready(pod, status, &status.conditions))];
    for (kind, verdict) in renewed {
        let Some(before) = status.conditions.iter_mut().find(|c| c.r#type == kind) else { continue };
        let mut condition = verdict.into_condition(pod, kind);
        condition.last_transition_time =
            if condition.status == before.status { before.last_transition_time } else { Some(now) };
        *before = condition;
    }
}

/// A pod that was initialised once stays so, though its init containers run again: in another sandbox, or because all
/// containers start over.
fn initialized(pod: &Pod, status: &PodStatus, old: &PodStatus) -> Verdict {
    let spec = pod.spec();
    let (mut unknown, mut incomplete) = (Vec::new(), Vec::new());
    for container in &spec.init_containers {
        let done = |s: &ContainerStatus| if is_sidecar(container) { s.started == Some(true) } else { s.ready };
        match find(status, &container.name) {
            None => unknown.push(container.name.as_str()),
            Some(s) if !done(s) => incomplete.push(container.name.as_str()),
            Some(_) => {}
        }
    }
    if status.phase == SUCCEEDED && unknown.is_empty() {
        return Verdict { status: true, reason: "PodCompleted", message: String::new() };
    }
    let was = old.conditions.iter().any(|c| c.r#type == INITIALIZED && c.status == "True");
    if was || any_regular_started(spec, &status.container_statuses) {
        return Verdict::yes();
    }
    match joined(&[("unknown", &unknown), ("incomplete", &incomplete)]) {
        Some(message) => Verdict::no("ContainersNotInitialized", message),
        None => Verdict::yes(),
    }
}

fn find<'a>(status: &'a PodStatus, name: &str) -> Option<&'a ContainerStatus> {
    status.init_container_statuses.iter().chain(&status.container_statuses).find(|s| s.name == name)
}

fn joined(parts: &[(&str, &[&str])]) -> Option<String> {
    let texts: Vec<String> = parts
        .iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(what, names)| format!("containers with {what} status: [{}]", names.join(" ")))
        .collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

/// Keeps the old transition time of each condition whose value did not change; others get `now`.
pub fn carry_transition_times(status: &mut PodStatus, old: &PodStatus, now: Time) {
    for condition in status.conditions.iter_mut().filter(|c| is_owned(&c.r#type) || c.last_transition_time.is_none()) {
        let before = old.conditions.iter().find(|c| c.r#type == condition.r#type);
        match before {
            Some(before) if before.status == condition.status => {
                condition.last_transition_time = before.last_transition_time;
            }
            _ if is_owned(&condition.r#type) || condition.r#type == DISRUPTION_TARGET => {
                condition.last_transition_time = Some(now);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{Container, PodReadinessGate, PodSpec};

    fn pod() -> Pod {
        let spec = PodSpec {
            containers: vec![Container { name: "main".into(), ..Default::default() }],
            init_containers: vec![Container { name: "i".into(), ..Default::default() }],
            ..Default::default()
        };
        Pod { spec: Some(spec), ..Default::default() }
    }

    fn status(ready: bool, init_ready: bool) -> PodStatus {
        let one = |name: &str, ready| ContainerStatus { name: name.into(), ready, ..Default::default() };
        PodStatus {
            phase: "Pending".into(),
            container_statuses: vec![one("main", ready)],
            init_container_statuses: vec![one("i", init_ready)],
            ..Default::default()
        }
    }

    #[test]
    fn messages_name_the_containers_that_hold_up() {
        let p = pod();
        let v = initialized(&p, &status(false, false), &PodStatus::default());
        assert_eq!(
            (v.reason, v.message.as_str()),
            ("ContainersNotInitialized", "containers with incomplete status: [i]")
        );
        let v = containers_ready(&p, &status(false, true));
        assert_eq!((v.reason, v.message.as_str()), ("ContainersNotReady", "containers with unready status: [main]"));
    }

    #[test]
    fn the_condition_of_a_restart_of_all_has_no_generation() {
        let rule =
            proto::api::core::v1::ContainerRestartRule { action: "RestartAllContainers".into(), ..Default::default() };
        let mut p = pod();
        p.metadata.get_or_insert_default().generation = 7;
        p.spec.as_mut().unwrap().containers[0].restart_policy_rules = vec![rule];
        let told = owned(&p, &Observed::default(), &status(true, true), &PodStatus::default(), &[]);
        let of = |kind: &str| told.iter().find(|c| c.r#type == kind).map(|c| c.observed_generation);
        assert_eq!((of(ALL_CONTAINERS_RESTARTING), of(READY)), (Some(0), Some(7)));
    }

    #[test]
    fn a_pod_is_initialised_for_good() {
        let told = |status: &str| {
            let condition = PodCondition { r#type: INITIALIZED.into(), status: status.into(), ..Default::default() };
            PodStatus { conditions: vec![condition], ..Default::default() }
        };
        for (before, after) in [("True", true), ("False", false)] {
            assert_eq!(initialized(&pod(), &status(false, false), &told(before)).status, after);
        }
    }

    #[test]
    fn readiness_gates_wait_for_foreign_conditions() {
        let mut p = pod();
        p.spec.as_mut().unwrap().readiness_gates = vec![PodReadinessGate { condition_type: "a/b".into() }];
        let v = pod_ready(&p, &status(true, true), &[]);
        assert_eq!(v.message, "corresponding condition of pod readiness gate \"a/b\" does not exist.");
        let up = PodCondition { r#type: "a/b".into(), status: "True".into(), ..Default::default() };
        assert!(pod_ready(&p, &status(true, true), &[up]).status);
    }

    #[test]
    fn a_condition_that_stays_keeps_its_time() {
        let at = |s| Some(Time { seconds: s, nanos: 0 });
        let one = |status: &str, time| PodCondition {
            r#type: READY.into(),
            status: status.into(),
            last_transition_time: time,
            ..Default::default()
        };
        let old = PodStatus { conditions: vec![one("True", at(1))], ..Default::default() };
        let mut new = PodStatus { conditions: vec![one("True", None)], ..Default::default() };
        carry_transition_times(&mut new, &old, at(9).unwrap());
        assert_eq!(new.conditions[0].last_transition_time, at(1));
        new.conditions[0].status = "False".into();
        carry_transition_times(&mut new, &old, at(9).unwrap());
        assert_eq!(new.conditions[0].last_transition_time, at(9));
    }
}
