//! Writing: compact, fields in schema order, text escaped as Go's encoder does, absent fields as Go has them.

use serde_json::{Map, Number, Value};

use super::fields::write_fields;
use super::scan::needs_escapes;
use crate::schema::{Prop, StructId, Type, TypeId, TypeSet};

/// Appends an object of a struct type. Properties that the schema does not know are left out unless the struct is open.
pub fn write(set: &TypeSet, id: StructId, value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Object(map) => write_struct(set, id, map, out),
        _ => write_struct(set, id, &Map::new(), out),
    }
}

/// The same for an object of which a member's text is known; that is written whatever the tree has there.
pub(super) fn write_but(set: &TypeSet, id: StructId, value: &Value, (name, text): (&str, &str), out: &mut Vec<u8>) {
    out.push(b'{');
    let (start, map) = (out.len(), value.as_object());
    for prop in &set.get(id).props {
        if prop.name == name {
            write_name(set, name, start, out);
            out.extend_from_slice(text.as_bytes());
        } else {
            write_prop(set, prop, map.and_then(|map| map.get(&*prop.name)), start, out);
        }
    }
    out.push(b'}');
}

fn write_struct(set: &TypeSet, id: StructId, map: &Map<String, Value>, out: &mut Vec<u8>) {
    let shape = set.get(id);
    out.push(b'{');
    let start = out.len();
    if shape.open {
        write_open(set, id, map, out);
    } else if shape.props.len() <= FEW {
        // Most properties of most objects are absent, so the few members look for their property.
        let mut members = [None; FEW];
        let mut written = *shape.spelled_out.get_or_init(|| spelled_out(set, &shape.props));
        for (name, value) in map {
            if let Some((index, _)) = shape.prop(name) {
                members[index] = Some(value);
                written |= 1 << index;
            }
        }
        while written != 0 {
            let index = written.trailing_zeros() as usize;
            written &= written - 1;
            write_prop(set, &shape.props[index], members[index], start, out);
        }
    } else {
        for prop in &shape.props {
            write_prop(set, prop, map.get(&*prop.name), start, out);
        }
    }
    out.push(b'}');
}

/// No type that is served has more properties than this: one for each bit of a word.
const FEW: usize = 64;

/// A bit for each property that [`write_prop`] writes without a value.
fn spelled_out(set: &TypeSet, props: &[Prop]) -> u64 {
    let bits = props.iter().enumerate().map(|(at, prop)| u64::from(prop.always || has_struct_value(set, prop)) << at);
    bits.fold(0, |all, bit| all | bit)
}

/// An open struct mixes known and unknown members; both come in key order.
fn write_open(set: &TypeSet, id: StructId, map: &Map<String, Value>, out: &mut Vec<u8>) {
    let shape = set.get(id);
    let start = out.len();
    for (key, value) in map {
        write_key(key, start, out);
        match shape.prop(key) {
            Some((_, prop)) => write_value(set, prop.ty, value, out),
            None => write_sorted(value, out),
        }
    }
}

fn write_key(key: &str, start: usize, out: &mut Vec<u8>) {
    if out.len() > start {
        out.push(b',');
    }
    write_string(key, out);
    out.push(b':');
}

/// The same for the name of a property; those of built-in types need no escapes.
fn write_name(set: &TypeSet, name: &str, start: usize, out: &mut Vec<u8>) {
    if set.is_custom() {
        return write_key(name, start, out);
    }
    if out.len() > start {
        out.push(b',');
    }
    out.push(b'"');
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
}

pub(super) fn write_prop(set: &TypeSet, prop: &Prop, value: Option<&Value>, start: usize, out: &mut Vec<u8>) {
    match value.filter(|v| !v.is_null() && !reads_back_as_null(set, prop, v)) {
        Some(value) => {
            if !is_left_out(set, prop, value) {
                write_name(set, &prop.name, start, out);
                write_value(set, prop.ty, value, out);
            }
        }
        None => {
            if prop.always && prop.pointer {
                write_name(set, &prop.name, start, out);
                out.extend_from_slice(b"null");
            } else if prop.always || has_struct_value(set, prop) {
                write_name(set, &prop.name, start, out);
                write_zero(set, prop.ty, out);
            }
        }
    }
}

