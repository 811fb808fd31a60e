//! iSCSI by the host's `iscsiadm`: log in, wait for the disk, mount it for all pods of the node, bind it into each.
//!
//! What is logged in to is remembered in `iscsi.json` below its mount, so that a later agent, or a kubelet, can log out
//! of it. A session serves all disks of its target and ends with the last of them. One volume at a time is worked on:
//! `iscsiadm` keeps its own database, which two must not change at once.
//!
//! Followed: plugin `iscsi`. Limits: a cloned interface is named after the volume, as the kubelet's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::api::core::v1::{IscsiPersistentVolumeSource, IscsiVolumeSource};
use serde::{Deserialize, Serialize};

use super::disk::{self, How};
use super::mount_table;

/// Port of a portal that names none.
const PORT: &str = ":3260";
/// For a disk to show up after the login.
const PATIENCE: Duration = Duration::from_secs(10);
const FILE: &str = "iscsi.json";

/// A disk of a target, and what it takes to get at it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Disk {
    /// What the kubelet calls the volume.
    pub name: String,
    /// With ports; the first is that of the folder's name.
    pub portals: Vec<String>,
    pub iqn: String,
    pub lun: i32,
    pub interface: String,
    pub initiator: Option<String>,
    /// Data of the secret with names and passwords.
    pub secret: BTreeMap<String, String>,
    pub chap_discovery: bool,
    pub chap_session: bool,
    pub how: How,
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
            // With a name of its own the initiator needs an interface of its own.
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

    /// Folder of the mount for all pods, below the root directory.
    fn place(&self) -> PathBuf {
        let portal = self.portals.first().map_or("", String::as_str);
        PathBuf::from(format!("iface-{}", self.interface)).join(format!("{portal}-{}-lun-{}", self.iqn, self.lun))
    }
}

/// `iscsi.json`, with the kubelet's keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Record {
    vol_name: String,
    portals: Vec<String>,
    iqn: String,
    lun: String,
    init_iface: String,
    iface: String,
    initiator_name: String,
}

/// The disks of this node.
pub struct Initiator {
    root_dir: PathBuf,
    /// `iscsiadm`.
    tool: PathBuf,
    /// `/dev/disk/by-path`
    by_path: PathBuf,
    turn: tokio::sync::Mutex<()>,
}

impl Initiator {
    pub fn new(root_dir: &Path) -> Self {
        Self::with(root_dir, "iscsiadm".into(), "/dev/disk/by-path".into())
    }

    fn with(root_dir: &Path, tool: PathBuf, by_path: PathBuf) -> Self {
        Self { root_dir: root_dir.to_owned(), tool, by_path, turn: tokio::sync::Mutex::default() }
    }

    fn all(&self) -> PathBuf {
        self.root_dir.join("plugins/kubernetes.io/iscsi")
    }

    /// Gives the disk's file system to a pod; `false` when the pod has it already.
    ///
    /// # Errors
    /// What `iscsiadm` or `mount` said. A retry goes on where this stopped.
    pub async fn give(&self, disk: &Disk, to: &Path, read_only: bool) -> Result<bool, String> {
        if mount_table::is_mount_point(to) {
            return Ok(false);
        }
        let _turn = self.turn.lock().await;
        let staged = self.all().join(disk.place());
        if !mount_table::is_mount_point(&staged) {
            remember(&staged, disk)?;
            let device = self.attach(disk).await?;
            disk::format_and_mount(&device, &staged, &disk.how).await?;
        }
        disk::bind(&staged, to, read_only)?;
        Ok(true)
    }

    async fn admin(&self, arguments: &[&str]) -> Result<String, String> {
        let output = disk::run(&self.tool, arguments).await?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let how = output.status.code().map_or_else(|| output.status.to_string(), |code| format!("exit status {code}"));
        Err(format!("{} ({how})", disk::said(&output)))
    }

    /// Logs in at every portal that answers, and waits for the disk of one of them.
    async fn attach(&self, disk: &Disk) -> Result<PathBuf, String> {
        if let Some(initiator) = &disk.initiator {
            self.clone_interface(&disk.interface, initiator).await?;
        }
        let shown = self.admin(&["-m", "iface", "-I", &disk.interface, "-o", "show"]).await;
        let shown = shown.map_err(|e| format!("could not read iface {} error: {e}", disk.interface))?;
        let transport = shown.lines().find_map(|line| line.strip_prefix("iface.transport_name = "));
        let transport = transport.unwrap_or("tcp").trim().to_owned();
        let mut last = "no portal".to_owned();
        for portal in &disk.portals {
            let logged_in = self.log_in(disk, portal).await;
            match logged_in {
                Ok(()) => match self.wait_for(disk, portal, &transport).await {
                    Some(device) => return Ok(device),
                    None => last = format!("Timed out waiting for device of portal {portal}"),
                },
                Err(why) => last = why,
            }
        }
        Err(format!("failed to get any path for iscsi disk, last err seen:\n{last}"))
    }

