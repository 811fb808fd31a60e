//! What the black-box tests share: starting the real daemons in a folder of their own, and asking them things.
//!
//! Nothing here knows the daemons' insides. The binaries are the release ones that `make test` builds first.

pub mod agent;
pub mod daemon;
pub mod hook;
pub mod node;
pub mod raw;
pub mod runtime;
pub mod storage_driver;

pub use daemon::{ApiServer, free_port, release_binary, repository, scratch};
pub use hook::Hook;
pub use raw::{Api, Connection};

/// Says that a test does nothing here, and why; `make test` lists these at its end.
///
/// The test goes on to pass: what it needs cannot be had on every machine.
pub fn skipped(reason: impl std::fmt::Display) {
    let thread = std::thread::current();
    let line = format!("{}: {reason}\n", thread.name().unwrap_or("a test"));
    print!("skipped: {line}");
    let list = repository().join(".test/skipped");
    let file = std::fs::OpenOptions::new().create(true).append(true).open(list);
    // A list that cannot be written is no reason to fail; the line above is in the test's output.
    let _ = file.and_then(|mut file| std::io::Write::write_all(&mut file, line.as_bytes()));
}
