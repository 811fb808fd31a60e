//! Levels, versions and the labels that name them.

use std::fmt;

use serde_json::Value;

use crate::status::{Cause, quote};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Level {
    #[default]
    Privileged,
    Baseline,
    Restricted,
}

/// The minor version of Kubernetes whose rules count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Version {
    #[default]
    Latest,
    Minor(u32),
}

impl Version {
    /// Whether the rules of a minor version are in force.
    pub fn since(self, minor: u32) -> bool {
        match self {
            Version::Latest => true,
            Version::Minor(own) => own >= minor,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LevelVersion {
    pub level: Level,
    pub version: Version,
}

impl fmt::Display for LevelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        };
        match self.version {
            Version::Latest => write!(f, "{level}:latest"),
            Version::Minor(minor) => write!(f, "{level}:v1.{minor}"),
        }
    }
}

/// What a namespace asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Policy {
    pub enforce: LevelVersion,
    pub audit: LevelVersion,
    pub warn: LevelVersion,
}

impl Policy {
    /// Nothing is refused, and nothing told.
    pub fn is_privileged(&self) -> bool {
        [self.enforce, self.audit, self.warn].iter().all(|of| of.level == Level::Privileged)
    }

    /// Whether both ask for the same; what refuses nothing does so in every version.
    pub fn is_like(&self, other: &Policy) -> bool {
        let like = |a: LevelVersion, b: LevelVersion| a == b || a.level == b.level && a.level == Level::Privileged;
        like(self.enforce, other.enforce) && like(self.audit, other.audit) && like(self.warn, other.warn)
    }
}

pub fn parse_level(text: &str) -> Option<Level> {
    match text {
        "privileged" => Some(Level::Privileged),
        "baseline" => Some(Level::Baseline),
        "restricted" => Some(Level::Restricted),
        _ => None,
    }
}

pub fn parse_version(text: &str) -> Option<Version> {
    if text == "latest" {
        return Some(Version::Latest);
    }
    let minor = text.strip_prefix("v1.")?;
    let plain = minor.bytes().all(|b| b.is_ascii_digit()) && (minor == "0" || !minor.starts_with('0'));
    minor.parse().ok().filter(|_| plain).map(Version::Minor)
}

/// Reads the labels of a namespace's tree, as [`read`].
pub fn of(labels: &Value, defaults: &Policy) -> (Policy, Vec<Cause>) {
    read(|label| labels[label].as_str(), defaults)
}

/// The labels of each mode: its level, and the version of that.
const ENFORCE: [&str; 2] = ["pod-security.kubernetes.io/enforce", "pod-security.kubernetes.io/enforce-version"];
const AUDIT: [&str; 2] = ["pod-security.kubernetes.io/audit", "pod-security.kubernetes.io/audit-version"];
const WARN: [&str; 2] = ["pod-security.kubernetes.io/warn", "pod-security.kubernetes.io/warn-version"];

/// Reads a namespace's labels; where they say nothing, the defaults hold. What does not parse is the strictest for
/// enforcing and nothing for the rest.
pub fn read<'a>(get: impl Fn(&str) -> Option<&'a str>, defaults: &Policy) -> (Policy, Vec<Cause>) {
    let mut errors = Vec::new();
    let mut mode_of = |[level, version]: [&str; 2], fallback: Level| {
        let mut complain = |label: &str, text: &str, why: &str| {
            errors.push(Cause {
                reason: "FieldValueInvalid".into(),
                message: format!("Invalid value: {}: {why}", quote(text)),
                field: format!("metadata.labels[{label}]"),
            });
        };
        let said = get(level).map(|text| {
            parse_level(text).ok_or_else(|| complain(level, text, "must be one of privileged, baseline, restricted"))
        });
        let version = get(version).map(|text| {
            parse_version(text).unwrap_or_else(|| {
                complain(version, text, "must be \"latest\" or \"v1.x\"");
                Version::Latest
            })
        });
        (said.map(|l| l.unwrap_or(fallback)), version)
    };
    let (enforce, enforce_version) = mode_of(ENFORCE, Level::Restricted);
    let (audit, audit_version) = mode_of(AUDIT, Level::Privileged);
    let (warn, warn_version) = mode_of(WARN, Level::Privileged);
    let at = |default: LevelVersion, level: Option<Level>, version: Option<Version>| LevelVersion {
        level: level.unwrap_or(default.level),
        version: version.unwrap_or(default.version),
    };
    let mut policy = Policy {
        enforce: at(defaults.enforce, enforce, enforce_version),
        audit: at(defaults.audit, audit, audit_version),
        warn: at(defaults.warn, warn, warn_version),
    };
    // Who enforces wants to be warned as well: of workloads, whose pods would be refused. A label that makes no sense is
    // nobody's wish.
    let wished = get(ENFORCE[0]).is_some_and(|text| parse_level(text).is_some());
    if warn.is_none() && wished && policy.enforce.level > policy.warn.level {
        policy.warn.level = policy.enforce.level;
        if warn_version.is_none() {
            policy.warn.version = policy.enforce.version;
        }
    }
    (policy, errors)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_name_levels_and_versions() {
        let labels = json!({
            "pod-security.kubernetes.io/enforce": "baseline",
            "pod-security.kubernetes.io/enforce-version": "v1.25",
        });
        let (policy, errors) = of(&labels, &Policy::default());
        assert!(errors.is_empty());
        assert_eq!(policy.enforce.to_string(), "baseline:v1.25");
        assert_eq!(policy.warn, policy.enforce);
        assert_eq!(of(&Value::Null, &Policy::default()).0, Policy::default());
    }

    #[test]
    fn labels_that_make_no_sense_are_told_and_enforce_the_strictest() {
        let labels = json!({
            "pod-security.kubernetes.io/enforce": "strict",
            "pod-security.kubernetes.io/enforce-version": "v1.x",
            "pod-security.kubernetes.io/warn": "no",
        });
        let (policy, errors) = of(&labels, &Policy::default());
        assert_eq!(policy.enforce.to_string(), "restricted:latest");
        assert_eq!(policy.warn.level, Level::Privileged);
        let unwarned = of(&json!({"pod-security.kubernetes.io/enforce": "strict"}), &Policy::default()).0;
        assert_eq!((unwarned.enforce.level, unwarned.warn.level), (Level::Restricted, Level::Privileged));
        let fields: Vec<&str> = errors.iter().map(|e| e.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "metadata.labels[pod-security.kubernetes.io/enforce]",
                "metadata.labels[pod-security.kubernetes.io/enforce-version]",
                "metadata.labels[pod-security.kubernetes.io/warn]",
            ]
        );
        assert!(parse_version("v1.01").is_none() && parse_version("v1.+1").is_none());
    }
}
