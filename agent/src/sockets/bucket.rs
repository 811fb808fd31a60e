//! A token bucket that refuses instead of waiting.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Lets `burst` calls through at once and one more every `interval`.
#[derive(Debug)]
pub struct Bucket {
    interval: Duration,
    burst: u32,
    /// The moment at which the bucket is, or was, full again.
    full_at: Mutex<Instant>,
}

impl Bucket {
    /// What the kubelet allows its local clients: 100 calls a second, 10 at once.
    pub fn of_kubelet() -> Self {
        Self::new(Duration::from_millis(10), 10)
    }

    pub fn new(interval: Duration, burst: u32) -> Self {
        Self { interval, burst, full_at: Mutex::new(Instant::now()) }
    }

    /// Takes a token if there is one.
    pub fn take(&self) -> bool {
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let next = (*full_at).max(now) + self.interval;
        if next.saturating_duration_since(now) > self.interval * self.burst {
            return false;
        }
        *full_at = next;
        true
    }

    /// [`Bucket::take`] as the kubelet's servers say it.
    pub fn admit(&self) -> Result<(), tonic::Status> {
        if self.take() { Ok(()) } else { Err(tonic::Status::resource_exhausted("rejected by rate limit")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_and_time_gives_more() {
        let bucket = Bucket::of_kubelet();
        assert_eq!((0..60).filter(|_| bucket.take()).count(), 10);
        tokio::time::advance(Duration::from_millis(50)).await;
        assert_eq!((0..60).filter(|_| bucket.take()).count(), 5);
        assert_eq!(bucket.admit().unwrap_err().message(), "rejected by rate limit");
    }
}
