//! Pod lifecycle events: what the runtime has, and when it changes.
//!
//! [`watch`] tells of every pod whose sandboxes or containers changed. With a runtime that streams events a change is
//! told at once and the lists are compared rarely; without, the lists are compared every second while things move and
//! less often when nothing has for a while. A pod of which it is known that something was done to it ([`Nudge`]) is then
//! compared by itself at once. A runtime that cannot be reached is asked again with growing pauses.

pub mod observed;
mod termination_message;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proto::cri;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::clock;
use crate::cri::{CriClient, CriError};
use crate::metrics;
use crate::pod::labels::{self, owner};

/// The kubelet's pace.
const BUSY: Duration = Duration::from_secs(1);
/// More pods than these are not looked at one by one.
const FEW: usize = 4;
/// In the place of a pod's uid: nobody knows where.
const ANYWHERE: &str = "";
/// When nothing has moved for [`CALM_AFTER`]: a crash is noticed this late at worst.
const CALM: Duration = Duration::from_secs(2);
const CALM_AFTER: Duration = Duration::from_secs(30);
/// With a live stream of events, and with nothing in the runtime at all.
const STREAMED: Duration = Duration::from_secs(60);
const EMPTY: Duration = Duration::from_secs(30);
const LAST_RETRY: Duration = Duration::from_secs(5);

/// A pod as the runtime's labels name it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuntimePod {
    pub uid: String,
    pub name: String,
    pub namespace: String,
}

#[derive(Debug)]
pub enum Event {
    /// Something about this pod changed; to what, where it was compared: its [`observed::fingerprint`].
    Changed(String, Option<u64>),
    /// All pods that the runtime has anything of. Sent after each full comparison that found a change, and once at
    /// the start.
    Listed(Vec<RuntimePod>),
}

/// A handle that asks for a comparison before its time; clones share what was asked for.
#[derive(Clone, Default)]
pub struct Nudge(Arc<Asked>);

#[derive(Default)]
struct Asked {
    pods: Mutex<BTreeSet<String>>,
    any: Notify,
}

impl Nudge {
    /// Something is about to move, nobody knows where.
    pub fn nudge(&self) {
        self.pod(ANYWHERE);
    }

    /// Something was done to the pod of this uid: the runtime is asked about it at once, unless it tells by itself.
    pub fn pod(&self, uid: &str) {
        self.0.pods.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.to_owned());
        self.0.any.notify_one();
    }

    fn take(&self) -> BTreeSet<String> {
        std::mem::take(&mut *self.0.pods.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// When the runtime last listed its pods, in milliseconds of [`clock::since_start`]; zero when it never did.
static LAST_LISTED: AtomicU64 = AtomicU64::new(0);
/// The kubelet's: without a list for so long, nobody knows what runs.
const SILENT: Duration = Duration::from_secs(180);

/// What is wrong when the runtime has not listed its pods for long; the kubelet's words.
pub fn trouble() -> Option<String> {
    let last = match LAST_LISTED.load(Ordering::Relaxed) {
        0 => return None,
        at => Duration::from_millis(at),
    };
    silent_for(clock::since_start().saturating_sub(last))
}

fn silent_for(elapsed: Duration) -> Option<String> {
    let go = |time: Duration| proto::duration::format(i64::try_from(time.as_nanos()).unwrap_or(i64::MAX));
    (elapsed > SILENT).then(|| {
        format!("PLEG is not healthy: pleg was last seen active {} ago; threshold is {}", go(elapsed), go(SILENT))
    })
}

/// Watches the runtime until the receiver is gone.
pub async fn watch(cri: CriClient, events: mpsc::Sender<Event>, nudge: Nudge) {
    let (streamed, mut stream_events) = mpsc::channel(256);
    let stream = tokio::spawn(follow_stream(cri.clone(), streamed));
    // However this ends, nobody notices any more.
    let _watching = cri.moves().watching();
    let mut known: BTreeMap<RuntimePod, u64> = BTreeMap::new();
    let (mut first, mut moved) = (true, Instant::now());
    let (mut live, mut retry) = (false, Duration::from_millis(100));
    // When all is compared next. A nudge may bring it nearer, and never puts it off: somebody may nudge without end.
    let mut due = Instant::now();
    let mut last_look: Option<Instant> = None;
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(due) => {}
            () = nudge.0.any.notified() => {
                let mut asked = nudge.take();
                let anywhere = asked.remove(ANYWHERE);
                // With a stream the runtime has told of what was done to a pod already.
                if live && !anywhere {
                    continue;
                }
                moved = Instant::now();
                due = due.min(moved + BUSY);
                // Before the first list nothing is known to compare with.
                if live || first {
                    continue;
                }
                if asked.len() > FEW {
                    due = moved;
                    continue;
                }
                for uid in asked {
                    match look_at(&cri, &uid, &mut known, &events).await {
                        Ok(true) => {}
                        // The full comparison knows what to do with a runtime that does not answer.
                        Ok(false) => {
                            due = Instant::now();
                            break;
                        }
                        Err(_) => return stream.abort(),
                    }
                }
                continue;
            }
            event = stream_events.recv() => match event {
                Some(StreamEvent::Alive(alive)) => {
                    live = alive;
                    // What happened before or between streams is found by comparing.
                    due = Instant::now();
                    continue;
                }
                Some(StreamEvent::Pod(uid)) => {
                    if events.send(Event::Changed(uid, None)).await.is_err() {
                        break;
                    }
                    continue;
                }
                None => {
                    live = false;
                    tokio::time::sleep_until(due).await;
                }
            },
        }
        let begun = Instant::now();
        if let Some(before) = last_look.replace(begun) {
            metrics::PLEG_INTERVAL.observe(&[], begun.duration_since(before).as_secs_f64());
        }
        let looked = snapshot(&cri).await;
        metrics::PLEG_RELIST.observe(&[], begun.elapsed().as_secs_f64());
        match looked {
            Ok(now) => {
                metrics::PLEG_LAST_SEEN.set(&[], unix_seconds());
                let now_millis = u64::try_from(clock::since_start().as_millis()).unwrap_or(u64::MAX);
                LAST_LISTED.store(now_millis.max(1), Ordering::Relaxed);
                retry = Duration::from_millis(100);
                if report(&known, &now, first, &events).await.is_err() {
                    break;
                }
                if now != known {
                    moved = Instant::now();
                    cri.moves().stir();
                }
                cri.moves().set_watched(true);
                known = now;
                first = false;
                let wait = if live {
                    STREAMED
                } else if moved.elapsed() < CALM_AFTER {
                    BUSY
                } else if known.is_empty() {
                    EMPTY
                } else {
                    CALM
                };
                due = Instant::now() + wait;
            }
            Err(error) => {
                tracing::debug!(%error, "could not list the pods of the runtime");
                cri.moves().set_watched(false);
                due = Instant::now() + retry;
                retry = (retry * 2).min(LAST_RETRY);
            }
        }
    }
    stream.abort();
}

