//! Volumes that pods have as devices (`volumeMode: Block`), by claims: of drivers, local ones and iSCSI disks. A link in the
//! pod's folder leads to each.
//!
//! Followed: kubelet `GenerateMapVolumeFunc`.

use std::path::{Path, PathBuf};

use proto::api::core::v1::{PersistentVolumeSource, Pod};

use crate::csi::Wanted;
use crate::csi::volumes::Failure;
use crate::pod::spec::PodExt;

use super::iscsi::Disk;
use super::{Manager, MountSource, VolumeError, claims, mapped, persistent};

/// Of volumes that are file systems and nothing else.
const NO_MAPPER: &str =
    "MapVolume.FindMapperPluginBySpec failed to find BlockVolumeMapper plugin. Volume plugin is nil.";

impl Manager {
    /// A volume of a storage driver, as device.
    ///
    /// # Errors
    /// By the step that failed; a retry may help.
    pub(super) async fn device_of_driver(&self, wanted: &Wanted<'_>) -> Result<MountSource, VolumeError> {
        let had = self.csi.is_published(wanted);
        let volume = wanted.name.clone();
        let link = self.csi.set_up_block(wanted).await.map_err(|failure| match failure {
            Failure::Attach { why, exhausted } => VolumeError::Attach { volume, why, exhausted },
            Failure::Device(why) => VolumeError::Map { step: "SetUpDevice", volume, why },
            Failure::SetUp(why) => VolumeError::Map { step: "MapPodDevice", volume, why },
        })?;
        let all = self.root_dir.join("plugins/kubernetes.io/csi/volumeDevices").join(&wanted.name).join("dev");
        Ok(device(link, wanted.read_only, (!had).then_some(all)))
    }

    /// A volume of the node's, as device: the pod's name of it, its own, and what it is.
    ///
    /// # Errors
    /// By the step that failed; a retry may help.
    pub(super) async fn device_of_node(
        &self,
        pod: &Pod,
        (volume, name, source): (&str, &str, &PersistentVolumeSource),
        bound: &claims::Bound,
    ) -> Result<MountSource, VolumeError> {
        let failed = |step, why| VolumeError::Map { step, volume: name.to_owned(), why };
        if let Some(local) = &source.local {
            let link = self.device(pod.uid(), "kubernetes.io~local-volume", name);
            let own = mapped::place_of_local(&self.root_dir, name, pod.uid());
            let all = own.parent().map(Path::to_owned);
            let (from, to) = (PathBuf::from(&local.path), link.clone());
            let given = self.disks.in_pod(pod.uid(), move || persistent::give_device(&from, &own, &to)).await;
            let new = given.map_err(|why| failed("MapBlockVolume", why))?;
            return Ok(device(link, bound.read_only, all.filter(|_| new)));
        }
        if let Some(iscsi) = &source.iscsi {
            let disk = Disk::of_volume(name, iscsi);
            let link = self.device(pod.uid(), "kubernetes.io~iscsi", name);
            let unmapped = |why| failed("WaitForAttach", why);
            // A pod that has it needs neither the secret nor the target.
            let had = self.disks.has_iscsi_device(pod, &disk, &link).await.map_err(unmapped)?;
            if had {
                return Ok(device(link, bound.read_only, None));
            }
            let disk = self.with_secret(disk, super::secret_of(pod, iscsi)).await.map_err(unmapped)?;
            let all = self.disks.iscsi_device(pod, disk, &link).await.map_err(unmapped)?;
            return Ok(device(link, bound.read_only, Some(all)));
        }
        // For the kubelet this is no failed mount: it never comes to one, and tells what it has waited for.
        Err(VolumeError::unmounted(volume, NO_MAPPER.to_owned()))
    }
}

fn device(host_path: PathBuf, read_only: bool, mapped: Option<PathBuf>) -> MountSource {
    MountSource { host_path, read_only, block: true, mapped, ..Default::default() }
}
