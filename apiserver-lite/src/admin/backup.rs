//! `apiserver-lite backup` and `restore`.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use proto::time::Timestamp;

use super::archive::{Archive, KEYS};
use super::flags::{BackupArgs, Folders, RestoreArgs};
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
    not_served(&args.folders.data_dir)?;
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
    let mut made = Vec::new();
    let restored = place(&archive, &image, &unfinished, &args.folders, &mut made);
    if restored.is_err() {
        // Nothing was changed: the next attempt finds what this one found.
        let _ = std::fs::remove_dir_all(&unfinished);
        made.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
    let revision = restored?;
    say(&format!(
        "{}: {} of {}, now at revision {revision}; start the server",
        store.display(),
        objects(image.len()),
        archive.made
    ))
}

/// Writes the new store beside its place and the keys, and moves the store there; returns its revision. `made` gets the
/// keys that were not there.
fn place(
    archive: &Archive,
    image: &Image,
    unfinished: &Path,
    folders: &Folders,
    made: &mut Vec<PathBuf>,
) -> Result<u64, AdminError> {
    let (store, keys) = (folders.store(), folders.pki());
    image.write(unfinished, image.revision + BUMP).map_err(io(unfinished))?;
    // It opens, with the server's own code. That makes files too, so it comes before all of them are handed over.
    let opened = Store::open(Some(unfinished.to_owned()))?;
    let revision = opened.revision();
    // An empty folder that waits for the store is its operator's word on whose the store is to be.
    let owner = Owner::of(if store.exists() { &store } else { &folders.data_dir })?;
    owner.take_all(unfinished)?;
    write_keys(archive, &keys, made)?;
    // An empty folder may be replaced; one that a server has filled meanwhile is not.
    std::fs::rename(unfinished, &store).map_err(|error| match error.kind() {
        ErrorKind::DirectoryNotEmpty => AdminError::StoreThere(store.clone()),
        _ => io(&store)(error),
    })?;
    // The store is in its place: what follows takes nothing back.
    made.clear();
    sync_parent(&store)?;
    Ok(revision)
}

/// Writes the keys that are not there, for whom their folder belongs to.
fn write_keys(archive: &Archive, keys: &Path, made: &mut Vec<PathBuf>) -> Result<(), AdminError> {
    if archive.keys.is_empty() {
        return Ok(());
    }
    if !keys.exists() {
        let owner = keys.ancestors().find(|folder| folder.exists()).map(Owner::of).transpose()?;
        pki::private_folder(keys)?;
        owner.map_or(Ok(()), |owner| owner.take(keys))?;
    }
    let owner = Owner::of(keys)?;
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
        made.last().map_or(Ok(()), |path| owner.take(path))?;
    }
    Ok(())
}

/// Refuses a folder with a store in it, also one that a server has just begun.
fn nothing_there(store: &Path) -> Result<(), AdminError> {
    let mut entries = match std::fs::read_dir(store) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(io(store))?,
    };
    if entries.next().is_some() { Err(AdminError::StoreThere(store.into())) } else { Ok(()) }
}

/// Refuses the folder of a server that runs: it goes on with the store that was moved away, and acknowledges what the next
/// start will not find.
fn not_served(data_dir: &Path) -> Result<(), AdminError> {
    for store in std::fs::read_dir(data_dir).into_iter().flatten().flatten() {
        let held = Owner::open(&store.path().join("lock"), 0).map(|lock| lock.try_lock_shared());
        if matches!(held, Ok(Err(std::fs::TryLockError::WouldBlock))) {
            return Err(AdminError::Served(store.path()));
        }
    }
    Ok(())
}

/// Whom a folder belongs to: what root restores has to be the server's own user's, who opens it later.
struct Owner {
    user: u32,
    group: u32,
}

impl Owner {
    /// Whose a folder is; of a link, whose the folder that it leads to is.
    fn of(folder: &Path) -> Result<Self, AdminError> {
        let metadata = std::fs::metadata(folder).map_err(io(folder))?;
        Ok(Owner { user: metadata.uid(), group: metadata.gid() })
    }

