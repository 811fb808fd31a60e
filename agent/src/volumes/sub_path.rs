//! `subPath`: a part of a volume, pinned so that no symbolic link made inside the pod leads out of it.
//!
//! The kernel itself resolves the path below the volume (`openat2` with `RESOLVE_BENEATH`), and what was opened is bind
//! mounted under `volume-subpaths`; the runtime gets that place and cannot be led astray afterwards.
//!
//! A link with an absolute target, or one that leaves the volume and comes back, is none that the kernel would follow there.
//! As upstream does it, such a path is resolved first, as the node sees it; where it ends inside, what it was resolved to is
//! opened without following any link, so that one put there meanwhile leads nowhere.
//!
//! Followed: `pkg/volume/util/subpath`. Limits: needs Linux 5.6.

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
    let found = File::from(open(&root, path, ResolveFlag::empty())?);
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

/// Opens a path without regard to what it is and without reading it; no link leads out of `root`. `links` says which others
/// are not followed.
fn open(root: impl AsFd, path: &Path, links: ResolveFlag) -> nix::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS | links);
    // The kernel asks for another try when names changed under its eyes.
    for _ in 0..16 {
        match openat2(&root, path, how) {
            Err(Errno::EAGAIN) => {}
            opened => return opened,
        }
    }
    Err(Errno::EAGAIN)
}

