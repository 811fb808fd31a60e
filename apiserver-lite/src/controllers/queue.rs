//! The work queue of a controller: each key at most once, later keys by a heap of times, failed keys with growing waits.
//!
//! A queue belongs to one task, so there is nothing to lock; the task sleeps until [`Queue::next_due`] or an event. A key
//! that is worked on is handed out again only after [`Queue::done`].

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// First wait after a failure; it doubles up to the longest.
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// Least wait of a key that asks for another look by itself: whatever it says, nobody is busy with it alone.
const LEAST_WAIT: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub struct Queue<K> {
    ready: VecDeque<K>,
    /// Those in `ready`, and those of `working` that are to be worked on again.
    queued: HashSet<K>,
    working: HashSet<K>,
    /// A key may be here more than once; only the entry that `due` names counts.
    later: BinaryHeap<Reverse<(Instant, K)>>,
    due: HashMap<K, Instant>,
    failures: HashMap<K, u32>,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Queue {
            ready: VecDeque::new(),
            queued: HashSet::new(),
            working: HashSet::new(),
            later: BinaryHeap::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
        }
    }
}

impl<K: Clone + Eq + Hash + Ord> Queue<K> {
    /// Longer than anybody waits, for waits that no clock can count.
    pub const LONG: Duration = Duration::from_secs(30 * 365 * 86_400);

    /// Work on the key as soon as possible.
    pub fn add(&mut self, key: K) {
        if self.queued.insert(key.clone()) && !self.working.contains(&key) {
            self.ready.push_back(key);
        }
    }

    /// Work on the key after a while, or earlier when it is due earlier already.
    pub fn add_after(&mut self, key: K, wait: Duration) {
        let now = Instant::now();
        let at = now.checked_add(wait).unwrap_or_else(|| now + Self::LONG);
        if self.due.get(&key).is_none_or(|&due| at < due) {
            self.due.insert(key.clone(), at);
            self.later.push(Reverse((at, key)));
        }
    }

    /// Work on the key was done and asks for another look after a while; never at once.
    pub fn look_again(&mut self, key: K, wait: Duration) {
        self.add_after(key, wait.max(LEAST_WAIT));
    }

    /// The key's work failed: again after a wait that grows with each failure, give or take a fifth.
    pub fn failed(&mut self, key: K) {
        let count = self.failures.entry(key.clone()).or_default();
        let wait = FIRST_WAIT.saturating_mul(1 << (*count).min(16)).min(LONGEST_WAIT);
        *count += 1;
        self.add_after(key, wait.mul_f64(0.8 + 0.4 * crate::random::fraction()));
    }

    /// The key's work is done: the next failure counts as the first.
    pub fn succeeded(&mut self, key: &K) {
        self.failures.remove(key);
    }

    /// Nobody works on the key any more, however it went.
    pub fn done(&mut self, key: &K) {
        if self.working.remove(key) && self.queued.contains(key) {
            self.ready.push_back(key.clone());
        }
    }

    /// The next key that is to be worked on now, and that nobody works on yet.
    pub fn pop(&mut self, now: Instant) -> Option<K> {
        while let Some(Reverse((at, _))) = self.later.peek() {
            if *at > now {
                break;
            }
            let Some(Reverse((at, key))) = self.later.pop() else { break };
            if self.due.get(&key) == Some(&at) {
                self.due.remove(&key);
                self.add(key);
            }
        }
        let key = self.ready.pop_front()?;
        self.queued.remove(&key);
        self.working.insert(key.clone());
        Some(key)
    }

    /// When the first of the later keys is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.later.peek().map(|Reverse((at, _))| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_is_queued_once_and_comes_in_order() {
        let mut queue = Queue::default();
        for key in ["a", "b", "a"] {
            queue.add(key);
        }
        let now = Instant::now();
        assert_eq!((queue.pop(now), queue.pop(now), queue.pop(now)), (Some("a"), Some("b"), None));
        queue.done(&"a");
        queue.add("a");
        assert_eq!(queue.pop(now), Some("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_is_worked_on_comes_again_after_that() {
        let mut queue = Queue::default();
        let now = Instant::now();
        queue.add("a");
        assert_eq!(queue.pop(now), Some("a"));
        queue.add("a");
        queue.add("b");
        assert_eq!((queue.pop(now), queue.pop(now)), (Some("b"), None));
        queue.done(&"a");
        assert_eq!((queue.pop(now), queue.pop(now)), (Some("a"), None));
        queue.done(&"a");
        assert_eq!(queue.pop(now), None);
    }

    #[tokio::test(start_paused = true)]
    async fn another_look_is_never_due_at_once() {
        let mut queue = Queue::default();
        queue.look_again("b", Duration::MAX);
        queue.look_again("a", Duration::ZERO);
        assert_eq!(queue.pop(Instant::now()), None);
        assert_eq!(queue.pop(Instant::now() + LEAST_WAIT), Some("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_key_comes_when_the_earliest_of_its_times_is_over() {
        let mut queue = Queue::default();
        queue.add_after("a", Duration::from_secs(10));
        queue.add_after("a", Duration::from_secs(5));
        queue.add_after("a", Duration::from_secs(7));
        let start = Instant::now();
        assert_eq!(queue.pop(start + Duration::from_secs(4)), None);
        assert_eq!(queue.pop(start + Duration::from_secs(5)), Some("a"));
        assert_eq!(queue.pop(start + Duration::from_secs(20)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn waits_grow_with_failures_and_start_over_after_success() {
        let mut queue = Queue::default();
        let mut waits = Vec::new();
        for _ in 0..4 {
            queue.failed("a");
            let due = queue.next_due().expect("it is due");
            waits.push(due - Instant::now());
            assert_eq!(queue.pop(due), Some("a"));
            queue.done(&"a");
        }
        assert!(waits.windows(2).all(|w| w[1] > w[0]), "{waits:?}");
        queue.succeeded(&"a");
        queue.failed("a");
        assert!(queue.next_due().expect("due") - Instant::now() <= FIRST_WAIT.mul_f64(1.2));
    }
}
