//! Registry credentials: from image pull secrets, and where any of them come from.
//!
//! Both forms of Docker's configuration are read (`.dockerconfigjson`, `.dockercfg`). A key names a registry, with an
//! optional scheme, port and path prefix, and may hold `*` within a label of the host; the longest match comes first.
//!
//! Followed: `pkg/credentialprovider` (`keyring.go`, `config.go`).

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use proto::api::core::v1::Secret;
use proto::cri::AuthConfig;
use serde_json::Value;

use super::reference;

/// Base64 as Go reads it: with padding or without, and whatever the last letter holds beyond the last byte.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Who has a credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Secret {
        uid: String,
        namespace: String,
        name: String,
    },
    ServiceAccount {
        uid: String,
        namespace: String,
        name: String,
    },
    /// Every pod of the node.
    Node,
}

/// What a registry is shown, and whose it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Credential {
    pub auth: AuthConfig,
    pub source: Source,
}

impl Credential {
    /// Tells credentials apart in pull records without giving them away: SHA-256 of the kubelet's JSON of them.
    pub fn hash(&self) -> String {
        let auth = &self.auth;
        let fields = [
            ("username", &auth.username),
            ("password", &auth.password),
            ("auth", &auth.auth),
            ("serverAddress", &auth.server_address),
            ("identityToken", &auth.identity_token),
            ("registryToken", &auth.registry_token),
        ];
        let pairs = fields.iter().filter(|(_, value)| !value.is_empty());
        let pairs: Vec<String> =
            pairs.map(|(key, value)| format!("\"{key}\":{}", Value::from(value.as_str()))).collect();
        sha256(format!("{{{}}}", pairs.join(",")).as_bytes())
    }
}

/// In lower-case hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut hex = String::with_capacity(64);
    for byte in ring::digest::digest(&ring::digest::SHA256, bytes).as_ref() {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

/// All credentials in the secrets that fit the image, most specific first.
pub fn for_image(image: &str, secrets: &[std::sync::Arc<Secret>]) -> Vec<Credential> {
    let read: Vec<_> = secrets.iter().map(|secret| (source(secret), entries(secret))).collect();
    let all = read.iter().flat_map(|(source, entries)| {
        entries.iter().map(move |(registry, entry)| (registry.as_str(), entry, source.clone()))
    });
    fitting(image, all)
}

/// What of the entries of configurations fits the image, most specific first: keys of registries, what there is for them,
/// and whose it is.
pub(super) fn fitting<'a>(image: &str, entries: impl Iterator<Item = (&'a str, &'a Value, Source)>) -> Vec<Credential> {
    let Ok(name) = reference::parse(image) else { return Vec::new() };
    let full = format!("{}/{}", name.domain, name.path);
    let mut found: Vec<(usize, Credential)> = Vec::new();
    for (registry, entry, source) in entries {
        let Some(specific) = fits(registry, &full) else { continue };
        let Some(auth) = auth_config(entry) else { continue };
        if !found.iter().any(|(_, known)| known.auth == auth) {
            found.push((specific, Credential { auth, source }));
        }
    }
    found.sort_by_key(|(specific, _)| std::cmp::Reverse(*specific));
    found.into_iter().map(|(_, credential)| credential).collect()
}

fn source(secret: &Secret) -> Source {
    let meta = secret.metadata.clone().unwrap_or_default();
    Source::Secret { uid: meta.uid, namespace: meta.namespace, name: meta.name }
}

fn entries(secret: &Secret) -> Vec<(String, Value)> {
    let read = |key: &str| secret.data.get(key).and_then(|bytes| serde_json::from_slice::<Value>(bytes).ok());
    let map = match secret.r#type.as_str() {
        "kubernetes.io/dockerconfigjson" => {
            read(".dockerconfigjson").and_then(|mut v| v.get_mut("auths").map(Value::take))
        }
        "kubernetes.io/dockercfg" => read(".dockercfg"),
        _ => None,
    };
    match map {
        Some(Value::Object(map)) => map.into_iter().map(|(name, value)| (name.into(), value)).collect(),
        _ => Vec::new(),
    }
}

/// How specific a key of a configuration is that fits an image; `None` for one that does not.
pub(super) fn fits(registry: &str, image: &str) -> Option<usize> {
    let key = registry.strip_prefix("https://").or_else(|| registry.strip_prefix("http://")).unwrap_or(registry);
    let (host, path) = key.split_once('/').unwrap_or((key, ""));
    // The version of the registry's API is no part of the images' names.
    let path = path.strip_prefix("v1/").or_else(|| path.strip_prefix("v2/")).unwrap_or(path);
    // What `docker login` writes for its own hub.
    let host = if host == "index.docker.io" { "docker.io" } else { host };
    part_fits((host, path), image)
}

