//! URLs as Go's `net/url` reads them, with its complaints: what webhooks, formats and expressions take for a URL.

use crate::status::quote;

/// The parts of a URL.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Url {
    /// In small letters.
    pub scheme: String,
    /// Name and password, if either is said.
    pub user: Option<String>,
    /// Host, with the port if one is said.
    pub host: String,
    /// The path as it stands in a request.
    pub path: String,
    pub query: String,
    pub fragment: String,
}

/// Where in a URL something stands, which decides what stands there as it is.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Host,
    Zone,
    Path,
    User,
    Fragment,
    Query,
}

impl Url {
    /// What a request line may hold: an absolute URL or path, without a fragment.
    ///
    /// # Errors
    /// `parse "...": ` and why it is none.
    pub fn of_request(text: &str) -> Result<Self, String> {
        read(text, true).map_err(|why| format!("parse {}: {why}", quote(text)))
    }

    /// Any URL.
    ///
    /// # Errors
    /// As [`Url::of_request`].
    pub fn parse(text: &str) -> Result<Self, String> {
        let (url, fragment) = text.split_once('#').unwrap_or((text, ""));
        let told = |text: &str, why: String| format!("parse {}: {why}", quote(text));
        let parsed = read(url, false).map_err(|why| told(url, why))?;
        let fragment = unescape(fragment, Part::Fragment).map_err(|why| told(text, why))?;
        Ok(Url { fragment: String::from_utf8_lossy(&fragment).into_owned(), ..parsed })
    }

    /// The host without its port, and without the brackets of an address.
    pub fn hostname(&self) -> &str {
        let host = &self.host[..self.port_at()];
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    /// The port; empty where none is said.
    pub fn port(&self) -> &str {
        self.host[self.port_at()..].strip_prefix(':').unwrap_or_default()
    }

    fn port_at(&self) -> usize {
        self.host.rfind(':').filter(|at| is_port(&self.host[*at..])).unwrap_or(self.host.len())
    }
}

/// What is wrong with a text as the URL of a webhook: of each fault the part that is shown, and why.
///
/// # Errors
/// Why it is no URL at all.
pub fn webhook_faults(text: &str) -> Result<Vec<(String, String)>, String> {
    const FORM: &str = "; desired format: https://host[/path]";
    let url = Url::parse(text).map_err(|why| format!("url must be a valid URL: {why}{FORM}"))?;
    let mut out = Vec::new();
    if url.scheme != "https" {
        out.push((url.scheme, format!("'https' is the only allowed URL scheme{FORM}")));
    }
    if url.host.is_empty() {
        out.push((url.host, format!("host must be specified{FORM}")));
    }
    out.extend(url.user.map(|user| (user, "user information is not permitted in the URL".into())));
    for (part, name) in [(url.fragment, "fragments"), (url.query, "query parameters")] {
        if !part.is_empty() {
            out.push((part, format!("{name} are not permitted in the URL")));
        }
    }
    Ok(out)
}

/// A path without its escapes; what is no text is replaced. None where an escape is none.
pub fn decoded_path(path: &str) -> Option<String> {
    let bytes = unescape(path, Part::Path).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The keys and values of a query, in their order; what cannot be decoded is left out.
pub fn pairs(query: &str) -> impl Iterator<Item = (String, String)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';'));
    pairs.filter_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let text = |part: &str| Some(String::from_utf8_lossy(&unescape(part, Part::Query).ok()?).into_owned());
        Some((text(key)?, text(value)?))
    })
}

