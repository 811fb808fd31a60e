//! Subresources that are somebody else's answer: a kubelet's (`log`, `exec`, `attach`, `portforward`, node `proxy`), or
//! a pod's or service's own server (`proxy`).
//!
//! The request goes on as it came, byte for byte once a connection is upgraded; only its path and credentials are ours (of
//! a log, all of it), and where it came from is added. Nothing but pages with links is buffered: a slow reader slows the
//! sender.

mod admit;
mod connect;
mod html;
mod links;
mod options;
mod page;
mod target;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, LOCATION, UPGRADE};
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, timeout_at};

use crate::http::{Body, Broken, Response};
use crate::metrics::Joined;
use crate::resource::Resource;
use crate::server::{ApiServer, Request, RequestBody};
use crate::status::{ApiError, Result};

use self::links::Links;
pub use connect::{KubeletClient, KubeletClientError, KubeletFiles};

/// Whether a subresource is answered elsewhere. Then what the client accepts is between it and the other side.
pub fn is_proxied(subresource: &str) -> bool {
    matches!(subresource, "log" | "exec" | "attach" | "portforward" | "proxy")
}

/// Answers a request for a proxied subresource.
///
/// # Errors
/// Before anything was forwarded: what admission refuses, 400, 404 or 422; 500 or 503 when the other side cannot be reached.
pub async fn handle(server: &Arc<ApiServer>, request: Request, resource: &Resource) -> Result<Response> {
    admit::admit(server, &request, resource).await?;
    admit::may_enter(server, &request)?;
    let target = match (&*resource.plural, request.info.subresource.as_str()) {
        ("pods", "log") => match options::log(server, &request)? {
            Some(target) => target,
            // Nothing runs anywhere yet.
            None => {
                let mut response = Response::new(Body::empty());
                *response.status_mut() = http::StatusCode::NO_CONTENT;
                return Ok(response);
            }
        },
        ("pods", "exec" | "attach") => options::exec(server, &request)?,
        ("pods", "portforward") => options::port_forward(server, &request)?,
        ("pods", "proxy") => target::pod(server, &request)?,
        ("nodes", "proxy") => target::node(server, &request).await?,
        _ => target::service(server, &request)?,
    };
    forward(server, request, target).await
}

/// Where a request goes.
struct Target {
    /// Name or address.
    host: String,
    /// Where else the same server answers, for when the name is unknown here.
    others: Vec<String>,
    port: u16,
    /// Whether the port is part of how the server is called; a pod that names none is called by its address alone.
    says_port: bool,
    scheme: Scheme,
    /// Path and query.
    path: String,
    /// For messages: `dial backend`.
    to_kubelet: bool,
    /// Whether a kubelet is believed whatever certificate it shows, since the client wants it so.
    unverified: bool,
}

