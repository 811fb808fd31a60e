//! Whether the agent's main loops get on: each says when it takes up work and when it waits for the next.
//!
//! A loop that waits is well however long it waits. One that has been at the same piece of work for longer than its limit
//! is stuck; the watchdog then stays silent, and systemd starts the agent anew. Limits are what a healthy loop can need:
//! all its deadlines in a row.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// All loops; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Mutex<Vec<Entry>>>);

#[derive(Debug)]
struct Entry {
    name: &'static str,
    limit: Duration,
    busy_since: Option<Instant>,
}

/// One loop's own end.
#[derive(Debug, Clone)]
pub struct Beat {
    progress: Progress,
    at: usize,
}

impl Progress {
    /// A loop and how long one piece of its work may take.
    pub fn register(&self, name: &'static str, limit: Duration) -> Beat {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.push(Entry { name, limit, busy_since: None });
        Beat { progress: self.clone(), at: entries.len() - 1 }
    }

    /// The loops that are stuck, and for how long each has been at its work.
    pub fn stuck(&self) -> Vec<(&'static str, Duration)> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at_work = entries.iter().filter_map(|e| Some((e.name, e.limit, e.busy_since?.elapsed())));
        at_work.filter(|(_, limit, busy)| busy > limit).map(|(name, _, busy)| (name, busy)).collect()
    }
}

impl Beat {
    /// Work begins. Does not return when a test has asked for this loop to hang.
    pub async fn begin(&self) {
        hang_if_asked(self.set(Some(Instant::now()))).await;
    }

    /// Work is done; what follows is a wait.
    pub fn end(&self) {
        self.set(None);
    }

    fn set(&self, busy_since: Option<Instant>) -> &'static str {
        let mut entries = self.progress.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = entries.get_mut(self.at) else { return "" };
        entry.busy_since = busy_since;
        entry.name
    }
}

/// Does not return when a test has asked, by the environment, for the loop of this name to hang.
pub async fn hang_if_asked(name: &str) {
    if std::env::var("ORCHESTRATOR_LITE_TEST_HANG").is_ok_and(|hang| hang == name) {
        tracing::warn!(name, "hanging, as ORCHESTRATOR_LITE_TEST_HANG asks");
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_is_stuck_at_its_work_and_never_in_its_wait() {
        let progress = Progress::default();
        let (lease, status) =
            (progress.register("lease", Duration::from_secs(5)), progress.register("status", Duration::from_secs(60)));
        lease.begin().await;
        status.begin().await;
        tokio::time::advance(Duration::from_secs(6)).await;
        assert_eq!(progress.stuck(), [("lease", Duration::from_secs(6))]);
        lease.end();
        assert!(progress.stuck().is_empty());
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(progress.stuck().first().map(|s| s.0), Some("status"));
    }
}
