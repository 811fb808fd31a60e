//! The older document in the protobuf form of `openapi.v2.Document` (github.com/google/gnostic), the only form in which
//! client-go asks for it: kubectl checks kinds by it that can't be patched, such as reviews.
//!
//! Written from the JSON document, and only what ours contain. Free values travel as YAML, of which JSON is a part.

use proto::protobuf::{put_bytes, put_integer, put_message};
use serde_json::Value;

/// The media type that answers carry.
pub(super) const MEDIA: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// What clients may call it: the second is no valid media type, and older ones use it.
pub(super) const NAMES: [&str; 2] = [MEDIA, "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"];

/// `openapi.v2.Document`.
pub(super) fn document(json: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    text(1, &json["swagger"], &mut out);
    put_message(2, &mut out, |out| {
        text(1, &json["info"]["title"], out);
        text(2, &json["info"]["version"], out);
    });
    put_message(8, &mut out, |out| named(2, &json["paths"], out, path));
    put_message(9, &mut out, |out| named(1, &json["definitions"], out, schema));
    put_message(10, &mut out, |out| named(1, &json["parameters"], out, parameter));
    for requirement in json["security"].as_array().into_iter().flatten() {
        put_message(12, &mut out, |out| named(1, requirement, out, |scopes, out| texts(1, scopes, out)));
    }
    put_message(13, &mut out, |out| named(1, &json["securityDefinitions"], out, key));
    out
}

pub(super) fn text(number: u32, value: &Value, out: &mut Vec<u8>) {
    if let Some(text) = value.as_str().filter(|t| !t.is_empty()) {
        put_bytes(number, text.as_bytes(), out);
    }
}

pub(super) fn texts(number: u32, list: &Value, out: &mut Vec<u8>) {
    for entry in list.as_array().into_iter().flatten().filter_map(Value::as_str) {
        put_bytes(number, entry.as_bytes(), out);
    }
}

pub(super) fn flag(number: u32, value: &Value, out: &mut Vec<u8>) {
    if value == true {
        put_integer(number, 1, out);
    }
}

/// `double`, which is left out when it is zero.
pub(super) fn double(number: u32, value: &Value, out: &mut Vec<u8>) {
    if let Some(value) = value.as_f64().filter(|value| *value != 0.0) {
        put_double(number, value, out);
    }
}

/// `double` is fixed in size: wire type 1.
pub(super) fn put_double(number: u32, value: f64, out: &mut Vec<u8>) {
    // Numbers of fields that hold one are below 16, so that the tag is one byte.
    out.push(u8::try_from(number << 3 | 1).unwrap_or_default());
    out.extend_from_slice(&value.to_le_bytes());
}

pub(super) fn integer(number: u32, value: &Value, out: &mut Vec<u8>) {
    if let Some(value) = value.as_i64().filter(|value| *value != 0) {
        put_integer(number, value, out);
    }
}

/// A map as `Named...` messages: 1 the name, 2 the value.
pub(super) fn named(number: u32, map: &Value, out: &mut Vec<u8>, write: fn(&Value, &mut Vec<u8>)) {
    for (name, value) in map.as_object().into_iter().flatten() {
        put_message(number, out, |out| {
            put_bytes(1, name.as_bytes(), out);
            put_message(2, out, |out| write(value, out));
        });
    }
}

/// `Any`: field 2 is YAML.
pub(super) fn any(value: &Value, out: &mut Vec<u8>) {
    put_bytes(2, format!("{value}\n").as_bytes(), out);
}

pub(super) fn extensions(number: u32, map: &Value, out: &mut Vec<u8>) {
    for (name, value) in map.as_object().into_iter().flatten().filter(|(name, _)| name.starts_with("x-")) {
        put_message(number, out, |out| {
            put_bytes(1, name.as_bytes(), out);
            put_message(2, out, |out| any(value, out));
        });
    }
}

