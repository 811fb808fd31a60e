//! Disks of this node that are mounted once for all pods: iSCSI, and local block devices; and what else may hang on a
//! disk or a file server. No pod waits for the disks of another.
//!
//! A disk stays mounted until no pod has it, as the kernel tells; then it goes in the background, tried again until it is
//! gone. The end of a pod waits only for its own mounts, as with the kubelet.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto::api::core::v1::{HostPathVolumeSource, Pod};
use tokio::sync::Notify;

use super::disk::{self, How, Staged};
use super::iscsi::{Disk, Initiator};
use super::persistent::{self, Place};
use super::turns::{Turn, Turns, blocking};
use super::{OtherGroup, VolumeError, host_path, mount_table, ownership};
use crate::pod::spec::PodExt as _;

/// Between tries to let go of disks.
const AGAIN: Duration = Duration::from_secs(20);

pub struct NodeDisks {
    root_dir: PathBuf,
    iscsi: Arc<Initiator>,
    /// By folder of the mount for all pods.
    devices: Arc<Turns>,
    /// Who changes the folders of a pod, by its uid.
    pods: Turns,
    /// Who looks at a path that may not answer, by pod and volume: one at a time, for each holds a thread.
    looks: Turns,
    /// What pods have that is looked at no more, by pod and a word for it: paths of the host, and scratch space.
    had: Mutex<HashSet<(String, String)>>,
    news: Notify,
}

impl NodeDisks {
    pub fn new(root_dir: &Path) -> Self {
        Self {
            root_dir: root_dir.to_owned(),
            iscsi: Arc::new(Initiator::new(root_dir)),
            devices: Arc::default(),
            pods: Turns::default(),
            looks: Turns::default(),
            had: Mutex::default(),
            news: Notify::new(),
        }
    }

    /// Lets go of disks that no pod has, now and whenever there is news; runs until dropped.
    pub async fn keep_clear(&self) {
        loop {
            let (iscsi, local) = tokio::join!(self.iscsi.clear(), self.clear_local());
            if iscsi && local {
                self.news.notified().await;
            } else {
                // News or time: either way it is looked again.
                let _ = tokio::time::timeout(AGAIN, self.news.notified()).await;
            }
        }
    }

    /// Has [`Self::keep_clear`] look: a pod is over.
    pub fn look_again(&self) {
        self.news.notify_one();
    }

    /// The turn to change the folders of a pod.
    pub async fn pod(&self, uid: &str) -> Turn {
        self.pods.take(Path::new(uid)).await
    }

