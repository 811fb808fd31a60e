//! What a process costs, by its files in /proc.

use std::time::Duration;

use anyhow::{Context, Result};

/// CPU time that the process has used so far, in steps of 10 ms: what a piece of work costs, however busy the machine is.
///
/// # Errors
/// When the process is gone.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // Fields 14 and 15, user and system time; the second field is a name in brackets. A tick is 10 ms on Linux.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    let ticks: u64 = fields.map(|f| f.parse().unwrap_or(0_u64)).sum();
    Ok(Duration::from_millis(ticks * 10))
}

/// Time that the threads of a process ran so far, in nanoseconds: what ten minutes of idling take would be lost in the
/// ticks of [`cpu_time`]. Threads that ended are not in it.
///
/// # Errors
/// When the process is gone.
pub fn run_time(pid: u32) -> Result<Duration> {
    let mut nanos = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        nanos += text.split_whitespace().next().context("run time")?.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanos))
}

fn memory_mib(pid: u32, file: &str, field: &str) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/{file}"))?;
    let line = text.lines().find(|l| l.starts_with(field)).with_context(|| field.to_owned())?;
    let kib: f64 = line.split_whitespace().nth(1).with_context(|| field.to_owned())?.parse()?;
    Ok(kib / 1024.0)
}

/// # Errors
/// When the process is gone.
pub fn resident_mib(pid: u32) -> Result<f64> {
    memory_mib(pid, "status", "VmRSS:")
}

/// Anonymous memory: what is the process's own, without pages of files.
///
/// # Errors
/// When the process is gone.
pub fn own_mib(pid: u32) -> Result<f64> {
    memory_mib(pid, "status", "RssAnon:")
}

/// Prints the memory of a process and the CPU it takes while nobody asks anything of it.
///
/// # Errors
/// When the process is gone.
pub fn idle(what: &str, pid: u32, time: Duration) -> Result<()> {
    let before = run_time(pid)?;
    std::thread::sleep(time);
    let used = run_time(pid)?.saturating_sub(before);
    println!(
        "{what:<44} {:>9.3} % of a core over {} s  RSS {:.1} MiB  own {:.1} MiB  PSS {:.1} MiB",
        used.as_secs_f64() * 100.0 / time.as_secs_f64(),
        time.as_secs(),
        resident_mib(pid)?,
        own_mib(pid)?,
        memory_mib(pid, "smaps_rollup", "Pss:")?
    );
    Ok(())
}
