//! Static pods: manifest files in a directory, or one file.
//!
//! The path is watched by inotify and read again every `fileCheckFrequency`. Names that begin with a dot are left out;
//! directories are not entered. A file of the directory that cannot be read as a pod is logged and skipped; a single file
//! that cannot, and a path that cannot be read, say nothing, so the pods stay. A path that is not there holds no pods.
//!
//! Of several files whose pods have one name the last in the order of their names counts, so that a copy is no second pod.
//! Files are read whole each time: what a file says may change while its size and times do not.
//!
//! Followed: `pkg/kubelet/config/file.go` and `file_linux.go`.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use proto::api::core::v1::Pod;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use super::manifest::{self, Manifests};
use super::{Source, Update};
use crate::pod::hash::fnv1a_128;
use crate::pod::spec::PodExt;

/// Writers that do not rename are given this long to finish.
const SETTLE: Duration = Duration::from_millis(50);
/// `retryPeriod` of the kubelet: a path that cannot be watched is looked for this often.
const UNWATCHED: Duration = Duration::from_secs(1);

struct Inner(Inotify);

impl AsRawFd for Inner {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// A watch of what the path names now; the path may come to name something else.
struct Watcher {
    events: AsyncFd<Inner>,
    identity: (u64, u64),
}

/// What a file held when it was read last.
struct Known {
    content: u128,
    pod: Option<Pod>,
}

/// Follows the manifests at `path` until the receiver is gone.
pub async fn follow(path: PathBuf, manifests: Manifests, every: Duration, updates: mpsc::Sender<Update>) {
    let mut files = Files { path, manifests, known: BTreeMap::new(), missing: false };
    let (mut watcher, mut told, mut trouble) = (None, false, None);
    loop {
        // Before reading: what changes from here on is seen by the one or the other.
        watch_again(&files.path, &mut watcher);
        match files.read() {
            Ok(changed) => {
                trouble = None;
                if (changed || !told) && updates.send(Update::Listed(Source::File, files.pods())).await.is_err() {
                    return;
                }
                told = true;
            }
            Err(error) => {
                let error = error.to_string();
                if trouble.as_ref() != Some(&error) {
                    tracing::error!(error, path = %files.path.display(), "unable to read the static pod path");
                }
                trouble = Some(error);
            }
        }
        let pause = if watcher.is_some() { every } else { every.min(UNWATCHED) };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            lost = changed(watcher.as_ref()) => {
                if lost {
                    watcher = None;
                }
                tokio::time::sleep(SETTLE).await;
            }
            () = updates.closed() => return,
        }
    }
}

/// Sees to it that what the path names is watched, where that is possible.
fn watch_again(path: &Path, watcher: &mut Option<Watcher>) {
    let identity = std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    if watcher.as_ref().map(|watcher| watcher.identity) == identity {
        return;
    }
    *watcher = identity.and_then(|identity| {
        let events = watch(path).inspect_err(|error| {
            tracing::debug!(%error, path = %path.display(), "cannot watch the static pod path; reading it now and then");
        });
        Some(Watcher { events: events.ok()?, identity })
    });
}

#[expect(deprecated, reason = "its successor needs unsafe code, which this crate has none of")]
fn watch(path: &Path) -> io::Result<AsyncFd<Inner>> {
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    let flags = AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_ATTRIB
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_MOVED_FROM
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_DELETE_SELF
        | AddWatchFlags::IN_MOVE_SELF;
    inotify.add_watch(path, flags)?;
    // The descriptor lives as long as the watcher inside, which is what the new constructor asks to promise.
    AsyncFd::new(Inner(inotify))
}

/// Waits for a change; whether it was the end of what is watched, whose place another may have by now.
async fn changed(watcher: Option<&Watcher>) -> bool {
    let Some(watcher) = watcher else { return std::future::pending().await };
    loop {
        let Ok(mut ready) = watcher.events.readable().await else { return std::future::pending().await };
        let events = watcher.events.get_ref().0.read_events();
        ready.clear_ready();
        match events {
            Ok(events) if !events.is_empty() => {
                return events.iter().any(|event| event.mask.contains(AddWatchFlags::IN_IGNORED));
            }
            Ok(_) | Err(nix::errno::Errno::EAGAIN) => {}
            Err(_) => return true,
        }
    }
}

struct Files {
    path: PathBuf,
    manifests: Manifests,
    /// By the names of the files, in their order.
    known: BTreeMap<PathBuf, Known>,
    /// Whether the path was not there at the last look.
    missing: bool,
}

impl Files {
    /// Those that count: of one name the last.
    fn pods(&self) -> Vec<Pod> {
        let pods = self.known.values().filter_map(|known| known.pod.as_ref());
        let by_name: BTreeMap<_, _> = pods.map(|pod| ((pod.namespace(), pod.name()), pod)).collect();
        by_name.into_values().cloned().collect()
    }

