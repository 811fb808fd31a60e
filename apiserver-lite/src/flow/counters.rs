//! What is counted for each flow schema, without a lock: requests pay a few additions.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds in seconds of both histograms, as upstream.
pub const BOUNDS: [f64; 13] = [0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];

/// Durations by how long they were.
#[derive(Debug, Default)]
pub struct Histogram {
    /// The last is for what is longer than every bound.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    nanos: AtomicU64,
}

impl Histogram {
    pub fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let at = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        self.buckets[at].fetch_add(1, Relaxed);
        self.nanos.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Counts up to each bound and in all, and the sum in seconds.
    pub fn read(&self) -> ([u64; BOUNDS.len() + 1], f64) {
        let mut sum = 0;
        let counts = self.buckets.each_ref().map(|bucket| {
            sum += bucket.load(Relaxed);
            sum
        });
        (counts, Duration::from_nanos(self.nanos.load(Relaxed)).as_secs_f64())
    }
}

/// Why a request was sent away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The queue it would wait in is full.
    QueueFull,
    /// No seat, and its level has no queues.
    ConcurrencyLimit,
    /// It waited as long as it may.
    TimeOut,
    /// The client went away.
    Cancelled,
}

impl Reason {
    pub const ALL: [Reason; 4] = [Reason::QueueFull, Reason::ConcurrencyLimit, Reason::TimeOut, Reason::Cancelled];

    pub fn name(self) -> &'static str {
        match self {
            Reason::QueueFull => "queue-full",
            Reason::ConcurrencyLimit => "concurrency-limit",
            Reason::TimeOut => "time-out",
            Reason::Cancelled => "cancelled",
        }
    }
}

#[derive(Debug, Default)]
pub struct Counters {
    pub dispatched: AtomicU64,
    /// By [`Reason`].
    rejected: [AtomicU64; 4],
    pub executing: AtomicI64,
    pub executing_seats: AtomicI64,
    pub waiting: AtomicI64,
    pub waiting_seats: AtomicI64,
    /// Waits of requests that were served, and of those that were not.
    pub served_wait: Histogram,
    pub rejected_wait: Histogram,
    pub execution: Histogram,
}

impl Counters {
    pub fn reject(&self, reason: Reason, waited: Duration) {
        self.rejected[reason as usize].fetch_add(1, Relaxed);
        self.rejected_wait.observe(waited);
    }

    pub fn rejected(&self, reason: Reason) -> u64 {
        self.rejected[reason as usize].load(Relaxed)
    }
}
