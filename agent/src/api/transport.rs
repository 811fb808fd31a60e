//! Connections to one API server: one HTTP/2 connection shared by everything, or a few HTTP/1.1 ones where the server
//! speaks no more than that.
//!
//! A connection is made when a request needs it and kept until it breaks. A request that did not leave on a connection
//! that turned out dead is sent again on a new one; one that left is the caller's to retry. HTTP/2 pings find a server
//! that vanished without a word, also under an idle watch.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, oneshot};

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
    /// Whatever is open, also what serves a watch and is forgotten otherwise.
    open: Vec<oneshot::Sender<()>>,
}

impl Pool {
    /// Nothing new goes over the connections that are there; what is under way goes on.
    fn forget(&mut self) {
        (self.http2, self.http1) = (None, Vec::new());
    }

    /// What is under way ends, too.
    fn close(&mut self) {
        self.forget();
        for connection in self.open.drain(..) {
            // One that has ended hears nothing any more.
            let _ = connection.send(());
        }
    }

    fn keep_track(&mut self, connection: oneshot::Sender<()>) {
        self.open.retain(|open| !open.is_closed());
        self.open.push(connection);
    }
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
    stale: AtomicBool,
    /// Connections were made with a certificate that holds no more.
    outdated: AtomicBool,
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
            stale: AtomicBool::new(false),
            outdated: AtomicBool::new(false),
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
            self.outdated.store(true, Ordering::Release);
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
                let uri = match self.forwarder() {
                    Some(proxy) => {
                        if let Some(login) = proxy.authorization() {
                            request.headers_mut().insert(header::PROXY_AUTHORIZATION, login);
                        }
                        format!("http://{}{}{path}", self.authority, self.prefix)
                    }
                    None => format!("{}{path}", self.prefix),
                };
                *request.uri_mut() = self.uri(&uri).map_err(|e| (None, e))?;
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
        if self.outdated.swap(false, Ordering::AcqRel) {
            pool.close();
        }
        if self.stale.swap(false, Ordering::AcqRel) {
            pool.forget();
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
        let (connection, open) = tokio::time::timeout(CONNECT_TIMEOUT, self.connect()).await.map_err(|_| {
            ApiError::Connect(format!("no connection to {} within {CONNECT_TIMEOUT:?}", self.authority))
        })??;
        pool.keep_track(open);
        if let Connection::Http2(sender) = &connection {
            pool.http2 = Some(sender.clone());
        }
        Ok(connection)
    }

    async fn connect(&self) -> Result<(Connection, oneshot::Sender<()>), ApiError> {
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
    /// The proxy that each request is handed to.
    fn forwarder(&self) -> Option<&Proxy> {
        self.proxy.as_ref().filter(|proxy| !self.secure && proxy.forwards())
    }

    async fn dial(&self) -> Result<Box<dyn Stream>, ApiError> {
        if let Some(proxy) = self.forwarder() {
            return proxy.dial(|| self.login.tls()).await.map_err(ApiError::Connect);
        }
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

/// The connection, and what closes it.
async fn handshake<S>(stream: TokioIo<S>, http2: bool) -> Result<(Connection, oneshot::Sender<()>), ApiError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let refused = |e: hyper::Error| ApiError::Connect(chain(&e));
    let (close, closes) = oneshot::channel();
    let stream = TokioIo::new(Closable { stream: stream.into_inner(), closes: Some(closes), closed: false });
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
        work(connection);
        return Ok((Connection::Http2(sender), close));
    }
    let (sender, connection) = http1::handshake(stream).await.map_err(refused)?;
    work(connection);
    Ok((Connection::Http1(sender), close))
}

/// Works a connection until it ends.
fn work(connection: impl Future<Output = hyper::Result<()>> + Send + 'static) {
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(error = %chain(&error), "connection to the API server ended");
        }
    });
}

/// A stream that ends when somebody says so. hyper works a connection of HTTP/2 by tasks of its own, which nobody can end.
struct Closable<S> {
    stream: S,
    /// None once it has been answered.
    closes: Option<oneshot::Receiver<()>>,
    closed: bool,
}

