//! Stopping containers and sandboxes.
//!
//! One budget of grace per container: the preStop hook and the wait for other containers come out of it; what is left,
//! but never less than two seconds, goes to the runtime. All containers of a pod stop at once, except that sidecars
//! wait for the regular ones and then stop in reverse order. A hook that takes all of the grace is not waited for any
//! longer, and goes on until its container has stopped. A container whose start is under way is stopped like any other
//! once it has started; that comes out of its own grace, and the others do not wait for it.
//!
//! Followed: kuberuntime `killContainer` and its termination order.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use proto::api::core::v1::{Container, Lifecycle, Pod};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cri::CriError;
use crate::env::go_quote;
use crate::events::EventType;
use crate::pleg::observed::{ContainerRecord, Observed, RunState};
use crate::pod::grace::{MINIMUM_STOP_SECONDS, container_grace};
use crate::pod::spec::{ContainerKind, PodExt, find_container, is_sidecar};
use crate::pod::step::{Kill, KillReason};
use crate::{metrics, spans};

use super::starts::Starts;
use super::{Shared, hooks};

/// What came of a hook that was not waited for is still told when it comes this soon after its container has stopped.
const AFTERMATH: Duration = Duration::from_secs(2);

/// Stops one container while its pod goes on.
pub async fn kill_one(shared: &Arc<Shared>, pod: &Pod, kill: &Kill, ip: &str) -> Result<(), CriError> {
    let container = find_container(pod.spec(), &kill.name).map(|(_, c)| c.into_owned());
    let grace = container.as_ref().map_or(MINIMUM_STOP_SECONDS, |c| container_grace(pod, c, kill.reason));
    shared.recorder.container(pod, &kill.name, EventType::Normal, "Killing", kill.message.clone());
    stop(shared, pod, container.as_ref(), &kill.container_id, ip, grace, None).await
}

/// What of a pod could not be stopped, in the words of the kubelet's events.
#[derive(Debug, PartialEq, Eq)]
pub struct KillError(Vec<String>);

impl KillError {
    fn container(name: &str, error: &CriError) -> String {
        format!("failed to \"KillContainer\" for {name:?} with KillContainerError: {}", go_quote(&error.to_string()))
    }

    fn sandbox(pod: &Pod, error: &CriError) -> String {
        let error = go_quote(&error.to_string());
        format!("failed to \"KillPodSandbox\" for {:?} with KillPodSandboxError: {error}", pod.uid())
    }

    /// What a stop was cut short at: these containers, and the sandbox after them.
    pub fn cut_short(pod: &Pod, stopping: &Stopping) -> Self {
        let error = CriError { code: tonic::Code::Cancelled, message: "context canceled".into() };
        let mut parts: Vec<String> = stopping.names().iter().map(|name| Self::container(name, &error)).collect();
        parts.push(Self::sandbox(pod, &error));
        Self(parts)
    }
}

impl std::fmt::Display for KillError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0[..] {
            [one] => f.write_str(one),
            several => write!(f, "[{}]", several.join(", ")),
        }
    }
}

/// The containers that are being stopped, for whoever cuts that short.
#[derive(Default)]
pub struct Stopping {
    names: Mutex<BTreeSet<String>>,
    starts: Starts,
    /// The ids of those whose start was under way before the pod was looked at.
    starting: BTreeSet<String>,
}

impl Stopping {
    /// Beside starts of which `under_way` were so before the pod was looked at.
    pub fn beside(starts: Starts, under_way: BTreeSet<String>) -> Self {
        Self { starts, starting: under_way, ..Self::default() }
    }

