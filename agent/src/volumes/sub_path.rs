//! `subPath`: a part of a volume, pinned so that no symbolic link made inside the pod leads out of it.
//!
//! The kernel itself resolves the path below the volume (`openat2` with `RESOLVE_BENEATH`), and what was opened is bind
//! mounted under `volume-subpaths`; the runtime gets that place and cannot be led astray afterwards.
//!
//! Followed: `pkg/volume/util/subpath`. Limits: needs Linux 5.6; links with absolute targets count as leading out.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{Mode, fchmod, mkdirat};

use super::mount_table;

/// Why a part of a volume cannot be mounted.
#[derive(Debug, thiserror::Error)]
pub enum SubPathError {
    #[error("error SubPath `{0}` must not be an absolute path")]
    Absolute(String),
    #[error("unable to provision SubPath `{0}`: must not contain '..'")]
    Backsteps(String),
    #[error("subpath {path:?} not within volume path {volume:?}")]
    Outside { path: String, volume: PathBuf },
    #[error("{step} {path}: {error}")]
    Failed { step: &'static str, path: String, error: Errno },
    #[error("{path}: {error}")]
    Place { path: String, error: std::io::Error },
}

/// Mounts `sub_path` of a volume at `place`, making directories that are missing. Returns `place`.
///
/// # Errors
/// The path leads out of the volume, or the kernel refuses.
pub fn prepare(volume: &Path, sub_path: &str, place: &Path) -> Result<PathBuf, SubPathError> {
    let parts = parts(sub_path)?;
    // A volume may be a pipe of the node's, which keeps waiting who opens it.
    let root = OpenOptions::new().read(true).custom_flags(OFlag::O_PATH.bits()).open(volume);
    let root = root.map_err(|error| SubPathError::Place { path: volume.display().to_string(), error })?;
    let pinned = open_or_make(&root, &parts, volume, sub_path)?;
    let pinned_path = format!("/proc/self/fd/{}", pinned.as_raw_fd());
    let of_place = |error| SubPathError::Place { path: place.display().to_string(), error };
    let found = std::fs::metadata(&pinned_path).map_err(of_place)?;
    if is_pinned(place, &found)? {
        return Ok(place.to_owned());
    }
    make_place(place, found.is_dir()).map_err(of_place)?;
    mount(Some(pinned_path.as_str()), place, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .map_err(|error| SubPathError::Failed { step: "cannot mount", path: sub_path.into(), error })?;
    Ok(place.to_owned())
}

/// The names of a path that may be a part of a volume.
///
/// # Errors
/// It begins at the root, or leads upwards.
pub fn parts(sub_path: &str) -> Result<Vec<Component<'_>>, SubPathError> {
    if sub_path.starts_with('/') {
        return Err(SubPathError::Absolute(sub_path.into()));
    }
    let parts: Vec<Component<'_>> = Path::new(sub_path).components().filter(|c| *c != Component::CurDir).collect();
    if parts.contains(&Component::ParentDir) {
        return Err(SubPathError::Backsteps(sub_path.into()));
    }
    Ok(parts)
}

/// Opens a file of a volume for reading, whatever else a pod has put there: no link leads out of the volume, and nothing
/// but a file is opened.
///
/// # Errors
/// There is no such file, or the kernel refuses.
pub fn open_inside(volume: &Path, path: &Path) -> std::io::Result<File> {
    let root = OpenOptions::new().read(true).custom_flags(OFlag::O_PATH.bits()).open(volume)?;
    let found = File::from(open(&root, path)?);
    if !found.metadata()?.is_file() {
        return Err(std::io::Error::other("not a file"));
    }
    // What was found is opened, and nothing that has its name by now. Nor is the end of a lease waited for, by which the
    // file's owner can put off all others.
    let found = format!("/proc/self/fd/{}", found.as_raw_fd());
    OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(found)
}

/// Whether the place has what is wanted already. What was pinned there and is another file by now, as one of a config map
/// that has changed since, goes.
fn is_pinned(place: &Path, wanted: &Metadata) -> Result<bool, SubPathError> {
    let unknown = |why| SubPathError::Place { path: place.display().to_string(), error: std::io::Error::other(why) };
    if !mount_table::is_mount_point(place).map_err(unknown)? {
        return Ok(false);
    }
    let same = |found: Metadata| (found.dev(), found.ino()) == (wanted.dev(), wanted.ino());
    if std::fs::symlink_metadata(place).is_ok_and(same) {
        return Ok(true);
    }
    mount_table::unmount_below(place).map_err(unknown)?;
    Ok(false)
}

/// Opens a path without regard to what it is and without reading it.
fn open(root: impl AsFd, path: &Path) -> nix::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    // The kernel asks for another try when names changed under its eyes.
    for _ in 0..16 {
        match openat2(&root, path, how) {
            Err(Errno::EAGAIN) => {}
            opened => return opened,
        }
    }
    Err(Errno::EAGAIN)
}

/// Walks to the path. Missing directories get the mode of the volume, its set-group bit too: whoever may write there may
/// write here, and what is written belongs to the same group.
fn open_or_make(root: &File, parts: &[Component<'_>], volume: &Path, sub_path: &str) -> Result<OwnedFd, SubPathError> {
    let outside = || SubPathError::Outside { path: sub_path.into(), volume: volume.to_owned() };
    let failed = |step, error| match error {
        Errno::EXDEV | Errno::ELOOP => outside(),
        error => SubPathError::Failed { step, path: sub_path.into(), error },
    };
    let whole: PathBuf = parts.iter().collect();
    let whole = if parts.is_empty() { Path::new(".") } else { &whole };
    match open(root, whole) {
        Err(Errno::ENOENT) => {}
        opened => return opened.map_err(|e| failed("cannot open", e)),
    }
    let bits = root.metadata().map_or(0o755, |m| m.mode() & 0o7777);
    let mode = Mode::from_bits_truncate(bits);
    let (mut path, mut parent) = (PathBuf::new(), open(root, Path::new(".")).map_err(|e| failed("cannot open", e))?);
    for part in parts {
        path.push(part);
        parent = match open(root, &path) {
            Err(Errno::ENOENT) => {
                match mkdirat(&parent, part.as_os_str(), Mode::S_IRWXU) {
                    // A link to nowhere is there already, or somebody was faster.
                    Ok(()) | Err(Errno::EEXIST) => {}
                    Err(error) => return Err(failed("cannot make", error)),
                }
                let made = open_directory(&parent, Path::new(part)).map_err(|e| failed("cannot open", e))?;
                fchmod(&made, mode).map_err(|e| failed("cannot set the mode of", e))?;
                made
            }
            opened => opened.map_err(|e| failed("cannot open", e))?,
        };
    }
    Ok(parent)
}

/// Opens a directory just made; a link in its place is refused.
fn open_directory(parent: &OwnedFd, name: &Path) -> nix::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
    openat2(parent, name, how)
}

fn make_place(place: &Path, is_directory: bool) -> std::io::Result<()> {
    let mut private = DirBuilder::new();
    private.recursive(true).mode(0o750);
    // What was there before may have been of the other kind.
    match std::fs::symlink_metadata(place) {
        Ok(old) if old.is_dir() && !is_directory => std::fs::remove_dir(place)?,
        Ok(old) if !old.is_dir() && is_directory => std::fs::remove_file(place)?,
        _ => {}
    }
    if is_directory {
        return private.create(place);
    }
    if let Some(parent) = place.parent() {
        private.create(parent)?;
    }
    OpenOptions::new().create(true).append(true).mode(0o640).open(place).map(drop)
}