    async fn clone_interface(&self, interface: &str, initiator: &str) -> Result<(), String> {
        let failed = |e: String| format!("iscsi: failed to create new iface: {interface}, error: {e}");
        // There already from an earlier try is fine; the update tells otherwise.
        if let Err(error) = self.admin(&["-m", "iface", "-I", interface, "-o", "new"]).await {
            tracing::debug!(error, interface, "iscsiadm did not make an interface");
        }
        let name = ["-m", "iface", "-I", interface, "-o", "update", "-n", "iface.initiatorname", "-v", initiator];
        self.admin(&name).await.map(drop).map_err(failed)
    }

    async fn log_in(&self, disk: &Disk, portal: &str) -> Result<(), String> {
        let (interface, iqn) = (disk.interface.as_str(), disk.iqn.as_str());
        let found = ["-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", interface];
        if disk.chap_discovery {
            self.admin(&[&found[..], &["-o", "new"]].concat()).await.map_err(|e| format!("discovery record: {e}"))?;
            self.chap(disk, &found, "discovery.sendtargets.auth.").await?;
        }
        let sent = self.admin(&[&found[..], &["--discover"]].concat()).await;
        if let Err(why) = sent {
            // What was half found would stand in the way of the next try.
            if let Err(error) = self.admin(&[&found[..], &["-o", "delete"]].concat()).await {
                tracing::debug!(error, portal, "iscsiadm had nothing to forget");
            }
            return Err(format!("iscsi: failed to sendtargets to portal {portal} output: {why}"));
        }
        let node = ["-m", "node", "-p", portal, "-T", iqn, "-I", interface];
        if disk.chap_session {
            self.chap(disk, &node, "node.session.auth.").await?;
        }
        match self.admin(&[&node[..], &["--login"]].concat()).await {
            Ok(_) => {}
            // 15: there is a session already.
            Err(why) if why.ends_with("(exit status 15)") => {
                self.admin(&[&node[..], &["--rescan"]].concat()).await.map_err(|e| format!("iscsi: rescan: {e}"))?;
            }
            Err(why) => return Err(format!("iscsi: failed to attach disk: {why}")),
        }
        // Not by itself at the next start of the machine: then there may be no pod that wants it.
        let manual = ["-o", "update", "-n", "node.startup", "-v", "manual"];
        if let Err(error) = self.admin(&[&["-m", "node", "-p", portal, "-T", iqn][..], &manual].concat()).await {
            tracing::warn!(error, portal, "iscsiadm did not set node.startup to manual");
        }
        Ok(())
    }

    /// Names and passwords of the secret that belong to one kind of exchange.
    async fn chap(&self, disk: &Disk, record: &[&str], prefix: &str) -> Result<(), String> {
        let method = format!("{prefix}authmethod");
        let set = |name: String, value: String| async move {
            let update = ["-o", "update", "-n", &name, "-v", &value];
            // The value is a secret: what the tool says of it is not told.
            let done = self.admin(&[record, &update[..]].concat()).await;
            done.map(drop).map_err(|_| format!("iscsi: failed to update {name} of portal or target"))
        };
        set(method, "CHAP".into()).await?;
        for key in ["username", "password", "username_in", "password_in"].map(|key| format!("{prefix}{key}")) {
            if let Some(value) = disk.secret.get(&key).filter(|value| !value.is_empty()) {
                set(key, value.clone()).await?;
            }
        }
        Ok(())
    }

