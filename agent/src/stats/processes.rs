//! What the processes of a cgroup have open, and what they do: a look into `/proc` for each of them.
//!
//! Threads of the kernel have nothing open, and are most of what is in the root: they cost one file each. Of the others
//! each descriptor costs one call on the folder that is open already, for the way to it costs more than the look.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::files::text;

/// A flag of threads of the kernel (`PF_KTHREAD`).
const OF_KERNEL: u64 = 0x0020_0000;
/// Names of [`Processes::states`].
pub const STATES: [&str; 5] = ["sleeping", "running", "stopped", "uninterruptible", "iowaiting"];

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Processes {
    /// Open files and how many of them are sockets; `None` where nothing may be looked into.
    pub open: Option<(u32, u32)>,
    /// By the order of [`STATES`].
    pub states: [u32; 5],
    /// The soft limit of open files of the first; -1 for none.
    pub limit: Option<i64>,
}

impl Processes {
    /// Looks at processes by their numbers, below `proc`.
    pub fn look(pids: &[u32], proc: &Path) -> Self {
        let mut found = Processes { open: pids.is_empty().then_some((0, 0)), ..Processes::default() };
        for pid in pids {
            let folder = proc.join(pid.to_string());
            // One that is gone has nothing any more.
            let Some((state, flags)) = text(&folder.join("stat")).as_deref().and_then(state) else { continue };
            match state {
                'S' | 'I' => found.states[0] += 1,
                'R' => found.states[1] += 1,
                'T' | 't' => found.states[2] += 1,
                'D' => found.states[3] += 1,
                _ => {}
            }
            let open = if flags & OF_KERNEL == 0 { descriptors(&folder) } else { Some((0, 0)) };
            if let Some((files, sockets)) = open {
                let sum = found.open.get_or_insert((0, 0));
                *sum = (sum.0 + files, sum.1 + sockets);
            }
        }
        found.limit = pids.first().and_then(|pid| limit(&proc.join(pid.to_string())));
        found
    }
}

/// The letter of the state, and the flags.
fn state(stat: &str) -> Option<(char, u64)> {
    // The name is in parentheses and may hold anything.
    let mut words = stat.rsplit_once(") ")?.1.split(' ');
    let state = words.next()?.chars().next()?;
    Some((state, words.nth(5)?.parse().ok()?))
}

/// How many descriptors there are, and how many of them are sockets.
fn descriptors(folder: &Path) -> Option<(u32, u32)> {
    let path: PathBuf = folder.join("fd");
    let (entries, folder) = (std::fs::read_dir(&path).ok()?, File::open(&path).ok()?);
    let (mut files, mut sockets) = (0, 0);
    for entry in entries.flatten() {
        files += 1;
        let leads: Result<_, _> = nix::fcntl::readlinkat(&folder, entry.file_name().as_os_str());
        sockets += u32::from(leads.is_ok_and(|to| is_socket(&to)));
    }
    Some((files, sockets))
}

fn is_socket(to: &OsStr) -> bool {
    to.as_bytes().starts_with(b"socket:")
}

fn limit(folder: &Path) -> Option<i64> {
    let text = text(&folder.join("limits"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(-1),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every process of the root used to be looked into, the kernel's too.
    #[test]
    fn what_is_of_the_kernel_is_not_looked_into() {
        let proc = std::env::temp_dir().join(format!("node-agent-proc-{}", crate::backoff::random_below(u32::MAX)));
        for (pid, state, flags) in [(1, 'S', 4_194_560_u64), (2, 'I', 69_238_880), (3, 'R', 4_194_304)] {
            let folder = proc.join(pid.to_string());
            std::fs::create_dir_all(folder.join("fd")).unwrap();
            let stat = format!("{pid} (a ) b) {state} 0 0 0 0 -1 {flags} 0 0 0 0\n");
            std::fs::write(folder.join("stat"), stat).unwrap();
            std::fs::write(folder.join("limits"), "Limit  Soft  Hard  Units\nMax open files   1024   4096   files\n")
                .unwrap();
            for (name, to) in [("0", "/dev/null"), ("1", "socket:[7]")] {
                std::os::unix::fs::symlink(to, folder.join("fd").join(name)).unwrap();
            }
        }
        let found = Processes::look(&[1, 2, 3, 99], &proc);
        assert_eq!(found, Processes { open: Some((4, 2)), states: [2, 1, 0, 0, 0], limit: Some(1024) });
        assert_eq!(Processes::look(&[99], &proc).open, None, "it is gone");
        assert_eq!(Processes::look(&[], &proc).open, Some((0, 0)));
        std::fs::remove_dir_all(&proc).unwrap();
        let own = Processes::look(&[std::process::id()], Path::new("/proc"));
        assert!(own.open.is_some_and(|(files, _)| files >= 3) && own.limit.is_some());
    }
}
