//! All that a cgroup's files say, for `/metrics/cadvisor` alone: read when that page is asked for.

use std::collections::HashMap;
use std::io::Read as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::cgroup::{Cgroup, NO_LIMIT, Psi, psi};
use super::files::{Folder, Kept, Table, text};

/// One reading. What a kernel does not tell is `None`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Detail {
    pub cpu_nanos: Option<u64>,
    pub user_nanos: Option<u64>,
    pub system_nanos: Option<u64>,
    pub periods: Option<u64>,
    pub throttled_periods: Option<u64>,
    pub throttled_nanos: Option<u64>,
    pub burst_periods: Option<u64>,
    pub burst_nanos: Option<u64>,
    pub usage: Option<u64>,
    pub peak: Option<u64>,
    pub working_set: Option<u64>,
    pub rss: Option<u64>,
    pub cache: Option<u64>,
    pub mapped: Option<u64>,
    pub kernel: Option<u64>,
    pub swap: Option<u64>,
    pub active_file: Option<u64>,
    pub inactive_file: Option<u64>,
    pub failures: Option<u64>,
    /// Minor and major page faults: of the cgroup alone, and with all below.
    pub faults: [Option<u64>; 2],
    pub faults_below: [Option<u64>; 2],
    pub oom_kills: Option<u64>,
    pub processes: Option<u64>,
    pub threads: Option<u64>,
    /// Zero where there is no limit.
    pub threads_max: Option<u64>,
    pub cpu_psi: Option<Psi>,
    pub memory_psi: Option<Psi>,
    pub io_psi: Option<Psi>,
    /// Major and minor number; bytes read and written; operations.
    pub devices: Vec<Device>,
    pub cpu_period: Option<u64>,
    pub cpu_quota: Option<u64>,
    pub cpu_shares: Option<u64>,
    pub memory_limit: Option<u64>,
    pub memory_reservation: Option<u64>,
    pub swap_limit: Option<u64>,
    /// Numbers of the processes in it.
    pub pids: Vec<u32>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    pub major: u32,
    pub minor: u32,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub reads: u64,
    pub writes: u64,
}

impl Cgroup {
    pub fn detail(&self) -> Detail {
        let mut detail = match self.unified_path() {
            Some(path) => unified(path, &mut self.files()),
            None => self.detail_v1(&mut self.files()),
        };
        if self.is_root() {
            complete_root(&mut detail, Path::new("/proc"));
        }
        detail
    }