    /// Changes the folders of a pod. What has begun goes on when the caller stops waiting, and the pod's end waits for it.
    ///
    /// # Errors
    /// Those of the work.
    pub async fn in_pod<T: Send + 'static>(
        &self,
        uid: &str,
        work: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let turn = self.pod(uid).await;
        blocking(move || {
            let _turn = turn;
            work()
        })
        .await
    }

    /// Looks at a path that may not answer; nobody but the caller waits for it.
    ///
    /// # Errors
    /// Those of the work.
    pub async fn look<T: Send + 'static>(
        &self,
        (pod, volume): (&Pod, &str),
        work: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let turn = self.looks.take(&Path::new(pod.uid()).join(volume)).await;
        blocking(move || {
            let _turn = turn;
            work()
        })
        .await
    }

    fn had(&self) -> MutexGuard<'_, HashSet<(String, String)>> {
        self.had.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a pod had something when it was looked at last: that it is there still is not asked again, as with the
    /// kubelet.
    pub fn had_before(&self, key: &(String, String)) -> bool {
        self.had().contains(key)
    }

    /// From now on [`Self::had_before`].
    pub fn has_from_now_on(&self, key: (String, String)) {
        self.had().insert(key);
    }

    /// Checks a path of the host, or makes it; once, for what the pod has then may go, as with the kubelet, and a pod that
    /// runs is looked after all the same.
    ///
    /// # Errors
    /// The path is something else or cannot be made.
    pub async fn host_path(&self, pod: &Pod, volume: &str, source: &HostPathVolumeSource) -> Result<(), String> {
        let kind = source.r#type.clone().unwrap_or_default();
        // By what is looked at: a volume of the pod and one of a claim may have the same name.
        let key = (pod.uid().to_owned(), format!("{kind}:{}", source.path));
        if kind.is_empty() || self.had_before(&key) {
            return Ok(());
        }
        let path = PathBuf::from(&source.path);
        self.look((pod, volume), move || host_path::check(&path, &kind)).await?;
        self.has_from_now_on(key);
        Ok(())
    }

    /// A pod is over.
    pub fn forget(&self, uid: &str) {
        self.had().retain(|(pod, _)| pod != uid);
    }

    /// Gives an iSCSI disk to a pod.
    ///
    /// # Errors
    /// What a tool or the kernel said.
    pub async fn iscsi(&self, pod: &Pod, disk: Disk, to: &Path, read_only: bool) -> Result<(), String> {
        let staged = self.iscsi.stage(disk).await?;
        let (pod_too, to) = (pod.clone(), to.to_owned());
        self.in_pod(pod.uid(), move || {
            // Before the bind: what is bound counts as done.
            if !read_only {
                let given = ownership::give_to_pod(&staged.path, &pod_too);
                given.map_err(|e| format!("failed to set the group of a volume: {e}"))?;
            }
            disk::bind(&staged.path, &to, read_only)?;
            drop(staged);
            Ok(())
        })
        .await
    }

    /// Whether a pod has an iSCSI disk as device.
    pub async fn has_iscsi_device(&self, pod: &Pod, disk: &Disk, link: &Path) -> Result<bool, String> {
        let (iscsi, disk, uid, link) = (self.iscsi.clone(), disk.clone(), pod.uid().to_owned(), link.to_owned());
        blocking(move || Ok(iscsi.is_given(&disk, &uid, &link))).await
    }

    /// Gives an iSCSI disk to a pod as device, to which a link leads. Returns where the device is for all pods.
    ///
    /// # Errors
    /// What a tool or the kernel said.
    pub async fn iscsi_device(&self, pod: &Pod, disk: Disk, link: &Path) -> Result<PathBuf, String> {
        let place = self.iscsi.raw_place(&disk);
        let attached = self.iscsi.attach_for(disk, pod.uid()).await?;
        let link = link.to_owned();
        self.in_pod(pod.uid(), move || {
            persistent::link(&attached.device, &link)?;
            drop(attached);
            Ok(())
        })
        .await
        .map(|()| place)
    }

    /// Gives a local path, or the file system on a local device, to a pod. Its files are given to the pod's group
    /// unless another pod has it, whose they are then: it is told where that has another group.
    ///
    /// # Errors
    /// The path cannot be used, or a tool or the kernel refuses.
    pub async fn local(
        &self,
        pod: &Pod,
        name: &str,
        (from, how): (&Path, How),
        to: &Path,
        read_only: bool,
    ) -> Result<Option<OtherGroup>, VolumeError> {
        let set_up = |why| VolumeError::SetUp { volume: name.to_owned(), why };
        let looked_at = (from.to_owned(), to.to_owned());
        let place = self.look((pod, name), move || persistent::look(&looked_at.0, &looked_at.1)).await;
        let staged = match place.map_err(set_up)? {
            Place::Given => return Ok(None),
            Place::Folder => Staged { path: from.to_owned(), _turn: self.devices.take(from).await },
            Place::Device => {
                let staged = self.stage(name, from, how).await;
                staged.map_err(|why| VolumeError::Device { volume: name.to_owned(), why })?
            }
        };
        let (pod_too, to, pods) = (pod.clone(), to.to_owned(), self.root_dir.join("pods"));
        let given = self.in_pod(pod.uid(), move || {
            // Until the files are given away: the next pod that gets the volume finds them so.
            let staged = staged;
            let group = ownership::fs_group(&pod_too);
            let of_others = group.map_or(Ok(None), |_| group_of_others(&staged.path, &pods))?;
            disk::bind(&staged.path, &to, read_only)?;
            if read_only || of_others.is_some() {
                let both = group.zip(of_others).filter(|(wanted, found)| wanted != found);
                return Ok(both.map(|(wanted, found)| OtherGroup { wanted, found }));
            }
            // After the bind, which hides what else is mounted below; one that failed is not left as done.
            ownership::give_to_pod(&to, &pod_too).or_else(|e| {
                mount_table::unmount_strictly(&to)?;
                Err(format!("failed to set the group of a volume: {e}"))
            })?;
            Ok(None)
        });
        given.await.map_err(set_up)
    }

    /// Where local devices are mounted for all pods.
    fn mounts(&self) -> PathBuf {
        self.root_dir.join("plugins/kubernetes.io/local-volume/mounts")
    }

    /// Mounts a local device for all pods. The work goes on when the caller stops waiting.
    async fn stage(&self, name: &str, device: &Path, how: How) -> Result<Staged, String> {
        let path = self.mounts().join(name);
        let turn = self.devices.take(&path).await;
        let device = device.to_owned();
        let work = tokio::spawn(async move {
            disk::format_and_mount(&device, &path, &how).await?;
            Ok(Staged { path, _turn: turn })
        });
        work.await.map_err(|e| e.to_string())?
    }

    /// Unmounts local devices that no pod has any more; `false` when another try is worth it.
    async fn clear_local(&self) -> bool {
        let (mounts, pods, turns) = (self.mounts(), self.root_dir.join("pods"), self.devices.clone());
        let cleared = blocking(move || {
            let entries = match std::fs::read_dir(&mounts) {
                Ok(entries) => entries,
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(true),
                Err(e) => return Err(format!("cannot read {}: {e}", mounts.display())),
            };
            let mut all = true;
            for staged in entries.flatten().map(|entry| entry.path()) {
                let Some(_turn) = turns.try_take(&staged) else {
                    all = false;
                    continue;
                };
                if let Err(error) = let_go(&staged, &pods) {
                    tracing::warn!(error, device = %staged.display(), "a local device stays mounted");
                    all = false;
                }
            }
            Ok(all)
        });
        // One that hangs keeps its own turn, and nobody from looking at the others again.
        let cleared = tokio::time::timeout(AGAIN, cleared).await;
        cleared.unwrap_or_else(|_| Err("a device does not answer".into())).unwrap_or_else(|error| {
            tracing::warn!(error, "cannot look after local devices that no pod has");
            false
        })
    }
}

