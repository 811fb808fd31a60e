//! Image names: the grammar of the distribution project, with its error texts (users see them in events).

/// The name with `:latest` where neither tag nor digest is given; otherwise as written.
///
/// # Errors
/// The text of Go's `reference.ParseNormalizedNamed`, as the kubelet reports it.
pub fn with_default_tag(image: &str) -> Result<String, String> {
    let parsed = parse(image).map_err(|e| format!("couldn't parse image name {image:?}: {e}"))?;
    if parsed.tag.is_none() && parsed.digest.is_none() { Ok(format!("{image}:latest")) } else { Ok(image.to_owned()) }
}

/// A normalised name: `docker.io/library/` filled in.
#[derive(Debug, PartialEq, Eq)]
pub struct Reference<'a> {
    pub domain: &'a str,
    pub path: std::borrow::Cow<'a, str>,
    pub tag: Option<&'a str>,
    pub digest: Option<&'a str>,
}

impl Reference<'_> {
    /// Without tag and digest.
    pub fn name(&self) -> String {
        format!("{}/{}", self.domain, self.path)
    }
}

const INVALID: &str = "invalid reference format";
const DEFAULT_DOMAIN: &str = "docker.io";
const MAX_NAME_BYTES: usize = 255;

pub fn parse(image: &str) -> Result<Reference<'_>, String> {
    if image.len() == 64 && image.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return Err(format!("invalid repository name ({image}), cannot specify 64-byte hexadecimal strings"));
    }
    let (domain, remainder) = split_domain(image);
    let remote = remainder.split(':').next().unwrap_or(remainder);
    if remote.to_lowercase() != remote {
        return Err(format!("{INVALID}: repository name ({remote}) must be lowercase"));
    }
    let (name_and_tag, digest) = match remainder.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (remainder, None),
    };
    let (path, tag) = match name_and_tag.split_once(':') {
        Some((path, tag)) => (path, Some(tag)),
        None => (name_and_tag, None),
    };
    let fits = valid_domain(domain)
        && !path.is_empty()
        && path.split('/').all(valid_component)
        && tag.is_none_or(valid_tag)
        && digest.is_none_or(valid_digest);
    if !fits {
        return Err(INVALID.to_owned());
    }
    let path = if domain == DEFAULT_DOMAIN && !path.contains('/') {
        std::borrow::Cow::Owned(format!("library/{path}"))
    } else {
        std::borrow::Cow::Borrowed(path)
    };
    if path.len() > MAX_NAME_BYTES {
        return Err(format!("{INVALID}: repository name must not be more than {MAX_NAME_BYTES} characters"));
    }
    if let Some(why) = digest.and_then(digest_complaint) {
        return Err(why.to_owned());
    }
    Ok(Reference { domain, path, tag, digest })
}

fn split_domain(image: &str) -> (&str, &str) {
    let (domain, remainder) = match image.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':']) || first == "localhost" || first.chars().any(char::is_uppercase) =>
        {
            (first, rest)
        }
        _ => (DEFAULT_DOMAIN, image),
    };
    (if domain == "index.docker.io" { DEFAULT_DOMAIN } else { domain }, remainder)
}

fn valid_domain(domain: &str) -> bool {
    let (host, port) = match domain.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (domain, None),
    };
    let host_fits = match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        Some(v6) => !v6.is_empty() && v6.bytes().all(|b| b.is_ascii_hexdigit() || b == b':'),
        None => host.split('.').all(|label| {
            let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
            edge(label.bytes().next())
                && edge(label.bytes().last())
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        }),
    };
    host_fits && port.is_none_or(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()))
}

/// `[a-z0-9]+` runs joined by `.`, `_`, `__` or any number of `-`.
fn valid_component(component: &str) -> bool {
    let bytes = component.as_bytes();
    let word = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    if !bytes.first().is_some_and(word) || !bytes.last().is_some_and(word) {
        return false;
    }
    let mut rest = bytes;
    while let Some(end) = rest.iter().position(|b| !word(b)) {
        let from = &rest[end..];
        let length = from.iter().position(word).unwrap_or(from.len());
        let separator = &from[..length];
        if !(matches!(separator, b"." | b"_" | b"__") || separator.iter().all(|&b| b == b'-')) {
            return false;
        }
        rest = &from[length..];
    }
    true
}

