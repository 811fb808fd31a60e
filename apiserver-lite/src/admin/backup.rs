//! `apiserver-lite backup` and `restore`.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use proto::time::Timestamp;

use super::archive::{Archive, KEYS};
use super::flags::{BackupArgs, RestoreArgs};
use super::{AdminError, objects, say};
use crate::pki;
use crate::store::{Image, Store};

/// Added to the revision of a restored store. Clients that saw later revisions of the old one must not take them for
/// revisions of this one: they find theirs too old, and list again. etcd's own tools advise the same figure.
const BUMP: u64 = 1_000_000_000;

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> AdminError + '_ {
    |source| AdminError::Io { path: path.into(), source }
}

pub(super) fn backup(args: &BackupArgs) -> Result<(), AdminError> {
    if std::fs::symlink_metadata(&args.file).is_ok() {
        return Err(AdminError::Exists(args.file.clone()));
    }
    let image = Image::read(&args.folders.store())?;
    let broken = image.problems();
    if !broken.is_empty() {
        broken.iter().for_each(|line| eprintln!("{line}"));
        return Err(AdminError::BadObjects { count: broken.len(), of: image.len() });
    }
    let mut archive = Archive {
        made: Timestamp::now().to_seconds_text(),
        revision: image.revision,
        objects: image.len(),
        snapshot: image.snapshot(),
        keys: Default::default(),
    };
    for name in KEYS {
        let path = args.folders.pki().join(name);
        match std::fs::read(&path) {
            Ok(bytes) => drop(archive.keys.insert(name.to_owned(), bytes)),
            // A cluster whose operator brought keys of their own keeps them elsewhere.
            Err(error) if error.kind() == ErrorKind::NotFound => eprintln!("{} is not there; left out", path.display()),
            Err(error) => return Err(io(&path)(error)),
        }
    }
    let bytes = write_new(&args.file, &archive)?;
    say(&format!("{}: {} at revision {}, {bytes} bytes", args.file.display(), objects(image.len()), image.revision))
}

/// Writes the file under another name, reads it back, and gives it its name when that is still free.
fn write_new(path: &Path, archive: &Archive) -> Result<u64, AdminError> {
    let name = path.file_name().ok_or_else(|| AdminError::Usage(format!("{} is no file name", path.display())))?;
    let unfinished = path.with_file_name(format!(".{}.{}.tmp", name.to_string_lossy(), std::process::id()));
    let written = (|| {
        let file =
            OpenOptions::new().create_new(true).write(true).mode(0o600).open(&unfinished).map_err(io(&unfinished))?;
        let file = archive.write(std::io::BufWriter::new(file)).map_err(io(&unfinished))?;
        let mut file = file.into_inner().map_err(|e| io(&unfinished)(e.into_error()))?;
        file.flush().and_then(|()| file.sync_all()).map_err(io(&unfinished))?;
        // A disk that takes bytes and gives back others is found out now, and not when the backup is needed.
        let read = Archive::read(&unfinished)?;
        Image::of_snapshot(&unfinished, &read.snapshot)?;
        match std::fs::hard_link(&unfinished, path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(AdminError::Exists(path.into())),
            // File systems without hard links, such as those of memory sticks.
            Err(_) => std::fs::rename(&unfinished, path).map_err(io(path))?,
            Ok(()) => {}
        }
        sync_parent(path)?;
        std::fs::metadata(path).map(|m| m.len()).map_err(io(path))
    })();
    // Gone already after a rename.
    let _ = std::fs::remove_file(&unfinished);
    written
}

fn sync_parent(path: &Path) -> Result<(), AdminError> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|f| f.sync_all()).map_err(io(folder))
}

pub(super) fn restore(args: &RestoreArgs) -> Result<(), AdminError> {
    let archive = Archive::read(&args.file)?;
    let image = Image::of_snapshot(&args.file, &archive.snapshot)?;
    let (store, keys) = (args.folders.store(), args.folders.pki());
    nothing_there(&store)?;
    for (name, bytes) in &archive.keys {
        let path = keys.join(name);
        match std::fs::read(&path) {
            Ok(found) if found == *bytes => {}
            Ok(_) => return Err(AdminError::OtherKey(path)),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(io(&path)(error)),
        }
    }
    pki::private_folder(&args.folders.data_dir)?;
    let unfinished = args.folders.data_dir.join(format!("store.{}.tmp", std::process::id()));
    let restored = write(&archive, &image, &unfinished, &keys);
    if restored.is_err() {
        // What is left of it is in nobody's way.
        let _ = std::fs::remove_dir_all(&unfinished);
    }
    let mut made = restored?;
    hand_over(&args.folders.data_dir, &mut made)?;
    // An empty folder may be replaced; one that a server has filled meanwhile is not.
    std::fs::rename(&unfinished, &store).map_err(|error| match error.kind() {
        ErrorKind::DirectoryNotEmpty => AdminError::StoreThere(store.clone()),
        _ => io(&store)(error),
    })?;
    sync_parent(&store)?;
    // It opens, with the server's own code.
    let opened = Store::open(Some(store.clone()))?;
    let revision = opened.revision();
    say(&format!(
        "{}: {} of {}, now at revision {revision}; start the server",
        store.display(),
        objects(image.len()),
        archive.made
    ))
}

/// Writes the new store and the keys; returns what was made.
fn write(archive: &Archive, image: &Image, store: &Path, keys: &Path) -> Result<Vec<PathBuf>, AdminError> {
    image.write(store, image.revision + BUMP).map_err(io(store))?;
    let mut made = vec![store.to_owned()];
    for entry in std::fs::read_dir(store).map_err(io(store))? {
        made.push(entry.map_err(io(store))?.path());
    }
    if !archive.keys.is_empty() && !keys.exists() {
        made.push(keys.to_owned());
    }
    if !archive.keys.is_empty() {
        pki::private_folder(keys)?;
    }
    for (name, bytes) in &archive.keys {
        let path = keys.join(name);
        if path.exists() {
            continue;
        }
        let text = String::from_utf8_lossy(bytes);
        let public = Path::new(name).extension().is_some_and(|e| e != "key");
        if public {
            pki::write_public(&path, &text)?
        } else {
            pki::write_private(&path, &text)?
        }
        made.push(path);
    }
    Ok(made)
}

/// Refuses a folder with a store in it, also one that a server has just begun.
fn nothing_there(store: &Path) -> Result<(), AdminError> {
    let mut entries = match std::fs::read_dir(store) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(io(store))?,
    };
    if entries.next().is_some() { Err(AdminError::StoreThere(store.into())) } else { Ok(()) }
}

/// What root restores belongs to whom the data folder belongs to: the server's own user.
fn hand_over(folder: &Path, made: &mut Vec<PathBuf>) -> Result<(), AdminError> {
    let owner = std::fs::metadata(folder).map_err(io(folder))?;
    for path in made.drain(..) {
        let now = std::fs::metadata(&path).map_err(io(&path))?;
        if (now.uid(), now.gid()) != (owner.uid(), owner.gid()) {
            std::os::unix::fs::chown(&path, Some(owner.uid()), Some(owner.gid())).map_err(io(&path))?;
        }
    }
    Ok(())
}