    fn detail_v1(&self, files: &mut Kept) -> Detail {
        let folder = |controller: &str| self.v1_path(controller).map(Folder::at);
        let (in_memory, in_cpu, in_cpuacct) = (folder("memory"), folder("cpu"), folder("cpuacct"));
        let (in_pids, in_blkio) = (folder("pids"), folder("blkio"));
        let read = |folder: &Option<Folder<'_>>, name| folder.as_ref().map(|f| f.table(name)).unwrap_or_default();
        let (cpu, usage) = (read(&in_cpu, "cpu.stat"), read(&in_cpuacct, "cpuacct.stat"));
        let memory = |files: &mut Kept, wanted| match &in_memory {
            Some(folder) => files.fields(folder, "memory.stat", wanted),
            None => [None; 10],
        };
        let [unused, in_use, rss, cache, mapped, swap, faults @ ..] = memory(
            files,
            [
                "total_inactive_file",
                "total_active_file",
                "total_rss",
                "total_cache",
                "total_mapped_file",
                "total_swap",
                "pgfault",
                "pgmajfault",
                "total_pgfault",
                "total_pgmajfault",
            ],
        );
        let mut file = |folder: &Option<Folder<'_>>, name| files.number(folder.as_ref()?, name);
        let ticks = |key: &str| usage.get(key).map(|t| t.saturating_mul(10_000_000));
        let used = file(&in_memory, "memory.usage_in_bytes");
        let limit = |limit: Option<u64>| limit.filter(|l| *l < NO_LIMIT);
        let pids = in_pids.as_ref().or(in_memory.as_ref()).and_then(processes);
        // The kernel counts periods of a quota, and zeros without one.
        let cpu_quota = file(&in_cpu, "cpu.cfs_quota_us");
        let limited = |key: &str| cpu_quota.and(cpu.get(key));
        let threads = file(&in_pids, "pids.current");
        Detail {
            cpu_nanos: file(&in_cpuacct, "cpuacct.usage"),
            user_nanos: ticks("user"),
            system_nanos: ticks("system"),
            periods: limited("nr_periods"),
            throttled_periods: limited("nr_throttled"),
            throttled_nanos: limited("throttled_time"),
            burst_periods: limited("nr_bursts"),
            burst_nanos: limited("burst_time"),
            usage: used,
            peak: file(&in_memory, "memory.max_usage_in_bytes"),
            working_set: used.map(|u| u.saturating_sub(unused.unwrap_or(0))),
            rss,
            cache,
            mapped,
            kernel: file(&in_memory, "memory.kmem.usage_in_bytes"),
            swap,
            active_file: in_use,
            inactive_file: unused,
            failures: file(&in_memory, "memory.failcnt"),
            faults: [faults[0], faults[1]],
            faults_below: [faults[2], faults[3]],
            oom_kills: read(&in_memory, "memory.oom_control").get("oom_kill"),
            processes: count(pids.as_deref()),
            threads,
            threads_max: file(&in_pids, "pids.max").or(threads.and(Some(0))),
            cpu_period: file(&in_cpu, "cpu.cfs_period_us"),
            cpu_quota,
            cpu_shares: file(&in_cpu, "cpu.shares"),
            memory_limit: limit(file(&in_memory, "memory.limit_in_bytes")),
            memory_reservation: limit(file(&in_memory, "memory.soft_limit_in_bytes")),
            swap_limit: limit(file(&in_memory, "memory.memsw.limit_in_bytes")),
            devices: devices_v1(in_blkio.as_ref()),
            pids: pids.unwrap_or_default(),
            ..Detail::default()
        }
    }
}

/// The root has no limits, and on cgroup v2 no files of memory, swap and threads: the host's own say the same.
fn complete_root(detail: &mut Detail, proc: &Path) {
    let host = Table::read(&proc.join("meminfo"));
    let kib = |key: &str| host.get(key).map(|kib| kib.saturating_mul(1024));
    let less = |whole: &str, part: &str| Some(kib(whole)?.saturating_sub(kib(part)?));
    if detail.usage.is_none() {
        detail.usage = less("MemTotal", "MemFree");
        detail.working_set = detail.usage.map(|used| used.saturating_sub(detail.inactive_file.unwrap_or(0)));
    }
    detail.peak = detail.peak.or_else(|| detail.usage.map(|used| ROOT_PEAK.fetch_max(used, Relaxed).max(used)));
    detail.swap = detail.swap.or_else(|| less("SwapTotal", "SwapFree"));
    detail.memory_limit = kib("MemTotal");
    detail.swap_limit = kib("SwapTotal");
    // Nothing can hit a limit that is not there.
    detail.failures = detail.failures.or(Some(0));
    detail.oom_kills = detail.oom_kills.or_else(|| Table::read(&proc.join("vmstat")).get("oom_kill"));
    detail.threads = detail.threads.or_else(|| {
        // The fourth word of the load is `RUNNABLE/ALL`.
        text(&proc.join("loadavg"))?.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
    });
    // No limit is written as zero, no weight too.
    detail.threads_max = detail.threads_max.or(Some(0));
    detail.cpu_period = detail.cpu_period.or(Some(0));
    detail.cpu_shares = detail.cpu_shares.or(Some(0));
}

/// The most that was seen in use, where the kernel keeps no record of it.
static ROOT_PEAK: AtomicU64 = AtomicU64::new(0);

/// How many processes there are; `None` where the kernel does not list them.
fn count(pids: Option<&[u32]>) -> Option<u64> {
    u64::try_from(pids?.len()).ok()
}

