//! The worker of one pod: looks, decides by [`crate::pod::step`], acts, tells the status; until the pod's end.
//!
//! A worker goes one way: syncing -> terminating -> terminated -> gone. While syncing, anything that ends the pod cuts
//! the running effects short; while terminating, only a shorter grace does. Everything a worker knows can be had again
//! from spec and runtime, so a restart of the agent loses nothing.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use proto::api::core::v1::{Pod, PodCondition, PodStatus, Secret};
use proto::cri;
use tokio::time::Instant;

use crate::clock::unix_nanos;
use crate::cri::CriError;
use crate::events::EventType;
use crate::images::puller::Wanted;
use crate::metrics;
use crate::pleg::observed::{Observed, RunState, observe};
use crate::pod::backoff::{Backoff, INITIAL};
use crate::pod::grace::pod_grace;
use crate::pod::resize::Plan;
use crate::pod::sandbox_config::{SandboxInputs, sandbox_config};
use crate::pod::spec::{PodExt, ephemeral_as_container, is_sidecar};
use crate::pod::step::{Actions, Reset, step};
use crate::probes::{PodProbes, ProbeKind, Running, Verdicts, has_probes};
use crate::status::conditions::{RESIZE_IN_PROGRESS, RESIZE_PENDING};
use crate::status::generate::{Override, rejected};
use crate::status::{Inputs, StartError, generate, terminate};
use crate::volumes::PodVolumes;

use super::admission::Rejection;
use super::mailbox::{KillRequest, Mailbox};
use super::resize::Resizing;
use super::start::StartContext;
use super::{Shared, device_admission, gc, kill};

