//! What the runtime says about one pod at one moment.
//!
//! Built from the answers of the runtime alone, so it is the same after a restart of the agent. Newest first, because
//! "the" container of a name is the newest one and older ones are its history.

use std::path::Path;

use proto::cri;

use crate::cri::{CriClient, CriError};
use crate::metrics;
use crate::pod::labels;

use super::parts::{Part, Parts, parts};
use super::termination_message;

/// Sandboxes and containers of a pod, newest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observed {
    pub sandboxes: Vec<Sandbox>,
    pub containers: Vec<ContainerRecord>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sandbox {
    pub id: String,
    pub attempt: u32,
    pub ready: bool,
    /// CRI `NamespaceMode` of the network.
    pub network_mode: i32,
    /// Empty for the host's network, or when the network is gone.
    pub ips: Vec<String>,
    /// Whether the runtime said anything about the network.
    pub has_network_status: bool,
    pub created_at: i64,
    pub runtime_handler: String,
}

/// State of a container as the runtime has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RunState {
    Created,
    Running,
    Exited,
    #[default]
    Unknown,
}

impl RunState {
    pub fn from_cri(state: i32) -> Self {
        match cri::ContainerState::try_from(state) {
            Ok(cri::ContainerState::ContainerCreated) => Self::Created,
            Ok(cri::ContainerState::ContainerRunning) => Self::Running,
            Ok(cri::ContainerState::ContainerExited) => Self::Exited,
            _ => Self::Unknown,
        }
    }

    fn to_cri(self) -> i32 {
        let state = match self {
            Self::Created => cri::ContainerState::ContainerCreated,
            Self::Running => cri::ContainerState::ContainerRunning,
            Self::Exited => cri::ContainerState::ContainerExited,
            Self::Unknown => cri::ContainerState::ContainerUnknown,
        };
        state as i32
    }

    /// The kubelet's word, as its messages print it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::Exited => "exited",
            Self::Unknown => "unknown",
        }
    }
}

/// One container; times are Unix nanoseconds, zero when unset.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ContainerRecord {
    pub id: String,
    pub name: String,
    pub sandbox_id: String,
    pub state: RunState,
    pub created_at: i64,
    pub started_at: i64,
    pub finished_at: i64,
    pub exit_code: i32,
    /// As the runtime names it.
    pub image: String,
    /// What the pod status shows as `imageID`.
    pub image_ref: String,
    pub hash: String,
    pub restart_count: u32,
    pub reason: String,
    pub message: String,
    pub log_path: String,
    pub resources: Option<cri::LinuxContainerResources>,
    pub user: Option<cri::LinuxContainerUser>,
    /// The signal that stops it, as the CRI numbers them; zero when the runtime does not tell.
    pub stop_signal: i32,
    pub termination_message_path: String,
    pub pod_termination_grace: Option<i64>,
    /// The hook and the ports of its spec, as JSON.
    pub pre_stop: Option<String>,
    pub ports: Option<String>,
}

impl Observed {
    /// The newest container of that name.
    pub fn container(&self, name: &str) -> Option<&ContainerRecord> {
        self.containers.iter().find(|c| c.name == name)
    }

    /// Containers that may be running.
    pub fn running(&self) -> impl Iterator<Item = &ContainerRecord> {
        self.containers.iter().filter(|c| matches!(c.state, RunState::Running | RunState::Unknown))
    }

    /// Whether the newest sandbox, while it is ready, has or had a container of that name.
    pub fn is_in_sandbox(&self, name: &str) -> bool {
        let newest = self.sandboxes.first().filter(|s| s.ready);
        newest.is_some_and(|s| self.containers.iter().any(|c| c.name == name && c.sandbox_id == s.id))
    }

    /// Addresses of the newest sandbox while it is ready.
    pub fn ips(&self) -> &[String] {
        self.sandboxes.first().map_or(&[], |s| &s.ips)
    }

