//! The worker of one pod: looks, decides by [`crate::pod::step`], acts, tells the status; until the pod's end.
//!
//! A worker goes one way: syncing -> terminating -> terminated -> gone. What ends the pod cuts its preparation short
//! (volumes, pulls); what the runtime was asked for is carried through first. While terminating, only a shorter grace cuts
//! anything short. Everything a worker knows can be had again
//! from spec and runtime, so a restart of the agent loses nothing.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use proto::api::core::v1::{Pod, PodStatus};
use proto::cri;
use tokio::time::Instant;

use crate::carried::Carried;
use crate::cri::CriError;
use crate::events::EventType;
use crate::pleg::observed::{Observed, RunState, observe, observe_container, observe_sandbox, observe_stopped};
use crate::pleg::parts::{Looked, Seen};
use crate::pod::crash_loop::CrashLoop;
use crate::pod::spec::PodExt;
use crate::pod::step::step;
use crate::probes::{PodProbes, ProbeKind, Running, Verdict, Verdicts, has_probes};
use crate::status::generate::{Override, one_of_each_family};
use crate::status::{StartError, with_verdict};
use crate::volumes::{Told, VolumeError};
use crate::{metrics, spans};

use super::act::Failure;
use super::admission::Rejection;
use super::mailbox::{Facts, KillRequest, Mailbox};
use super::start::kind_word;
use super::starts::Starts;
use super::{Shared, device_admission, gc, late};

/// Retry of a failed step; doubles up to [`LAST_RETRY`].
pub(super) const FIRST_RETRY: Duration = Duration::from_millis(500);
pub(super) const LAST_RETRY: Duration = Duration::from_secs(10);
const NETWORK_RETRY: Duration = Duration::from_secs(1);
/// An orphan has nobody to give it more time.
pub(super) const ORPHAN_GRACE_SECONDS: i64 = 1;

/// How a worker begins.
pub enum Begin {
    Sync,
    /// The pod is over already; take away what is left.
    Terminate,
    /// Containers of a pod that nobody knows.
    Orphan,
}

/// Why the worker stopped syncing.
enum Interrupt {
    Ends,
}

pub struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) uid: String,
    pub(super) pod: Arc<Pod>,
    pub(super) orphan: bool,
    pub(super) observed: Observed,
    /// Nothing was made or removed since `observed` was: only what runs by itself may have moved on.
    pub(super) settled: bool,
    /// When the looks began that `observed` is from.
    looked: Looked,
    pub(super) verdicts: Verdicts,
    pub(super) start_errors: HashMap<String, StartError>,
    pub(super) crash_loop: CrashLoop,
    pub(super) stopped_sandboxes: HashSet<String>,
    pub(super) status: Arc<PodStatus>,
    pub(super) imposed: Option<Override>,
    pub(super) grace: Option<i64>,
    /// How much of an imposed grace has gone by with what had been begun before.
    pub(super) waited: Duration,
    pub(super) removed: bool,
    /// What is left of the pod is to go, if it has ended.
    pub(super) collect: bool,
    pub(super) ending: bool,
    pub(super) retry: Duration,
    pub(super) volume_retry: Duration,
    /// Since when the pod has waited for volumes that it does not have.
    volumes_wanted: Option<Instant>,
    pub(super) probes_sent: Option<(Vec<Running>, String, bool, i64)>,
    pub(super) adopted: bool,
    pub(super) starts: Starts,
    /// The containers that the last step has started, each with its sandbox.
    pub(super) made: Vec<(String, String)>,
    pub(super) carried: Carried,
}

