//! Authentication by a file (`--authentication-config`): issuers of JSON web tokens, and who may be anonymous where.
//!
//! The file is an `AuthenticationConfiguration` of `apiserver.config.k8s.io`. Follows
//! `apiserver/pkg/apis/apiserver/validation` and `plugin/pkg/authenticator/token/oidc`. Limits: egress selectors and
//! distributed claims are not there.

mod claims;
mod issuer;
mod keys;

use std::path::Path;

use serde_json::Value;

use super::config_file::{ConfigFile, FileError, known, list, text};
use crate::request::User;
use issuer::Issuer;

const KIND: &str = "AuthenticationConfiguration";
/// Issuers at most, as upstream.
const MOST_ISSUERS: usize = 64;

/// Who may ask without credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Anonymous {
    /// The file does not say.
    Unsaid,
    Nobody,
    Everywhere,
    /// Only at these paths.
    At(Vec<String>),
}

/// A file's state.
struct State {
    anonymous: Anonymous,
    issuers: Vec<Issuer>,
}

/// The file and what it says now.
pub struct Structured(ConfigFile<State>);

impl Structured {
    /// `own` are the issuers of service account tokens, which no one else may be.
    ///
    /// # Errors
    /// When the file cannot be read, or with everything that is wrong in it.
    pub fn load(path: &Path, own: &[String]) -> Result<Self, FileError> {
        let own = own.to_vec();
        ConfigFile::load(path, KIND, Box::new(move |value, errors| parse(value, &own, errors))).map(Structured)
    }

    /// Takes changes of the file in; never returns.
    pub async fn follow(&self) {
        self.0.follow().await;
    }

    pub fn anonymous(&self) -> Anonymous {
        self.0.state().anonymous.clone()
    }

    /// The user of a token that one of the issuers made for us, or what is wrong with it; None for others' tokens.
    pub async fn user(&self, token: &str) -> Option<std::result::Result<User, String>> {
        let state = self.0.state();
        let claimed = super::Keys::peek(token)?;
        let issuer = state.issuers.iter().find(|issuer| claimed["iss"] == *issuer.url)?;
        let answer = issuer.user(token).await;
        Some(answer.map_err(|error| {
            tracing::debug!(issuer = %issuer.url, %error, "a token is refused");
            error.to_string()
        }))
    }
}

fn parse(value: &Value, own: &[String], errors: &mut Vec<String>) -> State {
    known(value, "", &["apiVersion", "kind", "jwt", "anonymous"], errors);
    let anonymous = anonymous(&value["anonymous"], errors);
    let all = list(value, "jwt");
    if all.len() > MOST_ISSUERS {
        errors.push(format!("jwt: Too many: {}: must have at most {MOST_ISSUERS} items", all.len()));
    }
    let mut issuers: Vec<Issuer> = Vec::new();
    for (index, said) in all.iter().enumerate() {
        let path = format!("jwt[{index}]");
        let issuer = Issuer::parse(said, &path, errors);
        if own.contains(&issuer.url) {
            let url = &issuer.url;
            errors.push(format!(
                "{path}.issuer.url: Invalid value: {url:?}: URL must not overlap with disallowed issuers: {own:?}"
            ));
        }
        if issuers.iter().any(|other| other.url == issuer.url) {
            errors.push(format!("{path}.issuer.url: Duplicate value: {:?}", issuer.url));
        }
        if issuers.iter().any(|other| other.discovery() == issuer.discovery()) {
            errors.push(format!("{path}.issuer.discoveryURL: Duplicate value: {:?}", issuer.discovery()));
        }
        issuers.push(issuer);
    }
    State { anonymous, issuers }
}

fn anonymous(said: &Value, errors: &mut Vec<String>) -> Anonymous {
    if !said.is_object() {
        return Anonymous::Unsaid;
    }
    known(said, "anonymous", &["enabled", "conditions"], errors);
    let paths: Vec<String> = list(said, "conditions").iter().map(|c| text(c, "path").to_owned()).collect();
    match (said["enabled"] == true, paths.is_empty()) {
        (true, true) => Anonymous::Everywhere,
        (true, false) => Anonymous::At(paths),
        (false, true) => Anonymous::Nobody,
        (false, false) => {
            errors.push(
                "anonymous.conditions: Invalid value: enabled should be set to true when conditions are defined".into(),
            );
            Anonymous::Nobody
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(rest: &str) -> Result<State, String> {
        let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n";
        let own = ["https://own".to_owned()];
        let parse = |value: &Value, errors: &mut Vec<String>| parse(value, &own, errors);
        super::super::config_file::read(format!("{head}{rest}").as_bytes(), KIND, parse)
    }

    #[test]
    fn who_may_be_anonymous_is_said_by_the_file() {
        for (rest, anonymous) in [
            ("", Anonymous::Unsaid),
            ("anonymous: {enabled: true}\n", Anonymous::Everywhere),
            ("anonymous: {enabled: false}\n", Anonymous::Nobody),
            ("anonymous: {enabled: true, conditions: [{path: /livez}]}\n", Anonymous::At(vec!["/livez".into()])),
        ] {
            assert_eq!(read(rest).map(|s| s.anonymous).expect("it is fine"), anonymous);
        }
        assert!(read("anonymous: {enabled: false, conditions: [{path: /livez}]}\n").is_err());
        assert!(read("anonymous: {enable: true}\n").is_err(), "a misspelt setting would go unnoticed");
    }

    #[test]
    fn everything_that_is_wrong_with_an_issuer_is_told() {
        let good = "jwt: [{issuer: {url: 'https://a', audiences: [x]}, claimMappings: {username: {claim: sub, prefix: ''}}}]\n";
        assert_eq!(read(good).map(|s| s.issuers.len()), Ok(1));
        let many = "jwt: [{issuer: {url: 'http://a'}, claimMappings: {username: {expression: 'claims.x +'}}}, \
                    {issuer: {url: 'https://own', audiences: [x, z]}, claimMappings: {username: {claim: sub}}}]\n";
        let said = read(many).map(|_| ()).expect_err("it is wrong");
        for why in [
            "jwt[0].issuer.url: Invalid value: \"http://a\": URL scheme must be https",
            "jwt[0].issuer.audiences: Required value: at least one jwt.issuer.audiences is required",
            "jwt[0].claimMappings.username.expression: Invalid value: \"claims.x +\": compilation failed",
            "URL must not overlap with disallowed issuers",
            "jwt[1].issuer.audienceMatchPolicy: Invalid value: \"\": audienceMatchPolicy must be MatchAny",
            "jwt[1].claimMappings.username.prefix: Required value",
        ] {
            assert!(said.contains(why), "{why} is not in {said}");
        }
    }
}
