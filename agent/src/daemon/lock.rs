//! The lock file: one agent at a time on a root folder, which two would fight over.

use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::StartError;
use crate::file_watch::FileWatch;

/// Held as long as it lives.
pub struct Lock(#[expect(dead_code, reason = "holding it is its use")] Flock<std::fs::File>);

/// Takes the lock, or waits for it and says for whom.
///
/// # Errors
/// When the file cannot be opened or locked.
pub async fn take(path: &Path) -> Result<Lock, StartError> {
    let refused =
        |source: io::Error| StartError::File { what: "unable to acquire file lock on", path: path.to_owned(), source };
    tracing::info!(path = %path.display(), "Acquiring file lock");
    let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path);
    let file = match Flock::lock(file.map_err(refused)?, FlockArg::LockExclusiveNonblock) {
        Ok(held) => return Ok(Lock(held)),
        Err((file, Errno::EWOULDBLOCK)) => file,
        Err((_, error)) => return Err(refused(error.into())),
    };
    let holder = holder(path).map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
    tracing::warn!(path = %path.display(), "{holder} holds the lock; waiting for its end");
    service::notify::status(&format!("waiting for {holder}, which holds {}", path.display()));
    // A thread that nobody waits for: the agent may be told to stop before it gets the lock.
    let (taken, waited) = tokio::sync::oneshot::channel();
    let wait = move || {
        let held = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, e)| io::Error::from(e));
        // Whoever does not want it any more lets go of it by dropping it.
        let _ = taken.send(held);
    };
    std::thread::Builder::new().name("lock".into()).spawn(wait).map_err(refused)?;
    Ok(Lock(waited.await.map_err(|e| refused(io::Error::other(e)))?.map_err(refused)?))
}

/// Who holds a lock on the file: `/proc/locks` has a line for each with number, kind, mode, access, process, and
/// device:inode.
fn holder(path: &Path) -> Option<u32> {
    let inode = std::fs::metadata(path).ok()?.ino().to_string();
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    locks.lines().filter(|line| !line.contains("->")).find_map(|line| {
        let mut words = line.split_whitespace().skip(4);
        let (pid, file) = (words.next()?, words.next()?);
        if file.rsplit(':').next() == Some(inode.as_str()) { pid.parse().ok() } else { None }
    })
}

/// Watches for another process that opens or deletes the file; None where it cannot be watched.
pub fn contention(path: &Path) -> Option<FileWatch> {
    use nix::sys::inotify::AddWatchFlags;
    let events = AddWatchFlags::IN_OPEN | AddWatchFlags::IN_DELETE_SELF;
    let watch = FileWatch::new(&[(path, events)]);
    watch
        .inspect_err(|error| tracing::warn!(%error, path = %path.display(), "cannot watch the lock file for others"))
        .ok()
}
