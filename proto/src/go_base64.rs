//! Base64 as Go's `encoding/base64` reads it: line ends are passed over, bits that are left over in the last letter are
//! not looked at, and what cannot be read is told by its place.
//!
//! The usual case, text as everybody writes it, costs one pass of the `base64` crate; only what that refuses is read
//! letter by letter.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

/// Reads text in the standard alphabet, filled up with `=`.
///
/// # Errors
/// The offset that Go's decoder reports.
pub fn standard(text: &str) -> Result<Vec<u8>, usize> {
    STANDARD.decode(text).or_else(|_| by_letter(text.as_bytes(), [b'+', b'/'], true))
}

/// Reads text in the alphabet of URLs, not filled up.
///
/// # Errors
/// The offset that Go's decoder reports.
pub fn url_unpadded(text: &str) -> Result<Vec<u8>, usize> {
    URL_SAFE_NO_PAD.decode(text).or_else(|_| by_letter(text.as_bytes(), [b'-', b'_'], false))
}

fn by_letter(text: &[u8], last: [u8; 2], padded: bool) -> Result<Vec<u8>, usize> {
    let value = |letter: u8| match letter {
        b'A'..=b'Z' => Some(letter - b'A'),
        b'a'..=b'z' => Some(letter - b'a' + 26),
        b'0'..=b'9' => Some(letter - b'0' + 52),
        _ => last.iter().position(|l| *l == letter).and_then(|at| u8::try_from(at).ok()).map(|at| at + 62),
    };
    let after_line_ends =
        |at: usize| at + text[at.min(text.len())..].iter().take_while(|letter| matches!(letter, b'\r' | b'\n')).count();
    let mut out = Vec::with_capacity(text.len() / 4 * 3 + 3);
    // Up to four letters, and how many there are.
    let (mut quantum, mut have, mut at) = ([0u8; 4], 0, 0);
    let bytes = |quantum: [u8; 4]| {
        let [a, b, c, d] = quantum;
        [(a << 2) | (b >> 4), (b << 4) | (c >> 2), (c << 6) | d]
    };
    loop {
        at = after_line_ends(at);
        let Some(letter) = text.get(at).copied() else {
            return match have {
                0 => Ok(out),
                1 => Err(at - 1),
                _ if padded => Err(at - have),
                _ => {
                    out.extend_from_slice(&bytes(quantum)[..have - 1]);
                    Ok(out)
                }
            };
        };
        if let Some(value) = value(letter) {
            quantum[have] = value;
            (have, at) = (have + 1, at + 1);
            if have == 4 {
                out.extend_from_slice(&bytes(quantum));
                (quantum, have) = ([0; 4], 0);
            }
            continue;
        }
        if !padded || letter != b'=' || have < 2 {
            return Err(at);
        }
        at += 1;
        if have == 2 {
            at = after_line_ends(at);
            match text.get(at) {
                None => return Err(text.len()),
                Some(b'=') => at += 1,
                Some(_) => return Err(at - 1),
            }
        }
        at = after_line_ends(at);
        if at < text.len() {
            return Err(at);
        }
        out.extend_from_slice(&bytes(quantum)[..have - 1]);
        return Ok(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_as_go_reads_it() {
        for (text, wanted) in [
            ("", Ok("")),
            ("aGk=", Ok("hi")),
            ("aG\nk=\r\n", Ok("hi")),
            ("aGl=", Ok("hi")),
            ("YWJj", Ok("abc")),
            ("YWJjZA==", Ok("abcd")),
            ("YWJjZA=\n=", Ok("abcd")),
            ("?", Err(0)),
            ("YWJj?", Err(4)),
            ("YW Jj", Err(2)),
            ("a", Err(0)),
            ("aGk", Err(0)),
            ("YWJjZA", Err(4)),
            ("YWJjZA=", Err(7)),
            ("YWJjZA=a", Err(6)),
            ("aGk==", Err(4)),
            ("aGk=a", Err(4)),
            ("=", Err(0)),
            ("a===", Err(1)),
            ("a-b_", Err(1)),
            ("YWJ\n", Err(1)),
        ] {
            assert_eq!(standard(text), wanted.map(|text| text.as_bytes().to_vec()), "{text:?}");
        }
    }

    #[test]
    fn text_of_urls_is_not_filled_up() {
        for (text, wanted) in [
            ("aGk", Ok("hi")),
            ("aGl", Ok("hi")),
            ("a\nGk", Ok("hi")),
            ("YWJjZA", Ok("abcd")),
            ("fn5-", Ok("~~~")),
            ("aGk=", Err(3)),
            ("YWJjZ", Err(4)),
            ("a+b/", Err(1)),
        ] {
            assert_eq!(url_unpadded(text), wanted.map(|text| text.as_bytes().to_vec()), "{text:?}");
        }
    }
}
