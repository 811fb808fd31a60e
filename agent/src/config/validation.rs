//! What a configuration must satisfy before anything starts; the texts are the kubelet's.

use proto::quantity::Quantity;

use super::{Configuration, FeatureGates};

/// All violations, in the order in which the kubelet names them.
pub(super) fn check(c: &Configuration) -> Vec<String> {
    let gates = FeatureGates::new(c.feature_gates.clone());
    let mut errors = gates.errors();
    numbers(c, &mut errors);
    images(c, &gates, &mut errors);
    taints(c, &mut errors);
    choices(c, &gates, &mut errors);
    shutdown(c, &gates, &mut errors);
    allocatable(c, &mut errors);
    eviction(c, &mut errors);
    logs(c, &gates, &mut errors);
    for error in &mut errors {
        let whole = ["invalid taint", "invalid configuration", "unrecognized feature gate", "cannot set feature gate"];
        if !whole.iter().any(|w| error.starts_with(w)) {
            error.insert_str(0, "invalid configuration: ");
        }
    }
    errors
}

fn port_out_of_range(port: i32) -> bool {
    !(1..=65535).contains(&port)
}

fn numbers(c: &Configuration, errors: &mut Vec<String>) {
    let mut not_negative = |name: &str, flag: &str, value: i64| {
        if value < 0 {
            errors.push(format!("{name} ({flag}) {value} must not be a negative number"));
        }
    };
    not_negative("eventBurst", "--event-burst", c.event_burst.into());
    not_negative("eventRecordQPS", "--event-qps", c.event_record_qps.into());
    not_negative("kubeAPIBurst", "--kube-api-burst", c.kube_api_burst.into());
    not_negative("kubeAPIQPS", "--kube-api-qps", c.kube_api_qps.into());
    not_negative("maxOpenFiles", "--max-open-files", c.max_open_files);
    not_negative("maxPods", "--max-pods", c.max_pods.into());
    not_negative("podsPerCore", "--pods-per-core", c.pods_per_core.into());
    not_negative("registryBurst", "--registry-burst", c.registry_burst.into());
    not_negative("registryPullQPS", "--registry-qps", c.registry_pull_qps.into());
    if c.node_lease_duration_seconds <= 0 {
        errors.push("nodeLeaseDurationSeconds must be greater than 0".into());
    }
    if !c.system_cgroups.is_empty() && c.cgroup_root.is_empty() {
        errors.push(
            "systemCgroups (--system-cgroups) was specified and cgroupRoot (--cgroup-root) was not specified".into(),
        );
    }
    if c.healthz_port != 0 && port_out_of_range(c.healthz_port) {
        errors.push(format!("healthzPort (--healthz-port) {} must be between 1 and 65535, inclusive", c.healthz_port));
    }
    if !(1_000_000..=1_000_000_000).contains(&c.cpu_cfs_quota_period.nanos) {
        errors.push(format!(
            "cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {{{}}} must be between 1ms and 1sec, inclusive",
            c.cpu_cfs_quota_period
        ));
    }
    for (name, flag, bit) in [
        ("iptablesDropBit", "--iptables-drop-bit", c.iptables_drop_bit),
        ("iptablesMasqueradeBit", "--iptables-masquerade-bit", c.iptables_masquerade_bit),
    ] {
        if !(0..=31).contains(&bit) {
            errors.push(format!("{name} ({flag}) {bit} must be between 0 and 31, inclusive"));
        }
    }
    if c.node_status_max_images < -1 {
        errors.push(format!(
            "nodeStatusMaxImages (--node-status-max-images) {} must be -1 or greater",
            c.node_status_max_images
        ));
    }
    if !(-1000..=1000).contains(&c.oom_score_adj) {
        errors.push(format!(
            "oomScoreAdj (--oom-score-adj) {} must be between -1000 and 1000, inclusive",
            c.oom_score_adj
        ));
    }
    if port_out_of_range(c.port) {
        errors.push(format!("port (--port) {} must be between 1 and 65535, inclusive", c.port));
    }
    if c.read_only_port != 0 && port_out_of_range(c.read_only_port) {
        errors.push(format!(
            "readOnlyPort (--read-only-port) {} must be between 0 and 65535, inclusive",
            c.read_only_port
        ));
    }
    if c.run_once {
        errors.push(format!(
            "runOnce (--runOnce) {}, Runonce mode has been deprecated and should not be set",
            c.run_once
        ));
    }
}

