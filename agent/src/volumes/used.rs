//! Which volumes of a pod anything uses: the others are never made, and hold nothing back.

use std::collections::BTreeSet;

use proto::api::core::v1::{EnvVar, Pod, VolumeDevice, VolumeMount};

use crate::pod::spec::PodExt;

/// The names of volumes that a container mounts, has as a device or takes variables from.
///
/// Followed: `GetPodVolumeNames` of `pkg/volume/util`.
pub fn used(pod: &Pod) -> BTreeSet<&str> {
    let spec = pod.spec();
    let mut names = BTreeSet::new();
    for container in spec.init_containers.iter().chain(&spec.containers) {
        note(&mut names, &container.volume_mounts, &container.volume_devices, &container.env);
    }
    for container in spec.ephemeral_containers.iter().filter_map(|c| c.ephemeral_container_common.as_ref()) {
        note(&mut names, &container.volume_mounts, &container.volume_devices, &container.env);
    }
    names
}

fn note<'a>(names: &mut BTreeSet<&'a str>, mounts: &'a [VolumeMount], devices: &'a [VolumeDevice], env: &'a [EnvVar]) {
    names.extend(mounts.iter().map(|mount| mount.name.as_str()));
    names.extend(devices.iter().map(|device| device.name.as_str()));
    let files = env.iter().filter_map(|variable| variable.value_from.as_ref()?.file_key_ref.as_ref());
    names.extend(files.map(|file| file.volume_name.as_str()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{
        Container, EnvVarSource, EphemeralContainer, EphemeralContainerCommon, FileKeySelector, PodSpec,
    };

    #[test]
    fn containers_of_every_kind_use_volumes_in_three_ways() {
        let mount = |name: &str| VolumeMount { name: name.into(), ..Default::default() };
        let file = FileKeySelector { volume_name: "file".into(), ..Default::default() };
        let from_file = EnvVar {
            value_from: Some(EnvVarSource { file_key_ref: Some(file), ..Default::default() }),
            ..Default::default()
        };
        let init = Container { volume_mounts: vec![mount("init")], env: vec![from_file], ..Default::default() };
        let device = VolumeDevice { name: "raw".into(), device_path: "/dev/x".into() };
        let main = Container { volume_devices: vec![device], ..Default::default() };
        let common = EphemeralContainerCommon { volume_mounts: vec![mount("debug")], ..Default::default() };
        let debug = EphemeralContainer { ephemeral_container_common: Some(common), ..Default::default() };
        let spec = PodSpec {
            init_containers: vec![init],
            containers: vec![main],
            ephemeral_containers: vec![debug],
            ..Default::default()
        };
        let pod = Pod { spec: Some(spec), ..Default::default() };
        assert_eq!(used(&pod).into_iter().collect::<Vec<_>>(), ["debug", "file", "init", "raw"]);
    }
}
