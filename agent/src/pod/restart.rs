//! Whether a container that is not running should run (again).
//!
//! The pod's policy decides, unless the container has a policy and rules of its own; a deleted pod restarts nothing.

use proto::api::core::v1::{Container, Pod, PodStatus};

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

/// A kill by a probe says nothing about exit codes: the policy decides, rules are not asked.
pub fn restarts_after_kill(pod: &Pod, container: &Container) -> bool {
    own_policy(pod, container) != RestartPolicy::Never
}

/// Condition type: all containers of the pod are being started over.
pub const ALL_CONTAINERS_RESTARTING: &str = "AllContainersRestarting";

fn restart_all_on(container: &Container, exit_code: i32) -> bool {
    rule_for(container, exit_code) == Some(RuleAction::RestartAllContainers)
}

fn resettable(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec().init_containers.iter().chain(&pod.spec().containers)
}

/// Whether some rule of the pod may start all its containers over.
pub fn may_restart_all(pod: &Pod) -> bool {
    resettable(pod).any(|c| c.restart_policy_rules.iter().any(|r| r.action == "RestartAllContainers"))
}

/// Whether the end of some container asks for all of them to start over, or that is under way. `before` is the status
/// told last, which remembers what has been removed from the runtime since.
pub fn all_must_restart(pod: &Pod, observed: &Observed, before: &PodStatus) -> bool {
    if !may_restart_all(pod) || pod.is_deleted() {
        return false;
    }
    let under_way =
        |c: &proto::api::core::v1::PodCondition| c.r#type == ALL_CONTAINERS_RESTARTING && c.status == "True";
    if before.conditions.iter().any(under_way) {
        return true;
    }
    resettable(pod).any(|container| {
        let newest = observed.container(&container.name);
        if newest.is_some_and(|r| r.state == RunState::Exited && restart_all_on(container, r.exit_code)) {
            return true;
        }
        let statuses = before.init_container_statuses.iter().chain(&before.container_statuses);
        let told = statuses.filter(|s| s.name == container.name).filter_map(|s| s.state.as_ref()?.terminated.as_ref());
        newest.is_none() && told.into_iter().any(|ended| restart_all_on(container, ended.exit_code))
    })
}

/// Whether the runtime has no try of any container any more that is to start over.
pub fn nothing_left(pod: &Pod, observed: &Observed) -> bool {
    resettable(pod).all(|c| observed.container(&c.name).is_none())
}

/// What has to go before all containers start over: first the bystanders, last those whose end asked for it, so that a
/// restart of the agent in between finds the reason again.
pub fn to_reset<'a>(pod: &Pod, observed: &'a Observed) -> Vec<&'a ContainerRecord> {
    let (mut sources, mut targets) = (Vec::new(), Vec::new());
    for container in resettable(pod) {
        for record in observed.containers.iter().filter(|r| r.name == container.name) {
            if record.state == RunState::Exited && restart_all_on(container, record.exit_code) {
                sources.push(record);
            } else {
                targets.push(record);
            }
        }
    }
    targets.extend(sources);
    targets
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

/// Whether an init container that nobody sees any more is tried again. It may not have ended, so rules for exit codes say
/// nothing of it.
pub fn lost_init_restarts(pod: &Pod, container: &Container) -> bool {
    is_sidecar(container) || own_policy(pod, container) != RestartPolicy::Never
}

/// Whether an init container ended without success.
pub fn init_failed(record: &ContainerRecord) -> bool {
    match record.state {
        RunState::Exited => record.exit_code != 0,
        RunState::Unknown => true,
        RunState::Created | RunState::Running => false,
    }
}