fn read(text: &str, of_request: bool) -> Result<Url, String> {
    if text.bytes().any(|b| b < b' ' || b == 0x7f) {
        return Err("net/url: invalid control character in URL".into());
    }
    if text.is_empty() && of_request {
        return Err("empty url".into());
    }
    let mut url = Url::default();
    if text == "*" {
        url.path = text.into();
        return Ok(url);
    }
    let (scheme, rest) = scheme(text)?;
    url.scheme = scheme.to_ascii_lowercase();
    let (mut rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    url.query = query.into();
    if !rest.starts_with('/') {
        // What has a scheme and no slash means what it means to that scheme.
        if !scheme.is_empty() {
            return Ok(url);
        }
        if of_request {
            return Err("invalid URI for request".into());
        }
        if rest.split('/').next().is_some_and(|segment| segment.contains(':')) {
            return Err("first path segment in URL cannot contain colon".into());
        }
    }
    let has_host = !scheme.is_empty() || !of_request && !rest.starts_with("///");
    if let Some(authority) = rest.strip_prefix("//").filter(|_| has_host) {
        let (authority, path) = authority.split_at(authority.find('/').unwrap_or(authority.len()));
        let (user, host_part) = authority.rsplit_once('@').map_or((None, authority), |(u, h)| (Some(u), h));
        url.host = host(host_part)?;
        url.user = user.map(user_of).transpose()?;
        rest = path;
    }
    let path = unescape(rest, Part::Path)?;
    url.path = if is_escaped(rest) { rest.to_owned() } else { escape(&path, Part::Path) };
    Ok(url)
}

fn scheme(text: &str) -> Result<(&str, &str), String> {
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if at > 0 => {}
            b':' if at == 0 => return Err("missing protocol scheme".into()),
            b':' => return Ok((&text[..at], &text[at + 1..])),
            _ => break,
        }
    }
    Ok(("", text))
}

/// Name and password, escaped where they have to be.
fn user_of(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._~:!$&'()*+,;=%@".contains(c);
    if !text.chars().all(fits) {
        return Err("net/url: invalid userinfo".into());
    }
    let parts = text.splitn(2, ':').map(|part| Ok(escape(&unescape(part, Part::User)?, Part::User)));
    Ok(parts.collect::<Result<Vec<_>, String>>()?.join(":"))
}

fn host(text: &str) -> Result<String, String> {
    let wrong_port = |port: &str| Err(format!("invalid port {} after host", quote(port)));
    let lossy = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    if text.starts_with('[') {
        let end = text.rfind(']').ok_or("missing ']' in host")?;
        if !is_port(&text[end + 1..]) {
            return wrong_port(&text[end + 1..]);
        }
        if let Some(zone) = text[..end].find("%25") {
            let mut out = unescape(&text[..zone], Part::Host)?;
            out.extend(unescape(&text[zone..end], Part::Zone)?);
            out.extend(unescape(&text[end..], Part::Host)?);
            return Ok(lossy(out));
        }
    } else if let Some(colon) = text.rfind(':').filter(|colon| !is_port(&text[*colon..])) {
        return wrong_port(&text[colon..]);
    }
    unescape(text, Part::Host).map(lossy)
}

/// Nothing, or a colon and digits.
fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()))
}

/// Whether a byte has to be escaped in some part.
fn is_special(byte: u8, part: Part) -> bool {
    if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
        return false;
    }
    match part {
        Part::Host | Part::Zone => !b"!$&'()*+,;=:[]<>\"".contains(&byte),
        Part::Path => !b"$&+,/:;=@".contains(&byte),
        Part::User => !b"$&+,;=".contains(&byte),
        Part::Fragment => !b"$&+,/:;=?@!()*".contains(&byte),
        Part::Query => true,
    }
}

fn unescape(text: &str, part: Part) -> Result<Vec<u8>, String> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        if *byte != b'%' {
            let in_host = matches!(part, Part::Host | Part::Zone);
            if in_host && byte.is_ascii() && is_special(*byte, part) {
                return Err(format!("invalid character {} in host name", quote(&char::from(*byte).to_string())));
            }
            out.push(if *byte == b'+' && part == Part::Query { b' ' } else { *byte });
            at += 1;
            continue;
        }
        let end = (at + 3).min(bytes.len());
        let wrong = || format!("invalid URL escape {}", quote(&String::from_utf8_lossy(&bytes[at..end])));
        let digit =
            |byte: Option<&u8>| byte.and_then(|b| char::from(*b).to_digit(16)).and_then(|d| u8::try_from(d).ok());
        let (Some(high), Some(low)) = (digit(bytes.get(at + 1)), digit(bytes.get(at + 2))) else { return Err(wrong()) };
        let value = high << 4 | low;
        let is_percent = value == b'%';
        // In a host only what is no ASCII is escaped, and the sign before a zone.
        if part == Part::Host && high < 8 && !is_percent {
            return Err(wrong());
        }
        if part == Part::Zone && !is_percent && value != b' ' && is_special(value, Part::Host) {
            return Err(wrong());
        }
        out.push(value);
        at += 3;
    }
    Ok(out)
}

