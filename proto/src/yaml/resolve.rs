//! What a plain scalar stands for.

/// A scalar's meaning.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Scalar {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    /// Kept as text in JSON, yet not text: it is quoted when written.
    Timestamp,
    Merge,
    Text,
}

/// Resolves text that stands without quotes and without a tag.
pub(super) fn resolve(text: &str) -> Scalar {
    let bytes = text.as_bytes();
    let Some(&first) = bytes.first() else { return Scalar::Null };
    match first {
        b'0'..=b'9' | b'+' | b'-' => number(text),
        b'.' => match text {
            ".nan" | ".NaN" | ".NAN" => Scalar::Float(f64::NAN),
            ".inf" | ".Inf" | ".INF" => Scalar::Float(f64::INFINITY),
            _ => decimal(text).map_or(Scalar::Text, Scalar::Float),
        },
        b'<' if text == "<<" => Scalar::Merge,
        b'~' if text == "~" => Scalar::Null,
        _ => word(text),
    }
}

fn word(text: &str) -> Scalar {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Scalar::Bool(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Scalar::Bool(false),
        "null" | "Null" | "NULL" => Scalar::Null,
        _ => Scalar::Text,
    }
}

fn number(text: &str) -> Scalar {
    match text {
        "+.inf" | "+.Inf" | "+.INF" => return Scalar::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return Scalar::Float(f64::NEG_INFINITY),
        _ => {}
    }
    if is_timestamp(text) {
        return Scalar::Timestamp;
    }
    let plain: std::borrow::Cow<'_, str> = match text.contains('_') {
        true => text.replace('_', "").into(),
        false => text.into(),
    };
    let (negative, digits) = match plain.as_bytes().first() {
        Some(b'-') => (true, &plain[1..]),
        Some(b'+') => (false, &plain[1..]),
        _ => (false, &*plain),
    };
    let (radix, body) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    let whole = !body.is_empty() && body.chars().all(|c| c.is_digit(radix));
    if whole && let Ok(size) = u64::from_str_radix(body, radix) {
        let signed = if negative { 0i64.checked_sub_unsigned(size) } else { i64::try_from(size).ok() };
        match signed {
            Some(value) => return Scalar::Int(value),
            // Go's unsigned parser takes no sign.
            None if digits.len() == plain.len() => return Scalar::Uint(size),
            None => {}
        }
    }
    if let Some(float) = decimal(&plain) {
        return Scalar::Float(float);
    }
    match whole {
        // Too big for 64 bits: Go keeps every digit, we keep the size.
        true => {
            let size =
                body.chars().fold(0.0, |sum, c| sum * f64::from(radix) + f64::from(c.to_digit(radix).unwrap_or(0)));
            Scalar::Float(if negative { -size } else { size })
        }
        false => Scalar::Text,
    }
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`
fn decimal(text: &str) -> Option<f64> {
    let body = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = match body.find(['e', 'E']) {
        Some(at) => (&body[..at], Some(&body[at + 1..])),
        None => (body, None),
    };
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && fraction.is_empty() || !digits(whole) || !digits(fraction) {
        return None;
    }
    if let Some(exponent) = exponent {
        let exponent = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        if exponent.is_empty() || !digits(exponent) {
            return None;
        }
    }
    text.parse().ok().filter(|f: &f64| f.is_finite())
}

/// The forms of YAML 1.1 that go-yaml knows: a date, optionally with a time, short parts allowed.
fn is_timestamp(text: &str) -> bool {
    let bytes = text.as_bytes();
    if bytes.len() < 8 || bytes[4] != b'-' || !bytes[..4].iter().all(u8::is_ascii_digit) {
        return false;
    }
    let mut scan = Scan { rest: &bytes[5..] };
    let year: u32 = text[..4].parse().unwrap_or(0);
    let Some(month) = scan.part(1..=12) else { return false };
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = match month {
        2 => 28 + u32::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    if !scan.mark(b"-") || scan.part(1..=days).is_none() {
        return false;
    }
    if scan.rest.is_empty() {
        return true;
    }
    let zoned = scan.rest[0] != b' ';
    if !scan.mark(b"Tt ") || scan.part(0..=23).is_none() {
        return false;
    }
    if !scan.mark(b":") || scan.part(0..=59).is_none() || !scan.mark(b":") || scan.part(0..=59).is_none() {
        return false;
    }
    if scan.mark(b".,") && scan.digits() == 0 {
        return false;
    }
    if zoned && !scan.mark(b"Z") {
        let offset = scan.mark(b"+-") && scan.two_digits() && scan.mark(b":") && scan.two_digits();
        if !offset {
            return false;
        }
    }
    scan.rest.is_empty()
}

struct Scan<'a> {
    rest: &'a [u8],
}

impl Scan<'_> {
    fn mark(&mut self, marks: &[u8]) -> bool {
        let found = self.rest.first().is_some_and(|b| marks.contains(b));
        if found {
            self.rest = &self.rest[1..];
        }
        found
    }

    /// One or two digits in a range.
    fn part(&mut self, range: std::ops::RangeInclusive<u32>) -> Option<u32> {
        let count = self.rest.iter().take(2).take_while(|b| b.is_ascii_digit()).count();
        let value = self.rest[..count].iter().fold(0, |sum, b| sum * 10 + u32::from(b - b'0'));
        self.rest = &self.rest[count..];
        Some(value).filter(|v| count > 0 && range.contains(v))
    }

    fn two_digits(&mut self) -> bool {
        let found = self.rest.len() >= 2 && self.rest[..2].iter().all(u8::is_ascii_digit);
        if found {
            self.rest = &self.rest[2..];
        }
        found
    }

    fn digits(&mut self) -> usize {
        let count = self.rest.iter().take_while(|b| b.is_ascii_digit()).count();
        self.rest = &self.rest[count..];
        count
    }
}
