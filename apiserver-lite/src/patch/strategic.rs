//! Strategic merge patch: lists of objects merge by a key that the schema names, and directives say what else to do.
//!
//! Directives: `$patch: replace|delete` in an object or as a list item, `$deleteFromPrimitiveList/NAME`,
//! `$setElementOrder/NAME`, `$retainKeys`. Follows `k8s.io/apimachinery/pkg/util/strategicpatch`: its order of merged
//! lists is part of what clients see, and so are the texts and codes of its errors.

use proto::schema::{Prop, StructId, Type, TypeId, TypeSet};
use serde_json::{Map, Name, Value};

use super::go_print;
use crate::status::{ApiError, Details, Result};

const PATCH: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";

/// Applies a strategic merge patch to an object of a struct type.
///
/// # Errors
/// 400, 422 or 500, as upstream has it for each mistake.
pub(super) fn apply(set: &TypeSet, id: StructId, target: &mut Value, patch: &Map<String, Value>) -> Result<()> {
    let original = match target.take() {
        Value::Object(original) => original,
        _ => Map::new(),
    };
    let merger = Merger { set };
    *target = Value::Object(merger.map(original, patch, Shape::Struct(id))?);
    Ok(())
}

/// What a patch looks like in a complaint: upstream has taken the directives out that it has followed.
pub(super) fn shown(patch: &Map<String, Value>) -> String {
    fn strip(map: &Map<String, Value>) -> Map<String, Value> {
        let ordered = |key: &str| map.contains_key(&format!("{ORDER}{key}"));
        let kept = map.iter().filter(|(k, _)| *k != RETAIN && !k.starts_with(ORDER) && !ordered(k));
        kept.map(|(k, v)| (k.clone(), v.as_object().map_or_else(|| v.clone(), |m| Value::Object(strip(m))))).collect()
    }
    go_print(&Value::Object(strip(patch)))
}

/// What is known of the members of an object.
#[derive(Clone, Copy)]
enum Shape {
    Struct(StructId),
    /// No struct; its kind in Go's words.
    Other(&'static str),
}

/// A member's type and how it is patched.
struct Member {
    shape: Shape,
    /// `merge`, `replace` or nothing.
    strategy: &'static str,
    merge_key: Option<Box<str>>,
}

struct Merger<'a> {
    set: &'a TypeSet,
}

fn untyped(text: impl Into<String>) -> ApiError {
    ApiError::new(500, "", text)
}

fn unknown_directive(directive: &Value, map: &Map<String, Value>) -> ApiError {
    untyped(format!("unknown patch type: {} in map: {}", go_print(directive), go_map(map)))
}

fn no_merge_key(item: &Map<String, Value>, key: &str) -> ApiError {
    untyped(format!("map: {} does not contain declared merge key: {key}", go_map(item)))
}

fn go_map(map: &Map<String, Value>) -> String {
    go_print(&Value::Object(map.clone()))
}

fn bad_type(expected: &str, actual: &Value) -> ApiError {
    untyped(format!("expected a {expected}, but received a {}", go_type(actual)))
}

/// The type that Go's decoder gives a value.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

const LIST: &str = "[]interface {}";

