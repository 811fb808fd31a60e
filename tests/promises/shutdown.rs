//! When the machine goes down, pods end in the order of their priorities before it does, and the node says so.
//!
//! A bus of the test's own, with a stand-in for systemd-logind on it, plays the machine. Skipped with a stated reason
//! where there is no runtime or no D-Bus daemon.

use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::node::{IMAGE, Node};
use tests::{ApiServer, release_binary};

const PATIENCE: Duration = Duration::from_secs(60);
const PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";

/// Reading ends of the locks that were given away: at their end when the lock is dropped.
type Locks = Arc<Mutex<Vec<std::io::PipeReader>>>;

/// The part of logind that takes inhibitors.
struct Logind {
    locks: Locks,
}

#[zbus::interface(name = "org.freedesktop.login1.Manager")]
impl Logind {
    fn inhibit(&self, what: &str, _who: &str, _why: &str, mode: &str) -> zbus::fdo::Result<zbus::zvariant::OwnedFd> {
        if (what, mode) != ("shutdown", "delay") {
            return Err(zbus::fdo::Error::InvalidArgs(format!("{what} {mode}")));
        }
        let (reader, writer) = std::io::pipe().map_err(|e| zbus::fdo::Error::Failed(e.to_string()))?;
        self.locks.lock().unwrap_or_else(PoisonError::into_inner).push(reader);
        Ok(OwnedFd::from(writer).into())
    }

    #[zbus(property, name = "InhibitDelayMaxUSec")]
    fn longest_delay(&self) -> u64 {
        60_000_000
    }

    #[zbus(property)]
    fn preparing_for_shutdown(&self) -> bool {
        false
    }
}

/// A bus that ends when it is dropped.
struct Bus {
    daemon: Child,
    address: String,
}

impl Bus {
    fn start(dir: &std::path::Path) -> Result<Self> {
        let (settings, socket) = (dir.join("bus.conf"), dir.join("bus"));
        let address = format!("unix:path={}", socket.display());
        let text = format!(
            "<busconfig><type>system</type><listen>{address}</listen><auth>EXTERNAL</auth>\
             <policy context=\"default\"><allow user=\"*\"/><allow own=\"*\"/><allow send_destination=\"*\"/>\
             <allow send_type=\"signal\"/><allow receive_sender=\"*\"/></policy></busconfig>"
        );
        std::fs::write(&settings, text)?;
        let mut daemon = Command::new("dbus-daemon")
            .args(["--nofork", "--nopidfile", "--print-address=1", "--config-file"])
            .arg(&settings)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        // It says its address when it listens.
        let mut said = [0; 1];
        daemon.stdout.as_mut().context("its output")?.read_exact(&mut said).context("the bus does not start")?;
        Ok(Bus { daemon, address })
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

fn create(server: &ApiServer, node: &Node, name: &str, class: Option<&str>, script: &str) -> Result<()> {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "nodeName": node.name, "terminationGracePeriodSeconds": 30,
        "containers": [{"name": "main", "image": IMAGE, "command": ["sh", "-c", script]}]}});
    if let Some(class) = class {
        pod["spec"]["priorityClassName"] = json!(class);
    }
    apply(server, node, name, &pod)
}

fn apply(server: &ApiServer, node: &Node, name: &str, object: &Value) -> Result<()> {
    let path = node.dir.join(format!("{name}.json"));
    std::fs::write(&path, object.to_string())?;
    server.kubectl(&["create", "-f", path.to_str().context("a path in text")?])?;
    Ok(())
}

fn status(server: &ApiServer, name: &str) -> Result<Value> {
    let pod: Value = serde_json::from_str(&server.kubectl(&["get", "pod", name, "-o", "json"])?)?;
    Ok(pod["status"].clone())
}

fn ready(server: &ApiServer, node: &Node) -> Result<Value> {
    let found: Value = serde_json::from_str(&server.kubectl(&["get", "node", &node.name, "-o", "json"])?)?;
    let conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|c| c["type"] == "Ready").context("a Ready condition")
}

