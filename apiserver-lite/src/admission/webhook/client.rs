//! Calls of webhooks over HTTPS. Connections are kept and used again.
//!
//! A connection that was kept may be closed by the other side at any time; a call that fails on one is made once more on
//! a fresh one, as long as nothing was answered. Errors are in the words of Go's HTTP client, which the documentation of
//! webhooks and people's searches are full of.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderMap, HeaderName, RETRY_AFTER, USER_AGENT};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use super::answer::Answer;
use super::logins::{Login, Logins, Pem, identity};
use super::trust;
use crate::metrics::Webhooks;
use crate::outgoing::dial_words;
use crate::outgoing::exec::Credentials;
use crate::server::ApiServer;
use crate::status::quote;

/// Idle connections that are kept to one webhook.
const IDLE: usize = 16;
/// Webhooks that connections are kept to; beyond, all are dropped.
const WEBHOOKS: usize = 256;
/// How often a call is made again when the webhook asks for that.
const RETRIES: usize = 10;
/// Largest answer that is read.
const LARGEST: usize = 16 << 20;

/// Where a webhook is.
#[derive(Debug, Clone)]
pub struct Endpoint {
    place: Place,
    path: String,
    bundle: Arc<[u8]>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Place {
    Host { host: String, port: u16, shown: String },
    Service { namespace: String, name: String, port: u16 },
}

/// Connections to everybody: by where they go, whom they trust and who asks.
#[derive(Default)]
pub struct Clients {
    pools: Mutex<HashMap<Trusted, Arc<Pool>>>,
    /// Who the plugins are that ask; mutating, validating.
    logins: [Logins; 2],
    counted: Webhooks,
}

/// What asks a webhook, and may have its own users for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Asker {
    Mutating,
    Validating,
    /// Conversions are asked for by nobody in particular.
    Conversion,
}

/// Why a webhook did not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unanswered {
    /// With these settings nobody can be asked.
    Settings(String),
    /// It was asked, or would have been.
    Call(String),
}

impl std::fmt::Display for Unanswered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unanswered::Settings(why) => write!(f, "could not get REST client: {why}"),
            Unanswered::Call(why) => f.write_str(why),
        }
    }
}

/// The last is the user in the asker's file.
type Trusted = (Place, Arc<[u8]>, Option<(Asker, String)>);

struct Pool {
    bundle: Arc<[u8]>,
    login: Option<Arc<Login>>,
    shown: Mutex<Shown>,
    idle: Mutex<Vec<Sender>>,
}

/// How connections are made.
struct Shown {
    tls: TlsConnector,
    /// The certificate that they show.
    certificate: Option<Pem>,
    looked: Instant,
}

/// Who asks, as one call says it.
#[derive(Default)]
struct Signed {
    headers: HeaderMap,
    /// What a program told for it.
    told: Option<Arc<Credentials>>,
}

/// After this long the certificate is looked at though no connection has to be made, as client-go does.
const LOOK_AGAIN: Duration = Duration::from_secs(300);

type Sender = SendRequest<Full<Bytes>>;

impl Endpoint {
    /// Reads a `clientConfig`.
    pub fn new(config: &Value) -> Self {
        let bundle = config["caBundle"].as_str().unwrap_or_default();
        let bundle = base64::engine::general_purpose::STANDARD.decode(bundle).unwrap_or_default();
        let port = |value: &Value| value.as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(443);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let service = &config["service"];
        if service.is_object() {
            let place = Place::Service {
                namespace: text(&service["namespace"]),
                name: text(&service["name"]),
                port: port(&service["port"]),
            };
            return Endpoint { place, path: text(&service["path"]), bundle: bundle.into() };
        }
        let url = text(&config["url"]);
        let rest = url.split_once("://").map_or("", |(_, rest)| rest);
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let (host, port) = match authority.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
            Some((host, after)) => (host, after.strip_prefix(':').and_then(|port| port.parse().ok())),
            None => match authority.rsplit_once(':') {
                Some((host, port)) => (host, port.parse().ok()),
                None => (authority, None),
            },
        };
        let place = Place::Host { host: host.into(), port: port.unwrap_or(443), shown: authority.into() };
        Endpoint { place, path: path.into(), bundle: bundle.into() }
    }

    /// Whether it is this very server. It knows itself: neither authorities nor a user are looked for.
    fn is_own(&self) -> bool {
        let Place::Service { namespace, name, port } = &self.place else { return false };
        (&**namespace, &**name, *port) == ("default", "kubernetes", 443)
    }

    /// The name that its certificate has to be made for.
    fn server_name(&self) -> String {
        match &self.place {
            Place::Host { host, .. } => host.clone(),
            Place::Service { namespace, name, .. } => format!("{name}.{namespace}.svc"),
        }
    }

    /// Host and port as requests name them.
    fn authority(&self) -> String {
        match &self.place {
            Place::Host { shown, .. } => shown.clone(),
            Place::Service { port, .. } => format!("{}:{port}", self.server_name()),
        }
    }

    /// Host and port as users are named after them.
    fn target_of_users(&self) -> String {
        match &self.place {
            Place::Host { shown, port, .. } if !shown.ends_with(&format!(":{port}")) => format!("{shown}:{port}"),
            _ => self.authority(),
        }
    }

    /// Path and query of a request that has some time.
    fn target(&self, timeout: Duration) -> String {
        let path = if self.path.starts_with('/') { self.path.clone() } else { format!("/{}", self.path) };
        format!("{path}?timeout={}s", timeout.as_secs())
    }
}

