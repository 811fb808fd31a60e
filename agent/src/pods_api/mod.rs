//! The Pods API: gRPC service `Pods` for clients on this node, with or without an API server.
//!
//! Two sockets serve the same pods. `pods-api/pods-api.sock` is the form of Kubernetes 1.36 (gate `PodsAPI`): package
//! `v1alpha1`, watch events with a type. `pods/kubelet.sock` is the documented form before it: a watch answers pods in
//! field 1; the type follows in field 2, which older clients step over; the package may have any name. The first tells of
//! what runs, so that a pod is DELETED when it has ended; the second of objects, as long as those are there. Both take a field
//! mask in the metadata (`x-field-mask`, `x-field-mask-bin`). Messages are put together from pods encoded once.

mod feed;
mod mask;

use std::collections::VecDeque;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::stream::{self, Stream};
use http::Request;
use hyper::body::Incoming;
use prost::Message as _;
use proto::pods::{EventType, GetPodRequest};
use tonic::codegen::Service;
use tonic::metadata::MetadataMap;
use tonic::server::Grpc;
use tonic::{Response, Status};

use crate::node_api::NodeApi;
use crate::sockets::{Bucket, RawCodec, Reply, bind, serve, unimplemented};

pub use feed::{Change, Event, KnownPod, PodFeed, encode};
pub use mask::{Mask, MaskError, put_delimited};

use feed::{Audience, TooSlow, Watch};
use mask::put_varint;

/// Requests are empty or hold a uid.
const REQUEST_BYTES: usize = 64 << 10;

/// Which socket is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Kubernetes 1.36.
    Typed,
    /// The form documented before.
    Plain,
}

/// Listens and serves until dropped.
///
/// # Errors
/// When the socket cannot be made.
pub fn start(path: &Path, form: Form, feed: Arc<PodFeed>) -> std::io::Result<impl Future<Output = ()> + use<>> {
    start_with(path, form, feed, None)
}

/// [`start`] with the node's own service on the same socket.
///
/// # Errors
/// When the socket cannot be made.
pub fn start_with(
    path: &Path,
    form: Form,
    feed: Arc<PodFeed>,
    node: Option<Arc<NodeApi>>,
) -> std::io::Result<impl Future<Output = ()> + use<>> {
    let listener = bind(path, 0o600)?;
    let api = PodsApi { feed, form, bucket: Arc::new(Bucket::of_kubelet()) };
    Ok(serve(listener, move |request| {
        let (api, node) = (api.clone(), node.clone());
        async move {
            match node {
                Some(node) if NodeApi::concerns(request.uri().path()) => node.answer(request).await,
                _ => api.answer(request).await,
            }
        }
    }))
}

#[derive(Clone)]
struct PodsApi {
    feed: Arc<PodFeed>,
    form: Form,
    bucket: Arc<Bucket>,
}

impl PodsApi {
    async fn answer(self, request: Request<Incoming>) -> Reply {
        let path = request.uri().path().to_owned();
        let (service, method) = path.trim_start_matches('/').rsplit_once('/').unwrap_or_default();
        let ours = match self.form {
            Form::Typed => service == "v1alpha1.Pods",
            Form::Plain => service.rsplit('.').next() == Some("Pods"),
        };
        let mut grpc = Grpc::new(RawCodec).max_decoding_message_size(REQUEST_BYTES);
        match method {
            "ListPods" if ours => grpc.unary(Call(self, Self::list), request).await,
            "GetPod" if ours => grpc.unary(Call(self, Self::get), request).await,
            "WatchPods" if ours => grpc.server_streaming(WatchCall(self), request).await,
            _ => unimplemented(&path, &if ours { vec![service] } else { Vec::new() }),
        }
    }

    /// Refuses what would be half the truth.
    fn complete(&self) -> Result<(), Status> {
        if self.feed.is_complete() {
            return Ok(());
        }
        Err(Status::failed_precondition("the pods of this node are not all known yet; try again"))
    }

    fn list(&self, metadata: &MetadataMap, _: &Bytes) -> Result<Bytes, Status> {
        self.bucket.admit()?;
        let mask = mask_of(metadata)?;
        self.complete()?;
        let pods = self.feed.encoded();
        let mut out = BytesMut::with_capacity(if mask.is_none() { pods.iter().map(|p| p.len() + 8).sum() } else { 0 });
        for pod in &pods {
            match &mask {
                Some(mask) => mask.put(1, pod, &mut out),
                None => put_delimited(1, pod, &mut out),
            }
        }
        Ok(out.freeze())
    }

    fn get(&self, metadata: &MetadataMap, request: &Bytes) -> Result<Bytes, Status> {
        self.bucket.admit()?;
        let request = GetPodRequest::decode(request.clone())
            .map_err(|e| Status::internal(format!("grpc: error unmarshalling request: {e}")))?;
        let mask = mask_of(metadata)?;
        self.complete()?;
        let pod = self.feed.encoded_pod(&request.pod_uid);
        let pod = pod.ok_or_else(|| Status::not_found(format!("pod with UID {} not found", request.pod_uid)))?;
        let mut out = BytesMut::new();
        put_delimited(1, &masked(mask.as_ref(), &pod), &mut out);
        Ok(out.freeze())
    }

