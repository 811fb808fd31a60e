//! What is known of the pods of this node, as local clients see it: each pod with its newest status, and changes.
//!
//! The pod manager and the status manager tell facts ([`PodFeed::pod`], [`PodFeed::status`], ...); nothing is computed
//! unless somebody listens. A pod is encoded at most once per state, for all who list or watch. A watcher has room for
//! so many events; one that does not keep up is cut off, and never holds up who tells the facts.
//!
//! The feed is complete once every source has spoken and every pod known then has had its first status.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use prost::Message as _;
use proto::api::core::v1::{Pod, PodStatus};
use proto::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::sync::mpsc;

use crate::metrics;
use crate::pod::spec::PodExt as _;

use super::mask::put_delimited;

/// Events that a watcher may be behind; upstream's number.
const BACKLOG: usize = 100;
/// Watchers at the same time; what they may be behind is bounded with that.
const WATCHERS: usize = 256;

/// What happened to a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Added,
    Modified,
    Deleted,
}

/// A change and the pod after it, encoded; of a deleted pod its name, namespace and uid.
#[derive(Debug, Clone)]
pub struct Event {
    pub change: Change,
    pub pod: Bytes,
    pub audience: Audience,
}

/// Who hears of an event: the forms of the API differ in what is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    All,
    /// The documented form, which follows objects: also the change of an object whose status stays and that is not being
    /// deleted, and what becomes of one after its pod has ended.
    Objects,
    /// The form of Kubernetes 1.36, which follows what runs: the end of a pod, whose object is still there.
    Pods,
}

/// A pod and what it holds here.
#[derive(Debug, Clone)]
pub struct KnownPod {
    pub pod: Arc<Pod>,
    /// `None` until the agent has looked at it.
    pub status: Option<Arc<PodStatus>>,
    /// Nothing of it is left on the node.
    pub finished: bool,
    /// Those who follow pods have been told of its end.
    pub ended: bool,
}

impl KnownPod {
    fn deleted(&self, audience: Audience) -> Event {
        let metadata = ObjectMeta {
            name: self.pod.name().into(),
            namespace: self.pod.namespace().into(),
            uid: self.pod.uid().into(),
            ..Default::default()
        };
        let pod = Pod { metadata: Some(metadata), ..Default::default() };
        Event { change: Change::Deleted, pod: pod.encode_to_vec().into(), audience }
    }
}

struct Entry {
    known: KnownPod,
    encoded: Option<Bytes>,
}

impl Entry {
    fn encoded(&mut self) -> Bytes {
        let known = &self.known;
        self.encoded.get_or_insert_with(|| encode(&known.pod, known.status.as_deref())).clone()
    }
}

struct Slot {
    sender: mpsc::Sender<Event>,
    cut: Arc<AtomicBool>,
}

#[derive(Default)]
struct Inner {
    pods: BTreeMap<String, Entry>,
    /// Pods without a status when the sources were ready; `None` before that.
    pending: Option<HashSet<String>>,
    watchers: Vec<Slot>,
}

/// See the module's documentation.
#[derive(Default)]
pub struct PodFeed {
    inner: Mutex<Inner>,
}

/// There are as many watchers as may be.
#[derive(Debug, PartialEq, Eq)]
pub struct TooManyWatchers;

/// Events as they come.
pub struct Watch {
    receiver: mpsc::Receiver<Event>,
    cut: Arc<AtomicBool>,
}

impl Watch {
    /// The next event; `Err` when this watcher was too slow, `None` when the feed is gone.
    pub async fn next(&mut self) -> Option<Result<Event, TooSlow>> {
        match self.receiver.recv().await {
            Some(event) => Some(Ok(event)),
            None if self.cut.swap(false, Ordering::Relaxed) => Some(Err(TooSlow)),
            None => None,
        }
    }
}

/// The watcher was cut off: events were lost, it must begin anew.
#[derive(Debug, PartialEq, Eq)]
pub struct TooSlow;

impl PodFeed {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The object as its source has it.
    pub fn pod(&self, pod: &Arc<Pod>) {
        let mut inner = self.inner();
        let uid = pod.uid().to_owned();
        let Some(entry) = inner.pods.get_mut(&uid) else {
            let known = KnownPod { pod: pod.clone(), status: None, finished: false, ended: false };
            inner.pods.insert(uid, Entry { known, encoded: None });
            return;
        };
        let ends = pod.is_deleted() && !entry.known.pod.is_deleted();
        let differs = seen(&entry.known.pod) != seen(pod);
        entry.known.pod = pod.clone();
        if differs {
            entry.encoded = None;
            if entry.known.status.is_some() {
                inner.tell(&uid, Change::Modified, if ends { Audience::All } else { Audience::Objects });
            }
        }
    }

