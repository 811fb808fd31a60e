//! Whole lives of volumes with a driver that keeps book of what it is asked.

mod several_nodes;
mod uncertain;

use std::path::Path;
use std::sync::Arc;

use proto::api::core::v1::{
    AttachedVolume, ConfigMap, Container, CsiPersistentVolumeSource, CsiVolumeSource, NodeStatus, ObjectReference,
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimStatus,
    PersistentVolumeClaimVolumeSource, PersistentVolumeSource, PersistentVolumeSpec, Pod, PodSpec, Secret, Service,
    Volume, VolumeMount, VolumeResourceRequirements, VolumeSource,
};
use proto::api::storage::v1::{CsiDriver, CsiDriverSpec, VolumeAttachment, VolumeAttachmentStatus, VolumeError};
use proto::apimachinery::pkg::api::resource::Quantity;
use proto::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use proto::csi::node_server::{Node, NodeServer};
use proto::csi::node_service_capability::rpc::Type as RpcType;
use proto::csi::node_service_capability::{Rpc, Type};
use proto::csi::*;
use tonic::codegen::Service as _;
use tonic::{Request, Response, Status};

use super::volumes::{CsiDeps, Failure, Volumes};
use super::*;
use crate::objects::{Answer, Issued, ObjectError, Objects, TokenQuery, Tokens};
use crate::volumes::claims::{Claims, Found};
use crate::volumes::{Manager, Told, VolumeDeps};

/// Does something about the path where a volume is to be published.
type Publishes = fn(&Path) -> Result<(), Status>;

/// Makes a folder where a volume is published, and removes it again.
#[derive(Default)]
pub(super) struct Book {
    calls: Mutex<Vec<String>>,
    contexts: Mutex<Vec<BTreeMap<String, String>>>,
    refuse: Mutex<Option<Status>>,
    /// What becomes of a volume that is to be published, in place of a folder.
    publishes: Mutex<Option<Publishes>>,
    /// Volumes that the node takes.
    pub(super) most: Mutex<i64>,
    /// So many volumes are not unstaged when asked.
    busy: Mutex<u8>,
    /// The volume that is never unstaged.
    stuck: Mutex<String>,
    /// The volume about which nothing is answered when it is to be unstaged.
    hangs: Mutex<String>,
}

impl Book {
    fn note(&self, call: &str, path: &str) -> Result<(), Status> {
        let place = path.split("/kubelet/").last().unwrap_or_default();
        self.calls.lock().unwrap().push(format!("{call} {place}"));
        self.refuse.lock().unwrap().clone().map_or(Ok(()), Err)
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }
}

#[tonic::async_trait]
impl Node for Book {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        self.contexts.lock().unwrap().push(request.publish_context);
        self.note("stage", &request.staging_target_path)?;
        Ok(Response::new(NodeStageVolumeResponse {}))
    }
    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        self.note("unstage", &request.staging_target_path)?;
        if request.volume_id == *self.hangs.lock().unwrap() {
            std::future::pending::<()>().await;
        }
        if request.volume_id == *self.stuck.lock().unwrap() {
            return Err(Status::internal("stuck"));
        }
        let mut busy = self.busy.lock().unwrap();
        if *busy > 0 {
            *busy -= 1;
            return Err(Status::internal("busy"));
        }
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }
    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.contexts.lock().unwrap().push(request.volume_context);
        self.note("publish", &request.target_path)?;
        let publishes = *self.publishes.lock().unwrap();
        match publishes {
            Some(publishes) => publishes(Path::new(&request.target_path))?,
            None => std::fs::create_dir_all(&request.target_path)?,
        }
        Ok(Response::new(NodePublishVolumeResponse {}))
    }
    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let target = request.into_inner().target_path;
        self.note("unpublish", &target)?;
        // Asked twice is no mistake.
        let _ = std::fs::remove_dir_all(&target);
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }
    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let path = request.into_inner().volume_path;
        let usage = vec![VolumeUsage { available: 1, total: 3, used: 2, unit: volume_usage::Unit::Bytes.into() }];
        let abnormal = path.ends_with("broken");
        let message = if abnormal { "the disk is loud" } else { "" }.into();
        Ok(Response::new(NodeGetVolumeStatsResponse {
            usage,
            volume_condition: Some(VolumeCondition { abnormal, message }),
        }))
    }
    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let bytes = request.capacity_range.map_or(0, |r| r.required_bytes);
        self.note(&format!("expand to {bytes}"), &request.volume_path)?;
        Ok(Response::new(NodeExpandVolumeResponse { capacity_bytes: bytes }))
    }
    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        use RpcType::{ExpandVolume, GetVolumeStats, StageUnstageVolume, VolumeCondition};
        let types = [StageUnstageVolume, ExpandVolume, GetVolumeStats, VolumeCondition];
        let capabilities =
            types.map(|t| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: t.into() })) }).into();
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }
    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Result<Response<NodeGetInfoResponse>, Status> {
        let max_volumes_per_node = *self.most.lock().unwrap();
        Ok(Response::new(NodeGetInfoResponse { node_id: "me".into(), max_volumes_per_node, ..Default::default() }))
    }
}

