//! What the volumes of a pod hold, by the folders in which they lie. Those of drivers are not here: they tell themselves.
//!
//! The folder of a claim has the name of the persistent volume; what the pod calls it is known of whoever mounted it.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::disk_usage::{GivenUp, Walks};
use super::file_systems::Look;
use super::summary::{ClaimRef, VolumeStats, local};
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

/// The places in the folder `volumes` of a pod of which the file system there tells, and those that containers fill,
/// on which they may have mounted one of their own. None of them is looked at.
pub(super) fn that_may_hang(folder: &Path) -> Vec<PathBuf> {
    let plugins = entries(folder).filter(|plugin| {
        let kind = plugin.file_name();
        kind.is_some_and(|kind| kind == EMPTY_DIR || kind != OF_DRIVERS && !is_one_of(&FILLED_HERE, kind))
    });
    plugins.flat_map(|plugin| entries(&plugin).collect::<Vec<_>>()).collect()
}

/// Whether a place is one that containers fill.
pub(super) fn is_empty_dir(place: &Path) -> bool {
    place.parent().and_then(Path::file_name).is_some_and(|kind| kind == EMPTY_DIR)
}

fn is_one_of(kinds: &[&str], kind: &OsStr) -> bool {
    kinds.iter().any(|name| kind == *name)
}

/// The number of the file system at a place. Blocks where that hangs.
pub(super) fn device(path: &Path) -> Option<u64> {
    path.symlink_metadata().ok().map(|found| found.dev())
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    folder.read_dir().into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Looks at the folder `volumes` of a pod, of which those in `named` have other names; `now` is the time to tell. What
/// may hang is known from `looks`.
pub(super) fn of_pod(
    folder: &Path,
    mut named: Named,
    looks: &HashMap<PathBuf, Look>,
    now: &str,
    (walks, given_up): (&Arc<Walks>, &GivenUp),
) -> Told {
    let mut told = Told::default();
    let disk_of_pod = device(folder);
    for plugin in entries(folder) {
        let Some(kind) = plugin.file_name().filter(|kind| *kind != OF_DRIVERS) else { continue };
        for path in entries(&plugin) {
            let look = looks.get(&path);
            let observe = |took: Option<Duration>| {
                took.iter().for_each(|took| metrics::VOLUME_LOOKS.observe(&["du"], took.as_secs_f64()));
            };
            let (fs, device) = if kind == EMPTY_DIR {
                let (held, took) = walks.look_awhile(&path, given_up);
                observe(took);
                (held.zip(look).map(|(used, look)| look.fs.clone().holding(used)), look.and_then(|look| look.device))
            } else if is_one_of(&FILLED_HERE, kind) {
                let (held, took) = walks.look(&path, given_up);
                observe(took);
                (held.and_then(|used| local(used, &path, now)), device(&path))
            } else {
                (look.map(|look| look.fs.clone()), None)
            };
            let own_name = || (path.file_name().unwrap_or_default().to_string_lossy().into_owned(), None);
            let (name, claim) = named.remove(&path).unwrap_or_else(own_name);
            let claim = claim.map(|(namespace, name)| ClaimRef { name, namespace });
            // Memory and huge pages are file systems of their own, and no storage of the node.
            let is_ephemeral = is_one_of(&EPHEMERAL, kind) && device == disk_of_pod;
            let into = if is_ephemeral { &mut told.ephemeral } else { &mut told.others };
            into.extend(fs.map(|fs| VolumeStats { fs, name, claim, health: None }));
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::super::summary::disk;
    use super::*;

    fn told_of(folder: &Path, named: Named) -> Told {
        let asker = crate::stats::Asker::default();
        let looks = that_may_hang(folder).into_iter().filter_map(|path| Some((path.clone(), Look::at(&path)?)));
        of_pod(folder, named, &looks.collect(), "now", (&Arc::default(), &asker.given_up()))
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
        let all = told_of(&folder, named).all();
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
        let told = told_of(&folder, Named::new());
        let used: Vec<u64> = told.ephemeral.iter().map(|v| v.fs.used_bytes).collect();
        assert!(used.len() == 2 && used.iter().all(|used| (100_000..200_000).contains(used)), "{used:?}");
        assert_eq!(told.others.len(), 4);
        let names: Vec<String> = told.all().into_iter().map(|v| v.name).collect();
        let expected = ["configmap", "empty-dir", "iscsi", "local-volume", "nfs", "secret"];
        assert_eq!(names, expected.map(|name| format!("of-kubernetes.io~{name}")));
        // The whole file system's, not one by one what lies in it.
        let of_disk = disk(&folder, "now", None).unwrap();
        let others = told_of(&folder, Named::new()).others;
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
        let told = told_of(&folder, Named::new());
        nix::mount::umount2(&volume, nix::mount::MntFlags::MNT_DETACH).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
        assert!(told.ephemeral.is_empty());
        assert!(told.others.len() == 1 && (100_000..200_000).contains(&told.others[0].fs.used_bytes), "{told:?}");
    }

    /// They were looked at in the thread that answers for all pods, also where a container had mounted something of
    /// its own that hung.
    #[test]
    fn what_may_hang_is_told_by_others_looks_alone() {
        let folder = std::env::temp_dir().join(format!("node-agent-looks-{}", crate::backoff::random_below(u32::MAX)));
        for place in ["empty-dir/e", "configmap/c", "nfs/n", "csi/d"] {
            std::fs::create_dir_all(folder.join(format!("kubernetes.io~{place}"))).unwrap();
        }
        let mut asked = that_may_hang(&folder);
        asked.sort();
        assert_eq!(asked, ["empty-dir/e", "nfs/n"].map(|place| folder.join(format!("kubernetes.io~{place}"))));
        assert_eq!(asked.iter().map(|place| is_empty_dir(place)).collect::<Vec<_>>(), [true, false]);
        let asker = crate::stats::Asker::default();
        let walks = (&Arc::default(), &asker.given_up());
        let all = of_pod(&folder, Named::new(), &HashMap::new(), "now", walks).all();
        std::fs::remove_dir_all(folder).unwrap();
        assert_eq!(all.into_iter().map(|volume| volume.name).collect::<Vec<_>>(), ["c"]);
    }
}
