//! Files that outlive the agent: complete or not at all, even over a loss of power.

use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Writes the file anew with mode 0600. Blocks until the disk has it.
///
/// # Errors
/// The file is as it was before.
pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("state");
    let next = path.with_file_name(format!(".{name}"));
    let mut file = std::fs::OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&next)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&next, path)
}
