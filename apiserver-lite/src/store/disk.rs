//! The store's folder: log segments `N.log`, each after the snapshot `N.snap` of everything before it.
//!
//! A commit batch is one frame at the end of the newest segment, on disk before anyone hears of it. When a segment has
//! grown, the next one starts and a snapshot of the state at that point is written beside the running store; once it is
//! in place the older files go. Opening reads the newest snapshot and replays the segments from its number on.
//!
//! Only the last frame of the last segment can be torn, because a frame is written only after the one before it was
//! synced. Anything else that does not check is damage, and the store refuses to open rather than lose data silently.
//! That a file was cut between two frames shows, too: a snapshot ends with the number of its objects, and a segment
//! begins with the revision that the one before it must have reached.
//!
//! A write for which there is no room is taken back, and the log is as it was.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::frame::{self, Change, Next, changes, has_frame, next};
use super::object::{ObjectRef, ResourceId};

/// Why the store does not open. All but `Locked` need a person.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{} is in use by another process", .0.display())]
    Locked(PathBuf),
    #[error("{} is damaged at byte {at}: restore it from a backup", path.display())]
    Damaged { path: PathBuf, at: usize },
    /// The newest snapshot, or a segment after it, is not there.
    #[error("{} is missing: restore the folder from a backup", .0.display())]
    Missing(PathBuf),
}

/// Why a frame is not in the log.
#[derive(Debug, thiserror::Error)]
pub(super) enum AppendError {
    /// The log is as it was; the same frame may fit later.
    #[error("no room for the log: {0}")]
    NoRoom(std::io::Error),
    /// What is in the log is not known.
    #[error("the log cannot be written: {0}")]
    Unknown(std::io::Error),
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> OpenError + '_ {
    |source| OpenError::Io { path: path.into(), source }
}

pub(super) struct Disk {
    folder: PathBuf,
    log: File,
    /// Number of the running segment.
    segment: u64,
    log_bytes: u64,
    /// Held as long as the store is open.
    _lock: File,
}

impl Disk {
    /// Opens or makes the folder and hands every change found to `replay`, oldest first.
    pub fn open(folder: &Path, mut replay: impl FnMut(Change)) -> Result<Self, OpenError> {
        private(folder).map_err(io(folder))?;
        let lock_path = folder.join("lock");
        let lock = owned().create(true).truncate(false).write(true).open(&lock_path).map_err(io(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Err(OpenError::Locked(folder.into())),
            Err(std::fs::TryLockError::Error(source)) => return Err(OpenError::Io { path: lock_path, source }),
        }
        let files = Files::of(folder)?;
        for path in &files.all {
            close(path, 0o600).map_err(io(path))?;
        }
        for path in &files.unfinished {
            std::fs::remove_file(path).map_err(io(path))?;
        }
        let log_bytes = files.replay(folder, &mut replay)?.good;
        let (base, logs) = (files.base, files.logs);
        let segment = logs.last().copied().unwrap_or(base);
        let path = folder.join(format!("{segment}.log"));
        let log = owned().create(true).append(true).open(&path).map_err(io(&path))?;
        // What a torn write left goes before anything is appended after it.
        log.set_len(log_bytes).and_then(|()| log.sync_all()).map_err(io(&path))?;
        sync_folder(folder).map_err(io(folder))?;
        let disk = Disk { folder: folder.into(), log, segment, log_bytes, _lock: lock };
        disk.remove_before(base);
        Ok(disk)
    }

    /// Appends a frame and waits until it is durable.
    pub fn append(&mut self, frame: &[u8]) -> Result<(), AppendError> {
        match self.log.write_all(frame).and_then(|()| self.log.sync_data()) {
            Ok(()) => {
                self.log_bytes += frame.len() as u64;
                Ok(())
            }
            Err(error) if is_room(&error) && self.take_back().is_ok() => Err(AppendError::NoRoom(error)),
            Err(error) => Err(AppendError::Unknown(error)),
        }
    }

    /// Cuts off what a failed write left behind the last durable frame.
    fn take_back(&self) -> std::io::Result<()> {
        self.log.set_len(self.log_bytes)?;
        self.log.sync_all()
    }

    pub fn log_bytes(&self) -> u64 {
        self.log_bytes
    }

    /// Starts the next segment; returns what writes the snapshot that belongs before it.
    pub fn rotate(&mut self, revision: u64) -> std::io::Result<SnapshotWriter> {
        let number = self.segment + 1;
        let path = self.folder.join(format!("{number}.log"));
        let mut log = owned().create(true).append(true).open(&path)?;
        let mut head = frame::Writer::new();
        head.revision(revision);
        let head = head.finish();
        let begun = log.write_all(&head).and_then(|()| log.sync_data()).and_then(|()| sync_folder(&self.folder));
        if let Err(error) = begun {
            // The running segment stays the newest: a torn tail is only forgiven there, and a file whose name may not
            // survive must not take commits.
            std::fs::remove_file(&path)?;
            return Err(error);
        }
        self.log = log;
        self.segment = number;
        self.log_bytes = head.len() as u64;
        Ok(SnapshotWriter { folder: self.folder.clone(), number })
    }

    fn remove_before(&self, number: u64) {
        remove_before(&self.folder, number);
    }
}

/// What lies in a store's folder and belongs together.
pub(super) struct Files {
    all: Vec<PathBuf>,
    /// Snapshots that were never finished.
    unfinished: Vec<PathBuf>,
    /// Number of the newest snapshot, 0 without one.
    base: u64,
    /// Segments from there on.
    logs: Vec<u64>,
}

/// How the newest segment ends.
pub(super) struct Tail {
    /// Bytes of whole frames.
    pub good: u64,
    /// Bytes of a write that was never acknowledged.
    pub torn: u64,
}

impl Files {
    /// Lists the folder and changes nothing in it.
    pub fn of(folder: &Path) -> Result<Self, OpenError> {
        let (mut all, mut unfinished, mut logs, mut snapshots) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for entry in std::fs::read_dir(folder).map_err(io(folder))? {
            let path = entry.map_err(io(folder))?.path();
            let number = path.file_stem().and_then(|s| s.to_str()).and_then(|s| s.parse::<u64>().ok());
            match (number, path.extension().and_then(|e| e.to_str())) {
                (Some(number), Some("log")) => logs.push(number),
                (Some(number), Some("snap")) => snapshots.push(number),
                (_, Some("tmp")) => unfinished.push(path.clone()),
                _ => {}
            }
            all.push(path);
        }
        logs.sort_unstable();
        let base = snapshots.iter().max().copied().unwrap_or(0);
        logs.retain(|&number| number >= base);
        // A segment exists before the snapshot that goes with it, and only what a snapshot covers is ever removed: a
        // gap is a lost file, and what is left would open as a cluster with objects missing.
        if base > 0 || !logs.is_empty() {
            let end = logs.last().map_or(base, |&last| last);
            let mut found = logs.iter();
            if let Some(lost) = (base..=end).find(|number| found.next() != Some(number)) {
                return Err(OpenError::Missing(folder.join(format!("{lost}.log"))));
            }
        }
        Ok(Files { all, unfinished, base, logs })
    }

