//! OpenID discovery: where others find the keys that verify service account tokens.
//!
//! `/.well-known/openid-configuration` and `/openid/v1/jwks`, as `pkg/serviceaccount` and `pkg/routes` upstream. An
//! issuer that is no https URL cannot be discovered, so nothing is served for it.

use http::header::{CACHE_CONTROL, HeaderValue};
use serde_json::{Value, json};

use crate::http::{Response, respond, route_produces};
use crate::server::{ApiServer, Request, unknown_path, wrong_method};

pub const CONFIGURATION: &str = "/.well-known/openid-configuration";
pub const KEYS: &str = "/openid/v1/jwks";

const JSON: &str = "application/json";
/// What the keys are, and nothing else: a client that takes JSON alone does not get them.
const KEY_SET: &str = "application/jwk-set+json";

#[derive(Debug, Clone, Copy, PartialEq)]
enum Asked {
    Configuration,
    Keys,
    /// Something below either of them.
    Nothing,
}

/// What of this module a path is; slashes at its end do not count.
fn asked(path: &str) -> Option<Asked> {
    match path.trim_end_matches('/') {
        CONFIGURATION => Some(Asked::Configuration),
        KEYS => Some(Asked::Keys),
        _ => {
            let below = |of: &str| path.strip_prefix(of).is_some_and(|rest| rest.starts_with('/'));
            (below(CONFIGURATION) || below(KEYS)).then_some(Asked::Nothing)
        }
    }
}

/// Answers the paths of this module; None for others.
pub fn answer(server: &ApiServer, request: &Request) -> Option<Response> {
    let asked = asked(&request.info.path)?;
    let accounts = server.authenticator.accounts()?;
    let issuer = accounts.issuers.first().filter(|i| i.starts_with("https://"))?;
    let routed = match asked {
        Asked::Nothing => Err(unknown_path()),
        _ if request.method != http::Method::GET => Err(wrong_method()),
        Asked::Keys => route_produces(&request.accept(), &[KEY_SET]),
        Asked::Configuration => route_produces(&request.accept(), &[JSON]),
    };
    if let Err(error) = routed {
        return Some(respond::error(&error, request.for_error()));
    }
    let mut response = match asked {
        Asked::Keys => document(KEY_SET, &accounts.keys.web_keys()),
        _ => {
            let configuration = json!({
                "issuer": issuer,
                "jwks_uri": server.config.keys_url,
                "response_types_supported": ["id_token"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": accounts.keys.algorithms(),
            });
            document(JSON, &configuration)
        }
    };
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=3600"));
    Some(response)
}

fn document(media: &'static str, value: &Value) -> Response {
    respond::bytes(200, media, value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_behind_changes_nothing() {
        for path in ["/openid/v1/jwks", "/openid/v1/jwks/"] {
            assert_eq!(asked(path), Some(Asked::Keys));
        }
        assert_eq!(asked("/.well-known/openid-configuration/"), Some(Asked::Configuration));
        assert_eq!(asked("/openid/v1/jwks/x"), Some(Asked::Nothing));
        for path in ["/openid/v1", "/openid/v1/jwksx", "/"] {
            assert_eq!(asked(path), None);
        }
    }
}
