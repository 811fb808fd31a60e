//! What a configuration must satisfy before anything starts; the texts and their order are the kubelet's.

use std::collections::BTreeSet;

use proto::quantity::Quantity;

use super::start::cpu_set;
use super::{Configuration, FeatureGates, GoDuration};

/// One group of rules.
type Check = fn(&Configuration, &FeatureGates, &mut Vec<String>);

/// The rules in the kubelet's order, and whether what they say begins with its usual words.
const CHECKS: &[(Check, bool)] = &[
    (node, true),
    (image_collection, true),
    (network, true),
    (pulls, true),
    (taints, false),
    (choices, true),
    (shutdown, true),
    (runtime, true),
    (enforcement, true),
    (pull_policy, true),
    (reservations, true),
    (operating_system, true),
    (hidden_metrics, false),
    (tracing, false),
    (qos, true),
    (logs, true),
];

/// All violations, in the order in which the kubelet names them.
pub(super) fn check(c: &Configuration, gates: &FeatureGates) -> Vec<String> {
    let mut all = Vec::new();
    for (check, usual) in CHECKS {
        let mut found = Vec::new();
        check(c, gates, &mut found);
        all.extend(found.into_iter().map(|error| if *usual { format!("{USUAL}{error}") } else { error }));
    }
    all
}

const USUAL: &str = "invalid configuration: ";

fn port_out_of_range(port: i32) -> bool {
    !(1..=65535).contains(&port)
}

fn not_negative(errors: &mut Vec<String>, fields: &[(&str, &str, i64)]) {
    for (name, flag, value) in fields.iter().filter(|(.., value)| *value < 0) {
        errors.push(format!("{name} ({flag}) {value} must not be a negative number"));
    }
}

fn node(c: &Configuration, gates: &FeatureGates, errors: &mut Vec<String>) {
    if c.node_lease_duration_seconds <= 0 {
        errors.push("nodeLeaseDurationSeconds must be greater than 0".into());
    }
    if !c.system_cgroups.is_empty() && c.cgroup_root.is_empty() {
        errors.push(
            "systemCgroups (--system-cgroups) was specified and cgroupRoot (--cgroup-root) was not specified".into(),
        );
    }
    not_negative(
        errors,
        &[
            ("eventBurst", "--event-burst", c.event_burst.into()),
            ("eventRecordQPS", "--event-qps", c.event_record_qps.into()),
        ],
    );
    if c.healthz_port != 0 && port_out_of_range(c.healthz_port) {
        errors.push(format!("healthzPort (--healthz-port) {} must be between 1 and 65535, inclusive", c.healthz_port));
    }
    if !gates.enabled("CustomCPUCFSQuotaPeriod") {
        if c.cpu_cfs_quota_period.nanos != 100_000_000 {
            errors.push(format!(
                "cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {{{}}} requires feature gate CustomCPUCFSQuotaPeriod",
                c.cpu_cfs_quota_period
            ));
        }
    } else if !(1_000_000..=1_000_000_000).contains(&c.cpu_cfs_quota_period.nanos) {
        errors.push(format!(
            "cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {{{}}} must be between 1ms and 1sec, inclusive",
            c.cpu_cfs_quota_period
        ));
    }
}

fn image_collection(c: &Configuration, _gates: &FeatureGates, errors: &mut Vec<String>) {
    let (low, high) = (c.image_gc_low_threshold_percent, c.image_gc_high_threshold_percent);
    for (name, flag, value) in [
        ("imageGCHighThresholdPercent", "--image-gc-high-threshold", high),
        ("imageGCLowThresholdPercent", "--image-gc-low-threshold", low),
    ] {
        if !(0..=100).contains(&value) {
            errors.push(format!("{name} ({flag}) {value} must be between 0 and 100, inclusive"));
        }
    }
    if low >= high {
        errors.push(format!(
            "imageGCLowThresholdPercent (--image-gc-low-threshold) {low} must be less than \
             imageGCHighThresholdPercent (--image-gc-high-threshold) {high}"
        ));
    }
    let (minimum, maximum) = (c.image_minimum_gc_age, c.image_maximum_gc_age);
    for (name, age) in [("imageMinimumGCAge", minimum), ("imageMaximumGCAge", maximum)] {
        if age.nanos < 0 {
            errors.push(format!("{name} {age} must not be negative"));
        }
    }
    if maximum.nanos > 0 && maximum <= minimum {
        errors.push(format!("imageMaximumGCAge {maximum} must be greater than imageMinimumGCAge {minimum}"));
    }
}