/// Whether a value is a list without items that upstream gives back as null. It stores protobuf, in which there is no such
/// list, and shows what it reads from there. The items of a collection were never stored as one.
pub(super) fn reads_back_as_null(set: &TypeSet, prop: &Prop, value: &Value) -> bool {
    prop.always
        && value.as_array().is_some_and(Vec::is_empty)
        && !set.is_custom()
        && &*prop.name != "items"
        && matches!(set.ty(prop.ty), Type::List(_))
}

/// A Go struct that is no pointer is written even when nothing is in it.
pub(super) fn has_struct_value(set: &TypeSet, prop: &Prop) -> bool {
    !prop.pointer
        && !prop.omit_zero
        && matches!(
            set.ty(prop.ty),
            Type::Struct(_)
                | Type::AtomicStruct(_)
                | Type::Time
                | Type::MicroTime
                | Type::Quantity
                | Type::IntOrString
                | Type::Duration
                | Type::Raw
        )
        && !set.is_custom()
}

pub(super) fn is_left_out(set: &TypeSet, prop: &Prop, value: &Value) -> bool {
    if prop.always || set.is_custom() {
        return false;
    }
    let plain = !prop.pointer
        && matches!(
            set.ty(prop.ty),
            Type::String | Type::Bool | Type::Int32 | Type::Int64 | Type::Double | Type::Bytes
        );
    match value {
        Value::String(text) => plain && text.is_empty(),
        Value::Bool(truth) => plain && !truth,
        Value::Number(number) => plain && number.as_f64() == Some(0.0),
        Value::Array(list) => list.is_empty() && matches!(set.ty(prop.ty), Type::List(_)),
        Value::Object(map) => map.is_empty() && (matches!(set.ty(prop.ty), Type::Map(_)) || prop.omit_zero),
        Value::Null => true,
    }
}

fn write_zero(set: &TypeSet, ty: TypeId, out: &mut Vec<u8>) {
    match set.ty(ty) {
        Type::String => out.extend_from_slice(b"\"\""),
        Type::Bool => out.extend_from_slice(b"false"),
        Type::Int32 | Type::Int64 | Type::Double | Type::IntOrString => out.push(b'0'),
        Type::Quantity => out.extend_from_slice(b"\"0\""),
        Type::Duration => out.extend_from_slice(b"\"0s\""),
        Type::Struct(id) | Type::AtomicStruct(id) => write_struct(set, *id, &Map::new(), out),
        _ => out.extend_from_slice(b"null"),
    }
}

fn write_value(set: &TypeSet, ty: TypeId, value: &Value, out: &mut Vec<u8>) {
    match (set.ty(ty), value) {
        (Type::Struct(id) | Type::AtomicStruct(id), Value::Object(map)) => write_struct(set, *id, map, out),
        (Type::SchemaOrArray(id) | Type::SchemaOrBool(id) | Type::SchemaOrStrings(id), Value::Object(map)) => {
            write_struct(set, *id, map, out);
        }
        (Type::SchemaOrArray(id), Value::Array(list)) => write_list(list, out, |v, out| write(set, *id, v, out)),
        (Type::List(list_type), Value::Array(list)) => {
            write_list(list, out, |v, out| match v {
                Value::Null => write_zero(set, list_type.element, out),
                _ => write_value(set, list_type.element, v, out),
            });
        }
        (Type::Map(map_type), Value::Object(map)) => {
            out.push(b'{');
            let start = out.len();
            for (key, value) in map {
                write_key(key, start, out);
                write_value(set, map_type.value, value, out);
            }
            out.push(b'}');
        }
        (Type::Fields, _) => write_fields(value, out),
        _ => write_sorted(value, out),
    }
}

fn write_list(list: &[Value], out: &mut Vec<u8>, mut element: impl FnMut(&Value, &mut Vec<u8>)) {
    out.push(b'[');
    for (index, value) in list.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        element(value, out);
    }
    out.push(b']');
}

