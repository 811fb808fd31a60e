//! What a worker has yet to take notice of. Newer facts replace older ones, so it never grows.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proto::api::core::v1::Pod;
use tokio::sync::Notify;

use crate::probes::Verdict;
use crate::status::generate::Override;

/// A demand to end a pod that its object does not make.
#[derive(Debug, Clone)]
pub struct KillRequest {
    pub imposed: Option<Override>,
    pub grace: Option<i64>,
}

#[derive(Default)]
struct Inner {
    pod: Option<Arc<Pod>>,
    changed: bool,
    verdicts: Vec<Verdict>,
    kill: Option<KillRequest>,
    removed: bool,
}

/// Facts taken out of a mailbox.
#[derive(Default)]
pub struct Facts {
    pub pod: Option<Arc<Pod>>,
    pub verdicts: Vec<Verdict>,
    pub kill: Option<KillRequest>,
    /// The pod is in no source any more.
    pub removed: bool,
}

#[derive(Default)]
pub struct Mailbox {
    inner: Mutex<Inner>,
    arrived: Notify,
    /// Something that may cut a running sync short.
    urgent: Notify,
}

impl Mailbox {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn update(&self, pod: Arc<Pod>) {
        let ends = pod.metadata.as_ref().is_some_and(|m| m.deletion_timestamp.is_some());
        self.inner().pod = Some(pod);
        self.arrived.notify_one();
        if ends {
            self.urgent.notify_one();
        }
    }

    /// The runtime has something new about the pod.
    pub fn changed(&self) {
        self.inner().changed = true;
        self.arrived.notify_one();
    }

    pub fn verdict(&self, verdict: Verdict) {
        let mut inner = self.inner();
        // One slot per container and probe.
        inner.verdicts.retain(|v| v.container_id != verdict.container_id || v.kind != verdict.kind);
        inner.verdicts.push(verdict);
        drop(inner);
        self.arrived.notify_one();
    }

    pub fn kill(&self, request: KillRequest) {
        self.inner().kill = Some(request);
        self.arrived.notify_one();
        self.urgent.notify_one();
    }

    pub fn removed(&self) {
        self.inner().removed = true;
        self.arrived.notify_one();
        self.urgent.notify_one();
    }

    /// All that came since the last call.
    pub fn take(&self) -> Facts {
        let mut inner = self.inner();
        inner.changed = false;
        Facts {
            pod: inner.pod.take(),
            verdicts: std::mem::take(&mut inner.verdicts),
            kill: inner.kill.take(),
            removed: inner.removed,
        }
    }

    /// Waits for anything new.
    pub async fn arrival(&self) {
        self.arrived.notified().await;
    }

    /// Waits for something that ends the pod or shortens its end.
    pub async fn urgency(&self) {
        self.urgent.notified().await;
    }
}
