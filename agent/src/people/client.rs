//! Asking the agent of this node.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use prost::Message as _;
use proto::api::core::v1::{Node, Pod};
use proto::pods::{GetPodResponse, ListPodsResponse};
use serde_json::Value;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::sockets::{self, RawCodec};

const DIAL_LIMIT: Duration = Duration::from_secs(5);
const CALL_LIMIT: Duration = Duration::from_secs(30);
const MAX_ANSWER_BYTES: usize = 256 << 20;

/// Why nothing can be shown.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("no agent answers at {path} ({why}); is it running, and with this --root-dir?")]
    NoAgent { path: PathBuf, why: String },
    #[error("the agent has just started and does not know all its pods yet; try again")]
    Incomplete,
    #[error("the agent refuses: {0}")]
    Refused(String),
    #[error("the agent answers garbage: {0}")]
    Garbage(String),
    #[error("cannot print: {0}")]
    Print(#[from] std::io::Error),
}

/// Where a list of pods comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// From all sources.
    All,
    /// Partly from the runtime: a source has not answered since the agent started.
    Recalled,
}

/// A connection to the agent.
pub struct Agent {
    channel: Channel,
}

impl Agent {
    /// # Errors
    /// When no agent listens below `root`.
    pub async fn connect(root: &Path) -> Result<Self, AskError> {
        let path = root.join("pods/kubelet.sock");
        match sockets::channel(&path, DIAL_LIMIT).await {
            Ok(channel) => Ok(Self { channel }),
            Err(error) => Err(AskError::NoAgent { path, why: described(&error) }),
        }
    }

    async fn call(&self, method: &'static str, mask: Option<&'static str>) -> Result<Bytes, AskError> {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER_BYTES);
        grpc.ready().await.map_err(|e| AskError::Refused(e.to_string()))?;
        let mut request = Request::new(Bytes::new());
        request.set_timeout(CALL_LIMIT);
        if let Some(mask) = mask {
            request.metadata_mut().insert("x-field-mask", tonic::metadata::MetadataValue::from_static(mask));
        }
        let answer = grpc.unary(request, PathAndQuery::from_static(method), RawCodec).await;
        answer.map(tonic::Response::into_inner).map_err(|status: Status| match status.code() {
            Code::FailedPrecondition => AskError::Incomplete,
            _ => AskError::Refused(status.message().to_owned()),
        })
    }

    /// The pods, only the fields of the mask when there is one.
    pub async fn pods(&self, mask: Option<&'static str>) -> Result<Vec<Pod>, AskError> {
        let answer = self.call("/v1alpha1.Pods/ListPods", mask).await?;
        decoded(answer)
    }

    /// The pods, sorted; until the agent knows them all, what runtime and checkpoints remember of them.
    pub async fn pods_or_recalled(&self, mask: Option<&'static str>) -> Result<(Vec<Pod>, Known), AskError> {
        match self.pods(mask).await {
            Ok(pods) => Ok((pods, Known::All)),
            Err(AskError::Incomplete) => {
                let answer = self.call("/orchestrator.node.v1.Node/ListPods", None).await?;
                Ok((decoded(answer)?, Known::Recalled))
            }
            Err(error) => Err(error),
        }
    }

    pub async fn node(&self) -> Result<Node, AskError> {
        let answer = self.field_one("/orchestrator.node.v1.Node/GetNode").await?;
        Node::decode(answer.as_slice()).map_err(garbage)
    }

    /// Why the API server does not hear of the node; None while it does, and from an agent that does not say.
    pub async fn trouble(&self) -> Option<String> {
        let text = self.field_one("/orchestrator.node.v1.Node/GetReach").await.ok()?;
        String::from_utf8(text).ok().filter(|text| !text.is_empty())
    }

    /// The stats summary.
    pub async fn stats(&self) -> Result<Value, AskError> {
        let answer = self.field_one("/orchestrator.node.v1.Node/GetStats").await?;
        serde_json::from_slice(&answer).map_err(garbage)
    }

    async fn field_one(&self, method: &'static str) -> Result<Vec<u8>, AskError> {
        // The same shape: bytes in field 1.
        GetPodResponse::decode(self.call(method, None).await?).map(|r| r.pod).map_err(garbage)
    }
}

/// The pods of a list, sorted by their names.
fn decoded(answer: Bytes) -> Result<Vec<Pod>, AskError> {
    let list = ListPodsResponse::decode(answer).map_err(garbage)?;
    let mut pods = Vec::with_capacity(list.pods.len());
    for pod in list.pods {
        pods.push(Pod::decode(pod.as_slice()).map_err(garbage)?);
    }
    let name = |p: &Pod| p.metadata.as_ref().map(|m| (m.namespace.clone(), m.name.clone()));
    pods.sort_by_key(name);
    Ok(pods)
}

fn garbage(error: impl std::fmt::Display) -> AskError {
    AskError::Garbage(error.to_string())
}

/// An error with its causes.
fn described(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = inner.to_string();
        cause = inner.source();
    }
    text
}
