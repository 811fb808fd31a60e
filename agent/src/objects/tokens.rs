//! Bound service account tokens: asked for once, refreshed at four fifths of their life.
//!
//! When a token was issued is told by its end and its life, as the API server has them: what this machine's clock said then
//! may have been wrong, and a token that is good for an hour must not be kept for the day that the clock was ahead.
//!
//! Followed: `pkg/kubelet/token/token_manager.go`.

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
    issued: SystemTime,
    expires: SystemTime,
    refresh: SystemTime,
}

impl Held {
    /// A token good for `life` that ends at `expires`: due four fifths into its life, or a day after it was issued, a little
    /// spread.
    fn new(token: String, expires: SystemTime, life: Duration) -> Self {
        let issued = expires.checked_sub(life).unwrap_or(SystemTime::UNIX_EPOCH);
        let spread = Duration::from_millis(u64::from(random_below(JITTER_SECONDS * 1000)));
        let age = (life / 5 * 4).min(OLDEST).saturating_sub(spread);
        let refresh = issued.checked_add(age).unwrap_or(expires);
        Held { token, issued, expires, refresh }
    }

    /// One from the future tells that the clock was set back, which says nothing of how old it is.
    fn is_due(&self, now: SystemTime) -> bool {
        now >= self.refresh || now < self.issued
    }
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
        let old = self.held().get(query).map(|h| (h.token.clone(), h.expires, h.is_due(now)));
        if let Some((token, expires, false)) = &old {
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
        // The API server may give a shorter life than was asked for, and says so.
        let given = answer.spec.and_then(|spec| spec.expiration_seconds).filter(|given| *given > 0).unwrap_or(seconds);
        Ok(Held::new(status.token, expires, Duration::from_secs(given.unsigned_abs())))
    }
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
        let issued = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let after = |life: u64| {
            let held = Held::new(String::new(), issued + Duration::from_secs(life), Duration::from_secs(life));
            held.refresh.duration_since(issued).expect("later").as_secs()
        };
        assert!((2870..=2880).contains(&after(3600)));
        assert!((86_390..=86_400).contains(&after(365 * 86_400)));
        assert_eq!(after(0), 0);
    }

    #[test]
    fn what_the_clock_said_when_a_token_came_does_not_count() {
        let (expires, life) = (SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_600), Duration::from_secs(600));
        let held = Held::new(String::new(), expires, life);
        let at = |seconds: u64| held.is_due(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert!(!at(1_000_000_000) && !at(1_000_000_460) && at(1_000_000_480));
        assert!(at(999_999_000), "the clock is behind the one that issued it");
        // Longer than there has been time.
        let odd = Held::new(String::new(), SystemTime::UNIX_EPOCH, Duration::MAX);
        assert!(odd.is_due(expires));
    }
}