impl Worker {
    pub fn new(shared: Arc<Shared>, mailbox: Arc<Mailbox>, pod: Arc<Pod>, begin: Begin) -> Self {
        let status = Arc::new(pod.status.clone().unwrap_or_default());
        let max = shared.config.crash_loop_max;
        Self {
            uid: pod.uid().to_owned(),
            orphan: matches!(begin, Begin::Orphan),
            ending: !matches!(begin, Begin::Sync),
            removed: matches!(begin, Begin::Orphan),
            collect: false,
            shared,
            mailbox,
            pod,
            observed: Observed::default(),
            settled: false,
            looked: Looked::at_all(Instant::now()),
            verdicts: Verdicts::default(),
            start_errors: HashMap::new(),
            crash_loop: CrashLoop::new(max),
            stopped_sandboxes: HashSet::new(),
            status,
            imposed: None,
            grace: None,
            waited: Duration::ZERO,
            retry: FIRST_RETRY,
            volume_retry: FIRST_RETRY,
            volumes_wanted: None,
            probes_sent: None,
            adopted: false,
            starts: Starts::default(),
            made: Vec::new(),
            carried: Carried::default(),
        }
    }

    /// The runtime had nothing of the pod a moment ago, and nobody else makes anything of it: there is nothing to look at.
    /// Should a runtime that hung do so late, for an agent before this one, it refuses to make the same once more.
    pub fn begins_with_nothing(&mut self) {
        self.settled = true;
    }

    /// Runs until nothing of the pod is left on the node.
    ///
    /// Nearly always it waits. What it does in between has boxes of its own: a worker is as large as the largest thing that
    /// it may be in the middle of, which starts and ends of containers are.
    pub async fn run(mut self) {
        self.take_facts();
        if !self.ending {
            match Box::pin(self.admit_devices()).await {
                Ok(()) => self.sync_until_end().await,
                Err(refused) if self.observed.running().next().is_none() => return self.stay_refused(&refused).await,
                // An earlier agent let it in, and it runs: what it has is its own until it is down.
                Err(refused) => {
                    self.shared.tell_refused(&self.pod, &refused);
                    self.imposed = self.imposed.take().or(refused.into_kill().imposed);
                }
            }
        }
        Box::pin(self.terminate_until_stopped()).await;
        Box::pin(self.finish()).await;
    }

    /// Takes over what came in; `true` when the pod must end.
    pub(super) fn take_facts(&mut self) -> bool {
        let facts = self.mailbox.take();
        self.settled &= !facts.outdate(|seen| self.knows(seen));
        self.take_over(facts)
    }

    /// The same while everything is being stopped, which the runtime tells of too: that is no news. Whether there may be
    /// something else of the pod, which nobody stops then: a runtime that hung may make it late.
    pub(super) fn take_facts_of_end(&mut self) -> bool {
        let (facts, known) = (self.mailbox.take(), self.observed.parts());
        let is_strange = facts.outdate(|seen| seen.is_of(&known));
        self.take_over(facts);
        is_strange
    }

    /// The same once the pod has ended: only what is alive, and was not when it ended, is news.
    pub(super) fn take_facts_after_end(&mut self) {
        let (facts, known) = (self.mailbox.take(), self.observed.parts());
        self.settled &= !facts.outdate(|seen| seen.is_as_dead_as(&known));
        self.take_over(facts);
    }

    fn take_over(&mut self, facts: Facts) -> bool {
        if let Some(pod) = facts.pod {
            self.pod = pod;
        }
        for verdict in facts.verdicts {
            self.verdicts.set(&verdict.container_id, verdict.kind, verdict.success);
        }
        if let Some(KillRequest { imposed, grace }) = facts.kill {
            self.imposed = self.imposed.take().or(imposed);
            self.grace = match (self.grace, grace) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            self.ending = true;
        }
        self.removed |= facts.removed;
        self.collect = facts.collect;
        self.ending |= self.removed || self.pod.is_deleted();
        self.ending
    }

    fn knows(&self, seen: &Seen) -> bool {
        seen.is_known(&self.observed.parts(), &self.looked)
    }

