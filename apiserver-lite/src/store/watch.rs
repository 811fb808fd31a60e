//! Watching: events shared by all, and a cursor per watcher.
//!
//! A watcher holds a sequence number into its collection's history, nothing else. An idle one waits on the sequence's
//! end and costs no CPU. One that falls behind the history is told so and has to list again.

use std::sync::{Arc, OnceLock, RwLock};

use bytes::Bytes;
use tokio::sync::watch;

use super::object::{ObjectRef, ResourceId};
use super::world::World;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    Added,
    Modified,
    /// The object is the last state, with the delete's revision as its version.
    Deleted,
}

/// A change of one object, shared by every watcher.
#[derive(Debug)]
pub struct Event {
    pub kind: EventKind,
    pub object: ObjectRef,
    /// The object before the change.
    pub previous: Option<ObjectRef>,
    pub revision: u64,
    /// None where nobody watched the change in a form of these, as is so of most.
    frames: OnceLock<Box<[OnceLock<Bytes>; FRAMES]>>,
}

pub type EventRef = Arc<Event>;

/// Forms of an event that are encoded once for all: three types as a client sees them, in two media types.
const FRAMES: usize = 6;

impl Event {
    /// About the bytes that are in memory for as long as this is known: of an object that is gone all of it, for what it
    /// shared with the versions before is nobody else's any more.
    pub(super) fn weight(&self) -> usize {
        let json = &self.object.json;
        if self.kind == EventKind::Deleted { json.len() } else { json.weight() }
    }

    pub(super) fn new(kind: EventKind, object: ObjectRef, previous: Option<ObjectRef>, revision: u64) -> Self {
        Event { kind, object, previous, revision, frames: OnceLock::new() }
    }

    /// The event as bytes in a form; `slot` is below 6 and names media type and type; `encode` runs for the first
    /// watcher that asks.
    pub fn frame(&self, slot: usize, encode: impl FnOnce() -> Bytes) -> Bytes {
        match self.frames.get_or_init(Box::default).get(slot) {
            Some(cell) => cell.get_or_init(encode).clone(),
            None => encode(),
        }
    }
}

/// The watcher fell behind the history; list again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too old resource version: {requested} ({oldest})")]
pub struct Expired {
    pub requested: u64,
    pub oldest: u64,
}

/// A cursor in a collection's history.
pub struct Watcher {
    pub(super) world: Arc<RwLock<World>>,
    pub(super) resource: ResourceId,
    pub(super) next: u64,
    pub(super) end: watch::Receiver<u64>,
    /// Revision of the last event given out, for the complaint when the watcher falls behind.
    pub(super) seen: u64,
}

/// Events given out at once, so that a burst does not hold the lock for long.
const BATCH: usize = 256;

impl Watcher {
    /// Waits until there are events and appends them to `out`. Cancel safe: an event is given out once.
    ///
    /// # Errors
    /// [`Expired`] when events were dropped before this watcher saw them.
    pub async fn next(&mut self, out: &mut Vec<EventRef>) -> Result<(), Expired> {
        loop {
            if self.ready(out)? {
                return Ok(());
            }
            if self.end.wait_for(|&end| end > self.next).await.is_err() {
                // The store is gone; there will be no more events.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until there are events, and leaves them. Cancel safe.
    pub async fn changed(&mut self) {
        if self.end.wait_for(|&end| end > self.next).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Whether there is something to be had, as far as was told: before a write returns, but a moment after the store's
    /// revision has moved on. Much cheaper than to ask for it.
    pub fn was_told(&self) -> bool {
        *self.end.borrow() > self.next
    }

    /// Appends what is there already; false when there is nothing.
    ///
    /// # Errors
    /// As [`Watcher::next`].
    pub fn ready(&mut self, out: &mut Vec<EventRef>) -> Result<bool, Expired> {
        let world = self.world.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(collection) = world.collections.get(&self.resource) else { return Ok(false) };
        let Some(skip) = self.next.checked_sub(collection.first) else {
            return Err(Expired { requested: self.seen, oldest: collection.base_revision });
        };
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let before = out.len();
        out.extend(collection.history.iter().skip(skip).take(BATCH).map(|e| e.event.clone()));
        self.next += (out.len() - before) as u64;
        if let Some(last) = out[before..].last() {
            self.seen = last.revision;
        }
        Ok(out.len() > before)
    }
}
