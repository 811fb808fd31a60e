//! Whether a schema is structural: every field has a type, and what constrains values adds no structure.
//!
//! Follows `apiserver/schema/validation.go`.

use serde_json::{Map, Name, Value, json};

use super::found::Found;
use super::text;
use crate::crd::pattern;
use crate::status::quote;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Checks a schema; complaints come in the order of their text.
pub fn check(schema: &Value, path: &str, found: &mut Found) {
    let start = found.causes.len();
    invariants(schema, Level::Root, path, found);
    complete(schema, path, found);
    found.sort_from(start);
}

/// Keys of JSON schema that keep a schema from having a structural form, by the names that complaints have for them.
const UNSUPPORTED: [(&str, &str); 7] = [
    ("id", "id"),
    ("$schema", "schema"),
    ("$ref", "$ref"),
    ("additionalItems", "additionalItems"),
    ("patternProperties", "patternProperties"),
    ("definitions", "definitions"),
    ("dependencies", "dependencies"),
];

/// The first key in a schema, or in one below it, that has no structural form.
pub fn unsupported(schema: &Value) -> Option<&'static str> {
    let said = |key: &str| match &schema[key] {
        // `false` says that there are none.
        Value::Bool(_) => true,
        value => is_set(value),
    };
    if let Some((_, name)) = UNSUPPORTED.iter().find(|(key, _)| said(key)) {
        return Some(name);
    }
    let one = ["items", "additionalProperties", "not"].into_iter().map(|key| &schema[key]);
    let lists = ["allOf", "anyOf", "oneOf"].into_iter().flat_map(|key| schema[key].as_array().into_iter().flatten());
    let fields = members(schema).map(|(_, member)| member);
    one.filter(|inner| inner.is_object()).chain(lists).chain(fields).find_map(unsupported)
}

fn flag(schema: &Value, key: &str) -> bool {
    schema[key] == true
}

fn members(schema: &Value) -> impl Iterator<Item = (&Name, &Value)> {
    schema["properties"].as_object().into_iter().flatten()
}

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Bool(truth) => *truth,
        Value::Number(_) => true,
    }
}

fn invariants(schema: &Value, level: Level, path: &str, found: &mut Found) {
    let ty = text(schema, "type");
    let at = |key: &str| format!("{path}.{key}");
    if ty == "array" && schema["items"].is_null() {
        found.required(&at("items"), "must be specified");
    }
    if schema["items"].is_object() {
        invariants(&schema["items"], Level::Item, &at("items"), found);
    }
    for (name, member) in members(schema) {
        invariants(member, Level::Field, &format!("{path}.properties[{name}]"), found);
    }
    let additional = &schema["additionalProperties"];
    if !additional.is_null() {
        if level == Level::Root {
            found.forbidden(&at("additionalProperties"), "must not be used at the root");
        }
        if additional.is_object() {
            invariants(additional, Level::Field, &at("additionalProperties"), found);
        }
    }
    let (preserve, embedded, either) = (
        flag(schema, "x-kubernetes-preserve-unknown-fields"),
        flag(schema, "x-kubernetes-embedded-resource"),
        flag(schema, "x-kubernetes-int-or-string"),
    );
    if either && preserve {
        found.invalid(
            &at("x-kubernetes-preserve-unknown-fields"),
            "true",
            "must be false if x-kubernetes-int-or-string is true",
        );
    }
    if either && embedded {
        found.invalid(
            &at("x-kubernetes-embedded-resource"),
            "true",
            "must be false if x-kubernetes-int-or-string is true",
        );
    }
    let first = schema["allOf"].get(0).unwrap_or(&Value::Null);
    values(schema, is_either(&schema["anyOf"]), is_either(&first["anyOf"]), path, found);
    if embedded && ty != "object" {
        let why = "must be object if x-kubernetes-embedded-resource is true";
        if ty.is_empty() { found.required(&at("type"), why) } else { found.invalid(&at("type"), &quote(ty), why) }
    } else if ty.is_empty() && !either && !preserve {
        found.required(
            &at("type"),
            match level {
                Level::Root => "must not be empty at the root",
                Level::Item => "must not be empty for specified array items",
                Level::Field => "must not be empty for specified object fields",
            },
        );
    }
    if embedded && !additional.is_null() {
        found.forbidden(&at("additionalProperties"), "must not be used if x-kubernetes-embedded-resource is set");
    }
    if level == Level::Root && !ty.is_empty() && ty != "object" {
        found.invalid(&at("type"), &quote(ty), "must be object at the root");
    }
    let has_meta = level == Level::Root || embedded;
    for key in ["kind", "apiVersion"] {
        if let Some(member) = schema["properties"].get(key).filter(|m| has_meta && text(m, "type") != "string") {
            found.invalid(&format!("{path}.properties[{key}].type"), &quote(text(member, "type")), "must be string");
        }
    }
    if let Some(metadata) = schema["properties"].get("metadata") {
        let path = format!("{path}.properties[metadata]");
        if has_meta && text(metadata, "type") != "object" {
            found.invalid(&format!("{path}.type"), &quote(text(metadata, "type")), "must be object");
        }
        if level == Level::Root && says_more_than_names(metadata) {
            let why =
                "must not specify anything other than name and generateName, but metadata is implicitly specified";
            found.forbidden(&path, why);
        }
    }
    if embedded && !preserve && !is_set(&schema["properties"]) {
        let why =
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        found.required(&at("properties"), why);
    }
}

