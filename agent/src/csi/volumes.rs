//! Giving a volume to a pod: attach, stage, publish, give to the pod's group.
//!
//! One volume is worked on by one pod at a time, setting up or taking down, so that nobody unstages what another is about
//! to use. The order on disk: the pod's `vol_data.json` first, then that of the staged volume, then the driver is called.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use proto::api::storage::v1::CsiDriverSpec;
use proto::csi::node_service_capability::rpc::Type as RpcType;
use proto::csi::{NodePublishVolumeRequest, NodeStageVolumeRequest};
use tokio::sync::Notify;
use tokio::time::Instant;
use tonic::Code;

use crate::node::VolumesInUse;
use crate::objects::{Objects, Tokens};
use crate::pod::spec::PodExt;
use crate::volumes::claims::Claims;
use crate::volumes::{mount_table, ownership, selinux};

use super::attach::{Listed, Reported};
use super::client::{Capabilities, Driver};
use super::data::{self, Places, VolumeData};
use super::sizes::Sizes;
use super::usage::{Held, Teller};
use super::wanted::Wanted;
use super::{CsiError, Drivers, attach, context, expand};

/// A driver with `requiresRepublish` is called again at the first sync after this.
const REPUBLISH: Duration = Duration::from_secs(30);
/// As long as the kubelet waits for the volumes of a pod before it says so.
const ATTACH_PATIENCE: Duration = Duration::from_secs(123);
/// For a volume that a running pod has: its sync must not wait for what may never come.
const LOOK_ONLY: Duration = Duration::from_secs(1);

/// Gets the volumes in use whenever they change.
pub type InUse = Box<dyn Fn(VolumesInUse) + Send + Sync>;

/// What volumes of drivers need from the rest of the agent.
pub struct CsiDeps {
    pub root_dir: PathBuf,
    pub node: String,
    pub drivers: Arc<Drivers>,
    pub in_use: InUse,
    /// `None` where nobody writes into the node's status what is attached.
    pub reported: Option<Reported>,
}

/// Why a pod cannot have a volume, by the step that failed; the texts are the kubelet's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// `exhausted`: the node has reached its limit, and the driver's limits are kept up to date.
    Attach {
        why: String,
        exhausted: bool,
    },
    /// Staging: for all pods of the node at once.
    Device(String),
    SetUp(String),
}

/// A volume that a pod has.
#[derive(Debug, Clone, Copy)]
struct Published {
    at: Instant,
    again: bool,
}

/// What is shared by stage and publish of one volume.
struct Step<'a, 'p> {
    wanted: &'a Wanted<'p>,
    driver: &'a Driver,
    spec: CsiDriverSpec,
    capabilities: Capabilities,
    publish_context: BTreeMap<String, String>,
    /// The pod's group, where the driver applies it by itself.
    group: Option<u32>,
}

/// Volumes in use by their unique names, each with the change that brought it.
#[derive(Default)]
struct Used {
    since: BTreeMap<String, u64>,
    change: u64,
}

impl Used {
    fn told(&self) -> VolumesInUse {
        VolumesInUse { names: self.since.keys().cloned().collect(), change: self.change }
    }
}

/// The volumes of drivers on this node.
pub struct Volumes {
    pub(super) deps: CsiDeps,
    pub(super) places: Places,
    pub(super) api: Arc<dyn Claims>,
    objects: Arc<dyn Objects>,
    tokens: Arc<dyn Tokens>,
    /// By pod and volume; empty after a start, so that each is published once more then.
    published: Mutex<HashMap<(String, String), Published>>,
    turns: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
    in_use: Mutex<Used>,
    /// A volume that no pod has could not be unstaged.
    pub(super) left: Notify,
    pub(super) sizes: Sizes,
    /// When a volume was last made to grow.
    grown: Mutex<HashMap<String, Instant>>,
    /// Volumes that their drivers refused to make larger for good, until one grows or the node has it no more.
    refused: Mutex<HashMap<String, Code>>,
    /// Said once: no volume is mounted with a label.
    relabels: std::sync::Once,
}

