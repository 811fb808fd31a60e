//! What the machine is: read once from `/proc`, `/sys` and `/etc`.
//!
//! Paths are taken below a root, so that tests can bring their own. What is not there stays empty: a node reports what
//! it knows.

use std::path::{Path, PathBuf};

/// Facts that do not change while the machine runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    pub machine_id: String,
    pub system_uuid: String,
    pub boot_id: String,
    pub kernel_version: String,
    pub os_image: String,
    /// As Go names it: `amd64`, `arm64`.
    pub architecture: &'static str,
    pub cpus: u32,
    pub memory_bytes: u64,
    pub swap_bytes: u64,
    pub huge_pages: Vec<HugePages>,
}

/// Pages of one size that the kernel has set aside.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HugePages {
    pub page_bytes: u64,
    pub pages: u64,
}

impl Machine {
    /// Reads everything; `root` is `/` outside tests.
    pub fn read(root: &Path) -> Self {
        let text = |path: &str| read(root, path);
        let memory = text("proc/meminfo");
        let machine_id = [text("etc/machine-id"), text("var/lib/dbus/machine-id")].into_iter().find(|t| !t.is_empty());
        let system_uuid = [
            "sys/class/dmi/id/product_uuid",
            "proc/device-tree/system-id",
            "proc/device-tree/vm,uuid",
            "etc/machine-id",
        ]
        .into_iter()
        .map(text)
        .find(|t| !t.is_empty());
        Machine {
            machine_id: machine_id.unwrap_or_default(),
            system_uuid: system_uuid.unwrap_or_default().trim_end_matches('\0').to_lowercase(),
            boot_id: text("proc/sys/kernel/random/boot_id"),
            kernel_version: text("proc/sys/kernel/osrelease"),
            os_image: os_image(&[text("etc/os-release"), text("usr/lib/os-release")]),
            architecture: architecture(),
            cpus: cpus(&text("proc/cpuinfo"), &text("sys/devices/system/cpu/online")),
            memory_bytes: meminfo(&memory, "MemTotal") * 1024,
            swap_bytes: meminfo(&memory, "SwapTotal") * 1024,
            huge_pages: huge_pages(&root.join("sys/kernel/mm/hugepages")),
        }
    }
}

/// A value of `/proc/meminfo` in KiB; 0 when absent.
pub fn meminfo(text: &str, key: &str) -> u64 {
    text.lines()
        .find_map(|l| l.strip_prefix(key)?.strip_prefix(':')?.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

fn read(root: &Path, path: &str) -> String {
    std::fs::read_to_string(root.join(path)).map(|t| t.trim().to_owned()).unwrap_or_default()
}

fn os_image(candidates: &[String]) -> String {
    let name = candidates.iter().find_map(|text| {
        let line = text.lines().find_map(|l| l.strip_prefix("PRETTY_NAME="))?;
        Some(line.trim_matches(['"', '\'']).to_owned())
    });
    name.unwrap_or_else(|| "Linux".to_owned())
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

/// Processors that are online; `/proc/cpuinfo` first, as containers with a restricted view bind-mount that one.
fn cpus(cpuinfo: &str, online: &str) -> u32 {
    let listed = cpuinfo.lines().filter(|l| l.starts_with("processor")).count();
    if listed > 0 {
        return u32::try_from(listed).unwrap_or(u32::MAX);
    }
    let mut count = 0;
    for part in online.split(',').filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) {
            count += last.saturating_sub(first) + 1;
        }
    }
    count.max(1)
}

/// What the kernel has set aside, by the folders below this one.
pub fn huge_pages(folder: &Path) -> Vec<HugePages> {
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let path: PathBuf = entry.ok()?.path();
            let name = path.file_name()?.to_str()?;
            let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let pages = std::fs::read_to_string(path.join("nr_hugepages")).ok()?.trim().parse().ok()?;
            Some(HugePages { page_bytes: kib * 1024, pages })
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_cpu_memory_and_a_kernel() {
        let machine = Machine::read(Path::new("/"));
        assert!(machine.cpus > 0 && machine.memory_bytes > 0 && !machine.kernel_version.is_empty());
    }

    #[test]
    fn an_empty_root_gives_an_empty_machine_but_one_cpu() {
        let machine = Machine::read(Path::new("/nonexistent"));
        assert_eq!((machine.cpus, machine.memory_bytes, machine.os_image.as_str()), (1, 0, "Linux"));
    }

    #[test]
    fn memory_and_cpus_are_parsed() {
        assert_eq!(meminfo("MemTotal:        4016548 kB\nSwapTotal: 0 kB\n", "MemTotal"), 4_016_548);
        assert_eq!(cpus("", "0-1,4"), 3);
        assert_eq!(
            os_image(&["NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 13 (trixie)\"".into()]),
            "Debian GNU/Linux 13 (trixie)"
        );
    }
}
