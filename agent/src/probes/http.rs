//! HTTP GET for probes and lifecycle hooks: one connection per request, no proxy, no certificate checks.
//! [`exchange`] is what static pods from a URL use as well.
//!
//! Redirects on the same host are followed ten times; one to another host ends there. Errors read like those of Go's
//! `http.Client`, because they become event texts.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use proto::api::core::v1::HttpHeader;
use rustls::pki_types::ServerName;
use service::any_certificate::AnyCertificate;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use super::heard::{Beginning, Heard};
use super::target::Target;
use super::tcp::dial;
use super::url::Reference;

const MAX_REDIRECTS: usize = 10;
/// What a request says of itself, whatever it is told to say.
const OWN_HEADERS: [HeaderName; 6] = [
    header::HOST,
    header::USER_AGENT,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::TRAILER,
];
/// Of the answer's body; more is not read.
const MAX_BODY_BYTES: usize = 10 * 1024;

/// A GET to make.
#[derive(Debug, Clone)]
pub struct Get {
    pub https: bool,
    pub target: Target,
    /// As the pod has it: with the query, if any, escaped or not.
    pub path: String,
    pub headers: Vec<HttpHeader>,
    /// `kube-probe/VERSION` or `kube-lifecycle/VERSION`.
    pub user_agent: &'static str,
}

/// An answer; of a redirect chain, the last one.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Its beginning.
    pub body: String,
    /// Why the body could not be read, in Go's words.
    pub broken: Option<String>,
}

/// The body of an answer, as much of it as came and was wanted.
#[derive(Debug, Default)]
pub(crate) struct Body {
    pub bytes: Vec<u8>,
    pub fault: Option<Fault>,
}

/// Why a body is not whole.
#[derive(Debug)]
pub(crate) enum Fault {
    TooLong,
    /// In Go's words.
    Broken(String),
}

/// Later than anybody waits; what Go has instead of a limit.
const FOREVER: Duration = Duration::from_secs(30 * 365 * 86_400);
/// Given to a connection beyond the limit of the request, which is told in other words.
const LATER: Duration = Duration::from_millis(20);

impl Get {
    /// The URL as messages print it.
    pub fn url(&self) -> String {
        self.shown(&Reference::of_path(&self.path))
    }

    fn shown(&self, reference: &Reference) -> String {
        let scheme = if self.https { "https" } else { "http" };
        match reference.is_opaque() {
            true => format!("{scheme}:{}", reference.after_host().trim_start_matches('/')),
            false => format!("{scheme}://{}{}", self.target, reference.after_host()),
        }
    }

