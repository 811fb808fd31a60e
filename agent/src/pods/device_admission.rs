//! The part of admission that asks device plugins.
//!
//! A plugin may take its time, so this is done by the pod's own worker; the loop that owns all pods never waits for one.
//! How much of a plugin's resource is left is known here better than from the node's status, which follows later.

use std::collections::BTreeSet;
use std::sync::Arc;

use proto::api::core::v1::{Node, Pod};

use crate::device_plugins::Devices;

use super::admission::Rejection;

/// Gives the pod its devices.
///
/// # Errors
/// When it gets none, in the kubelet's words; the pod is not tried again.
pub async fn admit(devices: &Arc<Devices>, pod: &Pod, running: &BTreeSet<String>) -> Result<(), Rejection> {
    devices.allocate(pod, running).await.map_err(|error| Rejection {
        reason: "UnexpectedAdmissionError".into(),
        message: format!("Allocate failed due to {error}, which is unexpected"),
    })
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
