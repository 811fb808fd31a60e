//! The one thread that changes the store: takes commits from a queue, checks them against memory, makes a batch durable
//! with one sync, then publishes and answers.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};

use super::disk::{AppendError, Disk};
use super::frame;
use super::object::{ByKey, Encoded, Key, ObjectRef, Place, ResourceId, StoredObject};
use super::text::Text;
use super::watch::{EventKind, EventRef};
use super::world::{Collection, Limits, Objects, World, event};

/// What must be true of the stored object for a write to go through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    Absent,
    /// The object exists at exactly this revision.
    Revision(u64),
    /// The object exists.
    Present,
}

#[derive(Debug)]
pub enum Change {
    Put(Encoded),
    /// Carries the last state, which watchers get with the delete's revision.
    Delete(Encoded),
}

impl Change {
    /// About the bytes that the change takes in the log.
    fn bytes(&self) -> usize {
        match self {
            Change::Put(encoded) => encoded.json.json.len(),
            Change::Delete(_) => 0,
        }
    }
}

#[derive(Debug)]
pub struct Write {
    pub resource: ResourceId,
    pub key: Key,
    pub expect: Expect,
    pub change: Change,
}

/// Why a write did not happen. Except for `Closed` the caller may look at the object and try again.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CommitError {
    #[error("the object exists")]
    Exists(ObjectRef),
    #[error("the object does not exist")]
    Missing,
    #[error("the object was changed")]
    Conflict(ObjectRef),
    #[error("the store takes no more writes")]
    Closed,
    /// Nothing was written; it may go through once there is room.
    #[error("there is no room to store the object")]
    NoRoom,
}

pub(super) struct Request {
    pub write: Write,
    pub answer: oneshot::Sender<Answer>,
}

/// What a writer is told.
pub(super) type Answer = Result<Written, CommitError>;

/// A write that is durable.
pub(super) struct Written {
    pub object: ObjectRef,
    /// A tree of an earlier write that is kept no longer. Its pieces are freed where the next request needs such pieces:
    /// what this thread freed, each of the others would have to get back under a lock.
    pub spent: Option<Arc<serde_json::Value>>,
}

pub(super) struct Writer {
    pub world: Arc<RwLock<World>>,
    pub disk: Option<Disk>,
    pub queue: mpsc::Receiver<Request>,
    pub revision: watch::Sender<u64>,
    pub failed: Arc<AtomicBool>,
    /// Snapshot when the running log has this many bytes.
    pub snapshot_at: u64,
    pub snapshot_running: Arc<AtomicBool>,
    pub limits: Limits,
    /// When history has to be looked at though nothing is written.
    pub trim_at: Option<Instant>,
    /// Trees of what was written last, kept for those who look at every change.
    pub recent: VecDeque<Arc<serde_json::Value>>,
    /// The last batch found no room.
    pub full: bool,
    /// For waiting with a deadline.
    pub timer: tokio::runtime::Runtime,
    #[cfg(test)]
    pub slowness: Arc<std::sync::atomic::AtomicU64>,
}

/// Writes per sync at most, so that the first of a long queue is not kept waiting.
const BATCH: usize = 512;
/// Bytes of objects per sync at about most: far below the largest frame that is read back.
const BATCH_BYTES: usize = 16 << 20;

/// Trees that are kept for readers of changes, and for how long after the last write.
const RECENT: usize = 64;
const LINGER: Duration = Duration::from_millis(100);

/// When so many events are let go of at a time, what they leave free is worth giving back.
const MANY: usize = 1000;

/// A write that passed its check, before it is durable.
struct Accepted {
    resource: ResourceId,
    event: EventRef,
    after: Objects,
    tree: Option<Arc<serde_json::Value>>,
    answer: oneshot::Sender<Answer>,
}

impl Writer {
    pub fn run(mut self) {
        let mut requests = Vec::with_capacity(BATCH);
        while self.wait(&mut requests) {
            if self.trim_at.is_some_and(|at| at <= Instant::now()) {
                self.trim();
            }
            if requests.is_empty() {
                self.recent = VecDeque::new();
            }
            while !requests.is_empty() && !self.failed.load(Ordering::Acquire) {
                let count = batch_length(requests.iter().map(|r| r.write.change.bytes()));
                self.batch(requests.drain(..count));
            }
            requests.drain(..).for_each(|r| drop(r.answer.send(Err(CommitError::Closed))));
        }
    }

    /// Waits for writes, or until history has to be looked at; false when there will be no more writes.
    fn wait(&mut self, requests: &mut Vec<Request>) -> bool {
        let trim = self.trim_at.map(|at| at.saturating_duration_since(Instant::now()));
        let left = if self.recent.is_empty() { trim } else { Some(trim.map_or(LINGER, |t| t.min(LINGER))) };
        let queue = &mut self.queue;
        self.timer.block_on(async {
            let received = queue.recv_many(requests, BATCH);
            match left {
                Some(left) => tokio::time::timeout(left, received).await.unwrap_or(1),
                None => received.await,
            }
        }) > 0
    }

