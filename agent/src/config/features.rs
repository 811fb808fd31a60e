//! Feature gates: which there are, and which are on.

use std::collections::BTreeMap;

use serde::Deserialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Alpha,
    Beta,
    Ga,
    Deprecated,
}

/// Name, stage and default in 1.36, sorted by name.
pub const GATES: &[(&str, Stage, bool)] = &[
    ("AllowDNSOnlyNodeCSR", Stage::Deprecated, false),
    ("CPUManagerPolicyAlphaOptions", Stage::Alpha, false),
    ("CPUManagerPolicyBetaOptions", Stage::Beta, true),
    ("CPUManagerPolicyOptions", Stage::Ga, true),
    ("CRIListStreaming", Stage::Alpha, false),
    ("CSIVolumeHealth", Stage::Alpha, false),
    ("ChangeContainerStatusOnKubeletRestart", Stage::Deprecated, false),
    ("ClusterTrustBundleProjection", Stage::Beta, false),
    ("ComponentFlagz", Stage::Beta, true),
    ("ComponentStatusz", Stage::Beta, true),
    ("ContainerCheckpoint", Stage::Beta, true),
    ("ContainerRestartRules", Stage::Beta, true),
    ("ContainerStopSignals", Stage::Alpha, false),
    ("CustomCPUCFSQuotaPeriod", Stage::Ga, true),
    ("DRAConsumableCapacity", Stage::Beta, true),
    ("DRAExtendedResource", Stage::Beta, true),
    ("DRANodeAllocatableResources", Stage::Alpha, false),
    ("DRAWorkloadResourceClaims", Stage::Alpha, false),
    ("DisableCPUQuotaWithExclusiveCPUs", Stage::Deprecated, true),
    ("DisableNodeKubeProxyVersion", Stage::Deprecated, true),
    ("DynamicResourceAllocation", Stage::Ga, true),
    ("EnvFiles", Stage::Beta, true),
    ("EventedPLEG", Stage::Alpha, false),
    ("ExecProbeTimeout", Stage::Ga, true),
    ("ExtendWebSocketsToKubelet", Stage::Beta, true),
    ("GitRepoVolumeDriver", Stage::Deprecated, false),
    ("GracefulNodeShutdown", Stage::Beta, true),
    ("GracefulNodeShutdownBasedOnPodPriority", Stage::Beta, true),
    ("HostnameOverride", Stage::Beta, true),
    ("ImageMaximumGCAge", Stage::Ga, true),
    ("ImageVolume", Stage::Ga, true),
    ("ImageVolumeWithDigest", Stage::Alpha, false),
    ("InPlacePodLevelResourcesVerticalScaling", Stage::Beta, true),
    ("InPlacePodVerticalScaling", Stage::Ga, true),
    ("InPlacePodVerticalScalingExclusiveCPUs", Stage::Alpha, false),
    ("InPlacePodVerticalScalingExclusiveMemory", Stage::Alpha, false),
    ("InPlacePodVerticalScalingInitContainers", Stage::Beta, true),
    ("KubeletCgroupDriverFromCRI", Stage::Ga, true),
    ("KubeletCrashLoopBackOffMax", Stage::Beta, true),
    ("KubeletEnsureSecretPulledImages", Stage::Beta, true),
    ("KubeletFineGrainedAuthz", Stage::Ga, true),
    ("KubeletInUserNamespace", Stage::Alpha, false),
    ("KubeletPSI", Stage::Ga, true),
    ("KubeletPodResourcesDynamicResources", Stage::Ga, true),
    ("KubeletPodResourcesGet", Stage::Ga, true),
    ("KubeletPodResourcesListUseActivePods", Stage::Deprecated, true),
    ("KubeletRegistrationGetOnExistsOnly", Stage::Deprecated, false),
    ("KubeletSeparateDiskGC", Stage::Beta, true),
    ("KubeletServiceAccountTokenForCredentialProviders", Stage::Beta, true),
    ("KubeletTracing", Stage::Ga, true),
    ("LocalStorageCapacityIsolationFSQuotaMonitoring", Stage::Beta, false),
    ("MemoryQoS", Stage::Alpha, false),
    ("MutableCSINodeAllocatableCount", Stage::Ga, true),
    ("NodeDeclaredFeatures", Stage::Beta, true),
    ("NodeLogQuery", Stage::Ga, true),
    ("NodeSwap", Stage::Ga, true),
    ("PLEGOnDemandRelist", Stage::Beta, true),
    ("PodAndContainerStatsFromCRI", Stage::Alpha, false),
    ("PodCertificateRequest", Stage::Beta, false),
    ("PodLevelResourceManagers", Stage::Alpha, false),
    ("PodLevelResources", Stage::Beta, true),
    ("PodLifecycleSleepAction", Stage::Ga, true),
    ("PodLifecycleSleepActionAllowZero", Stage::Ga, true),
    ("PodLogsQuerySplitStreams", Stage::Alpha, false),
    ("PodObservedGenerationTracking", Stage::Ga, true),
    ("PodReadyToStartContainersCondition", Stage::Beta, true),
    ("PodsAPI", Stage::Alpha, false),
    ("PreventStaticPodAPIReferences", Stage::Beta, true),
    ("ProcMountType", Stage::Ga, true),
    ("QOSReserved", Stage::Alpha, false),
    ("RecursiveReadOnlyMounts", Stage::Ga, true),
    ("ReduceDefaultCrashLoopBackOffDecay", Stage::Alpha, false),
    ("ReloadKubeletClientCAFile", Stage::Beta, true),
    ("ReloadKubeletServerCertificateFile", Stage::Beta, true),
    ("ResourceHealthStatus", Stage::Beta, true),
    ("ResourceHealthStatusMessage", Stage::Beta, true),
    ("RestartAllContainersOnContainerExits", Stage::Beta, true),
    ("RotateKubeletServerCertificate", Stage::Beta, true),
    ("RuntimeClassInImageCriApi", Stage::Alpha, false),
    ("SELinuxChangePolicy", Stage::Ga, true),
    ("SELinuxMount", Stage::Beta, false),
    ("SELinuxMountReadWriteOncePod", Stage::Ga, true),
    ("SidecarContainers", Stage::Ga, true),
    ("SupplementalGroupsPolicy", Stage::Ga, true),
    ("SystemdWatchdog", Stage::Ga, true),
    ("TopologyManagerPolicyAlphaOptions", Stage::Alpha, false),
    ("TopologyManagerPolicyBetaOptions", Stage::Beta, true),
    ("TopologyManagerPolicyOptions", Stage::Ga, true),
    ("UserNamespacesHostNetworkSupport", Stage::Alpha, false),
    ("UserNamespacesSupport", Stage::Ga, true),
];

