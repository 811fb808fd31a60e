//! The sockets in a folder and below, and waiting for them to change.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use nix::sys::inotify::AddWatchFlags;

use crate::file_watch::FileWatch;

/// Tells a socket from another one at the same path: device, inode, time of creation.
pub type Identity = (u64, u64, i64, i64);

/// Folders looked into; a tree deeper or wider than that is no registry.
const MAX_FOLDERS: usize = 256;

/// Calls `visit` for every entry whose name does not start with a dot; returns the folders.
fn walk(root: &Path, mut visit: impl FnMut(PathBuf, &std::fs::Metadata)) -> Vec<PathBuf> {
    let mut folders = vec![root.to_owned()];
    let mut next = 0;
    while let Some(folder) = folders.get(next).cloned() {
        next += 1;
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            // Of a link what it is, not where it leads.
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() && folders.len() < MAX_FOLDERS {
                folders.push(entry.path());
            } else {
                visit(entry.path(), &metadata);
            }
        }
    }
    folders
}

/// The sockets by path.
pub fn sockets(root: &Path) -> BTreeMap<PathBuf, Identity> {
    let mut found = BTreeMap::new();
    walk(root, |path, metadata| {
        if metadata.file_type().is_socket() {
            found.insert(path, (metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec()));
        }
    });
    found
}

/// Begins to watch the folder and those in it.
pub fn watch(root: &Path) -> std::io::Result<FileWatch> {
    let folders = walk(root, |_, _| {});
    let events = AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_MOVED_FROM
        | AddWatchFlags::IN_DELETE_SELF;
    let mut wanted: Vec<(&Path, AddWatchFlags)> = Vec::new();
    for folder in &folders {
        // One that went away meanwhile tells its parent.
        if folder == root || folder.is_dir() {
            wanted.push((folder, events));
        }
    }
    FileWatch::new(&wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn sockets_below_are_found_and_hidden_ones_and_files_are_not() {
        let root = std::env::temp_dir().join(format!("registry-{}", std::process::id()));
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::create_dir_all(root.join(".hidden")).unwrap();
        std::fs::write(root.join("file.sock"), "").unwrap();
        let listen = |path: &str| UnixListener::bind(root.join(path)).unwrap();
        let _kept = [listen("x.sock"), listen("a/b/y.sock"), listen(".z.sock"), listen(".hidden/w.sock")];
        let found = sockets(&root);
        let names: Vec<_> = found.keys().map(|p| p.strip_prefix(&root).unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["a/b/y.sock", "x.sock"]);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
