//! A part of a volume as a mount of its own.
//!
//! A container may plant symbolic links in its volume, so a path into it is never trusted: what is opened is checked to
//! lie inside the volume, and the open descriptor, not the path, is bound to a place only the agent writes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};

use nix::mount::{MsFlags, mount};

/// Binds `volume/sub` to `at`; a missing directory is made. Returns `at`.
pub fn bind(volume: &Path, sub: &str, at: &Path) -> io::Result<PathBuf> {
    let sub = Path::new(sub);
    if !sub.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir)) {
        return Err(refused("the path must be relative and stay inside the volume"));
    }
    let volume = volume.canonicalize()?;
    let wanted = volume.join(sub);
    if !wanted.exists() {
        make_inside(&volume, sub)?;
    }
    let file = open(&wanted)?;
    let seen = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    if !seen.starts_with(&volume) {
        return Err(refused("the path leads out of the volume"));
    }
    if let Some(parent) = at.parent() {
        std::fs::create_dir_all(parent)?;
    }
    if is_mounted(at)? {
        return Ok(at.to_owned());
    }
    if file.metadata()?.is_dir() {
        std::fs::create_dir_all(at)?;
    } else if !at.exists() {
        File::create(at)?;
    }
    let source = format!("/proc/self/fd/{}", file.as_raw_fd());
    mount(Some(source.as_str()), at, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)?;
    Ok(at.to_owned())
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_CLOEXEC).open(path)
}

/// Makes directories step by step, refusing links that lead out.
fn make_inside(volume: &Path, sub: &Path) -> io::Result<()> {
    // As open as the volume itself: whoever may write there may write here.
    let mode = std::fs::metadata(volume)?.permissions().mode() & 0o777;
    let mut at = volume.to_owned();
    for part in sub.components() {
        at.push(part);
        match std::fs::create_dir(&at) {
            Ok(()) => std::fs::set_permissions(&at, std::fs::Permissions::from_mode(mode))?,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
        at = at.canonicalize()?;
        if !at.starts_with(volume) {
            return Err(refused("the path leads out of the volume"));
        }
    }
    Ok(())
}

fn is_mounted(at: &Path) -> io::Result<bool> {
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    Ok(table.lines().filter_map(|l| l.split(' ').nth(4)).any(|p| Path::new(p) == at))
}
