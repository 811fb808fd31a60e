//! URLs as Go's `net/url` reads and writes them: what of a path is escaped, and what is left as it was given.
//!
//! A probe's path may be anything, and applications match on what arrives: a path that is escaped already stays as it is,
//! anything else is escaped as little as Go does, the query goes through untouched.
//!
//! Followed: `net/url` and the kubelet's `formatURL`.

/// The part of a URL that comes after its host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reference {
    /// In lower case; empty for a relative reference.
    pub scheme: String,
    /// What stands for the host, with its port and whoever asks; `None` where there is none.
    pub authority: Option<String>,
    /// Of a scheme whose rest is no path.
    opaque: bool,
    /// Escaped.
    path: String,
    /// With its question mark, as it was given.
    query: String,
    /// With its hash, escaped.
    fragment: String,
}

impl Reference {
    /// Reads a reference; `None` where Go finds it malformed.
    pub fn parse(text: &str) -> Option<Self> {
        let (rest, fragment) = text.split_once('#').map_or((text, ""), |(rest, fragment)| (rest, fragment));
        if rest.bytes().any(|b| b < 0x20 || b == 0x7f) {
            return None;
        }
        let mut parsed = Self::default();
        if !fragment.is_empty() {
            parsed.fragment = format!("#{}", escaped(fragment, Part::Fragment)?);
        }
        if rest == "*" {
            parsed.path = rest.into();
            return Some(parsed);
        }
        let (scheme, rest) = scheme(rest)?;
        parsed.scheme = scheme.to_ascii_lowercase();
        let (rest, query) = rest.find('?').map_or((rest, ""), |at| rest.split_at(at));
        parsed.query = query.to_owned();
        if !rest.starts_with('/') {
            if !scheme.is_empty() {
                (parsed.opaque, parsed.path) = (true, rest.to_owned());
                return Some(parsed);
            }
            // It would be taken for a scheme.
            if rest.split('/').next().is_some_and(|segment| segment.contains(':')) {
                return None;
            }
        }
        let mut path = rest;
        if let Some(after) = rest.strip_prefix("//").filter(|_| !scheme.is_empty() || !rest.starts_with("///")) {
            let (authority, rest) = after.find('/').map_or((after, ""), |at| after.split_at(at));
            if !is_authority(authority) {
                return None;
            }
            parsed.authority = Some(authority.to_owned());
            path = rest;
        }
        parsed.path = escaped(path, Part::Path)?;
        Some(parsed)
    }

    /// What a probe or hook asks for, whatever its path: one that is no URL is taken for a bare path.
    pub fn of_path(path: &str) -> Self {
        Self::parse(path).unwrap_or_else(|| Self { path: escape(path.as_bytes(), Part::Path), ..Self::default() })
    }

    /// Path, query and fragment as they follow the host in messages.
    pub fn after_host(&self) -> String {
        format!("{}{}{}", self.slashed(), self.query, self.fragment)
    }

    /// What the first line of the request asks for.
    pub fn request_target(&self) -> String {
        match self.slashed() {
            path if path.is_empty() => format!("/{}", self.query),
            path => format!("{path}{}", self.query),
        }
    }

    fn slashed(&self) -> String {
        match self.path.starts_with('/') || self.path.is_empty() {
            true => self.path.clone(),
            false => format!("/{}", self.path),
        }
    }

    /// Whether it says nothing but a scheme and something that is no path, and so can be asked of nobody.
    pub fn is_opaque(&self) -> bool {
        self.opaque
    }

    /// Where this leads from `base`; the host is told by [`Self::authority`], or is the base's.
    pub fn resolved_from(&self, base: &Self) -> Self {
        let mut next = self.clone();
        if !self.scheme.is_empty() || self.authority.is_some() || self.path.starts_with('/') {
            next.path = if self.path.is_empty() { String::new() } else { without_dots(&self.path) };
            return next;
        }
        if self.path.is_empty() && self.query.is_empty() {
            next.query.clone_from(&base.query);
            if self.fragment.is_empty() {
                next.fragment.clone_from(&base.fragment);
            }
        }
        let folder = base.path.rfind('/').map_or("/", |at| &base.path[..=at]);
        let path = if self.path.is_empty() { base.path.clone() } else { format!("{folder}{}", self.path) };
        next.path = without_dots(&path);
        next
    }
}

/// Resolves `.` and `..`.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    for segment in &segments {
        match *segment {
            "." => {}
            ".." => drop(kept.pop()),
            other => kept.push(other),
        }
    }
    let mut out = format!("/{}", kept.join("/"));
    if matches!(segments.last(), Some(&"." | &"..")) && !out.ends_with('/') {
        out.push('/');
    }
    out
}

/// The scheme, empty for none, and what follows its colon; `None` where it is missing before the colon.
fn scheme(text: &str) -> Option<(&str, &str)> {
    for (at, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return None,
            ':' => return Some((&text[..at], &text[at + 1..])),
            _ => break,
        }
    }
    Some(("", text))
}

