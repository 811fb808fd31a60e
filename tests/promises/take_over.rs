//! A node that a kubelet ran is taken over: its pods go on, with their restart counts, and its files stay readable to it.
//!
//! The pod is made over CRI by the calls that were recorded of a kubelet, below a root directory laid out as a kubelet's.
//! Needs a runtime and the recordings, so it is skipped with a stated reason where one is missing.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use proto::cri;
use proto::cri::runtime_service_client::RuntimeServiceClient;
use serde_json::{Value, json};
use tests::ApiServer;
use tests::node::{IMAGE, Node};

const PATIENCE: Duration = Duration::from_secs(60);
const RECORDED_IMAGE: &str = "noderec.test/box:1";
/// What a kubelet writes that manages neither CPUs nor memory.
const CPUS: &str = r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#;
const MEMORY: &str = r#"{"policyName":"None","machineState":{},"checksum":4236770233}"#;
/// And of devices, as Go prints what it sums up.
const NO_DEVICES: &str = "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)<nil> \
                          RegisteredDevices:(map[string][]string)map[]}";

/// FNV-1a, as the kubelet's checkpoints are summed up.
fn sum(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// `{data, checksum}` of resources that the pod's container has none of.
fn allocations(uid: &str) -> String {
    let data = json!({"entries": {uid: {"ContainerResources": {"main": {}}}}}).to_string();
    json!({"data": data, "checksum": sum(&format!("(string){data}"))}).to_string()
}

/// The calls that were recorded for a pod with one container, with this pod's names in them.
fn recorded(pod: &Value, node: &Node) -> Result<Option<(cri::PodSandboxConfig, cri::ContainerConfig)>> {
    const CASES: &str = "node-recordings/cases/basics.recorded.json";
    let Some(shared) = tests::recordings(CASES) else { return Ok(None) };
    let text = std::fs::read_to_string(shared.join(CASES))?
        .replace("<uid:p>", pod["metadata"]["uid"].as_str().context("a uid")?)
        .replace("<ns>", "default")
        .replace("<root>", &node.dir.join("kubelet").display().to_string())
        .replace("/var/log/pods", &node.dir.join("pod-logs").display().to_string())
        .replace("<time>", "2026-01-01T00:00:00.000000001Z")
        .replace("<hex>", "0badcafe");
    let all: Value = serde_json::from_str(&text)?;
    let calls = all["env-missing-key"]["pods"]["p"]["calls"].as_array().context("calls")?;
    let config = |name: &str| {
        let call = calls.iter().find(|c| c["call"] == name && c["code"] == "OK").context("it was recorded")?;
        Ok::<_, anyhow::Error>(call["request"]["config"].clone())
    };
    let (of_pod, of_container) = (config("RunPodSandbox")?, config("CreateContainer")?);
    let word = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let map = |v: &Value| v.as_object().into_iter().flatten().map(|(k, v)| (k.to_string(), word(v))).collect();
    let sandbox = cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: word(&of_pod["metadata"]["name"]),
            uid: word(&of_pod["metadata"]["uid"]),
            namespace: word(&of_pod["metadata"]["namespace"]),
            attempt: 0,
        }),
        hostname: word(&of_pod["hostname"]),
        log_directory: word(&of_pod["log_directory"]),
        labels: map(&of_pod["labels"]),
        annotations: map(&of_pod["annotations"]),
        linux: Some(cri::LinuxPodSandboxConfig::default()),
        ..Default::default()
    };
    let mut annotations: std::collections::BTreeMap<String, String> = map(&of_container["annotations"]);
    // It has been restarted three times before.
    annotations.insert("io.kubernetes.container.restartCount".into(), "3".into());
    let mounts = of_container["mounts"].as_array().context("mounts")?.iter().map(|m| cri::Mount {
        container_path: word(&m["container_path"]),
        host_path: word(&m["host_path"]),
        ..Default::default()
    });
    let container = cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: "main".into(), attempt: 3 }),
        image: Some(cri::ImageSpec { image: RECORDED_IMAGE.into(), ..Default::default() }),
        command: of_container["command"].as_array().context("a command")?.iter().map(word).collect(),
        labels: map(&of_container["labels"]),
        annotations,
        mounts: mounts.collect(),
        log_path: "main/3.log".into(),
        linux: Some(cri::LinuxContainerConfig::default()),
        ..Default::default()
    };
    Ok(Some((sandbox, container)))
}

