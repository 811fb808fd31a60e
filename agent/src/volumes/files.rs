//! Volumes made of files: config maps, secrets, downward API, tokens, and projections of them.
//!
//! Content is written as the kubelet's atomic writer does: a directory named by time holds the files, `..data` points to
//! it and is replaced in one rename, and each top-level name is a link through `..data`. A reader sees all of the old
//! content or all of the new. Nothing is written when nothing changed.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Component, Path};

/// A file to write: content and mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    pub data: Vec<u8>,
    pub mode: u32,
    /// Owner, for token files of pods that run as one user.
    pub uid: Option<u32>,
}

/// Files by relative path.
pub type Payloads = BTreeMap<String, Payload>;

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";

/// Makes `dir` hold exactly `files`; `group` owns them, when given.
pub fn write(dir: &Path, files: &Payloads, group: Option<u32>) -> io::Result<()> {
    for path in files.keys() {
        check(path)?;
    }
    let old = std::fs::read_link(dir.join(DATA)).ok();
    if let Some(old) = &old
        && holds(&dir.join(old), files)
    {
        return Ok(());
    }
    let version = format!("..{}", stamp());
    let target = dir.join(&version);
    std::fs::create_dir(&target)?;
    set_mode(&target, 0o755)?;
    for (path, payload) in files {
        let file = target.join(path);
        if let Some(parent) = file.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(&file, &payload.data)?;
        let mode = if group.is_some() { payload.mode | 0o440 } else { payload.mode };
        if group.is_some() || payload.uid.is_some() {
            chown(&file, payload.uid, group)?;
        }
        set_mode(&file, mode)?;
    }
    if let Some(group) = group {
        own_dirs(&target, group)?;
    }
    let new = dir.join(NEW_DATA);
    match std::fs::remove_file(&new) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    symlink(&version, &new)?;
    std::fs::rename(&new, dir.join(DATA))?;
    link_names(dir, files)?;
    if let Some(old) = old {
        std::fs::remove_dir_all(dir.join(old))?;
    }
    Ok(())
}

/// Inside the volume, and not under a name that the writer uses itself.
fn check(path: &str) -> io::Result<()> {
    let fits = !path.is_empty()
        && !path.starts_with("..")
        && Path::new(path).components().all(|c| matches!(c, Component::Normal(_)));
    if fits { Ok(()) } else { Err(io::Error::new(io::ErrorKind::InvalidInput, format!("invalid path: {path}"))) }
}

/// A name for a version: the time, and what makes it unique.
fn stamp() -> String {
    let now = proto::time::Timestamp::now();
    let text = now.to_seconds_text().replace(['-', ':', 'T'], "_").replace('Z', "");
    format!("{text}.{:09}", now.nanos)
}

fn holds(dir: &Path, files: &Payloads) -> bool {
    let mut found = 0;
    count_files(dir, &mut found);
    found == files.len() && files.iter().all(|(path, p)| std::fs::read(dir.join(path)).is_ok_and(|d| d == p.data))
}

fn count_files(dir: &Path, found: &mut usize) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => count_files(&entry.path(), found),
            _ => *found += 1,
        }
    }
}

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

/// Directories of a pod with a group: the group may enter, and new files belong to it.
fn own_dirs(dir: &Path, group: u32) -> io::Result<()> {
    chown(dir, None, Some(group))?;
    let mode = std::fs::metadata(dir)?.permissions().mode();
    set_mode(dir, mode & 0o7777 | 0o2550)?;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            own_dirs(&entry.path(), group)?;
        }
    }
    Ok(())
}

fn link_names(dir: &Path, files: &Payloads) -> io::Result<()> {
    let names: std::collections::BTreeSet<&str> = files.keys().filter_map(|p| p.split('/').next()).collect();
    for name in &names {
        let link = dir.join(name);
        if std::fs::symlink_metadata(&link).is_err() {
            symlink(Path::new(DATA).join(name), &link)?;
        }
    }
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let ours = name.to_str().is_some_and(|n| n.starts_with("..") || names.contains(n));
        if !ours && entry.file_type()?.is_symlink() {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_replaced_as_a_whole_and_old_names_go() {
        let dir = std::env::temp_dir().join(format!("volume-files-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = |text: &str| Payload { data: text.into(), mode: 0o640, uid: None };
        let mut files: Payloads = [("a".into(), file("1")), ("deep/er/b".into(), file("2"))].into();
        write(&dir, &files, None).unwrap();
        assert_eq!(std::fs::read(dir.join("deep/er/b")).unwrap(), b"2");
        assert_eq!(std::fs::metadata(dir.join("a")).unwrap().permissions().mode() & 0o777, 0o640);
        let before = std::fs::read_link(dir.join(DATA)).unwrap();
        write(&dir, &files, None).unwrap();
        assert_eq!(std::fs::read_link(dir.join(DATA)).unwrap(), before);
        files.remove("deep/er/b");
        files.insert("a".into(), file("3"));
        write(&dir, &files, None).unwrap();
        assert_eq!(std::fs::read(dir.join("a")).unwrap(), b"3");
        assert!(!dir.join("deep").exists() && !dir.join(before).exists());
        assert!(write(&dir, &[("../x".into(), file(""))].into(), None).is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
