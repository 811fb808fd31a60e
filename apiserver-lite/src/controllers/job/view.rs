//! What a look at a job and its pods shows, and what follows from it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use proto::time::Timestamp;
use serde_json::Value;

use super::super::pods::{PodDigest, condition, is_active, is_terminal, seconds};
use super::indexes::{PerIndex, index_of, parse_indexes};
use super::policy::{self, Action, Rule};
use super::{FINALIZER, backoff_after, ended};
use crate::store::ObjectRef;

/// What a look at a job's pods shows.
pub struct View {
    pub object: ObjectRef,
    pub value: Value,
    pub pods: Vec<ObjectRef>,
    pub succeeded: i64,
    pub failed: i64,
    /// Uids that are over and not yet counted.
    pub new_succeeded: Vec<Box<str>>,
    pub new_failed: Vec<Box<str>>,
    /// Failures that the policy says not to count.
    pub ignored: Vec<Box<str>>,
    /// The same two of pods that alone know how often their index failed; they stay until the job or the index ends.
    kept_failed: Vec<Box<str>>,
    kept_ignored: Vec<Box<str>>,
    pub completed_indexes: BTreeSet<i64>,
    /// Set when every index may fail for itself.
    pub per_index: Option<PerIndex>,
}

pub enum Verdict {
    Goes,
    Done { ok: bool, reason: String, message: String },
}

/// How a job ended.
pub fn finished(job: &Value) -> Option<bool> {
    let is = |kind: &str| condition(job, kind).is_some_and(|c| c["status"] == "True");
    if is("Complete") {
        Some(true)
    } else if is("Failed") {
        Some(false)
    } else {
        None
    }
}

impl View {
    pub fn read(object: ObjectRef, value: Value, pods: Vec<ObjectRef>) -> Self {
        let (spec, status) = (&value["spec"], &value["status"]);
        let completed = status["completedIndexes"].as_str().unwrap_or_default();
        let mut view = View {
            succeeded: status["succeeded"].as_i64().unwrap_or(0),
            failed: status["failed"].as_i64().unwrap_or(0),
            new_succeeded: Vec::new(),
            new_failed: Vec::new(),
            ignored: Vec::new(),
            kept_failed: Vec::new(),
            kept_ignored: Vec::new(),
            completed_indexes: parse_indexes(completed, spec["completions"].as_i64()),
            per_index: PerIndex::of(&value),
            object,
            value,
            pods,
        };
        let needed = view.count_per_index();
        let held: HashMap<Box<str>, bool> = view.pods.iter().map(|p| (p.keys.uid.clone(), holds(p))).collect();
        let noted = |key: &str| -> Vec<Box<str>> {
            let list = view.value["status"]["uncountedTerminatedPods"][key].as_array().into_iter().flatten();
            list.filter_map(Value::as_str).map(Into::into).collect()
        };
        let (mut ok, mut bad) = (noted("succeeded"), noted("failed"));
        // Noted earlier and free by now: they become numbers.
        let counted = |list: &mut Vec<Box<str>>| {
            let before = list.len();
            list.retain(|uid| held.get(uid).copied().unwrap_or(false));
            i64::try_from(before - list.len()).unwrap_or(0)
        };
        let indexed = view.indexed();
        let more = counted(&mut ok);
        if !indexed {
            view.succeeded += more;
        }
        view.failed += counted(&mut bad);
        let completions = view.completions();
        let mut ignored = Vec::new();
        let replaces_late = view.replaces_late();
        for pod in &view.pods.clone() {
            if !held.get(&pod.keys.uid).copied().unwrap_or(false) {
                continue;
            }
            let known = ok.contains(&pod.keys.uid) || bad.contains(&pod.keys.uid);
            let (bad, ignored) = match needed.contains(&pod.keys.uid) {
                true => (&mut view.kept_failed, &mut view.kept_ignored),
                false => (&mut bad, &mut ignored),
            };
            match pod.field("status.phase") {
                "Succeeded" if indexed => {
                    // An index counts once, however many pods succeed with it.
                    if let Some(index) = index_of(pod).filter(|i| completions.is_none_or(|c| *i < c)) {
                        view.completed_indexes.insert(index);
                    }
                    if !known {
                        ok.push(pod.keys.uid.clone());
                    }
                }
                "Succeeded" if !known => ok.push(pod.keys.uid.clone()),
                "Failed" if !known => match policy::of(&view.value, pod) {
                    Some(Rule { action: Action::Ignore, .. }) => ignored.push(pod.keys.uid.clone()),
                    _ => bad.push(pod.keys.uid.clone()),
                },
                // Deleted before its end: it will not succeed any more, and is replaced at once.
                _ if pod.keys.deleting && !known && !replaces_late => bad.push(pod.keys.uid.clone()),
                _ => {}
            }
        }
        if indexed {
            view.succeeded = i64::try_from(view.completed_indexes.len()).unwrap_or(i64::MAX);
        }
        (view.new_succeeded, view.new_failed, view.ignored) = (ok, bad, ignored);
        view
    }

