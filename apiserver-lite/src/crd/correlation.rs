//! Old values beside new ones: what an update replaces with what, and whether it left it as it was.
//!
//! Follows `apiserver/pkg/cel/common/equality.go`: members are matched by name and items by the keys of their list, where
//! the schema knows them. What it does not know (unknown fields, metadata of whole objects) is matched with nothing, so
//! that an object that has any never counts as unchanged. Each value is compared once, whoever asks how often.

use std::collections::HashMap;

use serde_json::Value;

use super::schema::{ListType, Schema};

/// A new value, the old one that it replaces, and what both are by the schema.
#[derive(Debug, Clone, Copy)]
pub struct Pair<'a> {
    pub new: &'a Value,
    pub old: &'a Value,
    pub schema: &'a Schema,
}

/// What is known of the values of one update.
#[derive(Debug, Default)]
pub struct Correlation<'a> {
    /// Whether a new value equals its old one, by their places in memory: trees may have a table in common at several.
    equal: HashMap<(*const Value, *const Value, *const Schema), bool>,
    /// Items of old lists by their keys, by their places and the schema that names the keys.
    lists: HashMap<(*const Value, *const Schema), HashMap<String, &'a Value>>,
    /// The values are those of whole objects, with kind and version.
    pub whole: bool,
}

impl<'a> Correlation<'a> {
    /// Of whole objects, or of parts of some.
    pub fn of(whole: bool) -> Self {
        Correlation { whole, ..Self::default() }
    }

    /// The pair of a member that both objects have.
    pub fn key(at: Pair<'a>, name: &str) -> Option<Pair<'a>> {
        let (new, old) = (at.new.as_object()?.get(name)?, at.old.as_object()?.get(name)?);
        Some(Pair { new, old, schema: at.schema.member(name)? })
    }

    /// The pair of an item: by keys in a list that has some, by its place in a list whose type is not said.
    pub fn index(&mut self, at: Pair<'a>, index: usize) -> Option<Pair<'a>> {
        let new = at.new.as_array()?.get(index)?;
        let old = match at.schema.list {
            ListType::Map => self.item(at.schema, at.old, new)?,
            ListType::Unsaid => at.old.as_array()?.get(index).filter(|old| !old.is_null())?,
            ListType::Set | ListType::Atomic => return None,
        };
        Some(Pair { new, old, schema: at.schema.items.as_deref()? })
    }

    /// The item of an old list of type `map` that has the keys of a new one.
    pub fn item(&mut self, schema: &Schema, old: &'a Value, new: &Value) -> Option<&'a Value> {
        let key = key_of(schema, new)?;
        let items = self.lists.entry((std::ptr::from_ref(old), std::ptr::from_ref(schema))).or_insert_with(|| {
            let mut by_key = HashMap::new();
            for item in old.as_array().into_iter().flatten() {
                if let Some(key) = key_of(schema, item) {
                    by_key.entry(key).or_insert(item);
                }
            }
            by_key
        });
        items.get(&key).copied()
    }

    /// Whether an update leaves a value as it was. The order of items that have keys is of no matter.
    pub fn equal(&mut self, at: Pair<'a>) -> bool {
        let known = (std::ptr::from_ref(at.new), std::ptr::from_ref(at.old), std::ptr::from_ref(at.schema));
        if let Some(equal) = self.equal.get(&known) {
            return *equal;
        }
        let equal = match (at.new, at.old) {
            (Value::Array(new), Value::Array(old)) => new.len() == old.len() && self.equal_items(at, new.len()),
            (Value::Object(new), Value::Object(old)) => {
                new.len() == old.len()
                    && new.keys().all(|name| Self::key(at, name).is_some_and(|inner| self.equal(inner)))
            }
            (new, old) => return new == old,
        };
        self.equal.insert(known, equal);
        equal
    }

    fn equal_items(&mut self, at: Pair<'a>, count: usize) -> bool {
        for index in 0..count {
            match self.index(at, index) {
                Some(inner) if self.equal(inner) => {}
                Some(_) => return false,
                // Items that cannot be matched are compared as they lie.
                None => return at.schema.list != ListType::Map && at.new == at.old,
            }
        }
        true
    }
}

/// The keys of an item as one text; None without a scalar for each.
fn key_of(schema: &Schema, item: &Value) -> Option<String> {
    let item = item.as_object()?;
    if schema.list_keys.is_empty() {
        return None;
    }
    let mut out = String::new();
    for name in &schema.list_keys {
        match item.get(&**name)? {
            Value::Null | Value::Array(_) | Value::Object(_) => return None,
            scalar => out.push_str(&scalar.to_string()),
        }
        // JSON escapes this in texts, so that no two lists of keys read the same.
        out.push('\0');
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn equal(schema: &Value, new: &Value, old: &Value) -> bool {
        let schema = Schema::parse(schema);
        Correlation::default().equal(Pair { new, old, schema: &schema })
    }

    #[test]
    fn what_the_schema_does_not_know_is_never_unchanged() {
        let known = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        assert!(equal(&known, &json!({"a": "x"}), &json!({"a": "x"})));
        assert!(!equal(&known, &json!({"a": "x", "b": 1}), &json!({"a": "x", "b": 1})));
        let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        assert!(!equal(&open, &json!({"b": 1}), &json!({"b": 1})));
        assert!(equal(&open, &json!({}), &json!({})));
        let values = json!({"type": "object", "additionalProperties": {"type": "integer"}});
        assert!(equal(&values, &json!({"b": 1}), &json!({"b": 1})));
        assert!(!equal(&values, &json!({"b": 1}), &json!({"b": 1.0})));
    }

    #[test]
    fn items_are_matched_as_the_list_says() {
        let list = |ty: Value| {
            json!({"type": "array", "x-kubernetes-list-type": ty, "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}}})
        };
        let (ab, ba) = (json!([{"k": "a"}, {"k": "b"}]), json!([{"k": "b"}, {"k": "a"}]));
        assert!(equal(&list(json!("map")), &ab, &ba));
        assert!(!equal(&list(json!("set")), &ab, &ba) && equal(&list(json!("set")), &ab, &ab));
        assert!(!equal(&list(json!(null)), &ab, &ba) && equal(&list(json!("atomic")), &ab, &ab));
        let schema = Schema::parse(&list(json!(null)));
        let matched = |ty: &str, index: usize| {
            let schema = Schema::parse(&list(if ty.is_empty() { json!(null) } else { json!(ty) }));
            let at = Pair { new: &ab, old: &ba, schema: &schema };
            Correlation::default().index(at, index).map(|pair| pair.old["k"].clone())
        };
        assert_eq!(matched("map", 0), Some(json!("a")));
        assert_eq!(matched("", 0), Some(json!("b")));
        assert_eq!((matched("set", 0), matched("atomic", 0), matched("", 2)), (None, None, None));
        // An unknown member of an item keeps the list from being unchanged, unless its items cannot be matched.
        let odd = json!([{"k": "a", "u": 1}]);
        let at = Pair { new: &odd, old: &odd, schema: &schema };
        assert!(!Correlation::default().equal(at) && equal(&list(json!("atomic")), &odd, &odd));
    }
}
