//! Keys that others publish (RFC 7517), and the tokens that they signed.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use ring::signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};
use serde_json::Value;

/// A set of public keys; those of kinds that are not known are left out.
#[derive(Debug, Default)]
pub struct WebKeys(Vec<WebKey>);

#[derive(Debug)]
struct WebKey {
    id: String,
    /// The one algorithm that it is for; empty for any that fits it.
    algorithm: String,
    material: Material,
}

#[derive(Debug)]
enum Material {
    Rsa {
        modulus: Vec<u8>,
        exponent: Vec<u8>,
    },
    /// A point of P-256 or P-384, uncompressed.
    Curve(Vec<u8>),
}

impl WebKeys {
    /// Reads `{"keys": [...]}`.
    pub fn parse(set: &Value) -> Self {
        WebKeys(set["keys"].as_array().into_iter().flatten().filter_map(WebKey::parse).collect())
    }

    /// The claims of a token that one of the keys signed.
    pub fn verify(&self, token: &str) -> Option<Value> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let decode = |part: &str| BASE64URL.decode(part).ok();
        let header: Value = serde_json::from_slice(&decode(header)?).ok()?;
        let (id, algorithm) = (header["kid"].as_str().unwrap_or_default(), header["alg"].as_str()?);
        let signature = decode(signature)?;
        let fits = |key: &&WebKey| id.is_empty() || key.id.is_empty() || key.id == id;
        let good = self.0.iter().filter(fits).any(|key| key.signed(algorithm, signed.as_bytes(), &signature));
        if good { serde_json::from_slice(&decode(claims)?).ok() } else { None }
    }
}

impl WebKey {
    fn parse(key: &Value) -> Option<Self> {
        let text = |name: &str| key[name].as_str().unwrap_or_default();
        let bytes = |name: &str| BASE64URL.decode(text(name).trim_end_matches('=')).ok().filter(|b| !b.is_empty());
        if !matches!(text("use"), "" | "sig") {
            return None;
        }
        let material = match (text("kty"), text("crv")) {
            ("RSA", _) => Material::Rsa { modulus: bytes("n")?, exponent: bytes("e")? },
            ("EC", curve @ ("P-256" | "P-384")) => {
                let half: usize = if curve == "P-256" { 32 } else { 48 };
                let mut point = vec![4];
                for name in ["x", "y"] {
                    let number = bytes(name)?;
                    point.extend(std::iter::repeat_n(0, half.saturating_sub(number.len())));
                    point.extend(number);
                }
                Material::Curve(point)
            }
            _ => return None,
        };
        Some(WebKey { id: text("kid").into(), algorithm: text("alg").into(), material })
    }

    fn signed(&self, algorithm: &str, message: &[u8], signature: &[u8]) -> bool {
        if !self.algorithm.is_empty() && self.algorithm != algorithm {
            return false;
        }
        match &self.material {
            Material::Rsa { modulus, exponent } => {
                let parameters: &RsaParameters = match algorithm {
                    "RS256" => &signature::RSA_PKCS1_2048_8192_SHA256,
                    "RS384" => &signature::RSA_PKCS1_2048_8192_SHA384,
                    "RS512" => &signature::RSA_PKCS1_2048_8192_SHA512,
                    "PS256" => &signature::RSA_PSS_2048_8192_SHA256,
                    "PS384" => &signature::RSA_PSS_2048_8192_SHA384,
                    "PS512" => &signature::RSA_PSS_2048_8192_SHA512,
                    _ => return false,
                };
                RsaPublicKeyComponents { n: modulus, e: exponent }.verify(parameters, message, signature).is_ok()
            }
            Material::Curve(point) => {
                let known: &'static dyn VerificationAlgorithm = match (algorithm, point.len()) {
                    ("ES256", 65) => &signature::ECDSA_P256_SHA256_FIXED,
                    ("ES384", 97) => &signature::ECDSA_P384_SHA384_FIXED,
                    _ => return false,
                };
                UnparsedPublicKey::new(known, point).verify(message, signature).is_ok()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::auth::Keys;

    #[test]
    fn published_keys_verify_what_their_owner_signed() {
        let path = std::env::temp_dir().join(format!("web-keys-{}", crate::random::uuid()));
        let make = || {
            let key = rcgen::KeyPair::generate().expect("a key");
            std::fs::write(&path, key.serialize_pem()).expect("writable");
            Keys::load(&path, &[]).expect("usable")
        };
        let (ours, other) = (make(), make());
        let published = WebKeys::parse(&ours.web_keys());
        let token = ours.sign(&json!({"sub": "x"})).expect("signed");
        assert_eq!(published.verify(&token), Some(json!({"sub": "x"})));
        assert_eq!(published.verify(&other.sign(&json!({"sub": "x"})).expect("signed")), None);
        // A token that says it is not signed at all is signed by nobody.
        let none = format!("{}.{}.", BASE64URL.encode(r#"{"alg":"none"}"#), BASE64URL.encode(r#"{"sub":"x"}"#));
        assert_eq!(published.verify(&none), None);
        assert!(WebKeys::parse(&json!({"keys": [{"kty": "oct", "k": "AA"}]})).0.is_empty());
        std::fs::remove_file(&path).expect("ours");
    }
}