fn path(item: &Value, out: &mut Vec<u8>) {
    const METHODS: [&str; 7] = ["get", "put", "post", "delete", "options", "head", "patch"];
    for (number, method) in (2..).zip(METHODS) {
        if item[method].is_object() {
            put_message(number, out, |out| operation(&item[method], out));
        }
    }
    parameters(9, &item["parameters"], out);
}

fn operation(value: &Value, out: &mut Vec<u8>) {
    texts(1, &value["tags"], out);
    text(3, &value["description"], out);
    text(5, &value["operationId"], out);
    texts(6, &value["produces"], out);
    texts(7, &value["consumes"], out);
    parameters(8, &value["parameters"], out);
    put_message(9, out, |out| {
        named(1, &value["responses"], out, |response, out| {
            put_message(1, out, |out| {
                text(1, &response["description"], out);
                if response["schema"].is_object() {
                    put_message(2, out, |out| put_message(1, out, |out| schema(&response["schema"], out)));
                }
            });
        });
    });
    texts(10, &value["schemes"], out);
    extensions(13, value, out);
}

/// `ParametersItem`s: a parameter, or where one is.
fn parameters(number: u32, list: &Value, out: &mut Vec<u8>) {
    for entry in list.as_array().into_iter().flatten() {
        put_message(number, out, |out| match entry["$ref"].is_string() {
            true => put_message(2, out, |out| text(1, &entry["$ref"], out)),
            false => put_message(1, out, |out| parameter(entry, out)),
        });
    }
}

fn parameter(value: &Value, out: &mut Vec<u8>) {
    if value["in"] == "body" {
        put_message(1, out, |out| {
            text(1, &value["description"], out);
            text(2, &value["name"], out);
            text(3, &value["in"], out);
            flag(4, &value["required"], out);
            put_message(5, out, |out| schema(&value["schema"], out));
        });
        return;
    }
    // A parameter that is not the body, of the path or of the query: nearly the same fields by other numbers.
    let path = value["in"] == "path";
    put_message(2, out, |out| {
        put_message(if path { 4 } else { 3 }, out, |out| {
            flag(1, &value["required"], out);
            text(2, &value["in"], out);
            text(3, &value["description"], out);
            text(4, &value["name"], out);
            text(if path { 5 } else { 6 }, &value["type"], out);
            flag(if path { 19 } else { 20 }, &value["uniqueItems"], out);
        });
    });
}

/// `SecurityDefinitionsItem`, of which ours is a key in a header.
fn key(value: &Value, out: &mut Vec<u8>) {
    put_message(2, out, |out| {
        text(1, &value["type"], out);
        text(2, &value["name"], out);
        text(3, &value["in"], out);
        text(4, &value["description"], out);
    });
}