fn unified(path: &Path, files: &mut Kept) -> Detail {
    let folder = &Folder::at(path);
    let wanted = ["inactive_file", "active_file", "anon", "file", "file_mapped", "kernel", "pgfault", "pgmajfault"];
    let [unused, in_use, rss, cache, mapped, kernel, faults @ ..] = files.fields(folder, "memory.stat", wanted);
    let wanted = [
        "nr_periods",
        "nr_throttled",
        "nr_bursts",
        "usage_usec",
        "user_usec",
        "system_usec",
        "throttled_usec",
        "burst_usec",
    ];
    let [periods, throttled_periods, burst_periods, times @ ..] = files.fields(folder, "cpu.stat", wanted);
    let [usage, user, system, throttled, burst] = times.map(|micros| Some(micros?.saturating_mul(1000)));
    let mut file = |name| files.number(folder, name);
    let events = folder.table("memory.events");
    let quota = folder.text("cpu.max").unwrap_or_default();
    let mut quota = quota.split_whitespace().map(|word| word.parse::<u64>().ok());
    let (cpu_quota, cpu_period) = (quota.next().flatten(), quota.next().flatten());
    let used = file("memory.current");
    let pids = processes(folder);
    // Periods are counted where there is a quota alone.
    let limited = |count: Option<u64>| cpu_quota.and(count);
    let threads = file("pids.current");
    Detail {
        cpu_nanos: usage,
        user_nanos: user,
        system_nanos: system,
        periods: limited(periods),
        throttled_periods: limited(throttled_periods),
        throttled_nanos: limited(throttled),
        burst_periods: limited(burst_periods),
        burst_nanos: limited(burst),
        usage: used,
        peak: file("memory.peak"),
        working_set: used.map(|u| u.saturating_sub(unused.unwrap_or(0))),
        rss,
        cache,
        mapped,
        kernel,
        swap: file("memory.swap.current"),
        active_file: in_use,
        inactive_file: unused,
        failures: events.get("max"),
        faults,
        faults_below: faults,
        oom_kills: events.get("oom_kill"),
        processes: count(pids.as_deref()),
        threads,
        threads_max: file("pids.max").or(threads.and(Some(0))),
        cpu_psi: psi(folder, "cpu.pressure"),
        memory_psi: psi(folder, "memory.pressure"),
        io_psi: psi(folder, "io.pressure"),
        devices: devices(&folder.text("io.stat").unwrap_or_default()),
        cpu_period,
        cpu_quota,
        cpu_shares: file("cpu.weight").map(shares),
        memory_limit: file("memory.max"),
        memory_reservation: file("memory.low").filter(|low| *low > 0),
        swap_limit: file("memory.swap.max"),
        pids: pids.unwrap_or_default(),
    }
}

/// A weight of cgroup v2 as the shares that the kubelet makes it from.
fn shares(weight: u64) -> u64 {
    2 + weight.saturating_sub(1).saturating_mul(262_142) / 9999
}

fn processes(folder: &Folder<'_>) -> Option<Vec<u32>> {
    // More than one record, of which a short read says nothing.
    let mut text = String::new();
    folder.open("cgroup.procs").ok()?.read_to_string(&mut text).ok()?;
    Some(text.lines().filter_map(|line| line.trim().parse().ok()).collect())
}

/// `MAJOR:MINOR rbytes=1 wbytes=2 rios=3 wios=4 ...`
fn devices(text: &str) -> Vec<Device> {
    let device = |line: &str| {
        let (numbers, rest) = line.split_once(' ')?;
        let (major, minor) = numbers.split_once(':')?;
        let values: HashMap<&str, u64> = rest
            .split_whitespace()
            .filter_map(|w| w.split_once('='))
            .filter_map(|(k, v)| Some((k, v.parse().ok()?)))
            .collect();
        let get = |key: &str| values.get(key).copied().unwrap_or(0);
        Some(Device {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
            read_bytes: get("rbytes"),
            written_bytes: get("wbytes"),
            reads: get("rios"),
            writes: get("wios"),
        })
    };
    text.lines().filter_map(device).collect()
}

