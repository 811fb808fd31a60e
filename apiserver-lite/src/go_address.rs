//! Addresses as Go's `net/netip` reads them, with its complaints.

use std::net::{IpAddr, Ipv6Addr};

use crate::status::quote;

/// Why a text is no address; with the place where it goes wrong, if that is told.
type Wrong<'t> = (&'static str, Option<&'t str>);

/// An address, and whether it has a zone.
///
/// # Errors
/// `ParseAddr("..."): ` and why it is none.
pub fn parse(text: &str) -> Result<(IpAddr, bool), String> {
    let read = match text.find(['.', ':', '%']).map(|at| &text[at..=at]) {
        Some(".") => four(text).map(|four| (IpAddr::from(four), false)),
        Some(":") => six(text),
        Some(_) => Err(("missing IPv6 address", None)),
        None => Err(("unable to parse IP", None)),
    };
    read.map_err(|(why, at)| {
        let at = at.map(|at| format!(" (at {})", quote(at))).unwrap_or_default();
        format!("ParseAddr({}): {why}{at}", quote(text))
    })
}

/// A network: an address in it, and how many of its bits are the network's.
///
/// # Errors
/// `netip.ParsePrefix("..."): ` and why it is none.
pub fn parse_prefix(text: &str) -> Result<(IpAddr, u8), String> {
    let wrong = |why: String| format!("netip.ParsePrefix({}): {why}", quote(text));
    let (address, bits) = text.rsplit_once('/').ok_or_else(|| wrong("no '/'".into()))?;
    let (address, zoned) = parse(address).map_err(&wrong)?;
    if zoned {
        return Err(wrong("IPv6 zones cannot be present in a prefix".into()));
    }
    let bad = || wrong(format!("bad bits after slash: {}", quote(bits)));
    let plain = bits.len() == 1 || !bits.starts_with('0');
    if !plain || bits.is_empty() || !bits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(bad());
    }
    let most = if address.is_ipv4() { 32 } else { 128 };
    match bits.parse::<u64>() {
        Ok(bits) if bits <= most => Ok((address, u8::try_from(bits).unwrap_or(u8::MAX))),
        Ok(_) => Err(wrong("prefix length out of range".into())),
        Err(_) => Err(bad()),
    }
}

/// Four numbers with dots between them.
fn four(text: &str) -> Result<[u8; 4], Wrong<'_>> {
    let bytes = text.as_bytes();
    let (mut out, mut at_field, mut value, mut digits) = ([0; 4], 0, 0u16, 0);
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'0'..=b'9' => {
                if digits == 1 && value == 0 {
                    return Err(("IPv4 field has octet with leading zero", None));
                }
                value = value * 10 + u16::from(byte - b'0');
                digits += 1;
                if value > 255 {
                    return Err(("IPv4 field has value >255", None));
                }
            }
            b'.' => {
                if at == 0 || at == bytes.len() - 1 || bytes[at - 1] == b'.' {
                    return Err(("IPv4 field must have at least one digit", text.get(at..)));
                }
                if at_field == 3 {
                    return Err(("IPv4 address too long", None));
                }
                out[at_field] = u8::try_from(value).unwrap_or(u8::MAX);
                (at_field, value, digits) = (at_field + 1, 0, 0);
            }
            _ => return Err(("unexpected character", text.get(at..))),
        }
    }
    if at_field < 3 {
        return Err(("IPv4 address too short", None));
    }
    out[3] = u8::try_from(value).unwrap_or(u8::MAX);
    Ok(out)
}

