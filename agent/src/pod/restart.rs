//! Whether a container that is not running should run (again).
//!
//! The pod's policy decides, unless the container has a policy and rules of its own; a deleted pod restarts nothing.

use proto::api::core::v1::{Container, Pod};

use crate::pleg::observed::{ContainerRecord, Observed, RunState};

use super::spec::{PodExt, RestartPolicy, is_sidecar};

/// What the restart rules of a container say about an exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleAction {
    Restart,
    RestartAllContainers,
}

/// Whether a regular container should be started, given its newest try.
pub fn should_restart(pod: &Pod, container: &Container, observed: &Observed) -> bool {
    if pod.is_deleted() {
        return false;
    }
    let Some(last) = observed.container(&container.name) else { return true };
    match last.state {
        RunState::Running => false,
        RunState::Unknown | RunState::Created => true,
        RunState::Exited => restarts_after(pod, container, last.exit_code),
    }
}

/// Whether an exit with that code leads to another start.
pub fn restarts_after(pod: &Pod, container: &Container, exit_code: i32) -> bool {
    if rule_for(container, exit_code).is_some() {
        return true;
    }
    match own_policy(pod, container) {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => exit_code != 0,
        RestartPolicy::Never => false,
    }
}

/// The first rule that matches the exit code; rules count only where the container has a policy.
pub fn rule_for(container: &Container, exit_code: i32) -> Option<RuleAction> {
    container.restart_policy.as_ref()?;
    let rule = container.restart_policy_rules.iter().find(|rule| {
        rule.exit_codes.as_ref().is_some_and(|on| match on.operator.as_str() {
            "In" => on.values.contains(&exit_code),
            "NotIn" => !on.values.contains(&exit_code),
            _ => false,
        })
    })?;
    match rule.action.as_str() {
        "Restart" => Some(RuleAction::Restart),
        "RestartAllContainers" => Some(RuleAction::RestartAllContainers),
        _ => None,
    }
}

/// The container's own policy, else the pod's.
pub fn own_policy(pod: &Pod, container: &Container) -> RestartPolicy {
    match container.restart_policy.as_deref() {
        Some("Always") => RestartPolicy::Always,
        Some("OnFailure") => RestartPolicy::OnFailure,
        Some("Never") => RestartPolicy::Never,
        _ => pod.restarts(),
    }
}

/// Whether a failed init container is tried again. `Always` of the pod means "on failure" here.
pub fn init_restarts_after(pod: &Pod, container: &Container, exit_code: i32) -> bool {
    if is_sidecar(container) {
        return true;
    }
    rule_for(container, exit_code).is_some() || own_policy(pod, container) != RestartPolicy::Never
}

/// Whether an init container ended without success.
pub fn init_failed(record: &ContainerRecord) -> bool {
    match record.state {
        RunState::Exited => record.exit_code != 0,
        RunState::Unknown => true,
        RunState::Created | RunState::Running => false,
    }
}
