//! Clocks that a test puts forward for one daemon, where what it waits for takes minutes: a library that is preloaded into it.
//!
//! A daemon sees the new time when it next looks. Its timers are looked at when something happens; what is idle has to be
//! asked something.

use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::daemon::{repository, scratch};

/// The clocks of every process that has the variables of [`Clock::variables`].
pub struct Clock {
    library: PathBuf,
    ahead: PathBuf,
    /// Seconds: of the clock on the wall, and of those that only count.
    seconds: [AtomicI64; 2],
}

impl Clock {
    /// Builds the library. The clocks are right at first.
    ///
    /// # Errors
    /// When there is no compiler.
    pub fn new() -> Result<Self> {
        let folder = scratch("clock")?;
        let clock = Clock {
            library: folder.join("clock.so"),
            ahead: folder.join("ahead"),
            seconds: [const { AtomicI64::new(0) }; 2],
        };
        let source = repository().join("tests/clock.c");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&clock.library, &source])
            .output()
            .context("starting cc")?;
        ensure!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        std::fs::write(&clock.ahead, [0; 16])?;
        Ok(clock)
    }

    /// What a process needs to have these clocks.
    ///
    /// # Errors
    /// When a path is no text.
    pub fn variables(&self) -> Result<[(&str, &str); 2]> {
        let (library, ahead) = (self.library.to_str(), self.ahead.to_str());
        Ok([("LD_PRELOAD", library.context("a path in text")?), ("CLOCK_AHEAD", ahead.context("a path in text")?)])
    }

    /// All clocks go on from a later time.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn put_forward(&self, by: Duration) -> Result<()> {
        let by = i64::try_from(by.as_secs())?;
        self.seconds.iter().for_each(|clock| {
            clock.fetch_add(by, Ordering::Relaxed);
        });
        self.write()
    }

    /// The clock on the wall alone is wrong by so many seconds from now on, or right with 0; time goes on as before.
    ///
    /// # Errors
    /// As [`Clock::put_forward`].
    pub fn set_wall(&self, wrong_by: i64) -> Result<()> {
        self.seconds[0].store(wrong_by, Ordering::Relaxed);
        self.write()
    }

    /// In place: the processes have this very file in their memory.
    fn write(&self) -> Result<()> {
        let file = std::fs::OpenOptions::new().write(true).open(&self.ahead)?;
        for (at, clock) in (0..).step_by(8).zip(&self.seconds) {
            file.write_all_at(&clock.load(Ordering::Relaxed).to_ne_bytes(), at)?;
        }
        Ok(())
    }
}
