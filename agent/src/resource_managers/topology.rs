//! Where the CPUs and the memory of this machine are: read once from `/sys/devices/system`.
//!
//! Paths are taken below a root, so that tests can bring their own machine. A kernel without NUMA has one node, 0, with
//! all of both.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::cpu_set::CpuSet;
use crate::node::{HugePages, huge_pages, meminfo};

/// Where one CPU is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub node: u32,
    pub socket: u32,
    /// The lowest CPU of the core: numbers that the kernel gives cores repeat from socket to socket.
    pub core: u32,
    /// Last-level cache that part of a socket shares; the socket where there is none.
    pub uncore: u32,
}

/// A part of the machine that CPUs share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Node,
    Socket,
    Core,
    Uncore,
}

impl Place {
    pub fn of(&self, part: Part) -> u32 {
        match part {
            Part::Node => self.node,
            Part::Socket => self.socket,
            Part::Core => self.core,
            Part::Uncore => self.uncore,
        }
    }
}

/// The CPUs that are online.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuTopology(BTreeMap<u32, Place>);

impl CpuTopology {
    pub fn new(places: impl IntoIterator<Item = (u32, Place)>) -> Self {
        Self(places.into_iter().collect())
    }

    pub fn all(&self) -> CpuSet {
        self.0.keys().copied().collect()
    }

    #[cfg(test)]
    fn place(&self, cpu: u32) -> Option<&Place> {
        self.0.get(&cpu)
    }

    /// Those of `cpus` that this machine has, in place.
    pub fn only<'a>(&'a self, cpus: &'a CpuSet) -> impl Iterator<Item = (u32, &'a Place)> + 'a {
        self.0.iter().filter(|(cpu, _)| cpus.contains(**cpu)).map(|(cpu, place)| (*cpu, place))
    }

    /// All CPUs of one part.
    pub fn within(&self, part: Part, id: u32) -> CpuSet {
        self.0.iter().filter(|(_, place)| place.of(part) == id).map(|(cpu, _)| *cpu).collect()
    }

    /// The parts that some of `cpus` are in.
    pub fn parts(&self, cpus: &CpuSet, part: Part) -> BTreeSet<u32> {
        self.only(cpus).map(|(_, place)| place.of(part)).collect()
    }

    pub fn count(&self, part: Part) -> usize {
        self.0.values().map(|place| place.of(part)).collect::<BTreeSet<_>>().len()
    }

    /// CPUs of a part of that kind, were they all the same; 0 on a machine without CPUs.
    pub fn per(&self, part: Part) -> usize {
        self.0.len().checked_div(self.count(part)).unwrap_or(0)
    }
}

/// Memory of a NUMA node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeMemory {
    pub bytes: u64,
    pub huge_pages: Vec<HugePages>,
    /// How far other nodes are, by node.
    pub distances: BTreeMap<u32, u64>,
}

/// The machine as the managers see it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Topology {
    pub cpus: CpuTopology,
    pub nodes: BTreeMap<u32, NodeMemory>,
}

impl Topology {
    /// Reads the machine; `root` is `/` outside tests.
    pub fn read(root: &Path) -> Self {
        let system = root.join("sys/devices/system");
        let mut nodes = BTreeMap::new();
        let mut node_of = BTreeMap::new();
        let ids = read_set(&system.join("node/online"));
        for id in ids.iter() {
            let folder = system.join(format!("node/node{id}"));
            for cpu in read_set(&folder.join("cpulist")).iter() {
                node_of.insert(cpu, id);
            }
            // `Node 0 MemTotal:  123 kB`
            let prefix = format!("Node {id} ");
            let text: String = read(&folder.join("meminfo"))
                .lines()
                .filter_map(|l| l.strip_prefix(&prefix))
                .fold(String::new(), |text, line| text + line + "\n");
            let far: Vec<u64> = read(&folder.join("distance")).split_whitespace().flat_map(str::parse).collect();
            nodes.insert(
                id,
                NodeMemory {
                    bytes: meminfo(&text, "MemTotal") * 1024,
                    huge_pages: huge_pages(&folder.join("hugepages")),
                    distances: ids.iter().zip(far).collect(),
                },
            );
        }
        if nodes.is_empty() {
            let memory = NodeMemory {
                bytes: meminfo(&read(&root.join("proc/meminfo")), "MemTotal") * 1024,
                huge_pages: huge_pages(&root.join("sys/kernel/mm/hugepages")),
                distances: [(0, 10)].into(),
            };
            nodes.insert(0, memory);
        }
        let online = read_set(&system.join("cpu/online"));
        let first = nodes.keys().next().copied().unwrap_or(0);
        let place = |cpu: u32| {
            let folder = system.join(format!("cpu/cpu{cpu}"));
            let number = |path: &str| read(&folder.join(path)).parse::<u32>().ok();
            let siblings = read_set(&folder.join("topology/core_cpus_list"));
            let siblings =
                if siblings.is_empty() { read_set(&folder.join("topology/thread_siblings_list")) } else { siblings };
            let socket = number("topology/physical_package_id").unwrap_or(0);
            let core = siblings.intersection(&online).iter().next().unwrap_or(cpu);
            let uncore = uncore_cache(&folder.join("cache")).unwrap_or(socket);
            Place { node: node_of.get(&cpu).copied().unwrap_or(first), socket, core, uncore }
        };
        Topology { cpus: CpuTopology::new(online.iter().map(|cpu| (cpu, place(cpu)))), nodes }
    }
}

