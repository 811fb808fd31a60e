//! Eviction: keeps the node alive when memory, disk or process numbers run short, and pods within their disk limits.
//!
//! Every ten seconds, and at once when the kernel says that tasks wait for memory, the thresholds' signals are read
//! ([`observe`]) and judged ([`pressure`]). Conditions go to the node's status, which also keeps pods out. When a
//! threshold is due, leftovers go first; if that does not help, one pod is chosen ([`rank`]) and ended, and the next look
//! waits for its end. Pods above their own limits ([`limits`]) go in any case. Critical pods never do.
//!
//! Followed: `pkg/kubelet/eviction`.

mod limits;
mod message;
mod observe;
mod pressure;
mod psi;
mod rank;
mod usage;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use proto::api::core::v1::Pod;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::{Configuration, Signal, Threshold, thresholds};
use crate::daemon::Beat;
use crate::events::{EventType, Recorder};
use crate::metrics;
use crate::node::{NodeEvents, NodeSignals};
use crate::pod::spec::PodExt;
use crate::pods::{End, Handle};
use crate::stats::Stats;
use crate::status::generate::Override;

use limits::Limited;
use observe::Observer;
use pressure::{Condition, Observations, Pressure};
use psi::MemoryStall;

/// Between two looks; the kubelet's.
const INTERVAL: Duration = Duration::from_secs(10);
/// Stalls of memory do not make looks more frequent than this.
const LEAST_INTERVAL: Duration = Duration::from_secs(1);
/// How long the clean-up of evicted pods is waited for beyond their grace.
const CLEANUP: Duration = Duration::from_secs(30);
/// Seconds that a pod gets when there is no time to lose.
const IMMEDIATE_GRACE: i64 = 1;
/// Leftovers are removed by the pods' own workers; after this long their room should be back.
const COLLECTING: Duration = Duration::from_secs(2);
const REASON: &str = "Evicted";

/// What eviction needs from the rest of the agent.
pub struct EvictionDeps {
    pub config: Arc<Configuration>,
    pub root_dir: PathBuf,
    pub stats: Stats,
    pub signals: watch::Sender<NodeSignals>,
    pub events: NodeEvents,
    pub recorder: Recorder,
    pub beat: Beat,
}

/// Watches until dropped. Returns at once when there is nothing to watch.
pub async fn run(deps: EvictionDeps, pods: Handle) {
    // What cannot be meant has been refused at the start.
    let all = thresholds(&deps.config).unwrap_or_default();
    if all.is_empty() && !deps.config.local_storage_capacity_isolation {
        return;
    }
    let mut evictor = Evictor::start(deps, pods, all).await;
    let stalls = evictor.pressure.thresholds().iter().any(|t| t.signal.is_memory());
    let mut stalls = stalls.then(MemoryStall::watch).and_then(|watch| match watch {
        Ok(watch) => Some(watch),
        Err(error) => {
            tracing::info!(%error, "no early warning of memory pressure; looking every {INTERVAL:?}");
            None
        }
    });
    loop {
        evictor.beat.begin().await;
        let evicted = evictor.look().await;
        evictor.beat.end();
        if !evicted {
            wait(&mut stalls).await;
        }
    }
}

/// Until the next look.
async fn wait(stalls: &mut Option<MemoryStall>) {
    let Some(watch) = stalls else { return tokio::time::sleep(INTERVAL).await };
    tokio::select! {
        () = tokio::time::sleep(INTERVAL) => {}
        stalled = async {
            tokio::time::sleep(LEAST_INTERVAL).await;
            watch.happened().await
        } => if let Err(error) = stalled {
            tracing::warn!(%error, "no early warning of memory pressure any more");
            *stalls = None;
        }
    }
}

struct Evictor {
    config: Arc<Configuration>,
    observer: Observer,
    pressure: Pressure,
    pods: Handle,
    signals: watch::Sender<NodeSignals>,
    events: NodeEvents,
    recorder: Recorder,
    beat: Beat,
    /// When what each limited pod holds was last counted.
    counted: HashMap<String, Instant>,
}

