//! What a cgroup says about itself: CPU, memory, swap, processes and pressure.
//!
//! Read from the files of cgroup v2, or of the v1 controllers where those hold the processes. What a kernel does not
//! tell is `None`, never zero.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use super::files::{Folder, Kept, Table};

const MOUNT: &str = "/sys/fs/cgroup";
/// Beyond any memory: how v1 writes "no limit".
pub(super) const NO_LIMIT: u64 = 1 << 60;

/// One cgroup. Clones are of the same, and share what is kept open of it.
#[derive(Debug, Clone, Default)]
pub struct Cgroup {
    places: Arc<Places>,
    kept: Arc<Mutex<Kept>>,
}

/// The directories of one cgroup.
#[derive(Debug, Default, PartialEq, Eq)]
struct Places {
    /// `Some` where cgroup v2 holds the controllers.
    unified: Option<PathBuf>,
    /// By controller.
    v1: HashMap<String, PathBuf>,
}

impl From<Places> for Cgroup {
    fn from(places: Places) -> Self {
        Cgroup { places: Arc::new(places), kept: Arc::default() }
    }
}

impl PartialEq for Cgroup {
    fn eq(&self, other: &Self) -> bool {
        self.places == other.places
    }
}

/// Stall times of one resource; `total` in microseconds, averages in percent.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct PsiLine {
    pub total: u64,
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Psi {
    pub full: PsiLine,
    pub some: PsiLine,
}

/// How much of a cgroup is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// What of its memory is in use, and the limit.
    Memory,
    /// CPU time, working set and swap in use. What of its files nobody has used lately is as it was when the cgroup moved
    /// last ([`super::still`]).
    Use,
    /// The same, and the limit of swap.
    UseAndLimit,
    Everything,
}

/// One reading.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    pub cpu_nanos: Option<u64>,
    pub memory_usage: Option<u64>,
    pub working_set: Option<u64>,
    pub memory_limit: Option<u64>,
    pub rss: Option<u64>,
    pub page_faults: Option<u64>,
    pub major_page_faults: Option<u64>,
    pub swap_usage: Option<u64>,
    pub swap_limit: Option<u64>,
    pub processes: Option<u64>,
    pub cpu_psi: Option<Psi>,
    pub memory_psi: Option<Psi>,
    pub io_psi: Option<Psi>,
}

impl Cgroup {
    /// The cgroup of all processes.
    pub fn root() -> Self {
        Self::of_lines(Path::new(MOUNT), "0::/\n1:cpuacct,cpu:/\n2:memory:/\n3:pids:/\n4:blkio:/\n")
    }

    pub(super) fn is_root(&self) -> bool {
        let mount = Path::new(MOUNT);
        match (self.unified_path(), self.v1_path("memory")) {
            (Some(path), _) => path == mount,
            (None, memory) => memory == Some(&mount.join("memory")),
        }
    }

    /// The cgroup around all pods, by either driver's name.
    pub fn of_pods() -> Option<Self> {
        let mount = Path::new(MOUNT);
        let unified = mount.join("cgroup.controllers").exists();
        ["kubepods.slice", "kubepods"].into_iter().find_map(|name| {
            let there = if unified { mount.join(name) } else { mount.join("memory").join(name) };
            there.is_dir().then(|| {
                Self::of_lines(mount, &format!("0::/{name}\n1:cpuacct,cpu:/{name}\n2:memory:/{name}\n3:pids:/{name}\n"))
            })
        })
    }

    /// The cgroup that a process is in, by its number.
    ///
    /// # Errors
    /// The process has gone.
    pub fn of_process(pid: u32) -> std::io::Result<Self> {
        Ok(Self::of_lines(Path::new(MOUNT), &std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?))
    }

