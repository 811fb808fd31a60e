//! How much the agent logs: chosen at the start, changed while it runs by `/debug/flags/v`.
//!
//! The subscriber is the process's own, so the way to change it is too.

use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;

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

/// How the running subscriber takes a new filter. The first caller's way stays.
pub fn changes_by(change: impl Fn(EnvFilter) -> Result<(), String> + Send + Sync + 'static) {
    if CHANGE.set(Box::new(change)).is_err() {
        tracing::debug!("the log's filter is changed by what was there first");
    }
}

/// # Errors
/// Nothing can be changed, with the reason.
pub fn set(verbosity: u32) -> Result<(), String> {
    match CHANGE.get() {
        Some(change) => change(filter(verbosity)),
        None => Err("the log cannot be changed while it runs".into()),
    }
}
