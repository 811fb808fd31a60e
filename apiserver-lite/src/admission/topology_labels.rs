//! PodTopologyLabels: a pod can read from its own labels in which zone and region it runs. Follows
//! `plugin/pkg/admission/podtopologylabels`.

use serde_json::Value;

use super::{Call, Operation};
use crate::status::Result;

const COPIED: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

/// Gives pods that come with a node, and bindings, the node's labels; their own stay.
pub fn mutate(call: &Call<'_>, new: &mut Value) -> Result<()> {
    if !call.concerns("", "pods") || call.operation != Operation::Create {
        return Ok(());
    }
    let node = match call.subresource {
        "" => &new["spec"]["nodeName"],
        "binding" if matches!(new["target"]["kind"].as_str(), Some("Node")) => &new["target"]["name"],
        _ => return Ok(()),
    };
    let Some(node) = node.as_str().filter(|n| !n.is_empty()) else { return Ok(()) };
    let Some(node) = call.server.store.get(&"nodes".into(), "", node) else { return Ok(()) };
    for (key, value) in node.keys.labels.iter().filter(|(key, _)| COPIED.contains(&&**key)) {
        let labels = &mut new["metadata"]["labels"];
        if labels[&**key].is_null() {
            labels[&**key] = (&**value).into();
        }
    }
    Ok(())
}
