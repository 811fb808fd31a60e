//! Waits between tries: doubling, with a limit and a random part, forgotten after a time without failures.

use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use tokio::time::Instant;

/// The waits after consecutive failures.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    forget_after: Option<Duration>,
    next: Duration,
    last_failure: Option<Instant>,
}

impl Backoff {
    pub fn new(first: Duration, longest: Duration) -> Self {
        Backoff { first, longest, forget_after: None, next: first, last_failure: None }
    }

    /// Starts over when the last failure is this long ago.
    pub fn forget_after(mut self, quiet: Duration) -> Self {
        self.forget_after = Some(quiet);
        self
    }

    /// Counts a failure and returns how long to wait: the current step plus up to its half again.
    pub fn next_wait(&mut self) -> Duration {
        let now = Instant::now();
        if let (Some(last), Some(quiet)) = (self.last_failure, self.forget_after)
            && now.duration_since(last) > quiet + self.next
        {
            self.reset();
        }
        self.last_failure = Some(now);
        let step = self.next;
        self.next = (step * 2).min(self.longest);
        jitter(step, 0.5)
    }

    pub fn reset(&mut self) {
        self.next = self.first;
        self.last_failure = None;
    }
}

/// `base` plus a random part of at most `share` of it.
pub fn jitter(base: Duration, share: f64) -> Duration {
    base + base.mul_f64(share * f64::from(random_below(1000)) / 1000.0)
}

/// A number in `0..limit` for spreading load; not for secrets. 0 when `limit` is 0.
pub fn random_below(limit: u32) -> u32 {
    // The standard library seeds every RandomState anew, which is all the randomness that is needed here.
    let random = std::hash::RandomState::new().build_hasher().finish() >> 32;
    u32::try_from((random * u64::from(limit)) >> 32).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_double_to_the_limit_and_start_over_after_a_quiet_time() {
        let mut backoff =
            Backoff::new(Duration::from_secs(1), Duration::from_secs(4)).forget_after(Duration::from_secs(60));
        let within = |wait: Duration, step: u64| {
            assert!(wait >= Duration::from_secs(step) && wait <= Duration::from_secs(step).mul_f64(1.5), "{wait:?}");
        };
        for step in [1, 2, 4, 4] {
            within(backoff.next_wait(), step);
        }
        tokio::time::advance(Duration::from_secs(120)).await;
        within(backoff.next_wait(), 1);
    }

    #[test]
    fn random_numbers_stay_below_the_limit() {
        assert!((0..200).all(|_| random_below(7) < 7));
        assert_eq!(random_below(0), 0);
    }
}
