//! Which thresholds are met, for how long, and what follows for the node: pure, with the clock given.
//!
//! A threshold that was met once stays until its minimum reclaim is reached too. Soft ones count after their grace. A
//! condition of the node stays for `evictionPressureTransitionPeriod` after it was last seen.
//!
//! Followed: `pkg/kubelet/eviction/helpers.go`.

use std::collections::BTreeMap;
use std::time::Duration;

use proto::quantity::{Format, Quantity};
use tokio::time::Instant;

use crate::config::{Signal, Threshold, ThresholdValue};

/// What there is of a signal's resource: bytes, inodes or process numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation {
    pub available: i64,
    pub capacity: i64,
}

/// By signal; one that cannot be read is not there, and its thresholds are not met.
pub type Observations = BTreeMap<Signal, Observation>;

/// Conditions of the node, in the order in which messages name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    Memory,
    Disk,
    Pid,
}

impl Signal {
    /// What it is told of as.
    pub fn resource(self) -> &'static str {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => "memory",
            Self::NodefsAvailable | Self::ImagefsAvailable | Self::ContainerfsAvailable => "ephemeral-storage",
            Self::NodefsInodesFree | Self::ImagefsInodesFree | Self::ContainerfsInodesFree => "inodes",
            Self::PidAvailable => "pids",
        }
    }

    pub fn is_memory(self) -> bool {
        self.condition() == Condition::Memory
    }

    pub fn condition(self) -> Condition {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => Condition::Memory,
            Self::PidAvailable => Condition::Pid,
            _ => Condition::Disk,
        }
    }

    fn format(self) -> Format {
        match self.resource() {
            "inodes" | "pids" => Format::DecimalSi,
            _ => Format::BinarySi,
        }
    }
}

impl Observation {
    /// As messages print it.
    pub fn told(self, signal: Signal) -> Quantity {
        Quantity::from_integer(self.available, signal.format())
    }
}

/// The amount of a threshold as messages print it.
pub fn told(value: ThresholdValue, capacity: i64) -> Quantity {
    match value {
        ThresholdValue::Amount(amount) => amount,
        ThresholdValue::Share(_) => Quantity::from_integer(value.of(capacity), Format::BinarySi),
    }
}

/// Whether less is available than the threshold says; `with_reclaim`: than what eviction aims at.
pub fn is_met(threshold: &Threshold, observations: &Observations, with_reclaim: bool) -> bool {
    let Some(seen) = observations.get(&threshold.signal) else { return false };
    let reclaim = threshold.minimum_reclaim.filter(|_| with_reclaim).map_or(0, |r| r.of(seen.capacity));
    threshold.value.of(seen.capacity).saturating_add(reclaim) > seen.available
}

/// What one round of looking says.
#[derive(Debug, Default, PartialEq)]
pub struct Outcome {
    /// Sorted.
    pub conditions: Vec<Condition>,
    /// Thresholds to act on, memory first.
    pub due: Vec<Threshold>,
}

/// What is remembered from round to round.
pub struct Pressure {
    thresholds: Vec<Threshold>,
    transition: Duration,
    /// Since when each threshold is met.
    since: Vec<(Threshold, Instant)>,
    /// Those that were acted on and are not resolved.
    due: Vec<Threshold>,
    seen: BTreeMap<Condition, Instant>,
}

impl Pressure {
    pub fn new(thresholds: Vec<Threshold>, transition: Duration) -> Self {
        Pressure { thresholds, transition, since: Vec::new(), due: Vec::new(), seen: BTreeMap::new() }
    }

    pub fn thresholds(&self) -> &[Threshold] {
        &self.thresholds
    }

    /// Takes in what is there now.
    pub fn round(&mut self, observations: &Observations, now: Instant) -> Outcome {
        let mut met: Vec<Threshold> =
            self.thresholds.iter().filter(|t| is_met(t, observations, false)).cloned().collect();
        for unresolved in self.due.iter().filter(|t| is_met(t, observations, true)) {
            if !met.contains(unresolved) {
                met.push(unresolved.clone());
            }
        }
        let earlier = |t: &Threshold| self.since.iter().find(|(known, _)| known == t).map_or(now, |(_, at)| *at);
        self.since = met.iter().map(|t| (t.clone(), earlier(t))).collect();
        for threshold in &met {
            self.seen.insert(threshold.signal.condition(), now);
        }
        let transition = self.transition;
        // What is seen right now counts even where nothing is to be waited for.
        self.seen.retain(|_, at| *at == now || now.duration_since(*at) < transition);
        let ripe = |(t, at): &&(Threshold, Instant)| now.duration_since(*at) >= t.grace.unwrap_or_default();
        self.due = self.since.iter().filter(ripe).map(|(t, _)| t.clone()).collect();
        self.due.sort_by_key(|t| !t.signal.is_memory());
        Outcome { conditions: self.seen.keys().copied().collect(), due: self.due.clone() }
    }

    /// Whether there is so much of everything again that nothing more has to go.
    pub fn is_relieved(&self, observations: &Observations) -> bool {
        !self.thresholds.iter().any(|t| is_met(t, observations, true))
    }
}

/// Where images, containers and the node's own files lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Disks {
    /// Images are not on the node's file system.
    pub images_apart: bool,
    /// What containers write is not on the images' file system.
    pub containers_split: bool,
}

