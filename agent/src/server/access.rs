//! Who asks, and whether they may: client certificates, bearer tokens, anonymous; SubjectAccessReview.
//!
//! Answers of the API server are kept for the configured times, so that a scrape costs no round trip.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{HeaderMap, Method, header};
use proto::api::authentication::v1::{TokenReview, TokenReviewSpec};
use proto::api::authorization::v1::{ExtraValue, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use proto::bearer;
use ring::digest::{SHA256, digest};
use tokio::time::Instant;

use super::client_ca::{ClientAuthorities, ShownCertificate};
use super::streams::is_websocket;
use super::{ServerDeps, ServerError};
use crate::api::{ApiError, Client};
use crate::metrics;

/// Remembered answers at most; beyond, the oldest knowledge is dropped as a whole.
const MAX_KEPT: usize = 4096;
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
const ANONYMOUS: &str = "system:anonymous";
const AUTHENTICATED: &str = "system:authenticated";
const UNAUTHENTICATED: &str = "system:unauthenticated";
/// Attribute of a certificate's subject that holds the user's uid.
const UID: &str = "1.3.6.1.4.1.57683.2";

/// The one who asks.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

type Kept<K, V> = Mutex<BTreeMap<K, (V, Instant)>>;

/// Authentication and authorization of port 10250.
pub struct Access {
    client: Client,
    node: String,
    anonymous: bool,
    /// Whose client certificates name users; None for nobody's.
    authorities: Option<Arc<ClientAuthorities>>,
    /// Whether a certificate's uid counts.
    uids: bool,
    tokens: bool,
    webhook: bool,
    token_ttl: Duration,
    allowed_ttl: Duration,
    refused_ttl: Duration,
    users: Kept<[u8; 32], Option<User>>,
    decisions: Kept<(User, String, String), bool>,
}

/// Why nobody may pass.
pub enum Refusal {
    Unauthorized,
    Forbidden(String),
    /// The API server could not be asked.
    Failed(String),
}

impl Access {
    pub fn new(deps: &ServerDeps) -> Result<Self, ServerError> {
        let (authentication, authorization) = (&deps.config.authentication, &deps.config.authorization);
        let file = &authentication.x509.client_ca_file;
        let authorities = (!file.as_os_str().is_empty()).then(|| ClientAuthorities::read(file)).transpose()?;
        Ok(Access {
            authorities: authorities.map(Arc::new),
            client: deps.client.clone(),
            node: deps.node.clone(),
            anonymous: authentication.anonymous.enabled,
            uids: deps.gates.enabled("AllowParsingUserUIDFromCertAuth"),
            tokens: authentication.webhook.enabled,
            webhook: authorization.mode == "Webhook",
            token_ttl: authentication.webhook.cache_ttl.get(),
            allowed_ttl: authorization.webhook.cache_authorized_ttl.get(),
            refused_ttl: authorization.webhook.cache_unauthorized_ttl.get(),
            users: Mutex::default(),
            decisions: Mutex::default(),
        })
    }

    /// What there is to follow of the client authorities.
    pub fn authorities(&self) -> Option<Arc<ClientAuthorities>> {
        self.authorities.clone()
    }

    /// Lets pass who is known and may do `method` on one of the node's subresources, tried in order.
    pub async fn check(
        &self,
        headers: &HeaderMap,
        certificate: Option<&ShownCertificate>,
        method: &Method,
        subresources: &[&str],
    ) -> Result<User, Refusal> {
        let user = self.authenticate(headers, certificate).await.ok_or(Refusal::Unauthorized)?;
        if !self.webhook {
            return Ok(user);
        }
        let verb = verb(method);
        for subresource in subresources {
            match self.allowed(&user, verb, subresource).await {
                Ok(true) => return Ok(user),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, user = user.name, "cannot have a request authorized");
                    return Err(Refusal::Failed(format!(
                        "Authorization error (user={}, verb={verb}, resource=nodes, subresource={subresource})",
                        user.name
                    )));
                }
            }
        }
        Err(Refusal::Forbidden(format!(
            "Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{}])\n",
            user.name,
            subresources.join(" ")
        )))
    }

    async fn authenticate(&self, headers: &HeaderMap, certificate: Option<&ShownCertificate>) -> Option<User> {
        let authorities = self.authorities.as_ref();
        let vouched = certificate.zip(authorities).filter(|(shown, authorities)| authorities.vouch(shown));
        let named = match vouched {
            Some((shown, _)) => of_certificate(shown.der(), self.uids),
            None if certificate.is_some() => Err(Unusable),
            None => Ok(None),
        };
        // Who shows something that is not believed does not want to be nobody; a certificate that names nobody says nothing.
        let mut refused = named.is_err();
        if let Ok(Some(user)) = named {
            return Some(authenticated(user));
        }
        if self.tokens {
            let (tokens, unreadable) = tokens(headers);
            refused |= unreadable || !tokens.is_empty();
            for token in tokens {
                if let Some(user) = self.of_token(&token).await {
                    return Some(authenticated(user));
                }
            }
        }
        (self.anonymous && !refused).then(|| User {
            name: ANONYMOUS.into(),
            groups: vec![UNAUTHENTICATED.into()],
            ..User::default()
        })
    }

    async fn of_token(&self, token: &str) -> Option<User> {
        let began = Instant::now();
        let mut key = [0; 32];
        key.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
        let known = known(&self.users, &key);
        let label = [if known.is_some() { "hit" } else { "miss" }];
        let user = match known {
            Some(known) => known,
            None => self.review(key, token).await,
        };
        metrics::TOKEN_CACHE_SECONDS.observe(&label, began.elapsed().as_secs_f64());
        metrics::TOKEN_CACHE_REQUESTS.inc(&label);
        user
    }

    /// Has the API server say whose a token is that is not known.
    async fn review(&self, key: [u8; 32], token: &str) -> Option<User> {
        let review = TokenReview {
            spec: Some(TokenReviewSpec { token: token.to_owned(), audiences: Vec::new() }),
            ..TokenReview::default()
        };
        let began = Instant::now();
        let waiting = [Active::new("blocked"), Active::new("in_flight")];
        let asked = self.client.create("", &review).await;
        drop(waiting);
        metrics::TOKEN_CACHE_FETCHES.inc(&[if asked.is_ok() { "ok" } else { "error" }]);
        count(&metrics::AUTHN_REQUESTS, &metrics::AUTHN_SECONDS, began, asked.as_ref().err());
        let status = match asked {
            Ok(review) => review.status.unwrap_or_default(),
            Err(error) => {
                tracing::warn!(%error, "cannot have a token reviewed");
                return None;
            }
        };
        let info = status.user.unwrap_or_default();
        let user = status.authenticated.then(|| User {
            name: info.username,
            uid: info.uid,
            groups: info.groups,
            extra: info.extra.into_iter().map(|(k, v)| (k, v.items)).collect(),
        });
        keep(&self.users, key, user.clone(), self.token_ttl);
        user
    }

    async fn allowed(&self, user: &User, verb: &str, subresource: &str) -> Result<bool, ApiError> {
        let key = (user.clone(), verb.to_owned(), subresource.to_owned());
        if let Some(known) = known(&self.decisions, &key) {
            return Ok(known);
        }
        let extra = user.extra.iter().map(|(k, v)| (k.clone(), ExtraValue { items: v.clone() })).collect();
        let review = SubjectAccessReview {
            spec: Some(SubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    verb: verb.to_owned(),
                    version: "v1".into(),
                    resource: "nodes".into(),
                    subresource: subresource.to_owned(),
                    name: self.node.clone(),
                    ..ResourceAttributes::default()
                }),
                user: user.name.clone(),
                groups: user.groups.clone(),
                extra,
                uid: user.uid.clone(),
                ..SubjectAccessReviewSpec::default()
            }),
            ..SubjectAccessReview::default()
        };
        let began = Instant::now();
        let asked = self.client.create("", &review).await;
        count(&metrics::AUTHZ_REQUESTS, &metrics::AUTHZ_SECONDS, began, asked.as_ref().err());
        let status = asked?.status.unwrap_or_default();
        if status.allowed && status.denied {
            return Err(ApiError::Malformed("a SubjectAccessReview that is both allowed and denied".into()));
        }
        let allowed = status.allowed;
        keep(&self.decisions, key, allowed, if allowed { self.allowed_ttl } else { self.refused_ttl });
        Ok(allowed)
    }
}

