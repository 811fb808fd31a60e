//! What the rest of the agent asks about pods.

use std::path::PathBuf;
use std::sync::Arc;

use proto::api::core::v1::{Pod, PodStatus};
use proto::cri;
use tokio::sync::{mpsc, oneshot, watch};

use crate::cri::CriError;
use crate::csi::usage::Abnormal;
use crate::events::EventType;
use crate::pleg::observed::{ContainerRecord, Observed, RunState, observe, observe_container};
use crate::pod::spec::PodExt;
use crate::status::generate::Override;

use super::Shared;
use super::mailbox::{End, KillRequest};
use super::manager::Message;

/// Why a pod or container cannot be used; the caller's fault unless `Runtime`.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FindError {
    #[error("pod {0:?} not found")]
    NoPod(String),
    #[error("container not found ({0:?})")]
    NoContainer(String),
    #[error("{0}")]
    Runtime(CriError),
    #[error("the agent is stopping")]
    Stopping,
}

/// One try of a container.
#[derive(Debug, Clone)]
pub struct ContainerInfo {
    pub id: String,
    pub running: bool,
    pub restart_count: u32,
    pub log_path: PathBuf,
    pub tty: bool,
}

/// A handle on the manager; cheap to clone.
#[derive(Clone)]
pub struct Handle {
    pub(super) messages: mpsc::Sender<Message>,
    /// Demands to remove all unused images.
    pub(super) images: mpsc::Sender<oneshot::Sender<()>>,
    pub(super) shared: Arc<Shared>,
}

impl Handle {
    /// All pods of this node with their newest statuses, static ones included.
    pub async fn pods(&self) -> Vec<Arc<Pod>> {
        self.listed().await.into_iter().map(|pod| self.with_status(&pod)).collect()
    }

    /// The same without a copy of each pod: its newest status beside it, where the agent has made one.
    pub async fn known(&self) -> Vec<(Arc<Pod>, Option<Arc<PodStatus>>)> {
        let with_status = |pod: Arc<Pod>| {
            let status = self.shared.status.status(pod.uid());
            (pod, status)
        };
        self.listed().await.into_iter().map(with_status).collect()
    }

    /// How many there are.
    pub async fn count(&self) -> usize {
        self.listed().await.len()
    }

    async fn listed(&self) -> Vec<Arc<Pod>> {
        let (answer, receiver) = oneshot::channel();
        if self.messages.send(Message::Pods(answer)).await.is_err() {
            return Vec::new();
        }
        receiver.await.unwrap_or_default()
    }

    /// The pod of that name; with `uid` only that very one.
    pub async fn find(&self, namespace: &str, name: &str, uid: Option<&str>) -> Result<Arc<Pod>, FindError> {
        let pods = self.listed().await;
        let found = pods
            .into_iter()
            .find(|p| p.namespace() == namespace && p.name() == name && uid.is_none_or(|uid| p.uid() == uid));
        found.map(|pod| self.with_status(&pod)).ok_or_else(|| FindError::NoPod(format!("{name}_{namespace}")))
    }

    /// The container of an id, with or without the runtime's name before it.
    pub async fn container_by_id(&self, pod: &Pod, id: &str) -> Result<ContainerInfo, FindError> {
        match observe_container(&self.shared.cri, pod.uid(), bare_id(id), "").await {
            Ok(record) => Ok(self.info(pod, &record)),
            Err(error) if error.is_not_found() => Err(FindError::NoContainer(id.to_owned())),
            Err(error) => Err(FindError::Runtime(error)),
        }
    }

    /// Tells of each new status of a pod; closed when the pod is gone.
    pub fn follow(&self, pod: &Pod) -> watch::Receiver<()> {
        self.shared.status.follow(pod.uid())
    }

