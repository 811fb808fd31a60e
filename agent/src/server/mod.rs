//! The agent's HTTP servers: 10250 (TLS, authenticated), 10255 (read-only, when asked for), and 10248 for a health check
//! from this host.
//!
//! A request is matched to a route first (unknown paths are 404 before any question of who asks), then authenticated,
//! then authorized for the route's subresources of `nodes`, tried in order.

mod access;
mod answers;
mod checkpoint;
mod client_ca;
mod debug;
mod forms;
mod health;
mod identity;
mod listen;
mod log_file;
mod log_line;
mod log_query;
mod log_watch;
mod logs;
mod metrics_page;
mod multipart;
mod mux;
mod node_logs;
mod node_stats;
mod pattern;
mod pod_page;
mod profiles;
mod retention;
mod route;
mod router;
mod streams;
mod zpages;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use self::client_ca::ClientAuthorities;
pub use self::identity::names as certificate_names;
pub use self::retention::Retention;
use self::route::Surface;
use self::router::Router;
use crate::api::Client;
use crate::cli::Flags;
use crate::config::{Configuration, FeatureGates};
use crate::cri::CriClient;
use crate::metrics;
use crate::pods;
use crate::stats::Stats;

/// Why a port or certificate cannot be had; the operator's to mend.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("{0:?} is no address to listen on")]
    Address(String),
    #[error("serving certificate: {0}")]
    Certificate(String),
    #[error("client CA: {0}")]
    ClientCa(String),
    /// A fault of the program.
    #[error("the server broke off: {0}")]
    Broke(tokio::task::JoinError),
}

/// What the servers need.
pub struct ServerDeps {
    /// What port 10250 shows; filled from files unless certificates are asked for.
    pub serving: Arc<crate::identity::Serving>,
    pub config: Arc<Configuration>,
    pub gates: FeatureGates,
    /// The configuration as `/configz` shows it.
    pub document: Value,
    pub flags: Flags,
    pub node: String,
    pub addresses: Vec<IpAddr>,
    pub client: Client,
    pub cri: CriClient,
    /// What the node and its pods use.
    pub stats: Arc<Stats>,
    pub devices: Arc<crate::device_plugins::Devices>,
    /// None until the runtime has answered for the first time.
    pub pods: watch::Receiver<Option<pods::Handle>>,
}

/// Opens the ports and serves until the tasks are dropped.
///
/// # Errors
/// See [`ServerError`]; no port is left open then.
pub async fn start(deps: ServerDeps) -> Result<JoinSet<()>, ServerError> {
    zpages::start();
    metrics::NODE_NAME.set(&[&deps.node], 1.0);
    // None so far is a number too.
    ["", "true"].iter().for_each(|is_static| metrics::RESTARTED_PODS.add(&[is_static], 0.0));
    metrics::METRICS_PROVIDER.set(&["cadvisor"], 1.0);
    let unified = std::path::Path::new(crate::cgroups::MOUNT).join("cgroup.controllers").exists();
    metrics::CGROUP_VERSION.set(&[], if unified { 2.0 } else { 1.0 });
    let deps = Arc::new(deps);
    let config = &deps.config;
    let mut tasks = JoinSet::new();
    let surface = Surface {
        debugging: config.enable_debugging_handlers,
        checkpoint: deps.gates.enabled("ContainerCheckpoint"),
        flagz: deps.gates.enabled("ComponentFlagz"),
        statusz: deps.gates.enabled("ComponentStatusz"),
        system_logs: config.enable_system_log_handler,
        profiling: config.enable_profiling_handler,
        debug_flags: config.enable_debug_flags_handler,
    };
    let (logs, pods) = (Arc::new(log_watch::LogWatch::default()), pod_page::PodPage::default());
    let router = |access, surface| Router {
        deps: deps.clone(),
        access,
        surface,
        stats: deps.stats.clone(),
        logs: logs.clone(),
        pods: pods.clone(),
    };
    if config.enable_server {
        let tls = identity::server_config(&deps)?;
        let access = access::Access::new(&deps)?;
        if let Some(authorities) = access.authorities().filter(|_| deps.gates.enabled("ReloadKubeletClientCAFile")) {
            tasks.spawn(authorities.follow());
        }
        let listener = listen::bind(&config.address, config.port).await?;
        tasks.spawn(listen::serve_tls(listener, tls, Arc::new(router(Some(access), surface))));
    }
    // Asked for by itself: it is there without the other, too.
    if config.read_only_port > 0 {
        let listener = listen::bind(&config.address, config.read_only_port).await?;
        let surface = Surface { debugging: false, ..surface };
        tasks.spawn(listen::serve_plain(listener, Arc::new(router(None, surface))));
    }
    if config.healthz_port > 0 {
        tasks.spawn(listen::serve_health(config.healthz_bind_address.clone(), config.healthz_port));
    }
    Ok(tasks)
}
