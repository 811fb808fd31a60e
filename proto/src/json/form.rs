//! Tells whether a tree already has the form that decoding gives, so that it need not be written and read again.
//!
//! A patch of an object that was decoded before touches a few places; all others are as they should be. What is not
//! plainly right here (unknown fields, nulls, wrong types, numbers with another spelling) is left to the decoder, which
//! also has the words for it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Name, Number, Value};

use super::max_depth;
use super::typed::keeps;
use crate::quantity::Quantity;
use crate::schema::{StructId, Type, TypeId, TypeSet};
use crate::{duration, time};

/// What decoding the tree's text would do to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Nothing, and there is nothing to complain of.
    Normal,
    /// It would leave out members that are null or empty, as objects at rest have them.
    Spelled,
    /// More than that.
    Other,
}

/// Looks at a tree; what it shares with `like`, which was decoded before, is passed by.
pub(super) fn of(set: &TypeSet, id: StructId, value: &Value, like: Option<&Value>) -> Form {
    let mut look = Look { set, spelled: false };
    match !set.is_custom() && look.structure(id, value, like, 0) {
        false => Form::Other,
        true if look.spelled => Form::Spelled,
        true => Form::Normal,
    }
}

/// Leaves out what decoding would leave out, in a tree that is [`Form::Spelled`]. Where that is nothing, what the tree
/// shares with others stays shared.
pub(super) fn unspell(set: &TypeSet, id: StructId, value: &mut Value) {
    // So that the copies below cost nothing.
    value.share();
    if let Some(short) = unspelled(set, id, value) {
        *value = short;
    }
}

/// What is left of a struct; None where that is all of it.
fn unspelled(set: &TypeSet, id: StructId, value: &Value) -> Option<Value> {
    let Value::Object(map) = value else { return None };
    let (shape, mut left) = (set.get(id), None);
    for (name, member) in map {
        let Some((_, prop)) = shape.prop(name) else { continue };
        let short = unspelled_value(set, prop.ty, member);
        let now = short.as_ref().unwrap_or(member);
        if now.is_null() || !keeps(set, prop, now) {
            left.get_or_insert_with(|| map.clone()).remove(name);
        } else if let Some(short) = short {
            left.get_or_insert_with(|| map.clone()).insert(name.clone(), short);
        }
    }
    left.map(Value::Object)
}

fn unspelled_value(set: &TypeSet, ty: TypeId, value: &Value) -> Option<Value> {
    match (set.ty(ty), value) {
        (Type::SchemaOrArray(id), Value::Array(items)) => unspelled_items(items, |v| unspelled(set, *id, v)),
        (Type::SchemaOrArray(id) | Type::SchemaOrBool(id) | Type::SchemaOrStrings(id), value) => {
            unspelled(set, *id, value)
        }
        (Type::Struct(id) | Type::AtomicStruct(id), value) => unspelled(set, *id, value),
        (Type::List(list), Value::Array(items)) => unspelled_items(items, |v| unspelled_value(set, list.element, v)),
        (Type::Map(map), Value::Object(members)) => {
            let mut left = None;
            for (name, member) in members {
                if let Some(short) = unspelled_value(set, map.value, member) {
                    left.get_or_insert_with(|| members.clone()).insert(name.clone(), short);
                }
            }
            left.map(Value::Object)
        }
        _ => None,
    }
}

fn unspelled_items(items: &[Value], unspelled: impl Fn(&Value) -> Option<Value>) -> Option<Value> {
    let mut left = None;
    for (at, item) in items.iter().enumerate() {
        if let Some(short) = unspelled(item) {
            left.get_or_insert_with(|| items.to_vec())[at] = short;
        }
    }
    left.map(Value::Array)
}

struct Look<'s> {
    set: &'s TypeSet,
    /// Something was seen that would be left out.
    spelled: bool,
}

