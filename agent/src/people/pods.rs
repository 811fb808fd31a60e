//! `node-agent pods`: the pods of this node as the agent knows them now.

use std::io::Write as _;

use proto::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use serde_json::{Value, json};

use crate::pod::spec::is_sidecar;
use crate::wire_json::to_value;

use super::client::{Agent, AskError, Known};
use super::{Common, Output, table};

/// Fields that the table shows; nothing else is sent.
pub const MASK: &str = "metadata.name,metadata.namespace,metadata.creationTimestamp,metadata.deletionTimestamp,spec.containers,spec.initContainers,status";

/// Told where not every source of pods has been heard.
pub const RECALLED: &str = "The API server or another source of pods has not answered since the agent started: its pods are \
                            shown as the runtime remembers them, and READY counts what runs.";

pub async fn run(common: &Common) -> Result<(), AskError> {
    let agent = Agent::connect(&common.root_dir).await?;
    let mask = (common.output == Output::Text).then_some(MASK);
    let (pods, known) = agent.pods_or_recalled(mask).await?;
    let mut out = std::io::stdout().lock();
    match common.output {
        Output::Json => writeln!(out, "{}", list(&pods))?,
        Output::Text if pods.is_empty() => writeln!(out, "No pods on this node.")?,
        Output::Text => write!(out, "{}", rows(&pods, crate::clock::unix_nanos() / 1_000_000_000))?,
    }
    if known == Known::Recalled {
        eprintln!("{RECALLED}");
    }
    Ok(())
}

/// A PodList.
pub fn list(pods: &[Pod]) -> Value {
    let items: Vec<Value> = pods.iter().map(|p| to_value("k8s.io.api.core.v1.Pod", p)).collect();
    json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items})
}

/// The table of pods; `now` in seconds.
pub fn rows(pods: &[Pod], now: i64) -> String {
    let rows: Vec<Vec<String>> = pods.iter().map(|p| row(p, now)).collect();
    table::render(&["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP"], &rows)
}

fn row(pod: &Pod, now: i64) -> Vec<String> {
    let (meta, status) = (pod.metadata.clone().unwrap_or_default(), pod.status.clone().unwrap_or_default());
    let shown = Shown::of(pod);
    // A static pod was never created by anybody.
    let created = meta.creation_timestamp.filter(|t| t.seconds > 0);
    let begun = created.or(status.start_time).map_or(now, |t| t.seconds);
    let ip = if status.pod_ip.is_empty() { "<none>".to_owned() } else { status.pod_ip };
    let restarts = match shown.last_restart {
        Some(at) if shown.restarts > 0 => format!("{} ({} ago)", shown.restarts, table::age(now - at)),
        _ => shown.restarts.to_string(),
    };
    let ready = format!("{}/{}", shown.ready, shown.all);
    vec![meta.namespace, meta.name, ready, shown.word, restarts, table::age(now - begun), ip]
}

/// What a row tells of a pod's containers, as kubectl reckons it.
pub struct Shown {
    pub ready: usize,
    pub all: usize,
    /// One word for the state.
    pub word: String,
    restarts: i32,
    /// In seconds.
    last_restart: Option<i64>,
}

