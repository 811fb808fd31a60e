//! The token, and what it has signed.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde_json::Value;

/// A bootstrap token, `ID.SECRET`.
#[derive(Clone)]
pub struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Token").field(&self.id()).finish()
    }
}

impl Token {
    /// None where it has another form.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = |t: &str, n: usize| t.len() == n && t.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let (id, secret) = text.split_once('.')?;
        (plain(id, 6) && plain(secret, 16)).then(|| Token(text.to_owned()))
    }

    /// The public part.
    pub fn id(&self) -> &str {
        &self.0[..6]
    }

    /// All of it, as the API server takes it.
    pub fn bearer(&self) -> &str {
        &self.0
    }

    /// Whether a JWS without its payload (HS256) is this token's signature of `text`.
    pub fn has_signed(&self, text: &str, jws: &str) -> bool {
        let Some((header, signature)) = jws.split_once("..") else { return false };
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
        let Some(named) = decode(header).and_then(|h| serde_json::from_slice::<Value>(&h).ok()) else { return false };
        let Some(signature) = decode(signature) else { return false };
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0.as_bytes()[7..]);
        let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(text));
        named["alg"] == "HS256"
            && named["kid"] == self.id()
            && hmac::verify(&key, signed.as_bytes(), &signature).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made with `openssl dgst -sha256 -hmac 0123456789abcdef`.
    #[test]
    fn only_the_tokens_own_signature_of_this_text_counts() {
        let jws = "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiY2RlZiJ9..v28Ea_KqmHOtFWksJ_4tbV6AFRNzMkrRUG_jsuLJz-4";
        let token = Token::parse("abcdef.0123456789abcdef").expect("a token");
        assert!(token.has_signed("text", jws));
        assert!(!token.has_signed("text2", jws) && !token.has_signed("text", "") && !token.has_signed("text", ".."));
        let other = Token::parse("abcdef.0123456789abcdeg").expect("a token");
        assert!(!other.has_signed("text", jws));
        let named = Token::parse("abcdeg.0123456789abcdef").expect("a token");
        assert!(!named.has_signed("text", jws), "the signature names another token");
        assert!(Token::parse("abcdef").is_none() && Token::parse("äöü.0123456789abcdef").is_none());
        assert!(!format!("{token:?}").contains("0123"), "the secret is not for logs");
    }
}
