//! When each probe runs, and what its results add up to.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cri::CriClient;
use crate::events::{EventType, Recorder};
use crate::pod::spec::{ContainerKind, PodExt, find_container, is_sidecar};

use super::run::{Job, Outcome};
use super::{Command, PodProbes, ProbeKind, Running, Verdict};

type Key = (String, String, ProbeKind);

/// A container that ran long before the agent keeps its verdicts for now.
const SETTLED: Duration = Duration::from_secs(10);

/// One probe of one running container.
struct Entry {
    container_id: String,
    /// Guards against heap entries of earlier lives.
    generation: u64,
    period: Duration,
    due: Instant,
    running: bool,
    successes: i32,
    failures: i32,
    verdict: Option<bool>,
    /// Failed for good, or waits for the startup probe.
    resting: bool,
}

struct State {
    cri: CriClient,
    recorder: Recorder,
    verdicts: mpsc::Sender<Verdict>,
    pods: HashMap<String, PodProbes>,
    entries: HashMap<Key, Entry>,
    heap: BinaryHeap<Reverse<(Instant, u64)>>,
    /// The key of each live generation.
    generations: HashMap<u64, Key>,
    next_generation: u64,
    begun: Instant,
}

pub(super) async fn run(
    cri: CriClient,
    recorder: Recorder,
    verdicts: mpsc::Sender<Verdict>,
    mut commands: mpsc::UnboundedReceiver<Command>,
) {
    let mut state = State {
        cri,
        recorder,
        verdicts,
        pods: HashMap::new(),
        entries: HashMap::new(),
        heap: BinaryHeap::new(),
        generations: HashMap::new(),
        next_generation: 0,
        begun: Instant::now(),
    };
    let mut jobs: JoinSet<(u64, Outcome)> = JoinSet::new();
    loop {
        let due = state.start_due(&mut jobs);
        let sleep = async {
            match due {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            command = commands.recv() => match command {
                Some(Command::Sync(uid, probes)) => state.sync(uid, *probes).await,
                Some(Command::Remove(uid)) => state.remove(&uid),
                None => return,
            },
            Some(done) = jobs.join_next(), if !jobs.is_empty() => {
                if let Ok((generation, outcome)) = done {
                    state.settle(generation, outcome).await;
                }
            }
            () = sleep => {}
        }
    }
}

impl State {
    /// Starts what is due; returns when the next is.
    fn start_due(&mut self, jobs: &mut JoinSet<(u64, Outcome)>) -> Option<Instant> {
        let now = Instant::now();
        while let Some(Reverse((at, generation))) = self.heap.peek().copied() {
            let live = self
                .generations
                .get(&generation)
                .filter(|key| self.entries.get(*key).is_some_and(|e| e.due == at && !e.running && !e.resting));
            let Some(key) = live.cloned() else {
                self.heap.pop();
                continue;
            };
            if at > now {
                return Some(at);
            }
            self.heap.pop();
            let (Some(pod), Some(entry)) = (self.pods.get(&key.0), self.entries.get_mut(&key)) else { continue };
            entry.running = true;
            let job = Job {
                pod: pod.pod.clone(),
                container: key.1,
                container_id: entry.container_id.clone(),
                kind: key.2,
                ip: pod.ip.clone(),
                cri: self.cri.clone(),
            };
            jobs.spawn(async move { (generation, job.run().await) });
        }
        None
    }

    async fn sync(&mut self, uid: String, probes: PodProbes) {
        let mut wanted: Vec<(Key, Running)> = Vec::new();
        for running in &probes.running {
            let Some((list, container)) = find_container(probes.pod.spec(), &running.name) else { continue };
            let probed = match list {
                ContainerKind::Regular => true,
                ContainerKind::Init => is_sidecar(&container),
                ContainerKind::Ephemeral => false,
            };
            for kind in ProbeKind::ALL {
                if probed && kind.of(&container).is_some() && (!probes.terminating || kind == ProbeKind::Readiness) {
                    wanted.push(((uid.clone(), running.name.clone(), kind), running.clone()));
                }
            }
        }
        let gone: Vec<Key> = self
            .entries
            .iter()
            .filter(|(key, e)| {
                key.0 == uid && !wanted.iter().any(|(w, r)| w == *key && r.container_id == e.container_id)
            })
            .map(|(key, _)| key.clone())
            .collect();
        for key in gone {
            self.drop_entry(&key);
        }
        self.pods.insert(uid, probes);
        for (key, running) in wanted {
            if !self.entries.contains_key(&key) {
                self.add(key, &running).await;
            }
        }
    }

    async fn add(&mut self, key: Key, running: &Running) {
        let Some((_, container)) = self.pods.get(&key.0).and_then(|p| find_container(p.pod.spec(), &key.1)) else {
            return;
        };
        let Some(probe) = key.2.of(&container) else { return };
        let seconds = |n: i32| Duration::from_secs(u64::try_from(n).unwrap_or(0));
        let period = seconds(probe.period_seconds.max(1));
        let age = age_of(running.started_at);
        let now = Instant::now();
        let mut due = now + seconds(probe.initial_delay_seconds).saturating_sub(age);
        if self.begun.elapsed() < period && age > SETTLED {
            // Probes of everything that ran before must not start in one burst.
            due = due.max(now + period.mul_f64(fraction(&running.container_id)));
        }
        let has_startup = container.startup_probe.is_some();
        let before = running.before;
        let started = self.entries.get(&(key.0.clone(), key.1.clone(), ProbeKind::Startup));
        let startup_passed = !has_startup
            || before.is_some_and(|b| b.1)
            || started.is_some_and(|e| e.container_id == running.container_id && e.verdict == Some(true));
        let (verdict, resting) = match key.2 {
            ProbeKind::Startup => {
                let passed = before.is_some_and(|b| b.1);
                (passed.then_some(true), passed)
            }
            ProbeKind::Readiness => (before.map(|b| b.0), !startup_passed),
            ProbeKind::Liveness => (None, !startup_passed),
        };
        self.next_generation += 1;
        let generation = self.next_generation;
        let entry = Entry {
            container_id: running.container_id.clone(),
            generation,
            period,
            due,
            running: false,
            successes: 0,
            failures: 0,
            verdict,
            resting,
        };
        self.generations.insert(generation, key.clone());
        if !resting {
            self.heap.push(Reverse((due, generation)));
        }
        self.entries.insert(key, entry);
    }

    fn remove(&mut self, uid: &str) {
        self.pods.remove(uid);
        let gone: Vec<Key> = self.entries.keys().filter(|k| k.0 == uid).cloned().collect();
        for key in gone {
            self.drop_entry(&key);
        }
    }

    fn drop_entry(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.generations.remove(&entry.generation);
        }
    }

    async fn settle(&mut self, generation: u64, outcome: Outcome) {
        let Some(key) = self.generations.get(&generation).cloned() else { return };
        let (Some(pod), Some(entry)) = (self.pods.get(&key.0), self.entries.get_mut(&key)) else { return };
        entry.running = false;
        // A fixed rate; runs that take longer than the period are skipped, not made up for.
        let now = Instant::now();
        entry.due += entry.period;
        if entry.due <= now {
            entry.due = now + entry.period;
        }
        let Some((_, container)) = find_container(pod.pod.spec(), &key.1) else { return };
        let Some(probe) = key.2.of(&container) else { return };
        let kind = key.2.word();
        let (success, event) = match &outcome {
            Outcome::Success => (Some(true), None),
            Outcome::Warning(text) => (Some(true), Some(("ProbeWarning", format!("{kind} probe warning: {text}")))),
            Outcome::Failure(text) => (Some(false), Some(("Unhealthy", format!("{kind} probe failed: {text}")))),
            Outcome::Unknown(text) => {
                let text = format!("{kind} probe errored and resulted in unknown state: {text}");
                (None, Some(("Unhealthy", text)))
            }
            Outcome::Broken(text) => {
                let text = format!("{kind} probe errored and resulted in failure state: {text}");
                (None, Some(("Unhealthy", text)))
            }
        };
        if let Some((reason, message)) = event {
            self.recorder.container(&pod.pod, &key.1, EventType::Warning, reason, message);
        }
        let changed =
            success.and_then(|success| count(entry, success, probe.success_threshold, probe.failure_threshold));
        if let Some(success) = changed {
            if !success && key.2 != ProbeKind::Readiness || success && key.2 == ProbeKind::Startup {
                entry.resting = true;
            }
            let verdict =
                Verdict { uid: key.0.clone(), container_id: entry.container_id.clone(), kind: key.2, success };
            if self.verdicts.send(verdict).await.is_err() {
                return;
            }
        }
        let Some(entry) = self.entries.get(&key) else { return };
        if !entry.resting {
            self.heap.push(Reverse((entry.due, generation)));
        }
        if changed == Some(true) && key.2 == ProbeKind::Startup {
            self.wake_after_startup(&key);
        }
    }

    /// The startup probe passed: the others begin.
    fn wake_after_startup(&mut self, key: &Key) {
        for kind in [ProbeKind::Readiness, ProbeKind::Liveness] {
            let now = Instant::now();
            if let Some(entry) = self.entries.get_mut(&(key.0.clone(), key.1.clone(), kind)).filter(|e| e.resting) {
                entry.resting = false;
                entry.due = entry.due.max(now);
                self.heap.push(Reverse((entry.due, entry.generation)));
            }
        }
    }
}

