//! Sessions and disks of targets as the kernel shows them below `/sys`. Paths name the root of that, for tests.

use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

/// A session of this machine with a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// `.../hostH/sessionN`
    dir: PathBuf,
    /// `hostH`
    host: String,
    pub interface: String,
    /// Addresses with ports.
    portals: Vec<String>,
}

impl Session {
    /// Whether it goes to that portal over that interface.
    pub fn is_to(&self, portal: &str, interface: &str) -> bool {
        let same = self.interface.is_empty() || self.interface == interface;
        same && self.portals.iter().any(|known| known == portal)
    }
}

/// A disk of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lun {
    pub number: u64,
    dir: PathBuf,
    /// Such as `sda`.
    pub devices: Vec<String>,
}

fn text(path: &Path) -> Result<String, String> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().to_owned()),
        // It went while it was looked at.
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(String::new()),
        Err(e) => Err(format!("cannot read {}: {e}", path.display())),
    }
}

fn names(folder: &Path) -> Result<Vec<String>, String> {
    match std::fs::read_dir(folder) {
        Ok(entries) => entries
            .map(|entry| entry.map(|e| e.file_name().to_string_lossy().into_owned()))
            .collect::<Result<_, _>>()
            .map_err(|e| format!("cannot read {}: {e}", folder.display())),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(format!("cannot read {}: {e}", folder.display())),
    }
}

/// All sessions with a target.
///
/// # Errors
/// The kernel does not tell.
pub fn sessions(sys: &Path, iqn: &str) -> Result<Vec<Session>, String> {
    let class = sys.join("class/iscsi_session");
    let mut found = Vec::new();
    for name in names(&class)? {
        let link = class.join(&name);
        if text(&link.join("targetname"))? != iqn {
            continue;
        }
        // .../hostH/sessionN/iscsi_session/sessionN
        let real = std::fs::canonicalize(&link).map_err(|e| format!("cannot read {}: {e}", link.display()))?;
        let dir = real.ancestors().nth(2).unwrap_or(&real).to_owned();
        let host = dir.parent().and_then(|host| host.file_name()).unwrap_or_default().to_string_lossy().into_owned();
        let mut portals = Vec::new();
        for connection in names(&dir)?.iter().filter(|name| name.starts_with("connection")) {
            let connection = dir.join(connection).join("iscsi_connection").join(connection);
            for prefix in ["", "persistent_"] {
                let address = text(&connection.join(format!("{prefix}address")))?;
                let port = text(&connection.join(format!("{prefix}port")))?;
                let address = if address.contains(':') { format!("[{address}]") } else { address };
                portals.push(format!("{address}:{port}"));
            }
        }
        let interface = text(&real.join("ifacename"))?;
        found.push(Session { dir, host, interface, portals });
    }
    Ok(found)
}

/// Disks that the kernel knows of a session.
///
/// # Errors
/// The kernel does not tell.
pub fn luns(session: &Session) -> Result<Vec<Lun>, String> {
    let mut found = Vec::new();
    for target in names(&session.dir)?.iter().filter(|name| name.starts_with("target")) {
        let target = session.dir.join(target);
        for name in names(&target)? {
            // H:C:T:L
            let Some(Ok(number)) = name.split(':').nth(3).map(str::parse) else { continue };
            let dir = target.join(name);
            let devices = names(&dir.join("block"))?;
            found.push(Lun { number, dir, devices });
        }
    }
    Ok(found)
}

/// Has the kernel look for one disk. Blocks.
///
/// # Errors
/// The kernel refuses.
pub fn scan(sys: &Path, session: &Session, lun: i32) -> Result<(), String> {
    let path = sys.join("class/scsi_host").join(&session.host).join("scan");
    std::fs::write(&path, format!("0 0 {lun}")).map_err(|e| format!("iscsi: cannot scan {}: {e}", path.display()))
}

/// Has the kernel forget a disk. Blocks.
///
/// # Errors
/// The kernel refuses.
pub fn delete(lun: &Lun) -> Result<(), String> {
    let path = lun.dir.join("delete");
    match std::fs::write(&path, "1") {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(format!("iscsi: cannot delete {}: {e}", path.display())),
        _ => Ok(()),
    }
}

/// The multipath device that a disk is a path of.
///
/// # Errors
/// The kernel does not tell.
pub fn joined(sys: &Path, device: &str) -> Result<Option<String>, String> {
    for holder in names(&sys.join("class/block").join(device).join("holders"))? {
        if holder.starts_with("dm-")
            && text(&sys.join("class/block").join(&holder).join("dm/uuid"))?.starts_with("mpath-")
        {
            return Ok(Some(holder));
        }
    }
    Ok(None)
}

/// Whether the kernel has no use for a device: a file system, also one that is mounted out of sight, or anything else
/// that claims it. A device that is gone is idle. Blocks.
///
/// # Errors
/// It cannot be told.
pub fn is_idle(device: &Path) -> Result<bool, String> {
    let exclusive = nix::libc::O_EXCL | nix::libc::O_NONBLOCK;
    let opened = std::fs::OpenOptions::new().read(true).custom_flags(exclusive).open(device);
    let Err(error) = opened else { return Ok(true) };
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EBUSY) => Ok(false),
        Some(Errno::ENOENT | Errno::ENXIO | Errno::ENODEV) => Ok(true),
        _ => Err(format!("cannot tell whether {} is in use: {error}", device.display())),
    }
}
