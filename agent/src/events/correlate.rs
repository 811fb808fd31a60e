//! Which events are sent, counted, combined or dropped. Followed: client-go `events_cache.go`.

use std::collections::{HashMap, HashSet};

use super::{EventType, Notice};

/// Similar events (all but the message equal) that are still told apart.
const MAX_SIMILAR: usize = 10;
const SIMILAR_WINDOW_SECONDS: i64 = 600;
/// Events about one object before they are limited, and the seconds for one more.
const BURST: i64 = 25;
const REFILL_SECONDS: i64 = 300;
/// Entries kept before the oldest are dropped.
const MAX_ENTRIES: usize = 4096;
const COMBINED: &str = "(combined from similar events): ";

/// Everything that makes two events the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    similar: Similar,
    message: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Similar {
    object: [String; 5],
    kind: EventType,
    reason: String,
}

pub enum Decision {
    Drop,
    Create { message: String, key: Key },
    Count { name: String, count: i32, message: String, key: Key },
}

#[derive(Default)]
pub struct Correlator {
    sent: HashMap<Key, Sent>,
    similar: HashMap<Similar, Window>,
    buckets: HashMap<(String, String), Bucket>,
}

struct Sent {
    name: String,
    count: i32,
    at: i64,
}

struct Window {
    messages: HashSet<String>,
    at: i64,
}

struct Bucket {
    tokens: i64,
    at: i64,
}

impl Correlator {
    pub fn decide(&mut self, notice: &Notice, now: i64) -> Decision {
        self.shrink(now);
        let o = &notice.object;
        let similar = Similar {
            object: [&o.kind, &o.namespace, &o.name, &o.uid, &o.field_path].map(Clone::clone),
            kind: notice.kind,
            reason: notice.reason.clone(),
        };
        if !self.allowed((o.namespace.clone(), format!("{}/{}", o.name, o.uid)), now) {
            return Decision::Drop;
        }
        let window =
            self.similar.entry(similar.clone()).or_insert_with(|| Window { messages: HashSet::new(), at: now });
        if now - window.at > SIMILAR_WINDOW_SECONDS {
            window.messages.clear();
        }
        window.at = now;
        window.messages.insert(notice.message.clone());
        let combined = window.messages.len() >= MAX_SIMILAR;
        let message = if combined { format!("{COMBINED}{}", notice.message) } else { notice.message.clone() };
        // Combined events share one object, whatever they say.
        let key = Key { similar, message: if combined { COMBINED.to_owned() } else { message.clone() } };
        match self.sent.get_mut(&key) {
            Some(sent) => {
                sent.count = sent.count.saturating_add(1);
                sent.at = now;
                Decision::Count { name: sent.name.clone(), count: sent.count, message, key }
            }
            None => Decision::Create { message, key },
        }
    }

    /// An event was accepted under `name`.
    pub fn created(&mut self, key: Key, name: String, now: i64) {
        self.sent.insert(key, Sent { name, count: 1, at: now });
    }

    fn allowed(&mut self, object: (String, String), now: i64) -> bool {
        let bucket = self.buckets.entry(object).or_insert(Bucket { tokens: BURST, at: now });
        let refill = (now - bucket.at) / REFILL_SECONDS;
        if refill > 0 {
            bucket.tokens = (bucket.tokens + refill).min(BURST);
            bucket.at += refill * REFILL_SECONDS;
        }
        if bucket.tokens == 0 {
            return false;
        }
        bucket.tokens -= 1;
        true
    }

    fn shrink(&mut self, now: i64) {
        let horizon = now - SIMILAR_WINDOW_SECONDS;
        if self.sent.len() > MAX_ENTRIES {
            self.sent.retain(|_, s| s.at > horizon);
        }
        if self.similar.len() > MAX_ENTRIES {
            self.similar.retain(|_, w| w.at > horizon);
        }
        if self.buckets.len() > MAX_ENTRIES {
            self.buckets.retain(|_, b| b.at > now - REFILL_SECONDS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::ObjectReference;

    fn notice(message: &str) -> Notice {
        Notice {
            object: ObjectReference { name: "p".into(), ..Default::default() },
            kind: EventType::Normal,
            reason: "R".into(),
            message: message.into(),
            annotations: Default::default(),
        }
    }

    #[test]
    fn equal_events_are_counted() {
        let mut c = Correlator::default();
        let Decision::Create { key, .. } = c.decide(&notice("m"), 0) else { panic!("first is created") };
        c.created(key, "n".into(), 0);
        assert!(matches!(c.decide(&notice("m"), 1), Decision::Count { count: 2, .. }));
        assert!(matches!(c.decide(&notice("other"), 1), Decision::Create { .. }));
    }

    #[test]
    fn many_similar_events_are_combined_and_a_flood_is_cut() {
        let mut c = Correlator::default();
        let mut last = String::new();
        for i in 0..10 {
            if let Decision::Create { message, .. } = c.decide(&notice(&format!("m{i}")), 0) {
                last = message;
            }
        }
        assert_eq!(last, "(combined from similar events): m9");
        for _ in 0..15 {
            c.decide(&notice("x"), 0);
        }
        assert!(matches!(c.decide(&notice("x"), 0), Decision::Drop));
        assert!(!matches!(c.decide(&notice("x"), 301), Decision::Drop));
    }
}