impl Look<'_> {
    fn structure(&mut self, id: StructId, tree: &Value, like: Option<&Value>, depth: usize) -> bool {
        let Value::Object(map) = tree else { return false };
        let like = like.and_then(Value::as_object);
        if like.is_some_and(|like| map.is(like)) {
            return true;
        }
        let set = self.set;
        let shape = set.get(id);
        depth < max_depth()
            && !shape.open
            && map.iter().all(|(name, member)| {
                let Some((_, prop)) = shape.prop(name) else { return false };
                let null = member.is_null();
                self.spelled |= null || !keeps(set, prop, member);
                null || self.value(prop.ty, member, like.and_then(|like| like.get(name)), depth + 1)
            })
    }

    fn value(&mut self, ty: TypeId, value: &Value, like: Option<&Value>, depth: usize) -> bool {
        let set = self.set;
        match (set.ty(ty), value) {
            (Type::String, Value::String(_)) | (Type::Bool, Value::Bool(_)) => true,
            (Type::Int32, Value::Number(number)) => number.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
            (Type::Int64, Value::Number(number)) => number.is_i64(),
            (Type::Double, Value::Number(number)) => is_spelt_as_written(number),
            (Type::Bytes, Value::String(text)) => !text.contains(['\r', '\n']) && BASE64.decode(text).is_ok(),
            (Type::Quantity, Value::String(text)) => text.parse::<Quantity>().is_ok_and(|q| q.to_string() == *text),
            (Type::Time, Value::String(text)) => time::parse_rfc3339(text).is_ok_and(|t| t.to_seconds_text() == *text),
            (Type::MicroTime, Value::String(text)) => {
                time::parse_rfc3339(text).is_ok_and(|t| t.to_micros_text() == *text)
            }
            (Type::Duration, Value::String(text)) => duration::parse(text).is_ok_and(|d| duration::format(d) == *text),
            (Type::IntOrString, Value::String(_)) => true,
            (Type::IntOrString, Value::Number(number)) => number.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
            (Type::Raw | Type::Json, value) => !value.is_null() && any(value, depth),
            (Type::Fields, Value::Object(_)) => any(value, depth),
            (Type::SchemaOrArray(id) | Type::SchemaOrBool(id) | Type::SchemaOrStrings(id), Value::Object(_)) => {
                self.structure(*id, value, like, depth)
            }
            (Type::SchemaOrArray(id), Value::Array(list)) => {
                list.iter().all(|v| self.structure(*id, v, None, depth + 1))
            }
            (Type::SchemaOrBool(_), Value::Bool(_)) => true,
            (Type::SchemaOrStrings(_), Value::Array(list)) => list.iter().all(Value::is_string),
            (Type::Struct(id) | Type::AtomicStruct(id), value) => self.structure(*id, value, like, depth),
            (Type::List(list), Value::Array(items)) => {
                let like = like.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                let mut side_by_side = items.iter().enumerate();
                depth < max_depth() && side_by_side.all(|(at, v)| self.value(list.element, v, like.get(at), depth + 1))
            }
            (Type::Map(map), Value::Object(items)) => {
                let like = like.and_then(Value::as_object);
                let was = |name: &Name| like.and_then(|like| like.get(name));
                depth < max_depth() && items.iter().all(|(name, v)| self.value(map.value, v, was(name), depth + 1))
            }
            _ => false,
        }
    }
}

fn any(value: &Value, depth: usize) -> bool {
    depth < max_depth()
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
        assert_eq!(of(set, pod, &container(json!({"requests": {"cpu": "100m"}})), None), Form::Normal);
        for spelled in [
            container(json!({"requests": {}})),
            container(json!({"requests": null, "limits": {"cpu": "1"}})),
            tree(json!({"hostNetwork": false, "nodeName": "", "volumes": []})),
            json!({"metadata": {"creationTimestamp": null}, "status": {"conditions": [
                {"type": "Ready", "status": "True", "lastProbeTime": null, "message": ""}]}}),
        ] {
            assert_eq!(of(set, pod, &spelled, None), Form::Spelled, "{spelled}");
            let mut short = spelled.clone();
            unspell(set, pod, &mut short);
            assert_eq!(of(set, pod, &short, None), Form::Normal);
            let decoded = crate::json::decode(set, pod, spelled.to_string().as_bytes()).expect("a pod");
            assert_eq!((short, Vec::<String>::new()), (decoded.value, decoded.strict));
        }
        for other in [
            container(json!({"requests": {"cpu": "0.1"}})),
            container(json!({"requests": {"cpu": null}})),
            tree(json!({"containers": "none"})),
            tree(json!({"containers": [null]})),
            tree(json!({"nodeName": 0})),
            tree(json!({"volumes": {}})),
            tree(json!({"other": 1})),
            tree(json!({"other": null})),
            tree(json!({"activeDeadlineSeconds": 1.0})),
        ] {
            assert_eq!(of(set, pod, &other, None), Form::Other, "{other}");
        }
    }
    #[test]
    fn what_a_tree_shares_with_one_that_was_decoded_is_not_looked_at() {
        let set = TypeSet::built_in();
        let pod = set.kind("", "v1", "Pod").expect("built in");
        // Nothing that was decoded has it, so who looks finds it.
        let mut old =
            json!({"spec": {"containers": [{"name": "c", "other": 1}], "nodeSelector": {"a": "b"}}, "status": {}});
        old.share();
        let mut new = old.clone();
        new["status"]["phase"] = "Running".into();
        assert_eq!((of(set, pod, &new, None), of(set, pod, &new, Some(&old))), (Form::Other, Form::Normal));
        new["spec"]["nodeName"] = "n".into();
        assert_eq!(of(set, pod, &new, Some(&old)), Form::Normal, "its containers are those of before");
        new["spec"]["containers"][0]["image"] = "i".into();
        assert_eq!(of(set, pod, &new, Some(&old)), Form::Other);
        new["spec"]["containers"] = json!([{"name": "c"}, old["spec"]["containers"][0]]);
        assert_eq!(of(set, pod, &new, Some(&old)), Form::Other, "it is another item");
    }
}
