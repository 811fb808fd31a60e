//! Owners of fields as text beside a tree that does not have them.
//!
//! They are more than half of many objects, and most writes change the time of one of them. So where nobody looks at them
//! in between, they are read only as far as a write touches them, and what it leaves alone is copied as bytes.

use serde_json::{Map, Value};

use super::managed::{Entries, Operation};
use super::reset::Reset;
use super::set::Set;
use super::track::{UNTRACKED, Writer, now, same_but_owners, take, updated_entries, wanted};
use super::{fresh, versions};
use crate::resource::Resource;

/// The list after a write, as an object at rest has it; empty when nobody owns anything.
#[derive(Debug, Default)]
pub struct Owners {
    list: Vec<u8>,
    /// The list before, where it differs in nothing but times.
    before: Option<Vec<u8>>,
}

impl Owners {
    /// Owners of a new object, both in the version of storage; as [`super::created`].
    pub fn created(writer: Writer<'_>, value: &mut Value) -> Self {
        let said = take(value);
        let entries = Entries::read(&said).unwrap_or_default();
        let list = match Reset::of(writer.resource, writer.subresource) {
            Reset::Without(reset) if entries.0.is_empty() => only_owner(writer, value, &reset),
            _ => updated_entries(writer, &Value::Object(Map::new()), value, entries, written),
        };
        Owners { list: list.unwrap_or_default(), before: None }
    }

    /// Owners after a write that made `new` of `old`, as [`super::updated`]; `text` is the list of the old one.
    pub fn updated(writer: Writer<'_>, text: &[u8], old: &Value, new: &mut Value) -> Self {
        let said = take(new);
        let live = Entries::stored_text(text).unwrap_or_default();
        let kept = !writer.subresource.is_empty()
            || said.is_null()
            || Entries::stored(&said).is_ok_and(|said| !said.0.is_empty() && said.same(&live));
        let entries = if kept { None } else { wanted(&said) };
        let entries = entries.unwrap_or_else(|| live.clone());
        if entries.0.is_empty() {
            return Owners::default();
        }
        let done = updated_entries(writer, old, new, entries, |mut entries| {
            entries.sort();
            let before = entries.same_but_times(&live).then(|| text.to_vec());
            Owners { list: written(entries), before }
        });
        done.unwrap_or_default()
    }

    /// Those of an object whose write has no owner, as they were.
    pub fn unchanged(text: &[u8]) -> Self {
        Owners { list: text.to_vec(), before: None }
    }

    /// Undoes new times in a write that changes nothing else, so that it stays one that changes nothing.
    pub fn keep_times(&mut self, resource: &Resource, new: &Value, old: &Value) {
        if let Some(before) = self.before.take().filter(|_| same_but_owners(resource, new, old)) {
            self.list = before;
        }
    }

    pub fn list(&self) -> &[u8] {
        &self.list
    }
}

/// The list of a new object that says nothing of owners; None when it cannot be told who owns what.
fn only_owner(writer: Writer<'_>, value: &Value, reset: &Set<'_>) -> Option<Vec<u8>> {
    let here = versions::at(writer.resource, &writer.resource.api_version(), value)?;
    let fields = fresh::fields(here.set, here.id, &here.value, &UNTRACKED, reset).ok()?;
    let mut own = writer.entry(Operation::Update);
    own.time = Some(now());
    own.set_text(&fields);
    let owned = if own.is_empty() { Vec::new() } else { vec![own] };
    Some(written(Entries(owned)))
}

