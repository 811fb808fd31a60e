//! JSON web tokens: signing with one key, verifying with any of several, and publishing the public ones.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use ring::digest::{SHA256, digest};
use ring::signature::{self, UnparsedPublicKey, VerificationAlgorithm};
use rustls::SignatureScheme;
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::SigningKey;
use rustls_pki_types::pem::{PemObject, SectionKind};
use serde_json::{Value, json};
use x509_parser::prelude::{FromDer as _, SubjectPublicKeyInfo, X509Certificate};
use x509_parser::public_key::PublicKey as Parsed;

/// Why a key is of no use. The operator has to correct the file.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct KeyError {
    path: PathBuf,
    reason: String,
}

/// Kinds of keys: RSA from 2048 bits, and the curves P-256 and P-384.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    Rs256,
    Es256,
    Es384,
}

impl Algorithm {
    fn name(self) -> &'static str {
        match self {
            Algorithm::Rs256 => "RS256",
            Algorithm::Es256 => "ES256",
            Algorithm::Es384 => "ES384",
        }
    }

    fn verification(self) -> &'static dyn VerificationAlgorithm {
        match self {
            Algorithm::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
            Algorithm::Es256 => &signature::ECDSA_P256_SHA256_FIXED,
            Algorithm::Es384 => &signature::ECDSA_P384_SHA384_FIXED,
        }
    }

    fn scheme(self) -> SignatureScheme {
        match self {
            Algorithm::Rs256 => SignatureScheme::RSA_PKCS1_SHA256,
            Algorithm::Es256 => SignatureScheme::ECDSA_NISTP256_SHA256,
            Algorithm::Es384 => SignatureScheme::ECDSA_NISTP384_SHA384,
        }
    }

    /// Bytes of each half of an elliptic curve signature.
    fn half(self) -> usize {
        if self == Algorithm::Es384 { 48 } else { 32 }
    }
}

/// A key that verifies.
#[derive(Debug, Clone)]
struct PublicKey {
    id: String,
    algorithm: Algorithm,
    /// Point of the curve, or PKCS#1.
    bytes: Vec<u8>,
    /// As published.
    web_key: Value,
}

impl PublicKey {
    fn from_spki(der: &[u8]) -> Result<Self, String> {
        let (_, spki) = SubjectPublicKeyInfo::from_der(der).map_err(|e| e.to_string())?;
        let id = BASE64URL.encode(digest(&SHA256, der));
        let bytes = spki.subject_public_key.data.to_vec();
        let encode = |bytes: &[u8]| BASE64URL.encode(bytes);
        let (algorithm, mut web_key) = match spki.parsed().map_err(|e| e.to_string())? {
            Parsed::RSA(key) => {
                let trim = |b: &[u8]| encode(&b[b.iter().position(|x| *x != 0).unwrap_or(0)..]);
                (Algorithm::Rs256, json!({"kty": "RSA", "n": trim(key.modulus), "e": trim(key.exponent)}))
            }
            Parsed::EC(point) => {
                let (algorithm, curve) = match point.data().len() {
                    65 => (Algorithm::Es256, "P-256"),
                    97 => (Algorithm::Es384, "P-384"),
                    _ => return Err("only the curves P-256 and P-384 are supported".into()),
                };
                let (x, y) = point.data()[1..].split_at(algorithm.half());
                (algorithm, json!({"kty": "EC", "crv": curve, "x": encode(x), "y": encode(y)}))
            }
            _ => return Err("neither an RSA nor an elliptic curve key".into()),
        };
        web_key["use"] = "sig".into();
        web_key["kid"] = id.as_str().into();
        web_key["alg"] = algorithm.name().into();
        Ok(PublicKey { id, algorithm, bytes, web_key })
    }
}

/// Signs and verifies.
pub struct Keys {
    signer: Arc<dyn SigningKey>,
    /// The signer's own first.
    public: Vec<PublicKey>,
}

