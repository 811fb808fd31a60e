//! Subcommands for people and scripts: what the runtime says, and an end to the pods of this node.
//!
//! They talk to the runtime alone, so they work while neither the agent nor the API server runs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use futures_util::future::join_all;

use crate::checkpoint_archive;
use crate::cri::{CriClient, CriError};
use crate::join::{self, JoinOptions};
use crate::people;
use crate::pod::labels::{CONTAINER_NAME, POD_NAME, POD_NAMESPACE, POD_UID, TERMINATION_GRACE_PERIOD};
use crate::volumes::unmount_below;

#[derive(Parser)]
#[command(name = "node-agent", disable_help_subcommand = true)]
struct Tools {
    #[command(subcommand)]
    tool: Tool,
}

#[derive(Subcommand)]
enum Tool {
    /// Asks the runtime of this node.
    #[command(subcommand)]
    Runtime(RuntimeTool),
    /// Shows the pods of this node as the agent knows them, or acts on them without the agent.
    #[command(args_conflicts_with_subcommands = true)]
    Pods(Pods),
    /// Shows the node at a glance; works without the API server.
    Status(people::Common),
    /// Shows who uses the node's resources, and who waits for them.
    Top(people::TopOptions),
    /// Looks at checkpoints of containers.
    #[command(subcommand)]
    Checkpoint(CheckpointTool),
    Join(JoinOptions),
}

#[derive(Args)]
struct Pods {
    #[command(subcommand)]
    tool: Option<PodsTool>,
    #[command(flatten)]
    show: people::Common,
}

#[derive(Subcommand)]
enum RuntimeTool {
    /// Prints the runtime's name and version; fails when it does not answer.
    Version(Endpoint),
}

#[derive(Subcommand)]
enum PodsTool {
    /// Ends all containers and sandboxes and unmounts the pods' volumes. The agent starts them again when it runs.
    Stop(StopPods),
}

#[derive(Subcommand)]
enum CheckpointTool {
    /// Tells what a checkpoint's archive holds; nothing is unpacked.
    Inspect(Inspect),
}

#[derive(Args)]
struct Inspect {
    /// The archive.
    file: PathBuf,
    /// `text`, or `json` with the whole descriptions.
    #[arg(short, long, value_name = "FORM", default_value = "text")]
    output: String,
}

#[derive(Args)]
struct Endpoint {
    /// Socket of the CRI runtime.
    #[arg(long, value_name = "ENDPOINT", default_value = "unix:///run/containerd/containerd.sock")]
    container_runtime_endpoint: String,
}

#[derive(Args)]
struct StopPods {
    #[command(flatten)]
    endpoint: Endpoint,
    /// The agent's state; pods that it does not know of are left alone.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    root_dir: PathBuf,
    /// Longest grace that a container gets, in seconds; its pod may ask for less.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    grace_period: u32,
}

