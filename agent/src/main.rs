//! The thin binary `node-agent`. Exit codes, the kubelet's: 0 after a stop on request, 1 for what is refused or fails at
//! start, 2 for a fault of the program. Under systemd 64 for what is refused, see [`refused`].

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use agent::cli::{self, Command};
use agent::settings::{LogFormat, OwnSettings};
use agent::{capabilities, config, daemon, log_level, node};
use service::journal::{self, Journal};
use service::notify;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{fmt, reload};

fn main() -> ExitCode {
    // Its threads wait for others nearly always, and seldom both at once for memory.
    service::memory::begin(1);
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == ["version"] {
        println!("Kubernetes {}\nnode-agent {}", node::KUBELET_VERSION, env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
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
        Ok(Command::Version { raw: true }) => {
            println!("{}", cli::raw_version());
            return ExitCode::SUCCESS;
        }
        Ok(Command::Version { raw: false }) => {
            println!("Kubernetes {}", node::KUBELET_VERSION);
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("Error: {error}\nRun 'node-agent --help' for the flags.");
            return refused();
        }
    };
    if !flags.silence_deprecations {
        for flag in &flags.deprecated {
            eprintln!("Flag --{flag} has been deprecated, {}", cli::instead_of(flag));
        }
    }
    let loaded = match config::load(&flags.sources) {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("Error: {error}");
            for place in config::wrong_types(&flags.sources) {
                eprintln!("  at {place}");
            }
            return if error.stays() { refused() } else { ExitCode::from(1) };
        }
    };
    let settings = match OwnSettings::load(flags.settings.as_deref()) {
        Ok(settings) => settings,
        Err(errors) => {
            for error in errors {
                eprintln!("Error: {error}");
            }
            return refused();
        }
    };
    let privileges = settings.drop_capabilities.then(capabilities::drop_unneeded);
    start_log(&loaded.config.logging, &settings);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), kubernetes = node::KUBELET_VERSION, "node-agent");
    let idle = config::without_effect(&loaded);
    let deprecated = loaded.deprecated.iter().filter(|_| !flags.silence_deprecations);
    for oddity in loaded.oddities.iter().chain(&idle).chain(deprecated) {
        tracing::warn!("configuration: {oddity}");
    }
    if let Some(outcome) = privileges {
        outcome.log();
    }
    // Clients have a thread of their own, so that however many come, pods go on as if there were none. Of the others there
    // are two, so that one that is held up cannot hold the watchdog; more are woken for what one could have done.
    let threads = |name, count| {
        let mut threads = tokio::runtime::Builder::new_multi_thread();
        threads.thread_name(name).worker_threads(count).enable_all().build()
    };
    let both = threads("pods", settings.worker_threads).and_then(|pods| Ok((pods, threads("clients", 1)?)));
    let (runtime, serving) = match both {
        Ok(both) => both,
        Err(error) => {
            tracing::error!(%error, "cannot start");
            return ExitCode::from(1);
        }
    };
    let outcome = runtime.block_on(daemon::run(flags, loaded, serving.handle().clone()));
    // One time for both: the second may have what the first left.
    let end = Instant::now() + settings.stop_timeout;
    serving.shutdown_timeout(settings.stop_timeout);
    runtime.shutdown_timeout(end.saturating_duration_since(Instant::now()));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("failed to run Kubelet: {error}");
            ExitCode::from(1)
        }
    }
}

/// Flags or files are wrong, and stay so until somebody mends them. Whoever starts a kubelet knows 1; systemd, which
/// would start the agent again, is told to leave it alone by a code of its own. It alone numbers its starts.
fn refused() -> ExitCode {
    let by_systemd = notify::is_listened_to() && std::env::var_os("INVOCATION_ID").is_some();
    ExitCode::from(if by_systemd { 64 } else { 1 })
}

fn start_log(logging: &config::Logging, settings: &OwnSettings) {
    let (filter, handle) = reload::Layer::new(log_level::initial(logging, settings));
    log_level::changes_by(move |filter| handle.reload(filter).map_err(|e| e.to_string()));
    let registry = tracing_subscriber::registry().with(filter);
    let lines = fmt::layer().with_writer(std::io::stderr);
    let under_journal = journal::is_standard_error();
    let format = match settings.log_format {
        LogFormat::Auto if logging.format == "json" => LogFormat::Json,
        LogFormat::Auto if under_journal => LogFormat::Journal,
        given => given,
    };
    let mut trouble = None;
    match format {
        LogFormat::Json => registry.with(lines.json()).init(),
        LogFormat::Journal => match Journal::open("node-agent", Path::new(journal::SOCKET)) {
            Ok(journal) => registry.with(journal).init(),
            Err(error) => {
                registry.with(lines.with_ansi(false)).init();
                trouble = Some(error);
            }
        },
        // The journal keeps its own times.
        _ if under_journal => registry.with(lines.without_time().with_ansi(false)).init(),
        _ => registry.with(lines.with_ansi(std::io::stderr().is_terminal())).init(),
    }
    if let Some(error) = trouble {
        tracing::warn!(%error, "the journal cannot be written to; logging to standard error");
    }
}
