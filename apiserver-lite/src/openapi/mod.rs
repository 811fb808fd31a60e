//! `/openapi/v3` and `/openapi/v2`: the schema table and the registry as OpenAPI documents, for `kubectl apply`,
//! `explain` and validation.
//!
//! Documents are put together when asked for. Their hashes, which clients cache by, come from what the documents are
//! made of, so the index costs next to nothing.

mod content;
mod custom;
mod descriptions;
mod everywhere;
mod gnostic;
mod gnostic_v3;
mod media;
mod parameters;
mod paths;
mod roots;
mod routes;
mod schemas;

use std::sync::Arc;

use http::Method;
use http::header::{ACCEPT_ENCODING, CACHE_CONTROL, ETAG, EXPIRES, HeaderValue, LOCATION, VARY};
use ring::digest::{Context, SHA512};
use serde_json::{Map, Value, json};
use time::OffsetDateTime;

pub use content::Times;
use content::{Content, serve};
use paths::Draft;

use crate::aggregate::{Copies, Remote};
use crate::http::{Body, Response, media_types, respond};
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
    let path = request.info.path.as_str();
    let set = server.resources.current();
    if path == "/openapi/v2" {
        return Some(packed(
            version_2(&set, &server.aggregated.all(), (server, request)),
            &request.method,
            request.header(&ACCEPT_ENCODING),
        ));
    }
    let key = path.strip_prefix("/openapi/v3")?;
    if key.is_empty() {
        return Some(index(&set, &server.aggregated.all(), server.config.cbor));
    }
    let key = key.strip_prefix('/')?;
    Some(match resources(&set, key) {
        Some(resources) => document(key, &resources, server, request),
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
        // What is told of groups that definitions make is told outside of the router.
        if !group.is_empty() && set.all().iter().any(|r| !r.custom && *r.group == *group) {
            out.push(format!("apis/{group}"));
        }
        out.extend(set.versions(group).into_iter().map(|v| key(group, v)));
    }
    out.sort();
    out
}

/// Goes up with every change of what is made of the same tables: clients keep documents for good by their hashes.
const FORM: u8 = 1;

/// Whether a document is of custom resources alone.
fn is_custom(resources: &[&Resource]) -> bool {
    !resources.is_empty() && resources.iter().all(|r| r.custom)
}

/// Changes whenever a document could.
fn hash(resources: &[&Resource], key: &str, cbor: bool) -> String {
    let mut context = Context::new(&SHA512);
    context.update(env!("CARGO_PKG_VERSION").as_bytes());
    context.update(&[FORM, cbor.into()]);
    context.update(descriptions::TEXT.as_bytes());
    context.update(key.as_bytes());
    for resource in resources {
        context.update(told(resource).as_bytes());
    }
    context.finish().as_ref().iter().map(|b| format!("{b:02X}")).collect()
}

/// What tells one state of a resource from another. The tables of a custom kind are long, and made of its definition, which
/// has a name for each of its states.
fn told(resource: &Resource) -> String {
    let Some(definition) = &resource.definition else { return format!("{resource:?}") };
    let Resource { group, version, plural, singular, kind, list_kind, short_names, categories, .. } = resource;
    let names = (group, version, plural, singular, kind, list_kind, short_names, categories);
    format!("{} {names:?}", definition.identity)
}

fn index(set: &Set, remotes: &[Arc<Remote>], cbor: bool) -> Response {
    let mut paths = Map::new();
    for key in keys(set) {
        let hash = hash(&resources(set, &key).unwrap_or_default(), &key, cbor);
        paths.insert(key.clone().into(), json!({"serverRelativeURL": format!("/openapi/v3/{key}?hash={hash}")}));
    }
    // What other servers serve is found where they say, through us.
    for remote in remotes {
        if let Some(place) = remote.documents.index() {
            paths.insert(key(&remote.group, &remote.version).into(), Value::clone(&place));
        }
    }
    let mut response = respond::text(200, json!({"paths": paths}).to_string());
    response.headers_mut().remove("x-content-type-options");
    response
}

/// The document of a group version. Its hash in the query says that the client will keep the answer for good.
fn document(key: &str, resources: &[&Resource], server: &ApiServer, request: &Request) -> Response {
    let Some(protobuf) = wants_protobuf(&request.accept(), &gnostic_v3::NAMES) else { return not_acceptable() };
    let media = if protobuf { gnostic_v3::MEDIA } else { JSON };
    let cbor = server.config.cbor;
    let hash = hash(resources, key, cbor);
    let asked = request.query.get("hash").filter(|asked| !asked.is_empty());
    if asked.is_some_and(|asked| *asked != hash) {
        let mut response = respond::bytes(301, media, Vec::new());
        if let Ok(place) = HeaderValue::from_str(&format!("/openapi/v3/{key}?hash={hash}")) {
            response.headers_mut().insert(LOCATION, place);
        }
        return tag(response, &hash);
    }
    let name = if protobuf { format!("{key} protobuf") } else { key.to_owned() };
    let content = Content { name: &name, hash: &hash, media };
    let mut response = serve(&server.documents, content, request, || {
        let document = newer(key, resources, cbor);
        if protobuf { gnostic_v3::document(&document) } else { document.to_string().into_bytes() }
    });
    if asked.is_some() && response.status() != http::StatusCode::RANGE_NOT_SATISFIABLE {
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
        if let Ok(expires) = HeaderValue::from_str(&in_a_year(OffsetDateTime::now_utc())) {
            headers.insert(EXPIRES, expires);
        }
    }
    response
}

