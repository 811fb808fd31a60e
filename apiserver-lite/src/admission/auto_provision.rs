//! NamespaceAutoProvision: who makes something in a namespace that is not there gets it made. Follows
//! `plugin/pkg/admission/namespace/autoprovision`.

use serde_json::json;

use super::{Call, Operation};
use crate::request::User;
use crate::status::Result;
use crate::write::{self, WriteOptions};

/// Makes the namespace of a call where it is missing.
///
/// # Errors
/// 403 when it cannot be made.
pub async fn provide(call: &Call<'_>) -> Result<()> {
    if call.namespace.is_empty() || call.operation != Operation::Create || call.concerns("", "namespaces") {
        return Ok(());
    }
    let is_there = || call.server.store.get(&"namespaces".into(), "", call.namespace).is_some();
    // What nothing comes of needs no namespace.
    if is_there() || call.dry_run {
        return Ok(());
    }
    let set = call.server.resources.current();
    let Some(resource) = set.all().iter().find(|r| &*r.plural == "namespaces" && r.group.is_empty()) else {
        return Ok(());
    };
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": call.namespace}});
    let options = WriteOptions { manager: "kube-apiserver".into(), ..WriteOptions::default() };
    let user = User::system("system:apiserver");
    // It is a write like others, with this chain in it.
    let made = Box::pin(write::create(call.server, resource, "", namespace, &options, &user)).await;
    match made {
        Err(error) if !is_there() => Err(call.refuse(None, error.status().message.clone())),
        _ => Ok(()),
    }
}
