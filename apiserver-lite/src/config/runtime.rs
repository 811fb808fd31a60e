//! `--runtime-config`: which versions and resources are served.
//!
//! Words for whole kinds of versions (`api/all`, `api/ga`, `api/beta`, `api/alpha`) are applied first and in that order,
//! then `GROUP/VERSION`, then `GROUP/VERSION/RESOURCE`, wherever they stand in the list: the finer one wins.

use std::collections::BTreeSet;

use super::{ConfigError, bad};

/// Versions that are known and no longer served, so that naming them is no mistake.
const RETIRED: &[(&str, &[&str])] = &[
    ("apiextensions.k8s.io", &["v1beta1"]),
    ("apiregistration.k8s.io", &["v1beta1"]),
    ("apps", &["v1beta1", "v1beta2"]),
    ("authentication.k8s.io", &["v1alpha1", "v1beta1"]),
    ("authorization.k8s.io", &["v1beta1"]),
    ("batch", &["v1beta1"]),
    ("discovery.k8s.io", &["v1beta1"]),
    ("events.k8s.io", &["v1beta1"]),
    ("extensions", &["v1beta1"]),
    ("flowcontrol.apiserver.k8s.io", &["v1beta1", "v1beta2", "v1beta3"]),
    ("imagepolicy.k8s.io", &["v1alpha1"]),
    ("node.k8s.io", &["v1alpha1", "v1beta1"]),
    ("policy", &["v1beta1"]),
    ("rbac.authorization.k8s.io", &["v1alpha1", "v1beta1"]),
    ("scheduling.k8s.io", &["v1beta1"]),
    ("storage.k8s.io", &["v1alpha1"]),
];

/// What is switched, and to what.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeConfig(Vec<(Scope, bool)>);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Scope {
    All,
    Stable,
    Beta,
    Alpha,
    Version(String, String),
    Resource(String, String, String),
}

impl RuntimeConfig {
    /// Reads `KEY=true` entries; one without a value means true.
    ///
    /// # Errors
    /// A key of another form, a group that is not known, a value that is no boolean.
    pub fn parse(list: &[String]) -> Result<Self, ConfigError> {
        let wrong = |reason: String| bad("runtime-config", reason);
        let mut out: Vec<(Scope, bool)> = Vec::new();
        let mut unknown = BTreeSet::new();
        for entry in list.iter().filter(|e| !e.trim().is_empty()) {
            let (key, value) = entry.split_once('=').unwrap_or((entry, "true"));
            let (key, value) = (key.trim(), value.trim());
            let on = match value {
                "" | "true" | "True" | "TRUE" | "t" | "T" | "1" => true,
                "false" | "False" | "FALSE" | "f" | "F" | "0" => false,
                other => return Err(wrong(format!("invalid value of {key}: {other}: not true or false"))),
            };
            let parts: Vec<&str> = key.split('/').collect();
            let scope = match parts.as_slice() {
                ["api", "all"] => Scope::All,
                ["api", "ga"] => Scope::Stable,
                ["api", "beta"] => Scope::Beta,
                ["api", "alpha"] => Scope::Alpha,
                ["v1"] | ["", "v1"] if !on => return Err(wrong("the core group cannot be switched off".into())),
                ["v1"] => Scope::Version(String::new(), "v1".into()),
                [group, version] => Scope::Version((*group).into(), (*version).into()),
                [_, _, resource] if resource.chars().any(char::is_uppercase) => {
                    return Err(wrong(format!(
                        "invalid key {key}: group/version/resource and resource is always lowercase plural, not {resource:?}"
                    )));
                }
                [group, version, resource] => Scope::Resource((*group).into(), (*version).into(), (*resource).into()),
                _ => return Err(wrong(format!("invalid key {key}"))),
            };
            if let Scope::Version(group, version) | Scope::Resource(group, version, _) = &scope {
                let retired = RETIRED.iter().find(|(g, _)| g == group).map(|(_, versions)| *versions);
                if !crate::resource::is_built_in_group(group) && retired.is_none() {
                    unknown.insert(group.clone());
                } else if !crate::resource::is_built_in_version(group, version)
                    && !retired.is_some_and(|versions| versions.contains(&version.as_str()))
                {
                    return Err(wrong(format!("group version {group}/{version} that has not been registered")));
                }
            }
            // Of two entries for one key the later counts.
            out.retain(|(s, _)| *s != scope);
            out.push((scope, on));
        }
        if !unknown.is_empty() {
            let groups: Vec<String> = unknown.into_iter().collect();
            return Err(wrong(format!("unknown api groups {}", groups.join(","))));
        }
        if out == [(Scope::All, false)] {
            return Err(wrong("invalid runtime-config with only api/all=false".into()));
        }
        out.sort();
        Ok(RuntimeConfig(out))
    }

