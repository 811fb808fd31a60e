//! Whether a driver is there: its slices are taken from the API server when it has been away for too long.
//!
//! An open connection tells the end of a plugin's process at once and costs nothing while it lasts. A driver that
//! unregisters, or whose plugins are all gone, has half a minute to come back before its ResourceSlices are deleted, so
//! that no pod is sent here for devices that nobody can prepare.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper_util::rt::{TokioExecutor, TokioIo};
use proto::api::resource::v1::ResourceSlice;
use tokio::net::UnixStream;

use super::Dra;
use crate::api::{ApiError, Client};
use crate::backoff::Backoff;

/// The kubelet's: long enough to replace a driver's pod.
pub const AWAY: Duration = Duration::from_secs(30);
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(300);
/// Between tries to connect to a plugin that does not answer.
const RECONNECT: Duration = Duration::from_secs(5);

/// Holds a connection to a plugin, and tells `dra` when it comes and goes, until dropped.
pub async fn watch(dra: Weak<Dra>, driver: String, endpoint: PathBuf) {
    loop {
        let connected = async {
            let stream = UnixStream::connect(&endpoint).await.ok()?;
            let made =
                hyper::client::conn::http2::handshake::<_, _, Empty<Bytes>>(TokioExecutor::new(), TokioIo::new(stream));
            made.await.ok()
        };
        if let Some((sender, connection)) = connected.await {
            let Some(there) = dra.upgrade() else { return };
            there.connected(&driver, &endpoint, true);
            drop(there);
            // The connection goes on for as long as somebody could send on it.
            let ended = connection.await;
            drop(sender);
            tracing::debug!(?ended, driver, endpoint = %endpoint.display(), "a plugin closed its connection");
        }
        let Some(dra) = dra.upgrade() else { return };
        dra.connected(&driver, &endpoint, false);
        drop(dra);
        tokio::time::sleep(RECONNECT).await;
    }
}

/// Deletes the slices of a driver on this node, or of all drivers, as often as it takes.
pub async fn wipe(client: Client, node: String, driver: Option<String>) {
    let mut selector = format!("spec.nodeName={node}");
    if let Some(driver) = &driver {
        selector = format!("spec.driver={driver},{selector}");
    }
    let mut backoff = Backoff::new(FIRST_RETRY, LAST_RETRY);
    loop {
        match client.delete_selected::<ResourceSlice>("", &selector).await {
            Ok(()) => return tracing::debug!(selector, "deleted ResourceSlices"),
            // A server that has no such resource has none of them.
            Err(error) if error.is_not_found() => return,
            Err(ApiError::Standalone) => return,
            Err(error) => tracing::debug!(%error, selector, "cannot delete ResourceSlices; trying again"),
        }
        tokio::time::sleep(backoff.next_wait()).await;
    }
}

/// Wipes the slices of a driver unless it comes back in time: then this is dropped.
pub async fn wipe_later(dra: Arc<Dra>, client: Client, driver: String) {
    let node = dra.node.clone();
    drop(dra);
    tokio::time::sleep(AWAY).await;
    wipe(client, node, Some(driver)).await;
}
