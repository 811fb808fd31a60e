//! Tokens of service accounts: issued for a TokenRequest, and checked against the store at every use.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::CREDENTIAL_ID;
use super::jwt::Keys;
use super::secret_use::SecretUse;
use crate::bootstrap_token::{self, BootstrapToken};
use crate::request::User;
use crate::status::quote;
use crate::store::{ObjectRef, ResourceId, Store};

/// How long a token outlives its own time and the deletion mark of what it is bound to, in seconds; as long before its
/// time it is good already. Clocks differ; it is go-jose's `DefaultLeeway`.
const LEEWAY: i64 = 60;
/// The issuer of tokens that secrets hold.
const SECRET_ISSUER: &str = "kubernetes/serviceaccount";

/// Issues and checks tokens.
pub struct ServiceAccountTokens {
    pub keys: Keys,
    pub issuers: Vec<String>,
    pub audiences: Vec<String>,
    pub store: Store,
    /// Which tokens in secrets are used.
    pub used: SecretUse,
}

/// What is wrong with a token whose bound object is gone, and with one that was signed by somebody else.
const INVALIDATED: &str = "service account token has been invalidated";
const UNSIGNED: &str = "go-jose/go-jose: error in cryptographic primitive";

/// A token's bound object in the claims: `pods`, `nodes` or `secrets`.
const BOUND: [(&str, &str); 3] = [("pod", "pods"), ("secret", "secrets"), ("node", "nodes")];

/// A token's secret and account, its user and whom it is meant for.
type OfSecret = (ObjectRef, ObjectRef, (User, Vec<String>));

