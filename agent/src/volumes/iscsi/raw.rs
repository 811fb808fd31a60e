//! Disks as devices, for pods that want no file system of them.
//!
//! In the folder of a disk's record each pod that has it has a file of its own, to which the device is bound; a link in the
//! pod's folder leads to the device. Both are where the kubelet has them, which finds the one by the other after a restart.
//! A pod has the disk for as long as its folder has the link.
//!
//! Followed: `iscsiPlugin.GetGlobalMapPath`, `volumepathhandler.MapDevice`. Limits: no loop device holds the device as well;
//! the kernel's session, which stays, keeps its name.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::record;
use super::{Disk, Initiator};
use crate::volumes::mapped;
use crate::volumes::turns::{Turn, blocking};

/// Below the folder of all disks.
pub(super) const FOLDER: &str = "volumeDevices";
/// Links of a pod, below its folder.
const LINKS: &str = "volumeDevices/kubernetes.io~iscsi";

/// A device that is bound for a pod. It stays bound while this is held, and as long as the pod has a link to it.
pub struct Attached {
    pub device: PathBuf,
    _turn: Turn,
}

impl Initiator {
    pub(super) fn raw(&self) -> PathBuf {
        self.all().join(FOLDER)
    }

    /// Folder of a disk that pods have as device.
    pub fn raw_place(&self, disk: &Disk) -> PathBuf {
        self.raw().join(disk.place())
    }

    /// Whether the pod has the device, and the link leads to it: after the machine has started anew it may be another's.
    /// Blocks.
    pub fn is_given(&self, disk: &Disk, uid: &str, link: &Path) -> bool {
        let device = |path: &Path| {
            let found = std::fs::metadata(path).ok()?;
            found.file_type().is_block_device().then(|| found.rdev())
        };
        let bound = device(&self.raw_place(disk).join(uid));
        bound.is_some() && bound == device(link)
    }

    /// Logs in to a disk and binds its device for a pod. The work goes on when the caller stops waiting.
    ///
    /// # Errors
    /// What `iscsiadm` or the kernel said. A retry goes on where this stopped.
    pub async fn attach_for(self: &Arc<Self>, disk: Disk, uid: &str) -> Result<Attached, String> {
        disk.check()?;
        let place = self.raw_place(&disk);
        let turn = self.disks.take(&place).await;
        let (this, own) = (self.clone(), place.join(uid));
        let work = tokio::spawn(async move {
            let device = this.attach_noted(&disk, &place).await?;
            let from = device.clone();
            blocking(move || mapped::bind(&from, &own)).await?;
            Ok(Attached { device, _turn: turn })
        });
        work.await.map_err(|e| e.to_string())?
    }
}

/// Takes the device from pods that have no link to it any more; whether one has it still. Blocks.
///
/// # Errors
/// A folder cannot be read, or the kernel refuses: then it stays.
pub(super) fn still_had(place: &Path, pods: &Path) -> Result<bool, String> {
    let mut had = false;
    for own in record::entries(place)? {
        let Some(uid) = own.file_name().filter(|name| !record::is_record(name)) else { continue };
        if !record::entries(&pods.join(uid).join(LINKS))?.is_empty() {
            had = true;
            continue;
        }
        mapped::release_now(&own)?;
    }
    Ok(had)
}
