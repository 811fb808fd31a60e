//! What an object says without saying it: the defaults of every kind, set before anything else looks at it.
//!
//! Follows `pkg/apis/*/v1/defaults.go`, and what upstream's conversions add on the way to its own types. Rules work on
//! the tree in place; a null in a list of objects is an object that says nothing.

mod admission;
mod core;
mod others;
mod pod;
mod workloads;

use serde_json::{Map, Value, json};

use crate::resource::Resource;

pub use self::core::name_label;
pub use pod::{is_of_pods, pod_limits, pod_requests, qos_class};

type Object = Map<String, Value>;

/// Fills in the defaults of a kind.
pub fn apply(resource: &Resource, value: &mut Value) {
    if let Some(definition) = &resource.definition {
        return definition.default(resource, value);
    }
    if crate::crd::is_definition(resource) {
        return crate::crd::default_definition(value);
    }
    let Some(object) = value.as_object_mut() else { return };
    match &*resource.group {
        "" => core::apply(&resource.plural, object),
        "apps" | "batch" | "autoscaling" => workloads::apply(&resource.plural, object, resource.defaults),
        "admissionregistration.k8s.io" => admission::apply(&resource.plural, object),
        group => others::apply(group, &resource.plural, object),
    }
}

/// The same after a change of the status, where all but that and the metadata stays as it is at rest in `old`.
pub fn apply_to_status(resource: &Resource, value: &mut Value, old: &Value) {
    let is_kept = value["spec"].as_object().zip(old["spec"].as_object()).is_some_and(|(new, old)| new.is(old));
    // A spec that lies in both trees is not copied only to find nothing missing.
    match value.as_object_mut() {
        Some(object) if is_kept && resource.group.is_empty() && &*resource.plural == "pods" => pod::status(object),
        _ => apply(resource, value),
    }
}

/// Sets a property that is absent, or an empty text.
fn set(map: &mut Object, key: &str, value: impl Into<Value>) {
    if map.get(key).is_none_or(|v| v.is_null() || v.as_str() == Some("")) {
        map.insert(key.into(), value.into());
    }
}

/// Sets a property that is absent, for those where an empty text is something else than nothing, and mostly refused.
fn set_unsaid(map: &mut Object, key: &str, value: impl Into<Value>) {
    if !has(map, key) {
        map.insert(key.into(), value.into());
    }
}

/// Sets a number that is absent; a zero is said.
fn set_absent(map: &mut Object, key: &str, value: i64) {
    if !has(map, key) {
        map.insert(key.into(), value.into());
    }
}

/// Sets a number that is absent, or zero where zero means that nothing was said.
fn set_number(map: &mut Object, key: &str, value: i64) {
    if map.get(key).is_none_or(|v| v.is_null() || v == 0) {
        map.insert(key.into(), value.into());
    }
}

/// An object that is a property; none where it is absent.
fn inside<'a>(map: &'a mut Object, key: &str) -> Option<&'a mut Object> {
    map.get_mut(key).and_then(Value::as_object_mut)
}

/// An object deeper down.
fn below<'a>(map: &'a mut Object, keys: &[&str]) -> Option<&'a mut Object> {
    keys.iter().try_fold(map, |map, key| inside(map, key))
}

/// An object that is a property, made where it is absent; none where there is something else.
fn made<'a>(map: &'a mut Object, key: &str) -> Option<&'a mut Object> {
    let value = map.entry(key).or_insert(Value::Null);
    if value.is_null() {
        *value = json!({});
    }
    value.as_object_mut()
}

/// The objects of a list.
fn each<'a>(map: &'a mut Object, key: &str) -> impl Iterator<Item = &'a mut Object> {
    let list = map.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten();
    list.filter_map(|item| {
        if item.is_null() {
            *item = json!({});
        }
        item.as_object_mut()
    })
}

fn is_empty(map: &Object, key: &str) -> bool {
    map.get(key).and_then(Value::as_object).is_none_or(Object::is_empty)
}

/// The labels of the template in a spec; None where it has none.
fn template_labels(spec: &Object) -> Option<Value> {
    let labels = spec.get("template")?.get("metadata")?.get("labels")?;
    labels.as_object().is_some_and(|labels| !labels.is_empty()).then(|| labels.clone())
}

/// Gives an object that has no labels those of its template.
fn labels_like(object: &mut Object, labels: Value) {
    if let Some(metadata) = made(object, "metadata")
        && is_empty(metadata, "labels")
    {
        metadata.insert("labels".into(), labels);
    }
}

fn text<'a>(map: &'a Object, key: &str) -> &'a str {
    map.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn has(map: &Object, key: &str) -> bool {
    map.get(key).is_some_and(|v| !v.is_null())
}

/// Two forms of one field, a single value and a list: the single one counts where both are there and differ.
fn pair(map: &mut Object, single: &str, list: &str, wrap: fn(Value) -> Value, unwrap: fn(&Value) -> Value) {
    let first = map.get(list).and_then(Value::as_array).and_then(|l| l.first()).map(unwrap);
    match (map.get(single).filter(|v| v.as_str().is_some_and(|t| !t.is_empty())).cloned(), first) {
        (Some(said), first) if first.as_ref() != Some(&said) => {
            map.insert(list.into(), json!([wrap(said)]));
        }
        (None, Some(first)) => {
            map.insert(single.into(), first);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_single_form_counts_before_the_list() {
        let settle = |value: Value| {
            let mut map = value.as_object().cloned().unwrap_or_default();
            pair(&mut map, "one", "all", |v| v, Value::clone);
            Value::Object(map)
        };
        assert_eq!(settle(json!({"one": "a"})), json!({"one": "a", "all": ["a"]}));
        assert_eq!(settle(json!({"all": ["a", "b"]})), json!({"one": "a", "all": ["a", "b"]}));
        assert_eq!(settle(json!({"one": "c", "all": ["a", "b"]})), json!({"one": "c", "all": ["c"]}));
        assert_eq!(settle(json!({"one": "a", "all": ["a", "b"]})), json!({"one": "a", "all": ["a", "b"]}));
    }
}
