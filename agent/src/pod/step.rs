//! What to do next with a running pod: `step(pod, observed, probes) -> Actions`, a pure function.
//!
//! In: the wanted pod, what the runtime has, and the verdicts of liveness and startup probes. Out: what to kill and
//! what to start, in that order. Back-off, image pulls and all I/O are the worker's; this file holds the rules of
//! restart, initialisation and sandbox change. The newest container of a name is the only one that counts, and
//! initialisation is judged within the current sandbox.
//!
//! Followed: kuberuntime `computePodActions`.

use proto::api::core::v1::{Container, Pod};
use proto::cri::NamespaceMode;

use crate::pleg::observed::{ContainerRecord, Observed, RunState};

use super::hash::container_hash;
use super::restart::{
    init_failed, init_restarts_after, lost_init_restarts, nothing_left, own_policy, restarts_after_kill,
    should_restart, to_reset,
};
use super::spec::{PodExt, RestartPolicy, ephemeral_name, is_sidecar};

/// Verdicts of probes by container id; `None` until a verdict is there.
pub trait ProbeVerdicts {
    /// `Some(false)`: the container must be restarted.
    fn liveness(&self, container_id: &str) -> Option<bool>;
    /// `Some(true)`: started; `Some(false)`: failed for good.
    fn startup(&self, container_id: &str) -> Option<bool>;
}

/// Why a container is killed; decides grace and event text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillReason {
    Unknown,
    LivenessProbe,
    StartupProbe,
    SpecChanged,
    PostStartHook,
    /// A rule starts all containers over: no hook, no grace.
    RestartAll,
    PodKilled,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kill {
    pub container_id: String,
    pub name: String,
    /// Text of the `Killing` event.
    pub message: String,
    pub reason: KillReason,
}

/// A container that makes room for its successor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reset {
    pub kill: Kill,
    pub may_run: bool,
}

/// What to do, in the order of the fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Actions {
    /// Kill everything including the sandbox.
    pub kill_pod: bool,
    /// Containers to kill, where they may run, and to remove, because all start over. Nothing else is done then.
    pub reset: Vec<Reset>,
    /// Containers to kill while the pod stays.
    pub kill: Vec<Kill>,
    pub create_sandbox: bool,
    /// The sandbox to use or to replace; empty when there is none.
    pub sandbox_id: String,
    /// Attempt of the sandbox to use or create.
    pub attempt: u32,
    /// Indices into the spec's lists.
    pub start_ephemeral: Vec<usize>,
    pub start_init: Vec<usize>,
    pub start: Vec<usize>,
}

impl Actions {
    /// Nothing to do.
    pub fn is_empty(&self) -> bool {
        !self.kill_pod
            && !self.create_sandbox
            && self.reset.is_empty()
            && self.kill.is_empty()
            && self.start_ephemeral.is_empty()
            && self.start_init.is_empty()
            && self.start.is_empty()
    }

    /// Whether carrying them out adds to what the runtime has, and takes nothing away.
    pub fn only_add(&self, observed: &Observed) -> bool {
        // A try that was made and not started gives way to the next one.
        let gives_way = |c: &ContainerRecord| c.state == RunState::Created;
        self.reset.is_empty()
            && self.kill.is_empty()
            && (!self.kill_pod || observed.is_empty())
            && !observed.containers.iter().any(gives_way)
    }
}

/// See the module's documentation. `restart_all`: a rule asked for all containers to start over.
pub fn step(pod: &Pod, observed: &Observed, probes: &dyn ProbeVerdicts, restart_all: bool) -> Actions {
    let change = sandbox_change(pod, observed);
    let mut actions = Actions {
        kill_pod: change.needed,
        create_sandbox: change.needed,
        sandbox_id: change.sandbox_id,
        attempt: change.attempt,
        ..Actions::default()
    };
    if restart_all && !nothing_left(pod, observed) {
        return Actions {
            sandbox_id: actions.sandbox_id,
            attempt: actions.attempt,
            reset: to_reset(pod, observed).into_iter().map(reset).collect(),
            ..Actions::default()
        };
    }
    if change.needed {
        plan_new_sandbox(pod, observed, &mut actions);
        return actions;
    }
    for (i, container) in pod.spec().ephemeral_containers.iter().enumerate() {
        if observed.container(ephemeral_name(container)).is_none() {
            actions.start_ephemeral.push(i);
        }
    }
    let initialized = plan_init(pod, observed, probes, &mut actions);
    if !actions.kill_pod && initialized {
        plan_regular(pod, observed, probes, &mut actions);
    }
    actions
}

