//! Places of the node itself: checked, or made where the type asks for it.

use std::fs::{DirBuilder, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Checks a path against a `hostPath` type; an empty type asks for nothing.
///
/// # Errors
/// The path is something else or cannot be made.
pub fn check(path: &Path, kind: &str) -> Result<(), String> {
    if kind.ends_with("OrCreate") && !path.exists() {
        match kind {
            "DirectoryOrCreate" => make_directories(path)?,
            "FileOrCreate" => {
                let file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path);
                file.map_err(|e| format!("open {}: {}", path.display(), go_words(&e)))?;
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

/// # Errors
/// The folder that cannot be made, which may be one on the way.
fn make_directories(path: &Path) -> Result<(), String> {
    let mut missing: Vec<&Path> = path.ancestors().take_while(|folder| !folder.is_dir()).collect();
    while let Some(folder) = missing.pop() {
        match DirBuilder::new().mode(0o755).create(folder) {
            // Somebody was faster.
            Err(_) if folder.is_dir() => {}
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                return Err(format!("mkdir {}: not a directory", folder.display()));
            }
            made => made.map_err(|e| format!("mkdir {}: {}", folder.display(), go_words(&e)))?,
        }
    }
    Ok(())
}

/// The system's words for an error in lower case and without its number, as Go has them.
fn go_words(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => nix::errno::Errno::from_raw(number).desc().to_lowercase(),
        None => error.to_string(),
    }
}
