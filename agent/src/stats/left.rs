//! What the node has left of memory, disks and process numbers: a few files, cheap enough for every few seconds.

use std::path::{Path, PathBuf};

use proto::cri;

use super::cgroup::{Cgroup, Wanted};
use super::{Stats, summary};
use crate::cri::CriError;

/// What there is of something and what of it is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    pub available: u64,
    pub capacity: u64,
}

/// A file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystem {
    /// Equal for two paths on one file system.
    pub id: u64,
    pub bytes: Left,
    pub inodes: Left,
}

/// Mount points of the runtime's own file systems.
#[derive(Debug, Clone, Default)]
pub struct RuntimePaths {
    pub images: Option<PathBuf>,
    pub containers: Option<PathBuf>,
}

impl Stats {
    /// Memory of the whole node, as far as its working set leaves it.
    pub fn memory_left() -> Option<Left> {
        left_of(Cgroup::root(), None)
    }

    /// Memory that the limit of all pods together leaves.
    pub fn memory_left_to_pods() -> Option<Left> {
        let pods = Cgroup::of_pods()?;
        let limit = pods.read(Wanted::Memory).memory_limit;
        left_of(pods, limit)
    }

    /// Process numbers.
    pub fn processes_left() -> Option<Left> {
        let (most, now) = summary::processes()?;
        let capacity = u64::try_from(most).ok()?;
        Some(Left { available: capacity.saturating_sub(u64::try_from(now).unwrap_or(0)), capacity })
    }

    /// Where the runtime keeps images and containers.
    ///
    /// # Errors
    /// The runtime does not say.
    pub async fn runtime_paths(&self) -> Result<RuntimePaths, CriError> {
        let answer = self.cri.image_fs_info(cri::ImageFsInfoRequest {}).await?;
        let first = |list: Vec<cri::FilesystemUsage>| {
            let path = list.into_iter().next()?.fs_id?.mountpoint;
            (!path.is_empty()).then(|| PathBuf::from(path))
        };
        Ok(RuntimePaths { images: first(answer.image_filesystems), containers: first(answer.container_filesystems) })
    }
}

fn left_of(cgroup: Cgroup, limit: Option<u64>) -> Option<Left> {
    let capacity = limit.or_else(summary::host_memory)?;
    let used = cgroup.read(Wanted::Memory).working_set?;
    Some(Left { available: capacity.saturating_sub(used), capacity })
}

/// The file system at a path. May block where it is a remote one.
pub fn file_system(path: &Path) -> Option<FileSystem> {
    use std::os::unix::fs::MetadataExt as _;
    let stat = nix::sys::statvfs::statvfs(path).ok()?;
    let block = stat.fragment_size();
    Some(FileSystem {
        id: path.metadata().ok()?.dev(),
        bytes: Left {
            available: stat.blocks_available().saturating_mul(block),
            capacity: stat.blocks().saturating_mul(block),
        },
        inodes: Left { available: stat.files_free(), capacity: stat.files() },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_something_left_of_everything() {
        let sane = |left: Left| left.available > 0 && left.available <= left.capacity;
        assert!(Stats::processes_left().is_some_and(sane));
        let root = file_system(Path::new("/")).expect("a root file system");
        assert!(root.bytes.capacity > 0);
        assert_eq!(file_system(Path::new("/nonexistent")), None);
    }
}
