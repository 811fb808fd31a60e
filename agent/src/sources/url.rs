//! Static pods from a web server: `staticPodURL`, asked every `httpCheckFrequency` with `staticPodURLHeader`.
//!
//! The answer is one pod or a list of pods, as JSON or YAML. An answer that cannot be used changes nothing: the pods of
//! the last good one stay, and the server is asked again when the time has come. An answer without a byte means that
//! there are no pods, as the kubelet has it, and is told all the same.
//!
//! Followed: `pkg/kubelet/config/http.go`. Limits: a proxy of the environment is not used.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::Empty;
use proto::api::core::v1::Pod;
use rustls::ClientConfig;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::manifest::{self, ManifestError, Manifests, Origin};
use super::{Source, Update};
use crate::api::public_servers;
use crate::node::KUBELET_VERSION;
use crate::probes::Target;
use crate::probes::http::{Fault, exchange, location};

/// The kubelet's limit for one answer, redirects included.
const PATIENCE: Duration = Duration::from_secs(10);
/// As many requests as Go's client makes.
const MAX_REDIRECTS: usize = 10;
/// Failures in a row that are told as warnings; a server that stays away must not fill the log.
const LOUD_FAILURES: u32 = 4;
/// Headers that are for the first host alone.
const PRIVATE: [HeaderName; 3] = [header::AUTHORIZATION, header::COOKIE, header::WWW_AUTHENTICATE];

/// Where static pods are to be had.
#[derive(Debug, Clone)]
pub struct StaticPodUrl {
    pub url: String,
    pub headers: BTreeMap<String, Vec<String>>,
    /// Time between two questions.
    pub every: Duration,
}

/// Why no pods were had; the server's or the operator's to mend, and tried again.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("{0:?} is no URL of a web server")]
    Url(String),
    #[error("staticPodURLHeader: {0:?} cannot be a header")]
    Header(String),
    #[error(transparent)]
    Tls(#[from] crate::api::TlsError),
    #[error("Get {0:?}: {1}")]
    Connection(String, String),
    #[error("Get {0:?}: stopped after {MAX_REDIRECTS} redirects")]
    Redirects(String),
    #[error("Get {0:?}: not within {PATIENCE:?}")]
    Slow(String),
    #[error("{0}: {1}")]
    Status(String, StatusCode),
    #[error("zero-length data received from {0}")]
    Empty(String),
    #[error("{0}: {1}")]
    Manifest(String, ManifestError),
}

