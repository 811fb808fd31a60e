//! Container statuses from what the runtime has, what the status was, and why starts failed.
//!
//! Followed: kubelet `convertToAPIContainerStatuses`.

use proto::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    ContainerUser, LinuxContainerUser, Pod, ResourceRequirements, VolumeMount, VolumeMountStatus,
};
use proto::apimachinery::pkg::api::resource::Quantity;
use proto::apimachinery::pkg::apis::meta::v1::Time;
use proto::quantity::Format;

use crate::pleg::observed::{ContainerRecord, RunState};
use crate::pod::container_config::signal_name;
use crate::pod::resources::{MIN_SHARES, ResourceList, shares_to_milli_cpu};
use crate::pod::restart::{all_must_restart, init_failed, should_restart};
use crate::pod::spec::{PodExt, is_sidecar};

use super::generate::Inputs;

pub const UNKNOWN_REASON: &str = "ContainerStatusUnknown";
const UNKNOWN_EXIT_CODE: i32 = 137;

/// Statuses of the containers of one list of the spec, in the order of the list.
pub fn statuses(
    inputs: &Inputs<'_>,
    containers: &[Container],
    old: &[ContainerStatus],
    init: bool,
) -> Vec<ContainerStatus> {
    let has_init = !inputs.pod.spec().init_containers.is_empty();
    let default_reason = if has_init { "PodInitializing" } else { "ContainerCreating" };
    let starting_over = all_must_restart(inputs.pod, inputs.observed, inputs.old);
    containers
        .iter()
        .map(|container| {
            let before = old.iter().find(|s| s.name == container.name);
            let mut status = match newest_two(inputs, &container.name) {
                (Some(record), last) => seen(inputs, container, record, last, before),
                (None, _) if starting_over || before.is_some_and(starts_over) => {
                    removed_to_start_over(container, before)
                }
                (None, _) => unseen(inputs.pod, container, before, default_reason),
            };
            status.volume_mounts = volume_mounts(container, inputs.recursive_read_only);
            if init && !starting_over && had_its_turn(inputs, container, &status) {
                status.state = Some(completed_unseen());
            } else {
                waiting_for_start(inputs, container, init, &mut status);
            }
            status
        })
        .collect()
}

fn newest_two<'a>(inputs: &Inputs<'a>, name: &str) -> (Option<&'a ContainerRecord>, Option<&'a ContainerRecord>) {
    let mut found = inputs.observed.containers.iter().filter(|c| c.name == name);
    (found.next(), found.next())
}

fn waiting(reason: &str, message: &str) -> ContainerState {
    let waiting = ContainerStateWaiting { reason: reason.into(), message: message.into() };
    ContainerState { waiting: Some(waiting), ..Default::default() }
}

/// The state of a container that should be there and is not.
pub fn unknown_terminated(message: &str) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: UNKNOWN_EXIT_CODE,
            reason: UNKNOWN_REASON.into(),
            message: message.into(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Whether an init container is gone that must have succeeded: regular ones have been made since, and nothing is known
/// of it, as of those of static pods after a restart of the agent.
fn had_its_turn(inputs: &Inputs<'_>, container: &Container, status: &ContainerStatus) -> bool {
    let made = |name: &str| inputs.observed.container(name).is_some_and(|r| r.state != RunState::Unknown);
    let waits = status.state.as_ref().is_some_and(|s| s.waiting.is_some());
    waits
        && !is_sidecar(container)
        && inputs.observed.container(&container.name).is_none()
        && inputs.pod.spec().containers.iter().any(|c| made(&c.name))
}

fn completed_unseen() -> ContainerState {
    const MESSAGE: &str = "Unable to get init container status from container runtime and pod has been initialized, \
                           treat it as exited normally";
    let ended = ContainerStateTerminated { reason: "Completed".into(), message: MESSAGE.into(), ..Default::default() };
    ContainerState { terminated: Some(ended), ..Default::default() }
}

const STARTING_OVER: &str = "RestartingAllContainers";

/// Whether the container has been removed to start over, and has not started since.
pub fn starts_over(status: &ContainerStatus) -> bool {
    let waits = status.state.as_ref().and_then(|s| s.waiting.as_ref());
    let ended = status.last_state.as_ref().and_then(|s| s.terminated.as_ref());
    waits.is_some_and(|w| w.reason == STARTING_OVER || ended.is_some_and(|e| e.reason == STARTING_OVER))
}

/// A container that was removed because a rule starts all of them over.
fn removed_to_start_over(container: &Container, before: Option<&ContainerStatus>) -> ContainerStatus {
    const MESSAGE: &str = "The container is removed because RestartAllContainers in place";
    let mut status = ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone(),
        state: Some(waiting(STARTING_OVER, MESSAGE)),
        last_state: Some(ContainerState::default()),
        ..Default::default()
    };
    let Some(before) = before else { return status };
    if starts_over(before) {
        return before.clone();
    }
    status.restart_count = before.restart_count;
    // One that never ran has nothing to remember.
    if before.state.as_ref().is_some_and(|s| s.running.is_some() || s.terminated.is_some()) {
        status.restart_count += 1;
        let mut last = unknown_terminated(MESSAGE);
        if let Some(ended) = &mut last.terminated {
            ended.reason = STARTING_OVER.into();
        }
        status.last_state = Some(last);
    }
    status
}

