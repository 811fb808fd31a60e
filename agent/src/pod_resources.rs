//! PodResources: which devices, claims, CPUs and memory the containers of this node have to themselves, for monitoring agents on it.
//!
//! `pod-resources/kubelet.sock` serves v1 and the List of v1alpha1. Active pods are listed: those of which something is
//! left on the node. All methods share one limit of calls.
//!
//! Followed: `pkg/kubelet/apis/podresources`.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Request;
use hyper::body::Incoming;
use prost::Message as _;
use proto::pod_resources::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use proto::pod_resources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices, ContainerMemory, ContainerResources,
    GetPodResourcesRequest, GetPodResourcesResponse, ListPodResourcesRequest, ListPodResourcesResponse, NumaNode,
    PodResources, TopologyInfo,
};
use tonic::codegen::Service;
use tonic::server::Grpc;
use tonic::{Response, Status};

use crate::device_plugins::{AssignedDevice, Devices};
use crate::dra::Dra;
use crate::metrics::{self, Family};
use crate::pod::spec::{PodExt as _, is_sidecar};
use crate::pods_api::{KnownPod, PodFeed};
use crate::resource_managers::{Block, Managers};
use crate::sockets::{Bucket, RawCodec, Reply, bind, serve, unimplemented};

const REQUEST_BYTES: usize = 64 << 10;

/// Listens and serves until dropped.
///
/// # Errors
/// When the socket cannot be made.
pub fn start(
    path: &Path,
    feed: Arc<PodFeed>,
    (devices, managers, dra): (Arc<Devices>, Arc<Managers>, Arc<Dra>),
) -> std::io::Result<impl Future<Output = ()> + use<>> {
    let listener = bind(path, 0o755)?;
    let lister = Arc::new(Lister { feed, devices, managers, dra, bucket: Bucket::of_kubelet() });
    Ok(serve(listener, move |request| answer(lister.clone(), request)))
}

async fn answer(lister: Arc<Lister>, request: Request<Incoming>) -> Reply {
    match request.uri().path() {
        "/v1.PodResourcesLister/List"
        | "/v1.PodResourcesLister/GetAllocatableResources"
        | "/v1.PodResourcesLister/Get" => {
            let mut server = PodResourcesListerServer::from_arc(lister).max_decoding_message_size(REQUEST_BYTES);
            match server.call(request).await {
                Ok(reply) => reply,
                Err(never) => match never {},
            }
        }
        "/v1alpha1.PodResourcesLister/List" => {
            let mut grpc = Grpc::new(RawCodec).max_decoding_message_size(REQUEST_BYTES);
            grpc.unary(ListAlpha(lister), request).await
        }
        other => unimplemented(other, &["v1.PodResourcesLister", "v1alpha1.PodResourcesLister"]),
    }
}

/// Counts a request, for its call and for all.
fn counted(call: &Family, version: &str) {
    metrics::POD_RESOURCES_REQUESTS.inc(&[version]);
    call.inc(&[version]);
}

/// Counts what goes wrong.
fn failed<T>(outcome: Result<T, Status>, errors: &Family, version: &str) -> Result<T, Status> {
    outcome.inspect_err(|_| errors.inc(&[version]))
}

struct Lister {
    feed: Arc<PodFeed>,
    devices: Arc<Devices>,
    managers: Arc<Managers>,
    dra: Arc<Dra>,
    bucket: Bucket,
}

impl Lister {
    fn all(&self) -> ListPodResourcesResponse {
        let active = self.feed.pods().into_iter().filter(|p| !p.finished);
        ListPodResourcesResponse { pod_resources: active.map(|p| self.of(&p)).collect() }
    }

