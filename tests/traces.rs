//! What pods leave on a machine should they leave something: cgroups and network namespaces, which outlive every process.
//!
//! Whose they are is noted while the pods run, so that nothing counts that another test or the machine itself has made.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Deep enough for the cgroups of containers, with one hierarchy for everything or one for each controller.
const DEPTH: usize = 6;

/// What to look for, and where.
pub struct Traces {
    cgroups: PathBuf,
    networks: Vec<PathBuf>,
    processes: PathBuf,
    /// Ids of sandboxes and containers, and uids of pods, which the names of cgroups are made of.
    names: BTreeSet<String>,
    /// Of network namespaces.
    held: BTreeSet<PathBuf>,
}

impl Default for Traces {
    /// This machine's.
    fn default() -> Self {
        Self::below(Path::new("/"))
    }
}

impl Traces {
    /// Those of a machine whose files are below `root`.
    pub fn below(root: &Path) -> Self {
        Self {
            cgroups: root.join("sys/fs/cgroup"),
            networks: ["run/netns", "var/run/netns"].map(|place| root.join(place)).into(),
            processes: root.join("proc"),
            names: BTreeSet::new(),
            held: BTreeSet::new(),
        }
    }

    /// A pod that is there now.
    pub fn note_pod(&mut self, uid: &str) {
        // A slice of systemd has other dashes.
        self.names.extend([uid.to_owned(), uid.replace('-', "_")]);
    }

    /// A container or sandbox that runs now, by its id and its process.
    pub fn note_container(&mut self, id: &str, process: u32) {
        self.names.insert(id.to_owned());
        let own = self.processes.join(process.to_string()).join("ns/net");
        let Ok(own) = std::fs::metadata(own) else { return };
        let is_own = |path: &PathBuf| {
            std::fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == (own.dev(), own.ino()))
        };
        self.held.extend(self.named_networks().into_iter().filter(is_own));
    }

    /// How many cgroups and network namespaces are there now of what was noted. None of the pods' at all would mean that
    /// nobody looked.
    pub fn count(&self) -> usize {
        self.left().len()
    }

    /// What is still there.
    pub fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        self.cgroups_below(&self.cgroups, DEPTH, &mut left);
        let networks = self.named_networks();
        left.extend(networks.iter().filter(|path| self.held.contains(*path)).map(|path| path.display().to_string()));
        left
    }

    fn named_networks(&self) -> Vec<PathBuf> {
        let entries = self.networks.iter().flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten());
        entries.flatten().map(|entry| entry.path()).collect()
    }

    fn cgroups_below(&self, path: &Path, depth: usize, left: &mut Vec<String>) {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            if self.names.iter().any(|own| name.contains(own.as_str())) {
                left.push(entry.path().display().to_string());
            }
            if depth > 0 {
                self.cgroups_below(&entry.path(), depth - 1, left);
            }
        }
    }
}