fn unseen(pod: &Pod, container: &Container, before: Option<&ContainerStatus>, default_reason: &str) -> ContainerStatus {
    let mut status = ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone(),
        state: Some(waiting(default_reason, "")),
        last_state: Some(ContainerState::default()),
        ..Default::default()
    };
    let Some(before) = before else { return status };
    if before.state.as_ref().is_some_and(|s| s.terminated.is_some()) {
        return before.clone();
    }
    status.restart_count = before.restart_count;
    if let Some(last) = &before.last_state {
        status.last_state = Some(last.clone());
    }
    let was_running = before.state.as_ref().is_some_and(|s| s.running.is_some());
    let ended_before = status.last_state.as_ref().is_some_and(|s| s.terminated.is_some());
    if was_running && !ended_before {
        // It ran and is gone: that it ended is known, how is not.
        status.last_state = Some(unknown_terminated(
            "The container could not be located when the pod was deleted.  The container used to be Running",
        ));
        if !pod.is_deleted() {
            status.restart_count += 1;
        }
    }
    status
}

fn seen(
    inputs: &Inputs<'_>,
    container: &Container,
    record: &ContainerRecord,
    last: Option<&ContainerRecord>,
    before: Option<&ContainerStatus>,
) -> ContainerStatus {
    let mut status = ContainerStatus {
        name: record.name.clone(),
        restart_count: i32::try_from(record.restart_count).unwrap_or(i32::MAX),
        image: record.image.clone(),
        image_id: record.image_ref.clone(),
        container_id: container_id(inputs.runtime, &record.id),
        state: Some(state(inputs.runtime, record, before)),
        user: record.user.as_ref().map(|u| ContainerUser {
            linux: Some(LinuxContainerUser {
                uid: u.uid,
                gid: u.gid,
                supplemental_groups: u.supplemental_groups.clone(),
            }),
        }),
        stop_signal: if inputs.stop_signals { signal_name(record.stop_signal) } else { None },
        ..Default::default()
    };
    if record.state == RunState::Unknown && has_run(record, before) {
        status.restart_count += 1;
    } else if record.state == RunState::Unknown
        && let Some((before, ended)) = before.and_then(|before| Some((before, told_end(before, &status.container_id)?)))
    {
        // What was said of a lost one stays said until its successor comes.
        (status.state, status.restart_count) = (Some(ended.clone()), before.restart_count);
    }
    let before_count = before.map_or(0, |b| b.restart_count);
    // One that ended was told of under the number that this one has come to have.
    let follows =
        record.state == RunState::Running && before.is_some_and(has_ended) && before_count >= status.restart_count;
    // A try that was made, shown and removed without a start is made again under the same number.
    status.restart_count = status.restart_count.max(before_count + i32::from(follows));
    status.last_state = Some(match (last, before) {
        (Some(last), _) => state(inputs.runtime, last, None),
        (None, Some(before)) => said_of_last(before, &status.container_id),
        (None, None) => ContainerState::default(),
    });
    let requirements = container.resources.clone().unwrap_or_default();
    status.allocated_resources.clone_from(&requirements.requests);
    status.resources = Some(actual_resources(requirements, record));
    status
}

fn has_ended(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|s| s.terminated.is_some())
}

/// The try before the container of that id is gone from the runtime; what was said of it.
fn said_of_last(before: &ContainerStatus, id: &str) -> ContainerState {
    let ended = |state: &Option<ContainerState>| state.clone().filter(|s| s.terminated.is_some());
    let successor = before.container_id != id;
    ended(&before.state).filter(|_| successor).or_else(|| ended(&before.last_state)).unwrap_or_default()
}