    /// Whether a container runs by the newest status that the agent made of its pod; `None` before the first.
    pub fn shown_running(&self, pod: &Pod, id: &str) -> Option<bool> {
        let status = self.shared.status.status(pod.uid())?;
        let kinds = [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
        let shown = kinds.into_iter().flatten().find(|c| bare_id(&c.container_id) == bare_id(id));
        Some(shown.and_then(|c| c.state.as_ref()).is_some_and(|s| s.running.is_some()))
    }

    /// The running container of that name; of a pod's only one with an empty name.
    pub async fn running(&self, pod: &Pod, name: &str) -> Result<ContainerInfo, FindError> {
        let observed = self.observed(pod).await?;
        let found = observed.containers.iter().find(|c| c.name == name && c.state == RunState::Running);
        let record = found.ok_or_else(|| FindError::NoContainer(name.to_owned()))?;
        Ok(self.info(pod, record))
    }

    /// The pod's sandbox, if it is ready.
    pub async fn sandbox(&self, pod: &Pod) -> Result<String, FindError> {
        let observed = self.observed(pod).await?;
        let ready = observed.sandboxes.first().filter(|s| s.ready);
        ready.map(|s| s.id.clone()).ok_or_else(|| FindError::NoPod(pod.described()))
    }

    /// URL of the runtime's streaming server for a command.
    pub async fn exec(&self, request: cri::ExecRequest) -> Result<String, FindError> {
        self.shared.cri.exec(request).await.map(|r| r.url).map_err(FindError::Runtime)
    }

    pub async fn attach(&self, request: cri::AttachRequest) -> Result<String, FindError> {
        self.shared.cri.attach(request).await.map(|r| r.url).map_err(FindError::Runtime)
    }

    pub async fn port_forward(&self, request: cri::PortForwardRequest) -> Result<String, FindError> {
        self.shared.cri.port_forward(request).await.map(|r| r.url).map_err(FindError::Runtime)
    }

    /// Runs a command to its end without a limit of its own.
    pub async fn exec_sync(
        &self,
        container_id: &str,
        command: Vec<String>,
    ) -> Result<cri::ExecSyncResponse, FindError> {
        let answer = self.shared.cri.exec_sync(container_id, command, std::time::Duration::ZERO).await;
        answer.map_err(FindError::Runtime)
    }

    /// Pods that have not come to their end, with their newest statuses. Those that are being ended are among them: they may
    /// have to end sooner.
    pub async fn active(&self) -> Vec<Arc<Pod>> {
        let shown = |pod: &Pod| pod.status.as_ref().is_some_and(crate::status::generate::is_over);
        let over = |pod: &Pod| self.shared.status.has_ended(pod.uid()).unwrap_or_else(|| shown(pod));
        self.listed().await.into_iter().filter(|pod| !over(pod)).map(|pod| self.with_status(&pod)).collect()
    }

    /// Ends a pod that its object does not end: eviction, shutdown. `None` for a pod that is not there any more.
    pub async fn evict(&self, uid: &str, imposed: Override, grace: Option<i64>) -> Option<End> {
        let request = KillRequest { imposed: Some(imposed), grace };
        let (answer, end) = oneshot::channel();
        if self.messages.send(Message::Kill(uid.to_owned(), request, answer)).await.is_err() {
            tracing::debug!(pod = uid, "no manager to evict a pod");
        }
        end.await.ok()
    }

    /// Has everything removed from the runtime that belongs to pods which have ended.
    pub async fn remove_ended_containers(&self) {
        // Without a manager there is nothing to remove either.
        let _ = self.messages.send(Message::Collect).await;
    }

    /// Removes all images that nobody uses, and returns when that is done.
    pub async fn remove_unused_images(&self) {
        let (answer, done) = oneshot::channel();
        if self.images.send(answer).await.is_ok() {
            // Dropped unanswered it is done too.
            let _ = done.await;
        }
    }

    /// Tells of volumes that are not well, at the pods that have them; somebody does so beside the caller.
    pub fn tell_abnormal(&self, found: Vec<Abnormal>) {
        if found.is_empty() {
            return;
        }
        let handle = self.clone();
        tokio::spawn(async move {
            let pods = handle.pods().await;
            for Abnormal { uid, volume, message } in found {
                let Some(pod) = pods.iter().find(|pod| pod.uid() == uid) else { continue };
                let message = format!("Volume {volume}: {message}");
                handle.shared.recorder.pod(pod, EventType::Warning, "VolumeConditionAbnormal", message);
            }
        });
    }

    async fn observed(&self, pod: &Pod) -> Result<Observed, FindError> {
        observe(&self.shared.cri, pod.uid(), &Observed::default()).await.map_err(FindError::Runtime)
    }

    fn info(&self, pod: &Pod, record: &ContainerRecord) -> ContainerInfo {
        let log_path = if record.log_path.is_empty() {
            let dir = crate::pod::sandbox_config::log_directory(pod, &self.shared.config.pod_logs_dir);
            crate::pleg::observed::container_log_path(&dir, &record.name, record.restart_count)
        } else {
            PathBuf::from(&record.log_path)
        };
        let tty = crate::pod::spec::find_container(pod.spec(), &record.name).is_some_and(|(_, c)| c.tty);
        ContainerInfo {
            id: record.id.clone(),
            running: record.state == RunState::Running,
            restart_count: record.restart_count,
            log_path,
            tty,
        }
    }

    fn with_status(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        match self.shared.status.status(pod.uid()) {
            Some(status) => Arc::new(Pod { status: Some((*status).clone()), ..(**pod).clone() }),
            None => pod.clone(),
        }
    }
}

/// A container's id without the runtime's name before it.
fn bare_id(id: &str) -> &str {
    id.split_once("://").map_or(id, |(_, bare)| bare)
}
