//! A token bucket over requests (`kubeAPIQPS`, `kubeAPIBurst`).

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

/// Lets `burst` requests through at once and `per_second` on average; the rest wait their turn.
#[derive(Debug)]
pub struct RateLimit {
    /// Time that one request costs.
    interval: Duration,
    burst: u32,
    /// The moment at which the bucket is, or was, full again.
    full_at: Mutex<Instant>,
}

impl RateLimit {
    /// None when `per_second` is not positive: no limit.
    pub fn new(per_second: f64, burst: u32) -> Option<Self> {
        if per_second <= 0.0 || burst == 0 {
            return None;
        }
        Some(RateLimit {
            interval: Duration::from_secs_f64(1.0 / per_second),
            burst,
            full_at: Mutex::new(Instant::now()),
        })
    }

    /// Waits for a token; in order of arrival. Cancel safe: a dropped wait may have used its token.
    pub async fn wait(&self) {
        let ready = {
            let mut full_at = self.full_at.lock().await;
            let now = Instant::now();
            *full_at = (*full_at).max(now) + self.interval;
            *full_at - self.interval * self.burst
        };
        tokio::time::sleep_until(ready).await;
    }

    /// Takes a token if there is one now.
    pub async fn try_take(&self) -> bool {
        let mut full_at = self.full_at.lock().await;
        let now = Instant::now();
        let next = (*full_at).max(now) + self.interval;
        if next - self.interval * self.burst > now {
            return false;
        }
        *full_at = next;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_and_the_next_request_waits() {
        let limit = RateLimit::new(10.0, 3).expect("a limit");
        let start = Instant::now();
        for _ in 0..3 {
            limit.wait().await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        limit.wait().await;
        assert!(start.elapsed() >= Duration::from_millis(99), "{:?}", start.elapsed());
        assert!(!limit.try_take().await);
    }

    #[test]
    fn zero_means_no_limit() {
        assert!(RateLimit::new(0.0, 5).is_none());
    }
}