    fn names(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was observed; of a container that was made and is being started nobody knows whether it runs.
    pub fn may_run<'a>(&self, observed: &'a Observed) -> Cow<'a, Observed> {
        let mut seen = Cow::Borrowed(observed);
        if !self.starting.is_empty() {
            let made = |c: &&mut ContainerRecord| c.state == RunState::Created && self.starting.contains(&c.id);
            seen.to_mut().containers.iter_mut().filter(made).for_each(|c| c.state = RunState::Unknown);
        }
        seen
    }

    /// Lets a start of the container come to its end within `grace` seconds. What is left of them, a second at least as
    /// for any try that comes late, and whether there was a start.
    async fn let_start(&self, id: &str, grace: i64) -> (i64, bool) {
        if !self.starting.contains(id) {
            return (grace, false);
        }
        let begun = Instant::now();
        let most = Duration::from_secs(grace.max(0).unsigned_abs());
        if tokio::time::timeout(most, self.starts.over(id)).await.is_err() {
            tracing::debug!(container = id, "a start takes longer than the grace of the container that is to stop");
        }
        ((grace - whole_seconds(begun.elapsed())).max(grace.min(1)), true)
    }
}

/// Stops every container that may run, then every sandbox, which ends what could not be stopped. `grace` replaces each
/// container's own.
///
/// # Errors
/// All that failed.
pub async fn kill_pod(
    shared: &Arc<Shared>,
    pod: &Pod,
    observed: &Observed,
    grace: Option<i64>,
    (stopped_sandboxes, stopping): (&mut HashSet<String>, &Stopping),
) -> Result<(), KillError> {
    let observed = &*stopping.may_run(observed);
    let ip = observed.ips().first().map_or("", String::as_str);
    let mut failed = stop_containers(pod, observed, grace, stopping, |record, (grace, starts), turn| {
        kill_record(shared, pod, record, ip, (grace, starts), turn)
    })
    .await;
    let stop = |id: String| async move { shared.cri.stop_pod_sandbox(&id).await };
    failed.extend(stop_sandboxes(pod, observed, stopped_sandboxes, stop).await);
    if failed.is_empty() { Ok(()) } else { Err(KillError(failed)) }
}

/// Stops every container that may run by `kill`, which is given the grace and whether the container was just being
/// started. Returns what failed.
async fn stop_containers<'a, Killed: Future<Output = Result<(), CriError>>>(
    pod: &Pod,
    observed: &'a Observed,
    grace: Option<i64>,
    stopping: &Stopping,
    kill: impl Fn(&'a ContainerRecord, (i64, bool), Option<Turn>) -> Killed,
) -> Vec<String> {
    stopping.names().extend(observed.running().map(|record| record.name.clone()));
    let Order { at_once, in_turn } = order(pod, observed);
    let (turns, kill) = (&Turns::new(&at_once, pod, &stopping.starting), &kill);
    let stop = |record: &'a ContainerRecord, turn| async move {
        let grace = grace.unwrap_or_else(|| own_grace(pod, record));
        let killed = kill(record, stopping.let_start(&record.id, grace).await, turn).await;
        killed.map_err(|error| KillError::container(&record.name, &error)).map(|()| {
            stopping.names().remove(&record.name);
        })
    };
    let stop = &stop;
    let at_once = join_all(
        at_once.iter().map(|&record| async move { stop(record, None).await.map(|()| turns.ended(&record.name)) }),
    );
    let in_turn = join_all(in_turn.iter().enumerate().map(|(turn, &record)| async move {
        stop(record, Some(turns.of(turn))).await.map(|()| turns.sidecar_ended(turn))
    }));
    let (first, second) = tokio::join!(at_once, in_turn);
    first.into_iter().chain(second).filter_map(Result::err).collect()
}

/// Stops every sandbox by `stop`, but for those that are `stopped`. Of those that could not be stopped the last is told of.
async fn stop_sandboxes<Stopped: Future<Output = Result<(), CriError>>>(
    pod: &Pod,
    observed: &Observed,
    stopped: &mut HashSet<String>,
    stop: impl Fn(String) -> Stopped,
) -> Option<String> {
    let mut failed = None;
    for sandbox in &observed.sandboxes {
        if stopped.contains(&sandbox.id) {
            continue;
        }
        match stop(sandbox.id.clone()).await {
            Err(error) if !error.is_not_found() => failed = Some(KillError::sandbox(pod, &error)),
            _ => {
                stopped.insert(sandbox.id.clone());
            }
        }
    }
    failed
}

