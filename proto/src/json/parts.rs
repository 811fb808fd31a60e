//! Parts of a JSON text where they lie, for those who need a few of them and no tree of all. The text is one at rest:
//! written by ourselves, so what is passed by is not checked.

use std::borrow::Cow;
use std::ops::Range;

use super::lexer::Lexer;
use super::scan::quoted;

/// The length of the value that a text begins with; None where the text ends inside it.
pub(super) fn end(text: &[u8]) -> Option<usize> {
    match text.first()? {
        b'"' => end_of_string(text, 0),
        b'{' | b'[' => {
            let (mut at, mut depth) = (0, 0_usize);
            loop {
                at += text[at..].iter().position(|b| matches!(b, b'"' | b'{' | b'}' | b'[' | b']'))?;
                match text[at] {
                    b'"' => {
                        at = end_of_string(text, at)?;
                        continue;
                    }
                    b'{' | b'[' => depth += 1,
                    _ => depth -= 1,
                }
                at += 1;
                if depth == 0 {
                    return Some(at);
                }
            }
        }
        _ => {
            let end = text.iter().position(|b| matches!(b, b',' | b'}' | b']' | b' ' | b'\n' | b'\t' | b'\r'));
            Some(end.unwrap_or(text.len())).filter(|&end| end > 0)
        }
    }
}

/// Where the string ends that begins at `at`: behind its last quote.
fn end_of_string(text: &[u8], at: usize) -> Option<usize> {
    let mut at = at + 1;
    loop {
        at += quoted(text.get(at..)?);
        match text.get(at)? {
            b'"' => return Some(at + 1),
            _ => at += 2,
        }
    }
}

/// Where the value of a member of the object at the top lies. What comes after it is not looked at.
pub fn member(text: &[u8], name: &str) -> Option<Range<usize>> {
    let mut lexer = Lexer::for_parts(text);
    if lexer.peek().ok()? != b'{' {
        return None;
    }
    lexer.open().ok()?;
    let mut first = true;
    while let Some(key) = lexer.key(&mut first, false).ok()? {
        let value = lexer.raw_at_rest().ok()?;
        if key == name {
            let end = lexer.offset();
            return Some(end - value.len()..end);
        }
    }
    None
}

/// The members of an object, each value as text; None for text that is no object.
pub fn members(text: &[u8]) -> Option<Vec<(Cow<'_, str>, &[u8])>> {
    let mut lexer = Lexer::for_parts(text);
    if lexer.peek().ok()? != b'{' {
        return None;
    }
    lexer.open().ok()?;
    let (mut out, mut first) = (Vec::new(), true);
    while let Some(key) = lexer.key(&mut first, false).ok()? {
        out.push((key, lexer.raw_at_rest().ok()?));
    }
    Some(out)
}

/// The items of a list as texts; None for text that is no list.
pub fn items(text: &[u8]) -> Option<Vec<&[u8]>> {
    let mut lexer = Lexer::for_parts(text);
    if lexer.peek().ok()? != b'[' {
        return None;
    }
    lexer.open().ok()?;
    let mut out = Vec::new();
    while lexer.element(out.len()).ok()? {
        out.push(lexer.raw_at_rest().ok()?);
    }
    Some(out)
}

/// A text of JSON, decoded; borrowed where it has no escapes. None for another value.
pub fn string(text: &[u8]) -> Option<Cow<'_, str>> {
    let mut lexer = Lexer::for_parts(text);
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
        for value in ["{}", r#"{"a":["\"]}",{}]}"#, r#""\\\"""#, "[[],[{}]]", "1.5e3", "null"] {
            for after in ["", ",1", "}", "]", " "] {
                assert_eq!(end(format!("{value}{after}").as_bytes()), Some(value.len()), "{value}{after}");
            }
        }
        for broken in ["", "{", r#"{"a"#, r#""\\"#, "[{}", ",", r#"["\"#] {
            assert_eq!(end(broken.as_bytes()), None, "{broken}");
        }
        assert_eq!((member(text, "x"), members(b"[]"), items(b"{}")), (None, None, None));
        assert_eq!((member(b"", "x"), items(b"[1"), string(b"1")), (None, None, None));
        assert_eq!((items(b"[]"), members(b"{}")), (Some(Vec::new()), Some(Vec::new())));
    }
}
