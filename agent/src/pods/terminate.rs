//! The end of a pod: stopping what runs within the grace, then taking away what is left.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::Instant;

use crate::pleg::observed::RunState;
use crate::pod::grace::{Begun, Budget, pod_grace};
use crate::pod::spec::PodExt;
use crate::spans;

use super::act::Failure;
use super::kill::{KillError, Stopping};
use super::worker::{FIRST_RETRY, ORPHAN_GRACE_SECONDS, Worker, described};
use super::{gc, kill};

/// What came of a try to stop everything.
enum Round {
    Stopped,
    /// There is less time than before.
    CutShort,
    /// To be tried again after a while.
    Failed,
}

impl Worker {
    /// Stops everything, as often as it takes.
    pub(super) async fn terminate_until_stopped(&mut self) {
        self.ending = true;
        let begun = Instant::now();
        let before = self.passed_before() + self.waited;
        let mut budget = Budget::default();
        loop {
            let pod = self.pod.clone();
            let name = || "syncTerminatingPod".to_owned();
            let round = self.stop(begun, before, &mut budget);
            let round = spans::within(name, spans::Kind::Internal, || described(&pod), |_| None, round);
            match round.await {
                Round::Stopped => break,
                Round::CutShort => {}
                Round::Failed => tokio::time::sleep(self.failed()).await,
            }
        }
        // The devices are nobody's as long as something may run; the pod is not over while they are its own.
        self.retry = FIRST_RETRY;
        while let Err(error) = self.shared.dra.unprepare(&self.uid).await {
            tracing::warn!(error, pod = self.pod.name(), "could not give back the claims of a pod");
            tokio::time::sleep(self.failed()).await;
        }
        if !self.orphan {
            self.tell_before_end();
        }
        self.shared.prober.remove(&self.uid);
    }

    /// One try to stop everything.
    async fn stop(&mut self, begun: Instant, before: Duration, budget: &mut Budget) -> Round {
        let mailbox = self.mailbox.clone();
        self.take_facts();
        // Before the look: one that ends in between is seen as it is then.
        let under_way = self.starts.under_way();
        self.settled &= under_way.is_empty();
        if !self.settled
            && let Err(error) = self.look().await
        {
            tracing::debug!(%error, pod = self.pod.name(), "could not look at an ending pod; trying again");
            spans::fail(|| error.to_string());
            return Round::Failed;
        }
        // Whatever stops this on the way, the next round looks. What was being started may come to more than is known.
        let known_whole = std::mem::take(&mut self.settled) && under_way.is_empty();
        // Of what ends, only the readiness is still asked for.
        self.sync_probes(true);
        if !self.orphan {
            self.tell(false);
        }
        let wanted = if self.orphan { ORPHAN_GRACE_SECONDS } else { pod_grace(&self.pod, self.grace) };
        let passed = i64::try_from((begun.elapsed() + before).as_secs()).unwrap_or(i64::MAX);
        let (grace, left) = (budget.allow(wanted), budget.left(passed));
        let (shared, pod) = (self.shared.clone(), self.pod.clone());
        let observed = self.observed.clone();
        let stopping = Stopping::beside(self.starts.clone(), under_way);
        let mut stopped = std::mem::take(&mut self.stopped_sandboxes);
        let mut came_late = false;
        let result = {
            let killing = kill::kill_pod(&shared, &pod, &observed, Some(left), (&mut stopped, &stopping));
            tokio::pin!(killing);
            loop {
                tokio::select! {
                    done = &mut killing => break Some(done),
                    () = mailbox.urgency() => {
                        came_late |= self.take_facts_of_end();
                        if pod_grace(&self.pod, self.grace) < grace && !self.orphan {
                            break None;
                        }
                    }
                    // What a readiness probe finds is told while containers stop.
                    () = mailbox.arrival() => {
                        let before = self.verdicts.clone();
                        came_late |= self.take_facts_of_end();
                        if !self.orphan && self.verdicts != before {
                            self.tell(false);
                        }
                        if pod_grace(&self.pod, self.grace) < grace && !self.orphan {
                            break None;
                        }
                    }
                }
            }
        };
        self.stopped_sandboxes = stopped;
        // What was told in the same moment counts as well.
        came_late |= self.take_facts_of_end();
        match result {
            // With less time than before it begins anew.
            None => {
                let _ = self.kill_failed(&KillError::cut_short(&pod, &stopping));
                return Round::CutShort;
            }
            Some(Ok(())) => {}
            Some(Err(error)) => {
                let failure = self.kill_failed(&error);
                debug_assert!(matches!(failure, Failure::Retry));
                return Round::Failed;
            }
        }
        let looked = if known_whole && !came_late { self.look_at_stopped().await } else { self.look().await };
        match looked {
            Ok(()) if self.observed.running().next().is_none() => Round::Stopped,
            _ => Round::Failed,
        }
    }

