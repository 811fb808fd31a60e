//! What some tests want and not every machine has, and the list of those that went without.

use std::path::PathBuf;
use std::process::Command;

use crate::daemon::repository;
use crate::node::Node;

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

/// Whether no node can be had here, which is then told.
pub fn no_node() -> bool {
    let reason = Node::why_not();
    if let Some(reason) = reason {
        skipped(format_args!("{reason} is missing"));
    }
    reason.is_some()
}

/// Where recordings of the real programs are, when this file is among them: beside the checkout, or where
/// `ORCHESTRATOR_SHARED` says.
pub fn recordings(file: &str) -> Option<PathBuf> {
    let shared = std::env::var_os("ORCHESTRATOR_SHARED").map_or_else(|| repository().join("../shared"), PathBuf::from);
    Some(shared).filter(|folder| folder.join(file).exists())
}

/// The Python of `.test/venv`, which `make test` prepares, when it has these modules (`grpc, yaml`).
pub fn python(modules: &str) -> Option<PathBuf> {
    let python = repository().join(".test/venv/bin/python");
    let able = Command::new(&python).args(["-c", &format!("import {modules}")]).output();
    able.is_ok_and(|output| output.status.success()).then_some(python)
}
