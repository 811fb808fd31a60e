//! A unix socket that appears complete, and its HTTP/2 server.

use std::convert::Infallible;
use std::future::Future;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tonic::Status;
use tonic::body::Body;

use super::authority::Forgiving;
use service::activation;

/// What a handler answers.
pub type Reply = Response<Body>;

/// Clients of one socket at the same time; more wait in the kernel's queue.
const CONNECTIONS: usize = 128;
/// Calls of one client at the same time.
const STREAMS: u32 = 64;
/// Bytes sent ahead of a client that does not read, per call.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// Room for metadata: a field mask with some thousand paths.
const HEADER_BYTES: u32 = 256 << 10;

/// Listens at `path` with the given mode. An old socket is replaced; the new one shows up only when it can be used. One that
/// systemd made and handed over is taken as it is, mode and all.
///
/// # Errors
/// When the folder cannot be written.
pub fn bind(path: &Path, mode: u32) -> std::io::Result<UnixListener> {
    if let Some(handed) = activation::unix(path) {
        return UnixListener::from_std(handed);
    }
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let fresh = path.with_file_name(format!(".{name}.new"));
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&fresh)?;
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(mode))?;
    std::fs::rename(&fresh, path)?;
    Ok(listener)
}

/// Serves until dropped; the clients' connections end with it.
pub async fn serve<F, R>(listener: UnixListener, handler: F)
where
    F: Fn(Request<Incoming>) -> R + Send + Sync + 'static,
    R: Future<Output = Reply> + Send + 'static,
{
    let handler = Arc::new(handler);
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut clients = tokio::task::JoinSet::new();
    loop {
        while clients.try_join_next().is_some() {}
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors most likely; accepting again at once would spin.
                tracing::warn!(%error, "cannot accept a client");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let handler = handler.clone();
        clients.spawn(async move {
            let service = service_fn(move |request| {
                let handler = handler.clone();
                async move { Ok::<_, Infallible>(handler(request).await) }
            });
            let served = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(STREAMS)
                .max_send_buf_size(SEND_BUFFER_BYTES)
                .max_header_list_size(HEADER_BYTES)
                .serve_connection(TokioIo::new(Forgiving::new(stream)), service)
                .await;
            if let Err(error) = served {
                tracing::debug!(%error, "a client of a local socket broke off");
            }
            drop(permit);
        });
    }
}

/// The answer to a method that no service here has; `services` are the full names of those that there are.
pub fn unimplemented(path: &str, services: &[&str]) -> Reply {
    let (service, method) = path.trim_start_matches('/').rsplit_once('/').unwrap_or((path, ""));
    let status = if services.contains(&service) {
        Status::unimplemented(format!("unknown method {method} for service {service}"))
    } else {
        Status::unimplemented(format!("unknown service {service}"))
    };
    status.into_http()
}
