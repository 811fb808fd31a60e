//! What an administrator does beside running the server: copies of the store, and tokens for new nodes.
//!
//! `backup`, `restore` and `check` work on files, with the server running or not; `token` asks the running server as the
//! user of `admin.conf`. Exit codes: 0 done, 1 refused or failed, 65 (`EX_DATAERR`) what was read is damaged,
//! or no backup at all.

mod archive;
mod backup;
mod flags;
mod report;
mod token;

use std::path::PathBuf;

pub use flags::{BackupArgs, CheckArgs, RestoreArgs, TokenArgs};

use crate::outgoing::OutgoingError;
use crate::pki::PkiError;
use crate::store::OpenError;

/// Why a command did not do its work. Nothing was changed, unless the text says so.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{0}")]
    Store(#[from] OpenError),
    #[error("{0}")]
    Pki(#[from] PkiError),
    #[error("{} is there already and is not overwritten", .0.display())]
    Exists(PathBuf),
    #[error("{} holds a store already; move it away first, or name another --data-dir", .0.display())]
    StoreThere(PathBuf),
    #[error("a server has {} open; stop it first: what it takes from now on would be lost", .0.display())]
    Served(PathBuf),
    #[error("{} differs from the one in the backup; move the folder away first", .0.display())]
    OtherKey(PathBuf),
    #[error("{}: no backup of apiserver-lite: {reason}", path.display())]
    NoBackup { path: PathBuf, reason: String },
    #[error("{}: the backup is damaged: {reason}", path.display())]
    BadBackup { path: PathBuf, reason: String },
    #[error("{count} of {of} objects are damaged")]
    BadObjects { count: usize, of: usize },
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Settings(OutgoingError),
    #[error("cannot reach the server at {url}: {source}; is it running?")]
    NoServer { url: String, source: OutgoingError },
    /// The server's own words.
    #[error("{0}")]
    Refused(String),
    #[error("kube-public/cluster-info {0}; name the server with --server and check its authority yourself")]
    NoClusterInfo(String),
    #[error("standard output: {0}")]
    Print(std::io::Error),
}

impl AdminError {
    /// The exit code that goes with it.
    pub fn code(&self) -> u8 {
        match self {
            AdminError::Usage(_) => 64,
            AdminError::NoBackup { .. }
            | AdminError::BadBackup { .. }
            | AdminError::BadObjects { .. }
            | AdminError::Store(OpenError::Damaged { .. } | OpenError::Missing(_)) => 65,
            _ => 1,
        }
    }
}

/// `apiserver-lite backup`
///
/// # Errors
/// When the store or the keys cannot be read, or the file not be written.
pub fn backup(args: &BackupArgs) -> Result<(), AdminError> {
    backup::backup(args)
}

/// `apiserver-lite restore`
///
/// # Errors
/// When the file is no whole backup, or something is there already.
pub fn restore(args: &RestoreArgs) -> Result<(), AdminError> {
    backup::restore(args)
}

/// `apiserver-lite check`
///
/// # Errors
/// When the store or the backup is damaged.
pub fn check(args: &CheckArgs) -> Result<(), AdminError> {
    report::check(args)
}

/// `apiserver-lite token`
///
/// # Errors
/// When the server cannot be asked, or refuses.
pub async fn token(args: &TokenArgs) -> Result<(), AdminError> {
    token::run(args).await
}

/// Prints a line. A reader that has seen enough is no failure.
fn say(line: &str) -> Result<(), AdminError> {
    use std::io::Write as _;
    match writeln!(std::io::stdout(), "{line}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(AdminError::Print(error)),
        _ => Ok(()),
    }
}

/// `12 objects`, `1 object`.
fn objects(count: usize) -> String {
    format!("{count} object{}", if count == 1 { "" } else { "s" })
}