    fn watch(&self, metadata: &MetadataMap) -> Result<Events, Status> {
        let mask = mask_of(metadata)?;
        self.complete()?;
        let (initial, watch) = self.feed.watch().map_err(|_| Status::resource_exhausted("too many watches"))?;
        let form = self.form;
        let state = WatchState { form, mask, initial: initial.into(), synced: false, watch };
        Ok(Box::pin(stream::unfold(state, |mut state| async move { state.next().await.map(|item| (item, state)) })))
    }
}

type Events = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

struct WatchState {
    form: Form,
    mask: Option<Mask>,
    initial: VecDeque<Bytes>,
    synced: bool,
    watch: Watch,
}

impl WatchState {
    async fn next(&mut self) -> Option<Result<Bytes, Status>> {
        if let Some(pod) = self.initial.pop_front() {
            return Some(Ok(self.message(EventType::Added, Some(&pod))));
        }
        if !self.synced {
            self.synced = true;
            if self.form == Form::Typed {
                return Some(Ok(self.message(EventType::InitialSyncComplete, None)));
            }
        }
        loop {
            let event = match self.watch.next().await? {
                Ok(event) => event,
                Err(TooSlow) => {
                    let why = "the client reads too slowly; events were lost, watch again";
                    return Some(Err(Status::resource_exhausted(why)));
                }
            };
            match (event.audience, self.form) {
                (Audience::All, _) | (Audience::Objects, Form::Plain) | (Audience::Pods, Form::Typed) => {}
                _ => continue,
            }
            let kind = match event.change {
                Change::Added => EventType::Added,
                Change::Modified => EventType::Modified,
                Change::Deleted => EventType::Deleted,
            };
            return Some(Ok(self.message(kind, Some(&event.pod))));
        }
    }

    fn message(&self, kind: EventType, pod: Option<&Bytes>) -> Bytes {
        // What is gone is told by its names, whatever the mask keeps.
        let mask = self.mask.as_ref().filter(|_| kind != EventType::Deleted);
        let (type_field, pod_field) = match self.form {
            Form::Typed => (1, 2),
            Form::Plain => (2, 1),
        };
        let put_type = |out: &mut BytesMut| {
            put_varint(type_field << 3, out);
            out.put_u8(u8::try_from(kind as i32).unwrap_or(0));
        };
        let mut out = BytesMut::new();
        if self.form == Form::Typed {
            put_type(&mut out);
        }
        if let Some(pod) = pod {
            put_delimited(pod_field, &masked(mask, pod), &mut out);
        }
        if self.form == Form::Plain {
            put_type(&mut out);
        }
        out.freeze()
    }
}

fn masked(mask: Option<&Mask>, pod: &Bytes) -> Bytes {
    mask.map_or_else(|| pod.clone(), |mask| mask.apply(pod))
}

/// The mask of both headers together; `None` for the whole pod.
fn mask_of(metadata: &MetadataMap) -> Result<Option<Mask>, Status> {
    let invalid = |error: MaskError| Status::invalid_argument(error.to_string());
    let mut paths: Vec<String> = Vec::new();
    for value in metadata.get_all("x-field-mask") {
        let text = value.to_str().map_err(|e| invalid(MaskError::Encoding(e.to_string())))?;
        paths.extend(text.split(',').map(|p| p.trim().to_owned()).filter(|p| !p.is_empty()));
    }
    for value in metadata.get_all_bin("x-field-mask-bin") {
        let bytes = value.to_bytes().map_err(|e| invalid(MaskError::Encoding(e.to_string())))?;
        let mask = prost_types::FieldMask::decode(bytes).map_err(|e| invalid(MaskError::Encoding(e.to_string())))?;
        paths.extend(mask.paths);
    }
    Mask::parse(paths.iter().map(String::as_str)).map_err(invalid)
}

type Method = fn(&PodsApi, &MetadataMap, &Bytes) -> Result<Bytes, Status>;

struct Call(PodsApi, Method);

type Answer<T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send>>;

impl Service<tonic::Request<Bytes>> for Call {
    type Response = Response<Bytes>;
    type Error = Status;
    type Future = Answer<Bytes>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: tonic::Request<Bytes>) -> Self::Future {
        let answer = (self.1)(&self.0, request.metadata(), request.get_ref());
        Box::pin(std::future::ready(answer.map(Response::new)))
    }
}

struct WatchCall(PodsApi);

impl tonic::server::ServerStreamingService<Bytes> for WatchCall {
    type Response = Bytes;
    type ResponseStream = Events;
    type Future = Answer<Events>;

    fn call(&mut self, request: tonic::Request<Bytes>) -> Self::Future {
        let answer = self.0.watch(request.metadata());
        Box::pin(std::future::ready(answer.map(Response::new)))
    }
}
