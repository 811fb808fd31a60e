//! The OpenAPI schema of a version: what may stand in one, beyond being structural.

use std::collections::HashSet;

use serde_json::Value;

use super::found::Found;
use super::{defaults, items, shown, structural, text};
use crate::cel::Bounds;
use crate::crd::cost;
use crate::crd::schema::Schema;
use crate::status::quote;

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

/// Fields that the root of a schema may have when the status has a subresource of its own, by their Go names.
const AT_ROOT: [(&str, &str); 22] = [
    ("Description", "description"),
    ("Type", "type"),
    ("Format", "format"),
    ("Title", "title"),
    ("Maximum", "maximum"),
    ("ExclusiveMaximum", "exclusiveMaximum"),
    ("Minimum", "minimum"),
    ("ExclusiveMinimum", "exclusiveMinimum"),
    ("MaxLength", "maxLength"),
    ("MinLength", "minLength"),
    ("Pattern", "pattern"),
    ("MaxItems", "maxItems"),
    ("MinItems", "minItems"),
    ("UniqueItems", "uniqueItems"),
    ("MultipleOf", "multipleOf"),
    ("Required", "required"),
    ("Items", "items"),
    ("Properties", "properties"),
    ("ExternalDocs", "externalDocs"),
    ("Example", "example"),
    ("XPreserveUnknownFields", "x-kubernetes-preserve-unknown-fields"),
    ("XValidations", "x-kubernetes-validations"),
];

/// Calls `visit` for a schema and every schema in it.
pub fn visit(schema: &Value, visit_one: &mut dyn FnMut(&Value)) {
    if !schema.is_object() {
        return;
    }
    visit_one(schema);
    for key in ["items", "not", "additionalProperties"] {
        visit(&schema[key], visit_one);
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        items(&schema[key]).iter().for_each(|s| visit(s, visit_one));
    }
    schema["properties"].as_object().into_iter().flatten().for_each(|(_, s)| visit(s, visit_one));
}

/// Checks `schema` of a version. `status` tells whether it has a status subresource, `known` whether the version had
/// the same schema before.
pub fn check(validation: &Value, path: &str, status: bool, known: bool, found: &mut Found) {
    let schema = &validation["openAPIV3Schema"];
    if !schema.is_object() {
        return;
    }
    let path = format!("{path}.openAPIV3Schema");
    let before = found.causes.len();
    let unsupported = structural::unsupported(schema);
    if status {
        root(schema, &path, found);
    }
    if schema["nullable"] == true {
        found.forbidden(&format!("{path}.nullable"), "nullable cannot be true at the root");
    }
    let start = found.causes.len();
    // What has no structural form is not looked at as a structural schema at all.
    if unsupported.is_none() {
        structural::check(schema, &path, found);
    }
    if unsupported.is_none() && found.causes.len() == start {
        defaults::check(schema, &path, found);
    }
    let sound = unsupported.is_none() && found.causes.len() == start;
    let mut walk = Walk { found: &mut *found, rules: Vec::new() };
    walk.node(
        schema,
        &path,
        &Context { root: true, defaults: None, in_meta: false, uncorrelated: None, cardinality: Some(1) },
    );
    let rules = std::mem::take(&mut walk.rules);
    if sound {
        crate::crd::rules::compile(&rules, &path, known, found);
    }
    // Mostly the walk has something against it, too, and says where.
    if let Some(key) = unsupported.filter(|_| found.causes.len() == before) {
        found.invalid(&path, "\"\"", &format!("OpenAPIV3Schema '{key}' is not supported"));
    }
}

fn root(schema: &Value, path: &str, found: &mut Found) {
    let ty = text(schema, "type");
    let is_set = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        _ => true,
    };
    let others = schema.as_object().into_iter().flatten().filter(|(_, value)| is_set(value));
    if !ty.is_empty() && ty != "object" {
        let why =
            "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        found.invalid(&format!("{path}.type"), &quote(ty), why);
    }
    if others.into_iter().any(|(key, _)| AT_ROOT.iter().all(|(_, allowed)| allowed != key)) {
        let names: Vec<&str> = AT_ROOT.iter().map(|(go, _)| *go).collect();
        let why = format!(
            "only [{}] fields are allowed at the root of the schema if the status subresource is enabled",
            names.join(" ")
        );
        found.invalid(path, &shown::schema(schema), &why);
    }
}

