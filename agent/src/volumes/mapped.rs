//! Devices as a kubelet binds them for each pod in the folder of a volume: a file to which the device is bound, and a loop
//! device that holds it, so that its name is nobody else's meanwhile.
//!
//! This agent makes the files for disks of the node ([`bind`]), and no loops: after a node was switched to it they are there
//! for the pods that ran, and would keep the device busy for ever. They go before it does.
//!
//! Followed: `pkg/volume/util/volumepathhandler`.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nix::mount::{MsFlags, mount};

use super::turns::blocking;
use super::{disk, mount_table};

const LOCAL: &str = "plugins/kubernetes.io~local-volume/volumeDevices";
const BLOCK_DEVICES: &str = "/sys/block";

/// Held while a folder of a volume is made with a file in it, or removed: between the two it is empty, and one pod may get the
/// volume while another gives it back.
static FOLDERS: Mutex<()> = Mutex::new(());

/// [`release_now`], away from the other work of this thread.
///
/// # Errors
/// Those of it.
pub async fn release(file: PathBuf) -> Result<(), String> {
    blocking(move || release_now(&file)).await
}

/// What a pod has of local volumes as devices, beside its own folder.
///
/// # Errors
/// Those of [`release_now`], of all that could not be released; the others are all the same.
pub async fn release_local(root_dir: &Path, uid: &str) -> Result<(), String> {
    let (all, uid) = (root_dir.join(LOCAL), uid.to_owned());
    blocking(move || {
        let mut failed = Vec::new();
        for volume in std::fs::read_dir(&all).into_iter().flatten().flatten() {
            match release_now(&volume.path().join(&uid)) {
                // The last one takes the folder along.
                Ok(()) => remove_folder(&volume.path()),
                Err(why) => failed.push(why),
            }
        }
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    })
    .await
}

/// Where a local volume is bound, as device, for a pod.
pub fn place_of_local(root_dir: &Path, name: &str, uid: &str) -> PathBuf {
    root_dir.join(LOCAL).join(name).join(uid)
}

/// Binds a device to a file of a pod's, unless it is. Blocks.
///
/// # Errors
/// The file cannot be made, or the kernel refuses.
pub fn bind(device: &Path, own: &Path) -> Result<(), String> {
    if mount_table::is_mount_point(own)? {
        let number = |path: &Path| std::fs::metadata(path).map(|found| found.rdev()).ok();
        if number(own) == number(device) {
            return Ok(());
        }
        // The device went meanwhile, and another one has the name now.
        mount_table::unmount_strictly(own)?;
    }
    let refused = |e: std::io::Error| format!("failed to bind {} to {}: {e}", device.display(), own.display());
    make_file(own).map_err(refused)?;
    mount(Some(device), own, None::<&str>, MsFlags::MS_BIND, None::<&str>).map_err(|e| refused(e.into()))
}

/// Makes a file and its folder, private to the node.
fn make_file(own: &Path) -> std::io::Result<()> {
    let _alone = FOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
    crate::csi::make_private(own.parent().unwrap_or(own))?;
    std::fs::File::options().create(true).append(true).open(own).map(drop)
}

/// Removes the folder of a volume once nothing is in it; it refuses before.
fn remove_folder(folder: &Path) {
    let _alone = FOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = std::fs::remove_dir(folder);
}

/// Detaches the loops that hold the device bound to a file, unbinds it and removes the file. Blocks. Nothing there is
/// nothing to do.
///
/// # Errors
/// Something is in use, or the file is none for a device: then it stays.
pub fn release_now(file: &Path) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("cannot remove {}: {e}", file.display());
    match std::fs::symlink_metadata(file) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(failed(e)),
        Ok(_) => {}
    }
    for device in loops_on(Path::new(BLOCK_DEVICES), file) {
        detach(&device)?;
    }
    mount_table::unmount_strictly(file)?;
    let found = std::fs::symlink_metadata(file).map_err(failed)?;
    if !found.is_file() || found.len() != 0 {
        return Err(format!("{} is no file for a device", file.display()));
    }
    std::fs::remove_file(file).map_err(failed)
}

/// The loop devices whose backing file has that path.
fn loops_on(devices: &Path, file: &Path) -> Vec<PathBuf> {
    let real = std::fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let mut found = Vec::new();
    for device in std::fs::read_dir(devices).into_iter().flatten().flatten() {
        let Ok(text) = std::fs::read_to_string(device.path().join("loop/backing_file")) else { continue };
        if Path::new(text.trim_end_matches('\n')) == real {
            found.push(Path::new("/dev").join(device.file_name()));
        }
    }
    found
}

