//! Connections to one API server: one HTTP/2 connection shared by everything, or a few HTTP/1.1 ones where the server
//! speaks no more than that.
//!
//! A connection is made when a request needs it and kept until it breaks. A request that did not leave on a connection
//! that turned out dead is sent again on a new one; one that left is the caller's to retry. HTTP/2 pings find a server
//! that vanished without a word, also under an idle watch.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use super::proxy::{Proxy, Stream};
use super::{ApiError, Kubeconfig, Login, TlsError};
use crate::metrics;

/// The bytes of an answer as they arrive.
pub type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// Sends one request and returns when the head of the answer is there. Dropping the future or the body ends the request.
pub trait Transport: Send + Sync + 'static {
    /// The URI of the request has path and query only; authentication and host are the transport's to add.
    fn send<'a>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Body>, ApiError>> + Send + 'a>>;

    /// Forgets open connections, so that new credentials take effect; requests under way are not disturbed.
    fn reconnect(&self) {}

    /// Host and port of the server, for metrics.
    fn host(&self) -> String {
        String::new()
    }
}

/// client-go dials with the same limit.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// client-go's `HTTP2_READ_IDLE_TIMEOUT_SECONDS` and `HTTP2_PING_TIMEOUT_SECONDS`.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// Idle HTTP/1.1 connections kept; watches hold theirs while they last.
const KEEP_HTTP1: usize = 4;
/// Enough for a list of a node's pods in one go, small enough that a burst of watches cannot buffer much.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// One transport more while it lives.
struct Counted;

impl Counted {
    fn new() -> Self {
        metrics::REST_TRANSPORT_CALLS.inc(&["miss"]);
        metrics::REST_TRANSPORTS.add(&[], 1.0);
        Counted
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        metrics::REST_TRANSPORTS.add(&[], -1.0);
        metrics::REST_TRANSPORTS_DROPPED.inc(&["deleted"]);
    }
}

#[derive(Default)]
struct Pool {
    http2: Option<http2::SendRequest<Full<Bytes>>>,
    http1: Vec<http1::SendRequest<Full<Bytes>>>,
}

/// The transport of production.
pub struct HttpTransport {
    host: String,
    port: u16,
    /// `host:port` as requests name it.
    authority: String,
    secure: bool,
    proxy: Option<Proxy>,
    /// Path before `/api`, without a final slash; mostly empty.
    prefix: String,
    login: Arc<Login>,
    user_agent: HeaderValue,
    pool: Mutex<Pool>,
    stale: std::sync::atomic::AtomicBool,
    /// Told with each [`Transport::reconnect`].
    renewed: tokio::sync::Notify,
    _counted: Counted,
}

