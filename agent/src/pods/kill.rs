//! Stopping containers and sandboxes.
//!
//! One budget of grace per container: the preStop hook and the wait for other containers come out of it; what is left,
//! but never less than two seconds, goes to the runtime. All containers of a pod stop at once, except that sidecars
//! wait for the regular ones and then stop in reverse order.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use proto::api::core::v1::{Container, Pod};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cri::CriError;
use crate::events::EventType;
use crate::metrics;
use crate::pleg::observed::{ContainerRecord, Observed, RunState};
use crate::pod::grace::{MINIMUM_STOP_SECONDS, container_grace};
use crate::pod::spec::{ContainerKind, PodExt, find_container, is_sidecar};
use crate::pod::step::{Kill, KillReason};

use super::{Shared, hooks};

/// Stops one container while its pod goes on.
pub async fn kill_one(shared: &Shared, pod: &Pod, kill: &Kill, ip: &str) -> Result<(), CriError> {
    let container = find_container(pod.spec(), &kill.name).map(|(_, c)| c.into_owned());
    let grace = container.as_ref().map_or(MINIMUM_STOP_SECONDS, |c| container_grace(pod, c, kill.reason));
    shared.recorder.container(pod, &kill.name, EventType::Normal, "Killing", kill.message.clone());
    stop(shared, pod, container.as_ref(), &kill.container_id, ip, grace, None).await
}

/// Stops every container that may run, then every sandbox. `grace` replaces each container's own.
///
/// # Errors
/// The first failure; all others were tried.
pub async fn kill_pod(
    shared: &Shared,
    pod: &Pod,
    observed: &Observed,
    grace: Option<i64>,
    stopped_sandboxes: &mut std::collections::HashSet<String>,
) -> Result<(), CriError> {
    let ip = observed.ips().first().map_or("", String::as_str);
    // Stage 0: regular containers stop; stage n: the n-th sidecar from the end has its turn.
    let (stage, _) = watch::channel(0_usize);
    let stage = Arc::new(stage);
    let running: Vec<&ContainerRecord> = observed.running().collect();
    let mut sidecars: Vec<(usize, &ContainerRecord)> = Vec::new();
    let mut others: Vec<&ContainerRecord> = Vec::new();
    for record in running {
        match pod.spec().init_containers.iter().position(|c| c.name == record.name && is_sidecar(c)) {
            Some(at) => sidecars.push((at, record)),
            None => others.push(record),
        }
    }
    sidecars.sort_by_key(|(at, _)| std::cmp::Reverse(*at));

    let regular = async {
        let stops = others.iter().map(|record| kill_record(shared, pod, record, ip, grace, None));
        let results = join_all(stops).await;
        let _ = stage.send(1);
        results
    };
    let in_turn = join_all(sidecars.iter().enumerate().map(|(turn, (_, record))| {
        let stage = stage.clone();
        async move {
            let result = kill_record(shared, pod, record, ip, grace, Some((stage.subscribe(), turn + 1))).await;
            stage.send_modify(|s| *s = (*s).max(turn + 2));
            result
        }
    }));
    let (first, second) = tokio::join!(regular, in_turn);
    for result in first.into_iter().chain(second) {
        result?;
    }
    for sandbox in &observed.sandboxes {
        if stopped_sandboxes.contains(&sandbox.id) {
            continue;
        }
        match shared.cri.stop_pod_sandbox(&sandbox.id).await {
            Ok(()) => {}
            Err(e) if e.is_not_found() => {}
            Err(e) => return Err(e),
        }
        stopped_sandboxes.insert(sandbox.id.clone());
    }
    Ok(())
}

type Turn = (watch::Receiver<usize>, usize);

async fn kill_record(
    shared: &Shared,
    pod: &Pod,
    record: &ContainerRecord,
    ip: &str,
    grace: Option<i64>,
    turn: Option<Turn>,
) -> Result<(), CriError> {
    let found = find_container(pod.spec(), &record.name);
    let container = match &found {
        Some((kind, c)) if *kind != ContainerKind::Ephemeral => Some(c.as_ref()),
        _ => None,
    };
    let own = match container {
        Some(c) => container_grace(pod, c, KillReason::PodKilled),
        // A container without a spec: what its annotations remember.
        None => record.pod_termination_grace.or(pod.spec().termination_grace_period_seconds).unwrap_or(30),
    };
    if record.state == RunState::Running {
        let message = format!("Stopping container {}", record.name);
        shared.recorder.container(pod, &record.name, EventType::Normal, "Killing", message);
    }
    stop(shared, pod, container, &record.id, ip, grace.unwrap_or(own), turn).await
}

async fn stop(
    shared: &Shared,
    pod: &Pod,
    container: Option<&Container>,
    id: &str,
    ip: &str,
    grace: i64,
    turn: Option<Turn>,
) -> Result<(), CriError> {
    let mut left = grace;
    let hook = container.and_then(|c| Some((c, c.lifecycle.as_ref()?.pre_stop.as_ref()?)));
    if let Some((container, hook)) = hook.filter(|_| left > 0) {
        let begun = Instant::now();
        let limit = Duration::from_secs(left.unsigned_abs());
        match tokio::time::timeout(limit, hooks::run(shared, pod, container, id, ip, hook)).await {
            Ok(Ok(())) => {}
            Ok(Err(why)) => {
                tracing::debug!(pod = pod.name(), container = container.name, why, "preStop hook failed");
                let kind = EventType::Warning;
                shared.recorder.container(pod, &container.name, kind, "FailedPreStopHook", "PreStopHook failed");
            }
            Err(_) => {
                if hook.sleep.is_some() {
                    metrics::SLEEP_CUT_SHORT.inc(&[]);
                }
                tracing::debug!(pod = pod.name(), container = container.name, "preStop hook used up the grace");
            }
        }
        left -= whole_seconds(begun.elapsed());
    }
    if let Some((mut stage, turn)) = turn {
        let begun = Instant::now();
        let limit = Duration::from_secs(left.max(0).unsigned_abs());
        // Out of time is out of turn.
        let _ = tokio::time::timeout(limit, stage.wait_for(|s| *s >= turn)).await;
        left -= whole_seconds(begun.elapsed());
    }
    shared.cri.stop_container(id, left.max(MINIMUM_STOP_SECONDS)).await
}

fn whole_seconds(d: Duration) -> i64 {
    i64::try_from(d.as_secs()).unwrap_or(i64::MAX)
}
