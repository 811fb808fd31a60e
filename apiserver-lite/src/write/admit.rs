//! Admission of what is sent to a subresource and is not the object itself: bindings, evictions, token requests.

use serde_json::Value;

use super::options::WriteOptions;
use super::update::Target;
use crate::admission::{Call, Operation};
use crate::server::ApiServer;
use crate::status::Result;

fn call<'a>(server: &'a ApiServer, options: &'a WriteOptions, target: Target<'a>) -> Call<'a> {
    let Target { resource, subresource, namespace, name } = target;
    let operation = Operation::Create;
    let WriteOptions { user, dry_run, said, .. } = options;
    Call { server, user, operation, resource, subresource, namespace, name, old: None, dry_run: *dry_run, said }
}

/// Completes what is posted to a subresource.
///
/// # Errors
/// As the plugins.
pub(super) async fn complete(
    server: &ApiServer,
    options: &WriteOptions,
    target: Target<'_>,
    sent: &mut Value,
) -> Result<()> {
    server.admission.mutate(&call(server, options, target), sent).await
}

/// Refuses what is posted to a subresource, or lets it pass.
///
/// # Errors
/// As the plugins.
pub(super) async fn judge(server: &ApiServer, options: &WriteOptions, target: Target<'_>, sent: &Value) -> Result<()> {
    // Nothing is stored for these, so no quota is charged either.
    server.admission.validate(&call(server, options, target), sent).await.map(drop)
}

/// Both, where nothing else is looked at in between.
///
/// # Errors
/// As the plugins.
pub(super) async fn posted(
    server: &ApiServer,
    options: &WriteOptions,
    target: Target<'_>,
    sent: &mut Value,
) -> Result<()> {
    complete(server, options, target, sent).await?;
    judge(server, options, target, sent).await
}
