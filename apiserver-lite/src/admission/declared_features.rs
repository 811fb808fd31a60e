//! `NodeDeclaredFeatureValidator`: a pod that runs on a node is not changed into what the node says it cannot do.
//!
//! Follows `plugin/pkg/admission/nodedeclaredfeatures`. Nodes tell in their status what they can do beyond what every
//! one can; of those features, resizing whole pods and init containers is what a change may need.

use serde_json::Value;

use super::{Call, Operation, resources};
use crate::status::{Result, quote};
use crate::store::ResourceId;
use crate::tree::list;

const WHOLE_PODS: &str = "InPlacePodLevelResourcesVerticalScaling";
const INIT_CONTAINERS: &str = "InPlacePodVerticalScalingInitContainers";

pub fn validate(call: &Call<'_>, new: &Value) -> Result<()> {
    let of_interest = call.operation == Operation::Update
        && matches!(call.subresource, "" | "resize")
        && call.concerns("", "pods")
        && call.server.config.nodes_declare_features;
    let node = new["spec"]["nodeName"].as_str().unwrap_or_default();
    let Some(old) = call.old.filter(|_| of_interest && !node.is_empty()) else { return Ok(()) };
    if old["metadata"]["generation"] == new["metadata"]["generation"] {
        return Ok(());
    }
    let mut needs = needed(&old["spec"], &new["spec"]);
    if needs.is_empty() {
        return Ok(());
    }
    let Some(found) = call.server.store.get(&ResourceId::from("nodes"), "", node) else {
        return Err(call.refuse(Some(new), format_args!("node {} not found", quote(node))));
    };
    let status = &found.value()["status"];
    let declared =
        |feature: &str| status["declaredFeatures"].as_array().is_some_and(|all| all.iter().any(|f| f == feature));
    needs.retain(|feature| !declared(feature));
    if needs.is_empty() {
        return Ok(());
    }
    let why =
        format!("pod update requires features {} which are not available on node {}", needs.join(", "), quote(node));
    Err(call.refuse(Some(new), why))
}

/// What a node has to be able to do for a change of a pod's spec.
fn needed(old: &Value, new: &Value) -> Vec<&'static str> {
    let mut out = Vec::new();
    if !is_same(&old["resources"], &new["resources"]) {
        out.push(WHOLE_PODS);
    }
    let mut pairs = list(old, "initContainers").zip(list(new, "initContainers"));
    if pairs.any(|(old, new)| old["restartPolicy"] != "Always" && !is_same(&old["resources"], &new["resources"])) {
        out.push(INIT_CONTAINERS);
    }
    out
}

fn is_same(old: &Value, new: &Value) -> bool {
    let amounts = |of: &Value| ["requests", "limits"].map(|part| resources::parse(&of[part]));
    amounts(old) == amounts(new) && old["claims"] == new["claims"]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn resizing_whole_pods_and_init_containers_needs_a_feature() {
        let spec = |pod: &str, init: &str, sidecar: &str, own: &str| {
            let cpu = |amount: &str| json!({"requests": {"cpu": amount}});
            json!({"resources": cpu(pod), "containers": [{"name": "a", "resources": cpu(own)}], "initContainers": [
                {"name": "i", "resources": cpu(init)}, {"name": "s", "restartPolicy": "Always", "resources": cpu(sidecar)}]})
        };
        let old = spec("2", "1", "1", "1");
        let none: [&str; 0] = [];
        assert_eq!(needed(&old, &spec("2000m", "1000m", "2", "2")), none);
        assert_eq!(needed(&old, &spec("3", "1", "1", "1")), [WHOLE_PODS]);
        assert_eq!(needed(&old, &spec("3", "2", "1", "1")), [WHOLE_PODS, INIT_CONTAINERS]);
        assert_eq!(needed(&json!({}), &json!({"containers": []})), none);
    }
}
