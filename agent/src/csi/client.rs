//! Calls of a driver's node service.

use std::collections::BTreeSet;
use std::future::Future;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use proto::csi::node_client::NodeClient;
use proto::csi::node_service_capability::rpc::Type as RpcType;
use proto::csi::node_service_capability::{Rpc, Type};
use proto::csi::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest, NodeGetInfoRequest,
    NodeGetInfoResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
};
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use crate::device_plugins::described;
use crate::{metrics, sockets};

const DIAL_LIMIT: Duration = Duration::from_secs(10);
/// The kubelet's deadline of each call.
const CALL_LIMIT: Duration = Duration::from_secs(120);
/// A driver's answers are short.
const LARGEST_ANSWER: usize = 1 << 20;

/// Why a driver could not be made to do something; a retry may help.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CsiError {
    #[error("driver name {0} not found in the list of registered CSI drivers")]
    Missing(String),
    /// Nobody listens on the driver's socket.
    #[error("rpc error: code = Unavailable desc = connection error: {0}")]
    Dial(String),
    /// The driver's own word.
    #[error("{}", described(.0))]
    Refused(Box<Status>),
}

/// What a driver's node service can do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capabilities(BTreeSet<i32>);

impl Capabilities {
    pub fn has(&self, what: RpcType) -> bool {
        self.0.contains(&(what as i32))
    }
}

/// A driver's socket. Each call dials anew: a driver may restart at any time.
#[derive(Debug, Clone)]
pub struct Driver {
    pub name: String,
    pub socket: PathBuf,
}

impl Driver {
    /// Calls a method of the node service, and counts how long it took with what outcome.
    async fn call<T, F, A>(&self, method: &str, ask: F) -> Result<T, CsiError>
    where
        F: FnOnce(NodeClient<Channel>) -> A,
        A: Future<Output = Result<Response<T>, Status>>,
    {
        let began = Instant::now();
        let answer = self.answer(ask).await;
        let code = match &answer {
            Ok(_) => Code::Ok,
            Err(CsiError::Refused(status)) => status.code(),
            Err(_) => Code::Unavailable,
        };
        let method = format!("/csi.v1.Node/{method}");
        let labels = [self.name.as_str(), &format!("{code:?}"), &method, "false"];
        metrics::CSI_CALLS.observe(&labels, began.elapsed().as_secs_f64());
        answer
    }

    async fn answer<T, F, A>(&self, ask: F) -> Result<T, CsiError>
    where
        F: FnOnce(NodeClient<Channel>) -> A,
        A: Future<Output = Result<Response<T>, Status>>,
    {
        let channel = sockets::channel(&self.socket, DIAL_LIMIT).await.map_err(|e| CsiError::Dial(e.to_string()))?;
        let client = NodeClient::new(channel).max_decoding_message_size(LARGEST_ANSWER);
        match tokio::time::timeout(CALL_LIMIT, ask(client)).await {
            Ok(answer) => answer.map(Response::into_inner).map_err(|status| CsiError::Refused(Box::new(status))),
            Err(_) => Err(CsiError::Refused(Box::new(Status::deadline_exceeded("context deadline exceeded")))),
        }
    }

    pub async fn info(&self) -> Result<NodeGetInfoResponse, CsiError> {
        self.call("NodeGetInfo", |mut c| async move { c.node_get_info(NodeGetInfoRequest {}).await }).await
    }

    pub async fn capabilities(&self) -> Result<Capabilities, CsiError> {
        let answer =
            self.call("NodeGetCapabilities", |mut c| async move {
                c.node_get_capabilities(NodeGetCapabilitiesRequest {}).await
            })
            .await?;
        let types = answer.capabilities.into_iter().filter_map(|c| c.r#type);
        Ok(Capabilities(types.map(|Type::Rpc(Rpc { r#type })| r#type).collect()))
    }

    pub async fn stage(&self, request: NodeStageVolumeRequest) -> Result<(), CsiError> {
        self.call("NodeStageVolume", |mut c| async move { c.node_stage_volume(request).await }).await.map(|_| ())
    }

    pub async fn unstage(&self, request: NodeUnstageVolumeRequest) -> Result<(), CsiError> {
        self.call("NodeUnstageVolume", |mut c| async move { c.node_unstage_volume(request).await }).await.map(|_| ())
    }

    pub async fn publish(&self, request: NodePublishVolumeRequest) -> Result<(), CsiError> {
        self.call("NodePublishVolume", |mut c| async move { c.node_publish_volume(request).await }).await.map(|_| ())
    }

    pub async fn unpublish(&self, request: NodeUnpublishVolumeRequest) -> Result<(), CsiError> {
        self.call("NodeUnpublishVolume", |mut c| async move { c.node_unpublish_volume(request).await })
            .await
            .map(|_| ())
    }

    pub async fn expand(&self, request: NodeExpandVolumeRequest) -> Result<NodeExpandVolumeResponse, CsiError> {
        self.call("NodeExpandVolume", |mut c| async move { c.node_expand_volume(request).await }).await
    }

    pub async fn stats(&self, request: NodeGetVolumeStatsRequest) -> Result<NodeGetVolumeStatsResponse, CsiError> {
        self.call("NodeGetVolumeStats", |mut c| async move { c.node_get_volume_stats(request).await }).await
    }
}
