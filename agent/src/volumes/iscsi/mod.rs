//! iSCSI by the host's `iscsiadm`: log in, wait for the disk, mount it for all pods of the node, bind it into each; or give
//! each its device ([`raw`]).
//!
//! What is logged in to is remembered in `iscsi.json` below its mount, so that a later agent, or a kubelet, can log out
//! of it. A session serves all disks of its target and ends with the last of them. One at a time talks to `iscsiadm`: it
//! keeps its own database, which two must not change at once.
//!
//! Followed: plugin `iscsi`. Limits: a cloned interface is named after the volume, as the kubelet's. Disks of one target
//! are best named with the same portals: a session at one that only an earlier disk named stays until it is ended by
//! hand.

mod detach;
mod raw;
mod record;
mod session;
mod sysfs;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proto::api::core::v1::{IscsiPersistentVolumeSource, IscsiVolumeSource};

use super::disk::{self, How, Staged};
use super::mount_table;
use super::turns::{Turns, blocking};
use record::Record;

/// Port of a portal that names none.
const PORT: &str = ":3260";

/// A disk of a target, and what it takes to get at it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Disk {
    /// What the kubelet calls the volume.
    pub name: String,
    /// With ports; the first is that of the folder's name.
    pub portals: Vec<String>,
    pub iqn: String,
    pub lun: i32,
    /// The one that the volume asks for.
    pub init_interface: String,
    /// The one that is used: with a name of its own the initiator needs an interface of its own.
    pub interface: String,
    pub initiator: Option<String>,
    /// Data of the secret with names and passwords.
    pub secret: BTreeMap<String, String>,
    pub chap_discovery: bool,
    pub chap_session: bool,
    pub how: How,
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the secret.
        let Self { name, portals, iqn, lun, interface, .. } = self;
        write!(f, "Disk({name}: {iqn} lun {lun} at {portals:?} by {interface})")
    }
}

impl Disk {
    pub fn of_pod(name: &str, source: &IscsiVolumeSource) -> Self {
        Self::of_volume(
            name,
            &IscsiPersistentVolumeSource {
                target_portal: source.target_portal.clone(),
                iqn: source.iqn.clone(),
                lun: source.lun,
                iscsi_interface: source.iscsi_interface.clone(),
                fs_type: source.fs_type.clone(),
                read_only: source.read_only,
                portals: source.portals.clone(),
                chap_auth_discovery: source.chap_auth_discovery,
                chap_auth_session: source.chap_auth_session,
                secret_ref: None,
                initiator_name: source.initiator_name.clone(),
            },
        )
    }

    pub fn of_volume(name: &str, source: &IscsiPersistentVolumeSource) -> Self {
        let with_port = |portal: &String| if portal.contains(':') { portal.clone() } else { format!("{portal}{PORT}") };
        let mut portals = vec![with_port(&source.target_portal)];
        portals.extend(source.portals.iter().map(with_port));
        let interface = if source.iscsi_interface.is_empty() { "default" } else { &source.iscsi_interface };
        let initiator = source.initiator_name.clone().filter(|name| !name.is_empty());
        Self {
            name: name.to_owned(),
            init_interface: interface.to_owned(),
            interface: initiator.as_ref().map_or_else(|| interface.to_owned(), |_| format!("{}:{name}", portals[0])),
            portals,
            iqn: source.iqn.clone(),
            lun: source.lun,
            initiator,
            secret: BTreeMap::new(),
            chap_discovery: source.chap_auth_discovery,
            chap_session: source.chap_auth_session,
            how: How { fs_type: source.fs_type.clone(), read_only: source.read_only, options: Vec::new() },
        }
    }

    /// Whether names and passwords are needed.
    pub fn wants_secret(&self) -> bool {
        self.chap_discovery || self.chap_session
    }

