//! Users named by a proxy in front of the server, in headers that only it may send.
//!
//! The proxy shows a certificate of an authority of its own. Such headers are taken off every request whose user is known,
//! whoever sent them, so that no server that a request is passed on to believes them: those of the flags and those of the
//! standard, which such a server may know alone. As upstream's `WithAuthentication`.

use http::{HeaderMap, HeaderName, HeaderValue};
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::certificate::ClientAuthorities;
use crate::request::{User, percent};

/// Which proxies are believed, and what they say where.
#[derive(Debug)]
pub struct FrontProxy {
    pub authorities: ClientAuthorities,
    /// Common names of its certificate; any when empty.
    pub allowed_names: Vec<String>,
    pub headers: ProxyHeaders,
}

/// The headers that name a user.
#[derive(Debug, Clone, Default)]
pub struct ProxyHeaders {
    pub user: Vec<HeaderName>,
    pub uid: Vec<HeaderName>,
    pub group: Vec<HeaderName>,
    /// In lower case, as header names are compared.
    pub extra_prefixes: Vec<String>,
}

impl ProxyHeaders {
    /// Reads the flags' lists.
    ///
    /// # Errors
    /// Text that cannot be a header's name.
    pub fn new(user: &[String], uid: &[String], group: &[String], extra: &[String]) -> Result<Self, String> {
        let names = |list: &[String]| -> Result<Vec<HeaderName>, String> {
            let name = |text: &String| text.trim().parse().map_err(|_| format!("empty or malformed header {text:?}"));
            list.iter().map(name).collect()
        };
        // An empty one would make every header a fact about the user.
        let prefixes = names(extra)?.into_iter().map(|prefix| prefix.as_str().to_owned());
        let extra_prefixes = prefixes.collect();
        Ok(ProxyHeaders { user: names(user)?, uid: names(uid)?, group: names(group)?, extra_prefixes })
    }

    /// The user that the headers name; None when they name nobody.
    pub fn user(&self, headers: &HeaderMap) -> Option<User> {
        // Names need not be ASCII.
        let shown = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let text = |names: &[HeaderName]| {
            let mut values = names.iter().filter_map(|n| headers.get(n)).map(shown);
            values.find(|v| !v.is_empty()).unwrap_or_default()
        };
        let name = text(&self.user);
        if name.is_empty() {
            return None;
        }
        let uid = text(&self.uid);
        let all = |name: &HeaderName| -> Vec<String> { headers.get_all(name).iter().map(shown).collect() };
        let groups = self.group.iter().flat_map(all).filter(|v| !v.is_empty()).collect();
        let mut extra: Vec<(String, Vec<String>)> = Vec::new();
        for prefix in &self.extra_prefixes {
            for key in headers.keys() {
                let Some(rest) = key.as_str().strip_prefix(prefix.as_str()) else { continue };
                let field = percent(rest);
                match extra.iter_mut().find(|(k, _)| *k == field) {
                    Some((_, values)) => values.extend(all(key)),
                    None => extra.push((field, all(key))),
                }
            }
        }
        extra.sort();
        Some(User { name, uid, groups, extra })
    }

    /// Takes off what names a user, here or to another server.
    pub fn take_off(&self, headers: &mut HeaderMap) {
        let named: Vec<HeaderName> =
            headers.keys().filter(|key| self.is_ours(key) || is_standard(key)).cloned().collect();
        for key in named {
            headers.remove(key);
        }
    }

    fn is_ours(&self, key: &HeaderName) -> bool {
        self.user.contains(key)
            || self.uid.contains(key)
            || self.group.contains(key)
            || self.extra_prefixes.iter().any(|p| key.as_str().starts_with(p.as_str()))
    }
}

/// Whether a header names a user where nobody says otherwise.
fn is_standard(key: &HeaderName) -> bool {
    let key = key.as_str();
    matches!(key, "x-remote-user" | "x-remote-uid" | "x-remote-group") || key.starts_with("x-remote-extra-")
}

impl FrontProxy {
    /// Whether a connection's certificates are those of a proxy that is believed.
    pub fn recognises(&self, chain: &[CertificateDer<'static>], now: UnixTime) -> bool {
        let Some((own, others)) = chain.split_first() else { return false };
        if !self.authorities.vouch_for(own, others, now) {
            return false;
        }
        let Ok((_, parsed)) = X509Certificate::from_der(own) else { return false };
        let name = parsed.subject().iter_common_name().last().and_then(|n| n.as_str().ok()).unwrap_or_default();
        self.allowed_names.is_empty() || self.allowed_names.iter().any(|n| n == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|t| (*t).into()).collect()
    }

    #[test]
    fn headers_name_a_user_until_they_are_taken_off() {
        let user = list(&["X-Remote-User"]);
        let wanted =
            ProxyHeaders::new(&user, &list(&["X-Remote-Uid"]), &list(&["X-Remote-Group"]), &list(&["X-Remote-Extra-"]));
        let wanted = wanted.expect("header names");
        let mut headers = HeaderMap::new();
        for (key, value) in [
            ("x-remote-user", "jane"),
            ("x-remote-uid", "7"),
            ("x-remote-group", "a"),
            ("x-remote-group", ""),
            ("x-remote-group", "b"),
            ("x-remote-extra-acme.com%2fproject", "p"),
            ("accept", "*/*"),
        ] {
            headers.append(key, value.parse().expect("a value"));
        }
        let found = wanted.user(&headers).expect("a user");
        assert_eq!((found.name.as_str(), found.uid.as_str()), ("jane", "7"));
        assert_eq!(found.groups, ["a", "b"]);
        assert_eq!(found.extra, [("acme.com/project".to_owned(), vec!["p".to_owned()])]);
        wanted.take_off(&mut headers);
        assert_eq!(headers.len(), 1);
        assert!(wanted.user(&headers).is_none());
        assert!(ProxyHeaders::new(&list(&["a b"]), &[], &[], &[]).is_err());
        assert!(ProxyHeaders::new(&[], &[], &[], &list(&[""])).is_err(), "every header begins with nothing");
    }

    /// Such a user was nobody, or lost groups and facts.
    #[test]
    fn names_need_not_be_ascii() {
        let wanted =
            ProxyHeaders::new(&list(&["X-User"]), &list(&["X-Uid"]), &list(&["X-Group"]), &list(&["X-Extra-"]));
        let mut headers = HeaderMap::new();
        for (key, value) in [("x-user", "Zoë"), ("x-uid", "ü"), ("x-group", "Ärzte"), ("x-extra-a", "ö")] {
            headers.append(key, HeaderValue::from_bytes(value.as_bytes()).expect("a value"));
        }
        headers.append("x-group", HeaderValue::from_bytes(b"\xff").expect("a value"));
        let user = wanted.expect("header names").user(&headers).expect("a user");
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("Zoë", "ü"));
        assert_eq!(user.groups, ["Ärzte", "\u{fffd}"]);
        assert_eq!(user.extra, [("a".to_owned(), vec!["ö".to_owned()])]);
    }
}
