//! Graceful shutdown of the node: pods end in the order of their priorities before the machine goes down.
//!
//! An inhibitor lock makes systemd-logind wait. When it announces a shutdown, the node becomes NotReady and takes no pods
//! any more; each group of pods ([`groups`]) is ended and waited for, the lowest priority first; then the lock is
//! dropped and the machine goes down. A shutdown that is called off takes all of it back, but for the pods.
//!
//! When only the agent stops, nothing of this happens: pods go on.
//!
//! Followed: `pkg/kubelet/nodeshutdown`.

mod groups;
mod logind;
mod state;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use proto::api::core::v1::Pod;
use proto::time::Timestamp;
use tokio::sync::watch;

use crate::backoff::Backoff;
use crate::config::{Configuration, FeatureGates};
use crate::node::{NodeEvents, NodeSignals};
use crate::pod::spec::PodExt;
use crate::pods::Handle;
use crate::state_file;
use crate::status::generate::Override;

use groups::Period;
use logind::{Inhibitor, Logind, LogindError};
use state::State;

const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// Between tries to reach logind.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(60);
/// After so long with logind the next loss is a new one.
const SETTLED: Duration = Duration::from_secs(300);

/// What the shutdown needs from the rest of the agent.
pub struct ShutdownDeps {
    pub config: Arc<Configuration>,
    pub gates: FeatureGates,
    pub root_dir: PathBuf,
    pub signals: watch::Sender<NodeSignals>,
    pub events: NodeEvents,
}

/// Waits for shutdowns until dropped. Returns at once when the configuration gives pods no time.
pub async fn run(deps: ShutdownDeps, pods: Handle) {
    let periods = groups::periods(&deps.config, &deps.gates);
    if periods.is_empty() {
        return;
    }
    let state = State::at(&deps.root_dir);
    if let Some(damaged) = state.show() {
        (deps.events)("Warning", state_file::EVENT, damaged.to_string());
    }
    let ender = Ender { periods, state, signals: deps.signals, events: deps.events, pods };
    let mut backoff = Backoff::new(FIRST_RETRY, LAST_RETRY).forget_after(SETTLED);
    loop {
        match ender.take_part().await {
            Ok(()) => tracing::warn!("the connection to systemd-logind has ended"),
            Err(error) => tracing::warn!(%error, "a shutdown of the node would not wait for pods"),
        }
        tokio::time::sleep(backoff.next_wait()).await;
    }
}

struct Ender {
    periods: Vec<Period>,
    state: State,
    signals: watch::Sender<NodeSignals>,
    events: NodeEvents,
    pods: Handle,
}

impl Ender {
    /// Takes part in shutdowns for as long as logind can be heard.
    async fn take_part(&self) -> Result<(), LogindError> {
        let logind = Logind::connect().await?;
        let (wanted, mut delay) = (groups::total(&self.periods), logind.longest_delay().await?);
        if delay < wanted {
            delay = logind.lengthen_delay(wanted).await?;
        }
        if delay < wanted {
            tracing::warn!(?wanted, ?delay, "systemd-logind will not wait as long as pods may take");
        }
        // Listening comes first, so that no shutdown can begin unheard.
        let mut shutdowns = std::pin::pin!(logind.shutdowns().await?);
        let mut inhibitor = None;
        if logind.is_preparing().await? {
            self.shut_down(None).await;
        } else {
            inhibitor = Some(logind.inhibit().await?);
            self.set(false);
            tracing::info!(?wanted, "taking part in shutdowns of the node");
        }
        while let Some(begins) = shutdowns.next().await {
            if begins {
                self.shut_down(inhibitor.take()).await;
            } else {
                (self.events)("Normal", "Shutdown", "Shutdown manager detected shutdown cancellation".into());
                self.set(false);
                inhibitor = Some(logind.inhibit().await?);
            }
        }
        Ok(())
    }

    /// Ends all pods, then lets the machine go down.
    async fn shut_down(&self, inhibitor: Option<Inhibitor>) {
        (self.events)("Normal", "Shutdown", "Shutdown manager detected shutdown event".into());
        self.set(true);
        let start = Timestamp::now();
        self.state.note(start, None);
        for (period, pods) in groups::group(&self.periods, self.pods.active().await) {
            self.end_group(period, &pods).await;
        }
        self.state.note(start, Some(Timestamp::now()));
        drop(inhibitor);
        tracing::info!("pods have ended; the node may shut down");
    }

    async fn end_group(&self, period: Period, pods: &[Arc<Pod>]) {
        if pods.is_empty() {
            return;
        }
        tracing::info!(priority = period.priority, seconds = period.seconds, pods = pods.len(), "ending pods");
        let ends = futures_util::future::join_all(pods.iter().map(|pod| self.end(pod, period.seconds)));
        let limit = Duration::from_secs(period.seconds.max(0).unsigned_abs());
        if tokio::time::timeout(limit, ends).await.is_err() {
            tracing::warn!(priority = period.priority, "not all pods have ended in time");
        }
    }

    async fn end(&self, pod: &Pod, most: i64) {
        let grace = pod.spec().termination_grace_period_seconds.map_or(most, |own| own.min(most));
        let imposed = Override {
            reason: "Terminated".into(),
            message: MESSAGE.into(),
            disruption: Some("TerminationByKubelet".into()),
        };
        if let Some(end) = self.pods.evict(pod.uid(), imposed, Some(grace)).await {
            end.come().await;
        }
    }

    fn set(&self, shutting_down: bool) {
        self.signals.send_if_modified(|s| std::mem::replace(&mut s.shutting_down, shutting_down) != shutting_down);
    }
}
