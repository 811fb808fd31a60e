//! What the agent may do beyond a user's rights, and the giving up of the rest.
//!
//! Runs in the first thread before any other is there: capabilities belong to threads, and new ones inherit them. What
//! is given up leaves the bounding set as well, so that no program which the agent starts gets it back, and
//! `no_new_privs` closes set-user-id programs. Nothing here is fatal: where the kernel refuses, the agent goes on with
//! what it has and says so.
//!
//! capabilities(7), prctl(2).

use caps::{CapSet, Capability, CapsHashSet};

/// What is kept and why. `docs/capabilities.md` is made of it.
pub const KEPT: &[(Capability, &str)] = &[
    (
        Capability::CAP_SYS_ADMIN,
        "mounts of volumes (bind, tmpfs, hugetlbfs, those of the `mount` helpers) and their unmounting",
    ),
    (Capability::CAP_CHOWN, "files of config maps, secrets and tokens go to the user and group that the pod names"),
    (Capability::CAP_DAC_OVERRIDE, "writes below volumes, logs and cgroups that belong to the users of pods"),
    (Capability::CAP_DAC_READ_SEARCH, "reads logs and measures volumes of pods that close their folders"),
    (Capability::CAP_FOWNER, "modes of volumes' files that belong to a pod's user (`fsGroup`, `defaultMode`)"),
    (Capability::CAP_FSETID, "keeps the set-group-id bit on volumes with `fsGroup`"),
    (Capability::CAP_NET_BIND_SERVICE, "ports below 1024 where the configuration asks for one; the NFS helper's port"),
    (Capability::CAP_SYS_RESOURCE, "its own OOM score and limit of open files, as configured"),
    (Capability::CAP_SYSLOG, "the kernel's log, which tells of processes that were killed for want of memory"),
];

/// What came of it, for the log once there is one.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Given up, by name.
    pub dropped: Vec<String>,
    /// Wanted but not held.
    pub missing: Vec<String>,
    /// What the kernel refused.
    pub refused: Vec<String>,
}

/// Gives up what is not in [`KEPT`], for this thread and those it starts.
pub fn drop_unneeded() -> Outcome {
    let mut outcome = Outcome::default();
    let kept: CapsHashSet = KEPT.iter().map(|(capability, _)| *capability).collect();
    let mut tell = |what: &str, result: Result<(), String>| {
        if let Err(error) = result {
            outcome.refused.push(format!("{what}: {error}"));
        }
    };
    let held = caps::read(None, CapSet::Permitted).unwrap_or_default();
    // The bounding set first, which takes CAP_SETPCAP.
    if held.contains(&Capability::CAP_SETPCAP) {
        for capability in caps::read(None, CapSet::Bounding).unwrap_or_default().difference(&kept) {
            tell("bounding set", caps::drop(None, CapSet::Bounding, *capability).map_err(|e| e.to_string()));
        }
    }
    tell("ambient set", caps::clear(None, CapSet::Ambient).map_err(|e| e.to_string()));
    let left: CapsHashSet = held.intersection(&kept).copied().collect();
    tell("inheritable set", caps::clear(None, CapSet::Inheritable).map_err(|e| e.to_string()));
    tell("effective set", caps::set(None, CapSet::Effective, &left).map_err(|e| e.to_string()));
    tell("permitted set", caps::set(None, CapSet::Permitted, &left).map_err(|e| e.to_string()));
    tell("no_new_privs", nix::sys::prctl::set_no_new_privs().map_err(|e| e.to_string()));
    let names = |set: Vec<&Capability>| {
        let mut names: Vec<String> = set.into_iter().map(ToString::to_string).collect();
        names.sort();
        names
    };
    outcome.dropped = names(held.difference(&kept).collect());
    outcome.missing = names(kept.difference(&held).collect());
    outcome
}

impl Outcome {
    pub fn log(&self) {
        if !self.dropped.is_empty() {
            tracing::debug!(capabilities = self.dropped.join(" "), "gave up what is not needed");
        }
        if !self.missing.is_empty() {
            tracing::info!(
                capabilities = self.missing.join(" "),
                "runs without these capabilities; some pods may fail"
            );
        }
        for refused in &self.refused {
            tracing::warn!(refused, "cannot give up a privilege");
        }
    }
}

/// The list as `docs/capabilities.md` has it.
pub fn reference() -> String {
    let mut text = String::new();
    for (capability, why) in KEPT {
        text.push_str(&format!("| `{capability}` | {why} |\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the unit leaves in the bounding set is what the agent keeps, or one of the two is wrong.
    #[test]
    fn the_unit_names_the_same_capabilities() {
        let unit = include_str!("../../systemd/node-agent.service");
        let line = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).expect("a bounding set");
        let mut of_unit: Vec<&str> = line.split_whitespace().collect();
        let mut kept: Vec<String> = KEPT.iter().map(|(capability, _)| capability.to_string()).collect();
        of_unit.sort_unstable();
        kept.sort();
        assert_eq!(of_unit, kept);
    }

    #[test]
    fn the_documented_list_is_the_codes() {
        let page = include_str!("../../docs/capabilities.md");
        assert!(page.contains(&reference()), "docs/capabilities.md should have\n{}", reference());
    }
}
