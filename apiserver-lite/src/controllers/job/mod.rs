//! `job-controller`: runs pods until enough of them have succeeded.
//!
//! A pod that is over is counted once: first its uid is noted in the status, then the pod's finalizer is taken off, then
//! the uid becomes a number. Whatever happens in between, no pod is lost and none is counted twice.

mod indexes;
mod policy;
mod report;
mod view;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use futures_util::future::{FutureExt as _, join_all};
use serde_json::{Value, json};

use super::events::Recorder;
use super::feed::Change;
use super::index::{Index, by_owner};
use super::ownership::{self, JOB};
use super::pods::{PodDigest, condition, is_active, is_terminal, seconds};
use super::queue::Queue;
use super::runner::{Controller, Work};
use crate::client::{Client, unchanged};
use crate::status::Result;
use crate::store::{Key, ObjectRef, ResourceId};
use indexes::{INDEX, index_of};
use view::{Verdict, View};

pub use view::finished;

const COMPONENT: &str = "job-controller";
const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// Waits between failures of pods: doubled from the first up to the longest.
const FIRST_BACKOFF: i64 = 10;
const LONGEST_BACKOFF: i64 = 600;

/// When a pod ended, in seconds since 1970.
fn ended(pod: &ObjectRef) -> i64 {
    end_of(&pod.without_owners())
}

/// By the first of these that is told: its last container's end once all have ended, the time when it stopped being
/// ready, the time when its deletion was asked for, its creation.
fn end_of(pod: &Value) -> i64 {
    let list = |part: &Value| part.as_array().cloned().unwrap_or_default();
    // Sidecars end after the others.
    let sidecars: Vec<Value> =
        list(&pod["spec"]["initContainers"]).into_iter().filter(|c| c["restartPolicy"] == "Always").collect();
    let mut statuses = list(&pod["status"]["containerStatuses"]);
    let inits = list(&pod["status"]["initContainerStatuses"]);
    statuses.extend(inits.into_iter().filter(|s| sidecars.iter().any(|c| c["name"] == s["name"])));
    let ends: Vec<i64> = statuses.iter().map(|s| seconds(&s["state"]["terminated"]["finishedAt"])).collect();
    if let Some(last) = ends.iter().max().filter(|_| ends.iter().all(|end| *end > 0)) {
        return *last;
    }
    let unready = condition(pod, "Ready").filter(|c| c["status"] == "False");
    if let Some(since) = unready.map(|c| seconds(&c["lastTransitionTime"])).filter(|since| *since > 0) {
        return since;
    }
    match seconds(&pod["metadata"]["deletionTimestamp"]) {
        0 => seconds(&pod["metadata"]["creationTimestamp"]),
        deadline => deadline - pod["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0),
    }
}

/// What is left of the wait after so many failures, the last of them at `last`.
fn backoff_after(last: i64, failures: i64, now: i64) -> Option<Duration> {
    let doublings = u32::try_from(failures.max(1) - 1).unwrap_or(u32::MAX).min(16);
    let wait = FIRST_BACKOFF.saturating_mul(1 << doublings).min(LONGEST_BACKOFF);
    let left = last.saturating_add(wait) - now;
    (left > 0).then(|| Duration::from_secs(left.unsigned_abs()))
}

pub struct Jobs {
    client: Client,
    recorder: Recorder,
    pods: Index,
    jobs: HashMap<Box<str>, Key>,
    /// Pods with our finalizer that belong to no job that is known.
    strays: HashSet<Key>,
}

impl Jobs {
    pub fn new(client: Client, recorder: Recorder) -> Self {
        Jobs { client, recorder, pods: Index::default(), jobs: HashMap::new(), strays: HashSet::new() }
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
            let owners = object.keys.owners.iter().filter_map(|uid| self.jobs.get(uid));
            owners.for_each(|key| queue.add(key.clone()));
            let digest = PodDigest::of(object);
            let is_held = !change.deleted() && digest.finalizers.iter().any(|f| **f == *FINALIZER);
            let controller = digest.controller.as_ref();
            let of_job = controller.filter(|c| &*c.kind == JOB.kind);
            let is_stray = is_held && of_job.map_or(controller.is_none(), |c| !self.jobs.contains_key(&c.uid));
            match is_stray {
                true => {
                    // By the name of its job, so that it is looked at after what goes on with that one.
                    let name = of_job.map_or(&object.key.name, |c| &c.name);
                    queue.add(Key::new(&object.key.namespace, name));
                    self.strays.insert(object.key.clone());
                }
                false => drop(self.strays.remove(&object.key)),
            }
        }
    }

    fn begin(&mut self, key: &Key) -> Option<Work> {
        let mut hand = Self::new(self.client.clone(), self.recorder.clone());
        let found = self.client.get(JOB.resource, &key.namespace, &key.name);
        let strays = self.strays.iter().filter(|stray| stray.namespace == key.namespace);
        hand.strays = strays.cloned().collect();
        if let Some(owner) = &found {
            hand.pods = self.pods.part(&[&*owner.keys.uid], |_| true);
        }
        let key = key.clone();
        Some(async move { hand.work(&key, found).await }.boxed())
    }
}

