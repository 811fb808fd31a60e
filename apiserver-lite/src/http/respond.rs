//! From results to responses.

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use proto::json;
use proto::schema::TypeSet;
use serde_json::Value;

use super::body::{Body, Pieces, Response};
use super::negotiate::{Accepted, Media};
use crate::resource::{Resource, Schema};
use crate::status::ApiError;
use crate::store::StoredObject;

/// A tree of a kind that has a schema, in the accepted form.
pub fn tree(code: u16, accepted: Accepted, schema: Option<&Schema>, value: &Value) -> Response {
    if accepted.media == Media::Protobuf
        && let Some(schema) = schema
    {
        let text = |key: &str| value[key].as_str().unwrap_or_default();
        let body = proto::protobuf::encode_enveloped(schema.set(), schema.id, value, text("apiVersion"), text("kind"));
        return bytes(code, Media::Protobuf.name(), body);
    }
    let mut out = Vec::with_capacity(1024);
    match schema {
        Some(schema) => json::write(schema.set(), schema.id, value, &mut out),
        None => json::write_sorted(value, &mut out),
    }
    json_bytes(code, accepted, out.into())
}

/// A tree of a built-in kind by group, version and kind.
pub fn built_in(code: u16, accepted: Accepted, (group, version, kind): (&str, &str, &str), value: &Value) -> Response {
    let id = TypeSet::built_in().kind(group, version, kind);
    let schema = id.map(|id| Schema { set: crate::resource::SchemaSet::BuiltIn, id });
    tree(code, accepted, schema.as_ref(), value)
}

/// A stored object as it lies there.
pub fn stored(code: u16, accepted: Accepted, resource: &Resource, object: &StoredObject) -> Response {
    if accepted.media == Media::Protobuf && !resource.custom {
        return bytes(code, Media::Protobuf.name(), object.protobuf(resource));
    }
    json_bytes(code, accepted, object.json.bytes())
}

/// Compact JSON in the accepted text form. Compact answers end with a line end, pretty ones do not.
pub fn json_bytes(code: u16, accepted: Accepted, compact: Bytes) -> Response {
    match accepted.media {
        Media::Yaml => {
            let value = json::parse(&compact).map(|p| p.value).unwrap_or_default();
            let mut out = Vec::with_capacity(compact.len());
            proto::yaml::write(&value, &mut out);
            bytes(code, Media::Yaml.name(), out)
        }
        _ if accepted.pretty => bytes(code, Media::Json.name(), json::indent(&compact)),
        _ => {
            // One piece: HTTP/2 makes a frame of each, which is a write, a TLS record and a packet of its own.
            let mut line = Vec::with_capacity(compact.len() + 1);
            line.extend_from_slice(&compact);
            line.push(b'\n');
            bytes(code, Media::Json.name(), line)
        }
    }
}

/// Compresses a response, for a client that takes it so. What has no end cannot be compressed as a whole, and stays.
pub fn gzip(response: &mut Response) {
    let pieces = match std::mem::replace(response.body_mut(), Body::empty()) {
        Body::Pieces(pieces) => pieces,
        Body::Chunks(chunks) => Pieces::from(chunks),
        stream @ Body::Stream(_) => return *response.body_mut() = stream,
    };
    *response.body_mut() = Body::Pieces(pieces.gzipped());
    response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
}

pub fn bytes(code: u16, media: &'static str, body: impl Into<Bytes>) -> Response {
    with_type(code, media, Body::from(body.into()))
}

pub fn with_type(code: u16, media: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

pub fn text(code: u16, body: impl Into<Bytes>) -> Response {
    let mut response = with_type(code, "text/plain; charset=utf-8", Body::from(body.into()));
    response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

/// An error in the accepted form; a `Status` has no table.
pub fn error(error: &ApiError, accepted: Accepted) -> Response {
    let status = error.status();
    let mut response = built_in(status.code, accepted, ("", "v1", "Status"), &error.to_value());
    let seconds = status.details.as_ref().map_or(0, |d| d.retry_after_seconds);
    if seconds > 0 {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    status.warnings.iter().for_each(|text| crate::server::warn(&mut response, text));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_leaves_in_one_piece() {
        let response = json_bytes(200, Accepted::JSON, Bytes::from_static(b"{}"));
        let Body::Chunks(chunks) = response.into_body() else { panic!("known bytes") };
        assert_eq!(chunks, [Bytes::from_static(b"{}\n")]);
    }
}
