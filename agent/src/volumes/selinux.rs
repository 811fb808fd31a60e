//! Whether SELinux is on, and which mounts take labels.

use std::path::Path;
use std::sync::LazyLock;

use nix::sys::statfs::{SELINUX_MAGIC, statfs};
use nix::sys::statvfs::{FsFlags, statvfs};

use super::mount_table;

const FOLDER: &str = "/sys/fs/selinux";

static ENABLED: LazyLock<bool> = LazyLock::new(|| {
    let folder = Path::new(FOLDER);
    let is_selinux = statfs(folder).is_ok_and(|found| found.filesystem_type() == SELINUX_MAGIC);
    // Inside containers it is there and cannot be used.
    let is_read_only = statvfs(folder).is_ok_and(|found| found.flags().contains(FsFlags::ST_RDONLY));
    is_selinux && !is_read_only && has_policy(&std::fs::read("/proc/self/attr/current").unwrap_or_default())
});

/// Whether files are to be labeled on this machine.
pub fn enabled() -> bool {
    *ENABLED
}

/// Without a policy every process has the label of the kernel.
fn has_policy(own_label: &[u8]) -> bool {
    own_label.strip_suffix(b"\0").unwrap_or(own_label) != b"kernel"
}

/// Whether files below a mount can be labeled; never where SELinux is off.
pub fn takes_labels(path: &Path) -> bool {
    enabled() && mount_table::has_option(path, "seclabel")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_policy_has_the_label_of_the_kernel() {
        assert!(!has_policy(b"kernel\0") && !has_policy(b"kernel"));
        assert!(has_policy(b"system_u:system_r:kubelet_t:s0\0"));
    }
}
