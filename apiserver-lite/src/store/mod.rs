//! The store: every object of every resource, one revision counter for all, history for watches and old reads.
//!
//! An object at rest is bytes: its JSON as clients get it (schema order, `resourceVersion` in place), its protobuf on
//! first demand, and the few parsed keys that reads need. One writer task takes commits from a queue, checks
//! preconditions against memory, appends a batch to the durable log with one fsync, then publishes.

use std::sync::Arc;

use bytes::Bytes;

/// Names one collection at rest: `pods`, `deployments.apps`. Cheap to copy.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceId(pub Arc<str>);

/// Place of an object in its collection; the namespace is empty for cluster-scoped objects.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub namespace: Box<str>,
    pub name: Box<str>,
}

/// An object as stored at one revision; shared by every reader.
#[derive(Debug)]
pub struct StoredObject {
    pub key: Key,
    /// `metadata.resourceVersion`.
    pub revision: u64,
    pub uid: Box<str>,
    /// `metadata.labels`, sorted by key.
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// Selectable fields beyond `metadata.name` and `metadata.namespace`, sorted by path.
    pub fields: Box<[(Box<str>, Box<str>)]>,
    /// `metadata.ownerReferences[*].uid`.
    pub owners: Box<[Box<str>]>,
    /// Has `metadata.deletionTimestamp`.
    pub deleting: bool,
    /// Compact JSON in the storage version, `resourceVersion` included, no trailing newline.
    pub json: Bytes,
}

pub type ObjectRef = Arc<StoredObject>;

/// A handle to the store; clones share it.
#[derive(Clone)]
pub struct Store {
    _private: Arc<()>,
}
