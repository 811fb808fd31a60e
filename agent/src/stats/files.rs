//! Small files that the kernel makes up when they are read: with three calls each or, where they are read at every scrape,
//! one; and no more looked at than is asked.
//!
//! Only for files of one record (all of a cgroup's but the lists of its processes): of those a read that leaves room in
//! the buffer has seen everything.

use std::cell::{Cell, OnceCell};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use super::still::Still;

/// The longest of them, `memory.stat`, has less than half of it.
const ROOM: usize = 4096;
/// More than any number needs.
const ROOM_OF_NUMBER: usize = 64;

/// What every scrape of `/metrics/resource` reads of a cgroup, of either version, and one more file that every summary
/// reads. Only what somebody reads is kept open. The way to a file in a cgroup costs ten
/// times what reading it does: each folder on it is asked for under a lock of the whole hierarchy.
const OFTEN: [&str; 11] = [
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
    "pids.current",
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

/// A folder of which some files are read, one after the other. The way to it is gone for the first, and once for all
/// others.
pub(super) struct Folder<'a> {
    path: &'a Path,
    is_first: Cell<bool>,
    /// `None` inside where it is not there.
    opened: OnceCell<Option<OwnedFd>>,
}

impl<'a> Folder<'a> {
    /// Does not look at it yet.
    pub fn at(path: &'a Path) -> Self {
        Folder { path, is_first: Cell::new(true), opened: OnceCell::new() }
    }

    /// One of its files.
    ///
    /// # Errors
    /// It is not there, or must not be read.
    pub fn open(&self, name: &str) -> io::Result<File> {
        if self.is_first.replace(false) {
            return File::open(self.path.join(name));
        }
        let folder =
            || nix::fcntl::open(self.path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty());
        let Some(folder) = self.opened.get_or_init(|| folder().ok()) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let file = nix::fcntl::openat(folder, name, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty());
        Ok(File::from(file?))
    }

    /// The whole text of a file; `None` where there is none.
    pub fn text(&self, name: &str) -> Option<String> {
        whole(&self.open(name).ok()?, |bytes| String::from_utf8(bytes.to_vec()).ok())?
    }

    /// What a file says by names.
    pub fn table(&self, name: &str) -> Table {
        Table(self.text(name).unwrap_or_default())
    }
}

