//! The part of admission that gives out CPUs, memory and devices.
//!
//! A plugin may take its time, so this is done by the pod's own worker; the loop that owns all pods never waits for one.
//! How much of a plugin's resource is left is known here better than from the node's status, which follows later.

use std::collections::BTreeSet;
use std::sync::Arc;

use proto::api::core::v1::{Node, Pod};

use crate::device_plugins::Devices;
use crate::resource_managers::Refusal;

use super::Shared;
use super::admission::Rejection;

/// Whether there is anything to give to the pod.
pub fn concerns(shared: &Shared, pod: &Pod) -> bool {
    shared.devices.concern(pod) || shared.managers.concern(pod)
}

/// Gives the pod what it asks for.
///
/// # Errors
/// When it does not get all of it, in the kubelet's words; the pod is not tried again.
pub async fn admit(shared: &Shared, pod: &Pod, running: &BTreeSet<String>) -> Result<(), Rejection> {
    shared.managers.admit(&shared.devices, pod, running).await.map_err(Into::into)
}

/// Whether the pod would get CPUs and memory, as things are now; it gets nothing.
///
/// # Errors
/// As [`admit`].
pub fn rehearse(shared: &Shared, pod: &Pod) -> Result<(), Rejection> {
    shared.managers.rehearse(&shared.devices, pod).map_err(Into::into)
}

impl From<Refusal> for Rejection {
    fn from(refusal: Refusal) -> Self {
        Rejection { reason: refusal.reason().into(), message: refusal.to_string() }
    }
}

/// The node as the rest of admission is to see it: without the amounts that plugins give.
pub fn without_devices(node: &Arc<Node>, devices: &Devices) -> Arc<Node> {
    let given = |name: &String| name.contains('/') && devices.gives(name);
    if !node.status.iter().any(|s| s.allocatable.keys().any(given)) {
        return node.clone();
    }
    let mut node = Node::clone(node);
    if let Some(status) = &mut node.status {
        status.allocatable.retain(|name, _| !given(name));
    }
    Arc::new(node)
}