    /// Runs the request within `timeout`.
    ///
    /// # Errors
    /// Go's message, `Get "URL": ...`.
    pub async fn run(&self, timeout: Duration) -> Result<Answer, String> {
        let url = self.url();
        let deadline = Instant::now() + timeout.min(FOREVER);
        match tokio::time::timeout_at(deadline, self.follow(deadline)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err((at, why))) => Err(format!("Get {at:?}: {why}")),
            Err(_) => {
                Err(format!("Get {url:?}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)"))
            }
        }
    }

    async fn follow(&self, deadline: Instant) -> Result<Answer, (String, String)> {
        let (mut request, mut reference) = (self.clone(), Reference::of_path(&self.path));
        let mut asked = 0;
        loop {
            asked += 1;
            let url = request.shown(&reference);
            if reference.is_opaque() {
                return Err((url, "http: no Host in request URL".into()));
            }
            let once = request.once(&reference, deadline).await;
            let (location, answer) = once.map_err(|why| (url.clone(), why))?;
            let next = location.filter(|to| !to.is_empty() && matches!(answer.status, 301 | 302 | 303 | 307 | 308));
            let Some(to) = next else { return Ok(answer) };
            // To another host we do not go.
            let next = redirected(&request, &reference, &to).filter(|(to, _)| to.target.host == self.target.host);
            let Some(next) = next else { return Ok(answer) };
            if asked == MAX_REDIRECTS {
                return Err((url, format!("stopped after {MAX_REDIRECTS} redirects")));
            }
            (request, reference) = next;
        }
    }

    async fn once(&self, to: &Reference, deadline: Instant) -> Result<(Option<String>, Answer), String> {
        let tls = self.https.then_some(&*UNVERIFIED);
        let response = exchange(&self.target, tls, self.request(to)?, MAX_BODY_BYTES, deadline).await?;
        let location = location(&response);
        let body = String::from_utf8_lossy(&response.body().bytes).into_owned();
        let status = response.status().as_u16();
        let broken = match response.into_body().fault {
            Some(Fault::Broken(why)) => Some(why),
            // The rest does not matter.
            Some(Fault::TooLong) | None => None,
        };
        Ok((location, Answer { status, body, broken }))
    }

    fn request(&self, to: &Reference) -> Result<Request<Empty<Bytes>>, String> {
        let uri: Uri = sendable(&to.request_target()).parse().map_err(|e: http::uri::InvalidUri| e.to_string())?;
        let mut request = Request::get(uri).body(Empty::new()).map_err(|e| e.to_string())?;
        let mut given = Vec::with_capacity(self.headers.len());
        for header in &self.headers {
            let (Ok(name), Ok(value)) =
                (HeaderName::try_from(header.name.as_str()), HeaderValue::try_from(header.value.as_str()))
            else {
                return Err(format!("net/http: invalid header field name {:?}", header.name));
            };
            given.push((name, value));
        }
        let first = |name: HeaderName| given.iter().find(|(n, _)| *n == name).map(|(_, value)| value.clone());
        let text = |value: &str| HeaderValue::from_str(value).map_err(|e| e.to_string());
        let is_some = |value: &HeaderValue| !value.is_empty();
        let host = first(header::HOST).filter(is_some).map_or_else(|| text(&self.target.to_string()), Ok)?;
        // An empty one given by the user means none.
        let agent = first(header::USER_AGENT).map_or_else(|| text(self.user_agent), Ok)?;
        let accept = first(header::ACCEPT);
        match accept {
            None => given.push((header::ACCEPT, HeaderValue::from_static("*/*"))),
            Some(value) if value.is_empty() => given.retain(|(name, _)| *name != header::ACCEPT),
            Some(_) => {}
        }
        // In Go's order: these two, the others by name, and that nothing follows.
        given.retain(|(name, _)| !OWN_HEADERS.contains(name));
        given.sort_by(|a, b| a.0.as_str().cmp(b.0.as_str()));
        let headers = request.headers_mut();
        headers.insert(header::HOST, host);
        if is_some(&agent) {
            headers.insert(header::USER_AGENT, agent);
        }
        for (name, value) in given {
            headers.append(name, value);
        }
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        Ok(request)
    }
}

/// Where an answer sends the client.
pub(crate) fn location<B>(response: &Response<B>) -> Option<String> {
    response.headers().get(header::LOCATION).and_then(|l| l.to_str().ok()).map(str::to_owned)
}

/// Sends one request over a connection of its own. No more than `max_body` bytes of the body are read, and none after the
/// `deadline`; to give up before the answer begins is the caller's part.
///
/// # Errors
/// Go's words for what is wrong with the connection.
pub(crate) async fn exchange(
    target: &Target,
    tls: Option<&Arc<rustls::ClientConfig>>,
    request: Request<Empty<Bytes>>,
    max_body: usize,
    deadline: Instant,
) -> Result<Response<Body>, String> {
    let tcp = dial(target, deadline.saturating_duration_since(Instant::now()) + LATER).await?;
    let ends = Ends(tcp.local_addr().ok().zip(tcp.peer_addr().ok()));
    let most = (max_body, deadline);
    let Some(tls) = tls else { return exchange_over(tcp, &ends, request, most).await };
    let name = ServerName::try_from(target.host.clone()).map_err(|e| e.to_string())?;
    let stream = TlsConnector::from(tls.clone()).connect(name, tcp).await.map_err(|e| tls_error(&e, &ends))?;
    exchange_over(stream, &ends, request, most).await
}

