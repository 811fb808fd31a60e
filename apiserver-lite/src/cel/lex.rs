//! Text of an expression to tokens.

use super::issue::Issue;

#[derive(Debug, Clone, PartialEq)]
pub enum Token {
    Name(String),
    Int(i64),
    /// The smallest integer's digits, which only a minus sign makes one.
    Smallest,
    Uint(u64),
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
    /// An operator or a bracket.
    Sign(&'static str),
    End,
}

const SIGNS: [&str; 26] = [
    "&&", "||", "<=", ">=", "==", "!=", "[?", ".?", "(", ")", "[", "]", "{", "}", ",", ".", "?", ":", "<", ">", "!",
    "+", "-", "*", "/", "%",
];

/// Tokens and where each begins. Characters that begin none are complained about and left out.
///
/// # Errors
/// A literal that makes no sense or does not end.
pub fn lex(text: &str, complaints: &mut Vec<Issue>) -> Result<Vec<(usize, Token)>, Issue> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let first = rest.chars().next().unwrap_or_default();
        if first.is_whitespace() {
            at += first.len_utf8();
        } else if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
        } else if let Some((token, length)) = literal(text, at)? {
            out.push((at, token));
            at += length;
        } else if first.is_ascii_digit() || first == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit()) {
            let (token, length) = number(text, at)?;
            out.push((at, token));
            at += length;
        } else if first.is_ascii_alphabetic() || first == '_' {
            let length = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            out.push((at, Token::Name(rest[..length].to_owned())));
            at += length;
        } else if first == '`' {
            let Some(end) = rest[1..].find('`') else { return Err(unexpected(at, first)) };
            out.push((at, Token::Name(rest[1..=end].to_owned())));
            at += end + 2;
        } else if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            out.push((at, Token::Sign(sign)));
            at += sign.len();
        } else {
            complaints.push(unexpected(at, first));
            at += first.len_utf8();
        }
    }
    out.push((text.len(), Token::End));
    Ok(out)
}

fn unexpected(at: usize, found: char) -> Issue {
    Issue { at, text: format!("Syntax error: token recognition error at: '{found}'") }
}

fn number(text: &str, at: usize) -> Result<(Token, usize), Issue> {
    let rest = &text[at..];
    let bytes = rest.as_bytes();
    let bad = |what: &str| Issue { at, text: format!("invalid {what} literal") };
    let radix = rest.strip_prefix("0x").or_else(|| rest.strip_prefix("0X"));
    if let Some(digits) = radix.filter(|d| d.starts_with(|c: char| c.is_ascii_hexdigit())) {
        let length = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
        if digits[length..].starts_with(['u', 'U']) {
            let value = u64::from_str_radix(&digits[..length], 16).map_err(|_| bad("uint"))?;
            return Ok((Token::Uint(value), length + 3));
        }
        let value = i64::from_str_radix(&digits[..length], 16).map_err(|_| bad("int"))?;
        return Ok((Token::Int(value), length + 2));
    }
    let mut end = bytes.iter().take_while(|b| b.is_ascii_digit()).count();
    let mut double = false;
    if bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) {
        double = true;
        end += 1 + bytes[end + 1..].iter().take_while(|b| b.is_ascii_digit()).count();
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        let digits = bytes[end + 1 + sign..].iter().take_while(|b| b.is_ascii_digit()).count();
        if digits > 0 {
            double = true;
            end += 1 + sign + digits;
        }
    }
    let digits = &rest[..end];
    if double {
        return digits.parse().map(|v| (Token::Double(v), end)).map_err(|_| bad("double"));
    }
    if rest[end..].starts_with(['u', 'U']) {
        return digits.parse().map(|v| (Token::Uint(v), end + 1)).map_err(|_| bad("uint"));
    }
    match digits.parse::<i64>() {
        Ok(value) => Ok((Token::Int(value), end)),
        Err(_) if digits.parse::<u64>() == Ok(1 << 63) => Ok((Token::Smallest, end)),
        Err(_) => Err(bad("int")),
    }
}

/// A text or bytes literal: raw or not, in one or three quotes of either kind.
fn literal(text: &str, at: usize) -> Result<Option<(Token, usize)>, Issue> {
    let rest = &text[at..];
    let prefix: String = rest.chars().take_while(|c| matches!(c, 'r' | 'R' | 'b' | 'B')).take(2).collect();
    let raw = prefix.contains(['r', 'R']);
    let bytes = prefix.contains(['b', 'B']);
    if prefix.len() == 2 && !(raw && bytes) {
        return Ok(None);
    }
    let body = &rest[prefix.len()..];
    let Some(quote) = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|q| body.starts_with(*q)) else { return Ok(None) };
    let unterminated = || unexpected(at, rest.chars().next().unwrap_or_default());
    let inside = &body[quote.len()..];
    let mut end = 0;
    loop {
        let here = &inside[end..];
        let Some(c) = here.chars().next() else { return Err(unterminated()) };
        if here.starts_with(quote) {
            break;
        }
        if c == '\n' && quote.len() == 1 {
            return Err(unterminated());
        }
        end += c.len_utf8();
        if c == '\\' && !raw {
            end += inside[end..].chars().next().map_or(0, char::len_utf8);
        }
    }
    let length = prefix.len() + quote.len() * 2 + end;
    let content = &inside[..end];
    let bad = || Issue { at, text: "Syntax error: invalid escape sequence".into() };
    let token = match (raw, bytes) {
        (true, true) => Token::Bytes(content.as_bytes().to_vec()),
        (true, false) => Token::Text(content.to_owned()),
        (false, true) => Token::Bytes(unescape(content, true).ok_or_else(bad)?),
        (false, false) => {
            let text = unescape(content, false).and_then(|b| String::from_utf8(b).ok());
            Token::Text(text.ok_or_else(bad)?)
        }
    };
    Ok(Some((token, length)))
}

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
