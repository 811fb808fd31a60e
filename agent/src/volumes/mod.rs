//! Volumes of a pod on the node: made, kept fresh and taken away.
//!
//! [`Manager::setup`] runs on every sync: what exists stays, and the files of config maps, secrets, downward API and
//! tokens are exchanged in one step when their content changed. [`Manager::teardown`] unmounts and removes. Everything
//! lies where the kubelet has it (`pods/UID/volumes/PLUGIN/NAME`), so that either can take over from the other.
//!
//! Followed: kubelet `volumemanager` and the plugins `emptydir`, `hostpath`, `configmap`, `secret`, `downwardapi`,
//! `projected`, `image`, `local`, `nfs`, `iscsi`; those of drivers are in [`crate::csi`].

mod atomic;
mod block;
pub mod claims;
mod container_mounts;
mod counted;
mod devices;
mod disk;
mod empty_dir;
mod error;
pub mod groups;
mod host_path;
mod iscsi;
pub(crate) mod mapped;
pub(crate) mod mount_table;
mod node_disks;
pub(crate) mod ownership;
mod payload;
mod persistent;
pub mod selinux;
mod sub_path;
mod translated;
mod trust;
mod turns;
mod used;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use proto::api::core::v1::{IscsiPersistentVolumeSource, Node, PersistentVolumeSource, Pod, Volume, VolumeSource};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::csi::Wanted;
use crate::csi::volumes::{CsiDeps, Failure, Volumes};
use crate::objects::{Objects, Tokens};
use crate::pod::spec::PodExt;

use claims::Claims;
use counted::Counted;
use iscsi::Disk;
use node_disks::NodeDisks;
use payload::{Payload, Sources};

pub use container_mounts::{MountContext, container_mounts, recursive_read_only};
pub use devices::container_devices;
pub use empty_dir::memory_may_be_swapped;
pub use error::{Growth, OtherGroup, Told, VolumeError};
pub use mount_table::unmount_below;
pub use sub_path::open_inside;

/// A claim is asked for again at the first sync after this: it may have grown.
const CLAIM_AGE: Duration = Duration::from_secs(60);

/// Where a volume lies on the host.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MountSource {
    pub host_path: PathBuf,
    /// No container may write, whatever its mount says.
    pub read_only: bool,
    /// An image that the runtime mounts; there is no host path then.
    pub image: Option<String>,
    /// The host path is a link to a device, for `volumeDevices`, and no file system.
    pub block: bool,
    /// Where the device is for all pods, when the pod got it just now.
    pub mapped: Option<PathBuf>,
    /// What came of making it larger, where that was tried just now.
    pub growth: Option<Box<Growth>>,
    /// Of which other group the files are, when the pod got it just now.
    pub shared: Option<OtherGroup>,
    /// The files are the pod's own: where SELinux is on, they get its label.
    pub relabel: bool,
    /// The name of the persistent volume behind it.
    pub inner_name: Option<String>,
    /// The group that its persistent volume asks for.
    pub group: Option<i64>,
}

/// By volume name.
pub type PodVolumes = BTreeMap<String, MountSource>;

/// What volumes need from the rest of the agent.
pub struct VolumeDeps {
    pub root_dir: PathBuf,
    pub objects: Arc<dyn Objects>,
    pub tokens: Arc<dyn Tokens>,
    pub claims: Arc<dyn Claims>,
    /// For limits that a pod leaves to the node.
    pub node: watch::Receiver<Arc<Node>>,
    pub csi: CsiDeps,
}

/// A claim as it was last seen, and when it was last asked for.
type KnownClaim = (Instant, Arc<claims::Bound>);

/// Makes and removes the volumes of pods below the root directory.
pub struct Manager {
    root_dir: PathBuf,
    objects: Arc<dyn Objects>,
    tokens: Arc<dyn Tokens>,
    claims: Arc<dyn Claims>,
    node: watch::Receiver<Arc<Node>>,
    csi: Volumes,
    disks: NodeDisks,
    /// Claims of volumes that pods have, by pod and volume: a pod that runs does not need the API server for them.
    bound: Mutex<HashMap<(String, String), KnownClaim>>,
    counted: Counted,
}

