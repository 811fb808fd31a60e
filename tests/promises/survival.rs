//! Losing or restarting the agent, the API server or the runtime touches no running container.
//!
//! Needs a runtime, so it is skipped with a stated reason where there is none. Every loss is followed by a proof that the
//! survivor works again: the lease is renewed, the node is Ready, a container that ends is started anew.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tests::node::{IMAGE, Node};
use tests::{ApiServer, release_binary};

/// Long enough for a cluster's slowest retry; short enough to be told from never.
const PATIENCE: Duration = Duration::from_secs(60);

struct Cluster {
    server: ApiServer,
    node: Node,
}

/// What must not change: process by container, and what the API shows of it.
#[derive(Debug, PartialEq)]
struct Fingerprint {
    processes: BTreeMap<String, u32>,
    /// Restart count, id and start time by pod and container.
    shown: BTreeMap<String, (u64, String, String)>,
}

impl Cluster {
    fn start(name: &str, content_type: &str) -> Result<Self> {
        let mut server = ApiServer::start(name, &[])?;
        let settings = format!("contentType: {content_type}\nnodeStatusUpdateFrequency: 1s\n");
        // Loses nothing to the server's own start: it is up by now.
        ensure!(server.alive(), "the API server ended: {}", server.log());
        let node = Node::start(&format!("{name}-node"), &server, &settings)?;
        Ok(Cluster { server, node })
    }

    fn pods(&self) -> Result<Vec<Value>> {
        let list: Value = serde_json::from_str(&self.server.kubectl(&["get", "pods", "-o", "json"])?)?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    fn create(&self, name: &str, script: &str) -> Result<()> {
        let pod = self.pod(name, script);
        let path = self.node.dir.join(format!("{name}.json"));
        std::fs::write(&path, pod.to_string())?;
        self.server.kubectl(&["create", "-f", path.to_str().context("a path in text")?])?;
        Ok(())
    }

    fn pod(&self, name: &str, script: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "nodeName": self.node.name, "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main", "image": IMAGE, "command": ["sh", "-c", script],
                "volumeMounts": [{"name": "kept", "mountPath": "/kept"}],
                "livenessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1},
                "readinessProbe": {"exec": {"command": ["test", "-e", "/kept"]}, "periodSeconds": 1},
            }],
            "volumes": [{"name": "kept", "emptyDir": {}}],
        }})
    }

    fn fingerprint(&self) -> Result<Fingerprint> {
        let mut shown = BTreeMap::new();
        for pod in self.pods()? {
            for status in pod["status"]["containerStatuses"].as_array().into_iter().flatten() {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let key = format!("{}/{}", text(&pod["metadata"]["name"]), text(&status["name"]));
                let started = text(&status["state"]["running"]["startedAt"]);
                shown.insert(
                    key,
                    (status["restartCount"].as_u64().context("a count")?, text(&status["containerID"]), started),
                );
            }
        }
        Ok(Fingerprint { processes: self.node.tasks()?, shown })
    }

    /// Waits until every pod is ready and `name` has restarted so often.
    fn wait_ready(&self, name: &str, restarts: u64) -> Result<()> {
        let what = format!("all pods are ready and {name} has restarted {restarts} times");
        let result = self.node.wait_until(&what, PATIENCE, || {
            let pods = self.pods()?;
            let ready = |pod: &Value| pod["status"]["containerStatuses"][0]["ready"] == true;
            let wanted = pods.iter().find(|p| p["metadata"]["name"] == name);
            let count = wanted.map(|p| &p["status"]["containerStatuses"][0]["restartCount"]);
            Ok(count == Some(&json!(restarts)) && pods.iter().all(ready))
        });
        result.with_context(|| self.server.kubectl(&["get", "pods", "-o", "wide"]).unwrap_or_default())
    }

    fn renewed(&self) -> Result<String> {
        self.server.kubectl(&[
            "get",
            "lease",
            "-n",
            "kube-node-lease",
            &self.node.name,
            "-o",
            "jsonpath={.spec.renewTime}",
        ])
    }

    /// The agent is back: it renews the node's lease, the node is Ready, and a new pod runs.
    fn wait_for_agent(&self, since: &str, probe: &str) -> Result<()> {
        let changed = || Ok(self.renewed()? != since && self.node.is_ready(&self.server));
        self.node.wait_until("the lease is renewed and the node is Ready", PATIENCE, changed)?;
        self.create(probe, "sleep 100000")?;
        self.wait_ready(probe, 0)?;
        self.server.kubectl(&["delete", "pod", probe, "--timeout=60s"])?;
        Ok(())
    }

    fn expect_untouched(&self, before: &Fingerprint, by: &str) -> Result<()> {
        let after = self.fingerprint()?;
        ensure!(after == *before, "{by} changed what ran\nbefore {before:#?}\nafter {after:#?}\n{}", self.node.logs());
        Ok(())
    }

    /// As [`Self::expect_untouched`], asking the runtime alone.
    fn expect_running(&self, before: &Fingerprint, by: &str) -> Result<()> {
        let (now, then) = (self.node.tasks()?, &before.processes);
        ensure!(now == *then, "{by} changed what ran\nbefore {then:#?}\nafter {now:#?}\n{}", self.node.logs());
        Ok(())
    }

    /// Kills the first process of a pod's container.
    fn kill_main(&self, pod: &str) -> Result<()> {
        let before = self.fingerprint()?;
        let (_, id, _) = before.shown.get(&format!("{pod}/main")).context("the pod has a container")?;
        let id = id.strip_prefix("containerd://").context("the runtime's name")?;
        let pid = *before.processes.get(id).context("the container has a process")?;
        kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGKILL)?;
        Ok(())
    }
}