    /// Whether there is a store at all.
    pub fn is_empty(&self) -> bool {
        self.base == 0 && self.logs.is_empty()
    }

    /// Hands every change to `replay`, oldest first.
    pub fn replay(&self, folder: &Path, replay: &mut impl FnMut(Change)) -> Result<Tail, OpenError> {
        let mut reader = Reader { highest: 0, replay };
        if self.base > 0 {
            let path = folder.join(format!("{}.snap", self.base));
            reader.snapshot(&path, &std::fs::read(&path).map_err(io(&path))?)?;
        }
        let mut tail = Tail { good: 0, torn: 0 };
        for &number in &self.logs {
            let path = folder.join(format!("{number}.log"));
            let bytes = std::fs::read(&path).map_err(io(&path))?;
            tail.good = reader.log(&path, &bytes, Some(&number) == self.logs.last())?;
            tail.torn = bytes.len() as u64 - tail.good;
        }
        Ok(tail)
    }
}

/// Hands on what the bytes of one snapshot hold; `path` is for errors.
pub(super) fn replay_snapshot(path: &Path, bytes: &[u8], replay: &mut impl FnMut(Change)) -> Result<(), OpenError> {
    Reader { highest: 0, replay }.snapshot(path, bytes)
}

/// Whether a write failed for want of room, which may come back.
fn is_room(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}

/// Reads the files in order and hands on what they hold.
struct Reader<'a, R> {
    /// Revision of the newest change so far.
    highest: u64,
    replay: &'a mut R,
}

