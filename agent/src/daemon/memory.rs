//! The agent's own memory: what the start needed goes back to the machine, and what later bursts leave behind.

use std::time::Duration;

use service::memory::{self, Resident};

/// The start is over by then: status, images and static pods have been seen to.
const START: Duration = Duration::from_secs(15);
/// How often the agent looks whether it has grown. A look reads one short file.
const LOOK: Duration = Duration::from_secs(15);
/// Growth of what it has allocated that is not worth the page faults that giving back costs.
const NOT_WORTH_IT: u64 = 1 << 20;
/// The same of all, pages of its own file too: those come back when the code in them runs.
const PAGES_NOT_WORTH_IT: u64 = 2 << 20;
/// A burst goes on while more than this comes from one look to the next.
const GROWS: u64 = 256 << 10;
/// Looks that are passed over at most after memory was given back: what is there again each time, as with one who asks for
/// large pages every minute, is in use.
const MOST_PASSED: u32 = 40;

/// Keeps the process small; never returns.
pub async fn keep_small() {
    tokio::time::sleep(START).await;
    let mut growth = Growth::default();
    loop {
        let now = memory::resident().unwrap_or_default();
        if growth.is_worth_it(now) {
            // It reads the kernel's list of mappings and waits for the allocator.
            if tokio::task::spawn_blocking(memory::give_back).await.is_err() {
                return;
            }
            let after = memory::resident().unwrap_or_default();
            growth.given_back(after);
            tracing::debug!(before = now.all, after = after.all, own = after.own, "memory was given back");
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// What the process has grown by since memory was given back.
#[derive(Debug)]
struct Growth {
    /// As it was right after that; nothing at the start, of which much is over.
    small: Resident,
    /// Its own at the look before this one.
    own: u64,
    /// Looks since then.
    passed: u32,
    /// Looks that are to be passed over.
    pause: u32,
}

impl Default for Growth {
    fn default() -> Self {
        // The first look finds it settled.
        Growth { small: Resident::default(), own: u64::MAX, passed: MOST_PASSED, pause: 1 }
    }
}

impl Growth {
    /// At each look: whether a burst is over that has left something.
    fn is_worth_it(&mut self, now: Resident) -> bool {
        let before = std::mem::replace(&mut self.own, now.own);
        self.passed = self.passed.saturating_add(1);
        if self.passed > 2 * MOST_PASSED {
            self.pause = 1;
        }
        let is_over = now.own <= before.saturating_add(GROWS);
        let has_grown = now.own > self.small.own.saturating_add(NOT_WORTH_IT) && self.passed >= self.pause;
        let has_pages = now.all > self.small.all.saturating_add(PAGES_NOT_WORTH_IT) && self.passed >= MOST_PASSED;
        is_over && (has_grown || has_pages)
    }

    /// What is left after memory was given back.
    fn given_back(&mut self, now: Resident) {
        *self = Growth { small: now, own: now.own, passed: 0, pause: (self.pause * 2).min(MOST_PASSED) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn looks(growth: &mut Growth, own: &[u64]) -> Vec<bool> {
        own.iter().map(|own| growth.is_worth_it(Resident { all: own + 10 * MIB, own: *own })).collect()
    }

    /// What forty starts had left used to stay for ten minutes.
    #[test]
    fn what_a_burst_left_goes_half_a_minute_after_it() {
        let mut growth = Growth::default();
        assert_eq!(looks(&mut growth, &[8 * MIB]), [true], "of the start");
        growth.given_back(Resident { all: 12 * MIB, own: 3 * MIB });
        let burst = [3 * MIB, 3 * MIB, 3 * MIB, 7 * MIB, 9 * MIB, 9 * MIB];
        assert_eq!(looks(&mut growth, &burst), [false, false, false, false, false, true]);
        growth.given_back(Resident { all: 15 * MIB, own: 6 * MIB });
        assert_eq!(looks(&mut growth, &[6 * MIB; 39]), [false; 39], "nothing more to give");
    }

    #[test]
    fn what_comes_back_each_time_is_left_alone_for_longer() {
        let mut growth = Growth::default();
        let mut times = Vec::new();
        for look in 0..300 {
            // Somebody's large page, again and again.
            if growth.is_worth_it(Resident { all: 30 * MIB, own: 12 * MIB }) {
                times.push(look);
                growth.given_back(Resident { all: 15 * MIB, own: 4 * MIB });
                growth.own = 12 * MIB;
            }
        }
        let pauses: Vec<i32> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(pauses, [2, 4, 8, 16, 32, 40, 40, 40, 40, 40]);
    }

    #[test]
    fn pages_of_the_file_go_now_and_then() {
        let mut growth = Growth::default();
        growth.given_back(Resident { all: 10 * MIB, own: 3 * MIB });
        let first = (1..100).find(|_| growth.is_worth_it(Resident { all: 16 * MIB, own: 3 * MIB }));
        assert_eq!(first, Some(40));
    }
}
