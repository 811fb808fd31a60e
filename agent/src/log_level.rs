//! How much the agent logs: chosen at the start, changed while it runs by `/debug/flags/v`.
//!
//! The subscriber is the process's own, so the way to change it is too.

use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;

use crate::config::Logging;
use crate::settings::OwnSettings;

type Change = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

static CHANGE: OnceLock<Change> = OnceLock::new();

/// The filter of a verbosity as the kubelet's `-v` counts it.
pub fn filter(verbosity: u32) -> EnvFilter {
    EnvFilter::new(match verbosity {
        ..=1 => "info",
        2..=5 => "agent=debug,info",
        _ => "agent=trace,debug",
    })
}

/// What is logged at the start: by `RUST_LOG`, else the daemon's own settings, else the verbosity.
pub fn initial(logging: &Logging, settings: &OwnSettings) -> EnvFilter {
    EnvFilter::try_from_default_env().unwrap_or_else(|_| chosen(logging, settings))
}

fn chosen(logging: &Logging, settings: &OwnSettings) -> EnvFilter {
    let given = settings.log_filter.as_deref().and_then(|directives| EnvFilter::try_new(directives).ok());
    given.unwrap_or_else(|| filter(u32::try_from(logging.verbosity).unwrap_or(0)))
}

/// How the running subscriber takes a new filter. The first caller's way stays.
pub fn changes_by(change: impl Fn(EnvFilter) -> Result<(), String> + Send + Sync + 'static) {
    if CHANGE.set(Box::new(change)).is_err() {
        tracing::debug!("the log's filter is changed by what was there first");
    }
}

/// By the files that were read again; whoever set `RUST_LOG` meant it for a look at the start.
///
/// # Errors
/// As [`set`].
pub fn set_by(logging: &Logging, settings: &OwnSettings) -> Result<(), String> {
    change(chosen(logging, settings))
}

/// # Errors
/// Nothing can be changed, with the reason.
pub fn set(verbosity: u32) -> Result<(), String> {
    change(filter(verbosity))
}

fn change(filter: EnvFilter) -> Result<(), String> {
    match CHANGE.get() {
        Some(change) => change(filter),
        None => Err("the log cannot be changed while it runs".into()),
    }
}
