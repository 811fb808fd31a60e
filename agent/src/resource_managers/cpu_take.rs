//! Choosing CPUs by where they are: whole nodes and sockets first, then shared caches, cores, and single CPUs.
//!
//! Pure: what is free and how many are wanted decide. Of parts that are alike, the fullest comes first, so that large
//! free ones stay whole.
//!
//! Followed: `pkg/kubelet/cm/cpumanager/cpu_assignment.go`.

use super::cpu_set::CpuSet;
use super::topology::{CpuTopology, Part};

/// How CPUs are picked within the nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Manner {
    /// Single CPUs of as many cores as possible, instead of whole cores.
    pub spread: bool,
    /// As few shared caches as possible.
    pub by_uncore: bool,
}

/// There are not enough; the text is the kubelet's.
pub(super) fn too_few(wanted: usize, available: usize) -> String {
    format!("not enough cpus available to satisfy request: requested={wanted}, available={available}")
}

/// Takes `wanted` of the `available` CPUs.
///
/// # Errors
/// When there are not as many.
pub fn take_packed(
    topology: &CpuTopology,
    available: &CpuSet,
    wanted: usize,
    manner: Manner,
) -> Result<CpuSet, String> {
    let mut taking =
        Taking { topology, free: available.intersection(&topology.all()), wanted, taken: CpuSet::default() };
    if taking.wanted > taking.free.len() {
        return Err(too_few(wanted, taking.free.len()));
    }
    let [first, second] = if taking.nodes_first() { [Part::Node, Part::Socket] } else { [Part::Socket, Part::Node] };
    taking.take_whole(first);
    taking.take_whole(second);
    if manner.by_uncore {
        taking.take_by_uncore();
    }
    if !manner.spread {
        taking.take_whole(Part::Core);
    }
    for cpu in taking.sorted_cpus(manner.spread) {
        if taking.wanted == 0 {
            break;
        }
        taking.take(&[cpu].into_iter().collect());
    }
    Ok(taking.taken)
}

/// A choice under way.
struct Taking<'a> {
    topology: &'a CpuTopology,
    free: CpuSet,
    wanted: usize,
    taken: CpuSet,
}

