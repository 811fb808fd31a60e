//! The smallest strategic merge patch from one node to another, in the form the kubelet sends.

use serde_json::{Map, Value, json};

/// Lists that merge by key; all others are replaced as a whole.
const KEYED: &[(&str, &str)] = &[("conditions", "type"), ("volumesAttached", "name")];

/// None when nothing differs.
pub fn diff(old: &Value, new: &Value) -> Option<Value> {
    let (Some(old), Some(new)) = (old.as_object(), new.as_object()) else {
        return (old != new).then(|| new.clone());
    };
    let mut patch = Map::new();
    for (name, value) in new {
        match old.get(name) {
            Some(before) if before == value => {}
            Some(before) if before.is_object() && value.is_object() => {
                if let Some(inner) = diff(before, value) {
                    patch.insert(name.clone(), inner);
                }
            }
            before => {
                let key = KEYED.iter().find(|(list, _)| list == name).map(|(_, key)| *key);
                match (key, before.and_then(Value::as_array), value.as_array()) {
                    (Some(key), before, Some(items)) => keyed(name, key, before, items, &mut patch),
                    // Address types repeat, so their merge key cannot tell them apart: replace the list.
                    (None, Some(_), Some(items)) if name == "addresses" => {
                        let mut items = items.clone();
                        items.push(json!({"$patch": "replace"}));
                        patch.insert(name.clone(), Value::Array(items));
                    }
                    _ => {
                        patch.insert(name.clone(), value.clone());
                    }
                }
            }
        }
    }
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

fn keyed(name: &str, key: &str, old: Option<&Vec<Value>>, new: &[Value], patch: &mut Map<String, Value>) {
    let none = Vec::new();
    let old = old.unwrap_or(&none);
    let find = |items: &[Value], wanted: &Value| items.iter().find(|i| i.get(key) == Some(wanted)).cloned();
    let mut items = Vec::new();
    for item in new {
        let Some(id) = item.get(key) else { continue };
        match find(old, id) {
            Some(before) => {
                if let Some(Value::Object(mut changed)) = diff(&before, item) {
                    changed.insert(key.into(), id.clone());
                    items.push(Value::Object(changed));
                }
            }
            None => items.push(item.clone()),
        }
    }
    for item in old {
        if let Some(id) = item.get(key)
            && find(new, id).is_none()
        {
            items.push(json!({"$patch": "delete", key: id}));
        }
    }
    if items.is_empty() {
        return;
    }
    let order: Vec<Value> = new.iter().filter_map(|i| i.get(key)).map(|id| json!({key: id})).collect();
    patch.insert(format!("$setElementOrder/{name}").into(), Value::Array(order));
    patch.insert(name.into(), Value::Array(items));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_names_only_what_moved() {
        let condition = |kind: &str, beat: &str| json!({"type": kind, "status": "False", "lastHeartbeatTime": beat});
        let old = json!({"status": {"conditions": [condition("A", "1"), condition("Ready", "1")], "images": []}});
        let new = json!({"status": {"conditions": [condition("A", "2"), condition("Ready", "1")], "images": []}});
        assert_eq!(
            diff(&old, &new),
            Some(json!({"status": {
                "$setElementOrder/conditions": [{"type": "A"}, {"type": "Ready"}],
                "conditions": [{"lastHeartbeatTime": "2", "type": "A"}]
            }}))
        );
        assert_eq!(diff(&new, &new), None);
    }

    #[test]
    fn addresses_are_replaced_and_absent_fields_removed() {
        let old = json!({"addresses": [{"type": "InternalIP", "address": "a"}], "phase": "x", "capacity": {"a": "1", "b": "1"}});
        let new = json!({"addresses": [{"type": "InternalIP", "address": "b"}], "capacity": {"a": "2"}});
        assert_eq!(
            diff(&old, &new),
            Some(json!({
                "addresses": [{"type": "InternalIP", "address": "b"}, {"$patch": "replace"}],
                "capacity": {"a": "2", "b": null},
                "phase": null
            }))
        );
    }
}
