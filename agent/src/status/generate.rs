//! `generate`: the status of a pod as its spec, the runtime and the probes have it.
//!
//! Pure: the same inputs give the same status. Times of transition and of start are filled in by the caller's old
//! status and `now`.
//!
//! Followed: kubelet `generateAPIPodStatus`.

use std::collections::HashMap;

use proto::api::core::v1::{ContainerStatus, HostIp, Pod, PodIp, PodStatus};
use proto::apimachinery::pkg::apis::meta::v1::Time;

use crate::pleg::observed::Observed;
use crate::pod::resources::{pod_amounts, qos_class};
use crate::pod::spec::{PodExt, ephemeral_as_container, is_sidecar};
use crate::probes::Readiness;

use super::conditions::{carry_transition_times, is_owned, owned};
use super::containers::statuses;
use super::phase::{is_terminal, phase};

/// Termination messages of all containers together.
const MAX_MESSAGES_BYTES: usize = 12 * 1024;

/// Why the last start of a container failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartError {
    /// `CrashLoopBackOff`, `ErrImagePull`, ...
    pub reason: String,
    pub message: String,
}

/// Why a pod ends that has a deadline.
pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";

/// An end that the agent itself imposes: deadline, eviction, preemption, shutdown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Override {
    pub reason: String,
    pub message: String,
    /// `DisruptionTarget` reason, where the end is a disruption.
    pub disruption: Option<String>,
}

impl Override {
    /// Whether the pod's conditions tell of it at once. Of one that is killed they say how its containers are, until all have
    /// ended.
    fn shows_at_once(&self) -> bool {
        self.reason == DEADLINE_EXCEEDED
    }
}

pub struct Inputs<'a> {
    pub pod: &'a Pod,
    pub observed: &'a Observed,
    /// The last status computed, or the API's after a restart.
    pub old: &'a PodStatus,
    pub start_errors: &'a HashMap<String, StartError>,
    pub probes: &'a dyn Readiness,
    /// Name of the runtime, for container ids.
    pub runtime: &'a str,
    pub host_ips: &'a [String],
    /// Nothing of the pod will be started any more.
    pub terminal: bool,
    pub imposed: Option<&'a Override>,
    pub recursive_read_only: bool,
    /// Whether statuses tell the signals that stop the containers.
    pub stop_signals: bool,
    /// Conditions of a resize that waits or is under way.
    pub resize: Vec<proto::api::core::v1::PodCondition>,
    pub now: Time,
}

