//! Binding pods to nodes: the `binding` subresource of pods and the older `bindings` resource.
//!
//! A binding writes past the rules for pods: nothing but the node, annotations, labels and the `PodScheduled` condition
//! changes, and neither generation nor managed fields move.

use serde_json::{Value, json};

use super::admit;
use super::options::WriteOptions;
use super::subresource::{done, schema};
use super::update::{self, Target};
use super::{decode, meta};
use crate::http::{Accepted, Response};
use crate::server::{ApiServer, Request};
use crate::status::{ApiError, Result, quote};

const BINDING: (&str, &str, &str) = ("", "v1", "Binding");

/// Assigns a pod to a node. The pod is named by the path, or by the binding where the path names none.
///
/// # Errors
/// As [`bind`].
pub(super) async fn handle(server: &ApiServer, request: &mut Request, accepted: Accepted) -> Result<Response> {
    let info = &request.info;
    let known = |plural: &str| server.resources.lookup("", "v1", plural).ok_or_else(crate::server::unknown_path);
    // What judges requests is asked about the resource that the path names.
    let (asked, subresource) = (known(&info.resource)?, info.subresource.clone());
    let options = WriteOptions::parse(request, &*known("pods")?)?;
    let body = request.body().await?;
    let mut binding = decode::kind(&schema(BINDING)?, BINDING, request.content_type(), &body, &options)?;
    let namespace = request.info.namespace.clone();
    meta::settle_namespace(&mut binding, &namespace)?;
    let name = match subresource.is_empty() {
        true => meta::text(&binding, "name").to_owned(),
        false => request.info.name.clone(),
    };
    let target = Target { resource: &asked, subresource: &subresource, namespace: &namespace, name: &name };
    bind(server, target, binding, &options).await?;
    Ok(done(accepted))
}

/// Writes the node of a binding into its pod: lets admission complete the binding, checks it, lets admission judge it,
/// and carries it out, in this order. The target is the pod's `binding`, or `bindings` by themselves.
///
/// # Errors
/// 404, 409 when the pod has a node or is going away, 500 for a binding to something that is no node.
pub async fn bind(server: &ApiServer, target: Target<'_>, mut binding: Value, options: &WriteOptions) -> Result<()> {
    admit::complete(server, options, target, &mut binding).await?;
    let by_path = !target.subresource.is_empty();
    let name = if by_path { target.name } else { meta::text(&binding, "name") };
    if name != meta::text(&binding, "name") {
        return Err(ApiError::bad_request("name in URL does not match name in Binding object"));
    }
    check(&binding)?;
    admit::judge(server, options, target, &binding).await?;
    if target.namespace.is_empty() {
        // A path with nothing for a namespace: no pod is there.
        return Err(ApiError::bad_request("Namespace parameter required."));
    }
    let pods = server.resources.lookup("", "v1", "pods").ok_or_else(crate::server::unknown_path)?;
    let pod = Target { resource: &pods, subresource: "binding", name, ..target };
    assign(server, pod, &binding, options).await
}

/// Refuses a binding to something that is no node.
fn check(binding: &Value) -> Result<()> {
    let text = |key: &str| binding["target"][key].as_str().unwrap_or_default();
    let mut complaints = Vec::new();
    if !matches!(text("kind"), "" | "Node") {
        let supported = "supported values: \"Node\", \"<empty>\"";
        complaints.push(format!("target.kind: Unsupported value: {}: {supported}", quote(text("kind"))));
    }
    if text("name").is_empty() {
        complaints.push("target.name: Required value".to_owned());
    }
    // Upstream never made these a proper Invalid.
    match complaints.as_slice() {
        [] => Ok(()),
        [one] => Err(ApiError::new(500, "", one.as_str())),
        several => Err(ApiError::new(500, "", format!("[{}]", several.join(", ")))),
    }
}

async fn assign(server: &ApiServer, pod: Target<'_>, binding: &Value, options: &WriteOptions) -> Result<()> {
    let Target { namespace, name, .. } = pod;
    let node = binding["target"]["name"].as_str().unwrap_or_default();
    let conflict = |why: String| ApiError::conflict("", "pods/binding", name, why);
    let bound = update::update(server, pod, options, |old, tree| {
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
        if server.config.clears_nomination {
            // It was a hint of what has come about, or has not.
            drop(value["status"].as_object_mut().and_then(|status| status.remove("nominatedNodeName")));
        }
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
    fn a_binding_is_to_a_node() {
        let said = |target: Value| check(&json!({"target": target})).err().map(|e| e.status().message.clone());
        assert_eq!(said(json!({"name": "n"})), None);
        assert_eq!(said(json!({"kind": "Node"})).as_deref(), Some("target.name: Required value"));
        let both = "[target.kind: Unsupported value: \"Pod\": supported values: \"Node\", \"<empty>\", target.name: \
                    Required value]";
        assert_eq!(said(json!({"kind": "Pod"})).as_deref(), Some(both));
    }

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
