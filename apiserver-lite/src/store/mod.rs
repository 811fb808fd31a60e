//! The store: every object of every resource, one revision counter for all, history for watches and old reads.
//!
//! An object at rest is bytes: its JSON as clients get it (schema order, `resourceVersion` in place), its protobuf on
//! first demand, and the few parsed keys that reads need. One writer thread takes commits from a queue, checks
//! preconditions against memory, appends a batch to the durable log with one sync, then publishes. Acknowledged means
//! durable. Readers take snapshots, which cost a reference count, and never wait for the disk.

mod compaction;
mod disk;
mod frame;
mod hash;
mod image;
mod object;
mod text;
mod watch;
mod world;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc, oneshot};

pub use disk::OpenError;
pub use image::Image;
pub use object::{Encoded, Key, Keys, Mark, ObjectRef, ResourceId, StoredObject, encode};
pub use text::Text;
pub use watch::{Event, EventKind, EventRef, Expired, Watcher};
pub use world::Snapshot;
pub use writer::{Change, CommitError, Expect, Write};

use compaction::Compaction;
use object::{ByKey, Place};
use world::{Collection, Limits, Objects, World};

/// A snapshot is written when the log has grown to this many bytes (or twice the live data, if that is more).
const SNAPSHOT_BYTES: u64 = 16 << 20;
/// Commits that may wait for the writer; more callers wait to get in line.
const QUEUE: usize = 1024;
/// The age that nothing of the past reaches while a process runs: other limits hold it then.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// A handle to the store; clones share it. The writer ends when the last one is dropped.
#[derive(Clone)]
pub struct Store {
    world: Arc<RwLock<World>>,
    queue: mpsc::Sender<writer::Request>,
    revision: tokio::sync::watch::Receiver<u64>,
    failed: Arc<AtomicBool>,
    /// None in memory.
    folder: Option<Arc<Path>>,
    /// Milliseconds that a batch takes as on a slow disk, where others read meanwhile.
    #[cfg(test)]
    pub slowness: Arc<std::sync::atomic::AtomicU64>,
}

impl Store {
    /// Opens the store in a folder, or an empty one in memory only. Blocks while it reads the folder.
    ///
    /// # Errors
    /// When the folder cannot be used, is in use, or is damaged.
    pub fn open(folder: Option<PathBuf>) -> Result<Self, OpenError> {
        Store::open_with(folder, Limits::default())
    }