impl Taking<'_> {
    /// Whether a node is made of sockets, and not the other way round.
    fn nodes_first(&self) -> bool {
        self.topology.count(Part::Socket) >= self.topology.count(Part::Node)
    }

    fn take(&mut self, cpus: &CpuSet) {
        self.taken = self.taken.union(cpus);
        self.free = self.free.difference(cpus);
        self.wanted = self.wanted.saturating_sub(cpus.len());
    }

    /// The parts that have any of `among`, those with the least free first.
    fn by_room(&self, part: Part, among: &CpuSet) -> Vec<u32> {
        let mut ids: Vec<u32> = self.topology.parts(among, part).into_iter().collect();
        ids.sort_by_key(|id| (self.free_in(part, *id).len(), *id));
        ids
    }

    fn free_in(&self, part: Part, id: u32) -> CpuSet {
        self.topology.only(&self.free).filter(|(_, place)| place.of(part) == id).map(|(cpu, _)| cpu).collect()
    }

    /// The parts of a kind in the order in which they are to be used: those of one part that holds them stay together.
    fn sorted(&self, part: Part) -> Vec<u32> {
        let outer = match (part, self.nodes_first()) {
            (Part::Node, true) | (Part::Socket, false) => return self.by_room(part, &self.free),
            (Part::Node, false) | (Part::Core, true) => Part::Socket,
            (Part::Socket, true) | (Part::Core, false) | (Part::Uncore, _) => Part::Node,
        };
        let outer_ids = self.sorted(outer).into_iter();
        let mut ids: Vec<u32> = Vec::new();
        for id in outer_ids.flat_map(|id| self.by_room(part, &self.free_in(outer, id))) {
            // A cache may be shared beyond a node.
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        ids
    }

    fn sorted_cpus(&self, spread: bool) -> Vec<u32> {
        let part = if spread { Part::Socket } else { Part::Core };
        self.sorted(part).into_iter().flat_map(|id| self.free_in(part, id).iter().collect::<Vec<_>>()).collect()
    }

    /// Whether nothing of the part is taken.
    fn is_whole(&self, part: Part, id: u32) -> bool {
        let all = match part {
            Part::Node | Part::Uncore => self.topology.within(part, id).len(),
            Part::Socket | Part::Core => self.topology.per(part),
        };
        self.free_in(part, id).len() == all
    }

    /// Takes whole parts as long as one fits into what is missing.
    fn take_whole(&mut self, part: Part) {
        let whole: Vec<u32> = self.sorted(part).into_iter().filter(|id| self.is_whole(part, *id)).collect();
        for id in whole {
            let cpus = self.topology.within(part, id);
            if self.wanted >= cpus.len() {
                self.take(&cpus);
            }
        }
    }

    fn take_by_uncore(&mut self) {
        for id in self.sorted(Part::Uncore) {
            if self.wanted >= self.topology.per(Part::Uncore) {
                self.take_whole(Part::Uncore);
            }
            if self.wanted == 0 {
                return;
            }
            self.take_part_of_uncore(id);
            if self.wanted == 0 {
                return;
            }
        }
    }

    /// Takes all that is missing from one cache, or nothing.
    fn take_part_of_uncore(&mut self, id: u32) {
        let per_core = self.topology.per(Part::Core).max(1);
        let cores: Vec<u32> = self.topology.parts(&self.free_in(Part::Uncore, id), Part::Core).into_iter().collect();
        let cores = cores.into_iter().take(self.wanted.div_ceil(per_core));
        let mut cpus: Vec<u32> =
            cores.flat_map(|core| self.free_in(Part::Core, core).iter().collect::<Vec<_>>()).collect();
        cpus.sort_unstable();
        if !self.wanted.is_multiple_of(2) && per_core > 1 && cpus.len() > self.wanted {
            // Of the last core one thread is enough.
            cpus.pop();
        }
        if cpus.len() == self.wanted {
            self.take(&cpus.into_iter().collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::topology::machine;
    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    const PACKED: Manner = Manner { spread: false, by_uncore: false };
    const SPREAD: Manner = Manner { spread: true, by_uncore: false };
    const UNCORE: Manner = Manner { spread: false, by_uncore: true };

    #[test]
    fn parts_are_filled_from_the_largest_that_fits() {
        // Two sockets of four cores with two threads: core N has CPUs N and N + 8.
        let dual = machine(2, 2, 2, 4, 2);
        // One socket with two nodes.
        let split = machine(1, 2, 2, 4, 1);
        // One socket, four shared caches of two cores with two threads.
        let caches = machine(1, 1, 4, 8, 2);
        for (what, machine, free, wanted, manner, expected) in [
            ("a whole core", &dual, "0-15", 2, PACKED, "0,8"),
            ("a whole socket", &dual, "0-15", 8, PACKED, "0-3,8-11"),
            ("a socket and a core", &dual, "0-15", 10, PACKED, "0-4,8-12"),
            ("the fuller socket first", &dual, "0-3,5-15", 2, PACKED, "5,13"),
            ("a broken core before a whole one", &dual, "1-15", 1, PACKED, "8"),
            ("two whole cores before broken ones", &dual, "1-2,8-10,12", 4, PACKED, "1-2,9-10"),
            ("threads of many cores", &dual, "0-15", 4, SPREAD, "0-3"),
            ("a node of a socket", &split, "0-3", 2, PACKED, "0-1"),
            ("the node that has just enough", &split, "1-3", 1, PACKED, "1"),
            ("a whole cache", &caches, "0-15", 4, UNCORE, "0-1,8-9"),
            ("within one cache", &caches, "1-15", 4, UNCORE, "2-3,10-11"),
            ("a cache whose first core is whole", &caches, "1-15", 2, UNCORE, "2,10"),
            ("a cache and a half", &caches, "0-15", 6, UNCORE, "0-2,8-10"),
            ("an odd number in one cache", &caches, "0-15", 3, UNCORE, "0-1,8"),
            ("without regard to caches", &caches, "1-15", 4, PACKED, "1-2,9-10"),
            ("nothing", &dual, "0-15", 0, PACKED, ""),
            ("everything", &dual, "0-15", 16, PACKED, "0-15"),
        ] {
            assert_eq!(take_packed(machine, &set(free), wanted, manner), Ok(set(expected)), "{what}");
        }
    }

    #[test]
    fn more_than_there_is_is_refused() {
        let error = take_packed(&machine(1, 1, 1, 2, 1), &set("0-1"), 3, PACKED).unwrap_err();
        assert_eq!(error, "not enough cpus available to satisfy request: requested=3, available=2");
    }
}
