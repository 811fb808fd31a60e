//! The newer document in the protobuf form of `openapi.v3.Document` (github.com/google/gnostic), which client-go asks for
//! first: it is a good deal smaller.
//!
//! Written from the JSON document, and only what ours and the schemas of definitions contain.

use proto::protobuf::{put_bytes, put_integer, put_message};
use serde_json::Value;

use super::gnostic::{any, double, extensions, flag, integer, named, put_double, text, texts};

/// The media type that answers carry.
pub(super) const MEDIA: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";
/// What clients may call it: the second is no valid media type, and older ones use it.
pub(super) const NAMES: [&str; 2] = [MEDIA, "application/com.github.proto-openapi.spec.v3@v1.0+protobuf"];

/// `openapi.v3.Document`.
pub(super) fn document(json: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    text(1, &json["openapi"], &mut out);
    put_message(2, &mut out, |out| {
        text(1, &json["info"]["title"], out);
        text(6, &json["info"]["version"], out);
    });
    put_message(4, &mut out, |out| named(1, &json["paths"], out, path));
    let components = &json["components"];
    put_message(5, &mut out, |out| {
        put_message(1, out, |out| named(1, &components["schemas"], out, choice));
        if components["securitySchemes"].is_object() {
            put_message(7, out, |out| named(1, &components["securitySchemes"], out, key));
        }
    });
    out
}

fn path(item: &Value, out: &mut Vec<u8>) {
    const METHODS: [&str; 7] = ["get", "put", "post", "delete", "options", "head", "patch"];
    for (number, method) in (4..).zip(METHODS) {
        if item[method].is_object() {
            put_message(number, out, |out| operation(&item[method], out));
        }
    }
    parameters(13, &item["parameters"], out);
}

fn operation(value: &Value, out: &mut Vec<u8>) {
    texts(1, &value["tags"], out);
    text(3, &value["description"], out);
    text(5, &value["operationId"], out);
    parameters(6, &value["parameters"], out);
    let body = &value["requestBody"];
    if body.is_object() {
        put_message(7, out, |out| {
            put_message(1, out, |out| {
                content(2, &body["content"], out);
                flag(3, &body["required"], out);
            });
        });
    }
    put_message(8, out, |out| {
        named(2, &value["responses"], out, |response, out| {
            put_message(1, out, |out| {
                text(1, &response["description"], out);
                content(3, &response["content"], out);
            });
        });
    });
    extensions(13, value, out);
}

fn parameters(number: u32, list: &Value, out: &mut Vec<u8>) {
    for entry in list.as_array().into_iter().flatten() {
        put_message(number, out, |out| put_message(1, out, |out| parameter(entry, out)));
    }
}

fn parameter(value: &Value, out: &mut Vec<u8>) {
    text(1, &value["name"], out);
    text(2, &value["in"], out);
    text(3, &value["description"], out);
    flag(4, &value["required"], out);
    put_message(10, out, |out| choice(&value["schema"], out));
}

/// `SecuritySchemeOrReference`, never a reference.
fn key(value: &Value, out: &mut Vec<u8>) {
    put_message(1, out, |out| {
        text(1, &value["type"], out);
        text(2, &value["description"], out);
        text(3, &value["name"], out);
        text(4, &value["in"], out);
    });
}

/// `MediaTypes`.
fn content(number: u32, value: &Value, out: &mut Vec<u8>) {
    if value.is_object() {
        put_message(number, out, |out| {
            named(1, value, out, |media, out| put_message(1, out, |out| choice(&media["schema"], out)));
        });
    }
}

/// `SchemaOrReference`.
fn choice(value: &Value, out: &mut Vec<u8>) {
    match value["$ref"].as_str() {
        Some(_) => put_message(2, out, |out| text(1, &value["$ref"], out)),
        None => put_message(1, out, |out| schema(value, out)),
    }
}

fn choices(number: u32, list: &Value, out: &mut Vec<u8>) {
    for entry in list.as_array().into_iter().flatten() {
        put_message(number, out, |out| choice(entry, out));
    }
}

