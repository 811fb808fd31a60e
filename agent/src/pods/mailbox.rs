//! What a worker has yet to take notice of. Newer facts replace older ones, so it never grows.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto::api::core::v1::Pod;
use tokio::sync::{Notify, watch};

use crate::pleg::parts::Seen;
use crate::probes::Verdict;
use crate::status::generate::Override;

/// A demand to end a pod that its object does not make.
#[derive(Debug, Clone)]
pub struct KillRequest {
    pub imposed: Option<Override>,
    pub grace: Option<i64>,
}

/// How long what is carried through for a pod is waited for that is to end, as long as the runtime may take for an answer:
/// a hook that hangs must not keep a pod for ever.
const PATIENCE: Duration = Duration::from_secs(120);

/// Of what was seen of the runtime while the worker was busy so much is kept; a worker that is behind by more looks.
const MOST_SEEN: usize = 8;

/// That a pod is to end, and how soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndWanted {
    /// Less is sooner; less than nothing for a pod that is in no source any more.
    pub seconds: i64,
    /// How long what is carried through may still take. Of an end that is imposed with a time of its own it is half of that:
    /// the containers are to have some too.
    pub patience: Duration,
    /// That time has begun, and goes on while what is carried through is waited for.
    pub imposed: bool,
}

#[derive(Default)]
struct Inner {
    pod: Option<Arc<Pod>>,
    /// Something other than that the runtime has what `seen` says.
    news: bool,
    /// What the runtime has, as it was seen each time since the worker took notice. Each may tell of another sandbox.
    seen: Vec<Seen>,
    /// Something changed, nobody knows to what.
    unseen: bool,
    verdicts: Vec<Verdict>,
    kill: Option<KillRequest>,
    collect: bool,
    removed: bool,
}

/// Facts taken out of a mailbox.
#[derive(Default)]
pub struct Facts {
    pub pod: Option<Arc<Pod>>,
    pub verdicts: Vec<Verdict>,
    pub kill: Option<KillRequest>,
    /// Room is needed: what an ended pod left is to go.
    pub collect: bool,
    /// The pod is in no source any more.
    pub removed: bool,
    seen: Vec<Seen>,
    unseen: bool,
}

impl Facts {
    /// Whether the runtime may have something else than what somebody knows, who says what is known to him.
    pub fn outdate(&self, is_known: impl Fn(&Seen) -> bool) -> bool {
        self.unseen || !self.seen.iter().all(is_known)
    }
}

#[derive(Default)]
pub struct Mailbox {
    inner: Mutex<Inner>,
    arrived: Notify,
    /// Something that may cut a running sync short.
    urgent: Notify,
    /// A probe has found something.
    judged: Notify,
    ended: watch::Sender<bool>,
}

/// The end of a pod, to be waited for: nothing of it runs, and its volumes and cgroup are gone.
#[derive(Debug, Clone)]
pub struct End(watch::Receiver<bool>);

impl End {
    /// Returns at the end; at once for a pod that has no worker.
    pub async fn come(mut self) {
        // A mailbox that is gone belonged to a pod that is gone.
        let _ = self.0.wait_for(|ended| *ended).await;
    }
}

impl Mailbox {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn update(&self, pod: Arc<Pod>) {
        let ends = pod.metadata.as_ref().is_some_and(|m| m.deletion_timestamp.is_some());
        {
            let mut inner = self.inner();
            inner.pod = Some(pod);
            inner.news = true;
        }
        self.arrived.notify_one();
        if ends {
            self.urgent.notify_one();
        }
    }

    /// The pod has changed in what nothing follows from, such as our own status coming back: the worker has it when it
    /// looks next, and goes on waiting.
    pub fn note(&self, pod: Arc<Pod>) {
        self.inner().pod = Some(pod);
    }

    /// Something that the status shows has changed: what the runtime has, to what was seen of it, or something else.
    pub fn changed(&self, now: Option<Seen>) {
        {
            let mut inner = self.inner();
            match now {
                // All the same would be said again.
                Some(now) if inner.seen.last() == Some(&now) => {}
                Some(now) if inner.seen.len() < MOST_SEEN => inner.seen.push(now),
                // Whoever is that far behind looks.
                _ => (inner.news, inner.unseen) = (true, true),
            }
        }
        self.arrived.notify_one();
    }

    /// Whether all that came is that the runtime has what the worker says is known to it; then nothing has come.
    pub fn is_known(&self, is_known: impl Fn(&Seen) -> bool) -> bool {
        let mut inner = self.inner();
        let is_known = !inner.news && !inner.seen.is_empty() && inner.seen.iter().all(is_known);
        if is_known {
            inner.seen.clear();
        }
        is_known
    }

    pub fn verdict(&self, verdict: Verdict) {
        let mut inner = self.inner();
        // One slot per container and probe.
        inner.verdicts.retain(|v| v.container_id != verdict.container_id || v.kind != verdict.kind);
        inner.verdicts.push(verdict);
        inner.news = true;
        drop(inner);
        self.arrived.notify_one();
        self.judged.notify_one();
    }

