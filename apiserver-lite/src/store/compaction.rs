//! How far back lists at an exact version go: to one revision for the whole store, as kube-apiserver's compaction of etcd
//! has it. A collection that nobody writes keeps its history, but a page of it does not outlive the pages of others.
//!
//! Nothing runs for this: a write notes when the store reached its revision, a read of the past looks it up.
//!
//! Limits: notes are a sixteenth of the age apart, so what is read may be that much older while the store is written.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Notes within one age at about most.
const NOTES: u32 = 16;

pub(super) struct Compaction {
    age: Duration,
    /// The revision before the first note.
    floor: u64,
    /// When the store reached which revision, oldest first; the last one is its newest write.
    notes: VecDeque<(Instant, u64)>,
}

impl Compaction {
    /// For a store that is opened at a revision, which forgets what is older than an age.
    pub fn new(age: Duration, revision: u64) -> Self {
        Compaction { age, floor: revision, notes: VecDeque::new() }
    }

    /// Takes in that the store has reached a revision now.
    pub fn reached(&mut self, revision: u64, now: Instant) {
        while self.notes.front().is_some_and(|&(at, _)| self.is_over(at, now)) {
            self.floor = self.notes.pop_front().map_or(self.floor, |(_, revision)| revision);
        }
        // The newest note moves on until it is far enough from the one before.
        let before = self.notes.len().checked_sub(2).and_then(|index| self.notes.get(index));
        if before.is_some_and(|&(at, _)| now.duration_since(at) < self.age / NOTES) {
            self.notes.pop_back();
        }
        self.notes.push_back((now, revision));
    }

    /// The oldest revision that can still be read: the store's newest one of an age ago.
    pub fn revision(&self, now: Instant) -> u64 {
        let over = self.notes.partition_point(|&(at, _)| self.is_over(at, now));
        over.checked_sub(1).map_or(self.floor, |last| self.notes[last].1)
    }

    fn is_over(&self, at: Instant, now: Instant) -> bool {
        now.duration_since(at) > self.age
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGE: Duration = Duration::from_secs(300);

    #[test]
    fn what_the_store_was_at_an_age_ago_is_the_oldest_that_is_read() {
        let (mut compaction, start) = (Compaction::new(AGE, 7), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(compaction.revision(at(10_000)), 7, "nothing was written");
        compaction.reached(8, at(0));
        compaction.reached(9, at(1));
        assert_eq!(compaction.revision(at(300)), 7);
        assert_eq!(compaction.revision(at(301)), 8);
        assert_eq!(compaction.revision(at(302)), 9, "time alone moves it, and not beyond the newest");
        assert_eq!(compaction.revision(at(10_000)), 9);
        compaction.reached(10, at(10_000));
        assert_eq!((compaction.revision(at(10_000)), compaction.revision(at(10_301))), (9, 10));
    }

    #[test]
    fn a_busy_store_has_few_notes_and_is_no_sixteenth_late() {
        let (mut compaction, start) = (Compaction::new(AGE, 0), Instant::now());
        for second in 1..=2000_u64 {
            let now = start + Duration::from_secs(second);
            compaction.reached(second, now);
            assert!(compaction.notes.len() <= 19, "{} notes", compaction.notes.len());
            let oldest = second.saturating_sub(301);
            let found = compaction.revision(now);
            assert!(found <= oldest && found + 20 >= oldest, "{found} at {second}");
        }
    }
}
