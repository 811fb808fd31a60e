//! What is mounted, as the kernel tells it in `/proc/self/mountinfo`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

/// The mounts of this process.
pub const TABLE: &str = "/proc/self/mountinfo";

fn read(table: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(table).map_err(|e| format!("cannot read the mount table: {e}"))
}

/// The name that the kernel has for a place. The place itself is not touched: what is mounted there may not answer.
pub fn real_place(path: &Path) -> PathBuf {
    let parent = path.parent().and_then(|p| std::fs::canonicalize(p).ok());
    parent.zip(path.file_name()).map_or_else(|| path.to_owned(), |(parent, name)| parent.join(name))
}

/// Unmounts everything at or below a directory, deepest first. What is busy goes out of sight now and ends with its last
/// user.
///
/// # Errors
/// The kernel refuses; the path is named.
pub fn unmount_below(directory: &Path) -> Result<(), String> {
    // The kernel names what is mounted by its real path.
    let real = std::fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    unmount_all(&real, true)
}

/// The same for a disk that is to be let go of: what is busy stays mounted, for it may have something left to write.
///
/// # Errors
/// Something is in use, or the kernel refuses; the path is named.
pub fn unmount_strictly(directory: &Path) -> Result<(), String> {
    unmount_all(&real_place(directory), false)
}

fn unmount_all(real: &Path, lazily: bool) -> Result<(), String> {
    let table = read(Path::new(TABLE))?;
    let mut points: Vec<PathBuf> = mount_points(&table).filter(|p| p.starts_with(real)).collect();
    // Later mounts hide earlier ones of the same place, and children come after their parents.
    points.reverse();
    for point in points {
        let unmounted = match umount2(&point, MntFlags::UMOUNT_NOFOLLOW) {
            // A container that is still going down may hold it a moment longer.
            Err(Errno::EBUSY) if lazily => umount2(&point, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH),
            // It went by itself, with the mount above it.
            Err(Errno::EINVAL | Errno::ENOENT) => Ok(()),
            result => result,
        };
        unmounted.map_err(|e| format!("failed to unmount {}: {e}", point.display()))?;
    }
    Ok(())
}

/// Unmounts what is mounted last right there, if anything is, unless something is in use. The kernel finds the place without
/// asking the file system that is mounted there.
pub fn try_unmount(path: &Path) {
    if let Err(error) = umount2(path, MntFlags::UMOUNT_NOFOLLOW)
        && error != Errno::EINVAL
    {
        tracing::debug!(%error, path = %path.display(), "not unmounted yet");
    }
}

/// Whether something is mounted right there.
///
/// # Errors
/// The mount table cannot be read: nobody can tell.
pub fn is_mount_point(path: &Path) -> Result<bool, String> {
    let table = read(Path::new(TABLE))?;
    let real = real_place(path);
    Ok(mount_points(&table).any(|p| p == real))
}

/// Whether what is mounted at `path` is mounted below `folder` as well, by a mount table such as [`TABLE`].
///
/// # Errors
/// The mount table cannot be read: nobody can tell.
pub fn is_also_below(table: &Path, path: &Path, folder: &Path) -> Result<bool, String> {
    Ok(also_below(&read(table)?, &real_place(path), &real_place(folder)))
}

/// Whether the file or directory at `path` is mounted once more below `folder`, by a mount table such as [`TABLE`]. The
/// path is to be the one that the kernel has for it.
///
/// # Errors
/// The mount table cannot be read: nobody can tell.
///
/// Followed: `mount-utils` (`SearchMountPoints`).
pub fn is_bound_below(table: &Path, path: &Path, folder: &Path) -> Result<bool, String> {
    Ok(bound_below(&read(table)?, path, &real_place(folder)))
}

/// A mount has the device number of its file system in the third field, and in the fourth what of that it shows.
fn bound_below(table: &[u8], path: &Path, folder: &Path) -> bool {
    let named = |field: &[u8]| PathBuf::from(OsString::from_vec(unescaped(field)));
    let mount = |line: &[u8]| {
        let mut fields = line.split(|b| *b == b' ').skip(2);
        Some((fields.next()?.to_vec(), named(fields.next()?), named(fields.next()?)))
    };
    let mounts: Vec<_> = table.split(|b| *b == b'\n').filter_map(mount).collect();
    // The innermost one counts, and the last of those in one place. The root is in the table where it was mounted, which
    // may be after what is mounted in it.
    let around = mounts.iter().enumerate().filter_map(|(at, (device, shows, point))| {
        let rest = path.strip_prefix(point).ok()?;
        Some((rest.components().count(), at, device, shows.join(rest)))
    });
    let found = around.min_by_key(|(below, at, ..)| (*below, std::cmp::Reverse(*at)));
    let Some((_, of, device, shown)) = found else { return false };
    // A slash at the end makes no other path.
    let is_same = |(number, shows, _): &(Vec<u8>, PathBuf, PathBuf)| number == device && *shows == shown;
    mounts.iter().enumerate().any(|(at, mount)| at != of && is_same(mount) && mount.2.starts_with(folder))
}

