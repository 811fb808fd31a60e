//! What makes a client's tree fit a schema: unknown fields go, nulls that mean nothing go, metadata takes its own form,
//! defaults come in.

use std::fmt::Write as _;
use std::sync::LazyLock;

use proto::schema::{StructId, TypeSet};
use serde_json::{Map, Value};

use super::schema::Schema;

/// The struct of metadata, the same for every kind.
pub static OBJECT_META: LazyLock<Option<StructId>> =
    LazyLock::new(|| TypeSet::built_in().struct_named("k8s.io.apimachinery.pkg.apis.meta.v1.ObjectMeta"));

/// Removes unknown fields of a whole object, its kind, version and metadata apart. Returns their paths, sorted.
pub fn prune(object: &mut Value, schema: Option<&Schema>) -> Vec<String> {
    let mut walk = Walk { path: String::new(), unknown: Vec::new() };
    let none = Schema::default();
    walk.value(object, Some(schema.unwrap_or(&none)), true);
    walk.unknown.sort();
    walk.unknown
}

/// Removes unknown fields of a value below the root, as defaults are.
pub fn prune_value(value: &mut Value, schema: &Schema) {
    let mut walk = Walk { path: String::new(), unknown: Vec::new() };
    walk.value(value, Some(schema), schema.embedded);
}

struct Walk {
    path: String,
    unknown: Vec<String>,
}

fn is_meta(key: &str) -> bool {
    matches!(key, "apiVersion" | "kind" | "metadata")
}

impl Walk {
    fn value(&mut self, value: &mut Value, schema: Option<&Schema>, embedded: bool) {
        match schema {
            Some(schema) if schema.preserve => self.keep(value, schema, embedded),
            schema => self.prune(value, schema, embedded),
        }
    }

    fn prune(&mut self, value: &mut Value, schema: Option<&Schema>, embedded: bool) {
        match (value, schema) {
            (Value::Object(map), Some(schema)) => map.retain(|key, inner| {
                if embedded && is_meta(key) {
                    return true;
                }
                if let Some(member) = schema.properties.get(&**key) {
                    self.at_key(key, |walk| walk.value(inner, Some(member), member.embedded));
                    return true;
                }
                if schema.additional.is_some() {
                    let values = schema.values();
                    self.at_key(key, |walk| walk.value(inner, values, values.is_some_and(|v| v.embedded)));
                    return true;
                }
                if !is_meta(key) || !self.path.is_empty() {
                    self.complain(key);
                }
                false
            }),
            (Value::Object(map), None) => {
                for (key, _) in std::mem::take(map) {
                    self.complain(&key);
                }
            }
            (Value::Array(items), schema) => {
                let item = schema.and_then(|s| s.items.as_deref());
                for (index, inner) in items.iter_mut().enumerate() {
                    self.at_index(index, |walk| walk.value(inner, item, item.is_some_and(|i| i.embedded)));
                }
            }
            _ => {}
        }
    }

    /// Below a node that keeps unknown fields, only what has a schema is looked at.
    fn keep(&mut self, value: &mut Value, schema: &Schema, embedded: bool) {
        match value {
            Value::Object(map) => {
                for (key, inner) in map.iter_mut() {
                    if embedded && is_meta(key) {
                        continue;
                    }
                    if let Some(member) = schema.properties.get(&**key) {
                        self.at_key(key, |walk| walk.value(inner, Some(member), member.embedded));
                    } else if schema.additional.is_some() {
                        let values = schema.values();
                        self.at_key(key, |walk| walk.value(inner, values, values.is_some_and(|v| v.embedded)));
                    }
                }
            }
            Value::Array(items) => {
                let Some(item) = schema.items.as_deref() else { return };
                for (index, inner) in items.iter_mut().enumerate() {
                    self.at_index(index, |walk| walk.keep(inner, item, item.embedded));
                }
            }
            _ => {}
        }
    }

    fn complain(&mut self, key: &str) {
        let path = if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) };
        self.unknown.push(path);
    }

    fn at_key(&mut self, key: &str, walk: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        if length > 0 {
            self.path.push('.');
        }
        self.path.push_str(key);
        walk(self);
        self.path.truncate(length);
    }

    fn at_index(&mut self, index: usize, walk: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        // Writing into a String cannot fail.
        let _ = write!(self.path, "[{index}]");
        walk(self);
        self.path.truncate(length);
    }
}

/// Removes nulls that the schema neither allows nor replaces.
pub fn drop_nulls(value: &mut Value, schema: Option<&Schema>) {
    match value {
        Value::Object(map) => map.retain(|key, inner| {
            let member = schema.and_then(|s| s.member(key));
            if inner.is_null() && member.is_some_and(|m| !m.nullable && m.default.is_none()) {
                return false;
            }
            drop_nulls(inner, member);
            true
        }),
        Value::Array(items) => {
            let item = schema.and_then(|s| s.items.as_deref());
            items.iter_mut().for_each(|inner| drop_nulls(inner, item));
        }
        _ => {}
    }
}