    /// Whether a resource is served that is by default as `default` says.
    pub fn serves(&self, group: &str, version: &str, plural: &str, default: bool) -> bool {
        let fits = |scope: &Scope| match scope {
            Scope::All => true,
            Scope::Stable => stage(version).is_empty(),
            Scope::Beta => stage(version) == "beta",
            Scope::Alpha => stage(version) == "alpha",
            Scope::Version(g, v) => (g.as_str(), v.as_str()) == (group, version),
            Scope::Resource(g, v, r) => (g.as_str(), v.as_str(), r.as_str()) == (group, version, plural),
        };
        // Without the core group nothing works.
        let core = group.is_empty() || group == "apiregistration.k8s.io" || group == "apiextensions.k8s.io";
        self.0.iter().rev().find(|(s, _)| fits(s)).map_or(default, |(_, on)| *on || core)
    }
}

/// `beta` of `v1beta2`; empty for a stable version.
fn stage(version: &str) -> &str {
    version.trim_start_matches('v').trim_matches(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serves(entries: &[&str], path: (&str, &str, &str), default: bool) -> bool {
        let list: Vec<String> = entries.iter().map(|e| (*e).into()).collect();
        RuntimeConfig::parse(&list).expect("fine").serves(path.0, path.1, path.2, default)
    }

    #[test]
    fn the_finer_switch_wins() {
        let slices = ("resource.k8s.io", "v1beta1", "resourceslices");
        assert!(!serves(&[], slices, false));
        assert!(serves(&["api/beta=true"], slices, false));
        assert!(!serves(&["api/alpha"], slices, false));
        assert!(!serves(&["resource.k8s.io/v1beta1=false", "api/all=true"], slices, false));
        assert!(serves(&["resource.k8s.io/v1beta1/resourceslices", "api/all=false"], slices, false));
        assert!(!serves(&["apps/v1/deployments=false"], ("apps", "v1", "deployments"), true));
        assert!(serves(&["apps/v1/deployments=false"], ("apps", "v1", "replicasets"), true));
    }

    #[test]
    fn wrong_entries_are_refused() {
        for entry in
            ["nonsense/v1=true", "apps", "apps/v1=maybe", "apps/v1/Deployments=true", "api/all=false", "v1=false"]
        {
            assert!(RuntimeConfig::parse(&[entry.into()]).is_err(), "{entry}");
        }
        let said = |list: &[&str]| {
            let list: Vec<String> = list.iter().map(|e| (*e).into()).collect();
            RuntimeConfig::parse(&list).map_err(|e| e.to_string())
        };
        let groups = said(&["more.nonsense/v1", "apps/v1", "a.nonsense/v1/things=false"]).unwrap_err();
        assert_eq!(groups, "--runtime-config: unknown api groups a.nonsense,more.nonsense");
        let version = said(&["apps/v9=true"]).unwrap_err();
        assert_eq!(version, "--runtime-config: group version apps/v9 that has not been registered");
        assert!(said(&["batch/v1beta1=true", "extensions/v1beta1/ingresses=true"]).is_ok(), "they were once");
    }
}
