//! Binding pods to nodes: the `binding` subresource of pods and the older `bindings` resource.
//!
//! A binding writes past the rules for pods: nothing but the node, annotations, labels and the `PodScheduled` condition
//! changes, and neither generation nor managed fields move.

use serde_json::{Value, json};

use super::admit::{self, Part};
use super::options::WriteOptions;
use super::subresource::{done, schema};
use super::update::{self, Target};
use super::{decode, meta};
use crate::http::{Accepted, Response};
use crate::resource::Resource;
use crate::server::{ApiServer, Request};
use crate::status::{ApiError, Result, quote};

const BINDING: (&str, &str, &str) = ("", "v1", "Binding");

/// Assigns a pod to a node. The pod is named by the path, or by the binding where the path names none.
///
/// # Errors
/// As [`bind`].
pub(super) async fn handle(server: &ApiServer, request: &mut Request, accepted: Accepted) -> Result<Response> {
    let pods = server.resources.lookup("", "v1", "pods").ok_or_else(crate::server::unknown_path)?;
    let options = WriteOptions::parse(request, &pods)?;
    let body = request.body().await?;
    let decoded = decode::kind(&schema(BINDING)?, BINDING, request.content_type(), &body, &options)?;
    let mut binding = decoded.value;
    let namespace = request.info.namespace.clone();
    meta::settle_namespace(&mut binding, &namespace)?;
    let said = meta::text(&binding, "name").to_owned();
    let name = if request.info.subresource.is_empty() { said.clone() } else { request.info.name.clone() };
    if name != said {
        return Err(ApiError::bad_request("name in URL does not match name in Binding object"));
    }
    bind(server, &pods, &namespace, &name, &binding, &options).await?;
    let mut response = done(accepted);
    decoded.warnings.iter().for_each(|text| crate::server::warn(&mut response, text));
    Ok(response)
}

/// Writes the node of a binding into its pod.
///
/// # Errors
/// 404, 409 when the pod has a node or is going away, 500 for a binding to something that is no node.
pub async fn bind(
    server: &ApiServer,
    resource: &Resource,
    namespace: &str,
    name: &str,
    binding: &Value,
    options: &WriteOptions,
) -> Result<()> {
    let target = &binding["target"];
    let text = |key: &str| target[key].as_str().unwrap_or_default();
    let (kind, node) = (text("kind"), text("name"));
    let mut complaints = Vec::new();
    if !matches!(kind, "" | "Node") {
        let supported = "supported values: \"Node\", \"<empty>\"";
        complaints.push(format!("target.kind: Unsupported value: {}: {supported}", quote(kind)));
    }
    if node.is_empty() {
        complaints.push("target.name: Required value".to_owned());
    }
    // Upstream never made these a proper Invalid.
    match complaints.as_slice() {
        [] => {}
        [one] => return Err(ApiError::new(500, "", one.as_str())),
        several => return Err(ApiError::new(500, "", format!("[{}]", several.join(", ")))),
    }
    let mut admitted = binding.clone();
    let part = Part { resource, subresource: "binding", namespace, name };
    admit::posted(server, options, part, &mut admitted).await?;
    let binding = &admitted;
    let node = binding["target"]["name"].as_str().unwrap_or_default();
    let target = Target { resource, subresource: "binding", namespace, name };
    let conflict = |why: String| ApiError::conflict("", "pods/binding", name, why);
    let bound = update::update(server, target, options, |old, tree| {
        for (what, have) in [("uid", old.keys.uid.to_string()), ("resourceVersion", old.revision.to_string())] {
            let said = meta::text(binding, what);
            if !said.is_empty() && said != have {
                let what = if what == "uid" { "UID" } else { "ResourceVersion" };
                return Err(ApiError::conflict(
                    "",
                    "pods",
                    name,
                    format!(
                        "StorageError: invalid object, Code: 4, Key: /registry/pods/{namespace}/{name}, ResourceVersion: 0, \
                     AdditionalErrorMsg: Precondition failed: {what} in precondition: {said}, {what} in object meta: {have}"
                    ),
                ));
            }
        }
        if old.keys.deleting {
            return Err(conflict(format!("pod {name} is being deleted, cannot be assigned to a host")));
        }
        if let Some(taken) = tree["spec"]["nodeName"].as_str().filter(|n| !n.is_empty()) {
            return Err(conflict(format!("pod {name} is already assigned to node {}", quote(taken))));
        }
        if tree["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
            return Err(conflict(format!("pod {name} has non-empty .spec.schedulingGates")));
        }
        let mut value = tree.clone();
        value["spec"]["nodeName"] = node.into();
        let of_binding = |key: &str| binding["metadata"][key].as_object().into_iter().flatten();
        for (key, text) in of_binding("annotations") {
            value["metadata"]["annotations"][key] = text.clone();
        }
        for (key, text) in of_binding("labels").filter(|(key, _)| tree["metadata"]["labels"][key.as_str()].is_null()) {
            value["metadata"]["labels"][key] = text.clone();
        }
        set_condition(&mut value, json!({"type": "PodScheduled", "status": "True"}));
        Ok(value)
    });
    bound.await.map(|_| ())
}

/// Sets a condition of a pod; the time of the transition stays where the status does.
pub(super) fn set_condition(pod: &mut Value, mut condition: Value) {
    let now = proto::time::Timestamp::now().to_seconds_text();
    condition["lastProbeTime"] = Value::Null;
    condition["lastTransitionTime"] = now.into();
    if !pod["status"]["conditions"].is_array() {
        pod["status"]["conditions"] = json!([]);
    }
    let Some(conditions) = pod["status"]["conditions"].as_array_mut() else { return };
    match conditions.iter_mut().find(|c| c["type"] == condition["type"]) {
        Some(found) => {
            if found["status"] == condition["status"] {
                condition["lastTransitionTime"] = found["lastTransitionTime"].clone();
            }
            *found = condition;
        }
        None => conditions.push(condition),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_stays_keeps_its_time() {
        let condition = json!({"type": "PodScheduled", "status": "True"});
        let mut pod = json!({"status": {"conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        set_condition(&mut pod, condition.clone());
        assert_eq!(pod["status"]["conditions"][0]["lastTransitionTime"], "2026-01-01T00:00:00Z");
        pod["status"]["conditions"][0]["status"] = "False".into();
        set_condition(&mut pod, condition);
        assert_ne!(pod["status"]["conditions"][0]["lastTransitionTime"], "2026-01-01T00:00:00Z");
        assert_eq!(pod["status"]["conditions"].as_array().map(Vec::len), Some(1));
    }
}