impl Merger<'_> {
    fn shape(&self, ty: TypeId) -> Shape {
        match self.set.ty(ty) {
            Type::Struct(id) | Type::AtomicStruct(id) => Shape::Struct(*id),
            Type::List(_) | Type::Bytes => Shape::Other("slice"),
            Type::Map(_) => Shape::Other("map"),
            Type::Bool => Shape::Other("bool"),
            Type::Int32 => Shape::Other("int32"),
            Type::Int64 => Shape::Other("int64"),
            Type::Double => Shape::Other("float64"),
            Type::String => Shape::Other("string"),
            _ => Shape::Other("struct"),
        }
    }

    fn prop(&self, shape: Shape, key: &str) -> Result<&Prop> {
        let id = match shape {
            Shape::Struct(id) => id,
            Shape::Other(kind) => {
                let text = format!("merging an object in json but data type is not struct, instead is: {kind}");
                return Err(untyped(text));
            }
        };
        let declared = self.set.get(id);
        declared.prop(key).map(|(_, prop)| prop).ok_or_else(|| {
            let name = declared.name.rsplit('.').next().unwrap_or_default();
            untyped(format!("unable to find api field in struct {name} for the json field {key:?}"))
        })
    }

    /// A member that holds an object.
    fn object_member(&self, shape: Shape, key: &str) -> Result<Member> {
        let prop = self.prop(shape, key)?;
        Ok(Member { shape: self.shape(prop.ty), ..strategy_of(prop) })
    }

    /// A member that holds a list; the shape is its items'.
    fn list_member(&self, shape: Shape, key: &str) -> Result<Member> {
        let prop = self.prop(shape, key)?;
        let shape = match self.set.ty(prop.ty) {
            Type::List(list) => self.shape(list.element),
            Type::Bytes => Shape::Other("uint8"),
            _ => {
                let Shape::Other(kind) = self.shape(prop.ty) else {
                    return Err(untyped("expected slice or array type, but got: struct"));
                };
                return Err(untyped(format!("expected slice or array type, but got: {kind}")));
            }
        };
        Ok(Member { shape, ..strategy_of(prop) })
    }

    /// Only what the object gets of the patch is copied.
    fn map(
        &self,
        mut original: Map<String, Value>,
        patch: &Map<String, Value>,
        shape: Shape,
    ) -> Result<Map<String, Value>> {
        if let Some(directive) = patch.get(PATCH) {
            return match directive.as_str() {
                Some("replace") => {
                    let mut patch = patch.clone();
                    patch.remove(PATCH);
                    Ok(patch)
                }
                Some("delete") => Ok(Map::new()),
                _ => Err(unknown_directive(directive, patch)),
            };
        }
        if let Some(keep) = patch.get(RETAIN) {
            retain(&mut original, patch, keep)?;
        }
        // Lists that are in the object already when the other members come.
        let mut done: Vec<&str> = Vec::new();
        for (key, order) in patch {
            if let Some(key) = key.strip_prefix(ORDER)
                && self.ordered_list(&mut original, patch, key, order, shape)?
            {
                done.push(key);
            }
        }
        let mut members =
            patch.iter().filter(|(key, _)| *key != RETAIN && !key.starts_with(ORDER) && !done.contains(&key.as_str()));
        members.try_for_each(|(key, value)| self.member(&mut original, key, value, shape))?;
        Ok(original)
    }

    /// Merges one member of a patch.
    fn member(&self, original: &mut Map<String, Value>, key: &Name, value: &Value, shape: Shape) -> Result<()> {
        let (key, deletes) = match key.strip_prefix(DELETE_FROM) {
            Some(name) => (name.into(), true),
            None => (key.clone(), false),
        };
        if value.is_null() {
            original.remove(&key);
            return Ok(());
        }
        let Some(have) = original.get_mut(&key).map(Value::take) else {
            if !deletes {
                insert(original, key, value);
            }
            return Ok(());
        };
        let merged = match (have, value) {
            (Value::Object(have), Value::Object(value)) => {
                let member = self.object_member(shape, &key)?;
                if member.strategy == "replace" {
                    Some(Value::Object(value.clone()))
                } else {
                    Some(Value::Object(self.map(have, value, member.shape)?))
                }
            }
            (Value::Array(have), Value::Array(value)) => {
                let member = self.list_member(shape, &key)?;
                if deletes || member.strategy == "merge" {
                    Some(Value::Array(self.list(have, value.clone(), &member, deletes)?))
                } else {
                    Some(Value::Array(value.clone()))
                }
            }
            (have, _) if deletes => Some(have),
            (_, value) => without_directives(value),
        };
        match merged {
            Some(merged) => original.insert(key, merged),
            None => original.remove(&key),
        };
        Ok(())
    }

    /// Merges a list whose order the patch gives, beside changes to it or alone. Whether the list was merged: else there is
    /// none on either side.
    fn ordered_list(
        &self,
        original: &mut Map<String, Value>,
        patch: &Map<String, Value>,
        key: &str,
        order: &Value,
        shape: Shape,
    ) -> Result<bool> {
        let Value::Array(order) = order else { return Err(bad_type(LIST, order)) };
        let list = |value: Option<&Value>| match value {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list.clone())),
            Some(other) => Err(bad_type(LIST, other)),
        };
        let (have, change) = (list(original.get(key))?, list(patch.get(key).filter(|_| key != RETAIN))?);
        let member = self.list_member(shape, key)?;
        let merge_key = member.merge_key.as_deref();
        check_order(change.as_deref().unwrap_or_default(), order, merge_key)?;
        let server_order = have.clone().unwrap_or_default();
        let of_maps = items_are_maps(&[&server_order, change.as_deref().unwrap_or_default()]);
        let merged = match (have, change) {
            (None, None) => return Ok(false),
            (Some(have), None) => have,
            (None, Some(change)) => change.iter().filter_map(without_directives).collect(),
            (Some(have), Some(change)) if member.strategy == "merge" => self.list(have, change, &member, false)?,
            (Some(_), Some(change)) => change,
        };
        let of_maps = of_maps?.ok_or_else(|| untyped("no elements in any of the given slices"))?;
        let (patched, kept) = partition(merged, order, merge_key)?;
        let key_of_maps = merge_key.filter(|_| of_maps);
        original.insert(key.into(), Value::Array(arrange(patched, kept, order, &server_order, key_of_maps)?));
        Ok(true)
    }

    fn list(&self, mut have: Vec<Value>, patch: Vec<Value>, member: &Member, deletes: bool) -> Result<Vec<Value>> {
        let Some(of_maps) = items_are_maps(&[&have, &patch])? else { return Ok(have) };
        if !of_maps {
            if deletes {
                have.retain(|item| !patch.contains(item));
                return Ok(have);
            }
            let mut merged: Vec<Value> = have.clone();
            for item in &patch {
                if !merged.contains(item) {
                    merged.push(item.clone());
                }
            }
            let (patched, kept) = partition(merged, &patch, None)?;
            return arrange(patched, kept, &patch, &have, None);
        }
        let Some(merge_key) = member.merge_key.as_deref() else {
            let name = match member.shape {
                Shape::Struct(id) => self.set.get(id).name.rsplit('.').next().unwrap_or_default().to_owned(),
                Shape::Other(kind) => kind.to_owned(),
            };
            return Err(untyped(format!("cannot merge lists without merge key for {name}")));
        };
        let (mut have, patch) = special_items(have, patch, merge_key)?;
        let server_order: Vec<Value> = have.iter().map(|item| key_only(item, merge_key)).collect();
        let patch_order: Vec<Value> = patch.iter().map(|item| key_only(item, merge_key)).collect();
        for item in patch {
            let Value::Object(item) = item else { continue };
            let Some(key) = item.get(merge_key) else { return Err(no_merge_key(&item, merge_key)) };
            match have.iter_mut().find(|h| h.get(merge_key) == Some(key)) {
                Some(place) => {
                    let Value::Object(old) = place.take() else { continue };
                    *place = Value::Object(self.map(old, &item, member.shape)?);
                }
                // Upstream takes new items as they are, nulls and directives within included.
                None => have.push(Value::Object(item)),
            }
        }
        let (patched, kept) = partition(have, &patch_order, Some(merge_key))?;
        arrange(patched, kept, &patch_order, &server_order, Some(merge_key))
    }
}

