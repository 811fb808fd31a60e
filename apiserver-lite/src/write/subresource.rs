//! Routes requests for subresources, and handles those whose object is the resource itself: status, approval, finalize,
//! and the parts of a pod that have their own.

use std::sync::Arc;

use super::options::WriteOptions;
use super::update::{self, Target};
use super::{binding, decode, eviction, scale};
use crate::http::{Accepted, Form, Response, respond};
use crate::read;
use crate::resource::{Resource, Schema, SchemaSet, Verbs};
use crate::server::{ApiServer, Request, unknown_path, wrong_method};
use crate::status::{ApiError, Result};

/// Routes a request for a subresource.
///
/// # Errors
/// Any Status.
pub(super) async fn handle(
    server: &Arc<ApiServer>,
    mut request: Box<Request>,
    resource: Arc<Resource>,
    accepted: Accepted,
) -> Result<Response> {
    let Some(subresource) = resource.subresource(&request.info.subresource) else { return Err(unknown_path()) };
    let verb = match request.info.verb.as_str() {
        "get" => Verbs::GET,
        "create" => Verbs::CREATE,
        "update" => Verbs::UPDATE,
        "patch" => Verbs::PATCH,
        "delete" => Verbs::DELETE,
        _ => return Err(wrong_method()),
    };
    if !subresource.verbs.contains(verb) {
        return Err(wrong_method());
    }
    match &*subresource.name {
        "status" | "approval" | "finalize" | "ephemeralcontainers" | "resize" => {
            part(server, request, &resource, accepted, verb).await
        }
        "scale" => scale::handle(server, *request, &resource, accepted, verb).await,
        "binding" => binding::handle(server, &mut request, accepted).await,
        name if crate::proxy::is_proxied(name) => crate::proxy::handle(server, *request, &resource).await,
        "token" => super::review::token(server, &mut request, &resource, accepted).await,
        "eviction" => eviction::handle(server, &mut request, &resource, accepted).await,
        _ if server.store.get(&resource.storage, &request.info.namespace, &request.info.name).is_none() => {
            Err(ApiError::missing(&resource.group, &resource.plural, &request.info.name))
        }
        _ => Err(ApiError::new(501, "NotImplemented", format!("{} is not available yet", request.info.subresource))),
    }
}

/// A subresource whose object is the resource itself.
async fn part(
    server: &ApiServer,
    mut request: Box<Request>,
    resource: &Resource,
    accepted: Accepted,
    verb: Verbs,
) -> Result<Response> {
    let namespace = if resource.namespaced { request.info.namespace.clone() } else { String::new() };
    if verb == Verbs::GET {
        return read::get(server, &request, resource).await;
    }
    let options = WriteOptions::parse(&request, resource)?;
    let body = request.body().await?;
    let (name, subresource) = (request.info.name.clone(), request.info.subresource.clone());
    let target = Target { resource, subresource: &subresource, namespace: &namespace, name: &name };
    let object = if verb == Verbs::PATCH {
        update::patch(server, target, request.content_type(), &body, &options, &request.user).await?.object
    } else {
        let value = decode::object(resource, request.content_type(), &body, &options)?;
        update::put(server, target, value, &options, &request.user).await?.0
    };
    read::object_response(server, 200, accepted, resource, &object, &request).await
}

/// Schema of a built-in kind by group, version and kind.
pub(super) fn schema((group, version, kind): (&str, &str, &str)) -> Result<Schema> {
    let id = proto::schema::TypeSet::built_in().kind(group, version, kind);
    Ok(Schema { set: SchemaSet::BuiltIn, id: id.ok_or_else(|| ApiError::internal(format!("{kind} is not declared")))? })
}

/// The answer of subresources that only do something.
pub(super) fn done(accepted: Accepted) -> Response {
    let status =
        serde_json::json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    let accepted = Accepted { form: Form::Whole, ..accepted };
    respond::built_in(201, accepted, ("", "v1", "Status"), &status)
}