/// What holds at a node because of those above it.
#[derive(Clone)]
struct Context {
    root: bool,
    /// Why there may be no defaults.
    defaults: Option<String>,
    in_meta: bool,
    /// The highest node below which old and new values cannot be matched.
    uncorrelated: Option<String>,
    /// How many values of this node an object may have; None without limit.
    cardinality: Option<u64>,
}

/// A node with rules, and where the values below which it lies cannot be matched with old ones.
pub struct Ruled {
    pub path: String,
    pub schema: Schema,
    /// The rules as they were written.
    pub shown: Vec<Value>,
    /// It is the schema of whole objects.
    pub root: bool,
    pub uncorrelated: Option<String>,
    /// How large the values may be; None where rules see none.
    pub bounds: Option<Bounds>,
    /// How many of them an object may have; None without limit.
    pub cardinality: Option<u64>,
}

struct Walk<'a> {
    found: &'a mut Found,
    rules: Vec<Ruled>,
}

impl Walk<'_> {
    fn node(&mut self, schema: &Value, path: &str, context: &Context) {
        if !schema.is_object() {
            return;
        }
        let at = |key: &str| format!("{path}.{key}");
        let before = self.found.causes.len();
        self.plain(schema, path, context);
        if schema["uniqueItems"] == true {
            let why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            self.found.forbidden(&at("uniqueItems"), why);
        }
        let cardinality = context.cardinality.and_then(|count| Some(count.saturating_mul(cost::cardinality(schema)?)));
        let inner = Context { root: false, cardinality, ..context.clone() };
        let additional = &schema["additionalProperties"];
        let properties = schema["properties"].as_object();
        if !additional.is_null() {
            if properties.is_some_and(|p| !p.is_empty()) && *additional != true {
                let why = "additionalProperties and properties are mutual exclusive";
                self.found.forbidden(&at("additionalProperties"), why);
            }
            let mut inner = inner.clone();
            if context.in_meta {
                inner.defaults = Some("inside additionalProperties applying to object metadata".into());
            }
            self.node(additional, &at("additionalProperties"), &inner);
        }
        let embedded = schema["x-kubernetes-embedded-resource"] == true;
        for (name, member) in properties.into_iter().flatten() {
            // Members are matched by their names, whether the map is atomic or not.
            let mut inner = inner.clone();
            if (context.root || embedded) && matches!(&**name, "metadata" | "kind" | "apiVersion") {
                inner.in_meta = true;
                if context.root {
                    inner.defaults = Some(format!("in top-level {name}"));
                }
            }
            self.node(member, &format!("{path}.properties[{name}]"), &inner);
        }
        self.node(&schema["not"], &at("not"), &inner);
        for key in ["allOf", "oneOf", "anyOf"] {
            for (index, composed) in items(&schema[key]).iter().enumerate() {
                self.node(composed, &format!("{path}.{key}[{index}]"), &inner);
            }
        }
        let mut of_items = inner.clone();
        if schema["x-kubernetes-list-type"] != "map" && of_items.uncorrelated.is_none() {
            of_items.uncorrelated = Some(path.to_owned());
        }
        self.node(&schema["items"], &at("items"), &of_items);
        self.extensions(schema, path);
        self.rules_of(schema, path, context, before);
    }

    /// What no schema may have.
    fn plain(&mut self, schema: &Value, path: &str, context: &Context) {
        let at = |key: &str| format!("{path}.{key}");
        let ty = text(schema, "type");
        if !ty.is_empty() && !TYPES.contains(&ty) {
            self.found.not_supported(&at("type"), ty, &TYPES);
        }
        if let Some(why) = context.defaults.as_ref().filter(|_| !schema["default"].is_null()) {
            self.found.forbidden(&at("default"), &format!("must not be set {why}"));
        }
        for key in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
            let said = match &schema[key] {
                Value::Null => false,
                Value::String(text) => key == "$ref" || !text.is_empty(),
                Value::Object(map) => key == "dependencies" || !map.is_empty(),
                _ => true,
            };
            if said {
                self.found.forbidden(&at(key), &format!("{key} is not supported"));
            }
        }
        if ty == "null" {
            self.found.forbidden(&at("type"), "type cannot be set to null, use nullable as an alternative");
        }
        if !items(&schema["items"]).is_empty() {
            self.found.forbidden(&at("items"), "items must be a schema object and not an array");
        }
        if context.in_meta && schema["x-kubernetes-embedded-resource"] == true {
            self.found.forbidden(&at("x-kubernetes-embedded-resource"), "must not be used inside of resource meta");
        }
    }

    fn extensions(&mut self, schema: &Value, path: &str) {
        let at = |key: &str| format!("{path}.{key}");
        let ty = text(schema, "type");
        let found = &mut *self.found;
        if schema["x-kubernetes-preserve-unknown-fields"] == false {
            found.invalid(&at("x-kubernetes-preserve-unknown-fields"), "false", "must be true or undefined");
        }
        let needs = |wanted: &str, key: &str, found: &mut Found| {
            let why = format!("must be {wanted} if {key} is specified");
            if ty.is_empty() { found.required(&at("type"), &why) } else { found.invalid(&at("type"), &quote(ty), &why) }
        };
        let map_type = schema["x-kubernetes-map-type"].as_str();
        if map_type.is_some() && ty != "object" {
            needs("object", "x-kubernetes-map-type", found);
        }
        if let Some(said) = map_type.filter(|t| !matches!(*t, "atomic" | "granular")) {
            found.not_supported(&at("x-kubernetes-map-type"), said, &["atomic", "granular"]);
        }
        let list_type = schema["x-kubernetes-list-type"].as_str();
        let item = &schema["items"];
        if list_type.is_some() && ty != "array" {
            needs("array", "x-kubernetes-list-type", found);
        } else if list_type == Some("set") && item.is_object() {
            let shown = |value: &Value| value.to_string();
            let why = "must be atomic as item of a list with x-kubernetes-list-type=set";
            let of_item = &item["x-kubernetes-list-type"];
            if text(item, "type") == "array" && of_item.as_str().is_some_and(|t| t != "atomic") {
                found.invalid(&at("items.x-kubernetes-list-type"), &shown(of_item), why);
            }
            if text(item, "type") == "object" && item["x-kubernetes-map-type"] != "atomic" {
                // Upstream shows the other extension's value here.
                found.invalid(&at("items.x-kubernetes-map-type"), &shown(of_item), why);
            }
        }
        if let Some(said) = list_type.filter(|t| !matches!(*t, "atomic" | "set" | "map")) {
            found.not_supported(&at("x-kubernetes-list-type"), said, &["atomic", "set", "map"]);
        }
        let keys = items(&schema["x-kubernetes-list-map-keys"]);
        if !keys.is_empty() && list_type != Some("map") {
            let why = "must be map if x-kubernetes-list-map-keys is non-empty";
            match list_type {
                None => found.required(&at("x-kubernetes-list-type"), why),
                Some(said) => found.invalid(&at("x-kubernetes-list-type"), &quote(said), why),
            }
        }
        if list_type == Some("map") {
            map_list(schema, keys, path, found);
        }
        if matches!(list_type, Some("set" | "map")) && item.is_object() {
            keys_are_there(item, keys, list_type.unwrap_or_default(), path, found);
        }
    }

    /// `before` is how many complaints there were before those about this node and what is in it.
    fn rules_of(&mut self, schema: &Value, path: &str, context: &Context, before: usize) {
        let rules = items(&schema["x-kubernetes-validations"]);
        self.rules_are_said(rules, schema, path);
        // Of what is in a schema that is wrong nobody knows the type.
        if rules.is_empty() || self.found.causes.len() > before {
            return;
        }
        let root = context.root || schema["x-kubernetes-embedded-resource"] == true;
        self.rules.push(Ruled {
            path: path.to_owned(),
            schema: Schema::parse(schema),
            shown: rules.to_vec(),
            root,
            uncorrelated: context.uncorrelated.clone(),
            bounds: cost::bounds(schema, root),
            cardinality: context.cardinality,
        });
    }

    fn rules_are_said(&mut self, rules: &[Value], schema: &Value, path: &str) {
        let has_lines = |text: &str| text.contains(['\n', '\r']);
        for (index, rule) in rules.iter().enumerate() {
            let at = |key: &str| format!("{path}.x-kubernetes-validations[{index}].{key}");
            let (said, message) = (text(rule, "rule"), text(rule, "message"));
            if said.trim().is_empty() {
                self.found.required(&at("rule"), "rule is not specified");
            } else if !message.is_empty() && message.trim().is_empty() {
                self.found.invalid(&at("message"), &quote(message), "message must be non-empty if specified");
            } else if has_lines(message.trim()) {
                self.found.invalid(&at("message"), &quote(message), "message must not contain line breaks");
            } else if has_lines(said.trim()) && message.trim().is_empty() {
                self.found.required(&at("message"), "message must be specified if rule contains line breaks");
            }
            let expression = text(rule, "messageExpression");
            if !expression.is_empty() && expression.trim().is_empty() {
                self.found.required(&at("messageExpression"), "messageExpression must be non-empty if specified");
            }
            const REASONS: [&str; 4] =
                ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];
            if let Some(reason) = rule["reason"].as_str().filter(|r| !REASONS.contains(r)) {
                self.found.not_supported(&at("reason"), reason, &REASONS);
            }
            let field = text(rule, "fieldPath");
            if !field.is_empty() && field.trim().is_empty() {
                self.found.invalid(&at("fieldPath"), &quote(field), "fieldPath must be non-empty if specified");
            }
            if has_lines(field) {
                self.found.invalid(&at("fieldPath"), &quote(field), "fieldPath must not contain line breaks");
            }
            if !field.is_empty() && super::follow_path(field, schema, true).is_err() {
                self.found.invalid(&at("fieldPath"), &quote(field), "fieldPath must be a valid path");
            }
        }
    }
}

