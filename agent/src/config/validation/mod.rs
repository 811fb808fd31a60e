//! What a configuration must satisfy before anything starts; the texts and their order are the kubelet's.

mod images;
mod logs;
mod node;
mod reservations;

use super::{Configuration, FeatureGates};

pub(super) use logs::logging;

/// One group of rules.
type Check = fn(&Configuration, &FeatureGates, &mut Vec<String>);

/// The rules in the kubelet's order, and whether what they say begins with its usual words.
const CHECKS: &[(Check, bool)] = &[
    (node::node, true),
    (images::image_collection, true),
    (node::network, true),
    (node::pulls, true),
    (node::taints, false),
    (node::choices, true),
    (node::shutdown, true),
    (node::runtime, true),
    (reservations::enforcement, true),
    (images::pull_policy, true),
    (reservations::reservations, true),
    (node::operating_system, true),
    (node::hidden_metrics, false),
    (logs::tracing, false),
    (reservations::qos, true),
    (logs::logs, true),
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

#[cfg(test)]
mod tests {
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
}
