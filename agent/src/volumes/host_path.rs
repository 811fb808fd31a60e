//! Places of the node itself: checked, or made where the type asks for it.

use std::fs::{DirBuilder, Metadata, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Checks a path against a `hostPath` type; an empty type asks for nothing.
///
/// # Errors
/// The path is something else or cannot be made.
pub fn check(path: &Path, kind: &str) -> Result<(), String> {
    let make = |made: std::io::Result<()>| made.map_err(|e| format!("cannot make {}: {e}", path.display()));
    if kind.ends_with("OrCreate") && !path.exists() {
        match kind {
            "DirectoryOrCreate" => make(DirBuilder::new().recursive(true).mode(0o755).create(path))?,
            "FileOrCreate" => {
                let file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path);
                make(file.map(drop))?;
            }
            _ => {}
        }
    }
    let (wanted, is): (&str, fn(&Metadata) -> bool) = match kind {
        "" => return Ok(()),
        "Directory" | "DirectoryOrCreate" => ("a directory", Metadata::is_dir),
        "File" | "FileOrCreate" => ("a file", Metadata::is_file),
        "Socket" => ("a socket file", |m| m.file_type().is_socket()),
        "CharDevice" => ("a character device", |m| m.file_type().is_char_device()),
        "BlockDevice" => ("a block device", |m| m.file_type().is_block_device()),
        other => return Err(format!("{other} is an invalid volume type")),
    };
    match std::fs::metadata(path) {
        Ok(found) if is(&found) => Ok(()),
        _ => Err(format!("hostPath type check failed: {} is not {wanted}", path.display())),
    }
}