impl Target {
    /// Host and port as a URL has them.
    fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.says_port { format!("{host}:{}", self.port) } else { host }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

/// Headers of one hop, and those that carry the caller's credentials.
const DROPPED: [&str; 8] = [
    "authorization",
    "proxy-authorization",
    "proxy-connection",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "audit-id",
];

/// The addresses that a request came through, the last one the client's of whoever tells it.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// The headers of a request as another server gets them.
pub(crate) fn forwarded_headers(request: &Request) -> HeaderMap {
    passed_headers(&request.headers, request.client_address)
}

fn passed_headers(from: &HeaderMap, client: Option<IpAddr>) -> HeaderMap {
    let upgrading = from.contains_key(UPGRADE);
    let mut out = HeaderMap::with_capacity(from.len() + 2);
    let texts = |name: &'static str| from.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    // What else the client means for this hop alone.
    let named: Vec<String> =
        texts("connection").flat_map(|value| value.split(',')).map(|name| name.trim().to_ascii_lowercase()).collect();
    for (name, value) in from {
        let hop = DROPPED.contains(&name.as_str())
            || name.as_str().starts_with("impersonate-")
            || name == HOST
            || !upgrading
                && (name == CONNECTION || name == UPGRADE || named.iter().any(|other| other == name.as_str()));
        if !hop {
            out.append(name.clone(), value.clone());
        }
    }
    if let Some(client) = client {
        let client = client.to_canonical().to_string();
        let through: Vec<&str> = texts(FORWARDED_FOR).chain([client.as_str()]).collect();
        if let Ok(through) = HeaderValue::from_str(&through.join(", ")) {
            out.insert(FORWARDED_FOR, through);
        }
    }
    out
}

async fn forward(server: &Arc<ApiServer>, request: Request, target: Target) -> Result<Response> {
    let upgrading = request.headers.contains_key(UPGRADE);
    if let Some(place) =
        Links::root(&request).filter(|_| !upgrading).and_then(|place| HeaderValue::try_from(place).ok())
    {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = http::StatusCode::MOVED_PERMANENTLY;
        response.headers_mut().insert(LOCATION, place);
        return Ok(response);
    }
    let sender = server.kubelets.connect(&target).await?;
    let (log, name) = (request.info.subresource == "log", request.info.name.clone());
    // A log is asked for in words of our own: what the client accepts concerns this answer, and a kubelet would take it for a
    // form that it has not.
    let mut headers = if log { HeaderMap::new() } else { forwarded_headers(&request) };
    let host = match request.asked_host() {
        Some(host) if !log => host.to_owned(),
        _ => target.authority(),
    };
    let links = Links::of(&request, &target, &host).filter(|_| !upgrading);
    links.iter().for_each(|links| links.tell(&target.path, &mut headers));
    let (deadline, method) = (request.deadline(), request.method.clone());
    match pass_on(request, sender, &host, &target.path, headers).await {
        Ok(Passed::Upgraded(response)) => Ok(response),
        Ok(Passed::Answered(head, body, _)) if log && !(200..=206).contains(&head.status.as_u16()) => {
            Err(refused_log(head.status.as_u16(), &name, body).await)
        }
        // A log that ends early is one that ended: its container, or its kubelet, is gone.
        Ok(Passed::Answered(mut head, body, sender)) if log => {
            head.headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("text/plain"))]);
            Ok(streamed(head, body, sender, Until::Ended))
        }
        Ok(Passed::Answered(head, body, sender)) => match links {
            Some(links) => page::answer(&links, &method, head, body, sender, deadline).await,
            None => Ok(streamed(head, body, sender, Until::Complete(deadline))),
        },
        Err(PassError::Request(error)) => Err(error),
        Err(PassError::Connection(error)) => Err(connect::unreachable(&target, &error)),
    }
}

/// A connection's sending half.
type Sender = hyper::client::conn::http1::SendRequest<RequestBody>;

/// What became of a request that was passed on.
pub(crate) enum Passed {
    /// Both connections are joined.
    Upgraded(Response),
    /// The answer's body is still coming, as long as the sender lives.
    Answered(http::response::Parts, hyper::body::Incoming, Sender),
}

pub(crate) enum PassError {
    /// It cannot be passed on.
    Request(ApiError),
    Connection(hyper::Error),
}

/// Time for the head of the answer to a watch.
const LONGEST_BEGINNING: Duration = Duration::from_secs(60);

/// Sends a request over a connection, as it came but for what is given.
pub(crate) async fn pass_on(
    mut request: Request,
    mut sender: Sender,
    host: &str,
    path: &str,
    headers: HeaderMap,
) -> Result<Passed, PassError> {
    let refuse = |text: String| PassError::Request(ApiError::bad_request(text));
    let mut outgoing = http::Request::new(request.take_body());
    *outgoing.method_mut() = request.method.clone();
    *outgoing.uri_mut() = path.parse().map_err(|e| refuse(format!("invalid path: {e}")))?;
    *outgoing.headers_mut() = headers;
    let host = HeaderValue::from_str(host).map_err(|e| refuse(e.to_string()))?;
    outgoing.headers_mut().insert(HOST, host);
    // A client that does not send the rest of its body keeps neither connection.
    let sent = sender.send_request(outgoing);
    // A watch that does not begin would be kept for ever: a server answers before the first event.
    let begins = request.info.verb == "watch" && !is_proxied(&request.info.subresource);
    let deadline = request.deadline().or_else(|| begins.then(|| Instant::now() + LONGEST_BEGINNING));
    let answered = match deadline {
        Some(at) => timeout_at(at, sent).await.map_err(|_| PassError::Request(crate::limits::timed_out()))?,
        None => sent.await,
    };
    let mut incoming = answered.map_err(PassError::Connection)?;
    if incoming.status() != http::StatusCode::SWITCHING_PROTOCOLS {
        let (head, body) = incoming.into_parts();
        return Ok(Passed::Answered(head, body, sender));
    }
    let theirs = hyper::upgrade::on(&mut incoming);
    let (head, _) = incoming.into_parts();
    let Some(ours) = request.upgrade.take() else {
        return Err(refuse("the connection cannot be upgraded".into()));
    };
    let joined = Joined::default();
    tokio::spawn(pipe(ours, theirs, joined.clone()));
    let mut response = Response::new(Body::empty());
    response.extensions_mut().insert(joined);
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers;
    Ok(Passed::Upgraded(response))
}

