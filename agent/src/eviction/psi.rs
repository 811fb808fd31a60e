//! A wake-up when memory gets tight: the kernel tells when tasks have waited for memory for too long.
//!
//! It only makes the next look come sooner. What is evicted, and when, is up to the thresholds.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};

const PATH: &str = "/proc/pressure/memory";
/// 150 ms of waiting within 2 s, in microseconds. Windows of whole 2 s need no privilege.
const TRIGGER: &[u8] = b"some 150000 2000000\0";

/// The kernel watches for as long as this exists.
pub struct MemoryStall(AsyncFd<File>);

impl MemoryStall {
    /// Asks the kernel to watch the whole machine.
    ///
    /// # Errors
    /// It has no pressure stall information, or not for us.
    pub fn watch() -> std::io::Result<Self> {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.read(true).write(true).custom_flags(nix::libc::O_NONBLOCK).open(Path::new(PATH))?;
        file.write_all(TRIGGER)?;
        #[expect(deprecated, reason = "the replacement is not in every release that the lock file may hold")]
        let watch = AsyncFd::with_interest(file, Interest::PRIORITY)?;
        Ok(MemoryStall(watch))
    }

    /// Returns after tasks had to wait. Cancel safe.
    ///
    /// # Errors
    /// The kernel watches no longer.
    pub async fn happened(&self) -> std::io::Result<()> {
        let mut ready = self.0.ready(Interest::PRIORITY).await?;
        if ready.ready().is_error() {
            return Err(std::io::Error::other("the kernel has given up its watch on memory"));
        }
        ready.clear_ready_matching(Ready::PRIORITY);
        Ok(())
    }
}