    /// Whether the pod is to end, as far as the worker does not know yet.
    pub fn end_wanted(&self) -> Option<EndWanted> {
        let inner = self.inner();
        let by_object =
            inner.pod.as_ref().and_then(|pod| pod.metadata.as_ref()).filter(|m| m.deletion_timestamp.is_some());
        let by_object = by_object.map(|meta| meta.deletion_grace_period_seconds.unwrap_or(i64::MAX));
        let imposed = inner.kill.as_ref().map(|kill| kill.grace.unwrap_or(i64::MAX));
        let removed = inner.removed.then_some(-1);
        let seconds = [by_object, imposed, removed].into_iter().flatten().min()?;
        let own = imposed.filter(|&grace| grace < i64::MAX);
        let half = own.map_or(PATIENCE, |grace| Duration::from_secs(u64::try_from(grace).unwrap_or(0)) / 2);
        Some(EndWanted { seconds, patience: half.min(PATIENCE), imposed: own.is_some() })
    }

    /// What probes have found since it was taken.
    pub fn verdicts(&self) -> Vec<Verdict> {
        self.inner().verdicts.clone()
    }

    /// Takes what probes have found, and nothing else.
    pub fn take_verdicts(&self) -> Vec<Verdict> {
        std::mem::take(&mut self.inner().verdicts)
    }

    /// Waits for what probes find; whoever waits for anything new hears of it too.
    pub async fn judgement(&self) {
        self.judged.notified().await;
    }

    pub fn kill(&self, request: KillRequest) {
        let mut inner = self.inner();
        let (first, before) = inner.kill.take().map_or((None, None), |k| (k.imposed, k.grace));
        let grace = [before, request.grace].into_iter().flatten().min();
        inner.kill = Some(KillRequest { imposed: first.or(request.imposed), grace });
        inner.news = true;
        drop(inner);
        self.arrived.notify_one();
        self.urgent.notify_one();
    }

    /// Asks for the room that the pod's leftovers take, if it has ended.
    pub fn collect(&self) {
        {
            let mut inner = self.inner();
            inner.collect = true;
            inner.news = true;
        }
        self.arrived.notify_one();
    }

    pub fn end(&self) -> End {
        End(self.ended.subscribe())
    }

    /// Whether the end has come.
    pub fn is_over(&self) -> bool {
        *self.ended.borrow()
    }

    /// Tells all that wait for the end of the pod.
    pub fn has_ended(&self) {
        self.ended.send_replace(true);
    }

    pub fn removed(&self) {
        {
            let mut inner = self.inner();
            inner.removed = true;
            inner.news = true;
        }
        self.arrived.notify_one();
        self.urgent.notify_one();
    }

    /// All that came since the last call. What ends the pod is told every time: it holds for a worker that takes the
    /// place of one that broke off too.
    pub fn take(&self) -> Facts {
        let mut inner = self.inner();
        inner.news = false;
        Facts {
            pod: inner.pod.take(),
            verdicts: std::mem::take(&mut inner.verdicts),
            kill: inner.kill.clone(),
            collect: std::mem::take(&mut inner.collect),
            removed: inner.removed,
            seen: std::mem::take(&mut inner.seen),
            unseen: std::mem::take(&mut inner.unseen),
        }
    }

    /// Waits for anything new.
    pub async fn arrival(&self) {
        self.arrived.notified().await;
    }