impl Evictor {
    async fn start(deps: EvictionDeps, pods: Handle, all: Vec<Threshold>) -> Self {
        let mut stats = deps.stats;
        let observer = loop {
            match Observer::new(stats, deps.root_dir.clone()).await {
                Ok(observer) => break observer,
                Err((back, error)) => {
                    tracing::warn!(%error, "the runtime does not say where its file systems are; asking again");
                    stats = back;
                    tokio::time::sleep(INTERVAL).await;
                }
            }
        };
        let all = pressure::with_container_fs(all, observer.disks);
        Evictor {
            pressure: Pressure::new(all, deps.config.eviction_pressure_transition_period.get()),
            config: deps.config,
            observer,
            pods,
            signals: deps.signals,
            events: deps.events,
            recorder: deps.recorder,
            beat: deps.beat,
            counted: HashMap::new(),
        }
    }

    /// One look and what follows from it. Returns whether a pod was evicted: then the next look is due at once.
    async fn look(&mut self) -> bool {
        let observations = self.observer.observe(self.pressure.thresholds()).await;
        let observed_at = Instant::now();
        let outcome = self.pressure.round(&observations, observed_at);
        self.publish(&outcome.conditions);
        if self.config.local_storage_capacity_isolation && self.evict_above_limits().await {
            return true;
        }
        let Some(first) = outcome.due.first() else { return false };
        let resource = first.signal.resource();
        (self.events)("Warning", "EvictionThresholdMet", format!("Attempting to reclaim {resource}"));
        if self.reclaim(first.signal).await {
            tracing::info!(resource, "enough could be freed without evicting a pod");
            return false;
        }
        self.evict_one(first, &outcome.due, &observations, observed_at).await
    }

    fn publish(&self, conditions: &[Condition]) {
        let has = |condition| conditions.contains(&condition);
        let (memory, disk, pid) = (has(Condition::Memory), has(Condition::Disk), has(Condition::Pid));
        self.signals.send_if_modified(|signals| {
            let before = (signals.memory_pressure, signals.disk_pressure, signals.pid_pressure);
            (signals.memory_pressure, signals.disk_pressure, signals.pid_pressure) = (memory, disk, pid);
            before != (memory, disk, pid)
        });
    }

    /// Removes what nobody needs from the signal's file system. Returns whether that was enough.
    async fn reclaim(&self, signal: Signal) -> bool {
        let (containers, images) = reclaimable(signal, self.observer.disks);
        if containers {
            self.pods.remove_ended_containers().await;
            tokio::time::sleep(COLLECTING).await;
        }
        if images {
            self.pods.remove_unused_images().await;
        }
        (containers || images) && self.pressure.is_relieved(&self.observer.observe(self.pressure.thresholds()).await)
    }

    /// Evicts the first in the ranking that may go.
    async fn evict_one(
        &mut self,
        threshold: &Threshold,
        due: &[Threshold],
        observations: &Observations,
        observed_at: Instant,
    ) -> bool {
        let (signal, resource) = (threshold.signal, threshold.signal.resource());
        let mut pods = self.pods.active().await;
        let usages = self.observer.usages(&pods, signal).await;
        rank::rank(&mut pods, &usages, signal, self.observer.disks);
        for threshold in due {
            metrics::EVICTION_STATS_AGE.observe(&[threshold.signal.name()], observed_at.elapsed().as_secs_f64());
        }
        let Some(pod) = pods.iter().find(|pod| !pod.is_critical()) else {
            tracing::warn!(resource, "the node runs short, and there is no pod that may be evicted");
            return false;
        };
        let grace = match threshold.grace {
            None => IMMEDIATE_GRACE,
            Some(_) => {
                let most = i64::from(self.config.eviction_max_pod_grace_period);
                pod.spec().termination_grace_period_seconds.map_or(most, |own| own.min(most))
            }
        };
        let told = message::tell(resource, pod, usages.get(pod.uid()), due, observations);
        metrics::EVICTIONS.inc(&[signal.name()]);
        let disruption = Some("TerminationByKubelet".to_owned());
        let end = self.evict(pod, grace, told.message, told.annotations, disruption).await;
        self.wait_for(end.into_iter().collect(), grace).await;
        true
    }

