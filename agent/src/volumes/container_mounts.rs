//! The mounts of a container as the runtime takes them.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use proto::api::core::v1::{Container, Pod, VolumeMount};
use proto::cri;

use crate::pod::container_path;
use crate::pod::expand::{NOT_TEXT, expand_text};
use crate::pod::spec::PodExt;

use super::sub_path::{self, SubPathError};
use super::{MountSource, PodVolumes, VolumeError};

/// What the mounts of a container take from outside its spec.
pub struct MountContext<'a> {
    /// `pods/UID` below the root directory.
    pub pod_dir: &'a Path,
    pub volumes: &'a PodVolumes,
    /// The environment, for `subPathExpr`.
    pub envs: &'a [(String, Vec<u8>)],
    /// The pod's hosts file, unless the container brings its own.
    pub hosts_file: Option<&'a Path>,
    pub termination_log: Option<&'a Path>,
    /// Images that are volumes, as the runtime names them, by volume.
    pub image_volumes: &'a BTreeMap<String, Result<String, crate::status::StartError>>,
    /// The runtime can make mounts below a mount read-only too.
    pub recursive_read_only: bool,
    /// SELinux is on: files that belong to the pod get its label.
    pub selinux: bool,
}

/// The mounts of a container: its volumes, then `/etc/hosts`, then the termination message file. Makes and pins what
/// `subPath` names.
///
/// # Errors
/// A volume that is not there, or a part of one that cannot be had.
pub fn container_mounts(
    pod: &Pod,
    container: &Container,
    context: &MountContext<'_>,
) -> Result<Vec<cri::Mount>, VolumeError> {
    let mut mounts = Vec::new();
    for (index, mount) in container.volume_mounts.iter().enumerate() {
        let source = context.volumes.get(&mount.name).ok_or_else(|| {
            VolumeError::Mount(format!(
                "cannot find volume {:?} to mount into container {:?}",
                mount.name, container.name
            ))
        })?;
        let made = one(pod, container, index, source, context).map_err(VolumeError::Mount)?;
        mounts.push(made);
    }
    let plain = |container_path: &str, host: &Path| cri::Mount {
        container_path: container_path.to_owned(),
        host_path: host.display().to_string(),
        selinux_relabel: context.selinux,
        ..Default::default()
    };
    if let Some(hosts) = context.hosts_file {
        mounts.push(plain("/etc/hosts", hosts));
    }
    if let Some(log) = context.termination_log {
        mounts.push(plain(&container_path::absolute(&container.termination_message_path), log));
    }
    Ok(mounts)
}

/// The mount of a container that stands at `index` in its spec.
fn one(
    pod: &Pod,
    container: &Container,
    index: usize,
    source: &MountSource,
    context: &MountContext<'_>,
) -> Result<cri::Mount, String> {
    let mount = &container.volume_mounts[index];
    let sub_path = sub_path_of(mount, context.envs)?;
    let mut made = match &source.image {
        Some(reference) => of_image(pod, mount, reference, sub_path, context)?,
        None => {
            let host_path = host_path(container, index, source, &sub_path, context)?;
            cri::Mount { host_path: host_path.display().to_string(), ..Default::default() }
        }
    };
    made.container_path = absolute(&mount.mount_path);
    made.readonly = mount.read_only || source.read_only;
    made.propagation = propagation(mount)?.into();
    made.recursive_read_only = recursive_read_only(mount, context.recursive_read_only)
        .map_err(|why| format!("failed to resolve recursive read-only mode: {why}"))?;
    made.selinux_relabel = source.relabel && context.selinux;
    Ok(made)
}

/// The runtime mounts an image by itself, and a part of it too. It refuses one that is not read-only.
fn of_image(
    pod: &Pod,
    mount: &VolumeMount,
    reference: &str,
    sub_path: String,
    context: &MountContext<'_>,
) -> Result<cri::Mount, String> {
    sub_path::parts(&sub_path).map_err(|e| e.to_string())?;
    let image = context.image_volumes.get(&mount.name).and_then(|found| found.as_ref().ok());
    let image = cri::ImageSpec {
        image: image.cloned().unwrap_or_else(|| reference.to_owned()),
        user_specified_image: reference.to_owned(),
        annotations: pod.meta().annotations.clone(),
        ..Default::default()
    };
    Ok(cri::Mount { image: Some(image), image_sub_path: sub_path, ..Default::default() })
}

