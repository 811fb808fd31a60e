//! Where volumes of drivers lie below the root directory, and what is written next to them.

use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::images::credentials::sha256;

use super::wanted::Wanted;

const FILE: &str = "vol_data.json";
const PLUGIN: &str = "kubernetes.io~csi";
/// Of a volume of which the driver has not yet said that the pod has it.
const UNCERTAIN: &str = "uncertain";

/// `vol_data.json`, with the kubelet's keys. That of a staged volume has handle and driver alone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeData {
    #[serde(skip_serializing_if = "String::is_empty", rename = "attachmentID")]
    pub attachment_id: String,
    pub driver_name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub se_linux_mount_context: String,
    #[serde(skip_serializing_if = "String::is_empty", rename = "specVolID")]
    pub spec_vol_id: String,
    pub volume_handle: String,
    /// `Persistent` or `Ephemeral`; empty for a staged volume.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub volume_lifecycle_mode: String,
    /// Empty for a volume that the pod has. No key of the kubelet's, which takes any whose value is text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mount_state: String,
}

impl VolumeData {
    /// The same, of a volume of which it is not known whether the pod has it.
    pub fn uncertain(&self) -> Self {
        Self { mount_state: UNCERTAIN.into(), ..self.clone() }
    }

    pub fn is_uncertain(&self) -> bool {
        self.mount_state == UNCERTAIN
    }

    /// Of a volume that a pod on `node` gets; how long it lives is not in it.
    pub fn of(wanted: &Wanted<'_>, node: &str) -> Self {
        Self {
            attachment_id: attachment_name(&wanted.handle, &wanted.driver, node),
            driver_name: wanted.driver.clone(),
            node_name: node.to_owned(),
            spec_vol_id: wanted.name.clone(),
            volume_handle: wanted.handle.clone(),
            ..Self::default()
        }
    }
}

/// The name of the VolumeAttachment of a volume to a node.
pub fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", sha256(format!("{handle}{driver}{node}").as_bytes()))
}

/// The handle of a volume that lives and dies with its pod.
pub fn inline_handle(pod_uid: &str, volume: &str) -> String {
    format!("csi-{}", sha256(format!("{pod_uid}{volume}").as_bytes()))
}

/// A volume as node statuses name it.
pub fn unique_name(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

/// Folders below the root directory.
#[derive(Debug, Clone)]
pub struct Places {
    pub root: PathBuf,
}

impl Places {
    fn driver_root(&self) -> PathBuf {
        self.root.join("plugins/kubernetes.io/csi")
    }

    fn pod(&self, uid: &str) -> PathBuf {
        self.root.join("pods").join(uid)
    }

    /// Volumes of a pod that drivers publish as file systems.
    pub fn of_pod(&self, uid: &str) -> PathBuf {
        self.pod(uid).join("volumes").join(PLUGIN)
    }

    /// Links to the devices of a pod.
    pub fn devices_of_pod(&self, uid: &str) -> PathBuf {
        self.pod(uid).join("volumeDevices").join(PLUGIN)
    }

    /// Folder of a staged volume: the staging path is `globalmount` in it.
    pub fn staged(&self, driver: &str, handle: &str) -> PathBuf {
        self.driver_root().join(driver).join(sha256(handle.as_bytes()))
    }

    fn blocks(&self) -> PathBuf {
        self.driver_root().join("volumeDevices")
    }

    pub fn block_data(&self, name: &str) -> PathBuf {
        self.blocks().join(name).join("data")
    }

    pub fn block(&self, name: &str) -> PathBuf {
        self.blocks().join(name)
    }

    /// A kubelet binds the device there once more, for each pod, and holds it by a loop device.
    pub fn block_maps(&self, name: &str) -> PathBuf {
        self.blocks().join(name).join("dev")
    }

    /// A file is in it for each pod of which it is not known whether it has the device.
    pub fn block_uncertain(&self, name: &str) -> PathBuf {
        self.blocks().join(name).join(UNCERTAIN)
    }

    pub fn block_staging(&self, name: &str) -> PathBuf {
        self.blocks().join("staging").join(name)
    }

    /// A file per pod is in it.
    pub fn block_publish(&self, name: &str) -> PathBuf {
        self.blocks().join("publish").join(name)
    }

    /// Every volume that is staged, with its folder.
    pub fn all_staged(&self) -> Vec<(PathBuf, VolumeData)> {
        let drivers = entries(&self.driver_root()).into_iter().filter(|d| !d.ends_with("volumeDevices"));
        drivers.flat_map(|d| entries(&d)).filter_map(|dir| read(&dir).map(|data| (dir, data))).collect()
    }

    /// Every volume that pods of this node have, or had, as device, by name.
    pub fn all_blocks(&self) -> Vec<(String, VolumeData)> {
        let names = entries(&self.blocks()).into_iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()));
        names.filter_map(|name| read(&self.block_data(&name)).map(|data| (name, data))).collect()
    }

    /// Whether a pod has the volume, or was about to get it.
    pub fn has_user(&self, driver: &str, handle: &str) -> bool {
        let pods = entries(&self.root.join("pods"));
        let volumes = pods.into_iter().flat_map(|pod| entries(&pod.join("volumes").join(PLUGIN)));
        volumes.filter_map(|v| read(&v)).any(|d| d.driver_name == driver && d.volume_handle == handle)
    }
}

