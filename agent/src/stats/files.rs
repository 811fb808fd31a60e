//! Small files that the kernel makes up when they are read: with three calls each, and no more looked at than is asked.
//!
//! Only for files of one record (all of a cgroup's but the lists of its processes): of those a read that leaves room in
//! the buffer has seen everything.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// The longest of them, `memory.stat`, has less than half of it.
const ROOM: usize = 4096;

/// The whole text; `None` where there is none.
pub(super) fn text(path: &Path) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let mut room = [0; ROOM];
    let count = file.read(&mut room).ok()?;
    let mut bytes = room.get(..count)?.to_vec();
    if count == ROOM {
        file.read_to_end(&mut bytes).ok()?;
    }
    String::from_utf8(bytes).ok()
}

/// A file with one number; `max` is none.
pub(super) fn number(path: &Path) -> Option<u64> {
    text(path)?.trim().parse().ok()
}

/// A file of names and numbers, with or without colons and units. Empty where there is no file.
#[derive(Debug, Default)]
pub(super) struct Table(String);

impl Table {
    pub fn read(path: &Path) -> Self {
        Table(text(path).unwrap_or_default())
    }

    pub fn get(&self, name: &str) -> Option<u64> {
        let value =
            |line: &str| line.strip_prefix(name)?.strip_prefix([' ', ':'])?.split_whitespace().next()?.parse().ok();
        self.0.lines().find_map(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_whole_and_long_files_to_their_end() {
        let path = std::env::temp_dir().join(format!("node-agent-table-{}", crate::backoff::random_below(u32::MAX)));
        let filling = "x 1\n".repeat(3000);
        std::fs::write(&path, format!("anon_thp 5\nanon 7\nMemTotal:  12 kB\n{filling}last 9\nbroken\n")).unwrap();
        let table = Table::read(&path);
        let got = ["anon", "anon_thp", "MemTotal", "last", "broken", "an"].map(|name| table.get(name));
        assert_eq!(got, [Some(7), Some(5), Some(12), Some(9), None, None]);
        std::fs::write(&path, "max\n").unwrap();
        assert_eq!(number(&path), None);
        std::fs::write(&path, "12\n").unwrap();
        assert_eq!(number(&path), Some(12));
        std::fs::remove_file(&path).unwrap();
        assert_eq!((number(&path), Table::read(&path).get("anon")), (None, None));
    }
}