impl Volumes {
    pub fn new(deps: CsiDeps, api: Arc<dyn Claims>, objects: Arc<dyn Objects>, tokens: Arc<dyn Tokens>) -> Self {
        let places = Places { root: deps.root_dir.clone() };
        let staged = places.all_staged().into_iter().map(|(_, data)| data);
        let before = staged.chain(places.all_blocks().into_iter().map(|(_, data)| data));
        let since: BTreeMap<String, u64> =
            before.map(|d| (data::unique_name(&d.driver_name, &d.volume_handle), 1)).collect();
        let in_use = Used { change: u64::from(!since.is_empty()), since };
        if in_use.change > 0 {
            (deps.in_use)(in_use.told());
        }
        Volumes {
            deps,
            places,
            api,
            objects,
            tokens,
            published: Mutex::default(),
            turns: Mutex::default(),
            in_use: Mutex::new(in_use),
            left: Notify::new(),
            sizes: Sizes::default(),
            grown: Mutex::default(),
            refused: Mutex::default(),
            relabels: std::sync::Once::new(),
        }
    }

    /// Whether growing was tried a short while ago; if not, it counts as tried from now on.
    pub(super) fn tried(&self, wanted: &Wanted<'_>, now: Instant) -> bool {
        let mut grown = self.grown.lock().unwrap_or_else(PoisonError::into_inner);
        grown.retain(|_, at| now.duration_since(*at) < expand::RETRY);
        let key = data::unique_name(&wanted.driver, &wanted.handle);
        if grown.contains_key(&key) {
            return true;
        }
        grown.insert(key, now);
        false
    }

    /// How the driver last refused for good to make a volume larger that the node has.
    pub(super) fn refused_growth(&self, wanted: &Wanted<'_>) -> Option<Code> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.get(&data::unique_name(&wanted.driver, &wanted.handle)).copied()
    }

    pub(super) fn note_refused_growth(&self, wanted: &Wanted<'_>, code: Option<Code>) {
        let key = data::unique_name(&wanted.driver, &wanted.handle);
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        match code {
            Some(code) => refused.insert(key, code),
            None => refused.remove(&key),
        };
    }

    /// From now on the driver is asked how full the volume is; `name` is what the pod calls it.
    pub fn note_usage(&self, wanted: &Wanted<'_>, name: &str, path: &Path, claim: Option<(String, String)>) {
        let staged = self.places.staged(&wanted.driver, &wanted.handle).join("globalmount");
        let teller = Teller::Driver {
            driver: wanted.driver.clone(),
            handle: wanted.handle.clone(),
            staging: if wanted.inline { PathBuf::new() } else { staged },
        };
        let held = Held { teller, path: path.to_owned(), claim };
        self.deps.drivers.usages.note(wanted.pod.uid(), name, held);
    }

    /// From now on the file system at the path is asked how full the claim is, which lies on a disk or share that no driver
    /// has made.
    pub fn note_file_system(&self, uid: &str, name: &str, path: &Path, claim: Option<(String, String)>) {
        self.deps.drivers.usages.note(uid, name, Held { teller: Teller::FileSystem, path: path.to_owned(), claim });
    }

    pub(super) fn objects(&self) -> &dyn Objects {
        &*self.objects
    }

