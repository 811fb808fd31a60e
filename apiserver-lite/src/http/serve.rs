//! The listener: TLS, HTTP/1.1 and HTTP/2, one task per connection.
//!
//! A connection that does not finish its handshake or its request head in time is dropped; a panic in a handler is a
//! bug that ends one request, not the server.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use rustls::ServerConfig as TlsConfig;
use rustls_pki_types::CertificateDer;
use service::refusal::Refusing;
use service::{bodiless, plain_http};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::body::{Body, Response};
use crate::auth::Certificates;
use crate::server::ApiServer;

/// Time for the TLS handshake.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between the requests of a connection, the next one's head included: as long as Go's clients keep connections.
const IDLE: Duration = Duration::from_secs(90);
/// Largest head of a request, as Go has it.
const MAX_HEAD: usize = 1 << 20;
/// Most headers of a request. Go has no such limit; whoever impersonates a member of many groups sends one for each.
const MOST_HEADERS: usize = 512;
/// Time for running requests after the listener closed.
const DRAIN: Duration = Duration::from_secs(10);

/// What is known of the other side of a connection.
#[derive(Debug)]
pub struct Peer {
    pub address: SocketAddr,
    pub certificates: Certificates,
}

/// Accepts connections until `stop` says so; then watches end, and running requests have a while to finish.
/// Each connection gets the settings of TLS that are there when it comes.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<ArcSwap<TlsConfig>>,
    server: Arc<ApiServer>,
    mut stop: watch::Receiver<bool>,
) {
    let graceful = GracefulShutdown::new();
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE).max_buf_size(MAX_HEAD).max_headers(MOST_HEADERS);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(1000)
        .max_header_list_size(MAX_HEAD as u32)
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(20));
    let builder = Arc::new(builder);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|s| *s) => break,
        };
        let (tcp, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, most likely: give others time to close theirs.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        // A socket of both families shows IPv4 clients as IPv6.
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        let tls = TlsAcceptor::from(tls.load_full());
        tokio::spawn(connection(tcp, address, tls, builder.clone(), server.clone(), graceful.watcher()));
    }
    drop(listener);
    server.shutdown.begin();
    if tokio::time::timeout(DRAIN, graceful.shutdown()).await.is_err() {
        tracing::warn!("some connections did not end in time");
    }
}

/// TLS; whoever sends a request without it is told so.
async fn handshake(mut tcp: TcpStream, tls: &TlsAcceptor) -> std::io::Result<TlsStream<TcpStream>> {
    plain_http::refuse(&mut tcp).await?;
    tls.accept(tcp).await
}

async fn connection(
    tcp: TcpStream,
    address: SocketAddr,
    tls: TlsAcceptor,
    builder: Arc<auto::Builder<TokioExecutor>>,
    server: Arc<ApiServer>,
    watcher: hyper_util::server::graceful::Watcher,
) {
    // Small writes are whole watch events; waiting for more would only delay them.
    let _ = tcp.set_nodelay(true);
    super::keepalive::watch_over(&tcp);
    let stream = match tokio::time::timeout(PATIENCE, handshake(tcp, &tls)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%address, %error, "TLS handshake failed");
            return;
        }
        Err(_) => return,
    };
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let chain: Vec<CertificateDer<'static>> = chain.iter().map(|c| c.clone().into_owned()).collect();
    let peer = Arc::new(Peer { address, certificates: Certificates::new(chain) });
    let (stream, serving) = Refusing::new(stream);
    let service = service_fn(move |request: http::Request<Incoming>| {
        serving.begun();
        let (server, peer) = (server.clone(), peer.clone());
        let bodiless = bodiless::concerns(&request);
        async move {
            let answer = match super::host::refuse(&request) {
                Some(refusal) => refusal,
                None => server.answer(request, &peer).await,
            };
            Ok::<Response, Infallible>(if bodiless { bodiless::answer(answer, Body::empty()) } else { answer })
        }
    });
    let serving = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    if let Err(error) = watcher.watch(serving.into_owned()).await {
        tracing::debug!(%address, %error, "connection ended");
    }
}
