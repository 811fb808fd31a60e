//! Which config maps and secrets a pod's spec names, and whether it wants trust bundles.

use std::collections::BTreeSet;

use proto::api::core::v1::{
    Container, EnvFromSource, EnvVar, LocalObjectReference, Pod, VolumeProjection, VolumeSource,
};

/// Names are in the pod's namespace.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct References {
    pub config_maps: BTreeSet<String>,
    pub secrets: BTreeSet<String>,
    /// Whether it takes from the cluster's trust bundles, whichever they are.
    pub trust_bundles: bool,
}

/// Finds them in volumes, environment and pull secrets.
pub fn of(pod: &Pod) -> References {
    let mut found = References::default();
    let Some(spec) = &pod.spec else { return found };
    for secret in &spec.image_pull_secrets {
        found.secret(&secret.name);
    }
    for container in spec.init_containers.iter().chain(&spec.containers) {
        found.container(container);
    }
    for container in &spec.ephemeral_containers {
        if let Some(common) = &container.ephemeral_container_common {
            found.environment(&common.env_from, &common.env);
        }
    }
    for source in spec.volumes.iter().filter_map(|v| v.volume_source.as_ref()) {
        if let Some(map) = &source.config_map {
            found.config_map(map.local_object_reference.as_ref().map_or("", |r| &r.name));
        }
        if let Some(secret) = &source.secret {
            found.secret(&secret.secret_name);
        }
        for projection in source.projected.iter().flat_map(|p| &p.sources) {
            found.projection(projection);
        }
        for reference in secrets_of_storage(source) {
            found.secret(&reference.name);
        }
        if let Some(share) = &source.azure_file {
            found.secret(&share.secret_name);
        }
    }
    found
}

/// Secrets that a kind of storage asks for to let the pod in.
fn secrets_of_storage(source: &VolumeSource) -> impl Iterator<Item = &LocalObjectReference> {
    let references = [
        source.csi.as_ref().and_then(|s| s.node_publish_secret_ref.as_ref()),
        source.iscsi.as_ref().and_then(|s| s.secret_ref.as_ref()),
        source.rbd.as_ref().and_then(|s| s.secret_ref.as_ref()),
        source.cephfs.as_ref().and_then(|s| s.secret_ref.as_ref()),
        source.cinder.as_ref().and_then(|s| s.secret_ref.as_ref()),
        source.flex_volume.as_ref().and_then(|s| s.secret_ref.as_ref()),
        source.scale_io.as_ref().and_then(|s| s.secret_ref.as_ref()),
        source.storageos.as_ref().and_then(|s| s.secret_ref.as_ref()),
    ];
    references.into_iter().flatten()
}

impl References {
    fn config_map(&mut self, name: &str) {
        if !name.is_empty() {
            self.config_maps.insert(name.to_owned());
        }
    }

    fn secret(&mut self, name: &str) {
        if !name.is_empty() {
            self.secrets.insert(name.to_owned());
        }
    }

    fn container(&mut self, container: &Container) {
        self.environment(&container.env_from, &container.env);
    }

    fn environment(&mut self, from: &[EnvFromSource], variables: &[EnvVar]) {
        for source in from {
            if let Some(map) = &source.config_map_ref {
                self.config_map(map.local_object_reference.as_ref().map_or("", |r| &r.name));
            }
            if let Some(secret) = &source.secret_ref {
                self.secret(secret.local_object_reference.as_ref().map_or("", |r| &r.name));
            }
        }
        for source in variables.iter().filter_map(|v| v.value_from.as_ref()) {
            if let Some(key) = &source.config_map_key_ref {
                self.config_map(key.local_object_reference.as_ref().map_or("", |r| &r.name));
            }
            if let Some(key) = &source.secret_key_ref {
                self.secret(key.local_object_reference.as_ref().map_or("", |r| &r.name));
            }
        }
    }

    fn projection(&mut self, projection: &VolumeProjection) {
        self.trust_bundles |= projection.cluster_trust_bundle.is_some();
        if let Some(map) = &projection.config_map {
            self.config_map(map.local_object_reference.as_ref().map_or("", |r| &r.name));
        }
        if let Some(secret) = &projection.secret {
            self.secret(secret.local_object_reference.as_ref().map_or("", |r| &r.name));
        }
    }
}
