//! `deployment-controller`: replica sets of a deployment, one per version of its template, and the way from one version to
//! the next.

mod revision;
mod rollout;
mod status;

pub(super) use self::revision::hash;

use std::time::Duration;

use futures_util::future::FutureExt as _;
use serde_json::{Value, json};

use self::status::Tells;
use super::events::Recorder;
use super::feed::Change;
use super::index::{Index, by_owner};
use super::ownership::{self, DEPLOYMENT, OwnerKind, REPLICA_SET};
use super::pods::{PodDigest, controller_of, is_terminal};
use super::queue::Queue;
use super::runner::{self, Controller};
use crate::client::{Client, unchanged};
use crate::selectors::LabelSelector;
use crate::status::Result;
use crate::store::{Key, ObjectRef, ResourceId};

const COMPONENT: &str = "deployment-controller";
const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
const MAXIMUM: &str = "deployment.kubernetes.io/max-replicas";
const REVISION: &str = "deployment.kubernetes.io/revision";
const HISTORY: &str = "deployment.kubernetes.io/revision-history";
const HASH_LABEL: &str = "pod-template-hash";

pub struct Deployments {
    client: Client,
    recorder: Recorder,
    sets: Index,
}

/// A replica set as it is worked with.
#[derive(Clone)]
pub(super) struct Set {
    object: ObjectRef,
    value: Value,
}

impl Set {
    fn new(object: ObjectRef) -> Self {
        Set { value: object.value(), object }
    }

    fn replicas(&self) -> i64 {
        self.value["spec"]["replicas"].as_i64().unwrap_or(0)
    }

    fn status(&self, key: &str) -> i64 {
        self.value["status"][key].as_i64().unwrap_or(0)
    }

    fn annotation(&self, key: &str) -> &str {
        self.value["metadata"]["annotations"][key].as_str().unwrap_or_default()
    }

    fn created(&self) -> &str {
        self.value["metadata"]["creationTimestamp"].as_str().unwrap_or_default()
    }
}

/// A deployment with its replica sets.
struct Work {
    object: ObjectRef,
    value: Value,
    /// Of the current template; None until it is made.
    new: Option<Set>,
    /// Oldest first.
    old: Vec<Set>,
}

impl Work {
    fn replicas(&self) -> i64 {
        self.value["spec"]["replicas"].as_i64().unwrap_or(1)
    }

    fn rolling(&self) -> bool {
        self.value["spec"]["strategy"]["type"] != "Recreate"
    }

    /// Pods above the wanted number, and below it, that a rollout may have.
    fn slack(&self) -> (i64, i64) {
        if !self.rolling() || self.replicas() == 0 {
            return (0, 0);
        }
        let bounds = &self.value["spec"]["strategy"]["rollingUpdate"];
        let surge = ownership::number_or_percent(&bounds["maxSurge"], self.replicas(), true);
        let unavailable = ownership::number_or_percent(&bounds["maxUnavailable"], self.replicas(), false);
        // Both rounded to zero would never get anywhere.
        let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
        (surge, unavailable.min(self.replicas()))
    }

    fn all(&self) -> impl Iterator<Item = &Set> + Clone {
        self.old.iter().chain(&self.new)
    }

    fn total(&self) -> i64 {
        self.all().map(Set::replicas).sum()
    }

    fn paused(&self) -> bool {
        self.value["spec"]["paused"] == true
    }
}

impl Controller for Deployments {
    const NAME: &'static str = "deployment-controller";
    type Key = Key;

