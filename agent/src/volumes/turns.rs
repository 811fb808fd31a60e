//! Locks by path: who works on one disk or one pod keeps nobody from another.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;

/// Held for as long as the work lasts, also by work that its caller does not wait for any more.
pub type Turn = OwnedMutexGuard<()>;

/// Locks that exist while somebody has or wants them.
#[derive(Default)]
pub struct Turns(Mutex<HashMap<PathBuf, Weak<tokio::sync::Mutex<()>>>>);

impl Turns {
    fn of(&self, key: &Path) -> Arc<tokio::sync::Mutex<()>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = known.get(key).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::default();
        known.insert(key.to_owned(), Arc::downgrade(&lock));
        lock
    }

    pub async fn take(&self, key: &Path) -> Turn {
        self.of(key).lock_owned().await
    }

    /// None while somebody else has it.
    pub fn try_take(&self, key: &Path) -> Option<Turn> {
        self.of(key).try_lock_owned().ok()
    }
}

/// Runs what may wait for a disk or a file server away from the other work of this thread. What has begun goes on when
/// the caller stops waiting.
///
/// # Errors
/// Those of the work.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|e| e.to_string())?
}
