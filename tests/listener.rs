//! A server that a test answers itself, for lifecycle hooks and probes: HTTP on loopback, in plain text or over TLS.
//!
//! It notes all that it is asked. `/status/CODE` is answered with this code, what begins with `/held` not before
//! [`Listener::let_go`] of it, and everything else at once with 200.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls_pki_types::PrivateKeyDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

/// One request.
#[derive(Debug, Clone)]
pub struct Asked {
    /// With the query.
    pub path: String,
    pub over_tls: bool,
    headers: http::HeaderMap,
}

impl Asked {
    /// All values of a header, with commas between them; empty without one.
    pub fn header(&self, name: &str) -> String {
        let values = self.headers.get_all(name).iter().map(|value| value.to_str().unwrap_or("not text"));
        values.collect::<Vec<_>>().join(",")
    }
}

struct Served {
    asked: Mutex<Vec<Asked>>,
    /// Paths that were let go.
    free: watch::Sender<BTreeSet<String>>,
}

/// Serves until it is dropped.
pub struct Listener {
    pub port: u16,
    served: Arc<Served>,
    /// Its threads end with it.
    _runtime: tokio::runtime::Runtime,
}

impl Listener {
    /// # Errors
    /// When no port can be had.
    pub fn plain() -> Result<Self> {
        Listener::start(None)
    }

    /// With a certificate that nobody has heard of.
    ///
    /// # Errors
    /// When there is no port or no certificate to be had.
    pub fn tls() -> Result<Self> {
        let made = rcgen::generate_simple_self_signed(vec!["elsewhere".to_owned()])?;
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(anyhow::Error::msg)?;
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)?;
        Listener::start(Some(TlsAcceptor::from(Arc::new(config))))
    }

    fn start(tls: Option<TlsAcceptor>) -> Result<Self> {
        let served = Arc::new(Served { asked: Mutex::default(), free: watch::Sender::default() });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0)))?;
        let port = listener.local_addr()?.port();
        runtime.spawn(accept(listener, tls, served.clone()));
        Ok(Listener { port, served, _runtime: runtime })
    }

    /// What was asked so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.served.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What was asked of a path so far.
    pub fn asked_for(&self, path: &str) -> Vec<Asked> {
        self.asked().into_iter().filter(|asked| asked.path == path).collect()
    }

    /// A path that is held is answered from now on.
    pub fn let_go(&self, path: &str) {
        self.served.free.send_modify(|free| {
            free.insert(path.to_owned());
        });
    }
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, served: Arc<Served>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, served) = (tls.clone(), served.clone());
        tokio::spawn(async move {
            let Some(tls) = tls else { return talk(stream, false, served).await };
            let Ok(stream) = tls.accept(stream).await else { return };
            talk(stream, true, served).await;
        });
    }
}

async fn talk(stream: impl AsyncRead + AsyncWrite + Unpin, over_tls: bool, served: Arc<Served>) {
    let service = service_fn(move |request| answer(request, over_tls, served.clone()));
    // A client that goes away, or does not speak HTTP, is the end of its connection, no fault.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(
    request: Request<Incoming>,
    over_tls: bool,
    served: Arc<Served>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
    let asked = Asked { path: path.clone(), over_tls, headers: request.headers().clone() };
    served.asked.lock().unwrap_or_else(PoisonError::into_inner).push(asked);
    if path.starts_with("/held") {
        // The sender lives as long as the server.
        let _ = served.free.subscribe().wait_for(|free| free.contains(&path)).await;
    }
    let mut response = Response::new(Full::new(Bytes::from_static(b"heard\n")));
    let code = path.strip_prefix("/status/").and_then(|code| code.parse().ok());
    *response.status_mut() = code.and_then(|code| StatusCode::from_u16(code).ok()).unwrap_or_default();
    Ok(response)
}
