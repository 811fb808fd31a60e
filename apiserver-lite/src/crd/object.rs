//! What a custom object has to be: kind and version, metadata, schema, scale, embedded objects, lists, rules.
//!
//! The order of complaints is upstream's (`registry/customresource`). A status write looks at the status alone.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::{Map, Value};

use super::Definition;
use super::check::{self, Problem};
use super::scale::{self, Scale};
use super::schema::{ListType, Schema};
use crate::names;
use crate::resource::Resource;
use crate::status::{ApiError, Cause, quote};

const UNCHECKED: &str = "some validation rules were not checked because the object was invalid; correct the existing \
                         errors to complete validation";

/// Every complaint about a new object; those about its metadata are given.
pub fn create(resource: &Resource, definition: &Definition, value: &Value, of_metadata: Vec<Cause>) -> Vec<Cause> {
    let value = &*as_written(resource, value);
    let schema = definition.schema();
    warn_of_finalizers(value, None);
    let mut causes = type_meta(resource, value);
    if causes.is_empty() {
        causes.extend(of_metadata);
        causes.extend(problems(check::check(schema, "", value, None)));
        causes.extend(definition.scale.iter().flat_map(|s| scale_spec(s, value)));
        causes.extend(definition.scale.iter().flat_map(|s| scale_status(s, value)));
    }
    causes.extend(embedded(schema, "", value));
    causes.extend(lists(schema, value));
    rules(schema, value, None, &mut causes);
    causes
}

/// Every complaint about a replacement, its metadata apart.
pub fn update(resource: &Resource, definition: &Definition, subresource: &str, new: &Value, old: &Value) -> Vec<Cause> {
    let (new, old) = (&*as_written(resource, new), &*as_written(resource, old));
    let schema = definition.schema();
    let status = subresource == "status";
    if !status {
        warn_of_finalizers(new, Some(old));
    }
    let mut causes = type_meta(resource, new);
    if causes.is_empty() {
        if !status {
            causes.extend(problems(check::check(schema, "", new, Some(old))));
            causes.extend(definition.scale.iter().flat_map(|s| scale_spec(s, new)));
        } else if let (Some(said), Some(schema)) = (new.get("status"), schema.properties.get("status")) {
            let before = old.get("status");
            causes.extend(problems(check::check_part(schema, said, before)).map(|mut cause| {
                // The status is checked by itself, which the field alone makes good.
                cause.field = if cause.field == "<nil>" { "status".into() } else { format!("status.{}", cause.field) };
                cause
            }));
        }
        causes.extend(definition.scale.iter().flat_map(|s| scale_status(s, new)));
    }
    if !status {
        causes.extend(embedded(schema, "", new));
    }
    if lists(schema, old).is_empty() {
        causes.extend(lists(schema, new));
    }
    rules(schema, new, Some(old), &mut causes);
    causes
}

/// Warns of new finalizers whose names are not well chosen.
fn warn_of_finalizers(new: &Value, old: Option<&Value>) {
    let of = |value: &Value| -> Vec<String> {
        let list = value["metadata"]["finalizers"].as_array().into_iter().flatten();
        list.filter_map(Value::as_str).map(ToOwned::to_owned).collect()
    };
    let known: HashSet<String> = old.map(of).unwrap_or_default().into_iter().collect();
    let mut added: Vec<String> = of(new).into_iter().filter(|f| !known.contains(f)).collect();
    added.sort();
    added.dedup();
    for name in added {
        let start = format!("metadata.finalizers: {}", quote(&name));
        for why in names::qualified_name(&name) {
            crate::warning::add(format!("{start}: {why}"));
        }
        if !name.contains('/') && !matches!(&*name, "kubernetes" | "orphan" | "foregroundDeletion") {
            let path = if name.contains('.') { " including a path (/)" } else { "" };
            crate::warning::add(format!(
                "{start}: prefer a domain-qualified finalizer name{path} to avoid accidental conflicts with other \
                 finalizer writers"
            ));
        }
    }
}

