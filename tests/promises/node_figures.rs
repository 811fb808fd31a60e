//! What the node tells of a busy pod is what the kernel's own files say, and what the runtime says.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use proto::cri::runtime_service_client::RuntimeServiceClient;
use proto::cri::{ContainerStats, ContainerStatsRequest, ListContainerStatsRequest};
use serde_json::{Value, json};
use tests::ApiServer;
use tests::node::{IMAGE, Node};

/// What a page may have rounded away, and what the kernel counts in batches.
const SLACK_SECONDS: f64 = 0.05;
const SLACK_BYTES: f64 = (1 << 20) as f64;

/// The files of the cgroup that a process is in, of either version.
struct Files {
    cpu: PathBuf,
    memory: PathBuf,
    unified: bool,
}

impl Files {
    fn of(pid: u32) -> Result<Self> {
        let lines = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        let path = |controller: &str| {
            let found = lines.lines().find_map(|line| {
                let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
                controllers.split(',').any(|c| c == controller).then(|| path.trim_start_matches('/').to_owned())
            });
            found.with_context(|| format!("{controller} in {lines}"))
        };
        let mount = Path::new("/sys/fs/cgroup");
        if mount.join("cgroup.controllers").exists() {
            let own = mount.join(path("")?);
            return Ok(Files { cpu: own.clone(), memory: own, unified: true });
        }
        let (cpu, memory) = (mount.join("cpuacct").join(path("cpuacct")?), mount.join("memory").join(path("memory")?));
        Ok(Files { cpu, memory, unified: false })
    }

    /// CPU seconds and bytes in use.
    fn read(&self) -> Result<(f64, f64)> {
        let number = |path: PathBuf| -> Result<f64> { Ok(std::fs::read_to_string(path)?.trim().parse()?) };
        if !self.unified {
            let nanos = number(self.cpu.join("cpuacct.usage"))?;
            return Ok((nanos / 1e9, number(self.memory.join("memory.usage_in_bytes"))?));
        }
        let stat = std::fs::read_to_string(self.cpu.join("cpu.stat"))?;
        let micros = stat.lines().find_map(|l| l.strip_prefix("usage_usec ")?.parse::<f64>().ok());
        Ok((micros.context("usage_usec")? / 1e6, number(self.memory.join("memory.current"))?))
    }
}

/// The number of a line of metrics that has a name and all of these labels.
fn sample(page: &str, name: &str, labels: &[&str]) -> Result<f64> {
    let line = page.lines().find(|line| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{')) && labels.iter().all(|l| line.contains(l))
    });
    let line = line.with_context(|| format!("{name} {labels:?}"))?;
    Ok(line.rsplit_once("} ").and_then(|(_, rest)| rest.split(' ').next()).context("a value")?.parse()?)
}

/// CPU seconds, the working set and what was written, as the runtime tells them of one container, and of it in a list.
fn by_the_runtime(node: &Node, id: &str) -> Result<Vec<(f64, f64, u64)>> {
    let figures = |stats: &ContainerStats| -> Result<(f64, f64, u64)> {
        let cpu = stats.cpu.as_ref().and_then(|c| c.usage_core_nano_seconds.as_ref());
        let memory = stats.memory.as_ref().and_then(|m| m.working_set_bytes.as_ref());
        let written = stats.writable_layer.as_ref().and_then(|l| l.used_bytes.as_ref());
        let number = |n: u64| -> Result<f64> { Ok(n.to_string().parse()?) };
        let cpu = number(cpu.context("CPU time")?.value)? / 1e9;
        let memory = number(memory.context("a working set")?.value)?;
        Ok((cpu, memory, written.context("what was written")?.value))
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut client = RuntimeServiceClient::new(node.cri().await?);
        let one = client.container_stats(ContainerStatsRequest { container_id: id.to_owned() }).await?.into_inner();
        let list = client.list_container_stats(ListContainerStatsRequest::default()).await?.into_inner().stats;
        let listed = list.iter().find(|s| s.attributes.as_ref().is_some_and(|a| a.id == id)).context("it is listed")?;
        Ok(vec![figures(&one.stats.context("statistics")?)?, figures(listed)?])
    })
}

