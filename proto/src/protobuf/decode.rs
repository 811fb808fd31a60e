//! Protobuf to trees. The input comes from the network: every length is checked, nesting is bounded.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Number, Value};

use super::wire::{Cursor, Payload};
use crate::json::max_depth;
use crate::quantity::Quantity;
use crate::schema::{Prop, StructId, Type, TypeId, TypeSet};
use crate::time::Timestamp;
use crate::{duration, json};

/// The bytes are not the message they should be; the client sent bad data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    NoMagic,
    #[error("unexpected EOF")]
    Truncated,
    #[error("proto: integer overflow")]
    Overflow,
    #[error("proto: illegal tag {0}")]
    BadTag(u64),
    #[error("proto: wrong wireType for field {0}")]
    WireType(Box<str>),
    #[error("proto: invalid UTF-8")]
    Utf8,
    #[error("proto: nested too deep")]
    TooDeep,
    #[error("{0}")]
    Value(String),
}

type Result<T> = std::result::Result<T, DecodeError>;

/// Reads a struct's message, without an envelope. Unknown fields are skipped; what Go would leave out of JSON is left
/// out of the tree.
///
/// # Errors
/// When the bytes are no such message.
pub fn decode(set: &TypeSet, id: StructId, bytes: &[u8]) -> Result<Value> {
    let mut map = Map::new();
    read_struct(set, id, bytes, &mut map, 0)?;
    Ok(Value::Object(map))
}

fn read_struct(set: &TypeSet, id: StructId, bytes: &[u8], map: &mut Map<String, Value>, depth: usize) -> Result<()> {
    if depth > max_depth() {
        return Err(DecodeError::TooDeep);
    }
    let shape = set.get(id);
    let mut cursor = Cursor { bytes };
    while let Some((number, payload)) = cursor.field()? {
        let Ok(at) = shape.wires.binary_search_by_key(&number, |w| w.number) else { continue };
        let wire = shape.wires[at];
        if let Some(inner) = wire.inline {
            read_struct(set, inner, bytes_of(payload, &shape.name)?, map, depth + 1)?;
            continue;
        }
        let prop = &shape.props[usize::from(wire.prop)];
        match set.ty(prop.ty) {
            Type::List(list) if !list.wrapped => {
                let item = read_value(set, list.element, payload, &prop.name, depth)?;
                match map.entry(&prop.name).or_insert_with(|| Value::Array(Vec::new())) {
                    Value::Array(items) => items.push(item),
                    other => *other = Value::Array(vec![item]),
                }
            }
            Type::Map(map_type) => {
                let (key, item) = read_entry(set, map_type.value, bytes_of(payload, &prop.name)?, depth)?;
                match map.entry(&prop.name).or_insert_with(|| Value::Object(Map::new())) {
                    Value::Object(entries) => {
                        entries.insert(key.into(), item);
                    }
                    other => *other = Value::Object([(key, item)].into_iter().collect()),
                }
            }
            _ => {
                let value = read_value(set, prop.ty, payload, &prop.name, depth)?;
                if keeps(set, prop, &value) {
                    map.insert(prop.name.clone(), value);
                } else {
                    map.remove(&*prop.name);
                }
            }
        }
    }
    Ok(())
}

fn keeps(set: &TypeSet, prop: &Prop, value: &Value) -> bool {
    // Text of IntOrString may be empty and still say that it is text.
    if prop.always || prop.pointer || matches!(set.ty(prop.ty), Type::IntOrString) {
        return !value.is_null();
    }
    match value {
        Value::Null => false,
        Value::Bool(truth) => *truth,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty() || !matches!(set.ty(prop.ty), Type::List(_)),
        Value::Object(_) => true,
    }
}

fn read_entry(set: &TypeSet, value_type: TypeId, bytes: &[u8], depth: usize) -> Result<(String, Value)> {
    let (mut key, mut value) = (String::new(), None);
    let mut cursor = Cursor { bytes };
    while let Some((number, payload)) = cursor.field()? {
        match number {
            1 => key = text_of(payload, "key")?,
            2 => value = Some(read_value(set, value_type, payload, "value", depth)?),
            _ => {}
        }
    }
    let value = match value {
        Some(value) => value,
        None => match set.ty(value_type) {
            Type::String | Type::Bytes => Value::String(String::new()),
            _ => read_value(set, value_type, Payload::Bytes(&[]), "value", depth)?,
        },
    };
    Ok((key, value))
}

fn bytes_of<'a>(payload: Payload<'a>, field: &str) -> Result<&'a [u8]> {
    match payload {
        Payload::Bytes(bytes) => Ok(bytes),
        _ => Err(DecodeError::WireType(field.into())),
    }
}

fn text_of(payload: Payload<'_>, field: &str) -> Result<String> {
    // Go keeps invalid UTF-8 in strings and its JSON encoder writes U+FFFD for it.
    Ok(String::from_utf8_lossy(bytes_of(payload, field)?).into_owned())
}

fn varint_of(payload: &Payload<'_>, field: &str) -> Result<i64> {
    match payload {
        Payload::Varint(value) => Ok(value.cast_signed()),
        _ => Err(DecodeError::WireType(field.into())),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "protobuf's int32 is the low half of the varint")]
