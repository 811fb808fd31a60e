//! What a runtime class says its pods need beside their containers counts: for the scheduler, for the node, and in what the
//! runtime is asked for.

use anyhow::{Context, Result, ensure};
use proto::cri::runtime_service_client::RuntimeServiceClient;
use proto::cri::{ListPodSandboxRequest, PodSandboxFilter, PodSandboxStatusRequest};
use serde_json::{Value, json};
use tests::pods::{Pods, condition};

const MIB: u64 = 1 << 20;

fn class(pods: &Pods, name: &str, cpu: &str) -> Result<()> {
    pods.server.create(&json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name},
        "handler": "runc", "overhead": {"podFixed": {"cpu": cpu, "memory": "40Mi"}}}))
}

fn asks(cpu: u64, class: Option<&str>) -> Value {
    let request = json!({"resources": {"requests": {"cpu": format!("{cpu}m")}}});
    json!({"runtimeClassName": class, "containers": [Pods::shell("exec sleep 1000", &request)]})
}

/// What the runtime keeps of the request for a pod's sandbox.
async fn sandbox_config(pods: &Pods, uid: &str) -> Result<Value> {
    let mut client = RuntimeServiceClient::new(pods.node.cri().await?);
    let label = [("io.kubernetes.pod.uid".to_owned(), uid.to_owned())].into();
    let filter = PodSandboxFilter { label_selector: label, ..Default::default() };
    let found = client.list_pod_sandbox(ListPodSandboxRequest { filter: Some(filter) }).await?.into_inner();
    let pod_sandbox_id = found.items.first().context("a sandbox")?.id.clone();
    let status = client.pod_sandbox_status(PodSandboxStatusRequest { pod_sandbox_id, verbose: true }).await?;
    let status = status.into_inner();
    let info: Value = serde_json::from_str(status.info.get("info").context("what the runtime was asked")?)?;
    Ok(info["config"]["linux"].clone())
}

/// The node's own check, which a pod that names its node meets, and the scheduler's.
fn admission(pods: &Pods) -> Result<()> {
    let node = pods.server.get("node", &pods.node.name)?;
    let text = node["status"]["allocatable"]["cpu"].as_str().context("CPUs of the node")?;
    let all: u64 =
        text.strip_suffix('m').map_or_else(|| Ok(text.parse::<u64>()? * 1000), |milli| anyhow::Ok(milli.parse()?))?;
    class(pods, "heavy", "1")?;
    let most = all - 500;
    pods.create("heavy", &asks(most, Some("heavy")))?;
    let status = pods.wait_phase("heavy", "Failed")?;
    let said = status["message"].as_str().unwrap_or_default();
    let words = format!(
        "Pod was rejected: Node didn't have enough resource: cpu, requested: {}, used: 0, capacity: {all}",
        most + 1000
    );
    ensure!(status["reason"] == "OutOfcpu" && said == words, "{status:#}");

    let mut unbound = asks(most, Some("heavy"));
    unbound["nodeName"] = Value::Null;
    pods.create("unbound", &unbound)?;
    let status = pods.wait("unbound", "it is not scheduled", |s| condition(s, "PodScheduled")["status"] == "False")?;
    let why = condition(&status, "PodScheduled");
    ensure!(why["reason"] == "Unschedulable", "{status:#}");
    ensure!(why["message"].as_str().is_some_and(|m| m.contains("Insufficient cpu")), "{status:#}");

    // Alone the containers have room, and the room that a class takes is taken from others.
    pods.create("light", &asks(most, None))?;
    pods.wait_phase("light", "Running")?;
    pods.server.kubectl(&["delete", "pod", "light", "unbound", "--timeout=30s"])?;
    pods.create("small", &asks(100, Some("heavy")))?;
    pods.wait_phase("small", "Running")?;
    pods.create("beside", &asks(most, None))?;
    let status = pods.wait_phase("beside", "Failed")?;
    let said = status["message"].as_str().unwrap_or_default();
    ensure!(said.contains(&format!("requested: {most}, used: 1100, capacity: {all}")), "{status:#}");
    Ok(())
}

async fn request(pods: &Pods) -> Result<()> {
    class(pods, "measured", "250m")?;
    let limits = json!({"resources": {"limits": {"cpu": "100m", "memory": "64Mi"}}});
    let spec = json!({"runtimeClassName": "measured", "containers": [Pods::shell("exec sleep 1000", &limits)]});
    pods.create("measured", &spec)?;
    pods.wait_phase("measured", "Running")?;
    let pod = pods.server.get("pod", "measured")?;
    ensure!(pod["spec"]["overhead"] == json!({"cpu": "250m", "memory": "40Mi"}), "{}", pod["spec"]);
    let linux = sandbox_config(pods, pod["metadata"]["uid"].as_str().context("a uid")?).await?;
    let (own, overhead) = (&linux["resources"], &linux["overhead"]);
    ensure!(overhead["memory_limit_in_bytes"] == 40 * MIB && overhead["cpu_shares"] == 256, "{linux:#}");
    ensure!(overhead["cpu_quota"] == 25_000 && overhead["cpu_period"] == 100_000, "{linux:#}");
    ensure!(own["memory_limit_in_bytes"] == 64 * MIB && own["cpu_shares"] == 102, "{linux:#}");
    Ok(())
}

#[tokio::test]
async fn what_a_runtime_class_adds_counts() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let pods = Pods::start("overhead", "")?;
    request(&pods).await?;
    pods.server.kubectl(&["delete", "pod", "measured", "--timeout=30s"])?;
    admission(&pods)
}
