//! HTTP GET for probes and lifecycle hooks: one connection per request, no proxy, no certificate checks.
//! [`exchange`] is what static pods from a URL use as well.
//!
//! Redirects on the same host are followed ten times; one to another host ends there. Errors read like those of Go's
//! `http.Client`, because they become event texts.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, Uri, header};
use http_body_util::{BodyExt, Collected, Empty, Limited};
use hyper_util::rt::TokioIo;
use proto::api::core::v1::HttpHeader;
use rustls::pki_types::ServerName;
use service::any_certificate::AnyCertificate;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use super::target::Target;
use super::tcp::dial;

const MAX_REDIRECTS: usize = 10;
/// Of the answer's body; more is not read.
const MAX_BODY_BYTES: usize = 10 * 1024;

/// A GET to make.
#[derive(Debug, Clone)]
pub struct Get {
    pub https: bool,
    pub target: Target,
    /// With the query, if any.
    pub path: String,
    pub headers: Vec<HttpHeader>,
    /// `kube-probe/VERSION` or `kube-lifecycle/VERSION`.
    pub user_agent: &'static str,
}

/// An answer; of a redirect chain, the last one.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: String,
    /// The answer redirects to another host, where we do not go.
    pub left_host: bool,
}

impl Get {
    /// The URL as messages print it.
    pub fn url(&self) -> String {
        let scheme = if self.https { "https" } else { "http" };
        let slash = if self.path.starts_with('/') { "" } else { "/" };
        format!("{scheme}://{}{slash}{}", self.target, self.path)
    }

    /// Runs the request within `timeout`.
    ///
    /// # Errors
    /// Go's message, `Get "URL": ...`.
    pub async fn run(&self, timeout: Duration) -> Result<Answer, String> {
        let url = self.url();
        match tokio::time::timeout(timeout, self.follow(timeout)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err((at, why))) => Err(format!("Get {at:?}: {why}")),
            Err(_) => {
                Err(format!("Get {url:?}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)"))
            }
        }
    }

    async fn follow(&self, timeout: Duration) -> Result<Answer, (String, String)> {
        let mut request = self.clone();
        for _ in 0..=MAX_REDIRECTS {
            let url = request.url();
            let (status, location, body) = request.once(timeout).await.map_err(|why| (url, why))?;
            let next = location.filter(|_| matches!(status, 301 | 302 | 303 | 307 | 308));
            let Some(next) = next.and_then(|to| redirected(&request, &to)) else {
                return Ok(Answer { status, body, left_host: false });
            };
            if next.target.host != self.target.host {
                return Ok(Answer { status, body, left_host: true });
            }
            request = next;
        }
        Err((request.url(), format!("stopped after {MAX_REDIRECTS} redirects")))
    }

    async fn once(&self, timeout: Duration) -> Result<(u16, Option<String>, String), String> {
        let tls = self.https.then_some(&*UNVERIFIED);
        let response = exchange(&self.target, tls, self.request()?, MAX_BODY_BYTES, timeout).await?;
        let location = location(&response);
        // A body that is too long or breaks off does not change the verdict.
        let body = response.body().as_deref().map(|b| String::from_utf8_lossy(b).into_owned()).unwrap_or_default();
        Ok((response.status().as_u16(), location, body))
    }

    fn request(&self) -> Result<Request<Empty<Bytes>>, String> {
        let path = if self.path.starts_with('/') { self.path.clone() } else { format!("/{}", self.path) };
        let uri: Uri = path.parse().map_err(|e: http::uri::InvalidUri| e.to_string())?;
        let mut request = Request::get(uri).body(Empty::new()).map_err(|e| e.to_string())?;
        let headers = request.headers_mut();
        for given in &self.headers {
            let (Ok(name), Ok(value)) =
                (HeaderName::try_from(given.name.as_str()), HeaderValue::try_from(given.value.as_str()))
            else {
                return Err(format!("net/http: invalid header field name {:?}", given.name));
            };
            headers.append(name, value);
        }
        let default = |headers: &mut http::HeaderMap, name: HeaderName, value: &str| {
            // An empty header given by the user means none.
            match headers.get(&name).map(HeaderValue::is_empty) {
                Some(true) => {
                    headers.remove(&name);
                }
                Some(false) => {}
                None => {
                    if let Ok(value) = HeaderValue::from_str(value) {
                        headers.insert(name, value);
                    }
                }
            }
        };
        default(headers, header::USER_AGENT, self.user_agent);
        default(headers, header::ACCEPT, "*/*");
        default(headers, header::HOST, &self.target.to_string());
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        Ok(request)
    }
}

