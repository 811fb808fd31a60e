//! Strategic merge patch: lists of objects merge by a key that the schema names, and directives say what else to do.
//!
//! Directives: `$patch: replace|delete|merge` in an object or as a list item, `$deleteFromPrimitiveList/NAME`,
//! `$setElementOrder/NAME`, `$retainKeys`. Follows `k8s.io/apimachinery/pkg/util/strategicpatch`.

use proto::schema::{Prop, StructId, Type, TypeId, TypeSet};
use serde_json::{Map, Value};

use crate::status::{ApiError, Result};

const PATCH: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";

/// Applies a strategic merge patch to an object of a struct type.
///
/// # Errors
/// 400 for a directive or a list item that makes no sense.
pub fn apply_strategic(set: &TypeSet, id: StructId, target: &mut Value, patch: Value) -> Result<()> {
    let Value::Object(patch) = patch else {
        return Err(ApiError::bad_request("the patch is no object"));
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(object) = target else { return Ok(()) };
    merge(set, Some(id), object, patch)
}

/// Merges `patch` into `target`; without a struct type (a map, or unknown data) values merge as plain JSON does.
fn merge(
    set: &TypeSet,
    id: Option<StructId>,
    target: &mut Map<String, Value>,
    mut patch: Map<String, Value>,
) -> Result<()> {
    match patch.remove(PATCH) {
        None => {}
        Some(Value::String(directive)) => match directive.as_str() {
            "replace" => {
                *target = strip(patch);
                return Ok(());
            }
            "delete" => {
                target.clear();
                return Ok(());
            }
            "merge" => {}
            other => return Err(unknown_directive(other)),
        },
        Some(other) => return Err(unknown_directive(&other.to_string())),
    }
    if let Some(Value::Array(keep)) = patch.remove(RETAIN) {
        let keep: Vec<&str> = keep.iter().filter_map(Value::as_str).collect();
        target.retain(|key, _| keep.contains(&key.as_str()));
    }
    let directives: Vec<String> =
        patch.keys().filter(|k| k.starts_with(DELETE_FROM) || k.starts_with(ORDER)).cloned().collect();
    let mut orders = Vec::new();
    for key in directives {
        let Some(Value::Array(items)) = patch.remove(&key) else { continue };
        if let Some(name) = key.strip_prefix(DELETE_FROM) {
            if let Some(Value::Array(list)) = target.get_mut(name) {
                list.retain(|item| !items.contains(item));
            }
        } else if let Some(name) = key.strip_prefix(ORDER) {
            orders.push((name.to_owned(), items));
        }
    }
    for (key, value) in patch {
        let prop = id.and_then(|id| set.get(id).prop(&key)).map(|(_, p)| p);
        member(set, prop, target, key, value)?;
    }
    for (name, order) in orders {
        let merge_key = id.and_then(|id| set.get(id).prop(&name)).and_then(|(_, p)| p.merge_key());
        if let Some(Value::Array(list)) = target.get_mut(&name) {
            reorder(list, &order, merge_key);
        }
    }
    Ok(())
}

fn member(
    set: &TypeSet,
    prop: Option<&Prop>,
    target: &mut Map<String, Value>,
    key: String,
    value: Value,
) -> Result<()> {
    if value.is_null() {
        target.remove(&key);
        return Ok(());
    }
    let ty = prop.map(|p| set.ty(p.ty));
    match (value, ty) {
        (Value::Object(patch), ty) => {
            let inner = match ty {
                Some(Type::Struct(id) | Type::AtomicStruct(id)) => Some(*id),
                _ => None,
            };
            if prop.is_some_and(|p| p.has_patch_strategy("replace")) {
                target.insert(key, Value::Object(strip(patch)));
                return Ok(());
            }
            let place = target.entry(key).or_insert_with(|| Value::Object(Map::new()));
            if !place.is_object() {
                *place = Value::Object(Map::new());
            }
            match (place, ty) {
                (Value::Object(object), Some(Type::Map(map))) => merge_map(set, map.value, object, patch),
                (Value::Object(object), _) => merge(set, inner, object, patch),
                _ => Ok(()),
            }
        }
        (Value::Array(patch), Some(Type::List(list))) if prop.is_some_and(|p| p.has_patch_strategy("merge")) => {
            let place = target.entry(key).or_insert_with(|| Value::Array(Vec::new()));
            if !place.is_array() {
                *place = Value::Array(Vec::new());
            }
            if let Value::Array(items) = place {
                match prop.and_then(Prop::merge_key) {
                    Some(merge_key) => merge_list(set, list.element, merge_key, items, patch)?,
                    None => patch.into_iter().for_each(|item| {
                        if !items.contains(&item) {
                            items.push(item);
                        }
                    }),
                }
            }
            Ok(())
        }
        (value, _) => {
            target.insert(key, value);
            Ok(())
        }
    }
}

/// A map's values merge when they are objects.
fn merge_map(
    set: &TypeSet,
    value_type: TypeId,
    target: &mut Map<String, Value>,
    patch: Map<String, Value>,
) -> Result<()> {
    let id = match set.ty(value_type) {
        Type::Struct(id) | Type::AtomicStruct(id) => Some(*id),
        _ => None,
    };
    if patch.contains_key(PATCH) {
        return merge(set, None, target, patch);
    }
    for (key, value) in patch {
        match value {
            Value::Null => {
                target.remove(&key);
            }
            Value::Object(patch) => {
                let place = target.entry(key).or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(object) = place {
                    merge(set, id, object, patch)?;
                }
            }
            value => {
                target.insert(key, value);
            }
        }
    }
    Ok(())
}

fn merge_list(
    set: &TypeSet,
    element: TypeId,
    merge_key: &str,
    items: &mut Vec<Value>,
    patch: Vec<Value>,
) -> Result<()> {
    let id = match set.ty(element) {
        Type::Struct(id) | Type::AtomicStruct(id) => Some(*id),
        _ => None,
    };
    // An item that says replace stands for the whole list.
    let replaces = |item: &Value| item[PATCH] == "replace";
    if patch.iter().any(replaces) {
        *items = patch.into_iter().filter(|item| !replaces(item)).collect();
        return Ok(());
    }
    for item in patch {
        let Value::Object(mut item) = item else {
            return Err(ApiError::bad_request("a list of objects is patched with something else"));
        };
        let deletes = item.get(PATCH).is_some_and(|p| p == "delete");
        let Some(key) = item.get(merge_key).cloned() else {
            return Err(ApiError::bad_request(format!(
                "map: {} does not contain declared merge key: {merge_key}",
                go_map(&item)
            )));
        };
        if deletes {
            items.retain(|have| have.get(merge_key) != Some(&key));
            continue;
        }
        match items.iter_mut().find(|have| have.get(merge_key) == Some(&key)) {
            Some(Value::Object(have)) => merge(set, id, have, item)?,
            _ => {
                item.remove(PATCH);
                let mut fresh = Map::new();
                merge(set, id, &mut fresh, item)?;
                items.push(Value::Object(fresh));
            }
        }
    }
    Ok(())
}

/// Puts the items named in `order` into that order; others stay behind the item they followed.
fn reorder(list: &mut Vec<Value>, order: &[Value], merge_key: Option<&str>) {
    let place = |item: &Value| {
        order.iter().position(|o| match merge_key {
            Some(key) => o.get(key).is_some() && o.get(key) == item.get(key),
            None => o == item,
        })
    };
    let mut keyed: Vec<(usize, Value)> = Vec::with_capacity(list.len());
    let mut last = 0;
    for item in list.drain(..) {
        last = place(&item).unwrap_or(last);
        keyed.push((last, item));
    }
    keyed.sort_by_key(|(at, _)| *at);
    list.extend(keyed.into_iter().map(|(_, item)| item));
}

/// A patch that becomes the value itself has no directives and no nulls.
fn strip(map: Map<String, Value>) -> Map<String, Value> {
    map.into_iter()
        .filter(|(key, value)| {
            !value.is_null() && key != RETAIN && !key.starts_with(DELETE_FROM) && !key.starts_with(ORDER)
        })
        .map(|(key, value)| match value {
            Value::Object(inner) => (key, Value::Object(strip(inner))),
            value => (key, value),
        })
        .collect()
}

fn unknown_directive(directive: &str) -> ApiError {
    ApiError::bad_request(format!("Unknown patch type: {directive}"))
}

/// A map as Go prints it with `%v`.
fn go_map(map: &Map<String, Value>) -> String {
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), Into::into);
    let members: Vec<String> = map.iter().map(|(k, v)| format!("{k}:{}", plain(v))).collect();
    format!("map[{}]", members.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn patched(target: Value, patch: Value) -> Value {
        let set = TypeSet::built_in();
        let mut target = target;
        apply_strategic(set, set.kind("", "v1", "Pod").expect("built in"), &mut target, patch).expect("applies");
        target
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
    fn conditions_of_a_status_merge_by_type() {
        let pod = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
        let merged = patched(
            pod,
            json!({"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "X", "status": "True"}]}}),
        );
        assert_eq!(merged["status"]["conditions"].as_array().map(Vec::len), Some(2));
        assert_eq!(merged["status"]["conditions"][0]["status"], "True");
    }

    #[test]
    fn volumes_keep_only_the_retained_source() {
        let pod = json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}});
        let merged = patched(
            pod,
            json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]}}),
        );
        assert_eq!(merged["spec"]["volumes"], json!([{"name": "v", "hostPath": {"path": "/x"}}]));
    }

    #[test]
    fn finalizers_join_and_can_be_taken_out() {
        let pod = json!({"metadata": {"finalizers": ["a", "b"]}});
        let merged =
            patched(pod, json!({"metadata": {"finalizers": ["c"], "$deleteFromPrimitiveList/finalizers": ["a"]}}));
        assert_eq!(merged["metadata"]["finalizers"], json!(["b", "c"]));
    }
}