/// Whether a container that nobody sees has run before: as its last status says or, when there is none, the runtime.
fn has_run(record: &ContainerRecord, before: Option<&ContainerStatus>) -> bool {
    before.map_or(record.started_at > 0, |b| b.state.as_ref().is_some_and(|s| s.running.is_some()))
}

/// The end of the container with that id, as a status tells it: of now, or of the last try while the next one waits.
fn told_end<'a>(status: &'a ContainerStatus, id: &str) -> Option<&'a ContainerState> {
    let states = [&status.state, &status.last_state].into_iter().flatten();
    states.into_iter().find(|state| state.terminated.as_ref().is_some_and(|ended| ended.container_id == id))
}

/// `TYPE://ID`, as statuses name a container.
pub fn container_id(runtime: &str, id: &str) -> String {
    format!("{runtime}://{id}")
}

fn state(runtime: &str, record: &ContainerRecord, before: Option<&ContainerStatus>) -> ContainerState {
    match record.state {
        RunState::Running => ContainerState {
            running: Some(ContainerStateRunning { started_at: time(record.started_at) }),
            ..Default::default()
        },
        RunState::Exited => ContainerState {
            terminated: Some(ContainerStateTerminated {
                exit_code: record.exit_code,
                signal: 0,
                reason: record.reason.clone(),
                message: record.message.clone(),
                started_at: time(record.started_at),
                finished_at: time(record.finished_at),
                container_id: container_id(runtime, &record.id),
            }),
            ..Default::default()
        },
        RunState::Unknown if has_run(record, before) => {
            let mut state = unknown_terminated("The container could not be located when the pod was terminated");
            if let Some(ended) = &mut state.terminated {
                ended.container_id = container_id(runtime, &record.id);
            }
            state
        }
        RunState::Created | RunState::Unknown => waiting("", ""),
    }
}

/// Whole seconds from Unix nanoseconds; a runtime that says nothing, as of a container that could not be started, says zero,
/// which Go prints as 1970.
fn time(nanos: i64) -> Option<Time> {
    let seconds = nanos.div_euclid(1_000_000_000);
    // A message of nothing but zeros is empty, and that is no time at all; the nanosecond is not shown.
    Some(Time { seconds, nanos: i32::from(seconds == 0) })
}

/// A container that the next sync starts is waiting, if its last start failed for a reason worth telling.
fn waiting_for_start(inputs: &Inputs<'_>, container: &Container, init: bool, status: &mut ContainerStatus) {
    let Some(error) = inputs.start_errors.get(&container.name) else { return };
    let newest = inputs.observed.container(&container.name);
    if init && !is_sidecar(container) && newest.is_some_and(|r| r.state == RunState::Exited && !init_failed(r)) {
        return;
    }
    if !should_restart(inputs.pod, container, inputs.observed) {
        return;
    }
    if let Some(state) = status.state.take().filter(|s| s.terminated.is_some()) {
        status.last_state = Some(state);
    }
    status.state = Some(waiting(&error.reason, &error.message));
}

fn volume_mounts(container: &Container, recursive_read_only: bool) -> Vec<VolumeMountStatus> {
    container.volume_mounts.iter().map(|m| volume_mount(m, recursive_read_only)).collect()
}

fn volume_mount(mount: &VolumeMount, supported: bool) -> VolumeMountStatus {
    // One that asks for what it cannot have never starts.
    let is_recursive = crate::volumes::recursive_read_only(mount, supported).unwrap_or(false);
    let recursive = mount.read_only.then_some(if is_recursive { "Enabled" } else { "Disabled" });
    VolumeMountStatus {
        name: mount.name.clone(),
        mount_path: mount.mount_path.clone(),
        read_only: mount.read_only,
        recursive_read_only: recursive.map(str::to_owned),
        ..Default::default()
    }
}

/// The kernel's least quota, in thousandths of a CPU: it stands for anything below it.
const MIN_MILLI_LIMIT: i64 = 10;

