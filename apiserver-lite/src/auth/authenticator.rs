//! From credentials to a user.

use http::HeaderMap;
use http::header::AUTHORIZATION;
use rustls_pki_types::CertificateDer;

use super::certificate::certificate_user;
use super::service_account::{ServiceAccountTokens, bootstrap_user};
use super::token_file::TokenFile;
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
}

pub struct Authenticator {
    options: AuthenticatorOptions,
}

impl Authenticator {
    pub fn new(options: AuthenticatorOptions) -> Self {
        Authenticator { options }
    }

    /// The user behind a request. `certificate` is the connection's, already verified.
    ///
    /// # Errors
    /// 401 when a bearer token is not known, or there is nothing and nobody may be anonymous.
    pub fn authenticate(&self, certificate: Option<&CertificateDer<'_>>, headers: &HeaderMap) -> Result<User> {
        if let Some(user) = certificate.and_then(certificate_user) {
            return Ok(authenticated(user));
        }
        if let Some(token) = bearer_token(headers) {
            let audiences = self.audiences();
            return self.token_user(token, audiences).map(|(user, _)| user).ok_or_else(ApiError::unauthorized);
        }
        if self.options.anonymous { Ok(anonymous()) } else { Err(ApiError::unauthorized()) }
    }

    /// Audiences that the API answers to.
    pub fn audiences(&self) -> &[String] {
        self.options.accounts.as_ref().map_or(&[], |a| &a.audiences)
    }

    pub fn accounts(&self) -> Option<&ServiceAccountTokens> {
        self.options.accounts.as_ref()
    }

    /// The user of a bearer token that is meant for one of `audiences`, and which of them it is meant for.
    pub fn token_user(&self, token: &str, audiences: &[String]) -> Option<(User, Vec<String>)> {
        let own: Vec<String> = audiences.iter().filter(|a| self.audiences().contains(a)).cloned().collect();
        if let Some(user) = self.options.tokens.user(token).cloned() {
            return Some((authenticated(user), own));
        }
        let accounts = self.options.accounts.as_ref()?;
        let now = time::OffsetDateTime::now_utc().unix_timestamp();
        if let Some((user, meant)) = accounts.check(token, audiences, now) {
            return Some((authenticated(user), meant));
        }
        if !self.options.bootstrap_tokens {
            return None;
        }
        bootstrap_user(&accounts.store, token, now).map(|user| (authenticated(user), own))
    }
}

/// Who asks without credentials.
fn anonymous() -> User {
    User { name: "system:anonymous".into(), groups: vec!["system:unauthenticated".into()], ..User::default() }
}

/// The bearer token of a request. Any other scheme counts as no credentials at all, as upstream.
fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(AUTHORIZATION)?.to_str().ok()?.trim();
    let (scheme, token) = text.split_once(' ')?;
    let token = token.trim_start_matches(' ').split(' ').next().unwrap_or_default();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
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

    fn ask(anonymous: bool, authorization: Option<&str>) -> Result<User> {
        let mut headers = HeaderMap::new();
        if let Some(text) = authorization {
            headers.insert(AUTHORIZATION, text.parse().expect("a header"));
        }
        let options =
            AuthenticatorOptions { anonymous, tokens: TokenFile::default(), bootstrap_tokens: false, accounts: None };
        Authenticator::new(options).authenticate(None, &headers)
    }

    #[test]
    fn only_requests_without_credentials_are_anonymous() {
        assert_eq!(ask(true, None).expect("anonymous").name, "system:anonymous");
        assert_eq!(ask(true, Some("Basic eDp5")).expect("an unknown scheme is nothing").name, "system:anonymous");
        assert_eq!(ask(true, Some("Bearer nonsense")).expect_err("a bad token").code(), 401);
        assert_eq!(ask(false, None).expect_err("nobody").code(), 401);
    }
}
