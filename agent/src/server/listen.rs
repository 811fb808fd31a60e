//! Ports and connections: accept, TLS, HTTP/1.1 and HTTP/2 with upgrades.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::Either;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use service::bodiless;
use service::refusal::Refusing;
use tokio::net::TcpListener;

use super::ServerError;
use super::answers::{Answer, bare};
use super::client_ca::ShownCertificate;
use super::health;
use super::mux::{Meant, meant};
use super::router::{Router, not_here};
use crate::config::parse_ip;

/// A client that does not finish its handshake in this time is let go.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Go's server gives up on request heads after the same time as on idle connections here.
const HEADER: Duration = Duration::from_secs(90);
/// As the agent's own connection to its API server does it.
const PING: Duration = Duration::from_secs(30);
const PONG: Duration = Duration::from_secs(15);
/// Requests of one client at the same time, as Go's server has it.
const STREAMS: u32 = 250;
/// Bytes sent ahead of a client that does not read, per request.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// A request's line and headers, as Go's server has it: a mebibyte, and what it reads ahead.
const HEAD_BYTES: usize = (1 << 20) + 4096;
/// Go's server does not count them. Each request takes room for as many, before anybody knows whose it is.
const MAX_HEADERS: usize = 512;
/// The kubelet tries again after as long.
const HEALTH_AGAIN: Duration = Duration::from_secs(5);
/// After a failed accept (no file descriptors, mostly) there is no use in trying again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub(super) async fn bind(address: &str, port: i32) -> Result<TcpListener, ServerError> {
    let ip = parse_ip(address).ok_or_else(|| ServerError::Address(address.to_owned()))?;
    let port = u16::try_from(port).map_err(|_| ServerError::Address(format!("{address}:{port}")))?;
    let address = SocketAddr::new(ip, port);
    TcpListener::bind(address).await.map_err(|source| ServerError::Listen { address, source })
}

