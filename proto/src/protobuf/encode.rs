//! Trees to protobuf.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value};

use super::wire::{FIXED64, VARINT, put_bytes, put_message, put_tag, put_varint};
use crate::schema::{Prop, StructId, Type, TypeId, TypeSet};
use crate::{duration, json, time};

/// Appends a struct's message, without an envelope. Values that do not fit their type (the tree was not decoded by the
/// schema) are written as zero.
pub fn encode(set: &TypeSet, id: StructId, value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Object(map) => put_struct(set, id, map, out),
        _ => put_struct(set, id, &Map::new(), out),
    }
}

fn put_struct(set: &TypeSet, id: StructId, map: &Map<String, Value>, out: &mut Vec<u8>) {
    let shape = set.get(id);
    for wire in &shape.wires {
        if let Some(inner) = wire.inline {
            put_message(wire.number, out, |out| put_struct(set, inner, map, out));
            continue;
        }
        let prop = &shape.props[usize::from(wire.prop)];
        let value = map.get(&*prop.name).filter(|v| !v.is_null());
        put_prop(set, prop, wire.number, value, out);
    }
}

fn put_prop(set: &TypeSet, prop: &Prop, number: u32, value: Option<&Value>, out: &mut Vec<u8>) {
    match set.ty(prop.ty) {
        Type::List(list) if !list.wrapped => {
            for item in value.and_then(Value::as_array).into_iter().flatten() {
                put_value(set, list.element, number, item, out);
            }
        }
        Type::Map(map_type) => {
            for (key, item) in value.and_then(Value::as_object).into_iter().flatten() {
                put_message(number, out, |out| {
                    put_bytes(1, key.as_bytes(), out);
                    put_value(set, map_type.value, 2, item, out);
                });
            }
        }
        // Go's nil: absent bytes and absent wrapped lists have no field.
        Type::Bytes | Type::List(_) => {
            if let Some(value) = value {
                put_value(set, prop.ty, number, value, out);
            }
        }
        _ => match value {
            Some(value) => put_value(set, prop.ty, number, value, out),
            None if prop.pointer => {}
            None => put_value(set, prop.ty, number, &Value::Null, out),
        },
    }
}

/// One value with its tag; null stands for the zero value.
pub(crate) fn put_value(set: &TypeSet, ty: TypeId, number: u32, value: &Value, out: &mut Vec<u8>) {
    match set.ty(ty) {
        Type::String => put_bytes(number, value.as_str().unwrap_or_default().as_bytes(), out),
        Type::Bytes => {
            let bytes = BASE64.decode(value.as_str().unwrap_or_default()).unwrap_or_default();
            put_bytes(number, &bytes, out);
        }
        Type::Bool => {
            put_tag(number, VARINT, out);
            out.push(u8::from(value.as_bool().unwrap_or_default()));
        }
        Type::Int32 | Type::Int64 => {
            put_tag(number, VARINT, out);
            // Negative numbers take ten bytes, as two's complement of 64 bits.
            put_varint(value.as_i64().unwrap_or_default().cast_unsigned(), out);
        }
        Type::Double => {
            put_tag(number, FIXED64, out);
            out.extend_from_slice(&value.as_f64().unwrap_or_default().to_bits().to_le_bytes());
        }
        Type::Quantity => put_message(number, out, |out| {
            put_bytes(1, value.as_str().unwrap_or("0").as_bytes(), out);
        }),
        Type::Time | Type::MicroTime => put_message(number, out, |out| put_time(value, out)),
        Type::Duration => put_message(number, out, |out| {
            let nanos = value.as_str().and_then(|t| duration::parse(t).ok()).unwrap_or_default();
            put_integer(1, nanos, out);
        }),
        Type::IntOrString => put_message(number, out, |out| {
            put_integer(1, i64::from(value.is_string()), out);
            put_integer(2, value.as_i64().unwrap_or_default(), out);
            put_bytes(3, value.as_str().unwrap_or_default().as_bytes(), out);
        }),
        Type::Raw | Type::Json | Type::Fields => put_message(number, out, |out| {
            if !value.is_null() {
                let mut text = Vec::new();
                match set.ty(ty) {
                    Type::Fields => json::write_fields(value, &mut text),
                    _ => json::write_sorted(value, &mut text),
                }
                put_bytes(1, &text, out);
            }
        }),
        Type::SchemaOrArray(id) => put_message(number, out, |out| match value {
            Value::Array(list) => {
                for item in list {
                    put_message(2, out, |out| encode(set, *id, item, out));
                }
            }
            Value::Object(map) => put_message(1, out, |out| put_struct(set, *id, map, out)),
            _ => {}
        }),
        Type::SchemaOrBool(id) => put_message(number, out, |out| {
            put_tag(1, VARINT, out);
            out.push(u8::from(value.as_bool().unwrap_or(value.is_object())));
            if let Value::Object(map) = value {
                put_message(2, out, |out| put_struct(set, *id, map, out));
            }
        }),
        Type::SchemaOrStrings(id) => put_message(number, out, |out| match value {
            Value::Array(list) => {
                for item in list {
                    put_bytes(2, item.as_str().unwrap_or_default().as_bytes(), out);
                }
            }
            Value::Object(map) => put_message(1, out, |out| put_struct(set, *id, map, out)),
            _ => {}
        }),
        Type::Struct(id) | Type::AtomicStruct(id) => put_message(number, out, |out| encode(set, *id, value, out)),
        Type::List(list) => put_message(number, out, |out| {
            for item in value.as_array().into_iter().flatten() {
                put_value(set, list.element, 1, item, out);
            }
        }),
        // A map of maps has no form in protobuf and no built-in type has one.
        Type::Map(_) => {}
    }
}

/// Writes an integer or boolean field.
pub fn put_integer(number: u32, value: i64, out: &mut Vec<u8>) {
    put_tag(number, VARINT, out);
    put_varint(value.cast_unsigned(), out);
}

fn put_time(value: &Value, out: &mut Vec<u8>) {
    put_time_text(value.as_str().unwrap_or_default(), out);
}

/// Seconds and nanoseconds; the zero time is an empty message.
pub(crate) fn put_time_text(text: &str, out: &mut Vec<u8>) {
    if let Ok(time) = time::parse_rfc3339(text) {
        put_integer(1, time.seconds, out);
        put_integer(2, i64::from(time.nanos), out);
    }
}
