//! Formats of texts that schemas may ask for: those of go-openapi's `strfmt`, and Kubernetes' own names.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use regex::Regex;

use super::pattern;
use crate::go_url::Url;
use crate::names;

/// Whether a format means something for a type; the server takes no notice of others.
pub fn is_checked(ty: &str, format: &str) -> bool {
    match ty {
        "" | "string" => check(&format.replace('-', ""), "").is_some(),
        "integer" => matches!(format, "int32" | "int64"),
        "number" => matches!(format, "float" | "double"),
        _ => false,
    }
}

/// Whether a text has a format; true for formats that are not known.
pub fn fits(format: &str, text: &str) -> bool {
    check(&format.replace('-', ""), text).unwrap_or(true)
}

macro_rules! expression {
    ($text:expr, $pattern:literal) => {{
        static COMPILED: LazyLock<Option<Regex>> = LazyLock::new(|| pattern::compile_own($pattern).ok());
        COMPILED.as_ref().is_some_and(|regex| regex.is_match($text))
    }};
}

fn check(format: &str, text: &str) -> Option<bool> {
    Some(match format {
        "bsonobjectid" => text.len() == 24 && text.bytes().all(|b| b.is_ascii_hexdigit()),
        "uri" => Url::of_request(text).is_ok(),
        "email" => is_email(text),
        "hostname" => is_hostname(text),
        "ipv4" => text.contains('.') && ip(text).is_some(),
        "ipv6" => text.contains(':') && ip(text).is_some(),
        "cidr" => is_cidr(text),
        "mac" => is_mac(text),
        "uuid" => expression!(text, "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$"),
        "uuid3" => expression!(text, "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$"),
        "uuid4" => expression!(text, "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$"),
        "uuid5" => expression!(text, "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$"),
        "isbn" => is_isbn10(text) || is_isbn13(text),
        "isbn10" => is_isbn10(text),
        "isbn13" => is_isbn13(text),
        "creditcard" => is_credit_card(text),
        "ssn" => expression!(text, "^\\d{3}[- ]?\\d{2}[- ]?\\d{4}$"),
        "hexcolor" => expression!(text, "^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"),
        "rgbcolor" => expression!(
            text,
            "^rgb\\(\\s*(0|[1-9]\\d?|1\\d\\d?|2[0-4]\\d|25[0-5])\\s*,\\s*(0|[1-9]\\d?|1\\d\\d?|2[0-4]\\d|25[0-5])\\s*,\\s*(0|[1-9]\\d?|1\\d\\d?|2[0-4]\\d|25[0-5])\\s*\\)$"
        ),
        "byte" => expression!(
            text,
            "^(?:[A-Za-z0-9+\\/]{4})*(?:[A-Za-z0-9+\\/]{2}==|[A-Za-z0-9+\\/]{3}=|[A-Za-z0-9+\\/]{4})$"
        ),
        "password" => true,
        "date" => is_date(text),
        "duration" => is_duration(text),
        "datetime" => is_date_time(text),
        "k8sshortname" => names::dns_label(text).is_empty(),
        "k8slongname" => names::dns_subdomain(text).is_empty(),
        _ => return None,
    })
}

fn is_email(text: &str) -> bool {
    let address = match text.trim().strip_suffix('>') {
        Some(rest) => match rest.rsplit_once('<') {
            Some((_, address)) => address,
            None => return false,
        },
        None => text.trim(),
    };
    let Some((local, domain)) = address.rsplit_once('@') else { return false };
    let atom = |part: &str| {
        !part.is_empty()
            && part.chars().all(|c| c.is_ascii_alphanumeric() || !c.is_ascii() || "!#$%&'*+-/=?^_`{|}~".contains(c))
    };
    let quoted = local.len() > 2 && local.starts_with('"') && local.ends_with('"');
    let literal = domain.starts_with('[') && domain.ends_with(']');
    (quoted || local.split('.').all(atom)) && (literal || domain.split('.').all(atom))
}

fn is_hostname(text: &str) -> bool {
    text.len() <= 255
        && text.split('.').all(|label| !label.is_empty() && label.chars().count() <= 63)
        && expression!(
            text,
            "^([a-zA-Z0-9\\p{S}\\p{L}]((-?[a-zA-Z0-9\\p{S}\\p{L}]{0,62})?)|([a-zA-Z0-9\\p{S}\\p{L}](([a-zA-Z0-9-\\p{S}\\p{L}]{0,61}[a-zA-Z0-9\\p{S}\\p{L}])?)(\\.)){1,}([a-zA-Z\\p{L}]){2,63})$"
        )
}

/// An address as Go's older parser takes it: leading zeros in IPv4 are no matter.
fn ip(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return text.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    }
    let parts: Vec<u8> =
        text.split('.')
            .map(|p| {
                if p.is_empty() || p.len() > 10 || !p.bytes().all(|b| b.is_ascii_digit()) {
                    None
                } else {
                    p.parse().ok()
                }
            })
            .collect::<Option<_>>()?;
    <[u8; 4]>::try_from(parts).ok().map(|octets| IpAddr::V4(Ipv4Addr::from(octets)))
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let most = match ip(address) {
        Some(IpAddr::V4(_)) => 32,
        Some(IpAddr::V6(_)) => 128,
        None => return false,
    };
    !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit()) && bits.parse::<u32>().is_ok_and(|b| b <= most)
}

