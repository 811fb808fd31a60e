//! `/openapi/v3` and `/openapi/v2`: the schema table and the registry as OpenAPI documents, for `kubectl apply`,
//! `explain` and validation.
//!
//! Documents are put together when asked for. Their hashes, which clients cache by, come from what the documents are
//! made of, so the index costs next to nothing.

mod descriptions;
mod gnostic;
mod paths;
mod schemas;

use std::sync::Arc;

use http::header::{CACHE_CONTROL, ETAG, HeaderValue, IF_NONE_MATCH, VARY};
use ring::digest::{Context, SHA512};
use serde_json::{Map, Value, json};

use crate::aggregate::Remote;
use crate::http::{Body, Response, respond};
use crate::resource::{Resource, Set};
use crate::server::{ApiServer, Request};

const JSON: &str = "application/json";

/// The two generations of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    V2,
    V3,
}

impl Format {
    fn reference(self, name: &str) -> Value {
        match self {
            Format::V2 => json!({"$ref": format!("#/definitions/{name}")}),
            Format::V3 => json!({"$ref": format!("#/components/schemas/{name}")}),
        }
    }
}

/// Answers the paths of this module; None for others.
pub fn answer(server: &ApiServer, request: &Request) -> Option<Response> {
    let path = request.info.path.trim_end_matches('/');
    let set = server.resources.current();
    if path == "/openapi/v2" {
        return Some(version_2(&set, request));
    }
    let key = path.strip_prefix("/openapi/v3")?;
    if key.is_empty() {
        return Some(index(&set, &server.aggregated.all()));
    }
    let key = key.strip_prefix('/')?;
    Some(match resources(&set, key) {
        Some(resources) => document(key, &resources, request),
        None => empty(404),
    })
}

fn empty(code: u16) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
    response
}

/// Path of a group version's document: `api/v1`, `apis/apps/v1`.
fn key(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// What a document describes: the resources of a group version, none for the documents about discovery itself.
fn resources<'a>(set: &'a Set, wanted: &str) -> Option<Vec<&'a Resource>> {
    let found: Vec<&Resource> =
        set.all().iter().map(|r| &**r).filter(|r| key(&r.group, &r.version) == wanted).collect();
    (!found.is_empty() || keys(set).iter().any(|k| k == wanted)).then_some(found)
}

fn keys(set: &Set) -> Vec<String> {
    let mut out: Vec<String> =
        [".well-known/openid-configuration", "api", "apis", "openid/v1/jwks", "version"].map(Into::into).into();
    for group in set.groups() {
        if !group.is_empty() {
            out.push(format!("apis/{group}"));
        }
        out.extend(set.versions(group).into_iter().map(|v| key(group, v)));
    }
    out.sort();
    out
}

/// Changes whenever a document could.
fn hash(resources: &[&Resource], key: &str) -> String {
    let mut context = Context::new(&SHA512);
    context.update(env!("CARGO_PKG_VERSION").as_bytes());
    context.update(descriptions::TEXT.as_bytes());
    context.update(key.as_bytes());
    for resource in resources {
        context.update(format!("{resource:?}").as_bytes());
    }
    context.finish().as_ref().iter().map(|b| format!("{b:02X}")).collect()
}

fn index(set: &Set, remotes: &[Arc<Remote>]) -> Response {
    let mut paths = Map::new();
    for key in keys(set) {
        let hash = hash(&resources(set, &key).unwrap_or_default(), &key);
        paths.insert(key.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{key}?hash={hash}")}));
    }
    // What other servers serve is found where they say, through us.
    for remote in remotes {
        if let Some(place) = &remote.openapi {
            paths.insert(key(&remote.group, &remote.version), place.clone());
        }
    }
    let mut response = respond::text(200, json!({"paths": paths}).to_string());
    response.headers_mut().remove("x-content-type-options");
    response
}

fn document(key: &str, resources: &[&Resource], request: &Request) -> Response {
    let hash = hash(resources, key);
    match request.query.get("hash") {
        Some(asked) if asked != hash => {
            let mut response = empty(301);
            let place = HeaderValue::from_str(&format!("/openapi/v3/{key}?hash={hash}"));
            if let Ok(place) = place {
                response.headers_mut().insert(http::header::LOCATION, place);
            }
            return response;
        }
        _ => {}
    }
    let mut response = tagged(&hash, request, JSON, || {
        let mut schemas = schemas::Schemas::new(Format::V3);
        let paths = paths::all(resources, Format::V3, &mut schemas);
        json!({
            "openapi": "3.0.0",
            "info": {"title": "Kubernetes", "version": "v1.36.2"},
            "paths": paths,
            "components": {"schemas": schemas.finish()},
        })
        .to_string()
        .into_bytes()
    });
    if request.query.get("hash").is_some() {
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
    }
    response
}

/// Everything in one document of the older format.
fn version_2(set: &Set, request: &Request) -> Response {
    let Some(protobuf) = wants_protobuf(&request.accept()) else { return empty(406) };
    let all: Vec<&Resource> = set.all().iter().map(|r| &**r).collect();
    let body = || {
        let mut schemas = schemas::Schemas::new(Format::V2);
        let paths = paths::all(&all, Format::V2, &mut schemas);
        json!({
            "swagger": "2.0",
            "info": {"title": "Kubernetes", "version": "v1.36.2"},
            "paths": paths,
            "definitions": schemas.finish(),
        })
    };
    match protobuf {
        true => tagged(&hash(&all, "v2 protobuf"), request, gnostic::MEDIA, || gnostic::document(&body())),
        false => tagged(&hash(&all, "v2"), request, JSON, || body().to_string().into_bytes()),
    }
}

/// Whether the older document is asked for as protobuf, by the first media type that can be had; None when none can.
fn wants_protobuf(accept: &str) -> Option<bool> {
    if accept.is_empty() {
        return Some(false);
    }
    accept.split(',').map(|clause| clause.split(';').next().unwrap_or_default().trim()).find_map(|name| match name {
        JSON | "application/*" | "*/*" => Some(false),
        name => gnostic::NAMES.contains(&name).then_some(true),
    })
}

/// A document, put together only when the client has not got it yet.
fn tagged(hash: &str, request: &Request, media: &'static str, body: impl FnOnce() -> Vec<u8>) -> Response {
    let tag = format!("\"{hash}\"");
    let known = request.header(&IF_NONE_MATCH) == tag;
    let mut response = if known { empty(304) } else { respond::bytes(200, media, body()) };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(ETAG, tag);
    }
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_form_that_can_be_had_is_taken() {
        assert_eq!(wants_protobuf(""), Some(false));
        assert_eq!(wants_protobuf("text/html, application/json;q=0.5"), Some(false));
        assert_eq!(wants_protobuf(gnostic::NAMES[1]), Some(true));
        assert_eq!(wants_protobuf("application/yaml"), None);
    }
}
