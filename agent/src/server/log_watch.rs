//! One inotify instance for everybody who follows a log.
//!
//! Hosts allow few instances (128 a user by default) and many watches, so each folder of logs has a watch and what
//! happens there is passed to those who follow a file in it. A [`Follower`] hears of changes of its file, of what takes
//! its place, and of its writer closing it; it hears nothing of other containers' logs in the folder.

use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InotifyEvent, WatchDescriptor};
use tokio::sync::Notify;

use crate::file_watch::Events;

/// The folder's: a rotation puts a new file in the place of the old one.
const WANTED: AddWatchFlags = AddWatchFlags::IN_MODIFY
    .union(AddWatchFlags::IN_CREATE)
    .union(AddWatchFlags::IN_MOVED_TO)
    .union(AddWatchFlags::IN_CLOSE_WRITE);

/// More than are rotated while somebody reads one.
const KEPT_NAMES: usize = 16;

/// After a failed read there is no use in reading again at once; followers look for themselves meanwhile.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// See the module's documentation. Begins with its first follower; needs a tokio runtime.
#[derive(Default)]
pub(super) struct LogWatch(Mutex<Option<Arc<Watches>>>);

struct Watches {
    events: Events,
    folders: Mutex<HashMap<WatchDescriptor, Vec<Arc<Ear>>>>,
}

/// What one follower hears with.
struct Ear {
    /// What is put beside the log has a longer name that begins with the log's.
    file: OsString,
    happened: Notify,
    closed: AtomicBool,
    closed_names: ClosedNames,
}

/// Files beside a log, which were the log, that their writer has closed.
#[derive(Clone, Default)]
pub(super) struct ClosedNames(Arc<Mutex<Closed>>);

#[derive(Default)]
struct Closed {
    /// The newest last.
    names: VecDeque<OsString>,
    /// How often something was not heard: any may be closed since.
    unheard: u64,
    /// How much of that says nothing any more: the log was the log after it.
    settled: u64,
}

/// Up to when somebody had looked for what was not heard.
#[derive(Clone, Copy)]
pub(super) struct Unheard(u64);

impl ClosedNames {
    fn closed(&self) -> MutexGuard<'_, Closed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn has(&self, name: &OsStr) -> bool {
        let closed = self.closed();
        closed.unheard > closed.settled || closed.names.iter().any(|known| known == name)
    }

    /// To be asked before the log is looked at, for [`ClosedNames::settle`].
    pub fn unheard(&self) -> Unheard {
        Unheard(self.closed().unheard)
    }

    /// The log was not rotated when it was looked at: whatever was not heard before has nothing to do with its next
    /// rotation.
    pub fn settle(&self, before: Unheard) {
        let mut closed = self.closed();
        closed.settled = closed.settled.max(before.0);
    }

    /// None: of a file that is not known.
    fn note(&self, name: Option<&OsStr>) {
        let mut closed = self.closed();
        match name {
            // What a rotated log is compressed to is nobody's log.
            Some(name) if name.as_bytes().ends_with(b".tmp") || name.as_bytes().ends_with(b".gz") => {}
            Some(name) => closed.names.push_back(name.to_owned()),
            None => closed.unheard += 1,
        }
        if closed.names.len() > KEPT_NAMES {
            closed.names.pop_front();
            closed.unheard += 1;
        }
    }
}

/// Hears of one log until it is dropped.
pub(super) struct Follower {
    watches: Arc<Watches>,
    folder: WatchDescriptor,
    ear: Arc<Ear>,
}

/// What a follower heard of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    Changed,
    /// Nobody writes to it any more, or to what was in its place: the end of the container, or a rotation.
    Closed,
}

impl LogWatch {
    /// Begins to follow the log at `path`; a link is followed to what it means.
    ///
    /// # Errors
    /// When the log's folder is not there, or a limit of the host is reached.
    pub fn follow(&self, path: &Path) -> io::Result<Follower> {
        let real = path.canonicalize()?;
        let (Some(folder), Some(file)) = (real.parent(), real.file_name()) else {
            return Err(io::ErrorKind::IsADirectory.into());
        };
        let watches = self.watches()?;
        let ear = Arc::new(Ear {
            file: file.to_owned(),
            happened: Notify::new(),
            closed: AtomicBool::new(false),
            closed_names: ClosedNames::default(),
        });
        // Under the lock, or the last follower of the folder takes away the watch that this one was given.
        let mut folders = watches.folders();
        let folder = watches.events.add(folder, WANTED)?;
        folders.entry(folder).or_default().push(ear.clone());
        drop(folders);
        Ok(Follower { watches, folder, ear })
    }

    fn watches(&self) -> io::Result<Arc<Watches>> {
        let mut begun = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watches) = &*begun {
            return Ok(watches.clone());
        }
        let watches = Arc::new(Watches { events: Events::new()?, folders: Mutex::default() });
        tokio::spawn(listen(watches.clone()));
        Ok(begun.insert(watches).clone())
    }
}

/// Passes on what happens; without followers nothing does.
async fn listen(watches: Arc<Watches>) {
    loop {
        match watches.events.next().await {
            Ok(events) => events.iter().for_each(|event| watches.tell(event)),
            Err(error) => {
                tracing::warn!(%error, "changes of logs are told late");
                tokio::time::sleep(LISTEN_AGAIN).await;
            }
        }
    }
}

