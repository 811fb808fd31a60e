//! `node-agent pods` and `status` tell what runs after a restart of the agent while the control plane is gone.
//!
//! Needs a runtime, so it is skipped with a stated reason where there is none.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::node::{IMAGE, Node};
use tests::{ApiServer, release_binary};

const PATIENCE: Duration = Duration::from_secs(60);

/// What a command for people prints, and what it remarks beside.
fn told(node: &Node, words: &[&str]) -> Result<(String, String)> {
    let mut command = Command::new(release_binary("node-agent")?);
    let output = command.args(words).arg("--root-dir").arg(node.dir.join("kubelet")).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    Ok((text(&output.stdout), text(&output.stderr)))
}

#[test]
fn pods_and_conditions_are_told_without_a_control_plane() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let mut server = ApiServer::start("lost", &[])?;
    let mut node = Node::start("lost-node", &server, "")?;
    let container = |name: &str, script: &str| json!({"name": name, "image": IMAGE, "command": ["sh", "-c", script]});
    let mut beside = container("beside", "sleep 1000");
    beside["restartPolicy"] = json!("Always");
    server.create(&json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "kept", "namespace": "default", "labels": {"app": "kept"}},
        "spec": {"nodeName": node.name, "terminationGracePeriodSeconds": 1,
            "initContainers": [container("once", "true"), beside],
            "containers": [container("main", "sleep 1000")]}}))?;
    server.kubectl(&["wait", "--for=condition=Ready", "pod/kept", "--timeout=150s"])?;
    let row = |text: &str| {
        text.lines().find(|l| l.contains("kept")).map(|l| l.split_whitespace().map(str::to_owned).collect())
    };
    let (text, remark) = told(&node, &["pods"])?;
    let shown: Vec<String> = row(&text).unwrap_or_default();
    ensure!(shown.get(2).is_some_and(|ready| ready == "2/2"), "a sidecar counts:\n{text}");
    ensure!(remark.is_empty(), "all is known: {remark}");

    node.end_agent(Signal::SIGKILL);
    server.kill();
    node.start_agent()?;
    node.wait_until("the pod is told", PATIENCE, || {
        let (text, remark) = told(&node, &["pods"])?;
        let shown: Vec<String> = row(&text).unwrap_or_default();
        let running = shown.get(2).is_some_and(|r| r == "2/2") && shown.get(3).is_some_and(|word| word == "Running");
        Ok(running && remark.contains("has not answered since the agent started"))
    })?;
    let list: Value = serde_json::from_str(&told(&node, &["pods", "-o", "json"])?.0)?;
    let pod = &list["items"][0];
    ensure!(pod["metadata"]["labels"] == json!({"app": "kept"}), "{pod}");
    ensure!(pod["status"]["initContainerStatuses"][0]["name"] == "once", "{pod}");
    let status: Value = serde_json::from_str(&told(&node, &["status", "-o", "json"])?.0)?;
    ensure!(status["node"]["metadata"]["name"] == json!(node.name), "{status}");
    ensure!(status["pods"]["items"][0]["metadata"]["name"] == "kept", "{status}");
    ensure!(status["apiServer"]["reached"] == json!(false), "{status}");
    let top: Value = serde_json::from_str(&told(&node, &["top", "-o", "json"])?.0)?;
    ensure!(top["pods"][0]["podRef"]["name"] == "kept", "{top}");
    node.wait_until("the node is told Ready", PATIENCE, || {
        let (page, _) = told(&node, &["status"])?;
        let ready = page.lines().find(|line| line.starts_with("Ready"));
        Ok(ready.is_some_and(|line| line.contains("True") && line.contains("KubeletReady"))
            && page.contains("1: 1 Running"))
    })
}
