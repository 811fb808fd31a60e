//! One issuer of tokens: how it is found, what its tokens have to be like, and whose they are.

use serde_json::Value;

use super::super::config_file::{known, list, text};
use super::claims::{Mappings, Rules};
use super::keys::RemoteKeys;
use crate::admission::connector;
use crate::request::User;

/// Seconds by which clocks may differ for tokens that are not valid yet, as upstream.
const LEEWAY: i64 = 300;

pub struct Issuer {
    pub url: String,
    discovery: String,
    audiences: Vec<String>,
    keys: RemoteKeys,
    rules: Rules,
    mappings: Mappings,
}

impl Issuer {
    /// Reads one of `jwt`, and tells everything that is wrong with it.
    pub fn parse(said: &Value, path: &str, errors: &mut Vec<String>) -> Self {
        known(said, path, &["issuer", "claimValidationRules", "claimMappings", "userValidationRules"], errors);
        let issuer = &said["issuer"];
        let at = format!("{path}.issuer");
        let names =
            ["url", "discoveryURL", "certificateAuthority", "audiences", "audienceMatchPolicy", "egressSelectorType"];
        known(issuer, &at, &names, errors);
        let url = text(issuer, "url").to_owned();
        match url.as_str() {
            "" => errors.push(format!("{at}.url: Required value: URL is required")),
            url => check_url(url, &format!("{at}.url"), errors),
        }
        let discovery = text(issuer, "discoveryURL").to_owned();
        if !discovery.is_empty() {
            check_url(&discovery, &format!("{at}.discoveryURL"), errors);
            if discovery.trim_end_matches('/') == url.trim_end_matches('/') {
                errors.push(format!(
                    "{at}.discoveryURL: Invalid value: {discovery:?}: discoveryURL must be different from URL"
                ));
            }
        }
        if !text(issuer, "egressSelectorType").is_empty() {
            errors.push(format!("{at}.egressSelectorType: Forbidden: egress selectors are not available"));
        }
        let audiences: Vec<String> =
            list(issuer, "audiences").iter().filter_map(|a| a.as_str().map(Into::into)).collect();
        if audiences.is_empty() {
            errors.push(format!("{at}.audiences: Required value: at least one jwt.issuer.audiences is required"));
        }
        let policy = text(issuer, "audienceMatchPolicy");
        match (audiences.len() > 1, policy) {
            (_, "MatchAny") | (false, "") => {}
            (true, said) => errors.push(format!(
                "{at}.audienceMatchPolicy: Invalid value: {said:?}: audienceMatchPolicy must be MatchAny for multiple audiences"
            )),
            (false, said) => errors.push(format!("{at}.audienceMatchPolicy: Invalid value: {said:?}: audienceMatchPolicy must be empty or MatchAny for single audience")),
        }
        let authority = text(issuer, "certificateAuthority");
        if !authority.is_empty() && connector(authority.as_bytes(), None).is_err() {
            let why = "data does not contain any valid RSA or ECDSA certificates";
            errors.push(format!("{at}.certificateAuthority: Invalid value: {why}"));
        }
        let rules = Rules::parse(said, path, errors);
        let mappings = Mappings::parse(&said["claimMappings"], &format!("{path}.claimMappings"), errors);
        if mappings.names_email() && !rules.check_email() && !mappings.check_email() {
            errors.push(format!(
                "{path}.claimMappings.username.expression: Invalid value: claims.email_verified must be used in \
                 claimMappings.username.expression or claimMappings.extra[*].valueExpression or \
                 claimValidationRules[*].expression when claims.email is used in claimMappings.username.expression"
            ));
        }
        let place = match discovery.as_str() {
            "" => format!("{}/.well-known/openid-configuration", url.trim_end_matches('/')),
            own => own.to_owned(),
        };
        let keys = RemoteKeys::new(url.clone(), place.clone(), authority.into());
        Issuer { keys, url, discovery: place, audiences, rules, mappings }
    }

    /// Where its description is.
    pub fn discovery(&self) -> &str {
        &self.discovery
    }

    /// The user of a token.
    ///
    /// # Errors
    /// Why it is none of ours, or what was wrong with it.
    pub async fn user(&self, token: &str) -> Result<User, String> {
        let claims = self.keys.verify(token).await?;
        let now = time::OffsetDateTime::now_utc().unix_timestamp();
        self.check(&claims, now)?;
        self.rules.check_claims(&claims)?;
        let user = self.mappings.user(&claims)?;
        self.rules.check_user(&user)?;
        Ok(user)
    }

    fn check(&self, claims: &Value, now: i64) -> Result<(), String> {
        if claims["iss"] != *self.url {
            return Err(format!(
                "oidc: id token issued by a different provider, expected {:?} got {}",
                self.url, claims["iss"]
            ));
        }
        let meant = |audience: &Value| audience.as_str().is_some_and(|a| self.audiences.iter().any(|own| own == a));
        let good = match &claims["aud"] {
            Value::Array(all) => all.iter().any(meant),
            one => meant(one),
        };
        if !good {
            return Err(format!("oidc: expected audience in {:?} got {}", self.audiences, claims["aud"]));
        }
        let seconds = |key: &str| claims[key].as_f64().map(|seconds| seconds as i64);
        match seconds("exp") {
            Some(end) if end > now => {}
            _ => return Err("oidc: token is expired".into()),
        }
        match seconds("nbf") {
            Some(begin) if begin > now + LEEWAY => Err("oidc: token is not valid yet".into()),
            _ => Ok(()),
        }
    }
}

fn check_url(url: &str, path: &str, errors: &mut Vec<String>) {
    let mut wrong = |why: &str| errors.push(format!("{path}: Invalid value: {url:?}: {why}"));
    match url.parse::<http::Uri>() {
        Err(error) => wrong(&error.to_string()),
        Ok(uri) if uri.scheme_str() != Some("https") => wrong("URL scheme must be https"),
        Ok(uri) if uri.authority().is_some_and(|a| a.as_str().contains('@')) => {
            wrong("URL must not contain a username or password");
        }
        Ok(uri) if uri.query().is_some() => wrong("URL must not contain a query"),
        Ok(_) if url.contains('#') => wrong("URL must not contain a fragment"),
        Ok(_) => {}
    }
}
