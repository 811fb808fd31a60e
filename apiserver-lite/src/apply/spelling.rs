//! An object as it would be had its writer spelled it like another.
//!
//! A member that is not there, and one that holds its zero or nothing, are the same in a Go struct where the server
//! writes the member in any case: an object that comes back as it was read spells out more than the one that was stored.
//! Whoever compares the two as trees brings them into one spelling before.

use std::collections::{HashMap, HashSet};

use proto::json::shown;
use proto::schema::{ListType, Struct, StructId, Type, TypeSet};
use serde_json::{Map, Value};

use super::compare::same;
use super::view::Ty;

/// Gives each part of `value` that is the same as in `like` the spelling that it has there.
pub fn spell_like(set: &TypeSet, id: StructId, value: &mut Map<String, Value>, like: &Map<String, Value>) {
    members(set, set.get(id), value, like);
}

fn members(set: &TypeSet, shape: &Struct, value: &mut Map<String, Value>, like: &Map<String, Value>) {
    for prop in &shape.props {
        let (mine, theirs) = (value.get(&*prop.name), like.get(&*prop.name));
        if mine == theirs {
            continue;
        }
        let equal = match (shown(set, prop, mine), shown(set, prop, theirs)) {
            (None, None) => true,
            (Some(mine), Some(theirs)) => {
                is_nothing(mine) && is_nothing(theirs) || same(set, Some(prop.ty), mine, theirs)
            }
            _ => false,
        };
        match (theirs, equal) {
            (Some(theirs), true) => drop(value.insert(prop.name.clone(), theirs.clone())),
            (None, true) => drop(value.remove(&*prop.name)),
            (Some(theirs), false) => {
                if let Some(mine) = value.get_mut(&*prop.name) {
                    part(set, Some(prop.ty), mine, theirs);
                }
            }
            (None, false) => {}
        }
    }
}

/// What differs somewhere, part by part.
fn part(set: &TypeSet, ty: Ty, value: &mut Value, like: &Value) {
    if value == like {
        return;
    }
    match (ty.map(|ty| set.ty(ty)), value, like) {
        (Some(Type::Struct(id) | Type::AtomicStruct(id)), Value::Object(value), Value::Object(like)) => {
            members(set, set.get(*id), value, like);
        }
        (Some(Type::Map(map)), Value::Object(value), Value::Object(like)) => {
            for (key, value) in value {
                if let Some(like) = like.get(key) {
                    part(set, Some(map.value), value, like);
                }
            }
        }
        (Some(Type::List(list)), Value::Array(value), Value::Array(like)) if !list.keys.is_empty() => {
            keyed(set, list, value, like);
        }
        (Some(Type::List(list)), Value::Array(value), Value::Array(like)) => {
            for (value, like) in value.iter_mut().zip(like) {
                part(set, Some(list.element), value, like);
            }
        }
        _ => {}
    }
}

/// What has keys is told apart by them, wherever it stands. An item whose name nobody has on the other side is the one in
/// its place, if that has lost its name as well.
fn keyed(set: &TypeSet, list: &ListType, value: &mut [Value], like: &[Value]) {
    let of = |item: &Value| key(&list.keys, item);
    let mine: HashSet<_> = value.iter().map(of).collect();
    let theirs: HashMap<_, _> = like.iter().map(|item| (of(item), item)).collect();
    for (at, value) in value.iter_mut().enumerate() {
        let in_place = || like.get(at).filter(|like| !mine.contains(&of(like)));
        if let Some(like) = theirs.get(&of(value)).copied().or_else(in_place) {
            part(set, Some(list.element), value, like);
        }
    }
}

/// What an item is known by in its list.
fn key(keys: &[Box<str>], item: &Value) -> Vec<Option<String>> {
    keys.iter().map(|key| item.get(&**key).map(Value::to_string)).collect()
}

/// A list that is always written is `null` or empty, which nobody tells apart.
fn is_nothing(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn respelled(kind: (&str, &str, &str), value: Value, like: &Value) -> Value {
        let set = TypeSet::built_in();
        let id = set.kind(kind.0, kind.1, kind.2).expect("a built-in kind");
        let Value::Object(mut value) = value else { unreachable!("an object") };
        spell_like(set, id, &mut value, like.as_object().expect("an object"));
        Value::Object(value)
    }

    #[test]
    fn what_is_always_written_is_taken_over_and_what_differs_is_not() {
        let job = |container: Value| json!({"spec": {"template": {"spec": {"containers": [container]}}}});
        let kind = ("batch", "v1", "Job");
        let (short, long) = (job(json!({"name": "a"})), job(json!({"name": "a", "resources": {}, "env": []})));
        assert_eq!(respelled(kind, short.clone(), &long), long);
        assert_eq!(respelled(kind, long.clone(), &short), short);
        let other = job(json!({"name": "b", "resources": {}}));
        assert_eq!(respelled(kind, short.clone(), &other), job(json!({"name": "a", "resources": {}})));
        let limited = job(json!({"name": "a", "resources": {"limits": {"cpu": "1"}}}));
        assert_eq!(respelled(kind, short.clone(), &limited), short, "these are no resources that it had");
        let context = job(json!({"name": "a", "securityContext": {}}));
        assert_eq!(respelled(kind, short.clone(), &context), short, "to be there means something");
    }

    /// A second ephemeral container, put before the first, made the first look changed.
    #[test]
    fn items_with_keys_are_spelled_like_those_of_their_name() {
        let pod = |containers: Value| json!({"spec": {"ephemeralContainers": containers}});
        let (short, long) = (json!({"name": "a"}), json!({"name": "a", "resources": {}}));
        let other = json!({"name": "b", "resources": {}});
        let like = pod(json!([other, long]));
        assert_eq!(respelled(("", "v1", "Pod"), pod(json!([short])), &like), pod(json!([long])));
        let unkeyed = json!({"spec": {"tolerations": [{"key": "a"}]}});
        let like = json!({"spec": {"tolerations": [{"key": "b"}, {"key": "a", "value": ""}]}});
        assert_eq!(respelled(("", "v1", "Pod"), unkeyed.clone(), &like), unkeyed);
    }

    #[test]
    fn zeros_and_structs_that_are_always_there_are_the_same_as_none() {
        let set = |name: Value| json!({"spec": name});
        let (without, with) = (set(json!({"selector": {}})), set(json!({"selector": {}, "serviceName": ""})));
        assert_eq!(respelled(("apps", "v1", "StatefulSet"), without.clone(), &with), with);
        let named = set(json!({"selector": {}, "serviceName": "a"}));
        assert_eq!(respelled(("apps", "v1", "StatefulSet"), without.clone(), &named), without);
        let disk = |lun: Value| json!({"spec": {"iscsi": lun}});
        let (short, long) = (disk(json!({"iqn": "a"})), disk(json!({"iqn": "a", "lun": 0})));
        assert_eq!(respelled(("", "v1", "PersistentVolume"), short, &long), long);
    }
}
