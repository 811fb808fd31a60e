//! Volumes of the node's own storage or of a file server, as persistent volumes and pods name them: local paths by bind
//! mount, NFS by the host's `mount`.
//!
//! Followed: plugins `local` and `nfs`, `mount_helper`, `pkg/volume/util` (`MountOptionFromSpec`).

use std::collections::BTreeSet;
use std::path::{Component, Path};
use std::process::Stdio;

use proto::api::core::v1::{NfsVolumeSource, Node, PersistentVolume};

use crate::pod::placement::matches_term;

use super::{empty_dir, mapped, mount_table};

/// Whether the volume may be used from this node.
///
/// # Errors
/// The kubelet's text.
pub fn check_affinity(volume: &PersistentVolume, node: &Node) -> Result<(), String> {
    let required = volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref()?.required.as_ref());
    let Some(required) = required else { return Ok(()) };
    let empty = std::collections::BTreeMap::new();
    let (labels, name) = node.metadata.as_ref().map_or((&empty, ""), |m| (&m.labels, m.name.as_str()));
    match required.node_selector_terms.iter().any(|term| matches_term(term, labels, name)) {
        true => Ok(()),
        false => Err("no matching NodeSelectorTerms".into()),
    }
}

/// Whether the node mounts the volume in the pods' folders by itself: neither a driver does, nor is it a path of the host.
pub fn is_mounted_by_node(volume: &PersistentVolume) -> bool {
    let source = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_source.as_ref());
    source.is_some_and(|source| source.local.is_some() || source.iscsi.is_some() || source.nfs.is_some())
}

/// Whether a path may be used as a local volume.
fn check_path(from: &Path, to: &Path) -> Result<(), String> {
    if from.as_os_str().is_empty() {
        return Err(format!("LocalVolume volume {:?} path is empty", to.file_name().unwrap_or_default()));
    }
    if from.components().any(|c| c == Component::ParentDir) {
        return Err(format!("invalid path: {} must not contain '..'", from.display()));
    }
    if !from.exists() {
        return Err(format!("path {:?} does not exist", from.display().to_string()));
    }
    Ok(())
}

/// Gives a pod a local device: bound to a file of its own, so that nothing else has it meanwhile, and with a link in its
/// folder, `to`. `false` where that is so already.
///
/// # Errors
/// The path is no device, or the kernel refuses.
pub fn give_device(from: &Path, own: &Path, to: &Path) -> Result<bool, String> {
    use std::os::unix::fs::FileTypeExt as _;
    check_path(from, to)?;
    if !std::fs::metadata(from).is_ok_and(|m| m.file_type().is_block_device()) {
        return Err(format!("{} is not a block device", from.display()));
    }
    mapped::bind(from, own)?;
    if std::fs::read_link(to).is_ok_and(|old| old == from) {
        return Ok(false);
    }
    link(from, to).map(|()| true)
}

/// Links a place in a pod's folder to a device; a link that is there is made anew.
///
/// # Errors
/// It cannot be made.
pub fn link(device: &Path, to: &Path) -> Result<(), String> {
    let folder = to.parent().unwrap_or(to);
    crate::csi::make_private(folder).map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
    crate::csi::make_link(device, to)
}

/// What is at the path of a local volume.
#[derive(Debug, PartialEq, Eq)]
pub enum Place {
    /// The pod has it already.
    Given,
    Folder,
    Device,
}

/// Looks at the path of a local volume that is to be bound to `to`. Blocks, for as long as a file server does not answer.
///
/// # Errors
/// The path is none that may be used.
pub fn look(from: &Path, to: &Path) -> Result<Place, String> {
    use std::os::unix::fs::FileTypeExt as _;
    if mount_table::is_mount_point(to)? {
        return Ok(Place::Given);
    }
    check_path(from, to)?;
    let found = std::fs::metadata(from).map_err(|e| format!("cannot look at {}: {e}", from.display()))?;
    if found.file_type().is_block_device() {
        return Ok(Place::Device);
    }
    match found.is_dir() {
        true => Ok(Place::Folder),
        false => Err(format!("{} is neither a directory nor a block device", from.display())),
    }
}

/// The annotation by which volumes told their mount options before they had a field; it counts before the field.
const OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";

/// How a volume wants to be mounted: in the order of the letters, each once.
pub fn mount_options(volume: &PersistentVolume) -> Vec<String> {
    let annotation = volume.metadata.as_ref().and_then(|m| m.annotations.get(OPTIONS));
    match annotation {
        Some(text) => joined(text.split(',')),
        None => joined(volume.spec.iter().flat_map(|spec| &spec.mount_options).map(String::as_str)),
    }
}

