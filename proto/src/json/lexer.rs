//! Reads JSON text value by value and remembers where it is, for messages.
//!
//! Limits: nesting up to [`super::max_depth`]. Invalid UTF-8 and lone surrogates become U+FFFD, as in Go.

use std::borrow::Cow;

use serde_json::{Map, Number, Value};

use super::scan::plain;
use super::{AT_REST, max_depth};

/// The text is not JSON; worded as Go's `encoding/json` does.
#[derive(Debug, thiserror::Error, Clone, PartialEq)]
#[error("{0}")]
pub struct SyntaxError(pub String);

/// Most complaints that strict decoding collects, as upstream.
const MAX_STRICT: usize = 100;

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Byte range of a key in the text, quotes excluded; `field` unless the key is a map's.
    Key {
        start: usize,
        end: usize,
        field: bool,
    },
    Index(usize),
}

pub(crate) struct Lexer<'a> {
    text: &'a [u8],
    /// The same, where all of it is UTF-8: checked once, and not for each of its strings.
    valid: Option<&'a str>,
    at: usize,
    depth: usize,
    deepest: usize,
    path: Vec<Step>,
    strict: Vec<String>,
}

impl<'a> Lexer<'a> {
    pub fn new(text: &'a [u8]) -> Self {
        Lexer { valid: std::str::from_utf8(text).ok(), ..Lexer::for_parts(text) }
    }

    /// A reader of few strings of a text.
    pub fn for_parts(text: &'a [u8]) -> Self {
        Lexer { text, valid: None, at: 0, depth: 0, deepest: max_depth(), path: Vec::new(), strict: Vec::new() }
    }

    /// The same for a document that was read before.
    pub fn at_rest(self) -> Self {
        Lexer { deepest: self.deepest + AT_REST, ..self }
    }

    pub fn take_strict(&mut self) -> Vec<String> {
        std::mem::take(&mut self.strict)
    }

