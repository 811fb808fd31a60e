//! Text of an expression to tokens, with the complaints of cel-go's lexer: it reads on behind what is no token.

use super::issue::{self, Issue};
use super::kinds::Kinds;

#[derive(Debug, Clone, PartialEq)]
pub enum Token {
    Name(String),
    /// A name in backquotes.
    Escaped(String),
    Int(i64),
    /// The smallest integer's digits, which only a minus sign makes one.
    Smallest,
    Uint(u64),
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
    /// An operator, a bracket, or a word of the language.
    Sign(&'static str),
    /// What looks like a literal of this kind and has no value; why.
    Wrong(Kinds, &'static str),
    End,
}

impl Token {
    pub fn kind(&self) -> Kinds {
        match self {
            Token::Name(_) => Kinds::NAME,
            Token::Escaped(_) => Kinds::ESCAPED,
            Token::Int(_) | Token::Smallest => Kinds::INT,
            Token::Uint(_) => Kinds::UINT,
            Token::Double(_) => Kinds::DOUBLE,
            Token::Text(_) => Kinds::TEXT,
            Token::Bytes(_) => Kinds::BYTES,
            Token::Sign(sign) => Kinds::sign(sign),
            Token::Wrong(kind, _) => *kind,
            Token::End => Kinds::END,
        }
    }
}

/// A token and where it stands.
#[derive(Debug, Clone)]
pub struct Lexed {
    pub at: usize,
    pub end: usize,
    pub token: Token,
}

const SIGNS: [&str; 24] = [
    "&&", "||", "<=", ">=", "==", "!=", "(", ")", "[", "]", "{", "}", ",", ".", "?", ":", "<", ">", "!", "+", "-", "*",
    "/", "%",
];
const WORDS: [&str; 4] = ["in", "true", "false", "null"];

/// All tokens. Characters that begin none are complained about and left out.
pub fn lex(text: &str, complaints: &mut Vec<Issue>) -> Vec<Lexed> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let first = rest.chars().next().unwrap_or_default();
        if matches!(first, ' ' | '\t' | '\r' | '\n' | '\u{c}') {
            at += 1;
            continue;
        }
        if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
            continue;
        }
        let (token, length) = match literal(rest) {
            Scan::Token(token, length) => (token, length),
            Scan::Failed(length) => {
                issue::keep(complaints, unexpected(at, &rest[..length]));
                at += length;
                continue;
            }
            Scan::None => match plain(rest, first) {
                Ok(found) => found,
                Err(length) => {
                    issue::keep(complaints, unexpected(at, &rest[..length]));
                    at += length;
                    continue;
                }
            },
        };
        out.push(Lexed { at, end: at + length, token });
        at += length;
    }
    out.push(Lexed { at: text.len(), end: text.len(), token: Token::End });
    out
}

/// The lexer shows all that it has read, with the character that did not fit.
fn unexpected(at: usize, read: &str) -> Issue {
    Issue { at, text: format!("Syntax error: token recognition error at: '{read}'") }
}

/// A number, a name or a sign. The error is how much of the text was read in vain.
fn plain(rest: &str, first: char) -> Result<(Token, usize), usize> {
    if first.is_ascii_digit() || first == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit()) {
        return Ok(number(rest));
    }
    if first.is_ascii_alphabetic() || first == '_' {
        let length = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let name = &rest[..length];
        let word = WORDS.iter().find(|word| **word == name);
        return Ok((word.map_or_else(|| Token::Name(name.into()), |word| Token::Sign(word)), length));
    }
    // Where reading fails, the character that does not fit is read, too.
    let through = |end: usize| rest[end..].chars().next().map_or(rest.len(), |c| end + c.len_utf8());
    if first == '`' {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/' | ' ');
        let end = rest[1..].find(|c| !fits(c)).map_or(rest.len(), |end| end + 1);
        return match end > 1 && rest[end..].starts_with('`') {
            true => Ok((Token::Escaped(rest[1..end].to_owned()), end + 1)),
            false => Err(through(end)),
        };
    }
    match SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
        Some(sign) => Ok((Token::Sign(sign), sign.len())),
        // Half of a sign that has two characters.
        None if matches!(first, '=' | '&' | '|') => Err(through(1)),
        None => Err(first.len_utf8()),
    }
}

