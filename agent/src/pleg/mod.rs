//! Pod lifecycle events: what the runtime has, and when it changes.
//!
//! [`watch`] tells of every pod whose sandboxes or containers changed. With a runtime that streams events a change is
//! told at once, and where no event is lost the lists are compared rarely; otherwise they are compared every second while
//! things move and less often when nothing has for a while. Where something was done to a pod ([`Nudge`]) they are
//! compared soon, once for all that was done since the last time. A runtime that cannot be reached is asked again with
//! growing pauses.
//!
//! What was seen last stays known ([`Latest`]), so that whoever knows a pod need not ask the runtime whether it still is so.

pub mod observed;
pub mod parts;
mod runtime_events;
mod termination_message;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use proto::cri;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::clock;
use crate::cri::{CriClient, CriError, ListedContainer, ListedSandbox};
use crate::metrics;
use crate::pod::labels::{self, owner_by};

pub use parts::Latest;
use parts::{Part, Parts, Seen};
use runtime_events::StreamEvent;

/// The kubelet's pace.
const BUSY: Duration = Duration::from_secs(1);
/// When nothing has moved for [`CALM_AFTER`]: a crash is noticed this late at worst.
const CALM: Duration = Duration::from_secs(2);
const CALM_AFTER: Duration = Duration::from_secs(30);
/// With a stream that tells of all that happens, and with nothing in the runtime at all.
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
    /// Something about this pod changed; to what, as far as that was seen.
    Changed(String, Option<Seen>),
    /// All pods that the runtime has anything of. Sent after each full comparison that found a change, and once at
    /// the start.
    Listed(Vec<RuntimePod>),
}

/// A handle that asks for a comparison before its time; clones share what was asked for.
#[derive(Clone, Default)]
pub struct Nudge(Arc<Asked>);

#[derive(Default)]
struct Asked {
    /// Also of what the runtime does not tell by itself.
    anywhere: AtomicBool,
    any: Notify,
}

impl Nudge {
    /// Something is about to move, nobody knows where.
    pub fn nudge(&self) {
        self.0.anywhere.store(true, Ordering::Release);
        self.0.any.notify_one();
    }

    /// Something was done to a pod, and follows from that without the agent: the runtime is asked about it soon, unless it
    /// tells by itself.
    pub fn pod(&self) {
        self.0.any.notify_one();
    }

