//! Keeps `metadata.managedFields` of objects that are created, replaced or patched.

use std::borrow::Cow;
use std::sync::LazyLock;

use proto::schema::Type;
use proto::time::Timestamp;
use serde_json::{Map, Value};

use super::compare::{compare, same_struct_but};
use super::managed::{Entries, Entry, Operation, is_reset, same_but_times};
use super::reconcile::reconcile;
use super::reset::Reset;
use super::set::Set;
use super::versions;
use super::view::BadItem;
use crate::resource::Resource;

/// Fields that are never owned.
pub static UNTRACKED: LazyLock<Set<'static>> = LazyLock::new(|| {
    Set::of_names(&[
        &["apiVersion"],
        &["kind"],
        &["metadata"],
        &["metadata", "name"],
        &["metadata", "namespace"],
        &["metadata", "creationTimestamp"],
        &["metadata", "selfLink"],
        &["metadata", "uid"],
        &["metadata", "clusterName"],
        &["metadata", "generation"],
        &["metadata", "managedFields"],
        &["metadata", "resourceVersion"],
    ])
});

/// Who writes, and through which endpoint.
#[derive(Debug, Clone, Copy)]
pub struct Writer<'a> {
    pub resource: &'a Resource,
    pub subresource: &'a str,
    pub manager: &'a str,
}

impl<'a> Writer<'a> {
    /// An entry of this writer that owns nothing yet.
    pub fn entry(&self, operation: Operation) -> Entry<'a> {
        let manager = if self.manager.is_empty() { "unknown" } else { self.manager };
        Entry::new(manager, operation, self.resource.api_version(), self.subresource)
    }
}

/// Takes the list out of an object; null when there is none.
pub fn take(value: &mut Value) -> Value {
    let metadata = value.get_mut("metadata").and_then(Value::as_object_mut);
    metadata.and_then(|m| m.remove("managedFields")).unwrap_or_default()
}

pub fn put(value: &mut Value, fields: Option<Value>) {
    // `metadata: null` says nothing of the owners of what else is said.
    if fields.is_some() && value["metadata"].is_null() && value.is_object() {
        value["metadata"] = Value::Object(Map::new());
    }
    let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    match fields {
        Some(fields) => metadata.insert("managedFields".into(), fields),
        None => metadata.remove("managedFields"),
    };
}

/// The time of a write that happens now.
pub fn now() -> Cow<'static, str> {
    Timestamp::now().to_seconds_text().into()
}

/// Owners of a new object, both in the version of storage.
pub fn created(writer: Writer<'_>, value: &mut Value) {
    let said = take(value);
    let entries = Entries::read(&said).unwrap_or_default();
    let empty = Value::Object(Map::new());
    let fields = updated_entries(writer, &empty, value, entries, |entries| entries.to_value());
    put(value, fields.flatten());
}

/// Owners after a write that made `new` of `old`, both in the version of storage. A client may set the list itself; one
/// that leaves it out, or gets it wrong, leaves it as it was.
pub fn updated(writer: Writer<'_>, old: &Value, new: &mut Value) {
    let said = take(new);
    let live = &old["metadata"]["managedFields"];
    let live = || Entries::stored(live).unwrap_or_default();
    let entries = match !writer.subresource.is_empty() || said == old["metadata"]["managedFields"] {
        true => live(),
        false => wanted(&said).unwrap_or_else(live),
    };
    // Nobody owns anything, and a mere update does not begin with it.
    let fields = match entries.0.is_empty() {
        true => None,
        false => updated_entries(writer, old, new, entries, |entries| entries.to_value()),
    };
    put(new, fields.flatten());
}

/// The list that a client wants an object to have; None where it wants none, or makes no sense.
pub(super) fn wanted(said: &Value) -> Option<Entries<'_>> {
    if is_reset(said) {
        return Some(Entries::default());
    }
    Entries::read(said).ok().filter(|e| !e.0.is_empty())
}

/// Undoes new times of owners in a write that changes nothing else, so that it stays one that changes nothing.
pub fn keep_times(resource: &Resource, new: &mut Value, old: &Value) {
    let (was, is) = (&old["metadata"]["managedFields"], &new["metadata"]["managedFields"]);
    if is.is_null() || was == is || !same_but_times(was, is) {
        return;
    }
    if same_but_owners(resource, new, old) {
        let before = was.clone();
        put(new, Some(before));
    }
}

