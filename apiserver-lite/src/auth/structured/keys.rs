//! The keys of an issuer, fetched over HTTPS: its description first, then the set of keys that it names.
//!
//! Keys are fetched when a token comes that none of the known ones signed, but not more often than every few seconds,
//! whatever tokens come.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{HeaderMap, Method, Uri};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::super::web_keys::WebKeys;
use crate::admission::connector;
use crate::outgoing::{Client, Dialer};

/// Time for one answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Shortest time between two fetches.
const PAUSE: Duration = Duration::from_secs(5);

pub struct RemoteKeys {
    issuer: String,
    discovery: String,
    /// Authorities in PEM; the machine's where it is empty.
    authorities: Vec<u8>,
    keys: ArcSwap<WebKeys>,
    /// When they were last asked for; held while they are.
    asked: Mutex<Option<Instant>>,
}

impl RemoteKeys {
    pub fn new(issuer: String, discovery: String, authorities: Vec<u8>) -> Self {
        RemoteKeys { issuer, discovery, authorities, keys: ArcSwap::default(), asked: Mutex::default() }
    }

    /// The claims of a token that one of the keys signed.
    ///
    /// # Errors
    /// When none did, or the keys are not to be had.
    pub async fn verify(&self, token: &str) -> Result<Value, String> {
        if let Some(claims) = self.keys.load().verify(token) {
            return Ok(claims);
        }
        let before = self.keys.load_full();
        let mut asked = self.asked.lock().await;
        // Somebody else may have fetched them while this one waited.
        let fresh = !Arc::ptr_eq(&before, &self.keys.load_full());
        if !fresh && asked.is_none_or(|at| at.elapsed() >= PAUSE) {
            let fetched = self.fetch().await;
            *asked = Some(Instant::now());
            let fetched = fetched.inspect_err(|error| {
                tracing::error!(issuer = %self.issuer, %error, "the keys of an issuer of tokens are not to be had");
            });
            self.keys.store(Arc::new(fetched?));
        }
        drop(asked);
        self.keys.load().verify(token).ok_or_else(|| "failed to verify signature".into())
    }

    async fn fetch(&self) -> Result<WebKeys, String> {
        let description = self.get(&self.discovery).await?;
        let issuer = description["issuer"].as_str().unwrap_or_default();
        if issuer != self.issuer {
            let own = &self.issuer;
            return Err(format!(
                "oidc: issuer URL provided to client ({own:?}) did not match the issuer URL returned by provider ({issuer:?})"
            ));
        }
        let place = description["jwks_uri"].as_str().unwrap_or_default();
        Ok(WebKeys::parse(&self.get(place).await?))
    }

    async fn get(&self, url: &str) -> Result<Value, String> {
        let wrong = |why: String| format!("Get {url:?}: {why}");
        let uri: Uri = url.parse().map_err(|e| wrong(format!("{e}")))?;
        let host =
            uri.host().filter(|_| uri.scheme_str() == Some("https")).ok_or_else(|| wrong("not an https URL".into()))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let tls = connector(&self.authorities, None).map_err(&wrong)?;
        let dialer = Dialer { name: host.clone(), host, port: uri.port_u16().unwrap_or(443), tls: Some(tls) };
        let path = uri.path_and_query().map_or("/", |p| p.as_str());
        let client = Client::new(dialer, path.to_owned(), None);
        let answer = client.send(Method::GET, path, HeaderMap::new(), Bytes::new(), PATIENCE).await;
        let answer = answer.map_err(|e| wrong(e.to_string()))?;
        if answer.code != 200 {
            return Err(wrong(format!("answered with code {}", answer.code)));
        }
        proto::json::parse(&answer.body).map(|p| p.value).map_err(|e| wrong(e.to_string()))
    }
}
