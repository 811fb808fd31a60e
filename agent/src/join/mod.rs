//! `node-agent join`: makes this machine a node of a cluster by a bootstrap token.
//!
//! The server is asked for `kube-public/cluster-info` and believed only when its authority has the key that the caller
//! named, the token has signed the answer, and the server then shows a certificate of that authority. Written are the
//! authority, a drop-in of the agent's configuration and a kubeconfig with the token; the agent asks for its own
//! certificate with that when it starts, and the token is not needed again.
//!
//! Followed: kubeadm's `app/discovery/token` and `phases/kubelet`.

mod discovery;
mod files;
mod jws;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use discovery::Cluster;
use files::Written;

/// The unit that the packages bring.
const UNIT: &str = "node-agent.service";
/// Sockets of runtimes, the one that is taken first when there are both.
const SOCKETS: [&str; 2] = ["/run/containerd/containerd.sock", "/run/crio/crio.sock"];

/// Makes this machine a node of a cluster; `apiserver-lite token create --print-join-command` prints the whole command.
#[derive(Args, Debug)]
pub struct JoinOptions {
    /// The API server: https://HOST:PORT.
    server: String,
    /// Bootstrap token of the cluster.
    #[arg(long)]
    token: String,
    /// Hash of the key of the cluster's authority: sha256: and 64 hexadecimal digits; may be given several times, when
    /// the authority is being replaced.
    #[arg(long, required = true, alias = "discovery-token-ca-cert-hash", value_name = "HASH")]
    ca_hash: Vec<String>,
    /// Folder of the agent's configuration.
    #[arg(long, value_name = "DIR", default_value = "/etc/orchestrator-lite")]
    config_dir: PathBuf,
    /// Socket of the CRI runtime; containerd's or CRI-O's when missing, whichever is there.
    #[arg(long, value_name = "ENDPOINT")]
    container_runtime_endpoint: Option<String>,
    /// Only write the files.
    #[arg(long)]
    no_start: bool,
}

/// Why the machine did not join. Nothing was written, except after `Write` and `Start`.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("{0}")]
    Usage(String),
    #[error("{} is there: this machine has joined a cluster already; remove the file to join another", .0.display())]
    Joined(PathBuf),
    #[error("cannot reach {server}: {reason}")]
    Unreachable { server: String, reason: String },
    #[error("{server} {reason}")]
    Refused { server: String, reason: String },
    #[error(
        "the authority of {server} has the key {found}, and not the one of --ca-hash: this is another cluster, or \
             somebody in between"
    )]
    OtherAuthority { server: String, found: String },
    #[error(
        "the token {id} is not known at {server}, or it is over; make a new one there with: apiserver-lite token create \
             --print-join-command"
    )]
    UnknownToken { server: String, id: String },
    #[error("what {0} says of its cluster is not signed by the token: wrong token, or somebody in between")]
    BadSignature(String),
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("the files are written, but {0}")]
    Start(String),
}

/// Runs the command.
pub async fn run(options: &JoinOptions) -> ExitCode {
    match join(options, Path::new("/run/systemd/system")).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error}");
            ExitCode::from(if matches!(error, JoinError::Usage(_)) { 64 } else { 1 })
        }
    }
}

async fn join(options: &JoinOptions, booted: &Path) -> Result<(), JoinError> {
    let server = discovery::url(&options.server)?;
    let hashes = options.ca_hash.iter().map(|h| discovery::hash(h)).collect::<Result<Vec<_>, _>>()?;
    let token = jws::Token::parse(&options.token).ok_or_else(|| {
        JoinError::Usage("a token is six lower case letters or digits, a dot, and sixteen more".into())
    })?;
    // The agent that reads the files may be started elsewhere.
    let folder = std::path::absolute(&options.config_dir).unwrap_or_else(|_| options.config_dir.clone());
    let joined = folder.join(files::KUBECONFIG);
    if joined.exists() {
        return Err(JoinError::Joined(joined));
    }
    let cluster = Cluster::discover(&server, &token, &hashes).await?;
    println!("the cluster at {server} has the authority {}", cluster.hash);
    println!("the token {} is accepted, as {}", token.id(), cluster.user);
    let endpoint = options.container_runtime_endpoint.clone().or_else(runtime);
    let written = files::write(&folder, &cluster, &token, endpoint.as_deref())?;
    for path in &written.paths {
        println!("wrote {}", path.display());
    }
    if endpoint.is_none() {
        println!("no CRI runtime found ({}): install one, or the node will not be Ready", SOCKETS.join(", "));
    }
    if options.no_start {
        return Ok(());
    }
    if !booted.is_dir() {
        println!("systemd does not run here; start the agent with:\n  {}", command(&folder, &written));
        return Ok(());
    }
    start().await?;
    println!("started {UNIT}; it asks for the node's certificate now: journalctl -u {UNIT} shows how it goes");
    Ok(())
}

/// The socket of a runtime that is there.
fn runtime() -> Option<String> {
    SOCKETS.into_iter().find(|path| Path::new(path).exists()).map(|path| format!("unix://{path}"))
}

/// What a person types who has no systemd.
fn command(folder: &Path, written: &Written) -> String {
    format!(
        "node-agent run --config {} --config-dir {} --bootstrap-kubeconfig {} --kubeconfig {}",
        written.config.display(),
        folder.join(files::DROP_INS).display(),
        folder.join(files::BOOTSTRAP).display(),
        folder.join(files::KUBECONFIG).display(),
    )
}

/// Starts the agent now and at every boot. A unit that runs already, without a cluster, is started anew.
async fn start() -> Result<(), JoinError> {
    for verb in ["enable", "restart"] {
        let told = tokio::process::Command::new("systemctl").args(["--no-block", verb, UNIT]).output().await;
        let told = told.map_err(|e| JoinError::Start(format!("systemctl does not run: {e}")))?;
        if !told.status.success() {
            let said = String::from_utf8_lossy(&told.stderr);
            return Err(JoinError::Start(format!("systemctl {verb} {UNIT} failed: {}", said.trim())));
        }
    }
    Ok(())
}
