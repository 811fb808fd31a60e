//! A bare HTTP connection over TLS, for requests that no well-behaved client sends and for load without overhead.

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::ApiServer;

/// One connection: HTTP/2 clones share it, HTTP/1 sends one request after another.
pub enum Connection {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// A TLS stream with the admin's client certificate.
///
/// # Errors
/// When the server is away or the kubeconfig cannot be read.
pub async fn tls(server: &ApiServer, protocol: &[u8]) -> Result<TlsStream<TcpStream>> {
    let login = (server.embedded("client-certificate-data")?, server.embedded("client-key-data")?);
    shake(server, protocol, Some((&login.0, &login.1))).await
}

/// The same with any certificate and its key, in PEM, or with none.
async fn shake(server: &ApiServer, protocol: &[u8], login: Option<(&[u8], &[u8])>) -> Result<TlsStream<TcpStream>> {
    use rustls_pki_types::pem::PemObject;
    use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&server.embedded("certificate-authority-data")?)?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match login {
        Some((certificate, key)) => {
            let certificate = CertificateDer::from_pem_slice(certificate)?;
            builder.with_client_auth_cert(vec![certificate], PrivateKeyDer::from_pem_slice(key)?)?
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    let tcp = TcpStream::connect(("127.0.0.1", server.port)).await?;
    tcp.set_nodelay(true)?;
    Ok(TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("127.0.0.1")?, tcp).await?)
}

impl Connection {
    /// # Errors
    /// As [`tls`], or when the HTTP handshake fails.
    pub async fn http1(server: &ApiServer) -> Result<Self> {
        Connection::over(tls(server, b"http/1.1").await?).await
    }

    /// The same without a certificate: for tokens, and for nobody.
    ///
    /// # Errors
    /// As [`Connection::http1`].
    pub async fn bare(server: &ApiServer) -> Result<Self> {
        Connection::over(shake(server, b"http/1.1", None).await?).await
    }

    /// The same with a certificate and its key in PEM.
    ///
    /// # Errors
    /// As [`Connection::http1`].
    pub async fn showing(server: &ApiServer, certificate: &str, key: &str) -> Result<Self> {
        let login = (certificate.as_bytes(), key.as_bytes());
        Connection::over(shake(server, b"http/1.1", Some(login)).await?).await
    }

    async fn over(stream: TlsStream<TcpStream>) -> Result<Self> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Connection::Http1(sender))
    }

    /// # Errors
    /// As [`tls`], or when the HTTP handshake fails.
    pub async fn http2(server: &ApiServer) -> Result<Self> {
        let stream = TokioIo::new(tls(server, b"h2").await?);
        let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
        tokio::spawn(connection);
        Ok(Connection::Http2(sender))
    }

    /// Sends a request and reads the whole answer.
    ///
    /// # Errors
    /// When the connection breaks before the answer is complete.
    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Bytes>> {
        let response = match self {
            Connection::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
            Connection::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        };
        let (head, body) = response.context("sending")?.into_parts();
        Ok(Response::from_parts(head, body.collect().await.context("reading the answer")?.to_bytes()))
    }

    /// A request with nothing but the headers given, and `host`; over HTTP/1.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub async fn with(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Response<Bytes>> {
        let mut request = Request::builder().method(method).uri(path).header("host", "127.0.0.1");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Full::new(body.into()))?).await
    }

    /// A request with a body and its media type; `path` starts with a slash.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub async fn call(
        &mut self,
        method: Method,
        path: &str,
        media: &str,
        body: impl Into<Bytes>,
    ) -> Result<Response<Bytes>> {
        let target = match self {
            Connection::Http1(_) => path.to_owned(),
            Connection::Http2(_) => format!("https://127.0.0.1{path}"),
        };
        let mut request = Request::builder()
            .method(method)
            .uri(target)
            .header("host", "127.0.0.1")
            .header("accept", "application/json");
        if !media.is_empty() {
            request = request.header("content-type", media);
        }
        self.send(request.body(Full::new(body.into()))?).await
    }
}

/// What an API server says to JSON, each time on a connection of its own.
#[derive(Clone, Copy)]
pub struct Api<'s> {
    server: &'s ApiServer,
    /// Whom to impersonate; empty for the admin itself.
    user: &'s str,
}

impl<'s> Api<'s> {
    pub fn new(server: &'s ApiServer) -> Self {
        Api { server, user: "" }
    }

    /// The same as somebody else.
    pub fn of(self, user: &'s str) -> Self {
        Api { user, ..self }
    }

    /// The code and the body of an answer; null for a body that is no JSON.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn ask(self, method: Method, path: &str, media: &str, body: &Value) -> Result<(u16, Value)> {
        let mut connection = Connection::http1(self.server).await?;
        let sent = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let mut request = Request::builder().method(method).uri(path).header("host", "127.0.0.1");
        request = request.header("accept", "application/json").header("content-type", media);
        if !self.user.is_empty() {
            request = request.header("impersonate-user", self.user);
        }
        let answer = connection.send(request.body(Full::new(sent))?).await?;
        Ok((answer.status().as_u16(), serde_json::from_slice(answer.body()).unwrap_or_default()))
    }

    /// # Errors
    /// As [`Api::ask`].
    pub async fn get(self, path: &str) -> Result<(u16, Value)> {
        self.ask(Method::GET, path, "", &Value::Null).await
    }

    /// # Errors
    /// As [`Api::ask`].
    pub async fn post(self, path: &str, body: &Value) -> Result<(u16, Value)> {
        self.ask(Method::POST, path, "application/json", body).await
    }

    /// # Errors
    /// As [`Api::ask`].
    pub async fn merge(self, path: &str, patch: &Value) -> Result<(u16, Value)> {
        self.ask(Method::PATCH, path, "application/merge-patch+json", patch).await
    }

    /// Asks until an answer is as wanted, for as long as things need that happen by themselves.
    ///
    /// # Errors
    /// The last answer, when 20 seconds did not bring it.
    pub async fn until(self, path: &str, wanted: impl Fn(u16, &Value) -> bool) -> Result<Value> {
        let begun = std::time::Instant::now();
        loop {
            let (code, body) = self.get(path).await?;
            if wanted(code, &body) {
                return Ok(body);
            }
            if begun.elapsed() > std::time::Duration::from_secs(60) {
                anyhow::bail!("{path} is still {code}: {body}");
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
}
