//! Links in a proxied page: attributes that hold a URL are written anew, everything else stays byte for byte as it came.
//!
//! Followed: apimachinery `util/proxy` (`rewriteHTML`), and the tokenizer of `golang.org/x/net/html` as far as it finds tags.
//! Unlike there a tag whose links stay is not written in another way. Limits: links in styles and scripts are not looked for.

/// Attributes that hold a URL, by tag.
const LINKS: &[(&str, &[&str])] = &[
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["src", "usemap", "formaction"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("video", &["poster", "src"]),
];
/// Tags between which and whose end there are no other tags.
const RAW: [&str; 9] = ["iframe", "noembed", "noframes", "plaintext", "script", "style", "textarea", "title", "xmp"];
/// References that a URL needs.
const NAMED: [(&str, &str); 5] = [("amp;", "&"), ("lt;", "<"), ("gt;", ">"), ("quot;", "\""), ("apos;", "'")];
/// Links of one tag: no tag has so many that mean something.
const MAX_LINKS: usize = 64;
/// The longest reference by number: more digits are none that anybody writes.
const MAX_REFERENCE: usize = 10;

/// The page with `led` applied to each of its links; None where that makes more than `most` bytes of it.
pub(super) fn rewritten(page: &[u8], led: impl Fn(&str) -> String, most: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(page.len() + page.len() / 8);
    let mut reader = Reader { page, at: 0 };
    // Up to where the page is written.
    let mut done = 0;
    while let Some(tag) = reader.next_tag() {
        for attribute in tag.links {
            let Ok(old) = std::str::from_utf8(attribute.value) else { continue };
            let link = unescape(old);
            let new = led(&link);
            if new != link {
                out.extend_from_slice(&page[done..attribute.start]);
                out.push(b'"');
                out.extend_from_slice(escape(&new).as_bytes());
                out.push(b'"');
                done = attribute.end;
                if out.len() > most {
                    return None;
                }
            }
        }
        if RAW.contains(&tag.name.as_str()) {
            reader.skip_raw(&tag.name);
        }
    }
    out.extend_from_slice(&page[done..]);
    (out.len() <= most).then_some(out)
}

/// A tag that begins something, with those attributes that hold a URL, in their order. The name is in small letters.
struct Tag<'a> {
    name: String,
    links: Vec<Attribute<'a>>,
}

/// An attribute that has a value; `start` and `end` are those of the value with its quotes.
struct Attribute<'a> {
    value: &'a [u8],
    start: usize,
    end: usize,
}

struct Reader<'a> {
    page: &'a [u8],
    at: usize,
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t' | b'\x0c')
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.page.get(self.at).copied()
    }

    /// Goes on to the next byte that fits, or to the end; what is passed over.
    fn until(&mut self, fits: impl Fn(u8) -> bool) -> &'a [u8] {
        let rest = &self.page[self.at..];
        let length = rest.iter().position(|byte| fits(*byte)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    /// Goes behind a text, or to the end.
    fn behind(&mut self, text: &[u8]) {
        let rest = &self.page[self.at..];
        let found = rest.windows(text.len()).position(|window| window == text);
        self.at += found.map_or(rest.len(), |at| at + text.len());
    }

    /// The next tag that begins something; None at the end, also in the middle of a tag.
    fn next_tag(&mut self) -> Option<Tag<'a>> {
        loop {
            self.until(|byte| byte == b'<');
            let rest = self.page.get(self.at + 1..)?;
            match rest {
                [b'a'..=b'z' | b'A'..=b'Z', ..] => {
                    self.at += 1;
                    return self.tag();
                }
                [b'/', b'a'..=b'z' | b'A'..=b'Z', ..] => {
                    self.at += 2;
                    self.tag()?;
                }
                [b'!', b'-', b'-', ..] => {
                    // An empty comment may share its dashes: `<!-->`.
                    self.at += 2;
                    self.behind(b"->");
                    while !self.page[..self.at].ends_with(b"-->") && self.at < self.page.len() {
                        self.behind(b"->");
                    }
                }
                [b'!' | b'?' | b'/', ..] => self.behind(b">"),
                [] => return None,
                _ => self.at += 1,
            }
        }
    }

    /// The tag whose name begins here.
    fn tag(&mut self) -> Option<Tag<'a>> {
        let small = |text: &[u8]| String::from_utf8_lossy(text).to_ascii_lowercase();
        let name = small(self.until(|byte| is_space(byte) || matches!(byte, b'/' | b'>')));
        let wanted = LINKS.iter().find(|(tag, _)| *tag == name).map_or(&[][..], |(_, links)| links);
        let mut links = Vec::new();
        loop {
            self.until(|byte| !is_space(byte));
            match self.peek()? {
                b'>' => {
                    self.at += 1;
                    return Some(Tag { name, links });
                }
                b'/' => {
                    self.at += 1;
                    continue;
                }
                _ => {}
            }
            // An equals sign in front belongs to the name.
            let begin = self.at;
            self.at += 1;
            self.until(|byte| is_space(byte) || matches!(byte, b'=' | b'/' | b'>'));
            let attribute = &self.page[begin..self.at];
            self.until(|byte| !is_space(byte));
            if self.peek()? != b'=' {
                continue;
            }
            self.at += 1;
            self.until(|byte| !is_space(byte));
            let start = self.at;
            let value = match self.peek()? {
                b'>' => continue,
                quote @ (b'"' | b'\'') => {
                    self.at += 1;
                    let value = self.until(|byte| byte == quote);
                    self.peek()?;
                    self.at += 1;
                    value
                }
                _ => self.until(|byte| is_space(byte) || byte == b'>'),
            };
            // Of two of one name the first counts, but each is what it is.
            if links.len() < MAX_LINKS && wanted.iter().any(|name| attribute.eq_ignore_ascii_case(name.as_bytes())) {
                links.push(Attribute { value, start, end: self.at });
            }
        }
    }

    /// Goes to the end of what a tag begins in which there are no others.
    fn skip_raw(&mut self, name: &str) {
        if name == "plaintext" {
            self.at = self.page.len();
        }
        loop {
            self.until(|byte| byte == b'<');
            let Some(rest) = self.page.get(self.at + 1..) else { return };
            let end = rest.strip_prefix(b"/").and_then(|rest| rest.split_at_checked(name.len()));
            let ends = end.is_some_and(|(word, after)| {
                let closed = after.first().is_some_and(|byte| is_space(*byte) || matches!(byte, b'/' | b'>'));
                word.eq_ignore_ascii_case(name.as_bytes()) && closed
            });
            if ends {
                return;
            }
            self.at += 1;
        }
    }
}

