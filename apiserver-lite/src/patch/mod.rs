//! The patch formats: JSON Patch (RFC 6902), JSON Merge Patch (RFC 7396) and strategic merge by the schema table.

mod json_patch;
mod strategic;

use serde_json::{Map, Value};

pub use json_patch::{Operation, apply_json_patch, parse_json_patch};
pub use strategic::apply_strategic;

/// Applies a JSON Merge Patch: null removes, objects merge, everything else replaces.
pub fn apply_merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(object) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            object.remove(&key);
        } else {
            apply_merge(object.entry(key).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn merge_patches_follow_the_rfc() {
        for (target, patch, result) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!(["a"]), json!({"a": {"b": null}}), json!({"a": {}})),
        ] {
            let mut value = target;
            apply_merge(&mut value, patch);
            assert_eq!(value, result);
        }
    }
}
