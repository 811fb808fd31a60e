//! The server at rest: memory that work left free goes back to the machine.
//!
//! Allocators keep what they once got. A large body that is refused, a dry run, a costly expression or a burst of writes
//! would stay resident for good. So when no request was running and nothing was written for a moment, and the process has
//! grown since it last gave something back, it gives back what nothing lies in. Nothing happens by the clock: a server
//! that nobody asks for anything does not look at itself either.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use service::memory;
use tokio::sync::{Notify, watch};

/// How long nothing must have happened. Longer than the pauses of a client at work, shorter than most look at a process.
const MOMENT: Duration = Duration::from_secs(2);

/// Growth that is not worth the milliseconds and the page faults that giving back costs: about what lies free anyway
/// between the heartbeats of a few nodes.
const NOT_WORTH_IT: u64 = 2 << 20;

/// Knows whether requests are running.
#[derive(Debug, Default)]
pub struct Quiet {
    running: AtomicUsize,
    /// Requests so far.
    begun: AtomicU64,
    stirred: Notify,
}

/// A request that is running, until it is dropped.
pub struct Busy(Arc<Quiet>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Quiet {
    /// Notes that a request runs.
    pub fn busy(self: &Arc<Self>) -> Busy {
        self.begun.fetch_add(1, Ordering::Relaxed);
        if self.running.fetch_add(1, Ordering::Relaxed) == 0 {
            self.stirred.notify_one();
        }
        Busy(self.clone())
    }

    /// Gives memory back whenever the server comes to rest; ends with the store, whose newest revision `written` is.
    pub async fn keep(self: Arc<Self>, mut written: watch::Receiver<u64>) {
        // What only the start needed goes at the first rest.
        let mut last = 0;
        while self.rest(&mut written).await {
            let now = memory::resident_bytes().unwrap_or(0);
            if !is_worth_it(last, now) {
                // What shrank by itself counts from there.
                last = last.min(now);
                continue;
            }
            // Other tasks go on meanwhile, until they want memory.
            if tokio::task::spawn_blocking(memory::give_back).await.is_err() {
                return;
            }
            last = memory::resident_bytes().unwrap_or(0);
            tracing::debug!(before = now, after = last, "memory was given back");
        }
    }

    /// Waits until something has happened, and then until nothing has for a moment; false when the store is gone.
    async fn rest(&self, written: &mut watch::Receiver<u64>) -> bool {
        tokio::select! {
            () = self.stirred.notified() => {}
            changed = written.changed() => if changed.is_err() { return false },
        }
        loop {
            let (begun, revision) = (self.begun.load(Ordering::Relaxed), *written.borrow_and_update());
            tokio::time::sleep(MOMENT).await;
            let idle = self.running.load(Ordering::Relaxed) == 0 && self.begun.load(Ordering::Relaxed) == begun;
            if idle && *written.borrow() == revision {
                return true;
            }
        }
    }
}

/// Whether a process that had so many bytes when it last gave some back, and has so many now, should do so again.
fn is_worth_it(last: u64, now: u64) -> bool {
    now > last.saturating_add(NOT_WORTH_IT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_server_rests_when_nothing_runs_and_nothing_is_written_for_a_moment() {
        let quiet = Arc::new(Quiet::default());
        let (store, mut written) = watch::channel(1);
        let nothing = tokio::time::timeout(10 * MOMENT, quiet.rest(&mut written)).await;
        assert!(nothing.is_err(), "who was never busy does not come to rest");

        let request = quiet.busy();
        assert!(tokio::time::timeout(10 * MOMENT, quiet.rest(&mut written)).await.is_err(), "a request runs");
        drop(request);
        drop(quiet.busy());
        let begun = tokio::time::Instant::now();
        let writer = tokio::spawn(async move {
            tokio::time::sleep(MOMENT / 2).await;
            store.send_replace(2);
            store
        });
        assert!(quiet.rest(&mut written).await);
        assert_eq!(begun.elapsed().as_millis(), 2 * MOMENT.as_millis(), "the write in between counts");

        drop(writer.await);
        assert!(!quiet.rest(&mut written).await, "there is no store any more");
    }

    #[test]
    fn little_growth_is_left_alone() {
        assert!(!is_worth_it(20 << 20, 21 << 20) && !is_worth_it(20 << 20, 10 << 20));
        assert!(is_worth_it(20 << 20, 30 << 20));
        assert!(memory::resident_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }
}