/// What stops at once, and the sidecars in the order in which they stop.
pub(crate) struct Order<'a> {
    pub at_once: Vec<&'a ContainerRecord>,
    pub in_turn: Vec<&'a ContainerRecord>,
}

pub(crate) fn order<'a>(pod: &Pod, observed: &'a Observed) -> Order<'a> {
    let place = |r: &ContainerRecord| pod.spec().init_containers.iter().position(|c| c.name == r.name && is_sidecar(c));
    let (mut in_turn, at_once): (Vec<_>, Vec<_>) = observed.running().partition(|record| place(record).is_some());
    in_turn.sort_by_key(|record| std::cmp::Reverse(place(record)));
    Order { at_once, in_turn }
}

/// Whose turn it is: sidecars wait for the regular containers, which are counted down, and for the sidecars after them.
/// Ephemeral containers and those that initialise keep nobody waiting, nor do those that are only being started: a start
/// may hang, and nobody knows whether they will ever need a sidecar.
struct Turns {
    waited_for: Vec<String>,
    /// Regular containers that have not ended, and sidecars that have.
    now: watch::Sender<(usize, usize)>,
}

type Turn = (watch::Receiver<(usize, usize)>, usize);

impl Turns {
    fn new(at_once: &[&ContainerRecord], pod: &Pod, starting: &BTreeSet<String>) -> Self {
        let is_regular = |r: &ContainerRecord| pod.spec().containers.iter().any(|c| c.name == r.name);
        let may_never_run = |r: &ContainerRecord| r.state == RunState::Unknown && starting.contains(&r.id);
        let waited_for = at_once.iter().filter(|r| is_regular(r) && !may_never_run(r));
        let waited_for: Vec<String> = waited_for.map(|r| r.name.clone()).collect();
        let now = watch::Sender::new((waited_for.len(), 0));
        Self { waited_for, now }
    }

    /// The turn of the sidecar that stops as the `turn`-th, the first being zero.
    fn of(&self, turn: usize) -> Turn {
        (self.now.subscribe(), turn)
    }

    fn ended(&self, name: &str) {
        if self.waited_for.iter().any(|n| n == name) {
            self.now.send_modify(|(regular, _)| *regular = regular.saturating_sub(1));
        }
    }

    fn sidecar_ended(&self, turn: usize) {
        self.now.send_modify(|(_, sidecars)| *sidecars = (*sidecars).max(turn + 1));
    }
}

/// What `record` has of its own to stop in, in seconds.
fn own_grace(pod: &Pod, record: &ContainerRecord) -> i64 {
    match find_container(pod.spec(), &record.name) {
        Some((kind, c)) if kind != ContainerKind::Ephemeral => container_grace(pod, &c, KillReason::PodKilled),
        // A container without a spec: what its annotations remember.
        _ => record.pod_termination_grace.or(pod.spec().termination_grace_period_seconds).unwrap_or(30),
    }
}

/// What is left of the spec of a container whose pod no source knows: the runtime remembers its preStop hook and its ports.
fn remembered(record: &ContainerRecord) -> Option<Container> {
    let hook: serde_json::Value = serde_json::from_str(record.pre_stop.as_ref()?).ok()?;
    let hook = crate::wire_json::from_value("k8s.io.api.core.v1.LifecycleHandler", &hook).ok()?;
    let ports: serde_json::Value = serde_json::from_str(record.ports.as_deref().unwrap_or("[]")).ok()?;
    let port = |port| crate::wire_json::from_value("k8s.io.api.core.v1.ContainerPort", port).ok();
    Some(Container {
        name: record.name.clone(),
        ports: ports.as_array()?.iter().filter_map(port).collect(),
        lifecycle: Some(Lifecycle { pre_stop: Some(hook), ..Default::default() }),
        ..Default::default()
    })
}