/// Fills in defaults.
pub fn default(value: &mut Value, schema: &Schema) {
    let stands_in = |value: &Value, schema: &Schema| value.is_null() && !schema.nullable;
    match value {
        Value::Object(map) => {
            for (key, member) in &schema.properties {
                let Some(default) = &member.default else { continue };
                if map.get(&**key).is_none_or(|v| stands_in(v, member)) {
                    map.insert((&**key).into(), default.clone());
                }
            }
            for (key, inner) in map.iter_mut() {
                if let Some(member) = schema.properties.get(&**key) {
                    self::default(inner, member);
                } else if let Some(values) = schema.values() {
                    if stands_in(inner, values) {
                        *inner = values.default.clone().unwrap_or_default();
                    }
                    self::default(inner, values);
                }
            }
        }
        Value::Array(items) => {
            let Some(item) = schema.items.as_deref() else { return };
            for inner in items {
                if stands_in(inner, item) {
                    *inner = item.default.clone().unwrap_or_default();
                }
                default(inner, item);
            }
        }
        _ => {}
    }
}

/// Gives metadata the form that the server's own kinds have. Returns its unknown fields.
///
/// # Errors
/// The complaint of Go's decoder about a value of the wrong type.
pub fn metadata(object: &mut Map<String, Value>, path: &str) -> Result<Vec<String>, String> {
    let Some(said) = object.get("metadata") else { return Ok(Vec::new()) };
    let Some(id) = *OBJECT_META else { return Ok(Vec::new()) };
    let decoded = proto::json::conform(TypeSet::built_in(), id, said).map_err(|error| error.to_string())?;
    object.insert("metadata".into(), decoded.value);
    let unknown = decoded.strict.iter().filter_map(|s| s.strip_prefix("unknown field \"")?.strip_suffix('"'));
    Ok(unknown
        .map(|field| if path.is_empty() { format!("metadata.{field}") } else { format!("{path}.metadata.{field}") })
        .collect())
}

/// Does the same for every embedded object. `path` is where the value stands.
///
/// # Errors
/// The complaint about the first that is none, in the words of Go's field errors.
pub fn embedded(value: &mut Value, schema: &Schema, path: &str, unknown: &mut Vec<String>) -> Result<(), String> {
    if !schema.embeds {
        return Ok(());
    }
    let child = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match value {
        Value::Object(map) => {
            if schema.embedded {
                for key in ["apiVersion", "kind"] {
                    if let Some(said) = map.get(key).filter(|v| !v.is_string()) {
                        return Err(format!("{}: Invalid value: {said}: must be a string", child(key)));
                    }
                }
                let said = map.get("metadata").cloned();
                match metadata(map, path) {
                    Ok(fields) => unknown.extend(fields),
                    Err(why) => {
                        let said = said.unwrap_or_default();
                        return Err(format!("{}: Invalid value: {said}: {why}", child("metadata")));
                    }
                }
            }
            for (key, inner) in map.iter_mut() {
                if let Some(member) = schema.properties.get(&**key) {
                    embedded(inner, member, &child(key), unknown)?;
                } else if let Some(values) = schema.values() {
                    embedded(inner, values, &format!("{path}[{key}]"), unknown)?;
                }
            }
        }
        Value::Array(items) => {
            let Some(item) = schema.items.as_deref() else { return Ok(()) };
            for (index, inner) in items.iter_mut().enumerate() {
                embedded(inner, item, &format!("{path}[{index}]"), unknown)?;
            }
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Schema {
        Schema::parse(&json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {
                "a": {"type": "integer", "default": 1},
                "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    "properties": {"in": {"type": "object"}}},
                "map": {"type": "object", "additionalProperties": {"type": "string", "default": "d"}},
                "list": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "string"}}}},
                "nil": {"type": "string", "nullable": true, "default": "n"},
            }},
        }}))
    }

    #[test]
    fn unknown_fields_go_unless_they_are_to_be_kept() {
        let mut value = json!({"kind": "K", "apiVersion": "v", "metadata": {"name": "n"}, "top": 1, "spec": {
            "open": {"any": 1, "in": {"gone": 1}}, "list": [{"x": "1", "y": 2}], "map": {"k": "v"}, "other": {}}});
        let unknown = prune(&mut value, Some(&schema()));
        assert_eq!(unknown, ["spec.list[0].y", "spec.open.in.gone", "spec.other", "top"]);
        assert_eq!(value["spec"], json!({"open": {"any": 1, "in": {}}, "list": [{"x": "1"}], "map": {"k": "v"}}));
    }

    #[test]
    fn nulls_are_dropped_or_replaced_by_defaults() {
        let mut value = json!({"spec": {"a": null, "nil": null, "open": null, "map": {"k": null}}});
        drop_nulls(&mut value, Some(&schema()));
        default(&mut value, &schema());
        assert_eq!(value, json!({"spec": {"a": 1, "nil": null, "map": {"k": "d"}}}));
    }
}
