//! `fsGroup`: the group of a pod gets the files of its volumes.
//!
//! Followed: `pkg/volume/volume_linux.go`.

use std::fs::{Metadata, Permissions};
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
/// Those of [`give`].
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

/// Gives a volume and all below it to a group. Symbolic links change their owner and are not followed. What cannot be
/// changed stays as it is and is told in the log, as with the kubelet: a pod does not wait for a file that it may not
/// need.
///
/// # Errors
/// The first directory that cannot be read, or entry that cannot be looked at.
pub fn give(path: &Path, group: u32, access: Access) -> std::io::Result<()> {
    let (mut count, mut first) = (0_u64, None);
    let walked = walk(path, &mut |entry, found| {
        if let Err(error) = change(entry, found, group, access) {
            count += 1;
            first.get_or_insert_with(|| (entry.to_owned(), error));
        }
    });
    if let Some((entry, error)) = first {
        tracing::warn!(%error, first = %entry.display(), count, group, "files cannot be given to the group of a pod");
    }
    walked
}

/// Visits what is below a directory before the directory itself: its root shows what a walk that was broken off has not
/// come to, for the next one.
fn walk(path: &Path, visit: &mut impl FnMut(&Path, &Metadata)) -> std::io::Result<()> {
    let found = std::fs::symlink_metadata(path)?;
    if found.is_dir() {
        for entry in std::fs::read_dir(path)? {
            walk(&entry?.path(), visit)?;
        }
    }
    visit(path, &found);
    Ok(())
}

fn change(path: &Path, found: &Metadata, group: u32, access: Access) -> std::io::Result<()> {
    let given = lchown(path, None, Some(group));
    if found.file_type().is_symlink() {
        return given;
    }
    let mut mode = found.mode() & 0o7777 | mask(access);
    if found.is_dir() {
        mode |= SET_GROUP | EXECUTE;
    }
    // Tried even where the group is refused.
    given.and(std::fs::set_permissions(path, Permissions::from_mode(mode)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;
    use std::path::PathBuf;

    use nix::mount::{MsFlags, mount};

    use super::super::mount_table;
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("ownership-{name}-{}", std::process::id()));
        let _ = mount_table::unmount_below(&path);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    fn of(path: &Path) -> (u32, u32) {
        let found = std::fs::symlink_metadata(path).unwrap();
        (found.gid(), found.mode() & 0o7777)
    }

    /// A single file that could not be changed, as on a file system that is mounted in the volume to be read only, kept
    /// the whole volume from its pod.
    #[test]
    fn a_file_that_cannot_be_changed_keeps_no_volume_from_its_pod() {
        let root = scratch("refused");
        let fixed = root.join("a-fixed");
        std::fs::create_dir(&fixed).unwrap();
        if mount(Some("tmpfs"), &fixed, Some("tmpfs"), MsFlags::empty(), Some("mode=700")).is_err() {
            eprintln!("skipped: no right to mount");
            std::fs::remove_dir_all(&root).unwrap();
            return;
        }
        std::fs::write(fixed.join("file"), "").unwrap();
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(None::<&str>, &fixed, None::<&str>, flags, Some("mode=700")).unwrap();
        let file = root.join("b-file");
        std::fs::write(&file, "").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        std::fs::set_permissions(&root, Permissions::from_mode(0o755)).unwrap();
        let given = give(&root, 3001, Access::ReadWrite).map_err(|e| e.to_string());
        let (of_file, of_root, of_fixed) = (of(&file), of(&root), of(&fixed));
        mount_table::unmount_below(&root).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(given, Ok(()));
        assert_eq!((of_file, of_root), ((3001, 0o660), (3001, 0o2775)));
        assert_eq!(of_fixed, (0, 0o700), "it is as it was");
    }

    /// The root was changed first: with `OnRootMismatch` the rest of a walk that was broken off was never looked at
    /// again.
    #[test]
    fn the_root_is_changed_when_all_below_it_is() {
        let root = scratch("order");
        if chown(&root, None, Some(3002)).is_err() {
            eprintln!("skipped: no right to give files away");
            std::fs::remove_dir_all(&root).unwrap();
            return;
        }
        std::fs::set_permissions(&root, Permissions::from_mode(0o2775)).unwrap();
        // Two halves of a path that is longer than the kernel takes.
        let half = |name: &str| (0..12).fold(root.join(name), |path, _| path.join("x".repeat(200)));
        let (upper, lower) = (half("a"), half("b"));
        std::fs::create_dir_all(&upper).unwrap();
        std::fs::create_dir_all(&lower).unwrap();
        std::fs::rename(root.join("b"), upper.join("b")).unwrap();
        let broken_off = give(&root, 3001, Access::ReadWrite).is_err();
        let matches = root_matches(&root, 3001, Access::ReadWrite);
        // Put side by side again, to be removed by their paths.
        std::fs::rename(upper.join("b"), root.join("b")).unwrap();
        let again = give(&root, 3001, Access::ReadWrite).map_err(|e| e.to_string());
        let matches_then = root_matches(&root, 3001, Access::ReadWrite);
        std::fs::remove_dir_all(&root).unwrap();
        assert!(broken_off && !matches, "{broken_off} {matches}");
        assert!(again.is_ok() && matches_then, "{again:?} {matches_then}");
    }
}
