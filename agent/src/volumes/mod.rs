//! Volumes of a pod on the node: made, kept fresh and taken away.
//!
//! Kinds: `emptyDir` (disk and memory), `hostPath`, `configMap`, `secret`, `downwardAPI`, `projected` with tokens. What
//! holds secrets lies in a tmpfs. [`Manager::setup`] is called on every sync and rewrites content that changed.
//! Limits: no CSI, no persistent claims, no image volumes yet; they are refused as `FailedMount`.

mod content;
mod files;
mod sub_path;

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use proto::api::core::v1::{Container, Node, Pod, Volume};
use proto::cri;

use crate::objects::{Objects, Tokens};
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

/// What volumes are made from.
pub struct VolumeDeps {
    pub root_dir: PathBuf,
    pub objects: Arc<dyn Objects>,
    pub tokens: Arc<dyn Tokens>,
    pub node: tokio::sync::watch::Receiver<Arc<Node>>,
}

/// Makes and removes the volumes of pods below the root directory.
pub struct Manager {
    deps: VolumeDeps,
}

impl Manager {
    pub fn new(deps: VolumeDeps) -> Self {
        Self { deps }
    }

    /// Makes what is missing and freshens what changed. Called again on every sync.
    ///
    /// # Errors
    /// The first volume that cannot be made; a retry may help.
    pub async fn setup(&self, pod: &Pod) -> Result<PodVolumes, VolumeError> {
        let mut made = PodVolumes::new();
        for volume in &pod.spec().volumes {
            let source = self.one(pod, volume).await;
            let source = source.map_err(|why| VolumeError::SetUp { volume: volume.name.clone(), why })?;
            made.insert(volume.name.clone(), source);
        }
        Ok(made)
    }

    fn dir(&self, uid: &str, plugin: &str, volume: &str) -> PathBuf {
        self.deps.root_dir.join("pods").join(uid).join("volumes").join(format!("kubernetes.io~{plugin}")).join(volume)
    }

    async fn one(&self, pod: &Pod, volume: &Volume) -> Result<MountSource, String> {
        let source = volume.volume_source.clone().unwrap_or_default();
        if let Some(host) = &source.host_path {
            host_path(&host.path, host.r#type.as_deref().unwrap_or(""))?;
            return Ok(MountSource { host_path: PathBuf::from(&host.path), read_only: false });
        }
        let security = pod.spec().security_context.as_ref();
        let group = security.and_then(|s| s.fs_group).and_then(|g| u32::try_from(g).ok());
        let texts = |e: io::Error| e.to_string();
        if let Some(empty) = &source.empty_dir {
            let dir = self.dir(pod.uid(), "empty-dir", &volume.name);
            if !dir.exists() {
                make_dir(&dir, 0o777).map_err(texts)?;
                if empty.medium == "Memory" {
                    let limit = empty.size_limit.as_ref().map_or(0, crate::pod::quantity::whole);
                    mount_tmpfs(&dir, limit).map_err(texts)?;
                }
                if let Some(group) = group {
                    share(&dir, group).map_err(texts)?;
                }
            }
            return Ok(MountSource { host_path: dir, read_only: false });
        }
        let Some((plugin, in_memory)) = content::plugin(&source) else {
            return Err(format!("no volume plugin matched for volume {}", volume.name));
        };
        let files = content::collect(&self.deps, pod, &source, group).await?;
        let dir = self.dir(pod.uid(), plugin, &volume.name);
        if !dir.exists() {
            make_dir(&dir, 0o777).map_err(texts)?;
            if in_memory {
                mount_tmpfs(&dir, 0).map_err(texts)?;
            }
            if let Some(group) = group {
                share(&dir, group).map_err(texts)?;
            }
        }
        files::write(&dir, &files, group).map_err(texts)?;
        Ok(MountSource { host_path: dir, read_only: true })
    }

    /// Removes all volumes of a pod.
    ///
    /// # Errors
    /// Something is still in use; a retry may help.
    pub async fn teardown(&self, uid: &str) -> Result<(), VolumeError> {
        let pod = self.deps.root_dir.join("pods").join(uid);
        self.deps.tokens.forget(uid);
        for dir in [pod.join("volume-subpaths"), pod.join("volumes")] {
            unmount_below(&dir).map_err(|e| VolumeError::Mount(e.to_string()))?;
            match std::fs::remove_dir_all(&dir) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(VolumeError::Mount(e.to_string())),
                _ => {}
            }
        }
        Ok(())
    }

