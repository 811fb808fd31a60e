//! An object at rest and how it gets there: bytes plus the few parsed keys that reads need.

use std::any::Any;
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::sync::atomic::{self, AtomicU64};
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use proto::json::{Known, Slotted, write_with_version_slot};
use proto::{protobuf, transcode};
use serde_json::Value;

use super::text::{Text, intern};
use crate::resource::{Resource, Schema};

/// Names one collection at rest: `pods`, `deployments.apps`. Cheap to copy.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceId(pub Arc<str>);

impl From<&str> for ResourceId {
    fn from(name: &str) -> Self {
        ResourceId(name.into())
    }
}

/// Place of an object in its collection; the namespace is empty for cluster-scoped objects. Ordered by namespace, then
/// name, as lists are.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Key {
    pub namespace: Box<str>,
    pub name: Box<str>,
}

impl Key {
    pub fn new(namespace: &str, name: &str) -> Self {
        Key { namespace: namespace.into(), name: name.into() }
    }
}

/// What readers need without parsing the object.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Keys {
    pub uid: Box<str>,
    /// `metadata.labels`, sorted by key.
    pub labels: Box<[(Arc<str>, Arc<str>)]>,
    /// Selectable fields beyond `metadata.name` and `metadata.namespace`, sorted by path.
    pub fields: Box<[(Arc<str>, Arc<str>)]>,
    /// `metadata.ownerReferences[*].uid`.
    pub owners: Box<[Box<str>]>,
    /// Has `metadata.deletionTimestamp`.
    pub deleting: bool,
    /// How the object stands to the definition of its kind, as far as that is known. Not stored.
    pub mark: Mark,
}

/// A number that is remembered with an object; zero at first. It says nothing about the object as such, so that all are
/// equal.
#[derive(Debug, Default)]
pub struct Mark(AtomicU64);

impl Mark {
    pub fn new(number: u64) -> Self {
        Mark(AtomicU64::new(number))
    }

    pub fn get(&self) -> u64 {
        self.0.load(atomic::Ordering::Relaxed)
    }

    pub fn set(&self, number: u64) {
        self.0.store(number, atomic::Ordering::Relaxed);
    }
}

impl Clone for Mark {
    fn clone(&self) -> Self {
        Mark::new(self.get())
    }
}

impl PartialEq for Mark {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// An object ready to be committed; its version is still open.
#[derive(Debug)]
pub struct Encoded {
    pub json: Slotted,
    pub keys: Keys,
    /// What was encoded, without the owners of its fields, for those who look at it right after the commit.
    pub tree: Option<Arc<Value>>,
}

impl Encoded {
    /// The tree that was encoded, as the object has it that gets this version; None where somebody else holds it too.
    pub(super) fn tree_at(&mut self, revision: u64) -> Option<Arc<Value>> {
        let mut tree = self.tree.take()?;
        let metadata = Arc::get_mut(&mut tree)?.get_mut("metadata").and_then(Value::as_object_mut)?;
        metadata.insert("resourceVersion".into(), revision.to_string().into());
        Some(tree)
    }

    /// Hands on the tree that was encoded.
    #[must_use]
    pub fn with_tree(mut self, mut value: Value) -> Self {
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        self.tree = Some(Arc::new(value));
        self
    }

    /// Puts in the owners of fields, which the tree that was encoded did not have.
    #[must_use]
    pub fn with_owners(mut self, list: &[u8]) -> Self {
        self.json = self.json.with_owners(list);
        self
    }

    /// The same to be committed once more.
    #[must_use]
    pub fn again(&self) -> Self {
        Encoded { json: self.json.clone(), keys: self.keys.clone(), tree: self.tree.clone() }
    }

    /// The object as a dry run shows it: complete but for a version, of which it has what its sender said.
    pub fn unsaved(self, key: Key, said: &str) -> ObjectRef {
        let mut value = proto::json::parse_at_rest(&self.json.json).unwrap_or_default();
        if let Some(metadata) = value["metadata"].as_object_mut() {
            match said {
                "" => drop(metadata.remove("resourceVersion")),
                said => drop(metadata.insert("resourceVersion".into(), said.into())),
            }
        }
        let mut json = Vec::new();
        let kind = value["kind"].as_str().unwrap_or_default();
        let (group, version) = match value["apiVersion"].as_str().unwrap_or_default().rsplit_once('/') {
            Some(parts) => parts,
            None => ("", value["apiVersion"].as_str().unwrap_or_default()),
        };
        let set = proto::schema::TypeSet::built_in();
        match set.kind(group, version, kind) {
            Some(id) => proto::json::write(set, id, &value, &mut json),
            None => proto::json::write_sorted(&value, &mut json),
        }
        Arc::new(StoredObject::new(key, 0, self.keys, json))
    }