fn network(c: &Configuration, _gates: &FeatureGates, errors: &mut Vec<String>) {
    for (name, flag, bit) in [
        ("iptablesDropBit", "--iptables-drop-bit", c.iptables_drop_bit),
        ("iptablesMasqueradeBit", "--iptables-masquerade-bit", c.iptables_masquerade_bit),
    ] {
        if !(0..=31).contains(&bit) {
            errors.push(format!("{name} ({flag}) {bit} must be between 0 and 31, inclusive"));
        }
    }
    not_negative(
        errors,
        &[
            ("kubeAPIBurst", "--kube-api-burst", c.kube_api_burst.into()),
            ("kubeAPIQPS", "--kube-api-qps", c.kube_api_qps.into()),
        ],
    );
    if c.node_status_max_images < -1 {
        errors.push(format!(
            "nodeStatusMaxImages (--node-status-max-images) {} must be -1 or greater",
            c.node_status_max_images
        ));
    }
    not_negative(
        errors,
        &[("maxOpenFiles", "--max-open-files", c.max_open_files), ("maxPods", "--max-pods", c.max_pods.into())],
    );
    if !(-1000..=1000).contains(&c.oom_score_adj) {
        errors.push(format!(
            "oomScoreAdj (--oom-score-adj) {} must be between -1000 and 1000, inclusive",
            c.oom_score_adj
        ));
    }
    not_negative(errors, &[("podsPerCore", "--pods-per-core", c.pods_per_core.into())]);
    if port_out_of_range(c.port) {
        errors.push(format!("port (--port) {} must be between 1 and 65535, inclusive", c.port));
    }
    if c.read_only_port != 0 && port_out_of_range(c.read_only_port) {
        errors.push(format!(
            "readOnlyPort (--read-only-port) {} must be between 0 and 65535, inclusive",
            c.read_only_port
        ));
    }
}

fn pulls(c: &Configuration, gates: &FeatureGates, errors: &mut Vec<String>) {
    not_negative(
        errors,
        &[
            ("registryBurst", "--registry-burst", c.registry_burst.into()),
            ("registryPullQPS", "--registry-qps", c.registry_pull_qps.into()),
        ],
    );
    if let Some(parallel) = c.max_parallel_image_pulls {
        if parallel < 1 {
            errors.push(format!("maxParallelImagePulls {parallel} must be a positive number"));
        }
        if c.serialize_image_pulls && parallel > 1 {
            errors.push(
                "maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls (--serialize-image-pulls) \
                 is set to false"
                    .into(),
            );
        }
    }
    if c.server_tls_bootstrap && !gates.enabled("RotateKubeletServerCertificate") {
        errors.push("serverTLSBootstrap true requires feature gate RotateKubeletServerCertificate".into());
    }
    if c.run_once {
        errors.push(format!(
            "runOnce (--runOnce) {}, Runonce mode has been deprecated and should not be set",
            c.run_once
        ));
    }
}

fn hidden_metrics(c: &Configuration, _gates: &FeatureGates, errors: &mut Vec<String>) {
    errors.extend(crate::metrics::shows_hidden(&c.show_hidden_metrics_for_version).err());
}

fn taints(c: &Configuration, _gates: &FeatureGates, errors: &mut Vec<String>) {
    for taint in &c.register_with_taints {
        let effect = matches!(taint.effect.as_str(), "" | "NoSchedule" | "PreferNoSchedule" | "NoExecute");
        let word = |text: &str| {
            let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
            let bytes = text.as_bytes();
            text.len() <= 63
                && edge(bytes.first())
                && edge(bytes.last())
                && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        };
        let key = crate::cli::name_errors(&taint.key).is_empty();
        if !key || !(taint.value.is_empty() || word(&taint.value)) || !effect {
            let added = taint.time_added.as_deref().unwrap_or("<nil>");
            errors.push(format!("invalid taint: {{{} {} {} {added}}}", taint.key, taint.value, taint.effect));
        }
        if taint.time_added.is_some() {
            errors.push(format!("{USUAL}taint.TimeAdded is not nil"));
        }
    }
}

