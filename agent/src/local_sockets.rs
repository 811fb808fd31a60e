//! The gRPC sockets of this node, opened together at the start.
//!
//! A socket that cannot be opened is told in the log and left out: pods run without it.

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::config::FeatureGates;
use crate::device_plugins::{self, Devices};
use crate::dra::Dra;
use crate::node_api::NodeApi;
use crate::pod_resources;
use crate::pods_api::{self, Form, PodFeed};
use crate::resource_managers::Managers;

/// Opens the sockets below `root`; they are served by the runtime of `clients` until the tasks are dropped.
pub fn start(
    (tasks, clients): (&mut JoinSet<()>, &Handle),
    root: &Path,
    gates: &FeatureGates,
    feed: &Arc<PodFeed>,
    (devices, managers, dra): (&Arc<Devices>, &Arc<Managers>, &Arc<Dra>),
    node: NodeApi,
) {
    let node = Arc::new(node);
    // A socket belongs to the threads that serve it, from the first on.
    let of_clients = clients.enter();
    let mut open = |path: &str, start: &dyn Fn(&Path, &mut JoinSet<()>) -> io::Result<()>| {
        let path = root.join(path);
        let made = match path.parent() {
            Some(folder) => std::fs::DirBuilder::new().recursive(true).mode(0o750).create(folder),
            None => Ok(()),
        };
        if let Err(error) = made.and_then(|()| start(&path, tasks)) {
            tracing::error!(%error, path = %path.display(), "cannot serve a local socket");
        }
    };
    open("pods/kubelet.sock", &|path, tasks| {
        tasks.spawn_on(pods_api::start_with(path, Form::Plain, feed.clone(), Some(node.clone()))?, clients);
        Ok(())
    });
    if gates.enabled("PodsAPI") {
        open("pods-api/pods-api.sock", &|path, tasks| {
            tasks.spawn_on(pods_api::start(path, Form::Typed, feed.clone())?, clients);
            Ok(())
        });
    }
    let active_only = gates.enabled("KubeletPodResourcesListUseActivePods");
    open("pod-resources/kubelet.sock", &|path, tasks| {
        let parts = (devices.clone(), managers.clone(), dra.clone());
        tasks.spawn_on(pod_resources::start(path, feed.clone(), parts, active_only)?, clients);
        Ok(())
    });
    drop(of_clients);
    // Plugins are no clients: what they register is looked after beside the pods.
    open("device-plugins/kubelet.sock", &|_, tasks| {
        tasks.spawn(device_plugins::start(devices.clone())?);
        Ok(())
    });
}
