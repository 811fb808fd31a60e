//! Readiness, liveness and startup probes.
//!
//! One task owns the state of all probes and one heap of due times: a probe costs memory and a heap entry, never a task
//! or timer of its own, and only while its container runs. Workers say what runs ([`Prober::sync`]); verdicts come back
//! as [`Verdict`]s. A probe waits for its initial delay (counted from the container's start), readiness and liveness
//! also for the startup probe; after a failed liveness or startup probe it rests until a new container comes.
//!
//! Followed: `pkg/kubelet/prober`.

pub mod grpc;
mod heard;
pub mod http;
mod run;
mod schedule;
mod target;
pub(crate) mod tcp;
mod url;

use std::collections::HashMap;
use std::sync::Arc;

use proto::api::core::v1::{Container, Pod, Probe};
use tokio::sync::mpsc;

use crate::cri::CriClient;
use crate::events::Recorder;
use crate::pod::spec::{ContainerKind, PodExt, find_container, is_sidecar};
use crate::pod::step::ProbeVerdicts;

pub use target::{Target, resolve_port};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProbeKind {
    Readiness,
    Liveness,
    Startup,
}

impl ProbeKind {
    pub const ALL: [Self; 3] = [Self::Readiness, Self::Liveness, Self::Startup];

    pub fn word(self) -> &'static str {
        match self {
            Self::Readiness => "Readiness",
            Self::Liveness => "Liveness",
            Self::Startup => "Startup",
        }
    }

    pub fn of(self, container: &Container) -> Option<&Probe> {
        match self {
            Self::Readiness => container.readiness_probe.as_ref(),
            Self::Liveness => container.liveness_probe.as_ref(),
            Self::Startup => container.startup_probe.as_ref(),
        }
    }
}

/// A probe changed its mind.
#[derive(Debug, Clone)]
pub struct Verdict {
    pub uid: String,
    pub container_id: String,
    pub kind: ProbeKind,
    pub success: bool,
}

/// A running container that may have probes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    pub name: String,
    pub container_id: String,
    /// Unix nanoseconds.
    pub started_at: i64,
    /// What was known before the agent started: ready, started.
    pub before: Option<(bool, bool)>,
}

/// What runs of a pod.
#[derive(Debug, Clone)]
pub struct PodProbes {
    pub pod: Arc<Pod>,
    pub ip: String,
    pub running: Vec<Running>,
    /// Only readiness is still probed.
    pub terminating: bool,
}

enum Command {
    Sync(String, Box<PodProbes>),
    Remove(String),
}

/// A handle on the prober.
#[derive(Clone)]
pub struct Prober {
    commands: mpsc::UnboundedSender<Command>,
}

impl Prober {
    /// The handle and the task that runs all probes. `verdicts` gets every change.
    pub fn new(
        cri: CriClient,
        recorder: Recorder,
        verdicts: mpsc::Sender<Verdict>,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        // Commands are one per change of a pod and are taken at once; a bound could only make workers wait.
        let (commands, receiver) = mpsc::unbounded_channel();
        (Self { commands }, schedule::run(cri, recorder, verdicts, receiver))
    }

    pub fn sync(&self, uid: &str, probes: PodProbes) {
        // The prober ends with the agent only.
        let _ = self.commands.send(Command::Sync(uid.to_owned(), Box::new(probes)));
    }

    pub fn remove(&self, uid: &str) {
        let _ = self.commands.send(Command::Remove(uid.to_owned()));
    }
}

/// Whether anything of the pod is ever probed.
pub fn has_probes(pod: &Pod) -> bool {
    let spec = pod.spec();
    spec.containers
        .iter()
        .chain(spec.init_containers.iter().filter(|c| is_sidecar(c)))
        .any(|c| ProbeKind::ALL.iter().any(|k| k.of(c).is_some()))
}

/// What a status asks of probes.
pub trait Readiness {
    fn started(&self, name: &str, container_id: &str) -> bool;
    fn ready(&self, name: &str, container_id: &str) -> bool;
}

/// The verdicts of one pod, by container id; owned by its worker.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Verdicts {
    by_container: HashMap<String, [Option<bool>; 3]>,
}

impl Verdicts {
    pub fn set(&mut self, container_id: &str, kind: ProbeKind, success: bool) {
        self.by_container.entry(container_id.to_owned()).or_default()[kind as usize] = Some(success);
    }

    pub fn get(&self, container_id: &str, kind: ProbeKind) -> Option<bool> {
        self.by_container.get(container_id)?[kind as usize]
    }

    /// Forgets all but the named containers.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.by_container.retain(|id, _| keep(id));
    }

    /// The verdicts together with which probes the pod has.
    pub fn of<'a>(&'a self, pod: &'a Pod) -> PodVerdicts<'a> {
        PodVerdicts { verdicts: self, pod }
    }
}

impl ProbeVerdicts for Verdicts {
    fn liveness(&self, container_id: &str) -> Option<bool> {
        self.get(container_id, ProbeKind::Liveness)
    }
    fn startup(&self, container_id: &str) -> Option<bool> {
        self.get(container_id, ProbeKind::Startup)
    }
}

/// See [`Verdicts::of`].
pub struct PodVerdicts<'a> {
    verdicts: &'a Verdicts,
    pod: &'a Pod,
}

impl PodVerdicts<'_> {
    fn passes(&self, name: &str, container_id: &str, kind: ProbeKind) -> bool {
        let probed = find_container(self.pod.spec(), name)
            .is_some_and(|(list, c)| list != ContainerKind::Ephemeral && kind.of(&c).is_some());
        !probed || self.verdicts.get(container_id, kind) == Some(true)
    }
}

impl Readiness for PodVerdicts<'_> {
    fn started(&self, name: &str, container_id: &str) -> bool {
        self.passes(name, container_id, ProbeKind::Startup)
    }
    fn ready(&self, name: &str, container_id: &str) -> bool {
        self.passes(name, container_id, ProbeKind::Readiness)
    }
}