/// One more that waits for a review, while it lives.
struct Active(&'static str);

impl Active {
    fn new(status: &'static str) -> Self {
        metrics::TOKEN_CACHE_ACTIVE.add(&[status], 1.0);
        Active(status)
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        metrics::TOKEN_CACHE_ACTIVE.add(&[self.0], -1.0);
    }
}

/// The bearer tokens of a request, and whether there is one that cannot be read.
fn tokens(headers: &HeaderMap) -> (Vec<String>, bool) {
    let authorization = headers.get(header::AUTHORIZATION).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let mut tokens: Vec<String> =
        authorization.iter().filter_map(|v| bearer::of_header(v)).map(str::to_owned).collect();
    if !is_websocket(headers) {
        return (tokens, false);
    }
    let protocols = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL);
    match bearer::of_protocols(protocols.iter().filter_map(|value| value.to_str().ok())) {
        Ok(found) => {
            tokens.extend(found.map(|found| found.token));
            (tokens, false)
        }
        Err(why) => {
            tracing::debug!(why, "a bearer token among subprotocols cannot be read");
            (tokens, true)
        }
    }
}

/// Counts a review that the API server was asked for.
fn count(requests: &metrics::Family, seconds: &metrics::Family, began: Instant, error: Option<&ApiError>) {
    let code = match error {
        None => "201".to_owned(),
        Some(error) if error.code() > 0 => error.code().to_string(),
        Some(_) => "<error>".to_owned(),
    };
    requests.inc(&[&code]);
    seconds.observe(&[&code], began.elapsed().as_secs_f64());
}