    fn published(&self) -> MutexGuard<'_, HashMap<(String, String), Published>> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn forget(&self, uid: &str, name: &str) {
        self.published().remove(&(uid.to_owned(), name.to_owned()));
    }

    pub(super) fn note_published(&self, wanted: &Wanted<'_>, again: bool) {
        let key = (wanted.pod.uid().to_owned(), wanted.name.clone());
        self.published().insert(key, Published { at: Instant::now(), again });
    }

    /// Whether this agent gave the volume to the pod.
    pub fn is_published(&self, wanted: &Wanted<'_>) -> bool {
        self.published().contains_key(&(wanted.pod.uid().to_owned(), wanted.name.clone()))
    }

    /// Whose turn it is with a volume.
    pub(super) fn turn(&self, driver: &str, handle: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| turn.strong_count() > 0);
        let key = data::unique_name(driver, handle);
        if let Some(turn) = turns.get(&key).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::new(tokio::sync::Mutex::default());
        turns.insert(key, Arc::downgrade(&turn));
        turn
    }

    /// Tells the node's status that a volume is used, and by which change it has come to be so.
    fn note_use(&self, name: &str) -> u64 {
        let mut in_use = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(change) = in_use.since.get(name) {
            return *change;
        }
        in_use.change += 1;
        let change = in_use.change;
        in_use.since.insert(name.to_owned(), change);
        (self.deps.in_use)(in_use.told());
        change
    }

    /// Tells the node's status that a volume is used no more: only then may it be detached.
    pub(super) fn note_unused(&self, driver: &str, handle: &str) {
        let name = data::unique_name(driver, handle);
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
        self.sizes.forget(&name);
        let mut in_use = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        if in_use.since.remove(&name).is_some() {
            in_use.change += 1;
            (self.deps.in_use)(in_use.told());
        }
    }

    /// Gives a file system to the pod and says where it is; at once if the pod has it.
    ///
    /// # Errors
    /// By the step that failed. A retry continues where this one stopped. Dropping the future is safe: what was begun is
    /// on record for the teardown.
    pub async fn set_up(&self, wanted: &Wanted<'_>) -> Result<PathBuf, Failure> {
        let folder = self.places.of_pod(wanted.pod.uid()).join(&wanted.name);
        let target = folder.join("mount");
        let known = self.published().get(&(wanted.pod.uid().to_owned(), wanted.name.clone())).copied();
        if let Some(known) = known
            && (!known.again || known.at.elapsed() < REPUBLISH)
        {
            return Ok(target);
        }
        let turn = self.turn(&wanted.driver, &wanted.handle);
        let _turn = turn.lock().await;
        // From an earlier run of the agent, or from the last call of a driver that wants to be called again and again.
        // What a driver has mounted and never said to be done is not had.
        let was_there = data::read(&folder).is_some_and(|data| !data.is_uncertain())
            && mount_table::is_mount_point(&target).unwrap_or(false);
        match self.provide(wanted, &folder, &target, (known.is_none(), was_there)).await {
            Ok(again) => {
                self.note_published(wanted, again);
                Ok(target)
            }
            Err(failure) if was_there => {
                // What the pod has it keeps.
                tracing::warn!(
                    ?failure,
                    pod = wanted.pod.name(),
                    volume = wanted.name,
                    "cannot publish a volume again"
                );
                Ok(target)
            }
            Err(failure) => Err(failure),
        }
    }

    /// All steps; tells whether the driver wants to be called again. `first` is false when it is only that. What was
    /// not there is on record as uncertain until it comes to its end.
    async fn provide(
        &self,
        wanted: &Wanted<'_>,
        folder: &Path,
        target: &Path,
        (first, was_there): (bool, bool),
    ) -> Result<bool, Failure> {
        let set_up = |why: String| Failure::SetUp(format!("kubernetes.io/csi: mounter.SetUpAt {why}"));
        let driver =
            self.deps.drivers.get(&wanted.driver).map_err(|e| set_up(format!("failed to get CSI client: {e}")))?;
        let spec = self.spec(wanted).await.map_err(|why| set_up(format!("failed to {why}")))?;
        let volume =
            VolumeData { volume_lifecycle_mode: wanted.lifecycle().into(), ..VolumeData::of(wanted, &self.deps.node) };
        let write = |volume: &VolumeData| {
            data::write(folder, volume).map_err(|why| set_up(format!("failed to save volume info data: {why}")))
        };
        write(&if was_there { volume.clone() } else { volume.uncertain() })?;
        let mut step = self.step(wanted, &driver, spec).await?;
        if !wanted.inline {
            let patience = if was_there { LOOK_ONLY } else { ATTACH_PATIENCE };
            step.publish_context = self.attached(wanted, &step.spec, patience).await?;
            if first {
                self.stage(&step).await.map_err(Failure::Device)?;
            }
        }
        self.publish(&step, target).await.map_err(Failure::SetUp)?;
        if !was_there {
            write(&volume)?;
        }
        if wants_label(wanted, &step.spec) && selinux::enabled() {
            self.relabels.call_once(|| {
                tracing::info!(
                    driver = wanted.driver,
                    volume = wanted.name,
                    "volumes of drivers with seLinuxMount are not mounted with a label: their files are labeled one by one"
                );
            });
        }
        Ok(step.spec.requires_republish == Some(true))
    }

    /// What the driver can do, and whether it takes care of the pod's group.
    async fn step<'a, 'p>(
        &self,
        wanted: &'a Wanted<'p>,
        driver: &'a Driver,
        spec: CsiDriverSpec,
    ) -> Result<Step<'a, 'p>, Failure> {
        let capabilities = driver.capabilities().await.map_err(|e| Failure::SetUp(e.to_string()))?;
        let group = ownership::fs_group(wanted.pod).filter(|_| capabilities.has(RpcType::VolumeMountGroup));
        Ok(Step { wanted, driver, spec, capabilities, publish_context: BTreeMap::new(), group })
    }

    /// The driver's object; one that nobody wrote is as its defaults say.
    async fn spec(&self, wanted: &Wanted<'_>) -> Result<CsiDriverSpec, String> {
        let (driver, mode) = (&wanted.driver, wanted.lifecycle());
        let found = match self.api.driver(driver).await {
            Ok(found) => Some(found.spec.unwrap_or_default()),
            Err(error) if error.is_not_found() => None,
            // Without an API server nobody attaches.
            Err(crate::api::ApiError::Standalone) => {
                Some(CsiDriverSpec { attach_required: Some(false), ..CsiDriverSpec::default() })
            }
            Err(error) => return Err(format!("check volume lifecycle mode: {error}")),
        };
        let Some(spec) = found else {
            if wanted.inline {
                return Err(format!(
                    "check volume lifecycle mode: volume mode {mode:?} not supported by driver {driver} \
                     (no CSIDriver object)"
                ));
            }
            return Ok(CsiDriverSpec::default());
        };
        let modes = &spec.volume_lifecycle_modes;
        // An object from before there were modes is for persistent volumes.
        let supported = if modes.is_empty() { !wanted.inline } else { modes.iter().any(|m| m == mode) };
        if !supported {
            return Err(format!(
                "check volume lifecycle mode: volume mode {mode:?} not supported by driver {driver} \
                 (only supports {modes:?})"
            ));
        }
        Ok(spec)
    }

    /// Waits for the attacher where the driver needs one.
    async fn attached(
        &self,
        wanted: &Wanted<'_>,
        spec: &CsiDriverSpec,
        patience: Duration,
    ) -> Result<BTreeMap<String, String>, Failure> {
        if spec.attach_required == Some(false) {
            return Ok(BTreeMap::new());
        }
        let volume = data::unique_name(&wanted.driver, &wanted.handle);
        let change = self.note_use(&volume);
        let mut listed = self.deps.reported.clone().map(|node| Listed { node, volume, change });
        let name = data::attachment_name(&wanted.handle, &wanted.driver, &self.deps.node);
        // Only a driver that says how often its limits are to be asked for wants pods turned away.
        let kept = spec.node_allocatable_update_period_seconds.is_some_and(|period| period != 0);
        let waited = attach::wait(&*self.api, &name, listed.as_mut(), patience).await;
        waited.map_err(|no| {
            let exhausted = no.exhausted && kept;
            if exhausted {
                self.deps.drivers.full(&wanted.driver).notify_one();
            }
            Failure::Attach { why: no.why, exhausted }
        })
    }

    /// For all pods of this node at once. Remembered also for a driver that does not stage, as the kubelet does.
    async fn stage(&self, step: &Step<'_, '_>) -> Result<(), String> {
        let wanted = step.wanted;
        let folder = self.places.staged(&wanted.driver, &wanted.handle);
        let staging = folder.join("globalmount");
        let volume = VolumeData {
            driver_name: wanted.driver.clone(),
            volume_handle: wanted.handle.clone(),
            ..VolumeData::default()
        };
        data::write(&folder, &volume)?;
        data::make_private(&staging).map_err(|e| format!("cannot make {}: {e}", staging.display()))?;
        if !step.capabilities.has(RpcType::StageUnstageVolume) {
            return Ok(());
        }
        let request = NodeStageVolumeRequest {
            volume_id: wanted.handle.clone(),
            publish_context: step.publish_context.clone(),
            staging_target_path: staging.display().to_string(),
            volume_capability: Some(wanted.capability(&step.capabilities, step.group)),
            secrets: context::secret(&*self.objects, &wanted.stage_secret).await?,
            volume_context: wanted.attributes.clone(),
        };
        step.driver.stage(request).await.map_err(|e| e.to_string())
    }

    async fn publish(&self, step: &Step<'_, '_>, target: &Path) -> Result<(), String> {
        let wanted = step.wanted;
        let request = self.publish_request(step, target).await?;
        step.driver.publish(request).await.map_err(|e| e.to_string())?;
        let by_agent = step.group.is_none() && !wanted.read_only && group_applies(wanted, &step.spec);
        if by_agent {
            let (path, pod) = (target.to_owned(), wanted.pod.clone());
            let given = tokio::task::spawn_blocking(move || ownership::give_to_pod(&path, &pod)).await;
            let given = given.map_err(|e| e.to_string())?;
            given.map_err(|e| format!("applyFSGroup failed for vol {}: {e}", wanted.handle))?;
        }
        Ok(())
    }

    async fn publish_request(&self, step: &Step<'_, '_>, target: &Path) -> Result<NodePublishVolumeRequest, String> {
        let (wanted, spec) = (step.wanted, &step.spec);
        let mut secrets = context::secret(&*self.objects, &wanted.publish_secret).await?;
        let mut volume_context = wanted.attributes.clone();
        if spec.pod_info_on_mount == Some(true) {
            volume_context.extend(context::pod_info(wanted.pod, wanted.inline));
        }
        if let Some((key, value)) = context::tokens(&*self.tokens, wanted.pod, spec).await? {
            match spec.service_account_token_in_secrets {
                Some(true) => secrets.insert(key, value),
                _ => volume_context.insert(key, value),
            };
        }
        let stages = !wanted.inline && step.capabilities.has(RpcType::StageUnstageVolume);
        let staging = stages.then(|| match wanted.block {
            true => self.places.block_staging(&wanted.name),
            false => self.places.staged(&wanted.driver, &wanted.handle).join("globalmount"),
        });
        Ok(NodePublishVolumeRequest {
            volume_id: wanted.handle.clone(),
            publish_context: step.publish_context.clone(),
            staging_target_path: staging.map(|p| p.display().to_string()).unwrap_or_default(),
            target_path: target.display().to_string(),
            volume_capability: Some(wanted.capability(&step.capabilities, step.group)),
            readonly: wanted.read_only,
            secrets,
            volume_context,
        })
    }

    /// The steps of a raw device, which [`super::block`] puts in order.
    pub(super) async fn provide_block(
        &self,
        wanted: &Wanted<'_>,
        target: &Path,
        was_there: bool,
    ) -> Result<(), Failure> {
        let device = |why: String| Failure::Device(format!("kubernetes.io/csi: blockMapper.SetUpDevice {why}"));
        let missing = |e: CsiError| device(format!("failed to get CSI client: {e}"));
        let driver = self.deps.drivers.get(&wanted.driver).map_err(missing)?;
        let spec = self.spec(wanted).await.map_err(|why| device(format!("failed to {why}")))?;
        let mut step = self.step(wanted, &driver, spec).await?;
        step.group = None;
        let patience = if was_there { LOOK_ONLY } else { ATTACH_PATIENCE };
        step.publish_context = self.attached(wanted, &step.spec, patience).await?;
        if step.capabilities.has(RpcType::StageUnstageVolume) {
            let staging = self.places.block_staging(&wanted.name);
            data::make_private(&staging).map_err(|e| device(e.to_string()))?;
            let secrets = context::secret(&*self.objects, &wanted.stage_secret).await.map_err(Failure::Device)?;
            let request = NodeStageVolumeRequest {
                volume_id: wanted.handle.clone(),
                publish_context: step.publish_context.clone(),
                staging_target_path: staging.display().to_string(),
                volume_capability: Some(wanted.capability(&step.capabilities, None)),
                secrets,
                volume_context: wanted.attributes.clone(),
            };
            driver.stage(request).await.map_err(|e| Failure::Device(e.to_string()))?;
        }
        let request = self.publish_request(&step, target).await.map_err(Failure::SetUp)?;
        driver.publish(request).await.map_err(|e| Failure::SetUp(e.to_string()))
    }
}