impl Manager {
    pub fn new(deps: VolumeDeps) -> Self {
        let VolumeDeps { root_dir, objects, tokens, claims, node, csi } = deps;
        let csi = Volumes::new(csi, claims.clone(), objects.clone(), tokens.clone());
        let disks = NodeDisks::new(&root_dir);
        Manager {
            root_dir,
            objects,
            tokens,
            claims,
            node,
            csi,
            disks,
            bound: Mutex::default(),
            counted: Counted::default(),
        }
    }

    /// Clears up what an earlier agent left half done, as drivers arrive, and disks that no pod has any more; runs until
    /// dropped.
    pub async fn sweep(&self) {
        tokio::join!(self.disks.keep_clear(), self.csi.sweep());
    }

    fn bound(&self) -> MutexGuard<'_, HashMap<(String, String), KnownClaim>> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The claim behind a volume. Of a volume that the pod has, the last that was seen counts until it is old, and
    /// longer when the API server has no better word.
    async fn claimed(&self, pod: &Pod, volume: &Volume) -> Result<Option<KnownClaim>, String> {
        let key = (pod.uid().to_owned(), volume.name.clone());
        let known = self.bound().get(&key).cloned();
        if let Some((at, bound)) = &known
            && at.elapsed() < CLAIM_AGE
        {
            return Ok(Some((*at, bound.clone())));
        }
        match (claims::resolve(&*self.claims, pod, volume).await, known) {
            (Ok(found), _) => Ok(found.map(|bound| (Instant::now(), Arc::new(bound)))),
            (Err(_), Some((_, bound))) => Ok(Some((Instant::now(), bound))),
            (Err(why), None) => Err(why),
        }
    }

    /// Makes what is missing and refreshes what changed, of the volumes that containers use. Called again on every sync.
    /// What the pod has and cannot be refreshed stays as it is, and why is put into `told`: a pod that runs does not stop
    /// being looked after because somebody deletes its config map. No volume waits for another: a driver that does not come
    /// keeps no disk of the node from the pod. Only what is one claim's is one after the other.
    ///
    /// # Errors
    /// What is to be told of those that cannot be had; the others are made all the same. What has begun goes on when this is
    /// dropped.
    pub async fn setup(&self, pod: &Pod, told: &mut Told) -> Result<PodVolumes, Vec<VolumeError>> {
        let (mut made, mut failed) = (PodVolumes::new(), Vec::new());
        let used = used::used(pod);
        let used = pod.spec().volumes.iter().filter(|volume| used.contains(volume.name.as_str()));
        let claim = |volume| claims::name(pod, volume);
        let turns: HashMap<String, tokio::sync::Mutex<()>> =
            used.clone().filter_map(claim).map(|claim| (claim, tokio::sync::Mutex::default())).collect();
        let tries = used.clone().map(async |volume| {
            let turn = claim(volume).and_then(|claim| turns.get(&claim));
            let _turn = match turn {
                Some(turn) => Some(turn.lock().await),
                None => None,
            };
            let begun = Instant::now();
            let one = self.one(pod, volume).await;
            self.counted.made(pod.uid(), &volume.name, self.plugin(pod, volume), one.is_ok(), begun.elapsed());
            one
        });
        let tried = join_all(tries).await;
        for (volume, one) in used.zip(tried) {
            let source = match one {
                Ok(mut source) => {
                    told.mapped(&volume.name, &mut source);
                    told.grown.extend(source.growth.take());
                    told.stale.extend(source.shared.take().map(|group| {
                        let volume = source.inner_name.clone().unwrap_or_else(|| volume.name.clone());
                        VolumeError::Shared { volume, group }
                    }));
                    source
                }
                Err(error) => match self.made_before(pod, volume) {
                    Some(source) => {
                        told.stale.push(error);
                        source
                    }
                    None => {
                        failed.push((volume.name.as_str(), error));
                        continue;
                    }
                },
            };
            made.insert(volume.name.clone(), source);
        }
        match failed.is_empty() {
            true => Ok(made),
            false => {
                told.limit = error::limit_exceeded(&failed);
                Err(error::all_told(failed))
            }
        }
    }