fn valid_tag(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= 128 && tag.bytes().next().is_some_and(word) && tag.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

/// What the digest project says of one that has the form of the grammar, which is wider than what can be checked.
fn digest_complaint(digest: &str) -> Option<&'static str> {
    const FORMAT: &str = "invalid checksum digest format";
    let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let (algorithm, hex) = digest.split_once(':')?;
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        other if other.split(['-', '_', '+', '.']).all(|part| part.bytes().all(lower)) => {
            return Some("unsupported digest algorithm");
        }
        _ => return Some(FORMAT),
    };
    match hex.len() == length {
        true => hex.bytes().any(|b| b.is_ascii_uppercase()).then_some(FORMAT),
        false => Some("invalid checksum digest length"),
    }
}

fn valid_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else { return false };
    let parts_fit = algorithm.split(['-', '_', '+', '.']).all(|p| {
        p.bytes().next().is_some_and(|b| b.is_ascii_alphabetic()) && p.bytes().all(|b| b.is_ascii_alphanumeric())
    });
    parts_fit && hex.len() >= 32 && hex.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bare_names_get_latest() {
        assert_eq!(with_default_tag("busybox").unwrap(), "busybox:latest");
        assert_eq!(with_default_tag("a.b/c/d:1").unwrap(), "a.b/c/d:1");
        assert_eq!(with_default_tag("localhost:5000/x").unwrap(), "localhost:5000/x:latest");
        let digest = format!("x@sha256:{}", "a".repeat(64));
        assert_eq!(with_default_tag(&digest).unwrap(), digest);
    }

    #[test]
    fn errors_are_those_of_go() {
        let why = "couldn't parse image name \"UPPER/Case:1\": invalid reference format: repository name (Case) must be lowercase";
        assert_eq!(with_default_tag("UPPER/Case:1").unwrap_err(), why);
        assert!(with_default_tag("a b").unwrap_err().ends_with(": invalid reference format"));
        assert!(with_default_tag("a//b").is_err());
        assert!(with_default_tag("x:").is_err());
        assert!(with_default_tag("x___y").is_err());
        assert!(with_default_tag("x__y---z").is_ok());
    }

    /// They were asked of the runtime, which has other words.
    #[test]
    fn digests_that_nobody_can_check_are_told() {
        let told = |digest: &str| {
            let name = format!("localhost/x@{digest}");
            let why = with_default_tag(&name).unwrap_err();
            why.strip_prefix(&format!("couldn't parse image name {name:?}: ")).unwrap().to_owned()
        };
        let hex = "a".repeat(64);
        assert_eq!(told(&format!("sha256:{}", "a".repeat(40))), "invalid checksum digest length");
        assert_eq!(told(&format!("sha512:{hex}")), "invalid checksum digest length");
        assert_eq!(told(&format!("sha256:{}", "A".repeat(64))), "invalid checksum digest format");
        assert_eq!(told(&format!("md5:{}", "a".repeat(32))), "unsupported digest algorithm");
        assert_eq!(told(&format!("sha256+b64:{hex}")), "unsupported digest algorithm");
        // What the grammar does not know is told as before.
        assert_eq!(told("sha256:abc"), INVALID);
        assert!(parse(&format!("x@sha384:{}", "0".repeat(96))).is_ok());
    }

    #[test]
    fn short_names_are_normalised() {
        let r = parse("busybox").unwrap();
        assert_eq!((r.domain, &*r.path), ("docker.io", "library/busybox"));
        let r = parse("a/b").unwrap();
        assert_eq!((r.domain, &*r.path), ("docker.io", "a/b"));
        assert_eq!(parse("quay.io/a/b:1").unwrap().domain, "quay.io");
    }
}
