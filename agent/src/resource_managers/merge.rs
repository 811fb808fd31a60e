//! The topology policies: one set of NUMA nodes out of what all providers say of a container or a pod.
//!
//! Pure. Every combination of hints is merged to the nodes that all of it have in common; the best result counts, and the
//! policy says whether it is good enough.
//!
//! Followed: `pkg/kubelet/cm/topologymanager` (`policy.go`, `numa_info.go`).

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::numa::{Hint, Hints, NodeMask};
use super::topology::NodeMemory;

/// `topologyManagerPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    None,
    BestEffort,
    Restricted,
    SingleNumaNode,
}

impl Policy {
    pub fn of(name: &str) -> Self {
        match name {
            "best-effort" => Self::BestEffort,
            "restricted" => Self::Restricted,
            "single-numa-node" => Self::SingleNumaNode,
            _ => Self::None,
        }
    }

    /// Whether what it admits is known to be on as few nodes as possible.
    pub fn guarantees(self) -> bool {
        matches!(self, Self::Restricted | Self::SingleNumaNode)
    }
}

/// How nodes are judged.
#[derive(Debug, Clone)]
pub struct Merger {
    pub policy: Policy,
    /// Of as many nodes those that are closest to each other (option prefer-closest-numa-nodes).
    pub closest: bool,
    /// All of the machine's.
    pub nodes: NodeMask,
    distances: BTreeMap<u32, BTreeMap<u32, u64>>,
}

impl Merger {
    pub fn new(policy: Policy, closest: bool, nodes: &BTreeMap<u32, NodeMemory>) -> Self {
        let distances = nodes.iter().map(|(node, memory)| (*node, memory.distances.clone())).collect();
        Self { policy, closest, nodes: nodes.keys().copied().collect(), distances }
    }

    /// The best hint; `None` when the policy admits none. `hints` has one entry for each resource that a provider speaks
    /// of.
    pub fn merge(&self, hints: &[Hints]) -> Option<Hint> {
        let any = Hint { nodes: None, preferred: true };
        let mut all: Vec<Vec<Hint>> = hints
            .iter()
            .map(|hints| match hints.as_deref() {
                None => vec![any],
                Some([]) => vec![Hint { preferred: false, ..any }],
                Some(hints) => hints.to_vec(),
            })
            .collect();
        if self.policy == Policy::SingleNumaNode {
            for hints in &mut all {
                hints.retain(|hint| hint.preferred && hint.nodes.is_none_or(|nodes| nodes.count() == 1));
            }
        }
        let mut best = self.best(&all);
        if self.policy == Policy::SingleNumaNode && best.nodes == Some(self.nodes) {
            best.nodes = None;
        }
        (best.preferred || !self.policy.guarantees()).then_some(best)
    }

    fn best(&self, all: &[Vec<Hint>]) -> Hint {
        let fewest = |hints: &Vec<Hint>| hints.iter().filter_map(|hint| Some(hint.nodes?.count())).min();
        let target = all.iter().filter_map(fewest).max().unwrap_or(0);
        let mut best: Option<(NodeMask, bool)> = None;
        let mut chosen = Vec::with_capacity(all.len());
        self.each(all, &mut chosen, &mut |permutation| {
            let candidate = self.merged(permutation);
            if candidate.0.count() > 0 && best.is_none_or(|best| self.is_better(candidate, best, target)) {
                best = Some(candidate);
            }
        });
        let (nodes, preferred) = best.unwrap_or((self.nodes, false));
        Hint { nodes: Some(nodes), preferred }
    }

    fn each(&self, all: &[Vec<Hint>], chosen: &mut Vec<Hint>, look: &mut dyn FnMut(&[Hint])) {
        let Some((first, rest)) = all.split_first() else { return look(chosen) };
        for hint in first {
            chosen.push(*hint);
            self.each(rest, chosen, look);
            chosen.pop();
        }
    }

    /// Preferred only if all are, and all of one opinion.
    fn merged(&self, permutation: &[Hint]) -> (NodeMask, bool) {
        let masks = || permutation.iter().filter_map(|hint| hint.nodes);
        let agreed = masks().all(|mask| Some(mask) == masks().next());
        let preferred = agreed && permutation.iter().all(|hint| hint.preferred);
        (masks().fold(self.nodes, NodeMask::and), preferred)
    }

    /// `target`: how many nodes the widest of the providers needs at least.
    fn is_better(&self, candidate: (NodeMask, bool), best: (NodeMask, bool), target: usize) -> bool {
        if candidate.1 != best.1 {
            return candidate.1;
        }
        let (has, had) = (candidate.0.count(), best.0.count());
        if candidate.1 || had > target {
            return self.is_narrower(candidate.0, best.0);
        }
        // Neither is preferred: as close to what the widest provider needs as possible, but not beyond.
        match (had.cmp(&target), has.cmp(&target)) {
            (_, Ordering::Greater) => false,
            (Ordering::Equal, Ordering::Equal) => self.is_narrower(candidate.0, best.0),
            (Ordering::Equal, _) => false,
            (_, Ordering::Equal) => true,
            _ if has == had => self.is_narrower(candidate.0, best.0),
            _ => has > had,
        }
    }

