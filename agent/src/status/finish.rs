//! The last status of a pod: every container has ended, known or not.
//!
//! Followed: status manager `TerminatePod`.

use proto::api::core::v1::{ContainerStatus, Pod, PodStatus};

use crate::pod::spec::{PodExt, is_sidecar};

use super::containers::unknown_terminated;
use super::phase::{FAILED, is_terminal};

const MESSAGE: &str = "The container could not be located when the pod was terminated";

/// Makes the status final: containers without a known end get an unknown one, and the phase becomes terminal.
pub fn terminate(pod: &Pod, mut status: PodStatus) -> PodStatus {
    if was_initialized(pod, &status) {
        for container in &mut status.container_statuses {
            end_unknown(container);
        }
    }
    let touched = touched(&status.init_container_statuses);
    for container in status.init_container_statuses.iter_mut().take(touched) {
        end_unknown(container);
    }
    if !is_terminal(&status.phase) && !pod.is_static() {
        status.phase = FAILED.into();
    }
    status
}

fn end_unknown(status: &mut ContainerStatus) {
    if !ended(status) {
        status.state = Some(unknown_terminated(MESSAGE));
    }
    status.ready = status.ready && ended_well(status);
    if status.started.is_some() {
        status.started = Some(false);
    }
}

fn ended(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|s| s.terminated.is_some())
}

fn ended_well(status: &ContainerStatus) -> bool {
    status.state.as_ref().and_then(|s| s.terminated.as_ref()).is_some_and(|t| t.exit_code == 0)
}

fn ended_before(status: &ContainerStatus) -> bool {
    status.last_state.as_ref().is_some_and(|s| s.terminated.is_some())
}

fn is_waiting(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|s| s.waiting.is_some())
}

/// Whether regular containers had their turn.
fn was_initialized(pod: &Pod, status: &PodStatus) -> bool {
    let Some(last) = pod.spec().init_containers.last() else { return true };
    if status.container_statuses.iter().any(|s| ended_before(s) || !is_waiting(s)) {
        return true;
    }
    let Some(last_status) = status.init_container_statuses.iter().find(|s| s.name == last.name) else { return false };
    if is_sidecar(last) {
        return last_status.started == Some(true);
    }
    ended_well(last_status)
        || last_status.last_state.as_ref().and_then(|s| s.terminated.as_ref()).is_some_and(|t| t.exit_code == 0)
}

/// How many init containers had their turn: all up to the last with evidence, at least one.
fn touched(statuses: &[ContainerStatus]) -> usize {
    statuses.iter().rposition(|s| !is_waiting(s) || ended_before(s)).map_or(1, |i| i + 1).min(statuses.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pleg::observed::{ContainerRecord, Observed, RunState};
    use crate::probes::Verdicts;
    use crate::status::generate::{Inputs, Override, StartError, generate};
    use proto::api::core::v1::{Container, ContainerState, ContainerStateWaiting, PodSpec};

    fn waiting(name: &str) -> ContainerStatus {
        let state = ContainerState { waiting: Some(ContainerStateWaiting::default()), ..Default::default() };
        ContainerStatus { name: name.into(), state: Some(state), ..Default::default() }
    }

    #[test]
    fn containers_that_never_started_end_unknown_but_only_after_initialisation() {
        let mut pod = Pod { spec: Some(PodSpec::default()), ..Default::default() };
        let status = PodStatus { container_statuses: vec![waiting("a")], ..Default::default() };
        let done = terminate(&pod, status.clone());
        assert_eq!(done.phase, FAILED);
        assert!(ended(&done.container_statuses[0]));
        let source = (crate::pod::labels::CONFIG_SOURCE.to_owned(), "file".to_owned());
        pod.metadata.get_or_insert_default().annotations.extend([source]);
        assert_eq!(terminate(&pod, status.clone()).phase, "", "no end is made up for a static pod");
        pod.metadata = None;

        let spec = pod.spec.as_mut().unwrap();
        spec.init_containers = vec![Container { name: "i".into(), ..Default::default() }];
        let status = PodStatus { init_container_statuses: vec![waiting("i"), waiting("j")], ..status };
        let done = terminate(&pod, status);
        assert!(!ended(&done.container_statuses[0]));
        assert!(ended(&done.init_container_statuses[0]));
        assert!(!ended(&done.init_container_statuses[1]));
    }

    /// As with the kubelet: one that waits to be started again has no end of its own when the pod ends, whatever its last
    /// try came to.
    #[test]
    fn what_waits_in_a_back_off_when_the_pod_ends_ends_unknown() {
        let spec = PodSpec {
            containers: vec![Container { name: "a".into(), ..Default::default() }],
            restart_policy: "Always".into(),
            ..Default::default()
        };
        let mut pod = Pod { spec: Some(spec), ..Default::default() };
        let record = ContainerRecord { name: "a".into(), state: RunState::Exited, exit_code: 3, ..Default::default() };
        let observed = Observed { sandboxes: vec![], containers: vec![record] };
        let held = StartError { reason: "CrashLoopBackOff".into(), message: String::new() };
        let late = Override { reason: "DeadlineExceeded".into(), message: String::new(), disruption: None };
        let mut codes = |deleted: bool| {
            pod.metadata.get_or_insert_default().deletion_timestamp = deleted.then(Default::default);
            let status = generate(&Inputs {
                pod: &pod,
                observed: &observed,
                old: &PodStatus::default(),
                start_errors: &[("a".to_owned(), held.clone())].into(),
                probes: &Verdicts::default().of(&pod),
                runtime: "containerd",
                host_ips: &[],
                terminal: true,
                imposed: Some(&late),
                recursive_read_only: false,
                stop_signals: false,
                resize: vec![],
                now: Default::default(),
            });
            let status = terminate(&pod, status);
            let code = |state: &Option<ContainerState>| state.as_ref()?.terminated.as_ref().map(|t| t.exit_code);
            let container = &status.container_statuses[0];
            (status.phase.clone(), code(&container.state), code(&container.last_state))
        };
        assert_eq!(codes(false), ("Failed".into(), Some(137), Some(3)));
        assert_eq!(codes(true), ("Failed".into(), Some(3), None), "nothing of a deleted pod waits to be started");
    }
}
