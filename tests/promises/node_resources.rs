//! The node keeps its word about resources: logs do not fill the disk, and CPUs given to one container are no other's.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::json;
use tests::node::{IMAGE, Node};
use tests::{ApiServer, release_binary};

const PATIENCE: Duration = Duration::from_secs(60);
const LINES: usize = 3000;

const SETTINGS: &str = "containerLogMaxSize: 8Ki\ncontainerLogMaxFiles: 3\ncontainerLogMonitorInterval: 3s\n\
                        kubeReserved: {cpu: 500m}\ncpuManagerPolicy: static\ncpuManagerReconcilePeriod: 1s\n";

fn create(server: &ApiServer, node: &Node, name: &str, script: &str, cpu: Option<&str>) -> Result<()> {
    let resources = cpu.map_or(json!({}), |cpu| json!({"limits": {"cpu": cpu, "memory": "32Mi"}}));
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "nodeName": node.name, "terminationGracePeriodSeconds": 1,
        "containers": [
            {"name": "main", "image": IMAGE, "command": ["sh", "-c", script], "resources": resources},
        ],
    }});
    let path = node.dir.join(format!("{name}.json"));
    std::fs::write(&path, pod.to_string())?;
    server.kubectl(&["create", "-f", path.to_str().context("a path in text")?])?;
    Ok(())
}

/// Writes slowly enough that many rotations happen meanwhile.
fn logs_are_rotated(server: &ApiServer, node: &Node) -> Result<()> {
    let script = format!(
        "i=0; while [ $i -lt {LINES} ]; do echo line-$i; i=$((i+1)); [ $((i % 100)) = 0 ] && sleep 0.5; done; sleep 1000"
    );
    create(server, node, "chatty", &script, None)?;
    server.kubectl(&["wait", "--for=condition=Ready", "pod/chatty", "--timeout=60s"])?;
    let last = format!("line-{}\n", LINES - 1);
    let mut follow = Command::new("timeout")
        .args(["60", "kubectl", "--kubeconfig"])
        .arg(server.kubeconfig())
        .args(["logs", "-f", "chatty"])
        .stdout(std::fs::File::create(node.dir.join("followed"))?)
        .spawn()?;
    let followed = || -> Result<String> { Ok(std::fs::read_to_string(node.dir.join("followed"))?) };
    node.wait_until("the last line is followed", PATIENCE, || Ok(followed()?.ends_with(&last)))?;
    follow.kill()?;
    follow.wait()?;
    let text = followed()?;
    let first: usize =
        text.lines().next().and_then(|l| l.strip_prefix("line-")?.parse().ok()).context("a first line")?;
    let expected: Vec<String> = (first..LINES).map(|i| format!("line-{i}")).collect();
    ensure!(text.lines().eq(expected), "the followed log has gaps: {} lines from {first}", text.lines().count());
    let names = || -> Result<Vec<String>> {
        let pods = std::fs::read_dir(node.dir.join("pod-logs"))?.flatten();
        let pod =
            pods.map(|e| e.path()).find(|p| p.to_string_lossy().contains("chatty")).context("a folder of logs")?;
        let entries = std::fs::read_dir(pod.join("main"))?.flatten();
        Ok(entries.filter_map(|e| e.file_name().into_string().ok()).collect())
    };
    let found = names()?;
    ensure!(
        found.len() == 3 && found.iter().any(|n| n.ends_with(".gz")),
        "three files, an old one compressed: {found:?}"
    );
    Ok(())
}

fn allowed_cpus(server: &ApiServer, pod: &str) -> Result<String> {
    let line = server.kubectl(&["exec", pod, "--", "grep", "Cpus_allowed_list", "/proc/self/status"])?;
    Ok(line.rsplit('\t').next().unwrap_or_default().trim().to_owned())
}

/// One CPU is reserved, so a machine needs two at least.
fn cpus_are_exclusive(server: &ApiServer, node: &mut Node) -> Result<()> {
    create(server, node, "shared", "sleep 1000", None)?;
    create(server, node, "alone", "sleep 1000", Some("1"))?;
    server.kubectl(&["wait", "--for=condition=Ready", "pod/shared", "pod/alone", "--timeout=60s"])?;
    let own = allowed_cpus(server, "alone")?;
    ensure!(own.parse::<u32>().is_ok(), "one CPU: {own:?}");
    node.wait_until("the other pod leaves that CPU", PATIENCE, || {
        let cpus = allowed_cpus(server, "shared")?;
        Ok(cpus.split(',').all(|part| match part.split_once('-') {
            None => part != own,
            Some((first, last)) => match (first.parse::<u32>(), last.parse::<u32>(), own.parse::<u32>()) {
                (Ok(first), Ok(last), Ok(own)) => own < first || own > last,
                _ => false,
            },
        }))
    })?;
    let state = || std::fs::read_to_string(node.dir.join("kubelet/cpu_manager_state"));
    let before = state()?;
    ensure!(before.contains(&format!(r#""main":"{own}""#)), "{before}");
    node.end_agent(Signal::SIGKILL);
    node.start_agent()?;
    create(server, node, "late", "sleep 1000", None)?;
    server.kubectl(&["wait", "--for=condition=Ready", "pod/late", "--timeout=60s"])?;
    ensure!(std::fs::read_to_string(node.dir.join("kubelet/cpu_manager_state"))? == before, "a restart moves nobody");
    ensure!(allowed_cpus(server, "alone")? == own);
    server.kubectl(&["delete", "pod", "alone"])?;
    node.wait_until("the CPU is everybody's again", PATIENCE, || {
        let text = std::fs::read_to_string(node.dir.join("kubelet/cpu_manager_state"))?;
        Ok(!text.contains("entries"))
    })
}

#[test]
fn a_node_keeps_logs_small_and_cpus_apart() {
    if tests::no_node() {
        return;
    }
    let keep = || -> Result<()> {
        release_binary("node-agent")?;
        let server = ApiServer::start("node-resources", &[])?;
        let mut node = Node::start("node-resources-node", &server, SETTINGS)?;
        logs_are_rotated(&server, &node)?;
        if std::thread::available_parallelism()?.get() < 2 {
            tests::skipped("CPUs of one's own need two");
            return Ok(());
        }
        cpus_are_exclusive(&server, &mut node)
    };
    keep().unwrap();
}
