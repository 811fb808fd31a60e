//! The one loop that owns the table of pods.
//!
//! In: sources, the runtime's changes, verdicts of probes, workers that are done, questions. Out: facts to workers,
//! mirror pods. A pod enters by admission and gets a worker; it leaves when its worker has taken everything away. What
//! the runtime has and no source knows is an orphan and is ended, but only once every source has spoken.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use proto::api::core::v1::{Pod, PodCondition, PodStatus};
use proto::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::events::{EventType, Recorder};
use crate::images::puller::Puller;
use crate::metrics;
use crate::node;
use crate::pleg::parts::Seen;
use crate::pleg::{self, Latest, Nudge, RuntimePod};
use crate::pod::allocation::Allocation;
use crate::pod::labels;
use crate::pod::spec::PodExt;
use crate::probes::{Prober, Verdict};
use crate::sources::manifest::Manifests;
use crate::sources::{self, Source, Update};
use crate::state_file::{self, Damaged};
use crate::status::generate::is_over;
use crate::status::manager::StatusManager;

use super::allocations::Allocations;
use super::handle::Handle;
use super::mailbox::{End, KillRequest, Mailbox};
use super::mirrors::Mirrors;
use super::resizes::count_requested;
use super::userns::UserNamespaces;
use super::worker::{Begin, Worker};
use super::workers::{Ended, Workers};
use super::{Deps, Shared, container_gc, first_seen, preemption};

/// Everything on its way to the loop; when it is full, senders wait.
const QUEUE: usize = 1024;
/// Directories and leftovers of pods that nobody knows are looked for this often.
const HOUSEKEEPING: Duration = Duration::from_secs(60);
/// What came and went since is counted once.
const COUNTING: Duration = Duration::from_millis(250);

pub(super) enum Message {
    Pods(oneshot::Sender<Vec<Arc<Pod>>>),
    /// Answered with the pod's end; not at all when there is nothing to end.
    Kill(String, KillRequest, oneshot::Sender<End>),
    /// Room is needed: what pods that have ended left behind in the runtime is to go.
    Collect,
    /// Something that the status of the pod shows changed.
    Changed(String),
}

/// A pod in the table.
pub(super) struct Entry {
    /// As its source has it; workers get it as it is allocated.
    pub(super) pod: Arc<Pod>,
    pub(super) source: Source,
    /// `None` for a pod that admission refused, or that was over before the agent began.
    pub(super) mailbox: Option<Arc<Mailbox>>,
    /// In no source any more; the worker cleans up.
    pub(super) removed: bool,
    /// The pod of the same uid that came back while the worker was cleaning up; it comes in when that is done.
    returned: Option<Pod>,
    /// A static pod without a worker until an older one of its name is gone.
    waits: bool,
    seen: String,
}

/// Starts everything that concerns pods.
pub struct Manager {
    pub(super) shared: Arc<Shared>,
    pub(super) pods: BTreeMap<String, Entry>,
    pub(super) mirrors: Mirrors,
    workers: Workers,
    pub(super) orphans: HashMap<String, Arc<Mailbox>>,
    /// Folders of pods that nobody knows, as the last sweep found them.
    pub(super) ownerless: HashSet<String>,
    /// Whether cgroups of pods that are gone have been removed.
    pub(super) cgroups_swept: bool,
    /// The last sweep of logs.
    pub(super) log_sweep: Option<JoinHandle<()>>,
    pub(super) runtime: Option<Vec<RuntimePod>>,
    ready: HashSet<Source>,
    waiting_for: Vec<Source>,
    /// Pods without a worker whose claims are being given back.
    returning: HashMap<String, JoinHandle<()>>,
    /// When pods are counted, if anything has changed.
    count_at: Option<Instant>,
}

