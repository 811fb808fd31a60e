//! The node's own presence in the cluster: registration, status, lease.
//!
//! [`run`] registers the node and keeps its status: computed when something it depends on changes and every
//! `nodeStatusUpdateFrequency`, sent when it differs or `nodeStatusReportFrequency` has passed. What others write into
//! the object (labels, taints, conditions of the node controller) is watched, so that pods are judged by it at once. The
//! lease is renewed by a task of its own, so that neither can hold up the other. Nothing that may hang is waited for on
//! the way to a report: the runtime is asked by tasks of their own ([`monitor_runtime`] and the list of images), disk and
//! name service by threads.

mod addresses;
mod images;
mod keeper;
mod lease;
mod machine;
mod now;
mod own;
mod patch;
mod register;
mod resources;
mod runtime;
mod slow;
mod status;
mod tree;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use proto::api::core::v1::Node;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::api::Client;
use crate::config::{Configuration, FeatureGates};
use crate::cri::CriClient;
use crate::daemon::Beat;
use crate::device_plugins::Devices;

use keeper::Keeper;
use own::{Listeners, Seen, follow};

pub use addresses::{Network, choose as choose_addresses};
pub use machine::{HugePages, Machine, huge_pages, meminfo};
pub use now::NodeNow;
pub use own::is_known;
use resources::over_reserved;
pub use resources::{Resources, allocatable, capacity, unreserved};
pub use runtime::{RuntimeState, monitor as monitor_runtime, tell_uncollected, unknown as unknown_runtime};
pub use slow::Slow;
pub use status::{RESTART_ALL_CONTAINERS, USER_NAMESPACES_HOST_NETWORK, declared_by_gates, declared_features};

/// The version that clients see; what this agent does is what a kubelet of it does.
pub const KUBELET_VERSION: &str = "v1.36.2";

/// Why the node is not ready before the API server has been asked for its CSINode; upstream's words.
pub const NO_CSI_NODE: &str = "CSINode is not yet initialized";

/// What other parts of the agent have to say about the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeSignals {
    pub memory_pressure: bool,
    pub disk_pressure: bool,
    pub pid_pressure: bool,
    /// The machine goes down: no pod comes in any more.
    pub shutting_down: bool,
    /// Why storage drivers have no place in the API yet; the text is the Ready condition's. None once they have, and
    /// without an API server.
    pub csi_node: Option<String>,
    /// Further reasons why the node is not ready, such as missing cgroups.
    pub not_ready: Vec<String>,
    pub volumes_in_use: VolumesInUse,
}

/// Attachable volumes that pods use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumesInUse {
    pub names: Vec<String>,
    /// Counts how often they changed, so that it can be told which of it the API server has heard.
    pub change: u64,
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
    /// Pods may have what the thresholds of hard eviction would keep from them.
    pub allocatable_ignores_eviction: bool,
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
            allocatable_ignores_eviction: false,
        }
    }

    /// What the node has and what pods may have of it. May hang where the disk does.
    pub fn resources(&self) -> (Resources, Resources) {
        self.resources_on(storage_bytes(&self.root_dir))
    }

    /// What is reserved beyond what there is, in the kubelet's words. May hang where the disk does.
    pub fn over_reserved(&self) -> Option<String> {
        over_reserved(&self.machine, storage_bytes(&self.root_dir), &self.config)
    }

    /// The same with a file system of this size.
    fn resources_on(&self, storage_bytes: Option<u64>) -> (Resources, Resources) {
        let capacity = capacity(&self.machine, storage_bytes, &self.config);
        let allocatable = allocatable(&capacity, &self.config, !self.allocatable_ignores_eviction);
        (capacity, allocatable)
    }

    /// The agent's own server is for this machine alone, so that the node may be, too.
    pub fn is_local(&self) -> bool {
        crate::config::parse_ip(&self.config.address).is_some_and(|address| address.is_loopback())
    }

    /// What the node must have some of to be ready.
    fn required(&self) -> &'static [&'static str] {
        let all: &[&str] = &["cpu", "memory", "pods", "ephemeral-storage"];
        if self.config.local_storage_capacity_isolation { all } else { &all[..3] }
    }

    /// Whether somebody named an address of the node.
    fn has_given_address(&self) -> bool {
        self.given_addresses.first().is_some_and(|address| !address.is_unspecified())
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
            required: settings.required(),
            allocatable: &allocatable,
            addresses: Some(addresses),
            given: settings.has_given_address(),
            runtime: &unknown_runtime(),
            pleg: None,
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
    /// As they were at the start.
    pub addresses: Vec<IpAddr>,
    pub runtime: watch::Receiver<Arc<RuntimeState>>,
    pub signals: watch::Sender<NodeSignals>,
    /// Gets why the API server does not hear of this node; None while it does.
    pub reach: watch::Sender<Option<String>>,
    /// Gets the node as the API server has it, after each write of anybody.
    pub node: watch::Sender<Arc<Node>>,
    /// Becomes true when the API server has said what it has of this node, also where that is nothing.
    pub heard: watch::Sender<bool>,
    /// Gets the last change of the volumes in use that the API server has heard of, after the node that says so.
    pub volumes_heard: watch::Sender<u64>,
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
    let heartbeat = deps.client.for_heartbeats(heartbeat_timeout(&deps.settings.config));
    let silence = Arc::new(Notify::new());
    let lease = lease::renew(
        heartbeat.clone(),
        deps.settings.name.clone(),
        deps.settings.config.node_lease_duration_seconds,
        (deps.lease_beat.clone(), deps.reach.clone()),
        silence.clone(),
    );
    let (hint, seen) = watch::channel(Seen::Written);
    // They end with this one.
    let mut beside = JoinSet::new();
    beside.spawn(lease);
    let (client, name) = (deps.client.clone(), deps.settings.name.clone());
    let listeners = Listeners { node: deps.node.clone(), heard: deps.heard.clone(), seen: hint };
    beside.spawn(async move { follow(client, &name, listeners, silence).await });
    Keeper::new(heartbeat, deps).keep(seen).await;
}

/// Notes how it went to reach the API server; who watches hears of what changes.
fn note_reach(reach: &watch::Sender<Option<String>>, trouble: Option<String>) {
    reach.send_if_modified(|held| {
        let changed = *held != trouble;
        *held = trouble;
        changed
    });
}

/// How often the status is computed. What is configured is not validated, and nothing or less must not be a loop without
/// a pause.
fn status_period(config: &Configuration) -> Duration {
    config.node_status_update_frequency.get().max(Duration::from_millis(100))
}

/// How long one request of a heartbeat may take.
fn heartbeat_timeout(config: &Configuration) -> Duration {
    let lease = u64::try_from(config.node_lease_duration_seconds).unwrap_or(40);
    status_period(config).min(Duration::from_secs(lease))
}

/// How long one round of a heartbeat can take while all is well with the agent: each of its tries may read, write and
/// read again, and the API server be late with each answer.
pub fn round_limit(config: &Configuration) -> Duration {
    Duration::from_secs(30) + heartbeat_timeout(config) * 20
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
