//! Whether an aggregated API's server answers, and what it serves.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HeaderMap, HeaderValue};
use serde_json::Value;

use super::name_user;
use super::remote::{Remote, Unavailable};
use crate::outgoing::{Client, Dialer};
use crate::request::User;

/// Time for one answer, as upstream.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a look at a server showed.
pub struct Found {
    pub outcome: Result<(), Unavailable>,
    /// Its `APIResourceList`, if it could be had.
    pub resources: Option<Value>,
}

/// Asks whether the server is there, whatever certificate it shows, and for its resources. Who cannot be trusted is
/// available as well: it is the requests passed on that fail.
pub async fn check(remote: &Remote) -> Found {
    let checker = match &remote.checker {
        Ok(checker) => checker,
        Err(why) => return Found { outcome: Err(why.clone()), resources: None },
    };
    let path = format!("/apis/{}/{}", remote.group, remote.version);
    let resources = match &remote.dialer {
        Ok(dialer) => ask(dialer, &path).await.ok(),
        Err(_) => None,
    };
    // Whoever tells what it serves is there.
    let outcome = if resources.is_some() { Ok(()) } else { get(checker, &path).await.map(drop) };
    Found { outcome, resources }
}

async fn ask(dialer: &Dialer, path: &str) -> Result<Value, Unavailable> {
    let body = get(dialer, path).await?;
    let broken = |why: String| Unavailable { reason: "FailedDiscoveryCheck", message: why };
    proto::json::parse(&body).map(|p| p.value).map_err(|e| broken(e.to_string()))
}

/// The body of a good answer.
async fn get(dialer: &Dialer, path: &str) -> Result<Bytes, Unavailable> {
    let url = format!("https://{}{path}", dialer.authority());
    let failed = |why: String| Unavailable {
        reason: "FailedDiscoveryCheck",
        message: format!("failing or missing response from {url}: {why}"),
    };
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    name_user(&mut headers, &User::system("system:kube-aggregator"));
    let client = Client::new(dialer.clone(), String::new(), None);
    let answer = client.send(http::Method::GET, path, headers, Bytes::new(), PATIENCE).await;
    let answer = answer.map_err(|e| failed(format!("Get \"{url}\": {e}")))?;
    if !(200..300).contains(&answer.code) {
        return Err(failed(format!("bad status from {url}: {}", answer.code)));
    }
    Ok(answer.body)
}
