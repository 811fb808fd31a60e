//! A lazily connected tonic channel over a unix socket.

use std::path::Path;
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};

use super::CriError;
use crate::sockets::UnixConnector;

/// Dialling a local socket either works at once or not at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The channel dials on its first call and again after every loss.
pub(super) fn lazy_channel(path: &Path) -> Result<Channel, CriError> {
    // The authority is what Go clients send for unix sockets; some servers refuse others.
    let endpoint = Endpoint::try_from("http://localhost").map_err(|e| CriError::internal(e.to_string()))?;
    Ok(endpoint.connect_timeout(CONNECT_TIMEOUT).connect_with_connector_lazy(UnixConnector(path.to_owned())))
}