impl Watches {
    fn folders(&self) -> MutexGuard<'_, HashMap<WatchDescriptor, Vec<Arc<Ear>>>> {
        self.folders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, event: &InotifyEvent) {
        let mut folders = self.folders();
        // The kernel has dropped what nobody read in time: something may have happened to anyone.
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            folders.values().flatten().for_each(|ear| ear.hear(Some(None)));
            return;
        }
        // The folder is gone, and its watch with it.
        if event.mask.contains(AddWatchFlags::IN_IGNORED) {
            folders.remove(&event.wd).iter().flatten().for_each(|ear| ear.hear(Some(None)));
            return;
        }
        let Some(name) = event.name.as_deref() else { return };
        let ears = folders.get(&event.wd).into_iter().flatten().filter(|ear| ear.is_of(name));
        let closed = event.mask.contains(AddWatchFlags::IN_CLOSE_WRITE).then_some(Some(name));
        ears.for_each(|ear| ear.hear(closed));
    }
}

impl Ear {
    fn is_of(&self, name: &OsStr) -> bool {
        name.as_bytes().starts_with(self.file.as_bytes())
    }

    /// `closed`: which file, or none for any.
    fn hear(&self, closed: Option<Option<&OsStr>>) {
        if let Some(name) = closed {
            // The log's own name may be the next one's by now.
            if name != Some(self.file.as_os_str()) {
                self.closed_names.note(name);
            }
            self.closed.store(true, Ordering::Release);
        }
        self.happened.notify_one();
    }
}

impl Follower {
    /// What is closed, also after this call.
    pub fn closed_names(&self) -> ClosedNames {
        self.ear.closed_names.clone()
    }

    /// Returns after something happened since the last call. Cancel safe.
    pub async fn heard(&self) -> Heard {
        self.ear.happened.notified().await;
        if self.ear.closed.swap(false, Ordering::AcqRel) { Heard::Closed } else { Heard::Changed }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut folders = self.watches.folders();
        // Without an entry the folder has gone before.
        let Some(ears) = folders.get_mut(&self.folder) else { return };
        ears.retain(|ear| !Arc::ptr_eq(ear, &self.ear));
        if ears.is_empty() {
            folders.remove(&self.folder);
            self.watches.events.remove(self.folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::time::Duration;

    use super::*;

    fn scratch(name: &str) -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("log-watch-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    async fn heard(follower: &Follower) -> Option<Heard> {
        tokio::time::timeout(Duration::from_millis(300), follower.heard()).await.ok()
    }

    #[tokio::test]
    async fn each_hears_of_its_own_log_and_of_what_takes_its_place() {
        let dir = scratch("own");
        let (one, two) = (dir.join("0.log"), dir.join("1.log"));
        let mut writer = std::fs::File::create(&one).unwrap();
        std::fs::write(&two, "").unwrap();
        let watch = LogWatch::default();
        let (first, also, other) =
            (watch.follow(&one).unwrap(), watch.follow(&one).unwrap(), watch.follow(&two).unwrap());
        assert_eq!(watch.watches().unwrap().folders().len(), 1, "one watch for a folder");
        writer.write_all(b"x").unwrap();
        assert_eq!(heard(&first).await, Some(Heard::Changed));
        assert_eq!(heard(&also).await, Some(Heard::Changed));
        assert_eq!(heard(&other).await, None);
        std::fs::rename(&one, dir.join("0.log.20260101-000000")).unwrap();
        assert_eq!(heard(&first).await, Some(Heard::Changed));
        drop(also);
        drop(writer);
        assert_eq!(heard(&first).await, Some(Heard::Closed));
        let closed = first.closed_names();
        assert!(closed.has(OsStr::new("0.log.20260101-000000")) && !closed.has(OsStr::new("0.log")));
        std::fs::File::create(&one).unwrap();
        assert!(heard(&first).await.is_some());
        drop(first);
        std::fs::write(&two, "y").unwrap();
        assert!(heard(&other).await.is_some(), "the folder is watched as long as somebody follows");
        drop(other);
        assert!(watch.watches().unwrap().folders().is_empty());
        std::fs::remove_dir_all(dir).unwrap();
    }

    /// After one overflow of the kernel's queue every rotation counted as over at once, for as long as somebody followed;
    /// and files that logs were compressed to took the places of logs.
    #[test]
    fn what_was_not_heard_counts_until_the_log_is_seen_and_only_logs_are_kept() {
        let (closed, rotated) = (ClosedNames::default(), OsStr::new("0.log.20260101-000000"));
        assert!(!closed.has(rotated));
        let before = closed.unheard();
        closed.note(None);
        assert!(closed.has(rotated));
        closed.settle(before);
        assert!(closed.has(rotated), "it was not heard after the look");
        closed.settle(closed.unheard());
        assert!(!closed.has(rotated));
        closed.note(Some(rotated));
        for number in 0..KEPT_NAMES {
            closed.note(Some(OsStr::new(&format!("0.log.{number}.tmp"))));
            closed.note(Some(OsStr::new(&format!("0.log.{number}.gz"))));
        }
        assert!(closed.has(rotated));
        for number in 0..KEPT_NAMES {
            closed.note(Some(OsStr::new(&format!("{number}.log"))));
        }
        assert!(closed.has(rotated), "what there is no room for may be any log");
    }

    #[tokio::test]
    async fn the_end_of_the_folder_is_heard_and_a_new_one_is_followed_anew() {
        let dir = scratch("gone");
        let log = dir.join("0.log");
        std::fs::write(&log, "").unwrap();
        let watch = LogWatch::default();
        let follower = watch.follow(&log).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(heard(&follower).await, Some(Heard::Closed));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(&log, "").unwrap();
        let again = watch.follow(&log).unwrap();
        drop(follower);
        std::fs::write(&log, "x").unwrap();
        assert!(heard(&again).await.is_some());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
