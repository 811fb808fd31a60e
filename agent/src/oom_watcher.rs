//! Tells of processes that the kernel killed because the whole machine was out of memory.
//!
//! The kernel's log is read from now on. Kills within a cgroup of its own limit are not told: they show in the status of
//! the container.
//!
//! Followed: `pkg/kubelet/oom`.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;

use tokio::io::unix::AsyncFd;

use crate::node::NodeEvents;

const PATH: &str = "/dev/kmsg";
/// A record of the kernel's log is never longer.
const RECORD: usize = 8192;

/// Watches until dropped. Returns where the log cannot be read.
pub async fn run(events: NodeEvents) {
    let log = match open() {
        Ok(log) => log,
        Err(error) => {
            tracing::info!(%error, "the kernel's log cannot be read; not telling of its out-of-memory kills");
            return;
        }
    };
    let mut record = vec![0; RECORD];
    loop {
        let Ok(mut ready) = log.readable().await else { return };
        match (&mut log.get_ref()).read(&mut record) {
            Ok(length) => {
                let text = String::from_utf8_lossy(record.get(..length).unwrap_or_default());
                if let Some((name, pid)) = victim(&text) {
                    let message = format!("System OOM encountered, victim process: {name}, pid: {pid}");
                    events("Warning", "SystemOOM", message);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => ready.clear_ready(),
            // Records were overwritten before they were read; the next one is there.
            Err(error) if error.kind() == ErrorKind::BrokenPipe || error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                tracing::warn!(%error, "the kernel's log cannot be read any more");
                return;
            }
        }
    }
}

fn open() -> std::io::Result<AsyncFd<File>> {
    let mut file = std::fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(PATH)?;
    file.seek(SeekFrom::End(0))?;
    #[expect(deprecated, reason = "the replacement is not in every release that the lock file may hold")]
    AsyncFd::with_interest(file, tokio::io::Interest::READABLE)
}

/// Name and number of the process in the summary of a kill for want of memory anywhere:
/// `...;oom-kill:constraint=CONSTRAINT_NONE,...,global_oom,task_memcg=/a,task=NAME,pid=1,uid=0`.
fn victim(record: &str) -> Option<(&str, u32)> {
    let summary = record.split_once("oom-kill:constraint=")?.1.lines().next()?;
    let whole = summary.contains(",global_oom,") || summary.contains(",oom_memcg=/,");
    // The name may hold commas: what follows it is looked for from the end.
    let (rest, pid) = summary.rsplit_once(",uid=")?.0.rsplit_once(",pid=")?;
    let name = rest.split_once(",task=")?.1;
    whole.then_some((name, pid.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_for_the_whole_machine_are_told_and_those_of_a_cgroup_are_not() {
        let line = "3,1234,99,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,\
                    global_oom,task_memcg=/user.slice,task=stress,1,pid=4711,uid=0\n";
        assert_eq!(victim(line), Some(("stress,1", 4711)));
        let limited = "6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c,mems_allowed=0,\
                       oom_memcg=/kubepods/pod1,task_memcg=/kubepods/pod1/c,task=sh,pid=5,uid=0\n";
        assert_eq!(victim(limited), None);
        assert_eq!(victim("6,1,2,-;usb 1-1: new device\n"), None);
        assert_eq!(victim("oom-kill:constraint=CONSTRAINT_NONE,global_oom,task=x"), None);
    }
}