    fn of(&self, known: &KnownPod) -> PodResources {
        let spec = known.pod.spec();
        let sidecars = spec.init_containers.iter().filter(|c| is_sidecar(c));
        let containers = sidecars.chain(&spec.containers).map(|container| ContainerResources {
            name: container.name.clone(),
            devices: self.devices.assigned(known.pod.uid(), &container.name).into_iter().map(device).collect(),
            cpu_ids: self.managers.exclusive(&known.pod, container).iter().map(i64::from).collect(),
            memory: self.managers.memory_of(known.pod.uid(), &container.name).into_iter().map(memory).collect(),
            dynamic_resources: self.dra.resources(&known.pod, container),
        });
        PodResources {
            name: known.pod.name().into(),
            namespace: known.pod.namespace().into(),
            containers: containers.collect(),
        }
    }
}

fn memory(block: Block) -> ContainerMemory {
    let nodes = block.numa_affinity.into_iter().map(|id| NumaNode { id: id.into() }).collect();
    ContainerMemory { memory_type: block.r#type, size: block.size, topology: Some(TopologyInfo { nodes }) }
}

fn device(device: AssignedDevice) -> ContainerDevices {
    let topology =
        device.nodes.map(|nodes| TopologyInfo { nodes: nodes.into_iter().map(|id| NumaNode { id }).collect() });
    ContainerDevices { resource_name: device.resource, device_ids: vec![device.id], topology }
}

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(
        &self,
        _: tonic::Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        counted(&metrics::POD_RESOURCES_LIST, "v1");
        failed(self.bucket.admit(), &metrics::POD_RESOURCES_LIST_ERRORS, "v1")?;
        Ok(Response::new(self.all()))
    }

    async fn get_allocatable_resources(
        &self,
        _: tonic::Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        counted(&metrics::POD_RESOURCES_ALLOCATABLE, "v1");
        failed(self.bucket.admit(), &metrics::POD_RESOURCES_ALLOCATABLE_ERRORS, "v1")?;
        let devices = self.devices.allocatable().into_iter().map(device).collect();
        let cpu_ids = self.managers.allocatable_cpus().iter().map(i64::from).collect();
        let memory = self.managers.allocatable_memory().into_iter().map(memory).collect();
        Ok(Response::new(AllocatableResourcesResponse { devices, cpu_ids, memory }))
    }

    async fn get(
        &self,
        request: tonic::Request<GetPodResourcesRequest>,
    ) -> Result<Response<GetPodResourcesResponse>, Status> {
        counted(&metrics::POD_RESOURCES_GET, "v1");
        failed(self.bucket.admit(), &metrics::POD_RESOURCES_GET_ERRORS, "v1")?;
        let GetPodResourcesRequest { pod_name: name, pod_namespace: namespace } = request.into_inner();
        let pods = self.feed.pods();
        let found = pods.iter().find(|p| p.pod.name() == name && p.pod.namespace() == namespace);
        // Upstream answers a plain Go error, which gRPC calls Unknown.
        let found = found.ok_or_else(|| Status::unknown(format!("pod {name} in namespace {namespace} not found")));
        let found = failed(found, &metrics::POD_RESOURCES_GET_ERRORS, "v1")?;
        Ok(Response::new(GetPodResourcesResponse { pod_resources: Some(self.of(found)) }))
    }
}

/// List of v1alpha1: the same numbers, without where devices are.
struct ListAlpha(Arc<Lister>);

impl Service<tonic::Request<Bytes>> for ListAlpha {
    type Response = Response<Bytes>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Bytes>, Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: tonic::Request<Bytes>) -> Self::Future {
        counted(&metrics::POD_RESOURCES_LIST, "v1alpha1");
        let admitted = failed(self.0.bucket.admit(), &metrics::POD_RESOURCES_LIST_ERRORS, "v1alpha1");
        let answer = admitted.map(|()| {
            let mut all = self.0.all();
            let containers = all.pod_resources.iter_mut().flat_map(|p| &mut p.containers);
            for container in containers {
                container.cpu_ids.clear();
                container.memory.clear();
                container.dynamic_resources.clear();
                container.devices.iter_mut().for_each(|device| device.topology = None);
            }
            Response::new(Bytes::from(all.encode_to_vec()))
        });
        Box::pin(std::future::ready(answer))
    }
}