/// Counts a result; a verdict when it differs from the last.
fn count(entry: &mut Entry, success: bool, success_threshold: i32, failure_threshold: i32) -> Option<bool> {
    let (same, other, threshold) = if success {
        (&mut entry.successes, &mut entry.failures, success_threshold)
    } else {
        (&mut entry.failures, &mut entry.successes, failure_threshold)
    };
    *other = 0;
    *same = same.saturating_add(1);
    if *same < threshold.max(1) || entry.verdict == Some(success) {
        return None;
    }
    entry.verdict = Some(success);
    Some(success)
}

fn age_of(started_at: i64) -> Duration {
    let now = crate::clock::unix_nanos();
    Duration::from_nanos(now.saturating_sub(started_at).max(0).unsigned_abs())
}

/// A number in 0..1 that spreads containers evenly and is the same each time.
fn fraction(id: &str) -> f64 {
    f64::from(crate::pod::hash::fnv1a_32(id.as_bytes())) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_need_as_many_equal_results_as_the_threshold_says() {
        let mut e = Entry {
            container_id: String::new(),
            generation: 0,
            period: Duration::from_secs(1),
            due: Instant::now(),
            running: false,
            successes: 0,
            failures: 0,
            verdict: None,
            resting: false,
        };
        assert_eq!(count(&mut e, false, 1, 2), None);
        assert_eq!(count(&mut e, true, 1, 2), Some(true));
        assert_eq!(count(&mut e, false, 1, 2), None);
        assert_eq!(count(&mut e, false, 1, 2), Some(false));
        assert_eq!(count(&mut e, false, 1, 2), None);
    }
}
