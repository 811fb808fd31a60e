//! A webhook that a test answers itself: HTTPS on loopback, with a certificate of its own.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use base64::Engine as _;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls_pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// What a test answers to the body that was sent to a path.
pub type Answer = dyn Fn(&str, &Value) -> Value + Send + Sync;

/// A running webhook; it ends with the test's runtime.
pub struct Hook {
    port: u16,
    /// Its certificate in PEM, in base64, as configurations have it.
    bundle: String,
    /// A certificate that it believes, and its key, in PEM.
    login: (String, String),
    seen: Arc<Mutex<Vec<Call>>>,
}

/// One call that a webhook had.
#[derive(Debug, Clone)]
struct Call {
    path: String,
    body: Value,
    /// What the caller said of itself, and whether it showed a certificate.
    caller: (String, bool),
}

impl Hook {
    /// Starts to answer. A call to `/slow` is answered after a minute, one to `/status/401` with this code.
    ///
    /// # Errors
    /// When there is no port or no certificate to be had.
    pub async fn start(answer: impl Fn(&str, &Value) -> Value + Send + Sync + 'static) -> Result<Self> {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()])?;
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(anyhow::Error::msg)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let login = rcgen::generate_simple_self_signed(vec!["caller".to_owned()])?;
        let mut believed = rustls::RootCertStore::empty();
        believed.add(login.cert.der().clone())?;
        let callers = rustls::server::WebPkiClientVerifier::builder_with_provider(believed.into(), provider.clone());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(callers.allow_unauthenticated().build()?)
            .with_single_cert(vec![made.cert.der().clone()], key)?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let seen: Arc<Mutex<Vec<Call>>> = Arc::default();
        let answer: Arc<Answer> = Arc::new(answer);
        let acceptor = TlsAcceptor::from(Arc::new(config));
        tokio::spawn(serve(listener, acceptor, answer, seen.clone()));
        let bundle = base64::engine::general_purpose::STANDARD.encode(made.cert.pem());
        let login = (login.cert.pem(), login.signing_key.serialize_pem());
        Ok(Hook { port, bundle, login, seen })
    }

    /// Host and port.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// A certificate that it believes, and its key, in PEM.
    pub fn login(&self) -> (&str, &str) {
        (&self.login.0, &self.login.1)
    }

    /// Who called a path so far: what was said in `Authorization`, and whether a certificate was shown.
    pub fn callers(&self, path: &str) -> Vec<(String, bool)> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().filter(|call| call.path == path).map(|call| call.caller.clone()).collect()
    }

    /// A `clientConfig` that leads to a path of it.
    pub fn client_config(&self, path: &str) -> Value {
        json!({"url": format!("https://127.0.0.1:{}{path}", self.port), "caBundle": self.bundle})
    }

    /// Bodies that were sent to a path so far.
    pub fn seen(&self, path: &str) -> Vec<Value> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().filter(|call| call.path == path).map(|call| call.body.clone()).collect()
    }
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, answer: Arc<Answer>, seen: Arc<Mutex<Vec<Call>>>) {
    while let Ok((tcp, _)) = listener.accept().await {
        let (acceptor, answer, seen) = (acceptor.clone(), answer.clone(), seen.clone());
        tokio::spawn(async move {
            let Ok(tls) = acceptor.accept(tcp).await else { return };
            let shows = tls.get_ref().1.peer_certificates().is_some();
            let service = service_fn(move |request| one(request, shows, answer.clone(), seen.clone()));
            // A client that goes away ends its connection and nothing else.
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(tls), service).await;
        });
    }
}

async fn one(
    request: Request<Incoming>,
    shows: bool,
    answer: Arc<Answer>,
    seen: Arc<Mutex<Vec<Call>>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let said = request.headers().get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let caller = (said.to_owned(), shows);
    let body = request.into_body().collect().await.map(|b| b.to_bytes()).unwrap_or_default();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    seen.lock().unwrap_or_else(PoisonError::into_inner).push(Call { path: path.clone(), body: body.clone(), caller });
    if path == "/slow" {
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    let said = answer(&path, &body).to_string();
    let code = path.strip_prefix("/status/").and_then(|code| code.parse().ok()).unwrap_or(200_u16);
    let response = Response::builder().status(code).header("content-type", "application/json");
    let response = response.body(Full::new(said.into()));
    Ok(response.unwrap_or_default())
}
