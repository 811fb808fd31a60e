//! The thin binary `apiserver-lite`. Exit codes: 0 after a stop on request, 64 for wrong settings, 65 for a
//! damaged store or backup, 1 for the rest.

use std::path::Path;
use std::process::ExitCode;

use apiserver_lite::admin::{self, AdminError};
use apiserver_lite::config::{Cli, Command, Config, ConfigError, ServeArgs};
use apiserver_lite::serve::{self, ServeError};
use clap::Parser as _;
use service::journal::{self, Journal};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// `EX_USAGE` of sysexits.h: the settings are wrong, starting again will not help.
const USAGE: u8 = 64;

/// What is done at the start, and by the commands, walks trees as well.
fn main() -> ExitCode {
    let thread = std::thread::Builder::new().name("main".into()).stack_size(apiserver_lite::STACK).spawn(|| {
        proto::json::read_deep();
        begin()
    });
    match thread.map(std::thread::JoinHandle::join) {
        Ok(Ok(code)) => code,
        // It has said what it panicked about.
        Ok(Err(_)) => ExitCode::from(101),
        Err(error) => fail(&error, 1),
    }
}

fn begin() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Nobody reads standard error: nothing to be done about it.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    match cli.command {
        Command::Serve(args) => run(*args),
        Command::Kubeconfig(args) => match serve::write_kubeconfig(&args) {
            Ok(Some(text)) => {
                print!("{text}");
                ExitCode::SUCCESS
            }
            Ok(None) => ExitCode::SUCCESS,
            Err(error) => fail(&error, 1),
        },
        Command::Backup(args) => done(admin::backup(&args)),
        Command::Restore(args) => done(admin::restore(&args)),
        Command::Check(args) => done(admin::check(&args)),
        Command::Token(args) => match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => done(runtime.block_on(admin::token(&args))),
            Err(error) => fail(&error, 1),
        },
    }
}

fn done(outcome: Result<(), AdminError>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, error.code()),
    }
}

fn run(args: ServeArgs) -> ExitCode {
    let config = match Config::load(args) {
        Ok(config) => config,
        Err(ConfigError::CommandLine(error)) => {
            let _ = error.print();
            return ExitCode::from(USAGE);
        }
        Err(error) => return fail(&error, USAGE),
    };
    if config.args.check {
        let wrong = serve::check(&config);
        if !wrong.is_empty() {
            wrong.iter().for_each(|problem| eprintln!("apiserver-lite: {problem}"));
            return ExitCode::from(USAGE);
        }
        println!("the settings are valid");
        return ExitCode::SUCCESS;
    }
    service::memory::begin(2);
    log(&config.args);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "apiserver-lite");
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    threads.thread_stack_size(apiserver_lite::STACK).on_thread_start(proto::json::read_deep).enable_all();
    let runtime = match threads.build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error, 1),
    };
    match runtime.block_on(serve::run(config)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ ServeError::Setting { .. }) => fail(&error, USAGE),
        Err(error) => fail(&error, 1),
    }
}

fn log(args: &ServeArgs) {
    let level = match args.verbosity {
        0..=1 => "info",
        2..=4 => "debug",
        _ => "trace",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(format!("info,apiserver_lite={level}")));
    let registry = tracing_subscriber::registry().with(filter);
    let lines = fmt::layer().with_writer(std::io::stderr);
    let json = args.logging_format == "json";
    if !json
        && journal::is_standard_error()
        && let Ok(journal) = Journal::open("apiserver-lite", Path::new(journal::SOCKET))
    {
        return registry.with(journal).init();
    }
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
    if json {
        registry.with(lines.json()).init()
    } else {
        registry.with(lines.with_ansi(ansi).with_target(false)).init()
    }
}

fn fail(error: &dyn std::error::Error, code: u8) -> ExitCode {
    eprintln!("apiserver-lite: {error}");
    ExitCode::from(code)
}