/// Whether two objects of a kind differ in nothing but their version and who owns their fields.
pub(super) fn same_but_owners(resource: &Resource, new: &Value, old: &Value) -> bool {
    let (set, id) = (resource.stored.set(), resource.stored.id);
    let (Some(a), Some(b)) = (new.as_object(), old.as_object()) else { return false };
    let Some((_, metadata)) = set.get(id).prop("metadata") else { return false };
    let Type::Struct(of_metadata) = set.ty(metadata.ty) else { return false };
    same_struct_but(set, id, &["metadata"], a, b)
        && match (a.get("metadata").and_then(Value::as_object), b.get("metadata").and_then(Value::as_object)) {
            (Some(a), Some(b)) => same_struct_but(set, *of_metadata, &["managedFields", "resourceVersion"], a, b),
            _ => false,
        }
}

/// Makes something of the list after a write; None when it cannot be told who owns what.
pub(super) fn updated_entries<T>(
    writer: Writer<'_>,
    old: &Value,
    new: &Value,
    entries: Entries<'_>,
    finish: impl FnOnce(Entries<'_>) -> T,
) -> Option<T> {
    let version = writer.resource.api_version();
    let (old_here, new_here) =
        (versions::at(writer.resource, &version, old)?, versions::at(writer.resource, &version, new)?);
    // An object whose lists have no keys cannot be tracked; no owners are better than wrong ones.
    let changes = compare(new_here.set, new_here.id, &old_here.value, &new_here.value).ok()?;
    let reset = Reset::of(writer.resource, writer.subresource);
    let changes = changes.filter(|set| reset.filter(set));
    let mut entries = entries;
    // The schemas of other kinds stay as they are.
    if writer.resource.custom {
        reconcile(writer.resource, &mut entries);
    }
    let mut entries = entries.0;
    let others = disown(writer.resource, old, new, &version, &reset, &mut entries);
    others.ok()?;
    let mut entries = Entries(entries);
    let mut own = writer.entry(Operation::Update);
    // Mostly nothing was removed, and nothing touched that is never owned: then what is taken is all that was touched.
    let untracked = changes.changed.intersection(&UNTRACKED);
    let plain = untracked.is_empty() && changes.removed.is_empty();
    let touched = if plain || entries.0.is_empty() { Set::new() } else { changes.touched().into_owned() };
    let taken = if untracked.is_empty() { changes.changed } else { changes.changed.minus(&UNTRACKED) };
    // Whoever writes the same fields again and again owns the same afterwards, and their list need not be made anew.
    let lost = touched.difference(&taken);
    let touched = if plain && !entries.0.is_empty() { &taken } else { &touched };
    let mut renewed = false;
    entries.0.retain_mut(|entry| {
        if !taken.is_empty() && entry.same_manager(&own) && entry.stays(&taken, &lost) {
            entry.time = Some(now());
            renewed = true;
            return true;
        }
        if *entry.api_version == *version && entry.owns_some(touched) {
            entry.set_fields(entry.set().difference(touched));
        }
        !entry.is_empty()
    });
    if !taken.is_empty() && !renewed {
        own.time = Some(now());
        match entries.find(&own) {
            Some(at) => {
                own.set_fields(entries.0[at].set().union(&taken));
                entries.0[at] = own;
            }
            None => {
                own.set_fields(taken);
                entries.0.push(own);
            }
        }
    }
    entries.cap();
    Some(finish(entries))
}

/// Takes what a write touched from owners in other versions than the written one. Owners in versions that are not
/// served any more are forgotten.
fn disown(
    resource: &Resource,
    old: &Value,
    new: &Value,
    version: &str,
    reset: &Reset,
    entries: &mut Vec<Entry<'_>>,
) -> Result<(), BadItem> {
    let mut done: Vec<String> = Vec::new();
    while let Some(other) =
        entries.iter().map(|e| &*e.api_version).find(|v| *v != version && !done.iter().any(|d| d == v))
    {
        let other = other.to_owned();
        match (versions::at(resource, &other, old), versions::at(resource, &other, new)) {
            (Some(old), Some(new)) => {
                let changes = compare(new.set, new.id, &old.value, &new.value)?.filter(|set| reset.filter(set));
                let touched = changes.touched();
                for entry in entries.iter_mut().filter(|e| *e.api_version == *other && e.owns_some(&touched)) {
                    entry.set_fields(entry.set().difference(&touched));
                }
            }
            _ => entries.retain(|e| *e.api_version != *other),
        }
        done.push(other);
    }
    Ok(())
}
