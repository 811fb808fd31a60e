//! The fields of a new object as the text of a `FieldsV1`, written while the object is walked through.
//!
//! What [`compare`](super::compare::compare) finds between an empty object and a new one, without a set of it: a new
//! object has one owner of everything, and nobody asks for a part of that.

use proto::json::write_string;
use proto::schema::{StructId, TypeSet};
use serde_json::{Map, Value};

use super::compare::same;
use super::element::Element;
use super::set::Set;
use super::view::{BadItem, Shape, Ty, View, item_element, map_members, property, shape, struct_members};

/// Writes the fields of an object but for the paths in `untracked`, and those at and below a path in `reset`.
///
/// # Errors
/// A list item without its keys.
pub fn fields(
    set: &TypeSet,
    id: StructId,
    object: &Value,
    untracked: &Set<'_>,
    reset: &Set<'_>,
) -> Result<Vec<u8>, BadItem> {
    let empty = Map::new();
    let mut writer = Writer { set, out: vec![b'{'] };
    let but = But { untracked: Some(untracked), reset: Some(reset) };
    writer.members(Shape::Struct(set.get(id)), Some(&empty), object.as_object(), but)?;
    writer.close();
    Ok(writer.out)
}

/// What is left out at and below a path.
#[derive(Clone, Copy)]
struct But<'b> {
    untracked: Option<&'b Set<'b>>,
    reset: Option<&'b Set<'b>>,
}

struct Writer<'a> {
    set: &'a TypeSet,
    out: Vec<u8>,
}

impl<'a> Writer<'a> {
    /// Ends a level: its last comma is the place for the brace.
    fn close(&mut self) {
        match self.out.last_mut() {
            Some(last) if *last == b',' => *last = b'}',
            _ => self.out.push(b'}'),
        }
    }

    fn members(
        &mut self,
        container: Shape<'a>,
        old: Option<&'a Map<String, Value>>,
        new: Option<&'a Map<String, Value>>,
        but: But<'_>,
    ) -> Result<(), BadItem> {
        match container {
            Shape::Struct(shape) => struct_members(self.set, View::Stored, shape, old, new, |m| {
                self.child(&Element::name(m.name), m.ty, m.left, m.right, but)
            }),
            Shape::Map(ty) => map_members(old, new, |name, l, r| self.child(&Element::name(name), ty, l, r, but)),
            _ => map_members(old, new, |name, l, r| self.child(&Element::name(name), None, l, r, but)),
        }
    }

    /// Writes one element, what is below it, and a comma; nothing where there is nothing to own. `old` is what an object
    /// is taken to have that does not say so.
    fn child(
        &mut self,
        element: &Element<'a>,
        ty: Ty,
        old: Option<&'a Value>,
        new: Option<&'a Value>,
        but: But<'_>,
    ) -> Result<(), BadItem> {
        let Some(value) = new.filter(|new| old != Some(*new)) else { return Ok(()) };
        let (untracked, reset) = (but.untracked.and_then(|s| s.get(element)), but.reset.and_then(|s| s.get(element)));
        let below = But { untracked: untracked.map(|n| &n.children), reset: reset.map(|n| &n.children) };
        let start = self.out.len();
        match element {
            Element::Name(name) => {
                self.out.extend_from_slice(b"\"f");
                let quote = self.out.len();
                write_string(name, &mut self.out);
                // The quote that a text begins with stands before the kind already.
                self.out[quote] = b':';
            }
            other => write_string(&other.text(), &mut self.out),
        }
        self.out.extend_from_slice(b":{");
        let container = shape(self.set, ty);
        let leaf = self.is_leaf(container, old, value);
        // A path that was not there before is owned itself, beside what is below it.
        let changed = if leaf { old.is_none_or(|old| !same(self.set, ty, old, value)) } else { old.is_none() };
        let member = changed && untracked.is_none_or(|node| !node.member);
        let empty = self.out.len();
        if !leaf {
            if member {
                self.out.extend_from_slice(b"\".\":{},");
            }
            let inside = self.out.len();
            match container {
                Shape::Items { keys, element } => self.items(keys, element, items(Some(value)), below)?,
                container => self.members(container, old.and_then(Value::as_object), value.as_object(), below)?,
            }
            if self.out.len() == inside {
                self.out.truncate(empty);
            }
        }
        if reset.is_some_and(|node| node.member) || !member && self.out.len() == empty {
            self.out.truncate(start);
            return Ok(());
        }
        self.close();
        self.out.push(b',');
        Ok(())
    }

    /// Whether a value is compared as a whole: by its type, or because neither side has anything inside.
    fn is_leaf(&self, container: Shape<'a>, old: Option<&Value>, new: &Value) -> bool {
        let has = |map: Option<&Map<String, Value>>| {
            let Some(map) = map else { return false };
            match container {
                Shape::Struct(shape) if !shape.open => {
                    shape.props.iter().any(|p| property(self.set, View::Stored, p, map).is_some())
                }
                _ => !map.is_empty(),
            }
        };
        match container {
            Shape::Leaf => true,
            Shape::Items { .. } => items(old).is_empty() && items(Some(new)).is_empty(),
            _ => !has(old.and_then(Value::as_object)) && !has(new.as_object()),
        }
    }

