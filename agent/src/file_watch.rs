//! Waiting for a file or folder to change: inotify behind tokio's reactor.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::Path;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;

struct Descriptor(Inotify);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Watches until it is dropped; needs a tokio runtime.
pub struct FileWatch(AsyncFd<Descriptor>);

impl FileWatch {
    /// Begins to watch each path for its events.
    ///
    /// # Errors
    /// When a path is not there, or the host's limit of watches is reached.
    pub fn new(paths: &[(&Path, AddWatchFlags)]) -> std::io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        for (path, events) in paths {
            inotify.add_watch(*path, *events)?;
        }
        #[expect(deprecated, reason = "the replacement is not in every release that the lock file may hold")]
        let watch = AsyncFd::new(Descriptor(inotify))?;
        Ok(FileWatch(watch))
    }

    /// Returns after something happened since the last call. Cancel safe.
    pub async fn changed(&self) {
        if let Ok(mut ready) = self.0.readable().await {
            // Reading empties the queue; what the events say does not matter.
            while self.0.get_ref().0.read_events().is_ok() {}
            ready.clear_ready();
        }
    }
}
