//! Subcommands for people and scripts: what the runtime says, and an end to all pods.

use std::process::ExitCode;
use std::time::Duration;

use crate::cri::{CriClient, CriError};

const DEFAULT_ENDPOINT: &str = "unix:///run/containerd/containerd.sock";

/// Runs a tool when the arguments name one: `runtime [--container-runtime-endpoint E] version`, `pods [...] stop`.
pub fn run(arguments: &[String]) -> Option<ExitCode> {
    let tool = arguments.first()?.as_str();
    if !matches!(tool, "runtime" | "pods") {
        return None;
    }
    let mut endpoint = DEFAULT_ENDPOINT.to_owned();
    let mut verb = String::new();
    let mut rest = arguments[1..].iter();
    while let Some(argument) = rest.next() {
        match argument.strip_prefix("--container-runtime-endpoint") {
            Some("") => endpoint = rest.next().cloned().unwrap_or_default(),
            Some(value) => endpoint = value.trim_start_matches('=').to_owned(),
            None => verb.clone_from(argument),
        }
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Some(failed(&error)),
    };
    let outcome = runtime.block_on(async {
        let cri = CriClient::new(&endpoint, None, Duration::from_secs(10))?;
        match (tool, verb.as_str()) {
            ("runtime", "version") => version(&cri).await.map(|()| true),
            ("pods", "stop") => stop_pods(&cri).await.map(|()| true),
            _ => Ok::<bool, CriError>(false),
        }
    });
    Some(match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("usage: node-agent runtime|pods [--container-runtime-endpoint ENDPOINT] version|stop");
            ExitCode::from(64)
        }
        Err(error) => failed(&error),
    })
}

fn failed(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("Error: {error}");
    ExitCode::from(1)
}

async fn version(cri: &CriClient) -> Result<(), CriError> {
    let version = cri.version().await?;
    println!("{} {} (CRI {})", version.runtime_name, version.runtime_version, version.runtime_api_version);
    Ok(())
}

/// Stops and removes every sandbox; the runtime ends their containers with them.
async fn stop_pods(cri: &CriClient) -> Result<(), CriError> {
    for sandbox in cri.list_pod_sandboxes(None).await? {
        let name = sandbox.metadata.map(|m| format!("{}/{}", m.namespace, m.name)).unwrap_or_default();
        cri.stop_pod_sandbox(&sandbox.id).await?;
        cri.remove_pod_sandbox(&sandbox.id).await?;
        println!("stopped {name}");
    }
    Ok(())
}