/// Files of one cgroup that stay open from scrape to scrape, by their names.
#[derive(Debug, Default)]
pub(super) struct Kept {
    open: Vec<(&'static str, File)>,
    /// Those that are not there, which costs as much to find out, and for how many times more that is believed.
    absent: Vec<(&'static str, u8)>,
    /// What was found in the file that is not read each time.
    still: Still,
}

impl Kept {
    /// What `read` makes of a file; `None` where there is none, or nothing can be read.
    fn with<T>(&mut self, folder: &Folder<'_>, name: &'static str, read: impl Fn(&File) -> Option<T>) -> Option<T> {
        if let Some(at) = self.open.iter().position(|(known, _)| *known == name) {
            if let Some(made) = self.open.get(at).and_then(|(_, file)| read(file)) {
                return Some(made);
            }
            // The cgroup it was of has gone; there may be another in its place, of which nothing is known.
            self.still = Still::default();
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
        let file = match folder.open(name) {
            Ok(file) => file,
            Err(error) => {
                if error.kind() == std::io::ErrorKind::NotFound && OFTEN.contains(&name) {
                    self.absent.push((name, ABSENT_FOR));
                }
                return None;
            }
        };
        let made = read(&file)?;
        if OFTEN.contains(&name) {
            if OPEN.fetch_add(1, Ordering::Relaxed) < most() {
                self.open.push((name, file));
            } else {
                OPEN.fetch_sub(1, Ordering::Relaxed);
            }
        }
        Some(made)
    }

    /// A file with one number; `max` is none.
    pub fn number(&mut self, folder: &Folder<'_>, name: &'static str) -> Option<u64> {
        let read = |file: &File| {
            let mut room = [0; ROOM_OF_NUMBER];
            let count = file.read_at(&mut room, 0).ok()?;
            Some(room.get(..count).filter(|bytes| bytes.len() < ROOM_OF_NUMBER).and_then(number))
        };
        self.with(folder, name, read).flatten()
    }

    /// Those numbers of a file of names and numbers that are wanted, in their order; all `None` where there is no file.
    pub fn fields<const N: usize>(
        &mut self,
        folder: &Folder<'_>,
        name: &'static str,
        wanted: [&str; N],
    ) -> [Option<u64>; N] {
        self.with(folder, name, |file| whole(file, |bytes| fields(bytes, wanted))).unwrap_or([None; N])
    }

    /// One number of a file that costs much to read, as it is or was when the cgroup last moved; see [`Still::found`].
    pub fn still(
        &mut self,
        (folder, name, field): (&Folder<'_>, &'static str, &str),
        cpu_nanos: Option<u64>,
        bytes: Option<u64>,
    ) -> Option<u64> {
        let mut still = std::mem::take(&mut self.still);
        let read = || {
            let [found] = self.fields(folder, name, [field]);
            found
        };
        let found = still.found(cpu_nanos, bytes, Instant::now(), read);
        self.still = still;
        found
    }

    /// Closes them all, and forgets what was found in them.
    pub fn close(&mut self) {
        OPEN.fetch_sub(self.open.len(), Ordering::Relaxed);
        self.open.clear();
        self.absent.clear();
        self.still = Still::default();
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.close();
    }
}

/// What `look` makes of all that is in a file.
fn whole<T>(file: &File, look: impl FnOnce(&[u8]) -> T) -> Option<T> {
    let mut room = [0; ROOM];
    let mut count = file.read_at(&mut room, 0).ok()?;
    if count < ROOM {
        return Some(look(room.get(..count)?));
    }
    let mut bytes = room.to_vec();
    while count == ROOM {
        count = file.read_at(&mut room, u64::try_from(bytes.len()).ok()?).ok()?;
        bytes.extend_from_slice(room.get(..count)?);
    }
    Some(look(&bytes))
}

/// The whole text of a file that is read once; `None` where there is none.
pub(super) fn text(path: &Path) -> Option<String> {
    whole(&File::open(path).ok()?, |bytes| String::from_utf8(bytes.to_vec()).ok())?
}

/// Decimal digits with blanks around them, and nothing else.
fn number(bytes: &[u8]) -> Option<u64> {
    let digits = bytes.trim_ascii();
    let add = |sum: u64, byte: &u8| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        sum.checked_mul(10)?.checked_add(u64::from(digit))
    };
    if digits.is_empty() { None } else { digits.iter().try_fold(0, add) }
}

/// The number after each name, by the first line that has one.
fn fields<const N: usize>(bytes: &[u8], wanted: [&str; N]) -> [Option<u64>; N] {
    let mut found = [None; N];
    for line in bytes.split(|byte| *byte == b'\n') {
        let Some(end) = line.iter().position(|byte| matches!(byte, b' ' | b':')) else { continue };
        let (name, rest) = line.split_at(end);
        for (wanted, slot) in wanted.iter().zip(&mut found) {
            if slot.is_none() && wanted.as_bytes() == name {
                // A unit may follow.
                let value = rest.get(1..).unwrap_or_default().trim_ascii();
                *slot = value.split(u8::is_ascii_whitespace).next().and_then(number);
            }
        }
    }
    found
}

/// A file of names and numbers, with or without colons and units. Empty where there is no file.
#[derive(Debug, Default)]
pub(super) struct Table(String);

impl Table {
    pub fn read(path: &Path) -> Self {
        Table(text(path).unwrap_or_default())
    }

    pub fn get(&self, name: &str) -> Option<u64> {
        let [found] = fields(self.0.as_bytes(), [name]);
        found
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
        let at = &Folder::at(&folder);
        let found = ["anon", "anon_thp", "MemTotal", "last", "broken", "an"];
        let want = [Some(7), Some(5), Some(12), Some(9), None, None];
        let table = Table::read(&path);
        assert_eq!(found.map(|name| table.get(name)), want);
        for _ in 0..2 {
            assert_eq!(kept.fields(at, "memory.stat", found), want);
        }
        std::fs::write(&path, "max\n").unwrap();
        assert_eq!(kept.number(at, "memory.stat"), None);
        std::fs::write(&path, "12\n").unwrap();
        assert_eq!(kept.number(at, "memory.stat"), Some(12), "the open file is read anew");
        assert_eq!(kept.open.len(), 1);
        kept.close();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!((kept.number(at, "memory.stat"), Table::read(&path).get("anon")), (None, None));
    }

    #[test]
    fn numbers_are_digits_and_no_more_than_fit() {
        let texts =
            ["12\n", " 7", "18446744073709551615\n", "18446744073709551616\n", "max\n", "-1\n", "", "\n", "1 2"];
        let want = [Some(12), Some(7), Some(u64::MAX), None, None, None, None, None, None];
        assert_eq!(texts.map(|text| number(text.as_bytes())), want);
        let twice = b"a 1\na 2\nb\nb x\nb 3 kB\na_b 4\nc:\t5\n";
        assert_eq!(fields(twice, ["a", "b", "a_b", "c", "_b"]), [Some(1), Some(3), Some(4), Some(5), None]);
    }

    /// What was not there used to be looked for at every scrape, twice for each cgroup on hosts without figures of swap.
    #[test]
    fn what_is_not_there_is_looked_for_now_and_then() {
        let folder = std::env::temp_dir().join(format!("node-agent-absent-{}", crate::backoff::random_below(u32::MAX)));
        std::fs::create_dir_all(&folder).unwrap();
        let mut kept = Kept::default();
        let at = &Folder::at(&folder);
        assert_eq!(kept.number(at, "memory.swap.max"), None);
        std::fs::write(folder.join("memory.swap.max"), "5\n").unwrap();
        let found = (0..=ABSENT_FOR).map(|_| kept.number(at, "memory.swap.max")).position(|n| n == Some(5));
        assert_eq!(found, Some(usize::from(ABSENT_FOR)));
        let mut other = Kept::default();
        assert_eq!(other.number(at, "pids.max"), None);
        std::fs::write(folder.join("pids.max"), "7\n").unwrap();
        assert_eq!(other.number(at, "pids.max"), Some(7), "what is seldom read is looked for");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
