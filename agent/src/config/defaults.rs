//! What upstream fills in where a configuration says nothing, or says zero.

use serde_json::{Map, Value, json};

use super::FeatureGates;

/// Path and default of every field with a fixed one. Fields whose Go type is no pointer count zero as absent, which the
/// schema's normal form already does.
const DEFAULTS: &[(&str, &str)] = &[
    ("enableServer", "true"),
    ("syncFrequency", "\"1m0s\""),
    ("fileCheckFrequency", "\"20s\""),
    ("httpCheckFrequency", "\"20s\""),
    ("address", "\"0.0.0.0\""),
    ("port", "10250"),
    ("authentication.anonymous.enabled", "false"),
    ("authentication.webhook.enabled", "true"),
    ("authentication.webhook.cacheTTL", "\"2m0s\""),
    ("authorization.mode", "\"Webhook\""),
    ("authorization.webhook.cacheAuthorizedTTL", "\"5m0s\""),
    ("authorization.webhook.cacheUnauthorizedTTL", "\"30s\""),
    ("registryPullQPS", "5"),
    ("registryBurst", "10"),
    ("eventRecordQPS", "50"),
    ("eventBurst", "100"),
    ("enableDebuggingHandlers", "true"),
    ("healthzPort", "10248"),
    ("healthzBindAddress", "\"127.0.0.1\""),
    ("oomScoreAdj", "-999"),
    ("streamingConnectionIdleTimeout", "\"4h0m0s\""),
    ("nodeLeaseDurationSeconds", "40"),
    ("imageMinimumGCAge", "\"2m0s\""),
    ("imageGCHighThresholdPercent", "85"),
    ("imageGCLowThresholdPercent", "80"),
    ("volumeStatsAggPeriod", "\"1m0s\""),
    ("cgroupsPerQOS", "true"),
    ("cgroupDriver", "\"cgroupfs\""),
    ("cpuManagerPolicy", "\"none\""),
    ("cpuManagerReconcilePeriod", "\"10s\""),
    ("memoryManagerPolicy", "\"None\""),
    ("memoryReservationPolicy", "\"None\""),
    ("topologyManagerPolicy", "\"none\""),
    ("topologyManagerScope", "\"container\""),
    ("runtimeRequestTimeout", "\"2m0s\""),
    ("hairpinMode", "\"promiscuous-bridge\""),
    ("maxPods", "110"),
    ("resolvConf", "\"/etc/resolv.conf\""),
    ("cpuCFSQuota", "true"),
    ("cpuCFSQuotaPeriod", "\"100ms\""),
    ("nodeStatusMaxImages", "50"),
    ("maxOpenFiles", "1000000"),
    ("contentType", "\"application/vnd.kubernetes.protobuf\""),
    ("kubeAPIQPS", "50"),
    ("kubeAPIBurst", "100"),
    ("evictionPressureTransitionPeriod", "\"5m0s\""),
    ("mergeDefaultEvictionSettings", "false"),
    ("enableControllerAttachDetach", "true"),
    ("makeIPTablesUtilChains", "true"),
    ("iptablesMasqueradeBit", "14"),
    ("iptablesDropBit", "15"),
    ("failSwapOn", "true"),
    ("containerLogMaxSize", "\"10Mi\""),
    ("containerLogMaxFiles", "5"),
    ("containerLogMaxWorkers", "1"),
    ("containerLogMonitorInterval", "\"10s\""),
    ("configMapAndSecretChangeDetectionStrategy", "\"Watch\""),
    ("volumePluginDir", "\"/usr/libexec/kubernetes/kubelet-plugins/volume/exec/\""),
    ("logging.format", "\"text\""),
    ("logging.flushFrequency", "\"5s\""),
    ("enableSystemLogHandler", "true"),
    ("enableSystemLogQuery", "false"),
    ("enableProfilingHandler", "true"),
    ("enableDebugFlagsHandler", "true"),
    ("seccompDefault", "false"),
    ("failCgroupV1", "true"),
    ("memoryThrottlingFactor", "0.9"),
    ("registerNode", "true"),
    ("localStorageCapacityIsolation", "true"),
    ("containerRuntimeEndpoint", "\"unix:///run/containerd/containerd.sock\""),
    ("podLogsDir", "\"/var/log/pods\""),
];

