//! `node-agent pods`: the pods of this node as the agent knows them now.

use std::io::Write as _;

use proto::api::core::v1::{ContainerStatus, Pod};
use serde_json::{Value, json};

use crate::wire_json::to_value;

use super::client::{Agent, AskError};
use super::{Common, Output, table};

/// Fields that the table shows; nothing else is sent.
pub const MASK: &str = "metadata.name,metadata.namespace,metadata.creationTimestamp,metadata.deletionTimestamp,spec.containers,spec.initContainers,status";

pub async fn run(common: &Common) -> Result<(), AskError> {
    let agent = Agent::connect(&common.root_dir).await?;
    let mut out = std::io::stdout().lock();
    match common.output {
        Output::Json => {
            let pods = agent.pods(None).await?;
            writeln!(out, "{}", list(&pods))?;
        }
        Output::Text => {
            let pods = agent.pods(Some(MASK)).await?;
            if pods.is_empty() {
                writeln!(out, "No pods on this node.")?;
            } else {
                write!(out, "{}", rows(&pods, crate::clock::unix_nanos() / 1_000_000_000))?;
            }
        }
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
    let all = pod.spec.as_ref().map_or(0, |s| s.containers.len());
    let ready = status.container_statuses.iter().filter(|c| c.ready).count();
    let restarts: i32 = status.container_statuses.iter().map(|c| c.restart_count).sum();
    let begun = meta.creation_timestamp.or(status.start_time).map_or(now, |t| t.seconds);
    let ip = if status.pod_ip.is_empty() { "<none>".to_owned() } else { status.pod_ip.clone() };
    vec![
        meta.namespace.clone(),
        meta.name.clone(),
        format!("{ready}/{all}"),
        word(pod),
        restarts.to_string(),
        table::age(now - begun),
        ip,
    ]
}

/// One word for the state, as kubectl chooses it.
pub fn word(pod: &Pod) -> String {
    let status = pod.status.clone().unwrap_or_default();
    if pod.metadata.as_ref().is_some_and(|m| m.deletion_timestamp.is_some()) {
        return "Terminating".into();
    }
    if !status.reason.is_empty() {
        return status.reason;
    }
    let done = |c: &ContainerStatus| {
        c.state.as_ref().and_then(|s| s.terminated.as_ref()).is_some_and(|t| t.exit_code == 0)
            || c.started == Some(true)
    };
    let reason = |c: &ContainerStatus| {
        let state = c.state.clone().unwrap_or_default();
        let waiting = state.waiting.map(|w| w.reason).filter(|r| !r.is_empty());
        waiting.or_else(|| state.terminated.map(|t| if t.reason.is_empty() { "Error".into() } else { t.reason }))
    };
    if let Some(init) = status.init_container_statuses.iter().find(|c| !done(c)) {
        return format!("Init:{}", reason(init).unwrap_or_else(|| "Running".into()));
    }
    let unwell = status.container_statuses.iter().rev().find_map(reason);
    unwell.unwrap_or(if status.phase.is_empty() { "Pending".into() } else { status.phase })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_one_word_and_a_reason_wins_over_the_phase() {
        let pod = |status: Value| -> Pod {
            let tree = json!({"metadata": {"name": "a", "namespace": "n"}, "spec": {"containers": [{"name": "c"}]}, "status": status});
            crate::wire_json::from_value("k8s.io.api.core.v1.Pod", &tree).unwrap()
        };
        let waiting = json!([{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 7, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]);
        let crashing = pod(json!({"phase": "Running", "containerStatuses": waiting}));
        assert_eq!(word(&crashing), "CrashLoopBackOff");
        assert_eq!(word(&pod(json!({"phase": "Failed", "reason": "Evicted"}))), "Evicted");
        assert_eq!(word(&pod(json!({"initContainerStatuses": waiting}))), "Init:CrashLoopBackOff");
        assert!(rows(&[crashing], 0).contains("n           a      0/1     CrashLoopBackOff   7"));
    }
}