    /// The disk once the kernel shows it; of several paths to it the one that joins them.
    async fn wait_for(&self, disk: &Disk, portal: &str, transport: &str) -> Option<PathBuf> {
        let end = format!("-iscsi-{}-lun-{}", disk.iqn, disk.lun);
        let exact = format!("ip-{portal}{end}");
        let until = tokio::time::Instant::now() + PATIENCE;
        loop {
            let entries = std::fs::read_dir(&self.by_path).into_iter().flatten().flatten();
            let mut names = entries.filter_map(|entry| entry.file_name().into_string().ok());
            // Hardware transports put the slot of the adapter in front.
            let fits = |name: &String| *name == exact || transport != "tcp" && name.ends_with(&exact);
            if let Some(name) = names.find(fits) {
                let device = std::fs::canonicalize(self.by_path.join(name)).ok()?;
                return Some(joined(&device).unwrap_or(device));
            }
            if tokio::time::Instant::now() >= until {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Lets go of what no pod has any more. Unless it is to `wait` it leaves that to whoever works on a disk just now.
    ///
    /// # Errors
    /// The first that cannot be unmounted or logged out of; a retry may help.
    pub async fn clear(&self, wait: bool) -> Result<(), String> {
        if !self.all().exists() {
            return Ok(());
        }
        let _turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(_) if wait => self.turn.lock().await,
            Err(_) => return Ok(()),
        };
        let pods = self.root_dir.join("pods");
        for staged in staged_below(&self.all()) {
            if mount_table::is_also_below(&staged, &pods) {
                continue;
            }
            mount_table::unmount_below(&staged)?;
            let record: Option<Record> =
                std::fs::read(staged.join(FILE)).ok().and_then(|text| serde_json::from_slice(&text).ok());
            if let Some(record) = record {
                self.detach(&staged, &record).await?;
            }
            std::fs::remove_dir_all(&staged).map_err(|e| format!("cannot remove {}: {e}", staged.display()))?;
        }
        Ok(())
    }

    /// Ends the sessions of a target unless another disk of it is in use.
    async fn detach(&self, staged: &Path, record: &Record) -> Result<(), String> {
        for portal in &record.portals {
            let start = format!("{portal}-{}-lun-", record.iqn);
            let others = staged_below(&self.all()).into_iter().filter(|other| other != staged);
            let shared =
                others.filter_map(|p| Some(p.file_name()?.to_str()?.to_owned())).any(|n| n.starts_with(&start));
            if shared {
                continue;
            }
            let node = ["-m", "node", "-p", portal, "-T", &record.iqn, "-I", &record.iface];
            match self.admin(&[&node[..], &["--logout"]].concat()).await {
                // 21: there is no such session.
                Err(why) if !why.ends_with("(exit status 21)") => {
                    return Err(format!("iscsi: failed to detach disk: {why}"));
                }
                _ => {}
            }
            if let Err(error) = self.admin(&[&node[..], &["-o", "delete"]].concat()).await {
                tracing::debug!(error, portal, "iscsiadm had no record to delete");
            }
        }
        if !record.initiator_name.is_empty()
            && let Err(error) = self.admin(&["-m", "iface", "-I", &record.iface, "-o", "delete"]).await
        {
            tracing::warn!(error, interface = record.iface, "iscsiadm did not remove an interface");
        }
        Ok(())
    }
}

/// Mounts for all pods: `iface-NAME/PORTAL-IQN-lun-N`.
fn staged_below(all: &Path) -> Vec<PathBuf> {
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
    let interfaces = entries(all).filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("iface-")));
    interfaces.flat_map(|interface| entries(&interface).collect::<Vec<_>>()).collect()
}

fn remember(staged: &Path, disk: &Disk) -> Result<(), String> {
    let record = Record {
        vol_name: disk.name.clone(),
        portals: disk.portals.clone(),
        iqn: disk.iqn.clone(),
        lun: disk.lun.to_string(),
        init_iface: disk.interface.clone(),
        iface: disk.interface.clone(),
        initiator_name: disk.initiator.clone().unwrap_or_default(),
    };
    crate::csi::make_private(staged).map_err(|e| format!("cannot make {}: {e}", staged.display()))?;
    let text = serde_json::to_vec(&record).unwrap_or_default();
    crate::state_file::write(&staged.join(FILE), &text).map_err(|e| format!("iscsi: failed to save record: {e}"))
}

/// The multipath device that a disk is a path of.
fn joined(device: &Path) -> Option<PathBuf> {
    let name = device.file_name()?.to_str()?;
    let holders = std::fs::read_dir(format!("/sys/block/{name}/holders")).ok()?;
    let mut names = holders.flatten().filter_map(|holder| holder.file_name().into_string().ok());
    names.find(|name| name.starts_with("dm-")).map(|name| Path::new("/dev").join(name))
}

#[cfg(test)]
#[path = "iscsi_tests.rs"]
mod tests;
