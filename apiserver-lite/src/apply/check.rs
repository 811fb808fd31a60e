//! Checks a configuration that a client applies against the schema, with the texts of structured-merge-diff.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use proto::schema::{Struct, Type, TypeId, TypeSet};
use serde_json::{Map, Value};

use super::element::Element;
use super::view::{Shape, Ty, View, item_element, shape};
use crate::go_value;

/// Everything that is wrong with a configuration, worded as upstream; None when nothing is.
pub fn complaints(set: &TypeSet, root: &Struct, config: &Map<String, Value>) -> Option<String> {
    let mut check = Check { set, path: Vec::new(), found: Vec::new() };
    check.members(Shape::Struct(root), config);
    match &check.found[..] {
        [] => None,
        [only] => Some(only.clone()),
        many => {
            let mut text = String::from("errors:");
            many.iter().for_each(|m| text.extend(["\n  ", m]));
            Some(text)
        }
    }
}

struct Check<'a> {
    set: &'a TypeSet,
    path: Vec<String>,
    found: Vec<String>,
}

impl<'a> Check<'a> {
    fn complain(&mut self, what: impl std::fmt::Display) {
        let path = self.path.concat();
        self.found.push(if path.is_empty() { what.to_string() } else { format!("{path}: {what}") });
    }

    fn at(&mut self, element: &Element<'_>, check: impl FnOnce(&mut Self)) {
        self.path.push(element.to_string());
        check(self);
        self.path.pop();
    }

    fn value(&mut self, ty: Ty, value: &'a Value) {
        if value.is_null() {
            return;
        }
        match shape(self.set, ty) {
            Shape::Any => {}
            container @ (Shape::Struct(_) | Shape::Map(_)) => match value {
                Value::Object(map) => self.members(container, map),
                other => self.complain(format_args!("expected map, got {}", wrapped(other))),
            },
            Shape::Items { keys, element } => match value {
                Value::Array(list) => self.items(keys, element, list),
                other => self.complain(format_args!("expected list, got {}", wrapped(other))),
            },
            Shape::Leaf => {
                if let Some(ty) = ty {
                    self.leaf(ty, value);
                }
            }
        }
    }

    /// A value that is owned as a whole is checked all the same.
    fn leaf(&mut self, ty: TypeId, value: &'a Value) {
        let set = self.set;
        match (set.ty(ty), value) {
            (Type::String | Type::Bytes | Type::Duration, Value::String(_))
            | (Type::Bool, Value::Bool(_))
            | (Type::Int32 | Type::Int64 | Type::Double, Value::Number(_)) => {}
            (Type::String | Type::Bytes | Type::Duration, other) => self
                .complain(format_args!("expected string, got &value.valueUnstructured{{Value:{}}}", go_syntax(other))),
            (Type::Bool, other) => self.complain(format_args!("expected boolean, got {}", wrapped(other))),
            (Type::Int32 | Type::Int64 | Type::Double, other) => {
                self.complain(format_args!("expected numeric (int or float), got {}", go_value::type_name(other)));
            }
            (Type::Struct(id) | Type::AtomicStruct(id), Value::Object(map)) => {
                self.members(Shape::Struct(set.get(*id)), map);
            }
            (Type::Struct(_) | Type::AtomicStruct(_) | Type::Map(_), other) if !other.is_object() => {
                self.complain(format_args!("expected map, got {}", wrapped(other)));
            }
            (Type::Map(map), Value::Object(members)) => self.members(Shape::Map(Some(map.value)), members),
            (Type::List(list), Value::Array(items)) => {
                for (at, item) in items.iter().enumerate() {
                    let index = Element::Index(i64::try_from(at).unwrap_or(i64::MAX));
                    self.at(&index, |check| check.value(Some(list.element), item));
                }
            }
            (Type::List(_), other) => self.complain(format_args!("expected list, got {}", wrapped(other))),
            (_, Value::Object(_) | Value::Array(_)) => {
                self.complain(format_args!("expected any scalar, got {}", wrapped(value)));
            }
            _ => {}
        }
    }

    fn members(&mut self, container: Shape<'a>, map: &'a Map<String, Value>) {
        for (name, value) in map {
            let ty = match container {
                Shape::Map(ty) => ty,
                Shape::Struct(shape) => match shape.prop(name) {
                    Some((_, prop)) => Some(prop.ty),
                    None if shape.open => None,
                    // Upstream looks no further in this object.
                    None => {
                        return self.at(&Element::name(name), |check| check.complain("field not declared in schema"));
                    }
                },
                _ => None,
            };
            self.at(&Element::name(name), |check| check.value(ty, value));
        }
    }

