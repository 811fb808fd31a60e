//! Logs of containers and of the agent, and its spans.

use proto::quantity::Quantity;

use crate::config::{Configuration, FeatureGates};

pub(super) fn logs(c: &Configuration, gates: &FeatureGates, errors: &mut Vec<String>) {
    if c.enable_system_log_query && !gates.enabled("NodeLogQuery") {
        errors.push("NodeLogQuery feature gate is required for enableSystemLogQuery".into());
    }
    if c.enable_system_log_query && !c.enable_system_log_handler {
        errors.push("enableSystemLogHandler is required for enableSystemLogQuery".into());
    }
    if c.container_log_max_workers < 1 {
        errors.push("containerLogMaxWorkers must be greater than or equal to 1".into());
    }
    if c.container_log_monitor_interval.nanos < 3_000_000_000 {
        errors.push("containerLogMonitorInterval must be a positive time duration greater than or equal to 3s".into());
    }
    if c.container_log_max_files <= 1 {
        errors.push("containerLogMaxFiles must be greater than 1".into());
    }
    let folder = c.pod_logs_dir.to_string_lossy();
    if !folder.starts_with('/') {
        errors.push(format!("pod logs path {folder:?} must be absolute path"));
    }
    if crate::config::load::clean(&folder) != folder {
        errors.push(format!("pod logs path {folder:?} must be normalized"));
    }
    if !folder.is_ascii() {
        errors.push(format!("pod logs path {folder:?} mut contains ASCII characters only"));
    }
}

/// What is wrong with the settings of the log.
pub(in crate::config) fn logging(c: &Configuration, gates: &FeatureGates) -> Vec<String> {
    let log = &c.logging;
    let mut errors = Vec::new();
    if !matches!(log.format.as_str(), "text" | "json") {
        errors.push(format!("logging.format: Invalid value: {:?}: Unsupported log format", log.format));
    } else if log.format == "json" && !gates.enabled("LoggingBetaOptions") {
        errors.push("logging.format: Forbidden: Log format json is disabled, see LoggingBetaOptions feature".into());
    }
    if log.flush_frequency.nanos <= 0 {
        errors
            .push(format!("logging.flushFrequency: Invalid value: {}: Must be greater than zero", log.flush_frequency));
    }
    if !(0..=i64::from(i32::MAX)).contains(&log.verbosity) {
        errors.push(format!("logging.verbosity: Invalid value: {}: Must be <= 2147483647", log.verbosity));
    }
    if !log.vmodule.is_empty() && log.format != "text" {
        errors.push("logging.vmodule: Forbidden: Only supported for text log format".into());
    }
    for (at, item) in log.vmodule.iter().enumerate() {
        if item.file_pattern.is_empty() {
            errors.push(format!("logging.vmodule[{at}]: Required value: File pattern must not be empty"));
        }
        if item.file_pattern.contains(['=', ',']) {
            errors.push(format!(
                "logging.vmodule[{at}]: Invalid value: {:?}: File pattern must not contain equal sign or comma",
                item.file_pattern
            ));
        }
        if item.verbosity > i64::from(i32::MAX) {
            errors.push(format!("logging.vmodule[{at}]: Invalid value: {}: Must be <= 2147483647", item.verbosity));
        }
    }
    for (format, options) in [("text", &log.options.text), ("json", &log.options.json)] {
        let buffer = options.info_buffer_size.parse::<Quantity>().is_ok_and(|q| !q.is_zero());
        for (name, set) in [("splitStream", options.split_stream), ("infoBufferSize", buffer)] {
            if set && !gates.enabled("LoggingAlphaOptions") {
                errors.push(format!(
                    "logging.options.{format}.{name}: Forbidden: Feature LoggingAlphaOptions is disabled"
                ));
            }
        }
    }
    errors
}

pub(super) fn tracing(c: &Configuration, _gates: &FeatureGates, errors: &mut Vec<String>) {
    let Some(tracing) = &c.tracing else { return };
    let rate = tracing.sampling_rate_per_million.unwrap_or(0);
    let mut bad_rate = |why: &str| errors.push(format!("tracing.samplingRatePerMillion: Invalid value: {rate}: {why}"));
    if rate < 0 {
        bad_rate("sampling rate must be positive");
    }
    if rate > 1_000_000 {
        bad_rate("sampling rate per million must be less than or equal to one million");
    }
    if let Some(endpoint) = &tracing.endpoint
        && let Some((scheme, _)) = endpoint.split_once("://")
        && !matches!(scheme, "dns" | "unix" | "unix-abstract")
    {
        errors.push(format!(
            "tracing.endpoint: Invalid value: {endpoint:?}: unsupported scheme: {scheme}.  Options are none, dns, unix, \
             or unix-abstract.  See https://github.com/grpc/grpc/blob/master/doc/naming.md"
        ));
    }
}