    /// The job ends: every pod is counted now, also those that would have carried a number on.
    pub fn keep_none(&mut self) {
        self.new_failed.append(&mut self.kept_failed);
        self.ignored.append(&mut self.kept_ignored);
    }

    /// Counts failures where every index has its own; the pods that must stay, for they alone know the number.
    fn count_per_index(&mut self) -> HashSet<Box<str>> {
        // Once the end is decided the job deletes pods itself, which is no failure of theirs.
        if self.decided().is_some() {
            return HashSet::new();
        }
        let Some(mut per_index) = self.per_index.take() else { return HashSet::new() };
        let mut failed = Vec::new();
        for pod in &self.pods {
            let is_failed = match pod.field("status.phase") {
                "Failed" => true,
                "Succeeded" => false,
                _ => pod.keys.deleting && !self.replaces_late(),
            };
            // Counted already, and carried on by another pod; or deleted by the job itself.
            let is_failed = is_failed && holds(pod);
            let is_open = |i: &i64| self.completions().is_none_or(|c| *i < c) && !self.completed_indexes.contains(i);
            if let Some(index) = index_of(pod).filter(|i| is_failed && is_open(i)) {
                per_index.failure(index, pod, policy::of(&self.value, pod).as_ref());
                failed.push((index, pod));
            }
        }
        let needed = failed.iter().filter(|(index, pod)| per_index.is_needed(*index, &pod.keys.uid, &self.pods));
        let needed = needed.map(|(_, pod)| pod.keys.uid.clone()).collect();
        self.per_index = Some(per_index);
        needed
    }

    pub fn indexed(&self) -> bool {
        self.value["spec"]["completionMode"] == "Indexed"
    }

    /// A pod that is being deleted counts once it is over, not before.
    pub fn replaces_late(&self) -> bool {
        let spec = &self.value["spec"];
        spec["podReplacementPolicy"] == "Failed" || spec["podFailurePolicy"].is_object()
    }

    pub fn completions(&self) -> Option<i64> {
        self.value["spec"]["completions"].as_i64()
    }

    fn count(list: &[Box<str>]) -> i64 {
        i64::try_from(list.len()).unwrap_or(i64::MAX)
    }

    pub fn all_succeeded(&self) -> i64 {
        if self.indexed() { self.succeeded } else { self.succeeded + Self::count(&self.new_succeeded) }
    }

    fn all_failed(&self) -> i64 {
        self.failed + Self::count(&self.new_failed) + Self::count(&self.kept_failed)
    }

    fn active(&self) -> usize {
        self.pods.iter().filter(|p| is_active(p)).count()
    }

    pub fn suspended(&self) -> bool {
        self.value["spec"]["suspend"] == true
    }

    /// Whether the job is over.
    pub fn verdict(&self) -> Verdict {
        let done = |ok, reason: &str, message: String| Verdict::Done { ok, reason: reason.into(), message };
        // What was decided stays decided while the last pods end.
        if let Some((ok, target)) = self.decided() {
            let text = |key: &str| target[key].as_str().unwrap_or_default().to_owned();
            return done(ok, &text("reason"), text("message"));
        }
        for pod in self.pods.iter().filter(|p| p.field("status.phase") == "Failed") {
            if let Some(Rule { action: Action::FailJob, message }) = policy::of(&self.value, pod) {
                return done(false, "PodFailurePolicy", message);
            }
        }
        let limit = self.value["spec"]["backoffLimit"].as_i64().unwrap_or(6);
        let restarts: i64 = match self.value["spec"]["template"]["spec"]["restartPolicy"].as_str() {
            Some("OnFailure") => {
                let goes = |p: &&ObjectRef| matches!(p.field("status.phase"), "Pending" | "Running");
                self.pods.iter().filter(goes).map(|p| PodDigest::of(p).all_restarts).sum()
            }
            _ => 0,
        };
        if self.all_failed() > limit || restarts > 0 && restarts >= limit {
            return done(false, "BackoffLimitExceeded", "Job has reached the specified backoff limit".into());
        }
        if self.deadline() == Some(Duration::ZERO) {
            let message = "Job was active longer than specified deadline";
            return done(false, "DeadlineExceeded", message.into());
        }
        if let Some((reason, message)) = self.indexes_failed() {
            return done(false, reason, message.into());
        }
        // A job may reach its end while it is suspended, too.
        if let Some(message) = self.success_policy() {
            return done(true, "SuccessPolicy", message);
        }
        let complete = match self.completions() {
            Some(completions) => self.all_succeeded() >= completions,
            // Without a number of completions the first success is the last.
            None => self.all_succeeded() > 0 && self.active() == 0,
        };
        match complete {
            true => done(true, "CompletionsReached", "Reached expected number of succeeded pods".into()),
            false => Verdict::Goes,
        }
    }