    fn items(&mut self, keys: &'a [Box<str>], element: Ty, list: &'a [Value]) {
        let mut seen = BTreeSet::new();
        for (at, item) in list.iter().enumerate() {
            let place = match item_element(self.set, View::Sent, keys, element, item) {
                Ok(place) => place,
                Err(error) => return self.complain(format_args!("element {at}: {error}")),
            };
            if seen.contains(&place) {
                self.complain(format_args!("duplicate entries for key {place}"));
            }
            self.at(&place, |check| check.value(element, item));
            seen.insert(place);
        }
    }
}

/// A value as Go prints a pointer to the struct that holds it.
fn wrapped(value: &Value) -> String {
    format!("&{{{}}}", go_plain(value))
}

/// Go's `%v`.
fn go_plain(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".into(),
        Value::String(text) => text.clone(),
        Value::Array(list) => format!("[{}]", list.iter().map(go_plain).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let members: Vec<String> = map.iter().map(|(k, v)| format!("{k}:{}", go_plain(v))).collect();
            format!("map[{}]", members.join(" "))
        }
        other => other.to_string(),
    }
}

/// Go's `%#v`.
fn go_syntax(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".into(),
        Value::String(text) => crate::status::quote(text),
        Value::Array(list) => {
            format!("[]interface {{}}{{{}}}", list.iter().map(go_syntax).collect::<Vec<_>>().join(", "))
        }
        Value::Object(map) => {
            let mut text = String::from("map[string]interface {}{");
            for (at, (key, value)) in map.iter().enumerate() {
                let comma = if at > 0 { ", " } else { "" };
                let _ = write!(text, "{comma}{}:{}", crate::status::quote(key), go_syntax(value));
            }
            text.push('}');
            text
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn complaint(config: Value) -> String {
        let set = TypeSet::built_in();
        let root = set.get(set.kind("apps", "v1", "Deployment").expect("built in"));
        complaints(set, root, config.as_object().expect("an object")).unwrap_or_default()
    }

    #[test]
    fn each_kind_of_mistake_is_named_with_its_path() {
        let pod = |containers: Value| json!({"spec": {"template": {"spec": {"containers": containers}}}});
        for (config, text) in [
            (json!({"spec": {"replicas": "2"}}), ".spec.replicas: expected numeric (int or float), got string"),
            (json!({"spec": {"paused": 1}}), ".spec.paused: expected boolean, got &{1}"),
            (json!({"spec": 5}), ".spec: expected map, got &{5}"),
            (json!({"spec": {"foo": 1}}), ".spec.foo: field not declared in schema"),
            (pod(json!({})), ".spec.template.spec.containers: expected list, got &{map[]}"),
            (
                pod(json!([{"name": "a"}, {"name": "a"}])),
                ".spec.template.spec.containers: duplicate entries for key [name=\"a\"]",
            ),
            (
                pod(json!([null])),
                ".spec.template.spec.containers: element 0: associative list with keys may not have a null element",
            ),
            (
                pod(json!([{"name": "a", "image": {"a": [1]}}])),
                ".spec.template.spec.containers[name=\"a\"].image: expected string, got \
                 &value.valueUnstructured{Value:map[string]interface {}{\"a\":[]interface {}{1}}}",
            ),
            (
                pod(json!([{"name": "a", "args": [1]}])),
                ".spec.template.spec.containers[name=\"a\"].args[0]: expected string, got &value.valueUnstructured{Value:1}",
            ),
        ] {
            assert_eq!(complaint(config), text);
        }
        assert_eq!(
            complaint(json!({"metadata": {"name": 1, "namespace": true}})),
            "errors:\n  .metadata.name: expected string, got &value.valueUnstructured{Value:1}\n  \
             .metadata.namespace: expected string, got &value.valueUnstructured{Value:true}"
        );
    }

    #[test]
    fn what_the_schema_allows_passes() {
        let container = json!({"name": "a", "resources": {"limits": {"cpu": 1}}, "ports": [{"containerPort": 80}]});
        assert_eq!(
            complaint(json!({"spec": {"strategy": {"rollingUpdate": {"maxSurge": 1}}, "replicas": null,
            "template": {"spec": {"containers": [container]}}}})),
            ""
        );
    }
}
