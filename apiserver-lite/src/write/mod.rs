//! Writes: create, update, patch, delete and deletecollection of any resource, and the subresources that are stored
//! with their object.
//!
//! Each operation is a loop of three steps: read what is there, compute what should be there, commit on the condition
//! that nothing happened in between. The middle step is plain code over trees. How often it goes round: [`turns`].

mod admit;
mod applied;
mod binding;
mod claim_sources;
mod create;
mod decode;
mod delete;
mod delete_options;
mod eviction;
mod gated;
mod meta;
mod options;
mod pod_parts;
mod pod_words;
mod review;
mod scale;
mod strategy;
mod subresource;
mod turns;
mod update;

use std::sync::Arc;

use proto::json::Known;

use crate::apply::Owners;
use crate::http::Response;
use crate::read;
use crate::resource::{Resource, Verbs};
use crate::server::{ApiServer, Request, wrong_method};
use crate::status::{ApiError, Cause, Result};
use crate::store::{Change, CommitError, Encoded, Expect, Key, ObjectRef, Write};

pub use applied::apply;
pub use binding::bind;
pub use create::create;
pub(crate) use create::to_stored_version;
#[cfg(test)]
pub(crate) use decode::object as decode_object;
pub(crate) use decode::{no_conversion, not_registered};
pub use delete::{Deleted, delete, delete_as, returns_status};
pub use delete_options::DeleteOptions;
pub use gated::Gated;
pub use options::{FieldValidation, WriteOptions, invalid};
pub(crate) use scale::scale_of;
pub use turns::Turns;
pub use update::{Target, update};

/// Routes a request that is no plain read.
///
/// # Errors
/// Any Status.
pub async fn handle(server: &Arc<ApiServer>, mut request: Box<Request>, resource: Arc<Resource>) -> Result<Response> {
    let forms = match review::is_answered(&resource, &request.info.subresource) {
        true => request.accepted_without_tables(),
        false => request.accepted(true),
    };
    let accepted = match forms {
        Err(_) if crate::proxy::is_proxied(&request.info.subresource) => crate::http::Accepted::JSON,
        accepted => accepted?,
    };
    if !request.info.subresource.is_empty() {
        return subresource::handle(server, request, resource, accepted).await;
    }
    let verb = match request.info.verb.as_str() {
        "create" if request.info.name.is_empty() => Verbs::CREATE,
        "update" if !request.info.name.is_empty() => Verbs::UPDATE,
        "patch" if !request.info.name.is_empty() => Verbs::PATCH,
        "delete" => Verbs::DELETE,
        "deletecollection" => Verbs::DELETE_COLLECTION,
        _ => return Err(wrong_method()),
    };
    if !resource.verbs.contains(verb) {
        return Err(wrong_method());
    }
    match verb {
        Verbs::DELETE => return delete::handle(server, *request, &resource, accepted).await,
        Verbs::DELETE_COLLECTION => return delete::collection(server, *request, &resource, accepted).await,
        _ => {}
    }
    if resource.group.is_empty() && &*resource.plural == "bindings" {
        return binding::handle(server, &mut request, accepted).await;
    }
    let options = WriteOptions::parse(&request, &resource)?;
    if review::is_review(&resource) {
        return review::handle(server, *request, &resource, accepted, &options).await;
    }
    let namespace = if resource.namespaced { request.info.namespace.clone() } else { String::new() };
    let name = request.info.name.clone();
    let (code, object) = match verb {
        Verbs::CREATE => {
            let body = request.body().await?;
            let value = decode::object(&resource, request.content_type(), &body, &options)?;
            if resource.namespaced && namespace.is_empty() {
                return Err(without_namespace(&resource, &value));
            }
            (201, create(server, &resource, &namespace, value, &options, &request.user).await?)
        }
        Verbs::UPDATE => {
            let body = request.body().await?;
            let value = decode::object(&resource, request.content_type(), &body, &options)?;
            let target = Target { resource: &resource, subresource: "", namespace: &namespace, name: &name };
            let (object, created) = update::put(server, target, value, &options, &request.user).await?;
            (if created { 201 } else { 200 }, object)
        }
        _ => {
            let body = request.body().await?;
            let target = Target { resource: &resource, subresource: "", namespace: &namespace, name: &name };
            let patched = update::patch(server, target, request.content_type(), &body, &options, &request.user).await?;
            (if patched.created { 201 } else { 200 }, patched.object)
        }
    };
    read::object_response(server, code, accepted, &resource, &object, &request).await
}

