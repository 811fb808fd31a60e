//! `job-controller`: runs pods until enough of them have succeeded.
//!
//! A pod that is over is counted once: first its uid is noted in the status, then the pod's finalizer is taken off, then
//! the uid becomes a number. Whatever happens in between, no pod is lost and none is counted twice.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use futures_util::future::join_all;
use proto::time::Timestamp;
use serde_json::{Value, json};

use super::events::Recorder;
use super::feed::Change;
use super::index::{Index, by_owner};
use super::ownership::{self, JOB};
use super::pods::{PodDigest, condition, is_active, is_terminal, seconds};
use super::queue::Queue;
use super::runner::Controller;
use crate::client::{Client, unchanged};
use crate::status::Result;
use crate::store::{Key, ObjectRef, ResourceId};

const COMPONENT: &str = "job-controller";
const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Waits between failures of pods: doubled from the first up to the longest.
const FIRST_BACKOFF: i64 = 10;
const LONGEST_BACKOFF: i64 = 600;

pub struct Jobs {
    client: Client,
    recorder: Recorder,
    pods: Index,
    jobs: HashMap<Box<str>, Key>,
}

/// What a look at a job's pods shows.
struct View {
    object: ObjectRef,
    value: Value,
    pods: Vec<ObjectRef>,
    succeeded: i64,
    failed: i64,
    /// Uids that are over and not yet counted.
    new_succeeded: Vec<Box<str>>,
    new_failed: Vec<Box<str>>,
    /// Failures that the policy says not to count.
    ignored: Vec<Box<str>>,
    completed_indexes: BTreeSet<i64>,
}

impl Jobs {
    pub fn new(client: Client, recorder: Recorder) -> Self {
        Jobs { client, recorder, pods: Index::default(), jobs: HashMap::new() }
    }
}

impl Controller for Jobs {
    const NAME: &'static str = "job-controller";
    type Key = Key;

    fn watched(&self) -> Vec<ResourceId> {
        [JOB.resource, "pods"].map(Into::into).into()
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Key>) {
        let object = change.object;
        if change.resource == 0 {
            match change.deleted() {
                true => drop(self.jobs.remove(&object.keys.uid)),
                false => drop(self.jobs.insert(object.keys.uid.clone(), object.key.clone())),
            }
            queue.add(object.key.clone());
        } else {
            self.pods.observe(change, by_owner);
            for uid in &object.keys.owners {
                match self.jobs.get(uid) {
                    Some(key) => queue.add(key.clone()),
                    None => {
                        let digest = PodDigest::of(object);
                        let orphan = digest.controller.as_ref().filter(|c| &*c.kind == JOB.kind);
                        if let Some(owner) = orphan.filter(|_| digest.finalizers.iter().any(|f| **f == *FINALIZER)) {
                            queue.add(Key::new(&object.key.namespace, &owner.name));
                        }
                    }
                }
            }
        }
    }

    async fn sync(&mut self, key: &Key) -> Result<Option<Duration>> {
        let found = self.client.get(JOB.resource, &key.namespace, &key.name);
        self.free_orphans(key, found.as_ref()).await?;
        let Some(object) = found.filter(|j| !j.keys.deleting) else { return Ok(None) };
        let value = object.value();
        if value["spec"]["managedBy"].as_str().is_some_and(|m| m != "kubernetes.io/job-controller") {
            return Ok(None);
        }
        let owned = self.pods.get(&object.keys.uid).cloned();
        let pods: Vec<ObjectRef> =
            owned.filter(|p| PodDigest::of(p).controller.as_ref().is_some_and(|c| c.uid == object.keys.uid)).collect();
        if finished(&value).is_some() {
            return self.free(&pods, |_| true).await.map(|()| None);
        }
        let mut view = View::read(object, value, pods);
        let verdict = view.verdict();
        let mut again = None;
        let mut failure = None;
        let end = match verdict {
            Verdict::Done { ok, ref reason, ref message } => {
                let active: Vec<ObjectRef> = view.pods.iter().filter(|p| is_active(p)).cloned().collect();
                ownership::delete_pods(&self.client, &active).await?;
                Some((ok, reason.clone(), message.clone()))
            }
            Verdict::Goes => {
                match self.manage(&mut view).await {
                    Ok(wait) => again = wait,
                    Err(error) => failure = Some(error),
                }
                None
            }
        };
        let deadline = view.deadline();
        self.write(&view, end).await?;
        // Noted in the status now: the pods may go.
        let noted: BTreeSet<Box<str>> =
            view.new_succeeded.iter().chain(&view.new_failed).chain(&view.ignored).cloned().collect();
        self.free(&view.pods, |pod| noted.contains(&pod.keys.uid)).await?;
        match failure {
            Some(error) => Err(error),
            None => Ok([again, deadline].into_iter().flatten().min()),
        }
    }
}

