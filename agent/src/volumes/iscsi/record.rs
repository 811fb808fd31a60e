//! `iscsi.json`: what a disk was logged in to, kept in the folder below its mount.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Disk;
use crate::volumes::mount_table;

const FILE: &str = "iscsi.json";
/// What a machine that stopped while writing leaves of it.
const HALF: &str = ".iscsi.json";

/// With the kubelet's keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Record {
    pub vol_name: String,
    pub portals: Vec<String>,
    pub iqn: String,
    pub lun: String,
    pub init_iface: String,
    pub iface: String,
    pub initiator_name: String,
}

impl Record {
    pub fn of(disk: &Disk) -> Self {
        Record {
            vol_name: disk.name.clone(),
            portals: disk.portals.clone(),
            iqn: disk.iqn.clone(),
            lun: disk.lun.to_string(),
            init_iface: disk.init_interface.clone(),
            iface: disk.interface.clone(),
            initiator_name: disk.initiator.clone().unwrap_or_default(),
        }
    }

    /// Whether the interface was made for this volume alone, and not by who runs the machine.
    pub fn owns_interface(&self) -> bool {
        let first = self.portals.first().map_or("", String::as_str);
        !self.initiator_name.is_empty() && self.iface == format!("{first}:{}", self.vol_name)
    }
}

/// Writes the record. Blocks.
///
/// # Errors
/// The disk's.
pub fn write(staged: &Path, record: &Record) -> Result<(), String> {
    crate::csi::make_private(staged).map_err(|e| format!("cannot make {}: {e}", staged.display()))?;
    let text = serde_json::to_vec(record).map_err(|e| format!("iscsi: failed to save record: {e}"))?;
    crate::state_file::write(&staged.join(FILE), &text).map_err(|e| format!("iscsi: failed to save record: {e}"))
}

/// Reads the record; none where there is none, or none that can be used: then nothing is known to log out of.
///
/// # Errors
/// The disk's.
pub fn read(staged: &Path) -> Result<Option<Record>, String> {
    let path = staged.join(FILE);
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(format!("cannot read {}: {e}", path.display())),
    };
    let record: Option<Record> = serde_json::from_slice(&text).ok();
    let usable = record.filter(|r| !r.iqn.is_empty() && !r.iface.is_empty() && r.lun.parse::<u64>().is_ok());
    if usable.is_none() {
        tracing::warn!(path = %path.display(), "the record of an iSCSI disk cannot be used; its session stays");
    }
    Ok(usable)
}

/// Removes the record and its folder, and nothing else.
///
/// # Errors
/// Something is mounted there, or lies in the folder.
pub fn remove(staged: &Path) -> Result<(), String> {
    if mount_table::is_mount_point(staged)? {
        return Err(format!("{} is mounted", staged.display()));
    }
    let failed = |e: std::io::Error| format!("cannot remove {}: {e}", staged.display());
    for name in [FILE, HALF] {
        match std::fs::remove_file(staged.join(name)) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(failed(e)),
            _ => {}
        }
    }
    std::fs::remove_dir(staged).map_err(failed)
}

/// Whether a file of the folder is the record, or what is left of one.
pub fn is_record(name: &OsStr) -> bool {
    name == FILE || name == HALF
}

/// Folders of records, `iface-NAME/PORTAL-IQN-lun-N`: of disks that are mounted for all pods, and of those that pods have
/// as devices.
///
/// # Errors
/// A folder cannot be read: which disks there are is not known.
pub fn staged_below(all: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for interface in [entries(all)?, entries(&all.join(super::raw::FOLDER))?].concat() {
        if interface.file_name().is_some_and(|n| n.to_string_lossy().starts_with("iface-")) {
            found.extend(entries(&interface)?);
        }
    }
    Ok(found)
}

/// What is in a folder; nothing when it is not there.
///
/// # Errors
/// It cannot be read: what is in it is not known.
pub fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let found = match std::fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| entry.map(|e| e.path())).collect(),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e),
    };
    found.map_err(|e| format!("cannot read {}: {e}", folder.display()))
}
