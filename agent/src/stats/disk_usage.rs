//! How much folders hold, counted file by file: only for those who ask for the whole summary.
//!
//! Counting a large folder takes long, and reads what nobody else wants in memory. So what was counted is told again
//! until a hundred times as long has passed as counting took, a minute at most: a folder takes no more than about a
//! hundredth of the time, however often somebody asks, and one that is so large that it takes more is counted as often
//! as the kubelet counts, for limits are kept by these figures. No lock is held while files are looked at, and
//! counting ends when nobody waits for it any more.
//!
//! What containers fill may be of any size, and may hang ([`Walks::look_awhile`]): nobody waits long for it. It is
//! counted to its end all the same, for whoever asks next; until then what was counted before goes on to hold.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::mounted::Mounted;

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
/// How long a question waits, in all, for folders of which nothing is known yet.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it waits for one of which something is known.
const KNOWN_PATIENCE: Duration = Duration::from_millis(500);

/// Ends counting when it is dropped: held by the one who asked.
#[derive(Debug, Default)]
pub struct Asker(GivenUp);

impl Asker {
    /// What is handed to those who count.
    pub fn given_up(&self) -> GivenUp {
        self.0.clone()
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

/// A question: whether nobody waits for its answer any more.
#[derive(Debug, Clone)]
pub struct GivenUp {
    over: Arc<AtomicBool>,
    asked: Instant,
    /// Read once for all folders.
    mounted: Arc<OnceLock<Mounted>>,
}

impl Default for GivenUp {
    fn default() -> Self {
        GivenUp { over: Arc::default(), asked: Instant::now(), mounted: Arc::default() }
    }
}

impl GivenUp {
    fn is_so(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// The same question for one who answers it even when nobody waits any more.
    fn never(&self) -> Self {
        GivenUp { over: Arc::default(), ..self.clone() }
    }

    /// How long this question may still wait for a folder.
    fn patience(&self, is_known: bool) -> Duration {
        let left = PATIENCE.saturating_sub(self.asked.elapsed()).max(LOOK);
        if is_known { left.min(KNOWN_PATIENCE) } else { left }
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

/// What is known of a folder.
enum Known {
    Fresh(Option<Held>),
    Old(Option<Held>),
    Nothing,
}

#[derive(Debug, Default)]
struct Table {
    counted: HashMap<PathBuf, Counted>,
    /// Folders that somebody is counting, and since when.
    underway: HashMap<PathBuf, Instant>,
    swept: Option<Instant>,
}

impl Table {
    /// What somebody who asks now is to know of a folder.
    fn known(&mut self, path: &Path, now: Instant) -> Known {
        let Some(known) = self.counted.get_mut(path) else { return Known::Nothing };
        known.asked = now;
        let is_fresh = now.saturating_duration_since(known.ended) < holds(known.took);
        if is_fresh { Known::Fresh(known.held) } else { Known::Old(known.held) }
    }
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
            match (table.known(path, began), table.underway.contains_key(path)) {
                // What is old is better than to wait for another's count.
                (Known::Fresh(held), _) | (Known::Old(held), true) => return (held, None),
                (Known::Nothing, true) => {
                    if given_up.is_so() {
                        return (None, None);
                    }
                    table = self.wait(table, LOOK);
                }
                (Known::Old(_) | Known::Nothing, false) => break,
            }
        }
        // Dropped after the table is unlocked again: the others find what was counted.
        let _underway = self.begin(table, path);
        self.finish(path, given_up)
    }

    /// [`Walks::look`] at a folder that may hang or be of any size: it is counted in a thread of its own, by one at a
    /// time, and who asks waits for a while only. Blocks for as long.
    pub fn look_awhile(self: &Arc<Self>, path: &Path, given_up: &GivenUp) -> (Option<Held>, Option<Duration>) {
        let on = given_up.never();
        self.look_awhile_by(path, given_up, move |path| count(path, &on))
    }

    fn look_awhile_by(
        self: &Arc<Self>,
        path: &Path,
        given_up: &GivenUp,
        count: impl FnOnce(&Path) -> Result<Option<Held>, Unfinished> + Send + 'static,
    ) -> (Option<Held>, Option<Duration>) {
        let began = Instant::now();
        let mut table = self.table();
        let (old, is_known) = match table.known(path, began) {
            Known::Fresh(held) => return (held, None),
            Known::Old(held) => (held, true),
            Known::Nothing => (None, false),
        };
        let since = table.underway.get(path).copied();
        // What is old is better than to wait for another's count, and for one that hangs nobody waits again.
        if since.is_some_and(|since| is_known || since.elapsed() > PATIENCE) {
            return (old, None);
        }
        if since.is_none() {
            table.underway.insert(path.to_owned(), began);
            drop(table);
            self.count_apart(path, count);
            table = self.table();
        }
        let patience = given_up.patience(is_known);
        while table.underway.contains_key(path) {
            let left = patience.saturating_sub(began.elapsed());
            if left.is_zero() || given_up.is_so() {
                return (old, None);
            }
            table = self.wait(table, left.min(LOOK));
        }
        let Some(counted) = table.counted.get(path) else { return (old, None) };
        let is_own = since.is_none() && counted.ended >= began;
        (counted.held, is_own.then_some(counted.took))
    }

    /// Counts a folder that is noted as being counted, in a thread that nobody waits for.
    fn count_apart(
        self: &Arc<Self>,
        path: &Path,
        count: impl FnOnce(&Path) -> Result<Option<Held>, Unfinished> + Send + 'static,
    ) {
        let (walks, owned) = (self.clone(), path.to_owned());
        let counting = move || {
            let _underway = Underway { walks: &walks, path: &owned };
            walks.finish_by(&owned, count);
        };
        if let Err(error) = std::thread::Builder::new().name("count".into()).spawn(counting) {
            tracing::debug!(%error, path = %path.display(), "no thread to count in");
            self.table().underway.remove(path);
        }
    }

    /// Until somebody's count has ended, or as long.
    fn wait<'a>(&self, table: MutexGuard<'a, Table>, patience: Duration) -> MutexGuard<'a, Table> {
        self.ended.wait_timeout(table, patience).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Counts a folder that is noted as being counted.
    fn finish(&self, path: &Path, given_up: &GivenUp) -> (Option<Held>, Option<Duration>) {
        self.finish_by(path, |path| count(path, given_up))
    }

    fn finish_by(
        &self,
        path: &Path,
        count: impl FnOnce(&Path) -> Result<Option<Held>, Unfinished>,
    ) -> (Option<Held>, Option<Duration>) {
        let began = Instant::now();
        let found = count(path);
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
        table.underway.insert(path.to_owned(), Instant::now());
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

/// What a folder holds with all below it on the same file system; where others are mounted is not touched. Files with
/// several names count once. `None` where there is nothing.
fn count(path: &Path, given_up: &GivenUp) -> Result<Option<Held>, Unfinished> {
    let Ok(top) = path.symlink_metadata() else { return Ok(None) };
    let mut held = Held { bytes: top.blocks().saturating_mul(BLOCK), inodes: 1 };
    let mut shared: HashSet<u64> = HashSet::new();
    let mut folders = if top.is_dir() { vec![path.to_owned()] } else { Vec::new() };
    let others = match top.is_dir() {
        true => given_up.mounted.get_or_init(Mounted::now).others_below(path),
        false => HashSet::new(),
    };
    while let Some(folder) = folders.pop() {
        // What vanishes while it is counted is not there.
        let Ok(entries) = folder.read_dir() else { continue };
        for entry in entries.flatten() {
            if given_up.is_so() {
                return Err(Unfinished);
            }
            if !others.is_empty() && others.contains(&entry.path()) {
                continue;
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
        walks.table().underway.insert(dir.clone(), Instant::now());
        assert_eq!(walks.look(&dir, &asker.given_up()), (before, None));
        std::fs::remove_dir_all(dir).unwrap();
    }

    /// One volume that hung held whoever asked for any.
    #[test]
    fn nobody_waits_long_for_a_folder_that_hangs_and_one_thread_counts_it() {
        let (dir, walks, asker) = (scratch(), Arc::new(Walks::default()), Asker::default());
        let long_ago = |of: Duration| GivenUp { asked: Instant::now().checked_sub(of).unwrap(), ..asker.given_up() };
        let impatient = long_ago(PATIENCE);
        let (let_go, hangs) = std::sync::mpsc::channel::<Held>();
        let begun = Instant::now();
        assert_eq!(walks.look_awhile_by(&dir, &impatient, move |_| Ok(hangs.recv().ok())), (None, None));
        let again = |held: Held| walks.look_awhile_by(&dir, &impatient, move |_| Ok(Some(held)));
        let (first, second) = (Held { bytes: 1, inodes: 1 }, Held { bytes: 2, inodes: 1 });
        assert_eq!(again(second), (None, None), "it is counted already");
        walks.table().underway.insert(dir.clone(), Instant::now().checked_sub(PATIENCE * 2).unwrap());
        let patient = asker.given_up();
        assert_eq!(walks.look_awhile(&dir, &patient), (None, None), "for what hangs nobody waits again");
        assert!(begun.elapsed() < PATIENCE / 2);
        let_go.send(first).unwrap();
        while !walks.table().underway.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(again(second), (Some(first), None), "what came late is known");
        walks.table().counted.get_mut(&dir).unwrap().took = Duration::ZERO;
        let (let_go, hangs) = std::sync::mpsc::channel::<Held>();
        let hanging = move |_: &Path| Ok(hangs.recv().ok());
        assert_eq!(walks.look_awhile_by(&dir, &impatient, hanging), (Some(first), None), "the last count holds");
        assert_eq!(walks.look_awhile(&dir, &patient), (Some(first), None));
        drop(let_go);
        let other = scratch();
        assert!(walks.look_awhile(&other, &patient).1.is_some(), "others are counted meanwhile");
        std::fs::remove_dir_all(dir).unwrap();
        std::fs::remove_dir_all(other).unwrap();
    }

    /// It was asked whose it is before it was left alone, and the question was never answered.
    #[test]
    fn what_is_mounted_below_and_hangs_holds_nobody() {
        use std::os::fd::AsRawFd as _;
        let dir = scratch();
        let Ok(device) = std::fs::File::options().read(true).write(true).open("/dev/fuse") else { return };
        // Nobody answers for it.
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let place = dir.join("a");
        let none = nix::mount::MsFlags::empty();
        if nix::mount::mount(Some("nobody"), &place, Some("fuse"), none, Some(options.as_str())).is_err() {
            // Only root may mount.
            return std::fs::remove_dir_all(dir).unwrap();
        }
        std::fs::write(dir.join("f"), "f").unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let folder = dir.clone();
        let counting = std::thread::spawn(move || {
            let asker = Asker::default();
            let _ = tell.send(Walks::default().held(&folder, &asker.given_up()));
        });
        let held = told.recv_timeout(Duration::from_secs(5));
        // What is asked of it fails from now on.
        drop(device);
        counting.join().unwrap();
        nix::mount::umount2(&place, nix::mount::MntFlags::MNT_DETACH).unwrap();
        std::fs::remove_dir_all(dir).unwrap();
        assert_eq!(held.unwrap().unwrap().inodes, 2, "the folder and its own file");
    }
}