enum Verdict {
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
    fn read(object: ObjectRef, value: Value, pods: Vec<ObjectRef>) -> Self {
        let status = &value["status"];
        let mut view = View {
            succeeded: status["succeeded"].as_i64().unwrap_or(0),
            failed: status["failed"].as_i64().unwrap_or(0),
            new_succeeded: Vec::new(),
            new_failed: Vec::new(),
            ignored: Vec::new(),
            completed_indexes: parse_indexes(status["completedIndexes"].as_str().unwrap_or_default()),
            object,
            value,
            pods,
        };
        let held: HashMap<Box<str>, bool> = view
            .pods
            .iter()
            .map(|p| (p.keys.uid.clone(), PodDigest::of(p).finalizers.iter().any(|f| **f == *FINALIZER)))
            .collect();
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
        for pod in &view.pods.clone() {
            if !held.get(&pod.keys.uid).copied().unwrap_or(false) {
                continue;
            }
            let known = ok.contains(&pod.keys.uid) || bad.contains(&pod.keys.uid);
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
                "Failed" if !known => match view.policy(pod) {
                    Some(Rule { action: Action::Ignore, .. }) => ignored.push(pod.keys.uid.clone()),
                    _ => bad.push(pod.keys.uid.clone()),
                },
                // Deleted before its end: it will not succeed any more, and is replaced at once.
                _ if pod.keys.deleting && !known && !view.replaces_late() => bad.push(pod.keys.uid.clone()),
                _ => {}
            }
        }
        if indexed {
            view.succeeded = i64::try_from(view.completed_indexes.len()).unwrap_or(i64::MAX);
        }
        (view.new_succeeded, view.new_failed, view.ignored) = (ok, bad, ignored);
        view
    }

    fn indexed(&self) -> bool {
        self.value["spec"]["completionMode"] == "Indexed"
    }

    /// A pod that is being deleted counts once it is over, not before.
    fn replaces_late(&self) -> bool {
        let spec = &self.value["spec"];
        spec["podReplacementPolicy"] == "Failed" || spec["podFailurePolicy"].is_object()
    }

    fn completions(&self) -> Option<i64> {
        self.value["spec"]["completions"].as_i64()
    }

    fn count(list: &[Box<str>]) -> i64 {
        i64::try_from(list.len()).unwrap_or(i64::MAX)
    }

    fn all_succeeded(&self) -> i64 {
        if self.indexed() { self.succeeded } else { self.succeeded + Self::count(&self.new_succeeded) }
    }

    fn all_failed(&self) -> i64 {
        self.failed + Self::count(&self.new_failed)
    }

    fn active(&self) -> usize {
        self.pods.iter().filter(|p| is_active(p)).count()
    }

    fn suspended(&self) -> bool {
        self.value["spec"]["suspend"] == true
    }

    /// Whether the job is over.
    fn verdict(&self) -> Verdict {
        let done = |ok, reason: &str, message: String| Verdict::Done { ok, reason: reason.into(), message };
        // What was decided stays decided while the last pods end.
        for (kind, ok) in [("SuccessCriteriaMet", true), ("FailureTarget", false)] {
            if let Some(target) = condition(&self.value, kind).filter(|c| c["status"] == "True") {
                let text = |key: &str| target[key].as_str().unwrap_or_default().to_owned();
                return done(ok, &text("reason"), text("message"));
            }
        }
        for pod in self.pods.iter().filter(|p| p.field("status.phase") == "Failed") {
            if let Some(Rule { action: Action::FailJob, message }) = self.policy(pod) {
                return done(false, "PodFailurePolicy", message);
            }
        }
        let limit = self.value["spec"]["backoffLimit"].as_i64().unwrap_or(6);
        let restarts: i64 = match self.value["spec"]["template"]["spec"]["restartPolicy"].as_str() {
            Some("OnFailure") => self.pods.iter().filter(|p| is_active(p)).map(|p| PodDigest::of(p).restarts).sum(),
            _ => 0,
        };
        if self.all_failed() > limit || restarts > 0 && restarts >= limit {
            return done(false, "BackoffLimitExceeded", "Job has reached the specified backoff limit".into());
        }
        if self.deadline() == Some(Duration::ZERO) {
            let message = "Job was active longer than specified deadline";
            return done(false, "DeadlineExceeded", message.into());
        }
        if self.suspended() {
            return Verdict::Goes;
        }
        let complete = match self.completions() {
            Some(completions) => self.all_succeeded() >= completions,
            // Without a number of completions the first success is the last.
            None => self.all_succeeded() > 0 && self.active() == 0,
        };
        if complete {
            return done(true, "CompletionsReached", "Reached expected number of succeeded pods".into());
        }
        self.success_policy().map_or(Verdict::Goes, |message| done(true, "SuccessPolicy", message))
    }

    /// Time left of the active deadline.
    fn deadline(&self) -> Option<Duration> {
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
            let listed = rule["succeededIndexes"].as_str().map(parse_indexes);
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

    /// What the failure policy says of a failed pod.
    fn policy(&self, pod: &ObjectRef) -> Option<Rule> {
        let rules = self.value["spec"]["podFailurePolicy"]["rules"].as_array()?;
        let value = pod.value();
        let place = format!("{}/{}", pod.key.namespace, pod.key.name);
        for (at, rule) in rules.iter().enumerate() {
            let Some(what) = rule_matches(rule, &value) else { continue };
            let action = match rule["action"].as_str() {
                Some("FailJob") => Action::FailJob,
                Some("Ignore") => Action::Ignore,
                _ => Action::Count,
            };
            let word = rule["action"].as_str().unwrap_or_default();
            let message = match what {
                Match::Exit { container, code } => format!(
                    "Container {container} for pod {place} failed with exit code {code} matching {word} rule at index {at}"
                ),
                Match::Condition(kind) => {
                    format!("Pod {place} has condition {kind} matching {word} rule at index {at}")
                }
            };
            return Some(Rule { action, message });
        }
        None
    }

    /// How long the last failures make the next pod wait.
    fn backoff(&self) -> Option<Duration> {
        let failed = self.pods.iter().filter(|p| p.field("status.phase") == "Failed");
        let times = failed.map(|p| {
            let value = p.value();
            let statuses = value["status"]["containerStatuses"].as_array().into_iter().flatten();
            let end = statuses.map(|s| seconds(&s["state"]["terminated"]["finishedAt"])).max().unwrap_or(0);
            if end == 0 { PodDigest::of(p).created } else { end }
        });
        let last = times.max()?;
        // A success in between clears the record.
        let succeeded = self.pods.iter().filter(|p| p.field("status.phase") == "Succeeded");
        if succeeded.map(|p| PodDigest::of(p).started).max().is_some_and(|t| t > last) {
            return None;
        }
        let count = u32::try_from(self.all_failed().max(1) - 1).unwrap_or(u32::MAX).min(16);
        let wait = FIRST_BACKOFF.saturating_mul(1 << count).min(LONGEST_BACKOFF);
        let left = last + wait - Timestamp::now().seconds;
        (left > 0).then(|| Duration::from_secs(left.unsigned_abs()))
    }
}

