//! The phase of a pod from the states of its containers.
//!
//! Followed: kubelet `getPhase`.

use proto::api::core::v1::{Container, ContainerStatus, Pod, PodSpec};

use crate::pod::restart::{own_policy, restarts_after};
use crate::pod::spec::{PodExt, RestartPolicy, is_sidecar};

use super::containers::starts_over;

pub const PENDING: &str = "Pending";
pub const RUNNING: &str = "Running";
pub const SUCCEEDED: &str = "Succeeded";
pub const FAILED: &str = "Failed";

pub fn is_terminal(phase: &str) -> bool {
    phase == SUCCEEDED || phase == FAILED
}

#[derive(Default)]
struct Counts {
    unknown: usize,
    running: usize,
    waiting: usize,
    stopped: usize,
    succeeded: usize,
    /// Stopped containers that are started again.
    restartable: usize,
    pending_sidecars: usize,
    pending_init: usize,
    failed_init: bool,
}

/// `terminal`: nothing of the pod will be started any more.
pub fn phase(pod: &Pod, statuses: &[ContainerStatus], terminal: bool, initialized: bool) -> &'static str {
    let spec = pod.spec();
    let counts = count(pod, statuses);
    if counts.failed_init {
        return FAILED;
    }
    let starting = counts.pending_init > 0 || counts.pending_sidecars > 0 && !initialized;
    if starting || counts.waiting > 0 {
        return PENDING;
    }
    if counts.unknown > 0 || spec.containers.is_empty() {
        return PENDING;
    }
    if counts.running > 0 {
        return RUNNING;
    }
    if counts.stopped == 0 {
        return PENDING;
    }
    let all_succeeded = counts.stopped == counts.succeeded;
    // A static pod that is taken away ends as its containers did, and may have no end.
    match (terminal && !pod.is_static(), counts.restartable > 0) {
        (true, _) if all_succeeded => SUCCEEDED,
        (true, _) => FAILED,
        (false, true) => RUNNING,
        (false, false) if all_succeeded => SUCCEEDED,
        (false, false) => FAILED,
    }
}

fn count(pod: &Pod, statuses: &[ContainerStatus]) -> Counts {
    let spec = pod.spec();
    let mut counts = Counts::default();
    let find = |name: &str| statuses.iter().find(|s| s.name == name);
    for container in &spec.init_containers {
        if is_sidecar(container) {
            count_sidecar(find(&container.name), &mut counts);
        } else {
            count_init(pod, container, find(&container.name), &mut counts);
        }
    }
    for container in &spec.containers {
        let Some(status) = find(&container.name) else {
            counts.unknown += 1;
            continue;
        };
        let state = status.state.as_ref();
        let last_exit = status.last_state.as_ref().and_then(|s| s.terminated.as_ref());
        if state.is_some_and(|s| s.running.is_some()) {
            counts.running += 1;
        } else if let Some(ended) = state.and_then(|s| s.terminated.as_ref()) {
            counts.stopped += 1;
            counts.succeeded += usize::from(ended.exit_code == 0);
            counts.restartable += usize::from(restarts_after(pod, container, ended.exit_code));
        } else if state.is_some_and(|s| s.waiting.is_some()) {
            if last_exit.is_some() {
                counts.stopped += 1;
                // It waits to be started again, or would have ended.
                let waits = own_policy(pod, container) != RestartPolicy::Never
                    || last_exit.is_some_and(|ended| restarts_after(pod, container, ended.exit_code));
                counts.restartable += usize::from(waits || starts_over(status));
            } else {
                counts.waiting += 1;
            }
        } else {
            counts.unknown += 1;
        }
    }
    counts
}

fn count_init(pod: &Pod, container: &Container, status: Option<&ContainerStatus>, counts: &mut Counts) {
    let Some(status) = status else {
        counts.pending_init += 1;
        return;
    };
    let state = status.state.as_ref();
    let last_exit = status.last_state.as_ref().and_then(|s| s.terminated.as_ref()).map(|t| t.exit_code);
    let exit = match state.and_then(|s| s.terminated.as_ref()) {
        Some(ended) => Some(ended.exit_code),
        None if state.is_some_and(|s| s.waiting.is_some()) => last_exit,
        None => None,
    };
    match exit {
        None => counts.pending_init += 1,
        Some(0) => {}
        // One that is tried again says nothing of its own: the regular containers wait for it, or have run before.
        Some(code) => counts.failed_init |= !starts_over(status) && !restarts_after(pod, container, code),
    }
}

fn count_sidecar(status: Option<&ContainerStatus>, counts: &mut Counts) {
    let Some(status) = status else {
        counts.unknown += 1;
        return;
    };
    let state = status.state.as_ref();
    if state.is_some_and(|s| s.running.is_some()) {
        counts.pending_sidecars += usize::from(status.started != Some(true));
        counts.running += 1;
    } else if state.is_some_and(|s| s.terminated.is_some()) {
        // How a sidecar ends says nothing about the pod.
    } else if state.is_some_and(|s| s.waiting.is_some()) {
        if status.last_state.as_ref().and_then(|s| s.terminated.as_ref()).is_none() {
            counts.pending_sidecars += 1;
            counts.waiting += 1;
        }
    } else {
        counts.pending_sidecars += 1;
        counts.unknown += 1;
    }
}