impl HttpTransport {
    /// Prepares a transport; no connection is made yet.
    ///
    /// # Errors
    /// When the server's URL, the certificates or the keys of the kubeconfig are unusable.
    pub fn new(config: &Kubeconfig, user_agent: &str) -> Result<Self, TlsError> {
        let uri: Uri = config.server.parse().map_err(|_| TlsError::Server(config.server.clone()))?;
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(TlsError::Server(config.server.clone())),
        };
        let authority = uri.authority().ok_or_else(|| TlsError::Server(config.server.clone()))?;
        let port = authority.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let login = Arc::new(Login::new(config)?);
        if secure && !config.is_awaited() {
            login.tls()?;
        }
        Ok(HttpTransport {
            host: authority.host().trim_start_matches('[').trim_end_matches(']').to_owned(),
            port,
            authority: authority.to_string(),
            secure,
            proxy: config.proxy()?,
            prefix: uri.path().trim_end_matches('/').to_owned(),
            login,
            user_agent: HeaderValue::from_str(user_agent).unwrap_or(HeaderValue::from_static("node-agent")),
            pool: Mutex::new(Pool::default()),
            stale: std::sync::atomic::AtomicBool::new(false),
            renewed: tokio::sync::Notify::new(),
            _counted: Counted::new(),
        })
    }

    async fn exchange(&self, request: Request<Bytes>) -> Result<Response<Body>, ApiError> {
        let (parts, body) = request.into_parts();
        let mut request = Request::from_parts(parts, Full::new(body));
        let path = request.uri().path_and_query().map_or("/", |p| p.as_str()).to_owned();
        let shown = self.login.show().await?;
        if shown.changed {
            self.stale.store(true, std::sync::atomic::Ordering::Release);
        }
        if let Some(value) = shown.header.clone() {
            request.headers_mut().insert(header::AUTHORIZATION, value);
        }
        for (name, value) in self.login.impersonation() {
            request.headers_mut().append(name, value.clone());
        }
        request.headers_mut().insert(header::USER_AGENT, self.user_agent.clone());
        // A kept connection may have died unnoticed, a fresh one may be taken down by a restart: three tries.
        for _ in 0..3 {
            match self.try_once(request, &path).await {
                Ok(response) => {
                    if response.status() == StatusCode::UNAUTHORIZED {
                        self.login.refused(&shown).await;
                    }
                    return Ok(response);
                }
                Err((Some(unsent), _)) => request = unsent,
                Err((None, error)) => return Err(error),
            }
        }
        Err(ApiError::Connect("connections close as soon as they are made".into()))
    }

    /// Returns the request with the error when it did not leave.
    async fn try_once(
        &self,
        mut request: Request<Full<Bytes>>,
        path: &str,
    ) -> Result<Response<Body>, (Option<Request<Full<Bytes>>>, ApiError)> {
        let connection = self.connection().await.map_err(|e| (None, e))?;
        let answer = match connection {
            Connection::Http2(mut sender) => {
                let scheme = if self.secure { "https" } else { "http" };
                *request.uri_mut() =
                    self.uri(&format!("{scheme}://{}{}{path}", self.authority, self.prefix)).map_err(|e| (None, e))?;
                sender.try_send_request(request).await
            }
            Connection::Http1(mut sender) => {
                *request.uri_mut() = self.uri(&format!("{}{path}", self.prefix)).map_err(|e| (None, e))?;
                if let Ok(host) = HeaderValue::from_str(&self.authority) {
                    request.headers_mut().insert(header::HOST, host);
                }
                let answer = sender.try_send_request(request).await;
                if answer.is_ok() {
                    let mut pool = self.pool.lock().await;
                    if pool.http1.len() < KEEP_HTTP1 {
                        pool.http1.push(sender);
                    } else {
                        // The connection ends by itself once the answer's body is read or dropped.
                        drop(sender);
                    }
                }
                answer
            }
        };
        match answer {
            Ok(response) => Ok(response.map(|body| body.map_err(Into::into).boxed_unsync())),
            Err(mut failure) => {
                let unsent = failure.take_message();
                let error = failure.into_error();
                Err((unsent, ApiError::Broken(chain(&error))))
            }
        }
    }

    fn uri(&self, text: &str) -> Result<Uri, ApiError> {
        text.parse().map_err(|_| ApiError::Malformed(format!("{text:?} is no URI")))
    }

    /// Waits for a certificate that was asked for, as long as for a connection.
    async fn credentials(&self) {
        let renewed = self.renewed.notified();
        tokio::pin!(renewed);
        // From here on nothing is missed.
        renewed.as_mut().enable();
        if self.login.is_waiting() {
            let _ = tokio::time::timeout(CONNECT_TIMEOUT, renewed).await;
        }
    }

    async fn connection(&self) -> Result<Connection, ApiError> {
        self.credentials().await;
        let mut pool = self.pool.lock().await;
        if self.stale.swap(false, std::sync::atomic::Ordering::AcqRel) {
            *pool = Pool::default();
        }
        if let Some(sender) = &pool.http2 {
            if !sender.is_closed() {
                return Ok(Connection::Http2(sender.clone()));
            }
            pool.http2 = None;
        }
        pool.http1.retain(|c| !c.is_closed());
        if let Some(at) = pool.http1.iter().position(http1::SendRequest::is_ready) {
            return Ok(Connection::Http1(pool.http1.swap_remove(at)));
        }
        let connection = tokio::time::timeout(CONNECT_TIMEOUT, self.connect()).await.map_err(|_| {
            ApiError::Connect(format!("no connection to {} within {CONNECT_TIMEOUT:?}", self.authority))
        })??;
        if let Connection::Http2(sender) = &connection {
            pool.http2 = Some(sender.clone());
        }
        Ok(connection)
    }

    async fn connect(&self) -> Result<Connection, ApiError> {
        let tcp = self.dial().await?;
        if !self.secure {
            return handshake(TokioIo::new(tcp), false).await;
        }
        let tls = self.login.tls().map_err(|e| ApiError::Credentials(e.to_string()))?;
        let name = self.login.server_name(&self.host).map_err(|e| ApiError::Credentials(e.to_string()))?;
        let stream = tokio_rustls::TlsConnector::from(tls)
            .connect(name, tcp)
            .await
            .map_err(|e| ApiError::Connect(format!("TLS with {}: {e}", self.authority)))?;
        let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        handshake(TokioIo::new(stream), http2).await
    }
}

