//! Small files that the kernel makes up when they are read: with three calls each or, where they are read at every scrape,
//! one; and no more looked at than is asked.
//!
//! Only for files of one record (all of a cgroup's but the lists of its processes): of those a read that leaves room in
//! the buffer has seen everything.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The longest of them, `memory.stat`, has less than half of it.
const ROOM: usize = 4096;

/// What every scrape of `/metrics/resource` reads of a cgroup, of either version. The way to a file in a cgroup costs ten
/// times what reading it does: each folder on it is asked for under a lock of the whole hierarchy.
const OFTEN: [&str; 10] = [
    "cpu.stat",
    "cpuacct.usage",
    "memory.current",
    "memory.limit_in_bytes",
    "memory.memsw.limit_in_bytes",
    "memory.memsw.usage_in_bytes",
    "memory.stat",
    "memory.swap.current",
    "memory.swap.max",
    "memory.usage_in_bytes",
];
/// Files kept open by the whole agent at most, for each takes a page of the kernel's memory; the cgroups beyond are read
/// as seldom ones are.
const MOST: usize = 4096;
/// So many times a file that was not there is not looked for: a cgroup may be given a controller later, seldom.
const ABSENT_FOR: u8 = 20;

static OPEN: AtomicUsize = AtomicUsize::new(0);

/// A quarter of what this process may open is left to this.
fn most() -> usize {
    static ALLOWED: OnceLock<usize> = OnceLock::new();
    *ALLOWED.get_or_init(|| {
        let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE);
        limit.map_or(0, |(soft, _)| usize::try_from(soft / 4).unwrap_or(MOST).min(MOST))
    })
}

/// Files of one cgroup that stay open from scrape to scrape, by their names.
#[derive(Debug, Default)]
pub(super) struct Kept {
    open: Vec<(&'static str, File)>,
    /// Those that are not there, which costs as much to find out, and for how many times more that is believed.
    absent: Vec<(&'static str, u8)>,
}

impl Kept {
    /// The whole text of a file; `None` where there is none.
    pub fn text(&mut self, folder: &Path, name: &'static str) -> Option<String> {
        if let Some(at) = self.open.iter().position(|(known, _)| *known == name) {
            if let Some(text) = self.open.get(at).and_then(|(_, file)| read(file)) {
                return Some(text);
            }
            // The cgroup it was of has gone; there may be another in its place.
            self.open.swap_remove(at);
            OPEN.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(at) = self.absent.iter().position(|(known, _)| *known == name) {
            match self.absent.get_mut(at) {
                Some((_, left @ 1..)) => {
                    *left -= 1;
                    return None;
                }
                _ => drop(self.absent.swap_remove(at)),
            }
        }
        let file = match File::open(folder.join(name)) {
            Ok(file) => file,
            Err(error) => {
                if error.kind() == std::io::ErrorKind::NotFound && OFTEN.contains(&name) {
                    self.absent.push((name, ABSENT_FOR));
                }
                return None;
            }
        };
        let text = read(&file)?;
        if OFTEN.contains(&name) {
            if OPEN.fetch_add(1, Ordering::Relaxed) < most() {
                self.open.push((name, file));
            } else {
                OPEN.fetch_sub(1, Ordering::Relaxed);
            }
        }
        Some(text)
    }

    /// A file with one number; `max` is none.
    pub fn number(&mut self, folder: &Path, name: &'static str) -> Option<u64> {
        self.text(folder, name)?.trim().parse().ok()
    }

    pub fn table(&mut self, folder: &Path, name: &'static str) -> Table {
        Table(self.text(folder, name).unwrap_or_default())
    }

    /// Closes them all.
    pub fn close(&mut self) {
        OPEN.fetch_sub(self.open.len(), Ordering::Relaxed);
        self.open.clear();
        self.absent.clear();
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.close();
    }
}

fn read(file: &File) -> Option<String> {
    let mut room = [0; ROOM];
    let mut count = file.read_at(&mut room, 0).ok()?;
    let mut bytes = room.get(..count)?.to_vec();
    while count == ROOM {
        count = file.read_at(&mut room, u64::try_from(bytes.len()).ok()?).ok()?;
        bytes.extend_from_slice(room.get(..count)?);
    }
    String::from_utf8(bytes).ok()
}

/// The whole text of a file that is read once; `None` where there is none.
pub(super) fn text(path: &Path) -> Option<String> {
    read(&File::open(path).ok()?)
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
        let folder = std::env::temp_dir().join(format!("node-agent-table-{}", crate::backoff::random_below(u32::MAX)));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("memory.stat");
        let filling = "x 1\n".repeat(3000);
        std::fs::write(&path, format!("anon_thp 5\nanon 7\nMemTotal:  12 kB\n{filling}last 9\nbroken\n")).unwrap();
        let mut kept = Kept::default();
        let found = ["anon", "anon_thp", "MemTotal", "last", "broken", "an"];
        let want = [Some(7), Some(5), Some(12), Some(9), None, None];
        for table in [Table::read(&path), kept.table(&folder, "memory.stat"), kept.table(&folder, "memory.stat")] {
            assert_eq!(found.map(|name| table.get(name)), want);
        }
        std::fs::write(&path, "max\n").unwrap();
        assert_eq!(kept.number(&folder, "memory.stat"), None);
        std::fs::write(&path, "12\n").unwrap();
        assert_eq!(kept.number(&folder, "memory.stat"), Some(12), "the open file is read anew");
        assert_eq!(kept.open.len(), 1);
        kept.close();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!((kept.number(&folder, "memory.stat"), Table::read(&path).get("anon")), (None, None));
    }

    /// What was not there used to be looked for at every scrape, twice for each cgroup on hosts without figures of swap.
    #[test]
    fn what_is_not_there_is_looked_for_now_and_then() {
        let folder = std::env::temp_dir().join(format!("node-agent-absent-{}", crate::backoff::random_below(u32::MAX)));
        std::fs::create_dir_all(&folder).unwrap();
        let mut kept = Kept::default();
        assert_eq!(kept.number(&folder, "memory.swap.max"), None);
        std::fs::write(folder.join("memory.swap.max"), "5\n").unwrap();
        let found = (0..=ABSENT_FOR).map(|_| kept.number(&folder, "memory.swap.max")).position(|n| n == Some(5));
        assert_eq!(found, Some(usize::from(ABSENT_FOR)));
        let mut other = Kept::default();
        assert_eq!(other.number(&folder, "pids.max"), None);
        std::fs::write(folder.join("pids.max"), "7\n").unwrap();
        assert_eq!(other.number(&folder, "pids.max"), Some(7), "what is seldom read is looked for");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
