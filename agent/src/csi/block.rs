//! Raw devices: published to a file of the pod's own, which a link in the pod's folder leads to.

use std::os::unix::fs::{FileTypeExt as _, symlink};
use std::path::{Path, PathBuf};

use proto::csi::node_service_capability::rpc::Type as RpcType;
use proto::csi::{NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest};

use crate::pod::spec::PodExt;
use crate::volumes::{mapped, mount_table};

use super::data::{self, VolumeData};
use super::volumes::{Failure, Volumes};
use super::wanted::Wanted;

impl Volumes {
    /// Gives a device to the pod; the path is that of the link to it.
    ///
    /// # Errors
    /// By the step that failed; a retry may help.
    pub async fn set_up_block(&self, wanted: &Wanted<'_>) -> Result<PathBuf, Failure> {
        let uid = wanted.pod.uid();
        let links = self.places.devices_of_pod(uid);
        let link = links.join(&wanted.name);
        if self.is_published(wanted) {
            return Ok(link);
        }
        let turn = self.turn(&wanted.driver, &wanted.handle);
        let _turn = turn.lock().await;
        let target = self.places.block_publish(&wanted.name).join(uid);
        let uncertain = self.places.block_uncertain(&wanted.name);
        let was_there = is_device(&link) && !uncertain.join(uid).exists();
        let prepared = || -> Result<(), String> {
            let volume = VolumeData::of(wanted, &self.deps.node);
            data::write(&self.places.block_data(&wanted.name), &volume)?;
            data::make_private(&self.places.block_publish(&wanted.name)).map_err(|e| e.to_string())?;
            data::make_private(&links).map_err(|e| e.to_string())?;
            if !was_there {
                mark(&uncertain, uid)?;
            }
            // The link is the record for the teardown, so it comes first.
            make_link(&target, &link)
        };
        prepared().map_err(Failure::Device)?;
        match self.provide_block(wanted, &target, was_there).await {
            Ok(()) => {
                unmark(&uncertain, uid).map_err(Failure::Device)?;
                self.note_published(wanted, false);
            }
            Err(failure) if was_there => {
                tracing::warn!(
                    ?failure,
                    pod = wanted.pod.name(),
                    volume = wanted.name,
                    "cannot publish a device again"
                );
            }
            Err(failure) => return Err(failure),
        }
        Ok(link)
    }

    /// Takes a device from a pod, and from the node when no other pod has it.
    pub(super) async fn take_block(&self, uid: &str, link: &Path) -> Result<(), String> {
        let Some(name) = link.file_name().and_then(|n| n.to_str()) else { return Ok(()) };
        let Some(volume) = data::read(&self.places.block_data(name)) else {
            return data::gone(std::fs::remove_file(link), link);
        };
        let turn = self.turn(&volume.driver_name, &volume.volume_handle);
        let _turn = turn.lock().await;
        let driver = self.deps.drivers.get(&volume.driver_name).map_err(|e| e.to_string())?;
        let folder = self.places.block_publish(name);
        let target = folder.join(uid);
        mapped::release(self.places.block_maps(name).join(uid)).await?;
        let request = NodeUnpublishVolumeRequest {
            volume_id: volume.volume_handle.clone(),
            target_path: target.display().to_string(),
        };
        driver.unpublish(request).await.map_err(|e| e.to_string())?;
        mount_table::unmount_below(&target)?;
        data::gone(std::fs::remove_file(&target), &target)?;
        unmark(&self.places.block_uncertain(name), uid)?;
        data::gone(std::fs::remove_file(link), link)?;
        self.forget(uid, name);
        let unstaged = self.unstage_unused_block(name, &volume).await;
        self.or_later(&volume, unstaged);
        Ok(())
    }

    /// Takes a device from the node unless a pod has it. To be called in the volume's turn.
    ///
    /// # Errors
    /// The driver's or the disk's word; what is needed for another try is still there.
    pub(super) async fn unstage_unused_block(&self, name: &str, volume: &VolumeData) -> Result<(), String> {
        if self.has_link(name) {
            return Ok(());
        }
        let maps = self.places.block_maps(name);
        for map in data::entries(&maps) {
            mapped::release(map).await?;
        }
        let driver = self.deps.drivers.get(&volume.driver_name).map_err(|e| e.to_string())?;
        let staging = self.places.block_staging(name);
        if driver.capabilities().await.map_err(|e| e.to_string())?.has(RpcType::StageUnstageVolume) {
            let request = NodeUnstageVolumeRequest {
                volume_id: volume.volume_handle.clone(),
                staging_target_path: staging.display().to_string(),
            };
            driver.unstage(request).await.map_err(|e| e.to_string())?;
        }
        mount_table::unmount_below(&staging)?;
        for path in [&staging, &self.places.block_publish(name), &maps] {
            data::gone(std::fs::remove_dir(path), path)?;
        }
        let uncertain = self.places.block_uncertain(name);
        data::gone(std::fs::remove_dir_all(&uncertain), &uncertain)?;
        data::remove(&self.places.block_data(name))?;
        let all = self.places.block(name);
        data::gone(std::fs::remove_dir(&all), &all)?;
        self.note_unused(&volume.driver_name, &volume.volume_handle);
        Ok(())
    }

    /// Whether a pod has the device.
    fn has_link(&self, name: &str) -> bool {
        let pods = data::entries(&self.places.root.join("pods"));
        let uids = pods.iter().filter_map(|p| p.file_name()?.to_str());
        uids.map(|uid| self.places.devices_of_pod(uid).join(name)).any(|link| link.symlink_metadata().is_ok())
    }
}

/// Whether a pod's link leads to a device: where the machine has started anew it leads to what the device was bound to.
fn is_device(link: &Path) -> bool {
    std::fs::metadata(link).is_ok_and(|found| found.file_type().is_block_device())
}

/// Has it on record that a pod may not have a device; the file is there for as long as that is so.
fn mark(uncertain: &Path, uid: &str) -> Result<(), String> {
    let made = data::make_private(uncertain).and_then(|()| std::fs::write(uncertain.join(uid), b""));
    made.map_err(|e| format!("cannot write to {}: {e}", uncertain.display()))
}

fn unmark(uncertain: &Path, uid: &str) -> Result<(), String> {
    let mark = uncertain.join(uid);
    data::gone(std::fs::remove_file(&mark), &mark)?;
    // Of no use without a mark; one of another pod keeps it.
    let _ = std::fs::remove_dir(uncertain);
    Ok(())
}

/// Links to `target`; a link that is there is made anew.
///
/// # Errors
/// It cannot be made.
pub fn make_link(target: &Path, link: &Path) -> Result<(), String> {
    data::gone(std::fs::remove_file(link), link)?;
    symlink(target, link).map_err(|e| format!("cannot link {} to {}: {e}", link.display(), target.display()))
}