#[test]
fn figures_of_a_busy_pod_are_those_of_the_kernel() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let server = ApiServer::start("figures", &[])?;
    let node = Node::start("figures-node", &server, "")?;
    // Some CPU all the time, and twenty megabytes that are its own.
    let script = "dd if=/dev/zero of=/memory/held bs=1M count=20; while :; do n=0; while [ $n -lt 2000 ]; do n=$((n+1)); done; sleep 0.01; done";
    server.create(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "busy", "namespace": "default"},
        "spec": {"nodeName": node.name, "terminationGracePeriodSeconds": 0,
            "volumes": [{"name": "m", "emptyDir": {"medium": "Memory"}}],
            "containers": [{"name": "c", "image": IMAGE, "command": ["sh", "-c", script],
                "volumeMounts": [{"name": "m", "mountPath": "/memory"}]}]}}))?;
    server.kubectl(&["wait", "--for=condition=Ready", "pod/busy", "--timeout=60s"])?;
    let pod = server.get("pods", "busy")?;
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().context("an id")?.to_owned();
    let id = id.split("://").nth(1).context("a runtime's name")?;
    let files = Files::of(*node.tasks()?.get(id).context("its process")?)?;
    node.wait_until("the memory is in use", Duration::from_secs(20), || Ok(files.read()?.1 > 20e6))?;

    let ask = |page: &str| server.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{}/proxy/{page}", node.name)]);
    let labels = ["container=\"c\"", "pod=\"busy\"", "namespace=\"default\""];
    // Each page between two readings of our own.
    let between = |page: &str, figures: &dyn Fn(&str) -> Result<(f64, f64)>| -> Result<()> {
        let before = files.read()?;
        let told = figures(&ask(page)?)?;
        let after = files.read()?;
        let cpu = before.0 - SLACK_SECONDS <= told.0 && told.0 <= after.0 + SLACK_SECONDS;
        let (least, most) = (before.1.min(after.1) - SLACK_BYTES, before.1.max(after.1) + SLACK_BYTES);
        // The working set is what is in use, less what could go at once.
        ensure!(cpu && least * 0.8 <= told.1 && told.1 <= most, "{page}: {told:?} between {before:?} and {after:?}");
        Ok(())
    };
    for _ in 0..3 {
        between("metrics/resource", &|page| {
            let cpu = sample(page, "container_cpu_usage_seconds_total", &labels)?;
            Ok((cpu, sample(page, "container_memory_working_set_bytes", &labels)?))
        })?;
        between("metrics/cadvisor", &|page| {
            let cpu = sample(page, "container_cpu_usage_seconds_total", &labels)?;
            Ok((cpu, sample(page, "container_memory_usage_bytes", &labels)?))
        })?;
        between("stats/summary", &|page| {
            let summary: Value = serde_json::from_str(page)?;
            let pods = summary["pods"].as_array().context("pods")?;
            let pod = pods.iter().find(|p| p["podRef"]["name"] == "busy").context("the pod")?;
            let container = &pod["containers"][0];
            let nanos = container["cpu"]["usageCoreNanoSeconds"].as_f64().context("CPU time")?;
            Ok((nanos / 1e9, container["memory"]["usageBytes"].as_f64().context("bytes in use")?))
        })?;
    }
    // The runtime's words between two pages of ours: its clock is later than the first's and earlier than the second's, but
    // for what it keeps of an earlier look.
    let told = || -> Result<(f64, f64, u64)> {
        let summary: Value = serde_json::from_str(&ask("stats/summary")?)?;
        let pods = summary["pods"].as_array().context("pods")?;
        let container = &pods.iter().find(|p| p["podRef"]["name"] == "busy").context("the pod")?["containers"][0];
        let nanos = container["cpu"]["usageCoreNanoSeconds"].as_f64().context("CPU time")?;
        let memory = container["memory"]["workingSetBytes"].as_f64().context("a working set")?;
        Ok((nanos / 1e9, memory, container["rootfs"]["usedBytes"].as_u64().context("what was written")?))
    };
    let looked = |what: &str| -> Result<(f64, f64)> {
        let page = ask(what)?;
        let cpu = sample(&page, "container_cpu_usage_seconds_total", &labels)?;
        Ok((cpu, sample(&page, "container_memory_working_set_bytes", &labels)?))
    };
    for _ in 0..3 {
        let before = (told()?, looked("metrics/resource")?, looked("metrics/cadvisor")?);
        let theirs = by_the_runtime(&node, id)?;
        let after = (looked("metrics/resource")?, looked("metrics/cadvisor")?, told()?);
        let (first, last) = (before.0.0, after.2.0);
        let memory = [before.0.1, before.1.1, before.2.1, after.0.1, after.1.1, after.2.1];
        for (cpu, working_set, written) in theirs {
            let fits = first - SLACK_SECONDS <= cpu && cpu <= last + SLACK_SECONDS;
            ensure!(fits, "the runtime tells {cpu} s, the pages {before:?} and {after:?}");
            let near = memory.iter().all(|ours| (ours - working_set).abs() <= 4.0 * SLACK_BYTES);
            ensure!(near, "the runtime tells a working set of {working_set}, the pages {before:?} and {after:?}");
            // It counts that now and then only.
            let counted = before.0.2 <= written && written <= after.2.2;
            ensure!(counted, "the runtime tells {written} bytes written, the pages {} and {}", before.0.2, after.2.2);
        }
        let seconds = [before.0.0, before.1.0, before.2.0, after.0.0, after.1.0, after.2.0];
        ensure!(seconds.is_sorted(), "the pages tell of a clock that goes back: {seconds:?}");
    }
    // Of the rates there is the cores that it had between two questions. When in each the agent reads is its own matter:
    // at least what came between the questions in the longest time that it can have been, and at most the reverse.
    let now = || -> Result<(f64, std::time::Instant)> { Ok((files.read()?.0, std::time::Instant::now())) };
    let first = (now()?, ask("stats/summary")?, now()?);
    std::thread::sleep(Duration::from_secs(3));
    let second = (now()?, ask("stats/summary")?, now()?);
    let summary: Value = serde_json::from_str(&second.1)?;
    let cores = |from: (f64, std::time::Instant), to: (f64, std::time::Instant), seconds: Duration| {
        (to.0 - from.0) / seconds.as_secs_f64()
    };
    let least = cores(first.2, second.0, second.2.1 - first.0.1);
    let most = cores(first.0, second.2, second.0.1 - first.2.1);
    let pods = summary["pods"].as_array().context("pods")?;
    let pod = pods.iter().find(|p| p["podRef"]["name"] == "busy").context("the pod")?;
    let told = pod["containers"][0]["cpu"]["usageNanoCores"].as_f64().context("a rate")? / 1e9;
    let slack = SLACK_SECONDS / 3.0;
    ensure!(least - slack <= told && told <= most + slack, "{told} cores told, {least} to {most} had");
    Ok(())
}