/// Where the volume is on the host, or the part of it that the mount names, which is pinned.
fn host_path(
    container: &Container,
    index: usize,
    source: &MountSource,
    sub_path: &str,
    context: &MountContext<'_>,
) -> Result<PathBuf, String> {
    if sub_path.is_empty() {
        return Ok(source.host_path.clone());
    }
    let mount = &container.volume_mounts[index];
    let volume = source.inner_name.as_ref().unwrap_or(&mount.name);
    let places = context.pod_dir.join("volume-subpaths").join(volume).join(&container.name);
    sub_path::prepare(&source.host_path, sub_path, &places.join(index.to_string()))
        .map_err(|error| told_of_part(&error, container, mount, (&source.host_path, sub_path)))
}

/// What users are told of a part that cannot be had: nothing about the host's files, those are for the log.
fn told_of_part(
    error: &SubPathError,
    container: &Container,
    mount: &VolumeMount,
    (volume, sub_path): (&Path, &str),
) -> String {
    if matches!(error, SubPathError::Absolute(_) | SubPathError::Backsteps(_)) {
        return error.to_string();
    }
    tracing::warn!(%error, container = container.name, volume = mount.name, "cannot prepare a subPath");
    let missing = |path: &Path| std::fs::metadata(path).is_err_and(|e| e.kind() == ErrorKind::NotFound);
    if missing(volume) {
        return format!("stat {}: no such file or directory", volume.display());
    }
    // What is still not there could not be made.
    let what = if missing(&volume.join(sub_path)) {
        "failed to create subPath directory"
    } else {
        "failed to prepare subPath"
    };
    format!("{what} for volumeMount {:?} of container {:?}", mount.name, container.name)
}

/// One that begins at the root stays as it is written.
fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { container_path::absolute(path) }
}

/// Every variable of `subPathExpr` must have a value, or a container would see more of the volume than it should.
fn sub_path_of(mount: &VolumeMount, envs: &[(String, Vec<u8>)]) -> Result<String, String> {
    let text = &mount.sub_path_expr;
    if text.is_empty() {
        return Ok(mount.sub_path.clone());
    }
    let mut missing: Vec<&str> =
        names(text).filter(|name| !envs.iter().any(|(n, value)| n == name && !value.is_empty())).collect();
    missing.sort_unstable();
    missing.dedup();
    match missing.is_empty() {
        true => expand_text(text, envs).ok_or_else(|| NOT_TEXT.to_owned()),
        false => Err(format!("missing value for {}", missing.join(", "))),
    }
}

/// The names in `$(NAME)`; `$$` starts none.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let at = rest.find('$')?;
            let after = &rest[at + 1..];
            if let Some(tail) = after.strip_prefix('$') {
                rest = tail;
            } else if let Some((name, tail)) = after.strip_prefix('(').and_then(|a| a.split_once(')')) {
                rest = tail;
                return Some(name);
            } else {
                rest = after;
            }
        }
    })
}

fn propagation(mount: &VolumeMount) -> Result<cri::MountPropagation, String> {
    match mount.mount_propagation.as_deref() {
        None | Some("" | "None") => Ok(cri::MountPropagation::PropagationPrivate),
        Some("HostToContainer") => Ok(cri::MountPropagation::PropagationHostToContainer),
        Some("Bidirectional") => Ok(cri::MountPropagation::PropagationBidirectional),
        Some(other) => Err(format!("invalid MountPropagation mode: {other:?}")),
    }
}

/// Whether mounts below a mount are to be read-only too; `supported` by the runtime.
///
/// # Errors
/// In the kubelet's words: the mount cannot be what it asks for.
pub fn recursive_read_only(mount: &VolumeMount, supported: bool) -> Result<bool, String> {
    let mode = mount.recursive_read_only.as_deref().unwrap_or_default();
    if matches!(mode, "" | "Disabled") {
        return Ok(false);
    }
    let wrong =
        |what: &str| Err(format!("volume {:?} requested recursive read-only mode, but it is {what}", mount.name));
    if !mount.read_only {
        return wrong("not read-only");
    }
    if let Some(propagation) = mount.mount_propagation.as_deref().filter(|p| !matches!(*p, "" | "None")) {
        return wrong(&format!("not compatible with propagation {propagation:?}"));
    }
    match mode {
        "IfPossible" => Ok(supported),
        "Enabled" if supported => Ok(true),
        "Enabled" => wrong("not supported by the runtime"),
        other => Err(format!("unknown recursive read-only mode {other:?}")),
    }
}
