//! Bootstrap tokens: what lets a machine into the cluster that has nothing else yet.
//!
//! A token `ID.SECRET` is a secret `bootstrap-token-ID` of type `bootstrap.kubernetes.io/token` in kube-system, with the
//! keys that kubeadm's tools write and read. The authenticator, two controllers and `apiserver-lite token` share this.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use proto::time::parse_rfc3339;
use ring::hmac;
use serde_json::{Value, json};

/// Where the secrets are.
pub const NAMESPACE: &str = "kube-system";
pub const TYPE: &str = "bootstrap.kubernetes.io/token";
const PREFIX: &str = "bootstrap-token-";
/// Every user of a bootstrap token is in this group.
pub const GROUP: &str = "system:bootstrappers";
/// kubeadm's group of tokens for nodes: who is in it may ask for a node's certificate.
pub const NODE_GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";
pub const USAGES: [&str; 2] = ["authentication", "signing"];

/// When a token ends, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    Never,
    At(i64),
    /// What the secret says is no time; such a token counts as over.
    Unreadable,
}

/// A bootstrap token as its secret has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootstrapToken {
    pub id: String,
    pub secret: String,
    pub description: String,
    pub expiry: Expiry,
    /// Of [`USAGES`].
    pub usages: Vec<String>,
    /// What the secret says are groups of its user beside [`GROUP`].
    pub groups: Vec<String>,
}