    /// Whether another look would find what is known: neither the worker nor, as far as is known, the runtime has moved
    /// anything since. What a resize changes does not show in what runs.
    fn is_up_to_date(&self) -> bool {
        self.settled
            && self.shared.cri.moves().count().is_some()
            && self.shared.allocations.in_progress(&self.uid).is_none()
            && self.shared.latest.agrees(&self.uid, &self.observed.parts(), &self.looked)
    }

    /// [`Worker::look`] unless nothing has moved since the last one.
    async fn look_if_moved(&mut self) -> Result<(), CriError> {
        if !self.is_up_to_date() {
            return self.look().await;
        }
        self.take_in();
        Ok(())
    }

    /// Gets the pod its CPUs, memory and devices. A pod that ends meanwhile gets none and is not refused.
    async fn admit_devices(&mut self) -> Result<(), Rejection> {
        if !device_admission::concerns(&self.shared, &self.pod) {
            return Ok(());
        }
        let mailbox = self.mailbox.clone();
        while let Err(error) = self.look_if_moved().await {
            tracing::debug!(%error, pod = self.pod.name(), "could not look at a pod; trying again");
            tokio::time::sleep(self.failed()).await;
            if self.take_facts() {
                return Ok(());
            }
        }
        let running = self.observed.running().map(|c| c.name.clone()).collect();
        let (shared, pod) = (self.shared.clone(), self.pod.clone());
        let admitting = device_admission::admit(&shared, &pod, &running);
        tokio::pin!(admitting);
        loop {
            tokio::select! {
                admitted = &mut admitting => return admitted,
                () = mailbox.urgency() => {
                    if self.take_facts() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Tells that the pod is refused, and stays until it is in no source any more.
    async fn stay_refused(&mut self, refused: &Rejection) {
        self.shared.refuse(&self.pod, refused);
        // The look before has told the prober of the pod.
        self.shared.prober.remove(&self.uid);
        let mailbox = self.mailbox.clone();
        mailbox.has_ended();
        while !self.removed {
            mailbox.arrival().await;
            self.take_facts();
        }
        self.shared.status.forget(&self.uid);
    }

    async fn sync_until_end(&mut self) {
        self.forget_end();
        let (mailbox, shared) = (self.mailbox.clone(), self.shared.clone());
        let mut operation = ["create"];
        while !self.take_facts() {
            let timer = metrics::POD_WORKER.time(&operation);
            let pod = self.pod.clone();
            let attributes = || {
                let update = spans::attribute("k8s.pod.update_type", operation[0]);
                described(&pod).into_iter().chain([update]).collect()
            };
            // How soon the pod is to end, and since when and until when that waits, once it is to.
            let mut ends: Option<(i64, Instant, Instant)> = None;
            let carried = self.carried.clone();
            let next = {
                let mut sync = std::pin::pin!(spans::within(
                    || "syncPod".to_owned(),
                    spans::Kind::Internal,
                    attributes,
                    |_| None,
                    Box::pin(self.sync()),
                ));
                loop {
                    tokio::select! {
                        next = &mut sync => break Some(next),
                        () = mailbox.urgency() => match (mailbox.end_wanted(), ends) {
                            (Some(wanted), None) => {
                                let now = Instant::now();
                                ends = Some((wanted.seconds, now, now + wanted.patience));
                            }
                            (Some(wanted), Some((before, ..))) if wanted.seconds < before => break None,
                            // Who comes later may have less time, though he leaves the containers no less.
                            (Some(wanted), Some((before, since, last))) => {
                                ends = Some((before, since, last.min(Instant::now() + wanted.patience)));
                            }
                            _ => {}
                        },
                        () = carried.over(), if ends.is_some() => break None,
                        () = tokio::time::sleep_until(ends.map_or_else(Instant::now, |(.., last)| last)), if ends.is_some() => {
                            tracing::warn!(pod = pod.name(), "a pod that is to end waits no longer for what is done for it");
                            break None;
                        }
                        () = mailbox.judgement() => tell_found(&shared, &pod, &mailbox.verdicts()),
                    }
                }
            };
            if let Some((_, since, _)) = ends
                && self.mailbox.end_wanted().is_some_and(|wanted| wanted.imposed)
            {
                self.waited = since.elapsed();
            }
            let Some(next) = next else { continue };
            drop(timer);
            match next {
                Err(Interrupt::Ends) => return,
                Ok(_) if ends.is_some() => {}
                Ok(wait) => {
                    let due = Instant::now() + wait;
                    loop {
                        operation = tokio::select! {
                            // The runtime tells of what was done here too.
                            () = mailbox.arrival() => match self.settled && mailbox.is_known(|seen| self.knows(seen)) {
                                true => continue,
                                false => ["update"],
                            },
                            () = tokio::time::sleep_until(due) => ["sync"],
                        };
                        break;
                    }
                }
            }
        }
    }

    /// One look and all that follows from it. Returns how long to wait when nothing comes.
    async fn sync(&mut self) -> Result<Duration, Interrupt> {
        if let Err(error) = self.look_if_moved().await {
            tracing::debug!(%error, pod = self.pod.name(), "could not look at a pod; trying again");
            spans::fail(|| error.to_string());
            return Ok(self.failed());
        }
        if self.deadline_passed() {
            return Err(Interrupt::Ends);
        }
        self.note_resize();
        self.tell(false);
        if crate::status::generate::is_over(&self.status) {
            return Err(Interrupt::Ends);
        }
        let restarting = |c: &proto::api::core::v1::PodCondition| {
            c.r#type == crate::pod::restart::ALL_CONTAINERS_RESTARTING && c.status == "True"
        };
        let restart_all = self.status.conditions.iter().any(restarting);
        let mut actions = step(&self.pod, &self.observed, &self.verdicts, restart_all);
        let resize = self.plan_resize(&mut actions);
        if actions.create_sandbox
            && let Some(wait) = self.wait_for_network().await
        {
            return Ok(wait);
        }
        self.shared.objects.register(&self.pod);
        if let Err(error) = self.shared.cgroups.ensure(&self.pod, self.shared.managers.lifts_quota(&self.pod)).await {
            let message = format!("unable to ensure pod container exists: {error}");
            spans::fail(|| message.clone());
            self.shared.recorder.pod(&self.pod, EventType::Warning, "FailedToCreatePodContainer", message);
            return Ok(self.failed());
        }
        if let Err(error) = self.make_dirs() {
            spans::fail(|| format!("error making pod data directories: {error}"));
            self.shared.recorder.pod(
                &self.pod,
                EventType::Warning,
                "FailedToMakePodDataDirectories",
                format!("error making pod data directories: {error}"),
            );
            return Ok(self.failed());
        }
        let mut told = Told::default();
        let wanted_since = *self.volumes_wanted.get_or_insert_with(Instant::now);
        let made = self.shared.volumes.setup(&self.pod, &mut told).await;
        let failed = |error: &VolumeError| {
            self.shared.recorder.pod(&self.pod, EventType::Warning, error.reason(), error.to_string());
        };
        told.stale.iter().for_each(failed);
        for mapped in told.mapped {
            self.shared.recorder.pod(&self.pod, EventType::Normal, "SuccessfulMountVolume", mapped);
        }
        for growth in told.grown {
            let (kind, reason, text) = growth.told(&self.shared.config.node_name);
            if growth.outcome.is_ok() {
                self.shared.recorder.event(growth.claim(), kind, reason, text.clone());
            }
            self.shared.recorder.pod(&self.pod, kind, reason, text);
        }
        let volumes = match made {
            Ok(volumes) => volumes,
            Err(errors) => {
                errors.iter().for_each(failed);
                spans::fail(|| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
                if self.turned_away(told.limit, wanted_since) {
                    return Err(Interrupt::Ends);
                }
                let wait = self.volume_retry;
                self.volume_retry = late::longer(wait);
                return Ok(wait);
            }
        };
        self.volume_retry = FIRST_RETRY;
        self.volumes_wanted = None;
        // What follows from these shows at once, and nothing in the runtime will tell of it.
        let look_again = !actions.reset.is_empty() || !resize.is_empty();
        if actions.is_empty() && resize.is_empty() {
            self.start_errors.clear();
            self.retry = FIRST_RETRY;
            gc::prune(&self.shared, &self.pod, &self.observed).await;
            return Ok(self.quiet_wait());
        }
        // Of what is only started it is known what there is afterwards.
        let only_adds = std::mem::take(&mut self.settled) && resize.is_empty() && actions.only_add(&self.observed);
        let before = self.observed.parts();
        self.made.clear();
        let carrying = self.carried.begin();
        let result = self.act(actions, resize, &volumes).await;
        drop(carrying);
        self.shared.nudge.pod();
        // The runtime's word of what is seen here comes to nothing (it is known), so what follows from it is found here.
        let mut goes_on = look_again;
        let looked = match only_adds && result.is_ok() {
            true => self.look_at_made().await,
            false => self.look().await,
        };
        if looked.is_ok() {
            self.tell(false);
            goes_on |= self.observed.parts() != before
                && !step(&self.pod, &self.observed, &self.verdicts, restart_all).is_empty();
            gc::prune(&self.shared, &self.pod, &self.observed).await;
            if crate::status::generate::is_over(&self.status) {
                return Err(Interrupt::Ends);
            }
        }
        // What the runtime gave up on it may still do: the next try begins with a look.
        if matches!(result, Err(Failure::Retry)) {
            self.settled = false;
        }
        match result {
            Ok(()) | Err(Failure::Held(_)) if goes_on => Ok(Duration::ZERO),
            Ok(()) => {
                self.retry = FIRST_RETRY;
                Ok(self.quiet_wait())
            }
            Err(Failure::Held(rest)) => Ok(rest.min(self.quiet_wait())),
            Err(Failure::Retry) => Ok(self.failed().min(self.quiet_wait())),
        }
    }

    pub(super) fn failed(&mut self) -> Duration {
        let wait = self.retry;
        self.retry = late::longer(wait);
        wait
    }

    /// Until the deadline of the pod, or the next routine look; spread so that pods do not march in step.
    pub(super) fn quiet_wait(&self) -> Duration {
        let base = self.shared.config.sync_frequency;
        let spread = f64::from(crate::pod::hash::fnv1a_32(self.uid.as_bytes())) / f64::from(u32::MAX);
        let routine = base.mul_f64(1.0 + spread / 2.0);
        self.until_deadline().map_or(routine, |left| left.min(routine))
    }

    pub(super) async fn look(&mut self) -> Result<(), CriError> {
        let begun = Instant::now();
        let mut seen = observe(&self.shared.cri, &self.uid, &self.observed).await?;
        if !self.ending {
            seen.sandboxes.retain(|sandbox| !self.shared.unheard.goes(&self.uid, sandbox));
        }
        self.have_seen(seen, Looked::at_all(begun));
        Ok(())
    }

    /// The look after everything was started that was due, and nothing else was done: of what was made it asks how it is
    /// now, and all else is as it was, or the runtime will tell.
    async fn look_at_made(&mut self) -> Result<(), CriError> {
        let begun = Instant::now();
        let (mut seen, mut looked) = (self.observed.clone(), self.looked.clone());
        for (id, sandbox_id) in std::mem::take(&mut self.made) {
            looked.at(&id, begun);
            match observe_container(&self.shared.cri, &self.uid, &id, &sandbox_id).await {
                Ok(record) => seen.containers.push(record),
                // Somebody has removed it already.
                Err(error) if error.is_not_found() => return self.look().await,
                Err(error) => return Err(error),
            }
        }
        seen.sort();
        self.have_seen(seen, looked);
        Ok(())
    }

    /// The look after everything of a pod that was known whole has been stopped.
    pub(super) async fn look_at_stopped(&mut self) -> Result<(), CriError> {
        let begun = Instant::now();
        let seen = observe_stopped(&self.shared.cri, &self.uid, &self.observed).await?;
        self.have_seen(seen, Looked::at_all(begun));
        Ok(())
    }

    fn have_seen(&mut self, seen: Observed, looked: Looked) {
        let before = std::mem::replace(&mut self.observed, seen);
        (self.settled, self.looked) = (true, looked);
        if self.adopted {
            self.count_ended(&before);
        }
        self.take_in();
    }

    /// What follows from a look for what the worker keeps of its containers.
    fn take_in(&mut self) {
        // What was told of meanwhile is not taken back.
        for verdict in self.mailbox.take_verdicts() {
            self.verdicts.set(&verdict.container_id, verdict.kind, verdict.success);
        }
        let alive: HashSet<&str> = self.observed.containers.iter().map(|c| c.id.as_str()).collect();
        self.verdicts.retain(|id| alive.contains(id));
        self.crash_loop.keep_only(&alive);
        if !self.adopted {
            self.adopted = true;
            self.adopt();
        }
        self.sync_probes(self.ending);
    }

    /// [`Worker::look`] after a sandbox was made: it is all that a fresh pod has.
    pub(super) async fn look_at_new_sandbox(&mut self, id: &str) -> Result<(), CriError> {
        if !self.observed.is_empty() {
            let looked = self.look().await;
            // More is to be made in it.
            self.settled = false;
            return looked;
        }
        let begun = Instant::now();
        self.observed.sandboxes.push(observe_sandbox(&self.shared.cri, id).await?);
        self.looked.at(id, begun);
        Ok(())
    }

    /// Counts the containers that have come to their end since the last look.
    fn count_ended(&self, before: &Observed) {
        let had_ended = |id: &str| before.containers.iter().any(|c| c.id == id && c.state == RunState::Exited);
        let ended = self.observed.containers.iter().filter(|c| c.state == RunState::Exited && !had_ended(&c.id));
        for record in ended {
            let labels = [kind_word(&self.pod, &record.name), &record.exit_code.to_string(), &record.reason];
            metrics::TERMINATED_CONTAINERS.inc(&labels);
        }
    }

    /// Containers that ran before the agent did keep what was known of them.
    fn adopt(&mut self) {
        for record in self.observed.running() {
            let id = crate::status::container_id(&self.shared.runtime_name, &record.id);
            let all = self.status.container_statuses.iter().chain(&self.status.init_container_statuses);
            let Some(known) = all.into_iter().find(|s| s.container_id == id) else { continue };
            if known.ready {
                self.verdicts.set(&record.id, ProbeKind::Readiness, true);
            }
            if known.started == Some(true) {
                self.verdicts.set(&record.id, ProbeKind::Startup, true);
            }
        }
    }

    /// Tells the prober what runs, when that changed.
    pub(super) fn sync_probes(&mut self, terminating: bool) {
        if !has_probes(&self.pod) {
            return;
        }
        let running = self.observed.containers.iter().filter(|c| c.state == RunState::Running).map(|c| {
            let ready = self.verdicts.get(&c.id, ProbeKind::Readiness);
            let started = self.verdicts.get(&c.id, ProbeKind::Startup);
            let before = (ready.is_some() || started.is_some()).then_some((ready == Some(true), started == Some(true)));
            Running { name: c.name.clone(), container_id: c.id.clone(), started_at: c.started_at, before }
        });
        let running: Vec<Running> = running.collect();
        let ip = probed_address(self.observed.ips(), self.shared.host_ips());
        let bare: Vec<Running> = running.iter().map(|r| Running { before: None, ..r.clone() }).collect();
        let sent = (bare, ip.clone(), terminating, self.pod.meta().generation);
        if self.probes_sent.as_ref() != Some(&sent) {
            self.probes_sent = Some(sent);
            self.shared.prober.sync(&self.uid, PodProbes { pod: self.pod.clone(), ip, running, terminating });
        }
    }

    async fn wait_for_network(&mut self) -> Option<Duration> {
        // What was heard a few seconds ago may have come right since.
        if self.pod.spec().host_network || self.shared.runtime.borrow().network_not_ready.is_none() {
            return None;
        }
        let answer = self.shared.cri.status(cri::StatusRequest { verbose: false }).await;
        let conditions = match answer {
            Ok(answer) => answer.status.unwrap_or_default().conditions,
            Err(_) => return Some(self.failed()),
        };
        let network = conditions.into_iter().find(|c| c.r#type == "NetworkReady")?;
        if network.status {
            return None;
        }
        let why = format!(
            "network is not ready: container runtime network not ready: NetworkReady=false reason:{} message:{}",
            network.reason, network.message
        );
        self.shared.recorder.pod(&self.pod, EventType::Warning, "NetworkNotReady", why);
        Some(NETWORK_RETRY)
    }

    fn make_dirs(&self) -> std::io::Result<()> {
        use std::os::unix::fs::DirBuilderExt as _;
        let dir = self.shared.pod_dir(&self.uid);
        // The last of them is there where all are.
        if dir.join("containers").is_dir() {
            return Ok(());
        }
        for path in [dir.clone(), dir.join("volumes"), dir.join("plugins"), dir.join("containers")] {
            std::fs::DirBuilder::new().recursive(true).mode(0o750).create(path)?;
        }
        Ok(())
    }
}

/// Where a pod is probed: where its status says that it is.
fn probed_address(of_pod: &[String], of_node: Vec<String>) -> String {
    let told = one_of_each_family(of_pod, of_node.first());
    told.into_iter().chain(of_node).next().unwrap_or_default()
}

/// The pod that a span is about.
pub(super) fn described(pod: &Pod) -> Vec<spans::KeyValue> {
    let whole = format!("{}/{}", pod.namespace(), pod.name());
    let names = [("k8s.pod.uid", pod.uid()), ("k8s.pod", &whole), ("k8s.pod.name", pod.name())];
    let names = names.into_iter().chain([("k8s.namespace.name", pod.namespace())]);
    names.map(|(key, value)| spans::attribute(key, value)).collect()
}

/// Tells what probes have found while the worker is busy, with a hook or a pull that takes long.
fn tell_found(shared: &Shared, pod: &Pod, verdicts: &[Verdict]) {
    for verdict in verdicts {
        let told = shared.status.status(pod.uid());
        let found = told.and_then(|status| with_verdict(pod, &status, verdict, crate::clock::now()));
        if let Some(status) = found {
            shared.status.set(pod.uid(), Arc::new(status), true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod whose runtime tells its addresses in another order was probed where nobody was told that it is.
    #[test]
    fn a_pod_is_probed_at_the_address_of_its_status() {
        let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let both = texts(&["fd00::2", "10.0.0.2"]);
        assert_eq!(probed_address(&both, texts(&["192.0.2.1", "2001:db8::1"])), "10.0.0.2");
        assert_eq!(probed_address(&both, texts(&["2001:db8::1"])), "fd00::2");
        assert_eq!(probed_address(&both[..1], texts(&["192.0.2.1"])), "fd00::2", "the only one that it has");
        assert_eq!(probed_address(&[], texts(&["192.0.2.1"])), "192.0.2.1");
    }

    /// Every pod used to hold room for all that its worker may ever be in the middle of.
    #[test]
    fn a_worker_that_waits_is_small() {
        fn of_run<F>(_: fn(Worker) -> F) -> usize {
            size_of::<F>()
        }
        let (worker, run) = (size_of::<Worker>(), of_run(Worker::run));
        assert!(run < worker + 2048, "{run} bytes, {worker} of which are the worker's own");
    }
}
