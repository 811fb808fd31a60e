//! Bound service account tokens: asked for once, refreshed at four fifths of their life.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use proto::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use proto::api::core::v1::ServiceAccount;

use super::{Answer, Issued, ObjectError, TokenQuery, Tokens};
use crate::api::Client;
use crate::backoff::random_below;

/// A token older than this is refreshed, however long it would be good for.
const OLDEST: Duration = Duration::from_secs(24 * 3600);
/// Spread of the refreshes, so that the tokens of a node do not come due together.
const JITTER_SECONDS: u32 = 10;

struct Held {
    token: String,
    expires: SystemTime,
    refresh: SystemTime,
}

/// The API server's TokenRequest behind a memory of what it gave.
pub struct ApiTokens {
    client: Client,
    held: Mutex<BTreeMap<TokenQuery, Held>>,
}

impl ApiTokens {
    pub fn new(client: Client) -> Self {
        ApiTokens { client, held: Mutex::new(BTreeMap::new()) }
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<TokenQuery, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn get(&self, query: &TokenQuery) -> Result<Issued, ObjectError> {
        let now = SystemTime::now();
        let old = self.held().get(query).map(|h| (h.token.clone(), h.expires, h.refresh));
        if let Some((token, expires, refresh)) = &old
            && now < *refresh
        {
            return Ok(Issued { token: token.clone(), expires: *expires });
        }
        match self.request(query).await {
            Ok(fresh) => {
                let issued = Issued { token: fresh.token.clone(), expires: fresh.expires };
                let mut held = self.held();
                held.retain(|_, h| h.expires > now);
                held.insert(query.clone(), fresh);
                Ok(issued)
            }
            // Better the old one than none, as long as it holds.
            Err(error) => match old {
                Some((token, expires, _)) if now < expires => {
                    tracing::warn!(%error, service_account = %query.service_account, "cannot refresh a token");
                    Ok(Issued { token, expires })
                }
                _ => Err(error),
            },
        }
    }

    async fn request(&self, query: &TokenQuery) -> Result<Held, ObjectError> {
        let asked = SystemTime::now();
        let seconds = i64::try_from(query.expiration.as_secs()).unwrap_or(i64::MAX);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some(&query.audience).filter(|a| !a.is_empty()).cloned().into_iter().collect(),
                expiration_seconds: Some(seconds),
                bound_object_ref: Some(BoundObjectReference {
                    kind: "Pod".into(),
                    api_version: "v1".into(),
                    name: query.pod_name.clone(),
                    u_id: query.pod_uid.clone(),
                }),
            }),
            ..TokenRequest::default()
        };
        let answer = self
            .client
            .create_subresource::<ServiceAccount, TokenRequest>(
                &query.namespace,
                &query.service_account,
                "token",
                &request,
            )
            .await
            .map_err(|e| ObjectError::Api(Arc::new(e)))?;
        let status = answer.status.unwrap_or_default();
        let until = status.expiration_timestamp.map_or(0, |t| t.seconds);
        let expires = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(until).unwrap_or(0));
        Ok(Held { token: status.token, expires, refresh: refresh_at(asked, expires) })
    }
}

/// Four fifths into the life of the token, or a day after it was issued, a little spread.
fn refresh_at(issued: SystemTime, expires: SystemTime) -> SystemTime {
    let life = expires.duration_since(issued).unwrap_or_default();
    let spread = Duration::from_millis(u64::from(random_below(JITTER_SECONDS * 1000)));
    issued + (life * 4 / 5).min(OLDEST).saturating_sub(spread)
}

impl Tokens for ApiTokens {
    fn issued<'a>(&'a self, query: &'a TokenQuery) -> Answer<'a, Result<Issued, ObjectError>> {
        Box::pin(self.get(query))
    }

    fn forget(&self, pod_uid: &str) {
        self.held().retain(|query, _| query.pod_uid != pod_uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_refreshed_at_four_fifths_of_its_life_or_after_a_day() {
        let issued = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let after = |life: u64| {
            refresh_at(issued, issued + Duration::from_secs(life)).duration_since(issued).expect("later").as_secs()
        };
        assert!((2870..=2880).contains(&after(3600)));
        assert!((86_390..=86_400).contains(&after(365 * 86_400)));
        assert_eq!(after(0), 0);
    }
}