/// Whether a path can stand as it is.
fn is_escaped(path: &str) -> bool {
    path.bytes().all(|byte| b"!'()*[]%".contains(&byte) || !is_special(byte, Part::Path))
}

fn escape(bytes: &[u8], part: Part) -> String {
    let mut out = String::with_capacity(bytes.len());
    for byte in bytes {
        if is_special(*byte, part) {
            out.push_str(&format!("%{byte:02X}"));
        } else {
            out.push(char::from(*byte));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_their_parts() {
        let url = Url::parse("HTTPS://user:pw@[fe80::1%25eth0]:443/a b/\u{e9}?x=1&y#f").expect("a URL");
        assert_eq!((&*url.scheme, &*url.host, &*url.query), ("https", "[fe80::1%eth0]:443", "x=1&y"));
        assert_eq!((url.user.as_deref(), &*url.fragment), (Some("user:pw"), "f"));
        assert_eq!((url.hostname(), url.port(), &*url.path), ("fe80::1%eth0", "443", "/a%20b/%C3%A9"));
        for (text, host, path) in [
            ("https://a", "a", ""),
            ("https://a:/b%2Fc", "a:", "/b%2Fc"),
            ("/a/b", "", "/a/b"),
            ("mailto:a@b", "", ""),
            ("https://a/(x)'!*[1]", "a", "/(x)'!*[1]"),
            ("https://a/x^y|z", "a", "/x%5Ey%7Cz"),
        ] {
            let url = Url::of_request(text).expect(text);
            assert_eq!((&*url.host, &*url.path), (host, path), "{text}");
        }
        assert_eq!(Url::parse("../a").map(|url| url.path), Ok("../a".into()));
        let all: Vec<_> = pairs("a=1+2&b&%zz=1&c=%41&d;e=1&&=x").collect();
        let text = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(all, [text("a", "1 2"), text("b", ""), text("c", "A"), text("", "x")]);
    }

    #[test]
    fn webhooks_have_plain_urls() {
        let whys = |text: &str| -> Vec<String> {
            webhook_faults(text).expect(text).into_iter().map(|(part, why)| format!("{part}: {why}")).collect()
        };
        assert!(whys("https://a:8443/b").is_empty());
        let form = "; desired format: https://host[/path]";
        assert_eq!(
            whys("a"),
            [format!(": 'https' is the only allowed URL scheme{form}"), format!(": host must be specified{form}")]
        );
        assert_eq!(whys("https:a")[0], format!(": host must be specified{form}"));
        assert_eq!(
            whys("https://u:p@h/x?y#z"),
            [
                "u:p: user information is not permitted in the URL",
                "z: fragments are not permitted in the URL",
                "y: query parameters are not permitted in the URL"
            ]
        );
        let why = webhook_faults("https://a b").expect_err("no URL");
        let said = "parse \"https://a b\": invalid character \" \" in host name";
        assert_eq!(why, format!("url must be a valid URL: {said}{form}"));
    }

    #[test]
    fn what_is_none_is_told_as_go_tells_it() {
        for (text, why) in [
            ("", "empty url"),
            ("x", "invalid URI for request"),
            (":x", "missing protocol scheme"),
            ("a\u{7f}", "net/url: invalid control character in URL"),
            ("https://a b/", "invalid character \" \" in host name"),
            ("https://a:b", "invalid port \":b\" after host"),
            ("https://[::1", "missing ']' in host"),
            ("https://[::1]x", "invalid port \"x\" after host"),
            ("https://a/%zz", "invalid URL escape \"%zz\""),
            ("https://a/%4", "invalid URL escape \"%4\""),
            ("https://%41/", "invalid URL escape \"%41\""),
            ("https://u^@a/", "net/url: invalid userinfo"),
        ] {
            assert_eq!(Url::of_request(text), Err(format!("parse {}: {why}", quote(text))), "{text}");
        }
        assert_eq!(Url::parse("a:b/c").map(|url| url.scheme), Ok("a".into()));
        let said = Url::parse("1:b").expect_err("no scheme");
        assert_eq!(said, "parse \"1:b\": first path segment in URL cannot contain colon");
        assert_eq!(Url::parse("/a#%z").expect_err("no fragment"), "parse \"/a#%z\": invalid URL escape \"%z\"");
    }
}