/// The addresses of a connection, ours first.
struct Ends(Option<(SocketAddr, SocketAddr)>);

impl Ends {
    /// An error of reading or writing as Go's `net.OpError` puts it.
    fn error(&self, error: &std::io::Error) -> String {
        let between = self.0.map_or_else(String::new, |(own, other)| format!(" {own}->{other}"));
        match error.raw_os_error() {
            Some(libc::ECONNRESET) => format!("read tcp{between}: read: connection reset by peer"),
            Some(libc::EPIPE) => format!("write tcp{between}: write: broken pipe"),
            Some(libc::ETIMEDOUT) => format!("read tcp{between}: read: connection timed out"),
            _ => error.to_string(),
        }
    }
}

async fn exchange_over<S>(
    stream: S,
    ends: &Ends,
    request: Request<Empty<Bytes>>,
    most: (usize, Instant),
) -> Result<Response<Body>, String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let beginning = Beginning::default();
    let stream = TokioIo::new(Heard::new(stream, beginning.clone()));
    let wrong = |e: hyper::Error| http_error(&e, &beginning, ends);
    // Not all that answers probes knows that case does not matter.
    let mut builder = hyper::client::conn::http1::Builder::new();
    let (mut sender, connection) = builder.title_case_headers(true).handshake(stream).await.map_err(wrong)?;
    let exchange = async {
        let (head, body) = sender.send_request(request).await?.into_parts();
        Ok(Response::from_parts(head, read(body, most, ends).await))
    };
    // The connection is driven here and dropped with the exchange.
    tokio::pin!(exchange);
    tokio::pin!(connection);
    tokio::select! {
        done = &mut exchange => match done {
            // The connection knows why.
            Err(e) if hyper::Error::is_canceled(&e) => Err(wrong(connection.await.err().unwrap_or(e))),
            done => done.map_err(wrong),
        },
        ended = &mut connection => match ended {
            Ok(()) => exchange.await.map_err(wrong),
            // What had come before is an answer.
            Err(e) => exchange.await.map_err(|_: hyper::Error| wrong(e)),
        },
    }
}

/// Reads a body to its end, to `most` bytes or until `deadline`.
async fn read(mut body: hyper::body::Incoming, (most, deadline): (usize, Instant), ends: &Ends) -> Body {
    let mut read = Body::default();
    loop {
        let frame = match tokio::time::timeout_at(deadline, body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(e))) => {
                read.fault = Some(Fault::Broken(broken_off(&e, ends)));
                return read;
            }
            Ok(None) => return read,
            Err(_) => {
                let why = "context deadline exceeded (Client.Timeout or context cancellation while reading body)";
                read.fault = Some(Fault::Broken(why.into()));
                return read;
            }
        };
        let Ok(data) = frame.into_data() else { continue };
        let room = most - read.bytes.len();
        read.bytes.extend(data.iter().take(room));
        if data.len() > room {
            read.fault = Some(Fault::TooLong);
            return read;
        }
    }
}

/// Why a body ends before its end.
fn broken_off(e: &hyper::Error, ends: &Ends) -> String {
    match io_cause(e) {
        Some(io) if io.kind() == std::io::ErrorKind::UnexpectedEof => "unexpected EOF".into(),
        Some(io) => ends.error(io),
        None if e.is_incomplete_message() => "unexpected EOF".into(),
        None => e.to_string(),
    }
}

/// What went wrong with the connection below.
fn io_cause(e: &hyper::Error) -> Option<&std::io::Error> {
    let mut source: Option<&dyn std::error::Error> = Some(e);
    while let Some(at) = source {
        if let Some(io) = at.downcast_ref() {
            return Some(io);
        }
        source = at.source();
    }
    None
}