    fn take_anywhere(&self) -> bool {
        self.0.anywhere.swap(false, Ordering::AcqRel)
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

/// When all is compared after a nudge at `now`: at once, but no more often than every so often, however often somebody
/// nudges. Never later than it was `due`.
fn due_after_nudge(due: Instant, last_look: Option<Instant>, now: Instant) -> Instant {
    due.min(last_look.map_or(now, |last| now.max(last + BUSY)))
}

/// Watches the runtime until the receiver is gone, and keeps `latest` as it is.
pub async fn watch(cri: CriClient, events: mpsc::Sender<Event>, nudge: Nudge, latest: Latest) {
    let (streamed, mut stream_events) = mpsc::channel(256);
    let stream = tokio::spawn(runtime_events::follow(cri.clone(), streamed));
    // However this ends, nobody notices any more.
    let _watching = cri.moves().watching();
    let mut known: BTreeMap<RuntimePod, Parts> = BTreeMap::new();
    let (mut first, mut moved) = (true, Instant::now());
    // Live is a stream that tells of all that happens.
    let (mut live, mut retry) = (false, Duration::from_millis(100));
    // When all is compared next. A nudge may bring it nearer, and never puts it off: somebody may nudge without end.
    let mut due = Instant::now();
    let mut last_look: Option<Instant> = None;
    // Until it is known that there is no stream, of which nothing is to be heard then.
    let mut streams = true;
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(due) => {}
            () = nudge.0.any.notified() => {
                let anywhere = nudge.take_anywhere();
                // With a stream the runtime has told of what was done to a pod already. Before the first list nothing is known
                // to compare with.
                if (live && !anywhere) || first {
                    continue;
                }
                moved = Instant::now();
                due = due_after_nudge(due, last_look, moved);
                continue;
            }
            event = stream_events.recv(), if streams => match event {
                Some(StreamEvent::Complete(complete)) => {
                    live = complete;
                    // What happened before or between streams is found by comparing.
                    due = Instant::now();
                    continue;
                }
                Some(StreamEvent::Pod(uid, told)) => {
                    latest.told(&uid, told.as_ref());
                    if events.send(Event::Changed(uid, told.map(Seen::told))).await.is_err() {
                        break;
                    }
                    continue;
                }
                None => {
                    (streams, live) = (false, false);
                    continue;
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
                latest.set(begun, now.iter().map(|(pod, parts)| (pod.uid.as_str(), parts)));
                if report(&known, &now, first, begun, &events).await.is_err() {
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

/// Each pod of the runtime with what it consists of.
async fn snapshot(cri: &CriClient) -> Result<BTreeMap<RuntimePod, Parts>, CriError> {
    let (sandboxes, containers) = tokio::try_join!(cri.all_sandboxes(), cri.all_containers())?;
    count(&sandboxes, &containers);
    Ok(pods_of(&sandboxes, &containers))
}

fn pods_of(sandboxes: &[ListedSandbox], containers: &[ListedContainer]) -> BTreeMap<RuntimePod, Parts> {
    let mut all: HashMap<labels::PodRef<'_>, Vec<Part>> = HashMap::new();
    let sandboxes = sandboxes.iter().map(|s| (&s.labels, &s.id, s.state));
    for (labels, id, state) in sandboxes.chain(containers.iter().map(|c| (&c.labels, &c.id, c.state))) {
        // Without these labels it is not a pod of ours.
        let value = |name: &str| labels.iter().find(|label| label.name == name).map(|label| label.value.as_str());
        let Some(pod) = owner_by(value) else { continue };
        all.entry(pod).or_default().push(Part::new(id, state));
    }
    let pods = all.into_iter().map(|(pod, parts)| {
        let pod = RuntimePod { uid: pod.uid.into(), name: pod.name.into(), namespace: pod.namespace.into() };
        (pod, parts::parts(parts))
    });
    pods.collect()
}

/// What the runtime has, in numbers.
fn count(sandboxes: &[ListedSandbox], containers: &[ListedContainer]) {
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
    known: &BTreeMap<RuntimePod, Parts>,
    now: &BTreeMap<RuntimePod, Parts>,
    first: bool,
    begun: Instant,
    events: &mpsc::Sender<Event>,
) -> Result<(), mpsc::error::SendError<Event>> {
    if !first && now == known {
        return Ok(());
    }
    for (pod, parts) in now {
        if known.get(pod) != Some(parts) {
            let seen = Seen::listed(parts.clone(), begun);
            events.send(Event::Changed(pod.uid.clone(), Some(seen))).await?;
        }
    }
    for pod in known.keys().filter(|pod| !now.contains_key(*pod)) {
        let seen = Seen::listed(Parts::from([]), begun);
        events.send(Event::Changed(pod.uid.clone(), Some(seen))).await?;
    }
    events.send(Event::Listed(now.keys().cloned().collect())).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::Label;

    #[test]
    fn what_is_done_is_looked_for_at_once_and_no_more_often_than_every_second() {
        let now = Instant::now();
        let (later, millis) = (now + Duration::from_secs(60), Duration::from_millis);
        assert_eq!(due_after_nudge(later, None, now), now);
        assert_eq!(due_after_nudge(later, Some(now - millis(1500)), now), now);
        assert_eq!(due_after_nudge(later, Some(now - millis(300)), now), now + millis(700));
        assert_eq!(due_after_nudge(now + millis(200), Some(now), now), now + millis(200), "nothing is put off");
        let nudge = Nudge::default();
        nudge.clone().pod();
        assert!(!nudge.take_anywhere());
        nudge.clone().nudge();
        assert!(nudge.take_anywhere() && !nudge.take_anywhere());
    }

    #[test]
    fn what_belongs_together_is_one_pod_and_what_is_nobodys_is_none() {
        let labels = |uid: &str| {
            let labels = [(labels::POD_UID, uid), (labels::POD_NAME, "p"), (labels::POD_NAMESPACE, "n")];
            labels.map(|(name, value)| Label { name: name.to_owned(), value: value.to_owned() }).into()
        };
        let sandboxes = ["a", "b"].map(|id| ListedSandbox { id: id.into(), labels: labels(id), ..Default::default() });
        let container =
            |id: &str, of: &str| ListedContainer { id: id.into(), labels: labels(of), ..Default::default() };
        let strange = ListedContainer { id: "x".into(), ..Default::default() };
        let found = pods_of(&sandboxes, &[container("c", "a"), strange]);
        let found: Vec<(&str, usize)> = found.iter().map(|(pod, parts)| (pod.uid.as_str(), parts.len())).collect();
        assert_eq!(found, [("a", 2), ("b", 1)]);
    }

    #[test]
    fn after_three_minutes_without_a_list_nobody_knows_what_runs() {
        assert_eq!(silent_for(Duration::from_secs(180)), None);
        let words = "PLEG is not healthy: pleg was last seen active 3m0.5s ago; threshold is 3m0s";
        assert_eq!(silent_for(Duration::from_millis(180_500)).as_deref(), Some(words));
    }
}