fn is_mac(text: &str) -> bool {
    let groups = |separator: char, digits: usize, counts: &[usize]| {
        let parts: Vec<&str> = text.split(separator).collect();
        counts.contains(&parts.len())
            && parts.iter().all(|p| p.len() == digits && p.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    groups(':', 2, &[6, 8, 20]) || groups('-', 2, &[6, 8, 20]) || groups('.', 4, &[3, 4, 10])
}

fn without_separators(text: &str) -> String {
    text.chars().filter(|c| !matches!(c, '-' | ' ')).collect()
}

fn is_isbn10(text: &str) -> bool {
    let text = without_separators(text);
    let digit = |(at, byte): (usize, u8)| match byte {
        b'0'..=b'9' => Some(u32::from(byte - b'0')),
        b'X' if at == 9 => Some(10),
        _ => None,
    };
    let digits: Option<Vec<u32>> = text.bytes().enumerate().map(digit).collect();
    digits.is_some_and(|d| d.len() == 10 && (1..).zip(&d).map(|(weight, d)| weight * d).sum::<u32>() % 11 == 0)
}

fn is_isbn13(text: &str) -> bool {
    let text = without_separators(text);
    if text.len() != 13 || !text.bytes().all(|b| b.is_ascii_digit()) {
        return false;
    }
    let sum: u32 = text.bytes().enumerate().map(|(at, b)| u32::from(b - b'0') * if at % 2 == 0 { 1 } else { 3 }).sum();
    sum.is_multiple_of(10)
}

fn is_credit_card(text: &str) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let known = expression!(
        &digits,
        "^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35\\d{3})\\d{11})$"
    );
    let sum: u32 = digits
        .bytes()
        .rev()
        .enumerate()
        .map(|(at, b)| {
            let digit = u32::from(b - b'0') * if at % 2 == 1 { 2 } else { 1 };
            if digit > 9 { digit - 9 } else { digit }
        })
        .sum();
    known && sum.is_multiple_of(10)
}

fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let [year, month, day] = parts.as_slice() else { return false };
    let number = |text: &str, digits: usize| {
        (text.len() == digits && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse::<u16>().ok()).flatten()
    };
    let (Some(year), Some(month), Some(day)) = (number(year, 4), number(month, 2), number(day, 2)) else {
        return false;
    };
    let month = u8::try_from(month).ok().and_then(|m| time::Month::try_from(m).ok());
    month.is_some_and(|month| {
        u8::try_from(day).is_ok_and(|day| time::Date::from_calendar_date(i32::from(year), month, day).is_ok())
    })
}

fn is_date_time(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let Some((date, clock)) = lower.split_once('t') else { return false };
    is_date(date)
        && expression!(clock, "^[0-9]{2}:[0-9]{2}:[0-9]{2}(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$")
        && clock.get(0..2) <= Some("23")
        && clock.get(3..5) <= Some("59")
        && clock.get(6..8) <= Some("59")
}

/// Go's form, or a number and a unit in words.
fn is_duration(text: &str) -> bool {
    proto::duration::parse(text).is_ok()
        || expression!(
            text,
            "(?i)^\\s*(\\d+)\\s*(ns|nanos?|nanoseconds?|us|µs|micros?|microseconds?|ms|millis?|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|w|wks?|weeks?)\\s*$"
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_their_formats() {
        let good = [
            ("ipv4", "10.0.0.1"),
            ("ipv6", "fe80::1"),
            ("cidr", "10.0.0.0/8"),
            ("mac", "00:11:22:aa:bb:cc"),
            ("date", "2024-02-29"),
            ("date-time", "2024-02-29T12:00:00.5Z"),
            ("duration", "1h30m"),
            ("duration", "22 ns"),
            ("uri", "https://example.com:80/a?b"),
            ("uri", "/a"),
            ("email", "a.b@example.com"),
            ("hostname", "a-b.example.com"),
            ("uuid", "7e57d004-2b97-0e7a-b45f-5387367791cd"),
            ("byte", "YWI="),
            ("k8s-short-name", "a-1"),
            ("isbn", "978-0321751041"),
            ("hexcolor", "#fff"),
            ("creditcard", "4111 1111 1111 1111"),
            ("password", "x"),
        ];
        for (format, text) in good {
            assert!(fits(format, text), "{format} {text}");
        }
    }

    #[test]
    fn texts_lack_other_formats() {
        let bad = [
            ("ipv4", "10.0.0.256"),
            ("ipv4", "::1"),
            ("ipv6", "10.0.0.1"),
            ("cidr", "10.0.0.0/33"),
            ("mac", "00:11"),
            ("date", "2023-02-29"),
            ("date-time", "2024-02-29 12:00:00Z"),
            ("date-time", "2024-02-29T24:00:00Z"),
            ("duration", "1 year"),
            ("uri", "example.com"),
            ("email", "a@"),
            ("hostname", "-a"),
            ("uuid", "7e57"),
            ("byte", "a"),
            ("k8s-short-name", "A"),
            ("isbn10", "0321751044"),
            ("creditcard", "4111 1111 1111 1112"),
        ];
        for (format, text) in bad {
            assert!(!fits(format, text), "{format} {text}");
        }
        assert!(!is_checked("string", "made-up") && is_checked("integer", "int32") && !is_checked("object", "date"));
    }
}