/// An API server with one driver, and attachments that are done at once.
struct Api {
    spec: CsiDriverSpec,
    patches: Mutex<Vec<String>>,
    bound: Mutex<(PersistentVolumeClaim, PersistentVolume)>,
    /// What the attacher cannot do, in place of attaching.
    refused: Mutex<Option<VolumeError>>,
}

impl Claims for Api {
    fn claim<'a>(&'a self, _: &'a str, _: &'a str) -> Found<'a, PersistentVolumeClaim> {
        Box::pin(std::future::ready(Ok(self.bound.lock().unwrap().0.clone())))
    }
    fn volume<'a>(&'a self, _: &'a str) -> Found<'a, PersistentVolume> {
        Box::pin(std::future::ready(Ok(self.bound.lock().unwrap().1.clone())))
    }
    fn driver<'a>(&'a self, _: &'a str) -> Found<'a, CsiDriver> {
        Box::pin(std::future::ready(Ok(CsiDriver { spec: Some(self.spec.clone()), ..Default::default() })))
    }
    fn attachment<'a>(&'a self, _: &'a str) -> Found<'a, VolumeAttachment> {
        let metadata = [("disk".to_owned(), "sdx".to_owned())].into();
        let attach_error = self.refused.lock().unwrap().clone();
        let attached = attach_error.is_none();
        let status =
            VolumeAttachmentStatus { attached, attachment_metadata: metadata, attach_error, ..Default::default() };
        Box::pin(std::future::ready(Ok(VolumeAttachment { status: Some(status), ..Default::default() })))
    }
    fn patch_claim<'a>(&'a self, _: &'a str, _: &'a str, patch: String) -> Found<'a, PersistentVolumeClaim> {
        let claim = &mut self.bound.lock().unwrap().0;
        let said: serde_json::Value = serde_json::from_str(&patch).unwrap();
        if let (Some(size), Some(status)) = (said["status"]["capacity"]["storage"].as_str(), &mut claim.status) {
            status.capacity = sized(size);
            status.allocated_resource_statuses.clear();
        }
        self.patches.lock().unwrap().push(patch);
        Box::pin(std::future::ready(Ok(claim.clone())))
    }
}

struct Nothing;

fn missing<'a, T: Send + 'a>() -> Answer<'a, Result<T, ObjectError>> {
    Box::pin(std::future::ready(Err(ObjectError::NotSynced)))
}

impl Objects for Nothing {
    fn config_map<'a>(&'a self, _: &'a str, _: &'a str) -> Answer<'a, Result<Arc<ConfigMap>, ObjectError>> {
        missing()
    }
    fn secret<'a>(&'a self, _: &'a str, _: &'a str) -> Answer<'a, Result<Arc<Secret>, ObjectError>> {
        missing()
    }
    fn services<'a>(&'a self, _: &'a str) -> Answer<'a, Result<Vec<Arc<Service>>, ObjectError>> {
        missing()
    }
    fn register(&self, _: &Pod) {}
    fn unregister(&self, _: &str) {}
}

impl Tokens for Nothing {
    fn issued<'a>(&'a self, query: &'a TokenQuery) -> Answer<'a, Result<Issued, ObjectError>> {
        let token = format!("for {}", query.audience);
        Box::pin(std::future::ready(Ok(Issued { token, expires: std::time::UNIX_EPOCH })))
    }
    fn forget(&self, _: &str) {}
}

/// A node with one driver.
pub(super) struct World {
    root: PathBuf,
    pub(super) book: Arc<Book>,
    pub(super) drivers: Arc<Drivers>,
    api: Arc<Api>,
    in_use: Arc<Mutex<Vec<String>>>,
}