    /// Reads all files; whether anything changed.
    fn read(&mut self) -> io::Result<bool> {
        let found = match std::fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if !std::mem::replace(&mut self.missing, true) {
                    tracing::error!(path = %self.path.display(), "the static pod path does not exist, ignoring");
                }
                let had = !self.known.is_empty();
                self.known.clear();
                return Ok(had);
            }
            found => found?,
        };
        self.missing = false;
        if found.is_file() {
            let read = self.read_one(&self.path);
            let changed = read.is_some();
            // Whoever breaks the one file there is leaves its pod running, as the kubelet does.
            if let Some(Known { pod: None, .. }) = read {
                return Err(io::Error::other("couldn't parse as pod, please check config file"));
            }
            if let Some(read) = read {
                self.known = BTreeMap::from([(self.path.clone(), read)]);
            }
            return Ok(changed);
        }
        if !found.is_dir() {
            return Err(io::Error::other("path is not a directory or file"));
        }
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let hidden = entry.file_name().as_encoded_bytes().first() == Some(&b'.');
            // A file that vanished meanwhile is not there.
            if !hidden && std::fs::metadata(entry.path()).is_ok_and(|found| found.is_file()) {
                names.push(entry.path());
            }
        }
        let before = self.known.len();
        self.known.retain(|path, _| names.contains(path));
        let mut changed = self.known.len() != before;
        for name in names {
            if let Some(read) = self.read_one(&name) {
                self.known.insert(name, read);
                changed = true;
            }
        }
        Ok(changed)
    }

    /// What is in a file, unless that is known.
    fn read_one(&self, file: &Path) -> Option<Known> {
        let (content, text) = match text(file) {
            Ok(text) => (fnv1a_128(&text), Ok(text)),
            // As good as a content: it is told once.
            Err(error) => (fnv1a_128(error.to_string().as_bytes()), Err(error)),
        };
        if self.known.get(file).is_some_and(|known| known.content == content) {
            return None;
        }
        let path = file.display();
        let pod = match text {
            Ok(text) => self
                .manifests
                .parse(&text, manifest::Origin::File(file))
                .inspect_err(|error| tracing::error!(%error, %path, "could not process a manifest file"))
                .ok(),
            Err(error) => {
                tracing::error!(%error, %path, "could not read a manifest file");
                None
            }
        };
        Some(Known { content, pod })
    }
}

fn text(file: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let read = std::fs::File::open(file)?.take(manifest::MAX_BYTES + 1).read_to_end(&mut text)?;
    if read as u64 > manifest::MAX_BYTES {
        return Err(io::Error::other("the manifest is too big"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("static-files-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn manifest_of(name: &str, image: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: {image}}}]}}\n"
        )
    }

    fn of_node() -> Manifests {
        Manifests { node: "n".into(), may_reference: false }
    }

    fn files(path: &Path) -> Files {
        Files { path: path.to_owned(), manifests: of_node(), known: BTreeMap::new(), missing: false }
    }

    fn images(files: &Files) -> Vec<String> {
        files.pods().iter().map(|pod| pod.spec().containers[0].image.clone()).collect()
    }

    /// Both ran in turns, each with a mirror that the other took away.
    #[test]
    fn of_files_with_one_pods_name_the_last_counts() {
        let dir = folder("twins");
        std::fs::write(dir.join("a.yaml.bak"), manifest_of("a", "copy")).unwrap();
        std::fs::write(dir.join("a.yaml"), manifest_of("a", "own")).unwrap();
        std::fs::write(dir.join("b.yaml"), manifest_of("b", "other")).unwrap();
        let mut files = files(&dir);
        assert!(files.read().unwrap());
        assert_eq!(images(&files), ["copy", "other"]);
        std::fs::remove_file(dir.join("a.yaml.bak")).unwrap();
        assert!(files.read().unwrap());
        assert_eq!(images(&files), ["own", "other"]);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    /// Editors and copies that keep times made changes that nobody saw.
    #[test]
    fn a_change_is_seen_that_keeps_size_and_time() {
        let dir = folder("stamp");
        let path = dir.join("a.yaml");
        std::fs::write(&path, manifest_of("a", "one")).unwrap();
        let time = std::fs::metadata(&path).unwrap().modified().unwrap();
        let mut files = files(&dir);
        assert!(files.read().unwrap());
        assert!(!files.read().unwrap(), "nothing has changed");
        std::fs::write(&path, manifest_of("a", "two")).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        assert!(files.read().unwrap());
        assert_eq!(images(&files), ["two"]);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_broken_file_is_no_pod_unless_it_is_the_only_place() {
        let dir = folder("broken");
        let path = dir.join("a.yaml");
        std::fs::write(&path, manifest_of("a", "one")).unwrap();
        let (mut all, mut single) = (files(&dir), files(&path));
        assert!(all.read().unwrap() && single.read().unwrap());
        std::fs::write(&path, "{").unwrap();
        assert!(all.read().unwrap() && single.read().is_err());
        assert_eq!((images(&all), images(&single)), (Vec::new(), vec!["one".to_owned()]));
        // It would never end to be read.
        assert!(files(Path::new("/dev/zero")).read().is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    /// Pods of a path that went stayed until the agent began anew, and one that came back was seen late.
    #[tokio::test]
    async fn a_path_that_goes_takes_its_pods_along() {
        let dir = folder("gone");
        let (manifests, long) = (dir.join("manifests"), Duration::from_secs(3600));
        let put = |image: &str| {
            std::fs::create_dir_all(&manifests).unwrap();
            std::fs::write(manifests.join("a.yaml"), manifest_of("a", image)).unwrap();
        };
        put("one");
        let (updates, mut told) = mpsc::channel(8);
        let following = tokio::spawn(follow(manifests.clone(), of_node(), long, updates));
        let mut until = async |wanted: usize| {
            loop {
                match tokio::time::timeout(Duration::from_secs(20), told.recv()).await.unwrap().unwrap() {
                    Update::Listed(Source::File, pods) if pods.len() == wanted => return,
                    _ => {}
                }
            }
        };
        until(1).await;
        std::fs::remove_dir_all(&manifests).unwrap();
        until(0).await;
        put("two");
        until(1).await;
        std::fs::remove_file(manifests.join("a.yaml")).unwrap();
        until(0).await;
        following.abort();
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
