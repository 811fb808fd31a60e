//! The order of `metav1.FieldsV1`: the set itself (`.`), then field names, list keys by value, set values, indexes, as
//! structured-merge-diff writes them. Numbers in keys compare as numbers, so port 80 comes before port 443.

use std::cmp::Ordering;

use serde_json::{Map, Value};

use super::write::{write_sorted, write_string};

/// Appends a field set.
pub(super) fn write_fields(value: &Value, out: &mut Vec<u8>) {
    let Value::Object(map) = value else { return write_sorted(value, out) };
    out.push(b'{');
    let mut first = true;
    let mut member = |key: &str, value: &Value| {
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
        write_string(key, out);
        out.push(b':');
        write_fields(value, out);
    };
    // Names alone are in order already: the tree is sorted, and `.` sorts before letters.
    if map.len() > 1 && map.keys().any(|k| matches!(rank(k), 2..=4)) {
        let parsed = |key: &str| serde_json::from_str::<Value>(key.get(2..).unwrap_or_default()).ok();
        let mut members: Vec<_> =
            map.iter().map(|(k, v)| (rank(k), if matches!(rank(k), 2..=4) { parsed(k) } else { None }, k, v)).collect();
        members.sort_by(|a, b| {
            a.0.cmp(&b.0).then_with(|| match (&a.1, &b.1) {
                (Some(left), Some(right)) => compare_values(left, right),
                _ => a.2.cmp(b.2),
            })
        });
        members.into_iter().for_each(|(_, _, key, value)| member(key, value));
    } else {
        map.iter().for_each(|(key, value)| member(key, value));
    }
    out.push(b'}');
}

fn rank(key: &str) -> u8 {
    match key.as_bytes() {
        [b'.'] => 0,
        [b'f', b':', ..] => 1,
        [b'k', b':', ..] => 2,
        [b'v', b':', ..] => 3,
        [b'i', b':', ..] => 4,
        _ => 5,
    }
}

/// Orders two elements of a field set as text: `.`, `f:name`, `k:{...}`, `v:value`, `i:0`.
pub fn compare(a: &str, b: &str) -> Ordering {
    rank(a).cmp(&rank(b)).then_with(|| match rank(a) {
        2..=4 => match (serde_json::from_str(&a[2..]), serde_json::from_str(&b[2..])) {
            (Ok(left), Ok(right)) => compare_values(&left, &right),
            _ => a.cmp(b),
        },
        _ => a.cmp(b),
    })
}

/// Orders JSON values as structured-merge-diff does: numbers before text before booleans before lists before objects
/// before null.
pub fn compare_values(a: &Value, b: &Value) -> Ordering {
    let kind = |v: &Value| match v {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    };
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => a.as_f64().unwrap_or(0.0).total_cmp(&b.as_f64().unwrap_or(0.0)),
        },
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => {
            let first = a.iter().zip(b).map(|(a, b)| compare_values(a, b)).find(|o| o.is_ne());
            first.unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        (Value::Object(a), Value::Object(b)) => compare_keys(a, b),
        _ => kind(a).cmp(&kind(b)),
    }
}

fn compare_keys(a: &Map<String, Value>, b: &Map<String, Value>) -> Ordering {
    let first = a.iter().zip(b).map(|(a, b)| a.0.cmp(b.0).then_with(|| compare_values(a.1, b.1))).find(|o| o.is_ne());
    first.unwrap_or_else(|| a.len().cmp(&b.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_by_value_and_after_names() {
        let value =
            serde_json::json!({"k:{\"port\":443}": {}, "k:{\"port\":80}": {}, "f:a": {}, ".": {}, "v:\"x\"": {}});
        let mut out = Vec::new();
        write_fields(&value, &mut out);
        let text = String::from_utf8(out).expect("JSON is text");
        assert_eq!(text, r#"{".":{},"f:a":{},"k:{\"port\":80}":{},"k:{\"port\":443}":{},"v:\"x\"":{}}"#);
    }
}
