//! Logging in to a target at all its portals, and finding the disk behind them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Disk, Initiator, sysfs};
use crate::volumes::turns::blocking;

/// For a disk, or what joins several paths to it, to show up.
const PATIENCE: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(200);

impl Initiator {
    /// Logs in at every portal that answers. The device is the one that joins the paths where there are several.
    pub(super) async fn attach(&self, disk: &Disk) -> Result<PathBuf, String> {
        let shown = self.admin(&["-m", "iface", "-I", &disk.init_interface, "-o", "show"]).await;
        let shown = shown.map_err(|e| format!("could not read iface {} error: {e}", disk.init_interface))?;
        let transport = shown.lines().find_map(|line| line.strip_prefix("iface.transport_name = "));
        let transport = transport.unwrap_or("tcp").trim().to_owned();
        if let Some(initiator) = &disk.initiator {
            self.clone_interface(disk, initiator, &shown).await?;
        }
        let mut devices = Vec::new();
        let mut last = "no portal".to_owned();
        for portal in &disk.portals {
            match self.reach(disk, portal, &transport).await {
                Ok(device) => devices.push(device),
                Err(why) => {
                    tracing::warn!(error = why, portal, "a portal of an iSCSI disk cannot be used");
                    last = why;
                }
            }
        }
        devices.sort();
        devices.dedup();
        let Some(first) = devices.first() else {
            self.give_up_interface(disk).await;
            return Err(format!("failed to get any path for iscsi disk, last err seen:\n{last}"));
        };
        match self.joined(&devices).await? {
            Some(device) => Ok(device),
            None => Ok(first.clone()),
        }
    }

    /// An interface like the one that was asked for, with a name of its own for the initiator.
    async fn clone_interface(&self, disk: &Disk, initiator: &str, shown: &str) -> Result<(), String> {
        let interface = &disk.interface;
        // There already from an earlier try is fine; the updates tell otherwise.
        if let Err(error) = self.admin(&["-m", "iface", "-I", interface, "-o", "new"]).await {
            tracing::debug!(error, interface, "iscsiadm did not make an interface");
        }
        let values = shown.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(" = "));
        let values = values.map(|(name, value)| (name.trim(), value.trim()));
        let copied = values.filter(|(name, value)| {
            !matches!(*name, "iface.iscsi_ifacename" | "iface.initiatorname")
                && !value.is_empty()
                && *value != "<empty>"
        });
        for (name, value) in copied.chain([("iface.initiatorname", initiator)]) {
            let update = ["-m", "iface", "-I", interface, "-o", "update", "-n", name, "-v", value];
            if let Err(error) = self.admin(&update).await {
                self.give_up_interface(disk).await;
                return Err(format!("iscsi: failed to create new iface: {interface}, error: {error}"));
            }
        }
        Ok(())
    }

    /// Removes the interface of a disk that was not to be had, unless it was not made for it or a session uses it.
    async fn give_up_interface(&self, disk: &Disk) {
        let in_use = self.sessions(disk).await.map(|all| all.iter().any(|session| session.interface == disk.interface));
        if disk.initiator.is_some()
            && in_use == Ok(false)
            && let Err(error) = self.admin(&["-m", "iface", "-I", &disk.interface, "-o", "delete"]).await
        {
            tracing::debug!(error, interface = disk.interface, "iscsiadm did not remove an interface");
        }
    }

    async fn sessions(&self, disk: &Disk) -> Result<Vec<sysfs::Session>, String> {
        let (sys, iqn) = (self.sys.clone(), disk.iqn.clone());
        blocking(move || sysfs::sessions(&sys, &iqn)).await
    }

    /// The disk by way of one portal; logs in unless there is a session.
    async fn reach(&self, disk: &Disk, portal: &str, transport: &str) -> Result<PathBuf, String> {
        let found = |all: Vec<sysfs::Session>| all.into_iter().find(|s| s.is_to(portal, &disk.interface));
        let session = match found(self.sessions(disk).await?) {
            Some(session) => session,
            None => {
                self.log_in(disk, portal).await?;
                let session = found(self.sessions(disk).await?);
                session.ok_or_else(|| format!("Portal {portal} not found after logging in to it"))?
            }
        };
        // One disk alone: others of the target are nobody's business here.
        let (sys, lun) = (self.sys.clone(), disk.lun);
        blocking(move || sysfs::scan(&sys, &session, lun)).await?;
        let device = self.wait_for(disk, portal, transport).await;
        device.ok_or_else(|| format!("Timed out waiting for device of portal {portal}"))
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
        let manual = ["-o", "update", "-n", "node.session.scan", "-v", "manual"];
        if let Err(error) = self.admin(&[&node[..], &manual].concat()).await {
            tracing::debug!(error, portal, "iscsiadm did not set node.session.scan to manual");
        }
        match self.admin(&[&node[..], &["--login"]].concat()).await {
            // 15: there is a session already.
            Err(why) if !why.ends_with("(exit status 15)") => {
                if let Err(error) = self.admin(&[&node[..], &["-o", "delete"]].concat()).await {
                    tracing::debug!(error, portal, "iscsiadm had no record to delete");
                }
                return Err(format!("iscsi: failed to attach disk: {why}"));
            }
            _ => {}
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

    /// The disk once the kernel shows it.
    async fn wait_for(&self, disk: &Disk, portal: &str, transport: &str) -> Option<PathBuf> {
        let exact = format!("ip-{portal}-iscsi-{}-lun-{}", disk.iqn, disk.lun);
        let until = tokio::time::Instant::now() + PATIENCE;
        loop {
            let entries = std::fs::read_dir(&self.by_path).into_iter().flatten().flatten();
            let mut names = entries.filter_map(|entry| entry.file_name().into_string().ok());
            // Hardware transports put the slot of the adapter in front.
            let fits = |name: &String| *name == exact || transport != "tcp" && name.ends_with(&exact);
            if let Some(name) = names.find(fits)
                && let Ok(device) = std::fs::canonicalize(self.by_path.join(name))
            {
                return Some(device);
            }
            if tokio::time::Instant::now() >= until {
                return None;
            }
            tokio::time::sleep(STEP).await;
        }
    }

    /// What joins the paths to a disk. Where there are several it is waited for; a machine without multipath has none.
    async fn joined(&self, devices: &[PathBuf]) -> Result<Option<PathBuf>, String> {
        let until = tokio::time::Instant::now() + PATIENCE;
        loop {
            for name in devices.iter().filter_map(|device| Path::new(device).file_name()?.to_str()) {
                if let Some(found) = sysfs::joined(&self.sys, name)? {
                    return Ok(Some(self.dev.join(found)));
                }
            }
            if devices.len() < 2 || tokio::time::Instant::now() >= until {
                return Ok(None);
            }
            tokio::time::sleep(STEP).await;
        }
    }
}