async fn shut_down(name: &str) -> Result<()> {
    let no_bus = Command::new("dbus-daemon").arg("--version").output().is_err().then_some("dbus-daemon");
    if let Some(reason) = Node::why_not().or(no_bus) {
        tests::skipped(format_args!("{reason} is missing"));
        return Ok(());
    }
    release_binary("node-agent")?;
    let server = ApiServer::start(name, &[])?;
    let bus = Bus::start(&server.dir)?;
    let locks = Locks::default();
    let logind = zbus::connection::Builder::address(bus.address.as_str())?
        .name("org.freedesktop.login1")?
        .serve_at(PATH, Logind { locks: locks.clone() })?
        .build()
        .await?;
    let settings = "shutdownGracePeriodByPodPriority:\n- {priority: 0, shutdownGracePeriodSeconds: 20}\n\
                    - {priority: 1000, shutdownGracePeriodSeconds: 20}\n";
    let environment = [("DBUS_SYSTEM_BUS_ADDRESS", bus.address.as_str())];
    let node = Node::start_with(&format!("{name}-node"), &server, settings, &environment)?;
    let held = || locks.lock().unwrap_or_else(PoisonError::into_inner).len();
    node.wait_until("the agent holds a lock", PATIENCE, || Ok(held() == 1))?;

    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": "important"}, "value": 5000});
    apply(&server, &node, "important", &class)?;
    let until_told = |seconds: u32| format!("trap 'sleep {seconds}; exit 0' TERM; while :; do sleep 0.1; done");
    create(&server, &node, "first", None, &until_told(2))?;
    create(&server, &node, "last", Some("important"), &until_told(0))?;
    for pod in ["first", "last"] {
        node.wait_until(&format!("{pod} runs"), PATIENCE, || Ok(status(&server, pod)?["phase"] == "Running"))?;
    }

    let announce =
        async |begins: bool| logind.emit_signal(None::<&str>, PATH, MANAGER, "PrepareForShutdown", &(begins,)).await;
    announce(true).await?;
    // The lock is at its end when the agent lets go of it.
    let mut lock = locks.lock().unwrap_or_else(PoisonError::into_inner).pop().context("a lock")?;
    tokio::task::block_in_place(|| lock.read_to_end(&mut Vec::new()))?;
    for pod in ["first", "last"] {
        node.wait_until(&format!("{pod} has ended"), PATIENCE, || Ok(status(&server, pod)?["phase"] == "Failed"))?;
        let status = status(&server, pod)?;
        let message = "Pod was terminated in response to imminent node shutdown.";
        ensure!(status["reason"] == "Terminated" && status["message"] == message, "{status:#}");
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let disruption = conditions.iter().find(|c| c["type"] == "DisruptionTarget").context("DisruptionTarget")?;
        ensure!(disruption["reason"] == "TerminationByKubelet", "{disruption:#}");
    }
    let ended = |pod: &str| -> Result<String> {
        let at = &status(&server, pod)?["containerStatuses"][0]["state"]["terminated"]["finishedAt"];
        Ok(at.as_str().context("an end")?.to_owned())
    };
    ensure!(ended("first")? <= ended("last")?, "the important pod ends last");
    ensure!(node.tasks()?.is_empty(), "nothing runs any more");

    let condition = ready(&server, &node)?;
    ensure!(condition["status"] == "False" && condition["reason"] == "KubeletNotReady", "{condition:#}");
    ensure!(condition["message"] == "node is shutting down", "{condition:#}");
    create(&server, &node, "late", None, "sleep 100000")?;
    node.wait_until("a late pod is refused", PATIENCE, || Ok(status(&server, "late")?["phase"] == "Failed"))?;
    let late = status(&server, "late")?;
    ensure!(late["reason"] == "NodeShutdown", "{late:#}");
    ensure!(late["message"] == "Pod was rejected: Pod was rejected as the node is shutting down.", "{late:#}");
    let state: Value = serde_json::from_slice(&std::fs::read(node.dir.join("kubelet/graceful_node_shutdown_state"))?)?;
    ensure!(state["endTime"].as_str() > state["startTime"].as_str(), "{state}");

    // A shutdown that is called off takes all of it back.
    announce(false).await?;
    node.wait_until("the agent holds a lock again", PATIENCE, || Ok(held() == 1))?;
    node.wait_until("the node is Ready again", PATIENCE, || Ok(node.is_ready(&server)))?;
    create(&server, &node, "next", None, "sleep 100000")?;
    node.wait_until("pods run again", PATIENCE, || Ok(status(&server, "next")?["phase"] == "Running"))
}

// The bus is answered while the test waits for the agent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_end_by_priority_before_the_machine_does() {
    shut_down("shutdown").await.unwrap();
}