impl Shown {
    pub fn of(pod: &Pod) -> Self {
        let (spec, status) = (pod.spec.clone().unwrap_or_default(), pod.status.clone().unwrap_or_default());
        let sidecar = |name: &str| spec.init_containers.iter().any(|c| c.name == name && is_sidecar(c));
        let sidecars = spec.init_containers.iter().filter(|c| is_sidecar(c)).count();
        let phase = if status.phase.is_empty() { "Pending".into() } else { status.phase.clone() };
        let mut shown = Shown {
            ready: 0,
            all: spec.containers.len() + sidecars,
            word: if status.reason.is_empty() { phase } else { status.reason.clone() },
            restarts: 0,
            last_restart: None,
        };
        let mut waits = None;
        for (at, container) in status.init_container_statuses.iter().enumerate() {
            shown.count_restarts(container);
            let started = sidecar(&container.name) && container.started == Some(true);
            if started {
                shown.ready += usize::from(container.ready);
            }
            if !started && terminated(container).is_none_or(|t| t.exit_code != 0) {
                waits = Some(init_word(container, at, spec.init_containers.len()));
                break;
            }
        }
        let is = |kind: &str| status.conditions.iter().any(|c| c.r#type == kind && c.status == "True");
        let initializing = waits.is_some();
        if let Some(word) = waits {
            shown.word = word;
        }
        if !initializing || is("Initialized") {
            (shown.restarts, shown.last_restart) = (0, None);
            for container in status.init_container_statuses.iter().filter(|c| sidecar(&c.name)) {
                shown.count_restarts(container);
            }
            let mut runs = false;
            for container in status.container_statuses.iter().rev() {
                shown.count_restarts(container);
                if let Some(word) = own_word(container) {
                    shown.word = word;
                } else if container.ready && container.state.as_ref().is_some_and(|s| s.running.is_some()) {
                    runs = true;
                    shown.ready += 1;
                }
            }
            if shown.word == "Completed" && runs {
                shown.word = if is("Ready") { "Running" } else { "NotReady" }.into();
            }
        }
        let deleted = pod.metadata.as_ref().is_some_and(|m| m.deletion_timestamp.is_some());
        if deleted && status.reason == "NodeLost" {
            shown.word = "Unknown".into();
        } else if deleted && !matches!(status.phase.as_str(), "Succeeded" | "Failed") {
            shown.word = "Terminating".into();
        }
        shown
    }

    fn count_restarts(&mut self, container: &ContainerStatus) {
        self.restarts = self.restarts.saturating_add(container.restart_count);
        let last = container.last_state.as_ref().and_then(|s| s.terminated.as_ref());
        let ended = last.and_then(|t| t.finished_at.as_ref()).map(|t| t.seconds);
        self.last_restart = self.last_restart.max(ended);
    }
}

fn terminated(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    container.state.as_ref()?.terminated.as_ref()
}

/// Why the pod's other containers do not run yet; `at` of so many init containers.
fn init_word(container: &ContainerStatus, at: usize, all: usize) -> String {
    if let Some(ended) = terminated(container) {
        return format!("Init:{}", end_word(ended));
    }
    let waiting = container.state.as_ref().and_then(|s| s.waiting.as_ref()).map_or("", |w| &w.reason);
    if waiting.is_empty() || waiting == "PodInitializing" {
        format!("Init:{at}/{all}")
    } else {
        format!("Init:{waiting}")
    }
}

/// A container's reason not to run.
fn own_word(container: &ContainerStatus) -> Option<String> {
    let waiting = container.state.as_ref().and_then(|s| s.waiting.as_ref()).map(|w| w.reason.clone());
    waiting.filter(|reason| !reason.is_empty()).or_else(|| terminated(container).map(end_word))
}

fn end_word(ended: &ContainerStateTerminated) -> String {
    match (ended.reason.as_str(), ended.signal) {
        ("", 0) => format!("ExitCode:{}", ended.exit_code),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: Value, status: Value) -> Pod {
        let tree = json!({"metadata": {"name": "a", "namespace": "n"}, "spec": spec, "status": status});
        crate::wire_json::from_value("k8s.io.api.core.v1.Pod", &tree).unwrap()
    }

    fn container(name: &str, ready: bool, restarts: i32, state: Value) -> Value {
        json!({"name": name, "image": "", "imageID": "", "ready": ready, "restartCount": restarts, "started": ready, "state": state})
    }

    fn word(status: Value) -> String {
        let spec = json!({"initContainers": [{"name": "i"}, {"name": "j"}], "containers": [{"name": "c"}]});
        Shown::of(&pod(spec, status)).word
    }

    #[test]
    fn the_state_is_one_word_and_a_reason_wins_over_the_phase() {
        let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
        let ended = |code: i32, signal: i32, reason: &str| json!({"terminated": {"exitCode": code, "signal": signal, "reason": reason}});
        let init =
            |state: Value| json!({"phase": "Pending", "initContainerStatuses": [container("i", false, 0, state)]});
        let running = json!({"running": {}});
        assert_eq!(word(json!({"phase": "Failed", "reason": "Evicted"})), "Evicted");
        assert_eq!(word(init(waiting("CrashLoopBackOff"))), "Init:CrashLoopBackOff");
        assert_eq!(word(init(waiting("PodInitializing"))), "Init:0/2");
        assert_eq!(word(init(running.clone())), "Init:0/2");
        assert_eq!(word(init(ended(1, 0, ""))), "Init:ExitCode:1");
        assert_eq!(word(init(ended(1, 9, ""))), "Init:Signal:9");
        let both = |first: Value, second: Value| json!({"phase": "Running", "containerStatuses": [first, second]});
        let done = container("a", false, 0, ended(0, 0, "Completed"));
        assert_eq!(word(both(done.clone(), container("b", true, 0, running.clone()))), "NotReady");
        assert_eq!(
            word(both(container("a", false, 0, waiting("First")), container("b", false, 0, waiting("Second")))),
            "First"
        );
    }

    #[test]
    fn sidecars_count_among_the_ready_and_the_restarted() {
        let spec = json!({"initContainers": [{"name": "once"}, {"name": "beside", "restartPolicy": "Always"}], "containers": [{"name": "c"}]});
        let last = json!({"terminated": {"exitCode": 1, "finishedAt": "1970-01-01T00:01:00Z"}});
        let mut beside = container("beside", true, 2, json!({"running": {}}));
        beside["lastState"] = last;
        let status = json!({"phase": "Running",
            "initContainerStatuses": [container("once", true, 5, json!({"terminated": {"exitCode": 0}})), beside],
            "containerStatuses": [container("c", true, 1, json!({"running": {}}))]});
        let mut told = pod(spec, status);
        // Nobody created it: it is as old as its start.
        told.metadata.as_mut().unwrap().creation_timestamp = Some(Default::default());
        told.status.as_mut().unwrap().start_time =
            Some(proto::apimachinery::pkg::apis::meta::v1::Time { seconds: 30, nanos: 0 });
        let rows = rows(&[told], 90);
        assert!(rows.contains("n           a      2/2     Running   3 (30s ago)   60s"), "{rows}");
    }
}
