//! The pods of this node: [`Manager`] owns the table of pods, a worker per pod brings it to life and to its end.
//!
//! Facts go down (sources, runtime, probes -> table -> worker), reports come up (worker -> table). A worker computes
//! what to do with [`crate::pod::step`] and does it; the status goes to [`crate::status::manager`].

mod act;
mod admission;
mod admit;
pub(crate) mod allocations;
mod container_gc;
mod counts;
mod device_admission;
mod first_seen;
pub(crate) mod gc;
mod handle;
mod hooks;
pub(crate) mod kill;
mod late;
mod log_sweep;
mod mailbox;
mod manager;
mod mirror;
mod mirrors;
mod node_state;
mod orphans;
mod pod_features;
mod preemption;
mod recalled;
mod resize;
mod resizes;
pub(crate) mod round;
mod start;
pub(crate) mod starts;
mod telling;
mod terminate;
mod user_ids;
mod userns;
mod worker;
mod workers;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use proto::api::core::v1::Node;
use tokio::sync::watch;

use crate::api::Client;
use crate::cgroups::Cgroups;
use crate::cri::CriClient;
use crate::device_plugins::Devices;
use crate::dns_hosts::NodeDns;
use crate::dra::Dra;
use crate::events::Recorder;
use crate::images::gc::ImageGc;
use crate::images::puller::{PullDeps, Puller};
use crate::node::{NodeEvents, NodeSignals, RuntimeState};
use crate::objects::Objects;
use crate::pleg::observed::Observed;
use crate::pleg::{Latest, Nudge};
use crate::pod::resources::NodeResources;
use crate::pods_api::PodFeed;
use crate::probes::Prober;
use crate::resource_managers::Managers;
use crate::sources::url::StaticPodUrl;
use crate::status::manager::StatusManager;
use crate::volumes;

pub use container_gc::ContainerGc;
pub use handle::{ContainerInfo, FindError, Handle};
pub use mailbox::End;
pub use manager::Manager;
pub use pod_features::PodFeatures;
pub use user_ids::{IDS_PER_POD, UserIds};

