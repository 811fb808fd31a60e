//! Which events of controllers are written, counted, combined or left out.
//!
//! An event that says the same of the same object again raises the count of the first one. Events that differ in nothing
//! but their text are combined into one once ten texts were seen with no more than ten minutes between them. One
//! reporter may say 25 things of one object at once and one more every five minutes; the rest is counted, not written.
//! Followed: client-go `tools/record/events_cache.go`. Pure: time comes in with each event.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// Texts of similar events from which on they are combined.
const MAX_SIMILAR: usize = 10;
/// How long a similar event is waited for.
const SIMILAR_WINDOW: Duration = Duration::from_secs(600);
/// What one reporter may say of one object at once.
const BURST: u32 = 25;
/// In which it may say one thing more.
const REFILL: Duration = Duration::from_secs(300);
/// Entries of each kind that are remembered; upstream's `maxLruCacheEntries`.
const REMEMBERED: usize = 4096;
const COMBINED: &str = "(combined from similar events): ";

/// What an event says, and of what.
#[derive(Debug, Clone, Copy)]
pub struct Said<'a> {
    pub component: &'a str,
    /// Kind, namespace, name, UID and version of the object.
    pub object: [&'a str; 5],
    pub field_path: &'a str,
    pub warning: bool,
    pub reason: &'a str,
    /// No longer than an event's message may be.
    pub message: &'a str,
    /// Of the whole message.
    pub digest: Digest,
}

/// What stands for a message where it is remembered: messages may be long, and thousands of them are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 16]);

impl Digest {
    pub fn of(message: &str) -> Self {
        let whole = ring::digest::digest(&ring::digest::SHA256, message.as_bytes());
        let mut half = [0; 16];
        half.copy_from_slice(&whole.as_ref()[..16]);
        Digest(half)
    }
}

/// An event to write: a new one where the count is one, else the change of one that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    pub name: String,
    /// Time of the first one, as it is written.
    pub first: String,
    pub count: i32,
    pub message: String,
}

/// Who says something of which object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Speaker {
    component: String,
    object: [String; 5],
}

/// What similar events have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Similar {
    speaker: Speaker,
    warning: bool,
    reason: String,
}

/// What makes two events the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Same {
    Event { similar: Similar, field_path: String, message: Digest },
    Combined(Similar),
}

struct Window {
    messages: HashSet<Digest>,
    last: Instant,
}

struct Sent {
    name: String,
    first: String,
    count: i32,
}

pub struct Correlator {
    windows: Recent<Similar, Window>,
    sent: Recent<Same, Sent>,
    /// When each speaker has everything to say again.
    full: Recent<Speaker, Instant>,
}

impl Correlator {
    pub fn new() -> Self {
        Correlator { windows: Recent::new(REMEMBERED), sent: Recent::new(REMEMBERED), full: Recent::new(REMEMBERED) }
    }

    /// What to write of an event that happens now; None where its reporter said too much of the object. `name` and
    /// `first` are those of a new event.
    pub fn observe(&mut self, said: &Said<'_>, now: Instant, name: String, first: String) -> Option<Observed> {
        let speaker = Speaker { component: said.component.into(), object: said.object.map(Into::into) };
        let similar = Similar { speaker: speaker.clone(), warning: said.warning, reason: said.reason.into() };
        let (same, message) = if self.is_combined(&similar, said.digest, now) {
            (Same::Combined(similar), format!("{COMBINED}{}", said.message))
        } else {
            let same = Same::Event { similar, field_path: said.field_path.into(), message: said.digest };
            (same, said.message.to_owned())
        };
        let sent = self.sent.entry(same, || Sent { name, first, count: 0 });
        sent.count = sent.count.saturating_add(1);
        let observed = Observed { name: sent.name.clone(), first: sent.first.clone(), count: sent.count, message };
        // What is not written is counted all the same, as upstream does.
        self.may_speak(speaker, now).then_some(observed)
    }

    fn is_combined(&mut self, similar: &Similar, message: Digest, now: Instant) -> bool {
        let window = self.windows.entry(similar.clone(), || Window { messages: HashSet::new(), last: now });
        if now.duration_since(window.last) > SIMILAR_WINDOW {
            window.messages.clear();
        }
        window.last = now;
        window.messages.insert(message);
        let combined = window.messages.len() >= MAX_SIMILAR;
        if combined {
            // Upstream forgets any one text, so that there are never more; this one leaves the first ones told apart.
            window.messages.remove(&message);
        }
        combined
    }

    /// A bucket of tokens, kept as the time at which it is full.
    fn may_speak(&mut self, speaker: Speaker, now: Instant) -> bool {
        let full = self.full.entry(speaker, || now);
        let next = (*full).max(now) + REFILL;
        let allowed = next.duration_since(now) <= REFILL * BURST;
        if allowed {
            *full = next;
        }
        allowed
    }
}