    /// A volume of files that are exchanged together, where the pod has it already.
    fn made_before(&self, pod: &Pod, volume: &Volume) -> Option<MountSource> {
        let source = volume.volume_source.as_ref()?;
        let refreshed = source.config_map.is_some()
            || source.secret.is_some()
            || source.downward_api.is_some()
            || source.projected.is_some();
        let plugin = refreshed.then(|| counted::plugin_of(source).replace('/', "~"))?;
        let host_path = self.directory(pod.uid(), &plugin, &volume.name);
        atomic::is_written(&host_path).then(|| MountSource {
            host_path,
            read_only: true,
            relabel: true,
            ..Default::default()
        })
    }

    /// The name of what makes a volume, as far as that is known.
    fn plugin(&self, pod: &Pod, volume: &Volume) -> &'static str {
        let known = self.bound().get(&(pod.uid().to_owned(), volume.name.clone())).map(|(_, bound)| bound.clone());
        let claimed = known.as_ref().and_then(|b| b.volume.spec.as_ref()?.persistent_volume_source.as_ref());
        match (claimed, &volume.volume_source) {
            (Some(source), _) => counted::plugin_of_claimed(source),
            (None, Some(source)) => counted::plugin_of(source),
            (None, None) => counted::plugin_of(&VolumeSource::default()),
        }
    }

    async fn one(&self, pod: &Pod, volume: &Volume) -> Result<MountSource, VolumeError> {
        let unprocessed = |why| VolumeError::unprocessed(&volume.name, why);
        if let Some((at, mut bound)) = self.claimed(pod, volume).await.map_err(unprocessed)? {
            let mut made = self.persistent(pod, volume, &mut bound).await?;
            made.group = groups::of(&bound.volume);
            made.inner_name = bound.volume.metadata.as_ref().map(|meta| meta.name.clone());
            if !made.block && persistent::is_mounted_by_node(&bound.volume) {
                let claim = claims::place(&bound.claim);
                self.csi.note_file_system(pod.uid(), &volume.name, &made.host_path, claim);
            }
            self.bound().insert((pod.uid().to_owned(), volume.name.clone()), (at, bound));
            return Ok(made);
        }
        let empty = VolumeSource::default();
        let source = volume.volume_source.as_ref().unwrap_or(&empty);
        if !is_known(source) {
            return Err(unprocessed(translated::no_plugin(&volume.name, translated::kind(source))));
        }
        if let Some(csi) = &source.csi {
            let wanted = Wanted::inline(pod, &volume.name, csi);
            let made = self.of_driver(&wanted).await?;
            self.csi.note_usage(&wanted, &volume.name, &made.host_path, None);
            return Ok(made);
        }
        let set_up = |why| VolumeError::SetUp { volume: volume.name.clone(), why };
        self.direct(pod, volume, source).await.map_err(set_up)
    }

    /// A volume behind a claim, which is the new one afterwards where something was written into it.
    async fn persistent(
        &self,
        pod: &Pod,
        volume: &Volume,
        bound: &mut Arc<claims::Bound>,
    ) -> Result<MountSource, VolumeError> {
        let name = bound.volume.metadata.as_ref().map_or("", |m| &m.name).to_owned();
        let spec = bound.volume.spec.clone().unwrap_or_default();
        let node = self.node.borrow().clone();
        let block = spec.volume_mode.as_deref() == Some("Block");
        let source = spec.persistent_volume_source.clone().unwrap_or_default();
        // Whatever becomes of the node's labels, a pod keeps what it has.
        if let Err(why) = persistent::check_affinity(&bound.volume, &node)
            && !self.is_given(pod, volume, (&name, &source, block)).await
        {
            return Err(VolumeError::Affinity { volume: name, why });
        }
        devices::check_use(pod, &volume.name, block).map_err(|why| VolumeError::unprocessed(&volume.name, why))?;
        if let Some(csi) = &source.csi {
            let wanted = Wanted::persistent(pod, &bound.volume, &spec, csi, bound.read_only);
            let mut made = match block {
                true => self.device_of_driver(&wanted).await?,
                false => self.of_driver(&wanted).await?,
            };
            self.csi.note_usage(&wanted, &volume.name, &made.host_path, claims::place(&bound.claim));
            let mut claim = bound.claim.clone();
            let grown = self.csi.expand(&wanted, &bound.volume, &mut claim).await;
            if claim != bound.claim {
                Arc::make_mut(bound).claim = claim;
            }
            let outcome = match grown {
                Ok(false) => return Ok(made),
                Ok(true) => Ok(()),
                Err(why) => Err(why),
            };
            let claim = bound.claim.metadata.clone().unwrap_or_default();
            made.growth = Some(Box::new(Growth { volume: name, claim, outcome }));
            return Ok(made);
        }
        if let Some(kind) = translated::kind_of_claimed(&source) {
            return Err(VolumeError::unprocessed(&volume.name, translated::no_plugin(&name, Some(kind))));
        }
        let set_up = |why| VolumeError::SetUp { volume: name.clone(), why };
        if block {
            return self.device_of_node(pod, (&volume.name, &name, &source), bound).await;
        }
        let mut made = MountSource { read_only: bound.read_only, ..Default::default() };
        if let Some(host) = &source.host_path {
            self.disks.host_path(pod, &name, host).await.map_err(set_up)?;
            made.host_path = host.path.clone().into();
            return Ok(made);
        }
        if let Some(local) = &source.local {
            made.host_path = self.directory(pod.uid(), "kubernetes.io~local-volume", &name);
            let how = disk::How {
                fs_type: local.fs_type.clone().unwrap_or_default(),
                read_only: false,
                options: persistent::mount_options(&bound.volume),
            };
            let from = (Path::new(&local.path), how);
            made.shared = self.disks.local(pod, &name, from, &made.host_path, bound.read_only).await?;
        } else if let Some(source) = &source.iscsi {
            let mut disk = Disk::of_volume(&name, source);
            disk.how.options = persistent::mount_options(&bound.volume);
            made.host_path = self.directory(pod.uid(), "kubernetes.io~iscsi", &name);
            made.read_only |= source.read_only;
            let secret = secret_of(pod, source);
            self.iscsi(pod, disk, secret, &made).await.map_err(set_up)?;
        } else {
            return self.nfs_claim(pod, volume, bound, &name).await;
        }
        made.relabel = !made.read_only;
        Ok(made)
    }

    /// Whether the pod has the volume behind a claim: from this agent, or from one before, which shows where it lies.
    async fn is_given(
        &self,
        pod: &Pod,
        volume: &Volume,
        (name, source, block): (&str, &PersistentVolumeSource, bool),
    ) -> bool {
        if self.bound().contains_key(&(pod.uid().to_owned(), volume.name.clone())) {
            return true;
        }
        let plugin = counted::plugin_of_claimed(source).replace('/', "~");
        let (place, link) = (self.directory(pod.uid(), &plugin, name), self.device(pod.uid(), &plugin, name));
        let look = move || match block {
            true => Ok(link.is_symlink()),
            // Drivers have a folder of their own below.
            false => Ok(mount_table::is_mount_point(&place)? || mount_table::is_mount_point(&place.join("mount"))?),
        };
        turns::blocking(look).await.unwrap_or_else(|why| {
            tracing::debug!(why, pod = pod.name(), volume = name, "cannot tell whether a pod has a volume");
            false
        })
    }

    /// An iSCSI disk; `secret` is the namespace and name of that with names and passwords.
    async fn iscsi(
        &self,
        pod: &Pod,
        disk: Disk,
        secret: Option<(String, String)>,
        made: &MountSource,
    ) -> Result<(), String> {
        let to = made.host_path.clone();
        // A pod that has it needs neither the secret nor the target.
        if turns::blocking(move || mount_table::is_mount_point(&to)).await? {
            return Ok(());
        }
        let disk = self.with_secret(disk, secret).await?;
        self.disks.iscsi(pod, disk, &made.host_path, made.read_only).await
    }

    /// A disk with names and passwords, where it wants any.
    async fn with_secret(&self, mut disk: Disk, secret: Option<(String, String)>) -> Result<Disk, String> {
        if let Some((namespace, name)) = secret.filter(|_| disk.wants_secret()) {
            let found = self.objects.secret(&namespace, &name).await;
            let found = found.map_err(|e| format!("couldn't get secret {namespace}/{name} error: {e}"))?;
            for (key, value) in found.data.iter().filter(|(key, _)| key.contains(".auth.")) {
                let bytes: &[u8] = value.as_ref();
                let text = std::str::from_utf8(bytes)
                    .map_err(|_| format!("secret {namespace}/{name}: the value of {key:?} is no text"))?;
                // The end of a line is no part of a password; all else is.
                disk.secret.insert(key.clone(), text.strip_suffix('\n').unwrap_or(text).to_owned());
            }
        }
        Ok(disk)
    }

    async fn nfs_claim(
        &self,
        pod: &Pod,
        volume: &Volume,
        bound: &claims::Bound,
        name: &str,
    ) -> Result<MountSource, VolumeError> {
        let (spec, read_only) = (bound.volume.spec.as_ref(), bound.read_only);
        let source = spec.and_then(|spec| spec.persistent_volume_source.as_ref());
        let Some(nfs) = source.and_then(|source| source.nfs.as_ref()) else {
            return Err(VolumeError::unprocessed(&volume.name, translated::no_plugin(name, None)));
        };
        let host_path = self.directory(pod.uid(), "kubernetes.io~nfs", name);
        let options = persistent::mount_options(&bound.volume);
        let mounted = persistent::mount_nfs(nfs, &host_path, read_only || nfs.read_only, &options).await;
        mounted.map_err(|why| VolumeError::SetUp { volume: name.to_owned(), why })?;
        Ok(MountSource { host_path, read_only, ..Default::default() })
    }

    /// A volume of a storage driver, as file system.
    async fn of_driver(&self, wanted: &Wanted<'_>) -> Result<MountSource, VolumeError> {
        let made = self.csi.set_up(wanted).await;
        let volume = wanted.name.clone();
        let host_path = made.map_err(|failure| match failure {
            Failure::Attach { why, exhausted } => VolumeError::Attach { volume, why, exhausted },
            Failure::Device(why) => VolumeError::Device { volume, why },
            Failure::SetUp(why) => VolumeError::SetUp { volume, why },
        })?;
        let relabel = !wanted.read_only && selinux::takes_labels(&host_path);
        Ok(MountSource { host_path, read_only: wanted.read_only, relabel, ..Default::default() })
    }

    async fn direct(&self, pod: &Pod, volume: &Volume, source: &VolumeSource) -> Result<MountSource, String> {
        let directory = |plugin: &str| self.directory(pod.uid(), plugin, &volume.name);
        if let Some(host) = &source.host_path {
            self.disks.host_path(pod, &volume.name, host).await?;
            return Ok(MountSource { host_path: host.path.clone().into(), ..Default::default() });
        }
        if let Some(image) = &source.image {
            let image = Some(image.reference.clone());
            return Ok(MountSource { read_only: true, image, ..Default::default() });
        }
        if let Some(empty_dir) = &source.empty_dir {
            let path = directory("kubernetes.io~empty-dir");
            let key = (pod.uid().to_owned(), format!("empty-dir:{}", volume.name));
            if self.disks.had_before(&key) {
                return Ok(MountSource { host_path: path, relabel: true, ..Default::default() });
            }
            let ready = self.ready_file(pod.uid(), &volume.name);
            let (place, in_memory) = (path.clone(), !empty_dir.medium.is_empty());
            let look = move || Ok(ready.exists() && empty_dir::is_made(&place, in_memory));
            if !self.disks.look((pod, &volume.name), look).await? {
                let (node, source) = (self.node.borrow().clone(), empty_dir.clone());
                let (place, ready) = (path.clone(), self.ready_file(pod.uid(), &volume.name));
                let owner = pod.clone();
                // It changes the group of all that is in it, and takes the pages that it is to have.
                self.disks.in_pod(pod.uid(), move || empty_dir::make(&place, &ready, &owner, &node, &source)).await?;
            }
            self.disks.has_from_now_on(key);
            return Ok(MountSource { host_path: path, relabel: true, ..Default::default() });
        }
        if source.git_repo.is_some() {
            return Err(NO_GIT.into());
        }
        if let Some(nfs) = &source.nfs {
            let path = directory("kubernetes.io~nfs");
            persistent::mount_nfs(nfs, &path, nfs.read_only, &[]).await?;
            return Ok(MountSource { host_path: path, read_only: nfs.read_only, ..Default::default() });
        }
        if let Some(iscsi) = &source.iscsi {
            let host_path = directory("kubernetes.io~iscsi");
            let (read_only, relabel) = (iscsi.read_only, !iscsi.read_only);
            let made = MountSource { host_path, read_only, relabel, ..Default::default() };
            let secret = iscsi.secret_ref.as_ref().map(|s| (pod.namespace().to_owned(), s.name.clone()));
            self.iscsi(pod, Disk::of_pod(&volume.name, iscsi), secret, &made).await?;
            return Ok(made);
        }
        let node = self.node.borrow().clone();
        let sources = Sources { pod, objects: &*self.objects, tokens: &*self.tokens, node: &node };
        let (plugin, in_memory, payload) = if let Some(config_map) = &source.config_map {
            ("kubernetes.io~configmap", false, sources.config_map_volume(config_map).await?)
        } else if let Some(secret) = &source.secret {
            ("kubernetes.io~secret", true, sources.secret_volume(secret).await?)
        } else if let Some(downward) = &source.downward_api {
            ("kubernetes.io~downward-api", true, sources.downward_volume(downward)?)
        } else if let Some(projected) = &source.projected {
            ("kubernetes.io~projected", true, sources.projected_volume(projected).await?)
        } else {
            return Err("no volume plugin matched".into());
        };
        let path = directory(plugin);
        let memory = in_memory.then(|| empty_dir::memory_size(pod, &node, None));
        write_payload(&path, memory, pod, &payload)?;
        Ok(MountSource { host_path: path, read_only: true, relabel: true, ..Default::default() })
    }

    fn directory(&self, uid: &str, plugin: &str, name: &str) -> PathBuf {
        self.root_dir.join("pods").join(uid).join("volumes").join(plugin).join(name)
    }

    /// A link to a device of a pod.
    fn device(&self, uid: &str, plugin: &str, name: &str) -> PathBuf {
        self.root_dir.join("pods").join(uid).join("volumeDevices").join(plugin).join(name)
    }

    /// Marks a directory as done, so that a restarted agent does not touch what containers have written since.
    fn ready_file(&self, uid: &str, name: &str) -> PathBuf {
        let plugins = self.root_dir.join("pods").join(uid).join("plugins");
        plugins.join("kubernetes.io~empty-dir").join(name).join("ready")
    }

    /// Unmounts and removes all volumes of a pod. Nothing is removed while something is still mounted below.
    ///
    /// # Errors
    /// Something is in use or cannot be removed; a retry may help.
    pub async fn teardown(&self, uid: &str) -> Result<(), VolumeError> {
        let begun = Instant::now();
        let removed = self.remove(uid).await;
        self.counted.removed(uid, removed.is_ok(), begun.elapsed());
        removed
    }

    async fn remove(&self, uid: &str) -> Result<(), VolumeError> {
        let pod_dir = self.root_dir.join("pods").join(uid);
        self.tokens.forget(uid);
        self.bound().retain(|(pod, _), _| pod != uid);
        self.disks.forget(uid);
        // What still works for the pod, though it is not waited for any more, ends first.
        let _turn = self.disks.pod(uid).await;
        // Parts of volumes go before the volumes, and those that a driver gave before anything is removed.
        take_down(&pod_dir, &["volume-subpaths"]).await?;
        self.csi.tear_down(uid).await.map_err(VolumeError::Mount)?;
        mapped::release_local(&self.root_dir, uid).await.map_err(VolumeError::Mount)?;
        take_down(&pod_dir, &["volumeDevices", "volumes"]).await?;
        // The pod is over without that; disks that do not go are tried again.
        self.disks.look_again();
        Ok(())
    }
}

