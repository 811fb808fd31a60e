//! What the volumes of a pod hold, by the folders in which they lie. Those of drivers are not here: they tell themselves.
//!
//! The folder of a claim has the name of the persistent volume; what the pod calls it is known of whoever mounted it.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::disk_usage::{GivenUp, Walks};
use super::summary::{ClaimRef, VolumeStats, disk, local};
use crate::metrics;

/// What is filled here and goes with the pod, by the folders of the plugins. Its files are counted; all else lies on disks
/// and shares that are no part of the node's storage, and of which the file system tells.
const FILLED_HERE: [&str; 5] =
    [EMPTY_DIR, CONFIG_MAP, "kubernetes.io~secret", "kubernetes.io~projected", "kubernetes.io~downward-api"];
/// Of those, the ones that pods are charged for (upstream's `IsLocalEphemeralVolume`), unless they lie in memory.
const EPHEMERAL: [&str; 2] = [EMPTY_DIR, CONFIG_MAP];
const EMPTY_DIR: &str = "kubernetes.io~empty-dir";
const CONFIG_MAP: &str = "kubernetes.io~configmap";
const OF_DRIVERS: &str = "kubernetes.io~csi";

#[derive(Debug, Default)]
pub(super) struct Told {
    /// The pod's ephemeral storage.
    pub ephemeral: Vec<VolumeStats>,
    pub others: Vec<VolumeStats>,
}

impl Told {
    /// By their names.
    pub fn all(self) -> Vec<VolumeStats> {
        let mut all = self.ephemeral;
        all.extend(self.others);
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}

/// What a pod calls a volume, and namespace and name of its claim, by place.
pub(super) type Named = BTreeMap<PathBuf, (String, Option<(String, String)>)>;

/// Looks at the folder `volumes` of a pod, of which those in `named` have other names; `now` is the time to tell.
pub(super) fn of_pod(folder: &Path, mut named: Named, now: &str, walks: &Walks, given_up: &GivenUp) -> Told {
    let mut told = Told::default();
    let device = |path: &Path| path.symlink_metadata().ok().map(|m| m.dev());
    let disk_of_pod = device(folder);
    for plugin in folder.read_dir().into_iter().flatten().flatten() {
        let kind = plugin.file_name();
        if kind == OF_DRIVERS {
            continue;
        }
        let is_filled_here = FILLED_HERE.iter().any(|name| kind == *name);
        let may_be_ephemeral = EPHEMERAL.iter().any(|name| kind == *name);
        for volume in plugin.path().read_dir().into_iter().flatten().flatten() {
            let path = volume.path();
            let fs = match is_filled_here {
                true => {
                    let (held, took) = walks.look(&path, given_up);
                    took.iter().for_each(|took| metrics::VOLUME_LOOKS.observe(&["du"], took.as_secs_f64()));
                    held.and_then(|used| local(used, &path, now))
                }
                false => {
                    let _timer = metrics::VOLUME_LOOKS.time(&["statfs"]);
                    disk(&path, now, None)
                }
            };
            let own_name = || (volume.file_name().to_string_lossy().into_owned(), None);
            let (name, claim) = named.remove(&path).unwrap_or_else(own_name);
            let claim = claim.map(|(namespace, name)| ClaimRef { name, namespace });
            // Memory and huge pages are file systems of their own, and no storage of the node.
            let is_ephemeral = may_be_ephemeral && device(&path) == disk_of_pod;
            let into = if is_ephemeral { &mut told.ephemeral } else { &mut told.others };
            into.extend(fs.map(|fs| VolumeStats { fs, name, claim, health: None }));
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told_of(folder: &Path) -> Told {
        let asker = crate::stats::Asker::default();
        of_pod(folder, Named::new(), "now", &Walks::default(), &asker.given_up())
    }

    /// It had the name of the persistent volume, and no claim.
    #[test]
    fn a_claim_is_called_what_its_pod_calls_it() {
        let folder = std::env::temp_dir().join(format!("node-agent-claims-{}", crate::backoff::random_below(u32::MAX)));
        let place = folder.join("kubernetes.io~nfs/pv-1");
        for path in [&place, &folder.join("kubernetes.io~nfs/inline")] {
            std::fs::create_dir_all(path).unwrap();
        }
        let named = [(place, ("data".to_owned(), Some(("ns".to_owned(), "claim".to_owned()))))].into();
        let asker = crate::stats::Asker::default();
        let all = of_pod(&folder, named, "now", &Walks::default(), &asker.given_up()).all();
        std::fs::remove_dir_all(folder).unwrap();
        let told: Vec<String> = all.iter().map(|volume| serde_json::to_value(volume).unwrap().to_string()).collect();
        assert!(all.len() == 2 && told[0].contains(r#""pvcRef":{"name":"claim","namespace":"ns"}"#), "{told:?}");
        assert!(told[0].contains(r#""name":"data""#) && told[1].contains(r#""name":"inline""#), "{told:?}");
        assert!(!told[1].contains("pvcRef"));
    }

    #[test]
    fn disks_and_shares_are_told_and_are_no_ephemeral_storage() {
        let folder =
            std::env::temp_dir().join(format!("node-agent-volumes-{}", crate::backoff::random_below(u32::MAX)));
        let plugins = ["empty-dir", "configmap", "secret", "nfs", "iscsi", "local-volume", "csi"]
            .map(|name| format!("kubernetes.io~{name}"));
        for plugin in &plugins {
            let volume = folder.join(plugin).join(format!("of-{plugin}"));
            std::fs::create_dir_all(&volume).unwrap();
            std::fs::write(volume.join("f"), vec![1; 100_000]).unwrap();
        }
        let told = told_of(&folder);
        let used: Vec<u64> = told.ephemeral.iter().map(|v| v.fs.used_bytes).collect();
        assert!(used.len() == 2 && used.iter().all(|used| (100_000..200_000).contains(used)), "{used:?}");
        assert_eq!(told.others.len(), 4);
        let names: Vec<String> = told.all().into_iter().map(|v| v.name).collect();
        let expected = ["configmap", "empty-dir", "iscsi", "local-volume", "nfs", "secret"];
        assert_eq!(names, expected.map(|name| format!("of-kubernetes.io~{name}")));
        // The whole file system's, not one by one what lies in it.
        let of_disk = disk(&folder, "now", None).unwrap();
        let others = told_of(&folder).others;
        let nfs = others.iter().find(|v| v.name == "of-kubernetes.io~nfs").unwrap();
        assert_eq!(nfs.fs.capacity_bytes, of_disk.capacity_bytes);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn memory_is_told_and_is_no_ephemeral_storage() {
        let folder = std::env::temp_dir().join(format!("node-agent-tmpfs-{}", crate::backoff::random_below(u32::MAX)));
        let volume = folder.join(EMPTY_DIR).join("m");
        std::fs::create_dir_all(&volume).unwrap();
        let size = Some("size=1m");
        if nix::mount::mount(Some("tmpfs"), &volume, Some("tmpfs"), nix::mount::MsFlags::empty(), size).is_err() {
            // Only root may mount.
            return std::fs::remove_dir_all(folder).unwrap();
        }
        std::fs::write(volume.join("f"), vec![1; 100_000]).unwrap();
        let told = told_of(&folder);
        nix::mount::umount2(&volume, nix::mount::MntFlags::MNT_DETACH).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
        assert!(told.ephemeral.is_empty());
        assert!(told.others.len() == 1 && (100_000..200_000).contains(&told.others[0].fs.used_bytes), "{told:?}");
    }
}
