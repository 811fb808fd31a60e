//! The commands' flags.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::bootstrap_token::NODE_GROUP;

/// Where the server keeps its state.
#[derive(Debug, Clone, Args)]
pub struct Folders {
    /// Folder of the server's state and keys.
    #[arg(long, default_value = "/var/lib/apiserver-lite")]
    pub data_dir: PathBuf,
    /// Folder of the keys, when not DATA_DIR/pki.
    #[arg(long)]
    pub cert_dir: Option<PathBuf>,
}

impl Folders {
    pub fn store(&self) -> PathBuf {
        self.data_dir.join("store")
    }

    pub fn pki(&self) -> PathBuf {
        self.cert_dir.clone().unwrap_or_else(|| self.data_dir.join("pki"))
    }
}

/// Copies the store and the cluster's authorities into one file; the server may run meanwhile.
#[derive(Debug, Clone, Args)]
pub struct BackupArgs {
    /// File to write; one that is there is not overwritten. It holds secrets and is for its owner's eyes only.
    pub file: PathBuf,
    #[command(flatten)]
    pub folders: Folders,
}

/// Makes a store of a backup where there is none; the server must not run.
#[derive(Debug, Clone, Args)]
pub struct RestoreArgs {
    /// File that `backup` wrote.
    pub file: PathBuf,
    #[command(flatten)]
    pub folders: Folders,
}

/// Verifies every checksum and every object of the store, or of a backup; the server may run meanwhile.
#[derive(Debug, Clone, Args)]
pub struct CheckArgs {
    /// Backup to verify instead of the store.
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub folders: Folders,
}

/// Makes, lists and deletes bootstrap tokens, with which nodes join.
#[derive(Debug, Clone, Args)]
pub struct TokenArgs {
    #[command(subcommand)]
    pub command: TokenCommand,
    /// Folder of the server's state; its admin.conf says how to reach the server.
    #[arg(long, global = true, default_value = "/var/lib/apiserver-lite")]
    pub data_dir: PathBuf,
    /// Kubeconfig of somebody who may write secrets in kube-system, instead of DATA_DIR/admin.conf.
    #[arg(long, global = true)]
    pub kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Clone, Subcommand)]
pub enum TokenCommand {
    /// Makes a token and prints it.
    Create(CreateArgs),
    /// Lists the tokens.
    List,
    /// Deletes tokens.
    Delete(DeleteArgs),
}

#[derive(Debug, Clone, Args)]
pub struct CreateArgs {
    /// The token, as six characters, a dot and sixteen; a random one when missing.
    pub token: Option<String>,
    /// How long it is good, such as 2h; 0 for ever.
    #[arg(long, default_value = "24h0m0s")]
    pub ttl: String,
    /// Print the command that lets a node join.
    #[arg(long)]
    pub print_join_command: bool,
    /// URL of the server in that command, when not the one in kube-public/cluster-info.
    #[arg(long)]
    pub server: Option<String>,
    /// What it is for, in a person's words.
    #[arg(long, default_value = "")]
    pub description: String,
    /// Groups of who shows it; they begin with system:bootstrappers:.
    #[arg(long, value_delimiter = ',', default_value = NODE_GROUP)]
    pub groups: Vec<String>,
    /// What it is good for: authentication, signing.
    #[arg(long, value_delimiter = ',', default_value = "authentication,signing")]
    pub usages: Vec<String>,
}

#[derive(Debug, Clone, Args)]
pub struct DeleteArgs {
    /// Tokens, or their first six characters.
    #[arg(required = true)]
    pub tokens: Vec<String>,
}