/// Namespace and name of the secret that a volume names.
fn secret_of(pod: &Pod, source: &IscsiPersistentVolumeSource) -> Option<(String, String)> {
    let secret = source.secret_ref.as_ref()?;
    let namespace = if secret.namespace.is_empty() { pod.namespace() } else { secret.namespace.as_str() };
    Some((namespace.to_owned(), secret.name.clone()))
}

/// The gate of the plugin that clones repositories is off for good.
const NO_GIT: &str = "git-repo volume plugin has been disabled; if necessary, it may be re-enabled by enabling the \
                      feature-gate `GitRepoVolumeDriver`";

/// Whether there is a plugin for the volume.
fn is_known(source: &VolumeSource) -> bool {
    source.host_path.is_some()
        || source.image.is_some()
        || source.empty_dir.is_some()
        || source.git_repo.is_some()
        || source.config_map.is_some()
        || source.secret.is_some()
        || source.downward_api.is_some()
        || source.projected.is_some()
        || source.nfs.is_some()
        || source.iscsi.is_some()
        || source.csi.is_some()
}

/// Files go to memory where there is a size for it, as [`empty_dir::mount_memory`] takes it.
fn write_payload(path: &Path, memory: Option<Option<i64>>, pod: &Pod, payload: &Payload) -> Result<(), String> {
    empty_dir::make_directory(path)?;
    if let Some(size) = memory {
        empty_dir::mount_memory(path, size)?;
    }
    let group = ownership::fs_group(pod);
    atomic::write(path, payload, || match group {
        Some(group) => ownership::give(path, group, ownership::Access::ReadOnly),
        None => Ok(()),
    })
    .map_err(|e| format!("error writing {}: {e}", path.display()))
}