async fn counting(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl Manager {
    /// Starts the pods' tasks; they end when the handle and the agent's runtime do.
    pub fn start(deps: Deps) -> Handle {
        let (recorder, send_events) = Recorder::new(deps.client.clone(), &deps.config.node_name);
        let (verdicts, verdict_queue) = mpsc::channel(QUEUE);
        let (prober, run_probes) = Prober::new(deps.cri.clone(), recorder.clone(), verdicts);
        let status = StatusManager::new(deps.client.clone(), deps.feed.clone());
        let puller = Puller::new(deps.cri.clone(), recorder.clone(), deps.pulls);
        tokio::spawn(send_events);
        tokio::spawn(run_probes);
        tokio::spawn(status.clone().run());
        let damaged = |file: &Damaged| (deps.node_events)("Warning", state_file::EVENT, file.to_string());
        let allocations = Arc::new(Allocations::open(&deps.config.root_dir, damaged));
        tokio::spawn(allocations.clone().keep_written());
        let userns = UserNamespaces::open(&deps.config.root_dir, deps.config.user_ids, damaged);
        let shared = Arc::new(Shared {
            config: deps.config,
            cri: deps.cri,
            runtime_name: deps.runtime_name,
            client: deps.client,
            objects: deps.objects,
            volumes: deps.volumes,
            cgroups: deps.cgroups,
            node: deps.node,
            recorder,
            node_events: deps.node_events,
            status,
            allocations,
            userns,
            prober,
            puller,
            feed: deps.feed,
            devices: deps.devices,
            dra: deps.dra,
            signals: deps.signals,
            runtime: deps.runtime,
            managers: deps.managers,
            nudge: Nudge::default(),
            latest: Latest::default(),
            unheard: Arc::default(),
        });
        let (images, image_demands) = mpsc::channel(1);
        let image_gc = shared.config.image_gc.clone();
        let node_events = shared.node_events.clone();
        let records = shared.puller.records();
        tokio::spawn(crate::images::gc::run(shared.cri.clone(), image_gc, records, image_demands, node_events));
        tokio::spawn(container_gc::run(shared.clone()));
        let (runtime, runtime_queue) = mpsc::channel(QUEUE);
        let (nudge, latest) = (shared.nudge.clone(), shared.latest.clone());
        tokio::spawn(pleg::watch(shared.cri.clone(), runtime, nudge, latest));

        let (updates, update_queue) = mpsc::channel(64);
        let node = shared.config.node_name.clone();
        let may_reference = shared.config.static_pods_may_reference;
        let manifests = Manifests { node: node.clone(), may_reference };
        let mut waiting_for = Vec::new();
        if let Some(path) = shared.config.static_pod_path.clone() {
            waiting_for.push(Source::File);
            let every = shared.config.file_check_frequency;
            tokio::spawn(sources::files::follow(path, manifests.clone(), every, updates.clone()));
        }
        if let Some(place) = shared.config.static_pod_url.clone() {
            waiting_for.push(Source::Http);
            tokio::spawn(sources::url::follow(place, manifests, updates.clone()));
        }
        if !shared.config.standalone {
            waiting_for.push(Source::Api);
            let known = node::is_known(shared.node.clone(), deps.node_heard);
            tokio::spawn(sources::api::follow(shared.client.clone(), node, known, updates.clone()));
        }
        let (messages, message_queue) = mpsc::channel(64);
        let handle = Handle { messages: messages.clone(), images, shared: shared.clone() };
        let messages = messages.downgrade();
        let changed = move |uid: &str| {
            let Some(messages) = messages.upgrade() else { return };
            let uid = uid.to_owned();
            // A full queue is waited for elsewhere: whoever tells of devices goes on.
            tokio::spawn(async move { messages.send(Message::Changed(uid)).await });
        };
        shared.devices.set_listener(changed.clone());
        shared.dra.set_listener(changed);
        let manager = Self {
            shared,
            pods: BTreeMap::new(),
            mirrors: Mirrors::default(),
            workers: Workers::default(),
            orphans: HashMap::new(),
            ownerless: HashSet::new(),
            log_sweep: None,
            runtime: None,
            ready: HashSet::new(),
            cgroups_swept: false,
            waiting_for,
            returning: HashMap::new(),
            count_at: None,
        };
        if manager.sources_ready() {
            manager.shared.feed.sources_ready();
        }
        // The sender is kept: without any source the loop still serves.
        tokio::spawn(manager.run(update_queue, updates, runtime_queue, verdict_queue, message_queue));
        handle
    }

    async fn run(
        mut self,
        mut updates: mpsc::Receiver<Update>,
        _keep: mpsc::Sender<Update>,
        mut runtime: mpsc::Receiver<pleg::Event>,
        mut verdicts: mpsc::Receiver<Verdict>,
        mut messages: mpsc::Receiver<Message>,
    ) {
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
        housekeeping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            // Pods wait for the first word of the runtime: what runs must be known before anything is started.
            let may_start = self.runtime.is_some();
            tokio::select! {
                Some(update) = updates.recv(), if may_start => {
                    self.update(update);
                    self.count_soon();
                }
                event = runtime.recv() => match event {
                    Some(pleg::Event::Changed(uid, now)) => self.changed(&uid, now),
                    Some(pleg::Event::Listed(pods)) => {
                        self.runtime = Some(pods);
                        self.end_orphans();
                        self.count_soon();
                    }
                    None => return,
                },
                Some(verdict) = verdicts.recv() => {
                    if let Some(mailbox) = self.mailbox(&verdict.uid) {
                        mailbox.verdict(verdict);
                    }
                }
                message = messages.recv() => match message {
                    Some(Message::Pods(answer)) => {
                        let pods = self.pods.values().filter(|e| !e.removed).map(|e| e.pod.clone()).collect();
                        // Whoever asked may have gone.
                        let _ = answer.send(pods);
                    }
                    Some(Message::Kill(uid, request, answer)) => {
                        if let Some(mailbox) = self.mailbox(&uid) {
                            mailbox.kill(request);
                            // Whoever asked may not want to wait.
                            let _ = answer.send(mailbox.end());
                        }
                    }
                    Some(Message::Collect) => self.pods.values().filter_map(|e| e.mailbox.as_ref()).for_each(|m| m.collect()),
                    Some(Message::Changed(uid)) => self.changed(&uid, None),
                    None => return,
                },
                Some(ended) = self.workers.next(), if !self.workers.is_empty() => match ended {
                    Ended::Done(uid) => {
                        self.worker_done(&uid);
                        self.count_soon();
                    }
                    Ended::Broke { uid, error, wait } => {
                        tracing::error!(%error, pod = uid, ?wait, "the worker of a pod broke off; starting it again");
                        self.start_again(uid, wait);
                    }
                },
                () = self.mirrors.next() => self.reconcile_mirrors(),
                () = counting(self.count_at) => {
                    self.count_at = None;
                    self.count();
                }
                _ = housekeeping.tick() => {
                    crate::daemon::hang_if_asked("pods").await;
                    self.end_orphans();
                    self.sweep_logs();
                    self.retry_resizes("periodic_retry");
                    self.return_claims();
                }
            }
        }
    }

    fn count_soon(&mut self) {
        self.count_at.get_or_insert_with(|| Instant::now() + COUNTING);
    }

    /// Gives back the claims of pods that no worker will: they went or ended while no agent was there, or were refused.
    fn return_claims(&mut self) {
        // What runs has workers once the runtime and every source have spoken.
        if !self.sources_ready() || self.runtime.is_none() {
            return;
        }
        self.returning.retain(|_, task| !task.is_finished());
        let known = |uid: &str| {
            let waits = self.pods.get(uid).is_some_and(|e| e.waits);
            waits || self.returning.contains_key(uid) || self.mailbox(uid).is_some_and(|m| !m.is_over())
        };
        for uid in self.shared.dra.strangers(known) {
            let dra = self.shared.dra.clone();
            let pod = uid.clone();
            let task = tokio::spawn(async move {
                if let Err(error) = dra.unprepare(&uid).await {
                    tracing::info!(
                        error,
                        pod = uid,
                        "cannot give back the claims of a pod without a worker; trying again"
                    );
                }
            });
            self.returning.insert(pod, task);
        }
    }

    fn mailbox(&self, uid: &str) -> Option<&Arc<Mailbox>> {
        self.pods.get(uid).and_then(|e| e.mailbox.as_ref()).or_else(|| self.orphans.get(uid))
    }

    fn changed(&mut self, uid: &str, now: Option<Seen>) {
        if let Some(mailbox) = self.mailbox(uid) {
            mailbox.changed(now);
        }
    }

    fn update(&mut self, update: Update) {
        match update {
            Update::Listed(source, mut pods) => {
                if source.is_static() {
                    self.tell_namesakes(&take_namesakes(&mut pods), source);
                }
                // Older pods come first: they hold their resources already.
                pods.sort_by_key(|p| p.meta().creation_timestamp.map_or(0, |t| t.seconds));
                let mut listed = HashSet::new();
                let mut mirrors = HashSet::new();
                for pod in &pods {
                    if pod.is_mirror() {
                        mirrors.insert(key(pod));
                    } else {
                        listed.insert(pod.uid().to_owned());
                    }
                }
                // Before the new ones come in, which may have their names and wait for them.
                let gone: Vec<String> = self
                    .pods
                    .iter()
                    .filter(|(uid, e)| e.source == source && !listed.contains(*uid))
                    .map(|(uid, _)| uid.clone())
                    .collect();
                for uid in gone {
                    self.remove(&uid, None);
                }
                for pod in pods {
                    self.apply(pod, source);
                }
                if source == Source::Api {
                    self.mirrors.keep_only(&mirrors);
                }
                let begins = self.ready.insert(source) && self.sources_ready();
                if self.sources_ready() {
                    self.shared.feed.sources_ready();
                }
                self.reconcile_mirrors();
                self.end_orphans();
                if begins {
                    self.return_claims();
                }
            }
            Update::Applied(pod) => self.apply(pod, Source::Api),
            Update::Deleted(pod) if pod.is_mirror() => {
                self.mirrors.forget(&pod);
                self.reconcile_mirrors();
            }
            Update::Deleted(pod) => {
                let uid = pod.uid().to_owned();
                self.remove(&uid, Some(pod));
                self.reconcile_mirrors();
            }
        }
    }

    fn tell_namesakes(&self, pods: &[Pod], source: Source) {
        for pod in pods {
            let (name, source) = (pod.name(), source.as_str());
            tracing::info!(pod = name, namespace = pod.namespace(), source, "ignoring a second pod of one name");
            let message = format!(
                "Error validating pod {name}_{}({}) from {source} due to duplicate pod name {name:?}, ignoring",
                pod.namespace(),
                pod.uid()
            );
            self.shared.recorder.pod(pod, EventType::Warning, "FailedValidation", message);
        }
    }

    fn apply(&mut self, mut pod: Pod, source: Source) {
        if source == Source::Api && pod.is_mirror() {
            self.mirrors.insert(pod);
            self.reconcile_mirrors();
            return;
        }
        let uid = pod.uid().to_owned();
        let known = self.pods.get(&uid).filter(|e| !e.removed);
        let seen = known.map_or_else(seen_now, |e| e.seen.clone());
        let meta = pod.metadata.get_or_insert_with(ObjectMeta::default);
        meta.annotations.insert(labels::CONFIG_SOURCE.into(), source.as_str().into());
        meta.annotations.insert(labels::CONFIG_SEEN.into(), seen.clone());
        let pod = Arc::new(pod);
        if source == Source::Api {
            self.shared.status.observe(&uid, Some(&pod));
        }
        if let Some(entry) = self.pods.get_mut(&uid) {
            if entry.removed {
                entry.returned = Some(Arc::unwrap_or_clone(pod));
                return;
            }
            let pod = first_seen::kept(&entry.pod, pod);
            let changed = differs(&entry.pod, &pod);
            if changed {
                count_requested(&entry.pod, &pod);
            }
            entry.pod = pod.clone();
            self.shared.feed.pod(&pod);
            match entry.mailbox.clone() {
                Some(_) if changed => {
                    self.shared.nudge.pod();
                    self.changed_by_source(&uid);
                }
                Some(mailbox) => mailbox.note(self.allocated(&pod)),
                None => {}
            }
            return;
        }
        self.add(pod, source, seen);
        if source.is_static() {
            self.reconcile_mirrors();
        }
    }

    fn add(&mut self, pod: Arc<Pod>, source: Source, seen: String) {
        let uid = pod.uid().to_owned();
        self.shared.feed.pod(&pod);
        if source.is_static() && self.name_is_taken(&pod) {
            // Two pods of one name would be one to everybody else, and fight for the same ports.
            self.pods.insert(uid, Entry { waits: true, ..Entry::new(pod, source, None, seen) });
            return;
        }
        self.shared.nudge.nudge();
        let in_runtime = self.runtime.iter().flatten().any(|p| p.uid == uid);
        let over = pod.status.as_ref().is_some_and(is_over);
        let mut begin = if over || pod.is_deleted() { Begin::Terminate } else { Begin::Sync };
        if over && !in_runtime {
            // Nothing is left of it here: only its deletion is to be confirmed.
            if let Some(status) = &pod.status {
                self.shared.status.set(&uid, Arc::new(status.clone()), false);
            }
            self.shared.status.finish(&uid);
            self.shared.feed.ended(&uid);
            self.pods.insert(uid, Entry::new(pod, source, None, seen));
            return;
        }
        // What an earlier agent agreed to counts, not what the spec has come to want since.
        let allocated = self.allocated(&pod);
        let (mailbox, mut victims) = (Arc::new(Mailbox::default()), Vec::new());
        if matches!(begin, Begin::Sync) {
            match self.admit(&allocated) {
                Ok(found) => {
                    victims = found;
                    self.shared.allocations.allocate(&uid, Allocation::of(&allocated));
                }
                // An earlier agent let it in, and it runs.
                Err(refused) if in_runtime => {
                    self.shared.tell_refused(&pod, &refused);
                    mailbox.kill(refused.into_kill());
                    begin = Begin::Terminate;
                }
                Err(refused) => {
                    self.shared.refuse(&pod, &refused);
                    self.pods.insert(uid, Entry::new(pod, source, None, seen));
                    return;
                }
            }
        }
        let mut worker = Worker::new(self.shared.clone(), mailbox.clone(), allocated, begin);
        if !in_runtime {
            worker.begins_with_nothing();
        }
        metrics::CONTAINERS_PER_POD.observe(&[], metrics::page::to_float(pod.spec().containers.len() as u64));
        // Before the worker tells of it.
        let waits_for_room = self.shared.allocations.recall(&pod);
        let begun = Instant::now();
        self.workers.spawn(uid.clone(), Duration::ZERO, async move {
            preemption::wait_for(victims).await;
            metrics::POD_WORKER_START.observe(&[], begun.elapsed().as_secs_f64());
            worker.run().await;
        });
        self.pods.insert(uid.clone(), Entry::new(pod, source, Some(mailbox), seen));
        if !waits_for_room {
            self.changed_by_source(&uid);
        }
    }

    /// Whether another static pod of that name still has a worker.
    fn name_is_taken(&self, pod: &Pod) -> bool {
        self.pods.iter().any(|(uid, other)| {
            uid != pod.uid() && other.source.is_static() && other.mailbox.is_some() && key(&other.pod) == key(pod)
        })
    }

    /// Starts the static pod that waited for this name, if any.
    fn start_waiting(&mut self, name: &(String, String)) {
        let waits = |(_, e): &(&String, &Entry)| e.waits && key(&e.pod) == *name;
        let Some(uid) = self.pods.iter().find(waits).map(|(uid, _)| uid.clone()) else { return };
        if let Some(entry) = self.pods.remove(&uid) {
            self.add(entry.pod, entry.source, entry.seen);
        }
    }

    pub(super) fn spawn(&mut self, uid: String, worker: Worker) {
        self.workers.spawn(uid, Duration::ZERO, worker.run());
    }

    /// Gives a pod whose worker broke off a new one. Like after a restart of the agent, it finds in spec, mailbox and
    /// runtime what there is to know, so containers go on.
    fn start_again(&mut self, uid: String, wait: Duration) {
        if let Some(mailbox) = self.orphans.get(&uid) {
            let metadata = ObjectMeta { uid: uid.clone(), ..Default::default() };
            let pod = Arc::new(Pod { metadata: Some(metadata), ..Default::default() });
            let worker = Worker::new(self.shared.clone(), mailbox.clone(), pod, Begin::Orphan);
            self.workers.spawn(uid, wait, worker.run());
            return;
        }
        let Some(entry) = self.pods.get(&uid) else { return };
        let Some(mailbox) = entry.mailbox.clone() else { return };
        let mut pod = self.allocated(&entry.pod);
        if let Some(status) = self.shared.status.status(&uid) {
            pod = Arc::new(Pod { status: Some((*status).clone()), ..Arc::unwrap_or_clone(pod) });
        }
        let over = pod.status.as_ref().is_some_and(is_over);
        let begin = if over || pod.is_deleted() { Begin::Terminate } else { Begin::Sync };
        let worker = Worker::new(self.shared.clone(), mailbox, pod, begin);
        self.workers.spawn(uid, wait, worker.run());
    }

    /// The pod is in no source any more. `last` is its last state.
    fn remove(&mut self, uid: &str, last: Option<Pod>) {
        let Some(entry) = self.pods.get_mut(uid) else { return };
        entry.returned = None;
        if std::mem::replace(&mut entry.removed, true) {
            return;
        }
        self.shared.feed.removed(uid);
        match &entry.mailbox {
            Some(mailbox) => {
                if let Some(last) = last.filter(PodExt::is_deleted) {
                    let mut pod = (*entry.pod).clone();
                    if let (Some(meta), Some(last)) = (&mut pod.metadata, last.metadata) {
                        meta.deletion_timestamp = last.deletion_timestamp;
                        meta.deletion_grace_period_seconds = last.deletion_grace_period_seconds;
                    }
                    let pod = Arc::new(pod);
                    entry.pod = pod.clone();
                    mailbox.update(self.shared.allocations.allocated_to(&pod).map_or(pod, Arc::new));
                }
                mailbox.removed();
            }
            None => {
                self.shared.status.forget(uid);
                self.shared.allocations.forget(uid);
                self.pods.remove(uid);
            }
        }
    }

    fn worker_done(&mut self, uid: &str) {
        self.shared.status.forget(uid);
        if self.orphans.remove(uid).is_some() {
            return;
        }
        let ended = self.pods.remove(uid);
        self.shared.allocations.forget(uid);
        self.shared.nudge.nudge();
        if let Some(ended) = ended {
            let name = key(&ended.pod);
            if let Some(pod) = ended.returned {
                metrics::RESTARTED_PODS.inc(&[if ended.source.is_static() { "true" } else { "" }]);
                self.apply(pod, ended.source);
            }
            if ended.source.is_static() && !self.name_is_taken(&ended.pod) {
                self.start_waiting(&name);
            }
        }
        self.retry_resizes("pods_removed");
    }

    pub(super) fn sources_ready(&self) -> bool {
        self.waiting_for.iter().all(|s| self.ready.contains(s))
    }

    fn reconcile_mirrors(&mut self) {
        if !self.ready.contains(&Source::Api) {
            return;
        }
        let all_known = self.sources_ready();
        self.mirrors.reconcile(&self.shared, &mirrored(&self.pods), all_known);
    }
}