    fn watched(&self) -> Vec<ResourceId> {
        [DEPLOYMENT.resource, REPLICA_SET.resource, "pods"].map(Into::into).into()
    }

    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Key>) {
        let object = change.object;
        match change.resource {
            0 => queue.add(object.key.clone()),
            1 => {
                self.sets.observe(change, |set| by_owner(set).chain(set.keys.owners.is_empty().then_some("")));
                for state in [Some(object), change.previous].into_iter().flatten() {
                    if let Some(owner) = controller_of(&state.value()).filter(|o| &*o.kind == DEPLOYMENT.kind) {
                        queue.add(Key::new(&object.key.namespace, &owner.name));
                    }
                }
                if object.keys.owners.is_empty() && !change.deleted() {
                    self.queue_adopters(object, queue);
                }
            }
            // Recreating waits for the last old pod.
            _ if change.deleted() || is_terminal(object) => {
                let digest = PodDigest::of(object);
                let Some(owner) = digest.controller.as_ref().filter(|o| &*o.kind == REPLICA_SET.kind) else { return };
                let set = self.client.get(REPLICA_SET.resource, &object.key.namespace, &owner.name);
                let deployment = set.and_then(|s| controller_of(&s.value()));
                if let Some(deployment) = deployment.filter(|o| &*o.kind == DEPLOYMENT.kind) {
                    queue.add(Key::new(&object.key.namespace, &deployment.name));
                }
            }
            _ => {}
        }
    }

    fn begin(&mut self, key: &Key) -> Option<runner::Work> {
        let owner = self.client.get(DEPLOYMENT.resource, &key.namespace, &key.name)?;
        let mut hand = Self::new(self.client.clone(), self.recorder.clone());
        hand.sets = self.sets.part(&[&*owner.keys.uid, ""], |o| o.key.namespace == key.namespace);
        Some(hand.work(owner).boxed())
    }
}

impl Deployments {
    /// Work on a deployment, with the part of the state that was chosen for it as it is here.
    async fn work(self, object: ObjectRef) -> Result<Option<Duration>> {
        let value = object.value();
        let selector = LabelSelector::parse(&value["spec"]["selector"]);
        if selector.is_empty() {
            let text = "This deployment is selecting all pods. A non-empty selector is required.";
            self.recorder.warn(COMPONENT, DEPLOYMENT.about(&object), "SelectingAll", text.into());
            return Ok(None);
        }
        let sets = self.claim(&object, &selector).await?;
        let mut work = self.sort(object, value, sets);
        if work.object.keys.deleting {
            return self.write_status(&work, Tells::Counts).await;
        }
        self.note_pause(&work).await?;
        if work.paused() {
            self.number(&mut work, false).await?;
            self.scale(&mut work).await?;
            self.clean_up(&work).await?;
            return self.write_status(&work, Tells::Counts).await;
        }
        let wanted = work.replicas().to_string();
        let resized = work.all().filter(|s| s.replicas() > 0).any(|s| {
            let desired = s.annotation(DESIRED);
            !desired.is_empty() && desired != wanted
        });
        if resized {
            self.number(&mut work, false).await?;
            self.scale(&mut work).await?;
            return self.write_status(&work, Tells::Counts).await;
        }
        match work.rolling() {
            true => self.roll(&mut work).await?,
            false => self.recreate(&mut work).await?,
        }
        self.write_status(&work, Tells::Rollout).await
    }
}

impl Deployments {
    pub fn new(client: Client, recorder: Recorder) -> Self {
        Deployments { client, recorder, sets: Index::default() }
    }

    fn queue_adopters(&self, set: &ObjectRef, queue: &mut Queue<Key>) {
        let deployments = self.client.store().snapshot(&DEPLOYMENT.resource.into());
        for deployment in deployments.range(Some(&set.key.namespace), None) {
            let selector = LabelSelector::parse(&deployment.value()["spec"]["selector"]);
            if selector.matches(&set.keys.labels) {
                queue.add(deployment.key.clone());
            }
        }
    }

    async fn claim(&self, object: &ObjectRef, selector: &LabelSelector) -> Result<Vec<Set>> {
        let mut mine = Vec::new();
        for set in self.sets.get(&object.keys.uid).cloned() {
            let set = Set::new(set);
            if controller_of(&set.value).is_none_or(|c| c.uid != object.keys.uid) {
                continue;
            }
            if selector.matches(&set.object.keys.labels) {
                mine.push(set);
            } else if !object.keys.deleting {
                ownership::release(&self.client, object, REPLICA_SET.resource, &set.object).await?;
            }
        }
        if object.keys.deleting {
            return Ok(mine);
        }
        let orphans = self.sets.get("").filter(|s| s.key.namespace == object.key.namespace && !s.keys.deleting);
        for orphan in orphans.filter(|s| selector.matches(&s.keys.labels)) {
            if ownership::adopt(&self.client, DEPLOYMENT, object, REPLICA_SET.resource, orphan).await?
                && let Some(now) = self.client.get(REPLICA_SET.resource, &orphan.key.namespace, &orphan.key.name)
            {
                mine.push(Set::new(now));
            }
        }
        Ok(mine)
    }