async fn take_down(pod_dir: &Path, folders: &[&str]) -> Result<(), VolumeError> {
    let folders: Vec<PathBuf> = folders.iter().map(|name| pod_dir.join(name)).collect();
    let removed = tokio::task::spawn_blocking(move || folders.iter().try_for_each(|folder| remove_below(folder))).await;
    removed.map_err(|e| VolumeError::Mount(e.to_string()))?.map_err(VolumeError::Mount)
}

/// Unmounts all below a folder, then removes it.
fn remove_below(folder: &Path) -> Result<(), String> {
    let is_gone = || std::fs::remove_dir(folder).map_or_else(|e| e.kind() == std::io::ErrorKind::NotFound, |()| true);
    // Reading the mount table costs more than all else here, and most pods have nothing in most of these, or memory alone.
    if is_gone() {
        return Ok(());
    }
    remove_memory(folder);
    if is_gone() {
        return Ok(());
    }
    mount_table::unmount_below(folder)?;
    match std::fs::remove_dir_all(folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("failed to remove {}: {e}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// The plugins whose volumes are memory, or folders on the disk of the pod's own.
const OF_MEMORY: [&str; 4] =
    ["kubernetes.io~projected", "kubernetes.io~secret", "kubernetes.io~downward-api", "kubernetes.io~empty-dir"];

/// Takes away the volumes in memory, which are mounted where it is known, and the folders that are empty then. Nothing that
/// holds anything is removed, and what is busy, or has another mount in it, stays for who reads the mount table. No volume is
/// looked at: a container may have mounted there what does not answer any more, and only taking it away waits for nobody.
fn remove_memory(folder: &Path) {
    for plugin in OF_MEMORY {
        let plugin = folder.join(plugin);
        let Ok(volumes) = std::fs::read_dir(&plugin) else { continue };
        for volume in volumes.flatten() {
            let path = volume.path();
            mount_table::try_unmount(&path);
            // What is mounted there still, or has anything in it, refuses.
            let _ = std::fs::remove_dir(&path);
        }
        let _ = std::fs::remove_dir(&plugin);
    }
}

#[cfg(test)]
mod tests;