fn choices(c: &Configuration, _gates: &FeatureGates, errors: &mut Vec<String>) {
    let policies = ["none", "best-effort", "restricted", "single-numa-node"];
    if !policies.contains(&c.topology_manager_policy.as_str()) {
        errors.push(format!(
            "topologyManagerPolicy (--topology-manager-policy) {:?} must be one of: [\"none\" \"best-effort\" \
             \"restricted\" \"single-numa-node\"]",
            c.topology_manager_policy
        ));
    }
    if !matches!(c.topology_manager_scope.as_str(), "container" | "pod") {
        errors.push(format!(
            "topologyManagerScope (--topology-manager-scope) {:?} must be one of: \"container\", or \"pod\"",
            c.topology_manager_scope
        ));
    }
}

fn shutdown(c: &Configuration, gates: &FeatureGates, errors: &mut Vec<String>) {
    let (all, critical) = (c.shutdown_grace_period, c.shutdown_grace_period_critical_pods);
    let by_priority = !c.shutdown_grace_period_by_pod_priority.is_empty();
    if gates.enabled("GracefulNodeShutdown") {
        if critical > all {
            errors.push(format!(
                "shutdownGracePeriodCriticalPods {{{critical}}} must be <= shutdownGracePeriod {{{all}}}"
            ));
        }
        for (name, period) in [("shutdownGracePeriod", all), ("shutdownGracePeriodCriticalPods", critical)] {
            if period.nanos != 0 && period.nanos < SECOND {
                errors.push(format!("{name} {{{period}}} must be either zero or otherwise >= 1 sec"));
            }
        }
    } else if all.nanos > 0 || critical.nanos > 0 {
        errors.push(
            "specifying shutdownGracePeriod or shutdownGracePeriodCriticalPods requires feature gate \
             GracefulNodeShutdown"
                .into(),
        );
    }
    if by_priority && !gates.enabled("GracefulNodeShutdownBasedOnPodPriority") {
        errors.push(
            "Specifying shutdownGracePeriodByPodPriority requires feature gate GracefulNodeShutdownBasedOnPodPriority"
                .into(),
        );
    } else if by_priority && (all.nanos > 0 || critical.nanos > 0) {
        errors.push(
            "Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time".into(),
        );
    }
}

const SECOND: i64 = 1_000_000_000;

fn runtime(c: &Configuration, gates: &FeatureGates, errors: &mut Vec<String>) {
    if !matches!(c.memory_swap.swap_behavior.as_str(), "" | "NoSwap" | "LimitedSwap") {
        errors.push(format!(
            "memorySwap.swapBehavior {:?} must be one of: \"\", \"LimitedSwap\" or \"NoSwap\"",
            c.memory_swap.swap_behavior
        ));
    }
    let period = c.crash_loop_back_off.max_container_restart_period;
    match (gates.enabled("KubeletCrashLoopBackOffMax"), period) {
        (true, None) => errors.push(
            "FeatureGate KubeletCrashLoopBackOffMax is enabled, CrashLoopBackOff.MaxContainerRestartPeriod must be set"
                .into(),
        ),
        (true, Some(period)) if !(1000..=300_000).contains(&(period.nanos / 1_000_000)) => errors.push(format!(
            "CrashLoopBackOff.MaxContainerRestartPeriod (got: {} seconds) must be set between 1s and 300s",
            seconds(period)
        )),
        (false, Some(_)) => errors.push(
            "FeatureGate KubeletCrashLoopBackOffMax not enabled, CrashLoopBackOff.MaxContainerRestartPeriod must not \
             be set"
                .into(),
        ),
        _ => {}
    }
}

