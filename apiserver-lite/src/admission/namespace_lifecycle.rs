//! NamespaceLifecycle: nothing happens in namespaces that are not there, nothing new in those that go away, and some
//! namespaces stay. Follows `k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle`.

use serde_json::Value;

use super::{Call, Operation};
use crate::status::{ApiError, Result};

/// Namespaces that a cluster does not work without.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

pub fn mutate(call: &Call<'_>, new: &mut Value) -> Result<()> {
    if call.namespace.is_empty() || call.concerns("", "namespaces") {
        return Ok(());
    }
    // The answer would tell which namespaces there are.
    if call.concerns("authorization.k8s.io", "localsubjectaccessreviews") {
        return Ok(());
    }
    let Some(namespace) = call.server.store.get(&"namespaces".into(), "", call.namespace) else {
        return Err(ApiError::not_found("", "namespaces", call.namespace));
    };
    if call.operation != Operation::Create || !namespace.keys.deleting {
        return Ok(());
    }
    let namespace = call.namespace;
    let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
    let about = format!("namespace {namespace} is being terminated");
    Err(call.refuse(Some(new), why).with_cause("NamespaceTerminating", &about, "metadata.namespace"))
}

pub fn delete(call: &Call<'_>) -> Result<()> {
    if call.is("", "namespaces") && IMMORTAL.contains(&call.name) {
        return Err(ApiError::forbidden("", "namespaces", call.name, "this namespace may not be deleted"));
    }
    Ok(())
}