/// `MAJOR:MINOR Read 1`, one line for each direction, in one file for bytes and one for operations.
fn devices_v1(folder: Option<&Folder<'_>>) -> Vec<Device> {
    let Some(folder) = folder else { return Vec::new() };
    let mut found: HashMap<(u32, u32), Device> = HashMap::new();
    for (file, is_bytes) in
        [("blkio.throttle.io_service_bytes_recursive", true), ("blkio.throttle.io_serviced_recursive", false)]
    {
        let text = folder.text(file).unwrap_or_default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let (Some(numbers), Some(direction), Some(value)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            let Some((major, minor)) = numbers.split_once(':') else { continue };
            let (Ok(major), Ok(minor), Ok(value)) = (major.parse(), minor.parse(), value.parse::<u64>()) else {
                continue;
            };
            let device = found.entry((major, minor)).or_insert_with(|| Device { major, minor, ..Device::default() });
            match (direction, is_bytes) {
                ("Read", true) => device.read_bytes = value,
                ("Write", true) => device.written_bytes = value,
                ("Read", false) => device.reads = value,
                ("Write", false) => device.writes = value,
                _ => {}
            }
        }
    }
    let mut found: Vec<Device> = found.into_values().collect();
    found.sort_by_key(|d| (d.major, d.minor));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_with_their_numbers() {
        let text = "254:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\nrubbish\n254:16 rbytes=5\n";
        let first = Device { major: 254, minor: 0, read_bytes: 10, written_bytes: 20, reads: 1, writes: 2 };
        let second = Device { major: 254, minor: 16, read_bytes: 5, ..Device::default() };
        assert_eq!(devices(text), [first, second]);
    }

    /// The root of cgroup v2 used to have almost no figures of memory and none of threads.
    #[test]
    fn the_root_has_the_figures_of_the_host() {
        let dir = std::env::temp_dir().join(format!("node-agent-root-{}", crate::backoff::random_below(u32::MAX)));
        let (root, proc) = (dir.join("cgroup"), dir.join("proc"));
        for (folder, name, content) in [
            (&root, "cpu.stat", "usage_usec 5\nuser_usec 3\n"),
            (&root, "memory.stat", "anon 100\ninactive_file 1024\n"),
            (&root, "cgroup.procs", "1\n2\n"),
            (&proc, "meminfo", "MemTotal: 10 kB\nMemFree: 4 kB\nSwapTotal: 8 kB\nSwapFree: 5 kB\n"),
            (&proc, "vmstat", "oom_kill 3\n"),
            (&proc, "loadavg", "0.10 0.20 0.30 2/345 999\n"),
        ] {
            std::fs::create_dir_all(folder).unwrap();
            std::fs::write(folder.join(name), content).unwrap();
        }
        let mut found = unified(&root, &mut Kept::default());
        assert_eq!((found.usage, found.threads), (None, None));
        complete_root(&mut found, &proc);
        assert_eq!((found.usage, found.working_set, found.swap), (Some(6144), Some(5120), Some(3072)));
        assert_eq!((found.memory_limit, found.swap_limit, found.peak), (Some(10240), Some(8192), Some(6144)));
        assert_eq!((found.failures, found.oom_kills, found.threads), (Some(0), Some(3), Some(345)));
        assert_eq!((found.threads_max, found.cpu_period, found.cpu_shares), (Some(0), Some(0), Some(0)));
        assert_eq!((found.processes, found.rss), (Some(2), Some(100)));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn periods_show_where_there_is_a_quota_alone() {
        let dir = std::env::temp_dir().join(format!("node-agent-detail-{}", crate::backoff::random_below(u32::MAX)));
        std::fs::create_dir_all(&dir).unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).unwrap();
        write("cpu.stat", "usage_usec 5\nuser_usec 3\nsystem_usec 2\nnr_periods 7\nthrottled_usec 4\n");
        write("cpu.max", "max 100000\n");
        write("cgroup.procs", "1\n2\n");
        write("pids.current", "3\n");
        write("pids.max", "max\n");
        let without = unified(&dir, &mut Kept::default());
        assert_eq!((without.periods, without.cpu_period, without.cpu_quota), (None, Some(100_000), None));
        assert_eq!((without.user_nanos, without.processes, without.usage), (Some(3000), Some(2), None));
        assert_eq!((without.threads, without.threads_max), (Some(3), Some(0)), "no limit shows as zero");
        write("cpu.max", "20000 100000\n");
        let with = unified(&dir, &mut Kept::default());
        assert_eq!((with.periods, with.throttled_nanos, with.cpu_quota), (Some(7), Some(4000), Some(20_000)));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