/// Whether a kubelet would mount the volume with the pod's SELinux label.
fn wants_label(wanted: &Wanted<'_>, spec: &CsiDriverSpec) -> bool {
    spec.se_linux_mount == Some(true) && wanted.access_modes == ["ReadWriteOncePod"]
}

/// Whether the agent changes the group of the files, by the driver's `fsGroupPolicy`.
fn group_applies(wanted: &Wanted<'_>, spec: &CsiDriverSpec) -> bool {
    match spec.fs_group_policy.as_deref() {
        Some("None") => false,
        Some("File") => true,
        _ => {
            let once = |mode: &String| mode == "ReadWriteOnce" || mode == "ReadWriteOncePod";
            !wanted.fs_type.is_empty() && wanted.access_modes.iter().any(once)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{CsiVolumeSource, Pod};

    #[test]
    fn the_group_is_applied_by_the_drivers_policy() {
        let pod = Pod::default();
        let mut wanted = Wanted::inline(&pod, "v", &CsiVolumeSource::default());
        let policy = |word: &str| CsiDriverSpec { fs_group_policy: Some(word.into()), ..CsiDriverSpec::default() };
        assert!(!group_applies(&wanted, &policy("None")));
        assert!(group_applies(&wanted, &policy("File")));
        assert!(!group_applies(&wanted, &CsiDriverSpec::default()), "it has no file system type");
        wanted.fs_type = "ext4".into();
        assert!(group_applies(&wanted, &CsiDriverSpec::default()));
        wanted.access_modes = vec!["ReadWriteMany".into()];
        assert!(!group_applies(&wanted, &CsiDriverSpec::default()));
    }

    #[test]
    fn a_label_is_wanted_by_the_driver_for_a_volume_of_one_pod() {
        let pod = Pod::default();
        let mut wanted = Wanted::inline(&pod, "v", &CsiVolumeSource::default());
        let mounts = CsiDriverSpec { se_linux_mount: Some(true), ..CsiDriverSpec::default() };
        assert!(!wants_label(&wanted, &mounts));
        wanted.access_modes = vec!["ReadWriteOncePod".into()];
        assert!(wants_label(&wanted, &mounts));
        assert!(!wants_label(&wanted, &CsiDriverSpec::default()));
    }
}