/// An item with nothing but its key: enough to know its place.
fn key_only(item: &Value, key: &str) -> Value {
    Value::Object(item.get(key).map(|value| (key.to_owned(), value.clone())).into_iter().collect())
}

fn strategy_of(prop: &Prop) -> Member {
    let strategy = if prop.has_patch_strategy("merge") {
        "merge"
    } else if prop.has_patch_strategy("replace") {
        "replace"
    } else {
        ""
    };
    Member { shape: Shape::Other("struct"), strategy, merge_key: prop.merge_key().map(Into::into) }
}

/// Sets a member that was not there, or was of another type.
fn insert(original: &mut Map<String, Value>, key: Name, value: &Value) {
    match without_directives(value) {
        Some(value) => original.insert(key, value),
        None => original.remove(&key),
    };
}

/// A value of a patch that nothing is merged with: no nulls, and objects that are directives go.
fn without_directives(value: &Value) -> Option<Value> {
    match value {
        Value::Object(map) if map.contains_key(PATCH) => None,
        Value::Object(map) => {
            let mut left = Map::with_capacity(map.len());
            for (key, value) in map.iter().filter(|(_, value)| !value.is_null()) {
                if let Some(value) = without_directives(value) {
                    left.insert(key.clone(), value);
                }
            }
            Some(Value::Object(left))
        }
        Value::Array(list) => {
            let mut left = Vec::with_capacity(list.len());
            left.extend(list.iter().filter_map(without_directives));
            Some(Value::Array(left))
        }
        value => Some(value.clone()),
    }
}

/// Drops members that the directive does not name. What the patch itself sets has to be among those named.
fn retain(original: &mut Map<String, Value>, patch: &Map<String, Value>, keep: &Value) -> Result<()> {
    let bad = || ApiError::bad_request("invalid patch format of retainKeys");
    let keep = keep.as_array().ok_or_else(bad)?;
    let named = |key: &str| keep.iter().any(|k| k == key);
    let directs = |key: &str| key == RETAIN || key.starts_with(DELETE_FROM) || key.starts_with(ORDER);
    let sets = |(key, value): &(&Name, &Value)| !value.is_null() && !directs(key);
    if patch.iter().filter(sets).any(|(key, _)| !named(key)) {
        return Err(bad());
    }
    original.retain(|key, _| named(key));
    Ok(())
}