fn plain(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

/// `ID.SECRET` in its two parts; None where it has another form.
pub fn split(token: &str) -> Option<(&str, &str)> {
    token.split_once('.').filter(|(id, secret)| is_id(id) && plain(secret, 16))
}

/// Six lower case letters or digits.
pub fn is_id(text: &str) -> bool {
    plain(text, 6)
}

/// Name of the secret of a token.
pub fn name_of(id: &str) -> String {
    format!("{PREFIX}{id}")
}

/// Whether a token may bring its user into a group.
pub fn is_group(name: &str) -> bool {
    let fine = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let rest = name.strip_prefix("system:bootstrappers:").unwrap_or_default().as_bytes();
    rest.len() <= 256
        && rest.last().is_some_and(|b| fine(*b))
        && rest.iter().all(|b| fine(*b) || matches!(b, b':' | b'-'))
}

impl BootstrapToken {
    /// A new one, with an id and a secret that nobody can guess.
    pub fn random() -> (String, String) {
        (crate::random::suffix(6), crate::random::secret_suffix(16))
    }

    /// Reads a secret; None when it is no bootstrap token or does not fit its own name.
    pub fn of(secret: &Value) -> Option<Self> {
        if secret["type"] != TYPE {
            return None;
        }
        let data = |key: &str| {
            let bytes = STANDARD.decode(secret["data"][key].as_str()?).ok()?;
            String::from_utf8(bytes).ok()
        };
        let (id, text) = (data("token-id")?, data("token-secret")?);
        if secret["metadata"]["name"].as_str()? != name_of(&id) || split(&format!("{id}.{text}")).is_none() {
            return None;
        }
        let expiry = match data("expiration").filter(|t| !t.is_empty()) {
            None => Expiry::Never,
            Some(text) => parse_rfc3339(&text).map_or(Expiry::Unreadable, |at| Expiry::At(at.seconds)),
        };
        let used = |usage: &&str| data(&format!("usage-bootstrap-{usage}")).as_deref() == Some("true");
        let groups = data("auth-extra-groups").unwrap_or_default();
        Some(BootstrapToken {
            id,
            secret: text,
            description: data("description").unwrap_or_default(),
            expiry,
            usages: USAGES.iter().filter(|u| used(u)).map(|u| (*u).into()).collect(),
            groups: groups.split(',').filter(|_| !groups.is_empty()).map(Into::into).collect(),
        })
    }

    /// The secret to create.
    pub fn to_secret(&self) -> Value {
        let mut data = json!({"token-id": self.id, "token-secret": self.secret});
        if !self.description.is_empty() {
            data["description"] = self.description.clone().into();
        }
        if let Expiry::At(seconds) = self.expiry {
            data["expiration"] = proto::time::Timestamp { seconds, nanos: 0 }.to_seconds_text().into();
        }
        for usage in &self.usages {
            data[format!("usage-bootstrap-{usage}")] = "true".into();
        }
        if !self.groups.is_empty() {
            data["auth-extra-groups"] = self.groups.join(",").into();
        }
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": TYPE,
            "metadata": {"name": name_of(&self.id), "namespace": NAMESPACE}, "stringData": data,
        })
    }

    /// `ID.SECRET`
    pub fn text(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }

    /// Every group of its user, sorted.
    ///
    /// # Errors
    /// The first that no token may bring its user into; such a token is good for nobody.
    pub fn user_groups(&self) -> Result<Vec<String>, &str> {
        if let Some(bad) = self.groups.iter().find(|group| !is_group(group)) {
            return Err(bad);
        }
        let all: BTreeSet<&str> = self.groups.iter().map(String::as_str).chain([GROUP]).collect();
        Ok(all.into_iter().map(Into::into).collect())
    }

    pub fn is_for(&self, usage: &str) -> bool {
        self.usages.iter().any(|u| u == usage)
    }

    /// Seconds that are left; None for one that does not end.
    pub fn left(&self, now: i64) -> Option<i64> {
        match self.expiry {
            Expiry::Never => None,
            Expiry::At(at) => Some((at - now).max(0)),
            Expiry::Unreadable => Some(0),
        }
    }

    /// A signature of a text by who knows the token: a JWS (HS256) without its payload, RFC 7515 appendix F.
    pub fn sign(&self, text: &str) -> String {
        let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"HS256","kid":"{}"}}"#, self.id));
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.secret.as_bytes());
        let signed = hmac::sign(&key, format!("{header}.{}", URL_SAFE_NO_PAD.encode(text)).as_bytes());
        format!("{header}..{}", URL_SAFE_NO_PAD.encode(signed.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> BootstrapToken {
        BootstrapToken {
            id: "abcdef".into(),
            secret: "0123456789abcdef".into(),
            description: "for a test".into(),
            expiry: Expiry::At(1_800_000_000),
            usages: vec!["authentication".into(), "signing".into()],
            groups: vec![NODE_GROUP.into()],
        }
    }

    /// What the server makes of `stringData`.
    fn stored(token: &BootstrapToken) -> Value {
        let mut secret = token.to_secret();
        let data = secret["stringData"].take();
        for (key, text) in data.as_object().expect("a map") {
            secret["data"][key] = STANDARD.encode(text.as_str().expect("text")).into();
        }
        secret
    }

    #[test]
    fn a_secret_is_read_back_and_must_fit_its_name() {
        let token = token();
        let mut secret = stored(&token);
        assert_eq!(BootstrapToken::of(&secret), Some(token.clone()));
        assert_eq!((token.left(1_799_999_990), token.left(1_800_000_001)), (Some(10), Some(0)));
        secret["data"]["expiration"] = STANDARD.encode("tomorrow").into();
        assert_eq!(BootstrapToken::of(&secret).map(|t| t.left(0)), Some(Some(0)));
        secret["metadata"]["name"] = "bootstrap-token-zzzzzz".into();
        assert_eq!(BootstrapToken::of(&secret), None);
        secret["type"] = "Opaque".into();
        assert_eq!(BootstrapToken::of(&secret), None);
    }

    #[test]
    fn groups_are_sorted_and_a_bad_one_spoils_them_all() {
        let all = |text: &str| {
            let mut secret = stored(&token());
            secret["data"]["auth-extra-groups"] = STANDARD.encode(text).into();
            let read = BootstrapToken::of(&secret).expect("a token");
            read.user_groups().map(|groups| groups.join(" ")).map_err(ToOwned::to_owned)
        };
        let [a, b] = ["system:bootstrappers:a", "system:bootstrappers:b"];
        assert_eq!(all(""), Ok(GROUP.to_owned()));
        assert_eq!(all(&format!("{b},{a},{b}")), Ok(format!("{GROUP} {a} {b}")));
        for (text, bad) in [
            ("foo".to_owned(), "foo".to_owned()),
            (format!("{a},bad"), "bad".into()),
            (GROUP.to_owned(), GROUP.into()),
            (format!("{a}, {b}"), format!(" {b}")),
            (format!("{a},"), String::new()),
        ] {
            assert_eq!(all(&text), Err(bad), "{text:?}");
        }
    }

    #[test]
    fn tokens_and_groups_have_a_form() {
        assert!(split("abcdef.0123456789abcdef").is_some());
        for bad in ["abcdef", "abcdeF.0123456789abcdef", "abcde.0123456789abcdef", "abcdef.0123456789abcde", "."] {
            assert!(split(bad).is_none(), "{bad}");
        }
        assert!(is_group(NODE_GROUP) && !is_group("system:bootstrappers:") && !is_group("system:masters"));
        assert!(!is_group("system:bootstrappers:a-"));
        let (id, secret) = BootstrapToken::random();
        assert!(split(&format!("{id}.{secret}")).is_some());
    }

    /// The figure is that of `openssl dgst -sha256 -hmac 0123456789abcdef` over the two parts.
    #[test]
    fn a_signature_is_a_detached_jws() {
        let signed = token().sign("text");
        let (header, rest) = signed.split_once("..").expect("no payload");
        assert_eq!(header, "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiY2RlZiJ9");
        assert_eq!(rest, "v28Ea_KqmHOtFWksJ_4tbV6AFRNzMkrRUG_jsuLJz-4");
    }
}
