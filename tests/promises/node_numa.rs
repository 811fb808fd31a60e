//! On a machine of several NUMA nodes pods get CPUs and memory of one, as the policies say, and the files that tell of it
//! are the kubelet's. The agent is shown a machine of two, whatever the real one has: one CPU and a gigabyte are the first's.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::ApiServer;
use tests::node::Node;
use tests::pods::Pods;

const PATIENCE: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
const LOCALITY: &str = "Pod was rejected: Resources cannot be allocated with Topology locality";
const NO_ROOM: &str = "Pod was rejected: Allocate failed due to [memorymanager] failed to get the default NUMA affinity, \
                       no NUMA nodes with enough memory is available, which is unexpected";

/// Puts what the folder has in the place of the kernel's word about NUMA nodes, for the agent alone.
const UNDER: &str = "mount --bind \"$0\" /sys/devices/system/node && exec \"$@\"";

/// The machine's word about its NUMA nodes, and how many CPUs it has.
fn machine() -> Result<(PathBuf, usize)> {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
    let last: usize = online.trim().rsplit(['-', ',']).next().unwrap_or_default().parse()?;
    let (folder, cpus) = (tests::scratch("numa")?, last + 1);
    for (node, list, far) in [("node0", "0".to_owned(), "10 20"), ("node1", format!("1-{last}"), "20 10")] {
        let own = folder.join(node);
        std::fs::create_dir_all(&own)?;
        let number = node.trim_start_matches("node");
        std::fs::write(own.join("cpulist"), format!("{list}\n"))?;
        std::fs::write(own.join("distance"), format!("{far}\n"))?;
        let kib = 1 << 20;
        std::fs::write(
            own.join("meminfo"),
            format!("Node {number} MemTotal:  {kib} kB\nNode {number} MemFree:  {kib} kB\n"),
        )?;
    }
    for file in ["online", "possible", "has_cpu", "has_memory", "has_normal_memory"] {
        std::fs::write(folder.join(file), "0-1\n")?;
    }
    Ok((folder, cpus))
}

/// All CPUs but the first are the system's, and so is a part of the first node's memory.
fn settings(cpus: usize) -> String {
    format!(
        "evictionHard: {{memory.available: 50Mi, nodefs.available: 16Mi}}\nkubeReserved: {{memory: 50Mi}}\n\
         reservedSystemCPUs: \"1-{}\"\ncpuManagerPolicy: static\nmemoryManagerPolicy: Static\n\
         reservedMemory: [{{numaNode: 0, limits: {{memory: 100Mi}}}}]\ntopologyManagerPolicy: single-numa-node\n",
        cpus - 1
    )
}

/// A pod whose one container has just this.
fn guaranteed(cpu: &str, memory: &str) -> Value {
    let limits = json!({"resources": {"limits": {"cpu": cpu, "memory": memory}}});
    // Its mounts would be the agent's alone.
    json!({"automountServiceAccountToken": false, "containers": [Pods::shell("exec sleep 1000", &limits)]})
}

fn uid(pods: &Pods, name: &str) -> Result<String> {
    Ok(pods.server.get("pod", name)?["metadata"]["uid"].as_str().context("a uid")?.to_owned())
}

fn state(pods: &Pods, file: &str) -> Result<Value> {
    let path = pods.node.dir.join("kubelet").join(file);
    Ok(serde_json::from_slice(&std::fs::read(&path).with_context(|| path.display().to_string())?)?)
}

/// The memory that a pod's container has.
fn blocks(pods: &Pods, name: &str) -> Result<Value> {
    Ok(state(pods, "memory_manager_state")?["entries"][uid(pods, name)?]["main"].clone())
}