impl ServiceAccountTokens {
    /// The user of a token that is meant for one of `audiences`, and those of the audiences it names.
    ///
    /// # Errors
    /// What is wrong with a token of ours: it has expired, or its account or bound object is gone. None for a token that
    /// somebody else may know.
    pub fn check(&self, token: &str, audiences: &[String], now: i64) -> Result<(User, Vec<String>), Option<String>> {
        let wrong = |why: &str| Some(why.to_owned());
        // Cheap refusal first: a token of another issuer costs no signature check.
        let claims = Keys::peek(token).ok_or(None)?;
        let issuer = claims["iss"].as_str().ok_or(None)?;
        if issuer == SECRET_ISSUER {
            return self.check_secret(token, audiences, now).map_err(Some);
        }
        if !self.issuers.iter().any(|own| own == issuer) {
            return Err(None);
        }
        let claims = self.keys.verify(token).ok_or_else(|| wrong(UNSIGNED))?;
        let mut named: Vec<&str> = match &claims["aud"] {
            Value::String(one) => vec![one],
            Value::Array(many) => many.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        // An old one, which is meant for the API alone.
        if named.is_empty() {
            let subject = claims["sub"].as_str().unwrap_or_default();
            crate::audit::annotate("authentication.k8s.io/legacy-token", subject);
            named = self.audiences.iter().map(String::as_str).collect();
        }
        let meant: Vec<String> = audiences.iter().filter(|a| named.contains(&a.as_str())).cloned().collect();
        if meant.is_empty() {
            let shown = |list: &[&str]| list.iter().map(|one| quote(one)).collect::<Vec<_>>().join(" ");
            let asked: Vec<&str> = audiences.iter().map(String::as_str).collect();
            let (named, asked) = (shown(&named), shown(&asked));
            return Err(Some(format!("token audiences [{named}] is invalid for the target audiences [{asked}]")));
        }
        if let Some(why) = untimely(&claims, now) {
            return Err(wrong(why));
        }
        let private = &claims["kubernetes.io"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (namespace, account) = (text(&private["namespace"]), &private["serviceaccount"]);
        let (name, uid) = (text(&account["name"]), text(&account["uid"]));
        if claims["sub"] != format!("system:serviceaccount:{namespace}:{name}") {
            return Err(wrong("sub claim is invalid"));
        }
        self.account_is_alive(&namespace, &name, &uid, now)?;
        let mut extra = vec![(CREDENTIAL_ID.to_owned(), vec![format!("JTI={}", text(&claims["jti"]))])];
        for (key, plural) in BOUND {
            let bound = &private[key];
            if !bound.is_object() {
                continue;
            }
            let (bound_name, bound_uid) = (text(&bound["name"]), text(&bound["uid"]));
            let place = if key == "node" { "" } else { &namespace };
            // The node of a pod is told for information only; the pod's own state decides.
            if key != "node" || !private["pod"].is_object() {
                self.bound_is_alive((key, plural), (place, &bound_name), &bound_uid, now).map_err(Some)?;
            }
            if key != "secret" {
                extra.push((format!("authentication.kubernetes.io/{key}-name"), vec![bound_name]));
                extra.push((format!("authentication.kubernetes.io/{key}-uid"), vec![bound_uid]));
            }
        }
        extra.sort();
        if let Some(late) = private["warnafter"].as_i64().filter(|at| *at != 0).map(|at| now - at).filter(|s| *s > 0) {
            let told = format!("subject: {}, seconds after warning threshold: {late}", text(&claims["sub"]));
            crate::audit::annotate("authentication.k8s.io/stale-token", &told);
        }
        let groups = vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
        Ok((User { name: text(&claims["sub"]), uid, groups, extra }, meant))
    }

    /// The user of a token that lives in a secret and as long as that.
    ///
    /// # Errors
    /// What is wrong with it.
    fn check_secret(&self, token: &str, audiences: &[String], now: i64) -> Result<(User, Vec<String>), String> {
        let (secret, account, found) = self.of_secret(token, audiences, now).ok_or_else(|| INVALIDATED.to_owned())?;
        self.used.note(&secret, &account, now)?;
        Ok(found)
    }

    /// The secret and the account of a token that lives in a secret, its user and whom it is meant for.
    fn of_secret(&self, token: &str, audiences: &[String], now: i64) -> Option<OfSecret> {
        let claims = self.keys.verify(token)?;
        let claim = |name: &str| claims[format!("kubernetes.io/serviceaccount/{name}")].as_str().unwrap_or_default();
        let (namespace, name) = (claim("namespace"), claim("service-account.name"));
        if claims["sub"] != format!("system:serviceaccount:{namespace}:{name}") {
            return None;
        }
        let secret = self.store.get(&ResourceId::from("secrets"), namespace, claim("secret.name"))?;
        let held = secret.value()["data"]["token"].as_str().and_then(|t| STANDARD.decode(t).ok())?;
        if secret.keys.deleting || held != token.as_bytes() {
            return None;
        }
        let uid = claim("service-account.uid");
        let account = self.alive("serviceaccounts", namespace, name, uid, now)?;
        // It names no audience and is meant for the API alone.
        let audiences: Vec<String> = audiences.iter().filter(|a| self.audiences.contains(a)).cloned().collect();
        let groups = vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
        let user = User {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            uid: uid.into(),
            groups,
            extra: Vec::new(),
        };
        (!audiences.is_empty()).then_some((secret, account, (user, audiences)))
    }

    /// A signed token without an end, for the secret that will hold it.
    ///
    /// # Errors
    /// When the key refuses.
    pub fn issue_for_secret(&self, account: &ObjectRef, secret: &str) -> Result<String, String> {
        let (namespace, name) = (&*account.key.namespace, &*account.key.name);
        self.keys.sign(&json!({
            "iss": SECRET_ISSUER,
            "kubernetes.io/serviceaccount/namespace": namespace,
            "kubernetes.io/serviceaccount/secret.name": secret,
            "kubernetes.io/serviceaccount/service-account.name": name,
            "kubernetes.io/serviceaccount/service-account.uid": &*account.keys.uid,
            "sub": format!("system:serviceaccount:{namespace}:{name}"),
        }))
    }

    /// # Errors
    /// What became of an account that is not there any more.
    fn account_is_alive(&self, namespace: &str, name: &str, uid: &str, now: i64) -> Result<(), String> {
        if self.alive("serviceaccounts", namespace, name, uid, now).is_some() {
            return Ok(());
        }
        Err(match self.store.get(&ResourceId::from("serviceaccounts"), namespace, name) {
            None => format!("serviceaccounts {} not found", quote(name)),
            Some(found) if *found.keys.uid != *uid => {
                format!("service account UID ({}) does not match claim ({uid})", found.keys.uid)
            }
            Some(_) => format!("service account {namespace}/{name} has been deleted"),
        })
    }

    /// # Errors
    /// What became of an object that a token is bound to, by its claim and plural, and by its namespace and name.
    fn bound_is_alive(
        &self,
        (claim, plural): (&str, &str),
        (namespace, name): (&str, &str),
        uid: &str,
        now: i64,
    ) -> Result<(), String> {
        if self.alive(plural, namespace, name, uid, now).is_some() {
            return Ok(());
        }
        Err(match self.store.get(&ResourceId::from(plural), namespace, name) {
            Some(found) if *found.keys.uid != *uid => {
                format!("{claim} UID ({}) does not match service account {claim} ref claim ({uid})", found.keys.uid)
            }
            _ => INVALIDATED.to_owned(),
        })
    }

    /// The object, unless it is another one of that name or was marked for deletion a while ago.
    fn alive(&self, plural: &str, namespace: &str, name: &str, uid: &str, now: i64) -> Option<ObjectRef> {
        let found = self.store.get(&ResourceId::from(plural), namespace, name)?;
        if *found.keys.uid != *uid {
            return None;
        }
        if found.keys.deleting {
            let value = found.value();
            let at = value["metadata"]["deletionTimestamp"].as_str()?;
            let at = time::OffsetDateTime::parse(at, &time::format_description::well_known::Rfc3339).ok()?;
            if now > at.unix_timestamp() + LEEWAY {
                return None;
            }
        }
        Some(found)
    }

    /// A signed token for an account. `bound` is the claim's key (`pod`, ...) with the object's name and uid; `warn`
    /// the time after which use of the token should be noticed.
    ///
    /// # Errors
    /// When the key refuses.
    pub fn issue(
        &self,
        account: &ObjectRef,
        audiences: &[String],
        bound: &[(&str, Value)],
        (now, expires): (i64, i64),
        warn: Option<i64>,
    ) -> Result<String, String> {
        let (namespace, name) = (&*account.key.namespace, &*account.key.name);
        let mut private = json!({
            "namespace": namespace,
            "serviceaccount": {"name": name, "uid": &*account.keys.uid},
        });
        for (key, value) in bound {
            private[*key] = value.clone();
        }
        if let Some(warn) = warn {
            private["warnafter"] = warn.into();
        }
        self.keys.sign(&json!({
            "aud": audiences,
            "exp": expires,
            "iat": now,
            "nbf": now,
            "iss": self.issuers.first(),
            "jti": crate::random::uuid(),
            "kubernetes.io": private,
            "sub": format!("system:serviceaccount:{namespace}:{name}"),
        }))
    }
}

/// What is wrong with the times that a token names, in seconds since 1970, which may have a fraction. A time that it does not
/// name is no limit.
fn untimely(claims: &Value, now: i64) -> Option<&'static str> {
    for claim in ["nbf", "exp", "iat"] {
        if !matches!(claims[claim], Value::Null | Value::Number(_)) {
            return Some("service account token names a time that is none");
        }
    }
    // Of what is no whole number the fraction is dropped, as there.
    let at = |claim: &str| claims[claim].as_i64().or_else(|| claims[claim].as_f64().map(|at| at as i64));
    if at("nbf").is_some_and(|starts| now + LEEWAY < starts) {
        return Some("service account token is not valid yet");
    }
    if at("exp").is_some_and(|expires| now - LEEWAY > expires) {
        return Some("service account token has expired");
    }
    at("iat").is_some_and(|issued| now + LEEWAY < issued).then_some("service account token is issued in the future")
}

/// The user of a bootstrap token, `id.secret`, from its secret in kube-system.
pub fn bootstrap_user(store: &Store, text: &str, now: i64) -> Option<User> {
    let (id, secret) = bootstrap_token::split(text)?;
    let found = store.get(&"secrets".into(), bootstrap_token::NAMESPACE, &bootstrap_token::name_of(id))?;
    let token = BootstrapToken::of(&found.value()).filter(|_| !found.keys.deleting)?;
    // Digests of equal length compare in a time that says nothing about where they differ.
    let same = |a: &str, b: &str| {
        let hash = |t: &str| ring::digest::digest(&ring::digest::SHA256, t.as_bytes());
        hash(a).as_ref() == hash(b).as_ref()
    };
    if !same(&token.secret, secret) || !token.is_for("authentication") || token.left(now) == Some(0) {
        return None;
    }
    let groups = match token.user_groups() {
        Ok(groups) => groups,
        Err(bad) => {
            tracing::debug!(id, bad, "a bootstrap token names a group that it may not name");
            return None;
        }
    };
    Some(User { name: format!("system:bootstrap:{id}"), groups, ..User::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_may_differ_by_a_minute() {
        const NOW: i64 = 1_700_000_000;
        let wrong = |claim: &str, after: i64| untimely(&json!({claim: NOW + after}), NOW);
        let expired = Some("service account token has expired");
        assert_eq!((wrong("exp", 0), wrong("exp", -60), wrong("exp", -61)), (None, None, expired));
        let early = Some("service account token is not valid yet");
        assert_eq!((wrong("nbf", 60), wrong("nbf", 61)), (None, early));
        let issued = Some("service account token is issued in the future");
        assert_eq!((wrong("iat", 60), wrong("iat", 61)), (None, issued));
        assert_eq!(
            untimely(&json!({"exp": NOW - 100, "nbf": NOW + 100}), NOW),
            early,
            "that it is too early comes first"
        );
        assert_eq!(untimely(&json!({}), NOW), None);
        assert_eq!(untimely(&json!({"exp": 1.6e9}), NOW), expired, "some write them so");
        let none = Some("service account token names a time that is none");
        assert_eq!(untimely(&json!({"exp": "1700000000"}), NOW), none);
    }
}
