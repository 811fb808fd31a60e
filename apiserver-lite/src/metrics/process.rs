//! `process_*`: what this process uses, read from `/proc` when somebody asks, under the names and with the help of
//! client libraries. What cannot be read is left out.

use std::fmt::Write as _;
use std::fs;

use super::page::head;

/// Ticks of a second in `/proc/PID/stat`: USER_HZ, the same on every architecture that the packages are for.
const TICKS: u64 = 100;

/// The families that this kernel tells of.
pub(super) fn write(out: &mut String) {
    let mut family = |name, kind, help, value: Option<String>| {
        if let Some(value) = value {
            head(out, name, kind, help);
            let _ = writeln!(out, "{name} {value}");
        }
    };
    let stat = stat(&fs::read_to_string("/proc/self/stat").unwrap_or_default());
    let field = |at: usize| stat.get(at).copied();
    let cpu = field(11).zip(field(12)).map(|(user, system)| seconds(user + system));
    family("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.", cpu);
    let most = fs::read_to_string("/proc/self/limits").ok().and_then(|text| open_files(&text));
    family("process_max_fds", "gauge", "Maximum number of open file descriptors.", most.map(|n| n.to_string()));
    // The folder that is read is one of them.
    let open = fs::read_dir("/proc/self/fd").ok().map(|files| files.count().saturating_sub(1));
    family("process_open_fds", "gauge", "Number of open file descriptors.", open.map(|n| n.to_string()));
    let resident = service::memory::resident_bytes().map(|n| n.to_string());
    family("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", resident);
    let boot = fs::read_to_string("/proc/stat").ok().and_then(|text| boot(&text));
    let started = boot.zip(field(19)).map(|(boot, ticks)| seconds(boot * TICKS + ticks));
    let help = "[STABLE] Start time of the process since unix epoch in seconds.";
    family("process_start_time_seconds", "gauge", help, started);
    family("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", field(20).map(|n| n.to_string()));
}

/// The numbers of `/proc/PID/stat` from the third field on, with a zero for what is none.
fn stat(text: &str) -> Vec<u64> {
    // The name is in parentheses and may hold anything.
    let rest = text.rsplit_once(") ").map_or("", |(_, rest)| rest);
    rest.split_whitespace().map(|word| word.parse().unwrap_or(0)).collect()
}

/// Seconds since 1970 at which the machine began, of `/proc/stat`.
fn boot(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}

/// The soft limit of `/proc/PID/limits`; none where it is unlimited.
fn open_files(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// A tick is a hundredth.
fn seconds(ticks: u64) -> String {
    format!("{}.{:02}", ticks / TICKS, ticks % TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_files_and_a_past() {
        let mut page = String::new();
        write(&mut page);
        let value = |name: &str| -> f64 {
            let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("{name} is there: {page}")).parse().expect("a number")
        };
        assert!(value("process_resident_memory_bytes") > 1_000_000.0);
        assert!(value("process_virtual_memory_bytes") > value("process_resident_memory_bytes"));
        assert!(value("process_open_fds") >= 3.0 && value("process_open_fds") <= value("process_max_fds"));
        assert!(value("process_cpu_seconds_total") >= 0.0);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs_f64();
        // The time of boot is known to the second.
        assert!((-2.0..3_000_000.0).contains(&(now - value("process_start_time_seconds"))), "{page}");
    }

    #[test]
    fn a_name_with_parentheses_moves_no_field() {
        assert_eq!(stat("12 (a ) b) S 1 2 x 4"), [0, 1, 2, 0, 4]);
        assert_eq!(stat(""), Vec::<u64>::new());
        assert_eq!(open_files("Limit  Soft Limit\nMax open files   1024   4096  files\n"), Some(1024));
        assert_eq!(open_files("Max open files   unlimited   unlimited  files\n"), None);
        assert_eq!(boot("cpu 1\nbtime 1700000000\n"), Some(1_700_000_000));
        assert_eq!(seconds(1207), "12.07");
    }
}