fn schema(value: &Value, out: &mut Vec<u8>) {
    flag(1, &value["nullable"], out);
    text(9, &value["title"], out);
    double(10, &value["multipleOf"], out);
    double(11, &value["maximum"], out);
    flag(12, &value["exclusiveMaximum"], out);
    double(13, &value["minimum"], out);
    flag(14, &value["exclusiveMinimum"], out);
    integer(15, &value["maxLength"], out);
    integer(16, &value["minLength"], out);
    text(17, &value["pattern"], out);
    integer(18, &value["maxItems"], out);
    integer(19, &value["minItems"], out);
    flag(20, &value["uniqueItems"], out);
    integer(21, &value["maxProperties"], out);
    integer(22, &value["minProperties"], out);
    texts(23, &value["required"], out);
    for entry in value["enum"].as_array().into_iter().flatten() {
        put_message(24, out, |out| any(entry, out));
    }
    text(25, &value["type"], out);
    choices(26, &value["allOf"], out);
    choices(27, &value["oneOf"], out);
    choices(28, &value["anyOf"], out);
    if value["not"].is_object() {
        put_message(29, out, |out| schema(&value["not"], out));
    }
    if value["items"].is_object() {
        put_message(30, out, |out| put_message(1, out, |out| choice(&value["items"], out)));
    }
    if value["properties"].is_object() {
        put_message(31, out, |out| named(1, &value["properties"], out, choice));
    }
    match &value["additionalProperties"] {
        Value::Bool(allowed) => put_message(32, out, |out| put_integer(2, i64::from(*allowed), out)),
        additional @ Value::Object(_) => {
            put_message(32, out, |out| put_message(1, out, |out| choice(additional, out)));
        }
        _ => {}
    }
    // Only plain values have a form here. It is one of several, which says by being there which of them is meant: nothing
    // is left out.
    match &value["default"] {
        Value::Bool(said) => put_message(33, out, |out| put_integer(2, i64::from(*said), out)),
        Value::String(said) => put_message(33, out, |out| put_bytes(3, said.as_bytes(), out)),
        said @ Value::Number(_) => put_message(33, out, |out| put_double(1, said.as_f64().unwrap_or_default(), out)),
        _ => {}
    }
    text(34, &value["description"], out);
    text(35, &value["format"], out);
    extensions(36, value, out);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_default_is_written_also_when_it_is_nothing() {
        let written = |value: Value| {
            let mut out = Vec::new();
            schema(&json!({"default": value}), &mut out);
            out.escape_ascii().to_string()
        };
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        assert_eq!(written(json!(0)), text(b"\x8a\x02\x09\x09\0\0\0\0\0\0\0\0"));
        assert_eq!(written(json!(0.0)), written(json!(0)));
        assert_eq!(written(json!(1.5)), text(b"\x8a\x02\x09\x09\0\0\0\0\0\0\xf8\x3f"));
        assert_eq!(written(json!(false)), text(b"\x8a\x02\x02\x10\0"));
        assert_eq!(written(json!("")), text(b"\x8a\x02\x02\x1a\0"));
        assert_eq!(written(json!({})), "", "it has no form here");
    }

    #[test]
    fn what_operations_are_about_is_written() {
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        let mut out = Vec::new();
        path(&json!({"options": {"tags": ["t"], "description": "d", "operationId": "o"}}), &mut out);
        assert_eq!(text(&out), text(b"\x42\x0b\x0a\x01t\x1a\x01d\x2a\x01o\x42\0"));
        let mut out = Vec::new();
        key(&json!({"type": "apiKey", "name": "n", "in": "header", "description": "d"}), &mut out);
        assert_eq!(text(&out), text(b"\x0a\x16\x0a\x06apiKey\x12\x01d\x1a\x01n\x22\x06header"));
    }

    #[test]
    fn a_document_is_written_by_gnostics_numbers() {
        let json = json!({
            "openapi": "3.0.0", "info": {"title": "K", "version": "v1"},
            "paths": {"/p": {"get": {"operationId": "o", "responses": {"200": {"description": "OK"}}}}},
            "components": {"schemas": {"s": {
                "type": "object", "minimum": 1.5, "required": ["a"],
                "properties": {"a": {"$ref": "#/b"}}, "x-y": [1],
            }}},
        });
        let schema: &[&[u8]] = &[
            b"\x69\0\0\0\0\0\0\xf8\x3f",
            b"\xba\x01\x01a",
            b"\xca\x01\x06object",
            b"\xfa\x01\x0e\x0a\x0c\x0a\x01a\x12\x07\x12\x05\x0a\x03#/b",
            b"\xa2\x02\x0d\x0a\x03x-y\x12\x06\x12\x04[1]\n",
        ];
        let schema = schema.concat();
        let mut named = b"\x0a\x01s\x12".to_vec();
        named.push(u8::try_from(schema.len() + 2).expect("short"));
        named.push(0x0a);
        named.push(u8::try_from(schema.len()).expect("short"));
        named.extend(schema);
        // The response: its code, and what it says.
        let response = b"\x0a\x03200\x12\x06\x0a\x04\x0a\x02OK";
        let mut operation = b"\x2a\x01o\x42".to_vec();
        operation.push(u8::try_from(response.len() + 2).expect("short"));
        operation.push(0x12);
        operation.push(u8::try_from(response.len()).expect("short"));
        operation.extend(response);
        let wrap = |tag: u8, inner: &[u8]| {
            let mut out = vec![tag, u8::try_from(inner.len()).expect("short")];
            out.extend(inner);
            out
        };
        let mut item = b"\x0a\x02/p".to_vec();
        item.extend(wrap(0x12, &wrap(0x22, &operation)));
        let mut expected = b"\x0a\x053.0.0\x12\x07\x0a\x01K\x32\x02v1".to_vec();
        expected.extend(wrap(0x22, &wrap(0x0a, &item)));
        expected.extend(wrap(0x2a, &wrap(0x0a, &wrap(0x0a, &named))));
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        assert_eq!(text(&document(&json)), text(&expected));
    }
}