/// CPUs and memory nodes that the runtime was told for a pod's container.
fn told(pods: &Pods, name: &str) -> Result<Value> {
    let mut found = Value::Null;
    pods.node.wait_until("the runtime has the container", PATIENCE, || {
        let ids =
            pods.node.ctr(&["containers", "list", "-q", &format!("labels.\"io.kubernetes.pod.name\"=={name}")])?;
        for id in ids.split_whitespace() {
            let info: Value = serde_json::from_str(&pods.node.ctr(&["containers", "info", id])?)?;
            if info["Labels"]["io.cri-containerd.kind"] == "container" {
                let cpu = &info["Spec"]["linux"]["resources"]["cpu"];
                found = json!([cpu["cpus"], cpu["mems"]]);
            }
        }
        Ok(!found.is_null())
    })?;
    Ok(found)
}

fn refused(pods: &Pods, name: &str, spec: &Value, (reason, message): (&str, &str)) -> Result<()> {
    pods.create(name, spec)?;
    let status = pods.wait_phase(name, "Failed")?;
    ensure!(status["reason"] == reason && status["message"] == message, "{name}: {status:#}");
    pods.node.wait_until("it is told", PATIENCE, || {
        Ok(pods.events(name, reason)?.iter().any(|said| message.ends_with(said.as_str())))
    })?;
    ensure!(blocks(pods, name)?.is_null(), "{name} keeps nothing");
    Ok(())
}

fn whole(node: u32, bytes: u64) -> Value {
    json!([{"numaAffinity": [node], "type": "memory", "size": bytes}])
}

/// All of a container's memory is of one node, or it does not run.
fn memory_of_one_node(pods: &Pods) -> Result<()> {
    // No node alone has so much. Once one of them gives memory alone, the two cannot be a group either.
    refused(pods, "wide", &guaranteed("100m", "1500Mi"), ("TopologyAffinityError", LOCALITY))?;
    pods.create("first", &guaranteed("100m", "256Mi"))?;
    pods.wait_phase("first", "Running")?;
    ensure!(blocks(pods, "first")? == whole(0, 256 * MIB), "{:#}", state(pods, "memory_manager_state")?);
    let memory = state(pods, "memory_manager_state")?;
    let table = json!({"total": 1024 * MIB, "systemReserved": 100 * MIB, "allocatable": 924 * MIB,
        "reserved": 256 * MIB, "free": 668 * MIB});
    let nodes = &memory["machineState"];
    ensure!(memory["policyName"] == "Static" && nodes["0"]["memoryMap"]["memory"] == table, "{memory:#}");
    ensure!(nodes["0"]["numberOfAssignments"] == 1 && nodes["1"]["cells"] == json!([1]), "{memory:#}");

    // Both together have not so much.
    refused(pods, "vast", &guaranteed("100m", "3Gi"), ("UnexpectedAdmissionError", NO_ROOM))?;

    // What is left of the first node is not enough. Whether it can run on the other is the real machine's business.
    pods.create("other", &guaranteed("100m", "700Mi"))?;
    ensure!(told(pods, "other")?[1] == "1", "{}", told(pods, "other")?);
    ensure!(blocks(pods, "other")? == whole(1, 700 * MIB), "{:#}", state(pods, "memory_manager_state")?);
    given_back(pods, &["first", "other"])
}

/// What the files give goes with the pods.
fn given_back(pods: &Pods, names: &[&str]) -> Result<()> {
    pods.server.kubectl(&[&["delete", "pod", "--timeout=60s"], names].concat())?;
    pods.node.wait_until("CPU and memory are free", PATIENCE, || {
        let (cpu, memory) = (state(pods, "cpu_manager_state")?, state(pods, "memory_manager_state")?);
        let none = |entries: &Value| entries.as_object().is_none_or(serde_json::Map::is_empty);
        Ok(none(&cpu["entries"]) && none(&memory["entries"]))
    })
}