/// Each place where something is mounted, and the device number of its file system.
///
/// # Errors
/// The mount table cannot be read: nobody can tell.
pub fn devices(table: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>, String> {
    Ok(devices_of(&read(table)?))
}

/// The last mount of a place hides those before it.
fn devices_of(table: &[u8]) -> BTreeMap<PathBuf, Vec<u8>> {
    let device = |line: &[u8]| line.split(|b| *b == b' ').nth(2).unwrap_or_default().to_vec();
    let lines = table.split(|b| *b == b'\n').filter(|line| !line.is_empty());
    mount_points(table).zip(lines.map(device)).collect()
}

/// Mounts of one file system have one device number, the third field.
fn also_below(table: &[u8], path: &Path, folder: &Path) -> bool {
    let device = |line: &[u8]| line.split(|b| *b == b' ').nth(2).map(<[u8]>::to_vec);
    let devices = table.split(|b| *b == b'\n').map(device);
    let mounts: Vec<(PathBuf, Option<Vec<u8>>)> = mount_points(table).zip(devices).collect();
    let Some((_, own)) = mounts.iter().rev().find(|(point, _)| point == path) else { return false };
    mounts.iter().any(|(point, device)| device == own && point.starts_with(folder))
}

/// Whether a file system of its own begins right there. Only for file systems in memory: they always answer, where for
/// others [`is_mount_point`] reads the whole mount table.
pub fn is_own_file_system(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let device = |path: &Path| std::fs::symlink_metadata(path).ok().map(|found| found.dev());
    let above = path.parent().and_then(device);
    device(path).zip(above).is_some_and(|(own, above)| own != above)
}

/// Whether the file system that is mounted right there has an option. A table that cannot be read has none.
pub fn has_option(path: &Path, option: &str) -> bool {
    read(Path::new(TABLE)).is_ok_and(|table| option_of(&table, &real_place(path), option))
}

/// Options of the file system are the last field, after those of the mount.
fn option_of(table: &[u8], path: &Path, option: &str) -> bool {
    let lines = table.split(|b| *b == b'\n');
    let last = mount_points(table).zip(lines).filter(|(point, _)| point == path).last();
    let options = last.and_then(|(_, line)| line.rsplit(|b| *b == b' ').next());
    options.is_some_and(|options| options.split(|b| *b == b',').any(|o| o == option.as_bytes()))
}

fn mount_points(table: &[u8]) -> impl Iterator<Item = PathBuf> + '_ {
    let lines = table.split(|b| *b == b'\n');
    lines.filter_map(|line| line.split(|b| *b == b' ').nth(4)).map(|field| OsString::from_vec(unescaped(field)).into())
}

/// Spaces, tabs, line ends and backslashes come as `\040` and the like.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        if let (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) = (first, tail) {
            out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
            rest = after;
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_with_their_escapes() {
        let table = b"36 35 98:0 /m /mnt/a\\040b\\134 rw,noatime master:1 - ext3 /dev/root rw\n37 35 0:4 / /proc rw - proc proc rw\n";
        let points: Vec<_> = mount_points(table).collect();
        assert_eq!(points, [PathBuf::from("/mnt/a b\\"), PathBuf::from("/proc")]);
    }

    #[test]
    fn a_place_has_the_device_of_its_last_mount() {
        let table = b"36 35 98:0 / /a\\040b rw - ext4 /dev/a rw\n37 35 98:1 / /b rw - ext4 /dev/b rw\n\
            38 35 0:44 / /b rw - nfs server:/x rw\n";
        let of = |(place, device): (&str, &str)| (PathBuf::from(place), device.as_bytes().to_vec());
        assert_eq!(devices_of(table), [("/a b", "98:0"), ("/b", "0:44")].map(of).into());
    }

    #[test]
    fn options_are_those_of_the_last_mount() {
        let table = b"36 35 98:0 / /a rw,seclabel - ext4 /dev/a rw\n37 35 98:1 / /b rw - ext4 /dev/a rw,seclabel\n\
            38 35 98:1 / /c rw - ext4 /dev/a rw,seclabel\n39 35 98:2 / /c rw - ext4 /dev/b rw\n";
        let found = ["/a", "/b", "/c", "/d"].map(|path| option_of(table, Path::new(path), "seclabel"));
        assert_eq!(found, [false, true, false, false]);
    }

    #[test]
    fn a_directory_that_is_mounted_once_more_is_found_by_what_the_mounts_show() {
        let table = b"2 1 98:1 /in /mnt rw - ext4 /dev/b rw\n1 0 98:0 / / rw - ext4 /dev/a rw\n\
            3 1 98:0 /disks/a /r/pods/u/a rw - ext4 /dev/a rw\n4 1 98:1 /in/b\\040b /r/pods/u/b rw - ext4 /dev/b rw\n\
            5 1 98:1 /in /r/pods/u/c rw - ext4 /dev/b rw\n6 1 98:0 /disks/d /other/d rw - ext4 /dev/a rw\n";
        let found = |path: &str| bound_below(table, Path::new(path), Path::new("/r/pods"));
        assert!(found("/disks/a") && found("/mnt/b b") && found("/mnt"));
        assert!(!found("/disks/d") && !found("/disks") && !found("/mnt/b") && !found("/disks/a/below"));
    }

    #[test]
    fn other_mounts_of_a_file_system_are_found_by_its_device() {
        let table = b"36 35 98:0 / /r/plugins/d rw - ext4 /dev/a rw\n37 35 98:0 / /r/pods/u/v rw - ext4 /dev/a rw\n\
            38 35 98:1 / /r/plugins/e rw - ext4 /dev/b rw\n";
        let below = |path: &str| also_below(table, Path::new(path), Path::new("/r/pods"));
        assert!(below("/r/plugins/d") && !below("/r/plugins/e") && !below("/r/plugins/none"));
    }
}
