//! What a worker does about the actions of a step: kills, the sandbox, starts, resizes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proto::api::core::v1::{Container, Pod, Secret};
use proto::cri;

use crate::events::EventType;
use crate::images::puller::Wanted;
use crate::pleg::observed::Observed;
use crate::pod::crash_loop::Moment;
use crate::pod::resize::Plan;
use crate::pod::sandbox_config::{SandboxInputs, sandbox_config};
use crate::pod::spec::PodExt;
use crate::pod::step::{Actions, Kill};
use crate::status::StartError;
use crate::status::generate::one_of_each_family;
use crate::volumes::{PodVolumes, groups};
use crate::{metrics, spans};

use super::kill::Stopping;
use super::resize::Resizing;
use super::round::{self, Hands, carry_out};
use super::start::StartContext;
use super::worker::Worker;
use super::{gc, kill, late};

/// The kubelet's `backOffPeriod`.
const PULL_RETRY: Duration = Duration::from_secs(10);

impl Worker {
    pub(super) async fn pull_secrets(&self) -> Vec<Arc<Secret>> {
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

    /// Does what [`step`] wants, in the order of [`carry_out`].
    ///
    /// [`step`]: crate::pod::step::step
    pub(super) async fn act(&mut self, actions: Actions, resize: Plan, volumes: &PodVolumes) -> Result<(), Failure> {
        let pod = self.pod.clone();
        let mut hands =
            WorkersHands { pod: pod.clone(), worker: self, volumes, resize, sandbox_id: actions.sandbox_id.clone() };
        carry_out(&mut hands, pod.spec(), &actions).await
    }

    /// Gives running containers and the pod's cgroup what is allocated.
    pub(super) async fn resize(&self, plan: Plan, sandbox_id: &str) -> Result<(), Failure> {
        if plan.is_empty() {
            return Ok(());
        }
        let resizing = Resizing { shared: &self.shared, pod: &self.pod, sandbox_id };
        let begun = tokio::time::Instant::now();
        let outcome = resizing.run(plan).await;
        let success = if outcome.is_ok() { "true" } else { "false" };
        metrics::RESIZE_MILLISECONDS.observe(&[success], begun.elapsed().as_secs_f64() * 1000.0);
        let Err(why) = outcome else { return Ok(()) };
        spans::fail(|| why.clone());
        let generation = self.pod.meta().generation;
        if self.shared.allocations.fail(&self.uid, generation, &why, crate::clock::now()) {
            let message = super::resizes::told(&self.pod, generation, &why, "Pod resize error");
            self.shared.recorder.pod(&self.pod, EventType::Warning, "ResizeError", message);
        }
        Err(Failure::Retry)
    }

    /// What could not be stopped of a pod that goes on is tried again; events are for the ends of pods.
    fn not_stopped(&self, error: &dyn std::fmt::Display) -> Failure {
        tracing::warn!(%error, pod = self.pod.name(), "could not stop a part of a pod; trying again");
        spans::fail(|| error.to_string());
        Failure::Retry
    }

    pub(super) fn kill_failed(&mut self, error: &dyn std::fmt::Display) -> Failure {
        spans::fail(|| error.to_string());
        self.shared.recorder.pod(&self.pod, EventType::Warning, "FailedKillPod", format!("error killing pod: {error}"));
        Failure::Retry
    }

    /// Pulls the images that are volumes; what fails keeps back only the containers that mount it.
    pub(super) async fn image_volumes(
        &self,
        sandbox: &cri::PodSandboxConfig,
        secrets: &[Arc<Secret>],
    ) -> BTreeMap<String, Result<String, StartError>> {
        let mut found = BTreeMap::new();
        for volume in &self.pod.spec().volumes {
            let Some(image) = volume.volume_source.as_ref().and_then(|s| s.image.as_ref()) else { continue };
            let wanted = Wanted {
                pod: &self.pod,
                container: None,
                image: &image.reference,
                policy: &image.pull_policy,
                carried: &self.carried,
                status: &self.shared.status,
            };
            metrics::IMAGE_VOLUMES_REQUESTED.inc(&[]);
            let pulled = self.shared.puller.ensure(wanted, sandbox, secrets).await;
            found.insert(volume.name.clone(), pulled.map(|image| image.id));
        }
        found
    }

    pub(super) fn sandbox_failed(&self, why: &str) -> Failure {
        let message = format!("Failed to create pod sandbox: {why}");
        spans::fail(|| message.clone());
        // Of a pod that is to end nobody needs one.
        if self.mailbox.end_wanted().is_some() {
            return Failure::Retry;
        }
        self.shared.recorder.pod(&self.pod, EventType::Warning, "FailedCreatePodSandBox", message);
        Failure::Retry
    }

    /// The sandbox to start containers in, made if need be.
    async fn sandbox(&mut self, actions: &Actions, volumes: &PodVolumes) -> Result<Sandbox, Failure> {
        let shared = self.shared.clone();
        let pod = self.pod.clone();
        let dns = crate::dns_hosts::dns_config(&pod, &shared.config.dns).map_err(|why| self.sandbox_failed(&why));
        let (dns, troubles) = dns?;
        for trouble in troubles {
            if let Some(message) = trouble.of_node {
                (shared.node_events)("Warning", trouble.reason, message);
            }
            shared.recorder.pod(&pod, EventType::Warning, trouble.reason, trouble.message);
        }
        // A pod on the host's network has the host's name, whatever it would be called.
        let hostname = match pod.spec().host_network {
            true => String::new(),
            false => crate::dns_hosts::hostname(&pod, &shared.config.dns).map_err(|why| self.sandbox_failed(&why))?,
        };
        // A sandbox that is there has its handler and its users already.
        let handler = match self.runtime_handler().await {
            Ok(handler) => handler,
            Err(why) if actions.create_sandbox => return Err(self.sandbox_failed(&why)),
            Err(_) => String::new(),
        };
        let node = shared.node.borrow().clone();
        if pod.spec().host_users == Some(false) {
            shared.userns.recover(&shared.cri).await.map_err(|why| self.sandbox_failed(&why))?;
        }
        let userns = shared.userns.of(&pod, &handler, &node).map_err(|why| self.sandbox_failed(&why))?;
        let mut config = sandbox_config(
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
        if let Some(context) = config.linux.as_mut().and_then(|linux| linux.security_context.as_mut()) {
            groups::add(&pod, volumes, &mut context.supplemental_groups);
        }
        if shared.managers.lifts_quota(&pod)
            && let Some(resources) = config.linux.as_mut().and_then(|linux| linux.resources.as_mut())
            && resources.cpu_quota > 0
        {
            resources.cpu_quota = -1;
        }
        let addresses = |observed: &Observed| {
            let of_node = shared.host_ips();
            if pod.spec().host_network { of_node } else { one_of_each_family(observed.ips(), of_node.first()) }
        };
        if !actions.create_sandbox {
            let ips = addresses(&self.observed);
            return Ok(Sandbox { id: actions.sandbox_id.clone(), config, ips, userns });
        }
        if let Err(why) = shared.dra.prepare(&pod).await {
            let message = format!("Failed to prepare dynamic resources: {why}");
            spans::fail(|| message.clone());
            shared.recorder.pod(&pod, EventType::Warning, "FailedPrepareDynamicResources", message);
            return Err(Failure::Retry);
        }
        metrics::STARTED_PODS.inc(&[]);
        if userns.is_some() {
            metrics::USERNS_PODS.inc(&[]);
        }
        let made = match std::fs::create_dir_all(&config.log_directory) {
            Ok(()) => {
                let labels = [handler.as_str()];
                let timer = metrics::RUN_PODSANDBOX.time(&labels);
                let made = late::sandbox(&shared.unheard, &shared.cri, config.clone(), handler.clone(), &pod).await;
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
            if userns.is_some() {
                metrics::USERNS_PODS_ERRORS.inc(&[]);
            }
            self.sandbox_failed(&why)
        })?;
        // Its cgroup was made with what is allocated.
        if let Some(whole_pod) = &pod.spec().resources {
            shared.allocations.give_pod(&self.uid, Some(whole_pod.clone()));
        }
        if let Err(error) = self.look_at_new_sandbox(&id).await {
            let message = format!("Unable to get pod sandbox status: {error}");
            spans::fail(|| message.clone());
            shared.recorder.pod(&pod, EventType::Warning, "FailedStatusPodSandBox", message);
            return Err(Failure::Retry);
        }
        match self.pod.spec().init_containers.is_empty() {
            true => self.tell_before_containers(),
            // They may take long, and look for what is said of their pod.
            false => self.tell(false),
        }
        let ips = addresses(&self.observed);
        Ok(Sandbox { id, config, ips, userns })
    }

    pub(super) async fn runtime_handler(&self) -> Result<String, String> {
        let Some(class) = self.pod.spec().runtime_class_name.as_deref().filter(|c| !c.is_empty()) else {
            return Ok(String::new());
        };
        // Nobody can say what a class means: the runtime's own handler is the only one.
        if self.shared.config.standalone {
            return Ok(String::new());
        }
        let found = self.shared.client.get::<proto::api::node::v1::RuntimeClass>("", class).await;
        found.map(|c| c.handler).map_err(|error| match error.is_not_found() {
            true => format!("runtimeclass.node.k8s.io {class:?} not found"),
            false => format!("failed to lookup RuntimeClass {class}: {error}"),
        })
    }

    /// Starts one container.
    async fn start(
        &mut self,
        context: &StartContext<'_>,
        container: &Container,
        target: Option<&str>,
    ) -> Result<(), Failure> {
        let name = container.name.clone();
        match context.start(container, target).await {
            Ok(id) => {
                self.start_errors.remove(&name);
                self.made.push((id, context.sandbox_id.to_owned()));
                Ok(())
            }
            Err(error) => {
                let held = self.shared.puller.remaining(&self.uid, &container.image).is_some();
                // One that is held back has not failed anew.
                if error.reason != "ImagePullBackOff" {
                    let quoted = crate::env::go_quote(&error.message);
                    spans::fail(|| {
                        format!("failed to \"StartContainer\" for {name:?} with {}: {quoted}", error.reason)
                    });
                }
                self.start_errors.insert(name, error);
                Err(if held { Failure::Held(self.pull_wait()) } else { Failure::Retry })
            }
        }
    }

    /// Until the next try of a pod whose image could not be pulled. It does not wait for the end of the back-off: the tries
    /// in between tell that the image is held back.
    fn pull_wait(&self) -> Duration {
        crate::backoff::jitter(PULL_RETRY.min(self.shared.config.sync_frequency), 0.5)
    }

    /// The rest of a crash loop's wait, counted from the last end.
    pub(super) fn held_back(&mut self, container: &Container) -> Option<Duration> {
        let (rest, delay) = self.crash_loop.hold(container, &self.observed, Moment::now())?;
        let described = self.pod.described();
        let event = format!("Back-off restarting failed container {} in pod {described}", container.name);
        self.shared.recorder.container(&self.pod, &container.name, EventType::Warning, "BackOff", event);
        let delay = proto::duration::format(i64::try_from(delay.as_nanos()).unwrap_or(i64::MAX));
        let message = format!("back-off {delay} restarting failed container={} pod={described}", container.name);
        let error = StartError { reason: "CrashLoopBackOff".into(), message };
        self.start_errors.insert(container.name.clone(), error);
        Some(rest)
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
pub(super) enum Failure {
    /// Nothing to do before this has passed.
    Held(Duration),
    Retry,
}

impl round::Failure for Failure {
    /// A worker that is to do nothing more is not asked.
    fn ends_round(&self) -> bool {
        false
    }

    fn worse(self, other: Self) -> Self {
        match (self, other) {
            (Self::Held(a), Self::Held(b)) => Self::Held(a.min(b)),
            _ => Self::Retry,
        }
    }
}

/// A worker that carries out a step.
struct WorkersHands<'a> {
    worker: &'a mut Worker,
    pod: Arc<Pod>,
    volumes: &'a PodVolumes,
    resize: Plan,
    /// The sandbox that the step knows of.
    sandbox_id: String,
}

/// A sandbox, and what the starts in it have in common.
struct Ready {
    sandbox: Sandbox,
    secrets: Vec<Arc<Secret>>,
    image_volumes: BTreeMap<String, Result<String, StartError>>,
    observed: Observed,
}

impl Hands for WorkersHands<'_> {
    type Failure = Failure;
    type Sandbox = Ready;

    fn observed(&self) -> Result<&Observed, Failure> {
        Ok(&self.worker.observed)
    }

    async fn kill_pod(&mut self, replaced: bool) -> Result<(), Failure> {
        let (shared, worker) = (self.worker.shared.clone(), &mut *self.worker);
        if replaced {
            let message = "Pod sandbox changed, it will be killed and re-created.";
            shared.recorder.pod(&self.pod, EventType::Normal, "SandboxChanged", message);
        }
        let stopping = Stopping::default();
        let stopped = (&mut worker.stopped_sandboxes, &stopping);
        let killed = kill::kill_pod(&shared, &self.pod, &worker.observed, None, stopped).await;
        killed.map_err(|error| self.worker.not_stopped(&error))
    }

    async fn purge_init(&mut self) -> Result<(), Failure> {
        gc::purge_init(&self.worker.shared, &self.pod, &self.worker.observed).await;
        Ok(())
    }

    async fn kill(&mut self, kill: &Kill) -> Result<(), Failure> {
        let ip = self.worker.observed.ips().first().cloned().unwrap_or_default();
        let killed = kill::kill_one(&self.worker.shared, &self.pod, kill, &ip).await;
        killed.map_err(|error| self.worker.not_stopped(&error))
    }

    async fn remove(&mut self, kill: &Kill) -> Result<(), Failure> {
        gc::remove_container(&self.worker.shared, &self.pod, &kill.name, &kill.container_id, None).await;
        Ok(())
    }

    fn forget_failures(&mut self) -> Result<(), Failure> {
        self.worker.start_errors.clear();
        Ok(())
    }

    async fn sandbox(&mut self, actions: &Actions) -> Result<Ready, Failure> {
        let secrets = self.worker.pull_secrets().await;
        let sandbox = self.worker.sandbox(actions, self.volumes).await?;
        let image_volumes = self.worker.image_volumes(&sandbox.config, &secrets).await;
        Ok(Ready { sandbox, secrets, image_volumes, observed: self.worker.observed.clone() })
    }

    async fn resize(&mut self, ready: Option<&Ready>) -> Result<(), Failure> {
        let sandbox_id = ready.map_or(&self.sandbox_id, |ready| &ready.sandbox.id);
        self.worker.resize(std::mem::take(&mut self.resize), sandbox_id).await
    }

    fn held_back(&mut self, container: &Container) -> Result<Option<Failure>, Failure> {
        Ok(self.worker.held_back(container).map(Failure::Held))
    }

    async fn remove_unstarted(&mut self, id: &str) -> Result<(), Failure> {
        let Err(error) = self.worker.shared.cri.remove_container(id).await else { return Ok(()) };
        tracing::warn!(%error, container = id, pod = self.pod.name(), "could not remove a container");
        spans::fail(|| error.to_string());
        Err(Failure::Retry)
    }

    async fn start(&mut self, ready: &Ready, container: &Container, target: Option<&str>) -> Result<(), Failure> {
        let shared = self.worker.shared.clone();
        let context = StartContext {
            shared: &shared,
            pod: &self.pod,
            observed: &ready.observed,
            sandbox_id: &ready.sandbox.id,
            sandbox: &ready.sandbox.config,
            ips: &ready.sandbox.ips,
            volumes: self.volumes,
            secrets: &ready.secrets,
            userns: ready.sandbox.userns.as_ref(),
            starts: &self.worker.starts.clone(),
            carried: &self.worker.carried.clone(),
            image_volumes: &ready.image_volumes,
        };
        self.worker.start(&context, container, target).await
    }
}