/// CPUs come with memory of the same node, and belong to one pod; the files that say so outlive an agent that is killed.
fn cpus_and_memory(pods: &mut Pods) -> Result<()> {
    pods.create("pinned", &guaranteed("1", "64Mi"))?;
    pods.wait_phase("pinned", "Running")?;
    ensure!(blocks(pods, "pinned")? == whole(0, 64 * MIB), "{:#}", state(pods, "memory_manager_state")?);
    let cpu = state(pods, "cpu_manager_state")?;
    ensure!(cpu["policyName"] == "static" && cpu["entries"][uid(pods, "pinned")?]["main"] == "0", "{cpu:#}");
    ensure!(told(pods, "pinned")? == json!(["0", "0"]), "{}", told(pods, "pinned")?);
    let status = pods.server.kubectl(&["exec", "pinned", "--", "grep", "_allowed_list", "/proc/self/status"])?;
    ensure!(status.split_whitespace().eq(["Cpus_allowed_list:", "0", "Mems_allowed_list:", "0"]), "{status}");

    // No node has another. That there is none at all would be said only after that.
    refused(pods, "second", &guaranteed("1", "64Mi"), ("TopologyAffinityError", LOCALITY))?;
    // Those without such a claim have what is left of the CPUs, and memory from anywhere.
    let main = Pods::shell("exec sleep 1000", &json!({}));
    pods.create("shared", &json!({"automountServiceAccountToken": false, "containers": [main]}))?;
    pods.wait_phase("shared", "Running")?;
    let rest = told(pods, "shared")?;
    ensure!(rest[0] == cpu["defaultCpuSet"] && rest[0] != "0" && rest[1].is_null(), "{rest}");

    let before = (cpu, state(pods, "memory_manager_state")?);
    pods.node.end_agent(Signal::SIGKILL);
    pods.node.start_agent()?;
    refused(pods, "third", &guaranteed("1", "64Mi"), ("TopologyAffinityError", LOCALITY))?;
    let after = (state(pods, "cpu_manager_state")?, state(pods, "memory_manager_state")?);
    ensure!(after == before, "{after:#?}, not {before:#?}");
    given_back(pods, &["pinned"])?;
    pods.create("fourth", &guaranteed("1", "64Mi"))?;
    pods.wait_phase("fourth", "Running")?;
    given_back(pods, &["fourth"])
}

/// `restricted` takes as few nodes as the request needs, be they more than one.
fn as_few_as_needed(pods: &mut Pods) -> Result<()> {
    let path = pods.node.dir.join("agent.yaml");
    let text = std::fs::read_to_string(&path)?;
    std::fs::write(
        &path,
        text.replace("topologyManagerPolicy: single-numa-node", "topologyManagerPolicy: restricted"),
    )?;
    pods.node.end_agent(Signal::SIGTERM);
    pods.node.start_agent()?;
    pods.create("spread", &guaranteed("100m", "1500Mi"))?;
    ensure!(told(pods, "spread")?[1] == "0,1", "{}", told(pods, "spread")?);
    let both = json!([{"numaAffinity": [0, 1], "type": "memory", "size": 1500 * MIB}]);
    ensure!(blocks(pods, "spread")? == both, "{:#}", state(pods, "memory_manager_state")?);
    // A node of a group gives nothing alone.
    refused(pods, "alone", &guaranteed("100m", "200Mi"), ("TopologyAffinityError", LOCALITY))
}

fn can_be_shown(folder: &Path) -> bool {
    let tried = Command::new("unshare").args(["-m", "sh", "-c", UNDER]).arg(folder).arg("true").output();
    tried.is_ok_and(|output| output.status.success())
}

#[test]
fn pods_get_cpus_and_memory_of_one_numa_node() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let (folder, cpus) = machine()?;
    if cpus < 2 || !can_be_shown(&folder) {
        tests::skipped("NUMA nodes need two CPUs and a kernel that tells of them");
        return Ok(());
    }
    let server = ApiServer::start("numa", &[])?;
    let under = ["unshare", "-m", "sh", "-c", UNDER, folder.to_str().context("a path in text")?];
    let node = Node::start_under("numa-node", &server, &settings(cpus), &under)?;
    let mut pods = Pods { node, server };
    memory_of_one_node(&pods)?;
    cpus_and_memory(&mut pods)?;
    as_few_as_needed(&mut pods)
}