impl Keys {
    /// `verifying` are files with any number of public keys, certificates or private keys.
    ///
    /// # Errors
    /// When a file cannot be read or holds no usable key.
    pub fn load(signing: &Path, verifying: &[PathBuf]) -> Result<Self, KeyError> {
        let wrong = |path: &Path, reason: String| KeyError { path: path.into(), reason };
        let signer = private(signing).map_err(|e| wrong(signing, e))?;
        let mut public = vec![public_of(&signer).map_err(|e| wrong(signing, e))?];
        for path in verifying {
            for key in read_public(path).map_err(|e| wrong(path, e))? {
                if public.iter().all(|p| p.id != key.id) {
                    public.push(key);
                }
            }
        }
        Ok(Keys { signer, public })
    }

    /// Looks at a file of keys that verify.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(verifying: &Path) -> Result<(), KeyError> {
        read_public(verifying).map(drop).map_err(|reason| KeyError { path: verifying.into(), reason })
    }

    /// A signed token.
    ///
    /// # Errors
    /// When the key refuses.
    pub fn sign(&self, claims: &Value) -> Result<String, String> {
        let own = &self.public[0];
        let header = json!({"alg": own.algorithm.name(), "kid": own.id});
        let part = |value: &Value| BASE64URL.encode(value.to_string());
        let mut token = format!("{}.{}", part(&header), part(claims));
        let signer = self.signer.choose_scheme(&[own.algorithm.scheme()]).ok_or("the key cannot sign tokens")?;
        let raw = signer.sign(token.as_bytes()).map_err(|e| e.to_string())?;
        let raw = match own.algorithm {
            Algorithm::Rs256 => raw,
            curve => fixed(&raw, curve.half()).ok_or("the key made a malformed signature")?,
        };
        token.push('.');
        token.push_str(&BASE64URL.encode(raw));
        Ok(token)
    }

    /// The claims of a token that one of the keys signed.
    pub fn verify(&self, token: &str) -> Option<Value> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let parse = |part: &str| serde_json::from_slice::<Value>(&BASE64URL.decode(part).ok()?).ok();
        let header = parse(header)?;
        let signature = BASE64URL.decode(signature).ok()?;
        let id = header["kid"].as_str().unwrap_or_default();
        let candidates = self.public.iter().filter(|k| id.is_empty() || k.id == id);
        let good = candidates.filter(|k| header["alg"] == k.algorithm.name()).any(|k| {
            UnparsedPublicKey::new(k.algorithm.verification(), &k.bytes).verify(signed.as_bytes(), &signature).is_ok()
        });
        if good { parse(claims) } else { None }
    }

    /// The claims of a token, whoever signed it: to see whether it is meant for us at all.
    pub fn peek(token: &str) -> Option<Value> {
        let claims = token.split('.').nth(1)?;
        serde_json::from_slice(&BASE64URL.decode(claims).ok()?).ok()
    }

    /// The published key set.
    pub fn web_keys(&self) -> Value {
        json!({"keys": self.public.iter().map(|k| k.web_key.clone()).collect::<Vec<_>>()})
    }

    pub fn algorithms(&self) -> Vec<&'static str> {
        let mut out: Vec<&str> = self.public.iter().map(|k| k.algorithm.name()).collect();
        out.sort_unstable();
        out.dedup();
        out
    }
}

fn private(path: &Path) -> Result<Arc<dyn SigningKey>, String> {
    signer_of(&PrivateKeyDer::from_pem_file(path).map_err(|e| e.to_string())?)
}

fn signer_of(key: &PrivateKeyDer<'_>) -> Result<Arc<dyn SigningKey>, String> {
    rustls::crypto::ring::sign::any_supported_type(key).map_err(|e| e.to_string())
}

fn public_of(key: &Arc<dyn SigningKey>) -> Result<PublicKey, String> {
    PublicKey::from_spki(&key.public_key().ok_or("the key does not tell its public half")?)
}

