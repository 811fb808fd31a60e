//! The paths that an object mentions.

use std::collections::BTreeMap;

use proto::schema::{StructId, TypeSet};
use serde_json::{Map, Value};

use super::element::Element;
use super::set::Set;
use super::view::{BadItem, Shape, Ty, View, item_element, shape};

/// Every leaf and list item of an object.
///
/// # Errors
/// A list item without its keys.
pub fn fields<'a>(set: &'a TypeSet, id: StructId, object: &'a Value) -> Result<Set<'a>, BadItem> {
    let mut out = Set::new();
    if let Value::Object(map) = object {
        members(set, Shape::Struct(set.get(id)), map, &mut out)?;
    }
    Ok(out)
}

/// Adds what is below a value to `out`; says whether the value's own path belongs to the set.
fn value<'a>(set: &'a TypeSet, ty: Ty, value: &'a Value, out: &mut Set<'a>) -> Result<bool, BadItem> {
    match (shape(set, ty), value) {
        (Shape::Leaf, _) => Ok(true),
        (Shape::Items { keys, element }, Value::Array(list)) => {
            items(set, keys, element, list, out)?;
            Ok(false)
        }
        (container @ (Shape::Struct(_) | Shape::Map(_) | Shape::Any), Value::Object(map)) => {
            members(set, container, map, out)?;
            Ok(false)
        }
        (Shape::Any, _) => Ok(true),
        _ => Ok(false),
    }
}

fn members<'a>(
    set: &'a TypeSet,
    container: Shape<'a>,
    map: &'a Map<String, Value>,
    out: &mut Set<'a>,
) -> Result<(), BadItem> {
    for (name, member) in map {
        let (ty, declared) = match container {
            Shape::Struct(shape) => match shape.prop(name) {
                Some((_, prop)) => (Some(prop.ty), true),
                None => (None, false),
            },
            Shape::Map(ty) => (ty, false),
            _ => (None, false),
        };
        let mut below = Set::new();
        let whole = value(set, ty, member, &mut below)?;
        // Nothing in a field is something to own, and so is a key of a map with all that is in it.
        let empty = member.is_null() || member.as_object().is_some_and(Map::is_empty);
        out.push(Element::name(name), whole || empty || !declared, below);
    }
    Ok(())
}

fn items<'a>(
    set: &'a TypeSet,
    keys: &'a [Box<str>],
    element: Ty,
    list: &'a [Value],
    out: &mut Set<'a>,
) -> Result<(), BadItem> {
    let mut places: BTreeMap<Element<'a>, Option<&'a Value>> = BTreeMap::new();
    for item in list {
        // An item that is there several times is owned as a whole.
        let place = item_element(set, View::Sent, keys, element, item)?;
        places.entry(place).and_modify(|only| *only = None).or_insert(Some(item));
    }
    for (place, only) in places {
        let mut below = Set::new();
        if let Some(item) = only {
            value(set, element, item, &mut below)?;
        }
        out.push(place, true, below);
    }
    Ok(())
}

/// Adds the named fields on the way to every member: a set with `a.b.c` gets `a` and `a.b` where the schema declares
/// them, but no map keys and no list items.
#[must_use]
pub fn with_parents<'a>(set: &TypeSet, id: StructId, fields: &Set<'a>) -> Set<'a> {
    parents(set, Shape::Struct(set.get(id)), fields)
}

fn parents<'a>(set: &TypeSet, container: Shape<'_>, fields: &Set<'a>) -> Set<'a> {
    let mut out = Set::new();
    for node in fields.nodes() {
        let (ty, declared) = match (&node.element, container) {
            (Element::Name(name), Shape::Struct(shape)) => {
                let prop = shape.prop(name);
                (prop.map(|p| p.1.ty), prop.is_some())
            }
            (Element::Name(_), Shape::Map(ty)) | (Element::Keys(_), Shape::Items { element: ty, .. }) => (ty, false),
            _ => (None, false),
        };
        let children = parents(set, shape(set, ty), &node.children);
        out.push(node.element.clone(), node.member || declared && !node.children.is_empty(), children);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn paths(kind: (&str, &str, &str), object: &Value) -> Vec<String> {
        let set = TypeSet::built_in();
        let id = set.kind(kind.0, kind.1, kind.2).expect("built in");
        fields(set, id, object).expect("items with keys").paths()
    }

    #[test]
    fn leaves_items_and_empty_things_are_fields() {
        let object = json!({"metadata": {"labels": {"a": "b"}, "annotations": {}, "finalizers": []},
            "spec": {"containers": [{"name": "a", "args": ["x"], "resources": {}, "ports": [{"containerPort": 1}]}],
                "nodeSelector": {"a": "b"}, "volumes": null}});
        assert_eq!(
            paths(("", "v1", "Pod"), &object),
            [
                ".metadata.annotations",
                ".metadata.labels.a",
                ".spec.nodeSelector",
                ".spec.volumes",
                r#".spec.containers[name="a"]"#,
                r#".spec.containers[name="a"].args"#,
                r#".spec.containers[name="a"].name"#,
                r#".spec.containers[name="a"].resources"#,
                r#".spec.containers[name="a"].ports[containerPort=1,protocol="TCP"]"#,
                r#".spec.containers[name="a"].ports[containerPort=1,protocol="TCP"].containerPort"#,
            ]
        );
    }

    #[test]
    fn parents_are_added_where_the_schema_names_them() {
        let set = TypeSet::built_in();
        let id = set.kind("", "v1", "Pod").expect("built in");
        let tree = json!({"f:metadata": {"f:labels": {"f:a": {}}}, "f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {
            "f:env": {"k:{\"name\":\"E\"}": {"f:value": {}}}}}}});
        let own = Set::parse(&tree).expect("a set");
        let all = with_parents(set, id, &own);
        assert_eq!(
            all.to_fields(),
            json!({
            "f:metadata": {".": {}, "f:labels": {".": {}, "f:a": {}}},
            "f:spec": {".": {}, "f:containers": {".": {}, "k:{\"name\":\"a\"}": {
                "f:env": {".": {}, "k:{\"name\":\"E\"}": {"f:value": {}}}}}}})
        );
    }
}
