//! The node and its server: numbers, ports, taints, policies, periods.

use super::USUAL;
use crate::config::{Configuration, FeatureGates, GoDuration};

fn port_out_of_range(port: i32) -> bool {
    !(1..=65535).contains(&port)
}

fn not_negative(errors: &mut Vec<String>, fields: &[(&str, &str, i64)]) {
    for (name, flag, value) in fields.iter().filter(|(.., value)| *value < 0) {
        errors.push(format!("{name} ({flag}) {value} must not be a negative number"));
    }
}

pub(super) fn node(c: &Configuration, gates: &FeatureGates, errors: &mut Vec<String>) {
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

pub(super) fn network(c: &Configuration, _gates: &FeatureGates, errors: &mut Vec<String>) {
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

pub(super) fn pulls(c: &Configuration, gates: &FeatureGates, errors: &mut Vec<String>) {
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

pub(super) fn hidden_metrics(c: &Configuration, _gates: &FeatureGates, errors: &mut Vec<String>) {
    errors.extend(crate::metrics::shows_hidden(&c.show_hidden_metrics_for_version).err());
}

pub(super) fn taints(c: &Configuration, _gates: &FeatureGates, errors: &mut Vec<String>) {
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

pub(super) fn choices(c: &Configuration, _gates: &FeatureGates, errors: &mut Vec<String>) {
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

pub(super) fn shutdown(c: &Configuration, gates: &FeatureGates, errors: &mut Vec<String>) {
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

pub(super) fn runtime(c: &Configuration, gates: &FeatureGates, errors: &mut Vec<String>) {
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

/// What a Linux does not have. The generation of its cgroups is `doctor`'s to refuse.
pub(super) fn operating_system(c: &Configuration, _gates: &FeatureGates, errors: &mut Vec<String>) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Taint, UserNamespaces};

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
            let user_namespaces = Some(UserNamespaces { ids_per_pod: Some(ids) });
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