#[derive(Debug, PartialEq)]
enum Action {
    FailJob,
    Ignore,
    Count,
}

#[derive(Debug, PartialEq)]
struct Rule {
    action: Action,
    message: String,
}

enum Match {
    Exit { container: String, code: i64 },
    Condition(String),
}

fn rule_matches(rule: &Value, pod: &Value) -> Option<Match> {
    let exit = &rule["onExitCodes"];
    if exit.is_object() {
        let statuses = ["initContainerStatuses", "containerStatuses"].into_iter();
        let statuses = statuses.flat_map(|list| pod["status"][list].as_array().into_iter().flatten());
        for status in statuses {
            let wanted = exit["containerName"].as_str();
            let Some(code) = status["state"]["terminated"]["exitCode"].as_i64().filter(|c| *c != 0) else { continue };
            let listed = exit["values"].as_array().is_some_and(|v| v.iter().any(|v| v.as_i64() == Some(code)));
            let fits = if exit["operator"] == "NotIn" { !listed } else { listed };
            if fits && wanted.is_none_or(|w| status["name"] == w) {
                let container = status["name"].as_str().unwrap_or_default().to_owned();
                return Some(Match::Exit { container, code });
            }
        }
    }
    let patterns = rule["onPodConditions"].as_array().into_iter().flatten();
    for pattern in patterns {
        let kind = pattern["type"].as_str().unwrap_or_default();
        let status = pattern["status"].as_str().unwrap_or("True");
        if condition(pod, kind).is_some_and(|c| c["status"] == status) {
            return Some(Match::Condition(kind.into()));
        }
    }
    None
}

