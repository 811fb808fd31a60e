//! Admission of connections: whoever wants to enter a pod or pass through to a server is judged by the policies and
//! webhooks of the cluster, by what they ask for.

use serde_json::{Value, json};

use crate::admission::{Call, Operation};
use crate::auth::Attributes;
use crate::request::RequestInfo;
use crate::resource::Resource;
use crate::server::{ApiServer, Request};
use crate::status::{ApiError, Result};

/// Asks whether a connection may be made. Logs are read and not connected to.
///
/// # Errors
/// The refusal of a policy or webhook.
pub(super) async fn admit(server: &ApiServer, request: &Request, resource: &Resource) -> Result<()> {
    let subresource = request.info.subresource.as_str();
    if subresource == "log" {
        return Ok(());
    }
    let call = Call {
        server,
        user: &request.user,
        operation: Operation::Connect,
        resource,
        subresource,
        namespace: &request.info.namespace,
        name: &request.info.name,
        old: None,
        dry_run: false,
        said: &[],
    };
    let kind = resource.subresource(subresource).map_or("", |part| &part.kind);
    server.admission.connect(&call, options(request, kind)).await
}

/// Pods are entered with the right to create, also by who comes with GET, as WebSocket clients do.
///
/// # Errors
/// 403.
pub(super) fn may_enter(server: &ApiServer, request: &Request) -> Result<()> {
    let info = &request.info;
    if !enters(info) || !server.config.connects_by_create {
        return Ok(());
    }
    let asked = RequestInfo { verb: "create".into(), ..info.clone() };
    let decision = server.authorizer.decide(&Attributes { user: &request.user, info: &asked });
    match decision {
        decision if decision.allowed => Ok(()),
        decision if !decision.error.is_empty() => Err(ApiError::internal(decision.error)),
        decision => Err(ApiError::forbidden(&info.group, &info.resource, &info.name, decision.reason)),
    }
}

/// Whether a request enters a pod by another right than that to create.
fn enters(info: &RequestInfo) -> bool {
    let part = matches!(info.subresource.as_str(), "exec" | "attach" | "portforward");
    info.resource == "pods" && part && info.verb != "create"
}

/// What is asked for, as an object of its own kind.
fn options(request: &Request, kind: &str) -> Value {
    let mut out = json!({"kind": kind, "apiVersion": "v1"});
    match request.info.subresource.as_str() {
        "exec" | "attach" => {
            for flag in ["stdin", "stdout", "stderr", "tty"].into_iter().filter(|flag| request.query.flag(flag)) {
                out[flag] = true.into();
            }
            if let Some(container) = request.query.get("container").filter(|name| !name.is_empty()) {
                out["container"] = container.into();
            }
            let command: Vec<&str> = request.query.all("command").collect();
            if request.info.subresource == "exec" {
                out["command"] = json!(command);
            }
        }
        "portforward" => {
            let ports: Vec<i64> =
                request.query.all("ports").flat_map(|p| p.split(',')).filter_map(|p| p.parse().ok()).collect();
            if !ports.is_empty() {
                out["ports"] = json!(ports);
            }
        }
        _ => {
            let path =
                request.info.path.split_once(&format!("/{}/proxy", request.info.name)).map_or("", |(_, path)| path);
            if !path.is_empty() {
                out["path"] = path.into();
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reads_or_passes_through_enters_no_pod() {
        let info = |verb: &str, subresource: &str| RequestInfo {
            verb: verb.into(),
            resource: "pods".into(),
            subresource: subresource.into(),
            ..RequestInfo::default()
        };
        assert!(["exec", "attach", "portforward"].iter().all(|part| enters(&info("get", part))));
        assert!(!enters(&info("create", "exec")), "authorized already");
        assert!(!enters(&info("get", "log")) && !enters(&info("get", "proxy")));
    }
}
