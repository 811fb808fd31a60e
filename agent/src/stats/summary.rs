//! The answer of `/stats/summary`: stats API v1alpha1, in its own order of fields.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use proto::cri::ImageFsInfoResponse;
use serde::Serialize;

use crate::csi::usage::Usage as DriverUsage;

use super::cgroup::Psi;
use super::disk_usage::{GivenUp, Held};
use super::file_systems::Look;
use super::network::{self, Network};
use super::volumes;
use super::{Found, Measured, Places, PodFound, container_key, node_key, own_key, pod_key, pods_key, sandbox_key};

#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    pub node: NodeStats,
    pub pods: Vec<PodStats>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStats {
    pub node_name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub system_containers: Vec<ContainerStats>,
    pub start_time: String,
    #[serde(flatten)]
    pub usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fs: Option<Fs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<RuntimeStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rlimit: Option<Rlimit>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStats {
    pub pod_ref: PodRef,
    pub start_time: String,
    pub containers: Vec<ContainerStats>,
    #[serde(flatten)]
    pub usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    #[serde(rename = "volume", skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeStats>,
    #[serde(rename = "ephemeral-storage", skip_serializing_if = "Option::is_none")]
    pub ephemeral_storage: Option<Fs>,
    #[serde(rename = "process_stats", skip_serializing_if = "Option::is_none")]
    pub processes: Option<Processes>,
}

#[derive(Debug, Clone, Serialize)]
pub struct PodRef {
    pub name: String,
    pub namespace: String,
    pub uid: String,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStats {
    pub name: String,
    pub start_time: String,
    #[serde(flatten)]
    pub usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rootfs: Option<Fs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs: Option<Fs>,
}

#[derive(Debug, Clone, Serialize)]
pub struct VolumeStats {
    #[serde(flatten)]
    pub fs: Fs,
    pub name: String,
    #[serde(rename = "pvcRef", skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimRef>,
    #[serde(rename = "volumeHealthStats", skip_serializing_if = "Option::is_none")]
    pub health: Option<VolumeHealth>,
}

/// What a driver finds of a volume.
#[derive(Debug, Clone, Serialize)]
pub struct VolumeHealth {
    pub abnormal: bool,
}

#[derive(Debug, Clone, Serialize)]
pub struct ClaimRef {
    pub name: String,
    pub namespace: String,
}

/// A volume as its driver told of it.
fn of_driver(name: String, usage: DriverUsage, now: &str) -> VolumeStats {
    let (bytes, inodes) = (usage.bytes, usage.inodes);
    VolumeStats {
        fs: Fs {
            time: now.to_owned(),
            available_bytes: bytes.available,
            capacity_bytes: bytes.total,
            used_bytes: bytes.used,
            inodes_free: inodes.available,
            inodes: inodes.total,
            inodes_used: inodes.used,
        },
        name,
        claim: usage.claim.map(|(namespace, name)| ClaimRef { name, namespace }),
        health: usage.condition.map(|condition| VolumeHealth { abnormal: condition.abnormal }),
    }
}

/// CPU, memory, pressure and swap of anything that has a cgroup.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Usage {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<Io>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<Swap>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cpu {
    pub time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_nano_cores: Option<u64>,
    pub usage_core_nano_seconds: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psi: Option<Psi>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    pub time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
    pub usage_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_set_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub major_page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psi: Option<Psi>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Io {
    pub time: String,
    pub psi: Psi,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Swap {
    pub time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_available_bytes: Option<u64>,
    pub swap_usage_bytes: u64,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fs {
    pub time: String,
    pub available_bytes: u64,
    pub capacity_bytes: u64,
    pub used_bytes: u64,
    pub inodes_free: u64,
    pub inodes: u64,
    pub inodes_used: u64,
}

impl Fs {
    /// The same where only what a part of it holds is to be told.
    pub(super) fn holding(mut self, used: Held) -> Self {
        (self.used_bytes, self.inodes_used) = (used.bytes, used.inodes);
        self
    }
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeStats {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_fs: Option<Fs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_fs: Option<Fs>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Rlimit {
    pub time: String,
    pub maxpid: i64,
    pub curproc: i64,
}

#[derive(Debug, Clone, Serialize)]
pub struct Processes {
    pub process_count: u64,
}

/// What was asked of others before.
pub(super) struct Looked<'a> {
    pub images: Option<&'a ImageFsInfoResponse>,
    pub layers: &'a HashMap<String, Held>,
    /// Those of volumes that may hang, by place.
    pub file_systems: &'a HashMap<PathBuf, Look>,
}

pub(super) fn build(
    places: &Places,
    given_up: &GivenUp,
    pods: &BTreeMap<String, PodFound>,
    measured: &HashMap<String, Measured>,
    &Looked { images, layers, file_systems }: &Looked<'_>,
    only_cpu_and_memory: bool,
) -> Summary {
    let now = proto::time::Timestamp::now().to_seconds_text();
    let usage = |key: &str| {
        let mut found = measured.get(key).map(|m| usage(m, &now)).unwrap_or_default();
        if only_cpu_and_memory {
            found.io = None;
        }
        found
    };
    let network = |process: &str| if only_cpu_and_memory { None } else { network::read(process, &now) };
    let mut node_usage = usage(&node_key());
    if let Some(memory) = &mut node_usage.memory {
        // What the node has is its limit.
        let total = host_memory();
        memory.available_bytes = total.zip(memory.working_set_bytes).map(|(all, used)| all.saturating_sub(used));
    }
    if let Some(swap) = &mut node_usage.swap {
        swap.swap_available_bytes = swap.swap_available_bytes.or_else(|| host("SwapFree:"));
    }
    // What everything that is not counted for itself is counted for has no limit of its own to be left under.
    let whole = |mut usage: Usage| {
        if let Some(swap) = &mut usage.swap {
            swap.swap_available_bytes = None;
        }
        usage
    };
    let image_fs = images.and_then(|i| i.image_filesystems.first()?.fs_id.as_ref()).map(|id| id.mountpoint.clone());
    let local = |used: Held, path: &Path| local(used, path, &now);
    let container = |uid: &str, name: &str, found: &Found, pod: &PodFound| {
        let mut made = container(uid, name, found, &usage);
        if !only_cpu_and_memory {
            let layer = layers.get(&found.id).copied();
            made.rootfs = image_fs.as_ref().zip(layer).and_then(|(path, used)| local(used, Path::new(path)));
            let logs = places.pod_logs_dir.join(format!("{}_{}_{uid}", pod.namespace, pod.name)).join(name);
            made.logs = places.walks.held(&logs, given_up).and_then(|used| local(used, &places.pod_logs_dir));
        }
        made
    };
    let volumes = |uid: &str| {
        if only_cpu_and_memory {
            return volumes::Told::default();
        }
        let folder = places.root_dir.join("pods").join(uid).join("volumes");
        let named = places.drivers.usages.file_systems_of_pod(uid);
        volumes::of_pod(&folder, named, file_systems, &now, (&places.walks, given_up))
    };
    let storage = |containers: &[ContainerStats], volumes: &[VolumeStats]| {
        if only_cpu_and_memory {
            return None;
        }
        let parts = containers.iter().flat_map(|c| [c.rootfs.as_ref(), c.logs.as_ref()]).flatten();
        let used = parts.chain(volumes.iter().map(|v| &v.fs)).fold(Held::default(), |sum, fs| Held {
            bytes: sum.bytes.saturating_add(fs.used_bytes),
            inodes: sum.inodes.saturating_add(fs.inodes_used),
        });
        local(used, &places.root_dir)
    };
    let pod = |(uid, found): (&String, &PodFound)| {
        let containers: Vec<ContainerStats> =
            found.containers.iter().map(|(name, c)| container(uid, name, c, found)).collect();
        let told = volumes(uid);
        let ephemeral_storage = storage(&containers, &told.ephemeral);
        let mut volumes = told.all();
        if !only_cpu_and_memory {
            volumes.extend(places.drivers.usages.of_pod(uid).into_iter().map(|(name, u)| of_driver(name, u, &now)));
        }
        PodStats {
            pod_ref: PodRef { name: found.name.clone(), namespace: found.namespace.clone(), uid: uid.clone() },
            start_time: moment(found.created_at),
            // Without a cgroup around them, a pod uses what its parts use.
            usage: match measured.contains_key(&pod_key(uid)) {
                true => whole(usage(&pod_key(uid))),
                false => sum(&containers, &usage(&sandbox_key(uid)), &now),
            },
            containers,
            volumes,
            ephemeral_storage,
            network: found.sandbox.as_ref().and_then(|s| network(&s.pid.to_string())),
            processes: measured
                .get(&pod_key(uid))
                .and_then(|m| m.reading.processes)
                .map(|n| Processes { process_count: n }),
        }
    };
    let system = [("pods", pods_key()), ("kubelet", own_key())];
    let system_containers = system.into_iter().filter(|(_, key)| measured.contains_key(key)).map(|(name, key)| {
        let mut usage = whole(usage(&key));
        if let Some(memory) = &mut usage.memory
            && name == "pods"
        {
            let limit = memory
                .available_bytes
                .or_else(|| host_memory().zip(memory.working_set_bytes).map(|(all, used)| all.saturating_sub(used)));
            memory.available_bytes = limit;
        }
        ContainerStats { name: name.into(), start_time: moment(boot_nanos()), usage, rootfs: None, logs: None }
    });
    let filesystem = |list: &[proto::cri::FilesystemUsage]| {
        let first = list.first()?;
        disk(Path::new(&first.fs_id.as_ref()?.mountpoint), &now, first.used_bytes.as_ref().map(|b| b.value))
    };
    Summary {
        node: NodeStats {
            node_name: places.node.clone(),
            system_containers: system_containers.collect(),
            start_time: moment(boot_nanos()),
            usage: node_usage,
            network: network("self"),
            fs: if only_cpu_and_memory { None } else { disk(&places.root_dir, &now, None) },
            runtime: images.map(|info| {
                let image_fs = filesystem(&info.image_filesystems);
                let container_fs = filesystem(&info.container_filesystems).or_else(|| image_fs.clone());
                RuntimeStats { image_fs, container_fs }
            }),
            rlimit: if only_cpu_and_memory { None } else { rlimit(&now) },
        },
        // Upstream gathers pods from the statistics of their containers: one without any is not there.
        pods: pods.iter().filter(|(_, found)| !found.containers.is_empty()).map(pod).collect(),
    }
}

fn container(uid: &str, name: &str, found: &Found, usage: &dyn Fn(&str) -> Usage) -> ContainerStats {
    ContainerStats {
        name: name.to_owned(),
        start_time: moment(found.started_at),
        usage: usage(&container_key(uid, name)),
        rootfs: None,
        logs: None,
    }
}

/// CPU and memory of all parts of a pod; absent when one of them does not tell.
fn sum(containers: &[ContainerStats], sandbox: &Usage, now: &str) -> Usage {
    let parts = || containers.iter().map(|c| &c.usage).chain([sandbox]);
    let cpu = |of: fn(&Cpu) -> Option<u64>| parts().map(|p| p.cpu.as_ref().and_then(of)).sum::<Option<u64>>();
    let memory = |of: fn(&Memory) -> Option<u64>| parts().map(|p| p.memory.as_ref().and_then(of)).sum::<Option<u64>>();
    let swap = parts().map(|p| p.swap.as_ref().map(|s| s.swap_usage_bytes)).sum::<Option<u64>>();
    Usage {
        cpu: cpu(|c| Some(c.usage_core_nano_seconds)).map(|total| Cpu {
            time: now.to_owned(),
            usage_nano_cores: cpu(|c| c.usage_nano_cores),
            usage_core_nano_seconds: total,
            psi: None,
        }),
        memory: memory(|m| Some(m.usage_bytes)).map(|usage_bytes| Memory {
            time: now.to_owned(),
            available_bytes: None,
            usage_bytes,
            working_set_bytes: memory(|m| m.working_set_bytes),
            rss_bytes: memory(|m| m.rss_bytes),
            page_faults: memory(|m| m.page_faults),
            major_page_faults: memory(|m| m.major_page_faults),
            psi: None,
        }),
        io: None,
        swap: swap.map(|used| Swap { time: now.to_owned(), swap_available_bytes: None, swap_usage_bytes: used }),
    }
}

fn usage(measured: &Measured, now: &str) -> Usage {
    let (reading, time) = (&measured.reading, || now.to_owned());
    Usage {
        cpu: reading.cpu_nanos.map(|total| Cpu {
            time: time(),
            usage_nano_cores: measured.nano_cores,
            usage_core_nano_seconds: total,
            psi: reading.cpu_psi,
        }),
        memory: reading.memory_usage.map(|usage_bytes| Memory {
            time: time(),
            available_bytes: reading.memory_limit.zip(reading.working_set).map(|(all, used)| all.saturating_sub(used)),
            usage_bytes,
            working_set_bytes: reading.working_set,
            rss_bytes: reading.rss,
            page_faults: reading.page_faults,
            major_page_faults: reading.major_page_faults,
            psi: reading.memory_psi,
        }),
        io: reading.io_psi.map(|psi| Io { time: time(), psi }),
        swap: reading.swap_usage.map(|used| Swap {
            time: time(),
            swap_available_bytes: reading.swap_limit.map(|limit| limit.saturating_sub(used)),
            swap_usage_bytes: used,
        }),
    }
}

/// The file system at a path; `used` where somebody knows the share of one part of it.
/// What is held of the file system that the path is on.
pub(super) fn local(used: Held, path: &Path, now: &str) -> Option<Fs> {
    Some(disk(path, now, None)?.holding(used))
}

pub(super) fn disk(path: &Path, now: &str, used: Option<u64>) -> Option<Fs> {
    let stat = nix::sys::statvfs::statvfs(path).ok()?;
    let block = stat.fragment_size();
    Some(Fs {
        time: now.to_owned(),
        available_bytes: stat.blocks_available().saturating_mul(block),
        capacity_bytes: stat.blocks().saturating_mul(block),
        used_bytes: used.unwrap_or_else(|| stat.blocks().saturating_sub(stat.blocks_free()).saturating_mul(block)),
        inodes_free: stat.files_free(),
        inodes: stat.files(),
        inodes_used: stat.files().saturating_sub(stat.files_free()),
    })
}

pub(super) fn host_memory() -> Option<u64> {
    host("MemTotal:")
}

/// A line of `/proc/meminfo`, in bytes.
fn host(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// When the machine began. Read once: the file holds a line for each processor and one number for each interrupt.
pub(super) fn boot_nanos() -> i64 {
    static BOOT: OnceLock<i64> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let seconds = text.lines().find_map(|l| l.strip_prefix("btime ")?.trim().parse::<i64>().ok());
        seconds.unwrap_or(0).saturating_mul(1_000_000_000)
    })
}

fn rlimit(now: &str) -> Option<Rlimit> {
    let (maxpid, curproc) = processes()?;
    Some(Rlimit { time: now.to_owned(), maxpid, curproc })
}

/// How many processes there may be, and are.
pub(super) fn processes() -> Option<(i64, i64)> {
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<i64>().ok();
    let limits = [number("/proc/sys/kernel/pid_max"), number("/proc/sys/kernel/threads-max")];
    let loads = std::fs::read_to_string("/proc/loadavg").ok()?;
    // RUNNING/ALL is the fourth word.
    let all = loads.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()?;
    Some((limits.into_iter().flatten().min()?, all))
}

fn moment(nanos: i64) -> String {
    proto::time::Timestamp { seconds: nanos.div_euclid(1_000_000_000), nanos: 0 }.to_seconds_text()
}
