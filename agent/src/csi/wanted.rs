//! A volume of a driver as a pod wants it: from a persistent volume, or written in the pod itself.

use std::collections::BTreeMap;

use proto::api::core::v1::{
    CsiPersistentVolumeSource, CsiVolumeSource, PersistentVolume, PersistentVolumeSpec, Pod, SecretReference,
};
use proto::csi::VolumeCapability;
use proto::csi::node_service_capability::rpc::Type as RpcType;
use proto::csi::volume_capability::access_mode::Mode;
use proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

use crate::pod::spec::PodExt;

use super::client::Capabilities;
use super::data;

/// Namespace and name of a secret.
pub type SecretName = (String, String);

/// See the module's documentation.
#[derive(Debug, Clone)]
pub struct Wanted<'a> {
    pub pod: &'a Pod,
    /// Of the persistent volume, or of the pod's volume: the name of its folder.
    pub name: String,
    pub driver: String,
    pub handle: String,
    pub read_only: bool,
    pub fs_type: String,
    pub attributes: BTreeMap<String, String>,
    pub stage_secret: Option<SecretName>,
    pub publish_secret: Option<SecretName>,
    pub expand_secret: Option<SecretName>,
    pub access_modes: Vec<String>,
    pub mount_options: Vec<String>,
    /// Lives and dies with the pod: neither attached nor staged.
    pub inline: bool,
    /// The raw device is wanted.
    pub block: bool,
}

impl<'a> Wanted<'a> {
    /// A persistent volume; `read_only` is what the pod's claim says.
    pub fn persistent(
        pod: &'a Pod,
        volume: &PersistentVolume,
        spec: &PersistentVolumeSpec,
        source: &CsiPersistentVolumeSource,
        read_only: bool,
    ) -> Self {
        let secret = |reference: &Option<SecretReference>| {
            reference.as_ref().map(|r| (r.namespace.clone(), r.name.clone())).filter(|(_, name)| !name.is_empty())
        };
        Wanted {
            pod,
            name: volume.metadata.as_ref().map_or("", |m| &m.name).to_owned(),
            driver: source.driver.clone(),
            handle: source.volume_handle.clone(),
            read_only: read_only || source.read_only,
            fs_type: source.fs_type.clone(),
            attributes: source.volume_attributes.clone(),
            stage_secret: secret(&source.node_stage_secret_ref),
            publish_secret: secret(&source.node_publish_secret_ref),
            expand_secret: secret(&source.node_expand_secret_ref),
            access_modes: spec.access_modes.clone(),
            mount_options: spec.mount_options.clone(),
            inline: false,
            block: spec.volume_mode.as_deref() == Some("Block"),
        }
    }

    /// A volume written in the pod.
    pub fn inline(pod: &'a Pod, name: &str, source: &CsiVolumeSource) -> Self {
        let secret = source.node_publish_secret_ref.as_ref().map(|r| (pod.namespace().to_owned(), r.name.clone()));
        Wanted {
            pod,
            name: name.to_owned(),
            driver: source.driver.clone(),
            handle: data::inline_handle(pod.uid(), name),
            read_only: source.read_only.unwrap_or(false),
            fs_type: source.fs_type.clone().unwrap_or_default(),
            attributes: source.volume_attributes.clone(),
            stage_secret: None,
            publish_secret: secret.filter(|(_, name)| !name.is_empty()),
            expand_secret: None,
            access_modes: vec!["ReadWriteOnce".into()],
            mount_options: Vec::new(),
            inline: true,
            block: false,
        }
    }

    /// `volumeLifecycleModes` has this word.
    pub fn lifecycle(&self) -> &'static str {
        if self.inline { "Ephemeral" } else { "Persistent" }
    }

    /// How the volume is used; `group` is the file system group when the driver is to apply it.
    pub fn capability(&self, capabilities: &Capabilities, group: Option<u32>) -> VolumeCapability {
        let access_type = if self.block {
            AccessType::Block(BlockVolume {})
        } else {
            AccessType::Mount(MountVolume {
                fs_type: self.fs_type.clone(),
                mount_flags: self.mount_options.clone(),
                volume_mount_group: group.map(|g| g.to_string()).unwrap_or_default(),
            })
        };
        let mode = mode(
            self.access_modes.first().map_or("ReadWriteOnce", String::as_str),
            capabilities.has(RpcType::SingleNodeMultiWriter),
        );
        VolumeCapability { access_type: Some(access_type), access_mode: Some(AccessMode { mode: mode.into() }) }
    }
}

/// What an access mode of the API is to a driver; one that tells writers on one node apart is told more.
fn mode(word: &str, tells_apart: bool) -> Mode {
    match (word, tells_apart) {
        ("ReadWriteOnce", true) => Mode::SingleNodeMultiWriter,
        ("ReadWriteOncePod", true) => Mode::SingleNodeSingleWriter,
        ("ReadWriteOnce" | "ReadWriteOncePod", false) => Mode::SingleNodeWriter,
        ("ReadOnlyMany", _) => Mode::MultiNodeReaderOnly,
        ("ReadWriteMany", _) => Mode::MultiNodeMultiWriter,
        _ => Mode::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_modes_depend_on_what_the_driver_can_tell_apart() {
        assert_eq!(mode("ReadWriteOnce", false), Mode::SingleNodeWriter);
        assert_eq!(mode("ReadWriteOnce", true), Mode::SingleNodeMultiWriter);
        assert_eq!(mode("ReadWriteOncePod", true), Mode::SingleNodeSingleWriter);
        assert_eq!(mode("ReadOnlyMany", true), Mode::MultiNodeReaderOnly);
        assert_eq!(mode("Other", true), Mode::Unknown);
    }
}
