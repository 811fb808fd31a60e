//! What changed between two objects, as sets of paths.

use std::borrow::Cow;

use proto::schema::{StructId, Type, TypeSet};
use serde_json::{Map, Value};

use super::element::Element;
use super::set::Set;
use super::view::{BadItem, Shape, Ty, View, item_element, map_members, shape, struct_members};

/// Paths that differ between two objects.
#[derive(Debug, Default, PartialEq)]
pub struct Changes<'a> {
    /// Added, or there before with another value.
    pub changed: Set<'a>,
    pub removed: Set<'a>,
}

impl<'a> Changes<'a> {
    /// Both sets, each without what `filter` leaves out.
    #[must_use]
    pub fn filter(self, filter: impl Fn(Set<'a>) -> Set<'a>) -> Self {
        Changes { changed: filter(self.changed), removed: filter(self.removed) }
    }

    /// Paths in either set.
    pub fn touched(&self) -> Cow<'_, Set<'a>> {
        match (self.changed.is_empty(), self.removed.is_empty()) {
            (_, true) => Cow::Borrowed(&self.changed),
            (true, false) => Cow::Borrowed(&self.removed),
            (false, false) => Cow::Owned(self.changed.union(&self.removed)),
        }
    }
}

/// What became of a path itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Same,
    Changed,
    Removed,
}

/// Compares two objects of a struct type; None stands for an object that is not there.
///
/// # Errors
/// A list item without its keys.
pub fn compare<'a>(set: &'a TypeSet, id: StructId, old: &'a Value, new: &'a Value) -> Result<Changes<'a>, BadItem> {
    let mut changes = Changes::default();
    let root = set.get(id);
    Comparison { set }.members(Shape::Struct(root), old.as_object(), new.as_object(), &mut changes)?;
    Ok(changes)
}

/// Whether two values of a type are equal as the server writes them.
pub fn same(set: &TypeSet, ty: Ty, a: &Value, b: &Value) -> bool {
    if a == b {
        return true;
    }
    match (ty.map(|ty| set.ty(ty)), a, b) {
        (Some(Type::Struct(id) | Type::AtomicStruct(id)), Value::Object(a), Value::Object(b)) => {
            same_struct(set, *id, a, b)
        }
        (Some(Type::Map(map)), Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.0 == b.0 && same(set, Some(map.value), a.1, b.1))
        }
        (Some(Type::List(list)), Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(set, Some(list.element), a, b))
        }
        (_, Value::Number(_), Value::Number(_)) => proto::json::compare_values(a, b).is_eq(),
        _ => false,
    }
}

/// Whether two structs are equal as the server writes them.
pub fn same_struct(set: &TypeSet, id: StructId, a: &Map<String, Value>, b: &Map<String, Value>) -> bool {
    same_struct_but(set, id, &[], a, b)
}

/// The same, whatever the named members are.
pub fn same_struct_but(
    set: &TypeSet,
    id: StructId,
    but: &[&str],
    a: &Map<String, Value>,
    b: &Map<String, Value>,
) -> bool {
    let mut equal = true;
    let all = struct_members(set, View::Stored, set.get(id), Some(a), Some(b), |member| {
        equal = equal
            && match (member.left, member.right) {
                _ if but.contains(&member.name) => true,
                (Some(left), Some(right)) => same(set, member.ty, left, right),
                _ => false,
            };
        Ok(())
    });
    all.is_ok() && equal
}

struct Comparison<'a> {
    set: &'a TypeSet,
}

impl<'a> Comparison<'a> {
    /// Compares two values; what differs below them goes into `below`.
    fn value(
        &self,
        ty: Ty,
        old: Option<&'a Value>,
        new: Option<&'a Value>,
        below: &mut Changes<'a>,
    ) -> Result<Fate, BadItem> {
        if let (Some(old), Some(new)) = (old, new)
            && old == new
        {
            return Ok(Fate::Same);
        }
        let container = match shape(self.set, ty) {
            Shape::Items { keys, element } => {
                let (old_items, new_items) = (items(old), items(new));
                if old_items.is_empty() && new_items.is_empty() {
                    return Ok(self.leaf(ty, old, new));
                }
                self.items(keys, element, old_items, new_items, below)?;
                return Ok(whole(old, new));
            }
            Shape::Leaf => return Ok(self.leaf(ty, old, new)),
            container => container,
        };
        let (old_map, new_map) = (old.and_then(Value::as_object), new.and_then(Value::as_object));
        if !self.has_members(container, old_map) && !self.has_members(container, new_map) {
            return Ok(self.leaf(ty, old, new));
        }
        self.members(container, old_map, new_map, below)?;
        // Without a schema a map may become a leaf or the other way round: then the path itself changed as well.
        if matches!(container, Shape::Any) && is_other_shape(old, new) {
            return Ok(Fate::Changed);
        }
        Ok(whole(old, new))
    }

