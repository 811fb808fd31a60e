//! Aggregated APIs: group versions that an APIService gives to a server of their own.
//!
//! Requests below `/apis/GROUP/VERSION` are passed on with the user's name in headers, over a connection on which we show
//! the front proxy's certificate; the other server believes us for it. [`run`] follows the APIServices, looks whether
//! their servers answer and says so in their status. Discovery shows what the other servers told last.

mod check;
mod documents;
mod older;
mod own;
mod remote;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue, LOCATION};
use serde_json::Value;

pub use older::Copies;
pub use own::post;
pub use remote::Remote;
pub use watch::take_in;

use crate::http::{Body, Response, respond};
use crate::outgoing::{Client, Identity};
use crate::proxy::{PassError, Passed, Until, forwarded_headers, pass_on, streamed};
use crate::request::User;
use crate::server::{ApiServer, Request};

/// Time for an answer that one of our own waits for.
const PATIENCE: Duration = Duration::from_secs(10);

/// The servers of aggregated APIs as they are known now.
pub struct Aggregated {
    remotes: ArcSwap<Vec<Arc<Remote>>>,
    /// Told when there may be others, or one of them is available now.
    changed: tokio::sync::Notify,
    /// What we show them.
    certificate: std::path::PathBuf,
    key: std::path::PathBuf,
}

impl Aggregated {
    pub fn new(certificate: std::path::PathBuf, key: std::path::PathBuf) -> Self {
        Aggregated { remotes: ArcSwap::default(), changed: tokio::sync::Notify::new(), certificate, key }
    }

    pub fn all(&self) -> Arc<Vec<Arc<Remote>>> {
        self.remotes.load_full()
    }

    /// Puts what is known of one by now in the place of what was known before.
    fn renew(&self, before: &Arc<Remote>, now: Remote) {
        let now = Arc::new(now);
        let chosen = |remote: &Arc<Remote>| if Arc::ptr_eq(remote, before) { now.clone() } else { remote.clone() };
        self.remotes.rcu(|all| all.iter().map(chosen).collect::<Vec<_>>());
        self.changed.notify_one();
    }

    fn identity(&self) -> Option<Identity> {
        crate::outgoing::identity(&self.certificate, &self.key)
            .inspect_err(|error| tracing::error!(%error, "aggregated APIs are reached without a certificate"))
            .ok()
    }

    /// The server that a path belongs to: one below `/apis/GROUP/VERSION`, or its OpenAPI document.
    pub fn of_path(&self, path: &str) -> Option<Arc<Remote>> {
        let remotes = self.remotes.load();
        if remotes.is_empty() {
            return None;
        }
        // Its schemas are below another path.
        let path = path.strip_prefix("/openapi/v3").unwrap_or(path);
        let mut parts = path.strip_prefix("/apis/")?.split('/');
        let (group, version) = (parts.next()?, parts.next()?);
        remotes.iter().find(|r| r.group == group && r.version == version).cloned()
    }
}

/// Follows the APIServices and asks their servers, until the runtime ends.
pub async fn run(server: Arc<ApiServer>) {
    tokio::join!(watch::run(server.clone()), documents::run(server));
}

/// Escapes a key of a user's extra facts for a header's name, as Go's `url.PathEscape` and the header rules ask.
fn header_key(key: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&b);
    key.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Names the user to the other server.
fn name_user(headers: &mut HeaderMap, user: &User) {
    let ours: Vec<HeaderName> = headers.keys().filter(|k| k.as_str().starts_with("x-remote-")).cloned().collect();
    for key in ours {
        headers.remove(key);
    }
    let mut add = |name: &str, value: &str| {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_bytes(value.as_bytes())) {
            headers.append(name, value);
        }
    };
    add("x-remote-user", &user.name);
    if !user.uid.is_empty() {
        add("x-remote-uid", &user.uid);
    }
    user.groups.iter().for_each(|group| add("x-remote-group", group));
    for (key, values) in &user.extra {
        let name = format!("x-remote-extra-{}", header_key(key));
        values.iter().for_each(|value| add(&name, value));
    }
}