fn index_of(pod: &ObjectRef) -> Option<i64> {
    pod.label(INDEX).and_then(|t| t.parse().ok())
}

/// `1,3-5,7`.
fn parse_indexes(text: &str) -> BTreeSet<i64> {
    let mut out = BTreeSet::new();
    for part in text.split(',').filter(|p| !p.is_empty()) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(from), Ok(to)) = (from.parse::<i64>(), to.parse::<i64>()) {
            // No job has more; a longer range is no text of ours.
            out.extend((from..=to).take(100_000));
        }
    }
    out
}

fn format_indexes(indexes: &BTreeSet<i64>) -> String {
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

impl Jobs {
    /// Pods whose job is gone, or another one of its name, need nobody to count them.
    async fn free_orphans(&self, key: &Key, job: Option<&ObjectRef>) -> Result<()> {
        let snapshot = match job {
            Some(job) if !job.keys.deleting => return Ok(()),
            _ => self.client.store().snapshot(&"pods".into()),
        };
        let pods = snapshot.range(Some(&key.namespace), None).filter(|pod| {
            let digest = PodDigest::of(pod);
            let owner = digest.controller.as_ref().filter(|c| &*c.kind == JOB.kind);
            owner.is_some_and(|c| *c.name == *key.name)
        });
        let pods: Vec<ObjectRef> = pods.cloned().collect();
        self.free(&pods, |_| true).await
    }

    /// Takes our finalizer off pods.
    async fn free(&self, pods: &[ObjectRef], which: impl Fn(&ObjectRef) -> bool) -> Result<()> {
        let held = |pod: &&ObjectRef| PodDigest::of(pod).finalizers.iter().any(|f| **f == *FINALIZER);
        let writes = pods.iter().filter(held).filter(|p| which(p)).map(|pod| async {
            let written = self.client.update("pods", &pod.key.namespace, &pod.key.name, |value| {
                let metadata = &mut value["metadata"];
                if metadata["uid"] != *pod.keys.uid {
                    return Err(unchanged());
                }
                let Some(list) = metadata["finalizers"].as_array_mut() else { return Err(unchanged()) };
                list.retain(|f| f != FINALIZER);
                if list.is_empty() {
                    drop(metadata.as_object_mut().and_then(|m| m.remove("finalizers")));
                }
                Ok(())
            });
            ownership::done(written.await.map(|_| ())).map(|_| ())
        });
        join_all(writes).await.into_iter().collect()
    }

    /// Makes or deletes pods so that as many run as should; when to look again.
    async fn manage(&self, view: &mut View) -> Result<Option<Duration>> {
        let job = view.object.clone();
        let mut active: Vec<ObjectRef> = view.pods.iter().filter(|p| is_active(p)).cloned().collect();
        let replace_late = view.replaces_late();
        let ending = view.pods.iter().filter(|p| p.keys.deleting && !is_terminal(p)).count();
        let parallelism = view.value["spec"]["parallelism"].as_i64().unwrap_or(1);
        let wanted = if view.suspended() {
            0
        } else {
            match view.completions() {
                Some(completions) => parallelism.min(completions - view.all_succeeded()),
                None if view.all_succeeded() > 0 => i64::try_from(active.len()).unwrap_or(0).min(parallelism),
                None => parallelism,
            }
        };
        let wanted = usize::try_from(wanted.max(0)).unwrap_or(0);
        if active.len() > wanted {
            super::replicaset::rank(&mut active);
            active.truncate(active.len() - wanted);
            ownership::delete_pods(&self.client, &active).await?;
            for pod in &active {
                let text = format!("Deleted pod: {}", pod.key.name);
                self.recorder.say(COMPONENT, JOB.about(&job), "SuccessfulDelete", text);
            }
            return Ok(None);
        }
        let have = active.len() + if replace_late { ending } else { 0 };
        let missing = wanted.saturating_sub(have).min(ownership::BURST);
        if missing == 0 {
            return Ok(None);
        }
        if let Some(wait) = view.backoff() {
            return Ok(Some(wait));
        }
        let pods = self.new_pods(view, missing);
        let (made, result) = ownership::create_pods(&self.client, &job.key.namespace, pods).await;
        for pod in made {
            self.recorder.say(COMPONENT, JOB.about(&job), "SuccessfulCreate", format!("Created pod: {}", pod.key.name));
            view.pods.push(pod);
        }
        if let Err(error) = &result {
            self.recorder.warn(COMPONENT, JOB.about(&job), "FailedCreate", format!("Error creating: {error}"));
        }
        result.map(|()| None)
    }

    fn new_pods(&self, view: &View, count: usize) -> Vec<Value> {
        let name = &view.object.key.name;
        let mut pod = ownership::pod_from(&view.value["spec"]["template"], JOB, &view.object);
        match pod["metadata"]["finalizers"].as_array_mut() {
            Some(list) => list.push(FINALIZER.into()),
            None => pod["metadata"]["finalizers"] = json!([FINALIZER]),
        }
        if !view.indexed() {
            pod["metadata"]["generateName"] = format!("{name}-").into();
            return vec![pod; count];
        }
        let taken: BTreeSet<i64> = view.pods.iter().filter(|p| is_active(p)).filter_map(index_of).collect();
        let free =
            (0..view.completions().unwrap_or(0)).filter(|i| !taken.contains(i) && !view.completed_indexes.contains(i));
        let with_index = |index: i64| {
            let mut pod = pod.clone();
            pod["metadata"]["generateName"] = format!("{name}-{index}-").into();
            pod["metadata"]["labels"][INDEX] = index.to_string().into();
            pod["metadata"]["annotations"][INDEX] = index.to_string().into();
            pod["spec"]["hostname"] = format!("{name}-{index}").into();
            let variable = json!({"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef":
                {"fieldPath": format!("metadata.labels['{INDEX}']")}}});
            for list in ["initContainers", "containers"] {
                for container in pod["spec"].get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                    match container.get_mut("env").and_then(Value::as_array_mut) {
                        Some(env) if env.iter().any(|v| v["name"] == variable["name"]) => {}
                        Some(env) => env.push(variable.clone()),
                        None => container["env"] = json!([variable]),
                    }
                }
            }
            pod
        };
        free.take(count).map(with_index).collect()
    }

    /// Writes what was seen; `end` is how the job ends, once its last pods are gone.
    async fn write(&self, view: &View, end: Option<(bool, String, String)>) -> Result<()> {
        let key = &view.object.key;
        // Fresh states: pods were deleted or made since the view was taken.
        let now: Vec<ObjectRef> =
            view.pods.iter().filter_map(|p| self.client.get("pods", &p.key.namespace, &p.key.name)).collect();
        let active = now.iter().filter(|p| is_active(p));
        let ready = active.clone().filter(|p| PodDigest::of(p).ready).count();
        let active = active.count();
        let terminating = now.iter().filter(|p| p.keys.deleting && !is_terminal(p)).count();
        let settled = active == 0 && terminating == 0 && view.new_failed.is_empty() && view.new_succeeded.is_empty();
        let mut ended = None;
        let written = self.client.update_status(JOB.resource, &key.namespace, &key.name, |value| {
            if value["metadata"]["uid"] != *view.object.keys.uid {
                return Err(unchanged());
            }
            let time = Timestamp::now().to_seconds_text();
            let status = &mut value["status"];
            if status["startTime"].is_null() && !view.suspended() {
                status["startTime"] = time.as_str().into();
            }
            let numbers = BTreeMap::from([
                ("active", i64::try_from(active).unwrap_or(0)),
                ("succeeded", view.succeeded),
                ("failed", view.failed),
            ]);
            for (name, number) in numbers {
                match (number, status.as_object_mut()) {
                    (0, Some(map)) => drop(map.remove(name)),
                    (number, _) => status[name] = number.into(),
                }
            }
            status["ready"] = ready.into();
            status["terminating"] = terminating.into();
            let mut uncounted = json!({});
            for (name, list) in [("succeeded", &view.new_succeeded), ("failed", &view.new_failed)] {
                if !list.is_empty() {
                    uncounted[name] = list.iter().map(|uid| Value::from(&**uid)).collect();
                }
            }
            status["uncountedTerminatedPods"] = uncounted;
            if view.indexed() && !view.completed_indexes.is_empty() {
                status["completedIndexes"] = format_indexes(&view.completed_indexes).into();
            }
            let mut condition = |kind: &str, status: &str, reason: &str, message: &str| {
                let condition =
                    json!({"type": kind, "status": status, "reason": reason, "message": message, "lastProbeTime": time});
                ownership::set_condition(value, condition)
            };
            match &end {
                Some((ok, reason, message)) => {
                    condition(if *ok { "SuccessCriteriaMet" } else { "FailureTarget" }, "True", reason, message);
                    if settled {
                        condition(if *ok { "Complete" } else { "Failed" }, "True", reason, message);
                        ended = Some((*ok, reason.clone(), message.clone()));
                        if *ok {
                            value["status"]["completionTime"] = time.into();
                        }
                    }
                }
                None if view.suspended() => {
                    condition("Suspended", "True", "JobSuspended", "Job suspended");
                    drop(value["status"].as_object_mut().and_then(|s| s.remove("startTime")));
                }
                None if super::pods::condition(value, "Suspended").is_some_and(|c| c["status"] == "True") => {
                    let resumed = json!({"type": "Suspended", "status": "False", "reason": "JobResumed",
                        "message": "Job resumed", "lastProbeTime": time});
                    ownership::set_condition(value, resumed);
                    value["status"]["startTime"] = time.into();
                }
                None => {}
            }
            Ok(())
        });
        if !ownership::done(written.await.map(|_| ()))? {
            return Ok(());
        }
        let about = JOB.about(&view.object);
        match ended {
            Some((true, ..)) => self.recorder.say(COMPONENT, about, "Completed", "Job completed".into()),
            Some((false, reason, message)) => {
                let reason = match reason.as_str() {
                    "DeadlineExceeded" => "DeadlineExceeded",
                    "PodFailurePolicy" => "PodFailurePolicy",
                    _ => "BackoffLimitExceeded",
                };
                self.recorder.warn(COMPONENT, about, reason, message);
            }
            None => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_written_as_ranges() {
        for text in ["", "0", "0,1", "0-2,5,7-9"] {
            assert_eq!(format_indexes(&parse_indexes(text)), text);
        }
    }

    #[test]
    fn failure_rules_look_at_exit_codes_and_conditions() {
        let pod = json!({"status": {"containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 42}}}],
            "conditions": [{"type": "DisruptionTarget", "status": "True"}]}});
        let exit = |operator: &str, values: Value| json!({"onExitCodes": {"operator": operator, "values": values}});
        assert!(rule_matches(&exit("In", json!([42])), &pod).is_some());
        assert!(rule_matches(&exit("NotIn", json!([42])), &pod).is_none());
        assert!(rule_matches(&exit("NotIn", json!([1])), &pod).is_some());
        let disrupted = json!({"onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]});
        assert!(rule_matches(&disrupted, &pod).is_some());
    }
}