fn says_more_than_names(metadata: &Value) -> bool {
    let mut rest: Map<String, Value> = metadata.as_object().cloned().unwrap_or_default();
    for key in ["type", "default"] {
        rest.remove(key);
    }
    if members(metadata).all(|(name, _)| name == "name" || name == "generateName") {
        rest.remove("properties");
    }
    rest.values().any(is_set)
}

/// `anyOf` a number or a text, the one place where types may stand below a composition.
fn is_either(any_of: &Value) -> bool {
    *any_of == json!([{"type": "integer"}, {"type": "string"}])
}

/// What constrains values, which must not add structure.
fn values(schema: &Value, skip_any_of: bool, skip_first_all_of: bool, path: &str, found: &mut Found) {
    for key in ["anyOf", "allOf", "oneOf"] {
        if key == "anyOf" && skip_any_of {
            continue;
        }
        for (index, inner) in super::items(&schema[key]).iter().enumerate() {
            let skip = key == "allOf" && index == 0 && skip_first_all_of;
            nested(inner, skip, &format!("{path}.{key}[{index}]"), found);
        }
    }
    if schema["not"].is_object() {
        nested(&schema["not"], false, &format!("{path}.not"), found);
    }
    let said = text(schema, "pattern");
    if !said.is_empty()
        && let Err(error) = pattern::check(said)
    {
        let why = format!("must be a valid regular expression, but isn't: error parsing regexp: {error}");
        found.invalid(&format!("{path}.pattern"), &quote(said), &why);
    }
}

