//! Feature gates: one table, read once, passed down.

use super::{ConfigError, bad};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Alpha,
    Beta,
    /// Always on.
    Stable,
}

/// A feature, its stage and whether it is on unless told otherwise (Kubernetes 1.36).
struct Gate {
    name: &'static str,
    stage: Stage,
    default: bool,
}

const fn gate(name: &'static str, stage: Stage, default: bool) -> Gate {
    Gate { name, stage, default }
}

const GATES: &[Gate] = &[
    gate("AuthorizeNodeWithSelectors", Stage::Stable, true),
    gate("AuthorizeWithSelectors", Stage::Stable, true),
    gate("AuthorizePodWebsocketUpgradeCreatePermission", Stage::Beta, true),
    gate("APIResponseCompression", Stage::Beta, true),
    gate("CBORServingAndStorage", Stage::Alpha, false),
    gate("ConsistentListFromCache", Stage::Stable, true),
    gate("ConstrainedImpersonation", Stage::Beta, true),
    gate("CRDValidationRatcheting", Stage::Stable, true),
    gate("CustomResourceFieldSelectors", Stage::Stable, true),
    gate("ClusterTrustBundle", Stage::Beta, false),
    gate("CoordinatedLeaderElection", Stage::Beta, false),
    gate("DRADeviceTaintRules", Stage::Beta, false),
    gate("DRAResourcePoolStatus", Stage::Alpha, false),
    gate("GenericWorkload", Stage::Alpha, false),
    gate("InPlacePodVerticalScaling", Stage::Stable, true),
    gate("ListFromCacheSnapshot", Stage::Beta, true),
    gate("MutatingAdmissionPolicy", Stage::Stable, true),
    gate("OpenAPIEnums", Stage::Beta, true),
    gate("OrderedNamespaceDeletion", Stage::Stable, true),
    gate("PodLevelResources", Stage::Beta, true),
    gate("PodCertificateRequest", Stage::Beta, false),
    gate("RelaxedServiceNameValidation", Stage::Beta, true),
    gate("RetryGenerateName", Stage::Stable, true),
    gate("ShardedListAndWatch", Stage::Alpha, false),
    gate("StorageVersionAPI", Stage::Alpha, false),
    gate("StorageVersionHash", Stage::Beta, true),
    gate("StorageVersionMigrator", Stage::Beta, false),
    gate("WatchList", Stage::Beta, true),
];

/// Which features are on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeatureGates(Vec<(&'static str, bool)>);

impl FeatureGates {
    /// Reads `NAME=true` entries. Features we do not know are noted and passed over: scripts for other versions of
    /// Kubernetes name many.
    ///
    /// # Errors
    /// An entry of another form, or a stable feature that is to be switched off.
    pub(super) fn parse(list: &[String]) -> Result<Self, ConfigError> {
        let flag = "feature-gates";
        let mut gates: Vec<(&'static str, bool)> = GATES.iter().map(|g| (g.name, g.default)).collect();
        for entry in list.iter().map(|e| e.trim()).filter(|e| !e.is_empty()) {
            let Some((name, value)) = entry.split_once('=') else {
                return Err(bad(flag, format!("missing bool value for {entry}")));
            };
            let value = match value.trim() {
                "true" | "True" | "TRUE" | "t" | "T" | "1" => true,
                "false" | "False" | "FALSE" | "f" | "F" | "0" => false,
                other => return Err(bad(flag, format!("invalid value of {name}={other}: not true or false"))),
            };
            let name = name.trim();
            if matches!(name, "AllAlpha" | "AllBeta") {
                let stage = if name == "AllAlpha" { Stage::Alpha } else { Stage::Beta };
                for (gate, state) in GATES.iter().zip(&mut gates).filter(|(g, _)| g.stage == stage) {
                    state.1 = value && (gate.default || stage == Stage::Alpha || stage == Stage::Beta);
                }
                continue;
            }
            match GATES.iter().zip(&mut gates).find(|(g, _)| g.name == name) {
                Some((gate, _)) if gate.stage == Stage::Stable && !value => {
                    return Err(bad(
                        flag,
                        format!("cannot set feature gate {name} to false, feature is locked to true"),
                    ));
                }
                Some((_, state)) => state.1 = value,
                None => tracing::warn!(feature = name, "no such feature here; passed over"),
            }
        }
        Ok(FeatureGates(gates))
    }

    pub fn enabled(&self, name: &str) -> bool {
        self.0.iter().any(|(n, on)| *n == name && *on)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&'static str, bool)> {
        self.0.iter().copied()
    }
}