/// What is on: the defaults and what the configuration says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct FeatureGates(BTreeMap<String, bool>);

impl FeatureGates {
    pub fn new(set: BTreeMap<String, bool>) -> Self {
        FeatureGates(set)
    }

    /// Whether the gate is on; an unknown one is off. `AllAlpha` and `AllBeta` set their stage where a gate is not named.
    pub fn enabled(&self, name: &str) -> bool {
        if let Some(value) = self.0.get(name) {
            return *value;
        }
        let Some((_, stage, default)) = gate(name) else { return false };
        let all = match stage {
            Stage::Alpha => self.0.get("AllAlpha"),
            Stage::Beta => self.0.get("AllBeta"),
            Stage::Ga | Stage::Deprecated => None,
        };
        all.copied().unwrap_or(*default)
    }

    /// Gates that do not exist, and gates that can no longer be switched.
    pub fn errors(&self) -> Vec<String> {
        let mut errors = Vec::new();
        for (name, value) in &self.0 {
            match gate(name) {
                Some((_, Stage::Ga, default)) if value != default => {
                    errors.push(format!("cannot set feature gate {name} to {value}, feature is locked to {default}"));
                }
                None if name != "AllAlpha" && name != "AllBeta" => {
                    errors.push(format!("unrecognized feature gate: {name}"));
                }
                _ => {}
            }
        }
        errors
    }
}

fn gate(name: &str) -> Option<&'static (&'static str, Stage, bool)> {
    GATES.binary_search_by(|(n, ..)| (*n).cmp(name)).ok().map(|at| &GATES[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_sorted_and_groups_reach_unnamed_ones() {
        assert!(GATES.is_sorted_by_key(|g| g.0));
        let gates = FeatureGates::new(BTreeMap::from([("AllAlpha".into(), true), ("MemoryQoS".into(), false)]));
        assert!(gates.enabled("EventedPLEG") && !gates.enabled("MemoryQoS") && !gates.enabled("NoSuchGate"));
        assert!(FeatureGates::default().enabled("SidecarContainers"));
        assert_eq!(FeatureGates::new(BTreeMap::from([("X".into(), true)])).errors(), ["unrecognized feature gate: X"]);
    }
}