impl Clients {
    /// With the users that the mutating and the validating plugin have.
    pub fn new(logins: [Logins; 2]) -> Self {
        Clients { logins, ..Clients::default() }
    }

    /// What became of the calls that admission made.
    pub fn counted(&self) -> &Webhooks {
        &self.counted
    }

    /// Posts a body; the answer, which may tell of a failure. A webhook that is busy and says for how long is asked again
    /// after that, as long as there is time.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn post(
        &self,
        server: &ApiServer,
        asker: Asker,
        endpoint: &Endpoint,
        body: Vec<u8>,
        timeout: Duration,
    ) -> Result<Answer, Unanswered> {
        let shown = || format!("Post \"https://{}{}\"", endpoint.authority(), endpoint.target(timeout));
        let pool = match endpoint.is_own() {
            true => None,
            false => Some(self.pool(asker, endpoint).map_err(Unanswered::Settings)?),
        };
        let body = Bytes::from(body);
        let call = async {
            let mut retries = RETRIES;
            loop {
                let answer = match &pool {
                    Some(pool) => pool.call(server, endpoint, body.clone(), timeout).await?,
                    None => of_own(server, endpoint, body.clone(), timeout).await,
                };
                match answer.wait_seconds() {
                    Some(seconds) if retries > 0 => tokio::time::sleep(Duration::from_secs(seconds)).await,
                    _ => return Ok(answer),
                }
                retries -= 1;
            }
        };
        match tokio::time::timeout(timeout, call).await {
            Ok(answer) => answer.map_err(|why: String| Unanswered::Call(format!("{}: {why}", shown()))),
            Err(_) => Err(Unanswered::Call(format!("{}: context deadline exceeded", shown()))),
        }
    }

    fn pool(&self, asker: Asker, endpoint: &Endpoint) -> Result<Arc<Pool>, String> {
        let login = match asker {
            Asker::Mutating => self.logins[0].of(&endpoint.target_of_users()),
            Asker::Validating => self.logins[1].of(&endpoint.target_of_users()),
            Asker::Conversion => None,
        };
        let mut all = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (endpoint.place.clone(), endpoint.bundle.clone(), login.map(|login| (asker, login.name.clone())));
        if let Some(pool) = all.get(&key) {
            return Ok(pool.clone());
        }
        let tls = trust::connector(&endpoint.bundle, None)?;
        let shown = Mutex::new(Shown { tls, certificate: None, looked: Instant::now() });
        let (bundle, login) = (endpoint.bundle.clone(), login.cloned());
        let pool = Arc::new(Pool { bundle, login, shown, idle: Mutex::default() });
        if all.len() >= WEBHOOKS {
            all.clear();
        }
        all.insert(key, pool.clone());
        Ok(pool)
    }
}

