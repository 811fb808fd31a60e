//! Puts a configuration into an object, and takes paths out of one.

use std::collections::BTreeMap;

use proto::schema::{StructId, TypeSet};
use serde_json::{Map, Value};

use super::element::Element;
use super::set::Set;
use super::view::{BadItem, Shape, Ty, View, item_element, shape};

/// Merges a configuration into an object: nothing is removed, and what the configuration says counts.
///
/// # Errors
/// A list item without its keys.
pub fn merge(set: &TypeSet, id: StructId, live: &mut Value, config: &Value) -> Result<(), BadItem> {
    merge_as(set, Shape::Struct(set.get(id)), live, config)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => true,
    }
}

fn merge_as(set: &TypeSet, shape: Shape<'_>, live: &mut Value, config: &Value) -> Result<(), BadItem> {
    let granular = match shape {
        Shape::Leaf => false,
        Shape::Items { .. } | Shape::Struct(_) | Shape::Map(_) => true,
        Shape::Any => config.is_object() || config.is_null() && live.is_object(),
    };
    // Nothing said about what is there leaves it; nothing on both sides is a value like others.
    if granular && is_empty(config) && !is_empty(live) && (live.is_object() || live.is_array()) {
        return Ok(());
    }
    match (shape, &mut *live, config) {
        (Shape::Items { keys, element }, Value::Array(old), Value::Array(new))
            if !old.is_empty() && !new.is_empty() =>
        {
            *old = merge_items(set, keys, element, old, new)?;
            Ok(())
        }
        (Shape::Struct(_) | Shape::Map(_) | Shape::Any, Value::Object(old), Value::Object(new)) if !new.is_empty() => {
            merge_members(set, shape, old, new)
        }
        _ => {
            *live = config.clone();
            Ok(())
        }
    }
}

fn merge_members(
    set: &TypeSet,
    container: Shape<'_>,
    live: &mut Map<String, Value>,
    config: &Map<String, Value>,
) -> Result<(), BadItem> {
    for (name, value) in config {
        match live.get_mut(name) {
            Some(old) => merge_as(set, shape(set, member_type(container, name)), old, value)?,
            None => drop(live.insert(name.clone(), value.clone())),
        }
    }
    Ok(())
}

fn member_type(container: Shape<'_>, name: &str) -> Ty {
    match container {
        Shape::Struct(shape) => shape.prop(name).map(|(_, prop)| prop.ty),
        Shape::Map(ty) => ty,
        _ => None,
    }
}

/// Items of both lists: those of the configuration in its order, the others where they stood between them.
fn merge_items(
    set: &TypeSet,
    keys: &[Box<str>],
    element: Ty,
    live: &[Value],
    config: &[Value],
) -> Result<Vec<Value>, BadItem> {
    let place = |item| item_element(set, View::Sent, keys, element, item);
    let old: Vec<Element<'_>> = live.iter().map(place).collect::<Result<_, _>>()?;
    let new: Vec<Element<'_>> = config.iter().map(place).collect::<Result<_, _>>()?;
    // Where each item stands; None for one that is there several times.
    let mut in_old: BTreeMap<&Element<'_>, Option<usize>> = BTreeMap::new();
    for (at, place) in old.iter().enumerate() {
        in_old.entry(place).and_modify(|only| *only = None).or_insert(Some(at));
    }
    let mut in_new: BTreeMap<&Element<'_>, usize> = BTreeMap::new();
    for (at, place) in new.iter().enumerate() {
        if in_new.insert(place, at).is_some() {
            return Err(BadItem(format!("duplicate entries for key {place}")));
        }
    }
    let item_shape = shape(set, element);
    let take_new = |at: usize| {
        // An item that is there several times gives way to the one of the configuration.
        let only = in_old.get(&new[at]).copied().flatten();
        let mut merged = only.map_or(Value::Null, |at| live[at].clone());
        merge_as(set, item_shape, &mut merged, &config[at])?;
        Ok(merged)
    };
    let mut out = Vec::with_capacity(live.len().max(config.len()));
    // Items of both lists in the configuration's order: the first that is still to come is where the old list waits.
    let mut shared = new.iter().filter(|p| in_old.contains_key(p)).peekable();
    let (mut l, mut r) = (0, 0);
    while l < old.len() || r < new.len() {
        if l < old.len() && r < new.len() {
            if old[l] == new[r] {
                out.push(take_new(r)?);
                (l, r) = (l + 1, r + 1);
                shared.next();
                continue;
            }
            if in_new.contains_key(&old[l]) && shared.peek().is_some_and(|next| **next != old[l]) {
                l += 1;
                continue;
            }
        }
        if l < old.len() {
            match in_new.get(&old[l]) {
                None => {
                    out.push(live[l].clone());
                    l += 1;
                    continue;
                }
                Some(at) if *at < r => l += 1,
                Some(_) => {}
            }
        }
        if r < new.len() {
            out.push(take_new(r)?);
            if shared.peek().is_some_and(|next| **next == new[r]) {
                shared.next();
            }
            r += 1;
        }
    }
    Ok(out)
}