/// A group version's document, or one about discovery itself.
fn newer(key: &str, resources: &[&Resource], cbor: bool) -> Value {
    let mut draft = Draft::new(Format::V3, cbor);
    resources.iter().for_each(|resource| draft.add(resource));
    let custom = is_custom(resources);
    if !custom {
        roots::add(key, &mut draft);
    }
    let [paths, schemas, _] = draft.finish();
    let mut document = json!({
        "openapi": "3.0.0", "info": info(custom), "paths": paths, "components": {"schemas": schemas},
    });
    if !custom {
        document["components"]["securitySchemes"] = security();
    }
    document
}

/// Upstream's documents of custom resources are made by another program, which goes by a name of its own.
fn info(custom: bool) -> Value {
    match custom {
        true => json!({"title": "Kubernetes CRD Swagger", "version": "v0.1.0"}),
        false => json!({"title": "Kubernetes", "version": "v1.36.2"}),
    }
}

/// How clients may say who they are.
fn security() -> Value {
    json!({"BearerToken": {
        "type": "apiKey", "name": "authorization", "in": "header", "description": "Bearer Token authentication",
    }})
}

/// The same time of the next year, in the form of HTTP as Go writes it in UTC.
fn in_a_year(now: OffsetDateTime) -> String {
    // There is no 29th of February the year after one.
    let then = now.replace_year(now.year() + 1).unwrap_or_else(|_| now + time::Duration::days(366));
    let weekday = &then.weekday().to_string()[..3];
    let month = &then.month().to_string()[..3];
    let (day, year, hour, minute, second) = (then.day(), then.year(), then.hour(), then.minute(), then.second());
    format!("{weekday}, {day:02} {month} {year} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Everything in one document of the older format.
fn version_2(set: &Set, remotes: &[Arc<Remote>], (server, request): (&ApiServer, &Request)) -> Response {
    let Some(protobuf) = wants_protobuf(&request.accept(), &gnostic::NAMES) else { return not_acceptable() };
    let all: Vec<&Resource> = set.all().iter().map(|r| &**r).collect();
    // One state of them for the tag and for what it stands for.
    let others: Vec<_> = remotes.iter().filter_map(|r| Some((&r.name, r.documents.older()?))).collect();
    let cbor = server.config.cbor;
    let body = || {
        let mut draft = Draft::new(Format::V2, cbor);
        all.iter().for_each(|resource| draft.add(resource));
        let ours = keys(set).into_iter().filter(|key| !resources(set, key).is_some_and(|found| is_custom(&found)));
        ours.for_each(|key| roots::add(&key, &mut draft));
        let [mut paths, mut definitions, mut parameters] = draft.finish();
        let mut copies = Copies::default();
        others.iter().for_each(|(_, part)| {
            part.add_to([&mut paths, &mut definitions, &mut parameters], &mut copies);
        });
        json!({
            "swagger": "2.0",
            "info": info(false),
            "paths": paths,
            "definitions": definitions,
            "parameters": parameters,
            "securityDefinitions": security(),
            "security": [{"BearerToken": []}],
        })
    };
    let parts: String = others.iter().map(|(name, part)| format!(" {name} {}", part.mark)).collect();
    let (name, media) = if protobuf { ("v2 protobuf", gnostic::MEDIA) } else { ("v2", JSON) };
    let hash = hash(&all, &format!("{name}{parts}"), cbor);
    serve(&server.documents, Content { name, hash: &hash, media }, request, || match protobuf {
        true => gnostic::document(&body()),
        false => body().to_string().into_bytes(),
    })
}

/// Whether a document is asked for as protobuf, which goes by some names, by the best media type that can be had; None
/// when none can. Parameters do not count.
fn wants_protobuf(accept: &str, names: &[&str; 2]) -> Option<bool> {
    let fits = |(kind, subtype): (&str, &str), name: &str| {
        name.split_once('/').is_some_and(|(k, s)| (kind == k || kind == "*") && (subtype == s || subtype == "*"))
    };
    media_types(accept).into_iter().find_map(|wanted| match wanted {
        wanted if fits(wanted, JSON) => Some(false),
        wanted => names.iter().any(|name| fits(wanted, name)).then_some(true),
    })
}

/// Bodies from this size on are compressed.
const PACKED_FROM: usize = 1400;

/// The older document as upstream sends it: compressed for clients that take that, at any setting of the server. What
/// compresses there sees bytes being written, and not what they are: parts of the document are compressed as well, and
/// nothing where nothing is written.
fn packed(mut response: Response, method: &Method, encodings: &str) -> Response {
    let vary: Vec<HeaderValue> = response.headers_mut().remove(VARY).into_iter().collect();
    for value in std::iter::once(HeaderValue::from_static("Accept-Encoding")).chain(vary) {
        response.headers_mut().append(VARY, value);
    }
    if method != Method::HEAD && response.body().len() >= PACKED_FROM && takes_gzip(encodings) {
        respond::gzip(&mut response);
    }
    response
}

/// Whether `Accept-Encoding` names gzip and does not rule it out. Upstream a handler of its own reads it here, which knows
/// more forms than the one that compresses objects.
fn takes_gzip(encodings: &str) -> bool {
    encodings.split(',').any(|encoding| {
        let mut parts = encoding.split(';').map(str::trim);
        let named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let quality = parts.find_map(|part| part.strip_prefix("q=")).map_or(Ok(1.0), str::parse::<f32>);
        named && quality.is_ok_and(|quality| quality > 0.0)
    })
}

fn not_acceptable() -> Response {
    let mut response = empty(406);
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    response
}

/// Names the version of a document on an answer.
fn tag(mut response: Response, hash: &str) -> Response {
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{hash}\"")) {
        response.headers_mut().insert(ETAG, tag);
    }
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    response
}