impl HttpTransport {
    async fn dial(&self) -> Result<Box<dyn Stream>, ApiError> {
        if let Some(proxy) = &self.proxy {
            let connected = proxy.connect(&self.host, self.port, || self.login.tls()).await;
            return connected.map_err(ApiError::Connect);
        }
        let failed = |e: std::io::Error| ApiError::Connect(format!("dial tcp {}:{}: {e}", self.host, self.port));
        let tcp = match self.host.parse::<std::net::IpAddr>() {
            Ok(address) => TcpStream::connect((address, self.port)).await,
            Err(_) => {
                let host = [self.host.as_str()];
                let asked = metrics::REST_NAMES_SECONDS.time(&host);
                let found = tokio::net::lookup_host((self.host.as_str(), self.port)).await.map_err(failed)?;
                drop(asked);
                TcpStream::connect(found.collect::<Vec<_>>().as_slice()).await
            }
        };
        let tcp = tcp.map_err(failed)?;
        // Small requests must not wait for the acknowledgement of the one before.
        let _ = tcp.set_nodelay(true);
        Ok(Box::new(tcp))
    }
}

/// The transport of an agent without an API server: every request fails at once.
pub struct NoServer;

impl Transport for NoServer {
    fn send<'a>(
        &'a self,
        _request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Body>, ApiError>> + Send + 'a>> {
        Box::pin(std::future::ready(Err(ApiError::Standalone)))
    }
}

enum Connection {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

async fn handshake<S>(stream: TokioIo<S>, http2: bool) -> Result<Connection, ApiError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let refused = |e: hyper::Error| ApiError::Connect(chain(&e));
    if http2 {
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(stream)
            .await
            .map_err(refused)?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = %chain(&error), "connection to the API server ended");
            }
        });
        return Ok(Connection::Http2(sender));
    }
    let (sender, connection) = http1::handshake(stream).await.map_err(refused)?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(error = %chain(&error), "connection to the API server ended");
        }
    });
    Ok(Connection::Http1(sender))
}

impl Transport for HttpTransport {
    fn host(&self) -> String {
        self.authority.clone()
    }

    fn send<'a>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Body>, ApiError>> + Send + 'a>> {
        Box::pin(self.exchange(request))
    }

    fn reconnect(&self) {
        self.stale.store(true, std::sync::atomic::Ordering::Release);
        self.renewed.notify_waiters();
    }
}

/// An error with its causes; hyper keeps the interesting part in the source.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// Reads one head; what it says in lower case.
    async fn head(tcp: &mut TcpStream) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(tcp.read_u8().await.expect("a head"));
        }
        String::from_utf8_lossy(&head).to_ascii_lowercase()
    }

    /// A program's credentials were not used at all, nor a proxy.
    #[tokio::test]
    async fn a_program_gives_new_credentials_when_the_server_refuses_the_old_ones_also_behind_a_proxy() {
        let proxy = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let port = proxy.local_addr().expect("bound").port();
        // Proxy and server in one: what comes after CONNECT is for the server.
        let serving = tokio::spawn(async move {
            let (mut tcp, _) = proxy.accept().await.expect("accepts");
            assert!(head(&mut tcp).await.starts_with("connect api.example:8080 http/1.1\r\n"));
            tcp.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.expect("writes");
            let mut seen = Vec::new();
            for _ in 0..3 {
                let head = head(&mut tcp).await;
                let token = head.lines().find_map(|line| line.strip_prefix("authorization: bearer ")).unwrap_or("none");
                let status = if token == "t1" { "401 Unauthorized" } else { "200 OK" };
                let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
                tcp.write_all(answer.as_bytes()).await.expect("writes");
                seen.push(token.to_owned());
            }
            seen
        });
        let count = std::env::temp_dir().join(format!("exec-count-{}", crate::backoff::random_below(u32::MAX)));
        let script = r#"echo run >> "$0"; echo "{apiVersion: client.authentication.k8s.io/v1, kind: ExecCredential, status: {token: t$(wc -l < "$0")}}""#;
        let config = serde_json::json!({
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {
                "server": "http://api.example:8080", "proxy-url": format!("http://127.0.0.1:{port}"),
            }}],
            "users": [{"name": "u", "user": {"exec": {
                "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script, count],
                "interactiveMode": "Never",
            }}}],
        });
        let config = Kubeconfig::parse(config.to_string().as_bytes(), std::path::Path::new("/k")).expect("valid");
        let transport = HttpTransport::new(&config, "test").expect("a transport");
        let mut codes = Vec::new();
        for _ in 0..3 {
            let request = Request::builder().uri("/readyz").body(Bytes::new()).expect("a request");
            let answer = transport.send(request).await.expect("an answer");
            codes.push(answer.status().as_u16());
            answer.into_body().collect().await.expect("the whole of it");
        }
        assert_eq!(codes, [401, 200, 200]);
        assert_eq!(serving.await.expect("served"), ["t1", "t2", "t2"]);
        std::fs::remove_file(count).expect("ours");
    }
}