/// The items of a change have to come in the order that the patch asks for.
fn check_order(change: &[Value], order: &[Value], merge_key: Option<&str>) -> Result<()> {
    if change.is_empty() || order.is_empty() {
        return Ok(());
    }
    let is_directive = |item: &Value| item.get(PATCH).is_some();
    let mut wanted = order.iter();
    for item in change.iter().filter(|item| !is_directive(item)) {
        loop {
            let Some(next) = wanted.next() else {
                let (change, order) = (go_print(&change.to_vec().into()), go_print(&order.to_vec().into()));
                let text =
                    format!("The order in patch list:\n{change}\n doesn't match $setElementOrder list:\n{order}\n");
                return Err(untyped(text));
            };
            let same = match merge_key {
                None => item == next,
                Some(key) => match (item, next) {
                    (Value::Object(a), Value::Object(b)) => {
                        let a = a.get(key).ok_or_else(|| no_merge_key(a, key))?;
                        a == b.get(key).ok_or_else(|| no_merge_key(b, key))?
                    }
                    (Value::Object(_), other) | (other, _) => {
                        return Err(bad_type("map[string]interface {}", other));
                    }
                },
            };
            if same {
                break;
            }
        }
    }
    Ok(())
}

/// Whether the items of all lists are objects; None when there are none. All have to be of one type.
fn items_are_maps(lists: &[&[Value]]) -> Result<Option<bool>> {
    let mut first: Option<&Value> = None;
    for item in lists.iter().copied().flatten() {
        match first {
            None if item.is_array() => {
                let text = "the server rejected our request due to an error in our request";
                return Err(ApiError::new(422, "Invalid", text).with_details(Details::default()));
            }
            None => first = Some(item),
            Some(first) if go_type(first) != go_type(item) => {
                let shown: Vec<String> = lists.iter().map(|l| go_print(&l.to_vec().into())).collect();
                return Err(untyped(format!("list element types are not identical: [{}]", shown.join(" "))));
            }
            Some(_) => {}
        }
    }
    Ok(first.map(Value::is_object))
}

/// Follows the items that are directives: some delete, one replaces the whole list.
fn special_items(mut have: Vec<Value>, patch: Vec<Value>, merge_key: &str) -> Result<(Vec<Value>, Vec<Value>)> {
    let mut rest = Vec::with_capacity(patch.len());
    let mut replaces = false;
    for item in patch {
        let Some(directive) = item.get(PATCH) else {
            rest.push(item);
            continue;
        };
        let Value::Object(map) = &item else { continue };
        match directive.as_str() {
            Some("delete") => {
                let Some(key) = map.get(merge_key) else { return Err(no_merge_key(map, merge_key)) };
                have.retain(|h| h.get(merge_key) != Some(key));
            }
            Some("replace") => replaces = true,
            Some("merge") => return Err(untyped("merging lists cannot yet be specified in the patch")),
            _ => return Err(unknown_directive(directive, map)),
        }
    }
    Ok(if replaces { (rest, Vec::new()) } else { (have, rest) })
}

/// Splits a merged list into the items that `by` names and the others.
fn partition(merged: Vec<Value>, by: &[Value], merge_key: Option<&str>) -> Result<(Vec<Value>, Vec<Value>)> {
    if let Some(key) = merge_key {
        for item in &merged {
            match item {
                Value::Object(map) if !map.contains_key(key) => return Err(no_merge_key(map, key)),
                Value::Object(_) => {}
                other => return Err(bad_type("map[string]interface {}", other)),
            }
        }
    }
    Ok(merged.into_iter().partition(|item| place(by, item, merge_key).is_some()))
}

fn place(order: &[Value], item: &Value, merge_key: Option<&str>) -> Option<usize> {
    order.iter().position(|o| match merge_key {
        Some(key) => o.get(key) == item.get(key),
        None => o == item,
    })
}