    /// The object as a dry run of a change shows it: under the version that it would have replaced.
    pub fn as_of(self, key: Key, revision: u64) -> ObjectRef {
        let json = self.json.into_version(revision);
        Arc::new(StoredObject::new(key, revision, self.keys, json))
    }
}

/// An object as stored at one revision; shared by every reader.
#[derive(Debug)]
pub struct StoredObject {
    pub key: Key,
    /// `metadata.resourceVersion`.
    pub revision: u64,
    pub keys: Keys,
    /// Compact JSON in the storage version, `resourceVersion` included, no trailing newline.
    pub json: Text,
    /// The same as a message, without an envelope.
    protobuf: OnceLock<Text>,
    /// See [`Encoded::tree`]; gone soon after the commit.
    tree: Weak<Value>,
    digest: OnceLock<Box<dyn Any + Send + Sync>>,
}

pub type ObjectRef = Arc<StoredObject>;

impl StoredObject {
    pub(super) fn new(key: Key, revision: u64, keys: Keys, json: Vec<u8>) -> Self {
        StoredObject::of(key, revision, keys, Text::new(json))
    }

    /// One of a text that is split up already.
    pub(super) fn of(key: Key, revision: u64, keys: Keys, json: Text) -> Self {
        StoredObject {
            key,
            revision,
            keys,
            json,
            protobuf: OnceLock::new(),
            tree: Weak::new(),
            digest: OnceLock::new(),
        }
    }

    pub(super) fn with_tree(mut self, tree: Option<&Arc<Value>>) -> Self {
        self.tree = tree.map(Arc::downgrade).unwrap_or_default();
        self
    }

    /// The object as a message of its kind, `schema`, encoded by the first who asks. What its JSON shares with other
    /// objects the message shares as well: who owns which fields is the same text in both, and most of either.
    pub fn message(&self, schema: &Schema) -> &Text {
        self.protobuf.get_or_init(|| {
            let (set, id) = (schema.set(), schema.id);
            // Protobuf takes about two thirds of JSON.
            let mut out = Vec::with_capacity(self.json.len());
            if transcode::json_to_protobuf(set, id, &self.json.bytes(), &mut out).is_err() {
                // What is stored was written by us and is read without complaint; the tree would do as well.
                out.clear();
                protobuf::encode(set, id, &self.value(), &mut out);
            }
            Text::sharing(out, &self.json)
        })
    }

    /// The message in its envelope.
    pub fn protobuf(&self, resource: &Resource) -> Bytes {
        let message = self.message(&resource.stored);
        let mut out = Vec::with_capacity(message.len() + 64);
        let (version, kind) = (&*resource.storage_version, &*resource.kind);
        protobuf::write_envelope_around(version, kind, message.len(), |out| message.append_from(0, out), &mut out);
        out.into()
    }

    /// The same object under another version, as a watcher gets it that leaves the selection.
    pub fn at_revision(&self, revision: u64) -> ObjectRef {
        let mut value = self.value();
        let text = revision.to_string();
        let old = format!("\"resourceVersion\":\"{}\"", self.revision);
        let new = format!("\"resourceVersion\":\"{text}\"");
        // In schema order nothing that a client controls comes before the version but quoted names. Where keys are
        // sorted that is not so, and the tree tells whether the right place was hit.
        let json = String::from_utf8_lossy(&self.json.bytes()).replacen(&old, &new, 1);
        value["metadata"]["resourceVersion"] = text.into();
        let hit = proto::json::parse(json.as_bytes()).is_ok_and(|p| p.value == value);
        let json = if hit {
            json.into_bytes()
        } else {
            let mut out = Vec::with_capacity(self.json.len());
            proto::json::write_sorted(&value, &mut out);
            out
        };
        Arc::new(StoredObject::new(self.key.clone(), revision, self.keys.clone(), json))
    }

    /// The same object in other words, such as those of another version of its kind.
    pub fn with_json(&self, json: Vec<u8>) -> ObjectRef {
        let keys = Keys { mark: Mark::default(), ..self.keys.clone() };
        Arc::new(StoredObject::new(self.key.clone(), self.revision, keys, json))
    }

