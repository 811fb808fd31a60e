//! What a costly file said, for as long as nothing moves.
//!
//! To read `memory.stat` the kernel gathers what each of its processors has counted of a cgroup and of all below it: that
//! one file costs more than all others that a scrape of `/metrics/resource` reads, and most cgroups of a node sleep from
//! one scrape to the next. A cgroup that has used no CPU time and holds as many bytes as before is taken to have its
//! figures as they were. Only the kernel's own ageing of its lists can change them then, so now and then they are read all
//! the same: by turns, that not all cgroups which were found together are read together ever after.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// Every so many looks the file is read, whether something has moved or not.
const EVERY: u8 = 8;
/// And where looks are seldom, after this time: there it matters little what they cost.
const LONGEST: Duration = Duration::from_secs(120);

/// Whose turn of [`EVERY`] it is that is seen for the first time.
static TURN: AtomicU8 = AtomicU8::new(0);

/// What was found in the file of one cgroup, and when.
#[derive(Debug, Default)]
pub(super) struct Still(Option<Last>);

#[derive(Debug)]
struct Last {
    /// CPU time in nanoseconds and bytes in use, as they were before the file was read.
    by: (u64, u64),
    found: u64,
    read: Instant,
    /// The how manieth look from now on reads the file.
    left: u8,
}

impl Still {
    /// What the file says by `read`, or said when it was read last, where neither the CPU time nor the bytes in use have
    /// moved since. Both have to be taken before: what moves while the file is read counts as moved at the next look. Where
    /// the kernel does not tell one of them, nobody knows, and the file is read; nor is it remembered that nothing was found.
    pub fn found(
        &mut self,
        cpu_nanos: Option<u64>,
        bytes: Option<u64>,
        now: Instant,
        read: impl FnOnce() -> Option<u64>,
    ) -> Option<u64> {
        let by = cpu_nanos.zip(bytes);
        let left = match &mut self.0 {
            None => TURN.fetch_add(1, Ordering::Relaxed) % EVERY + 1,
            // Its turns go on whether something moves or not: what moves together stays apart.
            Some(last) if last.left <= 1 => EVERY,
            Some(last) => {
                last.left -= 1;
                if Some(last.by) == by && now.saturating_duration_since(last.read) < LONGEST {
                    return Some(last.found);
                }
                last.left
            }
        };
        let found = read();
        self.0 = by.zip(found).map(|(by, found)| Last { by, found, read: now, left });
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks with figures that a closure gives, and counts how often the file is read.
    struct Looks {
        still: Still,
        reads: u64,
        now: Instant,
    }

    impl Looks {
        fn new() -> Self {
            Looks { still: Still::default(), reads: 0, now: Instant::now() }
        }

        /// The answer of each read is its number.
        fn look(&mut self, cpu: Option<u64>, bytes: Option<u64>) -> Option<u64> {
            let reads = &mut self.reads;
            self.still.found(cpu, bytes, self.now, || {
                *reads += 1;
                Some(*reads)
            })
        }

        /// The first turn of a cgroup may come at any look, the others at every eighth from there.
        fn settled() -> Self {
            let mut looks = Self::new();
            looks.look(Some(5), Some(100));
            while looks.look(Some(5), Some(100)) == Some(1) {}
            assert_eq!(looks.reads, 2);
            looks
        }
    }

    #[test]
    fn the_file_is_read_where_something_has_moved() {
        let mut looks = Looks::settled();
        for (cpu, bytes, reads) in [
            (5, 100, 2),
            (6, 100, 3),
            (6, 100, 3),
            (6, 101, 4),
            (6, 100, 5),
            (6, 100, 5),
            // Less than before is another cgroup.
            (0, 100, 6),
        ] {
            assert_eq!(looks.look(Some(cpu), Some(bytes)), Some(reads), "{cpu} {bytes}");
        }
    }

    #[test]
    fn every_eighth_look_reads_it_and_so_does_one_after_long() {
        let mut looks = Looks::settled();
        let reads: Vec<_> = (0..17).filter_map(|_| looks.look(Some(5), Some(100))).collect();
        assert_eq!(reads, [2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 4, 4]);
        assert_eq!(looks.look(Some(6), Some(100)), Some(5));
        let reads: Vec<_> = (0..6).filter_map(|_| looks.look(Some(6), Some(100))).collect();
        assert_eq!(reads, [5, 5, 5, 5, 5, 6], "its turn comes as if nothing had moved");
        looks.now += LONGEST;
        assert_eq!(looks.look(Some(6), Some(100)), Some(7));
        looks.now += LONGEST / 2;
        assert_eq!(looks.look(Some(6), Some(100)), Some(7));
    }

    #[test]
    fn where_one_figure_is_not_told_nothing_is_known_to_be_still() {
        let mut looks = Looks::new();
        for (cpu, bytes) in [(None, Some(1)), (None, Some(1)), (Some(1), None), (Some(1), None), (None, None)] {
            looks.look(cpu, bytes);
        }
        assert_eq!(looks.reads, 5);
        let mut tries = 0;
        for _ in 0..5 {
            let read = || {
                tries += 1;
                None
            };
            assert_eq!(looks.still.found(Some(1), Some(1), looks.now, read), None);
        }
        assert_eq!(tries, 5);
    }

    /// Cgroups that were found at one scrape would all be due at the same later one.
    #[test]
    fn those_that_were_found_together_come_due_by_turns() {
        let mut all: Vec<Looks> = (0..64).map(|_| Looks::new()).collect();
        let mut due = Vec::new();
        for _ in 0..=usize::from(EVERY) {
            let before: u64 = all.iter().map(|looks| looks.reads).sum();
            for looks in &mut all {
                looks.look(Some(1), Some(1));
            }
            due.push(all.iter().map(|looks| looks.reads).sum::<u64>() - before);
        }
        assert_eq!(due.first(), Some(&64));
        // Other tests may take turns between ours.
        assert!(due.iter().skip(1).all(|count| (1..32).contains(count)), "{due:?}");
    }
}