fn schema(value: &Value, out: &mut Vec<u8>) {
    text(1, &value["$ref"], out);
    text(2, &value["format"], out);
    text(3, &value["title"], out);
    text(4, &value["description"], out);
    if !value["default"].is_null() {
        put_message(5, out, |out| any(&value["default"], out));
    }
    double(6, &value["multipleOf"], out);
    double(7, &value["maximum"], out);
    flag(8, &value["exclusiveMaximum"], out);
    double(9, &value["minimum"], out);
    flag(10, &value["exclusiveMinimum"], out);
    integer(11, &value["maxLength"], out);
    integer(12, &value["minLength"], out);
    text(13, &value["pattern"], out);
    integer(14, &value["maxItems"], out);
    integer(15, &value["minItems"], out);
    flag(16, &value["uniqueItems"], out);
    integer(17, &value["maxProperties"], out);
    integer(18, &value["minProperties"], out);
    texts(19, &value["required"], out);
    for entry in value["enum"].as_array().into_iter().flatten() {
        put_message(20, out, |out| any(entry, out));
    }
    match &value["additionalProperties"] {
        Value::Bool(allowed) => put_message(21, out, |out| put_integer(2, i64::from(*allowed), out)),
        additional @ Value::Object(_) => put_message(21, out, |out| put_message(1, out, |out| schema(additional, out))),
        _ => {}
    }
    if value["type"].is_string() {
        put_message(22, out, |out| text(1, &value["type"], out));
    }
    if value["items"].is_object() {
        put_message(23, out, |out| put_message(1, out, |out| schema(&value["items"], out)));
    }
    if value["properties"].is_object() {
        put_message(25, out, |out| named(1, &value["properties"], out, schema));
    }
    extensions(31, value, out);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schema_is_written_by_gnostics_numbers() {
        let mut out = Vec::new();
        schema(
            &json!({"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#/b"}}, "x-y": [1]}),
            &mut out,
        );
        let expected: &[&[u8]] = &[
            b"\x9a\x01\x01a",
            b"\xb2\x01\x08\x0a\x06object",
            b"\xca\x01\x0c\x0a\x0a\x0a\x01a\x12\x05\x0a\x03#/b",
            b"\xfa\x01\x0d\x0a\x03x-y\x12\x06\x12\x04[1]\n",
        ];
        let expected = expected.concat();
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        assert_eq!(text(&out), text(&expected));
    }

    #[test]
    fn operations_and_keys_are_written_by_gnostics_numbers() {
        let text = |bytes: &[&[u8]]| bytes.concat().escape_ascii().to_string();
        let mut out = Vec::new();
        let said = json!({
            "tags": ["t"], "description": "d", "operationId": "o", "schemes": ["https"],
            "responses": {"401": {"description": "no"}},
        });
        path(&json!({"head": said}), &mut out);
        let expected: &[&[u8]] = &[
            b"\x3a\x21",
            b"\x0a\x01t\x1a\x01d\x2a\x01o",
            b"\x4a\x0f\x0a\x0d\x0a\x03401\x12\x06\x0a\x04\x0a\x02no",
            b"\x52\x05https",
        ];
        assert_eq!(out.escape_ascii().to_string(), text(expected));
        let mut out = Vec::new();
        key(&json!({"type": "apiKey", "name": "n", "in": "header", "description": "d"}), &mut out);
        assert_eq!(out.escape_ascii().to_string(), text(&[b"\x12\x16\x0a\x06apiKey\x12\x01n\x1a\x06header\x22\x01d"]));
    }

    #[test]
    fn parameters_are_written_where_they_are_or_as_a_reference() {
        let written = |value: Value| {
            let mut out = Vec::new();
            parameters(8, &json!([value]), &mut out);
            out.escape_ascii().to_string()
        };
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        assert_eq!(written(json!({"$ref": "#/p"})), text(b"\x42\x07\x12\x05\x0a\x03#/p"));
        let said =
            |place: &str| json!({"name": "n", "in": place, "type": "string", "uniqueItems": true, "required": true});
        assert_eq!(
            written(said("query")),
            text(b"\x42\x1d\x0a\x1b\x12\x19\x1a\x17\x08\x01\x12\x05query\x22\x01n\x32\x06string\xa0\x01\x01")
        );
        assert_eq!(
            written(said("path")),
            text(b"\x42\x1c\x0a\x1a\x12\x18\x22\x16\x08\x01\x12\x04path\x22\x01n\x2a\x06string\x98\x01\x01")
        );
    }

    #[test]
    fn what_definitions_ask_of_values_is_written() {
        let mut out = Vec::new();
        schema(&json!({"maximum": 1.5, "minLength": 2, "pattern": "p", "additionalProperties": false}), &mut out);
        let expected: &[&[u8]] = &[b"\x39\0\0\0\0\0\0\xf8\x3f", b"\x60\x02", b"\x6a\x01p", b"\xaa\x01\x02\x10\0"];
        assert_eq!(out.escape_ascii().to_string(), expected.concat().escape_ascii().to_string());
    }
}