fn reset(record: &ContainerRecord) -> Reset {
    let kill = Kill {
        container_id: record.id.clone(),
        name: record.name.clone(),
        message: "killing".into(),
        reason: KillReason::RestartAll,
    };
    Reset { kill, may_run: record.state != RunState::Exited }
}

/// Whether a pod needs another sandbox.
#[derive(Debug, PartialEq, Eq)]
pub struct SandboxChange {
    pub needed: bool,
    pub attempt: u32,
    pub sandbox_id: String,
}

/// A new sandbox is due when there is none, more than one is ready, the newest is not ready, or it has the wrong kind
/// of network or no address.
pub fn sandbox_change(pod: &Pod, observed: &Observed) -> SandboxChange {
    let Some(newest) = observed.sandboxes.first() else {
        return SandboxChange { needed: true, attempt: 0, sandbox_id: String::new() };
    };
    let replaced =
        |id: &str| SandboxChange { needed: true, attempt: newest.attempt.saturating_add(1), sandbox_id: id.to_owned() };
    if !newest.ready || observed.sandboxes.iter().filter(|s| s.ready).count() > 1 {
        return replaced(&newest.id);
    }
    if newest.network_mode != network_mode(pod) as i32 {
        return replaced("");
    }
    if !pod.spec().host_network && newest.has_network_status && newest.ips.is_empty() {
        return replaced(&newest.id);
    }
    SandboxChange { needed: false, attempt: newest.attempt, sandbox_id: newest.id.clone() }
}

/// The network namespace that a pod wants.
pub fn network_mode(pod: &Pod) -> NamespaceMode {
    if pod.spec().host_network { NamespaceMode::Node } else { NamespaceMode::Pod }
}

fn plan_new_sandbox(pod: &Pod, observed: &Observed, actions: &mut Actions) {
    let spec = pod.spec();
    if pod.restarts() == RestartPolicy::Never && actions.attempt != 0 && !observed.containers.is_empty() {
        // The pod has run; without a sandbox it is over.
        actions.create_sandbox = false;
        return;
    }
    let start: Vec<usize> = (0..spec.containers.len())
        .filter(|&i| {
            let container = &spec.containers[i];
            !(own_policy(pod, container) == RestartPolicy::OnFailure && succeeded(container, observed))
        })
        .collect();
    if start.is_empty() && spec.containers.iter().any(|c| observed.container(&c.name).is_some()) {
        actions.create_sandbox = false;
        return;
    }
    if spec.init_containers.is_empty() {
        actions.start = start;
    } else {
        actions.start_init = vec![0];
    }
}

fn succeeded(container: &Container, observed: &Observed) -> bool {
    observed.container(&container.name).is_some_and(|c| c.state == RunState::Exited && c.exit_code == 0)
}

/// The container's newest try if it belongs to the sandbox in use.
fn current<'a>(observed: &'a Observed, actions: &Actions, name: &str) -> Option<&'a ContainerRecord> {
    observed.container(name).filter(|c| c.sandbox_id == actions.sandbox_id)
}

/// Plans init containers and sidecars; whether regular containers may run.
fn plan_init(pod: &Pod, observed: &Observed, probes: &dyn ProbeVerdicts, actions: &mut Actions) -> bool {
    let spec = pod.spec();
    let inits = &spec.init_containers;
    if inits.is_empty() {
        return true;
    }
    // A regular container in this sandbox proves that initialisation was over once, even if its traces are gone.
    let mut initialized = spec.containers.iter().any(|c| current(observed, actions, &c.name).is_some());
    // Whether the container at hand has had its turn: all have before the last one of which there is a trace. Of those only
    // sidecars still count, which are kept up while later ones go on.
    let mut was_initialized = initialized;
    let mut seen = false;
    let mut start = Vec::new();
    for (i, container) in inits.iter().enumerate().rev() {
        let sidecar = is_sidecar(container);
        let Some(record) = current(observed, actions, &container.name) else {
            if was_initialized && sidecar {
                start.push(i);
            }
            continue;
        };
        if was_initialized && !sidecar {
            continue;
        }
        seen = true;
        let mut done = |start: &mut Vec<usize>| {
            if i + 1 == inits.len() {
                initialized = true;
            } else if !was_initialized {
                start.push(i + 1);
            }
        };
        match record.state {
            RunState::Created => start.push(i),
            RunState::Running if sidecar => {
                match running_sidecar(container, record, probes) {
                    Sidecar::Starting => {}
                    Sidecar::Up => done(&mut start),
                    Sidecar::Kill { kill, started } => {
                        if started {
                            done(&mut start);
                        }
                        actions.kill.push(kill);
                        start.push(i);
                    }
                };
            }
            RunState::Running => {}
            RunState::Exited if sidecar => start.push(i),
            RunState::Exited if init_failed(record) => {
                if !init_restarts_after(pod, container, record.exit_code) {
                    return give_up(actions);
                }
                start.push(i);
            }
            RunState::Exited => done(&mut start),
            RunState::Unknown => {
                if !lost_init_restarts(pod, container) {
                    return give_up(actions);
                }
                actions.kill.push(unknown_state("Init container", record));
                start.push(i);
            }
        }
        was_initialized = true;
    }
    if !seen && !initialized {
        start.push(0);
    }
    start.sort_unstable();
    start.dedup();
    actions.start_init = start;
    initialized
}