async fn kill_record(
    shared: &Arc<Shared>,
    pod: &Pod,
    record: &ContainerRecord,
    ip: &str,
    (grace, was_starting): (i64, bool),
    turn: Option<Turn>,
) -> Result<(), CriError> {
    let mut state = record.state;
    if was_starting && let Ok(now) = shared.cri.container_status(&record.id).await {
        state = RunState::from_cri(now.state);
        if matches!(state, RunState::Created | RunState::Exited) {
            // The start failed, or hangs: nothing runs that could be told to end.
            return Ok(());
        }
    }
    let found = find_container(pod.spec(), &record.name);
    let remembered = if found.is_none() { remembered(record) } else { None };
    let container = found.as_ref().filter(|(kind, _)| *kind != ContainerKind::Ephemeral).map(|(_, c)| c.as_ref());
    let container = container.or(remembered.as_ref());
    if state == RunState::Running {
        let message = format!("Stopping container {}", record.name);
        shared.recorder.container(pod, &record.name, EventType::Normal, "Killing", message);
    }
    stop(shared, pod, container, &record.id, ip, grace, turn).await
}

async fn stop(
    shared: &Arc<Shared>,
    pod: &Pod,
    container: Option<&Container>,
    id: &str,
    ip: &str,
    grace: i64,
    turn: Option<Turn>,
) -> Result<(), CriError> {
    let mut left = grace;
    let mut hook = None;
    if let Some(container) =
        container.filter(|c| left > 0 && c.lifecycle.as_ref().is_some_and(|l| l.pre_stop.is_some()))
    {
        let begun = Instant::now();
        let mut running = pre_stop(shared, pod, container, id, ip);
        let limit = Duration::from_secs(left.unsigned_abs());
        if tokio::time::timeout(limit, running.join_next()).await.is_err() {
            tracing::debug!(pod = pod.name(), container = container.name, "preStop hook not completed in grace period");
            hook = given_up(container).then_some(running);
        }
        left -= whole_seconds(begun.elapsed());
    }
    if let Some((mut now, turn)) = turn {
        let begun = Instant::now();
        let limit = Duration::from_secs(left.max(0).unsigned_abs());
        // Out of time is out of turn.
        let _ = tokio::time::timeout(limit, now.wait_for(|now| is_turn(*now, turn))).await;
        left -= whole_seconds(begun.elapsed());
    }
    let stopped = shared.cri.stop_container(id, left.max(MINIMUM_STOP_SECONDS)).await;
    if let Some(mut hook) = hook {
        tokio::spawn(async move { tokio::time::timeout(AFTERMATH, hook.join_next()).await.map(drop) });
    }
    stopped
}

fn is_turn((regular, sidecars): (usize, usize), turn: usize) -> bool {
    regular == 0 && sidecars >= turn
}

/// Runs the preStop hook beside whoever waits for it; it ends with the set that holds it.
fn pre_stop(shared: &Arc<Shared>, pod: &Pod, container: &Container, id: &str, ip: &str) -> JoinSet<()> {
    let (shared, pod, container) = (shared.clone(), pod.clone(), container.clone());
    let (id, ip) = (id.to_owned(), ip.to_owned());
    let mut running = JoinSet::new();
    running.spawn(spans::inherit(async move {
        let Some(hook) = container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref()) else { return };
        let Err(why) = hooks::run(&shared, &pod, &container, &id, &ip, hook).await else { return };
        tracing::debug!(pod = pod.name(), container = container.name, why, "preStop hook failed");
        let kind = EventType::Warning;
        shared.recorder.container(&pod, &container.name, kind, "FailedPreStopHook", "PreStopHook failed");
    }));
    running
}

/// Whether something of a hook goes on that is out of time. A pause is over.
fn given_up(container: &Container) -> bool {
    let sleeps = container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref()).is_some_and(|h| h.sleep.is_some());
    if sleeps {
        metrics::SLEEP_CUT_SHORT.inc(&[]);
    }
    !sleeps
}