    /// From the lines of `/proc/PID/cgroup`: `NUMBER:CONTROLLERS:PATH`.
    fn of_lines(mount: &Path, lines: &str) -> Self {
        let mut cgroup = Places::default();
        for line in lines.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            let path = path.trim_start_matches('/');
            if controllers.is_empty() {
                if mount.join("cgroup.controllers").exists() {
                    cgroup.unified = Some(mount.join(path));
                }
                continue;
            }
            for controller in controllers.split(',') {
                cgroup.v1.insert(controller.to_owned(), mount.join(controller).join(path));
            }
        }
        cgroup.into()
    }

    /// The cgroup around this one; a pod's around its container's where pods have cgroups.
    pub fn parent(&self) -> Option<Self> {
        let up = |path: &PathBuf| path.parent().map(Path::to_owned);
        let v1 = self.places.v1.iter().filter_map(|(k, path)| Some((k.clone(), up(path)?))).collect();
        Some(Places { unified: self.places.unified.as_ref().map(up).unwrap_or_default(), v1 }.into())
    }

    /// Its files that are read often stay open as long as this is held, or until [`Cgroup::close`].
    pub(super) fn files(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes what was kept open.
    pub(super) fn close(&self) {
        self.files().close();
    }

    /// Whether it is there and has processes, or had them a moment ago. One that has just gone could not be read with good
    /// reason.
    pub(super) fn exists(&self) -> bool {
        let mut places = self.unified_path().into_iter().chain(self.places.v1.values().map(PathBuf::as_path));
        places.any(Path::is_dir)
    }

    /// Where cgroup v2 holds it.
    pub(super) fn unified_path(&self) -> Option<&Path> {
        self.places.unified.as_deref()
    }

    pub(super) fn v1_path(&self, controller: &str) -> Option<&Path> {
        self.places.v1.get(controller).map(PathBuf::as_path)
    }

    /// Its path below the mount, as `/proc/PID/cgroup` has it.
    pub(super) fn id(&self) -> String {
        let below = |path: &Path, mount: &Path| path.strip_prefix(mount).ok().map(|p| format!("/{}", p.display()));
        let mount = Path::new(MOUNT);
        let found = match (self.unified_path(), self.v1_path("memory"), self.v1_path("cpuacct")) {
            (Some(path), ..) => below(path, mount),
            (None, Some(path), _) => below(path, &mount.join("memory")),
            (None, None, Some(path)) => below(path, &mount.join("cpuacct")),
            (None, None, None) => None,
        };
        found.unwrap_or_else(|| "/".into())
    }

    /// What is not `wanted` is `None` as what a kernel does not tell.
    pub fn read(&self, wanted: Wanted) -> Reading {
        match self.unified_path() {
            Some(path) => read_unified(path, wanted, &mut self.files()),
            None => self.read_v1(wanted, &mut self.files()),
        }
    }

    fn read_v1(&self, wanted: Wanted, files: &mut Kept) -> Reading {
        let folder = |controller: &str| self.v1_path(controller).map(Folder::at);
        let (memory, cpuacct) = (folder("memory"), folder("cpuacct"));
        let mut file = |folder: &Option<Folder<'_>>, name| files.number(folder.as_ref()?, name);
        let usage = file(&memory, "memory.usage_in_bytes");
        let limit = |limit: Option<u64>| limit.filter(|l| *l < NO_LIMIT);
        let mut reading = Reading { memory_usage: usage, ..Reading::default() };
        if wanted != Wanted::Memory {
            reading.cpu_nanos = file(&cpuacct, "cpuacct.usage");
        }
        let both = if wanted == Wanted::Memory { None } else { file(&memory, "memory.memsw.usage_in_bytes") };
        // On a host without figures of swap its limit has nothing to be told of.
        if matches!(wanted, Wanted::Memory | Wanted::Everything) || (wanted == Wanted::UseAndLimit && both.is_some()) {
            reading.memory_limit = limit(file(&memory, "memory.limit_in_bytes"));
        }
        if matches!(wanted, Wanted::UseAndLimit | Wanted::Everything) && reading.memory_limit.is_some() {
            let both_limit = limit(file(&memory, "memory.memsw.limit_in_bytes"));
            reading.swap_limit = both_limit.zip(reading.memory_limit).map(|(both, memory)| both.saturating_sub(memory));
        }
        reading.swap_usage = both.zip(usage).map(|(both, usage)| both.saturating_sub(usage));
        if wanted == Wanted::Everything {
            reading.processes = file(&folder("pids"), "pids.current");
        }
        if let Some(memory) = &memory {
            let names = ["total_inactive_file", "total_rss", "total_pgfault", "total_pgmajfault"];
            reading.add_statistics(files, memory, names, wanted);
        }
        reading
    }
}

impl Reading {
    /// Completes it with what `memory.stat` has under `names`: bytes of files that nobody has used lately, bytes that are no
    /// file's, and page faults, all and major ones.
    fn add_statistics(&mut self, files: &mut Kept, folder: &Folder<'_>, names: [&str; 4], wanted: Wanted) {
        const NAME: &str = "memory.stat";
        let [unused, ..] = names;
        let unused = match wanted {
            Wanted::Use | Wanted::UseAndLimit => files.still((folder, NAME, unused), self.cpu_nanos, self.memory_usage),
            Wanted::Memory => files.fields(folder, NAME, [unused])[0],
            Wanted::Everything => {
                let [unused, rss, faults, major] = files.fields(folder, NAME, names);
                (self.rss, self.page_faults, self.major_page_faults) = (rss, faults, major);
                unused
            }
        };
        self.working_set = self.memory_usage.map(|usage| usage.saturating_sub(unused.unwrap_or(0)));
    }
}

