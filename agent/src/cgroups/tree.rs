//! The cgroup v2 file system: making, limiting and removing cgroups.
//!
//! A controller works in a cgroup only when every ancestor hands it down (`cgroup.subtree_control`), so making one
//! walks from the top. Removing one ends what still runs in it. Everything here blocks for as long as the kernel does.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::limits::{Found, Limits, cpu_weight};

/// Controllers that pods use.
const CONTROLLERS: [&str; 5] = ["cpu", "cpuset", "memory", "hugetlb", "pids"];
/// How long the kernel may take to end the last processes of a cgroup.
const END_OF_PROCESSES: Duration = Duration::from_secs(5);

/// What the kernel refused.
#[derive(Debug, thiserror::Error)]
#[error("{what} {}: {source}", path.display())]
pub struct CgroupError {
    pub what: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

fn refused(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CgroupError {
    let path = path.to_owned();
    move |source| CgroupError { what, path, source }
}

/// The hierarchy below a mount point.
#[derive(Debug, Clone)]
pub struct Tree {
    root: PathBuf,
}

impl Tree {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Controllers of the root that pods use.
    ///
    /// # Errors
    /// There is no cgroup v2 at the mount point.
    pub fn controllers(&self) -> Result<Vec<&'static str>, CgroupError> {
        let path = self.root.join("cgroup.controllers");
        let text = fs::read_to_string(&path).map_err(refused("cannot read", &path))?;
        Ok(CONTROLLERS.into_iter().filter(|c| text.split_whitespace().any(|have| have == *c)).collect())
    }

    pub fn exists(&self, name: &Path) -> bool {
        self.root.join(name).is_dir()
    }

    /// Makes a cgroup and what is missing above it, with all controllers.
    ///
    /// # Errors
    /// The kernel refuses; a process in a cgroup above is the usual reason.
    pub fn create(&self, name: &Path) -> Result<(), CgroupError> {
        let controllers = self.controllers()?;
        let mut at = self.root.clone();
        for part in name {
            hand_down(&at, &controllers)?;
            at.push(part);
            match fs::create_dir(&at) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(refused("cannot make the cgroup", &at)(e)),
            }
        }
        Ok(())
    }

    /// Sets limits; a controller that the kernel lacks is passed over.
    ///
    /// # Errors
    /// The kernel refuses a value.
    pub fn limit(&self, name: &Path, limits: &Limits) -> Result<(), CgroupError> {
        let at = self.root.join(name);
        let set = |file: &str, value: String| {
            let path = at.join(file);
            match fs::write(&path, value) {
                // The controller is not built in, or a page size has gone.
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
                result => result.map_err(refused("cannot set", &path)),
            }
        };
        if let Some(shares) = limits.cpu_shares {
            set("cpu.weight", cpu_weight(shares).to_string())?;
        }
        if let Some((quota, period)) = limits.cpu_quota {
            set("cpu.max", if quota < 0 { format!("max {period}") } else { format!("{quota} {period}") })?;
        }
        if let Some(bytes) = limits.memory {
            set("memory.max", bytes.to_string())?;
        }
        if let Some(kept) = limits.memory_kept {
            set("memory.min", kept.min.to_string())?;
            set("memory.low", kept.low.to_string())?;
        }
        if let Some(count) = limits.pids {
            set("pids.max", count.to_string())?;
        }
        for (size, bytes) in &limits.huge_pages {
            set(&format!("hugetlb.{size}.max"), bytes.to_string())?;
            // Reservations count too where the kernel knows them.
            set(&format!("hugetlb.{size}.rsvd.max"), bytes.to_string())?;
        }
        Ok(())
    }

    /// What a cgroup is limited to; `None` when it is not there or lacks a controller.
    pub fn found(&self, name: &Path) -> Option<Found> {
        let at = self.root.join(name);
        let read = |file: &str| fs::read_to_string(at.join(file)).ok();
        let number = |text: &str| text.trim().parse().ok();
        let quota = read("cpu.max")?;
        let (quota, period) = quota.trim().split_once(' ')?;
        Some(Found {
            cpu_weight: number(&read("cpu.weight")?)?,
            cpu_quota: number(quota).zip(number(period)),
            memory: number(&read("memory.max")?),
        })
    }

    /// Names of the cgroups right below one.
    pub fn children(&self, name: &Path) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.root.join(name)) else { return Vec::new() };
        let folders = entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
        folders.filter_map(|e| e.file_name().into_string().ok()).collect()
    }

    /// Ends every process in a cgroup and removes it with all below it. One that is not there is removed.
    ///
    /// # Errors
    /// Something in it does not end.
    pub fn remove(&self, name: &Path) -> Result<(), CgroupError> {
        let at = self.root.join(name);
        match fs::write(at.join("cgroup.kill"), "1") {
            Ok(()) => {}
            Err(_) if !at.is_dir() => return Ok(()),
            Err(e) => return Err(refused("cannot end the processes of", &at)(e)),
        }
        // Killed processes leave a moment later; the kernel tells of it by a changed `cgroup.events`, which is not worth
        // a watch for the few milliseconds that this takes.
        let limit = Instant::now() + END_OF_PROCESSES;
        loop {
            match remove_below(&at) {
                Ok(()) => return Ok(()),
                Err(e) if e.raw_os_error() == Some(nix::libc::EBUSY) && Instant::now() < limit => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(e) => return Err(refused("cannot remove the cgroup", &at)(e)),
            }
        }
    }
}

/// Hands controllers down to the children of a cgroup.
fn hand_down(at: &Path, controllers: &[&str]) -> Result<(), CgroupError> {
    let path = at.join("cgroup.subtree_control");
    let on = fs::read_to_string(&path).map_err(refused("cannot read", &path))?;
    let missing: Vec<String> = controllers
        .iter()
        .filter(|c| !on.split_whitespace().any(|have| have == **c))
        .map(|c| format!("+{c}"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    fs::write(&path, missing.join(" ")).map_err(refused("cannot hand down controllers in", &path))
}

/// Removes cgroups deepest first; their files go with them.
fn remove_below(at: &Path) -> io::Result<()> {
    let gone_is_fine = |result: io::Result<()>| match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    };
    match fs::read_dir(at) {
        Ok(entries) => {
            for entry in entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
                remove_below(&entry.path())?;
            }
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    }
    gone_is_fine(fs::remove_dir(at))
}