/// Runs a tool when the first argument names one.
pub fn run(arguments: &[String]) -> Option<ExitCode> {
    if !matches!(
        arguments.first().map(String::as_str),
        Some("runtime" | "pods" | "status" | "top" | "checkpoint" | "join")
    ) {
        return None;
    }
    let parsed = Tools::try_parse_from(std::iter::once("node-agent").chain(arguments.iter().map(String::as_str)));
    let tool = match parsed {
        Ok(tools) => tools.tool,
        Err(error) => {
            // Help goes to standard output and is no failure. A closed pipe is all that can go wrong in printing.
            let _ = error.print();
            return Some(if error.use_stderr() { ExitCode::from(64) } else { ExitCode::SUCCESS });
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Some(failed(&error)),
    };
    Some(runtime.block_on(async {
        let outcome = match tool {
            Tool::Runtime(RuntimeTool::Version(endpoint)) => version(&endpoint).await.map_err(|e| endpoint.failed(&e)),
            Tool::Pods(Pods { tool: Some(PodsTool::Stop(options)), .. }) => {
                stop_pods(&options).await.map_err(|e| options.endpoint.failed(&e))
            }
            Tool::Pods(Pods { tool: None, show }) => Ok(people::pods(&show).await),
            Tool::Status(common) => Ok(people::status(&common).await),
            Tool::Top(options) => Ok(people::top(&options).await),
            Tool::Checkpoint(CheckpointTool::Inspect(options)) => Ok(inspect(&options)),
            Tool::Join(options) => Ok(join::run(&options).await),
        };
        outcome.unwrap_or_else(|code| code)
    }))
}

fn failed(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("Error: {error}");
    ExitCode::from(1)
}

impl Endpoint {
    fn failed(&self, error: &CriError) -> ExitCode {
        eprintln!("Error: {}: {error}", self.container_runtime_endpoint);
        ExitCode::from(1)
    }

    /// `patience`: how long one call may take.
    fn connect(&self, patience: Duration) -> Result<CriClient, CriError> {
        CriClient::new(&self.container_runtime_endpoint, None, patience)
    }
}

fn inspect(options: &Inspect) -> ExitCode {
    let found = match checkpoint_archive::inspect(&options.file) {
        Ok(found) => found,
        Err(error) => return failed(&error),
    };
    match options.output.as_str() {
        "text" => print!("{found}"),
        "json" => match serde_json::to_string_pretty(&found) {
            Ok(text) => println!("{text}"),
            Err(error) => return failed(&error),
        },
        other => {
            eprintln!("Error: unknown form {other:?}; text or json");
            return ExitCode::from(64);
        }
    }
    ExitCode::SUCCESS
}

async fn version(endpoint: &Endpoint) -> Result<ExitCode, CriError> {
    let version = endpoint.connect(Duration::from_secs(10))?.version().await?;
    println!("{} {} (CRI {})", version.runtime_name, version.runtime_version, version.runtime_api_version);
    Ok(ExitCode::SUCCESS)
}

/// Stops all pods at the same time. One that resists does not keep the others; it makes the exit code 1.
async fn stop_pods(options: &StopPods) -> Result<ExitCode, CriError> {
    // A runtime that is cut short takes the network plugin along and has to begin again, so it gets as long as the agent gives it.
    let cri = options.endpoint.connect(Duration::from_secs(120))?;
    let sandboxes = cri.list_pod_sandboxes(None).await?;
    let ours = sandboxes.into_iter().filter(|s| s.labels.get(POD_UID).is_some_and(|uid| known(&options.root_dir, uid)));
    let stopped = join_all(ours.map(|sandbox| {
        let cri = &cri;
        async move {
            let of = |label: &str| sandbox.labels.get(label).cloned().unwrap_or_default();
            let name = format!("{}/{}", of(POD_NAMESPACE), of(POD_NAME));
            match stop_pod(cri, &sandbox, options.grace_period).await {
                // An older sandbox of the same pod has nothing left that runs.
                Ok(()) if sandbox.state() != proto::cri::PodSandboxState::SandboxReady => {}
                Ok(()) => println!("stopped {name}"),
                Err(ref error) => {
                    eprintln!("Error: {name}: {error}");
                    return false;
                }
            }
            true
        }
    }))
    .await;
    let mut clean = stopped.into_iter().all(|done| done);
    if let Err(error) = unmount_below(&options.root_dir.join("pods")) {
        eprintln!("Error: {error}");
        clean = false;
    }
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Whether the agent made a folder for the pod. A uid with a slash in it is no uid of ours.
fn known(root_dir: &Path, uid: &str) -> bool {
    !uid.is_empty() && !uid.contains('/') && root_dir.join("pods").join(uid).is_dir()
}

/// Ends the containers with their grace, then the sandbox with its network. Both stay in the runtime's records, which
/// hold the restart counts and the logs.
async fn stop_pod(cri: &CriClient, sandbox: &proto::cri::PodSandbox, limit: u32) -> Result<(), CriError> {
    let uid = sandbox.labels.get(POD_UID).map(String::as_str);
    let containers = cri.list_containers(uid).await?;
    let mine = containers.iter().filter(|c| c.pod_sandbox_id == sandbox.id && c.labels.contains_key(CONTAINER_NAME));
    let running = mine.filter(|c| c.state() == proto::cri::ContainerState::ContainerRunning);
    let ended = join_all(running.map(|container| {
        let wished = container.annotations.get(TERMINATION_GRACE_PERIOD).and_then(|text| text.parse::<i64>().ok());
        let grace = wished.unwrap_or(i64::MAX).clamp(0, i64::from(limit));
        cri.stop_container(&container.id, grace)
    }))
    .await;
    cri.stop_pod_sandbox(&sandbox.id).await?;
    ended.into_iter().collect()
}
