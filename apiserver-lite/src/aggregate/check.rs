//! Whether an aggregated API's server answers, and what it serves.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH};
use ring::digest::{SHA256, digest};
use serde_json::Value;

use super::name_user;
use super::older::Older;
use super::remote::{Remote, Unavailable};
use crate::outgoing::{Client, Dialer};
use crate::request::User;

/// Time for one answer, as upstream.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks whether the server is there, whatever certificate it shows, and then for its resources. Who cannot be trusted is
/// available as well: it is the requests passed on that fail.
pub async fn check(remote: &mut Remote) -> Result<(), Unavailable> {
    let checker = remote.checker.as_ref().map_err(Clone::clone)?;
    let path = format!("/apis/{}/{}", remote.group, remote.version);
    let dialer = remote.dialer.clone();
    if let Ok(dialer) = &dialer {
        remote.resources = ask(dialer, &path).await.ok();
    }
    // Whoever tells what it serves is there.
    if remote.resources.is_none() {
        get(checker, &path).await?;
    }
    remote.available = true;
    let Ok(dialer) = dialer else { return Ok(()) };
    // Not every server has this document; without it there are no schemas to show.
    if remote.resources.is_some()
        && let Ok(index) = ask(&dialer, "/openapi/v3").await
    {
        let key = path.trim_start_matches('/');
        remote.openapi = Some(index["paths"][key].clone()).filter(Value::is_object);
    }
    let tag = remote.older.as_ref().map_or("", |older| &older.tag);
    if remote.resources.is_some()
        && let Some(older) = newer(&dialer, &path, tag).await
    {
        remote.older = Some(Arc::new(older));
    }
    Ok(())
}

/// The server's part of the older document, unless it is the one that a tag stands for. Many servers have none.
async fn newer(dialer: &Dialer, below: &str, tag: &str) -> Option<Older> {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    if let Some(tag) = HeaderValue::from_str(tag).ok().filter(|tag| !tag.is_empty()) {
        headers.insert(IF_NONE_MATCH, tag);
    }
    name_user(&mut headers, &User::system("system:aggregator"));
    let client = Client::new(dialer.clone(), String::new(), None);
    let answer = client.send(http::Method::GET, "/openapi/v2", headers, Bytes::new(), PATIENCE).await.ok()?;
    if answer.code != 200 {
        return None;
    }
    let tag = answer.headers.get(ETAG).and_then(|tag| tag.to_str().ok()).unwrap_or_default().to_owned();
    let mark = digest(&SHA256, &answer.body).as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
    let document = proto::json::parse(&answer.body).ok()?.value;
    Some(Older::of(below, tag, mark, document))
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