fn give_up(actions: &mut Actions) -> bool {
    actions.kill_pod = true;
    actions.kill.clear();
    actions.start_init.clear();
    false
}

enum Sidecar {
    /// Its startup probe has not passed.
    Starting,
    Up,
    Kill {
        kill: Kill,
        started: bool,
    },
}

fn running_sidecar(container: &Container, record: &ContainerRecord, probes: &dyn ProbeVerdicts) -> Sidecar {
    let kill = |message: String, reason| Kill {
        container_id: record.id.clone(),
        name: container.name.clone(),
        message,
        reason,
    };
    if container.startup_probe.is_some() {
        match probes.startup(&record.id) {
            None => return Sidecar::Starting,
            Some(false) => {
                let message = format!("Init container {} failed startup probe", container.name);
                return Sidecar::Kill { kill: kill(message, KillReason::StartupProbe), started: false };
            }
            Some(true) => {}
        }
    }
    if changed(container, record) {
        let message = format!("Init container {} definition changed", container.name);
        return Sidecar::Kill { kill: kill(message, KillReason::SpecChanged), started: true };
    }
    if container.liveness_probe.is_some() && probes.liveness(&record.id) == Some(false) {
        let message = format!("Init container {} failed liveness probe", container.name);
        return Sidecar::Kill { kill: kill(message, KillReason::LivenessProbe), started: true };
    }
    Sidecar::Up
}

fn plan_regular(pod: &Pod, observed: &Observed, probes: &dyn ProbeVerdicts, actions: &mut Actions) {
    let mut keep = 0;
    for (i, container) in pod.spec().containers.iter().enumerate() {
        let record = match observed.container(&container.name) {
            Some(record) if record.state == RunState::Running => record,
            other => {
                if should_restart(pod, container, observed) {
                    actions.start.push(i);
                    if let Some(record) = other.filter(|r| r.state == RunState::Unknown) {
                        actions.kill.push(unknown_state("Container", record));
                    }
                }
                continue;
            }
        };
        let (what, reason, restart) = if changed(container, record) {
            ("definition changed", KillReason::SpecChanged, true)
        } else if probes.liveness(&record.id) == Some(false) {
            ("failed liveness probe", KillReason::LivenessProbe, restarts_after_kill(pod, container))
        } else if probes.startup(&record.id) == Some(false) {
            ("failed startup probe", KillReason::StartupProbe, restarts_after_kill(pod, container))
        } else {
            keep += 1;
            continue;
        };
        let mut message = format!("Container {} {what}", container.name);
        if restart {
            message.push_str(", will be restarted");
            actions.start.push(i);
        }
        let (container_id, name) = (record.id.clone(), container.name.clone());
        actions.kill.push(Kill { container_id, name, message, reason });
    }
    if keep == 0 && actions.start.is_empty() {
        actions.kill_pod = true;
        actions.start_init.clear();
    }
}

fn changed(container: &Container, record: &ContainerRecord) -> bool {
    !record.hash.is_empty() && record.hash != container_hash(container)
}

fn unknown_state(what: &str, record: &ContainerRecord) -> Kill {
    Kill {
        container_id: record.id.clone(),
        name: record.name.clone(),
        message: format!("{what} is in {:?} state, try killing it before restart", record.state.word()),
        reason: KillReason::Unknown,
    }
}
