//! OpenID discovery: where others find the keys that verify service account tokens.
//!
//! `/.well-known/openid-configuration` and `/openid/v1/jwks`, as `pkg/serviceaccount` and `pkg/routes` upstream. An
//! issuer that is no https URL cannot be discovered, so nothing is served for it.

use http::header::{CACHE_CONTROL, HeaderValue};
use serde_json::{Value, json};

use crate::http::{Response, respond};
use crate::server::{ApiServer, Request, wrong_method};

pub const CONFIGURATION: &str = "/.well-known/openid-configuration";
pub const KEYS: &str = "/openid/v1/jwks";

/// Answers the paths of this module; None for others.
pub fn answer(server: &ApiServer, request: &Request) -> Option<Response> {
    let path = request.info.path.as_str();
    let accounts = server.authenticator.accounts().filter(|_| matches!(path, CONFIGURATION | KEYS))?;
    let issuer = accounts.issuers.first().filter(|i| i.starts_with("https://"))?;
    if request.method != http::Method::GET {
        return Some(respond::error(&wrong_method(), request.for_error()));
    }
    let mut response = match path {
        KEYS => document("application/jwk-set+json", &accounts.keys.web_keys()),
        _ => {
            let configuration = json!({
                "issuer": issuer,
                "jwks_uri": server.config.keys_url,
                "response_types_supported": ["id_token"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": accounts.keys.algorithms(),
            });
            document("application/json", &configuration)
        }
    };
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=3600"));
    Some(response)
}

fn document(media: &'static str, value: &Value) -> Response {
    respond::bytes(200, media, value.to_string())
}