/// As Go prints `Duration.Seconds()`.
fn seconds(period: GoDuration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "what Go does")]
    let nanos = (period.nanos % SECOND) as f64 / 1e9;
    #[expect(clippy::cast_precision_loss, reason = "what Go does")]
    let whole = (period.nanos / SECOND) as f64;
    whole + nanos
}

fn enforcement(c: &Configuration, _gates: &FeatureGates, errors: &mut Vec<String>) {
    let wanted = &c.enforce_node_allocatable;
    let has = |key: &str| wanted.iter().any(|w| w == key);
    for part in ["system-reserved", "kube-reserved"] {
        let compressible = format!("{part}-compressible");
        if has(part) && has(&compressible) {
            errors.push(format!(
                "both {part:?} and {compressible:?} cannot be specified together in enforceNodeAllocatable \
                 (--enforce-node-allocatable)"
            ));
        }
    }
    for (at, value) in wanted.iter().enumerate() {
        if wanted[..at].contains(value) {
            errors.push(format!(
                "duplicated enforcements {value:?} in enforceNodeAllocatable (--enforce-node-allocatable)"
            ));
            continue;
        }
        let cgroup = match value.as_str() {
            "pods" => None,
            "system-reserved" | "system-reserved-compressible" => {
                Some(("system", "systemReservedCgroup", &c.system_reserved_cgroup))
            }
            "kube-reserved" | "kube-reserved-compressible" => {
                Some(("kube", "kubeReservedCgroup", &c.kube_reserved_cgroup))
            }
            "none" => {
                if wanted.len() > 1 {
                    errors.push(
                        "enforceNodeAllocatable (--enforce-node-allocatable) may not contain additional enforcements \
                         when \"none\" is specified"
                            .into(),
                    );
                }
                continue;
            }
            other => {
                errors.push(format!(
                    "option {other:?} specified for enforceNodeAllocatable (--enforce-node-allocatable). Valid \
                     options are \"pods\", \"system-reserved\", \"system-reserved-compressible\", \"kube-reserved\", \
                     \"kube-reserved-compressible\" or \"none\""
                ));
                continue;
            }
        };
        if let Some((part, field, name)) = cgroup
            && name.is_empty()
        {
            errors.push(format!(
                "{field} (--{part}-reserved-cgroup) must be specified when \"{part}-reserved\" or \
                 \"{part}-reserved-compressible\" included in enforceNodeAllocatable (--enforce-node-allocatable)"
            ));
        }
        if !c.cgroups_per_qos {
            errors.push(format!(
                "cgroupsPerQOS (--cgroups-per-qos) must be set to true when {value:?} contained in \
                 enforceNodeAllocatable (--enforce-node-allocatable)"
            ));
        }
    }
    if !matches!(c.hairpin_mode.as_str(), "none" | "hairpin-veth" | "promiscuous-bridge") {
        errors.push(format!(
            "option {:?} specified for hairpinMode (--hairpin-mode). Valid options are \"none\", \"hairpin-veth\" or \
             \"promiscuous-bridge\"",
            c.hairpin_mode
        ));
    }
}

fn pull_policy(c: &Configuration, gates: &FeatureGates, errors: &mut Vec<String>) {
    if !gates.enabled("KubeletEnsureSecretPulledImages") {
        for (name, set) in [
            ("imagePullCredentialsVerificationPolicy", !c.image_pull_credentials_verification_policy.is_empty()),
            ("preloadedImagesVerificationAllowlist", !c.preloaded_images_verification_allowlist.is_empty()),
        ] {
            if set {
                errors.push(format!(
                    "`{name}` must not be set if KubeletEnsureSecretPulledImages feature gate is not enabled"
                ));
            }
        }
        return;
    }
    let policy = c.image_pull_credentials_verification_policy.as_str();
    if !matches!(policy, "NeverVerify" | "NeverVerifyPreloadedImages" | "NeverVerifyAllowlistedImages" | "AlwaysVerify")
    {
        errors.push(format!(
            "option {policy:?} specified for imagePullCredentialsVerificationPolicy. Valid options are \
             \"NeverVerify\", \"NeverVerifyPreloadedImages\", \"NeverVerifyAllowlistedImages\" or \"AlwaysVerify\""
        ));
    }
    let list = &c.preloaded_images_verification_allowlist;
    if !list.is_empty() && policy != "NeverVerifyAllowlistedImages" {
        errors.push(
            "can't set `preloadedImagesVerificationAllowlist` if `imagePullCredentialsVertificationPolicy` is not \
             \"NeverVerifyAllowlistedImages\""
                .into(),
        );
    } else if let Some(reason) = list.iter().find_map(|pattern| pattern_error(pattern)) {
        errors.push(format!("invalid image pattern in `preloadedImagesVerificationAllowlist`: {reason}"));
    }
}