/// Asks until the receiver is gone.
pub async fn follow(place: StaticPodUrl, manifests: Manifests, updates: mpsc::Sender<Update>) {
    let every = place.every.max(Duration::from_millis(1));
    let mut reader = Reader { place, manifests, last: None };
    let mut failures: u32 = 0;
    loop {
        let (pods, error) = reader.read().await;
        if let Some(pods) = pods
            && updates.send(Update::Listed(Source::Http, pods)).await.is_err()
        {
            return;
        }
        match error {
            None if failures > 0 => {
                tracing::info!(url = without_password(&reader.place.url), failures, "static pods could be read again");
                failures = 0;
            }
            None => {}
            Some(error) => {
                failures = failures.saturating_add(1);
                if failures <= LOUD_FAILURES {
                    tracing::warn!(%error, failures, "cannot read static pods from their URL");
                } else {
                    tracing::debug!(%error, failures, "cannot read static pods from their URL");
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            () = updates.closed() => return,
        }
    }
}

/// What was read so far.
struct Reader {
    place: StaticPodUrl,
    manifests: Manifests,
    last: Option<Bytes>,
}

impl Reader {
    /// The pods that are to be from now on, if that changed, and what went wrong.
    async fn read(&mut self) -> (Option<Vec<Pod>>, Option<FetchError>) {
        let url = without_password(&self.place.url);
        let body = match tokio::time::timeout(PATIENCE, fetch(&self.place)).await {
            Ok(Ok(body)) => body,
            Ok(Err(error)) => return (None, Some(error)),
            Err(_) => return (None, Some(FetchError::Slow(url))),
        };
        if body.is_empty() {
            self.last = None;
            return (Some(Vec::new()), Some(FetchError::Empty(url)));
        }
        if self.last.as_ref() == Some(&body) {
            return (None, None);
        }
        match self.manifests.parse_all(&body, Origin::Url(&self.place.url)) {
            Ok(pods) => {
                self.last = Some(body);
                (Some(pods), None)
            }
            // Not remembered: the same mistake is one the next time too.
            Err(error) => (None, Some(FetchError::Manifest(url, error))),
        }
    }
}

/// Gets what the server has, over redirects.
async fn fetch(place: &StaticPodUrl) -> Result<Bytes, FetchError> {
    let mut at = Address::of(&place.url)?;
    let first = at.target.host.clone();
    let mut headers = headers(&place.headers)?;
    if let Some(authorization) = at.authorization.take() {
        headers.entry(header::AUTHORIZATION).or_insert(authorization);
    }
    let mut tls: Option<Arc<ClientConfig>> = None;
    for _ in 0..MAX_REDIRECTS {
        if at.target.host != first && !at.target.host.ends_with(&format!(".{first}")) {
            PRIVATE.iter().for_each(|name| drop(headers.remove(name)));
        }
        if at.https && tls.is_none() {
            tls = Some(Arc::new(public_servers()?));
        }
        let wrong = |why| FetchError::Connection(at.url.clone(), why);
        let request = at.request(&headers).map_err(wrong)?;
        let tls = tls.as_ref().filter(|_| at.https);
        let most = usize::try_from(manifest::MAX_BYTES).unwrap_or(usize::MAX);
        // Given up by whoever waits for all of it.
        let never = Instant::now() + PATIENCE * 2;
        let response = exchange(&at.target, tls, request, most, never).await.map_err(wrong)?;
        let status = response.status();
        if matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
            && let Some(to) = location(&response)
        {
            at = at.redirected(&to)?;
            continue;
        }
        if status != StatusCode::OK {
            return Err(FetchError::Status(at.url, status));
        }
        let body = response.into_body();
        return match body.fault {
            None => Ok(body.bytes.into()),
            Some(Fault::TooLong) => Err(wrong(format!("the body is longer than {most} bytes"))),
            Some(Fault::Broken(why)) => Err(wrong(why)),
        };
    }
    Err(FetchError::Redirects(without_password(&place.url)))
}

/// The headers of the configuration; the host is that of the URL, as in Go.
fn headers(given: &BTreeMap<String, Vec<String>>) -> Result<HeaderMap, FetchError> {
    let mut headers = HeaderMap::new();
    for (name, values) in given {
        let invalid = || FetchError::Header(name.clone());
        let key = HeaderName::try_from(name.as_str()).map_err(|_| invalid())?;
        for value in values.iter().filter(|_| key != header::HOST) {
            headers.append(key.clone(), HeaderValue::try_from(value.as_str()).map_err(|_| invalid())?);
        }
    }
    let agent = HeaderValue::try_from(format!("node-agent/{KUBELET_VERSION}"));
    if let (header::Entry::Vacant(entry), Ok(agent)) = (headers.entry(header::USER_AGENT), agent) {
        entry.insert(agent);
    }
    Ok(headers)
}

/// The URL for people to read, with stars for a password, as Go has it.
fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    match authority.rsplit_once('@').and_then(|(user, host)| Some((user.split_once(':')?.0, host))) {
        Some((name, host)) => format!("{scheme}://{name}:***@{host}{path}"),
        None => url.to_owned(),
    }
}

/// The same for what is no URL, where nobody knows where a password ends: one with a slash in it is the usual mistake.
fn without_what_may_be_a_password(text: &str) -> String {
    let (scheme, rest) = text.split_once("://").map_or(("", text), |(scheme, rest)| (&text[..scheme.len() + 3], rest));
    match rest.rsplit_once('@').and_then(|(user, host)| Some((user.split_once(':')?.0, host))) {
        Some((name, host)) => format!("{scheme}{name}:***@{host}"),
        None => text.to_owned(),
    }
}

/// Whether a `Location` names everything from the scheme on; a URL may also be part of a query.
fn is_absolute(location: &str) -> bool {
    let scheme = location.split_once("://").map(|(scheme, _)| scheme).unwrap_or_default();
    let inside = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(inside)
}

/// A URL taken apart.
#[derive(Debug)]
struct Address {
    /// To be told, without its password.
    url: String,
    https: bool,
    target: Target,
    /// Path and query.
    path: String,
    /// What user and password in the URL stand for.
    authorization: Option<HeaderValue>,
}

impl Address {
    fn of(url: &str) -> Result<Self, FetchError> {
        let wrong = || FetchError::Url(without_what_may_be_a_password(url));
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let https = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong()),
        };
        let authority = uri.authority().ok_or_else(wrong)?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(wrong());
        }
        // What stands where a port should is taken for a host's end otherwise, a password with a slash in it for one.
        let place = authority.as_str().rsplit_once('@').map_or(authority.as_str(), |(_, place)| place);
        let given = place.strip_prefix(authority.host()).and_then(|rest| rest.strip_prefix(':')).unwrap_or_default();
        if !given.is_empty() && authority.port_u16().is_none() {
            return Err(wrong());
        }
        let port = authority.port_u16().unwrap_or(if https { 443 } else { 80 });
        let user = authority.as_str().rsplit_once('@').map(|(user, _)| user);
        let authorization = user.and_then(|user| {
            let user = if user.contains(':') { user.to_owned() } else { format!("{user}:") };
            HeaderValue::try_from(format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(user))).ok()
        });
        let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str).to_owned();
        Ok(Address { url: without_password(url), https, target: Target { host, port }, path, authorization })
    }

    /// Where a `Location` header leads to from here.
    fn redirected(&self, to: &str) -> Result<Self, FetchError> {
        let scheme = if self.https { "https" } else { "http" };
        if is_absolute(to) {
            return Address::of(to);
        }
        if let Some(rest) = to.strip_prefix("//") {
            return Address::of(&format!("{scheme}://{rest}"));
        }
        let path = if to.starts_with('/') {
            to.to_owned()
        } else if to.starts_with('?') {
            format!("{}{to}", self.path.split('?').next().unwrap_or_default())
        } else {
            let own = self.path.split('?').next().unwrap_or_default();
            format!("{}/{to}", own.rsplit_once('/').map_or("", |(folder, _)| folder))
        };
        Address::of(&format!("{scheme}://{}{path}", self.target))
    }

    fn request(&self, headers: &HeaderMap) -> Result<Request<Empty<Bytes>>, String> {
        let mut request = Request::get(&self.path).body(Empty::new()).map_err(|e| e.to_string())?;
        *request.headers_mut() = headers.clone();
        let standard = if self.https { 443 } else { 80 };
        let whole = self.target.to_string();
        let host = if self.target.port == standard {
            whole.rsplit_once(':').map_or(whole.as_str(), |(host, _)| host)
        } else {
            &whole
        };
        request.headers_mut().insert(header::HOST, HeaderValue::try_from(host).map_err(|e| e.to_string())?);
        request.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::spec::PodExt;
    use std::sync::Mutex;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: x}]}\n";

    /// A web server that gives the answers one after another, the last one for ever, and keeps what it was asked.
    struct Web {
        port: u16,
        asked: Arc<Mutex<Vec<String>>>,
    }

    async fn web(answers: Vec<String>) -> Web {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = asked.clone();
        tokio::spawn(async move {
            let mut turn = 0;
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    request.push(stream.read_u8().await.unwrap());
                }
                seen.lock().unwrap().push(String::from_utf8(request).unwrap());
                let answer: &String = &answers[turn.min(answers.len() - 1)];
                turn += 1;
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        Web { port, asked }
    }

    fn ok(body: &str) -> String {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
    }

    fn status(line: &str, more: &str) -> String {
        format!("HTTP/1.1 {line}\r\n{more}Content-Length: 0\r\nConnection: close\r\n\r\n")
    }

    fn reader(url: String, headers: &[(&str, &str)]) -> Reader {
        let headers = headers.iter().map(|(k, v)| ((*k).to_owned(), vec![(*v).to_owned()])).collect();
        let place = StaticPodUrl { url, headers, every: Duration::from_secs(1) };
        let manifests = Manifests { node: "Node-A".into(), may_reference: false };
        Reader { place, manifests, last: None }
    }

    fn names(pods: Option<Vec<Pod>>) -> Option<Vec<String>> {
        pods.map(|pods| pods.iter().map(|p| p.name().to_owned()).collect())
    }

    #[tokio::test]
    async fn pods_change_with_the_answer_and_stay_over_mistakes() {
        let list = format!("apiVersion: v1\nkind: List\nitems:\n- {}\n", POD.trim_end().replace('\n', "\n  "));
        let answers =
            vec![ok(POD), ok(POD), status("503 Service Unavailable", ""), ok("kind: Job"), ok(&list), ok("[")];
        let server = web(answers).await;
        let mut reader = reader(format!("http://127.0.0.1:{}/pods?all=1", server.port), &[("X-Key", "a")]);
        let (pods, error) = reader.read().await;
        assert!(error.is_none(), "{error:?}");
        assert_eq!(names(pods), Some(vec!["web-node-a".to_owned()]));
        let (pods, error) = reader.read().await;
        assert!(pods.is_none() && error.is_none(), "the same text is no news");
        for wanted in ["503 Service Unavailable", "kind is \" Job\""] {
            let (pods, error) = reader.read().await;
            assert!(pods.is_none());
            let error = error.map(|e| e.to_string()).unwrap_or_default();
            assert!(error.contains(wanted), "{error}");
        }
        assert_eq!(names(reader.read().await.0), Some(vec!["web-node-a".to_owned()]));
        assert!(reader.read().await.1.is_some());
        let asked = server.asked.lock().unwrap();
        assert!(asked[0].starts_with("GET /pods?all=1 HTTP/1.1\r\n"), "{}", asked[0]);
        assert!(asked[0].contains("X-Key: a\r\n") && asked[0].contains("User-Agent: node-agent/"), "{}", asked[0]);
    }

    #[tokio::test]
    async fn an_empty_answer_means_no_pods() {
        let server = web(vec![ok(POD), ok(""), ok(POD)]).await;
        let mut reader = reader(format!("http://127.0.0.1:{}", server.port), &[]);
        assert_eq!(names(reader.read().await.0).map(|n| n.len()), Some(1));
        let (pods, error) = reader.read().await;
        assert!(pods.is_some_and(|pods| pods.is_empty()) && error.is_some());
        assert_eq!(names(reader.read().await.0).map(|n| n.len()), Some(1));
    }

    #[tokio::test]
    async fn redirects_are_followed_and_secrets_stay_with_their_host() {
        let other = web(vec![ok(POD)]).await;
        let elsewhere = status("302 Found", &format!("Location: http://localhost:{}/there\r\n", other.port));
        let server = web(vec![status("301 Moved Permanently", "Location: b\r\n"), elsewhere]).await;
        let url = format!("http://me:secret@127.0.0.1:{}/x/a", server.port);
        let (pods, error) = reader(url, &[("X-Key", "a")]).read().await;
        assert!(error.is_none(), "{error:?}");
        assert_eq!(names(pods).map(|n| n.len()), Some(1));
        let asked = server.asked.lock().unwrap();
        assert!(asked[0].contains("Authorization: Basic bWU6c2VjcmV0\r\n"), "{}", asked[0]);
        assert!(asked[1].starts_with("GET /x/b ") && asked[1].contains("Authorization: "), "{}", asked[1]);
        let asked = other.asked.lock().unwrap();
        assert!(asked[0].starts_with("GET /there ") && !asked[0].contains("Authorization"), "{}", asked[0]);
        assert!(asked[0].contains("X-Key: a\r\n"), "{}", asked[0]);
    }

    #[tokio::test]
    async fn a_circle_of_redirects_ends() {
        let server = web(vec![status("302 Found", "Location: /again\r\n")]).await;
        let (_, error) = reader(format!("http://127.0.0.1:{}/", server.port), &[]).read().await;
        assert!(error.is_some_and(|e| e.to_string().ends_with("stopped after 10 redirects")));
        assert_eq!(server.asked.lock().unwrap().len(), 10);
    }

    #[test]
    fn only_web_servers_are_asked() {
        for url in ["", "file:///x", "127.0.0.1:80", "http://"] {
            assert!(Address::of(url).is_err(), "{url}");
        }
        let at = Address::of("http://[::1]:81/a/b?c").unwrap();
        assert_eq!((at.target.to_string().as_str(), at.path.as_str()), ("[::1]:81", "/a/b?c"));
        assert_eq!(at.redirected("../x").unwrap().url, "http://[::1]:81/a/../x");
        assert_eq!(at.redirected("//h/y").unwrap().target.to_string(), "h:80");
        assert_eq!(at.redirected("?x=1").unwrap().url, "http://[::1]:81/a/b?x=1");
        let login = at.redirected("/login?next=http://x/").unwrap();
        assert_eq!(login.url, "http://[::1]:81/login?next=http://x/");
        assert_eq!(at.redirected("HTTP://h/y").unwrap().target.to_string(), "h:80");
    }

    #[tokio::test]
    async fn passwords_are_not_told() {
        for (url, told) in [
            ("http://me:secret@h:1/x?to=a@b", "http://me:***@h:1/x?to=a@b"),
            ("http://me:se@cret@h", "http://me:***@h"),
            ("http://me@h/", "http://me@h/"),
            ("http://h/me:secret@x", "http://h/me:secret@x"),
            ("me:secret", "me:secret"),
        ] {
            assert_eq!(without_password(url), told);
        }
        for (url, told) in [
            ("http://me:sec/ret@host/x", "http://me:***@host/x"),
            ("http://me:sec/r@t@host:x/", "http://me:***@host:x/"),
            ("ftp://me:se#cret@host", "ftp://me:***@host"),
            ("me:secret@host", "me:***@host"),
        ] {
            let error = Address::of(url).unwrap_err().to_string();
            assert_eq!(error, format!("{told:?} is no URL of a web server"));
        }
        let server = web(vec![ok(""), ok("["), status("404 Not Found", ""), ok("[")]).await;
        let mut good = reader(format!("http://me:secret@127.0.0.1:{}/", server.port), &[]);
        let mut bad = reader("ftp://me:secret@h/".into(), &[]);
        for reader in [&mut good, &mut bad] {
            for _ in 0..3 {
                let error = reader.read().await.1.map(|e| e.to_string()).unwrap_or_default();
                assert!(error.contains("me:***@") && !error.contains("secret"), "{error}");
            }
        }
    }

    #[tokio::test]
    async fn a_mistake_that_stays_is_told_again_and_what_was_before_is_no_news() {
        let server = web(vec![ok(POD), ok("["), ok("["), ok(POD)]).await;
        let mut reader = reader(format!("http://127.0.0.1:{}/", server.port), &[]);
        assert!(reader.read().await.1.is_none());
        for _ in 0..2 {
            let (pods, error) = reader.read().await;
            assert!(pods.is_none() && error.is_some());
        }
        let (pods, error) = reader.read().await;
        assert!(pods.is_none() && error.is_none(), "{error:?}");
    }
}
