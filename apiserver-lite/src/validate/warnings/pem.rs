//! Secrets that should hold a certificate and its key.

use base64::Engine as _;
use serde_json::Value;

use super::super::text;

/// What keeps a secret from being a certificate and its key.
pub(super) fn key_pair(data: &Value) -> Option<String> {
    let types = |name: &str| -> Vec<String> {
        let bytes = base64::engine::general_purpose::STANDARD.decode(text(data, name)).unwrap_or_default();
        pem_types(&String::from_utf8_lossy(&bytes))
    };
    let skipped = |kinds: &[String]| format!("after skipping PEM blocks of the following types: [{}]", kinds.join(" "));
    let (certificate, key) = (types("tls.crt"), types("tls.key"));
    let is_key = |kind: &String| kind == "PRIVATE KEY" || kind.ends_with(" PRIVATE KEY");
    if !certificate.iter().any(|kind| kind == "CERTIFICATE") {
        return Some(match certificate.as_slice() {
            [] => "tls: failed to find any PEM data in certificate input".into(),
            [one] if one.ends_with("PRIVATE KEY") => {
                "tls: failed to find certificate PEM data in certificate input, but \
                                                      did find a private key; PEM inputs may have been switched"
                    .into()
            }
            kinds => format!("tls: failed to find \"CERTIFICATE\" PEM block in certificate input {}", skipped(kinds)),
        });
    }
    if !key.iter().any(is_key) {
        return Some(match key.as_slice() {
            [] => "tls: failed to find any PEM data in key input".into(),
            [one] if one == "CERTIFICATE" => {
                "tls: found a certificate rather than a key in the PEM for the private key".into()
            }
            kinds => format!(
                "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input {}",
                skipped(kinds)
            ),
        });
    }
    None
}

/// The types of the blocks in a text of PEM.
fn pem_types(text: &str) -> Vec<String> {
    let mut kinds = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once("-----BEGIN ") {
        let Some((kind, body)) = after.split_once("-----") else { break };
        match body.split_once(&format!("-----END {kind}-----")) {
            Some((_, following)) => {
                kinds.push(kind.to_owned());
                rest = following;
            }
            None => rest = body,
        }
    }
    kinds
}
