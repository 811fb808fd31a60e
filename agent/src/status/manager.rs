//! Sends pod statuses to the API server: only changes, one request per pod at a time, the newest state only.
//!
//! Workers put their pod's status here ([`StatusManager::set`]); a newer one replaces what was not sent yet, so the
//! memory is bounded by the number of pods. The base of each patch is the newest state of the object that is known: the
//! answer to the last patch or what the watch brought, whichever has the higher version. A pod that is finished and
//! marked for deletion is deleted for good (grace 0, uid precondition) once the API shows its terminal phase.
//! A terminal phase is held back while containers may still run. Without an API server statuses are only kept.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto::api::core::v1::{ContainerStatus, Pod, PodSpec, PodStatus};
use proto::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::api::{ApiError, Client, PatchType};
use crate::metrics;
use crate::pod::labels;
use crate::pod::spec::PodExt;
use crate::pods_api::PodFeed;

use super::conditions::{self, is_owned};
use super::patch::status_patch;
use super::phase::is_terminal;
use super::{end, start_time, wording};

/// Requests under way at once.
const PARALLEL: usize = 16;
const FIRST_RETRY: Duration = Duration::from_millis(500);
/// The kubelet looks again every ten seconds.
const LAST_RETRY: Duration = Duration::from_secs(10);
/// How long a sandbox waits to be told of with its containers. Where many pods start at once these run two to three seconds
/// later: each pod would be told of once more. Nothing waits for a pull or an init container ([`StatusManager::hurry`]).
pub const CONTAINERS_FOLLOW: Duration = Duration::from_secs(3);
/// How long the end of the last container waits to be told of with that of the pod.
pub const END_FOLLOWS: Duration = Duration::from_secs(1);

/// A handle; clones share the state.
#[derive(Clone)]
pub struct StatusManager {
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    /// Told of every status before the API server is.
    feed: Arc<PodFeed>,
    pods: Mutex<HashMap<String, Entry>>,
    changed: Notify,
}

/// A status on its way.
struct Entry {
    /// What [`shown`] keeps of the newest known object at the API server; for a static pod of its mirror, when there is one.
    api: Option<Arc<Pod>>,
    desired: Option<Arc<PodStatus>>,
    may_run: bool,
    /// Nothing of the pod is left on the node.
    finished: bool,
    dirty: bool,
    in_flight: bool,
    retry_at: Option<Instant>,
    retry_delay: Duration,
    /// What is new may wait until then for what follows.
    waits_until: Option<Instant>,
    deleted: bool,
    /// When this agent first knew of the pod.
    seen: Instant,
    /// Since when the API server lacks a change.
    changed_at: Option<Instant>,
    /// Of those on the node who wait for the next status; made for the first of them.
    told: Option<watch::Sender<()>>,
}

impl Entry {
    fn new(api: Option<Arc<Pod>>) -> Self {
        Self {
            api,
            desired: None,
            may_run: true,
            finished: false,
            dirty: false,
            in_flight: false,
            retry_at: None,
            retry_delay: FIRST_RETRY,
            waits_until: None,
            deleted: false,
            seen: Instant::now(),
            changed_at: None,
            told: None,
        }
    }
}

impl StatusManager {
    pub fn new(client: Client, feed: Arc<PodFeed>) -> Self {
        let shared = Shared { client, feed, pods: Mutex::default(), changed: Notify::new() };
        Self { shared: Arc::new(shared) }
    }

