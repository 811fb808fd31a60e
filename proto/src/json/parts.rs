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
            while let Some(&byte) = text.get(at) {
                at += 1;
                match byte {
                    b'"' => {
                        at = end_of_string(text, at - 1)?;
                        // In the fields of an object nearly every name is followed by this.
                        if text.get(at..at + 4).is_some_and(|next| next == b":{},") {
                            at += 4;
                        }
                    }
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => {
                        depth -= 1;
                        if depth == 0 {
                            return Some(at);
                        }
                    }
                    _ => {}
                }
            }
            None
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

/// A walk through a text, which reads what somebody needs and passes the rest by. What is entered is not looked for its
/// end first, so a text is gone through once however deep the walk goes.
pub struct Walk<'a> {
    lexer: Lexer<'a>,
}

impl<'a> Walk<'a> {
    pub fn new(text: &'a [u8]) -> Self {
        Walk { lexer: Lexer::for_parts(text) }
    }

    /// Goes through the object at hand. `visit` gets the name of each member and has to walk through its value, or ends the
    /// walk. None where it did, and for text that is no object.
    pub fn object(&mut self, mut visit: impl FnMut(&mut Self, Cow<'a, str>) -> Option<()>) -> Option<()> {
        if self.lexer.peek().ok()? != b'{' {
            return None;
        }
        self.lexer.open().ok()?;
        let mut first = true;
        while let Some(key) = self.lexer.key(&mut first, false).ok()? {
            visit(self, key)?;
        }
        Some(())
    }

    /// The same for a list and its items.
    pub fn list(&mut self, mut visit: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        if self.lexer.peek().ok()? != b'[' {
            return None;
        }
        self.lexer.open().ok()?;
        let mut index = 0;
        while self.lexer.element(index).ok()? {
            visit(self)?;
            index += 1;
        }
        Some(())
    }

    /// The text at hand, decoded; borrowed where it has no escapes. None for another value.
    pub fn string(&mut self) -> Option<Cow<'a, str>> {
        if self.lexer.peek().ok()? == b'"' { self.lexer.string().ok() } else { None }
    }

    /// How many bytes of the text were walked through.
    pub fn offset(&self) -> usize {
        self.lexer.offset()
    }

    /// Passes the value at hand by if it is the one given, an object or a list in the words of a text at rest.
    pub fn is(&mut self, value: &[u8]) -> bool {
        self.lexer.pass_known(value)
    }

    /// Passes the value at hand by; its text.
    pub fn raw(&mut self) -> Option<&'a [u8]> {
        self.lexer.raw_at_rest().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_found_where_they_lie() {
        let text = br#"{"a": {"b": [1, {"c": "]}"}], "d\"": "x\n"}, "e": 2}"#;
        let found = member(text, "a").expect("there is one");
        assert_eq!(&text[found.clone()], br#"{"b": [1, {"c": "]}"}], "d\"": "x\n"}"#);
        let mut seen = Vec::new();
        let walked = Walk::new(text).object(|walk, key| match &*key {
            "a" => walk.object(|walk, key| match &*key {
                "b" => walk.list(|walk| walk.raw().map(|item| seen.push(String::from_utf8_lossy(item).into_owned()))),
                _ => walk.string().map(|text| seen.push(format!("{key} {text}"))),
            }),
            _ => walk.raw().map(|value| seen.push(format!("{key} {}", String::from_utf8_lossy(value)))),
        });
        assert!(walked.is_some());
        assert_eq!(seen, ["1", r#"{"c": "]}"}"#, "d\" x\n", "e 2"]);
        let mut walk = Walk::new(br#"{"a":{"b":{}},"c":[]}"#);
        let mut known = Vec::new();
        let walked = walk.object(|walk, _| {
            known.push([&b"{}"[..], br#"{"b":{}}"#, b"[]"].map(|value| walk.is(value)));
            Some(())
        });
        assert_eq!((walked, known), (Some(()), vec![[false, true, false], [false, false, true]]));
        for value in ["{}", r#"{"a":["\"]}",{}]}"#, r#""\\\"""#, "[[],[{}]]", "1.5e3", "null"] {
            for after in ["", ",1", "}", "]", " "] {
                assert_eq!(end(format!("{value}{after}").as_bytes()), Some(value.len()), "{value}{after}");
            }
        }
        for broken in ["", "{", r#"{"a"#, r#""\\"#, "[{}", ",", r#"["\"#] {
            assert_eq!(end(broken.as_bytes()), None, "{broken}");
        }
        assert_eq!((member(text, "x"), member(b"", "x"), member(b"[]", "a")), (None, None, None));
        let object = |text: &[u8]| Walk::new(text).object(|walk, _| walk.raw().map(drop));
        let list = |text: &[u8]| Walk::new(text).list(|walk| walk.raw().map(drop));
        assert_eq!(
            (object(b"{}"), object(br#"{"a":1}"#), list(b"[]"), list(b"[1,2]")),
            (Some(()), Some(()), Some(()), Some(()))
        );
        assert_eq!((object(b"[]"), object(br#"{"a""#), list(b"{}"), list(b"[1")), (None, None, None, None));
        assert_eq!((Walk::new(b"1").string(), Walk::new(b"").raw()), (None, None));
    }
}
