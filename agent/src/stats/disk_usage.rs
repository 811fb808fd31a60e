//! How much folders hold, counted file by file: only for those who ask for the whole summary.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Bytes that are taken, and files, folders included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    pub bytes: u64,
    pub inodes: u64,
}

/// Entries of one folder at most; what is beyond is not counted.
const MAX_ENTRIES: u64 = 2_000_000;
/// `st_blocks` counts in these.
const BLOCK: u64 = 512;

/// What a folder holds with all below it on the same file system; files with several names count once. `None` where
/// there is nothing.
pub fn held(path: &Path) -> Option<Held> {
    let top = path.symlink_metadata().ok()?;
    let mut held = Held { bytes: top.blocks().saturating_mul(BLOCK), inodes: 1 };
    let mut shared: HashSet<u64> = HashSet::new();
    let mut folders = if top.is_dir() { vec![path.to_owned()] } else { Vec::new() };
    while let Some(folder) = folders.pop() {
        // What vanishes while it is counted is not there.
        let Ok(entries) = folder.read_dir() else { continue };
        for entry in entries.flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.dev() != top.dev()
                || metadata.nlink() > 1 && !metadata.is_dir() && !shared.insert(metadata.ino())
            {
                continue;
            }
            held.bytes = held.bytes.saturating_add(metadata.blocks().saturating_mul(BLOCK));
            held.inodes += 1;
            if held.inodes > MAX_ENTRIES {
                return Some(held);
            }
            if metadata.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    Some(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_with_two_names_count_once() {
        let dir = std::env::temp_dir().join(format!("node-agent-held-{}", crate::backoff::random_below(u32::MAX)));
        std::fs::create_dir_all(dir.join("a")).unwrap();
        std::fs::write(dir.join("a/f"), vec![1; 10_000]).unwrap();
        std::fs::hard_link(dir.join("a/f"), dir.join("g")).unwrap();
        let found = held(&dir).unwrap();
        assert_eq!(found.inodes, 3);
        assert!(found.bytes >= 10_000);
        assert_eq!(held(&dir.join("none")), None);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