/// A query with what cannot stand in the first line of a request escaped; all else has been.
fn sendable(target: &str) -> String {
    let fits = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '<' | '>' | '\\' | '^' | '`' | '{' | '|' | '}');
    let mut buffer = [0; 4];
    let mut out = String::with_capacity(target.len());
    for c in target.chars() {
        if fits(c) {
            out.push(c);
        } else {
            c.encode_utf8(&mut buffer).bytes().for_each(|b| out.push_str(&format!("%{b:02X}")));
        }
    }
    out
}

/// The request that an answer asks for; `None` where it leads nowhere that can be asked.
fn redirected(from: &Get, base: &Reference, location: &str) -> Option<(Get, Reference)> {
    let to = Reference::parse(location).filter(|to| !to.is_opaque())?;
    let mut next = from.clone();
    match to.scheme.as_str() {
        "" => {}
        "http" => next.https = false,
        "https" => next.https = true,
        _ => return None,
    }
    if let Some(authority) = &to.authority {
        let authority: http::uri::Authority = authority.parse().ok()?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let port = authority.port_u16().unwrap_or(if next.https { 443 } else { 80 });
        next.target = Target { host: host.to_owned(), port };
    }
    if !to.scheme.is_empty() {
        // A name of the host that was given goes with the request it was given for.
        next.headers.retain(|h| !h.name.eq_ignore_ascii_case("host"));
    }
    if !from.https || next.https {
        next.headers.retain(|h| !h.name.eq_ignore_ascii_case("referer"));
        next.headers.push(HttpHeader { name: "Referer".into(), value: from.shown(base) });
    }
    Some((next, to.resolved_from(base)))
}

fn http_error(e: &hyper::Error, beginning: &Beginning, ends: &Ends) -> String {
    // What breaks before the first word is told as it is.
    let broken = |what: String| match beginning.is_empty() {
        true => what,
        false => format!("net/http: HTTP/1.x transport connection broken: {what}"),
    };
    if let Some(io) = io_cause(e) {
        return broken(ends.error(io));
    }
    // One that ends before the request is on its way counts as well.
    if e.is_incomplete_message() || e.is_canceled() {
        return broken(if beginning.is_empty() { "EOF" } else { "unexpected EOF" }.into());
    }
    // A server that does not wait for the request speaks something else.
    if e.is_parse() || !beginning.is_empty() && !beginning.line().starts_with("HTTP/") {
        return broken(malformed(&beginning.line()));
    }
    e.to_string()
}

/// What Go finds wrong with the first line of an answer.
fn malformed(line: &str) -> String {
    let Some((version, status)) = line.split_once(' ') else { return format!("malformed HTTP response {line:?}") };
    let code = status.trim_start_matches(' ').split(' ').next().unwrap_or_default();
    if code.len() != 3 || code.parse::<u16>().is_err() {
        return format!("malformed HTTP status code {code:?}");
    }
    format!("malformed HTTP version {version:?}")
}

fn tls_error(e: &std::io::Error, ends: &Ends) -> String {
    if e.kind() == std::io::ErrorKind::UnexpectedEof {
        return "EOF".into();
    }
    let text = ends.error(e);
    if text.contains("InvalidContentType") {
        return "http: server gave HTTP response to HTTPS client".into();
    }
    text
}

