//! A node without room on its disk: what runs goes on, what is to begin waits and begins once there is room.
//!
//! Needs a runtime, so it is skipped with a stated reason where there is none. The disks are file systems in memory, small
//! ones, below the root directory and below that of the logs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use serde_json::json;
use tests::ApiServer;
use tests::node::{IMAGE, Node};

const PATIENCE: Duration = Duration::from_secs(90);

/// A small disk; unmounted when dropped.
struct Disk(PathBuf);

impl Disk {
    fn mount(at: PathBuf) -> Result<Self> {
        std::fs::create_dir_all(&at)?;
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m,mode=755", "none"]).arg(&at).status()?;
        ensure!(mounted.success(), "{} is not mounted", at.display());
        // Mounts below it pass into containers and back, as those of a node's root directory.
        ensure!(Command::new("mount").arg("--make-rshared").arg(&at).status()?.success());
        Ok(Disk(at))
    }

    /// Takes all that is left.
    fn fill(&self) {
        let mut chunk = 64 * 1024;
        let mut number = 0;
        while chunk > 0 {
            number += 1;
            let path = self.0.join(format!("filler-{number}"));
            // What does not fit any more fails, and a smaller one may.
            if std::fs::write(path, vec![b'x'; chunk]).is_err() {
                chunk /= 2;
            }
        }
    }

    fn empty(&self) -> Result<()> {
        for entry in std::fs::read_dir(&self.0)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with("filler-") {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["--recursive", "--lazy"]).arg(&self.0).status();
    }
}

fn create(server: &ApiServer, node: &Node, name: &str, script: &str) -> Result<()> {
    server.create(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "nodeName": node.name, "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": IMAGE, "command": ["sh", "-c", script],
            "volumeMounts": [{"name": "settings", "mountPath": "/settings"}]}],
        "volumes": [{"name": "settings", "configMap": {"name": "settings"}}],
    }}))
}

fn wait_ready(server: &ApiServer, node: &Node, name: &str) -> Result<()> {
    node.wait_until(&format!("{name} is ready"), PATIENCE, || {
        Ok(server.get("pod", name)?["status"]["containerStatuses"][0]["ready"] == true)
    })
}

fn wait_gone(server: &ApiServer, node: &Node, name: &str) -> Result<()> {
    server.kubectl(&["delete", "pod", name, "--wait=false"])?;
    node.wait_until(&format!("{name} is gone"), PATIENCE, || Ok(server.get("pod", name).is_err()))
}

/// Whether files of the container's log are there.
fn has_log(folder: &Path) -> bool {
    folder.join("main/0.log").exists()
}

#[test]
fn a_node_waits_for_room_on_its_disks() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let server = ApiServer::start("node-full", &["--scheduler=false"])?;
    // Without thresholds for the disk nobody is evicted for it: then the disk is really full.
    let settings = "evictionHard: {memory.available: 1Mi}\nnodeStatusUpdateFrequency: 1s\n";
    let mut node = Node::start("node-full-node", &server, settings)?;
    server.create(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"},
        "data": {"large": "x".repeat(20_000)}}))?;
    node.end_agent(Signal::SIGTERM);
    let root = Disk::mount(node.dir.join("kubelet"))?;
    let logs = Disk::mount(node.dir.join("pod-logs"))?;
    node.start_agent()?;
    create(&server, &node, "steady", "while :; do echo line; sleep 1; done")?;
    wait_ready(&server, &node, "steady")?;
    let before = node.tasks()?;
    let steady = |node: &Node| -> Result<bool> {
        let now = node.tasks()?;
        Ok(before.iter().all(|(id, pid)| now.get(id) == Some(pid)))
    };

    root.fill();
    create(&server, &node, "waits", "sleep 100000")?;
    node.wait_until("the pod says why it does not begin", PATIENCE, || {
        let events = server.kubectl(&["get", "events", "-o", "json"])?;
        Ok(events.contains("No space left on device"))
    })?;
    // An agent that starts on a full disk works as well.
    node.end_agent(Signal::SIGKILL);
    node.start_agent()?;
    node.wait_until("the node is Ready", PATIENCE, || Ok(node.is_ready(&server)))?;
    ensure!(steady(&node)?, "what ran runs on\n{}", node.logs());
    ensure!(server.get("pod", "waits")?["status"]["phase"] == "Pending");
    root.empty()?;
    wait_ready(&server, &node, "waits")?;
    wait_gone(&server, &node, "waits")?;

    logs.fill();
    create(&server, &node, "silent", "echo said; sleep 100000")?;
    std::thread::sleep(Duration::from_secs(3));
    ensure!(steady(&node)?, "a pod whose log is full runs on\n{}", node.logs());
    logs.empty()?;
    wait_ready(&server, &node, "silent")?;
    let folders = std::fs::read_dir(&logs.0)?.flatten().map(|e| e.path()).filter(|p| p.is_dir());
    ensure!(folders.filter(|folder| has_log(folder)).count() == 2, "both have their logs");
    wait_gone(&server, &node, "silent")?;
    ensure!(steady(&node)?);
    wait_gone(&server, &node, "steady")?;
    node.end_agent(Signal::SIGTERM);
    Ok(())
}