/// What is in a folder, sorted; nothing when it is not there.
pub fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = folder.read_dir().into_iter().flatten().flatten().map(|e| e.path()).collect();
    found.sort();
    found
}

/// What stands in a folder's `vol_data.json`; `None` for nothing of use.
pub fn read(folder: &Path) -> Option<VolumeData> {
    let text = std::fs::read(folder.join(FILE)).ok()?;
    let data: VolumeData = serde_json::from_slice(&text).ok()?;
    (!data.driver_name.is_empty() && !data.volume_handle.is_empty()).then_some(data)
}

/// Writes it; the folder is made, private to the node.
///
/// # Errors
/// The disk's word.
pub fn write(folder: &Path, data: &VolumeData) -> Result<(), String> {
    let path = folder.join(FILE);
    let written = || -> std::io::Result<()> {
        make_private(folder)?;
        let temporary = folder.join(format!(".{FILE}"));
        let mut file = std::fs::File::create(&temporary)?;
        file.write_all(&serde_json::to_vec(data)?)?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        std::fs::rename(&temporary, &path)
    };
    written().map_err(|e| format!("failed to save volume info data in {}: {e}", path.display()))
}

/// Removes `vol_data.json` and its folder, which has to be empty then.
///
/// # Errors
/// The folder cannot be removed.
pub fn remove(folder: &Path) -> Result<(), String> {
    gone(std::fs::remove_file(folder.join(FILE)), folder)?;
    gone(std::fs::remove_dir(folder), folder)
}

/// What is not there needs no removing.
///
/// # Errors
/// Any other reason why a path cannot be removed.
pub fn gone(result: std::io::Result<()>, path: &Path) -> Result<(), String> {
    match result {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(format!("cannot remove {}: {e}", path.display())),
        _ => Ok(()),
    }
}

/// Makes a folder, and those above it, for the node alone.
///
/// # Errors
/// The disk's word.
pub fn make_private(folder: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o750).create(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_kubelets() {
        // SHA-256 of "abc", however it is put together.
        let of_abc = "csi-ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(attachment_name("a", "b", "c"), of_abc);
        assert_eq!(inline_handle("ab", "c"), of_abc);
        let places = Places { root: "/r".into() };
        let staged = "/r/plugins/kubernetes.io/csi/d/ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(places.staged("d", "abc"), Path::new(staged));
    }

    #[test]
    fn data_is_found_again_by_driver_and_handle() {
        let root = std::env::temp_dir().join(format!("csi-data-{}", std::process::id()));
        let places = Places { root: root.clone() };
        let data = VolumeData {
            driver_name: "d".into(),
            volume_handle: "h".into(),
            spec_vol_id: "pv".into(),
            attachment_id: "csi-1".into(),
            ..VolumeData::default()
        };
        let folder = places.of_pod("u").join("pv");
        write(&folder, &data).unwrap();
        let text = std::fs::read_to_string(folder.join(FILE)).unwrap();
        let want = r#"{"attachmentID":"csi-1","driverName":"d","specVolID":"pv","volumeHandle":"h"}"#;
        assert_eq!(text, format!("{want}\n"));
        assert_eq!(read(&folder), Some(data.clone()));
        write(&folder, &data.uncertain()).unwrap();
        let text = std::fs::read(folder.join(FILE)).unwrap();
        // So does a kubelet read it.
        let texts: std::collections::BTreeMap<String, String> = serde_json::from_slice(&text).unwrap();
        assert_eq!(texts.get("mountState").map(String::as_str), Some("uncertain"));
        assert!(read(&folder).is_some_and(|data| data.is_uncertain()) && !data.is_uncertain());
        assert!(places.has_user("d", "h") && !places.has_user("d", "other"));
        remove(&folder).unwrap();
        assert!(!places.has_user("d", "h") && !folder.exists());
        remove(&folder).unwrap();
        std::fs::remove_dir_all(root).unwrap();
    }
}
