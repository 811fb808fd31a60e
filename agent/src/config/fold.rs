//! Names of fields in any case: what was merged is read by a decoder that does not look at it.

use proto::schema::{StructId, Type, TypeSet};
use serde_json::{Map, Name, Value};

use super::file;

/// Brings the names of fields into their own case, nested ones too. Of two that mean the same the one that sorts last
/// counts, objects together.
pub(super) fn any_case(document: &mut Value) {
    let (set, id) = file::schema();
    if let Some(id) = id {
        fields(set, id, document);
    }
}

fn fields(set: &TypeSet, id: StructId, tree: &mut Value) {
    let (Some(known), Some(map)) = (set.structs.get(id as usize), tree.as_object_mut()) else { return };
    let mut given: Vec<(Name, Value)> = std::mem::take(map).into_iter().collect();
    // As they stand in what was merged.
    given.sort_by(|(one, _), (other, _)| one.cmp(other));
    for (name, value) in given {
        let own = |prop: &&proto::schema::Prop| prop.name.eq_ignore_ascii_case(&name);
        let exact = known.props.iter().find(|prop| *prop.name == *name);
        match exact.or_else(|| known.props.iter().find(own)) {
            Some(prop) => put(map, &prop.name, value),
            None => put(map, &name, value),
        }
    }
    for prop in &known.props {
        if let (Some(Type::Struct(inner)), Some(value)) = (set.types.get(prop.ty as usize), map.get_mut(&*prop.name)) {
            fields(set, *inner, value);
        }
    }
}

/// A later object is read into the one before; a later null leaves what is there.
fn put(map: &mut Map<String, Value>, name: &str, value: Value) {
    match (map.get_mut(name), value) {
        (Some(Value::Object(before)), Value::Object(more)) => before.extend(more),
        (Some(_), Value::Null) => {}
        (_, value) => drop(map.insert(name.into(), value)),
    }
}
