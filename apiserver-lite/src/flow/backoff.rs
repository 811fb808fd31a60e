//! When clients that were sent away should come back: after a second, and after longer while many are sent away.
//!
//! As upstream: the time doubles when three requests for each second of it were sent away within it, and goes down again
//! when they get fewer.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The longest time in seconds.
const LONGEST: u64 = 32;

/// Levels by name, as far as they have sent requests away.
#[derive(Debug, Default)]
pub struct Backoff(Mutex<HashMap<Box<str>, Dropped>>);

#[derive(Debug)]
struct Dropped {
    /// Begin of the time that is looked at.
    since: Instant,
    count: u64,
    seconds: u64,
}

impl Backoff {
    /// Counts a request that a level sends away. In how many seconds its client should come back.
    pub fn dropped(&self, level: &str) -> u64 {
        let now = Instant::now();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let dropped = all.entry(level.into()).or_insert(Dropped { since: now, count: 0, seconds: 1 });
        let passed = now - dropped.since;
        if passed >= Duration::from_secs(dropped.seconds) {
            if dropped.count >= 3 * dropped.seconds && passed < Duration::from_secs(2 * dropped.seconds) {
                dropped.seconds = (dropped.seconds * 2).min(LONGEST);
            } else {
                // One second less for every such time that was quieter.
                let quieter = passed.as_secs() / dropped.seconds;
                dropped.seconds = dropped.seconds.saturating_sub(quieter).max(1);
            }
            (dropped.since, dropped.count) = (now, 0);
        }
        dropped.count += 1;
        dropped.seconds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn many_that_are_sent_away_shall_wait_longer() {
        let backoff = Backoff::default();
        assert!((0..10).all(|_| backoff.dropped("a") == 1));
        tokio::time::advance(Duration::from_millis(1100)).await;
        assert_eq!(backoff.dropped("a"), 2);
        assert_eq!(backoff.dropped("b"), 1, "another level has not seen them");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(backoff.dropped("a"), 1);
    }
}