/// An image in its full form without tag and digest, or everything below a path with `/*` at its end.
fn pattern_error(pattern: &str) -> Option<String> {
    if pattern.trim() != pattern {
        return Some(format!("leading/trailing spaces are not allowed: {pattern}"));
    }
    let below = pattern.ends_with("/*");
    let name = if below { &pattern[..pattern.len() - 1] } else { pattern };
    if name.is_empty() {
        return Some(format!("the supplied pattern is too short: {pattern}"));
    }
    if name.contains('*') {
        return Some(format!("not a valid wildcard pattern, only patterns ending with '/*' are allowed: {pattern}"));
    }
    if below {
        return (name == "/").then(|| "at least registry hostname is required".into());
    }
    match crate::images::reference::parse(name).map(|image| image.name()) {
        Ok(full) if full == name => None,
        Ok(_) => Some(format!("neither tag nor digest is accepted in an image reference: {pattern}")),
        Err(error) => Some(format!("failed to parse as an image name: {error}")),
    }
}

fn reservations(c: &Configuration, _gates: &FeatureGates, errors: &mut Vec<String>) {
    if !c.reserved_system_cpus.is_empty() {
        if !c.system_reserved_cgroup.is_empty() || !c.kube_reserved_cgroup.is_empty() {
            errors.push(
                "can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup (--system-reserved-cgroup) \
                 or kubeReservedCgroup (--kube-reserved-cgroup)"
                    .into(),
            );
        }
        if let Err(error) = cpu_set(&c.reserved_system_cpus) {
            errors.push(format!(
                "unable to parse reservedSystemCPUs (--reserved-cpus) {}, error: {error}",
                c.reserved_system_cpus
            ));
        }
    }
    let mut seen = BTreeSet::new();
    for node in &c.reserved_memory {
        for (kind, amount) in &node.limits {
            if kind != "memory" && !kind.starts_with("hugepages-") {
                errors.push(format!(
                    "the limit type {kind:?} for NUMA node {} is not supported, only [memory \
                     hugepages-<HugePageSize>] is accepted",
                    node.numa_node
                ));
            }
            if amount.parse::<Quantity>().is_ok_and(|q| q.is_zero()) {
                errors.push(format!(
                    "reserved memory may not be zero for NUMA node {} and resource {kind:?}",
                    node.numa_node
                ));
            }
            if !seen.insert((node.numa_node, kind)) {
                errors.push(format!(
                    "the reserved memory has a duplicate value for NUMA node {} and resource {kind:?}",
                    node.numa_node
                ));
            }
        }
    }
}

/// What a Linux does not have. The generation of its cgroups is `doctor`'s to refuse.
fn operating_system(c: &Configuration, _gates: &FeatureGates, errors: &mut Vec<String>) {
    const UNIT: i64 = 65536;
    const MOST: i64 = u32::MAX as i64;
    if c.single_process_oom_kill == Some(false) && !crate::cgroups::is_unified() {
        errors.push("singleProcessOOMKill must not be explicitly set to false when using cgroup v1".into());
        return;
    }
    let reason = match c.user_namespaces.as_ref().and_then(|u| u.ids_per_pod) {
        Some(..UNIT) => format!("must not be less than {UNIT}"),
        Some(ids) if ids % UNIT != 0 => format!("must be a multiple of {UNIT}"),
        Some(ids) if ids > MOST => format!("must not be more than {MOST}"),
        _ => return,
    };
    errors.push(format!("userNamespaces.idsPerPod {reason}"));
}

