//! The words in which upstream refuses the result of a strategic merge patch: it goes from a tree to Go structs without
//! JSON text in between, and that conversion complains in a language of its own.

use proto::schema::{StructId, Type, TypeId, TypeSet};
use serde_json::Value;

/// The first complaint in field order; None when only the JSON decoder would complain.
pub(super) fn complaint(set: &TypeSet, id: StructId, value: &Value) -> Option<String> {
    structure(set, id, value)
}

fn structure(set: &TypeSet, id: StructId, value: &Value) -> Option<String> {
    let Value::Object(members) = value else {
        return Some(format!("cannot restore struct from: {}", kind(value)));
    };
    let props = set.get(id).props.iter();
    props.filter_map(|prop| members.get(&*prop.name).map(|v| (prop.ty, v))).find_map(|(ty, v)| any(set, ty, v))
}

fn any(set: &TypeSet, ty: TypeId, value: &Value) -> Option<String> {
    if value.is_null() {
        return None;
    }
    match set.ty(ty) {
        Type::Struct(id) | Type::AtomicStruct(id) => structure(set, *id, value),
        Type::List(list) => match value {
            Value::Array(items) => items.iter().find_map(|item| any(set, list.element, item)),
            other => Some(format!("cannot restore slice from {}", kind(other))),
        },
        Type::Map(map) => match value {
            Value::Object(members) => members.values().find_map(|member| any(set, map.value, member)),
            other => Some(format!("cannot restore map from {}", kind(other))),
        },
        Type::Bytes if !value.is_string() && !value.is_array() => {
            Some(format!("cannot restore slice from {}", kind(value)))
        }
        Type::String => scalar(value, "string", value.is_string()),
        Type::Bool => scalar(value, "bool", value.is_boolean()),
        Type::Int32 => scalar(value, "int32", integral(value)),
        Type::Int64 => scalar(value, "int64", integral(value)),
        Type::Double => scalar(value, "float64", value.is_number()),
        _ => None,
    }
}

fn integral(value: &Value) -> bool {
    value.is_i64() || value.as_f64().is_some_and(|f| f.fract() == 0.0)
}

fn scalar(value: &Value, wanted: &str, fits: bool) -> Option<String> {
    if fits {
        return None;
    }
    // Go can convert between these in principle, which is the only case in which it names both.
    let convertible = value.is_number() && matches!(wanted, "int32" | "int64") || value.is_i64() && wanted == "string";
    Some(if convertible {
        format!("cannot convert {} to {wanted}", kind(value))
    } else {
        format!("unrecognized type: {wanted}")
    })
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "invalid",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
    }
}