impl Pool {
    async fn call(
        &self,
        server: &ApiServer,
        endpoint: &Endpoint,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Answer, String> {
        if self.shown().looked.elapsed() >= LOOK_AGAIN {
            self.connector().await?;
        }
        // Before any connection is taken: who cannot be told has nothing to do with those.
        let signed = self.sign().await?;
        while let Some(kept) = self.take() {
            // One that was closed meanwhile tells so before anything was answered.
            if let Ok(answer) = self.send(kept, endpoint, body.clone(), timeout, &signed).await {
                return Ok(answer);
            }
        }
        let fresh = self.connect(server, endpoint).await?;
        self.send(fresh, endpoint, body, timeout, &signed).await
    }

    async fn sign(&self) -> Result<Signed, String> {
        let mut signed = Signed::default();
        if let Some(login) = &self.login {
            signed.told = login.sign(&mut signed.headers).await?;
        }
        Ok(signed)
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How to connect, with the certificate that there is now. Connections that show another one are not used again.
    async fn connector(&self) -> Result<TlsConnector, String> {
        let certificate = match &self.login {
            Some(login) => login.certificate().await,
            None => Ok(None),
        };
        let mut shown = self.shown();
        shown.looked = Instant::now();
        let fresh = certificate.and_then(|certificate| {
            if shown.certificate == certificate {
                return Ok(None);
            }
            let tls = trust::connector(&self.bundle, certificate.clone().map(identity).transpose()?)?;
            Ok(Some((tls, certificate)))
        });
        match fresh {
            Ok(None) => {}
            Ok(Some((tls, certificate))) => {
                (shown.tls, shown.certificate) = (tls, certificate);
                self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
            }
            // Files that are just being written anew fit each other again the next time.
            Err(error) if shown.certificate.is_some() => {
                tracing::warn!(error, "the certificate that webhooks are shown stays the one before");
            }
            Err(error) => return Err(error),
        }
        Ok(shown.tls.clone())
    }

    fn take(&self) -> Option<Sender> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(sender) = idle.pop() {
            if sender.is_ready() {
                return Some(sender);
            }
        }
        None
    }

    async fn connect(&self, server: &ApiServer, endpoint: &Endpoint) -> Result<Sender, String> {
        let connector = self.connector().await?;
        let (host, port) = match &endpoint.place {
            Place::Host { host, port, .. } => (host.clone(), *port),
            Place::Service { namespace, name, port } => resolve(server, namespace, name, *port)?,
        };
        let shown = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let dialed = |why: &dyn std::fmt::Display| format!("dial tcp {shown}: {why}");
        let addresses: Vec<_> = match tokio::net::lookup_host((host.as_str(), port)).await {
            Ok(addresses) => addresses.collect(),
            Err(_) => return Err(format!("dial tcp: lookup {host}: no such host")),
        };
        let tcp = TcpStream::connect(addresses.as_slice()).await.map_err(|e| dialed(&dial_words(&e)))?;
        let _ = tcp.set_nodelay(true);
        let name = endpoint.server_name();
        let server_name = ServerName::try_from(name).map_err(|e| e.to_string())?;
        let tls = connector.connect(server_name, tcp).await.map_err(|e| trust::explain(&e))?;
        let (sender, connection) = http1::handshake(TokioIo::new(tls)).await.map_err(|e| e.to_string())?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to a webhook ended");
            }
        });
        Ok(sender)
    }

    async fn send(
        &self,
        mut sender: Sender,
        endpoint: &Endpoint,
        body: Bytes,
        timeout: Duration,
        signed: &Signed,
    ) -> Result<Answer, String> {
        let mut request = http::Request::post(endpoint.target(timeout))
            .header(HOST, endpoint.authority())
            .header(ACCEPT, "application/json, */*")
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, "kube-apiserver-admission")
            .body(Full::new(body))
            .map_err(|e| e.to_string())?;
        request.headers_mut().extend(signed.headers.clone());
        let gone = |_: hyper::Error| "EOF".to_owned();
        let response = sender.send_request(request).await.map_err(gone)?;
        let code = response.status().as_u16();
        let refused = self.login.as_ref().filter(|_| code == 401);
        if let Some((login, told)) = refused.zip(signed.told.as_ref()) {
            login.refused(told);
        }
        let content_type = header(response.headers(), &CONTENT_TYPE).to_owned();
        let retry_after = header(response.headers(), &RETRY_AFTER).parse().ok();
        let body = Limited::new(response.into_body(), LARGEST).collect().await.map_err(|e| e.to_string())?.to_bytes();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.is_some() {
            // They show the certificate that was refused; the next has what is shown then.
            idle.clear();
        } else if idle.len() < IDLE && !sender.is_closed() {
            idle.push(sender);
        }
        Ok(Answer { code, content_type, retry_after, body })
    }
}

