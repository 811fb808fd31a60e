//! The node's own presence in the cluster: registration, status, lease.
//!
//! [`run`] registers the node and keeps its status: computed when something it depends on changes and every
//! `nodeStatusUpdateFrequency`, sent when it differs or `nodeStatusReportFrequency` has passed. What others write into
//! the object (labels, taints, conditions of the node controller) is watched, so that pods are judged by it at once. The
//! lease is renewed by a task of its own, so that neither can hold up the other. [`monitor_runtime`] feeds the runtime's
//! state to both the status and the pods.

mod addresses;
mod lease;
mod machine;
mod own;
mod patch;
mod register;
mod resources;
mod runtime;
mod status;
mod tree;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use proto::api::core::v1::{Node, NodeStatus};
use proto::cri;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::api::{ApiError, Client, PatchType};
use crate::backoff::jitter;
use crate::config::{Configuration, FeatureGates};
use crate::cri::CriClient;
use crate::daemon::Beat;
use crate::device_plugins::Devices;
use crate::metrics;

use own::{Seen, follow};

pub use addresses::{Network, choose as choose_addresses};
pub use machine::{HugePages, Machine, huge_pages, meminfo};
pub use resources::{Resources, allocatable, capacity, unreserved};
pub use runtime::{RuntimeState, monitor as monitor_runtime, unknown as unknown_runtime};

/// The version that clients see; what this agent does is what a kubelet of it does.
pub const KUBELET_VERSION: &str = "v1.36.2";

const STATUS_TYPE: &str = "k8s.io.api.core.v1.NodeStatus";
/// Tries to send one status before the next tick.
const TRIES: u32 = 5;
/// What others write into the status is answered at most this often: writers that disagree must not race.
const ANSWER: Duration = Duration::from_secs(1);
/// The kubelet lists images this often for the status.
const IMAGES_AGE: Duration = Duration::from_secs(30);

/// What other parts of the agent have to say about the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeSignals {
    pub memory_pressure: bool,
    pub disk_pressure: bool,
    pub pid_pressure: bool,
    /// The machine goes down: no pod comes in any more.
    pub shutting_down: bool,
    /// Further reasons why the node is not ready, such as missing cgroups.
    pub not_ready: Vec<String>,
    /// Unique names of attachable volumes that pods use.
    pub volumes_in_use: Vec<String>,
}

