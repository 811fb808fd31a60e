//! `PodResizeValidator`: a pod that runs on a node is not resized beyond what the node can give.
//!
//! Follows `plugin/pkg/admission/podresize`. Only what changes the spec is looked at, and only requests count.

use proto::quantity::Quantity;
use serde_json::Value;

use super::{Call, Operation, resources};
use crate::status::{ApiError, Result, quote};
use crate::store::ResourceId;

pub fn validate(call: &Call<'_>, new: &Value) -> Result<()> {
    let of_interest = call.operation == Operation::Update && call.subresource == "resize" && call.concerns("", "pods");
    let node = new["spec"]["nodeName"].as_str().unwrap_or_default();
    let Some(old) = call.old.filter(|_| of_interest && !node.is_empty()) else { return Ok(()) };
    if old["metadata"]["generation"] == new["metadata"]["generation"] {
        return Ok(());
    }
    let Some(found) = call.server.store.get(&ResourceId::from("nodes"), "", node) else {
        return Err(call.refuse(Some(new), format_args!("node {} not found", quote(node))));
    };
    let refused = |why: String, reason: &str| -> Result<()> {
        let error: ApiError = call.refuse(Some(new), why);
        Err(error.with_cause(reason, "", ""))
    };
    if let Some(system) = found.label("kubernetes.io/os").filter(|os| *os != "linux") {
        let why = format!("pod resize is only supported on linux nodes, node {} is {}", quote(node), quote(system));
        return refused(why, "UnsupportedPlatform");
    }
    let allocatable = resources::parse(&found.value()["status"]["allocatable"]);
    let requested = resources::of_pod(new, "requests");
    let mut lacks = Vec::new();
    for (name, amount) in [("cpu", Quantity::milli_value as fn(&Quantity) -> i64), ("memory", Quantity::value)] {
        let (wanted, have) = (requested.get(name), allocatable.get(name));
        if wanted.is_some_and(|w| have.map_or(w.sign() > 0, |have| w > have)) {
            let (wanted, have) = (wanted.map_or(0, amount), have.map_or(0, amount));
            lacks.push(format!("{name}, requested: {wanted}, allocatable: {have}"));
        }
    }
    if lacks.is_empty() {
        return Ok(());
    }
    refused(format!("node didn't have enough allocatable resources: {}", lacks.join("; ")), "NodeCapacity")
}
