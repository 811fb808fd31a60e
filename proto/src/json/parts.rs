//! Parts of a JSON text where they lie, for those who need a few of them and no tree of all.

use std::borrow::Cow;
use std::ops::Range;

use super::lexer::Lexer;

/// Where the value of a member of the object at the top lies. What comes after it is not looked at.
pub fn member(text: &[u8], name: &str) -> Option<Range<usize>> {
    let mut lexer = Lexer::new(text);
    if lexer.peek().ok()? != b'{' {
        return None;
    }
    lexer.open().ok()?;
    let mut first = true;
    while let Some(key) = lexer.key(&mut first, false).ok()? {
        let value = lexer.raw().ok()?;
        if key == name {
            let end = lexer.offset();
            return Some(end - value.len()..end);
        }
    }
    None
}

/// The members of an object, each value as text; None for text that is no object.
pub fn members(text: &[u8]) -> Option<Vec<(Cow<'_, str>, &[u8])>> {
    let mut lexer = Lexer::new(text);
    if lexer.peek().ok()? != b'{' {
        return None;
    }
    lexer.open().ok()?;
    let (mut out, mut first) = (Vec::new(), true);
    while let Some(key) = lexer.key(&mut first, false).ok()? {
        out.push((key, lexer.raw().ok()?));
    }
    Some(out)
}

/// The items of a list as texts; None for text that is no list.
pub fn items(text: &[u8]) -> Option<Vec<&[u8]>> {
    let mut lexer = Lexer::new(text);
    if lexer.peek().ok()? != b'[' {
        return None;
    }
    lexer.open().ok()?;
    let mut out = Vec::new();
    while lexer.element(out.len()).ok()? {
        out.push(lexer.raw().ok()?);
    }
    Some(out)
}

/// A text of JSON, decoded; borrowed where it has no escapes. None for another value.
pub fn string(text: &[u8]) -> Option<Cow<'_, str>> {
    let mut lexer = Lexer::new(text);
    (lexer.peek().ok()? == b'"').then(|| lexer.string().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_found_where_they_lie() {
        let text = br#"{"a": {"b": [1, {"c": "]}"}], "d\"": "x\n"}, "e": 2}"#;
        let found = member(text, "a").expect("there is one");
        assert_eq!(&text[found.clone()], br#"{"b": [1, {"c": "]}"}], "d\"": "x\n"}"#);
        let inner = members(&text[found]).expect("an object");
        assert_eq!(inner[1], (Cow::Borrowed("d\""), &br#""x\n""#[..]));
        assert_eq!(string(inner[1].1).as_deref(), Some("x\n"));
        assert_eq!(items(inner[0].1), Some(vec![&b"1"[..], br#"{"c": "]}"}"#]));
        assert_eq!((member(text, "x"), members(b"[]"), items(b"{}")), (None, None, None));
        assert_eq!((member(b"", "x"), items(b"[1"), string(b"1")), (None, None, None));
        assert_eq!((items(b"[]"), members(b"{}")), (Some(Vec::new()), Some(Vec::new())));
    }
}
