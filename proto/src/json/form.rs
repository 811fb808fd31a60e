//! Tells whether a tree already has the form that decoding gives, so that it need not be written and read again.
//!
//! A patch of an object that was decoded before touches a few places; all others are as they should be. What is not
//! plainly right here (unknown fields, nulls, wrong types, numbers with another spelling) is left to the decoder, which
//! also has the words for it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Number, Value};

use super::MAX_DEPTH;
use super::typed::keeps;
use crate::quantity::Quantity;
use crate::schema::{StructId, Type, TypeId, TypeSet};
use crate::{duration, time};

/// Whether decoding the tree's text would give the same tree and no complaint.
pub(super) fn is_normal(set: &TypeSet, id: StructId, value: &Value) -> bool {
    !set.is_custom() && structure(set, id, value, 0)
}

fn structure(set: &TypeSet, id: StructId, tree: &Value, depth: usize) -> bool {
    let Value::Object(map) = tree else { return false };
    let shape = set.get(id);
    depth < MAX_DEPTH
        && !shape.open
        && map.iter().all(|(name, member)| {
            let Some((_, prop)) = shape.prop(name) else { return false };
            keeps(set, prop, member) && value(set, prop.ty, member, depth + 1)
        })
}

fn value(set: &TypeSet, ty: TypeId, value: &Value, depth: usize) -> bool {
    match (set.ty(ty), value) {
        (Type::String, Value::String(_)) | (Type::Bool, Value::Bool(_)) => true,
        (Type::Int32, Value::Number(number)) => number.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
        (Type::Int64, Value::Number(number)) => number.is_i64(),
        (Type::Double, Value::Number(number)) => is_spelt_as_written(number),
        (Type::Bytes, Value::String(text)) => !text.contains(['\r', '\n']) && BASE64.decode(text).is_ok(),
        (Type::Quantity, Value::String(text)) => text.parse::<Quantity>().is_ok_and(|q| q.to_string() == *text),
        (Type::Time, Value::String(text)) => time::parse_rfc3339(text).is_ok_and(|t| t.to_seconds_text() == *text),
        (Type::MicroTime, Value::String(text)) => time::parse_rfc3339(text).is_ok_and(|t| t.to_micros_text() == *text),
        (Type::Duration, Value::String(text)) => duration::parse(text).is_ok_and(|d| duration::format(d) == *text),
        (Type::IntOrString, Value::String(_)) => true,
        (Type::IntOrString, Value::Number(number)) => number.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
        (Type::Raw | Type::Json, value) => !value.is_null() && any(value, depth),
        (Type::Fields, Value::Object(_)) => any(value, depth),
        (Type::SchemaOrArray(id) | Type::SchemaOrBool(id) | Type::SchemaOrStrings(id), Value::Object(_)) => {
            structure(set, *id, value, depth)
        }
        (Type::SchemaOrArray(id), Value::Array(list)) => list.iter().all(|v| structure(set, *id, v, depth + 1)),
        (Type::SchemaOrBool(_), Value::Bool(_)) => true,
        (Type::SchemaOrStrings(_), Value::Array(list)) => list.iter().all(Value::is_string),
        (Type::Struct(id) | Type::AtomicStruct(id), value) => structure(set, *id, value, depth),
        (Type::List(list), Value::Array(items)) => {
            depth < MAX_DEPTH && items.iter().all(|v| self::value(set, list.element, v, depth + 1))
        }
        (Type::Map(map), Value::Object(items)) => {
            depth < MAX_DEPTH && items.values().all(|v| self::value(set, map.value, v, depth + 1))
        }
        _ => false,
    }
}

fn any(value: &Value, depth: usize) -> bool {
    depth < MAX_DEPTH
        && match value {
            Value::Number(number) => is_spelt_as_written(number),
            Value::Array(items) => items.iter().all(|v| any(v, depth + 1)),
            Value::Object(items) => items.values().all(|v| any(v, depth + 1)),
            _ => true,
        }
}

/// A float without a fraction is written, and so read again, as an integer.
fn is_spelt_as_written(number: &Number) -> bool {
    number.is_i64() || number.is_f64() && number.as_f64().is_some_and(|f| f.is_finite() && f.fract() != 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_trees_that_decoding_leaves_alone_are_normal() {
        let set = TypeSet::built_in();
        let pod = set.kind("", "v1", "Pod").expect("built in");
        let tree = |spec: Value| json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"}, "spec": spec});
        let container = |resources: Value| tree(json!({"containers": [{"name": "c", "resources": resources}]}));
        assert!(is_normal(set, pod, &container(json!({"requests": {"cpu": "100m"}}))));
        for other in [
            container(json!({"requests": {"cpu": "0.1"}})),
            container(json!({"requests": {}})),
            container(json!({"requests": null})),
            tree(json!({"containers": "none"})),
            tree(json!({"hostNetwork": false})),
            tree(json!({"other": 1})),
            tree(json!({"activeDeadlineSeconds": 1.0})),
        ] {
            assert!(!is_normal(set, pod, &other), "{other}");
        }
    }
}
