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

/// Asks the server for its resources, and marks it as available when it tells them.
pub async fn check(remote: &mut Remote) -> Result<(), Unavailable> {
    let dialer = remote.dialer.as_ref().map_err(Clone::clone)?.clone();
    let path = format!("/apis/{}/{}", remote.group, remote.version);
    remote.resources = Some(ask(&dialer, &path).await?);
    remote.available = true;
    // Not every server has this document; without it there are no schemas to show.
    if let Ok(index) = ask(&dialer, "/openapi/v3").await {
        let key = path.trim_start_matches('/');
        remote.openapi = Some(index["paths"][key].clone()).filter(Value::is_object);
    }
    Ok(())
}

async fn ask(dialer: &Dialer, path: &str) -> Result<Value, Unavailable> {
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
    proto::json::parse(&answer.body).map(|p| p.value).map_err(|e| failed(e.to_string()))
}
