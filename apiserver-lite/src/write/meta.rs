//! `metadata` of objects: what the server sets, what a client may not change.

use proto::time::Timestamp;
use serde_json::{Map, Value};

use crate::resource::Resource;
use crate::status::{ApiError, Cause, Result};

/// The metadata object of a tree, made where it is missing.
pub fn metadata(value: &mut Value) -> &mut Map<String, Value> {
    if !value["metadata"].is_object() {
        value["metadata"] = Value::Object(Map::new());
    }
    match &mut value["metadata"] {
        Value::Object(map) => map,
        _ => unreachable!("the line before made it an object"),
    }
}

pub fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value["metadata"][key].as_str().unwrap_or_default()
}

/// Fills in what belongs to the server on create.
pub fn begin(value: &mut Value, namespace: &str) {
    let metadata = metadata(value);
    for key in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation"] {
        metadata.remove(key);
    }
    metadata.insert("uid".into(), crate::random::uuid().into());
    metadata.insert("creationTimestamp".into(), Timestamp::now().to_seconds_text().into());
    if namespace.is_empty() {
        metadata.remove("namespace");
    } else {
        metadata.insert("namespace".into(), namespace.into());
    }
}

/// The body's namespace has to be that of the path; an absent one is filled in later.
///
/// # Errors
/// 400.
pub fn check_namespace(value: &Value, namespace: &str) -> Result<()> {
    let said = text(value, "namespace");
    if said.is_empty() || said == namespace {
        return Ok(());
    }
    Err(ApiError::bad_request("the namespace of the provided object does not match the namespace sent on the request"))
}

/// Metadata that no client may change: where it says something else than what is stored, that is an error.
///
/// # Errors
/// 422.
pub fn validate_update(resource: &Resource, new: &Value, old: &Value) -> Result<()> {
    let mut causes = Vec::new();
    for key in ["uid", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let (said, have) = (&new["metadata"][key], &old["metadata"][key]);
        if said.is_null() || said == have {
            continue;
        }
        causes.push(Cause {
            reason: "FieldValueInvalid".into(),
            message: format!("Invalid value: {said}: field is immutable"),
            field: format!("metadata.{key}"),
        });
    }
    if causes.is_empty() {
        return Ok(());
    }
    Err(super::options::invalid(&resource.group, &resource.kind, text(old, "name"), causes))
}

/// What an update keeps of the stored metadata, whatever the client sent.
pub fn keep_server_fields(new: &mut Value, old: &Value) {
    let old = &old["metadata"];
    let metadata = metadata(new);
    for key in [
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "uid",
        "namespace",
        "generateName",
    ] {
        // A name that was generated keeps its stem where the client leaves it out.
        if key == "generateName" && metadata.contains_key(key) {
            continue;
        }
        match old.get(key) {
            Some(value) => metadata.insert(key.into(), value.clone()),
            None => metadata.remove(key),
        };
    }
    metadata.remove("selfLink");
    metadata.remove("resourceVersion");
}
