//! A pod's status tells what is true, in an order that controllers can rely on, and never takes back an end.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::pods::{Pods, condition, container};

/// Ranks of phases: a pod never goes to a lower one.
fn rank(status: &Value) -> u8 {
    match status["phase"].as_str() {
        Some("Running") => 1,
        Some("Succeeded" | "Failed") => 2,
        _ => 0,
    }
}

/// What a watcher sees of a pod from its creation to its deletion.
fn seen_by_a_watcher(pods: &Pods) -> Result<Vec<Value>> {
    let mut watch = Command::new("kubectl")
        .arg("--kubeconfig")
        .arg(pods.server.kubeconfig())
        .args([
            "get",
            "--raw",
            "/api/v1/namespaces/default/pods?watch=true&timeoutSeconds=50&fieldSelector=metadata.name%3Dwatched",
        ])
        .stdout(Stdio::piped())
        .spawn()?;
    let init = Pods::shell("sleep 0.5", &json!({"name": "init"}));
    let main = Pods::shell("sleep 2; exit 5", &json!({}));
    let other = Pods::shell("sleep 1", &json!({"name": "other"}));
    pods.create("watched", &json!({"restartPolicy": "Never", "initContainers": [init], "containers": [main, other]}))?;
    pods.wait_phase("watched", "Failed")?;
    pods.server.kubectl(&["delete", "pod", "watched", "--timeout=30s"])?;
    let mut seen = Vec::new();
    for line in BufReader::new(watch.stdout.take().context("its output")?).lines() {
        let mut event: Value = serde_json::from_str(&line?)?;
        let last = event["type"] == "DELETED";
        seen.push(event["object"]["status"].take());
        if last {
            break;
        }
    }
    watch.kill()?;
    watch.wait()?;
    Ok(seen)
}

fn forwards_only(pods: &Pods) -> Result<()> {
    let seen = seen_by_a_watcher(pods)?;
    let ranks: Vec<u8> = seen.iter().map(rank).collect();
    ensure!(ranks.is_sorted() && ranks.contains(&1) && ranks.last() == Some(&2), "{ranks:?}");
    let came: Vec<Option<usize>> = ["PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady"]
        .map(|kind| seen.iter().position(|s| condition(s, kind)["status"] == "True"))
        .to_vec();
    ensure!(came.iter().all(Option::is_some) && came.is_sorted(), "{came:?} in {seen:#?}");
    for status in &seen {
        let running =
            status["containerStatuses"].as_array().into_iter().flatten().any(|c| !c["state"]["running"].is_null());
        ensure!(rank(status) < 2 || !running, "it is over and runs: {status:#}");
        let ready = |kind: &str| condition(status, kind)["status"] == "True";
        ensure!(!ready("Ready") || ready("ContainersReady") && ready("Initialized"), "{status:#}");
    }
    let end = seen.last().context("an end")?;
    ensure!(end["phase"] == "Failed" && container(end, "main")["state"]["terminated"]["exitCode"] == 5, "{end:#}");
    ensure!(condition(end, "Ready")["reason"] == "PodFailed", "{end:#}");
    Ok(())
}

fn gates(pods: &Pods) -> Result<()> {
    let gate = "example.com/gate";
    pods.create(
        "gated",
        &json!({"readinessGates": [{"conditionType": gate}],
        "containers": [Pods::shell("exec sleep 1000", &json!({}))]}),
    )?;
    let status =
        pods.wait("gated", "its containers are ready", |s| condition(s, "ContainersReady")["status"] == "True")?;
    ensure!(condition(&status, "Ready")["reason"] == "ReadinessGatesNotReady", "{status:#}");
    let patch =
        json!({"status": {"conditions": [{"type": gate, "status": "True", "message": "somebody's own"}]}}).to_string();
    pods.server.kubectl(&["patch", "pod", "gated", "--subresource=status", "-p", &patch])?;
    let status = pods.wait("gated", "Ready", |s| condition(s, "Ready")["status"] == "True")?;
    ensure!(condition(&status, gate)["message"] == "somebody's own", "{status:#}");
    // A status of the agent's own keeps the conditions of others.
    let pid = *pods.node.tasks()?.get(id(&status)?).context("its process")?;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(i32::try_from(pid)?), nix::sys::signal::Signal::SIGKILL)?;
    let status = pods.wait("gated", "it is started again and Ready", |s| {
        container(s, "main")["restartCount"] == 1 && condition(s, "Ready")["status"] == "True"
    })?;
    ensure!(condition(&status, gate)["message"] == "somebody's own", "{status:#}");
    ensure!(container(&status, "main")["lastState"]["terminated"]["exitCode"] == 137, "{status:#}");
    Ok(())
}

fn id(status: &Value) -> Result<&str> {
    let id = container(status, "main")["containerID"].as_str().context("an id")?;
    id.split("://").nth(1).context("a runtime's name")
}

fn deadlines(pods: &Pods) -> Result<()> {
    pods.create(
        "late",
        &json!({"activeDeadlineSeconds": 3, "containers": [Pods::shell("exec sleep 1000", &json!({}))]}),
    )?;
    let status = pods.wait_phase("late", "Failed")?;
    ensure!(status["reason"] == "DeadlineExceeded", "{status:#}");
    ensure!(status["message"] == "Pod was active on the node longer than the specified deadline", "{status:#}");
    ensure!(!pods.node.tasks()?.contains_key(id(&status)?), "it is over and runs");
    // Nothing begins again after an end, however often somebody looks.
    std::thread::sleep(Duration::from_secs(3));
    let now = pods.server.get("pod", "late")?["status"].take();
    ensure!(now["phase"] == "Failed" && container(&now, "main")["restartCount"] == 0, "{now:#}");
    // Nor is anything told of it again: as with the kubelet, its deletion, a new generation, is not observed any more.
    let finalizers = |list: &Value| json!({"metadata": {"finalizers": list}}).to_string();
    let patch = |list: &Value| pods.server.kubectl(&["patch", "pod", "late", "--type=merge", "-p", &finalizers(list)]);
    patch(&json!(["example.com/kept"]))?;
    pods.server.kubectl(&["delete", "pod", "late", "--wait=false"])?;
    std::thread::sleep(Duration::from_secs(2));
    let now = pods.server.get("pod", "late")?;
    ensure!(now["metadata"]["generation"] == 2 && now["status"]["observedGeneration"] == 1, "{now:#}");
    patch(&json!([]))?;
    Ok(())
}

#[test]
fn the_status_of_a_pod_goes_forwards_only() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let pods = Pods::start("pod-states", "")?;
    forwards_only(&pods)?;
    gates(&pods)?;
    deadlines(&pods)
}
