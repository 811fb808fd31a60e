//! An object's JSON without its version, and the place where the version's text goes.
//!
//! The version is known only when the store commits, and many commits wait for one writer; this way the writer inserts
//! a few bytes instead of encoding the object.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

use serde_json::{Map, Value};

use super::write::{write, write_but, write_sorted};
use crate::schema::{StructId, TypeSet};

/// JSON with a gap: `before`, then `"resourceVersion":"N"` (with the commas it needs), then `after`.
#[derive(Debug, Clone, PartialEq)]
pub struct Slotted {
    pub json: Vec<u8>,
    /// Offset in `json` of the placeholder's digit.
    pub offset: usize,
}

/// Text that stands for the version while the object is written. It differs from process to process and starts with a
/// control character, so no client can put the same text into an object on purpose.
fn mark() -> &'static str {
    static MARK: OnceLock<String> = OnceLock::new();
    MARK.get_or_init(|| format!("\u{1}{:016x}", RandomState::new().build_hasher().finish()))
}

/// Digits that a version has at most.
const DIGITS: usize = 20;

impl Slotted {
    /// The JSON with a version in its place.
    pub fn with_version(&self, version: u64) -> Vec<u8> {
        let digits = version.to_string();
        let mut out = Vec::with_capacity(self.json.len() + digits.len());
        out.extend_from_slice(&self.json[..self.offset]);
        out.extend_from_slice(digits.as_bytes());
        out.extend_from_slice(&self.json[self.offset..]);
        out
    }

    /// The same, in place.
    #[must_use]
    pub fn into_version(mut self, version: u64) -> Vec<u8> {
        let digits = version.to_string();
        self.json.extend_from_slice(digits.as_bytes());
        self.json[self.offset..].rotate_right(digits.len());
        self.json
    }

    /// The same with a list of the owners of fields, as text, at its place in a built-in kind: the end of `metadata`, which
    /// has none yet.
    #[must_use]
    pub fn with_owners(mut self, list: &[u8]) -> Self {
        const NAME: &[u8] = b",\"managedFields\":";
        // There is metadata in everything that has a version, and the version is in it.
        if let Some(metadata) = super::member(&self.json, "metadata").filter(|m| m.contains(&self.offset)) {
            let (before, after) = self.json.split_at(metadata.end - 1);
            let mut json = Vec::with_capacity(self.json.len() + NAME.len() + list.len() + DIGITS);
            [before, NAME, list, after].into_iter().for_each(|part| json.extend_from_slice(part));
            self.json = json;
        }
        self
    }

    /// Whether `with_version(version)` would give these bytes, without making them.
    pub fn is_at_version(&self, version: u64, bytes: &[u8]) -> bool {
        let (before, after) = self.json.split_at(self.offset);
        let rest = bytes.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
        rest.is_some_and(|digits| digits == version.to_string().as_bytes())
    }
}

/// A member at the top of an object, and its text as it was written before.
pub type Known<'a> = (&'a str, &'a str);

/// Writes an object with a gap for `metadata.resourceVersion`; a version in the tree is ignored. With a schema the
/// order is the schema's, without one (custom resources) keys are sorted. What is `known` of an object with a schema is not
/// written again; it is not `metadata`.
pub fn write_with_version_slot(
    schema: Option<(&TypeSet, StructId)>,
    value: &mut Value,
    known: Option<Known<'_>>,
) -> Slotted {
    if let Value::Object(object) = &mut *value
        && let Value::Object(metadata) = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()))
    {
        metadata.insert("resourceVersion".into(), Value::String(mark().into()));
    }
    // Most objects fit, and it is given back or shrunk in a moment.
    let mut json = Vec::with_capacity(4096);
    match schema {
        Some((set, id)) => match known {
            Some(known) => write_but(set, id, value, known, &mut json),
            None => write(set, id, value, &mut json),
        },
        None => write_sorted(value, &mut json),
    }
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
    }
    // The control character is written as six bytes, the other sixteen as they are.
    let needle = format!("\"\\u0001{}\"", &mark()[1..]);
    // Backslashes are rare, and it has one behind its first quote.
    let mut escapes =
        json.iter().enumerate().filter(|(_, byte)| **byte == b'\\').filter_map(|(at, _)| at.checked_sub(1));
    match escapes.find(|&at| json[at..].starts_with(needle.as_bytes())) {
        Some(at) => {
            json.drain(at + 1..at + needle.len() - 1);
            Slotted { json, offset: at + 1 }
        }
        None => {
            let offset = json.len();
            Slotted { json, offset }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_lands_in_schema_order() {
        let set = TypeSet::built_in();
        let id = set.kind("", "v1", "ConfigMap").expect("built in");
        let mut value = serde_json::json!({"kind": "ConfigMap", "apiVersion": "v1", "data": {"resourceVersion": "\u{1}"},
            "metadata": {"name": "a", "uid": "u", "generation": 2, "resourceVersion": "9"}});
        let slotted = write_with_version_slot(Some((set, id)), &mut value, None);
        let text = String::from_utf8(slotted.with_version(42)).expect("JSON is text");
        assert!(text.contains(r#""uid":"u","resourceVersion":"42","generation":2"#), "{text}");
        assert!(slotted.is_at_version(42, text.as_bytes()));
        assert_eq!(slotted.clone().into_version(42), text.as_bytes());
        let owned = slotted.clone().with_owners(b"[{}]").with_version(42);
        let mut whole = value.clone();
        whole["metadata"]["managedFields"] = serde_json::json!([{}]);
        let whole = write_with_version_slot(Some((set, id)), &mut whole, None).with_version(42);
        let end = r#""generation":2,"managedFields":["#;
        assert!(String::from_utf8_lossy(&owned).contains(end) && String::from_utf8_lossy(&whole).contains(end));
        assert!(!slotted.is_at_version(4, text.as_bytes()) && !slotted.is_at_version(42, &text.as_bytes()[1..]));
    }
    #[test]
    fn what_was_written_before_is_taken_as_it_is() {
        let set = TypeSet::built_in();
        let id = set.kind("", "v1", "Pod").expect("built in");
        let mut value = serde_json::json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"},
            "spec": {"nodeName": "n"}, "status": {"phase": "Running"}});
        let whole = write_with_version_slot(Some((set, id)), &mut value, None);
        let spec = super::super::member(&whole.json, "spec").expect("a pod has one");
        let spec = String::from_utf8(whole.json[spec].to_vec()).expect("JSON is text");
        assert_eq!(write_with_version_slot(Some((set, id)), &mut value, Some(("spec", &spec))), whole);
        // The tree is not looked at for it.
        value["spec"] = Value::Null;
        assert_eq!(write_with_version_slot(Some((set, id)), &mut value, Some(("spec", &spec))), whole);
    }
}