    fn has_members(&self, container: Shape<'a>, map: Option<&'a Map<String, Value>>) -> bool {
        let Some(map) = map else { return false };
        match container {
            Shape::Struct(shape) if !shape.open => {
                shape.props.iter().any(|p| super::view::property(self.set, View::Stored, p, map).is_some())
            }
            _ => !map.is_empty(),
        }
    }

    fn leaf(&self, ty: Ty, old: Option<&Value>, new: Option<&Value>) -> Fate {
        match (old, new) {
            (Some(old), Some(new)) if same(self.set, ty, old, new) => Fate::Same,
            (Some(_), None) => Fate::Removed,
            (None, None) => Fate::Same,
            _ => Fate::Changed,
        }
    }

    fn members(
        &self,
        container: Shape<'a>,
        old: Option<&'a Map<String, Value>>,
        new: Option<&'a Map<String, Value>>,
        out: &mut Changes<'a>,
    ) -> Result<(), BadItem> {
        match container {
            Shape::Struct(shape) => struct_members(self.set, View::Stored, shape, old, new, |m| {
                self.child(Element::name(m.name), m.ty, m.left, m.right, out)
            }),
            Shape::Map(ty) => map_members(old, new, |name, l, r| self.child(Element::name(name), ty, l, r, out)),
            _ => map_members(old, new, |name, l, r| self.child(Element::name(name), None, l, r, out)),
        }
    }

    fn child(
        &self,
        element: Element<'a>,
        ty: Ty,
        old: Option<&'a Value>,
        new: Option<&'a Value>,
        out: &mut Changes<'a>,
    ) -> Result<(), BadItem> {
        let mut below = Changes::default();
        let fate = self.value(ty, old, new, &mut below)?;
        if fate == Fate::Removed || !below.removed.is_empty() {
            out.removed.push(element.clone(), fate == Fate::Removed, below.removed);
        }
        out.changed.push(element, fate == Fate::Changed, below.changed);
        Ok(())
    }

    fn items(
        &self,
        keys: &'a [Box<str>],
        element: Ty,
        old: &'a [Value],
        new: &'a [Value],
        out: &mut Changes<'a>,
    ) -> Result<(), BadItem> {
        let index = |items: &'a [Value]| {
            let elements = items.iter().map(|i| Ok((item_element(self.set, View::Stored, keys, element, i)?, i)));
            let mut found = elements.collect::<Result<Vec<_>, BadItem>>()?;
            found.sort_by(|a, b| a.0.cmp(&b.0));
            Ok(found)
        };
        let (old, new) = (index(old)?, index(new)?);
        let (mut old, mut new) = (&old[..], &new[..]);
        while let Some((next, _)) = match (old.first(), new.first()) {
            (Some(a), Some(b)) => Some(if a.0 <= b.0 { a } else { b }),
            (a, b) => a.or(b),
        } {
            let next = next.clone();
            let mine = old.iter().take_while(|(e, _)| *e == next).count();
            let theirs = new.iter().take_while(|(e, _)| *e == next).count();
            let (was, is) = (&old[..mine], &new[..theirs]);
            (old, new) = (&old[mine..], &new[theirs..]);
            match (was, is) {
                // An item that is there several times is owned as a whole.
                ([_, _, ..], [_, _, ..]) => {
                    let equal =
                        was.len() == is.len() && was.iter().zip(is).all(|(a, b)| same(self.set, element, a.1, b.1));
                    out.changed.push(next, !equal, Set::new());
                }
                ([_, _, ..], _) => {
                    let mut alone = Changes::default();
                    if let [(_, now)] = is {
                        self.child(next.clone(), element, None, Some(*now), &mut alone)?;
                    }
                    out.changed.append(alone.changed);
                    out.removed.push(next, true, Set::new());
                }
                (_, [_, _, ..]) => {
                    let mut alone = Changes::default();
                    if let [(_, before)] = was {
                        self.child(next.clone(), element, Some(*before), None, &mut alone)?;
                    }
                    out.removed.append(alone.removed);
                    out.changed.push(next, true, Set::new());
                }
                _ => {
                    let (was, is) = (was.first().map(|i| i.1), is.first().map(|i| i.1));
                    self.child(next, element, was, is, out)?;
                }
            }
        }
        Ok(())
    }
}

/// The fate of a path whose members were compared.
fn whole(old: Option<&Value>, new: Option<&Value>) -> Fate {
    match (old, new) {
        (None, Some(_)) => Fate::Changed,
        (Some(_), None) => Fate::Removed,
        _ => Fate::Same,
    }
}

