//! What this node knows of itself, for the agent's own tools: gRPC service `orchestrator.node.v1.Node` beside the pods.
//!
//! `GetNode` answers the core v1 Node as protobuf in field 1, with the conditions of this moment; `GetStats` the stats
//! summary as JSON in field 1; `GetReach` a text in field 1 that says why the API server does not hear of the node, empty
//! while it does and where there is none; `ListPods` every pod that anything on the node knows of, as protobuf in field 1, repeated.
//! None needs the API server.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::Request;
use hyper::body::Incoming;
use prost::Message;
use tokio::sync::watch;
use tonic::codegen::Service;
use tonic::server::Grpc;
use tonic::{Response, Status};

use crate::node::NodeNow;
use crate::pods::Handle;
use crate::pods_api::put_delimited;
use crate::sockets::{Bucket, RawCodec, Reply, unimplemented};
use crate::stats::Stats;

/// Full name of the service.
pub const SERVICE: &str = "orchestrator.node.v1.Node";

/// See the module's documentation.
pub struct NodeApi {
    node: NodeNow,
    reached: watch::Receiver<Option<String>>,
    /// None until the runtime has answered for the first time.
    pods: watch::Receiver<Option<Handle>>,
    stats: Stats,
    bucket: Bucket,
}

impl NodeApi {
    pub fn new(
        node: NodeNow,
        reached: watch::Receiver<Option<String>>,
        pods: watch::Receiver<Option<Handle>>,
        stats: Stats,
    ) -> Self {
        Self { node, reached, pods, stats, bucket: Bucket::of_kubelet() }
    }

    /// Whether a request is for this service.
    pub fn concerns(path: &str) -> bool {
        path.strip_prefix('/').and_then(|p| p.strip_prefix(SERVICE)).is_some_and(|rest| rest.starts_with('/'))
    }

    pub async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Reply {
        let path = request.uri().path().to_owned();
        let mut grpc = Grpc::new(RawCodec).max_decoding_message_size(64 << 10);
        match path.rsplit_once('/').map(|(_, method)| method) {
            Some("GetNode") => grpc.unary(Call(self, Wanted::Node), request).await,
            Some("GetReach") => grpc.unary(Call(self, Wanted::Reach), request).await,
            Some("GetStats") => grpc.unary(Call(self, Wanted::Stats), request).await,
            Some("ListPods") => grpc.unary(Call(self, Wanted::Pods), request).await,
            _ => unimplemented(&path, &[SERVICE]),
        }
    }
}

#[derive(Clone, Copy)]
enum Wanted {
    Node,
    Reach,
    Stats,
    Pods,
}

impl NodeApi {
    /// The messages that an answer holds, each in field 1.
    async fn wanted(&self, wanted: Wanted) -> Result<Vec<Vec<u8>>, Status> {
        match wanted {
            Wanted::Node => Ok(vec![self.node.get().encode_to_vec()]),
            Wanted::Reach => Ok(vec![self.reached.borrow().clone().unwrap_or_default().into_bytes()]),
            Wanted::Stats => {
                let summary = self.stats.summary(false).await.map_err(|e| Status::unavailable(e.to_string()))?;
                Ok(vec![serde_json::to_vec(&summary).map_err(|e| Status::internal(e.to_string()))?])
            }
            Wanted::Pods => {
                let pods = self.pods.borrow().clone();
                let pods = pods.ok_or_else(|| Status::unavailable("the container runtime has not answered yet"))?;
                let all = pods.recalled().await.map_err(|e| Status::unavailable(e.to_string()))?;
                Ok(all.iter().map(Message::encode_to_vec).collect())
            }
        }
    }
}

struct Call(Arc<NodeApi>, Wanted);

impl Service<tonic::Request<Bytes>> for Call {
    type Response = Response<Bytes>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Bytes>, Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: tonic::Request<Bytes>) -> Self::Future {
        let (api, wanted) = (self.0.clone(), self.1);
        Box::pin(async move {
            api.bucket.admit()?;
            let messages = api.wanted(wanted).await?;
            let mut out = BytesMut::with_capacity(messages.iter().map(|m| m.len() + 8).sum());
            messages.iter().for_each(|message| put_delimited(1, message, &mut out));
            Ok(Response::new(out.freeze()))
        })
    }
}