fn number(rest: &str) -> (Token, usize) {
    let bytes = rest.as_bytes();
    let (bad_int, bad_uint) =
        (Token::Wrong(Kinds::INT, "invalid int literal"), Token::Wrong(Kinds::UINT, "invalid uint literal"));
    let radix = rest.strip_prefix("0x");
    if let Some(digits) = radix.filter(|d| d.starts_with(|c: char| c.is_ascii_hexdigit())) {
        let length = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
        if digits[length..].starts_with(['u', 'U']) {
            return (u64::from_str_radix(&digits[..length], 16).map_or(bad_uint, Token::Uint), length + 3);
        }
        return (i64::from_str_radix(&digits[..length], 16).map_or(bad_int, Token::Int), length + 2);
    }
    let mut end = bytes.iter().take_while(|b| b.is_ascii_digit()).count();
    let mut double = false;
    if bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) {
        double = true;
        end += 1 + bytes[end + 1..].iter().take_while(|b| b.is_ascii_digit()).count();
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        let digits = bytes.get(end + 1 + sign..).unwrap_or_default().iter().take_while(|b| b.is_ascii_digit()).count();
        if digits > 0 {
            double = true;
            end += 1 + sign + digits;
        }
    }
    let digits = &rest[..end];
    if double {
        let value = digits.parse().ok().filter(|value: &f64| value.is_finite());
        return (value.map_or(Token::Wrong(Kinds::DOUBLE, "invalid double literal"), Token::Double), end);
    }
    if rest[end..].starts_with(['u', 'U']) {
        return (digits.parse().map_or(bad_uint, Token::Uint), end + 1);
    }
    let token = match digits.parse::<i64>() {
        Ok(value) => Token::Int(value),
        Err(_) if digits.parse::<u64>() == Ok(1 << 63) => Token::Smallest,
        Err(_) => bad_int,
    };
    (token, end)
}

/// What comes of trying to read a literal.
enum Scan {
    Token(Token, usize),
    /// So much was read until a character did not fit, that one included.
    Failed(usize),
    None,
}

fn is_triple(text: &str, quote: char) -> bool {
    text.chars().take(3).filter(|c| *c == quote).count() == 3
}

/// A text or bytes literal: raw or not, in one or three quotes of either kind.
fn literal(rest: &str) -> Scan {
    let bytes = rest.starts_with(['b', 'B']);
    let raw = rest[usize::from(bytes)..].starts_with(['r', 'R']);
    let start = usize::from(bytes) + usize::from(raw);
    let body = &rest[start..];
    let Some(quote) = body.chars().next().filter(|c| matches!(c, '"' | '\'')) else { return Scan::None };
    let triple = is_triple(body, quote);
    let long = if triple { content(&body[3..], quote, true, raw).ok().map(|end| (3, end)) } else { None };
    let (width, end) = match long.map_or_else(|| content(&body[1..], quote, false, raw).map(|end| (1, end)), Ok) {
        Ok(found) => found,
        // The letters before the quote are a name then.
        Err(_) if start > 0 => return Scan::None,
        Err(read) => return Scan::Failed(1 + read),
    };
    let (content, length) = (&body[width..width + end], start + 2 * width + end);
    let token = match (raw, bytes) {
        (true, true) => Token::Bytes(content.as_bytes().to_vec()),
        (true, false) => Token::Text(content.to_owned()),
        (false, true) => {
            unescape(content, true).map_or(Token::Wrong(Kinds::BYTES, "unable to unescape string"), Token::Bytes)
        }
        (false, false) => {
            let text = unescape(content, false).and_then(|b| String::from_utf8(b).ok());
            text.map_or(Token::Wrong(Kinds::TEXT, "invalid unicode code point"), Token::Text)
        }
    };
    Scan::Token(token, length)
}

/// Where the content of a literal ends. The error is how much was read, the character that does not fit included.
fn content(inside: &str, quote: char, triple: bool, raw: bool) -> Result<usize, usize> {
    let mut chars = inside.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            _ if c == quote && (!triple || is_triple(&inside[at..], quote)) => {
                return Ok(at);
            }
            '\n' | '\r' if !triple => return Err(at + 1),
            '\\' if !raw => {
                let length = escape(&inside[at + 1..]).map_err(|read| at + 1 + read)?;
                while chars.next_if(|(next, _)| *next <= at + length).is_some() {}
            }
            _ => {}
        }
    }
    Err(inside.len())
}