/// Waits for the tool as long as for any that has to do with a disk, on a thread that may wait.
fn detach(device: &Path) -> Result<(), String> {
    let failed = |why: &str| format!("cannot detach {}: {why}", device.display());
    let runtime = tokio::runtime::Handle::try_current().map_err(|e| failed(&e.to_string()))?;
    let arguments = [Path::new("--detach"), device];
    match runtime.block_on(disk::run(Path::new("losetup"), &arguments)) {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(failed(&disk::said(&output))),
        Err(why) => Err(failed(&why)),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("mapped-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        path.canonicalize().unwrap()
    }

    #[test]
    fn loops_are_found_by_what_they_hold() {
        let root = scratch("found");
        let file = root.join("file");
        std::fs::write(&file, "").unwrap();
        for (name, backing) in [("loop0", "/other".to_owned()), ("loop7", file.display().to_string())] {
            let folder = root.join("sys").join(name).join("loop");
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("backing_file"), format!("{backing}\n")).unwrap();
        }
        std::fs::create_dir_all(root.join("sys/loop9")).unwrap();
        std::fs::create_dir_all(root.join("sys/sda")).unwrap();
        assert_eq!(loops_on(&root.join("sys"), &file), [PathBuf::from("/dev/loop7")]);
        std::fs::remove_dir_all(&root).unwrap();
    }

    /// A pod that got a volume while the last one before it gave it back failed once, for want of the folder.
    #[test]
    fn a_file_is_made_whoever_takes_its_folder_away() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let root = scratch("folder");
        let (folder, done) = (root.join("pv"), AtomicBool::new(false));
        let own = folder.join("u1");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    remove_folder(&folder);
                }
            });
            let made: Vec<_> = (0..2000).map(|_| make_file(&own).and_then(|()| std::fs::remove_file(&own))).collect();
            done.store(true, Ordering::Relaxed);
            assert!(made.iter().all(Result::is_ok), "{:?}", made.iter().find(|made| made.is_err()));
        });
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn only_files_for_devices_are_removed() {
        let root = scratch("files");
        std::fs::write(root.join("full"), "text").unwrap();
        std::fs::write(root.join("empty"), "").unwrap();
        assert_eq!(release_now(&root.join("none")), Ok(()));
        assert_eq!(release_now(&root.join("empty")), Ok(()));
        assert!(!root.join("empty").exists());
        assert!(release_now(&root.join("full")).unwrap_err().contains("is no file for a device"));
        assert!(root.join("full").exists());
        std::fs::remove_dir_all(&root).unwrap();
    }

    /// The first that was busy used to leave all after it bound.
    #[tokio::test]
    async fn what_cannot_be_released_keeps_no_other() {
        let root = scratch("all");
        for (name, content) in [("a", "text"), ("b", ""), ("c", "text"), ("d", "")] {
            let place = place_of_local(&root, name, "u1");
            std::fs::create_dir_all(place.parent().unwrap()).unwrap();
            std::fs::write(place, content).unwrap();
        }
        let why = release_local(&root, "u1").await.unwrap_err();
        let told: Vec<_> = ["a", "b", "c", "d"].iter().filter(|n| why.contains(&format!("/{n}/u1"))).collect();
        assert_eq!(told, [&"a", &"c"], "{why}");
        assert!(!root.join(LOCAL).join("b").exists() && !root.join(LOCAL).join("d").exists());
        std::fs::remove_dir_all(&root).unwrap();
    }

    /// A pod that a kubelet gave a local device, and that ends under this agent.
    #[tokio::test]
    async fn what_a_kubelet_bound_for_a_pod_goes_with_it() {
        let root = scratch("bound");
        let image = root.join("image");
        std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
        let attach = |file: &Path| {
            let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
            let name = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            output.status.success().then(|| PathBuf::from(name))
        };
        let Some(device) = attach(&image) else {
            eprintln!("skipped: no loop device can be had");
            std::fs::remove_dir_all(&root).unwrap();
            return;
        };
        let volume = root.join(LOCAL).join("pv");
        std::fs::create_dir_all(&volume).unwrap();
        let own = volume.join("u1");
        std::fs::write(&own, "").unwrap();
        let bound = nix::mount::mount(Some(&device), &own, None::<&str>, nix::mount::MsFlags::MS_BIND, None::<&str>);
        let holder = bound.ok().and_then(|()| attach(&own));
        let released = release_local(&root, "u1").await;
        let left = loops_on(Path::new(BLOCK_DEVICES), &own);
        Command::new("losetup").arg("--detach").arg(&device).output().unwrap();
        assert_eq!((released, left), (Ok(()), Vec::new()));
        assert!(!volume.exists());
        if holder.is_none() {
            eprintln!("skipped in part: no loop on a bound device can be had");
        }
        std::fs::remove_dir_all(&root).unwrap();
    }
}
