//! The same pods by the runtime's own calls, without an agent: what of their time is the runtime's.
//!
//! Each pod asks what the agent asks for it, in the same order, and all pods at once as the agent's workers do. The files
//! that the agent mounts into every container lie there before, and processes are set apart as it sets them: a container
//! that shares its processes with its sandbox ends at the first signal, where one of its own sits out its grace.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use proto::cri;
use proto::cri::runtime_service_client::RuntimeServiceClient;
use tests::node::{IMAGE, Node};
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};

type Runtime = RuntimeServiceClient<Channel>;

/// Where a container finds what is mounted for it, and which file that is.
const MOUNTED: [(&str, &str); 2] = [("/etc/hosts", "etc-hosts"), ("/dev/termination-log", "termination-log")];
/// The same for its token, which is a folder.
const TOKEN: (&str, &str) = ("/var/run/secrets/kubernetes.io/serviceaccount", "token");

/// What the agent has hidden and made read-only of every container that asks for nothing else: a mount each, which the
/// runtime makes one by one.
const MASKED: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// One pod and what it got.
struct Pod {
    sandbox: String,
    container: String,
}

/// Starts `count` pods, then ends them; the time for each.
pub async fn pods(node: &Node, count: usize) -> Result<(Duration, Duration)> {
    let endpoint = Endpoint::try_from(format!("unix://{}", node.dir.join("cri.sock").display()))?;
    let runtime = Runtime::new(endpoint.connect().await?);
    let folder = Arc::new(node.dir.join("direct"));
    let begun = Instant::now();
    let mut starting = JoinSet::new();
    for number in 0..count {
        starting.spawn(start(runtime.clone(), folder.clone(), number));
    }
    let mut running = Vec::with_capacity(count);
    while let Some(started) = starting.join_next().await {
        running.push(started??);
    }
    let started = begun.elapsed();
    let begun = Instant::now();
    let mut ending: JoinSet<Result<()>> = running.into_iter().map(|pod| end(runtime.clone(), pod)).collect();
    while let Some(ended) = ending.join_next().await {
        ended??;
    }
    Ok((started, begun.elapsed()))
}

async fn start(mut runtime: Runtime, folder: Arc<PathBuf>, number: usize) -> Result<Pod> {
    let own = folder.join(number.to_string());
    std::fs::create_dir_all(own.join("logs/c"))?;
    std::fs::create_dir_all(own.join(TOKEN.1))?;
    for (_, file) in MOUNTED {
        std::fs::write(own.join(file), "")?;
    }
    let config = sandbox(&own, number);
    let request = cri::RunPodSandboxRequest { config: Some(config.clone()), ..Default::default() };
    let sandbox = runtime.run_pod_sandbox(request).await?.into_inner().pod_sandbox_id;
    runtime
        .pod_sandbox_status(cri::PodSandboxStatusRequest { pod_sandbox_id: sandbox.clone(), verbose: false })
        .await?;
    let request = cri::CreateContainerRequest {
        pod_sandbox_id: sandbox.clone(),
        config: Some(container(&own)?),
        sandbox_config: Some(config),
    };
    let container = runtime.create_container(request).await?.into_inner().container_id;
    runtime.start_container(cri::StartContainerRequest { container_id: container.clone() }).await?;
    runtime.container_status(cri::ContainerStatusRequest { container_id: container.clone(), verbose: false }).await?;
    Ok(Pod { sandbox, container })
}

async fn end(mut runtime: Runtime, pod: Pod) -> Result<()> {
    let Pod { sandbox, container } = pod;
    // Of a grace of one second the agent makes two, as the kubelet does.
    runtime.stop_container(cri::StopContainerRequest { container_id: container.clone(), timeout: 2 }).await?;
    runtime.stop_pod_sandbox(cri::StopPodSandboxRequest { pod_sandbox_id: sandbox.clone() }).await?;
    runtime.remove_container(cri::RemoveContainerRequest { container_id: container }).await?;
    runtime.remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id: sandbox }).await?;
    Ok(())
}

fn sandbox(own: &Path, number: usize) -> cri::PodSandboxConfig {
    let name = format!("direct{number}");
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            uid: format!("00000000-0000-0000-0000-{number:012}"),
            namespace: "default".into(),
            name: name.clone(),
            attempt: 0,
        }),
        hostname: name,
        log_directory: own.join("logs").display().to_string(),
        linux: Some(cri::LinuxPodSandboxConfig {
            security_context: Some(cri::LinuxSandboxSecurityContext {
                namespace_options: Some(apart()),
                // The sandbox of every pod has the runtime's own filter, which the runtime compiles each time.
                seccomp: Some(cri::SecurityProfile {
                    profile_type: cri::security_profile::ProfileType::RuntimeDefault.into(),
                    localhost_ref: String::new(),
                }),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// The network and the messages are the pod's, processes are each container's.
fn apart() -> cri::NamespaceOption {
    cri::NamespaceOption { pid: cri::NamespaceMode::Container.into(), ..Default::default() }
}

fn container(own: &Path) -> Result<cri::ContainerConfig> {
    let mount = |(inside, file): (&str, &str)| -> Result<cri::Mount> {
        let host_path = own.join(file).to_str().context("a path in text")?.to_owned();
        Ok(cri::Mount { container_path: inside.to_owned(), host_path, ..Default::default() })
    };
    let token = cri::Mount { readonly: true, ..mount(TOKEN)? };
    let limits = cri::LinuxContainerResources { cpu_shares: 2, oom_score_adj: 1000, ..Default::default() };
    Ok(cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: "c".into(), attempt: 0 }),
        image: Some(cri::ImageSpec { image: IMAGE.into(), ..Default::default() }),
        command: ["sleep", "1000000"].map(Into::into).into(),
        mounts: MOUNTED.into_iter().map(mount).chain([Ok(token)]).collect::<Result<_>>()?,
        labels: BTreeMap::from([("io.kubernetes.container.name".into(), "c".into())]),
        log_path: "c/0.log".into(),
        linux: Some(cri::LinuxContainerConfig {
            resources: Some(limits),
            security_context: Some(cri::LinuxContainerSecurityContext {
                namespace_options: Some(apart()),
                masked_paths: MASKED.map(Into::into).into(),
                readonly_paths: READ_ONLY.map(Into::into).into(),
                ..Default::default()
            }),
        }),
        ..Default::default()
    })
}
