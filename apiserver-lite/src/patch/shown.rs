//! The patched document in an error: upstream quotes the text that its patch library made.
//!
//! That library decodes lazily: containers that the patch looked into are written with sorted keys, everything else is
//! the text that was there before.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

use super::Format;

/// The text of `patched`, made from the JSON `before` by `patch`.
pub(super) fn document(before: &[u8], patched: &Value, patch: &Format) -> String {
    let mut out = Vec::with_capacity(before.len());
    let raw = serde_json::from_slice::<&RawValue>(before).ok();
    write(raw, patched, patch, &mut Vec::new(), &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

fn write<'a>(
    before: Option<&RawValue>,
    patched: &'a Value,
    patch: &Format,
    path: &mut Vec<&'a str>,
    out: &mut Vec<u8>,
) {
    if !patch.touches(path) {
        let same = |raw: &&RawValue| serde_json::from_str::<Value>(raw.get()).is_ok_and(|v| v == *patched);
        match before.filter(same) {
            Some(raw) => out.extend_from_slice(raw.get().as_bytes()),
            None => proto::json::write_sorted(patched, out),
        }
        return;
    }
    let Value::Object(members) = patched else { return proto::json::write_sorted(patched, out) };
    let known: BTreeMap<String, &RawValue> =
        before.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
    out.push(b'{');
    for (index, (key, value)) in members.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        proto::json::write_string(key, out);
        out.push(b':');
        path.push(key);
        write(known.get(key.as_str()).copied(), value, patch, path, out);
        path.pop();
    }
    out.push(b'}');
}
