//! Whether a stored object fits the definition of its kind as it is now.
//!
//! Definitions change, and objects stay what they were when they were written. With each object the server keeps in memory
//! a number for the state of the definition that wrote it, or under which a read found that converting it changes nothing.
//! An object from the disk has none: the first read converts it, and the next ones take it as it lies there.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;

use super::{Definition, Path, prune, version_of};
use crate::resource::Resource;
use crate::store::{Mark, ObjectRef};

/// In a mark: the text is what clients get in the version of storage.
const TEXT: u64 = 1;
/// In a mark: so are the values of selectable fields that are kept beside it.
const FIELDS: u64 = 2;

/// The number of a definition's state, in which no bit of a mark is set. Never zero.
pub fn state(definition: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    definition["metadata"]["uid"].as_str().unwrap_or_default().hash(&mut hasher);
    definition["metadata"]["generation"].as_i64().unwrap_or_default().hash(&mut hasher);
    hasher.finish() & !(TEXT | FIELDS) | (FIELDS + FIELDS)
}

impl Definition {
    /// Whether a stored object can be given out as it lies there.
    pub fn is_current(&self, object: &ObjectRef) -> bool {
        self.version == self.storage && self.has(object, TEXT)
    }

    /// Whether the schema of storage as it is now has nothing to do on a stored object.
    pub fn fits(&self, object: &ObjectRef) -> bool {
        self.has(object, 0)
    }

    /// Whether the fields that are kept with a stored object are what the version at hand selects by.
    pub fn knows_fields(&self, object: &ObjectRef) -> bool {
        (!self.is_converted() || self.version == self.storage) && self.has(object, FIELDS)
    }

    fn has(&self, object: &ObjectRef, bits: u64) -> bool {
        let mark = object.keys.mark.get();
        mark & !(TEXT | FIELDS) == self.state && mark & bits == bits
    }

    /// The mark of an object that is written in the version at hand. What was sent in another one lacks defaults that the
    /// version of storage has.
    pub fn mark(&self) -> Mark {
        Mark::new(self.state | if self.version == self.storage { TEXT | FIELDS } else { 0 })
    }

    /// Appends a stored object as clients get it in the version at hand, and remembers where that is what lies there.
    pub fn append(&self, resource: &Resource, object: &ObjectRef, out: &mut Vec<u8>) {
        let start = out.len();
        let mut value = object.value();
        self.convert(resource, &mut value);
        proto::json::write_sorted(&value, out);
        if self.version == self.storage && is_text_of(object, &out[start..]) && !self.has(object, TEXT) {
            object.keys.mark.set(self.state | TEXT);
        }
    }

    /// The values of the fields that the version at hand selects by, of an object as [`super::served`] has it. Remembers
    /// where they are those that are kept with it.
    pub fn selected(&self, object: &ObjectRef) -> Vec<(&str, String)> {
        let mut value = object.value();
        let said = self.refresh(&mut value);
        // Without a webhook a field that any version selects by is the same in all that have it.
        let kept = !self.is_converted() || self.version == self.storage;
        let found = texts(if kept { &self.at_rest } else { &self.selectable }, &value);
        if kept && said == *self.storage && (self.has(object, TEXT) || is_text_of(object, &sorted(&value))) {
            let same = found.iter().all(|(name, text)| object.field(name) == text);
            object.keys.mark.set(self.state | TEXT | if same { FIELDS } else { 0 });
        }
        found
    }

    /// Makes a stored tree what the schema of its own version has it to be now. Returns the version.
    pub(super) fn refresh(&self, value: &mut Value) -> String {
        let said = version_of(value);
        // Nothing is known of what a version holds that is not among them.
        if let Some(schema) = self.schemas.get(&*said) {
            prune::prune(value, Some(schema));
            prune::drop_nulls(value, Some(schema));
            prune::default(value, schema);
        }
        said
    }
}

/// The texts that selectors compare.
pub(super) fn texts<'a>(paths: &'a [(Box<str>, Path)], value: &Value) -> Vec<(&'a str, String)> {
    let text = |path: &Path| match path.first(value) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    paths.iter().map(|(name, path)| (&**name, text(path))).collect()
}

fn sorted(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    proto::json::write_sorted(value, &mut out);
    out
}

