//! Files in which the agent remembers something over restarts: they change in one step, and one that cannot be used is
//! set aside instead of stopping the agent or being believed.

use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Reason of the event about the node when a file was set aside.
pub const EVENT: &str = "StateFileCorrupt";

/// A file that was set aside, or should have been.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damaged {
    pub path: PathBuf,
    pub why: String,
    /// Where it is now; None where it could not be moved.
    pub aside: Option<PathBuf>,
}

impl std::fmt::Display for Damaged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the state file {} cannot be used: {}; ", self.path.display(), self.why)?;
        match &self.aside {
            Some(aside) => write!(f, "it is now {}, and the agent begins without it", aside.display()),
            None => f.write_str("it could not be set aside, and the agent begins without it"),
        }
    }
}

/// Moves a damaged file to `NAME.corrupt`, in the place of an earlier one, and logs it.
pub fn set_aside(path: &Path, why: impl std::fmt::Display) -> Damaged {
    let mut name = path.as_os_str().to_owned();
    name.push(".corrupt");
    let aside = PathBuf::from(name);
    let moved = std::fs::rename(path, &aside);
    if let Err(error) = &moved {
        tracing::warn!(%error, path = %path.display(), "cannot set a state file aside");
    }
    let damaged = Damaged { path: path.to_owned(), why: why.to_string(), aside: moved.is_ok().then_some(aside) };
    tracing::warn!("{damaged}");
    damaged
}

/// Writes the file anew for root alone (0600): complete or not at all, whatever moment the machine stops at. Blocks until
/// the disk has it.
///
/// # Errors
/// The disk's; the file is as it was.
pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    write_as(path, content, 0o600)
}

/// The same with another mode.
///
/// # Errors
/// As [`write`].
pub fn write_as(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let name = path.file_name().ok_or_else(|| io::Error::other("a file needs a name"))?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    let next = path.with_file_name(hidden);
    let mut file = std::fs::OpenOptions::new().create(true).write(true).truncate(true).mode(mode).open(&next)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&next, path)?;
    // The new name has to be on the disk as well; some file systems cannot be asked for that.
    if let Some(folder) = path.parent().and_then(|folder| std::fs::File::open(folder).ok()) {
        let _ = folder.sync_all();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_file_is_replaced_whole_and_a_damaged_one_keeps_its_content_elsewhere() {
        let dir = std::env::temp_dir().join(format!("state-file-{}", crate::backoff::random_below(u32::MAX)));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("state");
        write(&path, b"one").unwrap();
        write(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        let damaged = set_aside(&path, "no sense in it");
        assert_eq!(std::fs::read(dir.join("state.corrupt")).unwrap(), b"two");
        assert!(!path.exists() && damaged.to_string().contains("no sense in it; it is now "));
        assert_eq!(set_aside(&path, "gone").aside, None);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