/// The runtime's lists cost as much as the figures themselves, and were asked for at every scrape.
#[test]
fn scrapes_ask_the_runtime_when_something_has_moved_only() -> Result<()> {
    if tests::no_node() {
        return Ok(());
    }
    let server = ApiServer::start("scrapes", &[])?;
    let node = Node::start("scrapes-node", &server, "runtimeRequestTimeout: 3s\n")?;
    let create = |name: &str| {
        server.create(
            &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
            "spec": {"nodeName": node.name, "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "c", "image": IMAGE, "command": ["sleep", "1000"]}]}}),
        )?;
        server.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=60s"])
    };
    let ask = |page: &str| server.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{}/proxy/{page}", node.name)]);
    let shown = |name: &str| -> Result<bool> {
        let label = format!("pod=\"{name}\"");
        Ok(sample(&ask("metrics/resource")?, "container_cpu_usage_seconds_total", &[&label]).is_ok())
    };
    let lists = || {
        let operations = ["operation_type=\"list_containers\""];
        sample(&ask("metrics")?, "kubelet_runtime_operations_total", &operations)
    };
    create("one")?;
    ensure!(shown("one")?, "a pod that runs is on the page");
    // What is still moving counts too, and the agent's own looks at the runtime: one each second at most.
    let least = (0..5).map(|_| -> Result<f64> {
        let (before, begun) = (lists()?, std::time::Instant::now());
        for _ in 0..30 {
            ask("metrics/resource")?;
        }
        Ok(lists()? - before - begun.elapsed().as_secs_f64())
    });
    let least = least.collect::<Result<Vec<_>>>()?.into_iter().fold(f64::INFINITY, f64::min);
    ensure!(least < 15.0, "30 scrapes made {least} lists");
    create("two")?;
    ensure!(shown("two")?, "it has come since the last scrape");
    server.kubectl(&["delete", "pod", "one", "--wait=true", "--timeout=60s"])?;
    // Without a grace the object goes before its container does.
    node.wait_until("the first is off the page", Duration::from_secs(10), || Ok(!shown("one")?))?;
    ensure!(shown("two")?, "the other stays");
    // Away and back, and what was known before is not what is told.
    node.signal_containerd(Signal::SIGSTOP);
    let silent = node.wait_until("the page says that nothing is known", Duration::from_secs(60), || {
        Ok(ask("metrics/resource").is_ok_and(|page| page.contains("resource_scrape_error 1")))
    });
    node.signal_containerd(Signal::SIGCONT);
    silent?;
    node.wait_until("it is known again", Duration::from_secs(30), || shown("two"))
}