    /// Waits for something that ends the pod or shortens its end.
    pub async fn urgency(&self) {
        self.urgent.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pleg::parts::{Part, parts};

    fn seen(state: i32) -> Seen {
        Seen::told(parts(vec![Part::new("c", state)]))
    }

    #[tokio::test]
    async fn what_a_probe_finds_is_news_to_who_waits_for_it_and_to_who_waits_for_anything() {
        let mailbox = Mailbox::default();
        let kind = crate::probes::ProbeKind::Readiness;
        mailbox.verdict(Verdict { uid: String::new(), container_id: "a".into(), kind, success: true });
        mailbox.judgement().await;
        assert_eq!((mailbox.verdicts().len(), mailbox.take_verdicts().len(), mailbox.verdicts().len()), (1, 1, 0));
        mailbox.arrival().await;
    }

    #[test]
    fn how_soon_a_pod_is_to_end_is_what_is_asked_for_last_and_least() {
        let mailbox = Mailbox::default();
        assert_eq!(mailbox.end_wanted(), None);
        mailbox.update(Arc::new(Pod::default()));
        assert_eq!(mailbox.end_wanted(), None, "a pod that goes on");
        let wanted = |seconds, patience| Some(EndWanted { seconds, patience, imposed: patience < PATIENCE });
        let deleted = |grace| {
            let mut pod = Pod::default();
            let meta = pod.metadata.get_or_insert_default();
            (meta.deletion_timestamp, meta.deletion_grace_period_seconds) = (Some(Default::default()), Some(grace));
            Arc::new(pod)
        };
        mailbox.update(deleted(30));
        assert_eq!(mailbox.end_wanted(), wanted(30, PATIENCE));
        mailbox.update(deleted(3));
        assert_eq!(mailbox.end_wanted(), wanted(3, PATIENCE), "an object's grace is for its containers");
        mailbox.removed();
        assert_eq!(mailbox.end_wanted(), wanted(-1, PATIENCE));

        let imposed = Mailbox::default();
        imposed.kill(KillRequest { imposed: None, grace: None });
        assert_eq!(imposed.end_wanted(), wanted(i64::MAX, PATIENCE));
        imposed.kill(KillRequest { imposed: None, grace: Some(5) });
        assert_eq!(imposed.end_wanted(), wanted(5, Duration::from_millis(2500)), "the containers have the other half");
    }

    #[tokio::test]
    async fn what_is_only_noted_wakes_nobody_and_is_there_all_the_same() {
        let mailbox = Mailbox::default();
        let pod = Arc::new(Pod::default());
        mailbox.note(pod.clone());
        let waited = tokio::time::timeout(std::time::Duration::from_millis(10), mailbox.arrival()).await;
        assert!(waited.is_err());
        assert!(mailbox.take().pod.is_some_and(|noted| Arc::ptr_eq(&noted, &pod)));
        // What came before it still wakes.
        mailbox.update(pod.clone());
        mailbox.note(pod);
        mailbox.arrival().await;
    }

    #[test]
    fn what_the_worker_knows_is_no_news_unless_something_else_came() {
        let mailbox = Mailbox::default();
        mailbox.changed(Some(seen(7)));
        assert!(!mailbox.is_known(|s| *s == seen(8)), "the runtime has something else");
        assert!(mailbox.is_known(|s| *s == seen(7)));
        assert!(!mailbox.is_known(|s| *s == seen(7)), "it was told once");
        mailbox.note(Arc::new(Pod::default()));
        mailbox.changed(Some(seen(7)));
        assert!(mailbox.is_known(|s| *s == seen(7)), "nothing follows from what is only noted");
        let others: [fn(&Mailbox); 5] = [
            |m| m.changed(None),
            |m| m.collect(),
            |m| m.update(Arc::new(Pod::default())),
            |m| m.kill(KillRequest { imposed: None, grace: None }),
            Mailbox::removed,
        ];
        for other in others {
            other(&mailbox);
            mailbox.changed(Some(seen(7)));
            assert!(!mailbox.is_known(|s| *s == seen(7)));
            mailbox.take();
        }
    }

    #[test]
    fn what_is_taken_out_tells_whether_the_runtime_has_something_else() {
        let mailbox = Mailbox::default();
        mailbox.collect();
        mailbox.changed(Some(seen(7)));
        let facts = mailbox.take();
        assert!(!facts.outdate(|s| *s == seen(7)) && facts.outdate(|s| *s == seen(8)));
        assert!(!mailbox.take().outdate(|s| *s == seen(8)), "it was told once");
        mailbox.changed(None);
        mailbox.changed(Some(seen(7)));
        assert!(mailbox.take().outdate(|s| *s == seen(7)), "nobody knows to what it changed");
        mailbox.removed();
        assert!(!mailbox.take().outdate(|s| *s == seen(7)), "the runtime has nothing to do with it");
    }

    /// What is told of one sandbox says nothing about the others.
    #[test]
    fn nothing_that_was_seen_is_lost_to_what_was_seen_after_it() {
        let mailbox = Mailbox::default();
        mailbox.changed(Some(seen(7)));
        mailbox.changed(Some(seen(8)));
        assert!(!mailbox.is_known(|s| *s == seen(8)));
        assert!(mailbox.take().outdate(|s| *s == seen(8)));
        for _ in 0..=MOST_SEEN {
            mailbox.changed(Some(seen(8)));
        }
        assert!(mailbox.is_known(|s| *s == seen(8)), "the same each time");
        for state in (0i32..).take(MOST_SEEN + 1) {
            mailbox.changed(Some(seen(state)));
        }
        assert_eq!(mailbox.inner().seen.len(), MOST_SEEN);
        assert!(!mailbox.is_known(|_| true));
        assert!(mailbox.take().outdate(|_| true), "it is that far behind");
        assert!(!mailbox.take().outdate(|_| false), "it was told");
    }

    #[tokio::test]
    async fn a_pod_is_over_once_its_end_was_told() {
        let mailbox = Mailbox::default();
        assert!(!mailbox.is_over());
        mailbox.has_ended();
        assert!(mailbox.is_over());
        mailbox.end().come().await;
    }

    /// A worker that breaks off takes what it has read with it; its successor must end the pod all the same.
    #[test]
    fn what_ends_a_pod_is_told_to_the_next_worker_too() {
        let mailbox = Mailbox::default();
        for grace in [Some(30), Some(5), None] {
            mailbox.kill(KillRequest { imposed: None, grace });
            mailbox.take();
        }
        mailbox.removed();
        mailbox.take();
        let facts = mailbox.take();
        assert!(facts.removed);
        assert_eq!(facts.kill.map(|k| k.grace), Some(Some(5)));
    }
}