    /// Names become folders, and values in files of `iscsiadm`: none may lead elsewhere or begin a line.
    ///
    /// # Errors
    /// The name that cannot be used.
    fn check(&self) -> Result<(), String> {
        let names = [("iscsiInterface", &self.init_interface), ("interface", &self.interface), ("iqn", &self.iqn)];
        let portals = self.portals.iter().map(|portal| ("portal", portal));
        for (what, name) in names.into_iter().chain(portals) {
            let odd = |c: char| c == '/' || c.is_whitespace() || c.is_control();
            if name.is_empty() || name.starts_with(['-', ':']) || name.contains("..") || name.contains(odd) {
                return Err(format!("iscsi: invalid {what} {name:?}"));
            }
        }
        let begins_line = |text: &&String| text.contains(char::is_control);
        if self.initiator.iter().any(|name| begins_line(&name) || name.starts_with('-')) {
            return Err("iscsi: invalid initiatorName".into());
        }
        if self.secret.values().any(|value| begins_line(&value)) {
            return Err("iscsi: a value of the secret has control characters".into());
        }
        if self.lun < 0 {
            return Err(format!("iscsi: invalid lun {}", self.lun));
        }
        Ok(())
    }

    /// Folder of the mount for all pods, below the root directory.
    fn place(&self) -> PathBuf {
        let portal = self.portals.first().map_or("", String::as_str);
        PathBuf::from(format!("iface-{}", self.interface)).join(format!("{portal}-{}-lun-{}", self.iqn, self.lun))
    }
}

/// The disks of this node.
pub struct Initiator {
    root_dir: PathBuf,
    /// `iscsiadm`.
    tool: PathBuf,
    /// `/dev/disk/by-path`
    by_path: PathBuf,
    /// `/sys`
    sys: PathBuf,
    /// `/dev`
    dev: PathBuf,
    /// The mount table.
    table: PathBuf,
    /// By folder of the mount for all pods.
    disks: Turns,
    /// That of `iscsiadm`.
    database: tokio::sync::Mutex<()>,
}

impl Initiator {
    pub fn new(root_dir: &Path) -> Self {
        Self {
            root_dir: root_dir.to_owned(),
            tool: "iscsiadm".into(),
            by_path: "/dev/disk/by-path".into(),
            sys: "/sys".into(),
            dev: "/dev".into(),
            table: mount_table::TABLE.into(),
            disks: Turns::default(),
            database: tokio::sync::Mutex::default(),
        }
    }

    fn all(&self) -> PathBuf {
        self.root_dir.join("plugins/kubernetes.io/iscsi")
    }

    /// Mounts the disk for all pods, unless it is. It stays for as long as the answer is held, or a pod has it. The work
    /// goes on when the caller stops waiting: half a file system helps nobody.
    ///
    /// # Errors
    /// What `iscsiadm` or `mount` said. A retry goes on where this stopped.
    pub async fn stage(self: &Arc<Self>, disk: Disk) -> Result<Staged, String> {
        disk.check()?;
        let path = self.all().join(disk.place());
        let turn = self.disks.take(&path).await;
        let this = self.clone();
        let work = tokio::spawn(async move {
            this.mount(&disk, &path).await?;
            Ok(Staged { path, _turn: turn })
        });
        work.await.map_err(|e| e.to_string())?
    }

    async fn mount(&self, disk: &Disk, staged: &Path) -> Result<(), String> {
        let place = staged.to_owned();
        if blocking(move || mount_table::is_mount_point(&place)).await? {
            return Ok(());
        }
        let device = self.attach_noted(disk, staged).await?;
        disk::format_and_mount(&device, staged, &disk.how).await
    }

    /// Notes the disk in its folder, then logs in to it. The note comes before the wait for others: a pod that ends meanwhile
    /// leaves something to look for.
    async fn attach_noted(&self, disk: &Disk, folder: &Path) -> Result<PathBuf, String> {
        let (folder, record) = (folder.to_owned(), Record::of(disk));
        blocking(move || record::write(&folder, &record)).await?;
        let _database = self.database.lock().await;
        self.attach(disk).await
    }

    async fn admin(&self, arguments: &[&str]) -> Result<String, String> {
        let output = disk::run(&self.tool, arguments).await?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let how = output.status.code().map_or_else(|| output.status.to_string(), |code| format!("exit status {code}"));
        Err(format!("{} ({how})", disk::said(&output)))
    }
}

#[cfg(test)]
mod tests;