/// How specific a pattern is (`host[:port][/path]`, `*` in labels of the host) that fits an image; `None` for one that
/// does not.
pub(super) fn pattern_fits(pattern: &str, image: &str) -> Option<usize> {
    part_fits(pattern.split_once('/').unwrap_or((pattern, "")), image)
}

fn part_fits((host, path): (&str, &str), image: &str) -> Option<usize> {
    let (image_host, image_path) = image.split_once('/')?;
    (host_fits(host, image_host) && image_path.starts_with(path)).then_some(host.len() + path.len())
}

fn host_fits(pattern: &str, host: &str) -> bool {
    let (pattern, pattern_port) = pattern.split_once(':').unwrap_or((pattern, ""));
    let (host, port) = host.split_once(':').unwrap_or((host, ""));
    let (wanted, labels): (Vec<_>, Vec<_>) = (pattern.split('.').collect(), host.split('.').collect());
    pattern_port == port && wanted.len() == labels.len() && wanted.iter().zip(&labels).all(|(p, l)| label_fits(p, l))
}

fn label_fits(pattern: &str, label: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == label,
        Some((head, tail)) => label
            .strip_prefix(head)
            .is_some_and(|rest| (0..=rest.len()).any(|i| rest.is_char_boundary(i) && label_fits(tail, &rest[i..]))),
    }
}

pub(super) fn auth_config(entry: &Value) -> Option<AuthConfig> {
    let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
    let mut auth = AuthConfig {
        username: text("username"),
        password: text("password"),
        identity_token: text("identitytoken"),
        registry_token: text("registrytoken"),
        ..Default::default()
    };
    let joined = text("auth");
    if !joined.is_empty() {
        let decoded = LENIENT.decode(joined.trim().replace(['\r', '\n'], "")).ok()?;
        let decoded = String::from_utf8(decoded).ok()?;
        let (user, password) = decoded.split_once(':')?;
        auth.username = user.to_owned();
        auth.password = password.trim_end_matches('\0').to_owned();
    }
    Some(auth)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(auths: &str) -> std::sync::Arc<Secret> {
        let data = [(".dockerconfigjson".to_owned(), bytes::Bytes::from(format!("{{\"auths\":{auths}}}")))];
        let data = data.into_iter().collect();
        std::sync::Arc::new(Secret { r#type: "kubernetes.io/dockerconfigjson".into(), data, ..Default::default() })
    }

    #[test]
    fn the_most_specific_registry_comes_first() {
        let s = secret(
            r#"{"https://a.b:5000":{"username":"u","password":"p"},"a.b:5000/team":{"auth":"dDpx"},"other":{"auth":"eDp5"}}"#,
        );
        let found = for_image("a.b:5000/team/x:1", &[s]);
        let users: Vec<_> = found.iter().map(|c| c.auth.username.as_str()).collect();
        assert_eq!(users, ["t", "u"]);
    }

    #[test]
    fn hub_and_wildcards_fit() {
        assert!(fits("https://index.docker.io/v1/", "docker.io/library/busybox").is_some());
        assert!(fits("*.gcr.io", "eu.gcr.io/x").is_some());
        assert!(fits("*.gcr.io", "gcr.io/x").is_none());
    }

    /// With a path behind it the version of the API was taken for a part of the images' names.
    #[test]
    fn the_version_of_the_registrys_api_is_no_part_of_an_images_name() {
        let fit = |key: &str| fits(key, "r.example/team/app");
        for key in ["https://r.example/v2/team", "r.example/v1/team", "r.example/team", "r.example/team/"] {
            assert!(fit(key).is_some_and(|specific| specific > fit("https://r.example/v1/").unwrap()), "{key}");
        }
        for key in ["r.example/v2", "r.example/team/v2/", "r.example/tea/", "r.example/v2/v2/team"] {
            assert!(fit(key).is_none(), "{key}");
        }
        assert!(fits("r.example/v2/v1", "r.example/v1/app").is_some(), "one is taken off");
        assert!(pattern_fits("r.example/v1/team", "r.example/v1/team/app").is_some(), "patterns are literal");
        assert!(pattern_fits("r.example/v1/team", "r.example/team/app").is_none());
    }

    /// A secret was left out without a word where whoever wrote it left out the padding.
    #[test]
    fn padding_and_ends_of_lines_do_not_matter() {
        // The last one has bits beyond its last byte.
        for auth in ["dXNlcjpwYXNz", "dTpw", "dTpwcA==", "dTpwcA", "dTpw\\r\\ncA==\\n", "dTpwcB"] {
            let found = for_image("r.example/app", &[secret(&format!(r#"{{"r.example":{{"auth":"{auth}"}}}}"#))]);
            let [one] = found.as_slice() else { panic!("{auth}: {found:?}") };
            assert!(one.auth.username.starts_with('u') && one.auth.password.starts_with('p'), "{auth}: {one:?}");
        }
        assert!(for_image("r.example/app", &[secret(r#"{"r.example":{"auth":"d=Tp"}}"#)]).is_empty());
    }
}
