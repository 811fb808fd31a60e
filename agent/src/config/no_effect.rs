//! What is accepted for the sake of existing configurations and does nothing here: one table for the reference in `docs/`
//! and for the warnings of `config check` and of the start.

use serde_json::Value;

use super::features::is_gate;
use super::origins::{Origin, leaves};
use super::{FeatureGates, Loaded, defaults};

/// Field, or the beginning of fields, and why setting it changes nothing.
const FIELDS: &[(&str, &str)] = &[
    ("enableContentionProfiling", "Go's lock profiles; this agent has none"),
    ("hairpinMode", "the network plugin decides, as with every CRI runtime"),
    ("iptablesDropBit", "kube-proxy's since 1.28"),
    ("iptablesMasqueradeBit", "kube-proxy's since 1.28"),
    ("kernelMemcgNotification", "pressure is told by PSI, where the kernel has it"),
    ("logging.flushFrequency", "lines are written at once"),
    ("logging.options", "lines are written to standard error at once"),
    ("makeIPTablesUtilChains", "no chains are made; a kube-proxy does without the hint"),
    ("runOnce", "has ended upstream; true is refused"),
    ("streamingConnectionIdleTimeout", "the runtime's own setting, as with every CRI runtime"),
    ("systemCgroups", "processes of the system are left where systemd puts them"),
    ("volumePluginDir", "FlexVolume is not supported; use CSI"),
];

/// Gates that something here asks. The behaviour of all others is that of their default; a test compares this with the
/// code.
const ASKED: &[&str] = &[
    "AllowParsingUserUIDFromCertAuth",
    "CSIVolumeHealth",
    "ClusterTrustBundleProjection",
    "ComponentFlagz",
    "ComponentStatusz",
    "ContainerCheckpoint",
    "ContainerStopSignals",
    "CustomCPUCFSQuotaPeriod",
    "DisableCPUQuotaWithExclusiveCPUs",
    "ExtendWebSocketsToKubelet",
    "GracefulNodeShutdown",
    "GracefulNodeShutdownBasedOnPodPriority",
    "InPlacePodVerticalScalingExclusiveCPUs",
    "InPlacePodVerticalScalingExclusiveMemory",
    "KubeletCrashLoopBackOffMax",
    "KubeletEnsureSecretPulledImages",
    "KubeletPodResourcesListUseActivePods",
    "KubeletServiceAccountTokenForCredentialProviders",
    "LoggingAlphaOptions",
    "LoggingBetaOptions",
    "MemoryQoS",
    "NativeHistograms",
    "NodeDeclaredFeatures",
    "NodeLogQuery",
    "PodLevelResourceManagers",
    "PodLevelResources",
    "PodLogsQuerySplitStreams",
    "PodsAPI",
    "PreventStaticPodAPIReferences",
    "QOSReserved",
    "ReloadKubeletClientCAFile",
    "ReloadKubeletServerCertificateFile",
    "ResourceHealthStatus",
    "ResourceHealthStatusMessage",
    "RotateKubeletServerCertificate",
];

/// Gates whose default is asked by their option groups.
const GROUPS: &[&str] = &[
    "AllAlpha",
    "AllBeta",
    "CPUManagerPolicyAlphaOptions",
    "CPUManagerPolicyBetaOptions",
    "TopologyManagerPolicyAlphaOptions",
    "TopologyManagerPolicyBetaOptions",
];

/// Why a field does nothing; None where it does what it says.
pub(super) fn reason(path: &str) -> Option<&'static str> {
    let below = |field: &str| path == field || path.strip_prefix(field).is_some_and(|rest| rest.starts_with('.'));
    FIELDS.iter().find(|(field, _)| below(field)).map(|(_, reason)| *reason)
}

/// Whether switching the gate changes anything.
pub(super) fn is_switched(gate: &str) -> bool {
    ASKED.contains(&gate) || GROUPS.contains(&gate)
}