    /// Tells the replica set of the current template from the others.
    fn sort(&self, object: ObjectRef, value: Value, mut sets: Vec<Set>) -> Work {
        sets.sort_by(|a, b| (a.created(), &a.object.key.name).cmp(&(b.created(), &b.object.key.name)));
        let template = &value["spec"]["template"];
        let at = sets.iter().position(|s| revision::same_template(&s.value["spec"]["template"], template));
        let new = at.map(|at| sets.remove(at));
        Work { object, value, new, old: sets }
    }

    /// Notes in the conditions when a rollout is paused or resumed, so that its deadline stands still meanwhile.
    async fn note_pause(&self, work: &Work) -> Result<()> {
        let progressing = super::pods::condition(&work.value, "Progressing");
        if work.value["spec"]["progressDeadlineSeconds"].is_null()
            || progressing.is_some_and(|c| c["reason"] == "ProgressDeadlineExceeded")
        {
            return Ok(());
        }
        let noted = progressing.is_some_and(|c| c["reason"] == "DeploymentPaused");
        let (reason, message) = match (work.paused(), noted) {
            (true, false) => ("DeploymentPaused", "Deployment is paused"),
            (false, true) => ("DeploymentResumed", "Deployment is resumed"),
            _ => return Ok(()),
        };
        self.progress(work, "Unknown", reason, message).await
    }

    /// Writes the condition Progressing.
    async fn progress(&self, work: &Work, status: &str, reason: &str, message: &str) -> Result<()> {
        let key = &work.object.key;
        let written = self.client.update_status(DEPLOYMENT.resource, &key.namespace, &key.name, |value| {
            let now = proto::time::Timestamp::now().to_seconds_text();
            let condition = json!({"type": "Progressing", "status": status, "reason": reason, "message": message,
                "lastUpdateTime": now});
            if !ownership::set_condition_last(value, condition) {
                return Err(unchanged());
            }
            Ok(())
        });
        ownership::done(written.await.map(|_| ())).map(|_| ())
    }

    /// Gives a replica set another size, and tells about it.
    async fn resize(&self, work: &mut Work, which: Which, replicas: i64) -> Result<bool> {
        let (surge, wanted) = (work.slack().0, work.replicas());
        let set = match which {
            Which::New => work.new.as_mut(),
            Which::Old(at) => work.old.get_mut(at),
        };
        let Some(set) = set else { return Ok(false) };
        let before = set.replicas();
        let marks = [(DESIRED, wanted.to_string()), (MAXIMUM, (wanted + surge).to_string())];
        if before == replicas && marks.iter().all(|(key, text)| set.annotation(key) == text) {
            return Ok(false);
        }
        let key = set.object.key.clone();
        let written = self.client.update(REPLICA_SET.resource, &key.namespace, &key.name, |value| {
            value["spec"]["replicas"] = replicas.into();
            for (key, text) in &marks {
                value["metadata"]["annotations"][*key] = text.as_str().into();
            }
            Ok(())
        });
        *set = Set::new(written.await?);
        if before == replicas {
            return Ok(false);
        }
        let up = if replicas > before { "up" } else { "down" };
        let text = format!("Scaled {up} replica set {} from {before} to {replicas}", key.name);
        self.recorder.say(COMPONENT, DEPLOYMENT.about(&work.object), "ScalingReplicaSet", text);
        Ok(true)
    }
}

#[derive(Clone, Copy)]
enum Which {
    New,
    Old(usize),
}

/// The kind that replica sets are owned by, for those they are made for.
const OWNER: OwnerKind = DEPLOYMENT;