/// What failed on the way to a path, and why.
type Stop = (&'static str, Errno);

/// The kernel's way to the path or, where a link on it has an absolute target, the way that the node sees.
fn open_or_make(root: &File, parts: &[Component<'_>], volume: &Path, sub_path: &str) -> Result<OwnedFd, SubPathError> {
    let outside = || SubPathError::Outside { path: sub_path.into(), volume: volume.to_owned() };
    let told = |(step, error): Stop| match error {
        Errno::EXDEV | Errno::ELOOP => outside(),
        error => SubPathError::Failed { step, path: sub_path.into(), error },
    };
    match walk(root, parts.iter().copied(), ResolveFlag::empty()) {
        Err((_, Errno::EXDEV)) => {}
        walked => return walked.map_err(told),
    }
    let of_path = |error| SubPathError::Place { path: sub_path.into(), error };
    let inside = resolved(volume, parts).map_err(of_path)?.ok_or_else(outside)?;
    walk(root, inside.components(), ResolveFlag::RESOLVE_NO_SYMLINKS).map_err(told)
}

/// Where a path below the volume is with all its links followed, as the node sees it: below the volume again, without links
/// as far as it is there. `None` when that is elsewhere. It may be another by the time that it is used.
fn resolved(volume: &Path, parts: &[Component<'_>]) -> std::io::Result<Option<PathBuf>> {
    let real_volume = volume.canonicalize()?;
    for there in (0..=parts.len()).rev() {
        let (path, missing) = parts.split_at(there);
        match real_volume.join(path.iter().collect::<PathBuf>()).canonicalize() {
            Ok(real) => {
                let inside = real.strip_prefix(&real_volume).ok();
                return Ok(inside.map(|inside| inside.join(missing.iter().collect::<PathBuf>())));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Walks to the path. Missing directories get the mode of the volume, its set-group bit too: whoever may write there may
/// write here, and what is written belongs to the same group.
fn walk<'a>(
    root: &File,
    parts: impl Iterator<Item = Component<'a>> + Clone,
    links: ResolveFlag,
) -> Result<OwnedFd, Stop> {
    let cannot = |step| move |error| (step, error);
    let here = Path::new(".");
    let whole: PathBuf = parts.clone().collect();
    let whole = if whole.as_os_str().is_empty() { here } else { &whole };
    match open(root, whole, links) {
        Err(Errno::ENOENT) => {}
        opened => return opened.map_err(cannot("cannot open")),
    }
    let bits = root.metadata().map_or(0o755, |m| m.mode() & 0o7777);
    let mode = Mode::from_bits_truncate(bits);
    let (mut path, mut parent) = (PathBuf::new(), open(root, here, links).map_err(cannot("cannot open"))?);
    for part in parts {
        path.push(part);
        parent = match open(root, &path, links) {
            Err(Errno::ENOENT) => {
                match mkdirat(&parent, part.as_os_str(), Mode::S_IRWXU) {
                    // A link to nowhere is there already, or somebody was faster.
                    Ok(()) | Err(Errno::EEXIST) => {}
                    Err(error) => return Err(("cannot make", error)),
                }
                let made = open_directory(&parent, Path::new(&part)).map_err(cannot("cannot open"))?;
                fchmod(&made, mode).map_err(cannot("cannot set the mode of"))?;
                made
            }
            opened => opened.map_err(cannot("cannot open"))?,
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A volume with a folder `in/deep`, and one outside beside it.
    fn volume(name: &str) -> (PathBuf, PathBuf) {
        let scratch = std::env::temp_dir().join(format!("sub-path-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&scratch);
        let volume = scratch.join("volume");
        std::fs::create_dir_all(volume.join("in/deep")).unwrap();
        std::fs::create_dir_all(scratch.join("outside")).unwrap();
        (scratch.canonicalize().unwrap(), volume.canonicalize().unwrap())
    }

    fn opened(volume: &Path, sub_path: &str) -> Result<PathBuf, SubPathError> {
        let root = OpenOptions::new().read(true).custom_flags(OFlag::O_PATH.bits()).open(volume).unwrap();
        let pinned = open_or_make(&root, &parts(sub_path)?, volume, sub_path)?;
        Ok(std::fs::read_link(format!("/proc/self/fd/{}", pinned.as_raw_fd())).unwrap())
    }

    /// They counted as leading out, wherever they led.
    #[test]
    fn a_link_with_an_absolute_target_inside_the_volume_is_followed() {
        let (scratch, volume) = volume("inside");
        symlink(volume.join("in"), volume.join("absolute")).unwrap();
        symlink("../volume/in", volume.join("around")).unwrap();
        symlink(volume.join("absolute/deep"), volume.join("twice")).unwrap();
        for (sub_path, at) in [
            ("absolute", "in"),
            ("absolute/deep", "in/deep"),
            ("absolute/new/er", "in/new/er"),
            ("around/deep", "in/deep"),
            ("twice", "in/deep"),
        ] {
            assert_eq!(opened(&volume, sub_path).unwrap(), volume.join(at), "{sub_path}");
        }
        std::fs::remove_dir_all(scratch).unwrap();
    }

    #[test]
    fn a_link_that_leads_out_is_refused_and_makes_nothing_there() {
        let (scratch, volume) = volume("outside");
        symlink(scratch.join("outside"), volume.join("out")).unwrap();
        symlink(volume.join("out"), volume.join("twice")).unwrap();
        // Its name begins as the volume's does.
        std::fs::create_dir(scratch.join("volume-2")).unwrap();
        symlink(scratch.join("volume-2"), volume.join("beside")).unwrap();
        for sub_path in ["out", "out/new", "twice/new", "beside", "beside/new"] {
            let error = opened(&volume, sub_path).unwrap_err();
            assert!(matches!(error, SubPathError::Outside { .. }), "{sub_path}: {error}");
            let told = format!("subpath {sub_path:?} not within volume path {volume:?}");
            assert_eq!(error.to_string(), told);
        }
        for made in ["outside/new", "volume-2/new"] {
            assert!(!scratch.join(made).exists(), "{made}");
        }
        std::fs::remove_dir_all(scratch).unwrap();
    }

    /// What a path was resolved to is no promise: a pod may put a link there before it is opened.
    #[test]
    fn a_link_put_into_a_resolved_path_leads_nowhere() {
        let (scratch, volume) = volume("raced");
        let root = OpenOptions::new().read(true).custom_flags(OFlag::O_PATH.bits()).open(&volume).unwrap();
        let inside = resolved(&volume, &parts("in/deep").unwrap()).unwrap().unwrap();
        std::fs::rename(volume.join("in"), volume.join("was")).unwrap();
        for target in [scratch.join("outside"), volume.join("was")] {
            symlink(&target, volume.join("in")).unwrap();
            let (_, error) = walk(&root, inside.components(), ResolveFlag::RESOLVE_NO_SYMLINKS).unwrap_err();
            assert_eq!(error, Errno::ELOOP, "{target:?}");
            std::fs::remove_file(volume.join("in")).unwrap();
        }
        std::fs::remove_dir_all(scratch).unwrap();
    }
}