fn is_text_of(object: &ObjectRef, text: &[u8]) -> bool {
    object.json.len() == text.len() && object.json.bytes() == text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::samples::{color, create, definition, label, served, version};
    use super::*;

    fn of(resource: &Resource) -> &Definition {
        resource.definition.as_deref().expect("a custom kind")
    }

    fn given_out(resource: &Resource, object: &ObjectRef) -> Value {
        let mut out = Vec::new();
        of(resource).append(resource, object, &mut out);
        serde_json::from_slice(&out).expect("an object")
    }

    /// A revision was all that told: a write that began before the definition changed was given out as it was, and so was
    /// the last state of an object that left a selection.
    #[tokio::test]
    async fn an_object_of_another_state_of_its_definition_is_not_given_out_as_it_lies_there() {
        let server = crate::serve::testing::server().await;
        let fields = ["color"];
        let [v1, v2] = ["v1", "v2"].map(|name| version(name, &fields, &[]));
        let old = served(&definition(1, &[v1.clone(), v2.clone()]), "v1");
        let new = served(&definition(2, &[v2, v1]), "v2");
        let object = create(&server, &old, color("a", "red")).await;
        assert!(of(&old).is_current(&object) && !of(&new).is_current(&object));
        let later = object.at_revision(object.revision + 7);
        assert!(!of(&new).is_current(&later));
        for object in [&object, &later] {
            assert_eq!(given_out(&new, object)["apiVersion"], "g.io/v2");
            assert!(!of(&new).is_current(object), "it is still another text");
        }
        let written = label(&server, &new, "a", "x").await;
        assert!(of(&new).is_current(&written) && !of(&old).is_current(&written));
    }

    /// A write that was under way while a version came left nothing of an object that was written in it.
    #[tokio::test]
    async fn a_write_leaves_alone_what_its_definition_knows_nothing_of() {
        let server = crate::serve::testing::server().await;
        let [v1, v2] = [("v1", &["color"][..]), ("v2", &["color", "size"])].map(|(name, of)| version(name, of, &[]));
        let keeper = super::super::Keeper::default();
        let old = super::super::resources(&definition(1, std::slice::from_ref(&v1)), 0, Some(&keeper))
            .pop()
            .expect("it is served");
        let new = served(&definition(2, &[v2, v1]), "v2");
        let mut value = color("a", "red");
        value["apiVersion"] = "g.io/v2".into();
        value["spec"]["size"] = "big".into();
        let object = create(&server, &new, value).await;
        assert!(super::super::check_served(&old, &object).is_ok(), "nothing else is served yet");
        assert_eq!(super::super::stored_value(&old, &object)["spec"], object.value()["spec"]);
        keeper.begin(server.store.revision());
        let target = crate::write::Target { resource: &old, subresource: "", namespace: "default", name: "a" };
        let options = crate::write::WriteOptions::default();
        let changed = crate::write::update(&server, target, &options, |_, old| Ok(old.clone()));
        assert_eq!(changed.await.expect_err("it is over").code(), 503);
        assert_eq!(server.store.get(&new.storage, "default", "a").expect("it is there").value(), object.value());
        assert!(super::super::check_served(&new, &object).is_ok());
    }

    /// What was read from the disk, or older than the last change of its definition, was converted for every reader.
    #[tokio::test]
    async fn what_conversion_leaves_alone_is_converted_once() {
        let server = crate::serve::testing::server().await;
        let [wide, narrow] = [&["color", "size"][..], &["color"]].map(|fields| version("v1", fields, &[]));
        let [first, second] = [(1, wide), (2, narrow)].map(|(at, v)| served(&definition(at, &[v]), "v1"));
        let plain = create(&server, &first, color("plain", "red")).await;
        let mut sized = color("sized", "red");
        sized["spec"]["size"] = "big".into();
        let sized = create(&server, &first, sized).await;
        plain.keys.mark.set(0);
        for resource in [&first, &second] {
            assert!(!of(resource).is_current(&plain));
            assert_eq!(given_out(resource, &plain), plain.value());
            assert!(of(resource).is_current(&plain));
            assert_eq!(given_out(&second, &sized)["spec"], json!({"color": "red"}));
            assert!(!of(&second).is_current(&sized), "the new schema has no place for all of it");
        }
    }

    #[tokio::test]
    async fn fields_that_are_kept_are_trusted_once_they_were_compared() {
        let server = crate::serve::testing::server().await;
        let [without, with] = [&[][..], &["color"]].map(|selectable| version("v1", &["color"], selectable));
        let [without, with] = [(1, without), (2, with)].map(|(at, v)| served(&definition(at, &[v]), "v1"));
        let older = create(&server, &without, color("older", "red")).await;
        let newer = create(&server, &with, color("newer", "red")).await;
        assert!(of(&with).knows_fields(&newer));
        newer.keys.mark.set(0);
        for (object, known) in [(&older, false), (&newer, true)] {
            assert!(!of(&with).knows_fields(object));
            assert_eq!(of(&with).selected(object), [("spec.color", "red".to_owned())]);
            assert_eq!(of(&with).knows_fields(object), known);
            assert!(of(&with).is_current(object));
        }
    }

    #[test]
    fn a_state_is_no_part_of_a_mark() {
        for generation in 0..100 {
            let state = state(&definition(generation, &[]));
            assert!(state != 0 && state & (TEXT | FIELDS) == 0);
        }
    }
}