fn whole_seconds(d: Duration) -> i64 {
    i64::try_from(d.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pleg::observed::Sandbox;
    use proto::api::core::v1::{EphemeralContainer, EphemeralContainerCommon, PodSpec};

    fn container(name: &str, policy: Option<&str>) -> Container {
        Container { name: name.into(), restart_policy: policy.map(Into::into), ..Default::default() }
    }

    fn pod() -> Pod {
        let common = EphemeralContainerCommon { name: "debug".into(), ..Default::default() };
        let spec = PodSpec {
            init_containers: vec![
                container("first", Some("Always")),
                container("init", None),
                container("second", Some("Always")),
            ],
            containers: vec![container("a", None), container("b", None)],
            ephemeral_containers: vec![EphemeralContainer {
                ephemeral_container_common: Some(common),
                ..Default::default()
            }],
            ..Default::default()
        };
        Pod { spec: Some(spec), ..Default::default() }
    }

    fn running(names: &[&str]) -> Observed {
        let record = |name: &&str| ContainerRecord {
            id: (*name).into(),
            name: (*name).into(),
            state: RunState::Running,
            ..Default::default()
        };
        Observed { sandboxes: vec![], containers: names.iter().map(record).collect() }
    }

    #[test]
    fn sidecars_stop_in_reverse_order_after_the_regular_containers() {
        let (pod, observed) = (pod(), running(&["first", "debug", "b", "second", "a"]));
        let Order { at_once, in_turn } = order(&pod, &observed);
        let names = |records: &[&ContainerRecord]| records.iter().map(|r| r.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&at_once), ["debug", "b", "a"]);
        assert_eq!(names(&in_turn), ["second", "first"]);
        let turns = Turns::new(&at_once, &pod, &BTreeSet::new());
        let may = |turn| is_turn(*turns.now.borrow(), turn);
        turns.ended("debug");
        turns.ended("a");
        assert!(!may(0), "one still runs");
        turns.ended("b");
        assert!(may(0) && !may(1));
        turns.sidecar_ended(0);
        assert!(may(1));
    }

    #[test]
    fn what_could_not_be_stopped_is_told_as_the_kubelet_tells_it() {
        let mut pod = pod();
        pod.metadata.get_or_insert_default().uid = "u1".into();
        let canceled = r#"with KillContainerError: "rpc error: code = Canceled desc = context canceled""#;
        let sandbox = format!(r#"failed to "KillPodSandbox" for "u1" {}"#, canceled.replace("Container", "PodSandbox"));
        let stopping = Stopping::default();
        assert_eq!(KillError::cut_short(&pod, &stopping).to_string(), sandbox);
        stopping.names().insert("a".into());
        let both = format!(r#"[failed to "KillContainer" for "a" {canceled}, {sandbox}]"#);
        assert_eq!(KillError::cut_short(&pod, &stopping).to_string(), both);
    }

    /// Pods that were deleted while no agent was there used to end without their hooks.
    #[test]
    fn the_hook_of_a_container_without_a_spec_is_what_the_runtime_remembers() {
        let record = ContainerRecord {
            name: "a".into(),
            pre_stop: Some(r#"{"httpGet":{"path":"/bye","port":"web","scheme":"HTTP"}}"#.into()),
            ports: Some(r#"[{"name":"web","containerPort":8080,"protocol":"TCP"}]"#.into()),
            ..Default::default()
        };
        let container = remembered(&record).unwrap();
        let hook = container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref()?.http_get.as_ref()).unwrap();
        assert_eq!((hook.path.as_str(), container.ports[0].container_port), ("/bye", 8080));
        for hook in [None, Some("{".into())] {
            assert!(remembered(&ContainerRecord { pre_stop: hook, ..record.clone() }).is_none());
        }
    }

    /// A start that hung used to be waited for by the whole pod, and the others were left a second.
    #[tokio::test(start_paused = true)]
    async fn a_start_that_hangs_takes_nobody_elses_grace() {
        let (pod, mut observed) = (pod(), running(&["a", "b"]));
        observed.containers[1].state = RunState::Created;
        for (takes, b_begins) in [(4, 4), (100, 20)] {
            let starts = Starts::default();
            let start = starts.begin("b");
            let stopping = Stopping::beside(starts.clone(), starts.under_way());
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(takes)).await;
                drop(start);
            });
            let (begun, told) = (Instant::now(), Mutex::new(Vec::new()));
            let seen = stopping.may_run(&observed);
            let kill = |record: &ContainerRecord, given, _| {
                told.lock().unwrap().push((record.name.clone(), begun.elapsed().as_secs(), given));
                std::future::ready(Ok(()))
            };
            assert!(stop_containers(&pod, &seen, Some(20), &stopping, kill).await.is_empty());
            let left = (20 - i64::try_from(b_begins).unwrap()).max(1);
            let wanted = [("a".to_owned(), 0, (20, false)), ("b".to_owned(), b_begins, (left, true))];
            assert_eq!(*told.lock().unwrap(), wanted);
            assert!(stopping.names().is_empty());
        }
    }

    /// A sidecar used to sit out its grace beside a container that never came to run.
    #[test]
    fn sidecars_do_not_wait_for_what_is_only_being_started() {
        let (pod, mut observed) = (pod(), running(&["a", "b", "first"]));
        observed.containers[1].state = RunState::Created;
        let starts = Starts::default();
        let _start = starts.begin("b");
        let stopping = Stopping::beside(starts.clone(), starts.under_way());
        let seen = stopping.may_run(&observed);
        let turns = Turns::new(&order(&pod, &seen).at_once, &pod, &stopping.starting);
        turns.ended("a");
        assert!(is_turn(*turns.now.borrow(), 0));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_made_and_not_being_started_has_nothing_to_stop() {
        let (pod, mut observed) = (pod(), running(&["a", "b"]));
        observed.containers[1].state = RunState::Created;
        let starts = Starts::default();
        drop(starts.begin("b"));
        assert!(starts.under_way().is_empty());
        let stopping = Stopping::beside(starts.clone(), starts.under_way());
        let told = Mutex::new(Vec::new());
        let kill = |record: &ContainerRecord, _, _| {
            told.lock().unwrap().push(record.name.clone());
            std::future::ready(Ok(()))
        };
        stop_containers(&pod, &stopping.may_run(&observed), None, &stopping, kill).await;
        assert_eq!(*told.lock().unwrap(), ["a"]);
    }

    /// What came after a sandbox that could not be stopped used to be left.
    #[tokio::test]
    async fn a_sandbox_that_cannot_be_stopped_keeps_no_other() {
        let mut observed = running(&[]);
        for id in ["stopped", "stuck", "gone", "good"] {
            observed.sandboxes.push(Sandbox { id: id.into(), ..Default::default() });
        }
        let mut stopped = HashSet::from(["stopped".to_owned()]);
        let fails = || CriError::internal("no".into());
        let asked = Mutex::new(Vec::new());
        let stop = |id: String| {
            asked.lock().unwrap().push(id.clone());
            std::future::ready(match id.as_str() {
                "stuck" => Err(fails()),
                "gone" => Err(CriError::not_found("no such sandbox".into())),
                _ => Ok(()),
            })
        };
        let failed = stop_sandboxes(&pod(), &observed, &mut stopped, stop).await;
        assert_eq!(failed, Some(KillError::sandbox(&pod(), &fails())));
        assert_eq!(*asked.lock().unwrap(), ["stuck", "gone", "good"]);
        assert_eq!(stopped, HashSet::from(["stopped", "gone", "good"].map(str::to_owned)));
    }

    /// With nothing else running nobody is left to tell that the regular containers have ended.
    #[tokio::test]
    async fn the_last_sidecar_has_its_turn_at_once_where_no_regular_container_runs() {
        for others in [vec!["first", "second"], vec!["first", "second", "debug", "init"]] {
            let (pod, observed) = (pod(), running(&others));
            let turns = Turns::new(&order(&pod, &observed).at_once, &pod, &BTreeSet::new());
            let (mut now, turn) = turns.of(0);
            let waited = tokio::time::timeout(Duration::from_millis(10), now.wait_for(|now| is_turn(*now, turn))).await;
            assert!(waited.is_ok(), "{others:?}");
            assert!(!is_turn(*turns.now.borrow(), 1));
        }
    }
}