/// The object in the version that was written: nothing but its name changes on the way to storage.
fn as_written<'v>(resource: &Resource, value: &'v Value) -> Cow<'v, Value> {
    if resource.is_of(&resource.storage_version) || value["apiVersion"] != *resource.storage_version {
        return Cow::Borrowed(value);
    }
    let mut value = value.clone();
    value["apiVersion"] = resource.api_version().into();
    Cow::Owned(value)
}

fn cause(field: &str, reason: &str, message: String) -> Cause {
    Cause { reason: reason.into(), message, field: field.into() }
}

fn invalid(field: &str, shown: &str, why: &str) -> Cause {
    cause(field, "FieldValueInvalid", format!("Invalid value: {shown}: {why}"))
}

fn problems(problems: Vec<Problem>) -> impl Iterator<Item = Cause> {
    problems.into_iter().map(|p| cause(p.field.as_deref().unwrap_or("<nil>"), p.reason, p.message))
}

fn type_meta(resource: &Resource, value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let api_version = resource.api_version();
    for (key, wanted) in [("kind", &*resource.kind), ("apiVersion", &*api_version)] {
        let said = value[key].as_str().unwrap_or_default();
        if said != wanted {
            causes.push(invalid(key, &quote(said), &format!("must be {wanted}")));
        }
    }
    causes
}

/// The refusal of an object whose kind or version is another than the one that was asked for.
pub fn misnamed(resource: &Resource, name: &str, value: &Value) -> ApiError {
    crate::write::invalid(&resource.group, &resource.kind, name, type_meta(resource, value))
}

fn replicas(path: &[Box<str>], value: &Value) -> Option<Cause> {
    let field = format!(".{}", path.join("."));
    match scale::number(value, path) {
        Ok(Some(number)) if number < 0 => {
            Some(invalid(&field, &number.to_string(), "should be a non-negative integer"))
        }
        Ok(Some(number)) if number > i64::from(i32::MAX) => {
            Some(invalid(&field, &number.to_string(), "should be less than or equal to 2147483647"))
        }
        Ok(_) => None,
        Err(why) => Some(invalid(&field, "0", &why)),
    }
}

fn scale_spec(scale: &Scale, value: &Value) -> Option<Cause> {
    replicas(&scale.replicas, value)
}

fn scale_status(scale: &Scale, value: &Value) -> Vec<Cause> {
    let mut causes: Vec<Cause> = replicas(&scale.status_replicas, value).into_iter().collect();
    if let Some(path) = &scale.selector
        && let Err(why) = scale::text(value, path)
    {
        causes.push(invalid(&format!(".{}", path.join(".")), "\"\"", &why));
    }
    causes
}

/// Complaints about objects inside of an object that have kind and metadata of their own. `path` is where it stands.
pub fn embedded(schema: &Schema, path: &str, value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    walk_embedded(schema, path, value, &mut causes);
    causes
}

fn walk_embedded(schema: &Schema, path: &str, value: &Value, causes: &mut Vec<Cause>) {
    if !schema.embeds {
        return;
    }
    match value {
        Value::Object(map) => {
            if schema.embedded {
                one_embedded(path, map, causes);
            }
            for (key, inner) in map {
                if let Some(member) = schema.properties.get(&**key) {
                    walk_embedded(member, &child(path, key), inner, causes);
                } else if let Some(values) = schema.values() {
                    walk_embedded(values, &format!("{path}[{key}]"), inner, causes);
                }
            }
        }
        Value::Array(items) => {
            let Some(item) = schema.items.as_deref() else { return };
            for (index, inner) in items.iter().enumerate() {
                walk_embedded(item, &format!("{path}[{index}]"), inner, causes);
            }
        }
        _ => {}
    }
}

