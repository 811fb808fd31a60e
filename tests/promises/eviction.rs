//! A node in need gets rid of pods and says why: memory pressure, a volume above its limit, a critical pod without room.
//!
//! Needs a runtime, so it is skipped with a stated reason where there is none.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::node::{IMAGE, Node};
use tests::{ApiServer, release_binary};

const PATIENCE: Duration = Duration::from_secs(60);

struct Cluster {
    server: ApiServer,
    node: Node,
}

impl Cluster {
    /// `None` where there can be none.
    fn start(name: &str, settings: &str) -> Result<Option<Self>> {
        if tests::no_node() {
            return Ok(None);
        }
        release_binary("node-agent")?;
        let server = ApiServer::start(name, &[])?;
        let node = Node::start(&format!("{name}-node"), &server, settings)?;
        Ok(Some(Cluster { server, node }))
    }

    /// Makes a pod that is bound to the node; `spec` is merged into its spec.
    fn create(&self, name: &str, namespace: &str, script: &str, spec: &Value) -> Result<()> {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
            "spec": {"nodeName": self.node.name, "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "main", "image": IMAGE, "command": ["sh", "-c", script]}]}});
        for (key, value) in spec.as_object().into_iter().flatten() {
            match key.as_str() {
                "container" => {
                    for (key, value) in value.as_object().into_iter().flatten() {
                        pod["spec"]["containers"][0][key] = value.clone();
                    }
                }
                _ => pod["spec"][key] = value.clone(),
            }
        }
        let path = self.node.dir.join(format!("{name}.json"));
        std::fs::write(&path, pod.to_string())?;
        self.server.kubectl(&["create", "-f", path.to_str().context("a path in text")?])?;
        Ok(())
    }

    fn get(&self, kind: &str, name: &str, namespace: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.server.kubectl(&["get", kind, name, "-n", namespace, "-o", "json"])?)?)
    }

    /// The status of a pod once it is in that phase.
    fn wait_for(&self, name: &str, namespace: &str, phase: &str) -> Result<Value> {
        let mut status = Value::Null;
        let result = self.node.wait_until(&format!("{name} is {phase}"), PATIENCE, || {
            status = self.get("pod", name, namespace)?["status"].clone();
            Ok(status["phase"] == phase)
        });
        result.with_context(|| format!("{name} is {status:#}"))?;
        Ok(status)
    }

    fn node_condition(&self, kind: &str) -> Result<Value> {
        let node = self.get("node", &self.node.name, "default")?;
        let all = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        Ok(all.into_iter().find(|c| c["type"] == kind).unwrap_or_default())
    }

    fn events(&self, reason: &str) -> Result<Vec<Value>> {
        let field = format!("reason={reason}");
        let list = self.server.kubectl(&["get", "events", "-A", "--field-selector", &field, "-o", "json"])?;
        let list: Value = serde_json::from_str(&list)?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }
}

fn disruption(status: &Value) -> Value {
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|c| c["type"] == "DisruptionTarget").unwrap_or_default()
}

