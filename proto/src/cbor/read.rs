//! Data items to trees.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Map, Number, Value};

/// Nesting of lists, maps, and tags in tags; upstream's `MaxNestedLevels`. Objects have a quarter of it.
const MAX_DEPTH: usize = 64;

/// Why bytes are no document. The sender's mistake.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CborError {
    #[error("unexpected EOF")]
    End,
    #[error("cbor: {rest} bytes of extraneous data starting at index {at}")]
    Rest { rest: usize, at: usize },
    #[error("cbor: invalid additional information {0}")]
    Head(u8),
    #[error("cbor: unexpected \"break\" code")]
    Break,
    #[error("cbor: invalid UTF-8 string")]
    Utf8,
    #[error("cbor: exceeded max nested level {MAX_DEPTH}")]
    Depth,
    #[error("cbor: found duplicate map key {0:?}")]
    Duplicate(String),
    #[error("cbor: map keys must be text")]
    Key,
    /// A number or simple value without a JSON form.
    #[error("cbor: cannot decode {0}")]
    Unsupported(&'static str),
}

/// Reads one document and nothing behind it.
///
/// # Errors
/// What is wrong with it.
pub fn decode(bytes: &[u8]) -> Result<Value, CborError> {
    let (value, at) = decode_prefix(bytes)?;
    if at < bytes.len() { Err(CborError::Rest { rest: bytes.len() - at, at }) } else { Ok(value) }
}

/// Reads the first document of a sequence; returns it and its length.
///
/// # Errors
/// What is wrong with it.
pub fn decode_prefix(bytes: &[u8]) -> Result<(Value, usize), CborError> {
    let mut reader = Reader { bytes, at: 0 };
    let value = reader.item(0, Later::Nothing)?;
    Ok((value, reader.at))
}