    /// The mounts of a container: its volumes, then `/etc/hosts`, then the termination message file.
    ///
    /// # Errors
    /// A volume is missing, or a sub-path cannot be had.
    pub fn container_mounts(
        &self,
        pod: &Pod,
        container: &Container,
        volumes: &PodVolumes,
        hosts_file: Option<&Path>,
        termination_log: Option<&Path>,
        envs: &[(String, String)],
    ) -> Result<Vec<cri::Mount>, VolumeError> {
        let mut mounts = Vec::new();
        for (index, wanted) in container.volume_mounts.iter().enumerate() {
            let source = volumes.get(&wanted.name).ok_or_else(|| {
                let (volume, name) = (&wanted.name, &container.name);
                VolumeError::Mount(format!("cannot find volume {volume:?} to mount into container {name:?}"))
            })?;
            let sub = if wanted.sub_path_expr.is_empty() {
                wanted.sub_path.clone()
            } else {
                expand(&wanted.sub_path_expr, envs)
            };
            let mut host_path = source.host_path.clone();
            if !sub.is_empty() {
                let pod_dir = self.deps.root_dir.join("pods").join(pod.uid());
                let at = pod_dir.join("volume-subpaths").join(&wanted.name).join(&container.name);
                host_path = sub_path::bind(&host_path, &sub, &at.join(index.to_string())).map_err(|e| {
                    let name = &container.name;
                    VolumeError::Mount(format!(
                        "failed to prepare subPath for volumeMount {:?} of container {name:?}: {e}",
                        wanted.name
                    ))
                })?;
            }
            let propagation = match wanted.mount_propagation.as_deref() {
                Some("Bidirectional") => cri::MountPropagation::PropagationBidirectional,
                Some("HostToContainer") => cri::MountPropagation::PropagationHostToContainer,
                _ => cri::MountPropagation::PropagationPrivate,
            };
            mounts.push(cri::Mount {
                container_path: absolute(&wanted.mount_path),
                host_path: host_path.display().to_string(),
                readonly: wanted.read_only || source.read_only,
                propagation: propagation as i32,
                ..Default::default()
            });
        }
        let plain = |container_path: &str, host: &Path| cri::Mount {
            container_path: container_path.to_owned(),
            host_path: host.display().to_string(),
            ..Default::default()
        };
        mounts.extend(hosts_file.map(|hosts| plain("/etc/hosts", hosts)));
        mounts.extend(termination_log.map(|log| plain(&container.termination_message_path, log)));
        Ok(mounts)
    }
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

fn make_dir(dir: &Path, mode: u32) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    // The umask must not narrow it.
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode))
}

fn mount_tmpfs(dir: &Path, limit: i64) -> io::Result<()> {
    let size = (limit > 0).then(|| format!("size={limit}"));
    mount(Some("tmpfs"), dir, Some("tmpfs"), MsFlags::empty(), size.as_deref())?;
    Ok(())
}

/// The pod's group may write, and what is made inside belongs to it.
fn share(dir: &Path, group: u32) -> io::Result<()> {
    chown(dir, None, Some(group))?;
    let mode = std::fs::metadata(dir)?.permissions().mode() & 0o7777;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode | 0o2770))
}

/// Checks what a host path must be, and makes what may be made.
fn host_path(path: &str, kind: &str) -> Result<(), String> {
    use std::os::unix::fs::FileTypeExt as _;
    let found = std::fs::metadata(path).ok().map(|m| m.file_type());
    let is = |test: fn(&std::fs::FileType) -> bool| found.as_ref().is_some_and(test);
    let (fits, what) = match kind {
        "DirectoryOrCreate" => {
            if found.is_none() {
                return make_dir(Path::new(path), 0o755).map_err(|e| e.to_string());
            }
            (is(std::fs::FileType::is_dir), "directory")
        }
        "FileOrCreate" => {
            if found.is_none() {
                let made = std::fs::File::create(path).map_err(|e| e.to_string())?;
                return made.set_permissions(std::fs::Permissions::from_mode(0o644)).map_err(|e| e.to_string());
            }
            (is(std::fs::FileType::is_file), "file")
        }
        "Directory" => (is(std::fs::FileType::is_dir), "directory"),
        "File" => (is(std::fs::FileType::is_file), "file"),
        "Socket" => (is(std::fs::FileType::is_socket), "socket"),
        "CharDevice" => (is(std::fs::FileType::is_char_device), "character device"),
        "BlockDevice" => (is(std::fs::FileType::is_block_device), "block device"),
        _ => (true, ""),
    };
    if fits { Ok(()) } else { Err(format!("hostPath type check failed: {path} is not a {what}")) }
}

/// Unmounts everything mounted at or below `dir`, innermost first.
fn unmount_below(dir: &Path) -> io::Result<()> {
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(|p| PathBuf::from(unescape(p)));
    let mut inside: Vec<PathBuf> = points.filter(|p| p.starts_with(dir)).collect();
    inside.sort();
    for point in inside.iter().rev() {
        match umount2(point, MntFlags::UMOUNT_NOFOLLOW) {
            // A container that is still going down may hold it a moment longer.
            Err(nix::errno::Errno::EBUSY) => umount2(point, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH)?,
            Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOENT) => {}
            other => other?,
        }
    }
    Ok(())
}

/// Octal escapes of the mount table.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}
