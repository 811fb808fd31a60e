//! Feature gates: one table, read once, passed down.
//!
//! The table holds every gate of Kubernetes 1.36 and not only those that mean something here: one list configures a whole
//! cluster, and only a name that none of its components knows is a mistake.

use super::{ConfigError, bad};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Alpha,
    Beta,
    /// Locked to its default.
    Stable,
    /// About to go away; off or on as the table says.
    Deprecated,
}

/// A feature, its stage and whether it is on unless told otherwise (Kubernetes 1.36).
struct Gate {
    name: &'static str,
    stage: Stage,
    default: bool,
    /// Features that it builds on.
    needs: &'static str,
}

const TABLE: &str = include_str!("gates.txt");

/// Deprecated, and no longer to be switched either.
const LOCKED: [&str; 4] = [
    "AggregatedDiscoveryRemoveBetaType",
    "DisableNodeKubeProxyVersion",
    "GitRepoVolumeDriver",
    "SeparateCacheWatchRPC",
];

fn table() -> impl Iterator<Item = Gate> {
    TABLE.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let mut words = line.split(' ');
        let (name, stage, default) = (words.next()?, words.next()?, words.next()?);
        let stage = match stage {
            "alpha" => Stage::Alpha,
            "beta" => Stage::Beta,
            "ga" => Stage::Stable,
            _ => Stage::Deprecated,
        };
        Some(Gate { name, stage, default: default == "true", needs: words.next().unwrap_or_default() })
    })
}

/// Which features are on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeatureGates(Vec<(&'static str, bool)>);

impl FeatureGates {
    /// Reads `NAME=true` entries. `AllAlpha` and `AllBeta` set what no entry names.
    ///
    /// # Errors
    /// An entry of another form, a name that no feature has, one that is locked to another value, or features that are
    /// on without what they build on.
    pub fn parse(list: &[String]) -> Result<Self, ConfigError> {
        let wrong = |reason: String| Err(bad("feature-gates", reason));
        let mut gates: Vec<(Gate, Option<bool>)> = table().map(|gate| (gate, None)).collect();
        let mut stages: [(Stage, Option<bool>); 2] = [(Stage::Alpha, None), (Stage::Beta, None)];
        for entry in list.iter().map(|e| e.trim()).filter(|e| !e.is_empty()) {
            let Some((name, value)) = entry.split_once('=') else {
                return wrong(format!("missing bool value for {entry}"));
            };
            let name = name.trim();
            let value = match value.trim() {
                "true" | "True" | "TRUE" | "t" | "T" | "1" => true,
                "false" | "False" | "FALSE" | "f" | "F" | "0" => false,
                other => return wrong(format!("invalid value of {name}={other}: not true or false")),
            };
            if let Some(at) = ["AllAlpha", "AllBeta"].iter().position(|group| *group == name) {
                stages[at].1 = Some(value);
                continue;
            }
            match gates.iter_mut().find(|(gate, _)| gate.name == name) {
                None => return wrong(format!("unrecognized feature gate: {name}")),
                Some((gate, _))
                    if value != gate.default && (gate.stage == Stage::Stable || LOCKED.contains(&gate.name)) =>
                {
                    let default = gate.default;
                    return wrong(format!("cannot set feature gate {name} to {value}, feature is locked to {default}"));
                }
                Some((_, said)) => *said = Some(value),
            }
        }
        let all = |stage: Stage| stages.iter().find(|(s, _)| *s == stage).and_then(|(_, value)| *value);
        let value = |(gate, said): &(Gate, Option<bool>)| said.or_else(|| all(gate.stage)).unwrap_or(gate.default);
        let settled = FeatureGates(gates.iter().map(|entry| (entry.0.name, value(entry))).collect());
        let alone: Vec<String> = gates.iter().filter_map(|(gate, _)| settled.stands_alone(gate)).collect();
        if alone.is_empty() { Ok(settled) } else { wrong(crate::status::aggregate(&alone)) }
    }