    fn is_narrower(&self, candidate: NodeMask, best: NodeMask) -> bool {
        if !self.closest || self.policy == Policy::SingleNumaNode || candidate.count() != best.count() {
            return candidate.is_narrower_than(best);
        }
        let (near, nearest) = (self.distance(candidate), self.distance(best));
        // Of as many nodes, as close to each other, those with lower numbers.
        near < nearest || near == nearest && candidate < best
    }

    /// Sum of the distances; of masks of one size it orders as their mean does.
    fn distance(&self, mask: NodeMask) -> u64 {
        let between = |one: u32, other: u32| self.distances.get(&one).and_then(|row| row.get(&other)).copied();
        mask.nodes()
            .flat_map(|one| mask.nodes().map(move |other| (one, other)))
            .filter_map(|(a, b)| between(a, b))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(nodes: &[u32]) -> NodeMask {
        nodes.iter().copied().collect()
    }

    fn hint(nodes: &[u32], preferred: bool) -> Hint {
        Hint { nodes: Some(mask(nodes)), preferred }
    }

    fn merger(policy: Policy, count: u32) -> Merger {
        let nodes = (0..count).map(|node| (node, NodeMemory::default())).collect();
        Merger::new(policy, false, &nodes)
    }

    /// Name of the case, what providers say, and the merged nodes by best-effort, restricted and single-numa-node
    /// (`None`: refused; empty: any).
    type Case = (&'static str, Vec<Hints>, [Option<&'static [u32]>; 3]);

    #[test]
    fn hints_merge_as_the_kubelet_merges_them() {
        let either = || Some(vec![hint(&[0], true), hint(&[1], true), hint(&[0, 1], false)]);
        let table: Vec<Case> = vec![
            ("nobody cares", vec![None], [Some(&[0, 1]), Some(&[0, 1]), Some(&[])]),
            ("nobody speaks", vec![], [Some(&[0, 1]), Some(&[0, 1]), Some(&[])]),
            ("one cannot", vec![Some(vec![])], [Some(&[0, 1]), None, None]),
            ("either node", vec![either()], [Some(&[0]), Some(&[0]), Some(&[0])]),
            ("one of two", vec![either(), Some(vec![hint(&[1], true)])], [Some(&[1]), Some(&[1]), Some(&[1])]),
            (
                "different nodes",
                vec![Some(vec![hint(&[0], true)]), Some(vec![hint(&[1], true)])],
                [Some(&[0, 1]), None, None],
            ),
            ("needs both", vec![Some(vec![hint(&[0, 1], true)])], [Some(&[0, 1]), Some(&[0, 1]), None]),
            ("could be on one, now only on both", vec![Some(vec![hint(&[0, 1], false)])], [Some(&[0, 1]), None, None]),
            (
                "preferred of unlike width",
                vec![Some(vec![hint(&[0, 1], true)]), Some(vec![hint(&[1], true)])],
                [Some(&[1]), None, None],
            ),
            ("with one that does not care", vec![None, either()], [Some(&[0]), Some(&[0]), Some(&[0])]),
        ];
        for (what, hints, expected) in table {
            let policies = [Policy::BestEffort, Policy::Restricted, Policy::SingleNumaNode];
            for (policy, expected) in policies.into_iter().zip(expected) {
                let found = merger(policy, 2).merge(&hints).map(|hint| hint.nodes.unwrap_or_default());
                assert_eq!(found, expected.map(mask), "{what}: {policy:?}");
            }
        }
    }

    #[test]
    fn without_a_preference_as_many_nodes_as_the_widest_needs_win() {
        // One provider needs two nodes at least; the other says one or all.
        let hints = [
            Some(vec![hint(&[0, 1], false), hint(&[0, 1, 2, 3], false)]),
            Some(vec![hint(&[0], false), hint(&[0, 1, 2, 3], false)]),
        ];
        let best = merger(Policy::BestEffort, 4).merge(&hints).unwrap();
        assert_eq!(best, hint(&[0, 1], false));
    }

    #[test]
    fn near_nodes_win_where_that_is_asked_for() {
        let far = |near: u32| (0..4).map(|n| (n, if n == near { 10 } else { 30 })).collect::<BTreeMap<u32, u64>>();
        let mut nodes: BTreeMap<u32, NodeMemory> =
            (0..4).map(|n| (n, NodeMemory { distances: far(n), ..NodeMemory::default() })).collect();
        for (one, other) in [(2, 3), (3, 2)] {
            nodes.get_mut(&one).unwrap().distances.insert(other, 12);
        }
        let hints = [Some(vec![hint(&[0, 1], true), hint(&[2, 3], true)])];
        let merge = |closest| Merger::new(Policy::Restricted, closest, &nodes).merge(&hints).unwrap().nodes;
        assert_eq!((merge(false), merge(true)), (Some(mask(&[0, 1])), Some(mask(&[2, 3]))));
    }
}
