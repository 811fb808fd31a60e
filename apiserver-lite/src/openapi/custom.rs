//! Schemas of custom kinds and of their lists, made from what a definition says.

use serde_json::{Map, Value, json};

use super::{Format, descriptions};
use crate::resource::Resource;

const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
const EMBEDDED: &str = "x-kubernetes-embedded-resource";
const INT_OR_STRING: &str = "x-kubernetes-int-or-string";

/// What documents call a kind of a definition's: the group backwards, then version and kind.
pub(super) fn name(resource: &Resource, kind: &str) -> String {
    let reversed: Vec<&str> = resource.group.rsplit('.').collect();
    format!("{}.{}.{kind}", reversed.join("."), resource.version)
}

/// The schema of a custom kind. `meta` refers to that of metadata.
pub(super) fn kind(resource: &Resource, format: Format, meta: &Value) -> Value {
    let definition = resource.definition.as_ref();
    let said = definition.map(|d| d.published.as_ref()).filter(|said| said.is_object());
    let mut schema = match said {
        // Clients refuse fields that are not listed once one is, so that nothing is listed where any are let through.
        Some(said) if format == Format::V2 && said[PRESERVE] == true => json!({"type": "object"}),
        Some(said) => {
            let mut schema = said.clone();
            match format {
                Format::V2 => older(&mut schema),
                Format::V3 => each(&mut schema, &mut unfold),
            }
            add_properties(&mut schema, format, meta);
            each(&mut schema, &mut |schema| embed(schema, format, meta));
            schema
        }
        None => json!({"type": "object"}),
    };
    schema["x-kubernetes-group-version-kind"] = versions(resource, &resource.kind);
    let selectable: Vec<Value> =
        definition.iter().flat_map(|d| d.selectable()).map(|path| json!({"fieldPath": path})).collect();
    if !selectable.is_empty() {
        schema["x-kubernetes-selectable-fields"] = selectable.into();
    }
    schema
}

/// The schema of a custom kind's list. `item` refers to that of the kind, `meta` to that of a list's metadata.
pub(super) fn list(resource: &Resource, format: Format, item: &Value, meta: &Value) -> Value {
    let mut schema = json!({
        "type": "object",
        "description": format!("{} is a list of {}.", resource.list_kind, resource.kind),
        "required": ["items"],
        "properties": {"items": {"type": "array", "items": item, "description": text("items")}},
        "x-kubernetes-group-version-kind": versions(resource, &resource.list_kind),
    });
    add_properties(&mut schema, format, meta);
    schema
}

fn versions(resource: &Resource, kind: &str) -> Value {
    json!([{"group": &*resource.group, "version": &*resource.version, "kind": kind}])
}

fn text(field: &str) -> Option<&'static str> {
    descriptions::of_field("", field)
}

/// The properties that every object has, in place of what was said of them.
fn add_properties(schema: &mut Value, format: Format, meta: &Value) {
    for field in ["apiVersion", "kind"] {
        schema["properties"][field] = json!({"type": "string", "description": text(field)});
    }
    let mut metadata = match format {
        Format::V2 => meta.clone(),
        // Nothing beside a `$ref` counts.
        Format::V3 => json!({"allOf": [meta]}),
    };
    metadata["description"] = json!(text("metadata"));
    schema["properties"]["metadata"] = metadata;
}

/// Works on a schema and then on those of its parts. Schemas that only check values have no parts of their own.
fn each(schema: &mut Value, work: &mut impl FnMut(&mut Value)) {
    work(schema);
    let Some(schema) = schema.as_object_mut() else { return };
    for key in ["items", "additionalProperties"] {
        if let Some(below) = schema.get_mut(key).filter(|below| below.is_object()) {
            each(below, work);
        }
    }
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    properties.into_iter().flat_map(Map::values_mut).for_each(|below| each(below, work));
}

/// An object inside of another has the properties of every object, unless they would hide that it may have any others.
fn embed(schema: &mut Value, format: Format, meta: &Value) {
    if schema[EMBEDDED] != true || format == Format::V2 && schema[PRESERVE] == true {
        return;
    }
    add_properties(schema, format, meta);
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let missing = ["kind", "apiVersion"].into_iter().map(Value::from).filter(|field| !required.contains(field));
    let missing: Vec<Value> = missing.collect();
    schema["required"] = required.into_iter().chain(missing).collect();
}