/// The entries that were used last.
struct Recent<K, V> {
    most: usize,
    /// With the number of the last use.
    entries: HashMap<K, (u64, V)>,
    uses: BTreeMap<u64, K>,
    next: u64,
}

impl<K: Clone + Eq + Hash, V> Recent<K, V> {
    fn new(most: usize) -> Self {
        Recent { most, entries: HashMap::new(), uses: BTreeMap::new(), next: 0 }
    }

    /// The value of a key, which is now the one used last; the one not used for longest goes where there are too many.
    fn entry(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        self.next += 1;
        if let Some((before, _)) = self.entries.get(&key) {
            self.uses.remove(before);
        } else if self.entries.len() >= self.most
            && let Some((_, oldest)) = self.uses.pop_first()
        {
            self.entries.remove(&oldest);
        }
        self.uses.insert(self.next, key.clone());
        let entry = self.entries.entry(key).or_insert_with(|| (0, make()));
        entry.0 = self.next;
        &mut entry.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said<'a>(uid: &'a str, message: &'a str) -> Said<'a> {
        let object = ["ReplicaSet", "n", "a", uid, "apps/v1"];
        Said {
            component: "c",
            object,
            field_path: "",
            warning: false,
            reason: "R",
            message,
            digest: Digest::of(message),
        }
    }

    fn observe(correlator: &mut Correlator, said: &Said<'_>, now: Instant) -> Option<Observed> {
        let name = format!("a.{}", said.message);
        correlator.observe(said, now, name, "then".into())
    }

    #[test]
    fn an_event_that_is_said_again_is_counted() {
        let (mut correlator, now) = (Correlator::new(), Instant::now());
        let first = observe(&mut correlator, &said("1", "m"), now).expect("the first");
        assert_eq!((first.count, &*first.name), (1, "a.m"));
        let again = correlator.observe(&said("1", "m"), now, "a.other".into(), "later".into()).expect("the second");
        assert_eq!(again, Observed { count: 2, ..first });
        let warning = Said { warning: true, ..said("1", "m") };
        assert_eq!(observe(&mut correlator, &warning, now).map(|o| o.count), Some(1));
        assert_eq!(observe(&mut correlator, &said("2", "m"), now).map(|o| o.count), Some(1));
    }

    #[test]
    fn the_tenth_text_of_similar_events_and_further_ones_are_combined() {
        let (mut correlator, now) = (Correlator::new(), Instant::now());
        let texts: Vec<String> = (0..12).map(|n| format!("m{n}")).collect();
        let seen: Vec<Observed> =
            texts.iter().map(|m| observe(&mut correlator, &said("1", m), now).expect("within the burst")).collect();
        assert!(seen[..9].iter().zip(&texts).all(|(o, m)| o.message == *m && o.count == 1));
        let combined: Vec<(&str, i32, &str)> = seen[9..].iter().map(|o| (&*o.message, o.count, &*o.name)).collect();
        assert_eq!(
            combined,
            [
                ("(combined from similar events): m9", 1, "a.m9"),
                ("(combined from similar events): m10", 2, "a.m9"),
                ("(combined from similar events): m11", 3, "a.m9"),
            ]
        );
        assert_eq!(
            observe(&mut correlator, &said("1", "m0"), now).map(|o| (o.message, o.count)),
            Some(("m0".into(), 2))
        );
        let later = now + SIMILAR_WINDOW + Duration::from_secs(1);
        assert_eq!(observe(&mut correlator, &said("1", "m12"), later).map(|o| o.message), Some("m12".into()));
    }

    #[test]
    fn who_says_too_much_of_an_object_is_heard_again_every_five_minutes() {
        let (mut correlator, now) = (Correlator::new(), Instant::now());
        let heard = (0..40).filter(|_| observe(&mut correlator, &said("1", "m"), now).is_some()).count();
        assert_eq!(heard, 25);
        assert!(observe(&mut correlator, &said("2", "m"), now).is_some(), "of another object");
        let soon = now + REFILL - Duration::from_secs(1);
        assert!(observe(&mut correlator, &said("1", "m"), soon).is_none());
        let told = observe(&mut correlator, &said("1", "m"), now + REFILL).expect("one more");
        assert_eq!(told.count, 42, "what was not written is counted");
        assert!(observe(&mut correlator, &said("1", "m"), now + REFILL).is_none());
    }

    #[test]
    fn what_was_not_used_for_longest_is_forgotten() {
        let mut recent = Recent::new(2);
        for key in ["a", "b", "a", "c"] {
            *recent.entry(key, || 0) += 1;
        }
        assert_eq!(*recent.entry("a", || 0), 2);
        assert_eq!(*recent.entry("b", || 0), 0, "c came when a was used later than b");
        assert_eq!((recent.entries.len(), recent.uses.len()), (2, 2));
    }
}