    /// The newest status that the agent made. The first one announces the pod.
    pub fn status(&self, uid: &str, status: &Arc<PodStatus>) {
        let mut inner = self.inner();
        if let Some(pending) = &mut inner.pending {
            pending.remove(uid);
        }
        let Some(entry) = inner.pods.get_mut(uid) else { return };
        let change = if entry.known.status.is_none() { Change::Added } else { Change::Modified };
        if entry.known.status.as_deref() == Some(&**status) {
            return;
        }
        entry.known.status = Some(status.clone());
        entry.encoded = None;
        inner.tell(uid, change, Audience::All);
    }

    /// Nothing of the pod is left on the node.
    pub fn finished(&self, uid: &str) {
        if let Some(entry) = self.inner().pods.get_mut(uid) {
            entry.known.finished = true;
        }
    }

    /// The pod has run its course here. It stays in lists for as long as its source has it.
    pub fn ended(&self, uid: &str) {
        let mut inner = self.inner();
        let Some(entry) = inner.pods.get_mut(uid) else { return };
        if entry.known.status.is_none() || std::mem::replace(&mut entry.known.ended, true) {
            return;
        }
        let event = entry.known.deleted(Audience::Pods);
        inner.send(event);
    }

    /// The pod is in no source any more.
    pub fn removed(&self, uid: &str) {
        let mut inner = self.inner();
        if let Some(pending) = &mut inner.pending {
            pending.remove(uid);
        }
        let Some(entry) = inner.pods.remove(uid) else { return };
        if entry.known.status.is_some() {
            let event = entry.known.deleted(if entry.known.ended { Audience::Objects } else { Audience::All });
            inner.send(event);
        }
    }

    /// Every source has spoken for the first time.
    pub fn sources_ready(&self) {
        let mut inner = self.inner();
        if inner.pending.is_none() {
            let silent = inner.pods.iter().filter(|(_, e)| e.known.status.is_none());
            inner.pending = Some(silent.map(|(uid, _)| uid.clone()).collect());
        }
    }

    /// Whether all that should be known is; see the module's documentation.
    pub fn is_complete(&self) -> bool {
        self.inner().pending.as_ref().is_some_and(HashSet::is_empty)
    }

    /// All pods by uid.
    pub fn pods(&self) -> Vec<KnownPod> {
        self.inner().pods.values().map(|e| e.known.clone()).collect()
    }

    /// All pods by uid, encoded.
    pub fn encoded(&self) -> Vec<Bytes> {
        self.inner().pods.values_mut().map(Entry::encoded).collect()
    }

    /// One pod, encoded.
    pub fn encoded_pod(&self, uid: &str) -> Option<Bytes> {
        self.inner().pods.get_mut(uid).map(Entry::encoded)
    }

    /// The pods that have been announced, and all changes from then on.
    ///
    /// # Errors
    /// When there are too many watchers.
    pub fn watch(&self) -> Result<(Vec<Bytes>, Watch), TooManyWatchers> {
        let mut inner = self.inner();
        inner.watchers.retain(|w| !w.sender.is_closed());
        if inner.watchers.len() >= WATCHERS {
            return Err(TooManyWatchers);
        }
        let (sender, receiver) = mpsc::channel(BACKLOG);
        let cut = Arc::new(AtomicBool::new(false));
        inner.watchers.push(Slot { sender, cut: cut.clone() });
        let announced = inner.pods.values_mut().filter(|e| e.known.status.is_some());
        Ok((announced.map(Entry::encoded).collect(), Watch { receiver, cut }))
    }
}

impl Inner {
    fn tell(&mut self, uid: &str, change: Change, audience: Audience) {
        if self.watchers.is_empty() {
            return;
        }
        let Some(entry) = self.pods.get_mut(uid) else { return };
        let audience = if entry.known.ended { Audience::Objects } else { audience };
        let event = Event { change, pod: entry.encoded(), audience };
        self.send(event);
    }

    fn send(&mut self, event: Event) {
        self.watchers.retain(|watcher| match watcher.sender.try_send(event.clone()) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(_)) => {
                watcher.cut.store(true, Ordering::Relaxed);
                metrics::POD_WATCH_DROPPED.inc(&[]);
                false
            }
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        });
    }
}