/// What is allocated; of a container that runs, with what the runtime reports of CPU and memory in its place.
fn actual_resources(allocated: ResourceRequirements, record: &ContainerRecord) -> ResourceRequirements {
    let mut out = allocated;
    let Some(actual) = record.resources.as_ref().filter(|_| record.state == RunState::Running) else { return out };
    // Less than can be said stays as it is allocated.
    let put_cpu = |list: &mut ResourceList, milli: i64, least: i64| {
        let wanted = list.get("cpu").map_or(0, crate::pod::quantity::milli);
        if milli > 0 && (milli > least || wanted > least) {
            let value = proto::quantity::Quantity::from_milli(milli, Format::DecimalSi);
            list.insert("cpu".to_owned(), Quantity { string: value.to_string() });
        }
    };
    // Where there are limits at all, one that the pod as a whole hands down shows too.
    if !out.limits.is_empty() {
        if actual.cpu_quota > 0 && actual.cpu_period > 0 {
            let milli = actual.cpu_quota.saturating_mul(1000) / actual.cpu_period;
            put_cpu(&mut out.limits, milli, MIN_MILLI_LIMIT);
        }
        if actual.memory_limit_in_bytes > 0 {
            let value = proto::quantity::Quantity::from_integer(actual.memory_limit_in_bytes, Format::BinarySi);
            out.limits.insert("memory".to_owned(), Quantity { string: value.to_string() });
        }
    }
    if !out.requests.is_empty() && actual.cpu_shares >= MIN_SHARES {
        let milli = shares_to_milli_cpu(actual.cpu_shares);
        put_cpu(&mut out.requests, milli, MIN_SHARES);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(&str, &str)]) -> ResourceList {
        entries.iter().map(|(name, amount)| ((*name).to_owned(), Quantity { string: (*amount).to_owned() })).collect()
    }

    #[test]
    fn what_the_runtime_has_shows_unless_it_stands_for_less_than_it_can_say() {
        type Entries = &'static [(&'static str, &'static str)];
        // Shares, quota and memory limit of the runtime; limits and requests of the spec; both as they are shown.
        type Case = ((i64, i64, i64), [Entries; 2], [Entries; 2]);
        let cases: [Case; 8] = [
            ((2, 0, 0), [&[], &[("cpu", "0")]], [&[], &[("cpu", "0")]]),
            ((2, 0, 0), [&[], &[("cpu", "1m")]], [&[], &[("cpu", "1m")]]),
            ((2, 0, 0), [&[], &[("memory", "1Mi")]], [&[], &[("memory", "1Mi")]]),
            ((2, 0, 0), [&[], &[("cpu", "100m")]], [&[], &[("cpu", "2m")]]),
            ((2, 1000, 0), [&[("cpu", "5m")], &[]], [&[("cpu", "5m")], &[]]),
            (
                (102, 20_000, 8 << 20),
                [&[("cpu", "100m")], &[("cpu", "100m")]],
                [&[("cpu", "200m"), ("memory", "8Mi")], &[("cpu", "100m")]],
            ),
            ((512, 50_000, 8 << 20), [&[], &[]], [&[], &[]]),
            // What the runtime has is bytes, however they were written.
            ((2, 0, 64_000_000), [&[("memory", "64M")], &[]], [&[("memory", "62500Ki")], &[]]),
        ];
        for ((cpu_shares, cpu_quota, memory_limit_in_bytes), spec, shown) in cases {
            let actual = proto::cri::LinuxContainerResources {
                cpu_shares,
                cpu_quota,
                cpu_period: 100_000,
                memory_limit_in_bytes,
                ..Default::default()
            };
            let mut record =
                ContainerRecord { resources: Some(actual), state: RunState::Running, ..Default::default() };
            let of = |[limits, requests]: [Entries; 2]| ResourceRequirements {
                limits: list(limits),
                requests: list(requests),
                claims: vec![],
            };
            assert_eq!(actual_resources(of(spec), &record), of(shown), "{spec:?}");
            record.state = RunState::Exited;
            assert_eq!(actual_resources(of(spec), &record), of(spec), "{spec:?}");
        }
        let claims = vec![proto::api::core::v1::ResourceClaim { name: "gpu".into(), ..Default::default() }];
        let claiming = ResourceRequirements { claims, ..Default::default() };
        let record = ContainerRecord { state: RunState::Running, ..Default::default() };
        assert_eq!(actual_resources(claiming.clone(), &record), claiming);
    }

    /// The time of a container that never started used to be none.
    #[test]
    fn what_the_runtime_does_not_say_of_time_is_1970() {
        let record = ContainerRecord { state: RunState::Exited, finished_at: 5_700_000_000, ..Default::default() };
        let shown = crate::wire_json::to_value("k8s.io.api.core.v1.ContainerState", &state("r", &record, None));
        let ended = &shown["terminated"];
        assert_eq!(ended["startedAt"], "1970-01-01T00:00:00Z");
        assert_eq!(ended["finishedAt"], "1970-01-01T00:00:05Z");
        let lost = crate::wire_json::to_value("k8s.io.api.core.v1.ContainerState", &unknown_terminated(""));
        assert!(lost["terminated"]["startedAt"].is_null());
    }

    #[test]
    fn an_init_container_that_is_gone_has_ended_where_regular_ones_have_been_made() {
        let named = |name: &str| Container { name: name.into(), ..Default::default() };
        let sidecar = Container { restart_policy: Some("Always".into()), ..named("side") };
        let spec = proto::api::core::v1::PodSpec {
            init_containers: vec![named("gone"), named("here"), sidecar],
            containers: vec![named("a")],
            ..Default::default()
        };
        let pod = Pod { spec: Some(spec), ..Default::default() };
        let record = |name: &str, state| ContainerRecord { name: name.into(), state, ..Default::default() };
        for (state, want) in [
            (RunState::Running, ["Completed", "", "PodInitializing"]),
            (RunState::Unknown, ["PodInitializing", "", "PodInitializing"]),
        ] {
            let containers = vec![record("a", state), record("here", RunState::Running)];
            let observed = crate::pleg::observed::Observed { containers, ..Default::default() };
            let (verdicts, old) = (crate::probes::Verdicts::default(), Default::default());
            let start_errors = Default::default();
            let inputs = Inputs {
                pod: &pod,
                observed: &observed,
                old: &old,
                start_errors: &start_errors,
                probes: &verdicts.of(&pod),
                runtime: "r",
                host_ips: &[],
                terminal: false,
                imposed: None,
                recursive_read_only: false,
                stop_signals: false,
                resize: vec![],
                now: Time::default(),
            };
            let shown = statuses(&inputs, &pod.spec().init_containers, &[], true);
            let reason = |s: &ContainerStatus| {
                let state = s.state.clone().unwrap_or_default();
                state.terminated.map(|t| t.reason).or(state.waiting.map(|w| w.reason)).unwrap_or_default()
            };
            assert_eq!(shown.iter().map(reason).collect::<Vec<_>>(), want, "{state:?}");
        }
    }

    #[test]
    fn the_signal_that_stops_a_container_is_told_only_with_its_gate() {
        let spec = proto::api::core::v1::PodSpec {
            containers: vec![Container { name: "a".into(), ..Default::default() }],
            ..Default::default()
        };
        let pod = Pod { spec: Some(spec), ..Default::default() };
        let told = |number: i32, stop_signals| {
            let record = ContainerRecord {
                name: "a".into(),
                state: RunState::Running,
                stop_signal: number,
                ..Default::default()
            };
            let observed = crate::pleg::observed::Observed { containers: vec![record], ..Default::default() };
            let (verdicts, old) = (crate::probes::Verdicts::default(), Default::default());
            let inputs = Inputs {
                pod: &pod,
                observed: &observed,
                old: &old,
                start_errors: &Default::default(),
                probes: &verdicts.of(&pod),
                runtime: "r",
                host_ips: &[],
                terminal: false,
                imposed: None,
                recursive_read_only: false,
                stop_signals,
                resize: vec![],
                now: Time::default(),
            };
            statuses(&inputs, &pod.spec().containers, &[], false)[0].stop_signal.clone()
        };
        let quit = proto::cri::Signal::Sigquit as i32;
        assert_eq!(told(quit, true).as_deref(), Some("SIGQUIT"));
        assert_eq!(told(quit, false), None);
        assert_eq!(told(0, true), None, "a runtime that does not tell it");
    }

    #[test]
    fn what_was_said_of_the_last_try_stays_said_when_the_runtime_has_forgotten_it() {
        let ended = |code| ContainerState {
            terminated: Some(ContainerStateTerminated { exit_code: code, ..Default::default() }),
            ..Default::default()
        };
        let told = |state: ContainerState, last: ContainerState| ContainerStatus {
            container_id: "r://one".into(),
            state: Some(state),
            last_state: Some(last),
            ..Default::default()
        };
        let none = ContainerState::default;
        let cases = [
            (told(ended(1), none()), "r://two", ended(1)),
            (told(ended(1), ended(2)), "r://two", ended(1)),
            (told(ended(1), ended(2)), "r://one", ended(2)),
            (told(waiting("CrashLoopBackOff", ""), ended(2)), "r://two", ended(2)),
            (told(waiting("ContainerCreating", ""), none()), "r://two", none()),
        ];
        for (before, id, want) in cases {
            assert_eq!(said_of_last(&before, id), want, "{before:?} {id}");
        }
    }
}