/// Every key of a file that can be used, at least one. Follows `keyutil.PublicKeysFromFile`: what is no key, or one of a
/// kind that signs no tokens, is passed over.
fn read_public(path: &Path) -> Result<Vec<PublicKey>, String> {
    let (mut keys, mut first) = (Vec::new(), None);
    for section in <(SectionKind, Vec<u8>)>::pem_file_iter(path).map_err(|e| e.to_string())? {
        let (kind, der) = section.map_err(|e| e.to_string())?;
        let key = match kind {
            SectionKind::PublicKey => PublicKey::from_spki(&der),
            SectionKind::Certificate => of_certificate(&der),
            kind => match PrivateKeyDer::from_pem(kind, der) {
                Some(key) => signer_of(&key).and_then(|key| public_of(&key)),
                None => continue,
            },
        };
        match key {
            Ok(key) => keys.push(key),
            Err(why) => {
                tracing::warn!(path = %path.display(), why, "a key that cannot verify tokens is passed over");
                first.get_or_insert(why);
            }
        }
    }
    if keys.is_empty() { Err(first.unwrap_or_else(|| "holds no key".into())) } else { Ok(keys) }
}

fn of_certificate(der: &[u8]) -> Result<PublicKey, String> {
    let (_, certificate) = X509Certificate::from_der(der).map_err(|e| e.to_string())?;
    PublicKey::from_spki(certificate.public_key().raw)
}

/// An elliptic curve signature as two numbers of fixed length, from the ASN.1 that TLS uses.
fn fixed(der: &[u8], half: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(half * 2);
    // SEQUENCE, its length (below 128 for these curves), then two INTEGERs.
    let mut rest = der.strip_prefix(&[0x30])?.get(1..)?;
    for _ in 0..2 {
        rest = rest.strip_prefix(&[0x02])?;
        let length = usize::from(*rest.first()?);
        let number = rest.get(1..=length)?;
        rest = rest.get(1 + length..)?;
        let digits = &number[number.iter().position(|b| *b != 0).unwrap_or(number.len())..];
        out.extend(std::iter::repeat_n(0, half.checked_sub(digits.len())?));
        out.extend_from_slice(digits);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// While keys are changed a file holds the old one and the new one: tokens of the second were refused.
    #[test]
    fn every_key_of_a_file_verifies() {
        let path = std::env::temp_dir().join(format!("jwt-{}", crate::random::uuid()));
        let own = std::env::temp_dir().join(format!("jwt-{}", crate::random::uuid()));
        let made = [(); 3].map(|()| rcgen::KeyPair::generate().expect("a key"));
        std::fs::write(&own, made[0].serialize_pem()).expect("writable");
        let strange = "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n";
        let ed25519 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
        let ed25519 = ed25519.public_key_pem();
        let all = format!("{strange}{}\n{ed25519}\n{}", made[1].public_key_pem(), made[2].serialize_pem());
        std::fs::write(&path, all).expect("writable");
        let keys = Keys::load(&own, std::slice::from_ref(&path)).expect("usable");
        for pair in &made {
            std::fs::write(&own, pair.serialize_pem()).expect("writable");
            let token = Keys::load(&own, &[]).expect("usable").sign(&json!({"sub": "x"})).expect("signed");
            assert!(keys.verify(&token).is_some());
        }
        assert_eq!(keys.web_keys()["keys"].as_array().map(Vec::len), Some(3));
        assert!(Keys::check(&path).is_ok());
        for unusable in [ed25519.as_str(), strange, ""] {
            std::fs::write(&path, unusable).expect("writable");
            assert!(Keys::check(&path).is_err(), "{unusable}");
        }
        for file in [path, own] {
            std::fs::remove_file(file).expect("ours");
        }
    }

    #[test]
    fn what_one_key_signs_another_does_not_verify() {
        let path = std::env::temp_dir().join(format!("jwt-{}", crate::random::uuid()));
        let make = || {
            let key = rcgen::KeyPair::generate().expect("a key");
            std::fs::write(&path, key.serialize_pem()).expect("writable");
            Keys::load(&path, &[]).expect("usable")
        };
        let (ours, other) = (make(), make());
        for _ in 0..50 {
            let token = ours.sign(&json!({"sub": "x"})).expect("signed");
            assert_eq!(ours.verify(&token).expect("ours")["sub"], "x");
            assert!(other.verify(&token).is_none());
            let mut changed = token.clone().into_bytes();
            changed[40] ^= 1;
            assert!(ours.verify(&String::from_utf8_lossy(&changed)).is_none());
        }
        assert!(ours.verify("a.b.c").is_none() && ours.verify("").is_none());
        assert_eq!(ours.web_keys()["keys"][0]["crv"], "P-256");
        std::fs::remove_file(&path).expect("ours");
    }
}