impl Entry {
    fn new(pod: Arc<Pod>, source: Source, mailbox: Option<Arc<Mailbox>>, seen: String) -> Self {
        Entry { pod, source, mailbox, removed: false, returned: None, waits: false, seen }
    }
}

/// The static pods that are to have mirrors. One that waits has none yet: its name is that of another's, which is to stay.
fn mirrored(pods: &BTreeMap<String, Entry>) -> Vec<(String, Arc<Pod>)> {
    let statics = pods.iter().filter(|(_, e)| e.source.is_static() && !e.removed && !e.waits);
    statics.map(|(uid, e)| (uid.clone(), e.pod.clone())).collect()
}

/// Takes from the static pods of one source those whose name an earlier one has.
fn take_namesakes(pods: &mut Vec<Pod>) -> Vec<Pod> {
    let mut names = HashSet::new();
    pods.extract_if(.., |pod| !names.insert(key(pod))).collect()
}

pub(super) fn key(pod: &Pod) -> (String, String) {
    (pod.namespace().to_owned(), pod.name().to_owned())
}

fn seen_now() -> String {
    let now = proto::time::Timestamp::now();
    let seconds = now.to_seconds_text();
    // Nanoseconds without trailing zeros, as Go prints them.
    let nanos = format!("{:09}", now.nanos);
    let nanos = nanos.trim_end_matches('0');
    if nanos.is_empty() { seconds } else { format!("{}.{nanos}Z", seconds.trim_end_matches('Z')) }
}