/// Whether Go takes it for a host, with a port that is a number.
fn is_authority(text: &str) -> bool {
    let host = text.rsplit_once('@').map_or(text, |(_, host)| host);
    let port = match host.strip_prefix('[') {
        Some(rest) => match rest.rsplit_once(']') {
            Some((_, after)) => after,
            None => return false,
        },
        None => host.find(':').map_or("", |at| &host[at..]),
    };
    let is_port = port.is_empty() || port.strip_prefix(':').is_some_and(|p| p.bytes().all(|b| b.is_ascii_digit()));
    let plain = |b: u8| b >= 0x80 || b.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]<>\"%@".contains(&b);
    is_port && host.bytes().all(plain)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Path,
    Fragment,
}

fn is_plain(b: u8, part: Part) -> bool {
    match b {
        b'-' | b'_' | b'.' | b'~' | b'$' | b'&' | b'+' | b',' | b'/' | b':' | b';' | b'=' | b'@' => true,
        b'?' | b'!' | b'(' | b')' | b'*' => part == Part::Fragment,
        b => b.is_ascii_alphanumeric(),
    }
}

/// Text as it goes into a URL: left alone where it is a valid escaping of what it means. `None` for a percent sign that
/// escapes nothing.
fn escaped(text: &str, part: Part) -> Option<String> {
    let meant = unescaped(text)?;
    let may_stay = |b: u8| is_plain(b, part) || b"!$&'()*+,;=:@[]%".contains(&b);
    Some(if text.bytes().all(may_stay) { text.to_owned() } else { escape(&meant, part) })
}

fn escape(bytes: &[u8], part: Part) -> String {
    if bytes == b"*" {
        return "*".into();
    }
    bytes.iter().map(|&b| if is_plain(b, part) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

fn unescaped(text: &str) -> Option<Vec<u8>> {
    let digit = |b: Option<u8>| char::from(b?).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(b) = bytes.next() {
        out.push(match b {
            b'%' => digit(bytes.next())? << 4 | digit(bytes.next())?,
            b => b,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_escaped_as_go_escapes_them() {
        for (path, wanted) in [
            ("", ""),
            ("ok", "/ok"),
            ("/a b", "/a%20b"),
            ("/a%20b", "/a%20b"),
            ("/a%2Fb", "/a%2Fb"),
            ("/a%2fb c", "/a/b%20c"),
            ("/100%", "/100%25"),
            ("/%zz?q", "/%25zz%3Fq"),
            ("/ä", "/%C3%A4"),
            ("/x?a=b c&d=%zz", "/x?a=b c&d=%zz"),
            ("/x?", "/x?"),
            ("/x#top", "/x#top"),
            ("/x?q#a b", "/x?q#a%20b"),
            ("/x#", "/x"),
            ("/a'b(c)*!", "/a'b(c)*!"),
            ("/a\"<>^`{|}\\", "/a%22%3C%3E%5E%60%7B%7C%7D%5C"),
            ("/[1]", "/[1]"),
            ("//host/x", "/x"),
            ("///x", "///x"),
            ("http://elsewhere:81/x?y", "/x?y"),
            ("a:b/c", "b/c"),
            ("1:b", "/1:b"),
            (":x", "/:x"),
            ("/a\nb", "/a%0Ab"),
            ("*", "/*"),
        ] {
            let parsed = Reference::of_path(path);
            let told = if parsed.is_opaque() { parsed.path.clone() } else { parsed.after_host() };
            assert_eq!(told, wanted, "{path:?}");
        }
        let asked = |path| Reference::of_path(path).request_target();
        assert_eq!((asked(""), asked("?a"), asked("/x?q#f")), ("/".into(), "/?a".into(), "/x?q".into()));
    }

    #[test]
    fn references_lead_where_go_goes() {
        let base = Reference::of_path("/a/b?x=1");
        for (to, wanted) in [
            ("/c", "/c"),
            ("c", "/a/c"),
            ("../c", "/c"),
            ("./", "/a/"),
            ("?y", "/a/b?y"),
            ("#f", "/a/b?x=1#f"),
            ("http://other/x/../y?z", "/y?z"),
            ("//other", ""),
        ] {
            assert_eq!(Reference::parse(to).unwrap().resolved_from(&base).after_host(), wanted, "{to}");
        }
        assert_eq!(Reference::parse("HTTPS://other:8443/x").unwrap().scheme, "https");
        assert_eq!(Reference::parse("//other:8443/x").unwrap().authority.as_deref(), Some("other:8443"));
        for malformed in ["//a:b/", "//[::1/", ":x", "/%", "a\u{7f}", "//a b/"] {
            assert_eq!(Reference::parse(malformed), None, "{malformed:?}");
        }
    }
}