fn six(whole: &str) -> Result<(IpAddr, bool), Wrong<'_>> {
    let (mut text, zone) = match whole.split_once('%') {
        Some((_, "")) => return Err(("zone must be a non-empty string", None)),
        Some((text, _)) => (text, true),
        None => (whole, false),
    };
    let mut bytes = Vec::with_capacity(16);
    let mut gap = None;
    if let Some(rest) = text.strip_prefix("::") {
        (gap, text) = (Some(0), rest);
    }
    while !text.is_empty() && bytes.len() < 16 {
        let digits = text.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(text.len());
        if digits > 4 {
            return Err(("each group must have 4 or less digits", Some(text)));
        }
        if digits == 0 {
            return Err(("each colon-separated field must have at least one digit", Some(text)));
        }
        if text[digits..].starts_with('.') {
            if gap.is_none() && bytes.len() != 12 {
                return Err(("embedded IPv4 address must replace the final 2 fields of the address", Some(text)));
            }
            if bytes.len() > 12 {
                let why = "too many hex fields to fit an embedded IPv4 at the end of the address";
                return Err((why, Some(text)));
            }
            bytes.extend(four(text)?);
            text = "";
            break;
        }
        bytes.extend(u16::from_str_radix(&text[..digits], 16).unwrap_or_default().to_be_bytes());
        text = &text[digits..];
        if text.is_empty() {
            break;
        }
        match text.strip_prefix(':') {
            None => return Err(("unexpected character, want colon", Some(text))),
            Some("") => return Err(("colon must be followed by more characters", Some(text))),
            Some(rest) => text = rest,
        }
        if let Some(rest) = text.strip_prefix(':') {
            if gap.is_some() {
                return Err(("multiple :: in address", Some(text)));
            }
            (gap, text) = (Some(bytes.len()), rest);
        }
    }
    if !text.is_empty() {
        return Err(("trailing garbage after address", Some(text)));
    }
    match gap {
        None if bytes.len() < 16 => return Err(("address string too short", None)),
        Some(_) if bytes.len() == 16 => return Err(("the :: must expand to at least one field of zeros", None)),
        Some(at) => {
            let zeros = std::iter::repeat_n(0, 16 - bytes.len());
            bytes.splice(at..at, zeros);
        }
        None => {}
    }
    let bytes: [u8; 16] = bytes.try_into().map_err(|_| ("address string too short", None))?;
    Ok((Ipv6Addr::from(bytes).into(), zone))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_that_everybody_reads() {
        for text in [
            "1.2.3.4",
            "0.0.0.0",
            "::",
            "::1",
            "1::",
            "fe80::1:2",
            "1:2:3:4:5:6:7:8",
            "::ffff:1.2.3.4",
            "1:2:3:4:5:6:1.2.3.4",
        ] {
            assert_eq!(parse(text), Ok((text.parse().expect(text), false)), "{text}");
        }
        assert_eq!(parse("fe80::1%eth0"), Ok(("fe80::1".parse().expect("an address"), true)));
        assert_eq!(parse_prefix("10.0.0.0/8"), Ok(("10.0.0.0".parse().expect("an address"), 8)));
        assert_eq!(parse_prefix("::/0").map(|(_, bits)| bits), Ok(0));
    }

    #[test]
    fn what_is_none_is_told_as_go_tells_it() {
        for (text, why) in [
            ("", "unable to parse IP"),
            ("localhost", "unable to parse IP"),
            ("%eth0", "missing IPv6 address"),
            ("1.2.3", "IPv4 address too short"),
            ("1.2.3.4.5", "IPv4 address too long"),
            ("1.2.3.256", "IPv4 field has value >255"),
            ("01.2.3.4", "IPv4 field has octet with leading zero"),
            ("1..2.3", "IPv4 field must have at least one digit (at \".2.3\")"),
            ("1.2.3.a", "unexpected character (at \"a\")"),
            ("1:2", "address string too short"),
            ("1:2:3:4:5:6:7:8:9", "trailing garbage after address (at \"9\")"),
            ("1::2::3", "multiple :: in address (at \":3\")"),
            ("12345::", "each group must have 4 or less digits (at \"12345::\")"),
            (":1", "each colon-separated field must have at least one digit (at \":1\")"),
            ("1:", "colon must be followed by more characters (at \":\")"),
            ("1:x", "each colon-separated field must have at least one digit (at \"x\")"),
            ("1x::", "unexpected character, want colon (at \"x::\")"),
            ("1:1.2.3.4", "embedded IPv4 address must replace the final 2 fields of the address (at \"1.2.3.4\")"),
            ("1:2:3:4:5:6:7::8", "the :: must expand to at least one field of zeros"),
            ("fe80::1%", "zone must be a non-empty string"),
        ] {
            assert_eq!(parse(text), Err(format!("ParseAddr({}): {why}", quote(text))), "{text}");
        }
        for (text, why) in [
            ("1.2.3.4", "no '/'"),
            ("1.2.3/8", "ParseAddr(\"1.2.3\"): IPv4 address too short"),
            ("1.2.3.4/33", "prefix length out of range"),
            ("1.2.3.4/08", "bad bits after slash: \"08\""),
            ("1.2.3.4/+8", "bad bits after slash: \"+8\""),
            ("1.2.3.4/", "bad bits after slash: \"\""),
            ("fe80::1%e/64", "IPv6 zones cannot be present in a prefix"),
        ] {
            assert_eq!(parse_prefix(text), Err(format!("netip.ParsePrefix({}): {why}", quote(text))), "{text}");
        }
    }
}