impl World {
    pub(super) fn new(name: &str, spec: CsiDriverSpec) -> Self {
        let root = std::env::temp_dir().join(format!("csi-{name}-{}", std::process::id())).join("kubelet");
        std::fs::create_dir_all(&root).unwrap();
        let (book, drivers) = (Arc::new(Book::default()), Arc::new(Drivers::default()));
        let socket = root.join("driver.sock");
        let listener = crate::sockets::bind(&socket, 0o600).unwrap();
        let served = book.clone();
        tokio::spawn(crate::sockets::serve(listener, move |request| {
            let mut service = NodeServer::from_arc(served.clone());
            async move { service.call(request.map(tonic::body::Body::new)).await.unwrap_or_else(|never| match never {}) }
        }));
        drivers.insert("folder.example.com", socket);
        let api = Arc::new(Api { spec, patches: Mutex::default(), bound: Mutex::default(), refused: Mutex::default() });
        World { root, book, drivers, api, in_use: Arc::default() }
    }

    /// A run of the agent.
    fn volumes(&self) -> Volumes {
        let in_use = self.in_use.clone();
        let (hears, heard) = watch::channel(0);
        let status = NodeStatus {
            volumes_attached: vec![AttachedVolume { name: UNIQUE.into(), ..Default::default() }],
            ..Default::default()
        };
        let node = proto::api::core::v1::Node { status: Some(status), ..Default::default() };
        let deps = CsiDeps {
            root_dir: self.root.clone(),
            node: "n".into(),
            drivers: self.drivers.clone(),
            in_use: Box::new(move |volumes| {
                *in_use.lock().unwrap() = volumes.names;
                hears.send_replace(volumes.change);
            }),
            reported: Some(Reported { heard, node: watch::channel(Arc::new(node)).1 }),
        };
        Volumes::new(deps, self.api.clone(), Arc::new(Nothing), Arc::new(Nothing))
    }

    pub(super) fn end(self) {
        std::fs::remove_dir_all(self.root.parent().unwrap()).unwrap();
    }
}

fn pod(uid: &str) -> Pod {
    let metadata = ObjectMeta { name: "p".into(), namespace: "ns".into(), uid: uid.into(), ..Default::default() };
    Pod { metadata: Some(metadata), ..Default::default() }
}

fn sized(text: &str) -> BTreeMap<String, Quantity> {
    [("storage".to_owned(), Quantity { string: text.into() })].into()
}

/// A claim that shows 1Gi, and how far its controller has come.
fn claim(stage: &str) -> PersistentVolumeClaim {
    let mut status = PersistentVolumeClaimStatus { capacity: sized("1Gi"), ..Default::default() };
    if !stage.is_empty() {
        status.allocated_resource_statuses.insert("storage".into(), stage.into());
    }
    PersistentVolumeClaim { status: Some(status), ..Default::default() }
}