fn table<K, V>(kept: &Kept<K, V>) -> MutexGuard<'_, BTreeMap<K, (V, Instant)>> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

fn known<K: Ord, V: Clone>(kept: &Kept<K, V>, key: &K) -> Option<V> {
    let table = table(kept);
    table.get(key).filter(|(_, until)| Instant::now() < *until).map(|(value, _)| value.clone())
}

fn keep<K: Ord, V>(kept: &Kept<K, V>, key: K, value: V, ttl: Duration) {
    let mut table = table(kept);
    if table.len() >= MAX_KEPT {
        let now = Instant::now();
        table.retain(|_, (_, until)| now < *until);
        if table.len() >= MAX_KEPT {
            table.clear();
        }
    }
    table.insert(key, (value, Instant::now() + ttl));
}

/// Everybody who is known is one of the authenticated, unless the name or the groups say otherwise already.
fn authenticated(mut user: User) -> User {
    let told = user.groups.iter().any(|group| group == AUTHENTICATED || group == UNAUTHENTICATED);
    if !told && user.name != ANONYMOUS {
        user.groups.push(AUTHENTICATED.into());
    }
    user
}

/// A certificate that is not believed.
#[derive(Debug, PartialEq)]
struct Unusable;

/// A verified certificate's subject: common name (of several the last, as Go reads them), organizations and, with `uids`, the
/// uid. None without a name.
///
/// # Errors
/// Several uids, or an empty one.
fn of_certificate(der: &[u8], uids: bool) -> Result<Option<User>, Unusable> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).map_err(|_| Unusable)?;
    let left = certificate.validity().not_after.timestamp().saturating_sub(proto::time::Timestamp::now().seconds);
    metrics::CLIENT_CERTIFICATES.observe(&[], metrics::page::to_float(u64::try_from(left).unwrap_or(0)));
    let subject = certificate.subject();
    let name = subject.iter_common_name().last().and_then(|name| name.as_str().ok()).unwrap_or_default().to_owned();
    if name.is_empty() {
        return Ok(None);
    }
    let mut uids = subject.iter_attributes().filter(|attribute| uids && attribute.attr_type().to_id_string() == UID);
    let uid = match (uids.next(), uids.next()) {
        (None, _) => String::new(),
        (Some(uid), None) => uid.as_str().ok().filter(|uid| !uid.is_empty()).ok_or(Unusable)?.to_owned(),
        (Some(_), Some(_)) => return Err(Unusable),
    };
    let groups = subject.iter_organization().filter_map(|o| o.as_str().ok()).map(str::to_owned).collect();
    let print: String = digest(&SHA256, der).as_ref().iter().map(|b| format!("{b:02x}")).collect();
    let extra = BTreeMap::from([(CREDENTIAL_ID.to_owned(), vec![format!("X509SHA256={print}")])]);
    Ok(Some(User { name, uid, groups, extra }))
}

fn verb(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    /// The uid used to be left out of the reviews.
    #[test]
    fn a_certificate_names_user_groups_and_uid() {
        let of_with = |uids: bool, parts: &[(DnType, &str)]| {
            let mut params = CertificateParams::new(Vec::new()).expect("no names");
            params.distinguished_name = rcgen::DistinguishedName::new();
            parts.iter().for_each(|(kind, text)| params.distinguished_name.push(kind.clone(), *text));
            let made = params.self_signed(&KeyPair::generate().expect("a key")).expect("made");
            of_certificate(made.der(), uids)
        };
        let of = |parts: &[(DnType, &str)]| of_with(true, parts);
        let uid = DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
        let name = (DnType::CommonName, "me");
        let user = of(&[name.clone(), (DnType::OrganizationName, "team"), (uid.clone(), "u-1")]);
        let user = user.expect("usable").expect("somebody");
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("me", "u-1"));
        assert_eq!(user.groups, ["team"]);
        let told = |user: Result<Option<User>, Unusable>| user.map(|user| user.map(|user| user.uid));
        assert_eq!(told(of(std::slice::from_ref(&name))), Ok(Some(String::new())));
        assert_eq!(told(of(&[name.clone(), (uid.clone(), "")])), Err(Unusable));
        // Behind its gate.
        assert_eq!(told(of_with(false, &[name, (uid, "")])), Ok(Some(String::new())));
        assert_eq!((told(of(&[(DnType::CommonName, "")])), told(of(&[]))), (Ok(None), Ok(None)));
    }

    /// Users of tokens were in the groups that their review told alone.
    #[test]
    fn whoever_is_known_is_authenticated_unless_that_is_told_already() {
        let groups = |name: &str, groups: &[&str]| {
            let groups = groups.iter().map(|group| (*group).to_owned()).collect();
            authenticated(User { name: name.into(), groups, ..User::default() }).groups
        };
        assert_eq!(groups("me", &["team"]), ["team", AUTHENTICATED]);
        for told in [AUTHENTICATED, UNAUTHENTICATED] {
            assert_eq!(groups("me", &[told, "team"]), [told, "team"]);
        }
        assert_eq!(groups(ANONYMOUS, &["team"]), ["team"]);
    }
}
