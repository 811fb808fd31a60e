//! Static pods: manifest files in a directory, or one file.
//!
//! The directory is watched by inotify and read again every `fileCheckFrequency`. Names that begin with a dot are left
//! out; directories are not entered. A file that cannot be read as a pod is logged and skipped; when the directory
//! itself cannot be read nothing is said, so the pods stay.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use proto::api::core::v1::Pod;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use super::{Source, Update, manifest};

/// Writers that do not rename are given this long to finish.
const SETTLE: Duration = Duration::from_millis(50);

struct Watcher(Inotify);

impl AsRawFd for Watcher {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

type Stamp = (u64, SystemTime);

/// What a file held when it was read last.
struct Known {
    stamp: Stamp,
    pod: Option<Pod>,
}

/// Follows the manifests at `path` until the receiver is gone.
pub async fn follow(path: PathBuf, node: String, every: Duration, updates: mpsc::Sender<Update>) {
    let watcher = watch(&path).inspect_err(|error| {
        tracing::debug!(%error, path = %path.display(), "cannot watch the static pod path; reading it now and then");
    });
    let watcher = watcher.ok();
    let mut known = BTreeMap::new();
    let mut first = true;
    loop {
        match read_all(&path, &node, &mut known) {
            Ok(changed) if changed || first => {
                first = false;
                let pods = known.values().filter_map(|k: &Known| k.pod.clone()).collect();
                if updates.send(Update::Listed(Source::File, pods)).await.is_err() {
                    return;
                }
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "cannot read the static pod path");
                if first && error.kind() == std::io::ErrorKind::NotFound {
                    // A path that is not there holds no pods.
                    first = false;
                    if updates.send(Update::Listed(Source::File, Vec::new())).await.is_err() {
                        return;
                    }
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            () = changed(watcher.as_ref()) => tokio::time::sleep(SETTLE).await,
            () = updates.closed() => return,
        }
    }
}

#[expect(deprecated, reason = "its successor needs unsafe code, which this crate has none of")]
fn watch(path: &Path) -> std::io::Result<AsyncFd<Watcher>> {
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    let flags = AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_MOVED_FROM
        | AddWatchFlags::IN_DELETE;
    inotify.add_watch(path, flags)?;
    // The descriptor lives as long as the watcher inside, which is what the new constructor asks to promise.
    AsyncFd::new(Watcher(inotify))
}

async fn changed(watcher: Option<&AsyncFd<Watcher>>) {
    let Some(watcher) = watcher else { return std::future::pending().await };
    loop {
        let Ok(mut ready) = watcher.readable().await else { return std::future::pending().await };
        let events = watcher.get_ref().0.read_events();
        ready.clear_ready();
        match events {
            Ok(events) if !events.is_empty() => return,
            Ok(_) | Err(nix::errno::Errno::EAGAIN) => {}
            Err(_) => return,
        }
    }
}

/// Reads what changed; whether anything did.
fn read_all(path: &Path, node: &str, known: &mut BTreeMap<PathBuf, Known>) -> std::io::Result<bool> {
    let mut files = BTreeMap::new();
    let metadata = std::fs::metadata(path)?;
    if metadata.is_dir() {
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            let hidden = entry.file_name().as_encoded_bytes().first() == Some(&b'.');
            // A file that vanished meanwhile is not there.
            let Ok(metadata) = std::fs::metadata(entry.path()) else { continue };
            if !hidden && metadata.is_file() {
                files.insert(entry.path(), stamp(&metadata));
            }
        }
    } else {
        files.insert(path.to_owned(), stamp(&metadata));
    }
    let before = known.len();
    known.retain(|path, _| files.contains_key(path));
    let mut changed = known.len() != before;
    for (file, stamp) in files {
        if known.get(&file).is_some_and(|k| k.stamp == stamp) {
            continue;
        }
        changed = true;
        let pod = read_one(&file, node, stamp.0);
        known.insert(file, Known { stamp, pod });
    }
    Ok(changed)
}

fn stamp(metadata: &std::fs::Metadata) -> Stamp {
    (metadata.len(), metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH))
}

fn read_one(file: &Path, node: &str, length: u64) -> Option<Pod> {
    if length > manifest::MAX_BYTES {
        tracing::warn!(file = %file.display(), "the manifest is too big");
        return None;
    }
    let text = std::fs::read(file)
        .inspect_err(|error| tracing::warn!(%error, file = %file.display(), "cannot read a manifest"))
        .ok()?;
    manifest::parse(&text, node, manifest::Origin::File(file))
        .inspect_err(|error| tracing::warn!(%error, file = %file.display(), "not a manifest of a static pod"))
        .ok()
}