/// What a tag says about the byte strings inside it.
#[derive(Clone, Copy)]
enum Later {
    Nothing,
    Base64Url,
    Base64,
    Base16,
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Argument of a head; None for an item of unknown length.
type Argument = Option<u64>;

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], CborError> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.bytes.len()).ok_or(CborError::End)?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn number(&mut self, count: usize) -> Result<u64, CborError> {
        Ok(self.take(count)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn head(&mut self) -> Result<(u8, u8, Argument), CborError> {
        let first = self.take(1)?[0];
        let (major, low) = (first >> 5, first & 0x1f);
        let argument = match low {
            0..=23 => Some(u64::from(low)),
            24 => Some(self.number(1)?),
            25 => Some(self.number(2)?),
            26 => Some(self.number(4)?),
            27 => Some(self.number(8)?),
            31 if matches!(major, 2..=5 | 7) => None,
            other => return Err(CborError::Head(other)),
        };
        Ok((major, low, argument))
    }

    /// The end of an item of unknown length.
    fn ends(&mut self) -> Result<bool, CborError> {
        let ends = *self.bytes.get(self.at).ok_or(CborError::End)? == 0xff;
        self.at += usize::from(ends);
        Ok(ends)
    }

    fn item(&mut self, depth: usize, later: Later) -> Result<Value, CborError> {
        let (major, low, argument) = self.head()?;
        // A tag alone is no level.
        let is_level = matches!(major, 4 | 5) || major == 6 && self.bytes.get(self.at).is_some_and(|b| b >> 5 == 6);
        let depth = depth + usize::from(is_level);
        if depth > MAX_DEPTH {
            return Err(CborError::Depth);
        }
        match (major, argument) {
            (0, Some(number)) => {
                i64::try_from(number).map(Value::from).map_err(|_| CborError::Unsupported("an integer beyond int64"))
            }
            (1, Some(number)) => {
                let number = i64::try_from(number).map_err(|_| CborError::Unsupported("an integer beyond int64"))?;
                Ok((-1 - number).into())
            }
            (2 | 3, argument) => Ok(self.string(major, argument, later)?.into()),
            (4, argument) => self.array(argument, depth, later),
            (5, argument) => self.map(argument, depth, later),
            (6, Some(tag)) => {
                let later = match tag {
                    21 => Later::Base64Url,
                    22 => Later::Base64,
                    23 => Later::Base16,
                    2 | 3 => return Err(CborError::Unsupported("a big number")),
                    _ => later,
                };
                self.item(depth, later)
            }
            (7, Some(argument)) => simple(low, argument),
            _ => Err(CborError::Break),
        }
    }

    /// The text of a string, whole or in pieces.
    fn string(&mut self, major: u8, argument: Argument, later: Later) -> Result<String, CborError> {
        let mut all = Vec::new();
        match argument {
            Some(length) => all.extend_from_slice(self.take(usize::try_from(length).map_err(|_| CborError::End)?)?),
            None => {
                while !self.ends()? {
                    let (piece, _, length) = self.head()?;
                    let length = length.filter(|_| piece == major).ok_or(CborError::Break)?;
                    all.extend_from_slice(self.take(usize::try_from(length).map_err(|_| CborError::End)?)?);
                }
            }
        }
        match later {
            Later::Base64Url if major == 2 => Ok(URL_SAFE_NO_PAD.encode(all)),
            Later::Base64 if major == 2 => Ok(STANDARD.encode(all)),
            Later::Base16 if major == 2 => Ok(all.iter().map(|b| format!("{b:02x}")).collect()),
            _ => String::from_utf8(all).map_err(|_| CborError::Utf8),
        }
    }

    fn array(&mut self, argument: Argument, depth: usize, later: Later) -> Result<Value, CborError> {
        let mut out = Vec::new();
        let mut left = argument;
        loop {
            match &mut left {
                Some(0) => break,
                Some(left) => *left -= 1,
                None if self.ends()? => break,
                None => {}
            }
            out.push(self.item(depth, later)?);
        }
        Ok(out.into())
    }

    fn map(&mut self, argument: Argument, depth: usize, later: Later) -> Result<Value, CborError> {
        let mut out = Map::new();
        let mut left = argument;
        loop {
            match &mut left {
                Some(0) => break,
                Some(left) => *left -= 1,
                None if self.ends()? => break,
                None => {}
            }
            let (major, _, length) = self.head()?;
            if !matches!(major, 2 | 3) {
                return Err(CborError::Key);
            }
            let key = self.string(major, length, Later::Nothing)?;
            let value = self.item(depth, later)?;
            if out.contains_key(&key) {
                return Err(CborError::Duplicate(key));
            }
            out.insert(key.into(), value);
        }
        Ok(out.into())
    }
}

fn simple(low: u8, argument: u64) -> Result<Value, CborError> {
    let float = match low {
        20 => return Ok(false.into()),
        21 => return Ok(true.into()),
        22 => return Ok(Value::Null),
        25 => half(argument as u16),
        26 => f64::from(f32::from_bits(argument as u32)),
        27 => f64::from_bits(argument),
        _ => return Err(CborError::Unsupported("a simple value")),
    };
    Number::from_f64(float).map(Value::Number).ok_or(CborError::Unsupported("a float that is no number"))
}

/// A half-precision float.
fn half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let size = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (fraction + 1024.0) * 2f64.powi(exponent - 25),
    };
    if bits & 0x8000 == 0 { size } else { -size }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn other_encoders_may_write_it_otherwise() {
        for (bytes, value) in [
            (&b"\x61a"[..], json!("a")),
            (b"\xd9\xd9\xf7\x7f\x61a\x61b\xff", json!("ab")),
            (b"\x9f\x01\x02\xff", json!([1, 2])),
            (b"\xbf\x61a\xf6\xff", json!({"a": null})),
            (b"\xd6\x43\x01\x02\x03", json!("AQID")),
            (b"\xd7\x42\xab\xcd", json!("abcd")),
            (b"\xf9\x3e\x00", json!(1.5)),
            (b"\xf9\xc4\x00", json!(-4.0)),
            (b"\xc0\x42ab", json!("ab")),
        ] {
            assert_eq!(decode(bytes), Ok(value), "{bytes:02x?}");
        }
    }

    #[test]
    fn what_is_no_document_is_refused() {
        for bytes in [
            &b""[..],
            b"\x1b\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\x42a",
            b"\x5b\xff\xff\xff\xff\xff\xff\xff\xffa",
            b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\xa2\x41a\x01\x61a\x02",
            b"\xa1\x01\x02",
            b"\xf9\x7e\x00",
            b"\xff",
            b"\x1f",
            b"\x61\xff",
            b"\xc2\x41\x01",
            b"\xf7",
            b"\x01\x01",
        ] {
            assert!(decode(bytes).is_err(), "{bytes:02x?}");
        }
        assert_eq!(decode(&[0x81; 100_000]), Err(CborError::Depth));
        let lists = |count: usize| decode(&[vec![0x81; count], vec![0x80]].concat()).map(drop);
        assert_eq!((lists(63), lists(64)), (Ok(()), Err(CborError::Depth)));
        assert_eq!(CborError::Depth.to_string(), "cbor: exceeded max nested level 64");
        assert_eq!(decode(&[0xc6; 100_000]), Err(CborError::Depth));
    }
}
