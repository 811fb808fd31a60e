//! Volumes of the kinds that a kubelet translates: it gives them to the driver that took the place of its own plugin. Here
//! nothing is translated: a volume has to name its driver (`csi`).

use proto::api::core::v1::{PersistentVolumeSource, VolumeSource};

/// The first kind that is there; pods and persistent volumes call them the same.
macro_rules! kind {
    ($source:expr) => {
        [
            ("awsElasticBlockStore", $source.aws_elastic_block_store.is_some()),
            ("azureDisk", $source.azure_disk.is_some()),
            ("azureFile", $source.azure_file.is_some()),
            ("cinder", $source.cinder.is_some()),
            ("gcePersistentDisk", $source.gce_persistent_disk.is_some()),
            ("portworxVolume", $source.portworx_volume.is_some()),
            ("vsphereVolume", $source.vsphere_volume.is_some()),
        ]
        .into_iter()
        .find(|(_, there)| *there)
        .map(|(kind, _)| kind)
    };
}

/// Of a pod's own volume.
pub fn kind(source: &VolumeSource) -> Option<&'static str> {
    kind!(source)
}

/// Of a persistent volume.
pub fn kind_of_claimed(source: &PersistentVolumeSource) -> Option<&'static str> {
    kind!(source)
}

/// There is nothing that could mount the volume, in the kubelet's frame; `kind` is that which would be translated.
pub fn no_plugin(volume: &str, kind: Option<&str>) -> String {
    let told = format!("failed to get Plugin from volumeSpec for volume {volume:?} err=no volume plugin matched");
    match kind {
        Some(kind) => format!(
            "{told}: it is of type {kind}, which is used through a CSI driver by translation, and this agent does not \
             translate; use a volume of type csi"
        ),
        None => told,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{AzureFileVolumeSource, VsphereVirtualDiskVolumeSource};

    /// Nothing said what was wrong with a volume that every kubelet mounts.
    #[test]
    fn a_volume_that_would_have_to_be_translated_is_told_by_its_kind() {
        let disk = Some(VsphereVirtualDiskVolumeSource::default());
        let claimed = PersistentVolumeSource { vsphere_volume: disk, ..PersistentVolumeSource::default() };
        assert_eq!(kind_of_claimed(&claimed), Some("vsphereVolume"));
        let share = Some(AzureFileVolumeSource::default());
        assert_eq!(kind(&VolumeSource { azure_file: share, ..VolumeSource::default() }), Some("azureFile"));
        assert_eq!(kind(&VolumeSource::default()), None);
        let told = no_plugin("v", Some("azureFile"));
        assert!(told.contains(r#"for volume "v" err=no volume plugin matched: it is of type azureFile, "#), "{told}");
        let told = no_plugin("v", None);
        assert!(told.ends_with("no volume plugin matched"), "{told}");
    }
}
