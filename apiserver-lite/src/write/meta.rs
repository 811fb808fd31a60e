//! `metadata` of objects: what the server sets, what a client may not change.

use std::collections::HashSet;

use proto::time::Timestamp;
use serde_json::{Map, Name, Value};

use crate::status::{ApiError, Result};

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

/// A copy of an object that does not say who owns its fields.
pub fn without_owners(value: &Value) -> Value {
    let Value::Object(members) = value else { return value.clone() };
    if value["metadata"].get("managedFields").is_none() {
        return value.clone();
    }
    let copy = |(key, member): (&Name, &Value)| {
        let member = match member {
            Value::Object(metadata) if key == "metadata" => {
                let kept = metadata.iter().filter(|(key, _)| *key != "managedFields");
                Value::Object(kept.map(|(key, value)| (key.clone(), value.clone())).collect())
            }
            member => member.clone(),
        };
        (key.clone(), member)
    };
    Value::Object(members.iter().map(copy).collect())
}

pub fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value["metadata"][key].as_str().unwrap_or_default()
}

/// Fills in what belongs to the server on create.
pub fn begin(value: &mut Value) {
    let metadata = metadata(value);
    for key in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
        metadata.remove(key);
    }
    metadata.insert("uid".into(), crate::random::uuid().into());
    metadata.insert("creationTimestamp".into(), Timestamp::now().to_seconds_text().into());
}

/// The body's namespace becomes that of the path: an absent one is filled in, one of a cluster-scoped object dropped.
///
/// # Errors
/// 400 for another one.
pub fn settle_namespace(value: &mut Value, namespace: &str) -> Result<()> {
    let said = text(value, "namespace");
    if said == namespace {
        return Ok(());
    }
    if namespace.is_empty() {
        metadata(value).remove("namespace");
        return Ok(());
    }
    if said.is_empty() {
        metadata(value).insert("namespace".into(), namespace.into());
        return Ok(());
    }
    Err(ApiError::bad_request("the namespace of the provided object does not match the namespace sent on the request"))
}

/// An owner that is told twice is kept once, and whoever sent it is warned. Upstream looks before and after admission
/// changes the object, and says which of the two it was.
pub fn dedup_owners(value: &mut Value, admitted: bool) {
    let Some(owners) = value.pointer_mut("/metadata/ownerReferences").and_then(Value::as_array_mut) else { return };
    if owners.len() < 2 {
        return;
    }
    // There may be as many as a body holds.
    let (mut seen, mut twice): (HashSet<Value>, Vec<String>) = (HashSet::with_capacity(owners.len()), Vec::new());
    owners.retain(|owner| {
        let is_new = seen.insert(owner.clone());
        if !is_new {
            twice.push(owner["uid"].as_str().unwrap_or_default().to_owned());
        }
        is_new
    });
    if !twice.is_empty() {
        let when = if admitted { " after mutating admission happens" } else { "" };
        crate::warning::add(format!(
            ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, and \
             may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
            twice.join(", ")
        ));
    }
}

/// The object's name has to be that of the URL.
///
/// # Errors
/// 400.
pub fn check_name(value: &Value, name: &str) -> Result<()> {
    match text(value, "name") {
        "" => Err(ApiError::bad_request(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        ))),
        said if said != name => Err(ApiError::bad_request(format!(
            "the name of the object ({said}) does not match the name on the URL ({name})"
        ))),
        _ => Ok(()),
    }
}

/// What an update keeps of the stored metadata. What the client sent counts only for those that validation
/// then looks at.
pub fn keep_server_fields(new: &mut Value, old: &Value) {
    let old = &old["metadata"];
    let metadata = metadata(new);
    for key in ["creationTimestamp", "generation"] {
        match old.get(key) {
            Some(value) => metadata.insert(key.into(), value.clone()),
            None => metadata.remove(key),
        };
    }
    for key in ["uid", "namespace", "deletionGracePeriodSeconds", "generateName"] {
        // A name that was generated keeps its stem where the client leaves it out.
        if let (false, Some(value)) = (metadata.contains_key(key), old.get(key)) {
            metadata.insert(key.into(), value.clone());
        }
    }
    if let Some(value) = old.get("deletionTimestamp") {
        metadata.insert("deletionTimestamp".into(), value.clone());
    }
    metadata.remove("selfLink");
    metadata.remove("resourceVersion");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A body of three megabytes holds more owners than can be compared with each other.
    #[test]
    fn very_many_owners_are_gone_through_once() {
        let owners: Vec<Value> = (0..200_000).map(|n| json!({"uid": n.to_string()})).collect();
        let mut value = json!({"metadata": {"ownerReferences": owners}});
        dedup_owners(&mut value, false);
        assert_eq!(value["metadata"]["ownerReferences"].as_array().map(Vec::len), Some(200_000));
    }

    #[test]
    fn an_owner_is_told_once() {
        let owner = |uid: &str, controls: bool| json!({"kind": "Pod", "name": "p", "uid": uid, "controller": controls});
        let mut value =
            json!({"metadata": {"ownerReferences": [owner("u", true), owner("u", false), owner("u", true)]}});
        dedup_owners(&mut value, false);
        assert_eq!(value["metadata"]["ownerReferences"], json!([owner("u", true), owner("u", false)]));
        let untouched = value.clone();
        dedup_owners(&mut value, true);
        assert_eq!(value, untouched);
    }

    #[test]
    fn an_object_has_the_name_of_its_url() {
        let refused = |name: &str| {
            let checked = check_name(&json!({"metadata": {"name": name}}), "a");
            checked.expect_err("refused").status().message.clone()
        };
        assert!(check_name(&json!({"metadata": {"name": "a"}}), "a").is_ok());
        assert_eq!(refused("b"), "the name of the object (b) does not match the name on the URL (a)");
        assert_eq!(refused(""), "the name of the object (a based on URL) was undeterminable: name must be provided");
    }
}
