//! What the process holds of the machine's memory, and giving back what it does not need.
//!
//! Two kinds are given back: what the allocator keeps though nothing lies in it, and pages of the program's own file and of
//! its libraries that were needed once, such as all of what runs at the start.

use std::ops::Range;
use std::sync::OnceLock;

/// Size of a page on the machines that this runs on.
const PAGE_BYTES: u64 = 4096;

/// Where the program and its libraries were mapped before any thread ran: none of these goes before the process does.
static FILES: OnceLock<Vec<Range<usize>>> = OnceLock::new();

/// For the first line of `main`: notes where the files of the program are, and limits the allocator.
///
/// So many arenas at most, instead of eight for each core: what one thread let go of the others can use. Each thread keeps
/// small pieces of its own beside them, so few arenas are seldom waited for. Only the first one grows by more than what
/// was asked for; each page that another one grows by is a call of the kernel.
#[allow(unsafe_code)]
pub fn begin(arenas: u8) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    FILES.get_or_init(|| maps.lines().filter_map(of_file).collect());
    // SAFETY: mallopt has no preconditions and changes settings of the allocator alone. Where it fails the default stays,
    // which is as good.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, i32::from(arenas));
    }
}

/// Bytes of memory that the process has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resident {
    /// Those that are its own or shared with others.
    pub all: u64,
    /// What it has allocated; the others are pages of files.
    pub own: u64,
}

/// What the process has; None where the kernel does not say.
pub fn resident() -> Option<Resident> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = statm.split_whitespace().skip(1).map(|word| word.parse::<u64>().ok());
    let (all, of_files) = (pages.next()??, pages.next()??);
    Some(Resident { all: all * PAGE_BYTES, own: all.saturating_sub(of_files) * PAGE_BYTES })
}

/// Bytes of memory that are the process's own or shared with others; None where the kernel does not say.
pub fn resident_bytes() -> Option<u64> {
    resident().map(|resident| resident.all)
}

/// Gives pages that hold nothing, and those that can be read again from the files of the program, back to the kernel. Takes
/// some milliseconds, in which others wait for memory, so it is for quiet moments.
#[allow(unsafe_code)]
pub fn give_back() {
    // SAFETY: malloc_trim has no preconditions; it takes the allocator's own locks.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
    let Some(files) = FILES.get().filter(|files| !files.is_empty()) else { return };
    let mappings = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    for range in unchanged(&mappings).into_iter().filter(|range| files.contains(range)) {
        // SAFETY: the range is a mapping of a file that the program was started with, which stays where it is until the
        // process ends; others, such as libraries that are loaded later, may go or change at any moment. It cannot be
        // written to and has no page of the process's own, so what is read there next is what was there.
        unsafe {
            libc::madvise(range.start as *mut libc::c_void, range.end - range.start, libc::MADV_DONTNEED);
        }
    }
}

/// Where files are mapped read-only and no page differs from them (relocated pages do), by the kernel's list.
fn unchanged(smaps: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = None;
    for line in smaps.lines() {
        if line.contains('-') && ends(line.split(' ').next().unwrap_or_default()).is_some() {
            at = of_file(line);
            continue;
        }
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("Anonymous:"), Some("0")) => {}
            (Some("Anonymous:"), _) => at = None,
            // The last word: pages of its own may lie in the swap space.
            (Some("Swap:"), Some("0")) => found.extend(at.take()),
            (Some("Swap:"), _) => at = None,
            _ => {}
        }
    }
    found
}

/// The ends of a mapping that is a file's and cannot be written to, by its line in the kernel's list.
fn of_file(line: &str) -> Option<Range<usize>> {
    let mut words = line.split_whitespace();
    let (range, may) = (words.next()?, words.next()?);
    // The sixth word: what is no file has none, or one in brackets.
    let is_file = matches!(may, "r--p" | "r-xp") && words.nth(3)?.starts_with('/');
    if is_file { ends(range) } else { None }
}

fn ends(range: &str) -> Option<Range<usize>> {
    let (start, end) = range.split_once('-')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mappings_that_equal_the_file_are_given_back() {
        let smaps = "1000-2000 r--p 00000000 fe:00 12 /bin/it\nRss: 4 kB\nAnonymous: 0 kB\nSwap: 0 kB\nSwapPss: 0 kB\n\
                     2000-4000 r-xp 00001000 fe:00 12 /bin/it\nAnonymous: 0 kB\nSwap: 0 kB\n\
                     4000-5000 r--p 00003000 fe:00 12 /bin/it\nAnonymous: 4 kB\nSwap: 0 kB\n\
                     5000-6000 rw-p 00004000 fe:00 12 /bin/it\nAnonymous: 0 kB\nSwap: 0 kB\n\
                     6000-7000 r-xp 00000000 fe:00 13 /lib/other\nAnonymous: 0 kB\nSwap: 0 kB\n\
                     7000-8000 rw-p 00000000 00:00 0\nAnonymous: 0 kB\nSwap: 0 kB\n\
                     8000-9000 r--p 00000000 fe:00 12 /bin/it\nAnonymous: 0 kB\nSwap: 4 kB\nSwapPss: 0 kB\n\
                     9000-a000 r--p 00000000 00:00 0 [vvar]\nAnonymous: 0 kB\nSwap: 0 kB\n\
                     a000-b000 r--p 00000000 00:00 0\nAnonymous: 0 kB\nSwap: 0 kB\n";
        assert_eq!(unchanged(smaps), [0x1000..0x2000, 0x2000..0x4000, 0x6000..0x7000]);
    }

    #[test]
    fn the_program_goes_on_after_it_gave_its_pages_back() {
        begin(1);
        assert!(FILES.get().is_some_and(|files| files.len() > 3), "the program and its libraries");
        let before = resident_bytes().expect("told");
        assert!(resident().is_some_and(|r| r.own > 0 && r.own < r.all), "a part of it are files");
        give_back();
        let after = resident_bytes().expect("told");
        assert!(after < before, "{before} {after}");
        let text: String = (0..1000).map(|n| n.to_string()).collect();
        assert_eq!(text.len(), 2890);
    }
}
