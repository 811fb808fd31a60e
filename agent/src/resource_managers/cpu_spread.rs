//! Choosing CPUs evenly from several NUMA nodes, where one does not suffice (option distribute-cpus-across-numa).
//!
//! Pure. The fewest nodes among which the CPUs can be shared out evenly are taken; of several choices the one that leaves
//! the machine most balanced. Where none can, nodes are filled one after the other.
//!
//! Followed: `takeByTopologyNUMADistributed`.

use std::collections::BTreeMap;

use super::cpu_set::CpuSet;
use super::cpu_take::{Manner, take_packed, too_few};
use super::numa::each_combination;
use super::topology::{CpuTopology, Part};

/// Nodes to share out among.
#[derive(Debug, Clone)]
struct Choice {
    nodes: Vec<u32>,
    /// Those that give what is left after sharing out evenly.
    remainder: Vec<u32>,
    one_socket: bool,
    balance: f64,
}

/// What is wanted.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    pub cpus: usize,
    /// CPUs are handed out in groups of this size: the threads of a core, or 1.
    pub group: usize,
    pub spread: bool,
    /// Nodes of one socket before nodes of several.
    pub by_socket: bool,
}

/// Takes CPUs of the available ones.
///
/// # Errors
/// When there are not enough.
pub fn take_distributed(topology: &CpuTopology, available: &CpuSet, request: Request) -> Result<CpuSet, String> {
    let Request { cpus: wanted, group, spread, .. } = request;
    let manner = Manner { spread, by_uncore: false };
    let group = group.max(1);
    if !wanted.is_multiple_of(group) {
        return take_packed(topology, available, wanted, manner);
    }
    let free: BTreeMap<u32, CpuSet> = topology
        .parts(available, Part::Node)
        .into_iter()
        .map(|node| (node, topology.within(Part::Node, node).intersection(available)))
        .collect();
    let total: usize = free.values().map(CpuSet::len).sum();
    if wanted == 0 {
        return Ok(CpuSet::default());
    }
    if wanted > total {
        return Err(too_few(wanted, total));
    }
    let groups_per_node = topology.all().len().div_ceil(group).div_ceil(topology.count(Part::Node).max(1)).max(1);
    let groups = wanted.div_ceil(group);
    let (least, most) = (groups.div_ceil(groups_per_node), groups.min(free.len()));
    // The fullest nodes first, like everywhere.
    let mut nodes: Vec<u32> = free.keys().copied().collect();
    nodes.sort_by_key(|node| (free[node].len(), *node));
    for size in least..=most {
        let mut best: Option<Choice> = None;
        each_combination(&nodes, size, &mut |some| {
            if let Some(found) = judge(topology, &free, some, wanted, group, request.by_socket)
                && best.as_ref().is_none_or(|best| better(&found, best))
            {
                best = Some(found);
            }
            !best.as_ref().is_some_and(|best| best.balance == 0.0 && (best.one_socket || !request.by_socket))
        });
        if let Some(choice) = best {
            return hand_out(topology, free, &choice, wanted, group, manner);
        }
    }
    take_packed(topology, available, wanted, manner)
}

fn better(one: &Choice, other: &Choice) -> bool {
    if one.one_socket == other.one_socket { one.balance < other.balance } else { one.one_socket }
}

/// What choosing these nodes would leave; `None` when they cannot share evenly.
fn judge(
    topology: &CpuTopology,
    free: &BTreeMap<u32, CpuSet>,
    nodes: &[u32],
    wanted: usize,
    group: usize,
    by_socket: bool,
) -> Option<Choice> {
    let groups: usize = nodes.iter().map(|node| free[node].len() / group).sum();
    let each = wanted / nodes.len() / group * group;
    if groups * group < wanted || nodes.iter().any(|node| free[node].len() < each) {
        return None;
    }
    let mut left: BTreeMap<u32, usize> = free.iter().map(|(node, cpus)| (*node, cpus.len())).collect();
    for node in nodes {
        left.entry(*node).and_modify(|count| *count -= each);
    }
    let sockets = nodes.iter().flat_map(|node| topology.parts(&free[node], Part::Socket));
    let one_socket = by_socket && sockets.collect::<std::collections::BTreeSet<_>>().len() == 1;
    let choice = |remainder: Vec<u32>, balance| Choice { nodes: nodes.to_vec(), remainder, one_socket, balance };
    let remainder = wanted - each * nodes.len();
    if remainder == 0 {
        return Some(choice(Vec::new(), deviation(&left)));
    }
    let givers: Vec<u32> = nodes.iter().copied().filter(|node| left[node] >= group).collect();
    let mut best: Option<Choice> = None;
    for size in (1..=givers.len()).rev() {
        each_combination(&givers, size, &mut |some| {
            if let Some(balance) = after_remainder(left.clone(), some, remainder, group).map(|left| deviation(&left))
                && best.as_ref().is_none_or(|best| balance < best.balance)
            {
                best = Some(choice(some.to_vec(), balance));
            }
            true
        });
    }
    best
}

