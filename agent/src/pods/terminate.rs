//! The end of a pod: stopping what runs within the grace, then taking away what is left.

use tokio::time::Instant;

use crate::pod::grace::{Budget, pod_grace};
use crate::pod::spec::PodExt;

use super::act::Failure;
use super::worker::{FIRST_RETRY, ORPHAN_GRACE_SECONDS, Worker};
use super::{gc, kill};

impl Worker {
    /// Stops everything, as often as it takes.
    pub(super) async fn terminate_until_stopped(&mut self) {
        self.ending = true;
        self.start_errors.clear();
        let mailbox = self.mailbox.clone();
        let begun = Instant::now();
        let mut budget = Budget::default();
        loop {
            self.take_facts();
            if !self.settled
                && let Err(error) = self.look().await
            {
                tracing::debug!(%error, pod = self.pod.name(), "could not look at an ending pod; trying again");
                tokio::time::sleep(self.failed()).await;
                continue;
            }
            // Whatever stops this on the way, the next round looks.
            self.settled = false;
            if !self.orphan {
                self.tell(false);
            }
            let wanted = if self.orphan { ORPHAN_GRACE_SECONDS } else { pod_grace(&self.pod, self.grace) };
            let passed = i64::try_from(begun.elapsed().as_secs()).unwrap_or(i64::MAX);
            let (grace, left) = (budget.allow(wanted), budget.left(passed));
            let (shared, pod) = (self.shared.clone(), self.pod.clone());
            let observed = self.observed.clone();
            let mut stopped = std::mem::take(&mut self.stopped_sandboxes);
            let result = {
                let killing = kill::kill_pod(&shared, &pod, &observed, Some(left), &mut stopped);
                tokio::pin!(killing);
                loop {
                    tokio::select! {
                        done = &mut killing => break Some(done),
                        () = mailbox.urgency() => {
                            self.take_facts();
                            if pod_grace(&self.pod, self.grace) < grace && !self.orphan {
                                break None;
                            }
                        }
                    }
                }
            };
            self.stopped_sandboxes = stopped;
            match result {
                None => continue,
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    let failure = self.kill_failed(&error);
                    debug_assert!(matches!(failure, Failure::Retry));
                    tokio::time::sleep(self.failed()).await;
                    continue;
                }
            }
            if self.look().await.is_ok() && self.observed.running().next().is_none() {
                break;
            }
            tokio::time::sleep(self.failed()).await;
        }
        // The devices are nobody's as long as something may run; the pod is not over while they are its own.
        self.retry = FIRST_RETRY;
        while let Err(error) = self.shared.dra.unprepare(&self.uid).await {
            tracing::warn!(error, pod = self.pod.name(), "could not give back the claims of a pod");
            tokio::time::sleep(self.failed()).await;
        }
        if !self.orphan {
            self.tell(true);
        }
        self.shared.prober.remove(&self.uid);
    }

    /// Takes down volumes, tells the last status, and cleans up once the pod is in no source any more.
    pub(super) async fn finish(&mut self) {
        self.shared.managers.release(&self.uid).await;
        self.retry = FIRST_RETRY;
        while let Err(error) = self.shared.volumes.teardown(&self.uid).await {
            tracing::warn!(%error, pod = self.pod.name(), "could not take down the volumes of a pod");
            tokio::time::sleep(self.failed()).await;
        }
        self.retry = FIRST_RETRY;
        while let Err(error) = self.shared.cgroups.remove(&self.uid).await {
            tracing::warn!(%error, pod = self.pod.name(), "could not remove the cgroup of a pod");
            tokio::time::sleep(self.failed()).await;
        }
        self.shared.objects.unregister(&self.uid);
        self.shared.puller.forget(&self.uid);
        self.shared.devices.release(&self.uid);
        if !self.orphan {
            self.take_facts();
            self.tell_last();
            self.shared.status.finish(&self.uid);
        }
        let mailbox = self.mailbox.clone();
        mailbox.has_ended();
        while !self.removed {
            mailbox.arrival().await;
            let generation = self.pod.meta().generation;
            self.take_facts();
            if self.collect {
                gc::remove_from_runtime(&self.shared, &self.pod, &self.observed).await;
                self.settled = false;
            }
            if !self.removed && self.pod.meta().generation != generation {
                // A late deletion changes what was observed, nothing else.
                self.tell_last();
            }
        }
        self.retry = FIRST_RETRY;
        while !self.settled && self.look().await.is_err() {
            tokio::time::sleep(self.failed()).await;
        }
        gc::remove_all(&self.shared, &self.pod, &self.observed).await;
        self.shared.userns.release(&self.uid);
        self.shared.status.forget(&self.uid);
    }
}
