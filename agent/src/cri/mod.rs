//! Client of the container runtime: CRI v1 over a unix socket.
//!
//! One lazily connected HTTP/2 channel serves runtime and image calls; a lost runtime makes calls fail with
//! `Unavailable` and the channel reconnects on the next one. Every call has a deadline: the configured request timeout,
//! stretched where the call itself waits (stop, exec, sandbox start); image pulls are bounded by the caller's
//! cancellation alone, as in the kubelet. Errors print the way Go's gRPC prints them, because users see these texts in
//! events and statuses.
//!
//! Followed: `k8s.io/cri-api` api.proto.

mod calls;
mod connect;
mod error;
mod listed;
mod moves;

use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::cri::image_service_client::ImageServiceClient;
use proto::cri::runtime_service_client::RuntimeServiceClient;
use tonic::transport::Channel;

pub use error::{CriError, go_name};
pub use listed::{Label, ListedContainer, ListedSandbox};
pub use moves::Moves;

/// The kubelet's default for `runtimeRequestTimeout`.
pub const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// Largest answer accepted: the kubelet's limit too.
const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// A cheap handle on the runtime; clones share the connection.
#[derive(Clone)]
pub struct CriClient {
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
    /// For lists of which little is read.
    lists: tonic::client::Grpc<Channel>,
    timeout: Duration,
    endpoint: PathBuf,
    moves: Moves,
}

impl CriClient {
    /// A client of the runtime at `endpoint` (`unix:///path`, or a bare absolute path); nothing is dialled yet.
    ///
    /// # Errors
    /// `BadEndpoint` for anything but a unix socket.
    pub fn new(endpoint: &str, image_endpoint: Option<&str>, timeout: Duration) -> Result<Self, CriError> {
        let path = socket_path(endpoint)?;
        let channel = connect::lazy_channel(&path)?;
        let image_channel = match image_endpoint.filter(|e| !e.is_empty()) {
            Some(other) => connect::lazy_channel(&socket_path(other)?)?,
            None => channel.clone(),
        };
        Ok(Self {
            lists: tonic::client::Grpc::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES),
            runtime: RuntimeServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES),
            images: ImageServiceClient::new(image_channel).max_decoding_message_size(MAX_MESSAGE_BYTES),
            timeout,
            endpoint: path,
            moves: Moves::default(),
        })
    }

    /// Whether these are endpoints at all; an image endpoint that is empty is the runtime's.
    ///
    /// # Errors
    /// Those of [`CriClient::new`].
    pub fn check(endpoint: &str, image_endpoint: &str) -> Result<(), CriError> {
        socket_path(endpoint)?;
        if image_endpoint.is_empty() { Ok(()) } else { socket_path(image_endpoint).map(drop) }
    }

    /// The socket that this client dials.
    pub fn endpoint(&self) -> &Path {
        &self.endpoint
    }

    /// The count of what moves in this runtime.
    pub fn moves(&self) -> &Moves {
        &self.moves
    }
}

fn socket_path(endpoint: &str) -> Result<PathBuf, CriError> {
    let path = endpoint.strip_prefix("unix://").or_else(|| endpoint.strip_prefix("unix:")).unwrap_or(endpoint);
    if path.starts_with('/') { Ok(PathBuf::from(path)) } else { Err(CriError::bad_endpoint(endpoint)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_unix_sockets_in_either_spelling() {
        assert_eq!(socket_path("unix:///run/c.sock").unwrap(), PathBuf::from("/run/c.sock"));
        assert_eq!(socket_path("unix:/run/c.sock").unwrap(), PathBuf::from("/run/c.sock"));
        assert_eq!(socket_path("/run/c.sock").unwrap(), PathBuf::from("/run/c.sock"));
        assert!(socket_path("tcp://127.0.0.1:1").is_err());
        assert!(socket_path("").is_err());
    }
}