    /// Lets go of history that is too old, of resources that nobody writes as well.
    fn trim(&mut self) {
        let (mut gone, now) = (Vec::new(), Instant::now());
        let oldest = self.world.write().unwrap_or_else(PoisonError::into_inner).trim(&self.limits, now, &mut gone);
        // Not at every event's own time: a busy store would do nothing else.
        self.trim_at = oldest.map(|oldest| (oldest + self.limits.age).max(now + self.limits.age / 16));
        // Nobody else notices: nothing was asked and nothing written.
        if gone.len() >= MANY {
            drop(gone);
            service::memory::give_back();
        }
    }

    fn batch(&mut self, requests: impl Iterator<Item = Request>) {
        let mut accepted = Vec::new();
        let mut refused = Vec::new();
        let mut frame = frame::Writer::new();
        let mut changed: HashMap<ResourceId, Objects> = HashMap::new();
        let mut revision = {
            let world = self.world.read().unwrap_or_else(PoisonError::into_inner);
            for request in requests {
                // The collection as the writes before this one in the batch leave it.
                let objects = changed.get(&request.write.resource);
                let collection = world.collections.get(&request.write.resource);
                let objects = objects.or_else(|| collection.map(|c| &c.objects));
                let objects = objects.cloned().unwrap_or_else(Objects::new_sync);
                let next = world.revision + accepted.len() as u64 + 1;
                match check(&objects, &request.write) {
                    Ok(previous) => {
                        // A new object has much in common with the one that was written last.
                        let newest = || Some(&collection?.history.back()?.event.object);
                        let like = previous.as_ref().or_else(newest).cloned();
                        let one = accept(request, objects, previous, next, like, &mut frame);
                        changed.insert(one.resource.clone(), one.after.clone());
                        accepted.push(one);
                    }
                    Err(error) => refused.push((request.answer, error)),
                }
            }
            world.revision
        };
        if !accepted.is_empty()
            && let Some(disk) = &mut self.disk
            && let Err(error) = disk.append(&frame.finish())
        {
            let why = self.refuse(&error);
            accepted.into_iter().for_each(|a| drop(a.answer.send(Err(why.clone()))));
            refused.into_iter().for_each(|(answer, error)| drop(answer.send(Err(error))));
            return;
        }
        #[cfg(test)]
        std::thread::sleep(Duration::from_millis(self.slowness.load(Ordering::Relaxed)));
        if std::mem::take(&mut self.full) {
            tracing::info!("there is room for the log again");
        }
        revision += accepted.len() as u64;
        let answers = self.publish(accepted, revision);
        // A caller that went away has no one to tell.
        answers.into_iter().for_each(|(answer, written)| drop(answer.send(Ok(written))));
        refused.into_iter().for_each(|(answer, error)| drop(answer.send(Err(error))));
        self.maybe_snapshot();
    }

    /// What the writes of a batch hear that is not in the log.
    fn refuse(&mut self, error: &AppendError) -> CommitError {
        match error {
            AppendError::NoRoom(_) => {
                if !std::mem::replace(&mut self.full, true) {
                    tracing::error!(%error, "writes are refused until there is room");
                }
                CommitError::NoRoom
            }
            // Nothing may be acknowledged from here on, and memory stays at the last state that is certain. A restart
            // replays the log.
            AppendError::Unknown(_) => {
                tracing::error!(%error, "the store is closed");
                self.failed.store(true, Ordering::Release);
                CommitError::Closed
            }
        }
    }

    fn publish(&mut self, accepted: Vec<Accepted>, revision: u64) -> Vec<(oneshot::Sender<Answer>, Written)> {
        let now = Instant::now();
        let mut answers = Vec::with_capacity(accepted.len());
        let mut touched = HashMap::new();
        let mut gone = Vec::new();
        {
            let mut world = self.world.write().unwrap_or_else(PoisonError::into_inner);
            let opened_at = world.opened_at;
            for one in accepted {
                let collection =
                    world.collections.entry(one.resource.clone()).or_insert_with(|| Collection::new(opened_at));
                self.recent.extend(one.tree);
                let spent = if self.recent.len() > RECENT { self.recent.pop_front() } else { None };
                answers.push((one.answer, Written { object: one.event.object.clone(), spent }));
                collection.push(one.event, one.after, now);
                collection.trim(&self.limits, now, &mut gone);
                touched.insert(one.resource, (collection.tell.clone(), collection.end(), collection.bells.clone()));
            }
            world.revision = revision;
            world.compaction.reached(revision, now);
        }
        for (tell, end, bells) in touched.into_values() {
            tell.send_replace(end);
            bells.iter().filter_map(Weak::upgrade).for_each(|bell| bell.notify_one());
        }
        self.revision.send_replace(revision);
        self.trim_at.get_or_insert(now + self.limits.age);
        answers
    }

