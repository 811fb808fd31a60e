//! `fsGroup`: the group of a pod gets the files of its volumes.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown};
use std::path::Path;

use proto::api::core::v1::Pod;

use crate::pod::spec::PodExt;

/// What the group may do with files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

const READ: u32 = 0o440;
const READ_WRITE: u32 = 0o660;
const EXECUTE: u32 = 0o110;
/// New files in a directory belong to its group.
const SET_GROUP: u32 = 0o2000;

/// The group that the pod wants its volumes to have.
pub fn fs_group(pod: &Pod) -> Option<u32> {
    let group = pod.spec().security_context.as_ref()?.fs_group?;
    u32::try_from(group).ok()
}

/// The user that all containers run as, if there is one such: the owner of token files.
pub fn common_user(pod: &Pod) -> Option<u32> {
    let spec = pod.spec();
    let of_pod = spec.security_context.as_ref().and_then(|s| s.run_as_user);
    let mut users = spec
        .init_containers
        .iter()
        .chain(&spec.containers)
        .map(|c| c.security_context.as_ref().and_then(|s| s.run_as_user).or(of_pod));
    let first = users.next()??;
    users.all(|user| user == Some(first)).then(|| u32::try_from(first).ok()).flatten()
}

/// Gives a writable volume to the group of the pod, if it has one, by the pod's policy of changing it.
///
/// # Errors
/// The first entry that cannot be changed.
pub fn give_to_pod(path: &Path, pod: &Pod) -> std::io::Result<()> {
    let Some(group) = fs_group(pod) else { return Ok(()) };
    let policy = pod.spec().security_context.as_ref().and_then(|s| s.fs_group_change_policy.as_deref());
    if policy == Some("OnRootMismatch") && root_matches(path, group, Access::ReadWrite) {
        return Ok(());
    }
    give(path, group, Access::ReadWrite)
}

/// Whether the root of a volume is already as [`give`] leaves it (`fsGroupChangePolicy: OnRootMismatch`).
pub fn root_matches(path: &Path, group: u32, access: Access) -> bool {
    let wanted = SET_GROUP | EXECUTE | mask(access);
    std::fs::metadata(path).is_ok_and(|m| m.gid() == group && m.mode() & wanted == wanted)
}

fn mask(access: Access) -> u32 {
    match access {
        Access::ReadOnly => READ,
        Access::ReadWrite => READ_WRITE,
    }
}

/// Gives a volume and all below it to a group. Symbolic links change their owner and are not followed.
///
/// # Errors
/// The first entry that cannot be changed.
pub fn give(path: &Path, group: u32, access: Access) -> std::io::Result<()> {
    let found = std::fs::symlink_metadata(path)?;
    lchown(path, None, Some(group))?;
    if found.file_type().is_symlink() {
        return Ok(());
    }
    let mut mode = found.mode() & 0o7777 | mask(access);
    if found.is_dir() {
        for entry in std::fs::read_dir(path)? {
            give(&entry?.path(), group, access)?;
        }
        mode |= SET_GROUP | EXECUTE;
    }
    std::fs::set_permissions(path, Permissions::from_mode(mode))
}
