//! Volumes of a pod on the node: made, kept fresh and taken away.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proto::api::core::v1::{Container, Pod, Volume};
use proto::cri;

use crate::pod::expand::expand;
use crate::pod::spec::PodExt;

/// Why a volume cannot be had; the text is that of the `FailedMount` event.
#[derive(Debug, Clone, thiserror::Error)]
pub enum VolumeError {
    #[error("MountVolume.SetUp failed for volume {volume:?} : {why}")]
    SetUp { volume: String, why: String },
    #[error("{0}")]
    Mount(String),
}

/// Where a volume lies on the host.
#[derive(Debug, Clone, Default)]
pub struct MountSource {
    pub host_path: PathBuf,
    pub read_only: bool,
}

pub type PodVolumes = BTreeMap<String, MountSource>;

/// Makes and removes the volumes of pods below the root directory.
pub struct Manager {
    root_dir: PathBuf,
}

impl Manager {
    pub fn new(root_dir: &Path) -> Self {
        Self { root_dir: root_dir.to_owned() }
    }

    /// Makes what is missing. Called again on every sync.
    pub async fn setup(&self, pod: &Pod) -> Result<PodVolumes, VolumeError> {
        let mut made = PodVolumes::new();
        for volume in &pod.spec().volumes {
            let path = self.one(pod, volume).map_err(|why| VolumeError::SetUp { volume: volume.name.clone(), why })?;
            made.insert(volume.name.clone(), MountSource { host_path: path, read_only: false });
        }
        Ok(made)
    }

    fn one(&self, pod: &Pod, volume: &Volume) -> Result<PathBuf, String> {
        let source = volume.volume_source.as_ref();
        if let Some(host) = source.and_then(|s| s.host_path.as_ref()) {
            let path = PathBuf::from(&host.path);
            if host.r#type.as_deref() == Some("Directory") && !path.is_dir() {
                return Err(format!("hostPath type check failed: {} is not a directory", host.path));
            }
            return Ok(path);
        }
        if source.is_some_and(|s| s.empty_dir.is_some()) {
            let path =
                self.root_dir.join("pods").join(pod.uid()).join("volumes/kubernetes.io~empty-dir").join(&volume.name);
            std::fs::create_dir_all(&path).map_err(|e| e.to_string())?;
            return Ok(path);
        }
        Err("no volume plugin matched".into())
    }

    /// Removes all volumes of a pod.
    pub async fn teardown(&self, uid: &str) -> Result<(), VolumeError> {
        let path = self.root_dir.join("pods").join(uid).join("volumes");
        match std::fs::remove_dir_all(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(VolumeError::Mount(e.to_string())),
            _ => Ok(()),
        }
    }
}

/// The mounts of a container: its volumes, then `/etc/hosts`, then the termination message file.
pub fn container_mounts(
    _pod: &Pod,
    container: &Container,
    volumes: &PodVolumes,
    hosts_file: Option<&Path>,
    termination_log: Option<&Path>,
    envs: &[(String, String)],
) -> Result<Vec<cri::Mount>, VolumeError> {
    let mut mounts = Vec::new();
    for mount in &container.volume_mounts {
        let source = volumes.get(&mount.name).ok_or_else(|| {
            VolumeError::Mount(format!(
                "cannot find volume {:?} to mount into container {:?}",
                mount.name, container.name
            ))
        })?;
        let sub_path =
            if mount.sub_path_expr.is_empty() { mount.sub_path.clone() } else { expand(&mount.sub_path_expr, envs) };
        mounts.push(cri::Mount {
            container_path: mount.mount_path.clone(),
            host_path: if sub_path.is_empty() { source.host_path.clone() } else { source.host_path.join(sub_path) }
                .display()
                .to_string(),
            readonly: mount.read_only || source.read_only,
            ..Default::default()
        });
    }
    let plain = |container_path: &str, host: &Path| cri::Mount {
        container_path: container_path.to_owned(),
        host_path: host.display().to_string(),
        ..Default::default()
    };
    if let Some(hosts) = hosts_file {
        mounts.push(plain("/etc/hosts", hosts));
    }
    if let Some(log) = termination_log {
        mounts.push(plain(&container.termination_message_path, log));
    }
    Ok(mounts)
}