fn qos(c: &Configuration, gates: &FeatureGates, errors: &mut Vec<String>) {
    if let Some(factor) = c.memory_throttling_factor
        && (factor <= 0.0 || factor > 1.0)
    {
        errors.push(format!("memoryThrottlingFactor {factor} must be greater than 0 and less than or equal to 1.0"));
    }
    match c.memory_reservation_policy.as_str() {
        "None" => {}
        "TieredReservation" if gates.enabled("MemoryQoS") => {}
        "TieredReservation" => errors.push(
            "memoryReservationPolicy \"TieredReservation\" requires MemoryQoS feature gate to be enabled".into(),
        ),
        other => errors.push(format!(
            "option {other:?} specified for memoryReservationPolicy. Valid options are \"None\" or \"TieredReservation\""
        )),
    }
    if c.container_runtime_endpoint.is_empty() {
        errors.push("the containerRuntimeEndpoint was not specified or empty".into());
    }
}

fn logs(c: &Configuration, gates: &FeatureGates, errors: &mut Vec<String>) {
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
    if super::load::clean(&folder) != folder {
        errors.push(format!("pod logs path {folder:?} must be normalized"));
    }
    if !folder.is_ascii() {
        errors.push(format!("pod logs path {folder:?} mut contains ASCII characters only"));
    }
}

