//! Feature gates: which there are, and which are on.

use std::collections::BTreeMap;

use serde::Deserialize;

pub use super::gates::GATES;
use super::gates::{DEPENDENCIES, OTHERS};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Alpha,
    Beta,
    Ga,
    Deprecated,
}

/// What is on: the defaults and what the configuration says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct FeatureGates(BTreeMap<String, bool>);

impl FeatureGates {
    pub fn new(set: BTreeMap<String, bool>) -> Self {
        FeatureGates(set)
    }

    /// From the configuration's map; what is no truth value is left out.
    pub(super) fn from_tree(tree: &serde_json::Value) -> Self {
        let map = tree.as_object().into_iter().flatten();
        FeatureGates(map.filter_map(|(name, on)| Some((name.to_string(), on.as_bool()?))).collect())
    }

    /// These gates with others on top.
    pub(super) fn with(&self, top: &FeatureGates) -> Self {
        FeatureGates(self.0.iter().chain(&top.0).map(|(name, on)| (name.clone(), *on)).collect())
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

    /// What is set although it will go, in the words of upstream's log.
    pub(super) fn deprecated(&self) -> Vec<String> {
        let old = |name: &String| match gate(name)?.1 {
            Stage::Ga => Some("GA"),
            Stage::Deprecated => Some("deprecated"),
            Stage::Alpha | Stage::Beta => None,
        };
        let set = self.0.iter().filter_map(|(name, on)| Some((name, on, old(name)?)));
        set.map(|(name, on, stage)| {
            format!("Setting {stage} feature gate {name}={on}. It will be removed in a future release.")
        })
        .collect()
    }

    /// Gates that do not exist, that can no longer be switched, and that are on without what they build on; in the
    /// kubelet's words.
    pub fn errors(&self) -> Vec<String> {
        let mut errors = Vec::new();
        for (name, value) in &self.0 {
            match gate(name) {
                Some((_, stage, default)) if value != default && is_locked(name, *stage) => {
                    errors.push(format!("cannot set feature gate {name} to {value}, feature is locked to {default}"));
                }
                None if !GROUPS.contains(&name.as_str()) => {
                    errors.push(format!("unrecognized feature gate: {name}"));
                }
                _ => {}
            }
        }
        for (name, needs) in DEPENDENCIES {
            let off: Vec<_> = needs.iter().copied().filter(|need| !self.enabled(need)).collect();
            if !off.is_empty() && self.enabled(name) {
                errors
                    .push(format!("{name} is enabled, but depends on features that are disabled: [{}]", off.join(" ")));
            }
        }
        errors
    }
}

/// Whether there is a gate or a group of that name.
pub(super) fn is_gate(name: &str) -> bool {
    gate(name).is_some() || GROUPS.contains(&name)
}

const GROUPS: &[&str] = &["AllAlpha", "AllBeta"];
fn is_locked(name: &str, stage: Stage) -> bool {
    if stage == Stage::Ga { !UNLOCKED.contains(&name) } else { LOCKED.contains(&name) }
}

/// Stable, and can be switched off for one more version.
const UNLOCKED: &[&str] = &["CustomCPUCFSQuotaPeriod", "DRAPrioritizedList", "MutatingAdmissionPolicy"];
/// Deprecated, and no longer to be switched either.
const LOCKED: &[&str] = &[
    "AggregatedDiscoveryRemoveBetaType",
    "AllowOverwriteTerminationGracePeriodSeconds",
    "DisableNodeKubeProxyVersion",
    "GitRepoVolumeDriver",
    "SeparateCacheWatchRPC",
];

fn gate(name: &str) -> Option<&'static (&'static str, Stage, bool)> {
    let find = |table: &'static [(&'static str, Stage, bool)]| {
        table.binary_search_by(|(n, ..)| (*n).cmp(name)).ok().map(|at| &table[at])
    };
    find(GATES).or_else(|| find(OTHERS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_sorted_and_groups_reach_unnamed_ones() {
        assert!(GATES.is_sorted_by_key(|g| g.0) && OTHERS.is_sorted_by_key(|g| g.0));
        assert!(DEPENDENCIES.iter().all(|(name, needs)| needs.iter().chain([name]).all(|n| gate(n).is_some())));
        assert_eq!(FeatureGates::default().errors(), Vec::<String>::new());
        let gates = FeatureGates::new(BTreeMap::from([("AllAlpha".into(), true), ("MemoryQoS".into(), false)]));
        assert!(gates.enabled("EventedPLEG") && !gates.enabled("MemoryQoS") && !gates.enabled("NoSuchGate"));
        assert!(FeatureGates::default().enabled("SidecarContainers"));
        let told =
            FeatureGates::new(BTreeMap::from([("SidecarContainers".into(), true), ("EventedPLEG".into(), true)]));
        assert_eq!(
            told.deprecated(),
            ["Setting GA feature gate SidecarContainers=true. It will be removed in a future release."]
        );
        let of = |name: &str, on| FeatureGates::new(BTreeMap::from([(name.to_owned(), on)])).errors();
        assert_eq!(of("X", true), ["unrecognized feature gate: X"]);
        assert_eq!(
            of("APIServerIdentity", false),
            ["UnknownVersionInteroperabilityProxy is enabled, but depends on features that are disabled: \
              [APIServerIdentity]"]
        );
        assert!(
            of("CustomCPUCFSQuotaPeriod", false).is_empty() && !of("TopologyManagerPolicyOptions", false).is_empty()
        );
        assert!(!of("AllowOverwriteTerminationGracePeriodSeconds", true).is_empty());
        assert!(of("AllBeta", false).is_empty() && of("StorageVersionAPI", true).is_empty());
    }
}
