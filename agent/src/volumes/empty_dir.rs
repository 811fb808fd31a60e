//! Scratch space: a directory, memory or huge pages.

use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;

use nix::mount::{MsFlags, mount};
use proto::api::core::v1::{EmptyDirVolumeSource, Node, Pod};

use crate::pod::quantity::whole;
use crate::pod::spec::PodExt;

use super::{mount_table, ownership};

const MEMORY: &str = "Memory";
const HUGE_PAGES: &str = "HugePages";

/// Makes the volume unless that was done before.
///
/// # Errors
/// The directory cannot be made or mounted.
pub fn make(path: &Path, ready: &Path, pod: &Pod, node: &Node, source: &EmptyDirVolumeSource) -> Result<(), String> {
    let on_disk = source.medium.is_empty();
    if ready.exists() && path.is_dir() && (on_disk || mount_table::is_own_file_system(path)) {
        return Ok(());
    }
    make_directory(path)?;
    if source.medium == MEMORY {
        mount_memory(path, memory_size(pod, node, source))?;
    } else if let Some(size) = source.medium.strip_prefix(HUGE_PAGES) {
        mount_huge_pages(path, size.strip_prefix('-').unwrap_or_default(), pod)?;
    } else if !on_disk {
        return Err(format!("unknown storage medium {:?}", source.medium));
    }
    ownership::give_to_pod(path, pod).map_err(|e| format!("failed to set the group of a volume: {e}"))?;
    let marked = ready.parent().map_or(Ok(()), private_directory).and_then(|()| std::fs::write(ready, b""));
    marked.map_err(|e| format!("cannot write {}: {e}", ready.display()))
}

fn private_directory(path: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o750).create(path)
}

/// A directory that every user of the pod may write to, whatever the umask; its parents are private to the node.
///
/// # Errors
/// It cannot be made.
pub fn make_directory(path: &Path) -> Result<(), String> {
    let made = || {
        if path.is_dir() {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            private_directory(parent)?;
        }
        DirBuilder::new().mode(0o777).create(path)?;
        std::fs::set_permissions(path, Permissions::from_mode(0o777))
    };
    made().map_err(|e: std::io::Error| format!("cannot make {}: {e}", path.display()))
}

/// Mounts memory there unless it is mounted already; without a size the kernel's default counts.
///
/// # Errors
/// The kernel refuses.
pub fn mount_memory(path: &Path, size_bytes: Option<i64>) -> Result<(), String> {
    if mount_table::is_own_file_system(path) {
        return Ok(());
    }
    let size = size_bytes.map(|s| format!("size={s}"));
    mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), size.as_deref())
        .map_err(|e| format!("failed to mount memory at {}: {e}", path.display()))
}

/// The least of the volume's own limit, the pod's memory limit and what the node can give.
fn memory_size(pod: &Pod, node: &Node, source: &EmptyDirVolumeSource) -> Option<i64> {
    let own = source.size_limit.as_ref().map(whole);
    let allocatable = node.status.as_ref().and_then(|s| s.allocatable.get("memory")).map(whole);
    [own, memory_limit(pod), allocatable].into_iter().flatten().filter(|size| *size > 0).min()
}

/// The memory that the containers of a pod may use together; none when one of them has no limit.
fn memory_limit(pod: &Pod) -> Option<i64> {
    let spec = pod.spec();
    if let Some(limit) = spec.resources.as_ref().and_then(|r| r.limits.get("memory")) {
        return Some(whole(limit));
    }
    let limit = |c: &proto::api::core::v1::Container| c.resources.as_ref()?.limits.get("memory").map(whole);
    let regular: Option<Vec<i64>> = spec.containers.iter().map(limit).collect();
    let sidecars: Option<Vec<i64>> =
        spec.init_containers.iter().filter(|c| crate::pod::spec::is_sidecar(c)).map(limit).collect();
    let sum = regular?.into_iter().chain(sidecars?).fold(0i64, i64::saturating_add);
    let largest_init = spec.init_containers.iter().filter_map(limit).max().unwrap_or(0);
    Some(sum.max(largest_init))
}

fn mount_huge_pages(path: &Path, page_size: &str, pod: &Pod) -> Result<(), String> {
    if mount_table::is_own_file_system(path) {
        return Ok(());
    }
    let page_size = if page_size.is_empty() { only_page_size(pod)? } else { page_size.to_owned() };
    let bytes: proto::quantity::Quantity =
        page_size.parse().map_err(|e| format!("huge page size {page_size:?}: {e}"))?;
    let options = format!("pagesize={}", bytes.value());
    mount(Some("nodev"), path, Some("hugetlbfs"), MsFlags::empty(), Some(options.as_str()))
        .map_err(|e| format!("failed to mount huge pages at {}: {e}", path.display()))
}

/// A medium of `HugePages` takes its size from the requests, which must agree.
fn only_page_size(pod: &Pod) -> Result<String, String> {
    let containers = pod.spec().containers.iter().chain(&pod.spec().init_containers);
    let requests = containers.filter_map(|c| c.resources.as_ref()).flat_map(|r| r.requests.keys());
    let mut sizes: Vec<&str> = requests.filter_map(|name| name.strip_prefix("hugepages-")).collect();
    sizes.sort_unstable();
    sizes.dedup();
    match sizes[..] {
        [one] => Ok(one.to_owned()),
        [] => Err("medium HugePages has no page size: no container requests huge pages".into()),
        _ => Err("medium HugePages can only be used if all containers request one page size".into()),
    }
}