#[cfg(test)]
mod tests {
    use http::header::CONTENT_ENCODING;
    use time::macros::datetime;

    use super::*;

    #[test]
    fn the_best_form_that_can_be_had_is_taken() {
        for (names, media) in [(gnostic::NAMES, gnostic::MEDIA), (gnostic_v3::NAMES, gnostic_v3::MEDIA)] {
            let wants = |accept: &str| wants_protobuf(accept, &names);
            assert_eq!(wants(""), Some(false));
            assert_eq!(wants("text/html, application/json;q=0.5"), Some(false));
            assert_eq!(wants("application/json;q=0.5,application/*;q=0.1"), Some(false));
            assert_eq!(wants(&format!("application/json;q=0.5,{media}")), Some(true));
            assert_eq!(wants(names[1]), Some(true));
            assert_eq!(wants("application/yaml"), None);
            assert_eq!(wants("application/vnd.kubernetes.protobuf"), None);
        }
    }

    #[test]
    fn the_older_document_is_compressed_for_whoever_takes_it() {
        let sent = |size: usize, encodings: &str| {
            let response = packed(tag(respond::bytes(200, JSON, vec![b' '; size]), "A"), &Method::GET, encodings);
            let vary: Vec<HeaderValue> = response.headers().get_all(VARY).iter().cloned().collect();
            assert_eq!(vary, ["Accept-Encoding", "Accept"]);
            let whole = matches!(response.body(), Body::Chunks(_));
            assert_eq!(whole, response.headers().get(CONTENT_ENCODING).is_none());
            !whole
        };
        for (size, encodings, expected) in [
            (5000, "gzip", true),
            (5000, "deflate, GZIP;q=0.5", true),
            (1399, "gzip", false),
            (5000, "", false),
            (5000, "gzip;q=0", false),
            (5000, "*", false),
        ] {
            assert_eq!(sent(size, encodings), expected, "{size} bytes, {encodings:?}");
        }
    }

    #[test]
    fn parts_of_the_older_document_are_compressed_as_well() {
        let part = |method: &Method| {
            let mut part = respond::bytes(206, JSON, vec![b' '; 5000]);
            part.headers_mut().insert("content-range", HeaderValue::from_static("bytes 0-4999/9000"));
            let sent = packed(tag(part, "A"), method, "gzip");
            assert_eq!(sent.headers()["content-range"], "bytes 0-4999/9000");
            sent.headers().get(CONTENT_ENCODING).cloned()
        };
        assert_eq!(part(&Method::GET), Some(HeaderValue::from_static("gzip")));
        assert_eq!(part(&Method::HEAD), None, "nothing is written that could be compressed");
    }

    /// The hash of a custom kind was made of all its tables for each look at the index, and another one after a restart.
    #[test]
    fn a_document_of_a_custom_kind_goes_by_the_state_of_its_definition() {
        use crate::crd::samples::{definition, version};
        let mut said = definition(1, &[version("v1", &["color"], &[])]);
        let hash = |said: &serde_json::Value, born: u64| {
            let all = crate::crd::resources(said, born, None);
            assert!(told(&all[0]).len() < 200, "{}", told(&all[0]));
            hash(&all.iter().map(|resource| &**resource).collect::<Vec<_>>(), "apis/g.io/v1", false)
        };
        let first = hash(&said, 1);
        assert_eq!(first, hash(&said, 7));
        said["status"]["acceptedNames"]["listKind"] = "Foos".into();
        assert_ne!(first, hash(&said, 1));
        assert_ne!(first, hash(&definition(2, &[version("v1", &["color"], &[])]), 1));
    }

    #[test]
    fn what_is_kept_for_good_is_kept_for_a_year() {
        assert_eq!(in_a_year(datetime!(2026-01-02 03:04:05 UTC)), "Sat, 02 Jan 2027 03:04:05 UTC");
        assert_eq!(in_a_year(datetime!(2028-02-29 00:00:00 UTC)), "Thu, 01 Mar 2029 00:00:00 UTC");
    }
}
