//! `cpu_manager_state`: which containers have CPUs of their own, in the kubelet's format, so that either agent takes up the
//! other's.
//!
//! The checksum is FNV-1a 32 over the text in which Go's spew prints the checkpoint (`%#v`, keys sorted), with checksum 0.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::cpu_set::CpuSet;
use crate::pod::hash::fnv1a_32;

/// Name of the file below the root directory.
pub const FILE: &str = "cpu_manager_state";

/// Pod uid, container, its CPUs.
pub type Assignments = BTreeMap<String, BTreeMap<String, CpuSet>>;

/// Who has which CPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuState {
    /// Those that containers without CPUs of their own share; empty under the policy none.
    pub shared: CpuSet,
    pub assigned: Assignments,
}

impl CpuState {
    pub fn of(&self, pod: &str, container: &str) -> Option<&CpuSet> {
        self.assigned.get(pod)?.get(container)
    }

    /// All that the pod's containers have.
    pub fn of_pod(&self, pod: &str) -> CpuSet {
        self.assigned.get(pod).into_iter().flat_map(BTreeMap::values).fold(CpuSet::default(), |all, own| all.union(own))
    }

    /// How many CPUs containers have to themselves.
    pub fn exclusive(&self) -> usize {
        self.assigned.keys().map(|pod| self.of_pod(pod)).fold(CpuSet::default(), |all, own| all.union(&own)).len()
    }

    pub fn assign(&mut self, pod: &str, container: &str, cpus: CpuSet) {
        self.shared = self.shared.difference(&cpus);
        self.assigned.entry(pod.to_owned()).or_default().insert(container.to_owned(), cpus);
    }

    /// Gives the pod's CPUs back to the shared ones; whether it had any.
    pub fn release(&mut self, pod: &str) -> bool {
        let freed = self.of_pod(pod);
        self.shared = self.shared.union(&freed);
        self.assigned.remove(pod).is_some()
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    policy_name: String,
    default_cpu_set: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    entries: Option<BTreeMap<String, BTreeMap<String, String>>>,
    checksum: u64,
}

/// The file's text.
pub fn encode(policy: &str, state: &CpuState) -> String {
    let of = |containers: &BTreeMap<String, CpuSet>| {
        containers.iter().map(|(name, cpus)| (name.clone(), cpus.to_string())).collect()
    };
    let entries: BTreeMap<String, BTreeMap<String, String>> =
        state.assigned.iter().map(|(pod, containers)| (pod.clone(), of(containers))).collect();
    let default_cpu_set = state.shared.to_string();
    let checksum = checksum(policy, &default_cpu_set, &entries).into();
    let entries = Some(entries).filter(|entries| !entries.is_empty());
    let document = Document { policy_name: policy.to_owned(), default_cpu_set, entries, checksum };
    // Strings and numbers always encode.
    serde_json::to_string(&document).unwrap_or_default()
}

/// Reads what an agent with that policy wrote.
///
/// # Errors
/// Why it cannot be used, in the kubelet's words.
pub fn decode(text: &str, policy: &str) -> Result<CpuState, String> {
    let document: Document = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let entries = document.entries.unwrap_or_default();
    if document.checksum != u64::from(checksum(&document.policy_name, &document.default_cpu_set, &entries)) {
        return Err("checkpoint is corrupted".into());
    }
    if document.policy_name != policy {
        return Err(format!(
            "configured policy {policy:?} differs from state checkpoint policy {:?}",
            document.policy_name
        ));
    }
    let set =
        |what: &str, text: &str| text.parse::<CpuSet>().map_err(|e| format!("could not parse {what} {text:?}: {e}"));
    let mut state = CpuState { shared: set("default cpu set", &document.default_cpu_set)?, ..CpuState::default() };
    for (pod, containers) in entries {
        for (name, cpus) in containers {
            let what = format!("cpuset of container {name:?} in pod {pod:?}:");
            state.assigned.entry(pod.clone()).or_default().insert(name, set(&what, &cpus)?);
        }
    }
    Ok(state)
}

fn checksum(policy: &str, shared: &str, entries: &BTreeMap<String, BTreeMap<String, String>>) -> u32 {
    let mut text = format!(
        "(*state.CPUManagerCheckpoint){{PolicyName:(string){policy} DefaultCPUSet:(string){shared} \
         Entries:(map[string]map[string]string)map["
    );
    for (n, (pod, containers)) in entries.iter().enumerate() {
        let separator = if n > 0 { " " } else { "" };
        let containers: Vec<String> = containers.iter().map(|(name, cpus)| format!("{name}:{cpus}")).collect();
        // Writing to a string does not fail.
        let _ = write!(text, "{separator}{pod}:map[{}]", containers.join(" "));
    }
    text.push_str("] Checksum:(checksum.Checksum)0}");
    fnv1a_32(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    /// The kubelet's own checksum of this very content.
    #[test]
    fn the_file_is_the_kubelets() {
        let state = CpuState { shared: set("4-6"), ..CpuState::default() };
        assert_eq!(encode("none", &state), r#"{"policyName":"none","defaultCpuSet":"4-6","checksum":354655845}"#);
        assert_eq!(decode(&encode("none", &state), "none"), Ok(state));
        let nothing = encode("none", &CpuState::default());
        assert_eq!(nothing, r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#);
    }

    #[test]
    fn assignments_are_read_again_and_damage_is_seen() {
        let mut state = CpuState { shared: set("0-7"), ..CpuState::default() };
        state.assign("pod1", "a", set("1-2"));
        state.assign("pod1", "b", set("3"));
        state.assign("pod2", "a", set("4"));
        assert_eq!((state.shared.to_string().as_str(), state.exclusive()), ("0,5-7", 4));
        let text = encode("static", &state);
        assert!(text.contains(r#""entries":{"pod1":{"a":"1-2","b":"3"},"pod2":{"a":"4"}}"#), "{text}");
        assert_eq!(decode(&text, "static"), Ok(state.clone()));
        assert_eq!(decode(&text.replace("1-2", "1"), "static"), Err("checkpoint is corrupted".into()));
        assert_eq!(
            decode(&text, "none"),
            Err(r#"configured policy "none" differs from state checkpoint policy "static""#.into())
        );
        assert!(decode("{", "none").is_err());
        assert!(state.release("pod1") && !state.release("pod1"));
        assert_eq!(state.shared, set("0-3,5-7"));
    }
}