/// Each pod of the runtime with a fingerprint of what it consists of.
async fn snapshot(cri: &CriClient) -> Result<BTreeMap<RuntimePod, u64>, CriError> {
    let (sandboxes, containers) = tokio::try_join!(cri.list_pod_sandboxes(None), cri.list_containers(None))?;
    count(&sandboxes, &containers);
    Ok(fingerprints(sandboxes, containers))
}

fn fingerprints(sandboxes: Vec<cri::PodSandbox>, containers: Vec<cri::Container>) -> BTreeMap<RuntimePod, u64> {
    let mut parts: HashMap<RuntimePod, Vec<(String, i32)>> = HashMap::new();
    let sandboxes = sandboxes.into_iter().map(|s| (s.labels, s.id, s.state));
    for (labels, id, state) in sandboxes.chain(containers.into_iter().map(|c| (c.labels, c.id, c.state))) {
        // Without these labels it is not a pod of ours.
        let Some(pod) = owner(&labels) else { continue };
        let pod = RuntimePod { uid: pod.uid.into(), name: pod.name.into(), namespace: pod.namespace.into() };
        parts.entry(pod).or_default().push((id, state));
    }
    let fingerprints = parts.into_iter().map(|(pod, parts)| {
        let parts = parts.iter().map(|(id, state)| (id.as_str(), *state)).collect();
        (pod, observed::fingerprint(parts))
    });
    fingerprints.collect()
}

/// Compares one pod, and tells of it when it changed. One that has come or gone is left to the next full comparison, which
/// tells of that too. False when the runtime does not answer.
async fn look_at(
    cri: &CriClient,
    uid: &str,
    known: &mut BTreeMap<RuntimePod, u64>,
    events: &mpsc::Sender<Event>,
) -> Result<bool, mpsc::error::SendError<Event>> {
    let timer = metrics::PLEG_POD_RELIST.time(&[]);
    let listed = tokio::try_join!(cri.list_pod_sandboxes(Some(uid)), cri.list_containers(Some(uid)));
    drop(timer);
    let Ok((sandboxes, containers)) = listed else { return Ok(false) };
    let now = moved(known, uid, fingerprints(sandboxes, containers));
    // It may have come or gone as well, which the full comparison tells of.
    cri.moves().stir();
    if let Some(now) = now {
        events.send(Event::Changed(uid.to_owned(), Some(now))).await?;
    }
    Ok(true)
}

/// What a known pod has changed to; it is known from then on.
fn moved(known: &mut BTreeMap<RuntimePod, u64>, uid: &str, seen: BTreeMap<RuntimePod, u64>) -> Option<u64> {
    let (pod, now) = seen.into_iter().find(|(pod, _)| pod.uid == uid)?;
    let before = known.get_mut(&pod)?;
    (std::mem::replace(before, now) != now).then_some(now)
}