fn volume(block: bool) -> PersistentVolume {
    PersistentVolume {
        metadata: Some(ObjectMeta { name: "pv".into(), ..Default::default() }),
        spec: Some(PersistentVolumeSpec {
            access_modes: vec!["ReadWriteOnce".into()],
            volume_mode: block.then(|| "Block".to_owned()),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn wanted<'a>(pod: &'a Pod, volume: &PersistentVolume) -> Wanted<'a> {
    let source = CsiPersistentVolumeSource {
        driver: "folder.example.com".into(),
        volume_handle: "abc".into(),
        ..Default::default()
    };
    Wanted::persistent(pod, volume, volume.spec.as_ref().unwrap(), &source, false)
}

const UNIQUE: &str = "kubernetes.io/csi/folder.example.com^abc";
const STAGED: &str = "plugins/kubernetes.io/csi/folder.example.com/ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad/globalmount";

fn plain() -> CsiDriverSpec {
    CsiDriverSpec {
        attach_required: Some(false),
        volume_lifecycle_modes: vec!["Persistent".into(), "Ephemeral".into()],
        ..Default::default()
    }
}

#[tokio::test]
async fn a_volume_is_taken_back_by_the_next_run_of_the_agent() {
    let world = World::new("restart", plain());
    let (pod, volume) = (pod("u1"), volume(false));
    let first = world.volumes();
    let path = first.set_up(&wanted(&pod, &volume)).await.unwrap();
    assert_eq!(path, world.root.join("pods/u1/volumes/kubernetes.io~csi/pv/mount"));
    let published = "publish pods/u1/volumes/kubernetes.io~csi/pv/mount".to_owned();
    assert_eq!(world.book.take(), [format!("stage {STAGED}"), published.clone()]);
    first.set_up(&wanted(&pod, &volume)).await.unwrap();
    assert_eq!(world.book.take(), Vec::<String>::new(), "the pod has it");
    drop(first);
    let second = world.volumes();
    second.set_up(&wanted(&pod, &volume)).await.unwrap();
    assert_eq!(world.book.take(), [format!("stage {STAGED}"), published], "once more after a start");
    let third = world.volumes();
    third.tear_down("u1").await.unwrap();
    let unpublished = "unpublish pods/u1/volumes/kubernetes.io~csi/pv/mount".to_owned();
    assert_eq!(world.book.take(), [unpublished, format!("unstage {STAGED}")]);
    assert!(!path.exists() && !world.root.join(STAGED).exists());
    third.tear_down("u1").await.unwrap();
    assert_eq!(world.book.take(), Vec::<String>::new());
    world.end();
}

#[tokio::test]
async fn the_last_pod_of_a_node_has_the_volume_unstaged() {
    let world = World::new("shared", plain());
    let (one, two, volume) = (pod("u1"), pod("u2"), volume(false));
    let volumes = world.volumes();
    volumes.set_up(&wanted(&one, &volume)).await.unwrap();
    volumes.set_up(&wanted(&two, &volume)).await.unwrap();
    world.book.take();
    volumes.tear_down("u1").await.unwrap();
    assert_eq!(world.book.take().len(), 1);
    *world.book.refuse.lock().unwrap() = Some(Status::internal("busy"));
    let why = volumes.tear_down("u2").await.unwrap_err();
    assert!(why.ends_with("rpc error: code = Internal desc = busy"), "{why}");
    assert!(Path::new(&world.root.join("pods/u2/volumes/kubernetes.io~csi/pv/vol_data.json")).exists());
    *world.book.refuse.lock().unwrap() = None;
    world.book.take();
    volumes.tear_down("u2").await.unwrap();
    assert_eq!(world.book.take().len(), 2);
    world.end();
}

#[tokio::test]
async fn what_was_left_staged_is_unstaged_when_its_driver_registers() {
    let world = World::new("sweep", plain());
    let (pod, volume) = (pod("u1"), volume(false));
    world.volumes().set_up(&wanted(&pod, &volume)).await.unwrap();
    // The agent was killed after the unpublish.
    std::fs::remove_dir_all(world.root.join("pods")).unwrap();
    world.book.take();
    let next = Arc::new(world.volumes());
    let sweeping = tokio::spawn({
        let next = next.clone();
        async move { next.sweep().await }
    });
    let limit = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    while world.root.join(STAGED).exists() && tokio::time::Instant::now() < limit {
        tokio::task::yield_now().await;
    }
    assert_eq!(world.book.take(), [format!("unstage {STAGED}")]);
    sweeping.abort();
    world.end();
}

/// A driver that did not unstage at once was asked again only when it registered anew: until then the volume was in use by
/// the node, and could not be detached. A device was never asked for again.
#[tokio::test]
async fn what_is_not_unstaged_at_once_is_tried_again_and_in_use_until_then() {
    let world = World::new("busy", CsiDriverSpec { attach_required: Some(true), ..plain() });
    let volumes = Arc::new(world.volumes());
    let blocks = "plugins/kubernetes.io/csi/volumeDevices";
    for block in [false, true] {
        let (pod, volume) = (pod("u1"), volume(block));
        let staged = if block { format!("{blocks}/staging/pv") } else { STAGED.to_owned() };
        match block {
            true => volumes.set_up_block(&wanted(&pod, &volume)).await.unwrap(),
            false => volumes.set_up(&wanted(&pod, &volume)).await.unwrap(),
        };
        if block {
            // The driver published a folder here; a device is a file.
            std::fs::remove_dir(world.root.join(blocks).join("publish/pv/u1")).unwrap();
            // What a kubelet leaves behind.
            std::fs::create_dir(world.root.join(blocks).join("pv/dev")).unwrap();
            std::fs::write(world.root.join(blocks).join("pv/dev/u1"), "").unwrap();
        }
        world.book.take();
        *world.book.busy.lock().unwrap() = 2;
        volumes.tear_down("u1").await.unwrap();
        assert_eq!(world.book.take().len(), 2, "unpublished, and asked to unstage");
        assert_eq!(*world.in_use.lock().unwrap(), [UNIQUE]);
        world.in_use.lock().unwrap().clear();
        drop(world.volumes());
        assert_eq!(world.in_use.lock().unwrap().len(), 1, "to the next agent as well");
        let sweeping = tokio::spawn({
            let volumes = volumes.clone();
            async move { volumes.sweep().await }
        });
        let limit = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
        while !world.in_use.lock().unwrap().is_empty() && tokio::time::Instant::now() < limit {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        assert_eq!(world.book.take(), [format!("unstage {staged}"), format!("unstage {staged}")]);
        assert!(!world.root.join(&staged).exists() && !world.root.join(blocks).join("pv").exists());
        sweeping.abort();
    }
    world.end();
}

#[tokio::test]
async fn an_attached_volume_is_in_use_and_its_driver_hears_of_pod_tokens_and_disk() {
    let request = proto::api::storage::v1::TokenRequest { audience: "vault".into(), expiration_seconds: None };
    let world = World::new(
        "attach",
        CsiDriverSpec {
            attach_required: Some(true),
            pod_info_on_mount: Some(true),
            token_requests: vec![request],
            ..plain()
        },
    );
    let (pod, volume) = (pod("u1"), volume(false));
    let volumes = world.volumes();
    volumes.set_up(&wanted(&pod, &volume)).await.unwrap();
    assert_eq!(*world.in_use.lock().unwrap(), [UNIQUE]);
    let contexts = std::mem::take(&mut *world.book.contexts.lock().unwrap());
    assert_eq!(contexts[0].get("disk").map(String::as_str), Some("sdx"));
    assert_eq!(contexts[1].get("csi.storage.k8s.io/pod.uid").map(String::as_str), Some("u1"));
    assert_eq!(
        contexts[1].get("csi.storage.k8s.io/serviceAccount.tokens").map(String::as_str),
        Some(r#"{"vault":{"expirationTimestamp":"1970-01-01T00:00:00Z","token":"for vault"}}"#)
    );
    assert_eq!(*world.in_use.lock().unwrap(), [UNIQUE]);
    volumes.tear_down("u1").await.unwrap();
    assert!(world.in_use.lock().unwrap().is_empty());
    world.end();
}

/// A pod for whose volume the node has no place waited for ever.
#[tokio::test]
async fn a_full_node_is_known_by_the_attachers_code_where_the_driver_keeps_its_limit_up_to_date() {
    for (period, code, want) in [(Some(60), Some(8), true), (None, Some(8), false), (Some(60), Some(13), false)] {
        let spec =
            CsiDriverSpec { attach_required: Some(true), node_allocatable_update_period_seconds: period, ..plain() };
        let world = World::new("full", spec);
        let refused = VolumeError { message: "no slot".into(), error_code: code, ..Default::default() };
        *world.api.refused.lock().unwrap() = Some(refused);
        let (pod, volume) = (pod("u1"), volume(false));
        let failed = world.volumes().set_up(&wanted(&pod, &volume)).await.unwrap_err();
        assert_eq!(failed, super::volumes::Failure::Attach { why: "no slot".into(), exhausted: want });
        let full = world.drivers.full("folder.example.com");
        let asked = tokio::time::timeout(std::time::Duration::from_millis(1), full.notified()).await.is_ok();
        assert_eq!(asked, want, "the driver is asked for its limit");
        world.end();
    }
}

#[tokio::test]
async fn an_inline_volume_is_published_only_and_only_where_the_driver_says_so() {
    let world = World::new("inline", plain());
    let pod = pod("u1");
    let source = CsiVolumeSource { driver: "folder.example.com".into(), ..Default::default() };
    let volumes = world.volumes();
    volumes.set_up(&Wanted::inline(&pod, "tmp", &source)).await.unwrap();
    volumes.tear_down("u1").await.unwrap();
    let place = "pods/u1/volumes/kubernetes.io~csi/tmp/mount";
    assert_eq!(world.book.take(), [format!("publish {place}"), format!("unpublish {place}")]);
    let other = CsiVolumeSource { driver: "other".into(), ..Default::default() };
    let Err(Failure::SetUp(why)) = volumes.set_up(&Wanted::inline(&pod, "tmp", &other)).await else { panic!() };
    assert_eq!(
        why,
        "kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: driver name other not found in the list of \
         registered CSI drivers"
    );
    world.end();
}

#[tokio::test]
async fn a_device_is_linked_and_a_larger_volume_grows() {
    let world = World::new("block", plain());
    let (pod, mut volume) = (pod("u1"), volume(true));
    let volumes = world.volumes();
    let link = volumes.set_up_block(&wanted(&pod, &volume)).await.unwrap();
    let blocks = "plugins/kubernetes.io/csi/volumeDevices";
    assert_eq!(std::fs::read_link(&link).unwrap(), world.root.join(blocks).join("publish/pv/u1"));
    world.book.take();
    volume.spec.as_mut().unwrap().capacity = sized("2Gi");
    let grow = async || volumes.expand(&wanted(&pod, &volume), &volume, &mut claim("")).await;
    assert_eq!((grow().await, grow().await), (Ok(true), Ok(false)));
    assert_eq!(world.book.take(), [format!("expand to 2147483648 {blocks}/publish/pv/u1")], "once in a while");
    let patches = std::mem::take(&mut *world.api.patches.lock().unwrap());
    // The controller is one that says nothing of how far it is.
    assert!(patches.len() == 1 && !patches[0].contains("allocatedResourceStatuses"), "{patches:?}");
    assert!(patches[0].contains(r#""capacity":{"storage":"2Gi"}"#), "{patches:?}");
    // The driver published a folder here; a device is a file.
    std::fs::remove_dir(world.root.join(blocks).join("publish/pv/u1")).unwrap();
    world.volumes().tear_down("u1").await.unwrap();
    let calls = world.book.take();
    assert_eq!(calls, [format!("unpublish {blocks}/publish/pv/u1"), format!("unstage {blocks}/staging/pv")]);
    assert!(link.symlink_metadata().is_err() && !world.root.join(blocks).join("pv").exists());
    world.end();
}

/// Nobody was told of a volume that could not grow but the agent's log, and the driver was asked for ever for a size that
/// it cannot give.
#[tokio::test]
async fn a_size_that_cannot_be_had_stands_in_the_claim() {
    let world = World::new("grow", plain());
    let (pod, mut volume) = (pod("u1"), volume(false));
    volume.spec.as_mut().unwrap().capacity = sized("2Gi");
    let prefix = "Expander.NodeExpand failed to expand the volume ";
    // What the driver says, what comes of it, how often the claim is told under way and failed.
    let refusals = [
        (Status::failed_precondition("used"), Ok(false), 2),
        (Status::internal("broken"), Err(": rpc error: code = Internal desc = broken"), 2),
        (Status::aborted("at it"), Err(": rpc error: code = Aborted desc = at it"), 1),
        (Status::out_of_range("too large"), Err("rpc error: code = OutOfRange desc = too large"), 2),
    ];
    for (refusal, answer, patches) in refusals {
        let infeasible = refusal.code() == tonic::Code::OutOfRange;
        *world.book.refuse.lock().unwrap() = Some(refusal);
        for (stage, patches) in [("NodeResizePending", patches), ("NodeResizeInProgress", patches - 1), ("", 0)] {
            let got = world.volumes().expand(&wanted(&pod, &volume), &volume, &mut claim(stage)).await;
            assert_eq!(got, answer.map_err(|why| format!("{prefix}{why}")));
            let written = std::mem::take(&mut *world.api.patches.lock().unwrap());
            assert_eq!(written.len(), patches, "{stage} {written:?}");
            if stage == "NodeResizeInProgress" && patches == 1 {
                assert_eq!(written[0].contains(r#""storage":"NodeResizeInfeasible""#), infeasible, "{written:?}");
                assert!(written[0].contains("failed to expand pvc with Expander.NodeExpand failed"), "{written:?}");
            }
        }
    }
    world.book.take();
    let grown = world.volumes().expand(&wanted(&pod, &volume), &volume, &mut claim("NodeResizeInfeasible")).await;
    assert_eq!(grown, Ok(false));
    assert_eq!(world.book.take(), Vec::<String>::new(), "the controller has to say");
    world.end();
}

#[tokio::test]
async fn a_size_that_nobody_wants_any_more_is_given_up_and_a_used_volume_is_left_alone() {
    let world = World::new("again", plain());
    let (pod, mut volume) = (pod("u1"), volume(false));
    volume.spec.as_mut().unwrap().capacity = sized("2Gi");
    let mut other = claim("NodeResizeInProgress");
    let resources = VolumeResourceRequirements { requests: sized("3Gi"), ..Default::default() };
    other.spec = Some(PersistentVolumeClaimSpec { resources: Some(resources), ..Default::default() });
    let volumes = world.volumes();
    let later = async || {
        tokio::time::pause();
        tokio::time::advance(std::time::Duration::from_secs(70)).await;
        tokio::time::resume();
        let answer = volumes.expand(&wanted(&pod, &volume), &volume, &mut other.clone()).await;
        (answer.is_err(), std::mem::take(&mut *world.api.patches.lock().unwrap()).join(" "))
    };
    *world.book.refuse.lock().unwrap() = Some(Status::internal("broken"));
    let (failed, written) = later().await;
    assert!(failed && !written.contains("Infeasible"), "{written}");
    let (failed, written) = later().await;
    assert!(failed && written.contains("NodeResizeInfeasible"), "{written}");
    *world.book.refuse.lock().unwrap() = Some(Status::failed_precondition("used"));
    later().await;
    world.book.take();
    assert_eq!(later().await, (false, String::new()));
    assert_eq!(world.book.take(), Vec::<String>::new());
    volumes.note_unused("folder.example.com", "abc");
    later().await;
    assert_eq!(world.book.take().len(), 1, "nobody uses it any more");
    world.end();
}

/// A claim that was read stayed young for as long as its pod was synced often: what was written into it was never seen, and
/// the volume grew anew every minute.
#[tokio::test]
async fn a_volume_grows_once_however_often_its_pod_is_looked_after() {
    let world = World::new("once", plain());
    let mut pod = pod("u1");
    let source = PersistentVolumeClaimVolumeSource { claim_name: "c".into(), read_only: false };
    let source = VolumeSource { persistent_volume_claim: Some(source), ..Default::default() };
    let mounts = vec![VolumeMount { name: "data".into(), ..Default::default() }];
    pod.spec = Some(PodSpec {
        volumes: vec![Volume { name: "data".into(), volume_source: Some(source) }],
        containers: vec![Container { name: "main".into(), volume_mounts: mounts, ..Default::default() }],
        ..Default::default()
    });
    let mut of_claim = claim("");
    of_claim.spec = Some(PersistentVolumeClaimSpec { volume_name: "pv".into(), ..Default::default() });
    of_claim.status.as_mut().unwrap().phase = "Bound".into();
    let mut of_volume = volume(false);
    let spec = of_volume.spec.as_mut().unwrap();
    spec.capacity = sized("1Gi");
    spec.claim_ref = Some(ObjectReference::default());
    let csi = CsiPersistentVolumeSource {
        driver: "folder.example.com".into(),
        volume_handle: "abc".into(),
        ..Default::default()
    };
    spec.persistent_volume_source = Some(PersistentVolumeSource { csi: Some(csi), ..Default::default() });
    *world.api.bound.lock().unwrap() = (of_claim, of_volume);
    let manager = Manager::new(VolumeDeps {
        root_dir: world.root.clone(),
        objects: Arc::new(Nothing),
        tokens: Arc::new(Nothing),
        claims: world.api.clone(),
        node: watch::channel(Arc::default()).1,
        csi: CsiDeps {
            root_dir: world.root.clone(),
            node: "n".into(),
            drivers: world.drivers.clone(),
            in_use: Box::new(|_| {}),
            reported: None,
        },
    });
    manager.setup(&pod, &mut Told::default()).await.unwrap();
    {
        let (claim, volume) = &mut *world.api.bound.lock().unwrap();
        volume.spec.as_mut().unwrap().capacity = sized("2Gi");
        let stages = &mut claim.status.as_mut().unwrap().allocated_resource_statuses;
        stages.insert("storage".into(), "NodeResizePending".into());
    }
    world.book.take();
    let mut told = Told::default();
    for _ in 0..9 {
        tokio::time::pause();
        tokio::time::advance(std::time::Duration::from_secs(20)).await;
        tokio::time::resume();
        manager.setup(&pod, &mut told).await.unwrap();
    }
    let target = "pods/u1/volumes/kubernetes.io~csi/pv/mount";
    assert_eq!(world.book.take(), [format!("expand to 2147483648 {target}")]);
    assert_eq!((told.grown.len(), world.api.patches.lock().unwrap().len()), (1, 2));
    world.end();
}

/// All volumes waited together: one that never went made the next wait up to two minutes.
#[tokio::test]
async fn a_volume_that_is_never_unstaged_holds_up_no_other() {
    let world = World::new("stuck", plain());
    let volumes = Arc::new(world.volumes());
    *world.book.stuck.lock().unwrap() = "stuck".into();
    let sweeping = tokio::spawn({
        let volumes = volumes.clone();
        async move { volumes.sweep().await }
    });
    let (one, two, volume) = (pod("u1"), pod("u2"), volume(false));
    let mut stuck = wanted(&one, &volume);
    stuck.handle = "stuck".into();
    volumes.set_up(&stuck).await.unwrap();
    volumes.set_up(&wanted(&two, &volume)).await.unwrap();
    volumes.tear_down("u1").await.unwrap();
    let tries = || world.book.calls.lock().unwrap().iter().filter(|call| call.starts_with("unstage")).count();
    let limit = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    // After three more tries it waits for four seconds.
    while tries() < 4 && tokio::time::Instant::now() < limit {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    *world.book.busy.lock().unwrap() = 1;
    volumes.tear_down("u2").await.unwrap();
    let begun = tokio::time::Instant::now();
    while world.root.join(STAGED).exists() && begun.elapsed().as_secs() < 20 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(begun.elapsed().as_secs() < 2, "{:?}", begun.elapsed());
    sweeping.abort();
    world.end();
}

/// One volume of a driver was worked on at a time: an answer that never came held up all others for two minutes.
#[tokio::test]
async fn a_driver_that_does_not_answer_about_a_volume_holds_up_no_other() {
    let world = World::new("hangs", plain());
    let volumes = Arc::new(world.volumes());
    *world.book.hangs.lock().unwrap() = "hangs".into();
    let (one, two, three, volume) = (pod("u1"), pod("u2"), pod("u3"), volume(false));
    let set_up = async |pod, handle: &str, name: &str| {
        let mut wanted = wanted(pod, &volume);
        (wanted.handle, wanted.name) = (handle.into(), name.into());
        volumes.set_up(&wanted).await.unwrap()
    };
    // Beside that of the sweep, which an agent that was killed left, one that a pod leaves; then those of a pod that ends.
    set_up(&one, "hangs", "pv").await;
    std::fs::remove_dir_all(world.root.join("pods/u1")).unwrap();
    let sweeping = tokio::spawn({
        let volumes = volumes.clone();
        async move { volumes.sweep().await }
    });
    let called = async |call: &str| {
        let begun = tokio::time::Instant::now();
        while !world.book.calls.lock().unwrap().iter().any(|made| made.starts_with(call)) {
            assert!(begun.elapsed().as_secs() < 10, "{call}: {:?}", world.book.calls.lock().unwrap());
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let staged = |handle: &str| volumes.places.staged("folder.example.com", handle);
    called("unstage ").await;
    set_up(&three, "left", "pv2").await;
    *world.book.busy.lock().unwrap() = 1;
    volumes.tear_down("u3").await.unwrap();
    let begun = tokio::time::Instant::now();
    while staged("left").exists() && begun.elapsed().as_secs() < 10 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(!staged("left").exists() && staged("hangs").exists());
    sweeping.abort();
    let _ = sweeping.await;
    set_up(&two, "hangs", "a").await;
    set_up(&two, "other", "b").await;
    let ending = tokio::spawn({
        let volumes = volumes.clone();
        async move { volumes.tear_down("u2").await }
    });
    called("unpublish pods/u2/volumes/kubernetes.io~csi/a/").await;
    called("unpublish pods/u2/volumes/kubernetes.io~csi/b/").await;
    ending.abort();
    world.end();
}

#[tokio::test]
async fn volumes_that_are_not_well_are_told_of_where_somebody_wants_to_know() {
    let world = World::new("health", plain());
    let usages = &world.drivers.usages;
    for name in ["broken", "whole"] {
        let claim = Some(("ns".to_owned(), name.to_owned()));
        let driver = "folder.example.com".into();
        let teller = usage::Teller::Driver { driver, handle: name.into(), staging: PathBuf::new() };
        usages.note("u1", name, usage::Held { teller, path: Path::new("/volumes").join(name), claim });
    }
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let tell: usage::TellAbnormal = Box::new(move |found| tell.send(found).unwrap());
    let keeping = usages.keep(&world.drivers, std::time::Duration::from_secs(60), Some(tell));
    let found = tokio::select! {
        () = keeping => unreachable!("it is kept for as long as there are volumes"),
        found = told.recv() => found.unwrap(),
    };
    let message = "the disk is loud".into();
    assert_eq!(found, [usage::Abnormal { uid: "u1".into(), volume: "broken".into(), message }]);
    let conditions =
        || usages.of_pod("u1").into_iter().map(|(_, u)| u.condition.map(|c| c.abnormal)).collect::<Vec<_>>();
    assert_eq!(conditions(), [Some(true), Some(false)]);
    // Where the gate is off nobody asks.
    let keeping = usages.keep(&world.drivers, std::time::Duration::from_secs(60), None);
    let _ = tokio::time::timeout(std::time::Duration::from_millis(500), keeping).await;
    assert_eq!(conditions(), [None, None]);
    world.end();
}
