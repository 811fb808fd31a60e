//! `memory_manager_state`: which memory of which NUMA nodes containers have, in the kubelet's format.
//!
//! The checksum is FNV-1a 32 over the text in which Go's spew prints the checkpoint (`%#v`, keys sorted), with checksum 0.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::pod::hash::fnv1a_32;

/// Name of the file below the root directory.
pub const FILE: &str = "memory_manager_state";

/// Bytes of one kind of memory on one node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Table {
    pub total: u64,
    pub system_reserved: u64,
    pub allocatable: u64,
    pub reserved: u64,
    pub free: u64,
}

/// One node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    pub number_of_assignments: i64,
    /// By resource: `memory`, `hugepages-2Mi`.
    pub memory_map: BTreeMap<String, Table>,
    /// The nodes that give memory together with this one.
    pub cells: Vec<u32>,
}

/// Memory that a container has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Block {
    pub numa_affinity: Vec<u32>,
    pub r#type: String,
    pub size: u64,
}

/// The machine by node.
pub type Machine = BTreeMap<u32, Node>;
/// Pod uid, container, its memory.
pub type Assignments = BTreeMap<String, BTreeMap<String, Vec<Block>>>;

/// Who has which memory; empty under the policy None.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryState {
    pub machine: Machine,
    pub assigned: Assignments,
    /// What pods with resources of their own have as a whole, by uid; their containers' are parts of it.
    pub pods: BTreeMap<String, Vec<Block>>,
}