/// Where an answer sends the client.
pub(crate) fn location<B>(response: &Response<B>) -> Option<String> {
    response.headers().get(header::LOCATION).and_then(|l| l.to_str().ok()).map(str::to_owned)
}

/// Sends one request over a connection of its own. The body is an error when it breaks off or is longer than `max_body`
/// bytes.
///
/// # Errors
/// Go's words for what is wrong with the connection.
pub(crate) async fn exchange(
    target: &Target,
    tls: Option<&Arc<rustls::ClientConfig>>,
    request: Request<Empty<Bytes>>,
    max_body: usize,
    timeout: Duration,
) -> Result<Response<Result<Bytes, String>>, String> {
    let tcp = dial(target, timeout).await?;
    let Some(tls) = tls else { return exchange_over(tcp, request, max_body).await };
    let name = ServerName::try_from(target.host.clone()).map_err(|e| e.to_string())?;
    let stream = TlsConnector::from(tls.clone()).connect(name, tcp).await.map_err(|e| tls_error(&e))?;
    exchange_over(stream, request, max_body).await
}

async fn exchange_over<S>(
    stream: S,
    request: Request<Empty<Bytes>>,
    max_body: usize,
) -> Result<Response<Result<Bytes, String>>, String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    let exchange = async {
        let (head, body) = sender.send_request(request).await.map_err(http_error)?.into_parts();
        let body = Limited::new(body, max_body).collect().await;
        Ok(Response::from_parts(head, body.map(Collected::to_bytes).map_err(|e| e.to_string())))
    };
    // The connection is driven here and dropped with the exchange.
    tokio::pin!(exchange);
    tokio::pin!(connection);
    tokio::select! {
        done = &mut exchange => done,
        ended = &mut connection => match ended {
            Ok(()) => exchange.await,
            Err(e) => Err(http_error(e)),
        },
    }
}

fn redirected(from: &Get, location: &str) -> Option<Get> {
    let uri: Uri = location.parse().ok()?;
    let mut next = from.clone();
    if let Some(scheme) = uri.scheme_str() {
        next.https = match scheme {
            "http" => false,
            "https" => true,
            _ => return None,
        };
    }
    if let Some(authority) = uri.authority() {
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let port = authority.port_u16().unwrap_or(if next.https { 443 } else { 80 });
        next.target = Target { host: host.to_owned(), port };
    }
    let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    next.path = if location.starts_with('/') || uri.authority().is_some() {
        path.to_owned()
    } else {
        let base = from.path.split('?').next().unwrap_or("").rsplit_once('/').map_or("", |(dir, _)| dir);
        format!("{base}/{location}")
    };
    Some(next)
}

fn http_error(e: hyper::Error) -> String {
    if e.is_incomplete_message() {
        return "EOF".into();
    }
    let mut source: Option<&dyn std::error::Error> = Some(&e);
    while let Some(at) = source {
        if let Some(io) = at.downcast_ref::<std::io::Error>() {
            return match io.raw_os_error() {
                Some(libc::ECONNRESET) => "read: connection reset by peer".into(),
                _ => io.to_string(),
            };
        }
        source = at.source();
    }
    e.to_string()
}

fn tls_error(e: &std::io::Error) -> String {
    let text = e.to_string();
    if text.contains("InvalidContentType") {
        return "http: server gave HTTP response to HTTPS client".into();
    }
    text
}

/// Probes check that something answers, not who: certificates inside pods are mostly self-signed.
static UNVERIFIED: LazyLock<Arc<rustls::ClientConfig>> = LazyLock::new(|| {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap_or_else(|_| rustls::ClientConfig::builder());
    let config =
        builder.dangerous().with_custom_certificate_verifier(AnyCertificate::new(provider)).with_no_client_auth();
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
        assert_eq!(redirected(&get("/a/b?x=1"), "/c").unwrap().url(), "http://10.0.0.1:8080/c");
        assert_eq!(redirected(&get("/a"), "https://other/x").unwrap().url(), "https://other:443/x");
        assert!(redirected(&get("/a"), "ftp://x/").is_none());
    }

    #[tokio::test]
    async fn refused_connections_read_like_go() {
        let mut get = get("/");
        get.target = Target { host: "127.0.0.1".into(), port: 1 };
        let error = get.run(Duration::from_secs(1)).await.unwrap_err();
        assert_eq!(error, "Get \"http://127.0.0.1:1/\": dial tcp 127.0.0.1:1: connect: connection refused");
    }
}