impl Jobs {
    /// Work on one key, with the part of the state that was chosen for the job as it was found.
    async fn work(self, key: &Key, found: Option<ObjectRef>) -> Result<Option<Duration>> {
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
                view.keep_none();
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
        // Once the end is decided only its pods are waited for, and they tell of themselves.
        let deadline = view.deadline().filter(|_| end.is_none());
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

impl Jobs {
    /// Whether a pod belongs to no job, or to one that is gone or another one by now.
    fn is_stray(&self, pod: &ObjectRef) -> bool {
        let digest = PodDigest::of(pod);
        let Some(controller) = &digest.controller else { return true };
        let job = self.client.get(JOB.resource, &pod.key.namespace, &controller.name);
        &*controller.kind == JOB.kind && job.is_none_or(|job| job.keys.uid != controller.uid)
    }

    /// Pods whose job is gone, or another one of its name, need nobody to count them.
    async fn free_orphans(&self, key: &Key, job: Option<&ObjectRef>) -> Result<()> {
        let strays = self.strays.iter().filter_map(|key| self.client.get("pods", &key.namespace, &key.name));
        let strays: Vec<ObjectRef> = strays.filter(|pod| self.is_stray(pod)).collect();
        self.free(&strays, |_| true).await?;
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
        let active: Vec<ObjectRef> = view.pods.iter().filter(|p| is_active(p)).cloned().collect();
        let replace_late = view.replaces_late();
        let ending = view.pods.iter().filter(|p| p.keys.deleting && !is_terminal(p)).count();
        let parallelism = view.value["spec"]["parallelism"].as_i64().unwrap_or(1);
        let wanted = if view.suspended() {
            0
        } else {
            match view.completions() {
                Some(completions) => {
                    let given_up = view.failed_indexes().map_or(0, BTreeSet::len);
                    parallelism.min(completions - view.all_succeeded() - i64::try_from(given_up).unwrap_or(i64::MAX))
                }
                None if view.all_succeeded() > 0 => i64::try_from(active.len()).unwrap_or(0).min(parallelism),
                None => parallelism,
            }
        };
        let wanted = usize::try_from(wanted.max(0)).unwrap_or(0);
        let have = active.len() + if replace_late { ending } else { 0 };
        let unwanted = unwanted(view, active, wanted);
        if !unwanted.is_empty() {
            // Without the finalizer they are not counted: it is no failure of theirs that they end.
            self.free(&unwanted, |_| true).await?;
            ownership::delete_pods(&self.client, &unwanted).await?;
            for pod in &unwanted {
                let text = format!("Deleted pod: {}", pod.key.name);
                self.recorder.say(COMPONENT, JOB.about(&job), "SuccessfulDelete", text);
            }
            return Ok(None);
        }
        let mut again = None;
        let missing = wanted.saturating_sub(have).min(ownership::BURST);
        if missing == 0 {
            return Ok(None);
        }
        let pods = match &view.per_index {
            Some(per_index) => {
                // No further than is needed: a job may want two billion completions. What comes after that waits for a
                // pod's end in any case.
                let (mut now, mut wait) = (Vec::new(), None::<Duration>);
                for index in free_indexes(view) {
                    match per_index.wait(index) {
                        Some(left) => wait = Some(wait.map_or(left, |wait| wait.min(left))),
                        None => now.push(index),
                    }
                    if now.len() == missing {
                        break;
                    }
                }
                if now.is_empty() {
                    return Ok(wait);
                }
                again = wait;
                let count = now.len();
                new_pods(view, now.into_iter(), count)
            }
            None => {
                if let Some(wait) = view.backoff() {
                    return Ok(Some(wait));
                }
                new_pods(view, free_indexes(view).take(missing), missing)
            }
        };
        let (made, result) = ownership::create_pods(&self.client, &job.key.namespace, pods).await;
        for pod in made {
            self.recorder.say(COMPONENT, JOB.about(&job), "SuccessfulCreate", format!("Created pod: {}", pod.key.name));
            view.pods.push(pod);
        }
        if let Err(error) = &result {
            self.recorder.warn(COMPONENT, JOB.about(&job), "FailedCreate", format!("Error creating: {error}"));
        }
        result.map(|()| again)
    }
}

/// Those of the active pods that are to go, so that no more than `wanted` are left. Pods of no index that the job wants,
/// and all but one of an index, go even where they are not too many.
fn unwanted(view: &View, mut active: Vec<ObjectRef>, wanted: usize) -> Vec<ObjectRef> {
    let too_many = active.len().saturating_sub(wanted);
    let index = |pod: &ObjectRef| index_of(pod).filter(|i| view.completions().is_none_or(|c| *i < c));
    let stays = |seen: &mut BTreeSet<i64>, pod: &ObjectRef| match view.indexed() {
        true => index(pod).is_some_and(|i| seen.insert(i)),
        false => true,
    };
    let mut seen = BTreeSet::new();
    if too_many == 0 && active.iter().all(|pod| stays(&mut seen, pod)) {
        return Vec::new();
    }
    let related = active.clone();
    super::replicaset::rank(&mut active, &related);
    // From the end, where those are whose loss would hurt most.
    seen.clear();
    let (left, mut out): (Vec<_>, Vec<_>) = active.into_iter().rev().partition(|pod| stays(&mut seen, pod));
    let more = too_many.saturating_sub(out.len());
    out.extend(left.into_iter().rev().take(more));
    out
}

/// Indexes that nobody works on and that are neither done nor given up, in order.
fn free_indexes(view: &View) -> impl Iterator<Item = i64> {
    let replaces_late = view.replaces_late();
    let is_busy = |p: &&ObjectRef| is_active(p) || replaces_late && p.keys.deleting && !is_terminal(p);
    let taken: BTreeSet<i64> = view.pods.iter().filter(is_busy).filter_map(index_of).collect();
    let is_over = |i: &i64| view.completed_indexes.contains(i) || view.failed_indexes().is_some_and(|f| f.contains(i));
    (0..view.completions().unwrap_or(0)).filter(move |i| !taken.contains(i) && !is_over(i))
}

/// Pods for the indexes, or so many without one where the job has none.
fn new_pods(view: &View, indexes: impl Iterator<Item = i64>, count: usize) -> Vec<Value> {
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
    let with_index = |index: i64| {
        let mut pod = pod.clone();
        pod["metadata"]["generateName"] = format!("{name}-{index}-").into();
        pod["metadata"]["labels"][INDEX] = index.to_string().into();
        pod["metadata"]["annotations"][INDEX] = index.to_string().into();
        if let Some(per_index) = &view.per_index {
            per_index.carry_on(index, &mut pod);
        }
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
    indexes.map(with_index).collect()
}

#[cfg(test)]
mod tests;
