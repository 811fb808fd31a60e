//! File systems on block devices of this node, by the host's tools: looked at with `blkid`, made where there is none,
//! checked, mounted once for all pods, and bound into each pod that has the volume.
//!
//! A device is mounted below `plugins/`, where the kubelet has it; it stays until no pod of the node has it any more,
//! which the kernel's mount table tells.
//!
//! Followed: `mount-utils` (`SafeFormatAndMount`).

use std::ffi::OsStr;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use nix::mount::{MsFlags, mount};

use super::turns::{Turn, blocking};
use super::{empty_dir, mount_table};

/// For a tool that has to do with a disk which may not answer.
const PATIENCE: Duration = Duration::from_secs(300);
const DEFAULT_TYPE: &str = "ext4";
const PARTITIONS: &str = "unknown data, probably partitions";

/// How a device is to be mounted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct How {
    /// Empty for `ext4`.
    pub fs_type: String,
    pub read_only: bool,
    pub options: Vec<String>,
}

/// A file system that is mounted for all pods of this node, and stays for as long as this is held.
pub struct Staged {
    pub path: PathBuf,
    pub(super) _turn: Turn,
}

/// Runs a tool of the host; it ends with the future.
///
/// # Errors
/// It cannot be started, or takes too long.
pub async fn run<S: AsRef<OsStr>>(tool: &Path, arguments: &[S]) -> Result<Output, String> {
    let mut command = tokio::process::Command::new(tool);
    let running = command.args(arguments).stdin(Stdio::null()).kill_on_drop(true).output();
    let name = tool.display();
    match tokio::time::timeout(PATIENCE, running).await {
        Ok(output) => output.map_err(|e| format!("{name}: {e}")),
        Err(_) => Err(format!("{name} did not end within {} seconds", PATIENCE.as_secs())),
    }
}

/// Runs a tool that must not be stopped half way, however long it takes; none where the machine has no such tool.
async fn run_to_end(tool: &Path, arguments: &[&OsStr]) -> Result<Option<Output>, String> {
    let mut command = tokio::process::Command::new(tool);
    match command.args(arguments).stdin(Stdio::null()).kill_on_drop(false).output().await {
        Ok(output) => Ok(Some(output)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(format!("{}: {e}", tool.display())),
    }
}

/// What a tool said, on both of its streams.
pub fn said(output: &Output) -> String {
    let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&text).trim().to_owned()
}

/// Mounts a device; one without anything on it gets a file system first. To be called from a task that nobody cancels.
///
/// # Errors
/// The device holds something else, or a tool refuses; with what it said.
pub async fn format_and_mount(device: &Path, to: &Path, how: &How) -> Result<(), String> {
    let place = to.to_owned();
    if blocking(move || mount_table::is_mount_point(&place)).await? {
        return Ok(());
    }
    let fs_type = if how.fs_type.is_empty() { DEFAULT_TYPE } else { &how.fs_type };
    // It becomes part of a tool's name.
    if !fs_type.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-')) || fs_type.starts_with('-') {
        return Err(format!("invalid fsType {fs_type:?}"));
    }
    let found = content(device).await?;
    match found.as_str() {
        "" if how.read_only => {
            return Err(format!(
                "cannot mount unformatted disk {} as we are manipulating it in read-only mode",
                device.display()
            ));
        }
        "" => make(device, fs_type).await?,
        PARTITIONS => {}
        _ if how.read_only => {}
        _ => check(device).await?,
    }
    empty_dir::make_directory(to)?;
    let mut options = how.options.clone();
    options.insert(0, if how.read_only { "ro" } else { "defaults" }.to_owned());
    let (device, place) = (device.display().to_string(), to.display().to_string());
    let arguments = ["-t", fs_type, "-o", &options.join(","), &device, &place];
    let output = run(Path::new("mount"), &arguments).await?;
    if output.status.success() {
        return Ok(());
    }
    let why = format!(
        "mount failed: {}\nMounting command: mount\nMounting arguments: {}\nOutput: {}\n",
        output.status,
        arguments.join(" "),
        said(&output)
    );
    if found.is_empty() || found == fs_type {
        return Err(why);
    }
    Err(format!("failed to mount the volume as {fs_type:?}, it already contains {found}. Mount error: {why}"))
}

