//! Taking volumes back: unpublish from the pod, unstage from the node when no pod has the volume any more.

use std::path::Path;
use std::time::Duration;

use proto::csi::node_service_capability::rpc::Type as RpcType;
use proto::csi::{NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest};

use crate::volumes::mount_table;

use super::data::{self, VolumeData};
use super::volumes::Volumes;

/// The kubelet's first and last wait between tries of the same step.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LAST_RETRY: Duration = Duration::from_secs(122);

impl Volumes {
    /// Takes all volumes of drivers from a pod. What lies on disk counts, not what this run of the agent knows.
    ///
    /// # Errors
    /// The first driver that does not do its part; the others' volumes are taken all the same. To be tried again.
    pub async fn tear_down(&self, uid: &str) -> Result<(), String> {
        self.deps.drivers.usages.forget(uid);
        let mut failed = None;
        for folder in data::entries(&self.places.of_pod(uid)) {
            if let Err(why) = self.take(uid, &folder).await {
                failed.get_or_insert(format!("UnmountVolume.TearDown failed for {}: {why}", folder.display()));
            }
        }
        for link in data::entries(&self.places.devices_of_pod(uid)) {
            if let Err(why) = self.take_block(uid, &link).await {
                failed.get_or_insert(format!("UnmapVolume failed for {}: {why}", link.display()));
            }
        }
        failed.map_or(Ok(()), Err)
    }

    async fn take(&self, uid: &str, folder: &Path) -> Result<(), String> {
        let target = folder.join("mount");
        // Nothing was written: no driver was called for it. The rest is what any volume leaves behind.
        let Some(volume) = data::read(folder) else { return Ok(()) };
        let turn = self.turn(&volume.driver_name, &volume.volume_handle);
        let _turn = turn.lock().await;
        let driver = self.deps.drivers.get(&volume.driver_name).map_err(|e| e.to_string())?;
        let request = NodeUnpublishVolumeRequest {
            volume_id: volume.volume_handle.clone(),
            target_path: target.display().to_string(),
        };
        driver.unpublish(request).await.map_err(|e| e.to_string())?;
        // A driver that leaves its mount behind must not keep the pod, nor lose what is in it.
        mount_table::unmount_below(&target)?;
        data::gone(std::fs::remove_dir(&target), &target)?;
        let name = folder.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        self.forget(uid, name);
        data::remove(folder)?;
        if volume.volume_lifecycle_mode != "Ephemeral" {
            let unstaged = self.unstage_unused(&volume).await;
            self.or_later(&volume, unstaged);
        }
        Ok(())
    }

    /// A pod is over once the volume is not its own any more; what fails after that is tried again by [`Self::sweep`], and
    /// until then the volume counts as used by the node.
    pub(super) fn or_later(&self, volume: &VolumeData, unstaged: Result<(), String>) {
        if let Err(why) = unstaged {
            cannot_unstage(volume, &why);
            self.left.notify_one();
        }
    }

    /// To be called in the volume's turn.
    async fn unstage_unused(&self, volume: &VolumeData) -> Result<(), String> {
        let (name, handle) = (&volume.driver_name, &volume.volume_handle);
        if self.places.has_user(name, handle) {
            return Ok(());
        }
        let folder = self.places.staged(name, handle);
        if data::read(&folder).is_some() {
            let staging = folder.join("globalmount");
            let driver = self.deps.drivers.get(name).map_err(|e| e.to_string())?;
            if driver.capabilities().await.map_err(|e| e.to_string())?.has(RpcType::StageUnstageVolume) {
                let request = NodeUnstageVolumeRequest {
                    volume_id: handle.clone(),
                    staging_target_path: staging.display().to_string(),
                };
                driver.unstage(request).await.map_err(|e| format!("UnmountDevice failed: {e}"))?;
            }
            mount_table::unmount_below(&staging)?;
            data::gone(std::fs::remove_dir(&staging), &staging)?;
            data::remove(&folder)?;
        }
        self.note_use(name, handle, false);
        Ok(())
    }

    /// Unstages what no pod has: what a driver refused to, or what an agent that was killed between the two steps left.
    /// Runs whenever a driver registers, and again and again for as long as one fails; until dropped.
    pub async fn sweep(&self) {
        let mut arrivals = self.deps.drivers.arrivals();
        let mut wait = FIRST_RETRY;
        loop {
            let arrived = if self.unstage_all().await {
                wait = FIRST_RETRY;
                tokio::select! {
                    arrived = arrivals.changed() => arrived,
                    () = self.left.notified() => {
                        tokio::time::sleep(wait).await;
                        Ok(())
                    }
                }
            } else {
                let arrived = tokio::time::timeout(wait, arrivals.changed()).await;
                wait = (wait * 2).min(LAST_RETRY);
                arrived.unwrap_or(Ok(()))
            };
            if arrived.is_err() {
                return;
            }
        }
    }

    /// Whether all is unstaged that can be: of drivers that are not here nothing is.
    async fn unstage_all(&self) -> bool {
        let mut all = true;
        let mut note = |volume: &VolumeData, unstaged: Result<(), String>| {
            if let Err(why) = unstaged {
                cannot_unstage(volume, &why);
                all = false;
            }
        };
        let is_here = |volume: &VolumeData| self.deps.drivers.get(&volume.driver_name).is_ok();
        for (_, volume) in self.places.all_staged().into_iter().filter(|(_, volume)| is_here(volume)) {
            let turn = self.turn(&volume.driver_name, &volume.volume_handle);
            let _turn = turn.lock().await;
            note(&volume, self.unstage_unused(&volume).await);
        }
        for (name, volume) in self.places.all_blocks().into_iter().filter(|(_, volume)| is_here(volume)) {
            let turn = self.turn(&volume.driver_name, &volume.volume_handle);
            let _turn = turn.lock().await;
            note(&volume, self.unstage_unused_block(&name, &volume).await);
        }
        all
    }
}

fn cannot_unstage(volume: &VolumeData, why: &str) {
    let (driver, handle) = (&volume.driver_name, &volume.volume_handle);
    tracing::warn!(why, driver, handle, "cannot unstage a volume that no pod has; trying again");
}