/// Probes check that something answers, not who: certificates inside pods are mostly self-signed.
static UNVERIFIED: LazyLock<Arc<rustls::ClientConfig>> = LazyLock::new(|| {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap_or_else(|_| rustls::ClientConfig::builder());
    let config = builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate)).with_no_client_auth();
    Arc::new(config)
});

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str) -> Get {
        Get {
            https: false,
            target: Target { host: "10.0.0.1".into(), port: 8080 },
            path: path.into(),
            headers: vec![],
            user_agent: "kube-probe/1.36",
        }
    }

    #[test]
    fn urls_and_redirects_are_resolved() {
        assert_eq!(get("ok").url(), "http://10.0.0.1:8080/ok");
        assert_eq!(get("/a b?c d").url(), "http://10.0.0.1:8080/a%20b?c d");
        assert_eq!(sendable("/a%20b?c d\"ä"), "/a%20b?c%20d%22%C3%A4");
        let from = Get { headers: vec![HttpHeader { name: "Host".into(), value: "me".into() }], ..get("/a/b?x=1") };
        let to = |location: &str| redirected(&from, &Reference::of_path(&from.path), location);
        let shown = |location: &str| to(location).map(|(get, reference)| get.shown(&reference));
        assert_eq!(shown("/c").as_deref(), Some("http://10.0.0.1:8080/c"));
        assert_eq!(shown("https://other/x").as_deref(), Some("https://other:443/x"));
        assert_eq!(shown("../c?d").as_deref(), Some("http://10.0.0.1:8080/c?d"));
        assert_eq!((shown("ftp://x/"), shown("mailto:x")), (None, None));
        let headers =
            |location| to(location).unwrap().0.headers.into_iter().map(|h| (h.name, h.value)).collect::<Vec<_>>();
        let referer = ("Referer".to_owned(), "http://10.0.0.1:8080/a/b?x=1".to_owned());
        assert_eq!(headers("/c"), [("Host".to_owned(), "me".to_owned()), referer.clone()]);
        assert_eq!(headers("http://10.0.0.1:8080/c"), [referer]);
    }

    /// Counts as an answer, whatever the server had read by then; probes of such servers used to fail now and then.
    #[tokio::test]
    async fn an_answer_that_comes_before_the_question_is_one() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (all, here) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"HTTP/1.0 204 No Content\r\n\r\n").await.unwrap();
            stream.shutdown().await.unwrap();
            all.send(()).unwrap();
            let _ = stream.read_to_end(&mut Vec::new()).await;
        });
        let tcp = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        here.await.unwrap();
        tcp.readable().await.unwrap();
        let request = get("/").request(&Reference::of_path("/")).unwrap();
        let most = (10, Instant::now() + Duration::from_secs(5));
        let answer = exchange_over(tcp, &Ends(None), request, most).await.unwrap();
        assert_eq!(answer.status(), 204);
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_is_told_beside_the_answer() {
        let long = format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(MAX_BODY_BYTES + 1)).leak();
        for (said, body, broken) in [
            ("HTTP/1.1 500 No\r\nContent-Length: 9\r\n\r\nhm", "hm", Some("unexpected EOF")),
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhm", "hm", None),
            ("HTTP/1.0 200 OK\r\n\r\nhm", "hm", None),
            (long, &long[long.len() - MAX_BODY_BYTES..], None),
        ] {
            let port = server(vec![Some(said)]).await;
            let asking = Get { target: Target { host: "127.0.0.1".into(), port }, ..get("/") };
            let answer = asking.run(Duration::from_secs(5)).await.unwrap();
            assert_eq!((answer.body.as_str(), answer.broken.as_deref()), (body, broken));
        }
    }

    /// Go says nothing of the container then: what it had begun to say is not taken for an answer.
    #[tokio::test]
    async fn a_body_that_takes_too_long_is_broken_as_well() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhm").await.unwrap();
            let _ = stream.read_to_end(&mut Vec::new()).await;
        });
        let asking = Get { target: Target { host: "127.0.0.1".into(), port }, ..get("/") };
        let answer = asking.run(Duration::from_millis(300)).await.unwrap();
        let why = "context deadline exceeded (Client.Timeout or context cancellation while reading body)";
        assert_eq!((answer.status, answer.broken.as_deref()), (200, Some(why)));
    }

    /// Answers each connection with the next of `said` and closes it; a reset where there is none.
    async fn server(said: Vec<Option<&'static str>>) -> u16 {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            for said in said {
                let (mut stream, _) = listener.accept().await.unwrap();
                // What is closed with something unread in it is reset.
                let mut asked = vec![0u8; if said.is_some() { 1024 } else { 1 }];
                let _ = stream.read(&mut asked).await.unwrap();
                stream.write_all(said.unwrap_or_default().as_bytes()).await.unwrap();
            }
        });
        port
    }

    async fn told(said: Option<&'static str>) -> String {
        let port = server(vec![said]).await;
        let get = Get { target: Target { host: "127.0.0.1".into(), port }, ..get("/") };
        let why = get.run(Duration::from_secs(5)).await.unwrap_err();
        why.strip_prefix(&format!("Get \"http://127.0.0.1:{port}/\": ")).expect(&why).replace(&port.to_string(), "PORT")
    }

    #[tokio::test]
    async fn broken_answers_read_like_go() {
        let broken = "net/http: HTTP/1.x transport connection broken: ";
        assert_eq!(told(Some("")).await, "EOF");
        assert_eq!(told(Some("hello\r\nyou\r\n\r\n")).await, format!("{broken}malformed HTTP response \"hello\""));
        assert_eq!(told(Some("HTTP/1.1 what\r\n\r\n")).await, format!("{broken}malformed HTTP status code \"what\""));
        assert_eq!(told(Some("HTTP/1.1 200 OK\r\nA: b\r\n")).await, format!("{broken}unexpected EOF"));
        let reset = told(None).await;
        assert!(reset.starts_with("read tcp 127.0.0.1:"), "{reset}");
        assert!(reset.ends_with("->127.0.0.1:PORT: read: connection reset by peer"), "{reset}");
    }

    #[test]
    fn headers_come_in_gos_order_and_empty_ones_mean_none() {
        let names = |given: &[(&str, &str)]| {
            let headers = given.iter().map(|(n, v)| HttpHeader { name: (*n).into(), value: (*v).into() }).collect();
            let request = Get { headers, ..get("/") }.request(&Reference::of_path("/")).unwrap();
            let said = |(name, value): (&HeaderName, &HeaderValue)| format!("{name}: {}", value.to_str().unwrap());
            request.headers().iter().map(said).collect::<Vec<_>>()
        };
        let (host, agent, close) = ("host: 10.0.0.1:8080", "user-agent: kube-probe/1.36", "connection: close");
        assert_eq!(names(&[]), [host, agent, "accept: */*", close]);
        let given = [("X-B", "2"), ("accept", ""), ("X-A", "1"), ("X-B", "3"), ("Host", ""), ("Connection", "upgrade")];
        assert_eq!(names(&given), [host, agent, "x-a: 1", "x-b: 2", "x-b: 3", close]);
        let given = [("Host", "me.example"), ("User-Agent", ""), ("Accept", "text/plain")];
        assert_eq!(names(&given), ["host: me.example", "accept: text/plain", close]);
    }

    #[tokio::test]
    async fn redirects_end_after_ten_requests_and_at_other_hosts() {
        let again = "HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n";
        let port = server(vec![Some(again); 11]).await;
        let asking = Get { target: Target { host: "127.0.0.1".into(), port }, ..get("/") };
        let why = asking.run(Duration::from_secs(5)).await.unwrap_err();
        assert_eq!(why, format!("Get \"http://127.0.0.1:{port}/\": stopped after 10 redirects"));
        let away = "HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 2\r\n\r\nhm";
        for said in [away, "HTTP/1.1 302 Found\r\nContent-Length: 2\r\n\r\nhm"] {
            let port = server(vec![Some(said)]).await;
            let asking = Get { target: Target { host: "127.0.0.1".into(), port }, ..get("/") };
            let answer = asking.run(Duration::from_secs(5)).await.unwrap();
            assert_eq!((answer.status, answer.body.as_str()), (302, "hm"));
        }
    }

    #[tokio::test]
    async fn refused_connections_read_like_go() {
        let mut get = get("/");
        get.target = Target { host: "127.0.0.1".into(), port: 1 };
        let error = get.run(Duration::from_secs(1)).await.unwrap_err();
        assert_eq!(error, "Get \"http://127.0.0.1:1/\": dial tcp 127.0.0.1:1: connect: connection refused");
    }
}
