//! `plugins_registry`: drivers of storage and devices announce themselves by a socket in this folder.
//!
//! The folder is watched, below it too. Each socket has a task of its own that asks who is there (`GetInfo`), hands the
//! plugin to what its type is for, and tells it the outcome (`NotifyRegistrationStatus`); what is refused is tried again,
//! ever more seldom, until the socket goes away. Then the plugin is taken out again. A plugin that hangs or answers
//! garbage keeps only its own task busy.
//!
//! Followed: `pkg/kubelet/pluginmanager`.

mod csi;
mod folder;

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proto::plugin_registration::registration_client::RegistrationClient;
use proto::plugin_registration::{InfoRequest, PluginInfo, RegistrationStatus};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::api::Client;
use crate::csi::Drivers;
use crate::device_plugins::{self, Devices};
use crate::dra::Dra;
use crate::{metrics, sockets};

use csi::CsiDrivers;

const DIAL_LIMIT: Duration = Duration::from_secs(10);
const INFO_LIMIT: Duration = Duration::from_secs(1);
const NOTIFY_LIMIT: Duration = Duration::from_secs(5);
/// The kubelet looks once a second and backs off from half a second, doubled each time, to about two minutes.
const LOOK: Duration = Duration::from_secs(1);
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
const LAST_BACKOFF: Duration = Duration::from_secs(122);

/// What is counted: sockets that are there, and plugins that are in.
const STATES: [&str; 2] = [DESIRED, ACTUAL];
const DESIRED: &str = "desired_state_of_world";
const ACTUAL: &str = "actual_state_of_world";

/// What plugins are handed to.
pub struct Handlers {
    pub devices: Arc<Devices>,
    csi: CsiDrivers,
    dra: Arc<Dra>,
}

impl Handlers {
    /// `client` is `None` without an API server: storage drivers are then known on this node only.
    pub fn new(
        (devices, drivers, dra): (Arc<Devices>, Arc<Drivers>, Arc<Dra>),
        client: Option<Client>,
        node: String,
    ) -> Self {
        Self { devices, csi: CsiDrivers::new(client, node, drivers), dra }
    }

    /// Takes a plugin in.
    async fn register(&self, info: &PluginInfo, socket: &Path) -> Result<(), String> {
        let endpoint = endpoint(info, socket);
        let invalid = |why: String| format!("RegisterPlugin error -- plugin validation failed with err: {why}");
        let failed = |why: String| format!("RegisterPlugin error -- plugin registration failed with err: {why}");
        match info.r#type.as_str() {
            "DevicePlugin" => {
                device_plugins::validate(&info.name, &info.supported_versions).map_err(invalid)?;
                self.devices.register(&info.name, endpoint).await.map_err(|e| failed(e.to_string()))
            }
            "CSIPlugin" => {
                let version = csi::check(&info.name, &endpoint, &info.supported_versions).map_err(invalid)?;
                self.csi.admits(&info.name, &endpoint, &version).map_err(invalid)?;
                self.csi.register(&info.name, &endpoint, version).await.map_err(failed)
            }
            "DRAPlugin" => {
                Dra::check(&info.name, &endpoint, &info.supported_versions).map_err(invalid)?;
                self.dra.register(&info.name, &endpoint, &info.supported_versions).map_err(failed)
            }
            other => Err(format!(
                "RegisterPlugin error -- no handler registered for plugin type: {other} at socket {}",
                socket.display()
            )),
        }
    }

    async fn unregister(&self, info: &PluginInfo, socket: &Path) {
        tracing::info!(plugin = info.name, kind = info.r#type, "a plugin took its socket away");
        match info.r#type.as_str() {
            "DevicePlugin" => self.devices.unregister(&info.name, &endpoint(info, socket)),
            "CSIPlugin" => self.csi.unregister(&info.name).await,
            "DRAPlugin" => self.dra.unregister(&info.name, &endpoint(info, socket)),
            _ => {}
        }
    }
}

/// Where the plugin serves: on the socket by which it registers unless it names another.
fn endpoint(info: &PluginInfo, socket: &Path) -> PathBuf {
    if info.endpoint.is_empty() { socket.to_owned() } else { PathBuf::from(&info.endpoint) }
}