    /// Puts the newest first. Of the tries of one container, and of the sandboxes, the higher count is the newer, whatever
    /// the clock said when it was made: the clock may have been set back, and an old try taken for the newest one would
    /// be started again beside it.
    pub fn sort(&mut self) {
        self.sandboxes.sort_by_key(|s| std::cmp::Reverse((s.attempt, s.created_at)));
        self.containers.sort_by_key(|c| std::cmp::Reverse((c.created_at, c.restart_count)));
        for place in 0..self.containers.len() {
            let name = &self.containers[place].name;
            let rest = self.containers.iter().enumerate().skip(place).filter(|(_, c)| c.name == *name);
            // The first of equals, which the clock says is the newer.
            if let Some((newest, _)) = rest.rev().max_by_key(|(_, c)| c.restart_count) {
                self.containers.swap(place, newest);
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }

    /// How far all of it has come.
    pub fn parts(&self) -> Parts {
        let ready = |is| if is { cri::PodSandboxState::SandboxReady } else { cri::PodSandboxState::SandboxNotready };
        let sandboxes = self.sandboxes.iter().map(|s| Part::new(&s.id, ready(s.ready) as i32));
        parts(sandboxes.chain(self.containers.iter().map(|c| Part::new(&c.id, c.state.to_cri()))).collect())
    }
}

/// Asks the runtime about a sandbox that was just made.
///
/// # Errors
/// It does not answer, or the sandbox is gone again.
pub async fn observe_sandbox(cri: &CriClient, id: &str) -> Result<Sandbox, CriError> {
    Ok(sandbox_record(cri.pod_sandbox_status(id).await?))
}

/// Asks the runtime about one container of a pod, in the sandbox that it is known to be in.
///
/// # Errors
/// It does not answer, or has no such container of this pod.
pub async fn observe_container(
    cri: &CriClient,
    uid: &str,
    id: &str,
    sandbox_id: &str,
) -> Result<ContainerRecord, CriError> {
    let status = cri.container_status(id).await?;
    if status.labels.get(labels::POD_UID).is_none_or(|of| of != uid) {
        return Err(CriError::not_found(format!("container {id:?} belongs to another pod")));
    }
    Ok(container_record(status, sandbox_id))
}

/// What there is of a pod, all of which `previous` knows, after everything of it was stopped: only what had not ended is
/// asked for. A sandbox that was stopped is not ready and has no address any more.
///
/// # Errors
/// The runtime does not answer.
pub async fn observe_stopped(cri: &CriClient, uid: &str, previous: &Observed) -> Result<Observed, CriError> {
    let mut observed = previous.clone();
    for sandbox in &mut observed.sandboxes {
        sandbox.ready = false;
        sandbox.ips.clear();
    }
    let mut gone = Vec::new();
    for record in observed.containers.iter_mut().filter(|c| c.state != RunState::Exited) {
        match observe_container(cri, uid, &record.id, &record.sandbox_id).await {
            Ok(now) => *record = now,
            Err(e) if e.is_not_found() => gone.push(record.id.clone()),
            Err(e) => return Err(e),
        }
    }
    observed.containers.retain(|c| !gone.contains(&c.id));
    Ok(observed)
}

/// Asks the runtime about one pod. Objects that vanish between list and status are left out; what `previous` already
/// knows to have ended does not change any more and is taken over without asking.
///
/// # Errors
/// Any other failure of the runtime; a half answer would look like lost containers.
pub async fn observe(cri: &CriClient, uid: &str, previous: &Observed) -> Result<Observed, CriError> {
    let _timer = metrics::PLEG_POD_RELIST.time(&[]);
    let (sandboxes, containers) = (cri.list_pod_sandboxes(Some(uid)).await?, cri.list_containers(Some(uid)).await?);
    let mut observed = Observed::default();
    for listed in sandboxes {
        let ended = listed.state != cri::PodSandboxState::SandboxReady as i32;
        if let Some(known) = previous.sandboxes.iter().find(|s| ended && !s.ready && s.id == listed.id) {
            observed.sandboxes.push(known.clone());
            continue;
        }
        match cri.pod_sandbox_status(&listed.id).await {
            Ok(status) => observed.sandboxes.push(sandbox_record(status)),
            Err(e) if e.is_not_found() => {}
            Err(e) => return Err(e),
        }
    }
    for listed in containers {
        let known = previous.containers.iter().find(|c| c.id == listed.id && c.state == RunState::Exited);
        if let Some(known) = known.filter(|_| RunState::from_cri(listed.state) == RunState::Exited) {
            observed.containers.push(known.clone());
            continue;
        }
        match cri.container_status(&listed.id).await {
            Ok(status) => observed.containers.push(container_record(status, &listed.pod_sandbox_id)),
            Err(e) if e.is_not_found() => {}
            Err(e) => return Err(e),
        }
    }
    observed.sort();
    Ok(observed)
}

fn sandbox_record(status: cri::PodSandboxStatus) -> Sandbox {
    let namespaces = status.linux.and_then(|l| l.namespaces).and_then(|n| n.options).unwrap_or_default();
    let has_network_status = status.network.is_some();
    let network = status.network.unwrap_or_default();
    let mut ips: Vec<String> = Vec::new();
    for ip in std::iter::once(network.ip).chain(network.additional_ips.into_iter().map(|i| i.ip)) {
        if ip.parse::<std::net::IpAddr>().is_ok() {
            ips.push(ip);
        }
    }
    Sandbox {
        id: status.id,
        attempt: status.metadata.map_or(0, |m| m.attempt),
        ready: status.state == cri::PodSandboxState::SandboxReady as i32,
        network_mode: namespaces.network,
        ips,
        has_network_status,
        created_at: status.created_at,
        runtime_handler: status.runtime_handler,
    }
}

fn container_record(status: cri::ContainerStatus, sandbox_id: &str) -> ContainerRecord {
    let annotation = |key: &str| status.annotations.get(key).cloned();
    let metadata = status.metadata.clone().unwrap_or_default();
    let state = RunState::from_cri(status.state);
    let exited = state == RunState::Exited;
    let message = if exited { termination_message::read(&status) } else { status.message.clone() };
    let mut record = ContainerRecord {
        name: status.labels.get(labels::CONTAINER_NAME).cloned().unwrap_or(metadata.name),
        sandbox_id: sandbox_id.to_owned(),
        state,
        created_at: status.created_at,
        started_at: status.started_at,
        finished_at: if exited { status.finished_at } else { 0 },
        exit_code: if exited { status.exit_code } else { 0 },
        hash: annotation(labels::HASH).unwrap_or_default(),
        restart_count: annotation(labels::RESTART_COUNT).and_then(|v| v.parse().ok()).unwrap_or(metadata.attempt),
        message,
        termination_message_path: annotation(labels::TERMINATION_MESSAGE_PATH).unwrap_or_default(),
        pod_termination_grace: annotation(labels::TERMINATION_GRACE_PERIOD).and_then(|v| v.parse().ok()),
        pre_stop: annotation(labels::PRE_STOP_HANDLER),
        ports: annotation(labels::PORTS),
        resources: status.resources.and_then(|r| r.linux),
        user: status.user.and_then(|u| u.linux),
        image: status.image.map(|i| i.image).unwrap_or_default(),
        image_ref: status.image_ref,
        reason: status.reason,
        stop_signal: status.stop_signal,
        log_path: status.log_path,
        id: status.id,
    };
    if record.image_ref.is_empty() {
        record.image_ref.clone_from(&status.image_id);
    }
    record
}

/// Path of the log of one try of a container, below the pod's log directory.
pub fn container_log_path(log_dir: &Path, container: &str, attempt: u32) -> std::path::PathBuf {
    log_dir.join(container).join(format!("{attempt}.log"))
}