/// Makes the pod in the runtime; the id of its container.
fn run(node: &Node, sandbox: &cri::PodSandboxConfig, container: &cri::ContainerConfig) -> Result<String> {
    for mount in &container.mounts {
        let path = Path::new(&mount.host_path);
        std::fs::create_dir_all(path.parent().context("a folder")?)?;
        std::fs::write(path, "127.0.0.1\tlocalhost\n")?;
    }
    std::fs::create_dir_all(Path::new(&sandbox.log_directory).join("main"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut client = RuntimeServiceClient::new(node.cri().await?);
        let request = cri::RunPodSandboxRequest { config: Some(sandbox.clone()), ..Default::default() };
        let pod_sandbox_id = client.run_pod_sandbox(request).await?.into_inner().pod_sandbox_id;
        let request = cri::CreateContainerRequest {
            pod_sandbox_id,
            config: Some(container.clone()),
            sandbox_config: Some(sandbox.clone()),
        };
        let id = client.create_container(request).await?.into_inner().container_id;
        client.start_container(cri::StartContainerRequest { container_id: id.clone() }).await?;
        Ok(id)
    })
}

#[test]
fn a_kubelets_node_is_taken_over_and_left_as_it_was() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let server = ApiServer::start("taken-over", &[])?;
    let mut node = Node::start("taken-over-node", &server, "")?;
    node.end_agent(Signal::SIGTERM);
    node.ctr(&["images", "tag", IMAGE, RECORDED_IMAGE])?;
    server.create(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"},
        "spec": {"nodeName": node.name, "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": RECORDED_IMAGE, "command": ["sleep", "1000"]}]}}))?;
    let pod = server.get("pods", "p")?;
    let uid = pod["metadata"]["uid"].as_str().context("a uid")?.to_owned();
    let Some((sandbox, container)) = recorded(&pod, &node)? else {
        tests::skipped("the recordings of a kubelet are not there");
        return Ok(());
    };
    let id = run(&node, &sandbox, &container)?;
    let root = node.dir.join("kubelet");
    let devices = json!({"Data": {"PodDeviceEntries": null, "RegisteredDevices": {}}, "Checksum": sum(NO_DEVICES)});
    std::fs::create_dir_all(root.join("device-plugins"))?;
    let files = [
        ("cpu_manager_state", CPUS.to_owned()),
        ("memory_manager_state", MEMORY.to_owned()),
        ("device-plugins/kubelet_internal_checkpoint", devices.to_string()),
        ("allocated_pods_state", allocations(&uid)),
        ("actuated_pods_state", allocations(&uid)),
    ];
    for (name, text) in &files {
        std::fs::write(root.join(name), text)?;
    }
    let before = node.tasks()?;

    node.start_agent()?;
    node.wait_until("the pod is shown as it runs", PATIENCE, || {
        let status = server.get("pods", "p")?["status"].clone();
        let shown = &status["containerStatuses"][0];
        Ok(shown["ready"] == true && shown["containerID"] == format!("containerd://{id}") && shown["restartCount"] == 3)
    })?;
    // Whatever it would do to a pod that it does not like, it has had the time for.
    std::thread::sleep(Duration::from_secs(3));
    ensure!(node.tasks()? == before, "the same processes: {before:?}, {:?}", node.tasks()?);
    ensure!(server.get("pods", "p")?["status"]["containerStatuses"][0]["restartCount"] == 3);

    node.end_agent(Signal::SIGTERM);
    ensure!(node.tasks()? == before, "they go on");
    for (name, text) in &files {
        let left = std::fs::read_to_string(root.join(name)).with_context(|| (*name).to_owned())?;
        let (left, given): (Value, Value) = (serde_json::from_str(&left)?, serde_json::from_str(text)?);
        ensure!(left == given, "{name}: {left}, not {given}");
        ensure!(!root.join(format!("{name}.corrupt")).exists(), "{name} was set aside");
    }
    ensure!(root.join("pods").join(&uid).join("etc-hosts").exists(), "the pod's folder is there");
    Ok(())
}