/// A line for each field and gate that somebody has set to something else than the default, and that does nothing.
pub fn without_effect(loaded: &Loaded) -> Vec<String> {
    let mut plain = Value::Object(serde_json::Map::new());
    defaults::apply(&mut plain, &FeatureGates::default());
    let usual = leaves(&plain);
    let unset = FeatureGates::default();
    let set = |path: &[String]| !matches!(loaded.origins.of(path), Origin::Default | Origin::Agent);
    let zero = |value: &Value| match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty() || text == "0s" || text == "0",
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    };
    let mut lines = Vec::new();
    for (path, value) in leaves(&loaded.document) {
        if !set(&path) {
            continue;
        }
        if let [field, gate] = path.as_slice()
            && field == "featureGates"
        {
            if is_gate(gate) && !is_switched(gate) && value.as_bool().is_some_and(|on| on != unset.enabled(gate)) {
                lines.push(format!("featureGates.{gate} has no effect: this agent behaves as with its default"));
            }
            continue;
        }
        let dotted = path.join(".");
        let Some(reason) = reason(&dotted) else { continue };
        let same = match usual.iter().find(|(known, _)| *known == path) {
            Some((_, default)) => *default == value,
            None => zero(value),
        };
        if !same {
            lines.push(format!("{dotted} has no effect: {reason}"));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Override, Sources, load};
    use super::*;

    /// Names in `enabled("...")` of the sources below a folder, tests aside.
    fn asked(folder: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                asked(&path, found);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let calls = code.split("enabled(\"").skip(1);
            found.extend(calls.filter_map(|rest| rest.split_once('"')).map(|(name, _)| name.to_owned()));
        }
    }

    #[test]
    fn the_gates_that_are_said_to_be_switched_are_those_that_the_code_asks() {
        let mut found = Vec::new();
        asked(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
        found.sort();
        found.dedup();
        found.retain(|name| name.chars().next().is_some_and(char::is_uppercase));
        assert_eq!(found, ASKED);
    }

    /// Whoever starts the agent as kubeadm has a kubelet started has nothing to mend.
    #[test]
    fn kubeadms_configuration_is_not_warned_about() {
        let text = "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {cacheTTL: 0s, enabled: true},
  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}}
authorization: {mode: Webhook, webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}}
cgroupDriver: systemd
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: \"\"
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
logging: {flushFrequency: 0, options: {json: {infoBufferSize: \"0\"}, text: {infoBufferSize: \"0\"}}, verbosity: 0}
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
resolvConf: /run/systemd/resolve/resolv.conf
rotateCertificates: true
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: /etc/kubernetes/manifests
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
";
        let file = std::env::temp_dir().join(format!("kubeadm-{}.yaml", std::process::id()));
        std::fs::write(&file, text).expect("writes");
        let loaded = load(&Sources { file: Some(file.clone()), ..Sources::default() });
        std::fs::remove_file(file).expect("removes");
        let loaded = loaded.expect("valid");
        assert_eq!((without_effect(&loaded), loaded.oddities), (Vec::new(), Vec::new()));
    }

    #[test]
    fn only_what_differs_from_its_default_and_does_nothing_is_warned_about() {
        let flag = |path, value| Override { path, flag: "x", value, merge: path == "featureGates" };
        let flags = vec![
            flag("hairpinMode", "none".into()),
            flag("iptablesDropBit", 15.into()),
            flag("maxPods", 7.into()),
            flag("volumePluginDir", "/x".into()),
            flag("featureGates", serde_json::json!({"ContainerCheckpoint": false, "EventedPLEG": true})),
        ];
        let loaded = load(&Sources { flags, ..Sources::default() }).expect("valid");
        let lines = without_effect(&loaded);
        let begins: Vec<_> = lines.iter().filter_map(|l| l.split(" has").next()).collect();
        assert!(begins.contains(&"featureGates.EventedPLEG"), "{lines:?}");
        assert!(begins.contains(&"hairpinMode") && begins.contains(&"volumePluginDir"), "{lines:?}");
        assert!(
            !lines.iter().any(|l| l.contains("maxPods") || l.contains("Bit") || l.contains("ContainerCheckpoint")),
            "{lines:?}"
        );
    }
}
