//! How much folders hold, counted file by file: only for those who ask for the whole summary.
//!
//! Counting a large folder takes long, and reads what nobody else wants in memory. So what was counted is told again until
//! a hundred times as long has passed as counting took, a minute at most: a folder takes no more than about a hundredth of the
//! time, however often somebody asks, and one that is so large that it takes more is counted as often as the kubelet counts,
//! for limits are kept by these figures. No lock is held while files are looked at, and counting ends when nobody waits for it any more.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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
/// How many times as long as counting took its outcome holds.
const HOLDS: u32 = 100;
/// The longest that it holds: the kubelet's `volumeStatsAggPeriod`.
const LONGEST: Duration = Duration::from_secs(60);
/// What nobody has asked about for so long is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// How often one that waits for another's count looks whether somebody waits for himself.
const LOOK: Duration = Duration::from_millis(50);

/// Ends counting when it is dropped: held by the one who asked.
#[derive(Debug, Default)]
pub struct Asker(Arc<AtomicBool>);

impl Asker {
    /// What is handed to those who count.
    pub fn given_up(&self) -> GivenUp {
        GivenUp(self.0.clone())
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Whether nobody waits any more.
#[derive(Debug, Clone)]
pub struct GivenUp(Arc<AtomicBool>);

impl GivenUp {
    fn is_so(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What was last counted in a folder.
#[derive(Debug)]
struct Counted {
    held: Option<Held>,
    took: Duration,
    ended: Instant,
    asked: Instant,
}

#[derive(Debug, Default)]
struct Table {
    counted: HashMap<PathBuf, Counted>,
    /// Folders that somebody is counting.
    underway: HashSet<PathBuf>,
    swept: Option<Instant>,
}

/// A folder that is being counted, until this is dropped.
struct Underway<'a> {
    walks: &'a Walks,
    path: &'a Path,
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        self.walks.table().underway.remove(self.path);
        self.walks.ended.notify_all();
    }
}

/// What folders hold, as they were last counted.
#[derive(Debug, Default)]
pub struct Walks {
    table: Mutex<Table>,
    ended: Condvar,
}

impl Walks {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a folder holds; `None` where there is nothing, or nobody waits any more. And how long it took, where it was
    /// counted for this question. Blocks.
    pub fn look(&self, path: &Path, given_up: &GivenUp) -> (Option<Held>, Option<Duration>) {
        let began = Instant::now();
        let mut table = self.table();
        loop {
            let known = table.counted.get_mut(path).map(|known| {
                known.asked = began;
                (known.held, began.saturating_duration_since(known.ended) < holds(known.took))
            });
            match known {
                Some((held, true)) => return (held, None),
                // What is old is better than to wait for another's count.
                Some((held, false)) if table.underway.contains(path) => return (held, None),
                None if table.underway.contains(path) => {
                    if given_up.is_so() {
                        return (None, None);
                    }
                    let waited = self.ended.wait_timeout(table, LOOK);
                    (table, _) = waited.unwrap_or_else(PoisonError::into_inner);
                }
                _ => break,
            }
        }
        // Dropped after the table is unlocked again: the others find what was counted.
        let _underway = self.begin(table, path);
        let began = Instant::now();
        let found = count(path, given_up);
        let took = began.elapsed();
        let mut table = self.table();
        // What was not counted to its end is no news.
        let Ok(held) = found else { return (table.counted.get(path).and_then(|known| known.held), None) };
        let now = Instant::now();
        table.counted.insert(path.to_owned(), Counted { held, took, ended: now, asked: now });
        if table.swept.is_none_or(|at| now.saturating_duration_since(at) > FORGOTTEN) {
            table.swept = Some(now);
            table.counted.retain(|_, known| now.saturating_duration_since(known.asked) < FORGOTTEN);
        }
        (held, Some(took))
    }

    /// Notes that a folder is being counted, and unlocks the table.
    fn begin<'a>(&'a self, mut table: MutexGuard<'_, Table>, path: &'a Path) -> Underway<'a> {
        table.underway.insert(path.to_owned());
        Underway { walks: self, path }
    }

    /// [`Walks::look`] for those who do not want to know how long it took.
    pub fn held(&self, path: &Path, given_up: &GivenUp) -> Option<Held> {
        self.look(path, given_up).0
    }
}

/// How long what took so long to count is told again.
fn holds(took: Duration) -> Duration {
    took.saturating_mul(HOLDS).min(LONGEST)
}

