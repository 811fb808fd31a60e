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
    /// What pods with resources of their own have as a whole, by uid; their containers' are parts of it.
    pub pods: BTreeMap<String, CpuSet>,
}

impl CpuState {
    pub fn of(&self, pod: &str, container: &str) -> Option<&CpuSet> {
        self.assigned.get(pod)?.get(container)
    }

    /// All that the pod and its containers have.
    pub fn of_pod(&self, pod: &str) -> CpuSet {
        let containers = self.assigned.get(pod).into_iter().flat_map(BTreeMap::values);
        containers.chain(self.pods.get(pod)).fold(CpuSet::default(), |all, own| all.union(own))
    }

    /// How many CPUs are no longer everybody's.
    pub fn exclusive(&self) -> usize {
        self.assigned.keys().map(|pod| self.of_pod(pod)).fold(CpuSet::default(), |all, own| all.union(&own)).len()
    }

    pub fn assign(&mut self, pod: &str, container: &str, cpus: CpuSet) {
        self.shared = self.shared.difference(&cpus);
        self.assigned.entry(pod.to_owned()).or_default().insert(container.to_owned(), cpus);
    }

    /// Gives a pod CPUs as a whole, and to its containers parts of them.
    pub fn assign_pod(&mut self, pod: &str, cpus: CpuSet, parts: BTreeMap<String, CpuSet>) {
        self.shared = self.shared.difference(&cpus);
        self.assigned.insert(pod.to_owned(), parts);
        self.pods.insert(pod.to_owned(), cpus);
    }