/// The containers' file system has no thresholds of its own: those of the file system that it is part of count for it.
pub fn with_container_fs(mut thresholds: Vec<Threshold>, disks: Disks) -> Vec<Threshold> {
    let own = |t: &Threshold| matches!(t.signal, Signal::ContainerfsAvailable | Signal::ContainerfsInodesFree);
    if thresholds.iter().any(own) {
        tracing::warn!("thresholds of containerfs are ignored: those of its file system count");
    }
    thresholds.retain(|t| !own(t));
    let from_images = disks.images_apart && !disks.containers_split;
    let pairs = match from_images {
        true => [
            (Signal::ImagefsAvailable, Signal::ContainerfsAvailable),
            (Signal::ImagefsInodesFree, Signal::ContainerfsInodesFree),
        ],
        false => [
            (Signal::NodefsAvailable, Signal::ContainerfsAvailable),
            (Signal::NodefsInodesFree, Signal::ContainerfsInodesFree),
        ],
    };
    for (from, to) in pairs {
        let copies: Vec<Threshold> =
            thresholds.iter().filter(|t| t.signal == from).map(|t| Threshold { signal: to, ..t.clone() }).collect();
        thresholds.extend(copies);
    }
    thresholds
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threshold(signal: Signal, amount: i64, grace: u64, reclaim: i64) -> Threshold {
        let value = |n| ThresholdValue::Amount(Quantity::from_integer(n, Format::BinarySi));
        Threshold {
            signal,
            value: value(amount),
            grace: (grace > 0).then(|| Duration::from_secs(grace)),
            minimum_reclaim: (reclaim > 0).then(|| value(reclaim)),
        }
    }

    fn available(signal: Signal, available: i64) -> Observations {
        [(signal, Observation { available, capacity: 1000 })].into()
    }

    const MINUTES: Duration = Duration::from_secs(300);

    #[test]
    fn a_hard_threshold_counts_at_once_and_until_its_reclaim_is_reached() {
        let hard = threshold(Signal::MemoryAvailable, 100, 0, 50);
        let (mut pressure, start) = (Pressure::new(vec![hard.clone()], MINUTES), Instant::now());
        assert_eq!(pressure.round(&available(Signal::MemoryAvailable, 100), start), Outcome::default());
        let outcome = pressure.round(&available(Signal::MemoryAvailable, 99), start);
        assert_eq!((outcome.conditions, outcome.due), (vec![Condition::Memory], vec![hard.clone()]));
        assert_eq!(pressure.round(&available(Signal::MemoryAvailable, 149), start).due, [hard]);
        assert!(!pressure.is_relieved(&available(Signal::MemoryAvailable, 149)));
        assert!(pressure.round(&available(Signal::MemoryAvailable, 150), start).due.is_empty());
        assert!(pressure.is_relieved(&available(Signal::MemoryAvailable, 150)));
    }

    #[test]
    fn a_soft_threshold_waits_out_its_grace_but_shows_in_the_condition() {
        let soft = threshold(Signal::NodefsAvailable, 100, 30, 0);
        let (mut pressure, start) = (Pressure::new(vec![soft.clone()], MINUTES), Instant::now());
        let low = available(Signal::NodefsAvailable, 1);
        let at = |seconds| start + Duration::from_secs(seconds);
        let first = pressure.round(&low, at(0));
        assert_eq!((first.conditions, first.due.len()), (vec![Condition::Disk], 0));
        assert!(pressure.round(&low, at(29)).due.is_empty());
        assert_eq!(pressure.round(&low, at(30)).due, [soft]);
        // A moment of relief starts the grace anew.
        pressure.round(&available(Signal::NodefsAvailable, 500), at(31));
        assert!(pressure.round(&low, at(32)).due.is_empty());
    }

    #[test]
    fn a_condition_outlasts_its_cause_by_the_transition_period() {
        let hard = threshold(Signal::PidAvailable, 100, 0, 0);
        let (mut pressure, start) = (Pressure::new(vec![hard], MINUTES), Instant::now());
        let fine = available(Signal::PidAvailable, 500);
        pressure.round(&available(Signal::PidAvailable, 5), start);
        assert_eq!(pressure.round(&fine, start + Duration::from_secs(299)).conditions, [Condition::Pid]);
        assert!(pressure.round(&fine, start + MINUTES).conditions.is_empty());
    }

    #[test]
    fn memory_comes_first_and_what_is_not_seen_is_not_met() {
        let list = vec![threshold(Signal::NodefsAvailable, 100, 0, 0), threshold(Signal::MemoryAvailable, 100, 0, 0)];
        let mut pressure = Pressure::new(list, MINUTES);
        let mut low = available(Signal::NodefsAvailable, 1);
        assert_eq!(pressure.round(&low, Instant::now()).due.len(), 1);
        low.append(&mut available(Signal::MemoryAvailable, 1));
        let due = pressure.round(&low, Instant::now()).due;
        assert_eq!(due[0].signal, Signal::MemoryAvailable);
    }

    #[test]
    fn thresholds_of_containers_follow_their_file_system() {
        let list = || {
            vec![
                threshold(Signal::NodefsAvailable, 1, 0, 0),
                threshold(Signal::ImagefsAvailable, 2, 0, 0),
                threshold(Signal::ContainerfsAvailable, 3, 0, 0),
            ]
        };
        let of = |disks| {
            let all = with_container_fs(list(), disks);
            let own: Vec<i64> =
                all.iter().filter(|t| t.signal == Signal::ContainerfsAvailable).map(|t| t.value.of(0)).collect();
            own
        };
        assert_eq!(of(Disks::default()), [1]);
        assert_eq!(of(Disks { images_apart: true, containers_split: false }), [2]);
        assert_eq!(of(Disks { images_apart: true, containers_split: true }), [1]);
    }
}