    /// Evicts all pods that hold more on disk than they may. Returns whether there were any.
    async fn evict_above_limits(&mut self) -> bool {
        let pods = self.pods.active().await;
        let (due, with_layers) = self.due_for_count(&pods);
        if due.is_empty() {
            return false;
        }
        let usages = self.observer.storage(&due, with_layers).await;
        let mut ends = Vec::new();
        for pod in &due {
            let Some(usage) = usages.get(pod.uid()) else { continue };
            let Some(excess) = limits::exceeded(pod, usage, self.observer.disks.images_apart) else { continue };
            metrics::EVICTIONS.inc(&[excess.signal]);
            ends.extend(self.evict(pod, IMMEDIATE_GRACE, excess.message, BTreeMap::new(), None).await);
        }
        if ends.is_empty() {
            return false;
        }
        self.wait_for(ends, IMMEDIATE_GRACE).await;
        true
    }

    /// Pods with limits whose files have not been counted for `volumeStatsAggPeriod`, and whether the runtime has to
    /// be asked for one of them.
    fn due_for_count(&mut self, pods: &[Arc<Pod>]) -> (Vec<Arc<Pod>>, bool) {
        let (now, period) = (Instant::now(), self.config.volume_stats_agg_period.get());
        let alive: HashSet<&str> = pods.iter().map(|p| p.uid()).collect();
        self.counted.retain(|uid, _| alive.contains(uid.as_str()));
        let (mut due, mut with_layers) = (Vec::new(), false);
        for pod in pods.iter().filter(|p| !p.is_critical()) {
            let Some(limited) = Limited::of(pod) else { continue };
            if self.counted.get(pod.uid()).is_some_and(|at| now.duration_since(*at) < period) {
                continue;
            }
            self.counted.insert(pod.uid().to_owned(), now);
            with_layers |= limited.storage;
            due.push(pod.clone());
        }
        (due, with_layers)
    }

    async fn evict(
        &self,
        pod: &Pod,
        grace: i64,
        message: String,
        annotations: BTreeMap<String, String>,
        disruption: Option<String>,
    ) -> Option<End> {
        tracing::info!(pod = pod.name(), namespace = pod.namespace(), message, "evicting a pod");
        self.recorder.annotated(pod, EventType::Warning, REASON, message.clone(), annotations);
        let imposed = Override { reason: REASON.into(), message, disruption };
        self.pods.evict(pod.uid(), imposed, Some(grace)).await
    }

    async fn wait_for(&self, ends: Vec<End>, grace: i64) {
        let limit = CLEANUP + Duration::from_secs(grace.max(0).unsigned_abs());
        let all = futures_util::future::join_all(ends.into_iter().map(End::come));
        // However long pods may take to end: waiting is not being stuck.
        self.beat.end();
        if tokio::time::timeout(limit, all).await.is_err() {
            tracing::warn!(?limit, "evicted pods have not been cleaned up yet");
        }
        self.beat.begin().await;
    }
}

/// Whether leftover containers and unused images lie on the file system of a signal.
fn reclaimable(signal: Signal, disks: pressure::Disks) -> (bool, bool) {
    if signal.condition() != Condition::Disk {
        return (false, false);
    }
    let images = matches!(signal, Signal::ImagefsAvailable | Signal::ImagefsInodesFree);
    let node = matches!(signal, Signal::NodefsAvailable | Signal::NodefsInodesFree);
    match (disks.images_apart, disks.containers_split) {
        (true, false) => (!node, !node),
        (true, true) => (!images, images),
        _ => (true, true),
    }
}

#[cfg(test)]
mod tests {
    use super::pressure::Disks;
    use super::*;

    #[test]
    fn leftovers_are_removed_where_they_lie() {
        let apart = Disks { images_apart: true, containers_split: false };
        let split = Disks { images_apart: true, containers_split: true };
        assert_eq!(reclaimable(Signal::MemoryAvailable, Disks::default()), (false, false));
        assert_eq!(reclaimable(Signal::NodefsAvailable, Disks::default()), (true, true));
        assert_eq!(reclaimable(Signal::NodefsAvailable, apart), (false, false));
        assert_eq!(reclaimable(Signal::ContainerfsInodesFree, apart), (true, true));
        assert_eq!(reclaimable(Signal::ImagefsAvailable, split), (false, true));
        assert_eq!(reclaimable(Signal::NodefsAvailable, split), (true, false));
    }
}
