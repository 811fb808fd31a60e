//! Sets of NUMA nodes, and what providers of resources say about them.

use super::cpu_set::CpuSet;

/// Nodes by number; there are at most 64.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeMask(u64);

impl NodeMask {
    pub const MAX_NODES: u32 = 64;

    pub fn contains(self, node: u32) -> bool {
        node < Self::MAX_NODES && self.0 & (1 << node) != 0
    }

    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    pub fn and(self, other: Self) -> Self {
        NodeMask(self.0 & other.0)
    }

    pub fn is_subset(self, other: Self) -> bool {
        self.0 & other.0 == self.0
    }

    pub fn nodes(self) -> impl Iterator<Item = u32> {
        (0..Self::MAX_NODES).filter(move |node| self.contains(*node))
    }

    /// With less nodes; of as many, those with lower numbers.
    pub fn is_narrower_than(self, other: Self) -> bool {
        (self.count(), self.0) < (other.count(), other.0)
    }
}

impl FromIterator<u32> for NodeMask {
    /// Numbers beyond the greatest are left out.
    fn from_iter<I: IntoIterator<Item = u32>>(nodes: I) -> Self {
        let bits = nodes.into_iter().filter(|node| *node < Self::MAX_NODES).map(|node| 1_u64 << node);
        NodeMask(bits.fold(0, |all, bit| all | bit))
    }
}

impl std::fmt::Display for NodeMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.nodes().collect::<CpuSet>().fmt(f)
    }
}

/// Nodes on which a request can be met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hint {
    /// `None`: any.
    pub nodes: Option<NodeMask>,
    /// As few nodes as the request could ever be met on.
    pub preferred: bool,
}

/// What is said of one resource. `None`: it does not care. Empty: it cannot be met.
pub type Hints = Option<Vec<Hint>>;

/// Calls `look` with every set of these nodes, smaller ones first.
pub fn each_mask(nodes: &[u32], mut look: impl FnMut(NodeMask)) {
    for size in 1..=nodes.len() {
        each_combination(nodes, size, &mut |some| {
            look(some.iter().copied().collect());
            true
        });
    }
}

/// Calls `look` with every choice of `size` elements, in their order, until it answers `false`.
pub fn each_combination(from: &[u32], size: usize, look: &mut dyn FnMut(&[u32]) -> bool) -> bool {
    fn walk(from: &[u32], size: usize, chosen: &mut Vec<u32>, look: &mut dyn FnMut(&[u32]) -> bool) -> bool {
        if size == 0 {
            return look(chosen);
        }
        for (at, one) in from.iter().enumerate() {
            if from.len() - at < size {
                break;
            }
            chosen.push(*one);
            let go_on = walk(&from[at + 1..], size - 1, chosen, look);
            chosen.pop();
            if !go_on {
                return false;
            }
        }
        true
    }
    size == 0 || walk(from, size, &mut Vec::with_capacity(size), look)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_come_by_size_and_the_narrower_has_lower_numbers() {
        let mut seen = Vec::new();
        each_mask(&[0, 1, 3], |mask| seen.push(mask.to_string()));
        assert_eq!(seen, ["0", "1", "3", "0-1", "0,3", "1,3", "0-1,3"]);
        let mask = |nodes: &[u32]| nodes.iter().copied().collect::<NodeMask>();
        assert!(mask(&[3]).is_narrower_than(mask(&[0, 1])) && mask(&[0]).is_narrower_than(mask(&[1])));
        assert_eq!(mask(&[0, 63, 64, 900]).count(), 2);
    }
}
