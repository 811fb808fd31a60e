//! Raw devices of volumes in containers (`volumeDevices`).

use proto::api::core::v1::{Container, Pod};
use proto::cri;

use crate::pod::spec::{PodExt, ephemeral_as_container};

use super::PodVolumes;

/// The devices of a container, as the runtime takes them. A volume that is not there gives none: the pod does not get
/// that far without it.
pub fn container_devices(container: &Container, volumes: &PodVolumes) -> Vec<cri::Device> {
    let wanted = container.volume_devices.iter().filter_map(|d| Some((d, volumes.get(&d.name)?)));
    let given = wanted.filter(|(_, source)| source.block).map(|(device, source)| cri::Device {
        container_path: device.device_path.clone(),
        host_path: source.host_path.display().to_string(),
        permissions: if source.read_only { "r" } else { "mrw" }.to_owned(),
    });
    given.collect()
}

/// Whether containers use a volume as what it is: a device, or a file system.
///
/// # Errors
/// In the kubelet's words.
pub fn check_use(pod: &Pod, volume: &str, block: bool) -> Result<(), String> {
    let spec = pod.spec();
    let ephemeral: Vec<Container> = spec.ephemeral_containers.iter().map(ephemeral_as_container).collect();
    let containers = || spec.containers.iter().chain(&spec.init_containers).chain(&ephemeral);
    let mounted = containers().flat_map(|c| &c.volume_mounts).any(|m| m.name == volume);
    let as_device = containers().flat_map(|c| &c.volume_devices).any(|d| d.name == volume);
    match (block, mounted, as_device) {
        (true, true, _) => Err(format!("volume {volume} has volumeMode Block, but is specified in volumeMounts")),
        (false, _, true) => {
            Err(format!("volume {volume} has volumeMode Filesystem, but is specified in volumeDevices"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::MountSource;
    use proto::api::core::v1::{PodSpec, VolumeDevice, VolumeMount};

    fn container() -> Container {
        Container {
            volume_devices: vec![VolumeDevice { name: "raw".into(), device_path: "/dev/x".into() }],
            volume_mounts: vec![VolumeMount { name: "fs".into(), ..Default::default() }],
            ..Default::default()
        }
    }

    #[test]
    fn a_container_gets_the_devices_that_it_names() {
        let source = |read_only| MountSource { host_path: "/p".into(), block: true, read_only, ..Default::default() };
        let devices = container_devices(&container(), &[("raw".to_owned(), source(false))].into());
        assert_eq!((devices[0].container_path.as_str(), devices[0].permissions.as_str()), ("/dev/x", "mrw"));
        let devices = container_devices(&container(), &[("raw".to_owned(), source(true))].into());
        assert_eq!(devices[0].permissions, "r");
    }

    #[test]
    fn a_volume_is_used_as_what_it_is() {
        let spec = PodSpec { containers: vec![container()], ..Default::default() };
        let pod = Pod { spec: Some(spec), ..Default::default() };
        assert!(check_use(&pod, "raw", true).is_ok() && check_use(&pod, "fs", false).is_ok());
        assert!(check_use(&pod, "raw", false).unwrap_err().contains("volumeMode Filesystem"));
        assert!(check_use(&pod, "fs", true).unwrap_err().contains("volumeMode Block"));
    }
}