/// What this server answers itself.
async fn of_own(server: &ApiServer, endpoint: &Endpoint, body: Bytes, timeout: Duration) -> Answer {
    let told = crate::aggregate::post(server, &endpoint.target(timeout), body).await;
    let content_type = header(&told.headers, &CONTENT_TYPE).to_owned();
    let retry_after = header(&told.headers, &RETRY_AFTER).parse().ok();
    Answer { code: told.code, content_type, retry_after, body: told.body }
}

fn header<'h>(headers: &'h HeaderMap, name: &HeaderName) -> &'h str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Address and port of a ready endpoint of a service.
fn resolve(server: &ApiServer, namespace: &str, name: &str, port: u16) -> Result<(String, u16), String> {
    let found = server.store.get(&"services".into(), namespace, name);
    let service = found.ok_or_else(|| format!("service {} not found", quote(name)))?.value();
    let spec = &service["spec"];
    let mut ports = spec["ports"].as_array().into_iter().flatten();
    let chosen = ports.find(|p| p["port"].as_u64() == Some(port.into()));
    if spec["type"] == "ExternalName" {
        return Ok((spec["externalName"].as_str().unwrap_or_default().to_owned(), port));
    }
    let chosen = chosen.ok_or_else(|| format!("no service port {port} found for service {}", quote(name)))?;
    let port_name = chosen["name"].as_str().unwrap_or_default();
    let mut ready: Vec<(String, u16)> = Vec::new();
    for slice in server.store.snapshot(&"endpointslices.discovery.k8s.io".into()).range(Some(namespace), None) {
        if slice.label("kubernetes.io/service-name") != Some(name) {
            continue;
        }
        let value = slice.value();
        let of_port = |p: &&Value| p["name"].as_str().unwrap_or_default() == port_name;
        let target = value["ports"].as_array().into_iter().flatten().find(of_port);
        let Some(target) = target.and_then(|p| p["port"].as_u64()).and_then(|p| u16::try_from(p).ok()) else {
            continue;
        };
        let endpoints = value["endpoints"].as_array().into_iter().flatten();
        let addresses = endpoints.filter(|e| e["conditions"]["ready"] != false);
        ready.extend(addresses.filter_map(|e| Some((e["addresses"][0].as_str()?.to_owned(), target))));
    }
    if ready.is_empty() {
        return Err(format!("no endpoints available for service {}", quote(name)));
    }
    let at = (crate::random::fraction() * ready.len() as f64) as usize;
    Ok(ready.swap_remove(at.min(ready.len() - 1)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_are_read_from_urls_and_services() {
        for (url, name, authority, target) in [
            ("https://a.b/c/d", "a.b", "a.b", "/c/d?timeout=3s"),
            ("https://a.b:8443", "a.b", "a.b:8443", "/?timeout=3s"),
            ("https://[::1]:9/x", "::1", "[::1]:9", "/x?timeout=3s"),
        ] {
            let endpoint = Endpoint::new(&json!({"url": url}));
            assert_eq!(endpoint.server_name(), name);
            assert_eq!(endpoint.authority(), authority);
            assert_eq!(endpoint.target(Duration::from_secs(3)), target);
        }
        let service = Endpoint::new(&json!({"service": {"namespace": "n", "name": "s", "port": 9, "path": "/p"}}));
        assert_eq!(service.authority(), "s.n.svc:9");
        assert_eq!(service.target_of_users(), "s.n.svc:9");
        let is_own = |service: Value| Endpoint::new(&json!({"service": service})).is_own();
        assert!(is_own(json!({"namespace": "default", "name": "kubernetes"})));
        assert!(!is_own(json!({"namespace": "default", "name": "kubernetes", "port": 6443})));
        assert!(!is_own(json!({"namespace": "other", "name": "kubernetes"})));
        for (url, target) in
            [("https://a.b/c", "a.b:443"), ("https://a.b:8443/c", "a.b:8443"), ("https://a:443", "a:443")]
        {
            assert_eq!(Endpoint::new(&json!({"url": url})).target_of_users(), target);
        }
    }
}
