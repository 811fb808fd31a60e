//! Looks into objects as trees: what is missing is empty.

use serde_json::Value;

/// The items of a member that is a list.
pub fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value[name].as_array().into_iter().flatten()
}

/// A member that is a text.
pub fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}