fn read_value(set: &TypeSet, ty: TypeId, payload: Payload<'_>, field: &str, depth: usize) -> Result<Value> {
    Ok(match set.ty(ty) {
        Type::String => Value::String(text_of(payload, field)?),
        Type::Bytes => Value::String(BASE64.encode(bytes_of(payload, field)?)),
        Type::Bool => Value::Bool(varint_of(&payload, field)? != 0),
        Type::Int32 => Value::from(varint_of(&payload, field)? as i32),
        Type::Int64 => Value::from(varint_of(&payload, field)?),
        Type::Double => match payload {
            Payload::Fixed64(bits) => Number::from_f64(f64::from_bits(bits)).map_or(Value::from(0), Value::Number),
            _ => return Err(DecodeError::WireType(field.into())),
        },
        Type::Quantity => {
            let mut text = String::from("0");
            each_field(bytes_of(payload, field)?, |number, payload| {
                if number == 1 {
                    text = text_of(payload, field)?;
                }
                Ok(())
            })?;
            let quantity: Quantity =
                text.parse().map_err(|e: crate::quantity::ParseError| DecodeError::Value(e.to_string()))?;
            Value::String(quantity.to_string())
        }
        Type::Time => read_time(bytes_of(payload, field)?, field, Timestamp::to_seconds_text)?,
        Type::MicroTime => read_time(bytes_of(payload, field)?, field, Timestamp::to_micros_text)?,
        Type::Duration => {
            let mut nanos = 0;
            each_field(bytes_of(payload, field)?, |_, payload| {
                nanos = varint_of(&payload, field)?;
                Ok(())
            })?;
            Value::String(duration::format(nanos))
        }
        Type::IntOrString => {
            let (mut is_text, mut number_value, mut text) = (false, 0, String::new());
            each_field(bytes_of(payload, field)?, |number, payload| {
                match number {
                    1 => is_text = varint_of(&payload, field)? != 0,
                    2 => number_value = varint_of(&payload, field)? as i32,
                    3 => text = text_of(payload, field)?,
                    _ => {}
                }
                Ok(())
            })?;
            if is_text { Value::String(text) } else { Value::from(number_value) }
        }
        Type::Raw | Type::Json | Type::Fields => {
            let mut value = Value::Null;
            each_field(bytes_of(payload, field)?, |number, payload| {
                if number == 1 {
                    let text = bytes_of(payload, field)?;
                    value = json::parse(text).map_err(|e| DecodeError::Value(e.to_string()))?.value;
                }
                Ok(())
            })?;
            value
        }
        Type::SchemaOrArray(id) => read_schemas(set, *id, bytes_of(payload, field)?, field, depth)?,
        Type::SchemaOrBool(id) => {
            let (mut allows, mut schema) = (false, None);
            each_field(bytes_of(payload, field)?, |number, payload| {
                match number {
                    1 => allows = varint_of(&payload, field)? != 0,
                    2 => schema = Some(nested(set, *id, bytes_of(payload, field)?, depth)?),
                    _ => {}
                }
                Ok(())
            })?;
            schema.unwrap_or(Value::Bool(allows))
        }
        Type::SchemaOrStrings(id) => {
            let (mut strings, mut schema) = (Vec::new(), None);
            each_field(bytes_of(payload, field)?, |number, payload| {
                match number {
                    1 => schema = Some(nested(set, *id, bytes_of(payload, field)?, depth)?),
                    2 => strings.push(Value::String(text_of(payload, field)?)),
                    _ => {}
                }
                Ok(())
            })?;
            schema.unwrap_or(Value::Array(strings))
        }
        Type::Struct(id) | Type::AtomicStruct(id) => nested(set, *id, bytes_of(payload, field)?, depth)?,
        Type::List(list) => {
            let mut items = Vec::new();
            each_field(bytes_of(payload, field)?, |number, payload| {
                if number == 1 {
                    items.push(read_value(set, list.element, payload, field, depth + 1)?);
                }
                Ok(())
            })?;
            Value::Array(items)
        }
        Type::Map(_) => return Err(DecodeError::WireType(field.into())),
    })
}

fn nested(set: &TypeSet, id: StructId, bytes: &[u8], depth: usize) -> Result<Value> {
    let mut map = Map::new();
    read_struct(set, id, bytes, &mut map, depth + 1)?;
    Ok(Value::Object(map))
}

fn read_schemas(set: &TypeSet, id: StructId, bytes: &[u8], field: &str, depth: usize) -> Result<Value> {
    let (mut list, mut single) = (Vec::new(), None);
    each_field(bytes, |number, payload| {
        match number {
            1 => single = Some(nested(set, id, bytes_of(payload, field)?, depth)?),
            2 => list.push(nested(set, id, bytes_of(payload, field)?, depth)?),
            _ => {}
        }
        Ok(())
    })?;
    Ok(single.unwrap_or(Value::Array(list)))
}

fn each_field(bytes: &[u8], mut read: impl FnMut(u32, Payload<'_>) -> Result<()>) -> Result<()> {
    let mut cursor = Cursor { bytes };
    while let Some((number, payload)) = cursor.field()? {
        read(number, payload)?;
    }
    Ok(())
}

fn read_time(bytes: &[u8], field: &str, write: fn(Timestamp) -> String) -> Result<Value> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let mut time = Timestamp::default();
    each_field(bytes, |number, payload| {
        match number {
            1 => time.seconds = varint_of(&payload, field)?,
            2 => time.nanos = u32::try_from(varint_of(&payload, field)?).unwrap_or(0).min(999_999_999),
            _ => {}
        }
        Ok(())
    })?;
    // Years that RFC 3339 can hold: 1 to 9999.
    if !(-62_135_596_800..=253_402_300_799).contains(&time.seconds) {
        return Err(DecodeError::Value("timestamp out of range".into()));
    }
    Ok(Value::String(write(time)))
}
