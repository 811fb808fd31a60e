//! Which events of the scheduler are written: the first of those that differ in nothing but their text, then the one that
//! makes them a series, and after that the series' count now and then.
//!
//! A series that goes on is written again every half hour, so that it does not expire. One that was silent for six minutes
//! is written with its last count and forgotten, as is an event that never came again. Both are looked for at times of
//! their own, and at none while nothing is remembered. Followed: client-go `tools/events/event_broadcaster.go`. Pure: time
//! comes in with each call.

use std::collections::HashMap;
use std::time::Duration;

use proto::time::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

/// After which silence a series is over; upstream's `finishTime`.
const FINISH: Duration = Duration::from_secs(6 * 60);
/// How often a series that goes on is written; upstream's `refreshTime`.
const REFRESH: Duration = Duration::from_secs(30 * 60);
/// Events that are remembered at most; upstream has no such bound. The older half goes before its time then.
const REMEMBERED: usize = 1024;
/// What two events of one series have in common.
const SAME: [&str; 7] =
    ["type", "action", "reason", "reportingComponent", "reportingInstance", "involvedObject", "related"];

/// An event that may be, or is, the first of a series.
struct First {
    /// As text: many are remembered, and few needed again.
    event: Box<str>,
    /// How often it was seen; a series from the second time on.
    count: u32,
    last: Timestamp,
    seen: Instant,
}

impl First {
    /// The event to write, where it is a series.
    fn series(&self) -> Option<Value> {
        // It was written by us.
        let mut event: Value = serde_json::from_str(&self.event).ok().filter(|_| self.count > 1)?;
        event["series"] = json!({"count": self.count, "lastObservedTime": self.last.to_micros_text()});
        Some(event)
    }
}

#[derive(Default)]
pub struct Series {
    firsts: HashMap<String, First>,
    /// When to look for what is over, and for what goes on.
    finish: Option<Instant>,
    refresh: Option<Instant>,
}

impl Series {
    /// Adds to `out` what is to be written of an event that happens now: a new one, or one with a series that is there
    /// unless it expired.
    pub fn observe(&mut self, event: Value, time: Timestamp, now: Instant, out: &mut Vec<Value>) {
        let same = json!(SAME.map(|name| &event[name])).to_string();
        if let Some(first) = self.firsts.get_mut(&same) {
            first.count = first.count.saturating_add(1);
            (first.last, first.seen) = (time, now);
            // Further ones only count.
            if first.count == 2 {
                out.extend(first.series());
            }
            return;
        }
        if self.firsts.len() >= REMEMBERED {
            let mut seen: Vec<Instant> = self.firsts.values().map(|first| first.seen).collect();
            let (_, middle, _) = seen.select_nth_unstable(REMEMBERED / 2);
            let middle = *middle;
            self.forget(|first| first.seen <= middle, out);
        }
        let first = First { event: event.to_string().into(), count: 1, last: time, seen: now };
        self.firsts.insert(same, first);
        self.finish.get_or_insert(now + FINISH);
        self.refresh.get_or_insert(now + REFRESH);
        out.push(event);
    }

    /// When [`Series::work`] is due.
    pub fn due(&self) -> Option<Instant> {
        self.finish.into_iter().chain(self.refresh).min()
    }

    /// Adds to `out` the series that are to be written though nothing happens.
    pub fn work(&mut self, now: Instant, out: &mut Vec<Value>) {
        if self.finish.is_some_and(|at| at <= now) {
            self.forget(|first| now.duration_since(first.seen) >= FINISH, out);
            self.finish = Some(now + FINISH);
        }
        if self.refresh.is_some_and(|at| at <= now) {
            out.extend(self.firsts.values().filter_map(First::series));
            self.refresh = Some(now + REFRESH);
        }
        if self.firsts.is_empty() {
            *self = Series::default();
        }
    }