impl<R: FnMut(Change)> Reader<'_, R> {
    fn snapshot(&mut self, path: &Path, bytes: &[u8]) -> Result<(), OpenError> {
        let damaged = |at| OpenError::Damaged { path: path.into(), at };
        let (mut at, mut objects, mut end) = (0, 0, None);
        loop {
            match next(&bytes[at..]) {
                Next::End if end == Some(objects) => return Ok(()),
                Next::End | Next::Broken => return Err(damaged(at)),
                Next::Frame(payload, length) => {
                    for change in changes(payload).ok_or_else(|| damaged(at))? {
                        match &change {
                            Change::End(count) => end = Some(*count),
                            Change::Put(..) => objects += 1,
                            Change::Revision(revision) => self.highest = *revision,
                            Change::Delete(..) => return Err(damaged(at)),
                        }
                        (self.replay)(change);
                    }
                    at += length;
                }
            }
        }
    }

    /// Returns the number of good bytes. A torn tail is fine in the newest segment only.
    fn log(&mut self, path: &Path, bytes: &[u8], newest: bool) -> Result<u64, OpenError> {
        let damaged = |at| OpenError::Damaged { path: path.into(), at };
        let mut at = 0;
        loop {
            match next(&bytes[at..]) {
                Next::End => return Ok(at as u64),
                Next::Frame(payload, length) => {
                    for change in changes(payload).ok_or_else(|| damaged(at))? {
                        match &change {
                            // The segment before this one, or the snapshot, does not reach as far as it did.
                            Change::Revision(revision) if *revision > self.highest => return Err(damaged(at)),
                            Change::Revision(_) | Change::End(_) => {}
                            Change::Put(_, object) => self.highest = self.highest.max(object.revision),
                            Change::Delete(_, _, revision) => self.highest = self.highest.max(*revision),
                        }
                        (self.replay)(change);
                    }
                    at += length;
                }
                Next::Broken if newest && !has_frame(&bytes[at + 1..]) => {
                    tracing::warn!(path = %path.display(), at, lost = bytes.len() - at, "dropping an unfinished write");
                    return Ok(at as u64);
                }
                Next::Broken => return Err(damaged(at)),
            }
        }
    }
}

/// Makes the folder for its owner alone, or closes one that is there: secrets lie in it.
fn private(folder: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    close(folder, 0o700)
}

/// Sets the mode where others had any right.
fn close(path: &Path, mode: u32) -> std::io::Result<()> {
    if std::fs::metadata(path)?.permissions().mode() & 0o077 == 0 {
        return Ok(());
    }
    std::fs::set_permissions(path, Permissions::from_mode(mode))
}

/// How files are opened that only their owner may read.
fn owned() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

fn sync_folder(folder: &Path) -> std::io::Result<()> {
    File::open(folder)?.sync_all()
}

fn remove_before(folder: &Path, number: u64) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let old =
            path.file_stem().and_then(|s| s.to_str()).and_then(|s| s.parse::<u64>().ok()).is_some_and(|n| n < number);
        if old && matches!(path.extension().and_then(|e| e.to_str()), Some("log" | "snap")) {
            // The next start tries again.
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// Writes a snapshot beside the running store.
pub(super) struct SnapshotWriter {
    folder: PathBuf,
    number: u64,
}

/// Frames of a snapshot are about this large, so that reading one back needs little memory beside the file.
const SNAPSHOT_FRAME: usize = 1 << 20;

impl SnapshotWriter {
    pub fn write(self, revision: u64, objects: impl Iterator<Item = (ResourceId, ObjectRef)>) -> std::io::Result<()> {
        let unfinished = self.folder.join(format!("{}.snap.tmp", self.number));
        if let Err(error) = write_snapshot(&unfinished, revision, objects) {
            // It may be what fills the disk. The next start removes it if this does not.
            let _ = std::fs::remove_file(&unfinished);
            return Err(error);
        }
        std::fs::rename(&unfinished, self.folder.join(format!("{}.snap", self.number)))?;
        sync_folder(&self.folder)?;
        remove_before(&self.folder, self.number);
        Ok(())
    }
}

fn write_snapshot(
    path: &Path,
    revision: u64,
    objects: impl Iterator<Item = (ResourceId, ObjectRef)>,
) -> std::io::Result<()> {
    let mut file = owned().create(true).truncate(true).write(true).open(path)?;
    snapshot_to(&mut file, revision, objects)?;
    file.sync_all()
}

/// The bytes of a snapshot.
pub(super) fn snapshot_to(
    out: &mut impl Write,
    revision: u64,
    objects: impl Iterator<Item = (ResourceId, ObjectRef)>,
) -> std::io::Result<()> {
    let mut frame = frame::Writer::new();
    frame.revision(revision);
    let mut count = 0;
    for (resource, object) in objects {
        frame.put(&resource, &object);
        count += 1;
        if frame.len() > SNAPSHOT_FRAME {
            out.write_all(&std::mem::replace(&mut frame, frame::Writer::new()).finish())?;
        }
    }
    frame.end(count);
    out.write_all(&frame.finish())
}

/// Makes a folder that opens as a store with these objects at this revision.
pub(super) fn found(
    folder: &Path,
    revision: u64,
    objects: impl Iterator<Item = (ResourceId, ObjectRef)>,
) -> std::io::Result<()> {
    private(folder)?;
    let mut head = frame::Writer::new();
    head.revision(revision);
    let mut log = owned().create_new(true).write(true).open(folder.join("1.log"))?;
    log.write_all(&head.finish())?;
    log.sync_all()?;
    // Last, as it makes the rest count: without it the folder does not open.
    SnapshotWriter { folder: folder.into(), number: 1 }.write(revision, objects)
}