/// Whether a worker must look again: everything but our own status and bookkeeping counts. Of the phase only an end counts,
/// which others may set too.
fn differs(old: &Pod, new: &Pod) -> bool {
    let (before, now) = (old.meta(), new.meta());
    let meta = before.generation != now.generation
        || before.deletion_timestamp != now.deletion_timestamp
        || before.deletion_grace_period_seconds != now.deletion_grace_period_seconds
        || before.labels != now.labels
        || before.annotations != now.annotations;
    let none = PodStatus::default();
    let (before, now) = (old.status.as_ref().unwrap_or(&none), new.status.as_ref().unwrap_or(&none));
    let ended = |status: &PodStatus| is_over(status).then(|| status.phase.clone());
    meta || old.spec != new.spec
        || before.resource_claim_statuses != now.resource_claim_statuses
        || ended(before) != ended(now)
        || !foreign(before).eq(foreign(now))
}

/// Conditions that are not the agent's own.
fn foreign(status: &PodStatus) -> impl Iterator<Item = &PodCondition> {
    status.conditions.iter().filter(|c| !crate::status::conditions::is_owned(&c.r#type))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str, uid: &str) -> Pod {
        let metadata = ObjectMeta { name: name.into(), uid: uid.into(), ..Default::default() };
        Pod { metadata: Some(metadata), ..Default::default() }
    }

    /// Each of two twins deleted the mirror of the other, and made its own.
    #[test]
    fn of_static_pods_with_one_name_one_has_a_mirror() {
        let entry = |uid: &str, source, waits| {
            let pod = Arc::new(named("a", uid));
            (uid.to_owned(), Entry { waits, ..Entry::new(pod, source, None, String::new()) })
        };
        let pods = BTreeMap::from([
            entry("1", Source::File, true),
            entry("2", Source::Http, false),
            entry("3", Source::Api, false),
        ]);
        let uids: Vec<String> = mirrored(&pods).into_iter().map(|(uid, _)| uid).collect();
        assert_eq!(uids, ["2"]);
    }

    #[test]
    fn of_one_sources_namesakes_the_first_stays() {
        let mut pods = vec![named("a", "1"), named("b", "2"), named("a", "3")];
        let taken = take_namesakes(&mut pods);
        let uids = |pods: &[Pod]| pods.iter().map(|pod| pod.uid().to_owned()).collect::<Vec<_>>();
        assert_eq!((uids(&pods), uids(&taken)), (vec!["1".into(), "2".into()], vec!["3".into()]));
    }

    #[test]
    fn only_what_is_not_our_own_makes_a_worker_look_again() {
        let pod = |phase: &str, condition: &str| {
            let condition = PodCondition { r#type: condition.into(), status: "True".into(), ..Default::default() };
            let mut pod = Pod::default();
            let status = pod.status.get_or_insert_default();
            status.phase = phase.into();
            status.conditions.push(condition);
            pod
        };
        let before = pod("Pending", "Ready");
        assert!(!differs(&before, &pod("Running", "ContainersReady")), "our own status");
        assert!(differs(&before, &pod("Failed", "Ready")), "somebody ended it");
        assert!(differs(&before, &pod("Pending", "example.com/gate")));
        let mut labelled = before.clone();
        labelled.metadata.get_or_insert_default().labels.insert("a".into(), "b".into());
        assert!(differs(&before, &labelled));
    }
}