/// The type of what is on a device; empty for nothing.
async fn content(device: &Path) -> Result<String, String> {
    let device = device.as_os_str();
    let arguments = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export"].map(OsStr::new);
    let output = run(Path::new("blkid"), &[&arguments[..], &[device]].concat()).await?;
    // 2: nothing that it knows.
    if output.status.code() == Some(2) {
        return Ok(String::new());
    }
    if !output.status.success() {
        return Err(format!("could not determine if disk {} is formatted: {}", device.display(), said(&output)));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned);
    match (value("TYPE="), value("PTTYPE=")) {
        (Some(found), _) => Ok(found),
        (None, Some(_)) => Ok(PARTITIONS.into()),
        (None, None) => Ok(String::new()),
    }
}

async fn make(device: &Path, fs_type: &str) -> Result<(), String> {
    // `blkid` calls a device empty as well that it cannot read just now.
    let looked_at = device.to_owned();
    blocking(move || {
        let mut start = vec![0; 1 << 16];
        let read = std::fs::File::open(&looked_at).and_then(|mut file| file.read_exact(&mut start));
        read.map_err(|e| format!("could not determine if disk {} is formatted: {e}", looked_at.display()))
    })
    .await?;
    let mut arguments: Vec<&OsStr> = Vec::new();
    if fs_type.starts_with("ext") {
        // Do not ask, and keep nothing back for root.
        arguments.extend([OsStr::new("-F"), OsStr::new("-m0")]);
    } else if fs_type == "xfs" {
        arguments.push(OsStr::new("-f"));
    }
    arguments.push(device.as_os_str());
    tracing::info!(device = %device.display(), fs_type, "a device is empty and gets a file system");
    let tool = format!("mkfs.{fs_type}");
    let failed = |why: &str| format!("format of disk {} failed: type:({fs_type:?}): {why}", device.display());
    match run_to_end(Path::new(&tool), &arguments).await? {
        Some(output) if output.status.success() => Ok(()),
        Some(output) => Err(failed(&said(&output))),
        None => Err(failed(&format!("there is no {tool}"))),
    }
}

/// Mends what can be mended without asking. A machine without the tool mounts unchecked, as the kubelet does.
async fn check(device: &Path) -> Result<(), String> {
    let arguments = [OsStr::new("-a"), device.as_os_str()];
    match run_to_end(Path::new("fsck"), &arguments).await? {
        Some(output) => judge(device, output.status.code(), &said(&output)),
        None => Ok(()),
    }
}

/// What an end of `fsck` means: `code` is none when a signal ended it. Errors of its own, as for a type that it has no
/// tool for, let the device be mounted unchecked; a check that was broken off does not.
fn judge(device: &Path, code: Option<i32>, said: &str) -> Result<(), String> {
    let device = device.display();
    match code {
        Some(4) => Err(format!("'fsck' found errors on device {device} but could not correct them: {said}")),
        None | Some(32) => Err(format!("'fsck' of device {device} was broken off: {said}")),
        Some(_) if said.contains("exited with signal") => {
            Err(format!("'fsck' of device {device} was broken off: {said}"))
        }
        Some(_) => Ok(()),
    }
}

/// Binds what is mounted for all to the place of one pod, unless it is there.
///
/// # Errors
/// The kernel refuses.
pub fn bind(from: &Path, to: &Path, read_only: bool) -> Result<(), String> {
    if mount_table::is_mount_point(to)? {
        return Ok(());
    }
    empty_dir::make_directory(to)?;
    let refused = |e: nix::Error| format!("failed to bind {} to {}: {e}", from.display(), to.display());
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>).map_err(refused)?;
    if read_only {
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        if let Err(error) = mount(None::<&str>, to, None::<&str>, flags, None::<&str>) {
            // Not as one that may be written to: a retry would take it as done.
            mount_table::unmount_strictly(to)?;
            return Err(refused(error));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_was_broken_off_is_none() {
        let judged = |code, said| judge(Path::new("/dev/x"), code, said);
        assert!(judged(Some(0), "clean").is_ok() && judged(Some(1), "fixed").is_ok());
        assert!(judged(Some(8), "fsck: error 2 while executing fsck.new").is_ok());
        assert!(judged(Some(4), "bad").unwrap_err().contains("could not correct"));
        let signal = "Warning... fsck.ext4 for device /dev/x exited with signal 9.";
        for (code, said) in [(None, ""), (Some(32), ""), (Some(8), signal)] {
            assert!(judged(code, said).unwrap_err().contains("broken off"), "{code:?}");
        }
    }
}
