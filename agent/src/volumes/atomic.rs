//! Writes a set of files so that readers see either all of the old or all of the new.
//!
//! The files lie in a directory named after the time (`..2026_01_31_23_59_59.123456789`), `..data` points to it, and
//! what containers see are links into `..data`. An update makes a new directory and turns `..data` by a rename; the
//! links need to change only when names come or go.
//!
//! Followed: `pkg/volume/util/atomic_writer.go`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirBuilder, File as Handle, OpenOptions, Permissions};
use std::io::{Error, ErrorKind, Result, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown, symlink};
use std::path::{Path, PathBuf};

use super::payload::{File, Payload};

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";
/// Longest path of a file below the volume.
const MAX_PATH: usize = 4096;
/// Longest name in such a path.
const MAX_NAME: usize = 255;

/// What is to be written, by [`cleaned`] path.
type Files<'a> = BTreeMap<String, &'a File>;

/// Makes `target` hold `payload`, if it does not already. `own` gives ownership to what was written, before it is seen.
///
/// # Errors
/// Bad paths, or the file system's own. What was visible before stays.
pub fn write(target: &Path, payload: &Payload, own: impl Fn() -> Result<()>) -> Result<()> {
    let payload: Files<'_> = payload.iter().map(|(path, file)| Ok((cleaned(path)?, file))).collect::<Result<_>>()?;
    let data = target.join(DATA);
    let old = std::fs::read_link(&data).ok().filter(|link| link.components().count() == 1);
    let stale = match &old {
        Some(old) => visible_names(&target.join(old))?,
        None => BTreeSet::new(),
    };
    let wanted: BTreeSet<String> = payload.keys().filter_map(|p| p.split('/').next()).map(str::to_owned).collect();
    if let Some(old) = &old
        && holds(&target.join(old), &payload)?
    {
        // A crash may have come between the rename and the links.
        return link_names(target, &wanted);
    }
    let fresh = fresh_directory(target)?;
    let written = payload.iter().try_for_each(|(path, file)| write_file(&fresh, path, file)).and_then(|()| own());
    if let Err(error) = written.and_then(|()| turn(target, &fresh)) {
        // The half-made directory is of no use to anybody.
        let _ = std::fs::remove_dir_all(&fresh);
        return Err(error);
    }
    link_names(target, &wanted)?;
    for name in stale.difference(&wanted) {
        remove(&target.join(name))?;
    }
    match old {
        Some(old) => std::fs::remove_dir_all(target.join(old)),
        None => Ok(()),
    }
}

/// Whether [`write`] has come to its end there once.
pub fn is_written(target: &Path) -> bool {
    target.join(DATA).is_dir()
}

/// A path in its shortest form: `./a//b/` is `a/b`.
///
/// # Errors
/// It leads out of the volume, names nothing in it, or is too long.
fn cleaned(path: &str) -> Result<String> {
    let wrong = |what: &str| Err(Error::new(ErrorKind::InvalidInput, format!("invalid path {path:?}: {what}")));
    if path.is_empty() || path.len() > MAX_PATH {
        return wrong("must not be empty or longer than 4096 characters");
    }
    if path.split('/').any(|name| name == "..") {
        return wrong("must not contain '..'");
    }
    let clean = path.split('/').filter(|name| !matches!(*name, "" | ".")).collect::<Vec<_>>().join("/");
    // Names like that are those of the volume's own links and directories.
    if path.starts_with('/') || clean.starts_with("..") {
        return wrong("must be relative and not start with '..'");
    }
    if clean.is_empty() || clean.split('/').any(|name| name.len() > MAX_NAME) {
        return wrong("must have names of up to 255 characters");
    }
    Ok(clean)
}

/// Names at the top of what `..data` points to.
fn visible_names(directory: &Path) -> Result<BTreeSet<String>> {
    let entries = match std::fs::read_dir(directory) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(BTreeSet::new()),
        entries => entries?,
    };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Whether a directory holds exactly these files with this content and these permissions.
fn holds(directory: &Path, payload: &Files<'_>) -> Result<bool> {
    let mut found = BTreeSet::new();
    files_below(directory, directory, &mut found)?;
    if found.len() != payload.len() || !payload.keys().all(|path| found.contains(Path::new(path))) {
        return Ok(false);
    }
    for (path, file) in payload {
        let path = directory.join(path);
        // Ownership may have added bits for the group.
        let mode = std::fs::metadata(&path)?.permissions().mode();
        if mode & file.mode != file.mode || std::fs::read(&path)? != file.data {
            return Ok(false);
        }
    }
    Ok(true)
}

fn files_below(root: &Path, directory: &Path, found: &mut BTreeSet<PathBuf>) -> Result<()> {
    let entries = match std::fs::read_dir(directory) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            files_below(root, &entry.path(), found)?;
        } else if let Ok(path) = entry.path().strip_prefix(root) {
            found.insert(path.to_owned());
        }
    }
    Ok(())
}

fn fresh_directory(target: &Path) -> Result<PathBuf> {
    let now = proto::time::Timestamp::now();
    let text = now.to_seconds_text();
    let stamp: String = text.trim_end_matches('Z').chars().map(|c| if c.is_ascii_digit() { c } else { '_' }).collect();
    // The nanoseconds make the name unique unless the clock stands still.
    for attempt in 0..100 {
        let path = target.join(format!("..{stamp}.{:09}", now.nanos.wrapping_add(attempt) % 1_000_000_000));
        match make_directory(&path) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            made => return made.map(|()| path),
        }
    }
    Err(Error::new(ErrorKind::AlreadyExists, "cannot find a free name"))
}

fn make_directory(path: &Path) -> Result<()> {
    DirBuilder::new().mode(0o755).create(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o755))
}

fn write_file(directory: &Path, path: &str, file: &File) -> Result<()> {
    let path = directory.join(path);
    let mut missing = Vec::new();
    let mut parent = path.parent();
    while let Some(folder) = parent.filter(|p| !p.exists()) {
        missing.push(folder);
        parent = folder.parent();
    }
    missing.into_iter().rev().try_for_each(make_directory)?;
    let mut handle: Handle = OpenOptions::new().write(true).create_new(true).mode(file.mode).open(&path)?;
    handle.write_all(&file.data)?;
    // The umask must not narrow it.
    handle.set_permissions(Permissions::from_mode(file.mode))?;
    match file.user {
        Some(user) => fchown(&handle, Some(user), None),
        None => Ok(()),
    }
}

/// Points `..data` to the fresh directory.
fn turn(target: &Path, fresh: &Path) -> Result<()> {
    let name = fresh.file_name().ok_or_else(|| Error::from(ErrorKind::InvalidInput))?;
    let new = target.join(NEW_DATA);
    remove(&new)?;
    symlink(name, &new)?;
    std::fs::rename(&new, target.join(DATA))
}

fn link_names(target: &Path, wanted: &BTreeSet<String>) -> Result<()> {
    for name in wanted {
        let link = target.join(name);
        let goal = Path::new(DATA).join(name);
        if std::fs::read_link(&link).ok().as_ref() != Some(&goal) {
            remove(&link)?;
            symlink(&goal, &link)?;
        }
    }
    Ok(())
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}
