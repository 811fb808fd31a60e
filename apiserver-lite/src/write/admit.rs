//! Admission of what is sent to a subresource and is not the object itself: bindings, evictions, token requests.

use serde_json::Value;

use crate::admission::{Call, Operation};
use crate::request::User;
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
pub(super) async fn posted(
    server: &ApiServer,
    user: &User,
    part: Part<'_>,
    sent: &mut Value,
    dry_run: bool,
) -> Result<()> {
    let Part { resource, subresource, namespace, name } = part;
    let operation = Operation::Create;
    let call = Call { server, user, operation, resource, subresource, namespace, name, old: None, dry_run };
    server.admission.mutate(&call, sent).await?;
    // Nothing is stored for these, so no quota is charged either.
    server.admission.validate(&call, sent).await.map(drop)
}
