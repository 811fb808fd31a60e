//! Many who follow the log of one container cost the node next to nothing, and are let go when it ends.
//!
//! Needs a runtime, so it is skipped with a stated reason where there is none.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests::node::{IMAGE, Node};

const PATIENCE: Duration = Duration::from_secs(60);
const FOLLOWERS: usize = 20;
/// While nothing happens.
const QUIET: Duration = Duration::from_secs(4);

fn follow(node: &Node, number: usize) -> Result<Child> {
    let url = format!(
        "https://127.0.0.1:{}/containerLogs/default/quiet-{}/main?follow=true&tailLines=10",
        node.port, node.name
    );
    let out = std::fs::File::create(node.dir.join(format!("followed-{number}")))?;
    let mut curl = Command::new("curl");
    curl.args(["-skfN", "--max-time", "120", &url]).stdin(Stdio::null()).stdout(out);
    curl.spawn().context("starting curl")
}

/// Instances of inotify that the agent holds.
fn inotify_instances(node: &Node) -> Result<usize> {
    let open = std::fs::read_dir(format!("/proc/{}/fd", node.agent_pid()))?.flatten();
    Ok(open.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.ends_with("anon_inode:inotify"))).count())
}

/// Calls to the runtime so far.
fn runtime_calls(node: &Node) -> Result<f64> {
    let url = format!("https://127.0.0.1:{}/metrics", node.port);
    let page = String::from_utf8(Command::new("curl").args(["-skf", &url]).output()?.stdout)?;
    let counts = page.lines().filter(|line| line.starts_with("kubelet_runtime_operations_total{"));
    Ok(counts.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
}

#[test]
fn followers_of_a_log_share_one_watch_and_end_with_the_container() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let node = Node::start_alone("followed", "")?;
    let script = "trap 'echo last; exit 0' TERM; echo begun; while :; do sleep 0.1; done";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "quiet"}, "spec": {
        "terminationGracePeriodSeconds": 1, "restartPolicy": "Never",
        "containers": [{"name": "main", "image": IMAGE, "command": ["sh", "-c", script]}],
    }});
    std::fs::write(node.manifests().join("quiet.json"), pod.to_string())?;
    let mut id = String::new();
    node.wait_until("the container runs", PATIENCE, || {
        let pods = node.pods()?;
        let container = &pods.first().context("a pod")?["status"]["containerStatuses"][0];
        id = container["containerID"].as_str().and_then(|id| id.split("://").nth(1)).unwrap_or_default().to_owned();
        Ok(container["state"]["running"].is_object())
    })?;

    let before = inotify_instances(&node)?;
    let mut followers = (0..FOLLOWERS).map(|n| follow(&node, n)).collect::<Result<Vec<_>>>()?;
    let all_have = |text: &str| -> Result<bool> {
        let mut texts = (0..FOLLOWERS).map(|n| std::fs::read_to_string(node.dir.join(format!("followed-{n}"))));
        texts.try_fold(true, |all, followed| Ok(all && followed? == text))
    };
    node.wait_until("all have what was written", PATIENCE, || all_have("begun\n"))?;
    let instances = inotify_instances(&node)? - before;
    ensure!(instances <= 1, "{FOLLOWERS} followers have {instances} instances of inotify");

    let calls = runtime_calls(&node)?;
    std::thread::sleep(QUIET);
    let calls = runtime_calls(&node)? - calls;
    // The look at all pods each second is two calls, the health of the runtime one now and then.
    ensure!(calls <= 20.0, "{calls} calls to the runtime in {QUIET:?} in which nothing happened");

    node.ctr(&["tasks", "kill", "--signal", "SIGTERM", &id])?;
    node.wait_until("all end with the container", Duration::from_secs(10), || {
        let ended: Vec<_> = followers.iter_mut().map(|curl| curl.try_wait()).collect::<std::io::Result<_>>()?;
        Ok(ended.iter().all(|status| status.is_some_and(|s| s.success())))
    })?;
    ensure!(all_have("begun\nlast\n")?, "the last words are there");
    Ok(())
}