/// Gate, path and default of fields that a gate brings.
const GATED: &[(&str, &str, &str)] = &[
    ("KubeletCrashLoopBackOffMax", "crashLoopBackOff.maxContainerRestartPeriod", "\"5m0s\""),
    ("KubeletEnsureSecretPulledImages", "imagePullCredentialsVerificationPolicy", "\"NeverVerifyPreloadedImages\""),
];

/// Hard eviction thresholds of a configuration from a file that names none.
const EVICTION_HARD: &[(&str, &str)] = &[
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];

/// Fills in what is absent.
pub(super) fn apply(document: &mut Value, flag_gates: &FeatureGates) {
    // Both frequencies of the node status follow the one that is set.
    if absent(document, "nodeStatusReportFrequency") {
        let value = document.get("nodeStatusUpdateFrequency").filter(|v| !is_zero(v)).cloned();
        set(document, "nodeStatusReportFrequency", value.unwrap_or_else(|| json!("5m0s")));
    }
    if absent(document, "nodeStatusUpdateFrequency") {
        set(document, "nodeStatusUpdateFrequency", json!("10s"));
    }
    if absent(document, "serializeImagePulls") {
        let parallel = document.get("maxParallelImagePulls").and_then(Value::as_i64).unwrap_or(1);
        set(document, "serializeImagePulls", json!(parallel < 2));
    }
    // A negative limit means what the node can have, as does none.
    if document.get("podPidsLimit").and_then(Value::as_i64).is_none_or(|limit| limit < 0) {
        set(document, "podPidsLimit", json!(-1));
    }
    // An empty list is a choice (none at all), so only its absence counts.
    if document.get("enforceNodeAllocatable").is_none_or(Value::is_null) {
        set(document, "enforceNodeAllocatable", json!(["pods"]));
    }
    let gates = flag_gates.with(&FeatureGates::from_tree(document.get("featureGates").unwrap_or(&Value::Null)));
    let gated = GATED.iter().filter(|(gate, ..)| gates.enabled(gate)).map(|(_, path, text)| (path, text));
    for (path, text) in DEFAULTS.iter().map(|(path, text)| (path, text)).chain(gated) {
        if absent(document, path) {
            set(document, path, serde_json::from_str(text).unwrap_or(Value::Null));
        }
    }
}

/// Hard eviction of the main file: all defaults where it names no thresholds, or what is missing where it asks for that.
pub(super) fn apply_eviction(document: &mut Value) {
    let merge = document.get("mergeDefaultEvictionSettings").and_then(Value::as_bool).unwrap_or(false);
    let named = document.get("evictionHard").is_some_and(|v| !v.is_null());
    if named && !merge {
        return;
    }
    for (signal, threshold) in EVICTION_HARD {
        if let Some(map) = object_at(document, "evictionHard") {
            map.entry(*signal).or_insert_with(|| json!(threshold));
        }
    }
}

/// The defaults of an agent that is started without a configuration file.
pub(super) fn apply_legacy(document: &mut Value) {
    set(document, "authentication.anonymous.enabled", json!(true));
    set(document, "authentication.webhook.enabled", json!(false));
    set(document, "authorization.mode", json!("AlwaysAllow"));
    set(document, "readOnlyPort", json!(10255));
}

/// Sets the value at a dotted path, objects on the way included.
pub(super) fn set(document: &mut Value, path: &str, value: Value) {
    let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
    if let Some(map) = object_at(document, parent) {
        map.insert(name.into(), value);
    }
}

/// The object at a dotted path, created where it is absent; None where something else is in the way.
pub(super) fn object_at<'a>(document: &'a mut Value, path: &str) -> Option<&'a mut Map<String, Value>> {
    let mut at = document;
    if at.is_null() {
        *at = Value::Object(Map::new());
    }
    for name in path.split('.').filter(|n| !n.is_empty()) {
        let next = at.as_object_mut()?.entry(name).or_insert(Value::Null);
        if next.is_null() {
            *next = Value::Object(Map::new());
        }
        at = next;
    }
    at.as_object_mut()
}

fn absent(document: &Value, path: &str) -> bool {
    let mut at = document;
    for name in path.split('.') {
        match at.get(name) {
            Some(value) if !value.is_null() => at = value,
            _ => return true,
        }
    }
    at.as_str().is_some_and(|t| t == "0s" || t.is_empty())
        && !matches!(path, "cpuCFSQuotaPeriod" | "containerLogMonitorInterval" | "resolvConf")
        && path != "crashLoopBackOff.maxContainerRestartPeriod"
}

fn is_zero(value: &Value) -> bool {
    value.as_str().is_some_and(|t| t == "0s")
}