fn is_other_shape(old: Option<&Value>, new: Option<&Value>) -> bool {
    let (Some(old), Some(new)) = (old, new) else { return false };
    !old.is_null() && !new.is_null() && old.is_object() != new.is_object()
}

fn items(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn changes(kind: (&str, &str, &str), old: &Value, new: &Value) -> (Vec<String>, Vec<String>) {
        let set = TypeSet::built_in();
        let id = set.kind(kind.0, kind.1, kind.2).expect("a built-in kind");
        let changes = compare(set, id, old, new).expect("objects with keys");
        (changes.changed.paths(), changes.removed.paths())
    }

    const POD: (&str, &str, &str) = ("", "v1", "Pod");

    #[test]
    fn a_new_list_item_brings_its_fields_and_the_structs_that_are_always_there() {
        let new = json!({"spec": {"containers": [{"name": "a", "image": "b"}]}});
        let (changed, removed) = changes(POD, &json!({}), &new);
        assert_eq!(
            changed,
            [
                r#".spec.containers[name="a"]"#,
                r#".spec.containers[name="a"].image"#,
                r#".spec.containers[name="a"].name"#,
                r#".spec.containers[name="a"].resources"#,
            ]
        );
        assert!(removed.is_empty());
    }

    #[test]
    fn the_order_of_a_keyed_list_and_spelled_out_empty_structs_are_no_change() {
        let old = json!({"spec": {"containers": [{"name": "a", "resources": {}}, {"name": "b"}]}, "status": {}});
        let new = json!({"spec": {"containers": [{"name": "b"}, {"name": "a"}]}});
        assert_eq!(changes(POD, &old, &new), (vec![], vec![]));
    }

    #[test]
    fn structs_are_compared_as_they_are_written_and_but_for_what_is_named() {
        let set = TypeSet::built_in();
        let id = set.kind("", "v1", "Pod").expect("a built-in kind");
        let equal = |but: &[&str], a: &Value, b: &Value| {
            same_struct_but(set, id, but, a.as_object().expect("an object"), b.as_object().expect("an object"))
        };
        let pod =
            |container: Value, phase: &str| json!({"spec": {"containers": [container]}, "status": {"phase": phase}});
        let with = pod(json!({"name": "a", "resources": {}, "env": []}), "Pending");
        let without = pod(json!({"name": "a"}), "Pending");
        let other = pod(json!({"name": "a", "resources": {"limits": {"cpu": "1"}}}), "Pending");
        assert!(equal(&[], &with, &without) && equal(&[], &without, &with));
        assert!(!equal(&[], &with, &other) && !equal(&[], &other, &without));
        let running = pod(json!({"name": "a"}), "Running");
        assert!(!equal(&[], &with, &running) && equal(&["status"], &with, &running));
        assert!(equal(&["spec"], &with, &other) && equal(&["spec"], &with, &json!({"status": {"phase": "Pending"}})));
    }

    #[test]
    fn atomic_values_change_as_a_whole() {
        let old = json!({"spec": {"selector": {"a": "b"}}});
        let new = json!({"spec": {"selector": {"a": "b", "c": "d"}}});
        assert_eq!(changes(("", "v1", "Service"), &old, &new), (vec![".spec.selector".into()], vec![]));
        let gone = json!({"spec": {}});
        assert_eq!(changes(("", "v1", "Service"), &old, &gone), (vec![], vec![".spec.selector".into()]));
    }

    #[test]
    fn an_item_that_comes_twice_is_one_path() {
        let port = |name: &str| json!({"containerPort": 80, "protocol": "TCP", "name": name});
        let pod = |ports: Value| json!({"spec": {"containers": [{"name": "a", "ports": ports}]}});
        let key = r#".spec.containers[name="a"].ports[containerPort=80,protocol="TCP"]"#.to_owned();
        let (old, new) = (pod(json!([port("x")])), pod(json!([port("x"), port("y")])));
        let (changed, removed) = changes(POD, &old, &new);
        assert_eq!(changed, [&*key]);
        assert_eq!(
            removed,
            [key.clone(), format!("{key}.containerPort"), format!("{key}.name"), format!("{key}.protocol")]
        );
    }

    #[test]
    fn labels_are_owned_one_by_one() {
        let old = json!({"metadata": {"labels": {"a": "1", "b": "2"}}});
        let new = json!({"metadata": {"labels": {"a": "9", "c": "3"}}});
        let (changed, removed) = changes(POD, &old, &new);
        assert_eq!(changed, [".metadata.labels.a", ".metadata.labels.c"]);
        assert_eq!(removed, [".metadata.labels.b"]);
    }
}