/// Whether any regular container runs or has run.
pub fn any_regular_started(spec: &PodSpec, statuses: &[ContainerStatus]) -> bool {
    spec.containers.iter().any(|c| {
        statuses.iter().find(|s| s.name == c.name).is_some_and(|s| {
            let ended = |state: &Option<proto::api::core::v1::ContainerState>| {
                state.as_ref().is_some_and(|s| s.terminated.is_some())
            };
            s.started == Some(true)
                || s.state.as_ref().is_some_and(|s| s.running.is_some())
                || ended(&s.state)
                || ended(&s.last_state)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{
        ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    };

    fn pod(policy: &str, init: &[&str], regular: &[&str]) -> Pod {
        let make = |names: &[&str]| {
            names.iter().map(|n| Container { name: (*n).into(), ..Default::default() }).collect::<Vec<_>>()
        };
        let spec = PodSpec {
            restart_policy: policy.into(),
            init_containers: make(init),
            containers: make(regular),
            ..Default::default()
        };
        Pod { spec: Some(spec), ..Default::default() }
    }

    fn with(name: &str, state: ContainerState) -> ContainerStatus {
        ContainerStatus { name: name.into(), state: Some(state), ..Default::default() }
    }
    fn running(name: &str) -> ContainerStatus {
        with(name, ContainerState { running: Some(ContainerStateRunning::default()), ..Default::default() })
    }
    fn waiting(name: &str) -> ContainerStatus {
        with(name, ContainerState { waiting: Some(ContainerStateWaiting::default()), ..Default::default() })
    }
    fn ended(name: &str, code: i32) -> ContainerStatus {
        let t = ContainerStateTerminated { exit_code: code, ..Default::default() };
        with(name, ContainerState { terminated: Some(t), ..Default::default() })
    }

    #[test]
    fn phases_follow_policy_and_states() {
        let cases: &[(&str, Vec<ContainerStatus>, bool, &str)] = &[
            ("Always", vec![], false, PENDING),
            ("Always", vec![running("a"), waiting("b")], false, PENDING),
            ("Always", vec![running("a"), running("b")], false, RUNNING),
            ("Always", vec![running("a"), ended("b", 1)], false, RUNNING),
            ("Always", vec![ended("a", 0), ended("b", 0)], false, RUNNING),
            ("Always", vec![ended("a", 0), ended("b", 0)], true, SUCCEEDED),
            ("Always", vec![ended("a", 0), ended("b", 1)], true, FAILED),
            ("OnFailure", vec![ended("a", 0), ended("b", 0)], false, SUCCEEDED),
            ("OnFailure", vec![ended("a", 0), ended("b", 1)], false, RUNNING),
            ("Never", vec![ended("a", 0), ended("b", 1)], false, FAILED),
            ("Never", vec![ended("a", 0), ended("b", 0)], false, SUCCEEDED),
        ];
        for (policy, statuses, terminal, want) in cases {
            let p = pod(policy, &[], &["a", "b"]);
            assert_eq!(phase(&p, statuses, *terminal, true), *want, "{policy} {statuses:?} {terminal}");
        }
    }

    /// As with the kubelet: of a static pod that is taken away it is told how its containers went, and no end is made up.
    #[test]
    fn a_static_pod_that_is_taken_away_ends_by_its_own_policy() {
        let source = (crate::pod::labels::CONFIG_SOURCE.to_owned(), "file".to_owned());
        for (policy, code, want) in [
            ("Always", 0, RUNNING),
            ("Always", 1, RUNNING),
            ("OnFailure", 0, SUCCEEDED),
            ("OnFailure", 1, RUNNING),
            ("Never", 0, SUCCEEDED),
            ("Never", 1, FAILED),
        ] {
            let mut pod = pod(policy, &[], &["a"]);
            pod.metadata.get_or_insert_default().annotations.extend([source.clone()]);
            assert_eq!(phase(&pod, &[ended("a", code)], true, true), want, "{policy} {code}");
        }
    }

    #[test]
    fn a_failed_init_container_fails_only_pods_that_never_restart() {
        let ran = ContainerStatus { last_state: ended("a", 1).state, ..waiting("a") };
        assert_eq!(phase(&pod("Always", &["i"], &["a"]), &[ended("i", 4), ran], false, false), RUNNING);
        let statuses = [ended("i", 4), waiting("a")];
        assert_eq!(phase(&pod("Never", &["i"], &["a"]), &statuses, false, false), FAILED);
        assert_eq!(phase(&pod("Always", &["i"], &["a"]), &statuses, false, false), PENDING);
    }
}