/// Appends any tree, keys sorted.
pub fn write_sorted(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(number) => write_number(number, out),
        Value::String(text) => write_string(text, out),
        Value::Array(list) => write_list(list, out, write_sorted),
        Value::Object(map) => {
            out.push(b'{');
            let start = out.len();
            for (key, value) in map {
                write_key(key, start, out);
                write_sorted(value, out);
            }
            out.push(b'}');
        }
    }
}

/// Integers as they are; floats as Go prints them: shortest form, exponent below 1e-6 and from 1e21 on.
fn write_number(number: &Number, out: &mut Vec<u8>) {
    if number.is_i64() || number.is_u64() {
        out.extend_from_slice(number.to_string().as_bytes());
        return;
    }
    let float = number.as_f64().unwrap_or(0.0);
    let size = float.abs();
    if size != 0.0 && !(1e-6..1e21).contains(&size) {
        let text = format!("{float:e}");
        // Go writes at least two digits of a negative exponent as e-7 and a positive one with its sign.
        match text.split_once('e') {
            Some((mantissa, exponent)) if !exponent.starts_with('-') => {
                out.extend_from_slice(format!("{mantissa}e+{exponent}").as_bytes());
            }
            _ => out.extend_from_slice(text.as_bytes()),
        }
    } else {
        out.extend_from_slice(format!("{float}").as_bytes());
    }
}

/// Appends text in quotes with Go's escapes, HTML's special characters included.
pub fn write_string(text: &str, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    let bytes = text.as_bytes();
    if !needs_escapes(bytes) {
        out.extend_from_slice(bytes);
        out.push(b'"');
        return;
    }
    let mut plain = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        let escape: &[u8] = match byte {
            b'"' => b"\\\"",
            b'\\' => b"\\\\",
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            b'\t' => b"\\t",
            8 => b"\\b",
            12 => b"\\f",
            0..=0x1f | b'<' | b'>' | b'&' => {
                out.extend_from_slice(&bytes[plain..at]);
                out.extend_from_slice(b"\\u00");
                out.push(HEX[usize::from(byte >> 4)]);
                out.push(HEX[usize::from(byte & 15)]);
                plain = at + 1;
                continue;
            }
            // U+2028 and U+2029, line ends to JavaScript: E2 80 A8 and E2 80 A9.
            0xe2 if bytes[at + 1] == 0x80 && bytes[at + 2] | 1 == 0xa9 => {
                out.extend_from_slice(&bytes[plain..at]);
                out.extend_from_slice(if bytes[at + 2] == 0xa8 { b"\\u2028" } else { b"\\u2029" });
                plain = at + 3;
                continue;
            }
            _ => continue,
        };
        out.extend_from_slice(&bytes[plain..at]);
        out.extend_from_slice(escape);
        plain = at + 1;
    }
    out.extend_from_slice(&bytes[plain..]);
    out.push(b'"');
}

/// Lines are indented no deeper than this many levels: a small document that is nested thousands of times would become
/// gigabytes of blanks.
const DEEPEST_INDENT: usize = 200;

/// Compact JSON of our own writing with two spaces of indent, as Kubernetes answers `?pretty=true`.
pub fn indent(compact: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(compact.len() * 2);
    let (mut depth, mut quoted, mut escaped) = (0usize, false, false);
    let newline = |depth: usize, out: &mut Vec<u8>| {
        out.push(b'\n');
        out.resize(out.len() + depth.min(DEEPEST_INDENT) * 2, b' ');
    };
    for (at, &byte) in compact.iter().enumerate() {
        if quoted {
            out.push(byte);
            quoted = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
            continue;
        }
        match byte {
            b'{' | b'[' => {
                out.push(byte);
                if !matches!(compact.get(at + 1), Some(b'}' | b']')) {
                    depth += 1;
                    newline(depth, &mut out);
                }
            }
            b'}' | b']' => {
                if !matches!(at.checked_sub(1).map(|i| compact[i]), Some(b'{' | b'[')) {
                    depth = depth.saturating_sub(1);
                    newline(depth, &mut out);
                }
                out.push(byte);
            }
            b',' => {
                out.push(byte);
                newline(depth, &mut out);
            }
            b':' => out.extend_from_slice(b": "),
            _ => {
                quoted = byte == b'"';
                out.push(byte);
            }
        }
    }
    out
}