/// A value with its references resolved; those that have no place in a URL stay as they are.
fn unescape(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    let mut rest = value;
    while let Some((before, after)) = rest.split_once('&') {
        out.push_str(before);
        let named = NAMED.iter().find_map(|(name, text)| Some(((*text).to_owned(), after.strip_prefix(name)?)));
        match named.or_else(|| numbered(after)) {
            Some((text, left)) => {
                out.push_str(&text);
                rest = left;
            }
            None => {
                out.push('&');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

/// A reference by number behind its `&`, and what follows it.
fn numbered(text: &str) -> Option<(String, &str)> {
    let text = text.strip_prefix('#')?;
    let end = text.bytes().take(MAX_REFERENCE + 1).position(|byte| byte == b';')?;
    let (number, left) = (&text[..end], &text[end + 1..]);
    let code = match number.strip_prefix(['x', 'X']) {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => number.parse(),
    };
    char::from_u32(code.ok()?).map(|letter| (letter.to_string(), left))
}

fn escape(value: &str) -> String {
    let value = value.replace('&', "&amp;").replace('\'', "&#39;").replace('<', "&lt;");
    value.replace('>', "&gt;").replace('"', "&#34;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> String {
        let led = |link: &str| if link.starts_with('/') { format!("/p{link}") } else { link.to_owned() };
        let page = rewritten(text.as_bytes(), led, 1 << 10).expect("not too long");
        String::from_utf8(page).expect("text")
    }

    #[test]
    fn links_of_tags_that_have_them_are_rewritten() {
        for (before, after) in [
            ("<a href=\"/x\">/x</a>", "<a href=\"/p/x\">/x</a>"),
            ("<A CLASS=b HREF='/x?a=1&amp;b=\"2'>", "<A CLASS=b HREF=\"/p/x?a=1&amp;b=&#34;2\">"),
            ("<img src=/x usemap = /y/>", "<img src=\"/p/x\" usemap = \"/p/y/\">"),
            ("<script src=\"/a.js\"></script>", "<script src=\"/p/a.js\"></script>"),
            ("<a href=\"&#47;x&#x2f;y\"/>", "<a href=\"/p/x/y\"/>"),
            ("<!-- <a href='/x'> --><a href='/y'>", "<!-- <a href='/x'> --><a href=\"/p/y\">"),
            ("<!--><a href=/x>", "<!--><a href=\"/p/x\">"),
            ("<title><a href=/x></title><a href=/y>", "<title><a href=/x></title><a href=\"/p/y\">"),
            ("a < b <a href=/x>", "a < b <a href=\"/p/x\">"),
            (
                "<script>if (a</b/) '<a href=/x>'</ScripT ><a href=/y>",
                "<script>if (a</b/) '<a href=/x>'</ScripT ><a href=\"/p/y\">",
            ),
        ] {
            assert_eq!(page(before), after);
        }
    }

    #[test]
    fn everything_else_stays_as_it_came() {
        for text in [
            "",
            "no tags",
            "<p title=\"/x\" href=\"/x\">",
            "<a href=\"x\" title='&nbsp;&amp;'>",
            "<a href=>",
            "<a href",
            "<a href=\"/x",
            "<",
            "</",
            "<!--",
            "<plaintext><a href=/x>",
            "<style><a href=/x>",
            "</a href=/x>",
            "<?php <a>?>",
        ] {
            assert_eq!(page(text), text);
        }
        let many = format!("<a {}href=/x>", "href=y ".repeat(MAX_LINKS));
        assert_eq!(page(&many), many);
        let bytes = b"<a href=\"/\xff\">\xff";
        assert_eq!(rewritten(bytes, |_| "x".into(), 99).as_deref(), Some(&bytes[..]));
        assert_eq!(rewritten(b"<a href=/x><a href=/y>", |_| "longer".into(), 30), None);
    }
}
