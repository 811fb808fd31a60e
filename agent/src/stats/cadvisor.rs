//! `/metrics/cadvisor`: everything that the cgroups of node, pods and containers say, and what the machine is.
//!
//! Names, labels and help are cAdvisor's. A family has samples only where the kernel has the figure: none of them is
//! zero because nobody knows it, but for the load averages, health checks and NVM, which are never anything else in a
//! kubelet either.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::cgroup::{Cgroup, Psi};
use super::detail::{Detail, Device};
use super::processes::{self, Processes};
use super::{PodFound, network};
use crate::metrics::page::to_float;
use crate::metrics::{Kind, Labels, Sample, Snapshot, Value};
use crate::node::Machine;

/// Sectors of the kernel's disk statistics are this long whatever the disk's are.
const MILLIS: f64 = 1000.0;

/// Name and help of what tells that something could not be read.
pub const SCRAPE_ERROR: (&str, &str) =
    ("container_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise");

/// One thing with a cgroup.
struct Subject<'a> {
    container: &'a str,
    id: String,
    image: &'a str,
    name: &'a str,
    namespace: &'a str,
    pod: &'a str,
    started_nanos: i64,
    cgroup: Cgroup,
    /// Those that all its samples have, made once.
    plain: OnceCell<Labels>,
    /// Its own view of the network, for sandboxes and the node.
    network_of: Option<String>,
}

/// Collects samples by family.
struct Page {
    families: BTreeMap<&'static str, Snapshot>,
    now: i64,
    /// Something that is there could not be read.
    failed: bool,
}

impl Page {
    fn add(&mut self, kind: Kind, name: &'static str, help: &str, labels: Labels, value: Option<f64>, timed: bool) {
        let Some(value) = value else { return };
        let family = self.families.entry(name).or_insert_with(|| Snapshot {
            name: name.into(),
            help: help.to_owned(),
            kind,
            samples: Vec::new(),
        });
        let time = timed.then_some(self.now);
        family.samples.push(Sample { labels, value: Value::Number(value), time, created: None });
    }
}

/// The families for the pods found. `now` is in milliseconds since 1970.
pub(super) fn collect(pods: &BTreeMap<String, PodFound>, now: i64) -> Vec<Snapshot> {
    let mut page = Page { families: BTreeMap::new(), now, failed: false };
    let mut subjects = subjects(pods);
    // Families come out in the order of their labels then, or nearly so, and there is nothing left to sort.
    subjects.sort_by(|a, b| a.plain().cmp(b.plain()));
    for subject in subjects {
        describe(&mut page, &subject);
    }
    disks(&mut page);
    machine(&mut page);
    let failed = if page.failed { 1.0 } else { 0.0 };
    page.add(Kind::Gauge, SCRAPE_ERROR.0, SCRAPE_ERROR.1, Labels::default(), Some(failed), false);
    let mut families: Vec<Snapshot> = page.families.into_values().collect();
    for family in &mut families {
        family.samples.sort_by(|a, b| a.labels.cmp(&b.labels));
    }
    families
}

fn subjects(pods: &BTreeMap<String, PodFound>) -> Vec<Subject<'_>> {
    let root = Subject {
        container: "",
        id: "/".into(),
        image: "",
        name: "",
        namespace: "",
        pod: "",
        started_nanos: super::summary::boot_nanos(),
        cgroup: Cgroup::root(),
        plain: OnceCell::new(),
        network_of: Some("self".into()),
    };
    let mut found = vec![root];
    let mut tiers: BTreeMap<String, Cgroup> = BTreeMap::new();
    for pod in pods.values() {
        if let Some(sandbox) = &pod.sandbox {
            let cgroup = sandbox.cgroup.clone();
            found.push(Subject {
                container: "",
                id: cgroup.id(),
                image: &sandbox.image,
                name: &sandbox.id,
                namespace: &pod.namespace,
                pod: &pod.name,
                started_nanos: sandbox.started_at,
                plain: OnceCell::new(),
                network_of: Some(sandbox.pid.to_string()),
                cgroup,
            });
            if let Some(around) = sandbox.around.clone() {
                let mut tier = around.parent();
                found.push(Subject {
                    container: "",
                    id: around.id(),
                    image: "",
                    name: "",
                    namespace: &pod.namespace,
                    pod: &pod.name,
                    started_nanos: pod.created_at,
                    plain: OnceCell::new(),
                    network_of: None,
                    cgroup: around,
                });
                while let Some(up) = tier.filter(|t| t.id().contains("kubepods")) {
                    tier = up.parent();
                    tiers.entry(up.id()).or_insert(up);
                }
            }
        }
        for (name, container) in &pod.containers {
            found.push(Subject {
                container: name,
                id: container.cgroup.id(),
                image: &container.image,
                name: &container.id,
                namespace: &pod.namespace,
                pod: &pod.name,
                started_nanos: container.started_at,
                plain: OnceCell::new(),
                network_of: None,
                cgroup: container.cgroup.clone(),
            });
        }
    }
    found.extend(tiers.into_iter().map(|(id, cgroup)| Subject {
        container: "",
        id,
        image: "",
        name: "",
        namespace: "",
        pod: "",
        started_nanos: 0,
        plain: OnceCell::new(),
        network_of: None,
        cgroup,
    }));
    found
}