    /// How many bytes were read.
    pub fn offset(&self) -> usize {
        self.at
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\t' | b'\r') = self.text.get(self.at) {
            self.at += 1;
        }
    }

    /// The first byte of the next value, not consumed.
    pub fn peek(&mut self) -> Result<u8, SyntaxError> {
        self.space();
        self.text.get(self.at).copied().ok_or_else(|| SyntaxError("unexpected end of JSON input".into()))
    }

    fn wrong(&self, context: &str) -> SyntaxError {
        match self.text.get(self.at) {
            None => SyntaxError("unexpected end of JSON input".into()),
            Some(_) => SyntaxError(format!("invalid character {} {context}", self.shown())),
        }
    }

    /// The byte at hand as Go quotes it in messages (`'x'`, `'\''`, `'"'`, `'\x00'`, non-ASCII bytes as Latin-1).
    fn shown(&self) -> String {
        match self.text.get(self.at).copied().unwrap_or(0) {
            b'\'' => r"'\''".into(),
            b'"' => "'\"'".into(),
            b'\\' => r"'\\'".into(),
            b'\n' => r"'\n'".into(),
            b'\r' => r"'\r'".into(),
            b'\t' => r"'\t'".into(),
            b @ (0..=0x1f | 0x7f) => format!(r"'\x{b:02x}'"),
            b @ 0x80..=0x9f => format!(r"'\u{b:04x}'"),
            b => format!("'{}'", char::from(b)),
        }
    }

    /// After the top-level value nothing but space may follow.
    pub fn end(&mut self) -> Result<(), SyntaxError> {
        self.space();
        if self.at == self.text.len() { Ok(()) } else { Err(self.wrong("after top-level value")) }
    }

    fn leave(&mut self) {
        self.at += 1;
        self.depth -= 1;
    }

    /// Enters the object or array at hand.
    ///
    /// # Errors
    /// When it is nested too deep.
    pub fn open(&mut self) -> Result<(), SyntaxError> {
        if self.depth >= self.deepest {
            return Err(self.wrong("exceeded max depth"));
        }
        self.at += 1;
        self.depth += 1;
        Ok(())
    }

    /// The next key of the object entered last, decoded, with its value at hand; None after the last member.
    /// `first` starts as true. `field` says that the key names a field rather than a map's entry.
    pub fn key(&mut self, first: &mut bool, field: bool) -> Result<Option<Cow<'a, str>>, SyntaxError> {
        let next = self.peek()?;
        if *first {
            *first = false;
            if next == b'}' {
                self.leave();
                return Ok(None);
            }
        } else {
            self.path.pop();
            match next {
                b',' => self.at += 1,
                b'}' => {
                    self.leave();
                    return Ok(None);
                }
                _ => return Err(self.wrong("after object key:value pair")),
            }
        }
        if self.peek()? != b'"' {
            return Err(self.wrong("looking for beginning of object key string"));
        }
        let start = self.at + 1;
        let key = self.string()?;
        self.path.push(Step::Key { start, end: self.at - 1, field });
        if self.peek()? != b':' {
            return Err(self.wrong("after object key"));
        }
        self.at += 1;
        self.space();
        Ok(Some(key))
    }

    /// Whether the array entered last has an element number `index`, which is then at hand.
    pub fn element(&mut self, index: usize) -> Result<bool, SyntaxError> {
        let next = self.peek()?;
        if index > 0 {
            self.path.pop();
        }
        match next {
            b']' if index == 0 || self.text[self.at] == b']' => {
                self.leave();
                return Ok(false);
            }
            b',' if index > 0 => {
                self.at += 1;
                self.space();
            }
            _ if index > 0 => return Err(self.wrong("after array element")),
            _ => {}
        }
        self.path.push(Step::Index(index));
        Ok(true)
    }

    /// A string; borrowed where it has no escapes.
    pub fn string(&mut self) -> Result<Cow<'a, str>, SyntaxError> {
        self.at += 1;
        let start = self.at;
        let rest = self.text.get(start..).unwrap_or_default();
        let length = plain(rest);
        self.at += length;
        match rest.get(length) {
            Some(b'"') => {
                self.at += 1;
                if let Some(text) = self.valid.and_then(|text| text.get(start..start + length)) {
                    return Ok(Cow::Borrowed(text));
                }
                let raw = &rest[..length];
                // The check alone is much faster than the search for what to replace.
                Ok(std::str::from_utf8(raw).map_or_else(|_| String::from_utf8_lossy(raw), Cow::Borrowed))
            }
            Some(b'\\') => self.escaped(start),
            _ => Err(self.wrong("in string literal")),
        }
    }

    fn escaped(&mut self, start: usize) -> Result<Cow<'a, str>, SyntaxError> {
        let mut out = self.text[start..self.at].to_vec();
        loop {
            match self.text.get(self.at).copied() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(Cow::Owned(match String::from_utf8(out) {
                        Ok(text) => text,
                        Err(bad) => String::from_utf8_lossy(bad.as_bytes()).into_owned(),
                    }));
                }
                Some(b'\\') => {
                    self.at += 1;
                    let plain = match self.text.get(self.at).copied() {
                        Some(c @ (b'"' | b'\\' | b'/')) => c,
                        Some(b'b') => 8,
                        Some(b'f') => 12,
                        Some(b'n') => b'\n',
                        Some(b'r') => b'\r',
                        Some(b't') => b'\t',
                        Some(b'u') => {
                            self.at += 1;
                            let c = self.unicode()?;
                            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                            continue;
                        }
                        _ => return Err(self.wrong("in string escape code")),
                    };
                    out.push(plain);
                    self.at += 1;
                }
                Some(0..=0x1f) | None => return Err(self.wrong("in string literal")),
                Some(_) => {
                    let rest = &self.text[self.at..];
                    let length = plain(rest);
                    out.extend_from_slice(&rest[..length]);
                    self.at += length;
                }
            }
        }
    }

    fn hex4(&mut self) -> Result<u32, SyntaxError> {
        let mut code = 0;
        for _ in 0..4 {
            let digit = self.text.get(self.at).and_then(|b| char::from(*b).to_digit(16));
            code = code * 16 + digit.ok_or_else(|| self.wrong(r"in \u hexadecimal character escape"))?;
            self.at += 1;
        }
        Ok(code)
    }

    fn unicode(&mut self) -> Result<char, SyntaxError> {
        let first = self.hex4()?;
        if (0xd800..0xdc00).contains(&first) && self.text[self.at..].starts_with(b"\\u") {
            let back = self.at;
            self.at += 2;
            let second = self.hex4()?;
            if (0xdc00..0xe000).contains(&second) {
                let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            self.at = back;
        }
        Ok(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    /// The text of a number.
    pub fn number(&mut self) -> Result<&'a str, SyntaxError> {
        let start = self.at;
        if self.text[self.at] == b'-' {
            self.at += 1;
        }
        match self.text.get(self.at) {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits(),
            _ => return Err(self.wrong("in numeric literal")),
        }
        if self.text.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.some_digits("after decimal point in numeric literal")?;
        }
        if let Some(b'e' | b'E') = self.text.get(self.at) {
            self.at += 1;
            if let Some(b'+' | b'-') = self.text.get(self.at) {
                self.at += 1;
            }
            self.some_digits("in exponent of numeric literal")?;
        }
        Ok(std::str::from_utf8(&self.text[start..self.at]).unwrap_or("0"))
    }

    fn digits(&mut self) {
        while let Some(b'0'..=b'9') = self.text.get(self.at) {
            self.at += 1;
        }
    }

    fn some_digits(&mut self, context: &str) -> Result<(), SyntaxError> {
        match self.text.get(self.at) {
            Some(b'0'..=b'9') => {
                self.digits();
                Ok(())
            }
            _ => Err(self.wrong(context)),
        }
    }

    /// `true`, `false` or `null`, the first byte of which was peeked.
    pub fn literal(&mut self) -> Result<Value, SyntaxError> {
        let (word, value) = match self.text[self.at] {
            b't' => ("true", Value::Bool(true)),
            b'f' => ("false", Value::Bool(false)),
            b'n' => ("null", Value::Null),
            _ => return Err(self.wrong("looking for beginning of value")),
        };
        for expected in word.bytes() {
            if self.text.get(self.at) != Some(&expected) {
                return Err(self.wrong(&format!("in literal {word} (expecting '{}')", char::from(expected))));
            }
            self.at += 1;
        }
        Ok(value)
    }

    /// Any value, as `interface{}` holds it: integers that fit stay integers.
    pub fn any(&mut self) -> Result<Value, SyntaxError> {
        match self.peek()? {
            b'{' => {
                self.open()?;
                let (mut map, mut first) = (Map::new(), true);
                while let Some(key) = self.key(&mut first, false)? {
                    if map.insert(key.into(), self.any()?).is_some() {
                        self.complain("duplicate");
                    }
                }
                Ok(Value::Object(map))
            }
            b'[' => {
                self.open()?;
                let mut list = Vec::new();
                while self.element(list.len())? {
                    list.push(self.any()?);
                }
                Ok(Value::Array(list))
            }
            b'"' => Ok(Value::String(self.string()?.into_owned())),
            b'-' | b'0'..=b'9' => number_value(self.number()?),
            _ => self.literal(),
        }
    }

    /// An object at rest without `metadata.managedFields`; any other value whole.
    pub fn without_owners(&mut self) -> Result<Value, SyntaxError> {
        self.members_but(|lexer, key| {
            match key {
                "metadata" => lexer.members_but(|lexer, key| match key {
                    "managedFields" => lexer.pass().map(|()| None),
                    _ => lexer.any().map(Some),
                }),
                _ => lexer.any(),
            }
            .map(Some)
        })
    }

    /// An object with the members that `read` gives a value; any other value whole.
    fn members_but(
        &mut self,
        read: impl Fn(&mut Self, &str) -> Result<Option<Value>, SyntaxError>,
    ) -> Result<Value, SyntaxError> {
        if self.peek()? != b'{' {
            return self.any();
        }
        self.open()?;
        let (mut map, mut first) = (Map::new(), true);
        while let Some(key) = self.key(&mut first, false)? {
            if let Some(value) = read(self, &key)? {
                map.insert(key.into(), value);
            }
        }
        Ok(Value::Object(map))
    }

    /// An object with those members only that are named; any other value whole.
    pub fn members(&mut self, names: &[&str]) -> Result<Value, SyntaxError> {
        self.members_but(|lexer, key| match names.contains(&key) {
            true => lexer.any().map(Some),
            false => lexer.skip().map(|()| None),
        })
    }

    /// The text from the value at hand to its end, skipped.
    pub fn raw(&mut self) -> Result<&'a [u8], SyntaxError> {
        self.space();
        let start = self.at;
        self.skip()?;
        Ok(&self.text[start..self.at])
    }

    /// The same, passed.
    pub fn raw_at_rest(&mut self) -> Result<&'a [u8], SyntaxError> {
        self.space();
        let start = self.at;
        self.pass()?;
        Ok(&self.text[start..self.at])
    }

    /// Skips a value of a text at rest, which we wrote ourselves: nothing but its end is looked for.
    pub fn pass(&mut self) -> Result<(), SyntaxError> {
        self.space();
        let rest = self.text.get(self.at..).unwrap_or_default();
        let end = super::parts::end(rest);
        self.at += end.unwrap_or(rest.len());
        if end.is_some() { Ok(()) } else { Err(self.wrong("")) }
    }

    /// Skips a value that somebody knows already, if it is the one at hand.
    pub fn pass_known(&mut self, value: &[u8]) -> bool {
        let is = self.text.get(self.at..).is_some_and(|rest| rest.starts_with(value));
        self.at += if is { value.len() } else { 0 };
        is
    }

    /// Skips a value.
    pub fn skip(&mut self) -> Result<(), SyntaxError> {
        match self.peek()? {
            b'{' => {
                self.open()?;
                let mut first = true;
                while self.key(&mut first, false)?.is_some() {
                    self.skip()?;
                }
                Ok(())
            }
            b'[' => {
                self.open()?;
                for index in 0.. {
                    if !self.element(index)? {
                        break;
                    }
                    self.skip()?;
                }
                Ok(())
            }
            b'"' => self.string().map(|_| ()),
            b'-' | b'0'..=b'9' => self.number().map(|_| ()),
            _ => self.literal().map(|_| ()),
        }
    }

    /// Notes that the member being read is `unknown` or `duplicate`.
    pub fn complain(&mut self, what: &str) {
        if self.strict.len() < MAX_STRICT {
            let complaint = format!("{what} field \"{}\"", self.place());
            if !self.strict.contains(&complaint) {
                self.strict.push(complaint);
            }
        }
    }

    /// Where the reader is: `spec.containers[0].name`.
    fn place(&self) -> String {
        let mut out = String::new();
        for step in &self.path {
            match *step {
                Step::Index(index) => out.push_str(&format!("[{index}]")),
                Step::Key { start, end, .. } => {
                    if !out.is_empty() {
                        out.push('.');
                    }
                    out.push_str(&String::from_utf8_lossy(&self.text[start..end]));
                }
            }
        }
        out
    }

    /// How many keys and indexes lead here; for [`Lexer::field_up_to`].
    pub fn depth_of_path(&self) -> usize {
        self.path.len()
    }

    /// The field names among the first `steps` steps, joined as Go names fields in type errors.
    pub fn field_up_to(&self, steps: usize) -> String {
        let keys = self.path[..steps.min(self.path.len())].iter().filter_map(|s| match *s {
            Step::Key { start, end, field: true } => Some(String::from_utf8_lossy(&self.text[start..end])),
            _ => None,
        });
        keys.collect::<Vec<_>>().join(".")
    }
}

/// An integer where the text is one that fits 64 bits, else a float.
pub(super) fn number_value(text: &str) -> Result<Value, SyntaxError> {
    if let Ok(number) = text.parse::<i64>() {
        return Ok(Value::Number(number.into()));
    }
    let float = text.parse::<f64>().ok().and_then(Number::from_f64);
    float
        .map(Value::Number)
        .ok_or_else(|| SyntaxError(format!("json: cannot unmarshal number {text} into Go value of type float64")))
}

/// Whether the whole text is one JSON value.
pub(super) fn check(text: &[u8]) -> Result<(), SyntaxError> {
    let mut lexer = Lexer::new(text);
    lexer.skip()?;
    lexer.end()
}