/// Says in the words of OpenAPI what may be a number or a text, where the definition does not.
fn unfold(schema: &mut Value) {
    if schema[INT_OR_STRING] != true {
        return;
    }
    let either = json!([{"type": "integer"}, {"type": "string"}]);
    if schema["anyOf"] == either || schema["allOf"][0]["anyOf"] == either {
        return;
    }
    if schema["anyOf"].is_null() {
        schema["anyOf"] = either;
    } else {
        let all = schema["allOf"].as_array().cloned().unwrap_or_default();
        schema["allOf"] = std::iter::once(json!({"anyOf": either})).chain(all).collect();
    }
}

/// A schema in the older format, which has fewer words, and whose readers stumble over more.
fn older(schema: &mut Value) {
    each(schema, &mut |schema| {
        let nullable: Vec<String> = schema["properties"].as_object().map_or_else(Vec::new, |properties| {
            let properties = properties.iter().filter(|(_, below)| below["nullable"] == true);
            properties.map(|(name, _)| name.to_string()).collect()
        });
        let any_null = schema["additionalProperties"]["nullable"] == true;
        let Some(said) = schema.as_object_mut() else { return };
        for key in ["allOf", "anyOf", "oneOf", "not", "default"] {
            said.remove(key);
        }
        let is = |said: &Map<String, Value>, key: &str| said.get(key).is_some_and(|value| *value == true);
        let (null, any) = (is(said, "nullable"), is(said, PRESERVE));
        said.remove("nullable");
        if null || any {
            said.remove("items");
            said.remove("properties");
        }
        let list = said.get("type").is_some_and(|ty| ty == "array") && !said.contains_key("items");
        let open = any && said.get("type").is_some_and(|ty| ty == "object");
        if null || list || open {
            said.remove("type");
        }
        if any_null {
            said.remove("required");
        } else if let Some(Value::Array(required)) = said.get_mut("required") {
            // What may be null may be missing here; properties that are gone by now count no more.
            if !null && !any {
                required.retain(|field| !nullable.iter().any(|name| field == name.as_str()));
            }
            if required.is_empty() {
                said.remove("required");
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::schemas::Schemas;
    use super::*;

    fn resource(schema: &Value) -> Arc<Resource> {
        let definition = json!({
            "spec": {"group": "x.example.com", "scope": "Namespaced", "versions": [{
                "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
                "selectableFields": [{"jsonPath": ".spec.color"}, {"jsonPath": ".spec.size"}],
            }]},
            "status": {"acceptedNames": {"plural": "owls", "singular": "owl", "kind": "Owl", "listKind": "Owls"}},
        });
        crate::crd::resources(&definition, 0, None).pop().expect("one version is served")
    }

    /// The kind's schema in a document.
    fn published(schema: &Value, format: Format) -> Value {
        let mut schemas = Schemas::new(format);
        schemas.of(&resource(schema));
        schemas.finish()["com.example.x.v1.Owl"].take()
    }

    #[test]
    fn a_custom_kind_says_what_every_object_has() {
        let said = json!({"type": "object", "properties": {
            "kind": {"type": "string", "pattern": "^O"}, "spec": {"type": "object", "properties": {"color": {"type": "string"}}},
        }});
        let meta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
        let v2 = published(&said, Format::V2);
        assert_eq!(v2["properties"]["metadata"]["$ref"], format!("#/definitions/{meta}"));
        let v3 = published(&said, Format::V3);
        let reference = json!([{"$ref": format!("#/components/schemas/{meta}")}]);
        assert_eq!(v3["properties"]["metadata"]["allOf"], reference);
        for schema in [v2, v3] {
            for field in ["apiVersion", "kind", "metadata"] {
                assert!(schema["properties"][field]["description"].is_string(), "{field} in {schema}");
            }
            assert_eq!(schema["properties"]["kind"]["pattern"], Value::Null);
            assert_eq!(schema["properties"]["spec"], said["properties"]["spec"]);
            assert_eq!(
                schema["x-kubernetes-group-version-kind"],
                json!([{"group": "x.example.com", "version": "v1", "kind": "Owl"}])
            );
            assert_eq!(
                schema["x-kubernetes-selectable-fields"],
                json!([{"fieldPath": "spec.color"}, {"fieldPath": "spec.size"}])
            );
        }
    }

    #[test]
    fn a_custom_list_has_a_schema() {
        for format in [Format::V2, Format::V3] {
            let resource = resource(&json!({"type": "object"}));
            let mut schemas = Schemas::new(format);
            assert_eq!(schemas.list_of(&resource), format.reference("com.example.x.v1.Owls"));
            let all = schemas.finish();
            let list = &all["com.example.x.v1.Owls"];
            assert_eq!(list["properties"]["items"]["items"], format.reference("com.example.x.v1.Owl"));
            assert_eq!(list["required"], json!(["items"]));
            assert_eq!(list["x-kubernetes-group-version-kind"][0]["kind"], "Owls");
            let metadata = &list["properties"]["metadata"];
            let reference = if format == Format::V3 { &metadata["allOf"][0] } else { metadata };
            let meta = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
            assert_eq!(reference["$ref"], format.reference(meta)["$ref"]);
            assert!(all[meta].is_object() && all["com.example.x.v1.Owl"].is_object());
        }
    }

    /// What is published of a field of a definition's.
    fn field(said: &Value, format: Format) -> Value {
        published(&json!({"type": "object", "properties": {"a": said}}), format)["properties"]["a"].take()
    }

    #[test]
    fn the_older_format_leaves_out_what_it_has_no_words_for() {
        let either = json!([{"type": "integer"}, {"type": "string"}]);
        for (said, expected) in [
            (json!({"type": "string", "default": "x", "maxLength": 3}), json!({"type": "string", "maxLength": 3})),
            (json!({"x-kubernetes-int-or-string": true, "anyOf": either}), json!({"x-kubernetes-int-or-string": true})),
            (
                json!({"type": "object", "nullable": true, "properties": {"b": {"type": "string"}}, "description": "d"}),
                json!({"description": "d"}),
            ),
            (
                json!({"type": "object", PRESERVE: true, "properties": {"b": {"type": "string"}}}),
                json!({PRESERVE: true}),
            ),
            (json!({"type": "array", "nullable": true, "items": {"type": "string"}}), json!({})),
            (json!({"type": "array", PRESERVE: true}), json!({PRESERVE: true})),
            (
                json!({"type": "object", "required": ["b", "c"], "not": {"required": ["d"]}, "properties": {
                    "b": {"type": "string", "nullable": true}, "c": {"type": "array", "items": {"oneOf": [{}], "type": "string"}},
                }}),
                json!({"type": "object", "required": ["c"], "properties": {
                    "b": {}, "c": {"type": "array", "items": {"type": "string"}},
                }}),
            ),
            (
                json!({"type": "object", "required": ["b"], "additionalProperties": {"type": "string", "nullable": true}}),
                json!({"type": "object", "additionalProperties": {}}),
            ),
        ] {
            assert_eq!(field(&said, Format::V2), expected, "{said}");
        }
        let open = json!({"type": "object", PRESERVE: true, "properties": {"spec": {"type": "object"}}});
        let shown = published(&open, Format::V2);
        assert_eq!((&shown["type"], &shown["properties"]), (&json!("object"), &Value::Null));
        assert!(published(&open, Format::V3)["properties"]["spec"].is_object());
    }

    #[test]
    fn what_may_be_a_number_or_a_text_says_so_once() {
        let either = json!([{"type": "integer"}, {"type": "string"}]);
        let said = |more: Value| {
            let mut said = json!({INT_OR_STRING: true});
            more.as_object().into_iter().flatten().for_each(|(key, value)| said[key.as_str()] = value.clone());
            said
        };
        for (more, expected) in [
            (json!({}), json!({"anyOf": either})),
            (json!({"anyOf": either}), json!({"anyOf": either})),
            (json!({"allOf": [{"anyOf": either}]}), json!({"allOf": [{"anyOf": either}]})),
            (
                json!({"anyOf": [{"minimum": 1}], "allOf": [{"maximum": 2}]}),
                json!({"anyOf": [{"minimum": 1}], "allOf": [{"anyOf": either}, {"maximum": 2}]}),
            ),
        ] {
            assert_eq!(field(&said(more.clone()), Format::V3), said(expected), "{more}");
        }
    }

    #[test]
    fn an_embedded_object_has_what_every_object_has() {
        let said = json!({"type": "array", "items": {
            "type": "object", EMBEDDED: true, "required": ["spec", "kind"], "properties": {"spec": {"type": "string"}},
        }});
        for format in [Format::V2, Format::V3] {
            let item = field(&said, format)["items"].take();
            assert_eq!(item["required"], json!(["spec", "kind", "apiVersion"]));
            let fields = item["properties"].as_object().expect("properties");
            assert_eq!(fields.len(), 4, "{item}");
            assert!(fields.values().filter(|schema| schema["description"].is_string()).count() == 3, "{item}");
        }
        let open = json!({"type": "object", EMBEDDED: true, PRESERVE: true});
        assert_eq!(field(&open, Format::V2), json!({EMBEDDED: true, PRESERVE: true}));
        assert_eq!(field(&open, Format::V3)["required"], json!(["kind", "apiVersion"]));
        assert!(field(&open, Format::V3)["properties"]["metadata"]["allOf"].is_array());
    }
}