    fn maybe_snapshot(&mut self) {
        let Some(disk) = &mut self.disk else { return };
        if disk.log_bytes() < self.snapshot_at || self.snapshot_running.swap(true, Ordering::AcqRel) {
            return;
        }
        let (revision, collections): (u64, Vec<(ResourceId, Objects)>) = {
            let world = self.world.read().unwrap_or_else(PoisonError::into_inner);
            (world.revision, world.collections.iter().map(|(id, c)| (id.clone(), c.objects.clone())).collect())
        };
        let live: u64 = collections.iter().flat_map(|(_, o)| o.iter()).map(|o| o.0.json.len() as u64).sum();
        // Twice the live size keeps the work of snapshots below that of the writes themselves.
        self.snapshot_at = (live * 2).max(super::SNAPSHOT_BYTES);
        let running = self.snapshot_running.clone();
        match disk.rotate(revision) {
            Ok(snapshot) => {
                let write = move || {
                    let objects = collections
                        .iter()
                        .flat_map(|(id, objects)| objects.iter().map(move |o| (id.clone(), o.0.clone())));
                    if let Err(error) = snapshot.write(revision, objects) {
                        tracing::warn!(%error, "no snapshot; the log is kept instead");
                    }
                    running.store(false, Ordering::Release);
                };
                if let Err(error) = crate::thread("store-snapshot").spawn(write) {
                    tracing::warn!(%error, "no snapshot; the log is kept instead");
                    self.snapshot_running.store(false, Ordering::Release);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the log stays in one file");
                running.store(false, Ordering::Release);
            }
        }
    }
}

/// How many of the waiting writes, by their sizes, go into one batch: at least one.
fn batch_length(sizes: impl Iterator<Item = usize>) -> usize {
    let mut bytes = 0usize;
    sizes
        .take_while(|size| {
            let first = bytes == 0;
            bytes = bytes.saturating_add((*size).max(1));
            first || bytes <= BATCH_BYTES
        })
        .count()
}

fn check(objects: &Objects, write: &Write) -> Result<Option<ObjectRef>, CommitError> {
    let key: (&str, &str) = (&write.key.namespace, &write.key.name);
    let found = objects.get(&key as &dyn Place).map(|o| o.0.clone());
    match (write.expect, found) {
        (Expect::Absent, None) => Ok(None),
        (Expect::Absent, Some(object)) => Err(CommitError::Exists(object)),
        (_, None) => Err(CommitError::Missing),
        (Expect::Revision(revision), Some(object)) if object.revision != revision => Err(CommitError::Conflict(object)),
        (_, found) => Ok(found),
    }
}

fn accept(
    request: Request,
    objects: Objects,
    previous: Option<ObjectRef>,
    revision: u64,
    like: Option<ObjectRef>,
    frame: &mut frame::Writer,
) -> Accepted {
    let Request { write: Write { resource, key, change, .. }, answer } = request;
    let (mut encoded, deleted) = match change {
        Change::Put(encoded) => (encoded, false),
        Change::Delete(encoded) => (encoded, true),
    };
    let tree = encoded.tree_at(revision);
    let nothing = Text::default();
    let json = Text::written(encoded.json.into_version(revision), like.as_ref().map_or(&nothing, |like| &like.json));
    let object = Arc::new(StoredObject::of(key, revision, encoded.keys, json).with_tree(tree.as_ref()));
    let kind = match (&previous, deleted) {
        (_, true) => EventKind::Deleted,
        (None, false) => EventKind::Added,
        (Some(_), false) => EventKind::Modified,
    };
    let after = if deleted {
        frame.delete(&resource, &object.key, revision);
        let key: (&str, &str) = (&object.key.namespace, &object.key.name);
        objects.remove(&key as &dyn Place)
    } else {
        frame.put(&resource, &object);
        // Elements are equal by key, and of two that are the set keeps the new one: one way through the tree, with one
        // copy of the nodes on it.
        objects.insert(ByKey(object.clone()))
    };
    Accepted { resource, event: event(kind, object, previous, revision), after, tree, answer }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_bounded_in_bytes_but_takes_at_least_one_write() {
        assert_eq!(batch_length([0, 0, 5].into_iter()), 3);
        assert_eq!(batch_length([BATCH_BYTES * 2, 1].into_iter()), 1);
        assert_eq!(batch_length([BATCH_BYTES / 2, BATCH_BYTES / 2, 1].into_iter()), 2);
    }
}