pub fn generate(inputs: &Inputs<'_>) -> PodStatus {
    let (pod, old) = (inputs.pod, inputs.old);
    let spec = pod.spec();
    let api = pod.status.clone().unwrap_or_default();
    let mut status = PodStatus { observed_generation: pod.meta().generation, ..Default::default() };
    set_addresses(inputs, &mut status);
    status.qos_class = qos_class(pod).as_str().to_owned();
    status.container_statuses = statuses(inputs, &spec.containers, &old.container_statuses, false);
    status.container_statuses.sort_by(|a, b| a.name.cmp(&b.name));
    status.init_container_statuses = statuses(inputs, &spec.init_containers, &old.init_container_statuses, true);
    let ephemeral: Vec<_> = spec.ephemeral_containers.iter().map(ephemeral_as_container).collect();
    status.ephemeral_container_statuses = statuses(inputs, &ephemeral, &old.ephemeral_container_statuses, false);
    status.ephemeral_container_statuses.sort_by(|a, b| a.name.cmp(&b.name));
    set_started_and_ready(inputs, &mut status);
    let by_containers = set_phase(inputs, &api, &mut status);

    let foreign: Vec<_> = api.conditions.iter().filter(|c| !is_owned(&c.r#type)).cloned().collect();
    let ends_later = inputs.imposed.is_some_and(|imposed| !imposed.shows_at_once())
        && !is_terminal(&api.phase)
        && inputs.observed.running().next().is_some();
    let imposed = ends_later.then(|| std::mem::replace(&mut status.phase, by_containers.to_owned()));
    let own = owned(pod, inputs.observed, &status, old, &foreign);
    status.phase = imposed.unwrap_or(status.phase);
    status.conditions = foreign;
    status.conditions.extend(own);
    if let Some(reason) = inputs.imposed.and_then(|i| i.disruption.as_ref().map(|r| (r, &i.message))) {
        status.conditions.retain(|c| c.r#type != super::conditions::DISRUPTION_TARGET);
        status.conditions.push(proto::api::core::v1::PodCondition {
            r#type: super::conditions::DISRUPTION_TARGET.into(),
            observed_generation: pod.meta().generation,
            status: "True".into(),
            reason: reason.0.clone(),
            message: reason.1.clone(),
            ..Default::default()
        });
    }
    carry_transition_times(&mut status, old, inputs.now);
    // These bring their own times.
    status.conditions.extend(inputs.resize.iter().cloned());
    status.start_time = old.start_time.or(api.start_time).or(Some(inputs.now));
    set_resources(pod, &mut status);
    status.resource_claim_statuses = api.resource_claim_statuses;
    status.extended_resource_claim_status = api.extended_resource_claim_status;
    status.nominated_node_name = api.nominated_node_name;
    trim_messages(&mut status);
    status
}

/// Whether a status is a pod's last: nothing follows from it but deletion.
pub fn is_over(status: &PodStatus) -> bool {
    is_terminal(&status.phase)
}

/// The status of a pod that admission refused: nothing but the refusal.
pub fn rejected(pod: &Pod, reason: &str, message: &str, now: Time) -> PodStatus {
    let api = pod.status.clone().unwrap_or_default();
    PodStatus {
        observed_generation: pod.meta().generation,
        phase: super::phase::FAILED.into(),
        reason: reason.into(),
        message: format!("Pod was rejected: {message}"),
        qos_class: qos_class(pod).as_str().to_owned(),
        start_time: api.start_time.or(Some(now)),
        conditions: api.conditions,
        resource_claim_statuses: api.resource_claim_statuses,
        ..Default::default()
    }
}

fn set_addresses(inputs: &Inputs<'_>, status: &mut PodStatus) {
    status.host_ip = inputs.host_ips.first().cloned().unwrap_or_default();
    status.host_i_ps = inputs.host_ips.iter().map(|ip| HostIp { ip: ip.clone() }).collect();
    let mut ips: Vec<String> =
        if inputs.pod.spec().host_network { inputs.host_ips.to_vec() } else { inputs.observed.ips().to_vec() };
    if ips.is_empty() {
        // The address stays known after the sandbox is gone.
        ips = inputs.old.pod_i_ps.iter().map(|i| i.ip.clone()).collect();
    } else {
        ips = one_of_each_family(&ips, inputs.host_ips.first());
    }
    status.pod_ip = ips.first().cloned().unwrap_or_default();
    status.pod_i_ps = ips.into_iter().map(|ip| PodIp { ip }).collect();
}

/// The addresses of a pod that are told: the first of each family, beginning with that of the node's first address.
pub fn one_of_each_family(ips: &[String], node: Option<&String>) -> Vec<String> {
    let is_v6 = |ip: &String| ip.contains(':');
    let node_v6 = node.is_some_and(is_v6);
    let first = |v6: bool| ips.iter().find(|ip| is_v6(ip) == v6).cloned();
    first(node_v6).into_iter().chain(first(!node_v6)).collect()
}

fn set_started_and_ready(inputs: &Inputs<'_>, status: &mut PodStatus) {
    let spec = inputs.pod.spec();
    for s in &mut status.container_statuses {
        probe_status(inputs, s);
    }
    for s in &mut status.init_container_statuses {
        let sidecar = spec.init_containers.iter().any(|c| c.name == s.name && is_sidecar(c));
        if sidecar {
            probe_status(inputs, s);
            continue;
        }
        s.started = Some(s.state.as_ref().is_some_and(|s| s.running.is_some()));
        s.ready = s.state.as_ref().and_then(|s| s.terminated.as_ref()).is_some_and(|t| t.exit_code == 0);
    }
}

fn probe_status(inputs: &Inputs<'_>, status: &mut ContainerStatus) {
    let running = status.state.as_ref().is_some_and(|s| s.running.is_some());
    let id = status.container_id.split_once("://").map_or("", |(_, id)| id);
    let started = running && inputs.probes.started(&status.name, id);
    status.started = Some(started);
    status.ready = started && inputs.probes.ready(&status.name, id);
}

/// Returns what the containers alone would make it.
fn set_phase(inputs: &Inputs<'_>, api: &PodStatus, status: &mut PodStatus) -> &'static str {
    let (pod, old) = (inputs.pod, inputs.old);
    let all: Vec<ContainerStatus> =
        status.container_statuses.iter().chain(&status.init_container_statuses).cloned().collect();
    // What ran in a sandbox of before does not count: a pod whose sandbox is made anew starts once more.
    let initialized = pod.spec().containers.iter().any(|c| inputs.observed.is_in_sandbox(&c.name));
    let by_containers = phase(pod, &all, inputs.terminal, initialized);
    status.phase = by_containers.to_owned();
    if !is_terminal(&status.phase) {
        // A pod never comes back from its end.
        if let Some(ended) = [&old.phase, &api.phase].into_iter().find(|p| is_terminal(p)) {
            status.phase.clone_from(ended);
        }
    }
    if status.phase == old.phase {
        let kept = |a: &String, b: &String| if a.is_empty() { b.clone() } else { a.clone() };
        status.reason = kept(&old.reason, &api.reason);
        status.message = kept(&old.message, &api.message);
    }
    if let Some(imposed) = inputs.imposed {
        status.phase = super::phase::FAILED.into();
        status.reason.clone_from(&imposed.reason);
        status.message.clone_from(&imposed.message);
    }
    if is_terminal(&api.phase) {
        // What was told of an end stays told: how containers went when the node did says nothing about why the pod ended.
        status.phase.clone_from(&api.phase);
        status.reason.clone_from(&api.reason);
        status.message.clone_from(&api.message);
    }
    by_containers
}

/// Resources of the pod as a whole: allocated requests, and what requests and limits add up to.
fn set_resources(pod: &Pod, status: &mut PodStatus) {
    let resources = pod_amounts(pod);
    status.allocated_resources.clone_from(&resources.requests);
    status.resources = Some(resources);
}

/// Keeps the termination messages of a pod within their common limit.
fn trim_messages(status: &mut PodStatus) {
    let lists =
        [&mut status.container_statuses, &mut status.init_container_statuses, &mut status.ephemeral_container_statuses];
    let count = lists.iter().map(|l| l.len()).sum::<usize>().max(1);
    let each = MAX_MESSAGES_BYTES / count;
    for status in lists.into_iter().flatten() {
        for state in [&mut status.state, &mut status.last_state].into_iter().flatten() {
            if let Some(ended) = state.terminated.as_mut().filter(|t| t.message.len() > each) {
                let mut end = each;
                while !ended.message.is_char_boundary(end) {
                    end -= 1;
                }
                ended.message.truncate(end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pleg::observed::{ContainerRecord, RunState};
    use crate::probes::Verdicts;
    use proto::api::core::v1::{Container, PodCondition, PodSpec};

    #[test]
    fn of_each_family_one_address_is_told_that_of_the_node_first() {
        let of = |ips: &[&str], node: &str| {
            let ips: Vec<String> = ips.iter().map(|ip| (*ip).to_owned()).collect();
            one_of_each_family(&ips, Some(&node.to_owned())).join(" ")
        };
        assert_eq!(of(&["fd00::1", "10.0.0.1", "10.0.0.2", "fd00::2"], "192.0.2.1"), "10.0.0.1 fd00::1");
        assert_eq!(of(&["10.0.0.1", "fd00::1"], "2001:db8::1"), "fd00::1 10.0.0.1");
        assert_eq!(of(&["10.0.0.1"], "2001:db8::1"), "10.0.0.1");
    }

    /// Until the sidecars of a new sandbox have started, its pod is on its way again.
    #[test]
    fn a_pod_whose_sandbox_is_made_anew_is_pending_until_its_sidecars_have_started() {
        let sidecar = Container {
            name: "s".into(),
            restart_policy: Some("Always".into()),
            startup_probe: Some(Default::default()),
            ..Default::default()
        };
        let spec = PodSpec {
            init_containers: vec![sidecar],
            containers: vec![Container { name: "a".into(), ..Default::default() }],
            restart_policy: "Always".into(),
            ..Default::default()
        };
        let pod = Pod { spec: Some(spec), ..Default::default() };
        let record = |id: &str, name: &str, sandbox: &str, state| ContainerRecord {
            id: id.into(),
            name: name.into(),
            sandbox_id: sandbox.into(),
            state,
            exit_code: 137,
            ..Default::default()
        };
        let sandbox = |id: &str, attempt, ready| crate::pleg::observed::Sandbox {
            id: id.into(),
            attempt,
            ready,
            ..Default::default()
        };
        let sidecar = record("s1", "s", "new", RunState::Running);
        let phase_with = |regular| {
            let observed = Observed {
                sandboxes: vec![sandbox("new", 1, true), sandbox("old", 0, false)],
                containers: vec![sidecar.clone(), regular],
            };
            let status = generate(&Inputs {
                pod: &pod,
                observed: &observed,
                old: &PodStatus { phase: "Running".into(), ..Default::default() },
                start_errors: &HashMap::new(),
                probes: &Verdicts::default().of(&pod),
                runtime: "containerd",
                host_ips: &[],
                terminal: false,
                imposed: None,
                recursive_read_only: false,
                stop_signals: false,
                resize: vec![],
                now: Time::default(),
            });
            status.phase
        };
        assert_eq!(phase_with(record("a0", "a", "old", RunState::Exited)), "Pending");
        assert_eq!(phase_with(record("a1", "a", "new", RunState::Running)), "Running");
    }

    /// A pod that was evicted lost its traffic at once, and not as its containers did.
    #[test]
    fn a_pod_that_is_killed_is_ready_as_long_as_its_containers_are() {
        let containers = vec![Container { name: "a".into(), ..Default::default() }];
        let spec = PodSpec { containers, restart_policy: "Always".into(), ..Default::default() };
        let conditions = |reason: &str, state| {
            let record = ContainerRecord { id: "id".into(), name: "a".into(), state, ..Default::default() };
            let api = PodStatus { phase: "Running".into(), ..Default::default() };
            let pod = Pod { spec: Some(spec.clone()), status: Some(api), ..Default::default() };
            let imposed = Override { reason: reason.into(), message: String::new(), disruption: None };
            let status = generate(&Inputs {
                pod: &pod,
                observed: &Observed { sandboxes: vec![], containers: vec![record] },
                // As it was when the first of two looks told of the end.
                old: &PodStatus { phase: "Failed".into(), ..Default::default() },
                start_errors: &HashMap::new(),
                probes: &Verdicts::default().of(&pod),
                runtime: "containerd",
                host_ips: &[],
                terminal: state == RunState::Exited,
                imposed: Some(&imposed),
                recursive_read_only: false,
                stop_signals: false,
                resize: vec![],
                now: Time::default(),
            });
            assert_eq!((status.phase.as_str(), status.reason.as_str()), ("Failed", reason));
            let of = |kind: &str| {
                let condition = status.conditions.iter().find(|c| c.r#type == kind);
                condition.map(|c| format!("{} {}", c.status, c.reason)).unwrap_or_default()
            };
            [of("Ready"), of("ContainersReady")]
        };
        assert_eq!(conditions("Evicted", RunState::Running), ["True "; 2]);
        assert_eq!(conditions("Evicted", RunState::Exited), ["False PodFailed"; 2]);
        assert_eq!(conditions("DeadlineExceeded", RunState::Running), ["False PodFailed"; 2]);
    }

    /// After a reboot the runtime only knows that the containers went: what ended the pod is what was told of it.
    #[test]
    fn what_was_told_of_an_end_stays_told_whatever_the_containers_say() {
        let disruption = PodCondition {
            r#type: super::super::conditions::DISRUPTION_TARGET.into(),
            status: "True".into(),
            reason: "TerminationByKubelet".into(),
            ..Default::default()
        };
        let spec = PodSpec {
            containers: vec![Container { name: "a".into(), ..Default::default() }],
            restart_policy: "Always".into(),
            ..Default::default()
        };
        let told = PodStatus {
            phase: "Failed".into(),
            reason: "Terminated".into(),
            message: "Pod was terminated in response to imminent node shutdown.".into(),
            conditions: vec![disruption.clone()],
            ..Default::default()
        };
        let pod = Pod { spec: Some(spec), status: Some(told.clone()), ..Default::default() };
        for exit_code in [0, 137] {
            let record = ContainerRecord {
                id: "id".into(),
                name: "a".into(),
                state: RunState::Exited,
                exit_code,
                ..Default::default()
            };
            let observed = Observed { sandboxes: vec![], containers: vec![record] };
            for (old, terminal) in [(told.clone(), false), (told.clone(), true), (PodStatus::default(), true)] {
                let status = generate(&Inputs {
                    pod: &pod,
                    observed: &observed,
                    old: &old,
                    start_errors: &HashMap::new(),
                    probes: &Verdicts::default().of(&pod),
                    runtime: "containerd",
                    host_ips: &[],
                    terminal,
                    imposed: None,
                    recursive_read_only: false,
                    stop_signals: false,
                    resize: vec![],
                    now: Time::default(),
                });
                let shown = (status.phase.as_str(), status.reason.as_str(), status.message.as_str());
                assert_eq!(shown, (told.phase.as_str(), told.reason.as_str(), told.message.as_str()), "{exit_code}");
                let same = |c: &&PodCondition| c.r#type == disruption.r#type && c.reason == disruption.reason;
                assert_eq!(status.conditions.iter().filter(same).count(), 1);
            }
        }
    }
}