/// What the runtime has, in numbers.
fn count(sandboxes: &[cri::PodSandbox], containers: &[cri::Container]) {
    let ready = sandboxes.iter().filter(|s| s.state == cri::PodSandboxState::SandboxReady as i32).count();
    let number = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    metrics::RUNNING_PODS.set(&[], number(ready));
    let states = [
        (cri::ContainerState::ContainerCreated, "created"),
        (cri::ContainerState::ContainerRunning, "running"),
        (cri::ContainerState::ContainerExited, "exited"),
        (cri::ContainerState::ContainerUnknown, "unknown"),
    ];
    let counted = states.into_iter().filter_map(|(state, word)| {
        let count = containers.iter().filter(|c| c.state == state as i32).count();
        (count > 0).then(|| (vec![word.to_owned()], number(count)))
    });
    metrics::RUNNING_CONTAINERS.set_all(counted);
}

fn unix_seconds() -> f64 {
    let nanos = crate::clock::unix_nanos();
    metrics::page::to_float(nanos.unsigned_abs()) / 1e9
}

async fn report(
    known: &BTreeMap<RuntimePod, u64>,
    now: &BTreeMap<RuntimePod, u64>,
    first: bool,
    events: &mpsc::Sender<Event>,
) -> Result<(), mpsc::error::SendError<Event>> {
    if !first && now == known {
        return Ok(());
    }
    for (pod, fingerprint) in now {
        if known.get(pod) != Some(fingerprint) {
            events.send(Event::Changed(pod.uid.clone(), Some(*fingerprint))).await?;
        }
    }
    for pod in known.keys().filter(|pod| !now.contains_key(*pod)) {
        events.send(Event::Changed(pod.uid.clone(), None)).await?;
    }
    events.send(Event::Listed(now.keys().cloned().collect())).await
}

enum StreamEvent {
    Alive(bool),
    Pod(String),
}

/// Follows the runtime's own events while it has any; ends for good where it does not know the call.
async fn follow_stream(cri: CriClient, events: mpsc::Sender<StreamEvent>) {
    let mut pause = Duration::from_secs(1);
    loop {
        match cri.container_events().await {
            Ok(mut stream) => {
                metrics::EVENTED_PLEG_CONNECTIONS.inc(&[]);
                if events.send(StreamEvent::Alive(true)).await.is_err() {
                    return;
                }
                while let Ok(Some(event)) = stream.message().await {
                    // Also where it does not say of which pod.
                    cri.moves().stir();
                    pause = Duration::from_secs(1);
                    let status = event.pod_sandbox_status.unwrap_or_default();
                    let uid = status.metadata.map(|m| m.uid).or_else(|| status.labels.get(labels::POD_UID).cloned());
                    if let Some(uid) = uid.filter(|u| !u.is_empty())
                        && events.send(StreamEvent::Pod(uid)).await.is_err()
                    {
                        return;
                    }
                }
                if events.send(StreamEvent::Alive(false)).await.is_err() {
                    return;
                }
            }
            Err(e) if e.is_unimplemented() => return,
            Err(error) => {
                metrics::EVENTED_PLEG_ERRORS.inc(&[]);
                tracing::debug!(%error, "no stream of events from the runtime");
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(60));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_was_asked_for_is_told_of_when_it_changed() {
        let pod = |uid: &str| RuntimePod { uid: uid.into(), name: uid.into(), namespace: "ns".into() };
        let mut known = BTreeMap::from([(pod("a"), 1), (pod("b"), 1)]);
        assert_eq!(moved(&mut known, "a", BTreeMap::from([(pod("a"), 1)])), None);
        assert_eq!(moved(&mut known, "a", BTreeMap::from([(pod("a"), 2)])), Some(2));
        assert_eq!(moved(&mut known, "a", BTreeMap::from([(pod("a"), 2)])), None, "it was told");
        assert_eq!(known[&pod("b")], 1);
        assert_eq!(moved(&mut known, "c", BTreeMap::from([(pod("c"), 1)])), None, "the full list tells of new ones");
        assert_eq!(moved(&mut known, "b", BTreeMap::new()), None, "and of those that are gone");
        assert_eq!(known.len(), 2);
        let nudge = Nudge::default();
        ["b", "a", "b"].iter().for_each(|uid| nudge.clone().pod(uid));
        assert_eq!(nudge.take().into_iter().collect::<Vec<_>>(), ["a", "b"]);
        assert!(nudge.take().is_empty());
    }

    #[test]
    fn after_three_minutes_without_a_list_nobody_knows_what_runs() {
        assert_eq!(silent_for(Duration::from_secs(180)), None);
        let words = "PLEG is not healthy: pleg was last seen active 3m0.5s ago; threshold is 3m0s";
        assert_eq!(silent_for(Duration::from_millis(180_500)).as_deref(), Some(words));
    }
}