    fn items(&mut self, keys: &'a [Box<str>], element: Ty, new: &'a [Value], but: But<'_>) -> Result<(), BadItem> {
        let elements = new.iter().map(|item| Ok((item_element(self.set, View::Stored, keys, element, item)?, item)));
        let mut found = elements.collect::<Result<Vec<_>, BadItem>>()?;
        found.sort_by(|a, b| a.0.cmp(&b.0));
        for same in found.chunk_by(|a, b| a.0 == b.0) {
            match same {
                [(place, item)] => self.child(place, element, None, Some(item), but)?,
                // An item that is there several times is owned as a whole.
                [(place, _), ..] => {
                    write_string(&place.text(), &mut self.out);
                    self.out.extend_from_slice(b":{},");
                }
                [] => {}
            }
        }
        Ok(())
    }
}

fn items(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::compare::compare;
    use super::super::reset::Reset;
    use super::super::track::UNTRACKED;
    use super::*;

    /// As owners are told where sets are at hand.
    fn by_sets(set: &TypeSet, id: StructId, object: &Value, reset: &Set<'static>) -> Result<String, BadItem> {
        let empty = json!({});
        let changes = compare(set, id, &empty, object)?;
        let reset = Reset::Without(reset.clone());
        let mut out = Vec::new();
        reset.filter(changes.changed).minus(&UNTRACKED).write(&mut out);
        Ok(String::from_utf8(out).expect("JSON is text"))
    }

    #[test]
    fn fields_are_those_that_a_comparison_with_nothing_finds() {
        let set = TypeSet::built_in();
        let (none, status) = (Set::new(), Set::of_names(&[&["status"]]));
        let container = |name: &str, ports: Value| {
            json!({"name": name, "image": "i", "resources": {}, "env": [{"name": "A", "value": ""}, {"name": "B", "valueFrom":
                {"fieldRef": {"fieldPath": "a.b"}}}], "ports": ports, "command": ["a", "<b>"], "securityContext": {}})
        };
        let metadata = json!({"name": "a", "namespace": "b", "uid": "c", "labels": {"x<": "y", "a": ""}, "annotations": {},
            "finalizers": ["z", "a"], "creationTimestamp": null, "ownerReferences": [{"uid": "u", "name": "n"}]});
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": {
            "containers": [container("z", json!([{"containerPort": 2}, {"containerPort": 1, "protocol": "UDP"}])),
                container("b", json!([{"containerPort": 1}, {"containerPort": 1, "name": "again"}])), {"name": "c", "ports": []}],
            "volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "projected": {"sources": [{"secret": {}}]}}],
            "nodeSelector": {"a": "b"}, "tolerations": [{"key": "k"}], "hostNetwork": false, "securityContext": {},
            "affinity": {"nodeAffinity": {}}, "priority": 0, "overhead": null},
            "status": {"phase": "Pending", "conditions": [{"type": "Ready"}], "podIPs": [{"ip": "1.2.3.4"}]}});
        let deployment = json!({"metadata": {"name": "d"}, "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}},
            "strategy": {}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}}}, "status": {}});
        let service = json!({"metadata": metadata, "spec": {"ports": [{"port": 80}, {"port": 80, "protocol": "UDP"}],
            "clusterIPs": ["None"], "selector": {"a": "b"}}, "status": {"loadBalancer": {"ingress": [{"ip": "1.1.1.1"}]}}});
        let raw = json!({"metadata": {"name": "r"}, "revision": 1, "data": {"a": {"b": [1, {"c": null}], "d": {}}, "e": null}});
        for (kind, object) in [
            (("", "v1", "Pod"), &pod),
            (("", "v1", "Pod"), &json!({})),
            (("", "v1", "Pod"), &json!({"metadata": {"name": "a"}, "spec": {}, "status": null})),
            (("", "v1", "Pod"), &json!({"spec": {"containers": "wrong", "volumes": {"a": 1}}})),
            (("apps", "v1", "Deployment"), &deployment),
            (("", "v1", "Service"), &service),
            (("apps", "v1", "ControllerRevision"), &raw),
            (("", "v1", "ConfigMap"), &json!({"data": {"k": "v", "": ""}, "immutable": false})),
            (
                ("", "v1", "Node"),
                &json!({"spec": {"taints": []}, "status": {"addresses": [{"type": "a"}, {"type": "a"}]}}),
            ),
        ] {
            let id = set.kind(kind.0, kind.1, kind.2).expect("built in");
            for reset in [&none, &status] {
                let told =
                    fields(set, id, object, &UNTRACKED, reset).map(|text| String::from_utf8_lossy(&text).into_owned());
                assert_eq!(told, by_sets(set, id, object, reset), "{object}");
            }
        }
        let nameless = json!({"spec": {"containers": [null]}});
        let id = set.kind("", "v1", "Pod").expect("built in");
        assert!(fields(set, id, &nameless, &UNTRACKED, &none).is_err());
    }
}
