//! The node as it is at this moment, for those on the machine: what the API server holds may be old, or not be there.

use std::sync::Arc;

use proto::api::core::v1::{Node, NodeStatus};
use serde_json::Value;
use tokio::sync::watch;

use super::resources::{self, Resources};
use super::{NodeSettings, NodeSignals, RuntimeState, keeper, status, tree};
use crate::device_plugins::Devices;

/// What a node's status is made of, at hand. Cheap to ask: nothing is waited for.
pub struct NodeNow {
    pub settings: NodeSettings,
    /// As the API server has it, or as it was at the start.
    pub node: watch::Receiver<Arc<Node>>,
    pub runtime: watch::Receiver<Arc<RuntimeState>>,
    pub signals: watch::Receiver<NodeSignals>,
    pub devices: Arc<Devices>,
}

impl NodeNow {
    /// The object with the conditions, the runtime and the devices of now; what does not change by itself is as it was.
    pub fn get(&self) -> Node {
        let held = self.node.borrow().clone();
        let old = keeper::status_of(&held);
        let mut amounts = [quantities(&old, "capacity"), quantities(&old, "allocatable")];
        for (name, (all, healthy)) in self.devices.amounts() {
            amounts[0].insert(name.clone(), resources::count(all));
            amounts[1].insert(name, resources::count(healthy));
        }
        let (runtime, mut signals) = (self.runtime.borrow().clone(), self.signals.borrow().clone());
        // What the API server lacks is nothing that keeps this machine from running pods.
        signals.csi_node = None;
        let settings = &self.settings;
        let built = status::build(
            &old,
            &status::Facts {
                name: &settings.name,
                machine: &settings.machine,
                capacity: &amounts[0],
                required: settings.required(),
                allocatable: &amounts[1],
                addresses: None,
                given: settings.has_given_address(),
                runtime: &runtime,
                pleg: crate::pleg::trouble().as_deref(),
                signals: &signals,
                images: old.get("images").and_then(Value::as_array).map_or(&[], Vec::as_slice),
                port: settings.config.port,
                gates: &settings.gates,
                external_cloud: settings.external_cloud,
                now: &proto::time::Timestamp::now().to_seconds_text(),
            },
        );
        match tree::parse::<NodeStatus>(keeper::STATUS_TYPE, &built) {
            Some(status) => Node { status: Some(status), ..(*held).clone() },
            None => (*held).clone(),
        }
    }
}

fn quantities(status: &Value, name: &str) -> Resources {
    let listed = status.get(name).and_then(Value::as_object).into_iter().flatten();
    listed.filter_map(|(name, amount)| Some((name.to_string(), amount.as_str()?.parse().ok()?))).collect()
}