fn images(c: &Configuration, gates: &FeatureGates, errors: &mut Vec<String>) {
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
    let policy = c.image_pull_credentials_verification_policy.as_str();
    if gates.enabled("KubeletEnsureSecretPulledImages") {
        if !matches!(
            policy,
            "NeverVerify" | "NeverVerifyPreloadedImages" | "NeverVerifyAllowlistedImages" | "AlwaysVerify"
        ) {
            errors.push(format!(
                "option {policy:?} specified for imagePullCredentialsVerificationPolicy. Valid options are \
                 \"NeverVerify\", \"NeverVerifyPreloadedImages\", \"NeverVerifyAllowlistedImages\" or \"AlwaysVerify\""
            ));
        }
        if !c.preloaded_images_verification_allowlist.is_empty() && policy != "NeverVerifyAllowlistedImages" {
            errors.push(
                "can't set `preloadedImagesVerificationAllowlist` if `imagePullCredentialsVertificationPolicy` is \
                 not \"NeverVerifyAllowlistedImages\""
                    .into(),
            );
        }
    }
}

fn taints(c: &Configuration, errors: &mut Vec<String>) {
    for taint in &c.register_with_taints {
        let effect = matches!(taint.effect.as_str(), "NoSchedule" | "PreferNoSchedule" | "NoExecute");
        if taint.key.is_empty() || !effect {
            errors.push(format!("invalid taint: {{{} {} {} <nil>}}", taint.key, taint.value, taint.effect));
        }
        if taint.time_added.is_some() {
            errors.push("taint.TimeAdded is not nil".into());
        }
    }
}