/// Puts the items that the patch names into its order, the others into the server's, and weaves the two: an item of the
/// server stays in front of one of the patch only where it was before.
fn arrange(
    mut patched: Vec<Value>,
    mut kept: Vec<Value>,
    order: &[Value],
    server_order: &[Value],
    merge_key: Option<&str>,
) -> Result<Vec<Value>> {
    if let Some(key) = merge_key {
        for item in order.iter().chain(server_order) {
            match item {
                Value::Object(map) if !map.contains_key(key) => return Err(no_merge_key(map, key)),
                Value::Object(_) => {}
                other => return Err(bad_type("map[string]interface {}", other)),
            }
        }
    }
    patched.sort_by_key(|item| place(order, item, merge_key));
    kept.sort_by_key(|item| place(server_order, item, merge_key));
    let mut out = Vec::with_capacity(patched.len() + kept.len());
    let (mut patched, mut kept) = (patched.into_iter().peekable(), kept.into_iter().peekable());
    loop {
        let kept_first = match (kept.peek(), patched.peek()) {
            (None, None) => return Ok(out),
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(left), Some(right)) => {
                let (left, right) = (place(server_order, left, merge_key), place(server_order, right, merge_key));
                matches!((left, right), (Some(left), Some(right)) if left < right)
            }
        };
        out.extend(if kept_first { kept.next() } else { patched.next() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tried(mut target: Value, patch: Value) -> Result<Value> {
        let set = TypeSet::built_in();
        let patch = patch.as_object().expect("an object").clone();
        apply(set, set.kind("", "v1", "Pod").expect("built in"), &mut target, &patch).map(|()| target)
    }

    fn patched(target: Value, patch: Value) -> Value {
        tried(target, patch).expect("applies")
    }

    #[test]
    fn containers_merge_by_name_and_delete_by_directive() {
        let pod = json!({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}});
        let merged = patched(
            pod.clone(),
            json!({"spec": {"containers": [{"name": "b", "image": "2"}, {"name": "c", "image": "1"}]}}),
        );
        assert_eq!(
            merged["spec"]["containers"],
            json!([{"name": "a", "image": "1"}, {"name": "b", "image": "2"}, {"name": "c", "image": "1"}])
        );
        let deleted = patched(pod.clone(), json!({"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}));
        assert_eq!(deleted["spec"]["containers"], json!([{"name": "b", "image": "1"}]));
        let ordered = patched(pod, json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}}));
        assert_eq!(ordered["spec"]["containers"][0]["name"], "b");
    }

    #[test]
    fn new_items_go_in_front_of_those_that_the_patch_does_not_name() {
        let pod = json!({"metadata": {"finalizers": ["a/a"]}});
        let merged = patched(pod, json!({"metadata": {"finalizers": ["b/b"]}}));
        assert_eq!(merged["metadata"]["finalizers"], json!(["b/b", "a/a"]));
    }

    #[test]
    fn conditions_of_a_status_merge_by_type() {
        let pod = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
        let merged = patched(
            pod,
            json!({"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "X", "status": "True"}]}}),
        );
        assert_eq!(
            merged["status"]["conditions"],
            json!([{"type": "Ready", "status": "True"}, {"type": "X", "status": "True"}])
        );
    }

    #[test]
    fn volumes_keep_only_the_retained_source() {
        let pod = json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}});
        let merged = patched(
            pod.clone(),
            json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]}}),
        );
        assert_eq!(merged["spec"]["volumes"], json!([{"name": "v", "hostPath": {"path": "/x"}}]));
        let unnamed =
            json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name"], "hostPath": {"path": "/x"}}]}});
        assert_eq!(tried(pod, unnamed).expect_err("refused").status().message, "invalid patch format of retainKeys");
    }

    #[test]
    fn finalizers_can_be_taken_out() {
        let pod = json!({"metadata": {"finalizers": ["a", "b"]}});
        let merged = patched(pod, json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}));
        assert_eq!(merged["metadata"]["finalizers"], json!(["b"]));
    }

    #[test]
    fn mistakes_are_errors_of_the_server_as_upstream_has_them() {
        let pod = json!({"spec": {"containers": [{"name": "a"}]}});
        for (patch, text) in [
            (json!({"spec": {"$patch": "frob"}}), "unknown patch type: frob in map: map[$patch:frob]"),
            (
                json!({"spec": {"containers": [{"image": "z:1"}]}}),
                "map: map[image:z:1] does not contain declared merge key: name",
            ),
            (
                json!({"spec": {"$setElementOrder/containers": [{"name": "a"}], "containers": [{"name": "q"}]}}),
                "The order in patch list:\n[map[name:q]]\n doesn't match $setElementOrder list:\n[map[name:a]]\n",
            ),
            (json!({"spec": {"containers": ["a"]}}), "list element types are not identical: [[map[name:a]] [a]]"),
        ] {
            let error = tried(pod.clone(), patch).expect_err("refused");
            assert_eq!((error.code(), error.status().message.as_str()), (500, text));
        }
    }
}
