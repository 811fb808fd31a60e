//! Rust's `Debug` text as a tree: the only place where a prost message shows its field names.

use std::collections::BTreeMap;

/// A value as `derive(Debug)` prints it; `None` and empty lists and maps are [`Shown::Nothing`].
#[derive(Debug, Clone, PartialEq)]
pub enum Shown {
    Nothing,
    Text(String),
    /// Numbers and booleans, as printed.
    Word(String),
    /// List elements, or map entries, of any number but zero.
    Many,
    Struct(BTreeMap<String, Shown>),
}

pub fn parse(text: &str) -> Shown {
    let mut reader = Reader { text: text.as_bytes(), at: 0 };
    let value = reader.value();
    assert_eq!(reader.at, text.len(), "something follows the value: {text}");
    value
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn peek(&mut self) -> u8 {
        while let Some(b' ' | b',') = self.text.get(self.at) {
            self.at += 1;
        }
        self.text.get(self.at).copied().expect("the text goes on")
    }

    fn expect(&mut self, byte: u8) {
        assert_eq!(char::from(self.peek()), char::from(byte), "at {}", self.at);
        self.at += 1;
    }

    fn word(&mut self) -> String {
        self.peek();
        let start = self.at;
        while self.text.get(self.at).is_some_and(|b| b.is_ascii_alphanumeric() || b"_.+-#".contains(b)) {
            self.at += 1;
        }
        String::from_utf8_lossy(&self.text[start..self.at]).into_owned()
    }

    fn value(&mut self) -> Shown {
        match self.peek() {
            b'"' => Shown::Text(self.text()),
            b'[' => self.many(b']', |r| drop(r.value())),
            b'{' => self.many(b'}', |r| {
                r.value();
                r.expect(b':');
                r.value();
            }),
            _ => {
                let word = self.word();
                match self.text.get(self.at).copied() {
                    Some(b'(') => {
                        self.at += 1;
                        let inner = self.value();
                        self.expect(b')');
                        inner
                    }
                    Some(b' ') if self.text.get(self.at + 1) == Some(&b'{') => self.structure(),
                    _ if word == "None" => Shown::Nothing,
                    _ => Shown::Word(word),
                }
            }
        }
    }

    fn many(&mut self, end: u8, mut element: impl FnMut(&mut Self)) -> Shown {
        self.at += 1;
        let mut any = false;
        while self.peek() != end {
            element(self);
            any = true;
        }
        self.at += 1;
        if any { Shown::Many } else { Shown::Nothing }
    }

    fn structure(&mut self) -> Shown {
        self.expect(b'{');
        let mut fields = BTreeMap::new();
        while self.peek() != b'}' {
            let name = self.word();
            self.expect(b':');
            let value = self.value();
            fields.insert(name, value);
        }
        self.at += 1;
        Shown::Struct(fields)
    }

    fn text(&mut self) -> String {
        let start = self.at;
        self.at += 1;
        while self.text[self.at] != b'"' {
            self.at += if self.text[self.at] == b'\\' { 2 } else { 1 };
        }
        self.at += 1;
        unescape(std::str::from_utf8(&self.text[start + 1..self.at - 1]).expect("Debug prints text"))
    }
}

fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            Some('0') => out.push('\0'),
            Some('u') => {
                let digits: String = chars.by_ref().skip(1).take_while(|c| *c != '}').collect();
                let code = u32::from_str_radix(&digits, 16).expect("hexadecimal digits");
                out.push(char::from_u32(code).expect("a character"));
            }
            other => out.extend(other),
        }
    }
    out
}