fn read_unified(path: &Path, wanted: Wanted, files: &mut Kept) -> Reading {
    let folder = &Folder::at(path);
    // The root has no files of its own for memory and swap; the host's table stands for it.
    let host = if path == Path::new(MOUNT) { Table::read(Path::new("/proc/meminfo")) } else { Table::default() };
    let kib = |key: &str| host.get(key).map(|kib| kib.saturating_mul(1024));
    let less = |whole: Option<u64>, part: Option<u64>| Some(whole?.saturating_sub(part?));
    let usage = files.number(folder, "memory.current").or_else(|| less(kib("MemTotal"), kib("MemFree")));
    let mut reading = Reading { memory_usage: usage, ..Reading::default() };
    if matches!(wanted, Wanted::Memory | Wanted::Everything) {
        reading.memory_limit = files.number(folder, "memory.max");
    }
    if wanted != Wanted::Memory {
        let [micros] = files.fields(folder, "cpu.stat", ["usage_usec"]);
        reading.cpu_nanos = micros.map(|micros| micros.saturating_mul(1000));
    }
    reading.add_statistics(files, folder, ["inactive_file", "anon", "pgfault", "pgmajfault"], wanted);
    if wanted == Wanted::Memory {
        return reading;
    }
    reading.swap_usage =
        files.number(folder, "memory.swap.current").or_else(|| less(kib("SwapTotal"), kib("SwapFree")));
    if wanted != Wanted::Use {
        reading.swap_limit = files.number(folder, "memory.swap.max").or_else(|| kib("SwapTotal"));
    }
    if wanted == Wanted::Everything {
        reading.processes = files.number(folder, "pids.current");
        reading.cpu_psi = psi(folder, "cpu.pressure");
        reading.memory_psi = psi(folder, "memory.pressure");
        reading.io_psi = psi(folder, "io.pressure");
    }
    reading
}