/// What a client hears whom the other server sends elsewhere.
const REDIRECTED: &[u8] = b"the backend attempted to redirect this request, which is not permitted";

/// Passes a request on to the server of its group version.
pub async fn forward(request: Request, remote: &Remote) -> Response {
    if !remote.available {
        return respond::text(503, "service unavailable\n");
    }
    let Ok(dialer) = &remote.dialer else { return respond::text(503, "service unavailable\n") };
    let unreachable = |error: &dyn std::fmt::Display| {
        tracing::debug!(service = %remote.name, %error, "an aggregated API does not answer");
        respond::text(503, format!("error trying to reach service: {error}\n"))
    };
    let sender = match dialer.connect().await {
        Ok(sender) => sender,
        Err(error) => return unreachable(&error),
    };
    let mut headers = forwarded_headers(&request);
    name_user(&mut headers, &request.user);
    let path = request.uri.path_and_query().map_or(request.uri.path(), |p| p.as_str()).to_owned();
    let (errors, until) = (request.for_error(), Until::Complete(request.deadline()));
    match pass_on(request, sender, &dialer.authority(), &path, headers).await {
        Ok(Passed::Upgraded(response)) => response,
        // A client would go there with its credentials, which are for this server.
        Ok(Passed::Answered(head, ..)) if head.status.is_redirection() && head.headers.contains_key(LOCATION) => {
            respond::with_type(502, "text/plain; charset=utf-8", Body::from(Bytes::from_static(REDIRECTED)))
        }
        Ok(Passed::Answered(head, body, sender)) => streamed(head, body, sender, until),
        Err(PassError::Request(error)) => respond::error(&error, errors),
        Err(PassError::Connection(error)) => unreachable(&error),
    }
}

/// Asks an aggregated API for an object, as one of the system's own users.
///
/// # Errors
/// Nothing where no such API is there, else why there is no answer.
pub async fn ask(server: &ApiServer, path: &str, query: &str, user: &str) -> Result<Value, Option<String>> {
    let remote = server.aggregated.of_path(path).ok_or(None)?;
    let unavailable = || Some("the server is currently unable to handle the request".to_owned());
    let dialer = remote.dialer.as_ref().map_err(|_| unavailable())?;
    let mut headers = HeaderMap::new();
    headers.insert(http::header::ACCEPT, HeaderValue::from_static("application/json"));
    name_user(&mut headers, &User::system(user));
    let client = Client::new(dialer.clone(), String::new(), None);
    let answer = client.send(http::Method::GET, query, headers, bytes::Bytes::new(), PATIENCE).await;
    let answer = answer.map_err(|error| Some(error.to_string()))?;
    let body = proto::json::parse(&answer.body).map(|p| p.value).map_err(|error| Some(error.to_string()))?;
    if (200..300).contains(&answer.code) {
        return Ok(body);
    }
    Err(body["message"].as_str().map(str::to_owned).or_else(unavailable))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_is_named_and_nobody_else() {
        let mut headers = HeaderMap::new();
        headers.insert("x-remote-user", HeaderValue::from_static("root"));
        headers.insert("x-remote-extra-a", HeaderValue::from_static("b"));
        let user = User {
            name: "jane".into(),
            groups: vec!["a".into(), "b".into()],
            extra: vec![("example.org/Key".into(), vec!["v".into()])],
            ..User::default()
        };
        name_user(&mut headers, &user);
        assert_eq!(headers["x-remote-user"], "jane");
        assert_eq!(headers.get_all("x-remote-group").iter().count(), 2);
        assert_eq!(headers["x-remote-extra-example.org%2fkey"], "v");
        assert_eq!(headers.len(), 4);
    }
}
