//! `process_*`: what this process uses, read from `/proc/self` when somebody asks.

use std::sync::OnceLock;

use super::Snapshot;
use super::page::to_float;

/// Seconds since 1970 at which the process began.
static STARTED: OnceLock<Option<f64>> = OnceLock::new();

/// Remembers the start, which does not change.
pub(super) fn start() {
    STARTED.get_or_init(read_start);
}

/// Seconds since 1970 at which this process began.
pub(super) fn started() -> Option<f64> {
    *STARTED.get_or_init(read_start)
}

/// Seconds since 1970 at which the machine began.
pub(super) fn boot() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    text.lines().find_map(|l| l.strip_prefix("btime ")?.trim().parse().ok()).map(to_float)
}

pub(super) fn start_time() -> Option<Snapshot> {
    let started = started()?;
    let help = "[STABLE] Start time of the process since unix epoch in seconds.";
    Some(Snapshot::gauge("process_start_time_seconds", help).with(&[], started))
}

/// Those that this kernel tells of.
pub(super) fn gather() -> Vec<Snapshot> {
    let mut found: Vec<Snapshot> = start_time().into_iter().collect();
    let mut gauge = |name, help, value: Option<f64>| {
        found.extend(value.map(|value| Snapshot::gauge(name, help).with(&[], value)));
    };
    let stat = stat();
    let ticks = ticks_per_second();
    let field = |at: usize| stat.get(at).copied().map(to_float);
    gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.", field(20));
    gauge(
        "process_resident_memory_bytes",
        "Resident memory size in bytes.",
        field(21).map(|pages| pages * page_bytes()),
    );
    gauge(
        "process_virtual_memory_max_bytes",
        "Maximum amount of virtual memory available in bytes.",
        limit("Max address space"),
    );
    gauge("process_max_fds", "Maximum number of open file descriptors.", limit("Max open files"));
    let open = std::fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count().saturating_sub(1));
    gauge(
        "process_open_fds",
        "Number of open file descriptors.",
        open.and_then(|n| u64::try_from(n).ok()).map(to_float),
    );
    let mut counter = |name, help, value: Option<f64>| {
        found.extend(value.map(|value| Snapshot::counter(name, help).with(&[], value)));
    };
    let cpu = field(11).zip(field(12)).map(|(user, system)| (user + system) / ticks);
    counter("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", cpu);
    let (received, sent) = network().unzip();
    counter(
        "process_network_receive_bytes_total",
        "Number of bytes received by the process over the network.",
        received,
    );
    counter("process_network_transmit_bytes_total", "Number of bytes sent by the process over the network.", sent);
    found
}

/// The numbers of `/proc/self/stat` from the third field on, without the state's letter.
fn stat() -> Vec<u64> {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name is in parentheses and may hold anything.
    let rest = text.rsplit_once(") ").map_or("", |(_, rest)| rest);
    rest.split_whitespace().map(|word| word.parse().unwrap_or(0)).collect()
}

fn read_start() -> Option<f64> {
    let ticks = stat().get(19).copied().map(to_float)? / ticks_per_second();
    Some(boot()? + ticks)
}

fn ticks_per_second() -> f64 {
    let found = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten();
    found.and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0).map_or(100.0, to_float)
}

fn page_bytes() -> f64 {
    let found = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    found.and_then(|n| u64::try_from(n).ok()).map_or(4096.0, to_float)
}

/// A soft limit of `/proc/self/limits`; unlimited is the largest number there is.
fn limit(name: &str) -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/limits").ok()?;
    let soft = text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?;
    match soft {
        "unlimited" => Some(to_float(u64::MAX)),
        number => number.parse().ok().map(to_float),
    }
}

/// Bytes received and sent in this network namespace.
fn network() -> Option<(f64, f64)> {
    let text = std::fs::read_to_string("/proc/self/net/netstat").ok()?;
    let mut lines = text.lines().filter_map(|l| l.strip_prefix("IpExt: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let get = |name: &str| {
        let found = names.split_whitespace().zip(values.split_whitespace()).find(|(n, _)| *n == name)?;
        found.1.parse().ok().map(to_float)
    };
    Some((get("InOctets")?, get("OutOctets")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_files_and_a_past() {
        let value = |name: &str| {
            let all = gather();
            let family = all.iter().find(|f| f.name == name).unwrap_or_else(|| panic!("{name} is there"));
            match family.samples[0].value {
                super::super::Value::Number(n) => n,
                super::super::Value::Histogram { .. } => panic!("a number"),
            }
        };
        assert!(value("process_resident_memory_bytes") > 1_000_000.0);
        assert!(value("process_open_fds") >= 3.0);
        let now = to_float(proto::time::Timestamp::now().seconds.unsigned_abs());
        // The time of boot is known to the second.
        assert!((-2.0..3_000_000.0).contains(&(now - value("process_start_time_seconds"))));
    }
}