fn choices(c: &Configuration, gates: &FeatureGates, errors: &mut Vec<String>) {
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
    if !matches!(c.hairpin_mode.as_str(), "none" | "hairpin-veth" | "promiscuous-bridge") {
        errors.push(format!(
            "option {:?} specified for hairpinMode (--hairpin-mode). Valid options are \"none\", \"hairpin-veth\" or \
             \"promiscuous-bridge\"",
            c.hairpin_mode
        ));
    }
    if !matches!(c.memory_swap.swap_behavior.as_str(), "" | "NoSwap" | "LimitedSwap") {
        errors.push(format!(
            "memorySwap.swapBehavior {:?} must be one of: \"\", \"LimitedSwap\" or \"NoSwap\"",
            c.memory_swap.swap_behavior
        ));
    }
    let period = c.crash_loop_back_off.max_container_restart_period;
    if gates.enabled("KubeletCrashLoopBackOffMax")
        && let Some(period) = period
        && !(1_000_000_000..=300_000_000_000).contains(&period.nanos)
    {
        errors.push(format!(
            "CrashLoopBackOff.MaxContainerRestartPeriod (got: {} seconds) must be set between 1s and 300s",
            period.nanos / 1_000_000_000
        ));
    }
    if c.memory_throttling_factor <= 0.0 || c.memory_throttling_factor > 1.0 {
        errors.push(format!(
            "memoryThrottlingFactor {} must be greater than 0 and less than or equal to 1.0",
            c.memory_throttling_factor
        ));
    }
    match c.memory_reservation_policy.as_str() {
        "None" => {}
        "TieredReservation" if gates.enabled("MemoryQoS") => {}
        "TieredReservation" => errors.push(
            "invalid configuration: memoryReservationPolicy \"TieredReservation\" requires MemoryQoS feature gate to \
             be enabled"
                .into(),
        ),
        other => errors.push(format!(
            "option {other:?} specified for memoryReservationPolicy. Valid options are \"None\" or \"TieredReservation\""
        )),
    }
    if c.container_runtime_endpoint.is_empty() {
        errors.push("the containerRuntimeEndpoint was not specified or empty".into());
    }
    if !matches!(c.config_map_and_secret_change_detection_strategy.as_str(), "Watch" | "Cache" | "Get") {
        errors.push(format!(
            "unknown configmap and secret manager mode: {}",
            c.config_map_and_secret_change_detection_strategy
        ));
    }
    if !matches!(c.authorization.mode.as_str(), "AlwaysAllow" | "Webhook") {
        errors.push(format!("unknown authorization mode {}", c.authorization.mode));
    }
    if let Some(ids) = c.user_namespaces.as_ref().and_then(|u| u.ids_per_pod)
        && (ids < 65536 || ids % 65536 != 0)
    {
        errors.push(format!("userNamespaces.idsPerPod {ids} must be a multiple of 65536"));
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
            if period.nanos != 0 && period.nanos < 1_000_000_000 {
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
    if by_priority && gates.enabled("GracefulNodeShutdownBasedOnPodPriority") && (all.nanos > 0 || critical.nanos > 0) {
        errors.push(
            "Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time".into(),
        );
    }
}

fn allocatable(c: &Configuration, errors: &mut Vec<String>) {
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
    let own_cgroups = !c.system_reserved_cgroup.is_empty() || !c.kube_reserved_cgroup.is_empty();
    if own_cgroups && !c.reserved_system_cpus.is_empty() {
        errors.push(
            "can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup (--system-reserved-cgroup) or \
             kubeReservedCgroup (--kube-reserved-cgroup)"
                .into(),
        );
    }
    for (name, reserved) in [("systemReserved", &c.system_reserved), ("kubeReserved", &c.kube_reserved)] {
        for (resource, amount) in reserved {
            if !matches!(resource.as_str(), "cpu" | "memory" | "ephemeral-storage" | "pid") {
                errors.push(format!("cannot reserve {resource:?} resource in {name}"));
            } else if amount.parse::<Quantity>().map_or(true, |q| q.sign() < 0) {
                errors.push(format!("{name} of {resource:?}: {amount:?} is not a quantity that is zero or more"));
            }
        }
    }
}

/// Signals that a threshold may be set for.
const SIGNALS: &[&str] = &[
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "containerfs.available",
    "containerfs.inodesFree",
    "pid.available",
    "allocatableMemory.available",
];

fn eviction(c: &Configuration, errors: &mut Vec<String>) {
    for thresholds in [&c.eviction_hard, &c.eviction_soft, &c.eviction_minimum_reclaim] {
        for (signal, value) in thresholds {
            if !SIGNALS.contains(&signal.as_str()) {
                errors.push(format!("unsupported eviction signal {signal}"));
            } else if !is_threshold(value) {
                errors.push(format!(
                    "eviction threshold {signal} must be positive and a quantity or a percentage, got {value}"
                ));
            }
        }
    }
    for signal in c.eviction_soft.keys() {
        if !c.eviction_soft_grace_period.contains_key(signal) {
            errors.push(format!("grace period must be specified for the soft eviction threshold {signal}"));
        }
    }
}

fn is_threshold(text: &str) -> bool {
    match text.strip_suffix('%') {
        Some(percent) => percent.parse::<f64>().is_ok_and(|p| (0.0..=100.0).contains(&p)),
        None => text.parse::<Quantity>().is_ok_and(|q| q.sign() >= 0),
    }
}

fn logs(c: &Configuration, gates: &FeatureGates, errors: &mut Vec<String>) {
    if c.enable_system_log_query && !gates.enabled("NodeLogQuery") {
        errors.push("invalid configuration: NodeLogQuery feature gate is required for enableSystemLogQuery".into());
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
    if folder.len() > 1 && (folder.ends_with('/') || folder.split('/').skip(1).any(|p| matches!(p, "" | "." | ".."))) {
        errors.push(format!("pod logs path {folder:?} must be normalized"));
    }
    if !folder.is_ascii() {
        errors.push(format!("pod logs path {folder:?} mut contains ASCII characters only"));
    }
    if !matches!(c.logging.format.as_str(), "text" | "json") {
        errors.push(format!("logging.format: Invalid value: {:?}: Unsupported log format", c.logging.format));
    }
}