/// What is left once these nodes have given the remainder in turns; `None` when they cannot.
fn after_remainder(
    mut left: BTreeMap<u32, usize>,
    nodes: &[u32],
    mut remainder: usize,
    group: usize,
) -> Option<BTreeMap<u32, usize>> {
    while remainder > 0 {
        let before = remainder;
        for node in nodes {
            if let Some(count) = left.get_mut(node).filter(|count| **count >= group && remainder > 0) {
                *count -= group;
                remainder -= group;
            }
        }
        if remainder == before {
            return None;
        }
    }
    Some(left)
}

fn hand_out(
    topology: &CpuTopology,
    mut free: BTreeMap<u32, CpuSet>,
    choice: &Choice,
    wanted: usize,
    group: usize,
    manner: Manner,
) -> Result<CpuSet, String> {
    let mut taken = CpuSet::default();
    let mut give = |node: &u32, count: usize| -> Result<bool, String> {
        let Some(cpus) = free.get_mut(node).filter(|cpus| cpus.len() >= count) else { return Ok(false) };
        let given = take_packed(topology, cpus, count, manner)?;
        *cpus = cpus.difference(&given);
        taken = taken.union(&given);
        Ok(true)
    };
    let each = wanted / choice.nodes.len() / group * group;
    for node in &choice.nodes {
        give(node, each)?;
    }
    let mut remainder = wanted - each * choice.nodes.len();
    while remainder > 0 {
        let before = remainder;
        for node in &choice.remainder {
            if remainder > 0 && give(node, group)? {
                remainder -= group;
            }
        }
        if remainder == before {
            return Err(format!("accounting error, not enough CPUs allocated, remaining: {remainder}"));
        }
    }
    Ok(taken)
}

/// Standard deviation, rounded to thousandths as the kubelet rounds it.
fn deviation(left: &BTreeMap<u32, usize>) -> f64 {
    let round = |value: f64| (value * 1000.0).round() / 1000.0;
    let counts = || left.values().map(|count| f64::from(u32::try_from(*count).unwrap_or(u32::MAX)));
    let number = f64::from(u32::try_from(left.len().max(1)).unwrap_or(u32::MAX));
    let mean = round(counts().sum::<f64>() / number);
    round((counts().map(|count| (count - mean).powi(2)).sum::<f64>() / number).sqrt())
}

#[cfg(test)]
mod tests {
    use super::super::topology::machine;
    use super::*;

    fn take(topology: &CpuTopology, free: &str, cpus: usize, group: usize, by_socket: bool) -> String {
        let request = Request { cpus, group, spread: false, by_socket };
        take_distributed(topology, &free.parse().unwrap(), request).unwrap().to_string()
    }

    #[test]
    fn cpus_come_evenly_from_as_few_nodes_as_needed() {
        // Two sockets of four cores with two threads, a node each; core N has CPUs N and N + 8.
        let dual = machine(2, 2, 2, 4, 2);
        // Two sockets of eight cores with four nodes in all, no threads.
        let four = machine(2, 4, 4, 8, 1);
        for (what, topology, free, cpus, group, by_socket, expected) in [
            ("one node suffices", &dual, "0-15", 4, 1, false, "0-1,8-9"),
            ("halves of both", &dual, "0-15", 10, 1, false, "0-2,4-6,8-9,12-13"),
            ("whole cores", &dual, "0-15", 12, 2, false, "0-2,4-6,8-10,12-14"),
            ("an odd core goes where more is left", &dual, "0-6,8-14", 10, 2, false, "0-2,4-5,8-10,12-13"),
            ("three of four", &four, "0-15", 9, 1, false, "0-2,4-6,8-10"),
            ("the most balanced pair", &four, "0-2,4-7,8-10,12-15", 6, 1, false, "4-6,12-14"),
            ("two nodes of one socket", &four, "0-2,4-7,8-10,12-15", 6, 1, true, "0-2,4-6"),
            ("no even share: packed", &dual, "0-7,8", 9, 1, false, "0-8"),
        ] {
            assert_eq!(take(topology, free, cpus, group, by_socket), expected, "{what}");
        }
    }

    #[test]
    fn groups_that_do_not_fit_end_the_search_and_not_the_agent() {
        let dual = machine(2, 2, 2, 4, 2);
        // Three free threads on either node are but one core and a half each.
        assert_eq!(take(&dual, "0-1,8,4-5,12", 6, 2, false), "0-1,4-5,8,12");
        let request = Request { cpus: 9, group: 1, spread: false, by_socket: false };
        let error = take_distributed(&dual, &"0-7".parse().unwrap(), request).unwrap_err();
        assert_eq!(error, "not enough cpus available to satisfy request: requested=9, available=8");
    }
}