    fn pods(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.shared.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest object as the API has it. For a static pod `api` is its mirror, `None` while there is none.
    pub fn observe(&self, uid: &str, api: Option<&Pod>) {
        let mut pods = self.pods();
        let entry = pods.entry(uid.to_owned()).or_insert_with(|| Entry::new(None));
        let newer = match (&entry.api, api) {
            // What is known already, mostly as the answer to the last patch, is no news.
            (Some(known), Some(seen)) if known.uid() == seen.uid() => {
                let is_same = !seen.meta().resource_version.is_empty()
                    && seen.meta().resource_version == known.meta().resource_version;
                version(seen) >= version(known) && !is_same
            }
            (None, None) => false,
            _ => true,
        };
        if newer {
            // Of a mirror that was made anew there is something to tell again.
            let known = entry.api.as_ref().map(|known| known.uid());
            entry.deleted &= known == api.map(PodExt::uid);
            entry.api = api.map(|pod| Arc::new(shown(pod.meta(), pod.spec().host_network, pod.status.clone())));
            if entry.desired.is_some() {
                entry.dirty = true;
                self.shared.changed.notify_one();
            }
        }
    }

    /// Wants `status` shown. `may_run`: containers may still run, so a terminal phase must wait.
    pub fn set(&self, uid: &str, status: Arc<PodStatus>, may_run: bool) {
        self.want(uid, status, may_run, None);
    }

    /// The same for a status that the next is likely to follow within `patience`: the API server has it with that, or
    /// then. What it lacks already does not wait for it.
    pub fn set_before_next(&self, uid: &str, status: Arc<PodStatus>, may_run: bool, patience: Duration) {
        self.want(uid, status, may_run, Some(Instant::now() + patience));
    }

    /// What follows will take its time: what waits for it is told now.
    pub fn hurry(&self, uid: &str) {
        if let Some(entry) = self.pods().get_mut(uid)
            && entry.waits_until.take().is_some()
        {
            self.shared.changed.notify_one();
        }
    }

    fn want(&self, uid: &str, status: Arc<PodStatus>, may_run: bool, waits_until: Option<Instant>) {
        self.shared.feed.status(uid, &status);
        let mut pods = self.pods();
        let entry = pods.entry(uid.to_owned()).or_insert_with(|| Entry::new(None));
        let same = entry.desired.as_deref() == Some(&*status) && entry.may_run == may_run;
        if !same {
            let running = |status: &PodStatus| status.phase == "Running";
            let known = entry.desired.as_deref().or_else(|| entry.api.as_ref()?.status.as_ref()).is_some_and(running);
            if running(&status)
                && !known
                && let Some(api) = &entry.api
            {
                start_time::observe(api, &status, entry.seen.elapsed());
            }
            entry.changed_at.get_or_insert_with(Instant::now);
            // What was wanted before and is on no way yet is not put off.
            entry.waits_until = match (entry.dirty, entry.waits_until) {
                (true, before) => before.min(waits_until),
                (false, _) => waits_until,
            };
            entry.desired = Some(status);
            entry.may_run = may_run;
            entry.dirty = true;
            entry.retry_at = None;
            if let Some(told) = &entry.told {
                told.send_replace(());
            }
            self.shared.changed.notify_one();
        }
    }

    /// Nothing of the pod is left on the node: it may be deleted for good.
    pub fn finish(&self, uid: &str) {
        self.shared.feed.finished(uid);
        if let Some(entry) = self.pods().get_mut(uid) {
            entry.finished = true;
            entry.dirty = true;
            entry.waits_until = None;
            self.shared.changed.notify_one();
        }
    }

    /// The status wanted last.
    pub fn status(&self, uid: &str) -> Option<Arc<PodStatus>> {
        self.pods().get(uid)?.desired.clone()
    }

    /// Whether the pod has come to its end: a status that is its last is wanted, and nothing of it may run any more. One that
    /// is being ended holds what it has until then. `None` before the first status.
    pub fn has_ended(&self, uid: &str) -> Option<bool> {
        let pods = self.pods();
        let entry = pods.get(uid)?;
        Some(is_terminal(&entry.desired.as_ref()?.phase) && !entry.may_run)
    }

    /// Tells of each new status of a pod; closed when the pod is gone.
    pub fn follow(&self, uid: &str) -> watch::Receiver<()> {
        let mut pods = self.pods();
        match pods.get_mut(uid) {
            Some(entry) => entry.told.get_or_insert_with(|| watch::Sender::new(())).subscribe(),
            None => watch::Sender::new(()).subscribe(),
        }
    }

    /// Whether the API server has the pod's terminal phase.
    pub fn shows_end(&self, uid: &str) -> bool {
        let pods = self.pods();
        let status = pods.get(uid).and_then(|entry| entry.api.as_ref()?.status.as_ref());
        status.is_some_and(|status| is_terminal(&status.phase))
    }

    /// The pod is gone.
    pub fn forget(&self, uid: &str) {
        self.pods().remove(uid);
    }

    /// Sends changes until dropped.
    pub async fn run(self) {
        let mut running: JoinSet<(String, Outcome)> = JoinSet::new();
        loop {
            let next = self.spawn_due(&mut running);
            tokio::select! {
                () = self.shared.changed.notified() => {}
                Some(done) = running.join_next(), if !running.is_empty() => {
                    if let Ok((uid, outcome)) = done {
                        self.settle(&uid, outcome);
                    }
                }
                () = sleep_until(next) => {}
            }
        }
    }

    /// Starts what is due; returns when the next retry is.
    fn spawn_due(&self, running: &mut JoinSet<(String, Outcome)>) -> Option<Instant> {
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        for (uid, entry) in self.pods().iter_mut() {
            if !entry.dirty || entry.in_flight || entry.deleted {
                continue;
            }
            if let Some(at) = entry.retry_at.max(entry.waits_until).filter(|at| *at > now) {
                next = Some(next.map_or(at, |n| n.min(at)));
                continue;
            }
            if running.len() >= PARALLEL {
                break;
            }
            let Some(task) = Task::of(entry) else {
                (entry.dirty, entry.waits_until) = (false, None);
                continue;
            };
            entry.dirty = false;
            entry.waits_until = None;
            entry.in_flight = true;
            let (client, uid) = (self.shared.client.clone(), uid.clone());
            running.spawn(async move { (uid, task.run(&client).await) });
        }
        next
    }

    fn settle(&self, uid: &str, outcome: Outcome) {
        let mut pods = self.pods();
        let Some(entry) = pods.get_mut(uid) else { return };
        entry.in_flight = false;
        if let Some(api) = outcome.api {
            let newer = entry.api.as_ref().is_none_or(|known| version(&api) >= version(known));
            if newer {
                entry.api = Some(api);
            }
        }
        match outcome.end {
            End::Done => {
                if let Some(changed) = entry.changed_at.take() {
                    metrics::POD_STATUS_SYNC.observe(&[], changed.elapsed().as_secs_f64());
                }
                entry.retry_at = None;
                entry.retry_delay = FIRST_RETRY;
                // `finish` may have come meanwhile.
                entry.dirty |= Task::of(entry).is_some();
            }
            // Another may have come meanwhile.
            End::Gone(gone) => entry.deleted = entry.api.as_ref().is_none_or(|api| api.uid() == gone),
            End::Retry(error) => {
                tracing::debug!(pod = uid, %error, "pod status not sent; trying again");
                entry.dirty = true;
                entry.retry_at = Some(Instant::now() + entry.retry_delay);
                entry.retry_delay = (entry.retry_delay * 2).min(LAST_RETRY);
            }
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Resource versions of one resource compare as numbers; other text counts as oldest.
fn version(pod: &Pod) -> u64 {
    pod.meta().resource_version.parse().unwrap_or(0)
}

/// What a status is sent by, of an object: who it is, how it is marked, whether its network is the node's, and the status.
/// The rest of the spec would be the larger part, held once more for each pod.
fn shown(meta: &ObjectMeta, host_network: bool, status: Option<PodStatus>) -> Pod {
    let mirror = meta.annotations.get_key_value(labels::CONFIG_MIRROR);
    let metadata = ObjectMeta {
        name: meta.name.clone(),
        namespace: meta.namespace.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        creation_timestamp: meta.creation_timestamp,
        deletion_timestamp: meta.deletion_timestamp,
        annotations: mirror.map(|(key, value)| (key.clone(), value.clone())).into_iter().collect(),
        ..Default::default()
    };
    let spec = PodSpec { host_network, ..Default::default() };
    Pod { metadata: Some(metadata), spec: Some(spec), status }
}

/// Of the object that is the answer to a patch, what [`shown`] looks at: most of the rest is the spec.
#[derive(Clone, PartialEq, prost::Message)]
struct Patched {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    spec: Option<PatchedSpec>,
    #[prost(message, optional, tag = "3")]
    status: Option<PodStatus>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct PatchedSpec {
    #[prost(bool, tag = "11")]
    host_network: bool,
}

impl Patched {
    fn shown(self) -> Pod {
        let host_network = self.spec.is_some_and(|spec| spec.host_network);
        shown(&self.metadata.unwrap_or_default(), host_network, self.status)
    }
}

struct Task {
    api: Arc<Pod>,
    patch: Option<Vec<u8>>,
    delete: bool,
}

struct Outcome {
    api: Option<Arc<Pod>>,
    end: End,
}

enum End {
    Done,
    /// The object of that uid is there no more: nothing is to be told.
    Gone(String),
    Retry(ApiError),
}

impl Task {
    /// What is to be sent for an entry; `None` when the API shows it all.
    fn of(entry: &Entry) -> Option<Self> {
        let (api, desired) = (entry.api.as_ref()?, entry.desired.as_ref()?);
        let current = api.status.as_ref().map_or_else(Cow::default, Cow::Borrowed);
        let mut merged = merge(&current, desired, entry.may_run);
        end::keep(api, &mut merged);
        wording::adopt(&current, &mut merged);
        // Mostly nothing differs, which is seen without the trees of both.
        let patch = if merged == *current { None } else { status_patch(api.uid(), &current, &merged) };
        // The end must be visible before the object goes.
        let delete = entry.finished && api.is_deleted() && !api.is_mirror();
        (patch.is_some() || delete).then(|| Self { api: api.clone(), patch, delete })
    }

    async fn run(self, client: &Client) -> Outcome {
        let pod = &self.api;
        let mut api = None;
        if let Some(patch) = self.patch {
            let kind = PatchType::StrategicMerge;
            match client.patch_for::<Pod, Patched>(pod.namespace(), pod.name(), "status", kind, patch).await {
                Ok(answer) => api = Some(Arc::new(answer.shown())),
                Err(error) => return after_error(client, pod, error).await,
            }
        }
        if self.delete {
            let options = DeleteOptions {
                grace_period_seconds: Some(0),
                preconditions: Some(Preconditions { uid: Some(pod.uid().to_owned()), ..Default::default() }),
                ..Default::default()
            };
            return match client.delete::<Pod>(pod.namespace(), pod.name(), &options).await {
                Ok(()) => Outcome { api, end: End::Gone(pod.uid().to_owned()) },
                Err(error) => {
                    let after = after_error(client, pod, error).await;
                    Outcome { api: after.api.or(api), ..after }
                }
            };
        }
        Outcome { api, end: End::Done }
    }
}

/// What follows from a refusal. Only a look tells whether a conflict is with another pod, which has the name now; all others,
/// such as with somebody who wrote in the same moment, are over with the next try.
async fn after_error(client: &Client, pod: &Pod, error: ApiError) -> Outcome {
    let found = match error {
        ApiError::Standalone => return Outcome { api: None, end: End::Done },
        ref e if e.is_not_found() => None,
        ref e if e.is_conflict() => match client.get::<Pod>(pod.namespace(), pod.name()).await {
            Ok(found) => Some(found).filter(|found| found.uid() == pod.uid()),
            Err(e) if e.is_not_found() => None,
            Err(e) => return Outcome { api: None, end: End::Retry(e) },
        },
        e => return Outcome { api: None, end: End::Retry(e) },
    };
    let Some(found) = found else {
        tracing::debug!(%error, "the pod is gone from the API server");
        return Outcome { api: None, end: End::Gone(pod.uid().to_owned()) };
    };
    let host_network = found.spec().host_network;
    let api = shown(found.meta(), host_network, found.status.clone());
    Outcome { api: Some(Arc::new(api)), end: End::Retry(error) }
}

/// The status to show: ours, with the conditions and claims of others as they are now. What the API server has of times
/// stays: an agent that began anew does not know when a static pod began.
pub(crate) fn merge(current: &PodStatus, desired: &PodStatus, may_run: bool) -> PodStatus {
    let mut merged = desired.clone();
    let ending = !is_terminal(&current.phase) && is_terminal(&desired.phase);
    merged.conditions = current.conditions.iter().filter(|c| !is_owned(&c.r#type)).cloned().collect();
    merged.start_time = current.start_time.or(desired.start_time);
    keep_counts(&current.init_container_statuses, &mut merged.init_container_statuses);
    keep_counts(&current.container_statuses, &mut merged.container_statuses);
    for condition in &desired.conditions {
        if is_owned(&condition.r#type) {
            let mut condition = condition.clone();
            let same = current.conditions.iter().find(|c| c.r#type == condition.r#type && c.status == condition.status);
            condition.last_transition_time =
                same.and_then(|c| c.last_transition_time).or(condition.last_transition_time);
            merged.conditions.push(condition);
        } else if condition.r#type == conditions::DISRUPTION_TARGET && condition.status == "True" && ending && !may_run
        {
            merged.conditions.retain(|c| c.r#type != condition.r#type);
            merged.conditions.push(condition.clone());
        }
    }
    merged.resource_claim_statuses.clone_from(&current.resource_claim_statuses);
    merged.extended_resource_claim_status.clone_from(&current.extended_resource_claim_status);
    merged.nominated_node_name.clone_from(&current.nominated_node_name);
    if ending && may_run {
        merged.phase.clone_from(&current.phase);
        merged.reason.clone_from(&current.reason);
        merged.message.clone_from(&current.message);
    }
    merged
}

/// An agent that began anew may not know of tries that the runtime has forgotten: counts only grow.
fn keep_counts(current: &[ContainerStatus], merged: &mut [ContainerStatus]) {
    for status in merged {
        let shown = current.iter().find(|s| s.name == status.name).map_or(0, |s| s.restart_count);
        status.restart_count = status.restart_count.max(shown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;
    use proto::api::core::v1::PodCondition;

    /// Whether the manager would send something now.
    fn due(manager: &StatusManager) -> bool {
        let pods = manager.pods();
        let entry = &pods["u"];
        entry.dirty && entry.waits_until.is_none_or(|at| at <= Instant::now()) && Task::of(entry).is_some()
    }

    fn manager() -> StatusManager {
        let transport = Arc::new(crate::api::NoServer);
        StatusManager::new(Client::new(transport, &crate::api::ClientOptions::default()), Arc::default())
    }

    fn object(version: &str, phase: &str) -> Pod {
        let meta = ObjectMeta { uid: "u".into(), resource_version: version.into(), ..Default::default() };
        Pod { metadata: Some(meta), status: Some(of_phase(phase)), ..Default::default() }
    }

    fn of_phase(phase: &str) -> PodStatus {
        PodStatus { phase: phase.into(), ..Default::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_that_another_follows_waits_for_it_and_not_for_long() {
        const PATIENCE: Duration = Duration::from_secs(2);
        let manager = manager();
        manager.observe("u", Some(&object("1", "Pending")));
        let hosted = |reason: &str| Arc::new(PodStatus { reason: reason.into(), ..of_phase("Pending") });
        manager.set_before_next("u", hosted("a"), true, PATIENCE);
        assert!(!due(&manager));
        tokio::time::advance(Duration::from_millis(1500)).await;
        manager.set_before_next("u", hosted("a again"), true, PATIENCE);
        assert!(!due(&manager));
        tokio::time::advance(Duration::from_millis(501)).await;
        assert!(due(&manager), "nothing has followed, and another that waits puts it off no further");
        manager.set("u", hosted("b"), true);
        manager.set_before_next("u", hosted("c"), true, PATIENCE);
        assert!(due(&manager), "what could be sent before is not put off");
        manager.pods().get_mut("u").unwrap().dirty = false;
        manager.set_before_next("u", hosted("d"), true, PATIENCE);
        assert!(!due(&manager));
        manager.hurry("u");
        assert!(due(&manager), "what follows takes its time");
        manager.pods().get_mut("u").unwrap().dirty = false;
        manager.set_before_next("u", hosted("d again"), true, PATIENCE);
        assert!(!due(&manager));
        manager.set("u", Arc::new(of_phase("Running")), true);
        assert!(due(&manager));
        manager.set_before_next("u", hosted("e"), true, PATIENCE);
        manager.finish("u");
        assert!(due(&manager), "nothing follows the end");
    }

    /// A server that refuses whatever is written with a code, and shows a pod of one uid, or none.
    struct Refuses {
        code: u16,
        uid: Option<&'static str>,
    }

    impl crate::api::Transport for Refuses {
        fn send<'a>(
            &'a self,
            request: http::Request<bytes::Bytes>,
        ) -> std::pin::Pin<Box<dyn Future<Output = Result<http::Response<crate::api::Body>, ApiError>> + Send + 'a>>
        {
            use http_body_util::BodyExt as _;
            let (code, body) = match (request.method() == http::Method::GET, self.uid) {
                (false, _) => (self.code, String::new()),
                (true, None) => (404, String::new()),
                (true, Some(uid)) => (
                    200,
                    format!(
                        r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"p","uid":"{uid}","resourceVersion":"9"}}}}"#
                    ),
                ),
            };
            let body = http_body_util::Full::new(bytes::Bytes::from(body)).map_err(Into::into).boxed_unsync();
            let answer = http::Response::builder().status(code).header(http::header::CONTENT_TYPE, "application/json");
            Box::pin(std::future::ready(answer.body(body).map_err(|e| ApiError::Malformed(e.to_string()))))
        }
    }

    /// Whoever wrote in the same moment silenced the pod for good.
    #[tokio::test]
    async fn only_a_pod_that_is_gone_is_told_of_no_more() {
        let after = async |code, uid, patch: Option<Vec<u8>>| {
            let transport = Arc::new(Refuses { code, uid });
            let client = Client::new(transport, &crate::api::ClientOptions::default());
            let delete = patch.is_none();
            Task { api: Arc::new(object("7", "Running")), patch, delete }.run(&client).await
        };
        for patch in [Some(b"{}".to_vec()), None] {
            let outcome = after(409, Some("u"), patch.clone()).await;
            assert!(matches!(outcome.end, End::Retry(e) if e.is_conflict()));
            assert_eq!(outcome.api.map(|api| version(&api)), Some(9), "what it is tried with next");
            for (code, uid) in [(409, Some("another")), (409, None), (404, Some("u"))] {
                let outcome = after(code, uid, patch.clone()).await;
                assert!(matches!(outcome.end, End::Gone(uid) if uid == "u"), "{code} {uid:?}");
            }
            assert!(matches!(after(500, Some("u"), patch).await.end, End::Retry(_)));
        }
    }

    /// A static pod whose mirror was deleted in the middle of a request was never told of again.
    #[tokio::test]
    async fn a_mirror_that_was_made_anew_is_told_of() {
        let manager = manager();
        let mirror = |uid: &str, version: &str| {
            let mut mirror = object(version, "Pending");
            mirror.metadata.get_or_insert_default().uid = uid.into();
            mirror
        };
        let gone = |uid: &str| Outcome { api: None, end: End::Gone(uid.into()) };
        let silent = || manager.pods()["u"].deleted;
        manager.observe("u", Some(&mirror("first", "7")));
        manager.set("u", Arc::new(of_phase("Running")), true);
        manager.settle("u", gone("first"));
        manager.observe("u", Some(&mirror("first", "8")));
        assert!(silent(), "what was on its way still");
        manager.observe("u", None);
        manager.observe("u", Some(&mirror("second", "9")));
        assert!(!silent() && due(&manager));
        manager.settle("u", gone("first"));
        assert!(!silent(), "that was the one before");
        manager.settle("u", gone("second"));
        assert!(silent());
    }

    #[tokio::test]
    async fn what_is_known_already_is_not_compared_again() {
        let manager = manager();
        manager.set("u", Arc::new(of_phase("Running")), true);
        manager.observe("u", Some(&object("7", "Running")));
        assert!(!due(&manager), "the API server has it");
        manager.pods().get_mut("u").unwrap().dirty = false;
        manager.observe("u", Some(&object("7", "Running")));
        manager.observe("u", Some(&object("6", "Pending")));
        assert!(!manager.pods()["u"].dirty);
        manager.observe("u", Some(&object("8", "Pending")));
        assert!(due(&manager), "somebody has changed it");
    }

    /// Each pod was held once more, with its whole spec, for the few members that a status is sent by.
    #[test]
    fn of_the_object_is_kept_what_a_status_is_sent_by() {
        let annotations = [(labels::CONFIG_MIRROR, "m"), ("a", "b")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        let mut pod = object("7", "Running");
        let meta = pod.metadata.get_or_insert_default();
        (meta.name, meta.namespace) = ("p".into(), "n".into());
        meta.annotations = annotations.into();
        meta.deletion_timestamp = Some(proto::apimachinery::pkg::apis::meta::v1::Time { seconds: 5, nanos: 0 });
        meta.creation_timestamp = meta.deletion_timestamp;
        pod.spec = Some(PodSpec { host_network: true, node_name: "n1".into(), ..Default::default() });
        let kept = shown(pod.meta(), pod.spec().host_network, pod.status.clone());
        assert!(kept.is_mirror() && kept.is_deleted() && kept.meta().annotations.len() == 1);
        assert_eq!((kept.namespace(), kept.name(), kept.uid(), version(&kept)), ("n", "p", "u", 7));
        assert_eq!(kept.meta().creation_timestamp, pod.meta().creation_timestamp);
        // The first start with a network of its own is measured, and the others are not.
        assert!(kept.spec().host_network && kept.spec().node_name.is_empty());
        assert_eq!(kept.status, pod.status);
        let answer = Patched::decode(&pod.encode_to_vec()[..]).expect("a part of a pod");
        assert_eq!(answer.shown(), kept);
    }

    #[test]
    fn a_terminal_phase_waits_for_the_last_container() {
        let current = PodStatus { phase: "Running".into(), ..Default::default() };
        let desired = PodStatus { phase: "Failed".into(), reason: "Evicted".into(), ..Default::default() };
        assert_eq!(merge(&current, &desired, true).phase, "Running");
        let merged = merge(&current, &desired, false);
        assert_eq!((merged.phase.as_str(), merged.reason.as_str()), ("Failed", "Evicted"));
    }

    /// Whoever was evicted over 30 s held nothing from the first of them on: neither a shutdown nor a second eviction ended it
    /// sooner, and another pod got its room.
    #[tokio::test]
    async fn a_pod_that_is_being_ended_has_not_ended() {
        let manager = manager();
        manager.observe("u", Some(&object("1", "Running")));
        assert_eq!((manager.has_ended("u"), manager.has_ended("v")), (None, None), "no word of it yet");
        for (phase, may_run, ended) in [
            ("Running", true, false),
            ("Failed", true, false),
            ("Failed", false, true),
            ("Succeeded", false, true),
            ("Running", false, false),
        ] {
            manager.set("u", Arc::new(of_phase(phase)), may_run);
            assert_eq!(manager.has_ended("u"), Some(ended), "{phase} {may_run}");
        }
    }

    #[test]
    fn conditions_of_others_are_taken_from_the_api() {
        let one = |kind: &str, status: &str| PodCondition {
            r#type: kind.into(),
            status: status.into(),
            ..Default::default()
        };
        let current = PodStatus { conditions: vec![one("a/b", "True"), one("Ready", "False")], ..Default::default() };
        let desired = PodStatus { conditions: vec![one("a/b", "False"), one("Ready", "True")], ..Default::default() };
        let merged = merge(&current, &desired, true);
        assert_eq!(merged.conditions, [one("a/b", "True"), one("Ready", "True")]);
    }
}