    /// Gives the pod's CPUs back to the shared ones; whether it had any.
    pub fn release(&mut self, pod: &str) -> bool {
        let freed = self.of_pod(pod);
        self.shared = self.shared.union(&freed);
        let whole = self.pods.remove(pod).is_some();
        self.assigned.remove(pod).is_some() || whole
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    policy_name: String,
    default_cpu_set: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    entries: Option<BTreeMap<String, BTreeMap<String, String>>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod_entries: Option<BTreeMap<String, PodEntry>>,
    checksum: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodEntry {
    #[serde(default)]
    cpu_set: String,
}

/// The file's text; with `pod_level` in the form that tells what pods have as a whole.
pub fn encode(policy: &str, state: &CpuState, pod_level: bool) -> String {
    let of = |containers: &BTreeMap<String, CpuSet>| {
        containers.iter().map(|(name, cpus)| (name.clone(), cpus.to_string())).collect()
    };
    let entries: BTreeMap<String, BTreeMap<String, String>> =
        state.assigned.iter().map(|(pod, containers)| (pod.clone(), of(containers))).collect();
    let default_cpu_set = state.shared.to_string();
    let pods = Some(&state.pods).filter(|_| pod_level);
    let checksum = checksum(policy, &default_cpu_set, &entries, pods).into();
    let entries = Some(entries).filter(|entries| !entries.is_empty());
    let pod_entry = |(pod, cpus): (&String, &CpuSet)| (pod.clone(), PodEntry { cpu_set: cpus.to_string() });
    let pod_entries = pods.filter(|pods| !pods.is_empty()).map(|pods| pods.iter().map(pod_entry).collect());
    let document = Document { policy_name: policy.to_owned(), default_cpu_set, entries, pod_entries, checksum };
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
    let set =
        |what: &str, text: &str| text.parse::<CpuSet>().map_err(|e| format!("could not parse {what} {text:?}: {e}"));
    let mut pods = BTreeMap::new();
    for (pod, entry) in document.pod_entries.unwrap_or_default() {
        let cpus = set(&format!("cpuset of pod {pod:?}:"), &entry.cpu_set)?;
        pods.insert(pod, cpus);
    }
    // Either form may have been written, by the gate that was set then.
    let sum = |pods| u64::from(checksum(&document.policy_name, &document.default_cpu_set, &entries, pods));
    if document.checksum != sum(Some(&pods)) && (!pods.is_empty() || document.checksum != sum(None)) {
        return Err("checkpoint is corrupted".into());
    }
    if document.policy_name != policy {
        return Err(format!(
            "configured policy {policy:?} differs from state checkpoint policy {:?}",
            document.policy_name
        ));
    }
    let mut state =
        CpuState { shared: set("default cpu set", &document.default_cpu_set)?, pods, ..CpuState::default() };
    for (pod, containers) in entries {
        for (name, cpus) in containers {
            let what = format!("cpuset of container {name:?} in pod {pod:?}:");
            state.assigned.entry(pod.clone()).or_default().insert(name, set(&what, &cpus)?);
        }
    }
    Ok(state)
}

fn checksum(
    policy: &str,
    shared: &str,
    entries: &BTreeMap<String, BTreeMap<String, String>>,
    pods: Option<&BTreeMap<String, CpuSet>>,
) -> u32 {
    // The form with pods has a type, and with it a name, of its own.
    let version = if pods.is_some() { "V3" } else { "" };
    let mut text = format!(
        "(*state.CPUManagerCheckpoint{version}){{PolicyName:(string){policy} DefaultCPUSet:(string){shared} \
         Entries:(map[string]map[string]string)map["
    );
    for (n, (pod, containers)) in entries.iter().enumerate() {
        let separator = if n > 0 { " " } else { "" };
        let containers: Vec<String> = containers.iter().map(|(name, cpus)| format!("{name}:{cpus}")).collect();
        // Writing to a string does not fail.
        let _ = write!(text, "{separator}{pod}:map[{}]", containers.join(" "));
    }
    text.push(']');
    if let Some(pods) = pods {
        let entry = |(pod, cpus): (&String, &CpuSet)| {
            let cpus: Vec<String> = cpus.iter().map(|cpu| format!("{cpu}:{{}}")).collect();
            format!("{pod}:{{CPUSet:(cpuset.CPUSet){{elems:(map[int]struct {{}})map[{}]}}}}", cpus.join(" "))
        };
        let entries: Vec<String> = pods.iter().map(entry).collect();
        let _ = write!(text, " PodEntries:(state.PodCPUAssignments)map[{}]", entries.join(" "));
    }
    text.push_str(" Checksum:(checksum.Checksum)0}");
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
        assert_eq!(
            encode("none", &state, false),
            r#"{"policyName":"none","defaultCpuSet":"4-6","checksum":354655845}"#
        );
        assert_eq!(decode(&encode("none", &state, false), "none"), Ok(state));
        let nothing = encode("none", &CpuState::default(), false);
        assert_eq!(nothing, r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#);
    }

    #[test]
    fn assignments_are_read_again_and_damage_is_seen() {
        let mut state = CpuState { shared: set("0-7"), ..CpuState::default() };
        state.assign("pod1", "a", set("1-2"));
        state.assign("pod1", "b", set("3"));
        state.assign("pod2", "a", set("4"));
        assert_eq!((state.shared.to_string().as_str(), state.exclusive()), ("0,5-7", 4));
        let text = encode("static", &state, false);
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

    /// As above, with what a pod has as a whole.
    #[test]
    fn the_file_with_pods_is_the_kubelets() {
        let mut state = CpuState { shared: set("1-9"), ..CpuState::default() };
        state.assign("pod1", "container1", set("5-6"));
        state.assign("pod1", "container2", set("3-4"));
        state.assign_pod("pod2", set("7-9"), BTreeMap::new());
        // The kubelet keeps no empty list of containers.
        state.assigned.remove("pod2");
        let text = encode("static", &state, true);
        assert_eq!(
            text,
            r#"{"policyName":"static","defaultCpuSet":"1-2","entries":{"pod1":{"container1":"5-6","container2":"3-4"}},"podEntries":{"pod2":{"cpuSet":"7-9"}},"checksum":2284712151}"#
        );
        assert_eq!(decode(&text, "static"), Ok(state.clone()));
        assert_eq!(decode(&text.replace("7-9", "7-8"), "static"), Err("checkpoint is corrupted".into()));
        let plain = CpuState { pods: BTreeMap::new(), ..state.clone() };
        for pod_level in [false, true] {
            assert_eq!(
                decode(&encode("static", &plain, pod_level), "static"),
                Ok(plain.clone()),
                "either form is read"
            );
        }
        assert!(state.release("pod2"));
        assert_eq!(state.shared, set("1-2,7-9"));
    }
}
