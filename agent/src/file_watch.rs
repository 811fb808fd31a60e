//! Waiting for a file or folder to change: inotify behind tokio's reactor.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use tokio::io::unix::AsyncFd;

struct Descriptor(Inotify);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// An inotify instance; needs a tokio runtime.
pub struct Events(AsyncFd<Descriptor>);

impl Events {
    /// # Errors
    /// When the host's limit of instances is reached.
    pub fn new() -> std::io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        #[expect(deprecated, reason = "the replacement is not in every release that the lock file may hold")]
        let events = AsyncFd::new(Descriptor(inotify))?;
        Ok(Self(events))
    }

    /// Begins to watch a path for its events; a path that is watched already has the same descriptor again.
    ///
    /// # Errors
    /// When the path is not there, or the host's limit of watches is reached.
    pub fn add(&self, path: &Path, events: AddWatchFlags) -> std::io::Result<WatchDescriptor> {
        Ok(self.0.get_ref().0.add_watch(path, events)?)
    }

    /// Ends a watch; one whose path has gone has ended before.
    pub fn remove(&self, watch: WatchDescriptor) {
        let _ = self.0.get_ref().0.rm_watch(watch);
    }

    /// What happened since the last call, at least one thing. Cancel safe.
    ///
    /// # Errors
    /// When the instance cannot be read; it will not recover.
    pub async fn next(&self) -> std::io::Result<Vec<InotifyEvent>> {
        loop {
            let mut ready = self.0.readable().await?;
            match self.0.get_ref().0.read_events() {
                Ok(events) if !events.is_empty() => return Ok(events),
                Ok(_) | Err(Errno::EAGAIN) => ready.clear_ready(),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Watches until it is dropped.
pub struct FileWatch(Events);

impl FileWatch {
    /// Begins to watch each path for its events.
    ///
    /// # Errors
    /// When a path is not there, or the host's limit of instances or watches is reached.
    pub fn new(paths: &[(&Path, AddWatchFlags)]) -> std::io::Result<Self> {
        let events = Events::new()?;
        for (path, wanted) in paths {
            events.add(path, *wanted)?;
        }
        Ok(FileWatch(events))
    }

    /// Returns after something happened since the last call. Cancel safe.
    pub async fn changed(&self) {
        if let Err(error) = self.0.next().await {
            tracing::warn!(%error, "changes of files are not told any more");
            return std::future::pending().await;
        }
        // What else is there says the same.
        while self.0.0.get_ref().0.read_events().is_ok() {}
    }
}
