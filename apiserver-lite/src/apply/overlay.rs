//! Merges a configuration that nobody will own into an object, as mutating policies do.
//!
//! Lists, maps and structs that are one value to everybody are refused: what such a configuration leaves out would be
//! lost.

use proto::schema::{StructId, Type, TypeSet};
use serde_json::Value;

use super::view::{Shape, Ty, shape};
use super::{check, merge};

/// # Errors
/// What the schema has no place for, and what may not be changed in part.
pub fn overlay(set: &TypeSet, id: StructId, live: &mut Value, config: &Value) -> Result<(), String> {
    let Value::Object(map) = config else { return Err("the configuration is no object".into()) };
    if let Some(why) = check::complaints(set, set.get(id), map) {
        return Err(format!("failed to convert patch object to typed object: {why}"));
    }
    let mut found = Vec::new();
    let root = Shape::Struct(set.get(id));
    for (name, value) in map {
        walk(set, member(root, name), value, &mut format!(".{name}"), &mut found);
    }
    if !found.is_empty() {
        let all = found.join(", ");
        return Err(format!("invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {all}"));
    }
    merge::merge(set, id, live, config).map_err(|why| format!("failed to merge patch: {why}"))
}

fn member(container: Shape<'_>, name: &str) -> Ty {
    match container {
        Shape::Struct(found) => found.prop(name).map(|(_, prop)| prop.ty),
        Shape::Map(ty) => ty,
        _ => None,
    }
}

fn walk(set: &TypeSet, ty: Ty, value: &Value, path: &mut String, found: &mut Vec<String>) {
    let length = path.len();
    match (shape(set, ty), value) {
        (container @ (Shape::Struct(_) | Shape::Map(_)), Value::Object(map)) => {
            for (name, value) in map {
                path.push('.');
                path.push_str(name);
                walk(set, member(container, name), value, path, found);
                path.truncate(length);
            }
        }
        (Shape::Items { element, .. }, Value::Array(items)) => {
            for (at, item) in items.iter().enumerate() {
                path.push_str(&format!("[{at}]"));
                walk(set, element, item, path, found);
                path.truncate(length);
            }
        }
        (Shape::Leaf, Value::Object(_) | Value::Array(_)) => {
            let free = ty.is_some_and(|ty| matches!(set.ty(ty), Type::Raw | Type::Fields | Type::Json));
            if !free {
                found.push(path.clone());
            }
        }
        _ => {}
    }
}