/// How far an answer is passed on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Until {
    /// To its end, whyever it comes.
    Ended,
    /// As a whole, and by then if there is a time; the client's connection is cut otherwise.
    Complete(Option<Instant>),
}

/// An answer that is passed on as it comes in.
pub(crate) fn streamed(
    head: http::response::Parts,
    body: hyper::body::Incoming,
    sender: Sender,
    until: Until,
) -> Response {
    // The sender keeps the connection alive as long as the body is read.
    let stream = futures_util::stream::unfold(Some((body, sender)), move |rest| async move {
        let (mut body, sender) = rest?;
        loop {
            let frame = match until {
                Until::Complete(Some(at)) => match timeout_at(at, body.frame()).await {
                    Ok(frame) => frame,
                    Err(_) => return Some((Err(Broken::Late), None)),
                },
                Until::Complete(None) | Until::Ended => body.frame().await,
            };
            match (frame?, until) {
                (Ok(frame), _) => {
                    if let Ok(data) = frame.into_data() {
                        return Some((Ok(data), Some((body, sender))));
                    }
                }
                (Err(_), Until::Ended) => return None,
                (Err(_), Until::Complete(_)) => return Some((Err(Broken::Theirs), None)),
            }
        }
    });
    let mut response = Response::new(Body::passed_on(stream));
    *response.status_mut() = head.status;
    for (name, value) in &head.headers {
        if name != CONNECTION && name != http::header::TRANSFER_ENCODING && name.as_str() != "keep-alive" {
            response.headers_mut().append(name.clone(), value.clone());
        }
    }
    response
}

/// The longest complaint of a kubelet that is passed on, in bytes.
const MAX_COMPLAINT: usize = 50_000;

/// A kubelet's refusal of a log as the Status that clients expect of an API server.
async fn refused_log(code: u16, pod: &str, body: hyper::body::Incoming) -> ApiError {
    let text = match http_body_util::Limited::new(body, MAX_COMPLAINT).collect().await {
        Ok(all) => String::from_utf8_lossy(&all.to_bytes()).into_owned(),
        Err(error) => error.to_string(),
    };
    match code {
        400 => ApiError::bad_request(text),
        500 => ApiError::internal(text),
        _ => ApiError::from_other_server(code, "", "pods/log", pod, &text),
    }
}

/// Copies both ways until both sides have closed; a side that only stops sending leaves the other direction open. The
/// request counts as running for as long.
async fn pipe(ours: hyper::upgrade::OnUpgrade, theirs: hyper::upgrade::OnUpgrade, _joined: Joined) {
    let (ours, theirs) = match tokio::try_join!(ours, theirs) {
        Ok(both) => both,
        Err(error) => {
            tracing::debug!(%error, "an upgraded connection did not come about");
            return;
        }
    };
    let (mut ours, mut theirs) = (TokioIo::new(ours), TokioIo::new(theirs));
    if let Err(error) = tokio::io::copy_bidirectional(&mut ours, &mut theirs).await {
        tracing::debug!(%error, "an upgraded connection broke");
    }
}

#[cfg(test)]
mod tests {
    use http::header::HeaderName;

    use super::*;

    #[test]
    fn headers_of_one_hop_stay_and_the_clients_address_comes_along() {
        let headers = |all: &[(&'static str, &'static str)]| {
            let all = all.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
            all.fold(HeaderMap::new(), |mut map, (name, value)| {
                map.append(name, value);
                map
            })
        };
        let client = "::ffff:10.0.0.9".parse().ok();
        let plain = headers(&[
            ("host", "api"),
            ("authorization", "Bearer x"),
            ("impersonate-user", "me"),
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("x-kept", "2"),
            ("x-forwarded-for", "192.0.2.1"),
            ("x-forwarded-for", "192.0.2.2"),
        ]);
        let want = [("x-kept", "2"), ("x-forwarded-for", "192.0.2.1, 192.0.2.2, 10.0.0.9")];
        assert_eq!(passed_headers(&plain, client), headers(&want));
        let upgrading = [("connection", "Upgrade"), ("upgrade", "SPDY/3.1")];
        let want = [upgrading[0], upgrading[1], ("x-forwarded-for", "10.0.0.9")];
        assert_eq!(passed_headers(&headers(&upgrading), client), headers(&want));
        assert_eq!(passed_headers(&headers(&upgrading), None), headers(&upgrading));
    }
}
