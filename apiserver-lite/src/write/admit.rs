//! Admission of what is sent to a subresource and is not the object itself: bindings, evictions, token requests.

use serde_json::Value;

use super::options::WriteOptions;
use crate::admission::{Call, Operation};
use crate::resource::Resource;
use crate::server::ApiServer;
use crate::status::Result;

/// Where something is sent to.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub resource: &'a Resource,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
}

/// Completes or refuses what is posted to a subresource.
///
/// # Errors
/// As the plugins.
pub(super) async fn posted(server: &ApiServer, options: &WriteOptions, part: Part<'_>, sent: &mut Value) -> Result<()> {
    let Part { resource, subresource, namespace, name } = part;
    let operation = Operation::Create;
    let WriteOptions { user, dry_run, said, .. } = options;
    let dry_run = *dry_run;
    let call = Call { server, user, operation, resource, subresource, namespace, name, old: None, dry_run, said };
    server.admission.mutate(&call, sent).await?;
    // Nothing is stored for these, so no quota is charged either.
    server.admission.validate(&call, sent).await.map(drop)
}