    fn forget(&mut self, is_over: impl Fn(&First) -> bool, out: &mut Vec<Value>) {
        self.firsts.retain(|_, first| {
            let over = is_over(first);
            out.extend(first.series().filter(|_| over));
            !over
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(uid: &str, note: &str) -> Value {
        json!({"metadata": {"name": note}, "type": "Warning", "action": "Scheduling", "reason": "FailedScheduling",
            "reportingComponent": "s", "reportingInstance": "s-h", "involvedObject": {"uid": uid}, "message": note})
    }

    /// Names and counts of what is written when something is done.
    fn written(series: &mut Series, act: impl FnOnce(&mut Series, &mut Vec<Value>)) -> Vec<(String, u64)> {
        let mut out = Vec::new();
        act(series, &mut out);
        let shown = |e: &Value| (e["message"].as_str().unwrap_or_default().into(), e["series"]["count"].as_u64());
        let mut shown: Vec<_> = out.iter().map(shown).map(|(name, count)| (name, count.unwrap_or(0))).collect();
        shown.sort();
        shown
    }

    fn observe(series: &mut Series, uid: &str, note: &str, now: Instant) -> Vec<(String, u64)> {
        written(series, |series, out| series.observe(event(uid, note), Timestamp::now(), now, out))
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn the_second_one_begins_the_series_whatever_its_text_and_more_only_count() {
        let (mut series, start) = (Series::default(), Instant::now());
        assert_eq!(observe(&mut series, "1", "a", start), [("a".into(), 0)]);
        assert_eq!(observe(&mut series, "2", "b", start), [("b".into(), 0)]);
        assert_eq!(observe(&mut series, "1", "c", start), [("a".into(), 2)]);
        assert_eq!(observe(&mut series, "1", "a", start), []);
        let mut related = event("1", "d");
        related["related"] = json!({"uid": "2"});
        let out = written(&mut series, |series, out| series.observe(related, Timestamp::now(), start, out));
        assert_eq!(out, [("d".into(), 0)], "about another one as well: no part of the series");
    }

    #[test]
    fn a_series_is_written_while_it_goes_on_and_once_when_it_is_over() {
        let (mut series, start) = (Series::default(), Instant::now());
        assert_eq!(series.due(), None, "nothing is waited for");
        observe(&mut series, "1", "a", start);
        observe(&mut series, "2", "alone", start);
        assert_eq!(series.due(), Some(start + FINISH));
        for minute in 1..=29 {
            observe(&mut series, "1", "a", start + MINUTE * minute);
            if minute % 6 == 0 {
                assert_eq!(written(&mut series, |series, out| series.work(start + MINUTE * minute, out)), []);
            }
        }
        assert_eq!(series.firsts.len(), 1, "what never came again is forgotten");
        let at = series.due().expect("the series goes on");
        assert_eq!(at, start + REFRESH);
        assert_eq!(written(&mut series, |series, out| series.work(at, out)), [("a".into(), 30)]);
        let at = series.due().expect("the series may be over");
        assert_eq!(written(&mut series, |series, out| series.work(at, out)), [("a".into(), 30)]);
        assert_eq!((series.firsts.len(), series.due()), (0, None));
        assert_eq!(observe(&mut series, "1", "a", at), [("a".into(), 0)], "a new one");
    }

    #[test]
    fn what_is_remembered_is_bounded_and_no_count_is_lost() {
        let (mut series, start) = (Series::default(), Instant::now());
        observe(&mut series, "first", "a", start);
        observe(&mut series, "first", "a", start);
        observe(&mut series, "first", "a", start);
        let mut told = Vec::new();
        for number in 0..5000_u32 {
            let now = start + Duration::from_millis(1) * (number + 1);
            told.extend(
                observe(&mut series, &number.to_string(), "b", now).into_iter().filter(|(name, _)| name == "a"),
            );
            assert!(series.firsts.len() <= REMEMBERED);
        }
        assert_eq!(told, [("a".into(), 3)]);
        let newest = start + Duration::from_secs(5);
        assert_eq!(observe(&mut series, "4999", "b", newest), [("b".into(), 2)], "the newer half is kept");
    }
}
