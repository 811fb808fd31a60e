//! A plugin in this process against the real sockets: the recorded flow, a crash, a return, an agent that starts anew.

use std::sync::Arc;
use std::time::Duration;

use proto::api::core::v1::{Container, Pod, PodSpec, PodStatus, ResourceRequirements};
use proto::apimachinery::pkg::api::resource::Quantity;
use proto::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use proto::device_plugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use proto::device_plugin::registration_client::RegistrationClient;
use proto::device_plugin::*;
use tokio::sync::{mpsc, watch};
use tonic::codegen::Service as _;
use tonic::{Request, Response, Status};

use super::*;
use crate::pod::spec::PodExt as _;
use crate::sockets;

const WIDGET: &str = "example.com/widget";

struct Plugin {
    log: mpsc::UnboundedSender<String>,
    unhealthy: watch::Receiver<Option<&'static str>>,
}

type Stream = std::pin::Pin<Box<dyn futures_util::Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream = Stream;

    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        let options = DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: true };
        Ok(Response::new(options))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Stream>, Status> {
        let stream = futures_util::stream::unfold((self.unhealthy.clone(), true), |(mut bad, first)| async move {
            if !first {
                bad.changed().await.ok()?;
            }
            let devices = ["w0", "w1", "w2", "w3"].map(|id| {
                let health = if *bad.borrow() == Some(id) { "Unhealthy" } else { "Healthy" };
                let topology = (id == "w0").then(|| TopologyInfo { nodes: vec![NumaNode { id: 0 }] });
                device(id, health, topology)
            });
            Some((Ok(ListAndWatchResponse { devices: devices.into() }), (bad, false)))
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let request = request.into_inner().container_requests.remove(0);
        self.log
            .send(format!("prefer {} of {}", request.allocation_size, request.available_device_i_ds.join(",")))
            .ok();
        let size = usize::try_from(request.allocation_size).unwrap();
        let mut ids = request.available_device_i_ds;
        ids.sort();
        let device_i_ds = ids.split_off(ids.len() - size);
        let container_responses = vec![ContainerPreferredAllocationResponse { device_i_ds }];
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let ids = request.into_inner().container_requests.remove(0).devices_ids.join(",");
        self.log.send(format!("allocate {ids}")).ok();
        let response = ContainerAllocateResponse { envs: [("WIDGETS".to_owned(), ids)].into(), ..Default::default() };
        Ok(Response::new(AllocateResponse { container_responses: vec![response] }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        self.log.send(format!("start {}", request.into_inner().devices_ids.join(","))).ok();
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

pub(super) fn device(id: &str, health: &str, topology: Option<TopologyInfo>) -> proto::device_plugin::Device {
    proto::device_plugin::Device { id: id.into(), health: health.into(), topology }
}

struct Fixture {
    dir: PathBuf,
    devices: Arc<Devices>,
    _server: tokio::task::JoinHandle<()>,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn fixture(name: &str) -> Fixture {
    let dir = std::env::temp_dir().join(format!("plugins-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let devices = Devices::new(dir.clone(), Arc::default(), |d| panic!("{d}"));
    let _server = tokio::spawn(start(devices.clone()).unwrap());
    Fixture { dir, devices, _server }
}

struct Running {
    task: tokio::task::JoinHandle<()>,
    log: mpsc::UnboundedReceiver<String>,
    unhealthy: watch::Sender<Option<&'static str>>,
}

async fn plugin(fixture: &Fixture) -> Running {
    let (sender, log) = mpsc::unbounded_channel();
    let (unhealthy, receiver) = watch::channel(None);
    let listener = sockets::bind(&fixture.dir.join("w.sock"), 0o600).unwrap();
    let server = DevicePluginServer::new(Plugin { log: sender, unhealthy: receiver });
    let task = tokio::spawn(sockets::serve(listener, move |request| {
        let mut server = server.clone();
        async move { server.call(request).await.unwrap() }
    }));
    let mut changes = fixture.devices.changes();
    register(fixture, "v1beta1", "w.sock", WIDGET).await.unwrap();
    changes.changed().await.unwrap();
    Running { task, log, unhealthy }
}

async fn register(fixture: &Fixture, version: &str, endpoint: &str, resource: &str) -> Result<(), Status> {
    let channel = sockets::channel(&fixture.dir.join("kubelet.sock"), Duration::from_secs(5)).await.unwrap();
    let request = RegisterRequest {
        version: version.into(),
        endpoint: endpoint.into(),
        resource_name: resource.into(),
        options: None,
    };
    RegistrationClient::new(channel).register(request).await.map(|_| ())
}

fn container(name: &str, widgets: u32) -> Container {
    let limits = [(WIDGET.to_owned(), Quantity { string: widgets.to_string() })].into();
    Container {
        name: name.into(),
        resources: Some(ResourceRequirements { limits, ..Default::default() }),
        ..Default::default()
    }
}

impl Devices {
    /// All containers of a pod, without regard to nodes.
    async fn allocate(&self, pod: &Pod, running: &BTreeSet<String>) -> Result<(), AllocateError> {
        let (held, mut pool) = (self.held(pod.uid()), Pool::default());
        for container in pod.spec().init_containers.iter().chain(&pod.spec().containers) {
            if let Err(error) = self.allocate_container(pod, container, running, &mut pool, None).await {
                self.restore(pod.uid(), held);
                return Err(error);
            }
        }
        Ok(())
    }
}

fn pod(uid: &str, init: Vec<Container>, containers: Vec<Container>) -> Pod {
    Pod {
        metadata: Some(ObjectMeta { uid: uid.into(), name: uid.into(), ..Default::default() }),
        spec: Some(PodSpec { init_containers: init, containers, ..Default::default() }),
        ..Default::default()
    }
}

#[tokio::test]
async fn devices_go_from_init_to_regular_containers_and_come_back() {
    let fixture = fixture("flow");
    let devices = &fixture.devices;
    let mut running = plugin(&fixture).await;
    assert_eq!(devices.amounts()[WIDGET], (4, 4));
    let first = pod("p", vec![container("i", 1)], vec![container("a", 1), container("b", 2)]);
    devices.allocate(&first, &BTreeSet::new()).await.unwrap();
    devices.container(&first, &first.spec.as_ref().unwrap().containers[1]).await.unwrap();
    let mut log = Vec::new();
    while let Ok(line) = running.log.try_recv() {
        log.push(line);
    }
    let want = [
        "prefer 1 of w0,w1,w2,w3",
        "allocate w3",
        "allocate w3",
        "prefer 2 of w0,w1,w2",
        "allocate w1,w2",
        "start w1,w2",
    ];
    assert_eq!(log, want);
    assert_eq!(devices.assigned("p", "b").len(), 2);

    let second = pod("q", Vec::new(), vec![container("c", 4)]);
    let refused = devices.allocate(&second, &BTreeSet::new()).await.unwrap_err();
    let want = "requested number of devices unavailable for example.com/widget. Requested: 4, Available: 1";
    assert_eq!(refused.to_string(), want);
    devices.release("p");
    devices.allocate(&second, &BTreeSet::new()).await.unwrap();
    running.task.abort();
}

/// Of the first device of container `a` of pod `p`.
fn health_of(devices: &Devices) -> String {
    let mut status = PodStatus::default();
    status.container_statuses.push(proto::api::core::v1::ContainerStatus { name: "a".into(), ..Default::default() });
    devices.annotate("p", &mut status);
    status.container_statuses[0].allocated_resources_status[0].resources[0].health.clone()
}

#[tokio::test]
async fn health_shows_in_amounts_and_status_and_a_lost_plugin_comes_back() {
    let fixture = fixture("health");
    let devices = &fixture.devices;
    let running = plugin(&fixture).await;
    let one = pod("p", Vec::new(), vec![container("a", 1)]);
    devices.allocate(&one, &BTreeSet::new()).await.unwrap();
    let health = || health_of(devices);
    assert_eq!(health(), "Healthy");
    let mut changes = devices.changes();
    changes.mark_unchanged();
    running.unhealthy.send_replace(Some("w3"));
    changes.changed().await.unwrap();
    assert_eq!((devices.amounts()[WIDGET], health().as_str()), ((4, 3), "Unhealthy"));
    running.unhealthy.send_replace(None);
    changes.changed().await.unwrap();
    assert_eq!((devices.amounts()[WIDGET], health().as_str()), ((4, 4), "Healthy"));

    // Each restart of a plugin or of the agent used to look like a failure of all its devices.
    running.task.abort();
    changes.changed().await.unwrap();
    assert_eq!((devices.amounts()[WIDGET], health().as_str()), ((4, 0), "Healthy"));
    let anew = Devices::new(fixture.dir.clone(), Arc::default(), |d| panic!("{d}"));
    assert_eq!(health_of(&anew), "Healthy");
    let refused = devices.allocate(&pod("q", Vec::new(), vec![container("a", 1)]), &BTreeSet::new()).await;
    assert!(matches!(refused, Err(AllocateError::NoneHealthy(_))));

    let again = plugin(&fixture).await;
    assert_eq!((devices.amounts()[WIDGET], health().as_str()), ((4, 4), "Healthy"));
    again.task.abort();
}

#[tokio::test]
async fn an_agent_that_starts_anew_knows_who_has_what_and_shows_nothing_until_the_plugin_is_back() {
    let fixture = fixture("restart");
    let running = plugin(&fixture).await;
    // The init container ended long ago; that must not cost the pod its life.
    let one = pod("p", vec![container("i", 1)], vec![container("a", 1)]);
    fixture.devices.allocate(&one, &BTreeSet::new()).await.unwrap();
    let anew = Devices::new(fixture.dir.clone(), Arc::default(), |d| panic!("{d}"));
    assert_eq!(anew.amounts()[WIDGET], (0, 0));
    assert_eq!(anew.assigned("p", "a"), fixture.devices.assigned("p", "a"));
    anew.allocate(&one, &["a".to_owned()].into()).await.unwrap();
    assert!(anew.allocate(&one, &BTreeSet::new()).await.is_err());
    running.task.abort();
}

#[tokio::test]
async fn bad_registrations_are_refused_with_the_recorded_texts() {
    let fixture = fixture("bad");
    let refused = register(&fixture, "v1alpha", "x.sock", "example.com/x").await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unknown);
    let want = "requested API version \"v1alpha\" is not supported by kubelet. Supported version is [\"v1beta1\"]";
    assert_eq!(refused.message(), want);
    let refused = register(&fixture, "v1beta1", "x.sock", "x").await.unwrap_err();
    assert_eq!(refused.message(), "the ResourceName \"x\" is invalid");
}

#[tokio::test]
async fn a_damaged_checkpoint_is_set_aside_and_devices_are_given_anew() {
    let fixture = fixture("damaged");
    let running = plugin(&fixture).await;
    let one = pod("p", vec![], vec![container("a", 1)]);
    fixture.devices.allocate(&one, &BTreeSet::new()).await.unwrap();
    let file = fixture.dir.join(super::checkpoint::FILE);
    let whole = std::fs::read(&file).unwrap();
    for text in [&whole[..whole.len() / 2], b"", b"[]", &[0xff, 0xfe]] {
        std::fs::write(&file, text).unwrap();
        let mut told = Vec::new();
        let anew = Devices::new(fixture.dir.clone(), Arc::default(), |damaged| told.push(damaged.clone()));
        assert_eq!((told.len(), anew.assigned("p", "a").len()), (1, 0), "{told:?}");
        assert_eq!(std::fs::read(told[0].aside.as_ref().unwrap()).unwrap(), text);
        assert!(!file.exists());
    }
    running.task.abort();
}

/// A second plugin used to leave the first one's stream open for as long as that liked.
#[tokio::test]
async fn the_newest_plugin_of_a_resource_counts_and_the_one_before_is_left() {
    let fixture = fixture("newest");
    let first = plugin(&fixture).await;
    let before = fixture.devices.state().resources[WIDGET].endpoint.clone().unwrap();
    let second = plugin(&fixture).await;
    let now = fixture.devices.state().resources[WIDGET].endpoint.clone().unwrap();
    assert!(!Arc::ptr_eq(&before, &now));
    // Nobody but this test holds the connection of the first one any more.
    for _ in 0..200 {
        if Arc::strong_count(&before) == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(Arc::strong_count(&before), 1);
    // Its socket that goes away is not the second one's.
    fixture.devices.unregister(WIDGET, std::path::Path::new("/elsewhere"));
    assert_eq!(fixture.devices.amounts()[WIDGET], (4, 4));
    fixture.devices.unregister(WIDGET, &now.socket);
    assert_eq!(fixture.devices.amounts()[WIDGET], (4, 0));
    first.task.abort();
    second.task.abort();
}

/// Each word of a plugin used to be a checkpoint on the disk and a status of the node.
#[tokio::test]
async fn a_plugin_that_never_stops_talking_is_heard_every_moment() {
    let fixture = fixture("talks");
    let running = plugin(&fixture).await;
    let mut changes = fixture.devices.changes();
    let since = *changes.borrow_and_update();
    let began = std::time::Instant::now();
    for turn in 0..400 {
        running.unhealthy.send_replace(Some(if turn % 2 == 0 { "w1" } else { "w2" }));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    running.unhealthy.send_replace(None);
    while fixture.devices.amounts()[WIDGET] != (4, 4) {
        changes.changed().await.unwrap();
    }
    let heard = changes.borrow().wrapping_sub(since);
    // The first word and the last one of each moment, and of the two that were begun or are not over.
    let moments = began.elapsed().as_millis() / super::endpoint::MOMENT.as_millis() + 2;
    assert!(u128::from(heard) <= 2 * moments, "{heard} in {moments} moments");
    running.task.abort();
}

/// What could not be written used to be lost until something else changed.
#[tokio::test]
async fn assignments_are_saved_once_the_disk_lets_it() {
    let fixture = fixture("unsaved");
    let running = plugin(&fixture).await;
    let file = fixture.dir.join(super::checkpoint::FILE);
    // A folder at the place of the new file stands for a disk that takes nothing.
    let in_the_way = fixture.dir.join(format!(".{}", super::checkpoint::FILE));
    std::fs::create_dir(&in_the_way).unwrap();
    let one = pod("p", vec![], vec![container("a", 1)]);
    fixture.devices.allocate(&one, &BTreeSet::new()).await.unwrap();
    assert!(!std::fs::read_to_string(&file).unwrap_or_default().contains("\"p\""));
    std::fs::remove_dir(&in_the_way).unwrap();
    for _ in 0..500 {
        if std::fs::read_to_string(&file).unwrap_or_default().contains("\"p\"") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(std::fs::read_to_string(&file).unwrap().contains("\"p\""));
    assert!(!fixture.devices.unsaved.load(Ordering::Relaxed));
    running.task.abort();
}