impl<S: AsyncRead + Unpin> AsyncRead for Closable<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Some(closes) = &mut self.closes
            && let Poll::Ready(told) = Pin::new(closes).poll(cx)
        {
            // One whose transport is gone serves what is under way.
            self.closed = told.is_ok();
            self.closes = None;
        }
        if self.closed {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Closable<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, text: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, text)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        texts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, texts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
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
        self.stale.store(true, Ordering::Release);
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
        // Most proxies refuse to connect to ports that are not TLS's; requests without TLS they take as such.
        let serving = tokio::spawn(async move {
            let (mut tcp, _) = proxy.accept().await.expect("accepts");
            let mut seen = Vec::new();
            for _ in 0..3 {
                let head = head(&mut tcp).await;
                assert!(head.starts_with("get http://api.example:8080/readyz http/1.1\r\n"), "{head}");
                assert!(head.contains("\r\nhost: api.example:8080\r\n"), "{head}");
                assert!(head.contains("\r\nproxy-authorization: basic dtpw\r\n"), "{head}");
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
                "server": "http://api.example:8080", "proxy-url": format!("http://u:p@127.0.0.1:{port}"),
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

    /// A body that never comes.
    struct Awaited;

    impl hyper::body::Body for Awaited {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
            Poll::Pending
        }
    }

    #[tokio::test]
    async fn what_is_under_way_over_http2_ends_with_its_connection() {
        let (near, far) = tokio::io::duplex(1 << 16);
        let answers = hyper::service::service_fn(|_: Request<hyper::body::Incoming>| {
            std::future::ready(Ok::<_, std::convert::Infallible>(Response::new(Awaited)))
        });
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        tokio::spawn(server.serve_connection(TokioIo::new(far), answers));
        let (connection, open) = handshake(TokioIo::new(near), true).await.expect("a connection");
        let Connection::Http2(mut sender) = connection else { panic!("another connection") };
        let request = Request::builder().uri("http://a/watch").body(Full::default()).expect("a request");
        let mut body = sender.send_request(request).await.expect("an answer").into_body();
        let mut pool = Pool { http2: Some(sender), ..Pool::default() };
        pool.keep_track(open);
        pool.forget();
        let brief = Duration::from_millis(50);
        tokio::time::timeout(brief, body.frame()).await.expect_err("it goes on");
        pool.close();
        let cut = tokio::time::timeout(Duration::from_secs(10), body.frame()).await.expect("an end");
        cut.expect("a reason").expect_err("cut");
    }

    /// A watch went on over the connection of the certificate that was over.
    #[tokio::test]
    async fn a_new_certificate_of_the_program_ends_what_the_old_one_opened() {
        let server = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let port = server.local_addr().expect("bound").port();
        tokio::spawn(async move {
            let mut open = Vec::new();
            for _ in 0..3 {
                let (mut tcp, _) = server.accept().await.expect("accepts");
                head(&mut tcp).await;
                tcp.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nsome").await.expect("writes");
                open.push(tcp);
            }
            std::future::pending::<()>().await;
        });
        let answers = std::env::temp_dir().join(format!("exec-pairs-{}", crate::backoff::random_below(u32::MAX)));
        std::fs::create_dir(&answers).expect("a folder");
        let pairs = [(); 2].map(|()| rcgen::generate_simple_self_signed(vec!["n".into()]).expect("made"));
        // The first is given twice; each is asked for anew.
        for (run, pair) in [(1, &pairs[0]), (2, &pairs[0]), (3, &pairs[1])] {
            let answer = serde_json::json!({
                "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {
                    "clientCertificateData": pair.cert.pem(), "clientKeyData": pair.signing_key.serialize_pem(),
                    "expirationTimestamp": "2001-01-01T00:00:00Z",
                },
            });
            std::fs::write(answers.join(run.to_string()), answer.to_string()).expect("writes");
        }
        let script = r#"echo run >> "$0/count"; cat "$0/$(wc -l < "$0/count")""#;
        let config = serde_json::json!({
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
            "users": [{"name": "u", "user": {"exec": {
                "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script, answers],
                "interactiveMode": "Never",
            }}}],
        });
        let config = Kubeconfig::parse(config.to_string().as_bytes(), std::path::Path::new("/k")).expect("valid");
        let transport = HttpTransport::new(&config, "test").expect("a transport");
        let watch = async || {
            let request = Request::builder().uri("/watch").body(Bytes::new()).expect("a request");
            let mut body = transport.send(request).await.expect("an answer").into_body();
            assert_eq!(body.frame().await.expect("some").expect("some").into_data().expect("data"), "some");
            body
        };
        let mut first = watch().await;
        transport.reconnect();
        let mut second = watch().await;
        let brief = Duration::from_millis(50);
        tokio::time::timeout(brief, first.frame()).await.expect_err("forgotten, but the certificate is the same");
        let mut third = watch().await;
        for body in [&mut first, &mut second] {
            body.frame().await.expect("an end").expect_err("cut");
        }
        tokio::time::timeout(brief, third.frame()).await.expect_err("it is of the new one");
        std::fs::remove_dir_all(answers).expect("ours");
    }
}