fn map_list(schema: &Value, keys: &[Value], path: &str, found: &mut Found) {
    let at = |key: &str| format!("{path}.{key}");
    let item = &schema["items"];
    if keys.is_empty() {
        found.required(&at("x-kubernetes-list-map-keys"), "must not be empty if x-kubernetes-list-type is map");
    }
    if item.is_null() {
        found.required(&at("items"), "must have a schema if x-kubernetes-list-type is map");
    }
    if item.is_object() && text(item, "type") != "object" {
        let why = "must be object if parent array's x-kubernetes-list-type is map";
        found.invalid(&at("items.type"), &quote(text(item, "type")), why);
    }
    if !item.is_object() || text(item, "type") != "object" {
        return;
    }
    let shown = schema["x-kubernetes-list-map-keys"].to_string();
    let mut seen = HashSet::new();
    for key in keys {
        let name = key.as_str().unwrap_or_default();
        match item["properties"].get(name) {
            Some(member) if matches!(text(member, "type"), "array" | "object") => {
                let why = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                // Upstream shows the type of the item.
                found.invalid(&format!("{path}.items.properties[{name}].type"), &quote(text(item, "type")), why);
            }
            Some(_) => {}
            None => {
                let why = "entries must all be names of item properties";
                found.invalid(&at("x-kubernetes-list-map-keys"), &shown, why);
            }
        }
        if !seen.insert(name) {
            found.invalid(&at("x-kubernetes-list-map-keys"), &shown, "must not contain duplicate entries");
        }
    }
}

/// Items that are told apart by keys have them.
fn keys_are_there(item: &Value, keys: &[Value], list_type: &str, path: &str, found: &mut Found) {
    if item["nullable"] == true {
        let why = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        found.forbidden(&format!("{path}.items.nullable"), &why);
    }
    if list_type != "map" {
        return;
    }
    let required: HashSet<&str> = items(&item["required"]).iter().filter_map(Value::as_str).collect();
    for name in keys.iter().filter_map(Value::as_str) {
        let Some(member) = item["properties"].get(name) else { continue };
        let path = format!("{path}.items.properties[{name}]");
        if !required.contains(name) && member["default"].is_null() {
            let why =
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            found.required(&format!("{path}.default"), why);
        }
        if member["nullable"] == true {
            let why = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            found.forbidden(&format!("{path}.nullable"), why);
        }
    }
}
