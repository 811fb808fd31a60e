//! Dialling a local socket: of a plugin, or of the agent by its own tools.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint};

use crate::probes::tcp::connect_error;

/// Dials the same socket for whatever address a channel names.
#[derive(Clone)]
pub struct UnixConnector(pub PathBuf);

impl Service<Uri> for UnixConnector {
    type Response = TokioIo<UnixStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let path = self.0.clone();
        Box::pin(async move {
            let stream = UnixStream::connect(&path).await;
            Ok(TokioIo::new(stream.map_err(|error| io::Error::new(error.kind(), in_words_of_go(&path, &error)))?))
        })
    }
}

/// People see it in events, and clients take it for what it is: kubectl reads a shorter text as YAML, and shows nothing.
fn in_words_of_go(path: &Path, error: &io::Error) -> String {
    let why = connect_error(error);
    format!("connection error: desc = \"transport: Error while dialing: dial unix {}: {why}\"", path.display())
}

/// Connects to the socket within `limit`. The channel does not come back once it is lost: whoever listens there next may
/// be somebody else.
///
/// # Errors
/// When nobody listens, or not in time.
pub async fn channel(path: &Path, limit: Duration) -> Result<Channel, DialError> {
    let endpoint = Endpoint::from_static("http://localhost");
    let connecting = endpoint.connect_with_connector(UnixConnector(path.to_owned()));
    match tokio::time::timeout(limit, connecting).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(error)) => Err(DialError::Refused(error)),
        Err(_) => Err(DialError::TooSlow),
    }
}

/// Why a socket cannot be talked to; its owner's to mend.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// What the connector made of it; what wraps that says no more than that there was an error.
    #[error("{}", innermost(.0))]
    Refused(#[source] tonic::transport::Error),
    #[error("nobody answered in time")]
    TooSlow,
}

/// The error that an error goes back to.
fn innermost<'a>(mut error: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    while let Some(source) = error.source() {
        error = source;
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_that_is_not_there_is_told_in_gos_words() {
        let error = channel(Path::new("/nowhere/it.sock"), Duration::from_secs(5)).await.err().map(|e| e.to_string());
        let want = "connection error: desc = \"transport: Error while dialing: dial unix /nowhere/it.sock: connect: no such \
                    file or directory\"";
        assert_eq!(error.as_deref(), Some(want));
    }
}
