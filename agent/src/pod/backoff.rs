//! Exponential back-off per key: 10 s doubling to a limit, forgotten after twice the limit without use, or another time.
//!
//! One value serves crash loops (counted from the end of a container) and image pulls (counted from the last attempt).

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

/// The kubelet's first delay of a crash loop or failing pull.
pub const INITIAL: Duration = Duration::from_secs(10);
/// The kubelet's longest delay.
pub const MAX: Duration = Duration::from_secs(300);

/// Times are nanoseconds of [`crate::clock::steady_nanos`]: with the wall clock, a jump back would hold a container until
/// the clock has caught up.
#[derive(Debug)]
pub struct Backoff<K> {
    initial: Duration,
    max: Duration,
    forgotten_after: Duration,
    entries: HashMap<K, Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    delay: Duration,
    updated: i64,
}

impl<K: Hash + Eq> Backoff<K> {
    pub fn new(initial: Duration, max: Duration) -> Self {
        Self { initial: initial.min(max), max, forgotten_after: max * 2, entries: HashMap::new() }
    }

    /// The same for which a quiet time counts of `quiet`, whatever the limit of the delays.
    pub fn forget_after(self, quiet: Duration) -> Self {
        Self { forgotten_after: quiet, ..self }
    }

    /// The rest of the wait after an event at `since`, with the whole delay; `None` when nothing holds.
    pub fn remaining(&self, key: &K, since: i64, now: i64) -> Option<(Duration, Duration)> {
        let entry = self.entries.get(key)?;
        if self.expired(entry, since) {
            return None;
        }
        let passed = Duration::from_nanos(now.saturating_sub(since).max(0).unsigned_abs());
        let rest = entry.delay.checked_sub(passed).filter(|rest| !rest.is_zero())?;
        Some((rest, entry.delay))
    }

    /// The rest of the wait after the last [`Self::next`].
    pub fn remaining_since_update(&self, key: &K, now: i64) -> Option<(Duration, Duration)> {
        let entry = self.entries.get(key)?;
        if self.expired(entry, now) {
            return None;
        }
        let passed = Duration::from_nanos(now.saturating_sub(entry.updated).max(0).unsigned_abs());
        let rest = entry.delay.checked_sub(passed).filter(|rest| !rest.is_zero())?;
        Some((rest, entry.delay))
    }

    /// Doubles the delay, or starts over when the last event is long ago.
    pub fn next(&mut self, key: K, since: i64, now: i64) {
        let delay = match self.entries.get(&key) {
            Some(entry) if !self.expired(entry, since) => (entry.delay * 2).min(self.max),
            _ => self.initial,
        };
        self.entries.insert(key, Entry { delay, updated: now });
    }

    /// Forgets the other keys.
    pub fn keep_only(&mut self, mut keep: impl FnMut(&K) -> bool) {
        self.entries.retain(|key, _| keep(key));
    }

    fn expired(&self, entry: &Entry, since: i64) -> bool {
        let quiet = Duration::from_nanos(since.saturating_sub(entry.updated).max(0).unsigned_abs());
        quiet > self.forgotten_after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn the_first_restart_is_free_and_later_ones_double() {
        let mut b = Backoff::new(INITIAL, MAX);
        assert_eq!(b.remaining(&"k", 0, 0), None);
        b.next("k", 0, 0);
        assert_eq!(b.remaining(&"k", SECOND, 2 * SECOND), Some((Duration::from_secs(9), Duration::from_secs(10))));
        assert_eq!(b.remaining(&"k", SECOND, 11 * SECOND), None);
        b.next("k", SECOND, 11 * SECOND);
        assert_eq!(b.remaining(&"k", 12 * SECOND, 12 * SECOND).unwrap().1, Duration::from_secs(20));
        for i in 0..10 {
            b.next("k", i * SECOND, i * SECOND);
        }
        assert_eq!(b.remaining_since_update(&"k", 9 * SECOND).unwrap().1, MAX);
    }

    #[test]
    fn only_the_keys_that_are_kept_wait() {
        let mut b = Backoff::new(INITIAL, MAX);
        for key in ["a", "b"] {
            b.next(key, 0, 0);
        }
        b.keep_only(|key| *key == "b");
        assert_eq!((b.remaining(&"a", 0, 1), b.remaining(&"b", 0, 0).is_some()), (None, true));
    }

    #[test]
    fn a_long_run_starts_over() {
        let mut b = Backoff::new(INITIAL, MAX);
        b.next("k", 0, 0);
        b.next("k", 0, 0);
        let later = 601 * SECOND;
        assert_eq!(b.remaining(&"k", later, later), None);
        b.next("k", later, later);
        assert_eq!(b.remaining(&"k", later, later).unwrap().1, INITIAL);
    }
}
