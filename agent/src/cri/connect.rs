//! A lazily connected tonic channel over a unix socket.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint};

use super::CriError;

/// Dialling a local socket either works at once or not at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The channel dials on its first call and again after every loss.
pub(super) fn lazy_channel(path: &Path) -> Result<Channel, CriError> {
    // The authority is what Go clients send for unix sockets; some servers refuse others.
    let endpoint = Endpoint::try_from("http://localhost").map_err(|e| CriError::internal(e.to_string()))?;
    Ok(endpoint.connect_timeout(CONNECT_TIMEOUT).connect_with_connector_lazy(UnixConnector(path.to_owned())))
}

#[derive(Clone)]
struct UnixConnector(PathBuf);

impl Service<Uri> for UnixConnector {
    type Response = TokioIo<UnixStream>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let path = self.0.clone();
        Box::pin(async move { Ok(TokioIo::new(UnixStream::connect(path).await?)) })
    }
}
