//! `node-agent status`, `pods` and `top`: this node for people, from its own sockets; the API server may be gone.

mod bars;
mod client;
mod pods;
mod status;
mod table;
mod top;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
pub use table::printable;

pub use client::AskError;

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// What every command takes.
#[derive(Args, Debug, Clone)]
pub struct Common {
    /// The agent's state, where its sockets are.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    root_dir: PathBuf,
    /// Text for people, JSON for programs.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

/// Options of `top`.
#[derive(Args, Debug, Clone)]
pub struct TopOptions {
    #[command(flatten)]
    common: Common,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// Prints once and ends.
    #[arg(long)]
    once: bool,
}

/// `node-agent status`.
pub async fn status(common: &Common) -> ExitCode {
    ended(status::run(common).await)
}

/// `node-agent pods`.
pub async fn pods(common: &Common) -> ExitCode {
    ended(pods::run(common).await)
}

/// `node-agent top`.
pub async fn top(options: &TopOptions) -> ExitCode {
    ended(top::run(options).await)
}

fn ended(outcome: Result<(), AskError>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has closed the pipe: `node-agent pods | head`.
        Err(AskError::Print(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error}");
            ExitCode::from(1)
        }
    }
}