    /// The pod goes on: an end that was imposed on it and cut short with the agent is not the beginning of the next one.
    pub(super) fn forget_end(&self) {
        if let Err(error) = std::fs::remove_file(self.end_file())
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(%error, pod = self.pod.name(), "the next end of a pod may be shorter than it may be");
        }
    }

    fn end_file(&self) -> PathBuf {
        self.shared.pod_dir(&self.uid).join("end-begun")
    }

    /// How long ago an agent before this one began to end the pod; from now on it is known to the next one. Without the
    /// pod's folder nobody can know, and the grace begins.
    fn passed_before(&self) -> Duration {
        let path = self.end_file();
        let known = Begun::now().and_then(|now| {
            if let Some(begun) = std::fs::read_to_string(&path).ok().and_then(|text| Begun::parse(&text))
                && begun.boot_id == now.boot_id
            {
                return Ok(begun.passed(&now));
            }
            std::fs::write(&path, now.to_text()).map(|()| Duration::ZERO)
        });
        known.unwrap_or_else(|error| {
            tracing::debug!(%error, path = %path.display(), "the next agent will not know since when a pod ends");
            Duration::ZERO
        })
    }

    /// Takes down volumes, tells the last status, and cleans up once the pod is in no source any more.
    pub(super) async fn finish(&mut self) {
        let pod = self.pod.clone();
        let name = || "syncTerminatedPod".to_owned();
        spans::within(name, spans::Kind::Internal, || described(&pod), |()| None, self.give_back()).await;
        let mailbox = self.mailbox.clone();
        mailbox.has_ended();
        self.retry = FIRST_RETRY;
        let mut again: Option<Instant> = None;
        let mut stopped = Vec::new();
        while !self.removed {
            tokio::select! {
                () = mailbox.arrival() => {}
                () = tokio::time::sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => self.settled = false,
            }
            // What is said of a pod ends with its end: a later deletion, which is a new generation, changes nothing.
            self.take_facts_after_end();
            // Of a static pod, and of others until the API server has the end, what the runtime has is all that an agent
            // knows after a restart.
            let known_without = !self.pod.is_static() && self.shared.status.shows_end(&self.uid);
            if self.collect && known_without {
                // With what came late: nothing else will look at it.
                let seen = self.look().await.is_ok();
                self.shared.prober.remove(&self.uid);
                let gone = gc::remove_from_runtime(&self.shared, &self.pod, &self.observed).await;
                again = self.again_unless(seen && gone);
                self.settled = false;
            } else if !self.settled {
                let gone = self.take_away_late(&mut stopped).await;
                again = self.again_unless(gone);
            }
        }
        self.retry = FIRST_RETRY;
        while !self.settled && self.look().await.is_err() {
            tokio::time::sleep(self.failed()).await;
        }
        gc::remove_all(&self.shared, &self.pod, &self.observed).await;
        self.shared.prober.remove(&self.uid);
        self.shared.userns.release(&self.uid);
        self.shared.status.forget(&self.uid);
    }

    /// When something is to be tried again that was not all done.
    fn again_unless(&mut self, done: bool) -> Option<Instant> {
        if done {
            self.retry = FIRST_RETRY;
            return None;
        }
        Some(Instant::now() + self.failed())
    }

    /// Takes away what the runtime has made of a pod that has ended: it answers late, or not at all, for what it was asked
    /// before. A runtime ends what runs before it removes it. Whether it is all gone, as far as can be seen; `stopped` are
    /// the sandboxes that are not ready any more and have still to be removed.
    async fn take_away_late(&mut self, stopped: &mut Vec<String>) -> bool {
        if let Err(error) = self.look().await {
            tracing::debug!(%error, pod = self.pod.name(), "could not look at a pod that has ended");
            return false;
        }
        // A look tells the prober of the pod, which has nothing to ask of it.
        self.shared.prober.remove(&self.uid);
        let is_late = |state| matches!(state, RunState::Created | RunState::Running);
        let mut all = true;
        let (late, kept): (Vec<_>, Vec<_>) = self.observed.containers.iter().partition(|c| is_late(c.state));
        for late in late {
            tracing::info!(container = late.id, pod = self.pod.name(), "a container came after the end of its pod");
            all &= gc::remove_container(&self.shared, &self.pod, &late.name, &late.id, None).await;
        }
        let mut left = Vec::new();
        for late in self.observed.sandboxes.iter().filter(|s| s.ready || stopped.contains(&s.id)) {
            tracing::info!(sandbox = late.id, pod = self.pod.name(), "a sandbox came after the end of its pod");
            let is_kept = kept.iter().any(|c| c.sandbox_id == late.id);
            if !gc::end_sandbox(&self.shared, late, is_kept).await {
                left.push(late.id.clone());
            }
        }
        *stopped = left;
        all && stopped.is_empty()
    }

    /// Takes down volumes and the cgroup, and tells the last status.
    async fn give_back(&mut self) {
        self.shared.managers.release(&self.uid).await;
        self.retry = FIRST_RETRY;
        while let Err(error) = self.shared.volumes.teardown(&self.uid).await {
            tracing::warn!(%error, pod = self.pod.name(), "could not take down the volumes of a pod");
            spans::fail(|| error.to_string());
            tokio::time::sleep(self.failed()).await;
        }
        self.retry = FIRST_RETRY;
        while let Err(error) = self.shared.cgroups.remove(&self.uid).await {
            tracing::warn!(%error, pod = self.pod.name(), "could not remove the cgroup of a pod");
            spans::fail(|| error.to_string());
            tokio::time::sleep(self.failed()).await;
        }
        self.shared.objects.unregister(&self.uid);
        self.shared.puller.forget(&self.uid);
        self.shared.devices.release(&self.uid);
        if !self.orphan {
            self.take_facts();
            self.tell_last();
            self.shared.status.finish(&self.uid);
            self.shared.feed.ended(&self.uid);
        }
    }
}
