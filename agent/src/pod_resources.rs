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

/// Listens and serves until dropped. Without `active_only` List of v1 tells every pod too (gate
/// `KubeletPodResourcesListUseActivePods`).
///
/// # Errors
/// When the socket cannot be made.
pub fn start(
    path: &Path,
    feed: Arc<PodFeed>,
    (devices, managers, dra): (Arc<Devices>, Arc<Managers>, Arc<Dra>),
    active_only: bool,
) -> std::io::Result<impl Future<Output = ()> + use<>> {
    let listener = bind(path, 0o755)?;
    let lister = Arc::new(Lister { feed, devices, managers, dra, active_only, bucket: Bucket::of_kubelet() });
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

/// Counts a request that the limit let through, for all calls and for its own where that has a family.
fn counted(call: Option<&Family>, version: &str) {
    metrics::POD_RESOURCES_REQUESTS.inc(&[version]);
    call.iter().for_each(|call| call.inc(&[version]));
}

struct Lister {
    feed: Arc<PodFeed>,
    devices: Arc<Devices>,
    managers: Arc<Managers>,
    dra: Arc<Dra>,
    active_only: bool,
    bucket: Bucket,
}

impl Lister {
    fn all(&self) -> ListPodResourcesResponse {
        let listed = listed(self.feed.pods(), self.active_only);
        ListPodResourcesResponse { pod_resources: listed.map(|p| self.of(&p)).collect() }
    }

    /// What v1alpha1 has of it: every pod that there is, its regular containers, and devices without their places.
    fn all_alpha(&self) -> ListPodResourcesResponse {
        let of = |known: KnownPod| PodResources {
            name: known.pod.name().into(),
            namespace: known.pod.namespace().into(),
            containers: known.pod.spec().containers.iter().map(|c| self.of_alpha(known.pod.uid(), &c.name)).collect(),
        };
        ListPodResourcesResponse { pod_resources: self.feed.pods().into_iter().map(of).collect() }
    }

    fn of_alpha(&self, uid: &str, container: &str) -> ContainerResources {
        let devices = self.devices.assigned(uid, container).into_iter().flat_map(entries);
        ContainerResources {
            name: container.to_owned(),
            devices: devices.map(|device| ContainerDevices { topology: None, ..device }).collect(),
            ..ContainerResources::default()
        }
    }

    fn of(&self, known: &KnownPod) -> PodResources {
        let spec = known.pod.spec();
        let sidecars = spec.init_containers.iter().filter(|c| is_sidecar(c));
        let containers = sidecars.chain(&spec.containers).map(|container| ContainerResources {
            name: container.name.clone(),
            devices: self.devices.assigned(known.pod.uid(), &container.name).into_iter().flat_map(entries).collect(),
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

fn listed(pods: Vec<KnownPod>, active_only: bool) -> impl Iterator<Item = KnownPod> {
    pods.into_iter().filter(move |pod| !(active_only && pod.finished))
}

fn memory(block: Block) -> ContainerMemory {
    let nodes = block.numa_affinity.into_iter().map(|id| NumaNode { id: id.into() }).collect();
    ContainerMemory { memory_type: block.r#type, size: block.size, topology: Some(TopologyInfo { nodes }) }
}

/// As the kubelet lists a device: once for each of its NUMA nodes, and once where its plugin said nothing of them.
fn entries(device: AssignedDevice) -> Vec<ContainerDevices> {
    let AssignedDevice { resource, id, nodes } = device;
    let entry = |topology| ContainerDevices { resource_name: resource.clone(), device_ids: vec![id.clone()], topology };
    match nodes {
        None => vec![entry(None)],
        Some(nodes) => {
            let on = |id| entry(Some(TopologyInfo { nodes: vec![NumaNode { id }] }));
            nodes.into_iter().map(on).collect()
        }
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(
        &self,
        _: tonic::Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        self.bucket.admit()?;
        counted(Some(&metrics::POD_RESOURCES_LIST), "v1");
        Ok(Response::new(self.all()))
    }

    async fn get_allocatable_resources(
        &self,
        _: tonic::Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        self.bucket.admit()?;
        counted(Some(&metrics::POD_RESOURCES_ALLOCATABLE), "v1");
        let devices = self.devices.allocatable().into_iter().flat_map(entries).collect();
        let cpu_ids = self.managers.allocatable_cpus().iter().map(i64::from).collect();
        let memory = self.managers.allocatable_memory().into_iter().map(memory).collect();
        Ok(Response::new(AllocatableResourcesResponse { devices, cpu_ids, memory }))
    }

    async fn get(
        &self,
        request: tonic::Request<GetPodResourcesRequest>,
    ) -> Result<Response<GetPodResourcesResponse>, Status> {
        self.bucket.admit()?;
        counted(Some(&metrics::POD_RESOURCES_GET), "v1");
        let GetPodResourcesRequest { pod_name: name, pod_namespace: namespace } = request.into_inner();
        let pods = self.feed.pods();
        let found = pods.iter().find(|p| p.pod.name() == name && p.pod.namespace() == namespace);
        // Upstream answers a plain Go error, which gRPC calls Unknown.
        let found = found.ok_or_else(|| {
            metrics::POD_RESOURCES_GET_ERRORS.inc(&["v1"]);
            Status::unknown(format!("pod {name} in namespace {namespace} not found"))
        })?;
        Ok(Response::new(GetPodResourcesResponse { pod_resources: Some(self.of(found)) }))
    }
}

/// List of v1alpha1: the same numbers for less of a pod.
struct ListAlpha(Arc<Lister>);

impl Service<tonic::Request<Bytes>> for ListAlpha {
    type Response = Response<Bytes>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Bytes>, Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: tonic::Request<Bytes>) -> Self::Future {
        let answer = self.0.bucket.admit().map(|()| {
            counted(None, "v1alpha1");
            Response::new(Bytes::from(self.0.all_alpha().encode_to_vec()))
        });
        Box::pin(std::future::ready(answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_are_gone_are_listed_without_the_gate_alone() {
        let pod = |finished| KnownPod { pod: Arc::default(), status: None, finished, ended: false };
        let count = |active_only| listed(vec![pod(false), pod(true)], active_only).count();
        assert_eq!((count(true), count(false)), (1, 2));
    }

    #[test]
    fn a_device_is_listed_once_for_each_of_its_nodes() {
        let nodes = |nodes: Option<Vec<i64>>| {
            let listed = entries(AssignedDevice { resource: "r/x".into(), id: "w".into(), nodes });
            assert!(listed.iter().all(|d| (d.resource_name.as_str(), d.device_ids.len()) == ("r/x", 1)));
            let of = |d: ContainerDevices| Some(d.topology?.nodes.iter().map(|n| n.id).collect::<Vec<_>>());
            listed.into_iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(nodes(None), [None]);
        assert_eq!(nodes(Some(vec![0, 1])), [Some(vec![0]), Some(vec![1])]);
        assert_eq!(nodes(Some(Vec::new())), Vec::<Option<Vec<i64>>>::new());
    }
}
