//! File systems on block devices of this node, by the host's tools: looked at with `blkid`, made where there is none,
//! checked, mounted once for all pods, and bound into each pod that has the volume.
//!
//! A device is mounted below `plugins/`, where the kubelet has it; it stays until no pod of the node has it any more,
//! which the kernel's mount table tells.
//!
//! Followed: `mount-utils` (`SafeFormatAndMount`).

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use nix::mount::{MsFlags, mount};

use super::{empty_dir, mount_table};

/// For a tool that has to do with a disk which may not answer; making a file system on a large one takes its time.
const PATIENCE: Duration = Duration::from_secs(300);
const DEFAULT_TYPE: &str = "ext4";

/// How a device is to be mounted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct How {
    /// Empty for `ext4`.
    pub fs_type: String,
    pub read_only: bool,
    pub options: Vec<String>,
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

/// What a tool said, on both of its streams.
pub fn said(output: &Output) -> String {
    let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&text).trim().to_owned()
}

/// Mounts a device; one without anything on it gets a file system first.
///
/// # Errors
/// The device holds something else, or a tool refuses; with what it said.
pub async fn format_and_mount(device: &Path, to: &Path, how: &How) -> Result<(), String> {
    if mount_table::is_mount_point(to) {
        return Ok(());
    }
    let fs_type = if how.fs_type.is_empty() { DEFAULT_TYPE } else { &how.fs_type };
    let found = content(device).await?;
    match found.as_str() {
        "" if how.read_only => {
            return Err(format!(
                "cannot mount unformatted disk {} as we are manipulating it in read-only mode",
                device.display()
            ));
        }
        "" => make(device, fs_type).await?,
        other if other != fs_type => {
            return Err(format!("failed to mount the volume as {fs_type:?}, it already contains {other}"));
        }
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
    Err(format!(
        "mount failed: {}\nMounting command: mount\nMounting arguments: {}\nOutput: {}\n",
        output.status,
        arguments.join(" "),
        said(&output)
    ))
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
        (None, Some(_)) => Ok("unknown data, probably partitions".into()),
        (None, None) => Ok(String::new()),
    }
}

async fn make(device: &Path, fs_type: &str) -> Result<(), String> {
    let mut arguments: Vec<&OsStr> = Vec::new();
    if fs_type.starts_with("ext") {
        // Do not ask, and keep nothing back for root.
        arguments.extend([OsStr::new("-F"), OsStr::new("-m0")]);
    } else if fs_type == "xfs" {
        arguments.push(OsStr::new("-f"));
    }
    arguments.push(device.as_os_str());
    tracing::info!(device = %device.display(), fs_type, "a device is empty and gets a file system");
    let output = run(Path::new(&format!("mkfs.{fs_type}")), &arguments).await?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("format of disk {} failed: type:({fs_type:?}): {}", device.display(), said(&output))),
    }
}

/// Mends what can be mended without asking. A machine without the tool mounts unchecked, as the kubelet does.
async fn check(device: &Path) -> Result<(), String> {
    let Ok(output) = run(Path::new("fsck"), &[OsStr::new("-a"), device.as_os_str()]).await else { return Ok(()) };
    match output.status.code() {
        Some(4) => Err(format!(
            "'fsck' found errors on device {} but could not correct them: {}",
            device.display(),
            said(&output)
        )),
        _ => Ok(()),
    }
}

/// Binds what is mounted for all to the place of one pod, unless it is there.
///
/// # Errors
/// The kernel refuses.
pub fn bind(from: &Path, to: &Path, read_only: bool) -> Result<(), String> {
    if mount_table::is_mount_point(to) {
        return Ok(());
    }
    empty_dir::make_directory(to)?;
    let refused = |e: nix::Error| format!("failed to bind {} to {}: {e}", from.display(), to.display());
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>).map_err(refused)?;
    if read_only {
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(None::<&str>, to, None::<&str>, flags, None::<&str>).map_err(refused)?;
    }
    Ok(())
}
