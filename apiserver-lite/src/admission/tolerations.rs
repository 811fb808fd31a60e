//! DefaultTolerationSeconds and TaintNodesByCondition: what happens between pods and nodes that are not ready.

use serde_json::{Value, json};

use super::{Call, Operation};
use crate::status::Result;

const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// A node that goes away keeps its pods for five minutes, unless they say otherwise.
pub fn add_defaults(call: &Call<'_>, new: &mut Value) -> Result<()> {
    if !call.is("", "pods") || !new["spec"].is_object() {
        return Ok(());
    }
    let tolerations = &new["spec"]["tolerations"];
    let covers = |toleration: &Value, key: &str| {
        let text = |name: &str| toleration[name].as_str().unwrap_or_default();
        (text("key") == key || text("key").is_empty()) && matches!(text("effect"), "NoExecute" | "")
    };
    let missing: Vec<Value> = [NOT_READY, "node.kubernetes.io/unreachable"]
        .into_iter()
        .filter(|key| !tolerations.as_array().into_iter().flatten().any(|t| covers(t, key)))
        .map(|key| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    match new["spec"].get_mut("tolerations").and_then(Value::as_array_mut) {
        Some(list) => list.extend(missing),
        None => new["spec"]["tolerations"] = missing.into(),
    }
    Ok(())
}

/// A node takes no pods before the node lifecycle controller has seen that it is ready.
pub fn taint_new_nodes(call: &Call<'_>, new: &mut Value) -> Result<()> {
    if !call.is("", "nodes") || call.operation != Operation::Create {
        return Ok(());
    }
    let taint = json!({"key": NOT_READY, "effect": "NoSchedule"});
    let same = |t: &Value| t["key"] == taint["key"] && t["effect"] == taint["effect"];
    match new["spec"].get_mut("taints").and_then(Value::as_array_mut) {
        Some(list) if list.iter().any(same) => {}
        Some(list) => list.push(taint),
        None => new["spec"]["taints"] = json!([taint]),
    }
    Ok(())
}
