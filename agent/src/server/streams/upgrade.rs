//! Connections to the runtime's streaming server, which is on this host and speaks plain HTTP/1.1 with upgrades.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::super::answers::{Answer, text};
use super::super::listen::full;

/// What is spoken in a SPDY connection: offered by the one side, chosen by the other.
pub const PROTOCOL: &str = "x-stream-protocol-version";

/// Why the runtime's streaming server is of no use; the text is for the client.
#[derive(Debug, thiserror::Error)]
#[error("the runtime's streaming server: {0}")]
pub struct StreamError(pub String);

/// Passes a request with its upgrade on to the runtime, byte for byte. What the runtime refuses is the answer.
///
/// # Errors
/// The runtime does not answer.
pub async fn pass(url: &str, mut request: Request<Incoming>) -> Result<Response<Answer>, StreamError> {
    let mut answer = send(url, request.method().clone(), forwarded(request.headers())).await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(refusal(answer));
    }
    let (there, here) = (hyper::upgrade::on(&mut answer), hyper::upgrade::on(&mut request));
    tokio::spawn(async move {
        if let (Ok(here), Ok(there)) = tokio::join!(here, there) {
            let (mut here, mut there) = (TokioIo::new(here), TokioIo::new(there));
            // Either side ends the session; how it ended is between the two.
            let _ = tokio::io::copy_bidirectional(&mut here, &mut there).await;
        }
    });
    Ok(answer.map(|_| full(Bytes::new())))
}

/// The runtime's refusal as the client's; what is neither the upgrade nor a refusal of it is told in the kubelet's words.
pub fn refusal(mut answer: Response<Incoming>) -> Response<Answer> {
    let status = answer.status().as_u16();
    if status < 400 {
        let told = format!("invalid upgrade response: status code {status}\n");
        return text(StatusCode::INTERNAL_SERVER_ERROR, told);
    }
    // A refusal of no stated length ends with its connection.
    let bounded = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING];
    if !bounded.iter().any(|name| answer.headers().contains_key(name)) {
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    answer.map(|body| body.map_err(Into::into).boxed_unsync())
}

/// What the runtime answers to a client's request where that asks for a tunnel: it is asked for the SPDY in it, with the
/// protocols that the client knows.
///
/// # Errors
/// The runtime does not answer.
pub async fn ask_for_spdy<'a>(
    url: &str,
    from: &HeaderMap,
    protocols: impl Iterator<Item = &'a str>,
) -> Result<Response<Incoming>, StreamError> {
    let mut headers = forwarded(from);
    for name in [header::SEC_WEBSOCKET_PROTOCOL, header::SEC_WEBSOCKET_KEY, header::SEC_WEBSOCKET_VERSION] {
        headers.remove(name);
    }
    headers.insert(header::UPGRADE, HeaderValue::from_static("SPDY/3.1"));
    headers.remove(PROTOCOL);
    for protocol in protocols {
        let value = HeaderValue::from_str(protocol).map_err(|e| StreamError(e.to_string()))?;
        headers.append(PROTOCOL, value);
    }
    send(url, Method::POST, headers).await
}

/// A SPDY connection to the runtime; `protocol` is what is spoken in it.
///
/// # Errors
/// The runtime does not answer, or refuses, in its words.
pub async fn spdy(url: &str, protocol: &'static str) -> Result<TokioIo<Upgraded>, StreamError> {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("SPDY/3.1"));
    headers.insert(PROTOCOL, HeaderValue::from_static(protocol));
    let answer = send(url, Method::POST, headers).await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        let status = answer.status();
        let body = answer.into_body().collect().await.map(|b| b.to_bytes()).unwrap_or_default();
        return Err(StreamError(format!("{status}: {}", String::from_utf8_lossy(&body).trim_end())));
    }
    let upgraded = hyper::upgrade::on(answer).await.map_err(|e| StreamError(e.to_string()))?;
    Ok(TokioIo::new(upgraded))
}

async fn send(url: &str, method: Method, headers: HeaderMap) -> Result<Response<Incoming>, StreamError> {
    let failed = |e: &dyn std::fmt::Display| StreamError(e.to_string());
    let uri: Uri = url.parse().map_err(|_| failed(&format_args!("{url:?} is no URL")))?;
    let host = uri.host().ok_or_else(|| failed(&"its URL has no host"))?;
    let address = (host.trim_matches(['[', ']']), uri.port_u16().unwrap_or(80));
    let tcp = TcpStream::connect(address).await.map_err(|e| failed(&e))?;
    // Keystrokes go out one by one.
    let _ = tcp.set_nodelay(true);
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(tcp)).await.map_err(|e| failed(&e))?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a stream to the runtime ended");
        }
    });
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.method_mut() = method;
    let path = uri.path_and_query().map_or("/", |p| p.as_str());
    *request.uri_mut() = path.parse().map_err(|_| failed(&"its URL has no path"))?;
    *request.headers_mut() = headers;
    if let Some(Ok(value)) = uri.authority().map(|a| HeaderValue::from_str(a.as_str())) {
        request.headers_mut().insert(header::HOST, value);
    }
    sender.send_request(request).await.map_err(|e| failed(&e))
}

/// The caller's headers without its credentials, which are none of the runtime's business.
fn forwarded(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    headers.remove(header::AUTHORIZATION);
    headers.remove(header::CONTENT_LENGTH);
    headers
}
