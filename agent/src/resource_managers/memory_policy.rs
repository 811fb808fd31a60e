//! The Static memory policy: containers of Guaranteed pods get their memory from given NUMA nodes.
//!
//! Pure over machine, reservations, who has what, and the request. A node gives either memory of its own or together with
//! the other nodes of one group, never both.
//!
//! Followed: `pkg/kubelet/cm/memorymanager/policy_static.go`.

use std::collections::BTreeMap;

use proto::api::core::v1::Pod;
use proto::quantity::{Format, Quantity};

use super::memory_state::{Block, Machine, MemoryState, Node, Table};
use super::numa::{Hint, Hints, NodeMask, each_mask};
use super::topology::NodeMemory;
use crate::pod::spec::{PodExt as _, is_sidecar};

pub const MEMORY: &str = "memory";

/// Bytes by resource.
pub type Amounts = BTreeMap<String, u64>;

/// Memory that init containers of a pod had and later containers of it may use, by nodes and resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reusable(BTreeMap<(NodeMask, String), u64>);

impl Reusable {
    fn amount(&self, nodes: NodeMask, resource: &str) -> u64 {
        self.0.get(&(nodes, resource.to_owned())).copied().unwrap_or(0)
    }

    /// Notes what a container got; `passes_on`: an init container that ends.
    pub fn note(&mut self, blocks: &[Block], passes_on: bool) {
        for block in blocks {
            let slot = self.0.entry((mask(&block.numa_affinity), block.r#type.clone())).or_default();
            *slot = if passes_on { (*slot).max(block.size) } else { slot.saturating_sub(block.size) };
        }
    }
}

fn mask(nodes: &[u32]) -> NodeMask {
    nodes.iter().copied().collect()
}

/// See the module's documentation.
#[derive(Debug, Clone)]
pub struct StaticMemory {
    /// The machine with nothing given away.
    empty: Machine,
}

impl StaticMemory {
    /// `reserved`: bytes by node and resource that pods do not get.
    ///
    /// # Errors
    /// When nothing is reserved, or on a node that does not exist.
    pub fn new(nodes: &BTreeMap<u32, NodeMemory>, reserved: &BTreeMap<u32, Amounts>) -> Result<Self, String> {
        if let Some(node) = reserved.keys().find(|node| !nodes.contains_key(node)) {
            return Err(format!(
                "the reserved memory configuration references a NUMA node {node} that does not exist on this machine"
            ));
        }
        if reserved.values().filter_map(|node| node.get(MEMORY)).all(|bytes| *bytes == 0) {
            return Err("[memorymanager] you should specify the system reserved memory".into());
        }
        let none = Amounts::new();
        let empty = nodes.iter().map(|(id, memory)| (*id, empty_node(*id, memory, reserved.get(id).unwrap_or(&none))));
        Ok(Self { empty: empty.collect() })
    }

    /// Memory that pods may have, node by node.
    pub fn allocatable(&self) -> Vec<Block> {
        let block = |id: &u32, (name, table): (&String, &Table)| Block {
            numa_affinity: vec![*id],
            r#type: name.clone(),
            size: table.allocatable,
        };
        let all = self.empty.iter().flat_map(|(id, node)| node.memory_map.iter().map(|table| block(id, table)));
        all.filter(|block| block.size > 0).collect()
    }

    /// Checks what an earlier agent left, or begins anew where it left nothing.
    ///
    /// # Errors
    /// When machine or reservations have changed, or somebody has changed the file.
    pub fn validate(&self, state: &mut MemoryState) -> Result<(), String> {
        if state.machine.is_empty() {
            if !state.assigned.is_empty() {
                return Err("[memorymanager] machine state can not be empty when it has memory assignments".into());
            }
            state.machine.clone_from(&self.empty);
            return Ok(());
        }
        let mut expected = self.empty.clone();
        for (pod, containers) in &state.assigned {
            // What a pod has as a whole counts once, however its containers share it.
            let whole = state.pods.get(pod).map(|blocks| ("", blocks));
            let parts = containers.iter().filter(|_| whole.is_none()).map(|(name, blocks)| (name.as_str(), blocks));
            for (name, blocks) in parts.chain(whole) {
                for block in blocks {
                    let missing = |what: &str| {
                        format!(
                            "[memorymanager] (pod: {pod}, container: {name}) the memory assignment uses {what} that does not exist"
                        )
                    };
                    for id in &block.numa_affinity {
                        let node = expected.get(id).ok_or_else(|| missing("the NUMA"))?;
                        if !node.memory_map.contains_key(&block.r#type) {
                            return Err(missing("memory resource"));
                        }
                    }
                    give(&mut expected, &block.numa_affinity, &block.r#type, block.size);
                }
            }
        }
        if alike(&state.machine, &expected) {
            Ok(())
        } else {
            Err("[memorymanager] the expected machine state is different from the real one".into())
        }
    }

    /// Where the amounts could come from, by resource; empty where nothing is wanted or nothing fits.
    pub fn hints(machine: &Machine, wanted: &Amounts, reusable: &Reusable) -> BTreeMap<String, Hints> {
        let found = fitting(machine, wanted, reusable);
        if found.is_empty() {
            return BTreeMap::new();
        }
        wanted.keys().map(|name| (name.clone(), Some(found.clone()))).collect()
    }

    /// Says again what was given, as a hint by resource; `None` when it is not what is wanted now.
    pub fn hints_of(blocks: &[Block], wanted: &Amounts) -> BTreeMap<String, Hints> {
        let same = blocks.len() == wanted.len() && blocks.iter().all(|b| wanted.get(&b.r#type) == Some(&b.size));
        if !same {
            return BTreeMap::new();
        }
        let hint = |block: &Block| Hint { nodes: Some(mask(&block.numa_affinity)), preferred: true };
        blocks.iter().map(|block| (block.r#type.clone(), Some(vec![hint(block)]))).collect()
    }

    /// Picks memory for a container; `hint` is what all providers agreed on.
    ///
    /// # Errors
    /// The kubelet's words.
    pub fn allocate(
        machine: &mut Machine,
        wanted: &Amounts,
        hint: Hint,
        reusable: &Reusable,
    ) -> Result<Vec<Block>, String> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let fitting = fitting(machine, wanted, reusable);
        let mut best = match hint.nodes {
            Some(nodes) => Hint { nodes: Some(nodes), ..hint },
            None => {
                let found = narrowest(&fitting).ok_or(
                    "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available",
                )?;
                if !found.preferred && hint.preferred {
                    return Err("[memorymanager] failed to find the default preferred hint".into());
                }
                found
            }
        };
        let nodes = best.nodes.unwrap_or_default();
        if wanted.iter().any(|(name, bytes)| free_on(machine, nodes, name) < *bytes) {
            let wider: Vec<Hint> =
                fitting.into_iter().filter(|hint| nodes.is_subset(hint.nodes.unwrap_or_default())).collect();
            let found = narrowest(&wider)
                .ok_or("[memorymanager] failed to find NUMA nodes to extend the current topology hint")?;
            if !found.preferred && best.preferred {
                return Err("[memorymanager] failed to find the extended preferred hint".into());
            }
            best = found;
        }
        let nodes: Vec<u32> = best.nodes.unwrap_or_default().nodes().collect();
        if violates(machine, &nodes) {
            return Err("[memorymanager] preferred hint violates NUMA node allocation".into());
        }
        let mut blocks = Vec::new();
        for (name, bytes) in wanted {
            let missing = bytes.saturating_sub(reusable.amount(mask(&nodes), name));
            give(machine, &nodes, name, missing);
            blocks.push(Block { numa_affinity: nodes.clone(), r#type: name.clone(), size: *bytes });
        }
        Ok(blocks)
    }

    /// What earlier init containers have of the same nodes is what this one uses now; so that sums stay true it is taken
    /// off theirs.
    pub fn take_over(state: &mut MemoryState, pod: &Pod, container: &str, blocks: &[Block]) {
        let Some(containers) = state.assigned.get_mut(pod.uid()) else { return };
        for block in blocks {
            let mut left = block.size;
            let earlier = pod.spec().init_containers.iter().take_while(|init| init.name != container);
            for init in earlier.filter(|init| !is_sidecar(init)) {
                for had in containers.get_mut(&init.name).into_iter().flatten() {
                    if had.r#type == block.r#type && mask(&had.numa_affinity) == mask(&block.numa_affinity) {
                        let moved = had.size.min(left);
                        had.size -= moved;
                        left -= moved;
                    }
                }
            }
        }
    }

    /// Gives the pod's memory back; whether it had any.
    pub fn release(state: &mut MemoryState, pod: &str) -> bool {
        let (whole, containers) = (state.pods.remove(pod), state.assigned.remove(pod));
        if whole.is_none() && containers.is_none() {
            return false;
        }
        let parts = || containers.into_iter().flat_map(BTreeMap::into_values).flatten().collect();
        for block in whole.unwrap_or_else(parts) {
            let mut left = block.size;
            for id in &block.numa_affinity {
                let Some(node) = state.machine.get_mut(id) else { continue };
                node.number_of_assignments = node.number_of_assignments.saturating_sub(1);
                if node.number_of_assignments == 0 {
                    node.cells = vec![*id];
                }
                let Some(table) = node.memory_map.get_mut(&block.r#type) else { continue };
                let freed = table.reserved.min(left);
                table.reserved -= freed;
                table.free += freed;
                left -= freed;
            }
        }
        true
    }
}

fn empty_node(id: u32, memory: &NodeMemory, reserved: &Amounts) -> Node {
    let of = |name: &str| reserved.get(name).copied().unwrap_or(0);
    let table = |total: u64, held_back: u64, system_reserved: u64| {
        let allocatable = total.saturating_sub(system_reserved).saturating_sub(held_back);
        Table { total, system_reserved, allocatable, reserved: 0, free: allocatable }
    };
    let mut memory_map = BTreeMap::new();
    let mut in_pages = 0_u64;
    for pages in &memory.huge_pages {
        let size = Quantity::from_integer(i64::try_from(pages.page_bytes).unwrap_or(i64::MAX), Format::BinarySi);
        let name = format!("hugepages-{size}");
        let total = pages.page_bytes.saturating_mul(pages.pages);
        in_pages = in_pages.saturating_add(total);
        memory_map.insert(name.clone(), table(total, 0, of(&name)));
    }
    memory_map.insert(MEMORY.to_owned(), table(memory.bytes, in_pages, of(MEMORY)));
    Node { number_of_assignments: 0, memory_map, cells: vec![id] }
}

/// Notes an assignment on its nodes, and takes the bytes from the first that have some.
fn give(machine: &mut Machine, nodes: &[u32], resource: &str, mut bytes: u64) {
    for id in nodes {
        let Some(node) = machine.get_mut(id) else { continue };
        node.number_of_assignments += 1;
        node.cells = nodes.to_vec();
        let Some(table) = node.memory_map.get_mut(resource) else { continue };
        let given = table.free.min(bytes);
        table.free -= given;
        table.reserved += given;
        bytes -= given;
    }
}

fn table(machine: &Machine, node: u32, resource: &str) -> Table {
    machine.get(&node).and_then(|node| node.memory_map.get(resource)).copied().unwrap_or_default()
}

fn free_on(machine: &Machine, nodes: NodeMask, resource: &str) -> u64 {
    nodes.nodes().map(|node| table(machine, node, resource).free).fold(0, u64::saturating_add)
}

/// The sets of nodes that have enough of everything and may be used together.
fn fitting(machine: &Machine, wanted: &Amounts, reusable: &Reusable) -> Vec<Hint> {
    let nodes: Vec<u32> = machine.keys().copied().collect();
    let (mut least, mut hints) = (nodes.len(), Vec::new());
    each_mask(&nodes, |mask| {
        let ever =
            |name: &str| mask.nodes().map(|node| table(machine, node, name).allocatable).fold(0, u64::saturating_add);
        if wanted.iter().any(|(name, bytes)| ever(name) < *bytes) {
            return;
        }
        least = least.min(mask.count());
        let ids: Vec<u32> = mask.nodes().collect();
        let grouped = ids.len() == 1 && machine.get(&ids[0]).is_some_and(|node| node.cells.len() > 1);
        let free = |name: &str| free_on(machine, mask, name).saturating_add(reusable.amount(mask, name));
        if !grouped && !violates(machine, &ids) && wanted.iter().all(|(name, bytes)| free(name) >= *bytes) {
            hints.push(Hint { nodes: Some(mask), preferred: false });
        }
    });
    for hint in &mut hints {
        hint.preferred = hint.nodes.is_some_and(|nodes| nodes.count() == least);
    }
    hints
}

/// Whether one of several nodes is in use alone or in another group.
fn violates(machine: &Machine, nodes: &[u32]) -> bool {
    let other = |id: &u32| {
        let node = machine.get(id).filter(|node| node.number_of_assignments > 0);
        node.is_some_and(|node| node.cells.len() == 1 || mask(&node.cells) != mask(nodes))
    };
    nodes.len() > 1 && nodes.iter().any(other)
}

fn narrowest(hints: &[Hint]) -> Option<Hint> {
    let key = |hint: &Hint| {
        let nodes = hint.nodes.unwrap_or_default();
        (!hint.preferred, nodes.count(), nodes)
    };
    hints.iter().min_by_key(|hint| key(hint)).copied()
}

/// Whether two pictures of the machine differ in nothing but how the nodes of a group share what is given.
fn alike(one: &Machine, other: &Machine) -> bool {
    let in_group = |machine: &Machine, node: &Node, name: &str| {
        let tables = node.cells.iter().map(|id| table(machine, *id, name));
        tables.fold((0_u64, 0_u64), |sum, t| (sum.0.saturating_add(t.free), sum.1.saturating_add(t.reserved)))
    };
    one.len() == other.len()
        && one.iter().all(|(id, a)| {
            let Some(b) = other.get(id) else { return false };
            let fixed = |t: &Table| (t.total, t.system_reserved, t.allocatable);
            a.number_of_assignments == b.number_of_assignments
                && mask(&a.cells) == mask(&b.cells)
                && a.memory_map.len() == b.memory_map.len()
                && a.memory_map.iter().all(|(name, t)| {
                    b.memory_map.get(name).is_some_and(|u| fixed(t) == fixed(u))
                        && in_group(one, a, name) == in_group(other, b, name)
                })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_nodes() -> (StaticMemory, MemoryState) {
        let node = NodeMemory { bytes: 1100, ..NodeMemory::default() };
        let nodes = [(0, node.clone()), (1, node)].into();
        let reserved = [(0, [(MEMORY.to_owned(), 100)].into()), (1, [(MEMORY.to_owned(), 100)].into())].into();
        let policy = StaticMemory::new(&nodes, &reserved).unwrap();
        let mut state = MemoryState::default();
        policy.validate(&mut state).unwrap();
        (policy, state)
    }

    fn bytes(count: u64) -> Amounts {
        [(MEMORY.to_owned(), count)].into()
    }

    fn allocate(state: &mut MemoryState, pod: &str, count: u64, nodes: Option<&[u32]>) -> Result<Vec<u32>, String> {
        let hint = Hint { nodes: nodes.map(mask), preferred: true };
        let blocks = StaticMemory::allocate(&mut state.machine, &bytes(count), hint, &Reusable::default())?;
        let nodes = blocks[0].numa_affinity.clone();
        state.assigned.entry(pod.to_owned()).or_default().insert("c".into(), blocks);
        Ok(nodes)
    }

    #[test]
    fn memory_comes_from_one_node_or_a_group_and_never_both() {
        let (policy, mut state) = two_nodes();
        assert_eq!(allocate(&mut state, "a", 600, None), Ok(vec![0]));
        assert_eq!(allocate(&mut state, "b", 600, None), Ok(vec![1]));
        assert_eq!(
            allocate(&mut state, "c", 500, None).unwrap_err(),
            "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
        );
        policy.validate(&mut state.clone()).unwrap();
        assert!(StaticMemory::release(&mut state, "a") && !StaticMemory::release(&mut state, "a"));
        assert_eq!(allocate(&mut state, "d", 1000, Some(&[0])), Ok(vec![0]));
        StaticMemory::release(&mut state, "b");
        StaticMemory::release(&mut state, "d");
        // More than a node has takes both; then neither gives anything alone.
        assert_eq!(allocate(&mut state, "e", 1500, None), Ok(vec![0, 1]));
        assert_eq!(state.machine[&1].memory_map[MEMORY].reserved, 500);
        assert!(
            allocate(&mut state, "f", 100, None).unwrap_err().contains("failed to find the default preferred hint")
        );
        assert_eq!(allocate(&mut state, "g", 100, Some(&[0, 1])), Ok(vec![0, 1]));
        policy.validate(&mut state.clone()).unwrap();
        StaticMemory::release(&mut state, "e");
        StaticMemory::release(&mut state, "g");
        assert_eq!(state, two_nodes().1);
    }

    #[test]
    fn hints_prefer_as_few_nodes_as_the_machine_could_ever_do_with() {
        let (_, mut state) = two_nodes();
        let hints = |state: &MemoryState, count| -> Vec<(String, bool)> {
            let found = StaticMemory::hints(&state.machine, &bytes(count), &Reusable::default());
            let hints = found.into_values().flatten().flatten();
            hints.map(|hint| (hint.nodes.unwrap().to_string(), hint.preferred)).collect()
        };
        let told = |texts: &[(&str, bool)]| texts.iter().map(|(t, p)| ((*t).to_owned(), *p)).collect::<Vec<_>>();
        assert_eq!(hints(&state, 800), told(&[("0", true), ("1", true), ("0-1", false)]));
        assert_eq!(hints(&state, 1200), told(&[("0-1", true)]));
        allocate(&mut state, "a", 300, None).unwrap();
        assert_eq!(hints(&state, 800), told(&[("1", true)]), "node 0 is taken alone, so no group has it");
        assert_eq!(hints(&state, 5000), told(&[]));
    }

    #[test]
    fn later_containers_use_what_init_containers_had() {
        let (_, mut state) = two_nodes();
        let mut reusable = Reusable::default();
        let any = Hint { nodes: None, preferred: true };
        let init = StaticMemory::allocate(&mut state.machine, &bytes(900), any, &reusable).unwrap();
        reusable.note(&init, true);
        let hint = Hint { nodes: Some(mask(&[0])), preferred: true };
        let fits = StaticMemory::hints(&state.machine, &bytes(950), &reusable);
        assert_eq!(fits[MEMORY].as_ref().unwrap()[0].nodes, hint.nodes, "100 are free, 900 can be used again");
        let first = StaticMemory::allocate(&mut state.machine, &bytes(100), hint, &reusable).unwrap();
        reusable.note(&first, false);
        assert_eq!(state.machine[&0].memory_map[MEMORY].free, 100, "nothing more was taken");
        assert_eq!(reusable.amount(mask(&[0]), MEMORY), 800);
    }

    #[test]
    fn a_machine_that_changed_is_refused() {
        let (policy, mut state) = two_nodes();
        allocate(&mut state, "a", 600, None).unwrap();
        let mut less = state.clone();
        less.machine.get_mut(&1).unwrap().memory_map.get_mut(MEMORY).unwrap().total = 5;
        let different = "[memorymanager] the expected machine state is different from the real one";
        assert_eq!(policy.validate(&mut less).unwrap_err(), different);
        let mut gone = state;
        gone.assigned.get_mut("a").unwrap().get_mut("c").unwrap()[0].numa_affinity = vec![7];
        assert!(policy.validate(&mut gone).unwrap_err().contains("uses the NUMA that does not exist"));
        let error = StaticMemory::new(&BTreeMap::new(), &[(3, bytes(1))].into()).unwrap_err();
        assert!(error.contains("NUMA node 3 that does not exist"));
    }
}