    /// Hands over what we made. The folder around it may be the new owner's already, who must not get anything else by
    /// putting a link in its place: what is handed over is what was opened, and a link is not.
    fn take(&self, path: &Path) -> Result<(), AdminError> {
        self.take_opened(&Self::open(path, 0).map_err(io(path))?, path)
    }

    /// The same for a folder and the files in it: those of the folder that was opened, whatever has its name later.
    fn take_all(&self, folder: &Path) -> Result<(), AdminError> {
        let opened = Self::open(folder, libc::O_DIRECTORY).map_err(io(folder))?;
        let inside = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
        for entry in std::fs::read_dir(&inside).map_err(io(folder))? {
            let name = entry.map_err(io(folder))?.file_name();
            let shown = folder.join(&name);
            let file = Self::open(&inside.join(&name), 0).map_err(io(&shown))?;
            self.take_opened(&file, &shown)?;
        }
        self.take_opened(&opened, folder)
    }

    fn open(path: &Path, flags: i32) -> std::io::Result<File> {
        // Nor is a pipe waited for that somebody put there.
        OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | flags).open(path)
    }

    fn take_opened(&self, file: &File, path: &Path) -> Result<(), AdminError> {
        let now = file.metadata().map_err(io(path))?;
        if !(now.is_dir() || now.is_file() && now.nlink() == 1) {
            return Err(io(path)(std::io::Error::other("it is not the file that was written")));
        }
        if (now.uid(), now.gid()) != (self.user, self.group) {
            std::os::unix::fs::fchown(file, Some(self.user), Some(self.group)).map_err(io(path))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A folder of its own for a test, gone with it.
    struct Scratch(PathBuf);

    impl Scratch {
        /// With a folder to restore into, and a backup.
        fn new() -> (Self, PathBuf, PathBuf) {
            let dir = std::env::temp_dir().join(format!("restore-{}", crate::random::uuid()));
            let (old, new, file) = (dir.join("old"), dir.join("new"), dir.join("file"));
            std::fs::create_dir_all(&old).and_then(|()| std::fs::create_dir(&new)).expect("made");
            filled(&old);
            backup(&BackupArgs { file: file.clone(), folders: folders(&old) }).expect("backed up");
            (Scratch(dir), new, file)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn folders(dir: &Path) -> Folders {
        Folders { data_dir: dir.to_owned(), cert_dir: None }
    }

    /// A store with a write in it and some keys.
    fn filled(dir: &Path) {
        Image::default().write(&folders(dir).store(), 7).expect("written");
        std::fs::create_dir(dir.join("pki")).expect("made");
        for name in ["ca.crt", "ca.key"] {
            std::fs::write(dir.join("pki").join(name), name).expect("written");
        }
    }

    fn all_below(dir: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(dir).expect("a folder").flatten() {
            if entry.path().is_dir() {
                found.extend(all_below(&entry.path()));
            }
            found.push(entry.path());
        }
        found
    }

    /// A store that was moved away under a running server is still written to.
    #[test]
    fn nothing_is_restored_beside_a_store_that_a_server_has_open() {
        let (_scratch, new, file) = Scratch::new();
        let moved = new.join("store.old");
        let server = Store::open(Some(moved.clone())).expect("opened");
        let args = RestoreArgs { file, folders: folders(&new) };
        match restore(&args) {
            Err(AdminError::Served(path)) => assert_eq!(path, moved),
            other => panic!("{other:?}"),
        }
        assert!(!new.join("store").exists() && !new.join("pki").exists());
        drop(server);
        // The store's writer lets go of its folder in its own time.
        let begun = std::time::Instant::now();
        while let Err(error) = restore(&args) {
            let writes_still = matches!(error, AdminError::Served(_)) && begun.elapsed().as_secs() < 30;
            assert!(writes_still, "not restored when the server has ended: {error}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    #[test]
    fn a_restored_store_is_its_folders_owners_down_to_the_last_file() {
        let (_scratch, new, file) = Scratch::new();
        let own = std::fs::metadata(&new).expect("there");
        let root = own.uid() == 0;
        let (user, group) = if root { (12345, 23456) } else { (own.uid(), own.gid()) };
        std::os::unix::fs::chown(&new, Some(user), Some(group)).expect("allowed");
        restore(&RestoreArgs { file: file.clone(), folders: folders(&new) }).expect("restored");
        let files = all_below(&new);
        assert!(files.iter().any(|f| f.ends_with("pki/ca.key")), "{files:?}");
        assert!(files.iter().any(|f| f.ends_with("store/lock")), "the server has opened it: {files:?}");
        for path in files {
            let metadata = std::fs::metadata(&path).expect("there");
            assert_eq!((metadata.uid(), metadata.gid()), (user, group), "{}", path.display());
            let public = path.extension().is_some_and(|e| e == "crt");
            assert!(public || metadata.permissions().mode() & 0o077 == 0, "{}", path.display());
        }
        assert_eq!(Image::read(&folders(&new).store()).expect("a store").revision, 7 + BUMP);
    }

    #[test]
    fn a_folder_that_waits_for_the_store_says_whose_it_is() {
        let (_scratch, new, file) = Scratch::new();
        if std::fs::metadata(&new).expect("there").uid() != 0 {
            return;
        }
        std::fs::create_dir(new.join("store")).expect("made");
        std::os::unix::fs::chown(new.join("store"), Some(777), Some(888)).expect("allowed");
        restore(&RestoreArgs { file, folders: folders(&new) }).expect("restored");
        for path in all_below(&new.join("store")).iter().chain([&new.join("store")]) {
            let metadata = std::fs::metadata(path).expect("there");
            assert_eq!((metadata.uid(), metadata.gid()), (777, 888), "{}", path.display());
        }
    }

    #[test]
    fn nothing_is_handed_over_through_a_link() {
        let (_scratch, new, _file) = Scratch::new();
        let owner = Owner::of(&new).expect("there");
        let (key, soft, hard) = (new.join("key"), new.join("soft"), new.join("hard"));
        std::fs::write(&key, "secret").expect("written");
        owner.take_all(&new).expect("a file of ours");
        std::os::unix::fs::symlink(&key, &soft).expect("made");
        assert!(owner.take(&soft).is_err() && owner.take_all(&new).is_err());
        std::fs::remove_file(&soft).expect("removed");
        std::os::unix::fs::symlink(&new, new.with_file_name("other")).expect("made");
        assert!(owner.take_all(&new.with_file_name("other")).is_err(), "nor through one of the folder");
        owner.take_all(&new).expect("the link is gone");
        std::fs::hard_link(&key, &hard).expect("made");
        assert!(owner.take(&hard).is_err(), "a file that has another name");
    }

    #[test]
    fn a_restore_that_is_refused_leaves_everything_as_it_was() {
        let (_scratch, new, file) = Scratch::new();
        std::fs::create_dir(new.join("pki")).expect("made");
        let attempt = || restore(&RestoreArgs { file: file.clone(), folders: folders(&new) });
        std::fs::write(new.join("pki/ca.key"), "another").expect("written");
        assert!(matches!(attempt(), Err(AdminError::OtherKey(path)) if path.ends_with("pki/ca.key")));
        assert_eq!(all_below(&new).len(), 2, "the folder and the key");
        // A store cannot take the place of a link: the keys that were written before go again.
        std::fs::remove_file(new.join("pki/ca.key")).expect("removed");
        let elsewhere = new.with_file_name("elsewhere");
        std::fs::create_dir(&elsewhere).expect("made");
        std::os::unix::fs::symlink(&elsewhere, new.join("store")).expect("made");
        assert!(attempt().is_err());
        assert_eq!(all_below(&new).len(), 2, "{:?}", all_below(&new));
    }
}
