//! From credentials to a user.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderMap;
use http::header::{AUTHORIZATION, CONNECTION, HeaderName, HeaderValue, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use proto::bearer::{self, OfProtocols};
use rustls_pki_types::{CertificateDer, UnixTime};

use super::certificate::{ClientAuthorities, certificate_user, good_until, turns};
use super::front_proxy::{FrontProxy, ProxyHeaders};
use super::service_account::{ServiceAccountTokens, bootstrap_user};
use super::shown::{Certificates, Shown};
use super::structured::{Anonymous, Structured};
use super::token_file::TokenFile;
use super::webhook::TokenWebhook;
use crate::request::User;
use crate::status::{ApiError, Result};

const AUTHENTICATED: &str = "system:authenticated";

/// What the authenticator accepts.
pub struct AuthenticatorOptions {
    /// Requests without credentials are `system:anonymous`.
    pub anonymous: bool,
    pub tokens: TokenFile,
    pub bootstrap_tokens: bool,
    pub accounts: Option<ServiceAccountTokens>,
    /// Whose client certificates name users; None for nobody's.
    pub clients: Option<ClientAuthorities>,
    /// Their certificates may hold uids (gate `AllowParsingUserUIDFromCertAuth`).
    pub certificate_uids: bool,
    pub front_proxy: Option<FrontProxy>,
    pub webhook: Option<TokenWebhook>,
    /// Issuers of tokens, and who may be anonymous where.
    pub structured: Option<Arc<Structured>>,
}

pub struct Authenticator {
    options: AuthenticatorOptions,
    /// Raised whenever others vouch for clients or proxies.
    generation: AtomicU64,
}

impl Authenticator {
    pub fn new(options: AuthenticatorOptions) -> Self {
        Authenticator { options, generation: AtomicU64::new(0) }
    }

    /// Replaces who vouches for clients and for proxies.
    ///
    /// # Errors
    /// When no authority of one of them is usable.
    pub fn trust(&self, clients: &[CertificateDer<'_>], proxies: &[CertificateDer<'_>]) -> Result<(), String> {
        let named = self.options.clients.as_ref().map_or(Ok(()), |authorities| authorities.replace(clients));
        let proxy = self.options.front_proxy.as_ref();
        let replaced = named.and_then(|()| proxy.map_or(Ok(()), |proxy| proxy.authorities.replace(proxies)));
        // Also after half of it: one of them is another by then.
        self.generation.fetch_add(1, Ordering::Release);
        replaced
    }

    /// What a connection's certificates are good for now.
    pub fn shown(&self, certificates: &Certificates) -> Arc<Shown> {
        self.shown_at(certificates, UnixTime::now())
    }

    fn shown_at(&self, certificates: &Certificates, now: UnixTime) -> Arc<Shown> {
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        // Read before those who vouch are: one who takes their place meanwhile is noticed with the next request.
        let generation = self.generation.load(Ordering::Acquire);
        certificates.shown(generation, seconds, |chain| (self.judge(chain, now), self.next_turn(chain, seconds)))
    }

    /// When the judgement may be another, if nobody replaces those who vouch.
    fn next_turn(&self, chain: &[CertificateDer<'static>], now: i64) -> i64 {
        if chain.is_empty() {
            return i64::MAX;
        }
        let proxies = self.options.front_proxy.as_ref().map(|proxy| &proxy.authorities);
        let authorities = self.options.clients.iter().chain(proxies).filter_map(|all| all.next_turn(now));
        chain.iter().flat_map(turns).filter(|turn| *turn > now).chain(authorities).min().unwrap_or(i64::MAX)
    }

    /// Looks at the certificates that a client has shown and holds the key of.
    fn judge(&self, chain: &[CertificateDer<'static>], now: UnixTime) -> Shown {
        let Some((own, others)) = chain.split_first() else { return Shown::default() };
        let clients = self.options.clients.as_ref();
        let known = clients.is_some_and(|authorities| authorities.vouch_for(own, others, now));
        let is_proxy = self.options.front_proxy.as_ref().is_some_and(|p| p.recognises(chain, now));
        let is_asked_for = clients.is_some() || self.options.front_proxy.is_some();
        let named = if known { certificate_user(own, self.options.certificate_uids) } else { Ok(None) };
        if let Err(why) = &named {
            tracing::debug!(why, "a client certificate is refused");
        }
        Shown {
            until: (!is_proxy).then(|| good_until(own)).flatten(),
            is_proxy,
            is_strange: is_asked_for && !known && (clients.is_some() || !is_proxy) || named.is_err(),
            user: named.unwrap_or_default().map(authenticated),
        }
    }

    /// The user behind a request to a path. Headers that a front proxy may name a user in are taken off, whoever sent
    /// them.
    ///
    /// # Errors
    /// 401 when a bearer token is not known, or there is nothing and nobody may be anonymous.
    pub async fn authenticate(&self, shown: &Shown, headers: &mut HeaderMap, path: &str) -> Result<User> {
        let user = self.named(shown, headers, path).await?;
        match &self.options.front_proxy {
            Some(proxy) => proxy.headers.take_off(headers),
            None => ProxyHeaders::default().take_off(headers),
        }
        Ok(user)
    }

    async fn named(&self, shown: &Shown, headers: &mut HeaderMap, path: &str) -> Result<User> {
        if shown.is_proxy
            && let Some(user) = self.options.front_proxy.as_ref().and_then(|p| p.headers.user(headers))
        {
            return Ok(authenticated(user));
        }
        if let Some(user) = &shown.user {
            return Ok(user.clone());
        }
        // Who shows something that is not believed does not want to be nobody.
        let mut refused = shown.is_strange;
        let authorization = headers.get(AUTHORIZATION).map(|value| String::from_utf8_lossy(value.as_bytes()));
        if let Some(token) = authorization.as_deref().and_then(bearer::of_header) {
            match self.token_user(token, self.audiences()).await {
                Ok((user, _)) => return Ok(user),
                Err(errors) => tracing::debug!(?errors, "a bearer token is refused"),
            }
            refused = true;
        }
        match protocol_token(headers) {
            Ok(None) => {}
            Ok(Some(found)) => {
                if let Ok((user, _)) = self.token_user(&found.token, self.audiences()).await {
                    // Nobody behind this server is to see it.
                    headers.remove(SEC_WEBSOCKET_PROTOCOL);
                    headers.extend(HeaderValue::try_from(found.others).map(|others| (SEC_WEBSOCKET_PROTOCOL, others)));
                    return Ok(user);
                }
                refused = true;
            }
            Err(why) => {
                tracing::debug!(why, "a bearer token among subprotocols cannot be read");
                refused = true;
            }
        }
        if !refused && self.may_be_anonymous(path) { Ok(anonymous()) } else { Err(ApiError::unauthorized()) }
    }

    /// Whether a client shows anything at all that might tell who it is.
    pub fn shows_something(&self, shown: &Shown, headers: &HeaderMap) -> bool {
        let token = || headers.get(AUTHORIZATION).and_then(|value| bearer::of_header(value.to_str().ok()?));
        shown.is_strange || token().is_some() || !matches!(protocol_token(headers), Ok(None))
    }

    /// Whether a token is passed over because of the space before it; nobody looks for one where a certificate says
    /// who asks.
    pub fn passes_over_token(&self, shown: &Shown, headers: &HeaderMap) -> bool {
        let authorization = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
        shown.user.is_none() && !shown.is_proxy && has_extra_space(&String::from_utf8_lossy(authorization))
    }

    fn may_be_anonymous(&self, path: &str) -> bool {
        match self.options.structured.as_ref().map_or(Anonymous::Unsaid, |file| file.anonymous()) {
            Anonymous::Unsaid => self.options.anonymous,
            Anonymous::Nobody => false,
            Anonymous::Everywhere => true,
            Anonymous::At(paths) => paths.iter().any(|at| at == path),
        }
    }

    /// Audiences that the API answers to.
    pub fn audiences(&self) -> &[String] {
        self.options.accounts.as_ref().map_or(&[], |a| &a.audiences)
    }

    pub fn accounts(&self) -> Option<&ServiceAccountTokens> {
        self.options.accounts.as_ref()
    }

    /// The user of a bearer token that is meant for one of `audiences`, and which of them it is meant for.
    ///
    /// # Errors
    /// What those who know of such tokens have against it; nothing for a token that nobody knows.
    pub async fn token_user(&self, token: &str, audiences: &[String]) -> Result<(User, Vec<String>), Vec<String>> {
        let mut errors = Vec::new();
        if let Some(found) = self.known_token(token, audiences, &mut errors) {
            return Ok(found);
        }
        // Whom a token of an issuer is meant for is settled by the file; it is then good for the API's own audiences.
        let own: Vec<String> = audiences.iter().filter(|a| self.audiences().contains(a)).cloned().collect();
        if let Some(file) = &self.options.structured
            && (audiences.is_empty() || !own.is_empty())
            && let Some(answer) = file.user(token).await
        {
            match answer {
                Ok(user) => return Ok((authenticated(user), own)),
                Err(error) => errors.push(error),
            }
        }
        if let Some(webhook) = &self.options.webhook {
            match webhook.user(token, audiences).await {
                Ok(Some((user, meant))) => return Ok((authenticated(user), meant)),
                Ok(None) => {}
                Err(error) => errors.push(error),
            }
        }
        Err(errors)
    }

    /// The same among the tokens that need nobody else's word.
    fn known_token(&self, token: &str, audiences: &[String], errors: &mut Vec<String>) -> Option<(User, Vec<String>)> {
        // A token that says nothing of audiences is meant for the API's own.
        let own: Vec<String> = audiences.iter().filter(|a| self.audiences().contains(a)).cloned().collect();
        let is_for_us = audiences.is_empty() || !own.is_empty();
        if let Some(user) = self.options.tokens.user(token).filter(|_| is_for_us).cloned() {
            return Some((authenticated(user), own));
        }
        let accounts = self.options.accounts.as_ref()?;
        let now = time::OffsetDateTime::now_utc().unix_timestamp();
        match accounts.check(token, audiences, now) {
            Ok((user, meant)) => return Some((authenticated(user), meant)),
            Err(why) => errors.extend(why),
        }
        if !self.options.bootstrap_tokens || !is_for_us {
            return None;
        }
        bootstrap_user(&accounts.store, token, now).map(|user| (authenticated(user), own))
    }
}

/// Who asks without credentials.
fn anonymous() -> User {
    User { name: "system:anonymous".into(), groups: vec!["system:unauthenticated".into()], ..User::default() }
}

/// Whether an `Authorization` header has its token one space too late, where it is none.
fn has_extra_space(authorization: &str) -> bool {
    let words: Vec<&str> = authorization.trim().splitn(3, ' ').collect();
    matches!(words.as_slice(), [scheme, "", _] if scheme.eq_ignore_ascii_case("bearer"))
}

/// The token among the subprotocols of a request for a WebSocket.
fn protocol_token(headers: &HeaderMap) -> std::result::Result<Option<OfProtocols>, &'static str> {
    if !bearer::asks_for_websocket(texts(headers, CONNECTION), texts(headers, UPGRADE)) {
        return Ok(None);
    }
    bearer::of_protocols(texts(headers, SEC_WEBSOCKET_PROTOCOL))
}

fn texts(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok())
}

/// Every user with credentials is a member of `system:authenticated`.
pub(super) fn authenticated(mut user: User) -> User {
    if user.name != "system:anonymous" && !user.in_group(AUTHENTICATED) && !user.in_group("system:unauthenticated") {
        user.groups.push(AUTHENTICATED.into());
    }
    user
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(anonymous: bool) -> AuthenticatorOptions {
        AuthenticatorOptions {
            anonymous,
            tokens: TokenFile::default(),
            bootstrap_tokens: false,
            accounts: None,
            clients: None,
            certificate_uids: true,
            front_proxy: None,
            webhook: None,
            structured: None,
        }
    }

    #[tokio::test]
    async fn a_token_of_no_audience_is_meant_for_the_api_alone() {
        let file = std::env::temp_dir().join(format!("tokens-{}.csv", std::process::id()));
        std::fs::write(&file, "abc,jane,1\n").expect("written");
        let tokens = TokenFile::load(&file).expect("read");
        std::fs::remove_file(&file).expect("removed");
        let authenticator = Authenticator::new(AuthenticatorOptions { tokens, ..options(true) });
        assert_eq!(authenticator.token_user("abc", &[]).await.expect("known").0.name, "jane");
        assert_eq!(authenticator.token_user("abc", &["vault".to_owned()]).await.err(), Some(Vec::new()));
    }

    async fn ask(anonymous: bool, authorization: Option<&str>) -> Result<User> {
        let mut headers = HeaderMap::new();
        if let Some(text) = authorization {
            headers.insert(AUTHORIZATION, text.parse().expect("a header"));
        }
        Authenticator::new(options(anonymous)).authenticate(&Shown::default(), &mut headers, "/api").await
    }

    /// A server behind this one took for granted what any client had said of itself.
    #[tokio::test]
    async fn nobody_passes_on_headers_that_name_a_user() {
        let list = |text: &str| [text.to_owned()];
        let named = ProxyHeaders::new(&list("X-User"), &[], &list("X-Group"), &list("X-Extra-")).expect("header names");
        let key = rcgen::KeyPair::generate().expect("a key");
        let anybody = rcgen::CertificateParams::default().self_signed(&key).expect("a certificate");
        let authorities = ClientAuthorities::new(&[anybody.der().clone()]).expect("an authority");
        let front_proxy = FrontProxy { authorities, allowed_names: Vec::new(), headers: named };
        let authenticator =
            Authenticator::new(AuthenticatorOptions { front_proxy: Some(front_proxy), ..options(true) });
        let jane = Shown { user: Some(User { name: "jane".into(), ..User::default() }), ..Shown::default() };
        let proxy = Shown { is_proxy: true, ..Shown::default() };
        for (shown, name) in [(jane, "jane"), (Shown::default(), "system:anonymous"), (proxy, "boss")] {
            let mut headers = HeaderMap::new();
            for key in ["x-user", "x-group", "x-extra-a", "x-remote-user", "x-remote-uid", "x-remote-extra-b", "accept"]
            {
                headers.insert(key, HeaderValue::from_static("boss"));
            }
            let user = authenticator.authenticate(&shown, &mut headers, "/api").await.expect("known");
            assert_eq!(user.name, name);
            assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"], "{name}");
        }
    }

    /// An authority and a client's certificate of it, which is good for an hour.
    fn issued(name: &str) -> (CertificateDer<'static>, CertificateDer<'static>) {
        let now = time::OffsetDateTime::now_utc();
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut authority = rcgen::CertificateParams::default();
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let root = authority.self_signed(&key).expect("a certificate").der().clone();
        let mut own = rcgen::CertificateParams::default();
        own.distinguished_name = rcgen::DistinguishedName::new();
        own.distinguished_name.push(rcgen::DnType::CommonName, name);
        own.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        (own.not_before, own.not_after) = (now - time::Duration::minutes(1), now + time::Duration::hours(1));
        let issuer = rcgen::Issuer::from_ca_cert_der(&root, key).expect("an issuer");
        let own = own.signed_by(&rcgen::KeyPair::generate().expect("a key"), &issuer).expect("a certificate");
        (root, own.der().clone())
    }

    /// Whoever kept a connection open was believed for ever: after the certificate's end, and after its authority was
    /// taken away.
    #[test]
    fn what_a_connection_was_made_with_is_judged_again_once_it_may_be_otherwise() {
        let ((clients, ann), (proxies, proxy), (other, _)) = (issued("ann"), issued("proxy"), issued("other"));
        let of = |authority: &CertificateDer<'static>| ClientAuthorities::new(std::slice::from_ref(authority));
        let front_proxy = FrontProxy {
            authorities: of(&proxies).expect("an authority"),
            allowed_names: Vec::new(),
            headers: ProxyHeaders::default(),
        };
        let authenticator = Authenticator::new(AuthenticatorOptions {
            clients: Some(of(&clients).expect("an authority")),
            front_proxy: Some(front_proxy),
            ..options(true)
        });
        let (ann, proxy) = (Certificates::new(vec![ann]), Certificates::new(vec![proxy]));
        let now = UnixTime::now();
        let later = |seconds: u64| UnixTime::since_unix_epoch(std::time::Duration::from_secs(now.as_secs() + seconds));
        let found = |at: UnixTime| {
            let (ann, proxy) = (authenticator.shown_at(&ann, at), authenticator.shown_at(&proxy, at));
            (ann.user.as_ref().map(|user| user.name.clone()), ann.is_strange, proxy.is_proxy)
        };
        let believed = (Some("ann".to_owned()), false, true);
        let nobody = (None, true, false);
        assert_eq!(found(now), believed);
        assert!(Arc::ptr_eq(&authenticator.shown_at(&ann, now), &authenticator.shown_at(&ann, later(60))));
        assert_eq!(found(later(2 * 3600)), nobody);
        assert!(Arc::ptr_eq(&authenticator.shown_at(&ann, later(7200)), &authenticator.shown_at(&ann, later(7201))));

        let others = [other];
        authenticator.trust(&others, &others).expect("taken");
        assert_eq!(found(now), nobody);
        authenticator.trust(&[clients], &[proxies]).expect("taken");
        assert_eq!(found(now), believed);
    }

    #[test]
    fn a_token_after_two_spaces_is_none() {
        for (text, expected) in [
            ("Bearer  a", true),
            ("bearer   a", true),
            ("Bearer a", false),
            ("Bearer a b", false),
            ("Bearer  ", false),
            ("Basic  a", false),
            ("", false),
        ] {
            assert_eq!(has_extra_space(text), expected, "{text:?}");
        }
    }

    #[tokio::test]
    async fn only_requests_without_credentials_are_anonymous() {
        assert_eq!(ask(true, None).await.expect("anonymous").name, "system:anonymous");
        assert_eq!(ask(true, Some("Basic eDp5")).await.expect("an unknown scheme is nothing").name, "system:anonymous");
        assert_eq!(ask(true, Some("Bearer nonsense")).await.expect_err("a bad token").code(), 401);
        assert_eq!(ask(false, None).await.expect_err("nobody").code(), 401);
    }
}