    /// What a feature that is on lacks, in upstream's words.
    fn stands_alone(&self, gate: &Gate) -> Option<String> {
        let needs = gate.needs.split(',').filter(|need| !need.is_empty() && !self.enabled(need)).collect::<Vec<_>>();
        let told = !needs.is_empty() && self.enabled(gate.name);
        let name = gate.name;
        told.then(|| format!("{name} is enabled, but depends on features that are disabled: [{}]", needs.join(" ")))
    }

    pub fn enabled(&self, name: &str) -> bool {
        self.0.iter().any(|(n, on)| *n == name && *on)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&'static str, bool)> {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &[&str]) -> Result<FeatureGates, String> {
        let list: Vec<String> = list.iter().map(|e| (*e).into()).collect();
        FeatureGates::parse(&list).map_err(|e| e.to_string())
    }

    #[test]
    fn every_line_of_the_table_is_a_gate_and_names_are_sorted() {
        let names: Vec<&str> = table().map(|g| g.name).collect();
        assert_eq!(names.len() + 1, TABLE.lines().count());
        assert!(names.is_sorted());
        let gated = table().filter(|g| g.stage == Stage::Alpha).all(|g| !g.default);
        assert!(gated, "what is alpha is off");
        assert!(LOCKED.iter().all(|name| names.contains(name)));
        let mut needs = table().flat_map(|g| g.needs.split(',')).filter(|need| !need.is_empty());
        assert!(needs.all(|need| names.contains(&need)));
    }

    #[test]
    fn a_feature_is_not_on_without_what_it_builds_on() {
        let told = parse(&["WorkloadAwarePreemption=true"]).unwrap_err();
        let why = "WorkloadAwarePreemption is enabled, but depends on features that are disabled: [GangScheduling]";
        assert_eq!(told, format!("--feature-gates: {why}"));
        let told = parse(&["APIServerIdentity=false", "StorageVersionAPI=true"]).unwrap_err();
        assert!(told.contains("[StorageVersionAPI is enabled, but") && told.contains(", UnknownVersion"), "{told}");
        assert!(parse(&["AllBeta=false"]).is_ok() && parse(&["AllAlpha=true"]).is_ok());
        assert!(parse(&["APIServerIdentity=false", "UnknownVersionInteroperabilityProxy=false"]).is_ok());
    }

    #[test]
    fn unknown_and_locked_gates_are_refused() {
        assert_eq!(parse(&["NoSuchGate=true"]).unwrap_err(), "--feature-gates: unrecognized feature gate: NoSuchGate");
        assert_eq!(
            parse(&["AuthorizeWithSelectors=false"]).unwrap_err(),
            "--feature-gates: cannot set feature gate AuthorizeWithSelectors to false, feature is locked to true"
        );
        assert!(parse(&["WatchList"]).unwrap_err().contains("missing bool value for WatchList"));
        assert!(parse(&["WatchList=maybe"]).unwrap_err().contains("invalid value of WatchList=maybe"));
    }

    #[test]
    fn gates_are_as_the_release_has_them() {
        let defaults = parse(&[]).expect("nothing said");
        for (name, on) in [
            ("CRDObservedGenerationTracking", false),
            ("MaxUnavailableStatefulSet", false),
            ("StrictIPCIDRValidation", true),
            ("StaleControllerConsistencyJob", true),
            ("ControllerManagerReleaseLeaderElectionLockOnExit", false),
        ] {
            assert_eq!(defaults.enabled(name), on, "{name}");
            let turned = parse(&[&format!("{name}={}", !on)]).expect(name);
            assert_eq!(turned.enabled(name), !on, "{name}");
        }
    }

    #[test]
    fn a_stage_is_switched_where_no_entry_names_the_gate() {
        let told = ["ShardedListAndWatch=false", "AllAlpha=true", "AllBeta=false", "WatchList=true"];
        let gates = parse(&[&told[..], &["StorageVersionAPI=false"]].concat()).unwrap();
        assert!(gates.enabled("CBORServingAndStorage") && gates.enabled("WatchList"));
        assert!(!gates.enabled("ShardedListAndWatch") && !gates.enabled("StorageVersionHash"));
        assert!(gates.enabled("AuthorizeWithSelectors"));
    }
}
