//! The agent's HTTP servers: 10250 (TLS, authenticated), and 10248 for a health check from this host.
//!
//! A request is matched to a route first (unknown paths are 404 before any question of who asks), then authenticated,
//! then authorized for the route's subresources of `nodes`, tried in order.

mod access;
mod answers;
mod checkpoint;
mod health;
mod identity;
mod listen;
mod logs;
mod node_stats;
mod route;
mod streams;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::api::Client;
use crate::cli::Flags;
use crate::config::Configuration;
use crate::cri::CriClient;
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
}

/// What the servers need.
pub struct ServerDeps {
    pub config: Arc<Configuration>,
    /// The configuration as `/configz` shows it.
    pub document: Value,
    pub flags: Flags,
    pub node: String,
    pub addresses: Vec<IpAddr>,
    pub client: Client,
    pub cri: CriClient,
    /// None until the runtime has answered for the first time.
    pub pods: watch::Receiver<Option<pods::Handle>>,
}

/// Opens the ports and serves until the tasks are dropped.
///
/// # Errors
/// See [`ServerError`]; no port is left open then.
pub async fn start(deps: ServerDeps) -> Result<JoinSet<()>, ServerError> {
    let deps = Arc::new(deps);
    let mut tasks = JoinSet::new();
    if deps.config.enable_server {
        let access = Arc::new(access::Access::new(&deps)?);
        let stats = Stats::new(deps.cri.clone(), &deps.node, deps.flags.root_dir.clone(), deps.config.cgroups_per_qos);
        let tls = identity::server_config(&deps)?;
        let listener = listen::bind(&deps.config.address, deps.config.port).await?;
        tasks.spawn(listen::serve_tls(listener, tls, Arc::new(route::Router { deps: deps.clone(), access, stats })));
    }
    if deps.config.healthz_port > 0 {
        let listener = listen::bind(&deps.config.healthz_bind_address, deps.config.healthz_port).await?;
        tasks.spawn(listen::serve_health(listener));
    }
    Ok(tasks)
}