/// Options in the order of the letters, each once.
fn joined<'a>(options: impl Iterator<Item = &'a str>) -> Vec<String> {
    let all: BTreeSet<&str> = options.filter(|option| !option.is_empty()).collect();
    all.into_iter().map(str::to_owned).collect()
}

/// Mounts an export by the host's tool, unless it is mounted already.
///
/// # Errors
/// What the tool said, in the kubelet's frame.
pub async fn mount_nfs(source: &NfsVolumeSource, to: &Path, read_only: bool, options: &[String]) -> Result<(), String> {
    if mount_table::is_mount_point(to)? {
        return Ok(());
    }
    empty_dir::make_directory(to)?;
    let server = if source.server.contains(':') { format!("[{}]", source.server) } else { source.server.clone() };
    let all = joined(options.iter().map(String::as_str).chain(read_only.then_some("ro")));
    let mut arguments = vec!["-t".to_owned(), "nfs".to_owned()];
    if !all.is_empty() {
        arguments.extend(["-o".to_owned(), all.join(",")]);
    }
    arguments.extend([format!("{server}:{}", source.path), to.display().to_string()]);
    // A server that does not answer must not keep the agent from ending the command.
    let mut command = tokio::process::Command::new("mount");
    let output = command.args(&arguments).stdin(Stdio::null()).kill_on_drop(true).output().await;
    let failed = |how: String, said: &[u8]| {
        let said = String::from_utf8_lossy(said).into_owned();
        let line = arguments.join(" ");
        format!("mount failed: {how}\nMounting command: mount\nMounting arguments: {line}\nOutput: {said}\n")
    };
    match output {
        Ok(out) if out.status.success() => Ok(()),
        Ok(out) => {
            let how = out.status.code().map_or_else(|| out.status.to_string(), |code| format!("exit status {code}"));
            Err(failed(how, &[out.stdout, out.stderr].concat()))
        }
        Err(e) => Err(failed(e.to_string(), b"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that a pod had by a link alone could become another's under its name.
    #[tokio::test]
    async fn a_local_device_is_bound_for_its_pod() {
        let root = std::env::temp_dir().join(format!("local-device-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        let image = root.join("image");
        std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
        let made = std::process::Command::new("losetup").args(["--find", "--show"]).arg(&image).output();
        let Some(made) = made.ok().filter(|output| output.status.success()) else {
            eprintln!("skipped: no loop device can be had");
            std::fs::remove_dir_all(&root).unwrap();
            return;
        };
        let device = std::path::PathBuf::from(String::from_utf8_lossy(&made.stdout).trim());
        let own = mapped::place_of_local(&root, "pv", "u1");
        let link = root.join("pods/u1/volumeDevices/kubernetes.io~local-volume/pv");
        let given = [give_device(&device, &own, &link), give_device(&device, &own, &link)];
        let bound = (mount_table::is_mount_point(&own), std::fs::read_link(&link).ok());
        let released = mapped::release_local(&root, "u1").await;
        std::process::Command::new("losetup").arg("--detach").arg(&device).output().unwrap();
        assert_eq!(given, [Ok(true), Ok(false)]);
        assert_eq!((bound, released), ((Ok(true), Some(device)), Ok(())));
        assert!(!own.parent().unwrap().exists());
        assert!(give_device(&image, &own, &link).unwrap_err().contains("is not a block device"));
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn options_are_told_by_the_annotation_or_the_field() {
        let mut volume = PersistentVolume::default();
        assert!(mount_options(&volume).is_empty());
        volume.spec = Some(proto::api::core::v1::PersistentVolumeSpec {
            mount_options: ["vers=4", "", "hard", "vers=4"].map(String::from).into(),
            ..Default::default()
        });
        assert_eq!(mount_options(&volume), ["hard", "vers=4"]);
        for (text, options) in [("soft,nolock,", &["nolock", "soft"][..]), ("", &[])] {
            volume.metadata.get_or_insert_default().annotations.insert(OPTIONS.into(), text.into());
            assert_eq!(mount_options(&volume), options, "it counts where it says nothing as well");
        }
    }

    #[test]
    fn paths_that_leave_their_place_are_refused() {
        let to = std::env::temp_dir().join("never");
        assert!(look(Path::new("/a/../etc"), &to).unwrap_err().contains("must not contain '..'"));
        assert!(look(Path::new("/no/such/place"), &to).unwrap_err().contains("does not exist"));
    }
}