/// Counting was given up.
struct Unfinished;

/// What a folder holds with all below it on the same file system; files with several names count once. `None` where
/// there is nothing.
fn count(path: &Path, given_up: &GivenUp) -> Result<Option<Held>, Unfinished> {
    let Ok(top) = path.symlink_metadata() else { return Ok(None) };
    let mut held = Held { bytes: top.blocks().saturating_mul(BLOCK), inodes: 1 };
    let mut shared: HashSet<u64> = HashSet::new();
    let mut folders = if top.is_dir() { vec![path.to_owned()] } else { Vec::new() };
    while let Some(folder) = folders.pop() {
        // What vanishes while it is counted is not there.
        let Ok(entries) = folder.read_dir() else { continue };
        for entry in entries.flatten() {
            if given_up.is_so() {
                return Err(Unfinished);
            }
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.dev() != top.dev()
                || metadata.nlink() > 1 && !metadata.is_dir() && !shared.insert(metadata.ino())
            {
                continue;
            }
            held.bytes = held.bytes.saturating_add(metadata.blocks().saturating_mul(BLOCK));
            held.inodes += 1;
            if held.inodes > MAX_ENTRIES {
                return Ok(Some(held));
            }
            if metadata.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    Ok(Some(held))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch() -> PathBuf {
        let dir = std::env::temp_dir().join(format!("node-agent-held-{}", crate::backoff::random_below(u32::MAX)));
        std::fs::create_dir_all(dir.join("a")).unwrap();
        dir
    }

    #[test]
    fn files_with_two_names_count_once() {
        let dir = scratch();
        std::fs::write(dir.join("a/f"), vec![1; 10_000]).unwrap();
        std::fs::hard_link(dir.join("a/f"), dir.join("g")).unwrap();
        let (walks, asker) = (Walks::default(), Asker::default());
        let found = walks.held(&dir, &asker.given_up()).unwrap();
        assert_eq!(found.inodes, 3);
        assert!(found.bytes >= 10_000);
        assert_eq!(walks.held(&dir.join("none"), &asker.given_up()), None);
        std::fs::remove_dir_all(dir).unwrap();
    }

    /// Every question used to count every folder again, however large.
    #[test]
    fn what_took_long_is_told_again() {
        let dir = scratch();
        let (walks, asker) = (Walks::default(), Asker::default());
        let look = || walks.look(&dir, &asker.given_up());
        assert!(look().1.is_some());
        let known = |change: &dyn Fn(&mut Counted)| change(walks.table().counted.get_mut(&dir).unwrap());
        known(&|counted| counted.took = Duration::from_secs(60));
        std::fs::write(dir.join("f"), "f").unwrap();
        assert_eq!(look(), (Some(Held { inodes: 2, ..look().0.unwrap() }), None));
        known(&|counted| counted.took = Duration::ZERO);
        let (held, took) = look();
        assert!(held.unwrap().inodes == 3 && took.is_some());
        assert_eq!(holds(Duration::from_millis(10)), Duration::from_secs(1));
        assert_eq!(holds(Duration::from_secs(20)), LONGEST, "limits are kept by it");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_count_that_broke_off_keeps_nobody_waiting() {
        let (dir, walks, asker) = (scratch(), Walks::default(), Asker::default());
        std::thread::scope(|scope| {
            let broken = scope.spawn(|| {
                let _underway = walks.begin(walks.table(), &dir);
                panic!("a fault while it counts");
            });
            assert!(broken.join().is_err());
        });
        assert!(walks.table().underway.is_empty());
        assert!(walks.held(&dir, &asker.given_up()).is_some());
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn counting_ends_with_the_one_who_asked() {
        let dir = scratch();
        let (walks, asker) = (Walks::default(), Asker::default());
        let given_up = asker.given_up();
        drop(asker);
        assert_eq!(walks.look(&dir, &given_up), (None, None));
        assert!(walks.table().counted.is_empty() && walks.table().underway.is_empty());
        // Another's count that goes on is told of as it was before.
        let asker = Asker::default();
        let before = walks.held(&dir, &asker.given_up());
        walks.table().counted.get_mut(&dir).unwrap().took = Duration::ZERO;
        walks.table().underway.insert(dir.clone());
        assert_eq!(walks.look(&dir, &asker.given_up()), (before, None));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
