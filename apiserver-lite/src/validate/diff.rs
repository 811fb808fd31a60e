//! What differs between two objects, for messages that show it to a person.

use serde_json::{Name, Value};

/// The differences, line by line, removed before added, in the manner of Go's `cmp.Diff`. Programs cannot rely on it:
/// upstream's own text changes from run to run.
pub fn lines(name: &str, old: &Value, new: &Value) -> String {
    let mut out = format!("@@ {name} @@\n");
    walk(&mut out, "", old, new);
    out
}

fn walk(out: &mut String, path: &str, old: &Value, new: &Value) {
    if old == new {
        return;
    }
    match (old, new) {
        (Value::Object(a), Value::Object(b)) => {
            let mut keys: Vec<&Name> = a.keys().chain(b.keys().filter(|k| !a.contains_key(*k))).collect();
            keys.sort_unstable();
            for key in keys {
                walk(out, &format!("{path}.{key}"), &old[key], &new[key]);
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            for index in 0..a.len().max(b.len()) {
                walk(out, &format!("{path}[{index}]"), &old[index], &new[index]);
            }
        }
        _ => {
            for (sign, value) in [('-', old), ('+', new)].into_iter().filter(|(_, v)| !v.is_null()) {
                out.push_str(&format!("{sign} {}: {value}\n", path.trim_start_matches('.')));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn only_what_differs_is_shown() {
        let text = super::lines("T", &json!({"a": [1, 2], "b": "x"}), &json!({"a": [1, 3, 4], "b": "x"}));
        assert_eq!(text, "@@ T @@\n- a[1]: 2\n+ a[1]: 3\n+ a[2]: 4\n");
    }
}
