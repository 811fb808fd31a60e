//! Files with secrets: never readable by others, never half written.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use super::PkiError;

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> PkiError + '_ {
    |source| PkiError::Io { path: path.into(), source }
}

/// Reads a file; None when there is none.
///
/// # Errors
/// When it is there but cannot be read.
pub fn read(path: &Path) -> Result<Option<String>, PkiError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io(path)(error)),
    }
}

/// Makes a folder that only its owner may enter; one that is there is closed to others.
///
/// # Errors
/// When it cannot be made. A folder that is somebody else's stays as it is, with a warning: what is put into it is
/// private all the same.
pub fn private_folder(path: &Path) -> Result<(), PkiError> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io(path))?;
    let mode = std::fs::metadata(path).map_err(io(path))?.permissions().mode();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    close(path, 0o700)
}

/// Takes a file's rights from everybody but its owner, if it is there.
///
/// # Errors
/// When it cannot be changed though it is ours.
pub fn tighten(path: &Path) -> Result<(), PkiError> {
    let mode = match std::fs::metadata(path) {
        Ok(metadata) => metadata.permissions().mode(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io(path)(error)),
    };
    if mode & 0o077 == 0 {
        return Ok(());
    }
    close(path, 0o600)
}

/// Sets the mode of what others may use. What is not ours to change, such as a mounted secret, stays with a warning.
fn close(path: &Path, mode: u32) -> Result<(), PkiError> {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    match std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)) {
        Err(error) if matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem) => {
            tracing::warn!(path = %path.display(), %error, "others may look into this");
            Ok(())
        }
        done => done.map_err(io(path)),
    }
}

/// Writes a file for its owner's eyes only, durably and as a whole.
///
/// # Errors
/// When the folder does not let us.
pub fn write_private(path: &Path, text: &str) -> Result<(), PkiError> {
    write(path, text, 0o600)
}

/// The same for everybody's eyes.
///
/// # Errors
/// When the folder does not let us.
pub fn write_public(path: &Path, text: &str) -> Result<(), PkiError> {
    write(path, text, 0o644)
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), PkiError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let unfinished = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
    let written = (|| {
        // Left by a process of the same number that did not get to its end, or put there by who owns the folder: a link
        // is not followed, and what it leads to stays as it is.
        match std::fs::remove_file(&unfinished) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io(&unfinished)(error)),
            _ => {}
        }
        let mut file =
            OpenOptions::new().create_new(true).write(true).mode(mode).open(&unfinished).map_err(io(path))?;
        // Of the mode above, the process's mask may have taken something.
        file.set_permissions(std::fs::Permissions::from_mode(mode)).map_err(io(path))?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(io(path))?;
        std::fs::rename(&unfinished, path).map_err(io(path))?;
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder).and_then(|f| f.sync_all()).map_err(io(folder))
    })();
    if written.is_err() {
        // Nothing is lost when this fails too: the next attempt starts the file again.
        let _ = std::fs::remove_file(&unfinished);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_open_to_others_is_closed() {
        let folder =
            std::env::temp_dir().join(format!("open-{}-{:?}", std::process::id(), std::thread::current().id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let open = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
        let mode = |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
        open(&folder, 0o755).expect("ours");
        private_folder(&folder).expect("ours");
        assert_eq!(mode(&folder), 0o700);
        let key = folder.join("key");
        std::fs::write(&key, "secret").expect("writable");
        open(&key, 0o644).expect("ours");
        tighten(&key).expect("ours");
        assert_eq!(mode(&key), 0o600);
        tighten(&folder.join("none")).expect("nothing to do");
        std::fs::remove_dir_all(&folder).expect("ours");
    }

    #[test]
    fn a_link_in_the_place_of_the_unfinished_file_is_not_followed() {
        let folder =
            std::env::temp_dir().join(format!("link-{}-{:?}", std::process::id(), std::thread::current().id()));
        private_folder(&folder).expect("a temporary folder");
        let (path, other) = (folder.join("key"), folder.join("other"));
        std::fs::write(&other, "untouched").expect("writable");
        let unfinished = folder.join(format!(".key.{}.tmp", std::process::id()));
        std::os::unix::fs::symlink(&other, &unfinished).expect("made");
        write_private(&path, "secret").expect("writable");
        assert_eq!(read(&other).expect("readable").as_deref(), Some("untouched"));
        assert!(std::fs::symlink_metadata(&path).expect("there").is_file());
        std::fs::remove_dir_all(&folder).expect("ours");
    }

    #[test]
    fn private_files_are_for_their_owner_only_and_are_replaced_as_a_whole() {
        let folder = std::env::temp_dir().join(format!("pki-{}-{:?}", std::process::id(), std::thread::current().id()));
        private_folder(&folder).expect("a temporary folder");
        let path = folder.join("key");
        write_private(&path, "one").expect("writable");
        write_private(&path, "two").expect("writable");
        assert_eq!(read(&path).expect("readable").as_deref(), Some("two"));
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(&folder).expect("there").count(), 1);
        assert_eq!(read(&folder.join("none")).expect("no error"), None);
        std::fs::remove_dir_all(&folder).expect("ours");
    }
}
