//! Pods that wait for a node: those to be tried now by priority, those whose last attempt is too recent, and those that
//! wait for the cluster to change.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::pod::PodInfo;

const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);
/// A pod that no event helped is tried again after this long, as upstream.
const FLUSH: Duration = Duration::from_secs(300);

type Uid = Box<str>;

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Active,
    /// Until the time.
    Backoff(Instant),
    Unschedulable(Instant),
    /// Taken out and not back yet.
    InFlight,
}

#[derive(Debug)]
struct Entry {
    pod: Arc<PodInfo>,
    /// Order of arrival, among equal priorities.
    number: u64,
    attempts: u32,
    tried: Instant,
    state: State,
}

#[derive(Debug, Default)]
pub struct SchedulingQueue {
    entries: HashMap<Uid, Entry>,
    active: BTreeSet<(Reverse<i64>, u64, Uid)>,
    /// Pods in backoff and unschedulable ones, by when they become active.
    timed: BTreeSet<(Instant, Uid)>,
    arrivals: u64,
}

impl SchedulingQueue {
    pub fn get(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.entries.get(uid).map(|e| &e.pod)
    }

    /// Adds a pod, or takes in a newer state of it; a pod that wants something else than before is tried again.
    pub fn set(&mut self, pod: Arc<PodInfo>) {
        let uid = pod.object.keys.uid.clone();
        match self.entries.get_mut(&uid) {
            Some(entry) => {
                let changed = entry.pod.generation != pod.generation
                    || entry.pod.told_claims != pod.told_claims
                    || entry.pod.object.keys.labels != pod.object.keys.labels;
                entry.pod = pod;
                if changed && matches!(entry.state, State::Unschedulable(_)) {
                    self.awaken(&uid);
                }
            }
            None => {
                self.arrivals += 1;
                let now = Instant::now();
                let entry = Entry { pod, number: self.arrivals, attempts: 0, tried: now, state: State::InFlight };
                self.entries.insert(uid.clone(), entry);
                self.activate(&uid);
            }
        }
    }

    pub fn remove(&mut self, uid: &str) {
        if let Some(entry) = self.entries.remove(uid) {
            self.unlist(uid, &entry);
        }
    }

    fn unlist(&mut self, uid: &str, entry: &Entry) {
        match entry.state {
            State::Active => {
                self.active.remove(&(Reverse(entry.pod.priority), entry.number, uid.into()));
            }
            State::Backoff(at) | State::Unschedulable(at) => {
                self.timed.remove(&(at, uid.into()));
            }
            State::InFlight => {}
        }
    }

    fn enter(&mut self, uid: &str, state: State) {
        let Some(mut entry) = self.entries.remove(uid) else { return };
        self.unlist(uid, &entry);
        entry.state = state;
        match state {
            State::Active => {
                self.active.insert((Reverse(entry.pod.priority), entry.number, uid.into()));
            }
            State::Backoff(at) | State::Unschedulable(at) => {
                self.timed.insert((at, uid.into()));
            }
            State::InFlight => {}
        }
        self.entries.insert(uid.into(), entry);
    }

    fn activate(&mut self, uid: &str) {
        self.enter(uid, State::Active);
    }

    /// The most important pod that is to be tried now.
    pub fn pop(&mut self, now: Instant) -> Option<Arc<PodInfo>> {
        while let Some((at, uid)) = self.timed.first() {
            if *at > now {
                break;
            }
            let uid = uid.clone();
            self.activate(&uid);
        }
        let (_, _, uid) = self.active.first()?.clone();
        self.enter(&uid, State::InFlight);
        let entry = self.entries.get_mut(&uid)?;
        entry.attempts += 1;
        entry.tried = now;
        Some(entry.pod.clone())
    }

    pub fn next_due(&self) -> Option<Instant> {
        self.timed.first().map(|(at, _)| *at)
    }

    /// The pod fits nowhere as things are.
    pub fn park(&mut self, uid: &str) {
        self.enter(uid, State::Unschedulable(Instant::now() + FLUSH));
    }

    /// Something failed that may work next time.
    pub fn back_off(&mut self, uid: &str) {
        if let Some(entry) = self.entries.get(uid) {
            let until = entry.tried + backoff(entry.attempts);
            self.enter(uid, State::Backoff(until));
        }
    }

    /// The cluster changed: parked pods that `may_fit` says so of are tried again, not before their backoff is over.
    pub fn awaken_all(&mut self, may_fit: impl Fn(&PodInfo) -> bool) {
        let parked = self.entries.iter().filter(|(_, e)| matches!(e.state, State::Unschedulable(_)));
        let chosen: Vec<Uid> = parked.filter(|(_, e)| may_fit(&e.pod)).map(|(uid, _)| uid.clone()).collect();
        chosen.iter().for_each(|uid| self.awaken(uid));
    }

    fn awaken(&mut self, uid: &str) {
        let Some(entry) = self.entries.get(uid) else { return };
        let until = entry.tried + backoff(entry.attempts);
        let state = if until > Instant::now() { State::Backoff(until) } else { State::Active };
        self.enter(uid, state);
    }
}

fn backoff(attempts: u32) -> Duration {
    FIRST_BACKOFF.saturating_mul(1 << attempts.saturating_sub(1).min(8)).min(LONGEST_BACKOFF)
}