fn survive(name: &str, content_type: &str) -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    release_binary("node-agent")?;
    let mut c = Cluster::start(name, content_type)?;

    // One pod that never ends, one that ended once before, one from a file.
    c.create("steady", "sleep 100000")?;
    c.create("restarted", "[ -e /kept/mark ] && exec sleep 100000; touch /kept/mark; exit 1")?;
    let mut file = c.pod("file", "sleep 100000");
    file["spec"]["nodeName"] = Value::Null;
    std::fs::write(c.node.manifests().join("file.json"), file.to_string())?;
    let mirror = format!("file-{}", c.node.name);
    c.node.wait_until("the static pod has its mirror", PATIENCE, || {
        Ok(c.server.kubectl(&["get", "pod", &mirror]).is_ok())
    })?;
    c.wait_ready("restarted", 1)?;
    let before = c.fingerprint()?;
    ensure!(before.shown.len() == 3 && before.processes.len() == 6, "three containers and sandboxes: {before:#?}");

    for (signal, probe) in [(Signal::SIGKILL, "after-kill"), (Signal::SIGTERM, "after-stop")] {
        let since = c.renewed()?;
        c.node.end_agent(signal);
        c.expect_running(&before, &format!("{signal} to the agent"))?;
        c.node.start_agent()?;
        c.wait_for_agent(&since, probe)?;
        c.expect_untouched(&before, &format!("{signal} to the agent"))?;
    }

    // Without an API server the agent still does its work.
    let since = c.renewed()?;
    c.server.kill();
    std::thread::sleep(Duration::from_secs(2));
    c.expect_running(&before, "losing the API server")?;
    // A new agent knows only the file by then; it must not take the others for strangers.
    c.node.end_agent(Signal::SIGKILL);
    c.node.start_agent()?;
    std::thread::sleep(Duration::from_secs(8));
    c.expect_running(&before, "an agent without API server")?;
    c.server.launch()?;
    c.wait_for_agent(&since, "after-server")?;
    c.expect_untouched(&before, "losing the API server")?;

    // A container that ends while the API server is away is started again without it.
    c.kill_main("steady")?;
    c.wait_ready("steady", 1)?;
    let id = c.fingerprint()?;
    c.server.kill();
    let victim = id.shown["steady/main"].1.strip_prefix("containerd://").context("the runtime's name")?;
    kill(Pid::from_raw(i32::try_from(id.processes[victim])?), Signal::SIGKILL)?;
    c.node.wait_until("the container runs again without API server", PATIENCE, || {
        let tasks = c.node.tasks()?;
        Ok(!tasks.contains_key(victim) && tasks.len() == 6)
    })?;
    c.server.launch()?;
    c.wait_ready("steady", 2)?;
    c.wait_ready("restarted", 1)?;

    // The runtime goes away for so long that the node says so, and comes back.
    let before = c.fingerprint()?;
    c.node.kill_containerd();
    c.node.wait_until("the node is not Ready without runtime", PATIENCE, || Ok(!c.node.is_ready(&c.server)))?;
    let since = c.renewed()?;
    c.node.start_containerd()?;
    c.wait_for_agent(&since, "after-runtime")?;
    c.expect_untouched(&before, "losing the runtime")?;

    // And what is deleted goes, all of it.
    std::fs::remove_file(c.node.manifests().join("file.json"))?;
    c.server.kubectl(&["delete", "pods", "steady", "restarted", "--timeout=60s"])?;
    c.node.wait_until("nothing is left", PATIENCE, || Ok(c.node.tasks()?.is_empty() && c.pods()?.is_empty()))
}

#[test]
fn containers_survive_their_keepers_over_protobuf() {
    survive("survive-pb", "application/vnd.kubernetes.protobuf").unwrap();
}

#[test]
fn containers_survive_their_keepers_over_json() {
    survive("survive-json", "application/json").unwrap();
}