impl Subject<'_> {
    /// Its labels with some more, all in order.
    fn labels(&self, more: &[(&'static str, &str)]) -> Labels {
        if more.is_empty() { self.plain().clone() } else { self.made(more) }
    }

    fn plain(&self) -> &Labels {
        self.plain.get_or_init(|| self.made(&[]))
    }

    fn made(&self, more: &[(&'static str, &str)]) -> Labels {
        let mut labels: Vec<(&'static str, String)> = vec![
            ("container", self.container.to_owned()),
            ("id", self.id.clone()),
            ("image", self.image.to_owned()),
            ("name", self.name.to_owned()),
            ("namespace", self.namespace.to_owned()),
            ("pod", self.pod.to_owned()),
        ];
        labels.extend(more.iter().map(|(name, value)| (*name, (*value).to_owned())));
        labels.sort_by_key(|(name, _)| *name);
        labels.into()
    }
}

fn describe(page: &mut Page, subject: &Subject<'_>) {
    let detail = subject.cgroup.detail();
    page.failed |= detail.cpu_nanos.is_none() && detail.usage.is_none() && subject.cgroup.exists();
    let plain = || subject.labels(&[]);
    let seconds = |nanos: Option<u64>| nanos.map(|n| to_float(n) / 1e9);
    let number = |value: Option<u64>| value.map(to_float);
    page.add(
        Kind::Gauge,
        "container_last_seen",
        "Last time a container was seen by the exporter",
        plain(),
        Some(to_float(page.now.unsigned_abs() / 1000)),
        true,
    );
    let started = (subject.started_nanos > 0).then(|| to_float(subject.started_nanos.unsigned_abs()) / 1e9);
    page.add(
        Kind::Gauge,
        "container_start_time_seconds",
        "Start time of the container since unix epoch in seconds.",
        plain(),
        started.map(f64::floor),
        false,
    );
    page.add(
        Kind::Counter,
        "container_cpu_usage_seconds_total",
        "Cumulative cpu time consumed in seconds.",
        subject.labels(&[("cpu", "total")]),
        seconds(detail.cpu_nanos),
        true,
    );
    for (name, help, value) in [
        (
            "container_cpu_user_seconds_total",
            "Cumulative user cpu time consumed in seconds.",
            seconds(detail.user_nanos),
        ),
        (
            "container_cpu_system_seconds_total",
            "Cumulative system cpu time consumed in seconds.",
            seconds(detail.system_nanos),
        ),
        ("container_cpu_cfs_periods_total", "Number of elapsed enforcement period intervals.", number(detail.periods)),
        (
            "container_cpu_cfs_throttled_periods_total",
            "Number of throttled period intervals.",
            number(detail.throttled_periods),
        ),
        (
            "container_cpu_cfs_throttled_seconds_total",
            "Total time duration the container has been throttled.",
            seconds(detail.throttled_nanos),
        ),
        ("container_cpu_cfs_burst_periods_total", "Number of periods when burst occurs.", number(detail.burst_periods)),
        (
            "container_cpu_cfs_burst_seconds_total",
            "Total time duration the container has been bursted.",
            seconds(detail.burst_nanos),
        ),
        ("container_memory_failcnt", "Number of memory usage hits limits", number(detail.failures)),
        (
            "container_oom_events_total",
            "Count of out of memory events observed for the container",
            number(detail.oom_kills),
        ),
    ] {
        page.add(Kind::Counter, name, help, plain(), value, true);
    }
    // Without a check, which only Docker's containers have.
    let help = "The result of the container's health check";
    page.add(Kind::Gauge, "container_health_state", help, plain(), Some(0.0), true);
    // Nobody counts the tasks that wait: cAdvisor's own value is zero without its load reader, which kubelets do not have.
    for (name, help) in [
        ("container_cpu_load_average_10s", "Value of container cpu load average over the last 10 seconds."),
        ("container_cpu_load_d_average_10s", "Value of container cpu load.d average over the last 10 seconds."),
    ] {
        page.add(Kind::Gauge, name, help, plain(), Some(0.0), true);
    }
    for (name, help, value) in [
        (
            "container_memory_usage_bytes",
            "Current memory usage in bytes, including all memory regardless of when it was accessed",
            detail.usage,
        ),
        ("container_memory_max_usage_bytes", "Maximum memory usage recorded in bytes", detail.peak),
        ("container_memory_working_set_bytes", "Current working set in bytes.", detail.working_set),
        ("container_memory_rss", "Size of RSS in bytes.", detail.rss),
        ("container_memory_cache", "Number of bytes of page cache memory.", detail.cache),
        ("container_memory_mapped_file", "Size of memory mapped files in bytes.", detail.mapped),
        ("container_memory_kernel_usage", "Size of kernel memory allocated in bytes.", detail.kernel),
        ("container_memory_swap", "Container swap usage in bytes.", detail.swap),
        ("container_memory_total_active_file_bytes", "Current total active file in bytes.", detail.active_file),
        ("container_memory_total_inactive_file_bytes", "Current total inactive file in bytes.", detail.inactive_file),
        ("container_processes", "Number of processes running inside the container.", detail.processes),
        ("container_threads", "Number of threads running inside the container", detail.threads),
        (
            "container_threads_max",
            "Maximum number of threads allowed inside the container, infinity if value is zero",
            detail.threads_max,
        ),
    ] {
        page.add(Kind::Gauge, name, help, plain(), number(value), true);
    }
    for (scope, faults) in [("container", detail.faults), ("hierarchy", detail.faults_below)] {
        for (kind, value) in ["pgfault", "pgmajfault"].into_iter().zip(faults) {
            let labels = subject.labels(&[("failure_type", kind), ("scope", scope)]);
            let help = "Cumulative count of memory allocation failures.";
            page.add(Kind::Counter, "container_memory_failures_total", help, labels, number(value), true);
        }
    }
    pressure(page, subject, &detail);
    limits(page, subject, &detail);
    processes(page, subject, &detail);
    devices(page, subject, &detail.devices);
    if let Some(process) = &subject.network_of {
        interfaces(page, subject, process);
    }
}

fn pressure(page: &mut Page, subject: &Subject<'_>, detail: &Detail) {
    let micros =
        |psi: Option<Psi>, full: bool| psi.map(|p| to_float(if full { p.full.total } else { p.some.total }) / 1e6);
    for (name, help, value) in [
        (
            "container_pressure_cpu_stalled_seconds_total",
            "Total time duration no tasks in the container could make progress due to CPU congestion.",
            micros(detail.cpu_psi, true),
        ),
        (
            "container_pressure_cpu_waiting_seconds_total",
            "Total time duration tasks in the container have waited due to CPU congestion.",
            micros(detail.cpu_psi, false),
        ),
        (
            "container_pressure_io_stalled_seconds_total",
            "Total time duration no tasks in the container could make progress due to IO congestion.",
            micros(detail.io_psi, true),
        ),
        (
            "container_pressure_io_waiting_seconds_total",
            "Total time duration tasks in the container have waited due to IO congestion.",
            micros(detail.io_psi, false),
        ),
        (
            "container_pressure_memory_stalled_seconds_total",
            "Total time duration no tasks in the container could make progress due to memory congestion.",
            micros(detail.memory_psi, true),
        ),
        (
            "container_pressure_memory_waiting_seconds_total",
            "Total time duration tasks in the container have waited due to memory congestion.",
            micros(detail.memory_psi, false),
        ),
    ] {
        page.add(Kind::Counter, name, help, subject.labels(&[]), value, true);
    }
}

fn limits(page: &mut Page, subject: &Subject<'_>, detail: &Detail) {
    // Here zero means that there is no limit, as cAdvisor writes it, once the cgroup has such limits at all.
    let has_memory = detail.usage.is_some();
    let limit = |value: Option<u64>| has_memory.then(|| to_float(value.unwrap_or(0)));
    for (name, help, value) in [
        ("container_spec_cpu_period", "CPU period of the container.", detail.cpu_period.map(to_float)),
        ("container_spec_cpu_quota", "CPU quota of the container.", detail.cpu_quota.map(to_float)),
        ("container_spec_cpu_shares", "CPU share of the container.", detail.cpu_shares.map(to_float)),
        ("container_spec_memory_limit_bytes", "Memory limit for the container.", limit(detail.memory_limit)),
        (
            "container_spec_memory_reservation_limit_bytes",
            "Memory reservation limit for the container.",
            limit(detail.memory_reservation),
        ),
        ("container_spec_memory_swap_limit_bytes", "Memory swap limit for the container.", limit(detail.swap_limit)),
    ] {
        page.add(Kind::Gauge, name, help, subject.labels(&[]), value, false);
    }
}

/// Open files, sockets and states of the processes in it, those of cgroups below left out.
fn processes(page: &mut Page, subject: &Subject<'_>, detail: &Detail) {
    if detail.processes.is_none() {
        return;
    }
    let found = Processes::look(&detail.pids, Path::new("/proc"));
    let labels = || subject.labels(&[]);
    let (files, sockets) = found.open.unzip();
    for (name, help, value) in [
        ("container_file_descriptors", "Number of open file descriptors for the container.", files),
        ("container_sockets", "Number of open sockets for the container.", sockets),
    ] {
        page.add(Kind::Gauge, name, help, labels(), value.map(f64::from), true);
    }
    for (state, count) in processes::STATES.into_iter().zip(found.states) {
        let labels = subject.labels(&[("state", state)]);
        let help = "Number of tasks in given state";
        page.add(Kind::Gauge, "container_tasks_state", help, labels, Some(f64::from(count)), true);
    }
    let soft = found.limit.map(|limit| if limit < 0 { -1.0 } else { to_float(limit.unsigned_abs()) });
    let labels = subject.labels(&[("ulimit", "max_open_files")]);
    let help = "Soft ulimit values for the container root process. Unlimited if -1, except priority and nice";
    page.add(Kind::Gauge, "container_ulimits_soft", help, labels, soft, true);
}

fn devices(page: &mut Page, subject: &Subject<'_>, devices: &[Device]) {
    for device in devices {
        let path = device_path(device.major, device.minor);
        let (major, minor) = (device.major.to_string(), device.minor.to_string());
        for (operation, value) in [("Read", device.read_bytes), ("Write", device.written_bytes)] {
            let labels =
                subject.labels(&[("device", &path), ("major", &major), ("minor", &minor), ("operation", operation)]);
            let help = "Blkio Device bytes usage";
            page.add(Kind::Counter, "container_blkio_device_usage_total", help, labels, Some(to_float(value)), true);
        }
        for (name, help, value) in [
            ("container_fs_reads_bytes_total", "Cumulative count of bytes read", device.read_bytes),
            ("container_fs_writes_bytes_total", "Cumulative count of bytes written", device.written_bytes),
            ("container_fs_reads_total", "Cumulative count of reads completed", device.reads),
            ("container_fs_writes_total", "Cumulative count of writes completed", device.writes),
        ] {
            // The whole node's operations come from the disks' own statistics.
            if subject.id != "/" || name.ends_with("_bytes_total") {
                page.add(Kind::Counter, name, help, subject.labels(&[("device", &path)]), Some(to_float(value)), true);
            }
        }
    }
}

fn device_path(major: u32, minor: u32) -> String {
    let text = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/uevent")).unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    name.map(|name| format!("/dev/{name}")).unwrap_or_default()
}

fn interfaces(page: &mut Page, subject: &Subject<'_>, process: &str) {
    for interface in network::counters(process) {
        let labels = || subject.labels(&[("interface", &interface.name)]);
        for (name, help, value) in [
            ("container_network_receive_bytes_total", "Cumulative count of bytes received", interface.received[0]),
            ("container_network_receive_packets_total", "Cumulative count of packets received", interface.received[1]),
            (
                "container_network_receive_errors_total",
                "Cumulative count of errors encountered while receiving",
                interface.received[2],
            ),
            (
                "container_network_receive_packets_dropped_total",
                "Cumulative count of packets dropped while receiving",
                interface.received[3],
            ),
            ("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted", interface.sent[0]),
            ("container_network_transmit_packets_total", "Cumulative count of packets transmitted", interface.sent[1]),
            (
                "container_network_transmit_errors_total",
                "Cumulative count of errors encountered while transmitting",
                interface.sent[2],
            ),
            (
                "container_network_transmit_packets_dropped_total",
                "Cumulative count of packets dropped while transmitting",
                interface.sent[3],
            ),
        ] {
            page.add(Kind::Counter, name, help, labels(), Some(to_float(value)), true);
        }
    }
}

/// File systems of the node, and how busy their disks were.
fn disks(page: &mut Page) {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let statistics = disk_statistics(&std::fs::read_to_string("/proc/diskstats").unwrap_or_default());
    let mut seen: HashMap<String, ()> = HashMap::new();
    let root = Subject {
        container: "",
        id: "/".into(),
        image: "",
        name: "",
        namespace: "",
        pod: "",
        started_nanos: 0,
        cgroup: Cgroup::root(),
        plain: OnceCell::new(),
        network_of: None,
    };
    for line in mounts.lines() {
        let mut words = line.split(' ');
        let (Some(source), Some(target), Some(kind)) = (words.next(), words.next(), words.next()) else { continue };
        let device = match kind {
            "tmpfs" => target,
            _ if source.starts_with("/dev/") => source,
            _ => continue,
        };
        if seen.insert(device.to_owned(), ()).is_some() {
            continue;
        }
        let Ok(stat) = nix::sys::statvfs::statvfs(Path::new(target)) else { continue };
        let block = stat.fragment_size();
        let bytes = |blocks: u64| Some(to_float(blocks.saturating_mul(block)));
        let used = stat.blocks().saturating_sub(stat.blocks_free());
        for (name, help, value) in [
            (
                "container_fs_limit_bytes",
                "Number of bytes that can be consumed by the container on this filesystem.",
                bytes(stat.blocks()),
            ),
            (
                "container_fs_usage_bytes",
                "Number of bytes that are consumed by the container on this filesystem.",
                bytes(used),
            ),
            ("container_fs_inodes_total", "Number of Inodes", Some(to_float(stat.files()))),
            ("container_fs_inodes_free", "Number of available Inodes", Some(to_float(stat.files_free()))),
        ] {
            page.add(Kind::Gauge, name, help, root.labels(&[("device", device)]), value, true);
        }
        let resolved = Path::new(source).canonicalize().ok();
        let name = resolved.as_deref().and_then(|p| p.file_name()).map(|n| n.to_string_lossy().into_owned());
        let Some(numbers) = name.and_then(|name| statistics.get(&name)) else { continue };
        let at = |index: usize| numbers.get(index).copied().map(to_float);
        for (kind, name, help, value) in [
            (Kind::Counter, "container_fs_reads_total", "Cumulative count of reads completed", at(0)),
            (Kind::Counter, "container_fs_reads_merged_total", "Cumulative count of reads merged", at(1)),
            (Kind::Counter, "container_fs_sector_reads_total", "Cumulative count of sector reads completed", at(2)),
            (
                Kind::Counter,
                "container_fs_read_seconds_total",
                "Cumulative count of seconds spent reading",
                at(3).map(|ms| ms / MILLIS),
            ),
            (Kind::Counter, "container_fs_writes_total", "Cumulative count of writes completed", at(4)),
            (Kind::Counter, "container_fs_writes_merged_total", "Cumulative count of writes merged", at(5)),
            (Kind::Counter, "container_fs_sector_writes_total", "Cumulative count of sector writes completed", at(6)),
            (
                Kind::Counter,
                "container_fs_write_seconds_total",
                "Cumulative count of seconds spent writing",
                at(7).map(|ms| ms / MILLIS),
            ),
            (Kind::Gauge, "container_fs_io_current", "Number of I/Os currently in progress", at(8)),
            (
                Kind::Counter,
                "container_fs_io_time_seconds_total",
                "Cumulative count of seconds spent doing I/Os",
                at(9).map(|ms| ms / MILLIS),
            ),
            (
                Kind::Counter,
                "container_fs_io_time_weighted_seconds_total",
                "Cumulative weighted I/O time in seconds",
                at(10).map(|ms| ms / MILLIS),
            ),
        ] {
            page.add(kind, name, help, root.labels(&[("device", device)]), value, true);
        }
    }
}

/// Eleven numbers by the device's name.
fn disk_statistics(text: &str) -> HashMap<String, Vec<u64>> {
    let entry = |line: &str| {
        let mut words = line.split_whitespace().skip(2);
        let name = words.next()?.to_owned();
        Some((name, words.filter_map(|w| w.parse().ok()).collect()))
    };
    text.lines().filter_map(entry).collect()
}

fn machine(page: &mut Page) {
    let found = Machine::read(Path::new("/"));
    let labels: Labels = [
        ("boot_id", found.boot_id.clone()),
        ("machine_id", found.machine_id.clone()),
        ("system_uuid", found.system_uuid.clone()),
    ]
    .into();
    let topology = |file: &str| {
        let mut distinct: Vec<String> = Vec::new();
        for cpu in std::fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten() {
            let read = |file: &str| std::fs::read_to_string(cpu.path().join("topology").join(file)).ok();
            // Numbers of cores repeat from socket to socket.
            let socket = read("physical_package_id").unwrap_or_default();
            if let Some(value) = read(file).map(|v| format!("{socket}/{v}"))
                && !distinct.contains(&value)
            {
                distinct.push(value);
            }
        }
        u32::try_from(distinct.len()).ok().filter(|n| *n > 0).map(f64::from)
    };
    for (name, help, value) in [
        ("machine_cpu_cores", "Number of logical CPU cores.", Some(f64::from(found.cpus))),
        ("machine_cpu_physical_cores", "Number of physical CPU cores.", topology("core_id")),
        ("machine_cpu_sockets", "Number of CPU sockets.", topology("physical_package_id")),
        ("machine_cpu_books", "Number of CPU books.", topology("book_id").or(Some(0.0))),
        ("machine_cpu_drawers", "Number of CPU drawers.", topology("drawer_id").or(Some(0.0))),
        ("machine_memory_bytes", "Amount of memory installed on the machine.", Some(to_float(found.memory_bytes))),
        ("machine_swap_bytes", "Amount of swap memory available on the machine.", Some(to_float(found.swap_bytes))),
    ] {
        page.add(Kind::Gauge, name, help, labels.clone(), value, false);
    }
    page.add(Kind::Gauge, "machine_nvm_avg_power_budget_watts", "NVM power budget.", labels, Some(0.0), false);
    for mode in ["app_direct_mode", "memory_mode"] {
        let labels: Labels = [
            ("boot_id", found.boot_id.clone()),
            ("machine_id", found.machine_id.clone()),
            ("mode", mode.to_owned()),
            ("system_uuid", found.system_uuid.clone()),
        ]
        .into();
        let help = "NVM capacity value labeled by NVM mode (memory mode or app direct mode).";
        page.add(Kind::Gauge, "machine_nvm_capacity", help, labels, Some(0.0), false);
    }
    let help = "1 if there was an error while getting machine metrics, 0 otherwise.";
    page.add(Kind::Gauge, "machine_scrape_error", help, Labels::default(), Some(0.0), false);
    let help = "A metric with a constant '1' value labeled by kernel version, OS version, docker version, cadvisor version & cadvisor revision.";
    let names = ["cadvisorRevision", "cadvisorVersion", "dockerVersion"];
    let mut labels: Vec<(&'static str, String)> = names.into_iter().map(|name| (name, String::new())).collect();
    labels.extend([("kernelVersion", found.kernel_version.clone()), ("osVersion", found.os_image.clone())]);
    page.add(Kind::Gauge, "cadvisor_version_info", help, labels.into(), Some(1.0), false);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_the_machine_and_nothing_that_nobody_knows() {
        let families = collect(&BTreeMap::new(), 5);
        let names: Vec<&str> = families.iter().map(|f| f.name.as_ref()).collect();
        assert!(names.contains(&"machine_cpu_cores") && names.contains(&"container_last_seen"));
        let error = families.iter().find(|f| f.name == "container_scrape_error").unwrap();
        assert!(matches!(error.samples[0].value, Value::Number(n) if n == 0.0));
        assert!(families.iter().all(|f| !f.samples.is_empty()));
        for of_the_root in
            ["container_memory_usage_bytes", "container_spec_memory_limit_bytes", "container_health_state"]
        {
            assert!(names.contains(&of_the_root), "{of_the_root}");
        }
        let has_pressure = Path::new("/sys/fs/cgroup/cpu.pressure").exists();
        assert_eq!(names.contains(&"container_pressure_cpu_waiting_seconds_total"), has_pressure);
    }

    #[test]
    fn disk_statistics_are_found_by_name() {
        let found = disk_statistics(" 254 0 vda 1 2 3 4 5 6 7 8 9 10 11 12\n");
        assert_eq!(found.get("vda").map(|n| n[..3].to_vec()), Some(vec![1, 2, 3]));
    }
}