/// A socket that is being looked after.
struct Known {
    identity: folder::Identity,
    task: AbortHandle,
    /// Set once the plugin is in.
    registered: watch::Receiver<Option<PluginInfo>>,
}

/// Watches the folder until dropped.
pub fn start(root: PathBuf, handlers: Handlers) -> impl Future<Output = ()> {
    let handlers = Arc::new(handlers);
    async move {
        let mut tasks = tokio::task::JoinSet::new();
        let mut known: BTreeMap<PathBuf, Known> = BTreeMap::new();
        loop {
            // First the watch, then the look: what happens in between is seen by the next round.
            let watch = match folder::watch(&root) {
                Ok(watch) => watch,
                Err(error) => {
                    tracing::error!(%error, path = %root.display(), "cannot watch for plugins");
                    tokio::time::sleep(LAST_BACKOFF).await;
                    continue;
                }
            };
            let found = folder::sockets(&root);
            let gone: Vec<PathBuf> =
                known.iter().filter(|(p, k)| found.get(*p) != Some(&k.identity)).map(|(p, _)| p.clone()).collect();
            for path in gone {
                let Some(before) = known.remove(&path) else { continue };
                before.task.abort();
                // One that is about to say that its plugin is in says so before it is asked.
                while !before.task.is_finished() && tasks.join_next().await.is_some() {}
                STATES.iter().for_each(|state| metrics::PLUGINS.remove(&[&path.to_string_lossy(), state]));
                let info = before.registered.borrow().clone();
                if let Some(info) = info {
                    handlers.unregister(&info, &path).await;
                }
            }
            for (path, identity) in found {
                if known.contains_key(&path) {
                    continue;
                }
                metrics::PLUGINS.set(&[&path.to_string_lossy(), DESIRED], 1.0);
                let (sender, registered) = watch::channel(None);
                let task = tasks.spawn(keep_trying(path.clone(), handlers.clone(), sender));
                known.insert(path, Known { identity, task, registered });
            }
            while tasks.try_join_next().is_some() {}
            watch.changed().await;
        }
    }
}

/// Registers what is behind a socket; returns when it is in.
async fn keep_trying(path: PathBuf, handlers: Arc<Handlers>, registered: watch::Sender<Option<PluginInfo>>) {
    let mut backoff = FIRST_BACKOFF;
    loop {
        tokio::time::sleep(LOOK.saturating_sub(FIRST_BACKOFF)).await;
        match attempt(&path, &handlers, &registered).await {
            Ok(()) => return,
            Err(error) => tracing::info!(%error, path = %path.display(), "a plugin is not registered"),
        }
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(LAST_BACKOFF);
    }
}

async fn attempt(
    path: &Path,
    handlers: &Handlers,
    registered: &watch::Sender<Option<PluginInfo>>,
) -> Result<(), String> {
    let channel = sockets::channel(path, DIAL_LIMIT).await.map_err(|e| format!("cannot dial: {e}"))?;
    let mut client = RegistrationClient::new(channel).max_decoding_message_size(64 << 10);
    let info = tokio::time::timeout(INFO_LIMIT, client.get_info(InfoRequest {})).await;
    let info = info.map_err(|_| "GetInfo takes too long".to_owned())?.map_err(|e| format!("GetInfo: {e}"))?;
    let info = info.into_inner();
    let outcome = handlers.register(&info, path).await;
    if outcome.is_ok() {
        // Before it is told: a socket that goes away meanwhile takes the plugin out again.
        tracing::info!(plugin = info.name, kind = info.r#type, "a plugin registered");
        metrics::PLUGINS.set(&[&path.to_string_lossy(), ACTUAL], 1.0);
        registered.send_replace(Some(info));
    }
    let status = RegistrationStatus {
        plugin_registered: outcome.is_ok(),
        error: outcome.as_ref().err().cloned().unwrap_or_default(),
    };
    match tokio::time::timeout(NOTIFY_LIMIT, client.notify_registration_status(status)).await {
        Ok(Ok(_)) => {}
        // The plugin is in or not whether it listens or not.
        Ok(Err(error)) => tracing::debug!(%error, "a plugin does not want to know"),
        Err(_) => tracing::debug!("a plugin does not hear how its registration went"),
    }
    outcome
}
