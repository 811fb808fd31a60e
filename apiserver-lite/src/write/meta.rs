//! `metadata` of objects: what the server sets, what a client may not change.

use proto::time::Timestamp;
use serde_json::{Map, Value};

use crate::resource::Resource;
use crate::status::{ApiError, Cause, Result, quote};

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

/// Complaints about names, labels, annotations and finalizers.
pub fn validate(resource: &Resource, value: &Value, causes: &mut Vec<Cause>) {
    let invalid = |field: &str, value: &str, why: &str| Cause {
        reason: "FieldValueInvalid".into(),
        message: format!("Invalid value: {}: {why}", quote(value)),
        field: field.into(),
    };
    let name = text(value, "name");
    let stem = text(value, "generateName");
    if !stem.is_empty() {
        // A stem may end where a name may not, because something follows it.
        let probe = stem.strip_suffix('-').map_or_else(|| stem.to_owned(), |s| format!("{s}a"));
        causes.extend(name_complaints(resource, &probe).iter().map(|why| invalid("metadata.generateName", stem, why)));
    }
    if name.is_empty() {
        causes.push(Cause {
            reason: "FieldValueRequired".into(),
            message: "Required value: name or generateName is required".into(),
            field: "metadata.name".into(),
        });
    } else {
        causes.extend(name_complaints(resource, name).iter().map(|why| invalid("metadata.name", name, why)));
    }
    for (key, value) in value["metadata"]["labels"].as_object().into_iter().flatten() {
        causes.extend(crate::names::qualified_name(key).iter().map(|why| invalid("metadata.labels", key, why)));
        let value = value.as_str().unwrap_or_default();
        causes.extend(crate::names::label_value(value).iter().map(|why| invalid("metadata.labels", value, why)));
    }
    let mut size = 0;
    for (key, value) in value["metadata"]["annotations"].as_object().into_iter().flatten() {
        size += key.len() + value.as_str().map_or(0, str::len);
        let lower = key.to_lowercase();
        causes.extend(crate::names::qualified_name(&lower).iter().map(|why| invalid("metadata.annotations", key, why)));
    }
    if size > 256 << 10 {
        causes.push(Cause {
            reason: "FieldValueTooLong".into(),
            message: "Too long: may not be more than 262144 bytes".into(),
            field: "metadata.annotations".into(),
        });
    }
    for finalizer in value["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        causes.extend(
            crate::names::qualified_name(finalizer).iter().map(|why| invalid("metadata.finalizers", finalizer, why)),
        );
    }
}

/// Which kind of name a resource takes.
fn name_complaints(resource: &Resource, name: &str) -> Vec<String> {
    match (&*resource.group, &*resource.plural) {
        ("rbac.authorization.k8s.io", _) => crate::names::path_segment(name),
        ("", "namespaces") => crate::names::dns_label(name),
        ("", "services") => crate::names::dns_1035_label(name),
        _ => crate::names::dns_subdomain(name),
    }
}

/// Metadata that no client may change: where it says something else than what is stored, that is an error.
///
/// # Errors
/// 422.
pub fn validate_update(resource: &Resource, new: &Value, old: &Value) -> Result<()> {
    let mut causes = Vec::new();
    for key in ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
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