    /// How the job will end, and the condition that says so.
    fn decided(&self) -> Option<(bool, &Value)> {
        let targets = [("SuccessCriteriaMet", true), ("FailureTarget", false)].into_iter();
        let mut found = targets.filter_map(|(kind, ok)| Some((ok, condition(&self.value, kind)?)));
        found.find(|(_, target)| target["status"] == "True")
    }

    /// Why the job failed by its indexes.
    fn indexes_failed(&self) -> Option<(&'static str, &'static str)> {
        let failed = i64::try_from(self.failed_indexes()?.len()).unwrap_or(i64::MAX);
        if self.value["spec"]["maxFailedIndexes"].as_i64().is_some_and(|most| failed > most) {
            let message = "Job has exceeded the specified maximal number of failed indexes";
            return Some(("MaxFailedIndexesExceeded", message));
        }
        let over = failed.saturating_add(self.succeeded);
        (failed > 0 && self.completions().is_some_and(|c| over >= c))
            .then_some(("FailedIndexes", "Job has failed indexes"))
    }

    pub fn failed_indexes(&self) -> Option<&BTreeSet<i64>> {
        self.per_index.as_ref().map(|p| &p.failed)
    }

    /// Time left of the active deadline.
    pub fn deadline(&self) -> Option<Duration> {
        let limit = self.value["spec"]["activeDeadlineSeconds"].as_i64().filter(|_| !self.suspended())?;
        let started = seconds(&self.value["status"]["startTime"]);
        if started == 0 {
            return Some(Duration::from_secs(limit.max(1).unsigned_abs()));
        }
        Some(Duration::from_secs((started + limit - Timestamp::now().seconds).max(0).unsigned_abs()))
    }

    fn success_policy(&self) -> Option<String> {
        let rules = self.value["spec"]["successPolicy"]["rules"].as_array().filter(|_| self.indexed())?;
        for (at, rule) in rules.iter().enumerate() {
            let listed = rule["succeededIndexes"].as_str().map(|text| parse_indexes(text, self.completions()));
            let done: Vec<&i64> =
                self.completed_indexes.iter().filter(|i| listed.as_ref().is_none_or(|l| l.contains(i))).collect();
            let needed = rule["succeededCount"].as_u64().map(|n| usize::try_from(n).unwrap_or(usize::MAX));
            let needed = needed.or(listed.as_ref().map(BTreeSet::len)).unwrap_or(usize::MAX);
            if done.len() >= needed {
                return Some(format!("Matched rules at index {at}"));
            }
        }
        None
    }

    /// How long the failures since the last success make the next pod wait.
    pub fn backoff(&self) -> Option<Duration> {
        let ends = |phase: &'static str| {
            let of_phase = move |p: &&ObjectRef| p.field("status.phase") == phase;
            // One that is deleted before its end fails; one that the job deleted itself has no finalizer any more.
            let gives_up = |p: &&ObjectRef| {
                phase == "Failed" && p.keys.deleting && !is_terminal(p) && !self.replaces_late() && holds(p)
            };
            self.pods.iter().filter(move |p| of_phase(p) || gives_up(p)).map(ended).collect::<Vec<i64>>()
        };
        let failures = Failures::since(&ends("Succeeded"), &ends("Failed"));
        let failures = match self.all_succeeded() {
            // Those that were removed since are known by their number only.
            0 => Failures { count: failures.count.max(self.all_failed()), ..failures },
            _ => failures,
        };
        backoff_after(failures.last?, failures.count, Timestamp::now().seconds)
    }
}

/// Whether the job still has to count a pod.
fn holds(pod: &ObjectRef) -> bool {
    PodDigest::of(pod).finalizers.iter().any(|f| **f == *FINALIZER)
}

/// How often pods failed after the last success, and when the last time.
#[derive(Debug, PartialEq)]
struct Failures {
    count: i64,
    /// Seconds since 1970.
    last: Option<i64>,
}

impl Failures {
    /// Of the times when pods ended.
    fn since(succeeded: &[i64], failed: &[i64]) -> Self {
        let success = succeeded.iter().max();
        let counts = failed.iter().filter(|end| success.is_none_or(|success| *end > success));
        let count = i64::try_from(counts.clone().count()).unwrap_or(i64::MAX);
        Failures { count, last: counts.max().copied() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The wait doubled with every failure that the job ever had, however many pods succeeded in between.
    #[test]
    fn a_success_makes_earlier_failures_forgotten() {
        let since = |succeeded: &[i64], failed: &[i64]| {
            let failures = Failures::since(succeeded, failed);
            (failures.count, failures.last)
        };
        assert_eq!(since(&[], &[5, 9, 7]), (3, Some(9)));
        assert_eq!(since(&[8, 2], &[5, 9, 7]), (1, Some(9)));
        assert_eq!(since(&[9], &[5, 9, 7]), (0, None));
    }
}
