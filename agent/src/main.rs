//! The thin binary `node-agent`. Exit codes, the kubelet's: 0 after a stop on request, 1 for what is refused or fails at
//! start, 2 for a fault of the program.

use std::io::IsTerminal;
use std::process::ExitCode;

use agent::cli::{self, Command};
use agent::{config, daemon, log_level, node};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{fmt, reload};

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let tool = agent::tools::run(&arguments).or_else(|| cli::run_config_command(&arguments));
    if let Some(code) = tool.or_else(|| agent::doctor::run(&arguments)) {
        return code;
    }
    let flags = match cli::parse(arguments.drain(..)) {
        Ok(Command::Run(flags)) => *flags,
        Ok(Command::Help) => {
            print!("{}", cli::help());
            return ExitCode::SUCCESS;
        }
        Ok(Command::Version) => {
            println!("Kubernetes {}", node::KUBELET_VERSION);
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("Error: {error}\nRun 'node-agent --help' for the flags.");
            return ExitCode::from(1);
        }
    };
    if !flags.silence_deprecations {
        for flag in &flags.deprecated {
            eprintln!("Flag --{flag} has been deprecated, set its field in the file that --config names instead");
        }
    }
    let loaded = match config::load(&flags.sources) {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("Error: {error}");
            return ExitCode::from(1);
        }
    };
    start_log(&loaded.config.logging);
    for oddity in &loaded.oddities {
        tracing::warn!("configuration: {oddity}");
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "cannot start");
            return ExitCode::from(1);
        }
    };
    let outcome = runtime.block_on(daemon::run(flags, loaded));
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("failed to run Kubelet: {error}");
            ExitCode::from(1)
        }
    }
}

fn start_log(logging: &config::Logging) {
    let verbosity = u32::try_from(logging.verbosity).unwrap_or(0);
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| log_level::filter(verbosity));
    let (filter, handle) = reload::Layer::new(filter);
    log_level::changes_by(move |filter| handle.reload(filter).map_err(|e| e.to_string()));
    let lines = fmt::layer().with_writer(std::io::stderr);
    // The journal keeps its own times.
    let under_journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let registry = tracing_subscriber::registry().with(filter);
    match (logging.format.as_str(), under_journal) {
        ("json", _) => registry.with(lines.json()).init(),
        (_, true) => registry.with(lines.without_time().with_ansi(false)).init(),
        _ => registry.with(lines.with_ansi(std::io::stderr().is_terminal())).init(),
    }
}