pub(super) fn psi(folder: &Folder<'_>, name: &str) -> Option<Psi> {
    parse_psi(&folder.text(name)?)
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, and the same for `full`, which the host's CPU may lack.
fn parse_psi(text: &str) -> Option<Psi> {
    let mut psi = Psi::default();
    let mut found = false;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let slot = match words.next() {
            Some("some") => &mut psi.some,
            Some("full") => &mut psi.full,
            _ => continue,
        };
        found = true;
        for (key, value) in words.filter_map(|w| w.split_once('=')) {
            match key {
                "avg10" => slot.avg10 = value.parse().ok()?,
                "avg60" => slot.avg60 = value.parse().ok()?,
                "avg300" => slot.avg300 = value.parse().ok()?,
                "total" => slot.total = value.parse().ok()?,
                _ => {}
            }
        }
    }
    found.then_some(psi)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Dir(PathBuf);

    impl Dir {
        fn new(files: &[(&str, &str)]) -> Self {
            let name = format!("node-agent-cgroup-{}", crate::backoff::random_below(u32::MAX));
            let dir = Dir(std::env::temp_dir().join(name));
            for (path, text) in files {
                let path = dir.0.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            dir
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_working_set_leaves_out_files_that_nobody_used_lately() {
        let dir = Dir::new(&[
            ("cgroup.controllers", "cpu memory"),
            ("a/b/cpu.stat", "usage_usec 5\nuser_usec 3\n"),
            ("a/b/memory.current", "1000\n"),
            ("a/b/memory.max", "max\n"),
            ("a/b/memory.swap.max", "50\n"),
            ("a/b/memory.stat", "anon 300\ninactive_file 400\npgfault 7\n"),
            ("a/b/cpu.pressure", "some avg10=1.50 avg60=0.00 avg300=0.00 total=9\n"),
        ]);
        let cgroup = Cgroup::of_lines(&dir.0, "0::/a/b\n");
        let reading = cgroup.read(Wanted::Everything);
        assert_eq!(reading.cpu_nanos, Some(5000));
        assert_eq!((reading.memory_usage, reading.working_set, reading.rss), (Some(1000), Some(600), Some(300)));
        assert_eq!((reading.memory_limit, reading.swap_usage, reading.major_page_faults), (None, None, None));
        assert_eq!(reading.cpu_psi.map(|p| (p.some.avg10, p.some.total, p.full.total)), Some((1.5, 9, 0)));
        // Only containers' limits of swap are ever shown on the page that is scraped most.
        let limits = [Wanted::Use, Wanted::UseAndLimit].map(|wanted| cgroup.read(wanted).swap_limit);
        assert_eq!(limits, [None, Some(50)]);
        let little = cgroup.read(Wanted::Use);
        assert_eq!((little.cpu_nanos, little.working_set), (Some(5000), Some(600)));
        assert_eq!((little.rss, little.cpu_psi), (None, None), "nobody asked");
        assert_eq!(cgroup.read(Wanted::Memory).cpu_nanos, None);
        assert_eq!(cgroup.parent(), Some(Cgroup::of_lines(&dir.0, "0::/a\n")));
    }

    #[test]
    fn controllers_of_v1_are_read_each_in_its_own_place() {
        let dir = Dir::new(&[
            ("cpuacct/p/cpuacct.usage", "12\n"),
            ("memory/p/memory.usage_in_bytes", "1000\n"),
            ("memory/p/memory.memsw.usage_in_bytes", "1100\n"),
            ("memory/p/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/p/memory.stat", "total_inactive_file 100\ntotal_rss 10\n"),
        ]);
        let reading = Cgroup::of_lines(&dir.0, "0::/\n3:cpu,cpuacct:/p\n4:memory:/p\n").read(Wanted::Everything);
        assert_eq!(reading.cpu_nanos, Some(12));
        assert_eq!((reading.working_set, reading.swap_usage, reading.memory_limit), (Some(900), Some(100), None));
        assert_eq!((reading.processes, reading.cpu_psi), (None, None));
    }

    /// A folder with the files of a cgroup of either version: CPU time, bytes in use, and inactive ones of files.
    fn small(unified: bool, figures: [u64; 3]) -> (Dir, Cgroup) {
        let dir = Dir::new(&[]);
        std::fs::create_dir_all(&dir.0).unwrap();
        if unified {
            std::fs::write(dir.0.join("cgroup.controllers"), "cpu memory").unwrap();
        }
        let lines = if unified { "0::/p\n" } else { "3:cpu,cpuacct:/p\n4:memory:/p\n" };
        write(&dir, unified, figures);
        let cgroup = Cgroup::of_lines(&dir.0, lines);
        (dir, cgroup)
    }

    fn write(dir: &Dir, unified: bool, [cpu, usage, inactive]: [u64; 3]) {
        let texts = if unified {
            [
                ("p/cpu.stat", format!("usage_usec {cpu}\nuser_usec 0\n")),
                ("p/memory.current", format!("{usage}\n")),
                ("p/memory.stat", format!("anon 1\ninactive_file {inactive}\n")),
            ]
        } else {
            [
                ("cpuacct/p/cpuacct.usage", format!("{}\n", cpu * 1000)),
                ("memory/p/memory.usage_in_bytes", format!("{usage}\n")),
                ("memory/p/memory.stat", format!("inactive_file 0\ntotal_inactive_file {inactive}\n")),
            ]
        };
        for (path, text) in texts {
            let path = dir.0.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }

    /// The costly file used to be read at every scrape.
    #[test]
    fn the_working_set_follows_what_moves_and_what_ages_within_eight_scrapes() {
        for unified in [true, false] {
            let (dir, cgroup) = small(unified, [1, 1000, 100]);
            let told = || {
                let read = cgroup.read(Wanted::UseAndLimit);
                (read.cpu_nanos.unwrap(), read.memory_usage.unwrap(), read.working_set.unwrap())
            };
            assert_eq!(told(), (1000, 1000, 900));
            // In use are what the file of that says, less what was inactive when something moved last.
            write(&dir, unified, [1, 2000, 500]);
            assert_eq!(told(), (1000, 2000, 1500));
            write(&dir, unified, [2, 2000, 700]);
            assert_eq!(told(), (2000, 2000, 1300));
            // Nothing but the kernel's opinion of what is inactive has changed.
            write(&dir, unified, [2, 2000, 800]);
            let seen: Vec<u64> = (0..8).map(|_| told().2).collect();
            assert!(seen.iter().all(|set| [1300, 1200].contains(set)) && seen.last() == Some(&1200), "{seen:?}");
            // Those who do not scrape have it read at once.
            write(&dir, unified, [2, 2000, 900]);
            let exact = [Wanted::Memory, Wanted::Everything].map(|wanted| cgroup.read(wanted).working_set);
            assert_eq!(exact, [Some(1100), Some(1100)]);
            // Nobody has asked for long: nothing is remembered.
            told();
            write(&dir, unified, [2, 2000, 1000]);
            cgroup.close();
            assert_eq!(told().2, 1000);
        }
    }

    /// Of a container that began again there is another cgroup, which may have the figures of the first.
    #[test]
    fn a_cgroup_remembers_nothing_of_another_one() {
        for unified in [true, false] {
            let (dir, first) = small(unified, [1, 1000, 100]);
            assert_eq!(first.read(Wanted::Use).working_set, Some(900));
            write(&dir, unified, [1, 1000, 300]);
            let second = Cgroup::of_lines(&dir.0, if unified { "0::/p\n" } else { "3:cpuacct:/p\n4:memory:/p\n" });
            assert_eq!(second.read(Wanted::Use).working_set, Some(700));
            std::fs::remove_dir_all(&dir.0).unwrap();
            second.close();
            assert_eq!(second.read(Wanted::Use), Reading::default(), "gone");
        }
    }
}