/// Serves until the task is dropped; connections end with it.
pub(super) async fn serve_tls(listener: TcpListener, tls: Arc<rustls::ServerConfig>, router: Arc<Router>) {
    let acceptor = tokio_rustls::TlsAcceptor::from(tls);
    let mut connections = tokio::task::JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((mut stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (acceptor, router) = (acceptor.clone(), router.clone());
        connections.spawn(async move {
            let handshake = async {
                service::plain_http::refuse(&mut stream).await?;
                acceptor.accept(stream).await
            };
            let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, handshake).await else { return };
            let certificate = stream.get_ref().1.peer_certificates().and_then(ShownCertificate::new).map(Arc::new);
            let (stream, serving) = Refusing::new(stream);
            let service = service_fn(move |request: Request<Incoming>| {
                serving.begun();
                let (router, certificate) = (router.clone(), certificate.clone());
                let bodiless = bodiless::concerns(&request);
                async move {
                    let answer = match of_everything(&request) {
                        Some(answer) => answer,
                        None => router.counted(request, certificate).await,
                    };
                    Ok::<_, std::convert::Infallible>(as_asked(answer, bodiless))
                }
            });
            serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// The same without TLS, for a port where nobody is asked who he is.
pub(super) async fn serve_plain(listener: TcpListener, router: Arc<Router>) {
    accept(listener, move |request| {
        let router = router.clone();
        async move { router.counted(request, None).await }
    })
    .await;
}

/// Answers `/healthz` without asking who wants to know. The agent does without it as long as it cannot listen.
pub(super) async fn serve_health(address: String, port: i32) {
    let listener = loop {
        // Here a name is as good as an address.
        let listening = match u16::try_from(port) {
            Ok(port) => match parse_ip(&address) {
                Some(ip) => TcpListener::bind((ip, port)).await,
                None => TcpListener::bind((address.as_str(), port)).await,
            },
            Err(_) => return tracing::error!(port, "no port for health checks"),
        };
        match listening {
            Ok(listener) => break listener,
            Err(error) => tracing::error!(%error, address, port, "Failed to start healthz server"),
        }
        tokio::time::sleep(HEALTH_AGAIN).await;
    };
    accept(listener, |request| async move {
        let path = match meant(request.uri().path(), &[]) {
            Meant::Path(path) => path,
            elsewhere => return not_here(elsewhere, &request),
        };
        match path.as_str() {
            "/healthz" => health::all(&["ping"], request.uri().query().unwrap_or(""), health::Parts::default()).await,
            "/healthz/ping" => health::one("ping", health::Parts::default()).await,
            _ => not_here(Meant::Nowhere, &request),
        }
    })
    .await;
}

/// Serves plain connections until the task is dropped.
async fn accept<F>(listener: TcpListener, handle: impl Fn(Request<Incoming>) -> F + Clone + Send + 'static)
where
    F: Future<Output = Response<Answer>> + Send + 'static,
{
    let mut connections = tokio::task::JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let handle = handle.clone();
        connections.spawn(async move {
            let (stream, serving) = Refusing::new(stream);
            let service = service_fn(move |request: Request<Incoming>| {
                serving.begun();
                let bodiless = bodiless::concerns(&request);
                let answer = match of_everything(&request) {
                    Some(answer) => Either::Left(std::future::ready(answer)),
                    None => Either::Right(handle(request)),
                };
                async move { Ok::<_, std::convert::Infallible>(as_asked(answer.await, bodiless)) }
            });
            serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn serve_connection<I, S, F>(io: I, service: S)
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    S: hyper::service::Service<
            Request<Incoming>,
            Response = Response<Answer>,
            Error = std::convert::Infallible,
            Future = F,
        > + Send
        + 'static,
    F: Future<Output = Result<Response<Answer>, std::convert::Infallible>> + Send + 'static,
{
    let mut builder = auto::Builder::new(TokioExecutor::new());
    let mut http1 = builder.http1();
    http1.timer(TokioTimer::new()).header_read_timeout(HEADER);
    http1.max_headers(MAX_HEADERS).max_buf_size(HEAD_BYTES);
    // Who is gone without a word is noticed, and who does not read gets no more sent ahead.
    let mut http2 = builder.http2();
    http2.timer(TokioTimer::new()).keep_alive_interval(PING).keep_alive_timeout(PONG);
    http2.max_concurrent_streams(STREAMS).max_send_buf_size(SEND_BUFFER_BYTES);
    http2.max_header_list_size(u32::try_from(HEAD_BYTES).unwrap_or(u32::MAX));
    if let Err(error) = builder.serve_connection_with_upgrades(io, service).await {
        tracing::debug!(%error, "connection ended");
    }
}

/// `*` is no place but the server as a whole: it says that it is there, whoever asks, and does nothing else with it.
fn of_everything<B>(request: &Request<B>) -> Option<Response<Answer>> {
    if request.uri().path() != "*" {
        return None;
    }
    if *request.method() == Method::OPTIONS {
        return Some(bare(StatusCode::OK, Bytes::new()));
    }
    let mut refused = bare(StatusCode::BAD_REQUEST, Bytes::new());
    if request.version() < Version::HTTP_2 {
        refused.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Some(refused)
}

fn as_asked(answer: Response<Answer>, bodiless: bool) -> Response<Answer> {
    if bodiless { bodiless::answer(answer, full(Bytes::new())) } else { answer }
}

/// A body that is there already.
pub(super) fn full(bytes: impl Into<Bytes>) -> Answer {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use http_body_util::Empty;
    use tokio::net::TcpStream;

    use super::*;
    use crate::server::answers::text;

    #[test]
    fn the_server_as_a_whole_can_be_asked_for_its_options_alone() {
        let code = |method: Method, path: &str| {
            let request = Request::builder().method(method).uri(path).body(()).expect("a request");
            of_everything(&request).map(|answer| answer.status().as_u16())
        };
        assert_eq!((code(Method::OPTIONS, "*"), code(Method::GET, "*")), (Some(200), Some(400)));
        assert_eq!((code(Method::OPTIONS, "/*"), code(Method::OPTIONS, "/pods")), (None, None));
    }

    /// The body used to come with it, which breaks the stream: `curl -I` heard nothing.
    #[tokio::test]
    async fn an_answer_to_head_has_no_body() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(accept(listener, |_| async { text(StatusCode::OK, "ok") }));
        let stream = TokioIo::new(TcpStream::connect(address).await.expect("connects"));
        let made = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await;
        let (mut sender, connection) = made.expect("a connection");
        tokio::spawn(connection);
        let request = Request::head(format!("http://{address}/")).body(Empty::<Bytes>::new()).expect("a request");
        let answer = sender.send_request(request).await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()[header::CONTENT_LENGTH], "2");
        assert!(answer.into_body().collect().await.expect("whole").to_bytes().is_empty());
    }
}