impl MemoryState {
    pub fn of(&self, pod: &str, container: &str) -> Option<&Vec<Block>> {
        self.assigned.get(pod)?.get(container)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    policy_name: String,
    machine_state: Option<Machine>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    entries: Option<Assignments>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod_entries: Option<BTreeMap<String, PodEntry>>,
    checksum: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodEntry {
    #[serde(default)]
    memory_blocks: Vec<Block>,
}

/// The file's text; with `pod_level` in the form that tells what pods have as a whole.
pub fn encode(policy: &str, state: &MemoryState, pod_level: bool) -> String {
    let entry = |(uid, blocks): (&String, &Vec<Block>)| (uid.clone(), PodEntry { memory_blocks: blocks.clone() });
    let pods = Some(&state.pods).filter(|pods| pod_level && !pods.is_empty());
    let document = Document {
        policy_name: policy.to_owned(),
        machine_state: Some(state.machine.clone()),
        entries: Some(state.assigned.clone()).filter(|entries| !entries.is_empty()),
        pod_entries: pods.map(|pods| pods.iter().map(entry).collect()),
        checksum: checksum(policy, state, pod_level).into(),
    };
    // Strings and numbers always encode.
    serde_json::to_string(&document).unwrap_or_default()
}

/// Reads what an agent with that policy wrote.
///
/// # Errors
/// Why it cannot be used, in the kubelet's words.
pub fn decode(text: &str, policy: &str) -> Result<MemoryState, String> {
    let document: Document = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let state = MemoryState {
        machine: document.machine_state.unwrap_or_default(),
        assigned: document.entries.unwrap_or_default(),
        pods: document.pod_entries.into_iter().flatten().map(|(uid, entry)| (uid, entry.memory_blocks)).collect(),
    };
    // Either form may have been written, by the gate that was set then.
    let sum = |pod_level| u64::from(checksum(&document.policy_name, &state, pod_level));
    if document.checksum != sum(true) && (!state.pods.is_empty() || document.checksum != sum(false)) {
        return Err("checkpoint is corrupted".into());
    }
    if document.policy_name != policy {
        return Err(format!(
            "[memorymanager] configured policy {policy:?} differs from state checkpoint policy {:?}",
            document.policy_name
        ));
    }
    Ok(state)
}

/// Joins what `one` makes of each element with spaces, as Go prints the elements of maps and slices.
fn spaced<T>(elements: impl IntoIterator<Item = T>, one: impl Fn(T) -> String) -> String {
    let all: Vec<String> = elements.into_iter().map(one).collect();
    all.join(" ")
}

fn checksum(policy: &str, state: &MemoryState, pod_level: bool) -> u32 {
    let ids = |ids: &[u32]| format!("([]int)[{}]", spaced(ids, u32::to_string));
    let table = |(name, t): (&String, &Table)| {
        format!(
            "{name}:<*>{{TotalMemSize:(uint64){} SystemReserved:(uint64){} Allocatable:(uint64){} Reserved:(uint64){} \
             Free:(uint64){}}}",
            t.total, t.system_reserved, t.allocatable, t.reserved, t.free
        )
    };
    let node = |(id, node): (&u32, &Node)| {
        format!(
            "{id}:<*>{{NumberOfAssignments:(int){} MemoryMap:(map[v1.ResourceName]*state.MemoryTable)map[{}] Cells:{}}}",
            node.number_of_assignments,
            spaced(&node.memory_map, table),
            ids(&node.cells)
        )
    };
    let block = |b: &Block| {
        format!("{{NUMAAffinity:{} Type:(v1.ResourceName){} Size:(uint64){}}}", ids(&b.numa_affinity), b.r#type, b.size)
    };
    let container = |(name, blocks): (&String, &Vec<Block>)| format!("{name}:[{}]", spaced(blocks, block));
    let pod = |(uid, containers): (&String, &BTreeMap<String, Vec<Block>>)| {
        format!("{uid}:map[{}]", spaced(containers, container))
    };
    let whole = |(uid, blocks): (&String, &Vec<Block>)| {
        format!("{uid}:{{MemoryBlocks:([]state.Block)[{}]}}", spaced(blocks, block))
    };
    let mut text = String::from("(*state.MemoryManagerCheckpoint){");
    // Writing to a string does not fail.
    let _ = write!(
        text,
        "PolicyName:(string){policy} MachineState:(state.NUMANodeMap)map[{}] \
         Entries:(state.ContainerMemoryAssignments)map[{}]",
        spaced(&state.machine, node),
        spaced(&state.assigned, pod)
    );
    if pod_level {
        let _ = write!(text, " PodEntries:(state.PodMemoryAssignments)map[{}]", spaced(&state.pods, whole));
    }
    text.push_str(" Checksum:(checksum.Checksum)0}");
    fnv1a_32(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> MemoryState {
        let table = Table { total: 2048, system_reserved: 512, allocatable: 1536, reserved: 512, free: 1024 };
        let node =
            Node { number_of_assignments: 0, memory_map: [("memory".to_owned(), table)].into(), cells: Vec::new() };
        let block = Block { numa_affinity: vec![0], r#type: "memory".into(), size: 512 };
        MemoryState {
            machine: [(0, node)].into(),
            assigned: [("pod".to_owned(), [("container1".to_owned(), vec![block])].into())].into(),
            pods: BTreeMap::new(),
        }
    }

    /// The kubelet's own checksum of this very content.
    #[test]
    fn the_file_is_the_kubelets() {
        assert_eq!(checksum("static", &state(), false), 4_215_593_881);
        let text = encode("static", &state(), false);
        assert_eq!(
            text,
            r#"{"policyName":"static","machineState":{"0":{"numberOfAssignments":0,"memoryMap":{"memory":{"total":2048,"systemReserved":512,"allocatable":1536,"reserved":512,"free":1024}},"cells":[]}},"entries":{"pod":{"container1":[{"numaAffinity":[0],"type":"memory","size":512}]}},"checksum":4215593881}"#
        );
        assert_eq!(decode(&text, "static"), Ok(state()));
        let nothing = encode("None", &MemoryState::default(), false);
        assert_eq!(nothing, r#"{"policyName":"None","machineState":{},"checksum":4236770233}"#);
    }

    #[test]
    fn damage_and_another_policy_are_refused() {
        let text = encode("Static", &state(), false);
        assert_eq!(decode(&text.replace("1024", "1025"), "Static"), Err("checkpoint is corrupted".into()));
        assert_eq!(
            decode(&text, "None"),
            Err(r#"[memorymanager] configured policy "None" differs from state checkpoint policy "Static""#.into())
        );
    }

    /// As above, with what a pod has as a whole.
    #[test]
    fn the_file_with_pods_is_the_kubelets() {
        let mut state = state();
        state.pods = [("pod".to_owned(), state.assigned["pod"]["container1"].clone())].into();
        let text = encode("static", &state, true);
        let pods = r#""podEntries":{"pod":{"memoryBlocks":[{"numaAffinity":[0],"type":"memory","size":512}]}},"checksum":1278640530}"#;
        assert!(text.ends_with(pods), "{text}");
        assert_eq!(decode(&text, "static"), Ok(state.clone()));
        state.pods.clear();
        for pod_level in [false, true] {
            assert_eq!(
                decode(&encode("static", &state, pod_level), "static"),
                Ok(state.clone()),
                "either form is read"
            );
        }
    }
}