/// Removes the members of a set, and containers that get empty by it.
pub fn remove(set: &TypeSet, id: StructId, object: &mut Value, gone: &Set<'_>) {
    remove_as(set, Shape::Struct(set.get(id)), object, gone);
}

fn remove_as(set: &TypeSet, container: Shape<'_>, value: &mut Value, gone: &Set<'_>) {
    match (container, &mut *value) {
        (Shape::Items { keys, element }, Value::Array(list)) if !list.is_empty() => {
            list.retain_mut(|item| {
                let Ok(place) = item_element(set, View::Sent, keys, element, item) else { return true };
                let Some(node) = gone.get(&place) else { return true };
                let (member, children) = (node.member, &node.children);
                if !member && !children.is_empty() {
                    remove_as(set, shape(set, element), item, children);
                }
                !member
            });
            if list.is_empty() {
                *value = Value::Null;
            }
        }
        (Shape::Struct(_) | Shape::Map(_) | Shape::Any, Value::Object(map)) if !map.is_empty() => {
            map.retain(|name, member| {
                let Some(node) = gone.get(&Element::name(name)) else { return true };
                if node.member {
                    return false;
                }
                remove_as(set, shape(set, member_type(container, name)), member, &node.children);
                !member.is_null()
            });
            if map.is_empty() {
                *value = Value::Null;
            }
        }
        // Without a schema, and in what is owned as a whole, there is nothing to take out.
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod() -> (&'static TypeSet, StructId) {
        let set = TypeSet::built_in();
        (set, set.kind("", "v1", "Pod").expect("built in"))
    }

    fn order(live: &[&str], config: &[&str]) -> Vec<String> {
        let (set, id) = pod();
        let list = |names: &[&str]| -> Value {
            let items: Vec<Value> = names.iter().map(|n| json!({"name": n})).collect();
            json!({"spec": {"containers": items}})
        };
        let mut merged = list(live);
        merge(set, id, &mut merged, &list(config)).expect("items have names");
        let items = merged["spec"]["containers"].as_array().cloned().unwrap_or_default();
        items.iter().filter_map(|i| i["name"].as_str().map(ToOwned::to_owned)).collect()
    }

    #[test]
    fn items_come_in_the_order_of_the_configuration_with_the_others_between() {
        assert_eq!(order(&["a", "b", "c"], &["b"]), ["a", "b", "c"]);
        assert_eq!(order(&["a", "b", "c"], &["c", "a"]), ["b", "c", "a"]);
        assert_eq!(order(&["a", "b"], &["x", "a"]), ["x", "a", "b"]);
        assert_eq!(order(&["a", "b"], &["b", "x"]), ["a", "b", "x"]);
        assert_eq!(order(&["a"], &["x"]), ["a", "x"]);
        assert_eq!(order(&[], &["x"]), ["x"]);
        assert_eq!(order(&["x"], &[]), ["x"]);
    }

    #[test]
    fn maps_and_items_merge_and_atomic_values_are_replaced() {
        let (set, id) = pod();
        let mut live = json!({"metadata": {"labels": {"a": "1", "b": "2"}},
            "spec": {"nodeSelector": {"x": "1"}, "containers": [{"name": "a", "image": "i", "args": ["1"]}]}});
        let config = json!({"metadata": {"labels": {"a": "9"}},
            "spec": {"nodeSelector": {"y": "2"}, "containers": [{"name": "a", "args": ["2", "3"]}]}});
        merge(set, id, &mut live, &config).expect("items have names");
        assert_eq!(
            live,
            json!({"metadata": {"labels": {"a": "9", "b": "2"}},
            "spec": {"nodeSelector": {"y": "2"}, "containers": [{"name": "a", "image": "i", "args": ["2", "3"]}]}})
        );
    }

    #[test]
    fn null_clears_a_leaf_and_leaves_a_map_alone() {
        let (set, id) = pod();
        let mut live = json!({"metadata": {"labels": {"a": "1"}}, "spec": {"hostname": "h"}});
        merge(set, id, &mut live, &json!({"metadata": {"labels": null}, "spec": {"hostname": null}}))
            .expect("no lists");
        assert_eq!(live, json!({"metadata": {"labels": {"a": "1"}}, "spec": {"hostname": null}}));
    }

    #[test]
    fn removed_paths_take_containers_along_that_get_empty() {
        let (set, id) = pod();
        let mut live = json!({"metadata": {"labels": {"a": "1"}, "finalizers": ["x/a", "x/b"]},
            "spec": {"containers": [{"name": "a", "image": "i"}, {"name": "b"}]}});
        let gone = json!({"f:metadata": {"f:labels": {"f:a": {}}, "f:finalizers": {"v:\"x/a\"": {}}},
            "f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {"f:image": {}}, "k:{\"name\":\"b\"}": {}}}});
        remove(set, id, &mut live, &Set::parse(&gone).expect("a set"));
        assert_eq!(live, json!({"metadata": {"finalizers": ["x/b"]}, "spec": {"containers": [{"name": "a"}]}}));
    }
}
