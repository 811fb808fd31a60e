//! Scratch space: a directory, memory or huge pages.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use proto::api::core::v1::{EmptyDirVolumeSource, Node, Pod};

use crate::pod::quantity::whole;
use crate::pod::resources::NodeResources;
use crate::pod::spec::PodExt;

use super::{mount_table, ownership};

const MEMORY: &str = "Memory";
const HUGE_PAGES: &str = "HugePages";
const NOSWAP: &str = "noswap";

/// The kernel does not know the option; learned at the first mount.
static WITHOUT_NOSWAP: AtomicBool = AtomicBool::new(false);

/// Whether a volume that was made once is there still: memory is not, after the machine has started anew. A pod may have
/// mounted there what does not answer, which blocks; or what nobody serves any more, which tells an error for all that it
/// is asked: then the volume lies below that, for only who has it can have mounted there.
pub fn is_made(path: &Path, in_memory: bool) -> bool {
    match std::fs::metadata(path) {
        Ok(found) => found.is_dir() && (!in_memory || mount_table::is_own_file_system(path)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        Err(_) => mount_table::is_mount_point(path).unwrap_or(false),
    }
}

/// Makes the volume.
///
/// # Errors
/// The directory cannot be made or mounted.
pub fn make(path: &Path, ready: &Path, pod: &Pod, node: &Node, source: &EmptyDirVolumeSource) -> Result<(), String> {
    let on_disk = source.medium.is_empty();
    make_directory(path)?;
    if source.medium == MEMORY {
        mount_memory(path, memory_size(pod, node, Some(source)))?;
    } else if source.medium.starts_with(HUGE_PAGES) {
        mount_huge_pages(path, &source.medium, pod)?;
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

/// Mounts memory there unless it is mounted already; without a size the kernel's default counts. What is in it is not
/// written to swap, where the kernel can see to that.
///
/// # Errors
/// The kernel refuses.
pub fn mount_memory(path: &Path, size_bytes: Option<i64>) -> Result<(), String> {
    if mount_table::is_own_file_system(path) {
        return Ok(());
    }
    let size = size_bytes.map(|s| format!("size={s}"));
    let attempt = |options: &str| mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), Some(options));
    let plain = size.as_deref().unwrap_or_default();
    let mounted = if WITHOUT_NOSWAP.load(Ordering::Relaxed) {
        attempt(plain)
    } else {
        let kept = [plain, NOSWAP].iter().filter(|o| !o.is_empty()).copied().collect::<Vec<_>>().join(",");
        match attempt(&kept) {
            // Kernels before 6.4, and user namespaces.
            Err(Errno::EINVAL) => attempt(plain).inspect(|()| WITHOUT_NOSWAP.store(true, Ordering::Relaxed)),
            mounted => mounted,
        }
    };
    mounted.map_err(|e| format!("failed to mount memory at {}: {e}", path.display()))
}

/// Whether volumes in memory may be written to disk all the same: there is swap, and the kernel cannot keep them out of
/// it, as a mount below `folder` shows.
pub fn memory_may_be_swapped(folder: &Path) -> bool {
    if !has_swap(&std::fs::read_to_string("/proc/swaps").unwrap_or_default()) {
        return false;
    }
    let place = folder.join(format!("tmpfs-noswap-test-{}", std::process::id()));
    if private_directory(&place).is_err() {
        return true;
    }
    let mounted = mount(Some("tmpfs"), &place, Some("tmpfs"), MsFlags::empty(), Some(NOSWAP)).is_ok();
    let cleared = mount_table::unmount_strictly(&place)
        .and_then(|()| std::fs::remove_dir(&place).map_err(|e| format!("cannot remove {}: {e}", place.display())));
    if let Err(error) = cleared {
        tracing::warn!(error, "a trial mount stays");
    }
    !mounted
}

/// Below the heading there is a line for each.
fn has_swap(table: &str) -> bool {
    table.trim_end().lines().count() > 1
}

/// The least of the volume's own limit, the pod's memory limit and what the node can give; volumes that hold secrets have
/// no limit of their own.
pub fn memory_size(pod: &Pod, node: &Node, source: Option<&EmptyDirVolumeSource>) -> Option<i64> {
    let own = source.and_then(|s| s.size_limit.as_ref()).map(whole);
    let allocatable = node.status.as_ref().and_then(|s| s.allocatable.get("memory")).map(whole);
    [own, memory_limit(pod), allocatable].into_iter().flatten().filter(|size| *size > 0).min()
}

/// The memory that the pod's cgroup is limited to, which the node says nothing about.
fn memory_limit(pod: &Pod) -> Option<i64> {
    crate::cgroups::pod_limits(pod, &NodeResources::default(), 0).memory
}

fn mount_huge_pages(path: &Path, medium: &str, pod: &Pod) -> Result<(), String> {
    if mount_table::is_own_file_system(path) {
        return Ok(());
    }
    let options = format!("pagesize={}", page_size(medium, pod)?);
    mount(Some("nodev"), path, Some("hugetlbfs"), MsFlags::empty(), Some(options.as_str()))
        .map_err(|e| format!("failed to mount huge pages at {}: {e}", path.display()))
}

/// The bytes of a page, of `HugePages-SIZE` or, for `HugePages`, of what the containers request, which must agree. Either
/// way a container must request pages of that size.
fn page_size(medium: &str, pod: &Pod) -> Result<i64, String> {
    let bytes = |size: &str| {
        let parsed: Result<proto::quantity::Quantity, _> = size.parse();
        parsed.map(|size| size.value()).map_err(|e| format!("huge page size {size:?}: {e}"))
    };
    let containers = pod.spec().containers.iter().chain(&pod.spec().init_containers);
    let requests = containers.filter_map(|c| c.resources.as_ref()).flat_map(|r| r.requests.keys());
    let sizes: Result<BTreeSet<i64>, String> =
        requests.filter_map(|name| name.strip_prefix("hugepages-")).map(bytes).collect();
    let mut sizes = sizes?;
    match medium.strip_prefix(HUGE_PAGES).and_then(|rest| rest.strip_prefix('-')) {
        Some(size) => {
            let wanted = bytes(size)?;
            sizes.retain(|size| *size == wanted);
        }
        None if sizes.len() > 1 => {
            return Err(format!("medium: {medium} can't be used if container requests multiple huge page sizes"));
        }
        None => {}
    }
    sizes.pop_first().ok_or_else(|| {
        format!("medium {medium}: hugePages storage requested, but there is no resource request for huge pages")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{Container, PodSpec, ResourceRequirements};

    #[test]
    fn swap_is_what_the_table_lists() {
        let heading = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        assert!(!has_swap("") && !has_swap(heading));
        assert!(has_swap(&format!("{heading}/swapfile file 2097148 0 -2\n")));
    }

    /// A volume was as small as regular containers may grow, though an init container that fills it may grow as it likes.
    #[test]
    fn a_volume_in_memory_is_as_large_as_its_pod_may_grow() {
        let container = |memory: Option<&str>| {
            let list = |amount: &str| {
                let amount = proto::apimachinery::pkg::api::resource::Quantity { string: amount.into() };
                [("memory".to_owned(), amount)].into()
            };
            let limits = memory.map(list).unwrap_or_default();
            Container { resources: Some(ResourceRequirements { limits, ..Default::default() }), ..Default::default() }
        };
        let size = |init: Option<&str>, regular: Option<&str>| {
            let (init_containers, containers) = (vec![container(init)], vec![container(regular)]);
            let spec = PodSpec { init_containers, containers, ..Default::default() };
            memory_size(&Pod { spec: Some(spec), ..Default::default() }, &Node::default(), None)
        };
        assert_eq!(size(Some("1Mi"), Some("2Mi")), Some(2 << 20));
        assert_eq!(size(Some("3Mi"), Some("2Mi")), Some(3 << 20));
        assert_eq!([size(None, Some("2Mi")), size(Some("3Mi"), None), size(None, None)], [None; 3]);
    }

    #[test]
    fn huge_pages_are_of_a_size_that_a_container_requests() {
        let pod = |sizes: &[&str]| {
            let requests = sizes.iter().map(|size| (format!("hugepages-{size}"), Default::default())).collect();
            let resources = Some(ResourceRequirements { requests, ..Default::default() });
            let containers = vec![Container { resources, ..Default::default() }];
            Pod { spec: Some(PodSpec { containers, ..Default::default() }), ..Default::default() }
        };
        let none = |medium| {
            Err(format!(
                "medium {medium}: hugePages storage requested, but there is no resource request for huge pages"
            ))
        };
        assert_eq!(page_size("HugePages", &pod(&["2Mi"])), Ok(2 << 20));
        assert_eq!(page_size("HugePages-1Gi", &pod(&["2Mi", "1Gi"])), Ok(1 << 30));
        assert_eq!(page_size("HugePages", &pod(&[])), none("HugePages"));
        assert_eq!(page_size("HugePages-1Gi", &pod(&["2Mi"])), none("HugePages-1Gi"));
        let many = "medium: HugePages can't be used if container requests multiple huge page sizes";
        assert_eq!(page_size("HugePages", &pod(&["2Mi", "1Gi"])), Err(many.into()));
    }
}