/// Where events about the node go: type, reason, message.
pub type NodeEvents = Arc<dyn Fn(&'static str, &str, String) + Send + Sync>;

/// What the node is, fixed at start.
#[derive(Clone)]
pub struct NodeSettings {
    pub name: String,
    pub config: Arc<Configuration>,
    pub gates: FeatureGates,
    pub labels: BTreeMap<String, String>,
    pub external_cloud: bool,
    pub given_addresses: Vec<IpAddr>,
    pub machine: Arc<Machine>,
    pub root_dir: PathBuf,
}

impl NodeSettings {
    #[cfg(test)]
    fn for_tests(name: &str) -> Self {
        NodeSettings {
            name: name.into(),

            config: Arc::new(Configuration { enable_controller_attach_detach: true, ..Configuration::default() }),
            gates: FeatureGates::default(),
            labels: BTreeMap::new(),
            external_cloud: false,
            given_addresses: Vec::new(),
            machine: Arc::new(Machine { architecture: "amd64", ..Machine::default() }),
            root_dir: "/".into(),
        }
    }

    /// What the node has and what pods may have of it, now.
    pub fn resources(&self) -> (Resources, Resources) {
        let capacity = capacity(&self.machine, storage_bytes(&self.root_dir), &self.config);
        let allocatable = allocatable(&capacity, &self.config);
        (capacity, allocatable)
    }
}

/// The node as it is known before the API server has said a word: for pods that start without it.
pub fn local_node(settings: &NodeSettings, addresses: &[IpAddr]) -> Node {
    let (capacity, allocatable) = settings.resources();
    let status = status::build(
        &Value::Null,
        &status::Facts {
            name: &settings.name,
            machine: &settings.machine,
            capacity: &capacity,
            allocatable: &allocatable,
            addresses,
            runtime: &unknown_runtime(),
            signals: &NodeSignals::default(),
            images: &[],
            port: settings.config.port,
            gates: &settings.gates,
            external_cloud: false,
            now: &proto::time::Timestamp::now().to_seconds_text(),
        },
    );
    register::new_node(settings, &status)
}

/// What [`run`] needs.
#[derive(Clone)]
pub struct NodeDeps {
    pub settings: NodeSettings,
    pub client: Client,
    pub cri: CriClient,
    pub addresses: Vec<IpAddr>,
    pub runtime: watch::Receiver<Arc<RuntimeState>>,
    pub signals: watch::Receiver<NodeSignals>,
    /// Gets the node as the API server has it, after each write of anybody.
    pub node: watch::Sender<Arc<Node>>,
    pub events: NodeEvents,
    pub status_beat: Beat,
    pub lease_beat: Beat,
    /// What plugins offer beside the machine's own.
    pub devices: Arc<Devices>,
    /// There is no API server: what is known of the node is for its own pods alone.
    pub standalone: bool,
}

/// Registers the node and keeps its status and lease until the task is dropped.
pub async fn run(deps: NodeDeps) {
    if deps.standalone {
        let (_silent, seen) = watch::channel(Seen::Written);
        return Keeper::new(deps.client.clone(), deps).keep(seen).await;
    }
    let heartbeat =
        deps.client.for_heartbeats(
            deps.settings.config.node_status_update_frequency.get().min(Duration::from_secs(
                u64::try_from(deps.settings.config.node_lease_duration_seconds).unwrap_or(40),
            )),
        );
    let lease = lease::renew(
        heartbeat.clone(),
        deps.settings.name.clone(),
        deps.settings.config.node_lease_duration_seconds,
        deps.lease_beat.clone(),
    );
    let (hint, seen) = watch::channel(Seen::Written);
    let mut keeper = Keeper::new(heartbeat, deps);
    let deps = keeper.deps.clone();
    // Held up by nothing that a report waits for.
    tokio::join!(lease, follow(&deps, hint), keeper.keep(seen));
}

struct Keeper {
    deps: NodeDeps,
    heartbeat: Client,
    images: Vec<Value>,
    images_at: Option<Instant>,
    /// The status that the API server has, whoever wrote it last.
    known: Option<Value>,
    /// When this agent wrote or first read it.
    reported: Instant,
    first_report: bool,
    /// Until the API server has heard that the node is ready.
    registered: Option<Instant>,
}

impl Keeper {
    fn new(heartbeat: Client, deps: NodeDeps) -> Self {
        Keeper {
            heartbeat,
            images: Vec::new(),
            images_at: None,
            known: None,
            reported: Instant::now(),
            first_report: true,
            registered: None,
            deps,
        }
    }

    async fn keep(&mut self, mut seen: watch::Receiver<Seen>) {
        let mut runtime = self.deps.runtime.clone();
        let mut signals = self.deps.signals.clone();
        let mut devices = self.deps.devices.changes();
        if self.deps.settings.config.register_node && !self.deps.standalone {
            self.register().await;
        }
        let update = self.deps.settings.config.node_status_update_frequency.get();
        loop {
            self.deps.status_beat.begin().await;
            if self.deps.standalone {
                self.note();
            } else {
                self.refresh_images().await;
                if let Err(error) = self.report().await {
                    tracing::warn!(%error, "cannot update the node's status");
                }
            }
            self.deps.status_beat.end();
            let next_tick = Instant::now() + jitter(update, 0.04);
            let mut answer_from = Instant::now() + ANSWER;
            // When to look at what others wrote, if they did.
            let mut look: Option<Instant> = None;
            loop {
                tokio::select! {
                    () = tokio::time::sleep_until(look.map_or(next_tick, |at| at.min(next_tick))) => {
                        if look.take().is_some() {
                            self.take_over(*seen.borrow());
                        }
                        if Instant::now() >= next_tick || self.has_something_to_say() {
                            break;
                        }
                        answer_from = Instant::now() + ANSWER;
                    }
                    Ok(()) = runtime.changed() => break,
                    Ok(()) = signals.changed() => break,
                    Ok(()) = devices.changed() => break,
                    Ok(()) = seen.changed() => {
                        look.get_or_insert_with(|| answer_from.max(Instant::now()));
                    }
                }
            }
            if look.is_some() {
                self.take_over(*seen.borrow());
            }
        }
    }

    /// Goes on from what the watch said of this node.
    fn take_over(&mut self, said: Seen) {
        self.known = match said {
            Seen::Written => Some(status_of(&self.deps.node.borrow())),
            // The next report finds out whether it is really gone, and registers it again.
            Seen::Gone => None,
        };
    }

    /// Whether the API server does not have the status as it is.
    fn has_something_to_say(&self) -> bool {
        self.known.as_ref().is_none_or(|known| status::differ(known, &self.compute(known)))
    }

    /// Keeps the status for this node's own pods: what the runtime can do, and what plugins give.
    fn note(&mut self) {
        let status = self.compute(self.known.as_ref().unwrap_or(&Value::Null));
        self.deps.node.send_replace(Arc::new(register::new_node(&self.deps.settings, &status)));
        self.known = Some(status);
    }

    async fn register(&mut self) {
        // Which images there are must not hold up the node when the runtime is slow to start.
        if self.deps.runtime.borrow().is_ready() {
            self.refresh_images().await;
        }
        let began = std::time::Instant::now();
        let first = || {
            let status = self.compute(&Value::Null);
            self.tell(&Value::Null, &status);
            status
        };
        let node = register::register(&self.deps.client, &self.deps.settings, first).await;
        metrics::NODE_STARTUP_REGISTRATION.set(&[], began.elapsed().as_secs_f64());
        self.registered = Some(Instant::now());
        if let Err(error) = register::ensure_csi_node(&self.deps.client, &node).await {
            tracing::warn!(%error, "cannot make the node's CSINode");
        }
        self.accept(node);
        self.reported = Instant::now();
    }

    /// Sends the status when it differs from what the API server has, or has not been sent for long.
    async fn report(&mut self) -> Result<(), ApiError> {
        if self.known.is_none() {
            match self.heartbeat.get_at::<Node>("", &self.deps.settings.name, "0").await {
                Ok(node) => self.accept(node),
                Err(error) if error.is_not_found() && self.deps.settings.config.register_node => self.register().await,
                Err(error) => return Err(error),
            }
        }
        for attempt in 1.. {
            let Some(old) = &self.known else { return Ok(()) };
            let new = self.compute(old);
            if !status::differ(old, &new) && self.reported.elapsed() < self.report_interval() && !self.first_report {
                return Ok(());
            }
            let Some(changes) = patch::diff(old, &new) else { return Ok(()) };
            self.tell(old, &new);
            let body = json!({"status": changes}).to_string();
            let name = self.deps.settings.name.clone();
            match self.heartbeat.patch::<Node>("", &name, "status", PatchType::StrategicMerge, body).await {
                Ok(node) => {
                    self.first_report = false;
                    self.reported = Instant::now();
                    // The watch may have brought a later one meanwhile.
                    own::publish(&self.deps.node, node);
                    self.known = Some(status_of(&self.deps.node.borrow()));
                    if status::is_ready(&new)
                        && let Some(at) = self.registered.take()
                    {
                        metrics::NODE_STARTUP_POST_REGISTRATION.set(&[], at.elapsed().as_secs_f64());
                    }
                    return Ok(());
                }
                Err(error) if error.is_not_found() && self.deps.settings.config.register_node => {
                    // Someone deleted the node: it is still here, so it says so.
                    self.known = None;
                    self.register().await;
                }
                Err(error) if error.is_retriable() && attempt < TRIES => {
                    tracing::debug!(%error, attempt, "sending the node's status again");
                    self.heartbeat.reconnect();
                }
                Err(error) => {
                    // Patches build on what the server has: read it again before the next one.
                    self.known = None;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn report_interval(&self) -> Duration {
        self.deps.settings.config.node_status_report_frequency.get()
    }

    fn accept(&mut self, node: Node) {
        self.known = Some(status_of(&node));
        self.deps.node.send_replace(Arc::new(node));
    }

    fn compute(&self, old: &Value) -> Value {
        let (mut capacity, mut allocatable) = self.deps.settings.resources();
        for (name, (all, healthy)) in self.deps.devices.amounts() {
            capacity.insert(name.clone(), resources::count(all));
            allocatable.insert(name, resources::count(healthy));
        }
        let runtime = self.deps.runtime.borrow().clone();
        let signals = self.deps.signals.borrow().clone();
        let settings = &self.deps.settings;
        let now = proto::time::Timestamp::now().to_seconds_text();
        let built = status::build(
            old,
            &status::Facts {
                name: &settings.name,
                machine: &settings.machine,
                capacity: &capacity,
                allocatable: &allocatable,
                addresses: &self.deps.addresses,
                runtime: &runtime,
                signals: &signals,
                images: &self.images,
                port: settings.config.port,
                gates: &settings.gates,
                external_cloud: settings.external_cloud,
                now: &now,
            },
        );
        // The same normal form that the API server's answer gets, so that both compare.
        tree::parse::<NodeStatus>(STATUS_TYPE, &built).map_or(built, |status| tree::of(STATUS_TYPE, &status))
    }

    async fn refresh_images(&mut self) {
        if self.images_at.is_some_and(|at| at.elapsed() < IMAGES_AGE) {
            return;
        }
        match self.deps.cri.list_images(cri::ListImagesRequest::default()).await {
            Ok(list) => {
                self.images = status::images(&list.images, self.deps.settings.config.node_status_max_images);
                self.images_at = Some(Instant::now());
            }
            Err(error) => tracing::debug!(%error, "cannot list images for the node's status"),
        }
    }

    /// Events for the conditions that turn.
    fn tell(&self, old: &Value, new: &Value) {
        for condition in new.get("conditions").and_then(Value::as_array).into_iter().flatten() {
            let text = |c: &Value, key: &str| c.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
            let kind = text(condition, "type");
            let before = old
                .get("conditions")
                .and_then(Value::as_array)
                .and_then(|l| l.iter().find(|c| text(c, "type") == kind))
                .map(|c| text(c, "status"));
            let now = text(condition, "status");
            if before.as_deref() == Some(now.as_str()) {
                continue;
            }
            let reason = match (kind.as_str(), now.as_str()) {
                ("Ready", "True") => "NodeReady",
                ("Ready", _) if before.is_some() => "NodeNotReady",
                ("MemoryPressure", "True") => "NodeHasInsufficientMemory",
                ("MemoryPressure", _) => "NodeHasSufficientMemory",
                ("DiskPressure", "True") => "NodeHasDiskPressure",
                ("DiskPressure", _) => "NodeHasNoDiskPressure",
                ("PIDPressure", "True") => "NodeHasInsufficientPID",
                ("PIDPressure", _) => "NodeHasSufficientPID",
                _ => continue,
            };
            let message = format!("Node {} status is now: {reason}", self.deps.settings.name);
            (self.deps.events)("Normal", reason, message);
        }
    }
}

/// The status as a tree, in the form that [`Keeper::compute`] gives it.
fn status_of(node: &Node) -> Value {
    tree::of(STATUS_TYPE, &node.status.clone().unwrap_or_default())
}

/// Size of the file system below a folder.
fn storage_bytes(folder: &std::path::Path) -> Option<u64> {
    let found = nix::sys::statvfs::statvfs(folder).ok()?;
    Some(found.blocks() * found.fragment_size())
}

/// Seconds since the machine started, as events and statistics need it.
pub fn boot_time() -> Option<SystemTime> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let seconds = text.lines().find_map(|l| l.strip_prefix("btime ")?.trim().parse().ok())?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}