/// The group of a local volume that a pod of this node has; `None` where none has it.
///
/// # Errors
/// Nobody can tell, or the volume cannot be looked at.
fn group_of_others(from: &Path, pods: &Path) -> Result<Option<u32>, String> {
    let failed = |e: std::io::Error| format!("failed to check fsGroup for {} ({e})", from.display());
    let real = std::fs::canonicalize(from).map_err(failed)?;
    if !mount_table::is_bound_below(Path::new(mount_table::TABLE), &real, pods)? {
        return Ok(None);
    }
    std::fs::metadata(&real).map(|found| Some(found.gid())).map_err(failed)
}

fn let_go(staged: &Path, pods: &Path) -> Result<(), String> {
    if mount_table::is_also_below(Path::new(mount_table::TABLE), staged, pods)? {
        return Ok(());
    }
    mount_table::unmount_strictly(staged)?;
    std::fs::remove_dir(staged).map_err(|e| format!("cannot remove {}: {e}", staged.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;
    use std::process::Command;

    use proto::api::core::v1::{PodSecurityContext, PodSpec};
    use proto::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    fn pod() -> Pod {
        let context = PodSecurityContext { fs_group: Some(1234), ..Default::default() };
        Pod {
            metadata: Some(ObjectMeta { name: "p".into(), uid: "u1".into(), ..Default::default() }),
            spec: Some(PodSpec { security_context: Some(context), ..Default::default() }),
            ..Default::default()
        }
    }

    /// The pod that came second took the files from the first, which could not write them any more.
    #[tokio::test]
    async fn a_local_volume_stays_with_the_group_of_the_pod_that_had_it_first() {
        let root = std::env::temp_dir().join(format!("node-disks-shared-{}", std::process::id()));
        let _ = mount_table::unmount_below(&root);
        let from = root.join("disk");
        std::fs::create_dir_all(&from).unwrap();
        std::fs::write(from.join("file"), "").unwrap();
        let place = |uid: &str| root.join("pods").join(uid).join("volumes/kubernetes.io~local-volume/v");
        if disk::bind(&from, &place("try"), false).is_err() {
            eprintln!("skipped: no right to mount");
            std::fs::remove_dir_all(&root).unwrap();
            return;
        }
        mount_table::unmount_strictly(&place("try")).unwrap();
        let disks = NodeDisks::new(&root);
        let give = async |uid: &str, group: i64, read_only| {
            let mut pod = pod();
            pod.metadata.as_mut().unwrap().uid = uid.into();
            pod.spec.as_mut().unwrap().security_context.as_mut().unwrap().fs_group = Some(group);
            let told = disks.local(&pod, "v", (&from, How::default()), &place(uid), read_only).await.unwrap();
            (told, std::fs::metadata(from.join("file")).unwrap().gid())
        };
        let first = [give("u1", 3001, false).await, give("u1", 3001, false).await];
        let same = give("u2", 3001, false).await;
        let other = [give("u3", 3002, false).await, give("u4", 3002, true).await, give("u3", 3002, false).await];
        for uid in ["u1", "u2", "u3", "u4"] {
            mount_table::unmount_strictly(&place(uid)).unwrap();
        }
        let next = give("u5", 3002, false).await;
        mount_table::unmount_strictly(&place("u5")).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        let kept = Some(OtherGroup { wanted: 3002, found: 3001 });
        assert_eq!((first, same), ([(None, 3001), (None, 3001)], (None, 3001)));
        assert_eq!(other, [(kept, 3001), (kept, 3001), (None, 3001)], "it is told when a pod gets it");
        assert_eq!(next, (None, 3002), "nobody had it any more");
    }

    #[tokio::test]
    async fn a_local_device_gets_its_group_once_and_goes_when_nothing_has_it() {
        let root = std::env::temp_dir().join(format!("node-disks-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        let image = root.join("image");
        std::fs::File::create(&image).unwrap().set_len(32 << 20).unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&image).output();
        let Some(made) = made.ok().filter(|output| output.status.success()) else {
            eprintln!("skipped: no loop device can be had");
            std::fs::remove_dir_all(&root).unwrap();
            return;
        };
        let device = PathBuf::from(String::from_utf8_lossy(&made.stdout).trim());
        let disks = NodeDisks::new(&root);
        let to = root.join("pods/u1/volumes/kubernetes.io~local-volume/v");
        let pod = pod();
        let give = || disks.local(&pod, "v", (&device, How::default()), &to, false);
        give().await.unwrap();
        let file = to.join("file");
        std::fs::write(&file, "text").unwrap();
        assert_eq!(std::fs::metadata(&to).unwrap().gid(), 1234);
        // A pod that has it is left alone.
        chown(&file, None, Some(0)).unwrap();
        give().await.unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().gid(), 0);
        assert!(disks.clear_local().await && file.exists());
        let staged = disks.mounts().join("v");
        let open = std::fs::File::open(staged.join("file")).unwrap();
        mount_table::unmount_strictly(&to).unwrap();
        assert!(!disks.clear_local().await, "it is in use");
        assert_eq!(mount_table::is_mount_point(&staged), Ok(true));
        drop(open);
        assert!(disks.clear_local().await && !staged.exists());
        Command::new("losetup").arg("--detach").arg(&device).output().unwrap();
        std::fs::remove_dir_all(&root).unwrap();
    }
}