fn child(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn one_embedded(path: &str, map: &Map<String, Value>, causes: &mut Vec<Cause>) {
    for key in ["apiVersion", "kind"] {
        if !map.contains_key(key) {
            causes.push(cause(&child(path, key), "FieldValueRequired", "Required value".into()));
        }
    }
    for key in ["apiVersion", "kind"] {
        let field = child(path, key);
        match map.get(key) {
            None => {}
            Some(Value::String(text)) if text.is_empty() => causes.push(invalid(&field, "\"\"", "must not be empty")),
            Some(Value::String(text)) if key == "apiVersion" && text.matches('/').count() > 1 => {
                let why = format!("unexpected GroupVersion string: {text}");
                causes.push(invalid(&field, &quote(text), &why));
            }
            Some(Value::String(_)) if key == "apiVersion" => {}
            Some(Value::String(text)) => {
                let complaints = names::dns_1035_label(&text.to_lowercase());
                if !complaints.is_empty() {
                    let why = format!("may have mixed case, but should otherwise match: {}", complaints.join(","));
                    causes.push(invalid(&field, &quote(text), &why));
                }
            }
            Some(other) => causes.push(invalid(&field, &other.to_string(), "must be a string")),
        }
    }
    if let Some(metadata) = map.get("metadata") {
        let found = crate::validate::embedded_metadata(metadata);
        causes.extend(found.into_iter().map(|error| {
            let mut cause = Cause::from(error);
            cause.field = child(path, &cause.field);
            cause
        }));
    }
}

/// Items that lists of type `set` and `map` have twice.
fn lists(schema: &Schema, value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    walk_lists(schema, "", value, &mut causes);
    causes
}

fn walk_lists(schema: &Schema, path: &str, value: &Value, causes: &mut Vec<Cause>) {
    if !schema.listed {
        return;
    }
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                if let Some(member) = schema.properties.get(&**key) {
                    walk_lists(member, &child(path, key), inner, causes);
                } else if let Some(values) = schema.values() {
                    walk_lists(values, &format!("{path}[{key}]"), inner, causes);
                }
            }
        }
        Value::Array(items) => {
            match schema.list {
                ListType::Set => duplicates(path, items, causes),
                ListType::Map => map_items(schema, path, items, causes),
                ListType::Unsaid | ListType::Atomic => {}
            }
            let Some(item) = schema.items.as_deref() else { return };
            for (index, inner) in items.iter().enumerate() {
                walk_lists(item, &format!("{path}[{index}]"), inner, causes);
            }
        }
        _ => {}
    }
}

/// The second appearance of each item that is there more than once.
fn duplicates(path: &str, items: &[Value], causes: &mut Vec<Cause>) {
    let (mut seen, mut told) = (HashSet::new(), HashSet::new());
    for (index, item) in items.iter().enumerate() {
        let text = item.to_string();
        if !seen.insert(text.clone()) && told.insert(text.clone()) {
            causes.push(cause(&format!("{path}[{index}]"), "FieldValueDuplicate", format!("Duplicate value: {text}")));
        }
    }
}

fn map_items(schema: &Schema, path: &str, items: &[Value], causes: &mut Vec<Cause>) {
    for (index, item) in items.iter().enumerate() {
        if !item.is_object() && !item.is_null() {
            let why = "must be an object for an array of list-type map";
            causes.push(invalid(&format!("{path}[{index}]"), &item.to_string(), why));
            return;
        }
    }
    let key_of = |item: &Value| -> Value {
        let found = schema.list_keys.iter().filter_map(|key| Some((key.to_string(), item.get(&**key)?.clone())));
        Value::Object(found.collect())
    };
    let keys: Vec<Value> = items.iter().map(key_of).collect();
    duplicates(path, &keys, causes);
}

/// Rules in CEL, which are looked at only when the object is sound enough.
fn rules(schema: &Schema, new: &Value, old: Option<&Value>, causes: &mut Vec<Cause>) {
    const BLOCKING: [&str; 5] = [
        "FieldValueNotSupported",
        "FieldValueRequired",
        "FieldValueTooLong",
        "FieldValueTooMany",
        "FieldValueTypeInvalid",
    ];
    if !schema.ruled {
        return;
    }
    if causes.iter().any(|c| BLOCKING.contains(&&*c.reason)) {
        causes.push(invalid("<nil>", "null", UNCHECKED));
        return;
    }
    causes.extend(super::rules::check(schema, new, old));
}