/// The refusal of an object that would be created at an empty namespace, as in `/api/v1/namespaces//pods`.
fn without_namespace(resource: &Resource, value: &serde_json::Value) -> ApiError {
    let cause = Cause {
        reason: "FieldValueRequired".into(),
        message: "Required value".into(),
        field: "metadata.namespace".into(),
    };
    invalid(&resource.group, &resource.kind, meta::text(value, "name"), vec![cause])
}

/// Commits an object; a dry run answers as if it had.
async fn commit(server: &ApiServer, write: Write, dry_run: bool) -> Result<ObjectRef, CommitError> {
    match dry_run {
        true => rehearse(server, write, ""),
        false => server.store.commit(write).await,
    }
}

/// What would become of a write. A new object has no version but what its sender `said`, which nobody reads.
fn rehearse(server: &ApiServer, write: Write, said: &str) -> Result<ObjectRef, CommitError> {
    let found = server.store.get(&write.resource, &write.key.namespace, &write.key.name);
    let (Change::Put(encoded) | Change::Delete(encoded)) = write.change;
    match (write.expect, found) {
        (Expect::Absent, Some(found)) => Err(CommitError::Exists(found)),
        (Expect::Revision(_), None) => Err(CommitError::Missing),
        (Expect::Revision(revision), Some(found)) if found.revision != revision => Err(CommitError::Conflict(found)),
        (Expect::Revision(revision), Some(_)) => Ok(encoded.as_of(write.key, revision)),
        _ => Ok(encoded.unsaved(write.key, said)),
    }
}

/// A refused commit as the client sees it.
fn commit_error(resource: &Resource, name: &str, error: CommitError) -> ApiError {
    match error {
        CommitError::Exists(object) if object.keys.deleting => {
            let mut exists = ApiError::already_exists(&resource.group, &resource.plural, name);
            exists.prefix("object is being deleted: ");
            exists
        }
        CommitError::Exists(_) => ApiError::already_exists(&resource.group, &resource.plural, name),
        CommitError::Missing => ApiError::missing(&resource.group, &resource.plural, name),
        CommitError::Conflict(_) => ApiError::conflict(&resource.group, &resource.plural, name, MODIFIED),
        CommitError::NoRoom => ApiError::internal(error),
        CommitError::Closed => ApiError::service_unavailable("the store takes no more writes"),
    }
}

/// What a client hears whose version is not the newest.
const MODIFIED: &str = "the object has been modified; please apply your changes to the latest version and try again";

/// A write of a whole object.
async fn put(
    server: &ApiServer,
    resource: &Resource,
    key: Key,
    expect: Expect,
    mut value: serde_json::Value,
    owners: Option<&Owners>,
) -> Result<Write> {
    let encoded = converted(server, resource, &mut value, owners, None).await?;
    let change = Change::Put(encoded.with_tree(value));
    Ok(Write { resource: resource.storage.clone(), key, expect, change })
}

/// An object ready to be stored, in the version of storage. Without `owners` those of its fields are in the tree. What is
/// `known` of a built-in kind is not written again.
async fn converted(
    server: &ApiServer,
    resource: &Resource,
    value: &mut serde_json::Value,
    owners: Option<&Owners>,
    known: Option<Known<'_>>,
) -> Result<Encoded> {
    crate::crd::to_version(server, resource, value, &resource.storage_version).await?;
    if let Some(definition) = &resource.definition {
        definition.to_storage(value);
    }
    let fields = crate::resource::fields::of(resource, value);
    let mut encoded = crate::store::encode(resource, value, fields, known);
    encoded.keys.mark = resource.definition.as_ref().map(|definition| definition.mark()).unwrap_or_default();
    Ok(match owners.map(Owners::list).filter(|list| !list.is_empty()) {
        Some(list) => encoded.with_owners(list),
        None => encoded,
    })
}

/// An object that stays in the version that it is in, ready to be stored. It fits its definition as far as it did before.
fn encoded(resource: &Resource, value: &mut serde_json::Value, old: &ObjectRef) -> Encoded {
    if let Some(definition) = &resource.definition {
        definition.to_storage(value);
    }
    let fields = crate::resource::fields::of(resource, value);
    let mut encoded = crate::store::encode(resource, value, fields, None);
    // What another state of the definition marked may have been made anew under this one.
    encoded.keys.mark = match &resource.definition {
        Some(definition) if !definition.fits(old) => Default::default(),
        _ => old.keys.mark.clone(),
    };
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_have_no_namespace_is_not_created() {
        let kind = crate::resource::Resources::built_in().lookup("apps", "v1", "deployments").expect("built in");
        let error = without_namespace(&kind, &serde_json::json!({"metadata": {"name": "x"}}));
        assert_eq!(error.code(), 422);
        assert_eq!(error.status().message, "Deployment.apps \"x\" is invalid: metadata.namespace: Required value");
    }
}