/// Id of the level 3 cache.
fn uncore_cache(folder: &Path) -> Option<u32> {
    for entry in std::fs::read_dir(folder).ok()?.flatten() {
        let index = entry.path();
        if read(&index.join("level")) == "3" {
            let shared = || read_set(&index.join("shared_cpu_list")).iter().next();
            return read(&index.join("id")).parse().ok().or_else(shared);
        }
    }
    None
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

fn read_set(path: &Path) -> CpuSet {
    read(path).parse().unwrap_or_default()
}

/// Machines for tests, numbered as Linux does: threads of a core are as far apart as there are cores.
#[cfg(test)]
pub(super) fn machine(sockets: u32, nodes: u32, uncores: u32, cores: u32, threads: u32) -> CpuTopology {
    let cores_all = sockets * cores;
    let place = |cpu: u32| {
        let core = cpu % cores_all;
        Place { node: core * nodes / cores_all, socket: core / cores, core, uncore: core * uncores / cores_all }
    };
    CpuTopology::new((0..cores_all * threads).map(|cpu| (cpu, place(cpu))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_cpus_in_a_node_with_memory() {
        let found = Topology::read(Path::new("/"));
        assert!(!found.cpus.all().is_empty() && found.cpus.per(Part::Core) > 0);
        assert!(found.nodes.values().any(|node| node.bytes > 0));
    }

    #[test]
    fn a_machine_is_read_from_sysfs() {
        let root = std::env::temp_dir().join(format!("topology-{}", std::process::id()));
        let put = |path: &str, text: &str| {
            let path = root.join("sys/devices/system").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("cpu/online", "0-3\n");
        put("node/online", "0-1\n");
        for node in 0..2 {
            put(&format!("node/node{node}/cpulist"), &format!("{node},{}\n", node + 2));
            put(
                &format!("node/node{node}/meminfo"),
                &format!("Node {node} MemTotal:  2048 kB\nNode {node} MemFree: 1 kB\n"),
            );
            put(&format!("node/node{node}/distance"), ["10 21\n", "21 10\n"][node]);
            put(&format!("node/node{node}/hugepages/hugepages-2048kB/nr_hugepages"), "3\n");
        }
        for cpu in 0..4 {
            put(&format!("cpu/cpu{cpu}/topology/physical_package_id"), &format!("{}\n", cpu % 2));
            put(&format!("cpu/cpu{cpu}/topology/core_cpus_list"), &format!("{},{}\n", cpu % 2, cpu % 2 + 2));
            put(&format!("cpu/cpu{cpu}/cache/index3/level"), "3\n");
            put(&format!("cpu/cpu{cpu}/cache/index3/id"), "7\n");
        }
        let found = Topology::read(&root);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(found.cpus.place(3), Some(&Place { node: 1, socket: 1, core: 1, uncore: 7 }));
        assert_eq!((found.cpus.per(Part::Core), found.cpus.count(Part::Socket)), (2, 2));
        assert_eq!((found.nodes[&1].bytes, found.nodes[&1].distances[&0]), (2048 * 1024, 21));
        assert_eq!(found.nodes[&0].huge_pages, [HugePages { page_bytes: 2 << 20, pages: 3 }]);
    }
}