fn written(mut entries: Entries<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    if !entries.0.is_empty() {
        entries.sort();
        entries.write(&mut out);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::Resources;
    use crate::store::Text;
    use proto::json;
    use serde_json::json;

    fn pods() -> std::sync::Arc<Resource> {
        Resources::built_in().current().lookup("", "v1", "pods").expect("built in")
    }

    /// An object at rest.
    fn at_rest(resource: &Resource, mut value: Value, owners: &Owners) -> Vec<u8> {
        let schema = Some((resource.stored.set(), resource.stored.id));
        let slotted = json::write_with_version_slot(schema, &mut value, None);
        let slotted = if owners.list().is_empty() { slotted } else { slotted.with_owners(owners.list()) };
        slotted.with_version(7)
    }

    /// The list in the text of an object.
    fn stored(object: &[u8]) -> &[u8] {
        &object[Text::new(object.to_vec()).owners()]
    }

    fn tree(text: &[u8]) -> Value {
        json::parse(text).expect("valid").value
    }

    fn pod(phase: &str) -> Value {
        json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a", "namespace": "b", "labels": {"x": "y"}},
            "spec": {"containers": [{"name": "c", "image": "d"}]},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": "False"}]}})
    }

    /// The same write, with owners as text and as trees.
    fn both(writer: Writer<'_>, object: &[u8], change: impl Fn(&mut Value)) -> (Owners, Value, Value) {
        let (whole, lean) = (tree(object), json::parse_without_owners(object).expect("valid"));
        let (mut by_tree, mut by_text) = (whole.clone(), lean.clone());
        change(&mut by_tree);
        change(&mut by_text);
        let owners = Owners::updated(writer, stored(object), &lean, &mut by_text);
        crate::apply::updated(writer, &whole, &mut by_tree);
        let wanted = by_tree["metadata"]["managedFields"].clone();
        (owners, wanted, by_text)
    }

    fn said(owners: &Owners) -> Value {
        if owners.list().is_empty() { Value::Null } else { tree(owners.list()) }
    }

    #[test]
    fn owners_as_text_are_those_that_trees_have() {
        let resource = &pods();
        let ann = Writer { resource, subresource: "", manager: "ann" };
        let node = Writer { resource, subresource: "status", manager: "node" };
        let mut value = pod("Pending");
        let owners = Owners::created(ann, &mut value);
        let object = at_rest(resource, value, &owners);
        let (owners, wanted, value) = both(node, &object, |pod| pod["status"]["phase"] = "Running".into());
        assert_eq!(said(&owners), wanted);
        assert_eq!(wanted.as_array().map(Vec::len), Some(2));
        let object = at_rest(resource, value, &owners);
        // The same again, something else, something that others own, and something that goes.
        type Change<'a> = (Writer<'a>, &'a dyn Fn(&mut Value));
        let changes: [Change<'_>; 5] = [
            (node, &|pod| pod["status"]["phase"] = "Failed".into()),
            (node, &|pod| pod["status"]["message"] = "m".into()),
            (node, &|pod| pod["status"]["conditions"][0]["status"] = "True".into()),
            (ann, &|pod| pod["metadata"]["labels"] = json!({"z": "y"})),
            (ann, &|pod| pod["metadata"]["managedFields"] = json!([{}])),
        ];
        for (writer, change) in changes {
            let (owners, wanted, _) = both(writer, &object, change);
            assert_eq!(said(&owners), wanted);
        }
    }

    #[test]
    fn a_client_that_sends_the_list_back_changes_nothing_in_it() {
        let resource = &pods();
        let ann = Writer { resource, subresource: "", manager: "ann" };
        let mut value = pod("Pending");
        let owners = Owners::created(ann, &mut value);
        let object = at_rest(resource, value, &owners);
        let (whole, lean) = (tree(&object), json::parse_without_owners(&object).expect("valid"));
        let mut new = whole.clone();
        let mut after = Owners::updated(ann, stored(&object), &lean, &mut new);
        assert!(new["metadata"]["managedFields"].is_null());
        after.keep_times(resource, &new, &lean);
        assert_eq!(after.list(), stored(&object));
        assert_eq!(Owners::unchanged(stored(&object)).list(), owners.list());
        let mut other = whole;
        other["metadata"]["managedFields"][0]["manager"] = "bob".into();
        let after = Owners::updated(ann, stored(&object), &lean, &mut other);
        assert_eq!(said(&after)[0]["manager"], "bob");
    }

    #[test]
    fn a_write_that_changes_nothing_keeps_the_times() {
        let resource = &pods();
        let node = Writer { resource, subresource: "status", manager: "node" };
        let mut value = pod("Pending");
        let owners = Owners::created(Writer { manager: "ann", subresource: "", resource }, &mut value);
        let object = at_rest(resource, value, &owners);
        let (owners, _, value) = both(node, &object, |pod| pod["status"]["phase"] = "Running".into());
        let older = String::from_utf8(at_rest(resource, value, &owners)).expect("text");
        let year = first_time(&older);
        let object = older.replace(&year, "\"time\":\"2001").into_bytes();
        let lean = json::parse_without_owners(&object).expect("valid");
        let mut new = lean.clone();
        new["status"]["phase"] = "Failed".into();
        let mut after = Owners::updated(node, stored(&object), &lean, &mut new);
        after.keep_times(resource, &new, &lean);
        assert_ne!(after.list(), stored(&object), "something did change");
        let mut again = Owners::updated(node, stored(&object), &lean, &mut new);
        again.keep_times(resource, &lean, &lean);
        assert_eq!(again.list(), stored(&object));
    }

    /// Key and year of the first time in a text.
    fn first_time(text: &str) -> String {
        let at = text.find("\"time\":\"").expect("there is a time");
        text[at..at + 12].to_owned()
    }
}