/// What is wrong with the settings of the log.
pub(super) fn logging(c: &Configuration, gates: &FeatureGates) -> Vec<String> {
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

fn tracing(c: &Configuration, _gates: &FeatureGates, errors: &mut Vec<String>) {
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

#[cfg(test)]
mod tests {
    use super::super::Taint;
    use super::*;

    #[test]
    fn violations_come_in_the_kubelets_order() {
        let document = serde_json::json!({
            "nodeLeaseDurationSeconds": -1, "eventBurst": -1, "healthzPort": -1, "imageGCLowThresholdPercent": 100,
            "imageMinimumGCAge": "-1s", "iptablesDropBit": 32, "kubeAPIQPS": -1, "maxPods": -1, "port": 70000,
            "registryBurst": -1, "maxParallelImagePulls": 0, "runOnce": true,
            "registerWithTaints": [{"key": "a", "effect": "Maybe"}], "topologyManagerPolicy": "x",
            "shutdownGracePeriodCriticalPods": "2s", "memorySwap": {"swapBehavior": "x"},
            "enforceNodeAllocatable": ["x"], "hairpinMode": "x", "imagePullCredentialsVerificationPolicy": "x",
            "reservedSystemCPUs": "x", "reservedMemory": [{"numaNode": 0, "limits": {"cpu": "1"}}],
            "userNamespaces": {"idsPerPod": 1}, "showHiddenMetricsForVersion": "x",
            "tracing": {"samplingRatePerMillion": -1}, "memoryThrottlingFactor": 2, "memoryReservationPolicy": "x",
            "enableSystemLogQuery": true, "containerLogMaxWorkers": 0, "podLogsDir": "x",
        });
        let config = Configuration::read(&document).expect("fits");
        let all = check(&config, &FeatureGates::default());
        let words = [
            "nodeLease",
            "eventBurst",
            "healthzPort",
            "imageGCLow",
            "imageMinimumGCAge",
            "iptablesDropBit",
            "kubeAPIQPS",
            "maxPods",
            "port (",
            "registryBurst",
            "maxParallel",
            "runOnce",
            "invalid taint",
            "topologyManagerPolicy",
            "shutdownGrace",
            "swapBehavior",
            "enforceNodeAllocatable",
            "hairpinMode",
            "imagePullCredentialsVerificationPolicy",
            "reservedSystemCPUs",
            "limit type",
            "idsPerPod",
            "--show-hidden",
            "samplingRate",
            "memoryThrottlingFactor",
            "memoryReservationPolicy",
            "containerRuntimeEndpoint",
            "enableSystemLogHandler",
            "containerLogMaxWorkers",
            "pod logs path",
        ];
        let at = words.map(|w| all.iter().position(|e| e.contains(w)).unwrap_or_else(|| panic!("{w}: {all:#?}")));
        assert!(at.is_sorted(), "{at:?} {all:#?}");
        assert!(all.iter().any(|e| e.starts_with("--show-hidden")), "{all:#?}");
    }

    #[test]
    fn images_of_the_allowlist_stand_as_they_are_recorded() {
        for good in ["docker.io/library/busybox", "registry.example:5000/a/b", "localhost/x", "a.b/*", "a.b/c/*"] {
            assert_eq!(pattern_error(good), None, "{good}");
        }
        let untagged = "neither tag nor digest is accepted in an image reference: ";
        for (bad, reason) in [
            ("", "the supplied pattern is too short: ".to_owned()),
            (" a.b/c", "leading/trailing spaces are not allowed:  a.b/c".to_owned()),
            ("/*", "at least registry hostname is required".to_owned()),
            ("a.b/*/c", "not a valid wildcard pattern, only patterns ending with '/*' are allowed: a.b/*/c".to_owned()),
            ("busybox", format!("{untagged}busybox")),
            ("a.b/c:1", format!("{untagged}a.b/c:1")),
            ("a b", "failed to parse as an image name: invalid reference format".to_owned()),
            (
                "Foo/Bar",
                "failed to parse as an image name: invalid reference format: repository name (Bar) must be lowercase"
                    .to_owned(),
            ),
        ] {
            assert_eq!(pattern_error(bad), Some(reason), "{bad:?}");
        }
    }

    #[test]
    fn a_quota_period_of_ones_own_needs_its_gate() {
        let errors = |on, nanos| {
            let gates = FeatureGates::new([("CustomCPUCFSQuotaPeriod".to_owned(), on)].into());
            let cpu_cfs_quota_period = GoDuration { nanos };
            let mut errors = Vec::new();
            node(&Configuration { cpu_cfs_quota_period, ..Configuration::default() }, &gates, &mut errors);
            errors.into_iter().filter(|e| e.starts_with("cpuCFSQuotaPeriod")).collect::<Vec<_>>()
        };
        assert_eq!((errors(false, 100_000_000), errors(true, 50_000_000)), (Vec::new(), Vec::new()));
        assert_eq!(
            errors(false, 50_000_000),
            ["cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {50ms} requires feature gate CustomCPUCFSQuotaPeriod"]
        );
    }

    #[test]
    fn user_namespaces_have_whole_units_of_ids() {
        let error = |ids| {
            let user_namespaces = Some(super::super::UserNamespaces { ids_per_pod: Some(ids) });
            let mut errors = Vec::new();
            operating_system(
                &Configuration { user_namespaces, ..Configuration::default() },
                &FeatureGates::default(),
                &mut errors,
            );
            errors.pop().unwrap_or_default()
        };
        assert_eq!((error(65536).as_str(), error(131_072).as_str()), ("", ""));
        assert_eq!(error(1), "userNamespaces.idsPerPod must not be less than 65536");
        assert_eq!(error(65537), "userNamespaces.idsPerPod must be a multiple of 65536");
        assert_eq!(error(1 << 33), "userNamespaces.idsPerPod must not be more than 4294967295");
    }

    #[test]
    fn taints_have_keys_and_effects_of_the_api() {
        let errors = |key: &str, effect: &str| {
            let taint = Taint { key: key.into(), effect: effect.into(), ..Taint::default() };
            let mut errors = Vec::new();
            let config = Configuration { register_with_taints: vec![taint], ..Configuration::default() };
            taints(&config, &FeatureGates::default(), &mut errors);
            errors
        };
        for good in ["a", "example.com/x", "node.kubernetes.io/a.b_c"] {
            assert!(errors(good, "NoSchedule").is_empty(), "{good}");
        }
        for bad in ["a/b/c", "Bad Prefix/x", "/x", "x/", "", "-a", "B.c/x"] {
            assert_eq!(errors(bad, "NoSchedule"), [format!("invalid taint: {{{bad}  NoSchedule <nil>}}")]);
        }
        assert_eq!(errors("a", "Maybe").len(), 1);
    }
}