/// Nearly all memory has to stay free: whoever gets in all the same is evicted, but for the critical.
fn memory(name: &str) -> Result<()> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let total =
        text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.strip_suffix("kB")?.trim().parse::<u64>().ok());
    // More than this machine's memory is refused; what runs here has more than 32 MiB of it.
    let threshold = format!("{}Mi", total.context("no MemTotal")? / 1024 - 32);
    let settings = format!("evictionHard: {{memory.available: {threshold}}}\n");
    let Some(c) = Cluster::start(name, &settings)? else { return Ok(()) };
    c.node.wait_until("the node has memory pressure", PATIENCE, || {
        Ok(c.node_condition("MemoryPressure")?["status"] == "True")
    })?;
    ensure!(c.node_condition("MemoryPressure")?["reason"] == "KubeletHasInsufficientMemory");
    c.node.wait_until("the node has the taint", PATIENCE, || {
        let node = c.get("node", &c.node.name, "default")?;
        let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        Ok(taints.iter().any(|t| t["key"] == "node.kubernetes.io/memory-pressure" && t["effect"] == "NoSchedule"))
    })?;

    c.create("refused", "default", "sleep 100000", &json!({}))?;
    let status = c.wait_for("refused", "default", "Failed")?;
    ensure!(status["reason"] == "Evicted", "{status:#}");
    ensure!(status["message"] == "Pod was rejected: The node had condition: [MemoryPressure]. ", "{status:#}");

    c.create("critical", "kube-system", "sleep 100000", &json!({"priorityClassName": "system-node-critical"}))?;
    c.wait_for("critical", "kube-system", "Running")?;
    let toleration = json!([{"key": "node.kubernetes.io/memory-pressure", "operator": "Exists"}]);
    c.create("tolerant", "default", "sleep 100000", &json!({"tolerations": toleration}))?;
    let status = c.wait_for("tolerant", "default", "Failed")?;
    ensure!(status["reason"] == "Evicted", "{status:#}");
    let message = status["message"].as_str().unwrap_or_default();
    let begin = format!("The node was low on resource: memory. Threshold quantity: {threshold}, available: ");
    ensure!(message.starts_with(&begin), "{message}");
    let condition = disruption(&status);
    ensure!(condition["reason"] == "TerminationByKubelet" && condition["message"] == message, "{condition:#}");
    c.node.wait_until("the eviction is told in events", PATIENCE, || {
        let evicted = c.events("Evicted")?;
        let own = evicted.iter().find(|e| e["involvedObject"]["name"] == "tolerant" && e["type"] == "Warning");
        let starved = own.map(|e| &e["metadata"]["annotations"]["starved_resource"]);
        let met = c.events("EvictionThresholdMet")?;
        // Without statistics of a pod that has just begun there is nothing to annotate.
        Ok(own.is_some()
            && starved.is_none_or(|s| s == "memory" || s.is_null())
            && met.iter().any(|e| e["message"] == "Attempting to reclaim memory"))
    })?;
    ensure!(c.get("pod", "critical", "kube-system")?["status"]["phase"] == "Running", "critical pods stay");
    Ok(())
}

#[test]
fn a_node_without_memory_takes_no_pods_and_evicts_those_it_has() {
    memory("evict-memory").unwrap();
}

fn size_limit(name: &str) -> Result<()> {
    let Some(c) = Cluster::start(name, "volumeStatsAggPeriod: 1s\n")? else { return Ok(()) };
    let spec = |limit: &str| {
        json!({"volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": limit}}],
            "container": {"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}})
    };
    let script = "dd if=/dev/zero of=/scratch/file bs=1024 count=3072; sleep 100000";
    c.create("above", "default", script, &spec("2Mi"))?;
    c.create("below", "default", script, &spec("30Mi"))?;
    let status = c.wait_for("above", "default", "Failed")?;
    ensure!(status["reason"] == "Evicted", "{status:#}");
    ensure!(status["message"] == "Usage of EmptyDir volume \"scratch\" exceeds the limit \"2Mi\". ", "{status:#}");

    let limits = json!({"resources": {"limits": {"ephemeral-storage": "1Mi"}}});
    let script = "dd if=/dev/zero of=/tmp-file bs=1024 count=4096; sleep 100000";
    c.create("writer", "default", script, &json!({"container": limits}))?;
    let status = c.wait_for("writer", "default", "Failed")?;
    let message = "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ";
    ensure!(status["reason"] == "Evicted" && status["message"] == message, "{status:#}");
    ensure!(c.get("pod", "below", "default")?["status"]["phase"] == "Running", "a pod below its limit stays");
    ensure!(c.node_condition("DiskPressure")?["status"] == "False", "a pod's own limit is not the node's need");
    Ok(())
}

#[test]
fn a_pod_that_holds_more_on_disk_than_it_may_is_evicted() {
    size_limit("evict-disk").unwrap();
}

fn preemption(name: &str) -> Result<()> {
    let Some(c) = Cluster::start(name, "maxPods: 1\n")? else { return Ok(()) };
    c.create("victim", "default", "sleep 100000", &json!({}))?;
    c.wait_for("victim", "default", "Running")?;
    c.create("refused", "default", "sleep 100000", &json!({}))?;
    ensure!(c.wait_for("refused", "default", "Failed")?["reason"] == "OutOfpods");
    c.create("critical", "kube-system", "sleep 100000", &json!({"priorityClassName": "system-node-critical"}))?;
    c.wait_for("critical", "kube-system", "Running")?;
    let status = c.wait_for("victim", "default", "Failed")?;
    ensure!(status["reason"] == "Preempting", "{status:#}");
    ensure!(status["message"] == "Preempted in order to admit critical pod", "{status:#}");
    ensure!(disruption(&status)["reason"] == "TerminationByKubelet", "{status:#}");
    c.node.wait_until("the preemption is told", PATIENCE, || Ok(!c.events("Preempting")?.is_empty()))
}

#[test]
fn a_critical_pod_takes_the_place_of_another() {
    preemption("preempt").unwrap();
}
