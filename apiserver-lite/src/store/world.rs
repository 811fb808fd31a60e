//! The state in memory: per resource a persistent ordered set of objects, so that a snapshot is a pointer, and the
//! recent past of each, for watches and for reads at an older revision.

use std::collections::{HashMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rpds::RedBlackTreeSetSync;
use tokio::sync::{Notify, watch};

use super::compaction::Compaction;
use super::hash::Keyed;
use super::object::{ByKey, Key, ObjectRef, Place, ResourceId};
use super::watch::{Event, EventRef};

pub(super) type Objects = RedBlackTreeSetSync<ByKey>;

/// How much of the past of one resource is kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub age: Duration,
    pub events: usize,
    /// Bytes of JSON that the past keeps alive.
    pub bytes: usize,
}

impl Default for Limits {
    /// The age is that of kube-apiserver's compaction of etcd.
    fn default() -> Self {
        Limits { age: Duration::from_secs(300), events: 16_384, bytes: 24 << 20 }
    }
}

/// An event and the collection after it.
pub(super) struct Entry {
    pub event: EventRef,
    pub after: Objects,
    at: Instant,
}

pub(super) struct Collection {
    pub objects: Objects,
    /// Newest last; the sequence number of the front is `first`.
    pub history: VecDeque<Entry>,
    pub first: u64,
    /// The collection before the front of `history`, valid for revisions from `base_revision` on.
    pub base: Objects,
    pub base_revision: u64,
    history_bytes: usize,
    /// Sequence number after the newest event; watchers wait on it.
    pub tell: watch::Sender<u64>,
    /// Rung after each change, for those who wait for several collections.
    pub bells: Bells,
}

pub(super) type Bells = Arc<[Weak<Notify>]>;

impl Collection {
    pub fn new(base_revision: u64) -> Self {
        Collection::with(Objects::new_sync(), base_revision)
    }

    /// A collection whose past before `base_revision` is not known.
    pub fn with(objects: Objects, base_revision: u64) -> Self {
        Collection {
            base: objects.clone(),
            objects,
            history: VecDeque::new(),
            first: 0,
            base_revision,
            history_bytes: 0,
            tell: watch::Sender::new(0),
            bells: Bells::default(),
        }
    }

    /// Takes in an event and the collection after it.
    pub fn push(&mut self, event: EventRef, after: Objects, now: Instant) {
        self.history_bytes += event.weight();
        self.history.push_back(Entry { event, after: after.clone(), at: now });
        self.objects = after;
    }

    /// Moves events beyond the limits to `gone`, to be dropped where nobody waits.
    pub fn trim(&mut self, limits: &Limits, now: Instant, gone: &mut Vec<Entry>) {
        while self.history.len() > limits.events
            || self.history_bytes > limits.bytes && self.history.len() > 1
            || self.history.front().is_some_and(|e| now.duration_since(e.at) > limits.age)
        {
            let Some(mut old) = self.history.pop_front() else { break };
            self.history_bytes -= old.event.weight();
            self.base_revision = old.event.revision;
            std::mem::swap(&mut self.base, &mut old.after);
            self.first += 1;
            gone.push(old);
        }
    }

    /// When the oldest event was taken in.
    fn oldest(&self) -> Option<Instant> {
        self.history.front().map(|e| e.at)
    }

    pub fn end(&self) -> u64 {
        self.first + self.history.len() as u64
    }

    /// The collection as of a revision; None when that is no longer known.
    pub fn at(&self, revision: u64) -> Option<&Objects> {
        if revision < self.base_revision {
            return None;
        }
        let after = self.history.partition_point(|e| e.event.revision <= revision);
        Some(after.checked_sub(1).map_or(&self.base, |i| &self.history[i].after))
    }

    /// Sequence number of the first event after a revision; None when events before it are gone.
    pub fn sequence_after(&self, revision: u64) -> Option<u64> {
        if revision < self.base_revision {
            return None;
        }
        Some(self.first + self.history.partition_point(|e| e.event.revision <= revision) as u64)
    }
}

pub(super) struct World {
    pub revision: u64,
    pub collections: HashMap<ResourceId, Collection, Keyed>,
    /// Revision at which this process opened the store; older history is gone.
    pub opened_at: u64,
    pub compaction: Compaction,
}

impl World {
    /// Trims every collection; returns when the oldest event left was taken in.
    pub fn trim(&mut self, limits: &Limits, now: Instant, gone: &mut Vec<Entry>) -> Option<Instant> {
        let collections = self.collections.values_mut();
        collections
            .filter_map(|collection| {
                collection.trim(limits, now, gone);
                collection.oldest()
            })
            .min()
    }
}

/// A collection at one revision; taking one costs a reference count.
#[derive(Clone)]
pub struct Snapshot {
    pub revision: u64,
    pub(super) objects: Objects,
}

impl Snapshot {
    pub fn len(&self) -> usize {
        self.objects.size()
    }

    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    pub fn get(&self, namespace: &str, name: &str) -> Option<&ObjectRef> {
        self.objects.get(&(namespace, name) as &dyn Place).map(|k| &k.0)
    }

    /// Objects in key order: of one namespace or of all, from the first key after `after` on.
    pub fn range<'a>(
        &'a self,
        namespace: Option<&'a str>,
        after: Option<&'a Key>,
    ) -> impl Iterator<Item = &'a ObjectRef> {
        let low = (namespace.unwrap_or_default(), "");
        let objects: Box<dyn Iterator<Item = &ByKey> + Send> = match after.map(|k| (&*k.namespace, &*k.name)) {
            Some(key) if key >= low => Box::new(self.objects.range((Bound::Excluded(probe(key)), Bound::Unbounded))),
            _ if low.0.is_empty() => Box::new(self.objects.iter()),
            _ => Box::new(self.objects.range(probe(low)..)),
        };
        objects.map(|k| &k.0).take_while(move |o| namespace.is_none_or(|n| *o.key.namespace == *n))
    }
}

/// An object with nothing but its key, where a range needs a bound of the element type.
fn probe(at: (&str, &str)) -> ByKey {
    ByKey(Arc::new(super::object::StoredObject::new(
        Key::new(at.0, at.1),
        0,
        super::object::Keys::default(),
        Vec::new(),
    )))
}

/// What a change did, for watchers.
pub(super) fn event(
    kind: super::watch::EventKind,
    object: ObjectRef,
    previous: Option<ObjectRef>,
    revision: u64,
) -> EventRef {
    Arc::new(Event::new(kind, object, previous, revision))
}
