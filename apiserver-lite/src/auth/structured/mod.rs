//! Authentication by a file (`--authentication-config`): issuers of JSON web tokens, and who may be anonymous where.
//!
//! The file is an `AuthenticationConfiguration` of `apiserver.config.k8s.io`. It is read again when it changes; a new
//! state that is wrong is told in the log, and the old one stays. Follows `apiserver/pkg/apis/apiserver/validation` and
//! `plugin/pkg/authenticator/token/oidc`. Limits: egress selectors and distributed claims are not there.

mod claims;
mod issuer;
mod keys;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use serde_json::Value;

use crate::request::User;
use issuer::Issuer;

/// How often the file is looked at. Such files are mounted, and replaced by links that no watch of the file sees.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Issuers at most, as upstream.
const MOST_ISSUERS: usize = 64;

/// Why a file is of no use. The operator has to correct it.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct StructuredError {
    path: PathBuf,
    reason: String,
}

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
pub struct Structured {
    path: PathBuf,
    state: ArcSwap<State>,
}

impl Structured {
    /// `own` are the issuers of service account tokens, which no one else may be.
    ///
    /// # Errors
    /// When the file cannot be read, or with everything that is wrong in it.
    pub fn load(path: &Path, own: &[String]) -> Result<Self, StructuredError> {
        let wrong = |reason: String| StructuredError { path: path.into(), reason };
        let text = std::fs::read(path).map_err(|e| wrong(e.to_string()))?;
        let state = parse(&text, own).map_err(wrong)?;
        Ok(Structured { path: path.into(), state: ArcSwap::from_pointee(state) })
    }

    /// Takes changes of the file in; never returns.
    pub async fn follow(&self, own: &[String]) {
        let mut last = tokio::fs::read(&self.path).await.unwrap_or_default();
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            let Ok(text) = tokio::fs::read(&self.path).await else { continue };
            if text == last {
                continue;
            }
            match parse(&text, own) {
                Ok(state) => {
                    tracing::info!(path = %self.path.display(), "the authentication configuration was read again");
                    self.state.store(Arc::new(state));
                }
                Err(error) => {
                    tracing::error!(path = %self.path.display(), %error, "the authentication configuration stays as it was");
                }
            }
            last = text;
        }
    }

    pub fn anonymous(&self) -> Anonymous {
        self.state.load().anonymous.clone()
    }

    /// The user of a token that one of the issuers made for us.
    pub async fn user(&self, token: &str) -> Option<User> {
        let state = self.state.load_full();
        let claimed = super::Keys::peek(token)?;
        let issuer = state.issuers.iter().find(|issuer| claimed["iss"] == *issuer.url)?;
        match issuer.user(token).await {
            Ok(user) => Some(user),
            Err(error) => {
                tracing::debug!(issuer = %issuer.url, %error, "a token is refused");
                None
            }
        }
    }
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_default()
}

fn list<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// Members that a part of the file may have; others are a mistake that would go unnoticed.
fn known(value: &Value, path: &str, names: &[&str], errors: &mut Vec<String>) {
    for key in value.as_object().into_iter().flat_map(|map| map.keys()) {
        if !names.contains(&key.as_str()) {
            let whole = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            errors.push(format!("strict decoding error: unknown field {whole:?}"));
        }
    }
}

fn parse(text_of_file: &[u8], own: &[String]) -> Result<State, String> {
    let value = proto::yaml::read(text_of_file).map_err(|e| e.to_string())?.value;
    let version = text(&value, "apiVersion").strip_prefix("apiserver.config.k8s.io/").unwrap_or_default();
    if text(&value, "kind") != "AuthenticationConfiguration" || !matches!(version, "v1" | "v1beta1" | "v1alpha1") {
        return Err(format!(
            "expected AuthenticationConfiguration of apiserver.config.k8s.io/v1, got {}, Kind={}",
            text(&value, "apiVersion"),
            text(&value, "kind")
        ));
    }
    let mut errors = Vec::new();
    known(&value, "", &["apiVersion", "kind", "jwt", "anonymous"], &mut errors);
    let anonymous = anonymous(&value["anonymous"], &mut errors);
    let all = list(&value, "jwt");
    if all.len() > MOST_ISSUERS {
        errors.push(format!("jwt: Too many: {}: must have at most {MOST_ISSUERS} items", all.len()));
    }
    let mut issuers: Vec<Issuer> = Vec::new();
    for (index, said) in all.iter().enumerate() {
        let path = format!("jwt[{index}]");
        let issuer = Issuer::parse(said, &path, &mut errors);
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
    if errors.is_empty() { Ok(State { anonymous, issuers }) } else { Err(errors.join(", ")) }
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
        parse(format!("{head}{rest}").as_bytes(), &["https://own".to_owned()])
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
