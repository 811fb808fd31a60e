//! The cgroup v2 file system: making, limiting and removing cgroups.
//!
//! A controller works in a cgroup only when every ancestor hands it down (`cgroup.subtree_control`), so making one
//! walks from the top. Removing one ends what still runs in it. Everything here blocks for as long as the kernel does.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

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
                // The controller is not built in, or a page size has gone. Here a file that is not there may not be made,
                // and that is all that the kernel says of it.
                Err(e) if e.kind() == io::ErrorKind::NotFound || at.is_dir() && !path.exists() => Ok(()),
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
        // Kernels before 5.14 have no such file.
        let all_at_once = at.join("cgroup.kill");
        let one_by_one = !all_at_once.exists();
        if !one_by_one
            && let Err(e) = fs::write(all_at_once, "1")
            && at.is_dir()
        {
            return Err(refused("cannot end the processes of", &at)(e));
        }
        // Killed processes leave a moment later; the kernel tells of it by a changed `cgroup.events`, which is not worth
        // a watch for the few milliseconds that this takes.
        let limit = Instant::now() + END_OF_PROCESSES;
        loop {
            if one_by_one {
                kill_below(&at);
            }
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

/// Ends the processes of a cgroup and of all below it. What they begin meanwhile is there the next time.
fn kill_below(at: &Path) {
    let processes = fs::read_to_string(at.join("cgroup.procs")).unwrap_or_default();
    // Zero stands for one that is not in our namespace; to the kernel it is all of our own group.
    for process in processes.lines().filter_map(|line| line.trim().parse().ok()).filter(|process: &i32| *process > 0) {
        // Which has ended already, if it cannot be.
        let _ = kill(Pid::from_raw(process), Signal::SIGKILL);
    }
    let Ok(entries) = fs::read_dir(at) else { return };
    for entry in entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
        kill_below(&entry.path());
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Without the file that ends all at once nothing was ended, and the pod was there for ever.
    #[test]
    fn processes_are_ended_one_by_one_where_the_kernel_knows_no_better() {
        use std::os::unix::process::ExitStatusExt as _;
        let root = std::env::temp_dir().join(format!("node-agent-kill-{}", crate::backoff::random_below(u32::MAX)));
        fs::create_dir_all(root.join("pod/container")).expect("folders");
        let mut processes = ["pod", "pod/container"].map(|cgroup| {
            let process = std::process::Command::new("sleep").arg("100").spawn().expect("sleeps");
            // The first of them is somewhere else, and nobody is to guess where.
            fs::write(root.join(cgroup).join("cgroup.procs"), format!("0\n{}\n", process.id())).expect("writes");
            process
        });
        let tree = Tree::new(&root);
        assert!(tree.remove(Path::new("pod")).is_err(), "a plain folder with files is not removed as a cgroup is");
        let ends = processes.each_mut().map(|process| process.wait().expect("ends").signal());
        assert_eq!(ends, [Some(nix::libc::SIGKILL); 2]);
        assert!(tree.remove(Path::new("none")).is_ok());
        fs::remove_dir_all(root).expect("removes");
    }

    /// Asked to write where there is no file, this kind of file system says that it may not be made.
    #[test]
    fn what_the_kernel_has_no_file_for_is_passed_over() {
        let limits = Limits { pids: Some(1), huge_pages: vec![("2MB".into(), 0)], ..Limits::default() };
        let tree = Tree::new("/sys");
        assert!(tree.limit(Path::new("kernel"), &limits).is_ok());
    }
}
