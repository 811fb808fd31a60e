//! Bodies and patched trees of custom kinds: JSON or YAML, fitted to the schema as they come in.

use proto::json;
use serde_json::{Map, Value};

use super::prune;
use crate::go_value::{TYPE_META, json_kind};
use crate::http::{Accepted, Form, Media, body_media, negotiate};
use crate::resource::Resource;
use crate::server::Request;
use crate::status::{ApiError, Result};

/// What was read, and what strict field validation objects to.
pub struct Fitted {
    pub value: Value,
    pub strict: Vec<String>,
}

/// Reads a body. Kind and version are checked later, as part of the object.
///
/// # Errors
/// 400 for text that is none, 415 for a media type that custom kinds do not have.
pub fn body(resource: &Resource, content_type: &str, body: &[u8]) -> Result<Fitted> {
    let kind = &resource.kind;
    let unrecognized = |error: &dyn std::fmt::Display| {
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): {error} ({})",
            shown(body)
        ))
    };
    let (value, duplicates) = match body_media(content_type) {
        Ok(Media::Json) => {
            let parsed = json::parse(body)
                .map_err(|e| unrecognized(&format!("couldn't get version/kind; json parse error: {e}")))?;
            (parsed.value, parsed.duplicates)
        }
        Ok(Media::Yaml) => {
            let parsed = proto::yaml::read(body).map_err(|e| unrecognized(&e))?;
            (parsed.value, parsed.duplicates)
        }
        _ => {
            let text = "the body of the request was in an unknown format - accepted media types include: \
                        application/json, application/yaml";
            return Err(ApiError::new(415, "UnsupportedMediaType", text));
        }
    };
    let map = match value {
        Value::Object(map) => map,
        Value::Null => Map::new(),
        other => {
            return Err(unrecognized(&format!(
                "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go value of type {TYPE_META}",
                json_kind(&other)
            )));
        }
    };
    let (kind, version) = (&resource.kind, &resource.version);
    fit(resource, map, duplicates).map_err(|error| {
        ApiError::bad_request(format!("{kind} in version \"{version}\" cannot be handled as a {kind}: {error}"))
    })
}

/// Gives a tree that a patch made the form that [`body`] gives a body.
///
/// # Errors
/// The complaint about a value of the wrong type where types are fixed.
pub fn conform(resource: &Resource, value: Value) -> std::result::Result<Fitted, String> {
    match value {
        Value::Object(map) => fit(resource, map, Vec::new()),
        _ => Err("the object is no JSON object".into()),
    }
}

/// Longest piece of a body that a complaint shows.
const SHOWN: usize = 30;

fn shown(body: &[u8]) -> String {
    match body {
        [] => "<empty>".to_owned(),
        body if body.len() > SHOWN => format!("{} ...", String::from_utf8_lossy(&body[..SHOWN])),
        body => String::from_utf8_lossy(body).into_owned(),
    }
}

fn fit(
    resource: &Resource,
    mut map: Map<String, Value>,
    mut strict: Vec<String>,
) -> std::result::Result<Fitted, String> {
    let kind = &resource.kind;
    for key in ["kind", "apiVersion"] {
        let default = if key == "kind" { kind.to_string() } else { resource.api_version() };
        match map.get(key) {
            None | Some(Value::Null) => drop(map.insert(key.into(), default.into())),
            Some(Value::String(said)) if said.is_empty() => drop(map.insert(key.into(), default.into())),
            Some(Value::String(_)) => {}
            Some(other) => {
                let what = json_kind(other);
                return Err(format!(
                    "couldn't get version/kind; json parse error: json: cannot unmarshal {what} into Go struct field .{key} of type string"
                ));
            }
        }
    }
    let mut unknown = prune::metadata(&mut map, "")?;
    let said = map.get("apiVersion").and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut value = Value::Object(map);
    let of_this_group = said.rsplit_once('/').is_some_and(|(group, _)| *group == *resource.group);
    if of_this_group
        && value["kind"] == **kind
        && let Some(definition) = &resource.definition
    {
        // A version that the definition does not have has no fields.
        let schema = said.rsplit('/').next().and_then(|v| definition.schemas.get(v));
        unknown.extend(prune::prune(&mut value, schema));
        prune::drop_nulls(&mut value, schema);
        if let Some(schema) = schema {
            let mut embedded = Vec::new();
            prune::embedded(&mut value, schema, "", &mut embedded)?;
            embedded.sort();
            unknown.extend(embedded);
        }
    }
    strict.extend(unknown.into_iter().map(|field| format!("unknown field \"{field}\"")));
    Ok(Fitted { value, strict })
}

/// Refuses answers in protobuf, which custom kinds do not have. A client that takes JSON as well gets that.
///
/// # Errors
/// 406.
pub fn settle_accept(request: &mut Request) -> Result<()> {
    let accept = request.accept();
    let Ok(Accepted { media: Media::Protobuf, form: Form::Whole, .. }) = request.accepted(true) else { return Ok(()) };
    let others: Vec<&str> = accept.split(',').filter(|clause| !clause.contains("vnd.kubernetes.protobuf")).collect();
    let others = others.join(",");
    if others.trim().is_empty() || negotiate(&others, true, request.info.verb == "watch", false).is_err() {
        let text = "object *unstructured.Unstructured does not implement the protobuf marshalling interface and cannot \
                    be encoded to a protobuf message";
        return Err(ApiError::new(406, "NotAcceptable", text));
    }
    if let Ok(value) = http::HeaderValue::from_str(&others) {
        request.headers.insert(http::header::ACCEPT, value);
    }
    Ok(())
}
