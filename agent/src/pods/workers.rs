//! The running workers, by pod.
//!
//! A worker that breaks off (panics) is told with its pod and with how long to wait before the next try, so that one
//! that fails at once does not spin.

use std::collections::HashMap;
use std::time::Duration;

use tokio::task::{Id, JoinError, JoinSet};

use crate::backoff::Backoff;

const FIRST_WAIT: Duration = Duration::from_secs(1);
const LAST_WAIT: Duration = Duration::from_secs(60);
/// A worker that held out this long starts over with the first wait.
const FORGET_AFTER: Duration = Duration::from_secs(600);

#[derive(Default)]
pub(super) struct Workers {
    tasks: JoinSet<()>,
    uids: HashMap<Id, String>,
    /// Of pods whose workers broke off.
    backoffs: HashMap<String, Backoff>,
}

/// How a worker ended.
pub(super) enum Ended {
    Done(String),
    Broke { uid: String, error: JoinError, wait: Duration },
}

impl Workers {
    /// Runs `work` for the pod after `wait`.
    pub fn spawn(&mut self, uid: String, wait: Duration, work: impl Future<Output = ()> + Send + 'static) {
        let task = self.tasks.spawn(async move {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            work.await;
        });
        self.uids.insert(task.id(), uid);
    }

    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The next worker that ended; `None` without any. Cancelling it loses nothing.
    pub async fn next(&mut self) -> Option<Ended> {
        loop {
            let ended = self.tasks.join_next_with_id().await?;
            let id = ended.as_ref().map_or_else(JoinError::id, |(id, ())| *id);
            let Some(uid) = self.uids.remove(&id) else { continue };
            let Err(error) = ended else {
                self.backoffs.remove(&uid);
                return Some(Ended::Done(uid));
            };
            let fresh = || Backoff::new(FIRST_WAIT, LAST_WAIT).forget_after(FORGET_AFTER);
            let wait = self.backoffs.entry(uid.clone()).or_insert_with(fresh).next_wait();
            return Some(Ended::Broke { uid, error, wait });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_panics_is_told_by_its_pod_and_waits_longer_each_time() {
        let mut workers = Workers::default();
        workers.spawn("other".into(), Duration::from_secs(3600), async {});
        let mut wait = Duration::ZERO;
        for least in [1, 2, 4] {
            let start = tokio::time::Instant::now();
            workers.spawn("pod".into(), wait, async { panic!("a bug") });
            let Some(Ended::Broke { uid, error, wait: next }) = workers.next().await else { panic!("it broke off") };
            assert!(uid == "pod" && error.is_panic());
            // Timers are exact to the millisecond.
            assert!(start.elapsed() >= wait && start.elapsed() - wait < Duration::from_millis(2));
            assert!(next >= Duration::from_secs(least) && next < Duration::from_secs(2 * least), "{next:?}");
            wait = next;
        }
        workers.spawn("pod".into(), wait, async {});
        assert!(matches!(workers.next().await, Some(Ended::Done(uid)) if uid == "pod"));
        assert!(workers.backoffs.is_empty() && workers.uids.len() == 1);
    }
}