/// What of an object clients can see change. Its status at the API server is an echo of ours.
fn seen(pod: &Pod) -> (Option<ObjectMeta>, &Option<proto::api::core::v1::PodSpec>) {
    let metadata = pod.metadata.clone().map(|mut m| {
        m.resource_version.clear();
        m.managed_fields.clear();
        m
    });
    (metadata, &pod.spec)
}

/// A pod's message, with another status where there is one.
pub fn encode(pod: &Pod, status: Option<&PodStatus>) -> Bytes {
    let mut out = BytesMut::new();
    if let Some(metadata) = &pod.metadata {
        put_delimited(1, &metadata.encode_to_vec(), &mut out);
    }
    if let Some(spec) = &pod.spec {
        put_delimited(2, &spec.encode_to_vec(), &mut out);
    }
    if let Some(status) = status.or(pod.status.as_ref()) {
        put_delimited(3, &status.encode_to_vec(), &mut out);
    }
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, label: &str) -> Arc<Pod> {
        let labels = [("l".to_owned(), label.to_owned())].into();
        let metadata = ObjectMeta { uid: uid.into(), name: uid.into(), labels, ..Default::default() };
        Arc::new(Pod { metadata: Some(metadata), ..Default::default() })
    }

    fn status(phase: &str) -> Arc<PodStatus> {
        Arc::new(PodStatus { phase: phase.into(), ..Default::default() })
    }

    #[tokio::test]
    async fn a_pod_is_announced_with_its_first_status_and_ends_with_its_names() {
        let feed = PodFeed::default();
        let (initial, mut watch) = feed.watch().unwrap();
        assert!(initial.is_empty());
        feed.pod(&pod("a", "1"));
        feed.status("a", &status("Pending"));
        feed.status("a", &status("Pending"));
        feed.pod(&pod("a", "2"));
        feed.removed("a");
        let mut seen = Vec::new();
        for _ in 0..3 {
            let event = watch.next().await.unwrap().unwrap();
            let pod = Pod::decode(event.pod).unwrap();
            seen.push((event.change, event.audience, pod.status.map(|s| s.phase), pod.metadata.unwrap().labels));
        }
        let label = |v: &str| [("l".to_owned(), v.to_owned())].into();
        let pending = Some("Pending".to_owned());
        assert_eq!(seen[0], (Change::Added, Audience::All, pending.clone(), label("1")));
        assert_eq!(seen[1], (Change::Modified, Audience::Objects, pending, label("2")));
        assert_eq!(seen[2], (Change::Deleted, Audience::All, None, Default::default()));
    }

    /// Those who follow what runs used to hear of the end when the object went, hours later or never.
    #[tokio::test]
    async fn the_end_of_a_pod_is_told_once_and_the_pod_stays_in_lists() {
        let feed = PodFeed::default();
        let (_, mut watch) = feed.watch().unwrap();
        feed.pod(&pod("a", "1"));
        feed.ended("a");
        feed.status("a", &status("Succeeded"));
        feed.finished("a");
        feed.ended("a");
        feed.ended("a");
        assert_eq!(feed.encoded().len(), 1);
        feed.pod(&pod("a", "2"));
        feed.removed("a");
        let mut seen = Vec::new();
        for _ in 0..4 {
            let event = watch.next().await.unwrap().unwrap();
            seen.push((event.change, event.audience));
        }
        let want = [
            (Change::Added, Audience::All),
            (Change::Deleted, Audience::Pods),
            (Change::Modified, Audience::Objects),
            (Change::Deleted, Audience::Objects),
        ];
        assert_eq!(seen, want);
    }

    #[tokio::test]
    async fn a_slow_watcher_is_cut_and_the_others_go_on() {
        let feed = PodFeed::default();
        feed.pod(&pod("a", "1"));
        let (_, mut slow) = feed.watch().unwrap();
        let (_, mut fast) = feed.watch().unwrap();
        for n in 0..=BACKLOG {
            feed.status("a", &status(&n.to_string()));
            assert!(fast.next().await.unwrap().is_ok());
        }
        for _ in 0..BACKLOG {
            assert!(slow.next().await.unwrap().is_ok());
        }
        assert!(matches!(slow.next().await, Some(Err(TooSlow))));
        assert!(slow.next().await.is_none());
    }

    #[test]
    fn the_feed_is_complete_when_every_pod_of_the_start_has_a_status() {
        let feed = PodFeed::default();
        feed.pod(&pod("a", "1"));
        feed.pod(&pod("b", "1"));
        feed.status("a", &status("Running"));
        assert!(!feed.is_complete());
        feed.sources_ready();
        assert!(!feed.is_complete());
        feed.pod(&pod("late", "1"));
        feed.removed("b");
        assert!(feed.is_complete());
    }
}
