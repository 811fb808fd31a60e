//! What this node knows of itself, for the agent's own tools: gRPC service `orchestrator.node.v1.Node` beside the pods.
//!
//! `GetNode` answers the core v1 Node as protobuf in field 1, `GetStats` the stats summary as JSON in field 1. Neither
//! needs the API server.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::Request;
use hyper::body::Incoming;
use prost::Message as _;
use proto::api::core::v1::Node;
use tokio::sync::watch;
use tonic::codegen::Service;
use tonic::server::Grpc;
use tonic::{Response, Status};

use crate::pods_api::put_delimited;
use crate::sockets::{Bucket, RawCodec, Reply, unimplemented};
use crate::stats::Stats;

/// Full name of the service.
pub const SERVICE: &str = "orchestrator.node.v1.Node";

/// See the module's documentation.
pub struct NodeApi {
    node: watch::Receiver<Arc<Node>>,
    stats: Stats,
    bucket: Bucket,
}

impl NodeApi {
    pub fn new(node: watch::Receiver<Arc<Node>>, stats: Stats) -> Self {
        Self { node, stats, bucket: Bucket::of_kubelet() }
    }

    /// Whether a request is for this service.
    pub fn concerns(path: &str) -> bool {
        path.strip_prefix('/').and_then(|p| p.strip_prefix(SERVICE)).is_some_and(|rest| rest.starts_with('/'))
    }

    pub async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Reply {
        let path = request.uri().path().to_owned();
        let mut grpc = Grpc::new(RawCodec).max_decoding_message_size(64 << 10);
        match path.rsplit_once('/').map(|(_, method)| method) {
            Some("GetNode") => grpc.unary(Call(self, false), request).await,
            Some("GetStats") => grpc.unary(Call(self, true), request).await,
            _ => unimplemented(&path, &[SERVICE]),
        }
    }
}

struct Call(Arc<NodeApi>, bool);

impl Service<tonic::Request<Bytes>> for Call {
    type Response = Response<Bytes>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Bytes>, Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: tonic::Request<Bytes>) -> Self::Future {
        let (api, stats) = (self.0.clone(), self.1);
        Box::pin(async move {
            api.bucket.admit()?;
            let content = if stats {
                let summary = api.stats.summary(false).await.map_err(|e| Status::unavailable(e.to_string()))?;
                serde_json::to_vec(&summary).map_err(|e| Status::internal(e.to_string()))?
            } else {
                api.node.borrow().encode_to_vec()
            };
            let mut out = BytesMut::with_capacity(content.len() + 8);
            put_delimited(1, &content, &mut out);
            Ok(Response::new(out.freeze()))
        })
    }
}