/// The length of what follows a backslash. The error is how much was read, the character that does not fit included.
fn escape(text: &str) -> Result<usize, usize> {
    let digits = |from: usize, count: usize, fits: fn(char) -> bool| {
        let found = text[from..].chars().take(count).take_while(|c| fits(*c)).count();
        if found == count {
            return Ok(from + count);
        }
        Err(text[from + found..].chars().next().map_or(text.len(), |c| from + found + c.len_utf8()))
    };
    let hex = |c: char| c.is_ascii_hexdigit();
    match text.chars().next() {
        None => Err(0),
        Some('a' | 'b' | 'f' | 'n' | 'r' | 't' | 'v' | '"' | '\'' | '\\' | '?' | '`') => Ok(1),
        Some('x' | 'X') => digits(1, 2, hex),
        Some('u') => digits(1, 4, hex),
        Some('U') => digits(1, 8, hex),
        Some('0'..='3') => digits(1, 2, |c| matches!(c, '0'..='7')),
        Some(other) => Err(other.len_utf8()),
    }
}

/// The value of a content whose escapes are well formed; None for one that means no character.
fn unescape(text: &str, bytes: bool) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        if c != '\\' {
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        let escape = rest.chars().next()?;
        rest = &rest[escape.len_utf8()..];
        let mut code = |digits: usize, radix: u32| -> Option<u32> {
            let value = u32::from_str_radix(rest.get(..digits)?, radix).ok()?;
            rest = &rest[digits..];
            Some(value)
        };
        let value = match escape {
            'a' => 7,
            'b' => 8,
            'f' => 12,
            'n' => 10,
            'r' => 13,
            't' => 9,
            'v' => 11,
            '\\' | '\'' | '"' | '`' | '?' => u32::from(escape),
            'x' | 'X' => code(2, 16)?,
            'u' if !bytes => code(4, 16)?,
            'U' if !bytes => code(8, 16)?,
            '0'..='3' => {
                rest = &text[text.len() - rest.len() - 1..];
                u32::from_str_radix(rest.get(..3)?, 8).ok().inspect(|_| rest = &rest[3..])?
            }
            _ => return None,
        };
        match (bytes, u8::try_from(value)) {
            (true, byte) => out.push(byte.ok()?),
            (false, _) => out.extend_from_slice(char::from_u32(value)?.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(text: &str) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        lex(text, &mut found);
        let shown = |issue: Issue| (issue.at, issue.text.rsplit("at: ").next().unwrap_or_default().to_owned());
        found.into_iter().map(shown).collect()
    }

    #[test]
    fn what_is_no_token_is_shown_with_the_character_that_did_not_fit() {
        for (text, expected) in [
            ("a | b", &[(2, "'| '")][..]),
            ("a = 1", &[(2, "'= '")]),
            ("a ===", &[(4, "'='")]),
            ("1 + $", &[(4, "'$'")]),
            ("a == \"open", &[(5, "'\"open'")]),
            (r#""\xFh""#, &[(0, r#"'"\xFh'"#), (5, "'\"'")]),
            (r"'\d+'", &[(0, r"''\d'"), (4, "'''")]),
            ("`a b", &[(0, "'`a b'")]),
            ("'a\nb'", &[(0, "''a\n'"), (4, "'''")]),
            ("'''a", &[(2, "''a'")]),
            ("r'\\d+' + b'\\x01' + br'\\' + \"\"\"a\n\"b\"\"\" + `a.b`", &[]),
        ] {
            let expected: Vec<(usize, String)> = expected.iter().map(|(at, text)| (*at, (*text).to_owned())).collect();
            assert_eq!(complaints(text), expected, "{text}");
        }
    }

    #[test]
    fn runs_of_quotes_are_read_once() {
        let since = std::time::Instant::now();
        lex(&"'".repeat(1_000_000), &mut Vec::new());
        assert!(since.elapsed().as_secs() < 20, "{:?}", since.elapsed());
    }

    #[test]
    fn literals_have_their_values() {
        let one = |text: &str| lex(text, &mut Vec::new()).remove(0).token;
        assert_eq!(one(r"'\u00e9\n\101'"), Token::Text("\u{e9}\nA".into()));
        assert_eq!(one(r"br'\x'"), Token::Bytes(b"\\x".to_vec()));
        assert_eq!(one("''"), Token::Text(String::new()));
        assert_eq!(one(r"'\ud800'"), Token::Wrong(Kinds::TEXT, "invalid unicode code point"));
        assert_eq!(one("99999999999999999999"), Token::Wrong(Kinds::INT, "invalid int literal"));
        assert_eq!(one("1e5"), Token::Double(1e5));
        assert_eq!(one("in"), Token::Sign("in"));
    }
}