    /// What controllers need to know of the object, read from its tree (without the owners of its fields) by the first
    /// who asks and kept with it. A kind has one type of digest; another type is read anew each time.
    pub fn digest<T: Any + Clone + Send + Sync>(&self, read: impl Fn(&Value) -> T) -> T {
        let kept = self.digest.get_or_init(|| Box::new(read(&self.without_owners())));
        kept.downcast_ref::<T>().cloned().unwrap_or_else(|| read(&self.without_owners()))
    }

    /// The object as a tree without the owners of its fields, kept with it: for the few objects that many writes of
    /// others look at, such as a pod's service account.
    pub fn kept(&self) -> Arc<Value> {
        self.digest
            .get_or_init(|| Box::new(self.without_owners()))
            .downcast_ref::<Arc<Value>>()
            .cloned()
            .unwrap_or_else(|| self.without_owners())
    }

    /// The object as a tree.
    pub fn value(&self) -> Value {
        // What is stored was written by us; a parse error would mean memory corruption, and an empty tree is refused
        // by whatever reads it.
        proto::json::parse_at_rest(&self.json.bytes()).unwrap_or_default()
    }

    /// The object as a tree but for `metadata.managedFields`, which are most of it and mean nothing to who only reads.
    pub fn without_owners(&self) -> Arc<Value> {
        // What the text shares with others is none of this.
        let read = || proto::json::parse_without_owners(&self.json.without_owners()).unwrap_or_default();
        self.tree.upgrade().unwrap_or_else(|| Arc::new(read()))
    }

    /// The same for a write, which makes the next state of a copy and changes little of it.
    pub fn to_change(&self) -> Arc<Value> {
        // What the text shares with others is none of this.
        let read = || proto::json::parse_shared_without_owners(&self.json.without_owners()).unwrap_or_default();
        self.tree.upgrade().unwrap_or_else(|| Arc::new(read()))
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        let at = self.keys.labels.binary_search_by(|(k, _)| (**k).cmp(key)).ok()?;
        Some(&self.keys.labels[at].1)
    }

    /// A selectable field's value, empty when the object has none.
    pub fn field(&self, path: &str) -> &str {
        match path {
            "metadata.name" => &self.key.name,
            "metadata.namespace" => &self.key.namespace,
            _ => self.keys.fields.iter().find(|(k, _)| **k == *path).map_or("", |(_, v)| v),
        }
    }
}

/// Prepares a tree for [`super::Store::commit`]. `fields` are the selectable fields of its kind. Takes the
/// `resourceVersion` out of the tree. What is `known` of a built-in kind is not written again.
pub fn encode(
    resource: &Resource,
    value: &mut Value,
    fields: Vec<(&str, String)>,
    known: Option<Known<'_>>,
) -> Encoded {
    let keys = keys_of(value, fields);
    let schema = (!resource.custom).then(|| (resource.stored.set(), resource.stored.id));
    Encoded { json: write_with_version_slot(schema, value, known), keys, tree: None }
}

fn keys_of(value: &Value, fields: Vec<(&str, String)>) -> Keys {
    let metadata = &value["metadata"];
    let labels = metadata["labels"].as_object().into_iter().flatten();
    let mut fields: Vec<_> = fields.into_iter().map(|(k, v)| (intern(k), intern(&v))).collect();
    fields.sort();
    Keys {
        uid: metadata["uid"].as_str().unwrap_or_default().into(),
        labels: labels.filter_map(|(k, v)| Some((intern(k), intern(v.as_str()?)))).collect(),
        fields: fields.into(),
        owners: metadata["ownerReferences"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|o| o["uid"].as_str().map(Into::into))
            .collect(),
        deleting: metadata["deletionTimestamp"].is_string(),
        mark: Mark::default(),
    }
}

/// An object in an ordered set, found by its key.
#[derive(Debug, Clone)]
pub(super) struct ByKey(pub ObjectRef);

/// A key that may be borrowed in two parts, so that a lookup allocates nothing.
pub(super) trait Place {
    fn place(&self) -> (&str, &str);
}

impl Place for ByKey {
    fn place(&self) -> (&str, &str) {
        (&self.0.key.namespace, &self.0.key.name)
    }
}

impl Place for (&str, &str) {
    fn place(&self) -> (&str, &str) {
        *self
    }
}

impl<'a> Borrow<dyn Place + 'a> for ByKey {
    fn borrow(&self) -> &(dyn Place + 'a) {
        self
    }
}

impl PartialEq for dyn Place + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl Eq for dyn Place + '_ {}

impl PartialOrd for dyn Place + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn Place + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().cmp(&other.place())
    }
}

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl Eq for ByKey {}

impl PartialOrd for ByKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().cmp(&other.place())
    }
}