/// Retry of a failed step; doubles up to [`LAST_RETRY`].
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LAST_RETRY: Duration = Duration::from_secs(10);
const NETWORK_RETRY: Duration = Duration::from_secs(1);
/// An orphan has nobody to give it more time.
const ORPHAN_GRACE_SECONDS: i64 = 1;

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
    shared: Arc<Shared>,
    mailbox: Arc<Mailbox>,
    uid: String,
    pod: Arc<Pod>,
    orphan: bool,
    observed: Observed,
    verdicts: Verdicts,
    start_errors: HashMap<String, StartError>,
    backoff: Backoff<String>,
    stopped_sandboxes: HashSet<String>,
    status: Arc<PodStatus>,
    imposed: Option<Override>,
    grace: Option<i64>,
    removed: bool,
    ending: bool,
    retry: Duration,
    volume_retry: Duration,
    probes_sent: Option<(Vec<Running>, String, bool, i64)>,
    adopted: bool,
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
            shared,
            mailbox,
            pod,
            observed: Observed::default(),
            verdicts: Verdicts::default(),
            start_errors: HashMap::new(),
            backoff: Backoff::new(INITIAL, max),
            stopped_sandboxes: HashSet::new(),
            status,
            imposed: None,
            grace: None,
            retry: FIRST_RETRY,
            volume_retry: FIRST_RETRY,
            probes_sent: None,
            adopted: false,
        }
    }

    /// Runs until nothing of the pod is left on the node.
    pub async fn run(mut self) {
        self.take_facts();
        if !self.ending {
            if let Err(refused) = self.admit_devices().await {
                return self.stay_refused(&refused).await;
            }
            self.sync_until_end().await;
        }
        self.terminate_until_stopped().await;
        self.finish().await;
    }

    /// Takes over what came in; `true` when the pod must end.
    fn take_facts(&mut self) -> bool {
        let facts = self.mailbox.take();
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
        self.ending |= self.removed || self.pod.is_deleted();
        self.ending
    }

    /// Gets the pod its devices. A pod that ends meanwhile gets none and is not refused.
    async fn admit_devices(&mut self) -> Result<(), Rejection> {
        if !self.shared.devices.concern(&self.pod) {
            return Ok(());
        }
        let mailbox = self.mailbox.clone();
        while let Err(error) = self.look().await {
            tracing::debug!(%error, pod = self.pod.name(), "could not look at a pod; trying again");
            tokio::time::sleep(self.failed()).await;
            if self.take_facts() {
                return Ok(());
            }
        }
        let running = self.observed.running().map(|c| c.name.clone()).collect();
        let (shared, pod) = (self.shared.clone(), self.pod.clone());
        let admitting = device_admission::admit(&shared.devices, &pod, &running);
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
        self.shared.recorder.pod(&self.pod, EventType::Warning, &refused.reason, refused.message.clone());
        let status = rejected(&self.pod, &refused.reason, &refused.message, crate::clock::now());
        self.shared.status.set(&self.uid, Arc::new(status), false);
        self.shared.status.finish(&self.uid);
        let mailbox = self.mailbox.clone();
        while !self.removed {
            mailbox.arrival().await;
            self.take_facts();
        }
        self.shared.status.forget(&self.uid);
    }

    async fn sync_until_end(&mut self) {
        let mailbox = self.mailbox.clone();
        let mut operation = ["create"];
        while !self.take_facts() {
            let timer = metrics::POD_WORKER.time(&operation);
            let next = tokio::select! {
                next = self.sync() => next,
                () = mailbox.urgency() => continue,
            };
            drop(timer);
            match next {
                Err(Interrupt::Ends) => return,
                Ok(wait) => {
                    tokio::select! {
                        () = mailbox.arrival() => operation = ["update"],
                        () = tokio::time::sleep(wait) => operation = ["sync"],
                    }
                }
            }
        }
    }

    /// One look and all that follows from it. Returns how long to wait when nothing comes.
    async fn sync(&mut self) -> Result<Duration, Interrupt> {
        if let Err(error) = self.look().await {
            tracing::debug!(%error, pod = self.pod.name(), "could not look at a pod; trying again");
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
        let given = |name: &str| self.shared.allocations.given(&self.uid, name);
        let resize = crate::pod::resize::plan(&self.pod, &self.observed, &given, &mut actions);
        if actions.create_sandbox
            && let Some(wait) = self.wait_for_network().await
        {
            return Ok(wait);
        }
        self.shared.objects.register(&self.pod);
        if let Err(error) = self.shared.cgroups.ensure(&self.pod).await {
            let message = format!("unable to ensure pod container exists: {error}");
            self.shared.recorder.pod(&self.pod, EventType::Warning, "FailedToCreatePodContainer", message);
            return Ok(self.failed());
        }
        if let Err(error) = self.make_dirs() {
            self.shared.recorder.pod(
                &self.pod,
                EventType::Warning,
                "FailedToMakePodDataDirectories",
                format!("error making pod data directories: {error}"),
            );
            return Ok(self.failed());
        }
        let volumes = match self.shared.volumes.setup(&self.pod).await {
            Ok(volumes) => volumes,
            Err(error) => {
                self.shared.recorder.pod(&self.pod, EventType::Warning, "FailedMount", error.to_string());
                let wait = self.volume_retry;
                self.volume_retry = (wait * 2).min(LAST_RETRY);
                return Ok(wait);
            }
        };
        self.volume_retry = FIRST_RETRY;
        // What follows from these shows at once, and nothing in the runtime will tell of it.
        let look_again = !actions.reset.is_empty() || !resize.is_empty();
        if actions.is_empty() && resize.is_empty() {
            self.start_errors.clear();
            self.retry = FIRST_RETRY;
            gc::prune(&self.shared, &self.pod, &self.observed).await;
            return Ok(self.quiet_wait());
        }
        let result = self.act(actions, resize, &volumes).await;
        if self.look().await.is_ok() {
            self.tell(false);
            if crate::status::generate::is_over(&self.status) {
                return Err(Interrupt::Ends);
            }
        }
        match result {
            Ok(()) if look_again => Ok(Duration::ZERO),
            Ok(()) => {
                self.retry = FIRST_RETRY;
                Ok(self.quiet_wait())
            }
            Err(Failure::Held(rest)) => Ok(rest.min(self.quiet_wait())),
            Err(Failure::Retry) => Ok(self.failed().min(self.quiet_wait())),
        }
    }

    fn failed(&mut self) -> Duration {
        let wait = self.retry;
        self.retry = (wait * 2).min(LAST_RETRY);
        wait
    }

    /// Until the deadline of the pod, or the next routine look; spread so that pods do not march in step.
    fn quiet_wait(&self) -> Duration {
        let base = self.shared.config.sync_frequency;
        let spread = f64::from(crate::pod::hash::fnv1a_32(self.uid.as_bytes())) / f64::from(u32::MAX);
        let routine = base.mul_f64(1.0 + spread / 2.0);
        self.until_deadline().map_or(routine, |left| left.min(routine))
    }

    async fn look(&mut self) -> Result<(), CriError> {
        self.observed = observe(&self.shared.cri, &self.uid, &self.observed).await?;
        let alive: HashSet<&str> = self.observed.containers.iter().map(|c| c.id.as_str()).collect();
        self.verdicts.retain(|id| alive.contains(id));
        if !self.adopted {
            self.adopted = true;
            self.adopt();
        }
        self.sync_probes(self.ending);
        Ok(())
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
    fn sync_probes(&mut self, terminating: bool) {
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
        let ip = match self.observed.ips().first() {
            Some(ip) => ip.clone(),
            None => self.shared.host_ips().into_iter().next().unwrap_or_default(),
        };
        let bare: Vec<Running> = running.iter().map(|r| Running { before: None, ..r.clone() }).collect();
        let sent = (bare, ip.clone(), terminating, self.pod.meta().generation);
        if self.probes_sent.as_ref() != Some(&sent) {
            self.probes_sent = Some(sent);
            self.shared.prober.sync(&self.uid, PodProbes { pod: self.pod.clone(), ip, running, terminating });
        }
    }

    /// Computes the status and hands it on. `terminal`: nothing will be started any more.
    fn tell(&mut self, terminal: bool) {
        self.status = Arc::new(self.status_now(terminal));
        let may_run = self.observed.running().next().is_some();
        self.shared.status.set(&self.uid, self.status.clone(), may_run);
    }

    /// The last status: every container has ended.
    fn tell_last(&mut self) {
        self.status = Arc::new(terminate(&self.pod, self.status_now(true)));
        self.shared.status.set(&self.uid, self.status.clone(), false);
    }

    fn status_now(&self, terminal: bool) -> PodStatus {
        let host_ips = self.shared.host_ips();
        let verdicts = self.verdicts.of(&self.pod);
        let mut status = generate(&Inputs {
            pod: &self.pod,
            observed: &self.observed,
            old: &self.status,
            start_errors: &self.start_errors,
            probes: &verdicts,
            runtime: &self.shared.runtime_name,
            host_ips: &host_ips,
            terminal,
            imposed: self.imposed.as_ref(),
            recursive_read_only: false,
            resize: self.resize_conditions(),
            now: crate::clock::now(),
        });
        self.shared.devices.annotate(&self.uid, &mut status);
        status
    }

    fn until_deadline(&self) -> Option<Duration> {
        let limit = self.pod.spec().active_deadline_seconds?;
        let begun = self.status.start_time.as_ref()?.seconds;
        let end = begun.saturating_add(limit).saturating_mul(1_000_000_000);
        Some(Duration::from_nanos(end.saturating_sub(unix_nanos()).max(0).unsigned_abs()))
    }

    fn deadline_passed(&mut self) -> bool {
        if !self.until_deadline().is_some_and(|left| left.is_zero()) {
            return false;
        }
        let message = "Pod was active on the node longer than the specified deadline";
        self.shared.recorder.pod(&self.pod, EventType::Normal, "DeadlineExceeded", message);
        let imposed = Override { reason: "DeadlineExceeded".into(), message: message.into(), disruption: None };
        self.imposed = Some(imposed);
        true
    }

    async fn wait_for_network(&mut self) -> Option<Duration> {
        if self.pod.spec().host_network {
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
        for path in [dir.clone(), dir.join("volumes"), dir.join("plugins"), dir.join("containers")] {
            std::fs::DirBuilder::new().recursive(true).mode(0o750).create(path)?;
        }
        Ok(())
    }

    async fn pull_secrets(&self) -> Vec<Arc<Secret>> {
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for reference in &self.pod.spec().image_pull_secrets {
            if reference.name.is_empty() {
                continue;
            }
            match self.shared.objects.secret(self.pod.namespace(), &reference.name).await {
                Ok(secret) => found.push(secret),
                Err(_) => missing.push(reference.name.as_str()),
            }
        }
        if !missing.is_empty() {
            let message = format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                missing.join(", ")
            );
            self.shared.recorder.pod(&self.pod, EventType::Warning, "FailedToRetrieveImagePullSecret", message);
        }
        found
    }

    /// Does what [`step`] wants: kill, sandbox, ephemeral, init, regular containers.
    async fn act(&mut self, actions: Actions, resize: Plan, volumes: &PodVolumes) -> Result<(), Failure> {
        let shared = self.shared.clone();
        let pod = self.pod.clone();
        if !actions.reset.is_empty() {
            return self.reset(&actions.reset).await;
        }
        if actions.kill_pod {
            if actions.create_sandbox && !actions.sandbox_id.is_empty() {
                let message = "Pod sandbox changed, it will be killed and re-created.";
                shared.recorder.pod(&pod, EventType::Normal, "SandboxChanged", message);
            }
            kill::kill_pod(&shared, &pod, &self.observed, None, &mut self.stopped_sandboxes)
                .await
                .map_err(|error| self.kill_failed(&error))?;
            if actions.create_sandbox {
                gc::purge_init(&shared, &pod, &self.observed).await;
            }
        } else {
            let ip = self.observed.ips().first().cloned().unwrap_or_default();
            for kill in &actions.kill {
                kill::kill_one(&shared, &pod, kill, &ip).await.map_err(|error| self.kill_failed(&error))?;
            }
        }
        let starts = !actions.start.is_empty() || !actions.start_init.is_empty() || !actions.start_ephemeral.is_empty();
        if !starts && !actions.create_sandbox {
            return self.resize(resize, &actions.sandbox_id).await;
        }
        let secrets = self.pull_secrets().await;
        let Sandbox { id: sandbox_id, config: sandbox, ips, userns } = self.sandbox(&actions).await?;
        let image_volumes = self.image_volumes(&sandbox, &secrets).await;
        let context = StartContext {
            shared: &shared,
            pod: &pod,
            observed: &self.observed.clone(),
            sandbox_id: &sandbox_id,
            sandbox: &sandbox,
            ips: &ips,
            volumes,
            secrets: &secrets,
            userns: userns.as_ref(),
            image_volumes: &image_volumes,
        };
        let mut outcome = Ok(());
        let spec = pod.spec();
        for &i in &actions.start_ephemeral {
            if let Some(ephemeral) = spec.ephemeral_containers.get(i) {
                let container = ephemeral_as_container(ephemeral);
                let started = self.start(&context, &container, Some(&ephemeral.target_container_name)).await;
                outcome = worse(outcome, started);
            }
        }
        for &i in &actions.start_init {
            let Some(container) = spec.init_containers.get(i) else { continue };
            let started = self.start(&context, container, None).await;
            if started.is_err() && !is_sidecar(container) {
                return started;
            }
            outcome = worse(outcome, started);
        }
        outcome = worse(outcome, self.resize(resize, &sandbox_id).await);
        for &i in &actions.start {
            let Some(container) = spec.containers.get(i) else { continue };
            outcome = worse(outcome, self.start(&context, container, None).await);
        }
        outcome
    }

    /// Gives running containers and the pod's cgroup what is allocated.
    async fn resize(&self, plan: Plan, sandbox_id: &str) -> Result<(), Failure> {
        if plan.is_empty() {
            return Ok(());
        }
        let resizing = Resizing { shared: &self.shared, pod: &self.pod, sandbox_id };
        let Err(why) = resizing.run(plan).await else { return Ok(()) };
        let generation = self.pod.meta().generation;
        if self.shared.allocations.fail(&self.uid, generation, &why, crate::clock::now()) {
            let message = super::resizes::told(&self.pod, generation, &why, "Pod resize error");
            self.shared.recorder.pod(&self.pod, EventType::Warning, "ResizeError", message);
        }
        Err(Failure::Retry)
    }

    /// Notes that a resize is under way, or that one has come to its end.
    fn note_resize(&self) {
        let allocations = &self.shared.allocations;
        let given = |name: &str| allocations.given(&self.uid, name);
        if crate::pod::resize::in_progress(&self.pod, &self.observed, &given) {
            if allocations.in_progress(&self.uid).is_none() {
                allocations.begin(&self.uid, self.pod.meta().generation, crate::clock::now());
            }
        } else if let Some(done) = allocations.finish(&self.uid) {
            let message = super::resizes::told(&self.pod, done.generation, "", "Pod resize completed");
            self.shared.recorder.pod(&self.pod, EventType::Normal, "ResizeCompleted", message);
        }
    }

    fn resize_conditions(&self) -> Vec<PodCondition> {
        let condition = |kind: &str, reason: &str, message: &str, generation, since| PodCondition {
            r#type: kind.into(),
            status: "True".into(),
            reason: reason.into(),
            message: message.into(),
            observed_generation: generation,
            last_transition_time: Some(since),
            last_probe_time: Some(since),
        };
        let pending = self.shared.allocations.pending(&self.uid);
        let under_way = self.shared.allocations.in_progress(&self.uid);
        let pending = pending.map(|p| condition(RESIZE_PENDING, p.reason, &p.message, p.generation, p.since));
        let under_way = under_way.map(|p| {
            let reason = if p.error.is_some() { "Error" } else { "" };
            condition(RESIZE_IN_PROGRESS, reason, p.error.as_deref().unwrap_or(""), p.generation, p.since)
        });
        pending.into_iter().chain(under_way).collect()
    }

    /// Removes every container, so that the pod starts over in its sandbox.
    async fn reset(&mut self, resets: &[Reset]) -> Result<(), Failure> {
        let (shared, pod) = (self.shared.clone(), self.pod.clone());
        for Reset { kill, may_run } in resets {
            if *may_run {
                kill::kill_one(&shared, &pod, kill, "").await.map_err(|error| self.kill_failed(&error))?;
            }
            gc::remove_container(&shared, &pod, &kill.name, &kill.container_id, None).await;
        }
        self.start_errors.clear();
        Ok(())
    }

    fn kill_failed(&mut self, error: &CriError) -> Failure {
        self.shared.recorder.pod(&self.pod, EventType::Warning, "FailedKillPod", format!("error killing pod: {error}"));
        Failure::Retry
    }

    /// Pulls the images that are volumes; what fails keeps back only the containers that mount it.
    async fn image_volumes(
        &self,
        sandbox: &cri::PodSandboxConfig,
        secrets: &[Arc<Secret>],
    ) -> BTreeMap<String, Result<String, StartError>> {
        let mut found = BTreeMap::new();
        for volume in &self.pod.spec().volumes {
            let Some(image) = volume.volume_source.as_ref().and_then(|s| s.image.as_ref()) else { continue };
            let wanted =
                Wanted { pod: &self.pod, container: None, image: &image.reference, policy: &image.pull_policy };
            let pulled = self.shared.puller.ensure(wanted, sandbox, secrets).await;
            found.insert(volume.name.clone(), pulled.map(|image| image.id));
        }
        found
    }

    fn sandbox_failed(&self, why: &str) -> Failure {
        let message = format!("Failed to create pod sandbox: {why}");
        self.shared.recorder.pod(&self.pod, EventType::Warning, "FailedCreatePodSandBox", message);
        Failure::Retry
    }

    /// The sandbox to start containers in, made if need be.
    async fn sandbox(&mut self, actions: &Actions) -> Result<Sandbox, Failure> {
        let shared = self.shared.clone();
        let pod = self.pod.clone();
        // A sandbox that is there has its handler and its users already.
        let handler = match self.runtime_handler().await {
            Ok(handler) => handler,
            Err(why) if actions.create_sandbox => return Err(self.sandbox_failed(&why)),
            Err(_) => String::new(),
        };
        let node = shared.node.borrow().clone();
        let userns = shared.userns.of(&pod, &handler, &node).map_err(|why| self.sandbox_failed(&why))?;
        let hostname = crate::dns_hosts::hostname(&pod, &shared.config.dns).map_err(|why| self.sandbox_failed(&why))?;
        let (dns, troubles) = crate::dns_hosts::dns_config(&pod, &shared.config.dns);
        for trouble in troubles {
            shared.recorder.pod(&pod, EventType::Warning, trouble.reason, trouble.message);
        }
        let config = sandbox_config(
            &pod,
            SandboxInputs {
                attempt: actions.attempt,
                dns,
                hostname,
                pod_logs_dir: &shared.config.pod_logs_dir,
                cgroup_parent: shared.cgroups.runtime_parent(&pod),
                resources: &shared.config.resources,
                userns: userns.as_ref(),
            },
        );
        let addresses = |observed: &Observed| {
            if pod.spec().host_network { shared.host_ips() } else { observed.ips().to_vec() }
        };
        if !actions.create_sandbox {
            let ips = addresses(&self.observed);
            return Ok(Sandbox { id: actions.sandbox_id.clone(), config, ips, userns });
        }
        metrics::STARTED_PODS.inc(&[]);
        let made = match std::fs::create_dir_all(&config.log_directory) {
            Ok(()) => {
                let labels = [handler.as_str()];
                let timer = metrics::RUN_PODSANDBOX.time(&labels);
                let made = shared.cri.run_pod_sandbox(config.clone(), handler.clone()).await;
                drop(timer);
                made.map_err(|e| {
                    metrics::RUN_PODSANDBOX_ERRORS.inc(&labels);
                    e.to_string()
                })
            }
            Err(e) => Err(format!("failed to create the log directory {}: {e}", config.log_directory)),
        };
        let id = made.map_err(|why| {
            metrics::STARTED_PODS_ERRORS.inc(&[]);
            self.sandbox_failed(&why)
        })?;
        if let Err(error) = self.look().await {
            let message = format!("Unable to get pod sandbox status: {error}");
            shared.recorder.pod(&pod, EventType::Warning, "FailedStatusPodSandBox", message);
            return Err(Failure::Retry);
        }
        self.tell(false);
        let ips = addresses(&self.observed);
        Ok(Sandbox { id, config, ips, userns })
    }

    async fn runtime_handler(&self) -> Result<String, String> {
        let Some(class) = self.pod.spec().runtime_class_name.as_deref().filter(|c| !c.is_empty()) else {
            return Ok(String::new());
        };
        let found = self.shared.client.get::<proto::api::node::v1::RuntimeClass>("", class).await;
        found
            .map(|c| c.handler)
            .map_err(|e| format!("failed to get sandbox runtime: runtime class {class:?} could not be looked up: {e}"))
    }

    /// Starts one container unless it is held back.
    async fn start(
        &mut self,
        context: &StartContext<'_>,
        container: &proto::api::core::v1::Container,
        target: Option<&str>,
    ) -> Result<(), Failure> {
        let name = container.name.clone();
        if let Some(rest) = self.held_back(container) {
            return Err(Failure::Held(rest));
        }
        match context.start(container, target).await {
            Ok(()) => {
                self.start_errors.remove(&name);
                Ok(())
            }
            Err(error) => {
                let held = self.shared.puller.remaining(&self.uid, &container.image);
                self.start_errors.insert(name, error);
                Err(held.map_or(Failure::Retry, Failure::Held))
            }
        }
    }

    /// The rest of a crash loop's wait, counted from the last end.
    fn held_back(&mut self, container: &proto::api::core::v1::Container) -> Option<Duration> {
        let records = self.observed.containers.iter();
        let ended = records.filter(|c| c.name == container.name).find(|c| c.state == RunState::Exited)?;
        let (ended_at, now) = (ended.finished_at, unix_nanos());
        let key = format!("{}/{}", container.name, container.image);
        let Some((rest, delay)) = self.backoff.remaining(&key, ended_at, now) else {
            self.backoff.next(key, ended_at, now);
            return None;
        };
        let described = self.pod.described();
        let event = format!("Back-off restarting failed container {} in pod {described}", container.name);
        self.shared.recorder.container(&self.pod, &container.name, EventType::Warning, "BackOff", event);
        let delay = proto::duration::format(i64::try_from(delay.as_nanos()).unwrap_or(i64::MAX));
        let message = format!("back-off {delay} restarting failed container={} pod={described}", container.name);
        let error = StartError { reason: "CrashLoopBackOff".into(), message };
        self.start_errors.insert(container.name.clone(), error);
        Some(rest)
    }

    /// Stops everything, as often as it takes.
    async fn terminate_until_stopped(&mut self) {
        self.ending = true;
        self.start_errors.clear();
        let mailbox = self.mailbox.clone();
        let begun = Instant::now();
        let mut allowed = None;
        loop {
            self.take_facts();
            if let Err(error) = self.look().await {
                tracing::debug!(%error, pod = self.pod.name(), "could not look at an ending pod; trying again");
                tokio::time::sleep(self.failed()).await;
                continue;
            }
            if !self.orphan {
                self.tell(false);
            }
            // Grace only ever shrinks, and what has passed is not given again.
            let wanted = if self.orphan { ORPHAN_GRACE_SECONDS } else { pod_grace(&self.pod, self.grace) };
            let passed = i64::try_from(begun.elapsed().as_secs()).unwrap_or(i64::MAX);
            let grace = match allowed {
                Some(before) => wanted.min(before),
                None => wanted,
            };
            allowed = Some(grace);
            let left = if passed == 0 { grace } else { grace.saturating_sub(passed).max(1) };
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
        if !self.orphan {
            self.tell(true);
        }
        self.shared.prober.remove(&self.uid);
    }

    /// Takes down volumes, tells the last status, and cleans up once the pod is in no source any more.
    async fn finish(&mut self) {
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
        while !self.removed {
            mailbox.arrival().await;
            let generation = self.pod.meta().generation;
            self.take_facts();
            if !self.removed && self.pod.meta().generation != generation {
                // A late deletion changes what was observed, nothing else.
                self.tell_last();
            }
        }
        self.retry = FIRST_RETRY;
        while self.look().await.is_err() {
            tokio::time::sleep(self.failed()).await;
        }
        gc::remove_all(&self.shared, &self.pod, &self.observed).await;
        self.shared.userns.release(&self.uid);
        self.shared.status.forget(&self.uid);
    }
}

/// What containers are started in.
struct Sandbox {
    id: String,
    config: cri::PodSandboxConfig,
    ips: Vec<String>,
    userns: Option<cri::UserNamespace>,
}

/// Why a start did not come about.
enum Failure {
    /// Nothing to do before this has passed.
    Held(Duration),
    Retry,
}

/// The failure that is to be looked at sooner.
fn worse(a: Result<(), Failure>, b: Result<(), Failure>) -> Result<(), Failure> {
    match (a, b) {
        (Ok(()), other) | (other, Ok(())) => other,
        (Err(Failure::Held(a)), Err(Failure::Held(b))) => Err(Failure::Held(a.min(b))),
        _ => Err(Failure::Retry),
    }
}