/// Settings of the node that concern pods.
#[derive(Debug, Clone)]
pub struct Config {
    pub node_name: String,
    pub root_dir: PathBuf,
    pub pod_logs_dir: PathBuf,
    /// Where `POD_NS_CTR-ID.log` links are kept; `None` for none.
    pub log_links_dir: Option<PathBuf>,
    /// No API server: all pods are static.
    pub standalone: bool,
    pub static_pod_path: Option<PathBuf>,
    pub file_check_frequency: Duration,
    pub static_pod_url: Option<StaticPodUrl>,
    /// Static pods may name objects of the API server.
    pub static_pods_may_reference: bool,
    /// Longest time between looks at a pod that nothing happened to.
    pub sync_frequency: Duration,
    pub crash_loop_max: Duration,
    pub image_gc: ImageGc,
    pub container_gc: ContainerGc,
    pub seccomp_default: bool,
    /// Whether statuses show the health of devices, and what their drivers say of it.
    pub device_health: bool,
    pub device_health_messages: bool,
    /// Whether a container's own stop signal is passed on, and the one in use told.
    pub stop_signals: bool,
    /// What user namespaces are made of.
    pub user_ids: UserIds,
    pub features: PodFeatures,
    /// Patterns, `*` at the end.
    pub allowed_unsafe_sysctls: Vec<String>,
    pub resources: NodeResources,
    /// Resources that a resize may not change where a pod is Guaranteed: name, manager and its policy.
    pub fixed_resources: Vec<(&'static str, &'static str, &'static str)>,
    pub dns: NodeDns,
}

/// What the pods need from the rest of the agent.
pub struct Deps {
    pub config: Config,
    pub cri: CriClient,
    /// Name of the runtime (`containerd`), for container ids.
    pub runtime_name: String,
    pub client: Client,
    pub objects: Arc<dyn Objects>,
    pub volumes: Arc<volumes::Manager>,
    pub cgroups: Arc<Cgroups>,
    /// This node as the agent last knew it: labels, allocatable, addresses.
    pub node: watch::Receiver<Arc<Node>>,
    /// Whether the API server has said what it has of this node.
    pub node_heard: watch::Receiver<bool>,
    /// Gets what is known of the pods, for local clients.
    pub feed: Arc<PodFeed>,
    pub devices: Arc<Devices>,
    pub dra: Arc<Dra>,
    /// Pressure and shutdown, which keep pods out.
    pub signals: watch::Receiver<NodeSignals>,
    /// How the runtime was a moment ago.
    pub runtime: watch::Receiver<Arc<RuntimeState>>,
    pub managers: Arc<Managers>,
    /// Tells of the node as a whole.
    pub node_events: NodeEvents,
    pub pulls: PullDeps,
}

/// What every worker shares.
pub(crate) struct Shared {
    pub config: Config,
    pub cri: CriClient,
    pub runtime_name: String,
    pub client: Client,
    pub objects: Arc<dyn Objects>,
    pub volumes: Arc<volumes::Manager>,
    pub cgroups: Arc<Cgroups>,
    pub node: watch::Receiver<Arc<Node>>,
    pub recorder: Recorder,
    pub node_events: NodeEvents,
    pub status: StatusManager,
    pub allocations: Arc<allocations::Allocations>,
    pub userns: userns::UserNamespaces,
    pub prober: Prober,
    pub puller: Puller,
    pub feed: Arc<PodFeed>,
    pub devices: Arc<Devices>,
    pub dra: Arc<Dra>,
    pub signals: watch::Receiver<NodeSignals>,
    pub runtime: watch::Receiver<Arc<RuntimeState>>,
    pub managers: Arc<Managers>,
    /// Asks for a look at what the agent itself has moved.
    pub nudge: Nudge,
    /// What the runtime had of each pod last.
    pub latest: Latest,
    /// Sandboxes that go as soon as the runtime has made them.
    pub unheard: Arc<late::Unheard>,
}

impl Shared {
    /// The node's own addresses, as its status has them.
    pub fn host_ips(&self) -> Vec<String> {
        let node = self.node.borrow();
        let addresses = node.status.iter().flat_map(|s| &s.addresses);
        addresses.filter(|a| a.r#type == "InternalIP").map(|a| a.address.clone()).collect()
    }

    /// Whether the handler that the pod's sandbox has can make mounts below a mount read-only, as the node tells it.
    pub fn mounts_read_only_recursively(&self, observed: &Observed) -> bool {
        mounts_read_only_recursively(&self.node.borrow(), observed)
    }

    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.config.root_dir.join("pods").join(uid)
    }
}

/// A runtime class may be called otherwise than its handler, so it is the sandbox that is asked.
fn mounts_read_only_recursively(node: &Node, observed: &Observed) -> bool {
    let handler = observed.sandboxes.first().map_or("", |s| s.runtime_handler.as_str());
    let handlers = node.status.iter().flat_map(|s| &s.runtime_handlers);
    let mut features = handlers.filter(|h| h.name == handler).filter_map(|h| h.features.as_ref());
    features.any(|f| f.recursive_read_only_mounts == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pleg::observed::Sandbox;
    use proto::api::core::v1::{NodeRuntimeHandler, NodeRuntimeHandlerFeatures, NodeStatus};

    #[test]
    fn mounts_are_as_deep_as_the_handler_of_the_sandbox_can() {
        let handler = |name: &str, able| NodeRuntimeHandler {
            name: name.into(),
            features: Some(NodeRuntimeHandlerFeatures { recursive_read_only_mounts: able, ..Default::default() }),
        };
        let runtime_handlers = vec![handler("", Some(false)), handler("able", Some(true)), handler("silent", None)];
        let node = Node { status: Some(NodeStatus { runtime_handlers, ..Default::default() }), ..Default::default() };
        let deep = |handlers: &[&str]| {
            let sandboxes =
                handlers.iter().map(|h| Sandbox { runtime_handler: (*h).into(), ..Default::default() }).collect();
            mounts_read_only_recursively(&node, &Observed { sandboxes, containers: Vec::new() })
        };
        assert!(deep(&["able"]));
        assert!(deep(&["able", "silent"]), "the newest sandbox counts");
        assert!(!deep(&["silent", "able"]));
        assert!(!deep(&["silent"]) && !deep(&["unknown"]) && !deep(&[""]) && !deep(&[]));
    }
}