fn nested(schema: &Value, skip_any_of: bool, path: &str, found: &mut Found) {
    let at = |key: &str| format!("{path}.{key}");
    values(schema, skip_any_of, false, path, found);
    if schema["items"].is_object() {
        nested(&schema["items"], false, &at("items"), found);
    }
    for (name, member) in members(schema) {
        nested(member, false, &format!("{path}.properties[{name}]"), found);
    }
    let mut forbid = |key: &str, why: &str| {
        if is_set(&schema[key]) {
            found.forbidden(&at(key), why);
        }
    };
    forbid("type", "must be empty to be structural");
    if !schema["additionalProperties"].is_null() {
        found.forbidden(&at("additionalProperties"), "must be undefined to be structural");
    }
    if !schema["default"].is_null() {
        found.forbidden(&at("default"), "must be undefined to be structural");
    }
    for (key, why) in [
        ("title", "must be empty to be structural"),
        ("description", "must be empty to be structural"),
        ("nullable", "must be false to be structural"),
        ("x-kubernetes-preserve-unknown-fields", "must be false to be structural"),
        ("x-kubernetes-embedded-resource", "must be false to be structural"),
        ("x-kubernetes-int-or-string", "must be false to be structural"),
        ("x-kubernetes-list-map-keys", "must be empty to be structural"),
        ("x-kubernetes-list-type", "must be undefined to be structural"),
        ("x-kubernetes-map-type", "must be undefined to be structural"),
        ("x-kubernetes-validations", "must be empty to be structural"),
    ] {
        if is_set(&schema[key]) {
            found.forbidden(&at(key), why);
        }
    }
    if !schema["properties"]["metadata"].is_null() {
        found.forbidden(&format!("{path}.properties[metadata]"), "must not be specified in a nested context");
    }
}

/// Every field that a composition speaks of is declared outside of it.
fn complete(schema: &Value, path: &str, found: &mut Found) {
    for key in ["anyOf", "allOf", "oneOf"] {
        for (index, inner) in super::items(&schema[key]).iter().enumerate() {
            declared(schema, inner, path, &format!("{path}.{key}[{index}]"), found);
        }
    }
    if schema["not"].is_object() {
        declared(schema, &schema["not"], path, &format!("{path}.not"), found);
    }
    if schema["items"].is_object() {
        complete(&schema["items"], &format!("{path}.items"), found);
    }
    for (name, member) in members(schema) {
        complete(member, &format!("{path}.properties[{name}]"), found);
    }
    if schema["additionalProperties"].is_object() {
        complete(&schema["additionalProperties"], &format!("{path}.additionalProperties"), found);
    }
}

/// `structural` is where the structure is declared, `inner` what speaks of it.
fn declared(structural: &Value, inner: &Value, path: &str, inner_path: &str, found: &mut Found) {
    for key in ["anyOf", "allOf", "oneOf"] {
        for (index, deeper) in super::items(&inner[key]).iter().enumerate() {
            declared(structural, deeper, path, &format!("{inner_path}.{key}[{index}]"), found);
        }
    }
    if inner["not"].is_object() {
        declared(structural, &inner["not"], path, &format!("{inner_path}.not"), found);
    }
    if inner["items"].is_object() {
        if structural["items"].is_object() {
            let (path, inner_path) = (format!("{path}.items"), format!("{inner_path}.items"));
            declared(&structural["items"], &inner["items"], &path, &inner_path, found);
        } else {
            found.required(&format!("{path}.items"), &format!("because it is defined in {inner_path}.items"));
        }
    }
    for (name, member) in members(inner) {
        let here = format!("{path}.properties[{name}]");
        let there = format!("{inner_path}.properties[{name}]");
        match structural["properties"].get(name) {
            Some(outer) => declared(outer, member, &here, &there, found),
            None => found.required(&here, &format!("because it is defined in {there}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_structural_form_is_found_anywhere() {
        let object = |key: &str, value: Value| json!({"type": "object", key: value});
        assert_eq!(unsupported(&object("$schema", json!("x"))), Some("schema"));
        assert_eq!(unsupported(&object("$schema", json!(""))), None);
        let inner =
            object("properties", json!({"a": {"type": "string"}, "b": object("definitions", json!({"c": {}}))}));
        assert_eq!(unsupported(&inner), Some("definitions"));
        assert_eq!(unsupported(&object("not", json!({"$ref": "#/a"}))), Some("$ref"));
        assert_eq!(unsupported(&object("anyOf", json!([{}, {"id": "i"}]))), Some("id"));
        assert_eq!(unsupported(&object("additionalItems", json!(false))), Some("additionalItems"));
        assert_eq!(unsupported(&object("additionalProperties", json!(true))), None);
    }
}