    /// The same where the past is kept for another time; zero for as long as there is room for it.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_keeping(folder: Option<PathBuf>, past: Duration) -> Result<Self, OpenError> {
        let age = if past.is_zero() { FOR_EVER } else { past };
        Store::open_with(folder, Limits { age, ..Limits::default() })
    }

    fn open_with(folder: Option<PathBuf>, limits: Limits) -> Result<Self, OpenError> {
        let mut found: std::collections::HashMap<ResourceId, Objects> = std::collections::HashMap::new();
        // etcd starts at 1, so the first write is version 2.
        let mut revision = 1;
        let place = folder.as_deref().map(Arc::from);
        let disk = match folder {
            None => None,
            Some(folder) => Some(disk::Disk::open(&folder, |change| match change {
                frame::Change::Put(resource, object) => {
                    revision = revision.max(object.revision);
                    let objects = found.entry(resource).or_insert_with(Objects::new_sync);
                    objects.insert_mut(ByKey(Arc::new(object)));
                }
                frame::Change::Delete(resource, key, at) => {
                    revision = revision.max(at);
                    if let Some(objects) = found.get_mut(&resource) {
                        objects.remove_mut(&(&*key.namespace, &*key.name) as &dyn Place);
                    }
                }
                frame::Change::Revision(at) => revision = revision.max(at),
                frame::Change::End(_) => {}
            })?),
        };
        let collections = found.into_iter().map(|(id, objects)| (id, Collection::with(objects, revision)));
        let compaction = Compaction::new(limits.age, revision);
        let world = World { revision, collections: collections.collect(), opened_at: revision, compaction };
        let world = Arc::new(RwLock::new(world));
        let (queue, requests) = mpsc::channel(QUEUE);
        let tell = tokio::sync::watch::Sender::new(revision);
        let failed = Arc::new(AtomicBool::new(false));
        let store = Store {
            world: world.clone(),
            queue,
            revision: tell.subscribe(),
            failed: failed.clone(),
            folder: place,
            #[cfg(test)]
            slowness: Arc::default(),
        };
        let no_thread = |source| OpenError::Io { path: PathBuf::from("store-writer"), source };
        let writer = writer::Writer {
            #[cfg(test)]
            slowness: store.slowness.clone(),
            recent: Default::default(),
            world,
            disk,
            queue: requests,
            revision: tell,
            failed,
            snapshot_at: SNAPSHOT_BYTES,
            snapshot_running: Arc::new(AtomicBool::new(false)),
            limits,
            trim_at: None,
            full: false,
            timer: tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(no_thread)?,
        };
        crate::thread("store-writer").spawn(move || writer.run()).map_err(no_thread)?;
        Ok(store)
    }

    fn read<T>(&self, read: impl FnOnce(&World) -> T) -> T {
        read(&self.world.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Revision of the newest write.
    pub fn revision(&self) -> u64 {
        self.read(|w| w.revision)
    }

    /// Bytes of the store's files; None where it is in memory alone, or they cannot be read.
    pub fn bytes_on_disk(&self) -> Option<u64> {
        let files = std::fs::read_dir(self.folder.as_deref()?).ok()?;
        // A file may go away between the listing and the look at it.
        Some(files.flatten().filter_map(|file| file.metadata().ok()).map(|m| m.len()).sum())
    }

    /// Whether writes are possible; false after the log could not be written.
    pub fn is_healthy(&self) -> bool {
        !self.failed.load(Ordering::Acquire)
    }

    pub fn get(&self, resource: &ResourceId, namespace: &str, name: &str) -> Option<ObjectRef> {
        self.read(|w| {
            let key = (namespace, name);
            w.collections.get(resource)?.objects.get(&key as &dyn Place).map(|o| o.0.clone())
        })
    }

    /// How often each of some collections has changed since this process opened the store.
    pub fn changes<const N: usize>(&self, resources: &[ResourceId; N]) -> [u64; N] {
        self.read(|w| resources.each_ref().map(|r| w.collections.get(r).map_or(0, world::Collection::end)))
    }

    /// The collection as it is now.
    pub fn snapshot(&self, resource: &ResourceId) -> Snapshot {
        self.read(|w| {
            let objects = w.collections.get(resource).map_or_else(Objects::new_sync, |c| c.objects.clone());
            Snapshot { revision: w.revision, objects }
        })
    }

    /// The collection as it was at a revision.
    ///
    /// # Errors
    /// [`Expired`] when that is too long ago, for this collection or for the store.
    pub fn snapshot_at(&self, resource: &ResourceId, revision: u64) -> Result<Snapshot, Expired> {
        self.read(|w| {
            let gone = |oldest| Expired { requested: revision, oldest };
            let compacted = w.compaction.revision(Instant::now());
            if revision < compacted {
                return Err(gone(compacted));
            }
            let objects = match w.collections.get(resource) {
                Some(collection) => collection.at(revision).ok_or_else(|| gone(collection.base_revision))?.clone(),
                None if revision < w.opened_at => return Err(gone(w.opened_at)),
                None => Objects::new_sync(),
            };
            Ok(Snapshot { revision, objects })
        })
    }

    /// Waits until the store has reached a revision; false when the time is over first.
    pub async fn wait_for(&self, revision: u64, limit: Duration) -> bool {
        let mut newest = self.revision.clone();
        let reached = newest.wait_for(|&r| r >= revision);
        matches!(tokio::time::timeout(limit, reached).await, Ok(Ok(_)))
    }

    /// The newest revision as something to wait on.
    pub fn subscribe_revision(&self) -> tokio::sync::watch::Receiver<u64> {
        self.revision.clone()
    }

    /// Writes one object; on success it is durable. Not cancel safe in the sense that a dropped call may or may not
    /// have happened.
    ///
    /// # Errors
    /// See [`CommitError`].
    pub async fn commit(&self, write: Write) -> Result<ObjectRef, CommitError> {
        let (answer, answered) = oneshot::channel();
        self.queue.send(writer::Request { write, answer }).await.map_err(|_| CommitError::Closed)?;
        let writer::Written { object, spent } = answered.await.unwrap_or(Err(CommitError::Closed))?;
        drop(spent);
        Ok(object)
    }

    /// A watcher that gives out every change of a collection after a revision.
    ///
    /// # Errors
    /// [`Expired`] when changes after that revision are no longer known.
    pub fn watch(&self, resource: &ResourceId, from: u64) -> Result<Watcher, Expired> {
        let mut world = self.world.write().unwrap_or_else(PoisonError::into_inner);
        let opened_at = world.opened_at;
        // A resource without objects yet gets its collection here, so that there is something to wait on.
        let collection = world.collections.entry(resource.clone()).or_insert_with(|| Collection::new(opened_at));
        let next =
            collection.sequence_after(from).ok_or(Expired { requested: from, oldest: collection.base_revision })?;
        let end = collection.tell.subscribe();
        Ok(Watcher { world: self.world.clone(), resource: resource.clone(), next, end, seen: from })
    }

    /// Has a bell rung after each change of some collections, for as long as there is the bell. Who waits for many of
    /// them waits in one place, and not in one for each.
    pub fn ring(&self, resources: &[ResourceId], bell: &Arc<Notify>) {
        let mut world = self.world.write().unwrap_or_else(PoisonError::into_inner);
        let opened_at = world.opened_at;
        for resource in resources {
            let collection = world.collections.entry(resource.clone()).or_insert_with(|| Collection::new(opened_at));
            let others = collection.bells.iter().filter(|bell| bell.strong_count() > 0).cloned();
            collection.bells = others.chain([Arc::downgrade(bell)]).collect();
        }
    }
}

#[cfg(test)]
mod tests;
