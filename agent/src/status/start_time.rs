//! How long a pod took to start: the pod start SLI and its relatives.
//!
//! The SLI leaves out what is not the node's doing: pulling images and running init containers. Pulls tell of
//! themselves by pod ([`pulling`]); init containers are read from the status.

use std::collections::BTreeMap;
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use proto::api::core::v1::{Pod, PodStatus};
use proto::apimachinery::pkg::apis::meta::v1::Time;
use tokio::time::Instant;

use crate::metrics;
use crate::pod::spec::PodExt;

/// Pods with pulls behind them that have not run yet; more than a node has pods.
const MAX_PULLED: usize = 4096;

static FIRST_WITH_NETWORK: Once = Once::new();

static PULLED: Mutex<BTreeMap<String, Duration>> = Mutex::new(BTreeMap::new());

/// Adds up, until it is dropped, what a pod waits for an image.
pub struct Pulling {
    uid: String,
    since: Instant,
}

pub fn pulling(uid: &str) -> Pulling {
    Pulling { uid: uid.to_owned(), since: Instant::now() }
}

impl Drop for Pulling {
    fn drop(&mut self) {
        let mut pulled = PULLED.lock().unwrap_or_else(PoisonError::into_inner);
        if pulled.len() < MAX_PULLED || pulled.contains_key(&self.uid) {
            *pulled.entry(std::mem::take(&mut self.uid)).or_default() += self.since.elapsed();
        }
    }
}

/// A pod runs for the first time. `known` is how long this agent knows of it.
pub(super) fn observe(pod: &Pod, status: &PodStatus, known: Duration) {
    metrics::POD_START_SECONDS.observe(&[], known.as_secs_f64());
    let pulled = PULLED.lock().unwrap_or_else(PoisonError::into_inner).remove(pod.uid()).unwrap_or_default();
    // Of a static pod nobody knows when it was wished for.
    let is_static = pod.meta().annotations.contains_key("kubernetes.io/config.mirror");
    let Some(created) = pod.meta().creation_timestamp.as_ref().filter(|_| !is_static) else { return };
    let now = proto::time::Timestamp::now();
    let now = Time { seconds: now.seconds, nanos: i32::try_from(now.nanos).unwrap_or(0) };
    let total = seconds_between(created, &now);
    metrics::POD_START_TOTAL.observe(&[], total);
    let prepared: f64 = status
        .init_container_statuses
        .iter()
        .filter_map(|c| c.state.as_ref()?.terminated.as_ref())
        .filter_map(|t| Some(seconds_between(t.started_at.as_ref()?, t.finished_at.as_ref()?)))
        .sum();
    let own = (total - pulled.as_secs_f64() - prepared).max(0.0);
    metrics::POD_START_SLI.observe(&[], own);
    if !pod.spec().host_network {
        FIRST_WITH_NETWORK.call_once(|| metrics::FIRST_NETWORK_POD.set(&[], own));
    }
}

fn seconds_between(from: &Time, to: &Time) -> f64 {
    let seconds = u32::try_from(to.seconds.saturating_sub(from.seconds)).map_or(0.0, f64::from);
    (seconds + (f64::from(to.nanos) - f64::from(from.nanos)) / 1e9).max(0.0)
}
