//! Indexes of a job's pods: as text, and how often each of them failed.
//!
//! With `backoffLimitPerIndex` every index has failures of its own. They are counted in annotations of its pods, so the
//! last failed pod of an index is not let go before another one carries the number on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proto::time::Timestamp;
use serde_json::Value;

use super::policy::{Action, Rule};
use super::{backoff_after, ended};
use crate::store::ObjectRef;

/// Annotation and label with a pod's index.
pub const INDEX: &str = "batch.kubernetes.io/job-completion-index";
const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
const IGNORED: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// Indexes that a text is read for at most: what a job of that size makes of memory is some 16 MB.
const MOST: usize = 1_000_000;

/// The index that a pod stands for.
pub fn index_of(pod: &ObjectRef) -> Option<i64> {
    pod.label(INDEX).and_then(|t| t.parse().ok())
}

/// `1,3-5,7`, as far as the job wants these indexes; it may want fewer than when the text was written.
pub fn parse_indexes(text: &str, completions: Option<i64>) -> BTreeSet<i64> {
    let last = completions.map_or(i64::MAX, |completions| completions - 1);
    let mut out = BTreeSet::new();
    for part in text.split(',').filter(|p| !p.is_empty()) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(from), Ok(to)) = (from.parse::<i64>(), to.parse::<i64>()) {
            // Anybody who may write a status may write any range; of ours none is longer.
            out.extend((from..=to.min(last)).take(MOST));
        }
    }
    out
}

pub fn format_indexes(indexes: &BTreeSet<i64>) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut run: Option<(i64, i64)> = None;
    let mut close = |run: Option<(i64, i64)>| match run {
        Some((from, to)) if from == to => parts.push(from.to_string()),
        Some((from, to)) if to == from + 1 => parts.extend([from.to_string(), to.to_string()]),
        Some((from, to)) => parts.push(format!("{from}-{to}")),
        None => {}
    };
    for &index in indexes {
        match &mut run {
            Some((_, to)) if *to + 1 == index => *to = index,
            other => {
                close(other.take());
                *other = Some((index, index));
            }
        }
    }
    close(run);
    parts.join(",")
}

/// What became of the indexes of a job that counts failures for each.
#[derive(Debug, Default)]
pub struct PerIndex {
    pub limit: i64,
    /// No index of these is tried again.
    pub failed: BTreeSet<i64>,
    last: BTreeMap<i64, Failures>,
}

/// The last failed pod of an index, and its failures with that one.
#[derive(Debug, Clone)]
struct Failures {
    uid: Box<str>,
    counted: i64,
    ignored: i64,
    /// Seconds since 1970.
    at: i64,
}

impl PerIndex {
    /// None when the job has one number of failures for all its pods.
    pub fn of(job: &Value) -> Option<Self> {
        let limit = job["spec"]["backoffLimitPerIndex"].as_i64()?;
        let failed = job["status"]["failedIndexes"].as_str().unwrap_or_default();
        let failed = parse_indexes(failed, job["spec"]["completions"].as_i64());
        Some(PerIndex { limit, failed, last: BTreeMap::new() })
    }

    /// Takes a failed pod into account, and what the failure policy says of it.
    pub fn failure(&mut self, index: i64, pod: &ObjectRef, rule: Option<&Rule>) {
        let value = pod.without_owners();
        let number = |key| count_in(&value, key);
        let is_ignored = rule.is_some_and(|r| r.action == Action::Ignore);
        let failures = Failures {
            uid: pod.keys.uid.clone(),
            counted: number(FAILURES) + i64::from(!is_ignored),
            ignored: number(IGNORED) + i64::from(is_ignored),
            at: ended(pod),
        };
        if rule.is_some_and(|r| r.action == Action::FailIndex) || failures.counted > self.limit {
            self.failed.insert(index);
        }
        if self.last.get(&index).is_none_or(|known| known.total() < failures.total()) {
            self.last.insert(index, failures);
        }
    }

    /// Whether a failed pod is the only one that knows how often its index failed.
    pub fn is_needed(&self, index: i64, uid: &str, pods: &[ObjectRef]) -> bool {
        let Some(last) = self.last.get(&index).filter(|l| *l.uid == *uid && !self.failed.contains(&index)) else {
            return false;
        };
        let carries_on =
            |pod: &ObjectRef| index_of(pod) == Some(index) && carried(&pod.without_owners()) >= last.total();
        !pods.iter().any(carries_on)
    }

    /// How long the next pod of an index has to wait.
    pub fn wait(&self, index: i64) -> Option<Duration> {
        let last = self.last.get(&index)?;
        backoff_after(last.at, last.total(), Timestamp::now().seconds)
    }

    /// Writes the numbers into the next pod of an index.
    pub fn carry_on(&self, index: i64, pod: &mut Value) {
        let (counted, ignored) = self.last.get(&index).map_or((0, 0), |l| (l.counted, l.ignored));
        let annotations = &mut pod["metadata"]["annotations"];
        annotations[FAILURES] = counted.to_string().into();
        match (ignored, annotations.as_object_mut()) {
            // A template may bring one.
            (0, Some(annotations)) => drop(annotations.remove(IGNORED)),
            _ => annotations[IGNORED] = ignored.to_string().into(),
        }
    }
}

impl Failures {
    fn total(&self) -> i64 {
        self.counted + self.ignored
    }
}

/// Failures of its index that a pod knows of, without its own.
fn carried(pod: &Value) -> i64 {
    count_in(pod, FAILURES) + count_in(pod, IGNORED)
}

/// A number in a pod's annotations, which anybody may have written.
fn count_in(pod: &Value, key: &str) -> i64 {
    let text = pod["metadata"]["annotations"][key].as_str();
    text.and_then(|t| t.parse::<i64>().ok()).unwrap_or(0).clamp(0, i32::MAX.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_written_as_ranges() {
        for text in ["", "0", "0,1", "0-2,5,7-9"] {
            assert_eq!(format_indexes(&parse_indexes(text, None)), text);
        }
    }

    #[test]
    fn indexes_that_a_job_does_not_want_are_not_read() {
        let read = |completions| format_indexes(&parse_indexes("0,2-4,7-9223372036854775807", Some(completions)));
        assert_eq!((read(0), read(1), read(4), read(8)), (String::new(), "0".into(), "0,2,3".into(), "0,2-4,7".into()));
    }
}
