//! CBOR (RFC 8949) as Kubernetes uses it: trees to data items and back.
//!
//! Written deterministically: shortest forms, map keys sorted by their encoding, text as byte strings (as upstream writes
//! Go strings, which it does not check for UTF-8), everything inside the tag of self-described CBOR. Read leniently, but
//! never what has no JSON: other map keys than text, NaN and infinities, big numbers, duplicate keys, simple values but
//! false, true and null.

mod read;

use serde_json::{Name, Value};

pub use read::{CborError, decode, decode_prefix};

/// The head of tag 55799, with which every document begins.
pub const SELF_DESCRIBED: [u8; 3] = [0xd9, 0xd9, 0xf7];

/// Writes a document: the tag of self-described CBOR and one data item.
pub fn encode(value: &Value, out: &mut Vec<u8>) {
    out.extend_from_slice(&SELF_DESCRIBED);
    item(value, out);
}

/// The head of an item: major type and argument in the fewest bytes.
fn head(major: u8, argument: u64, out: &mut Vec<u8>) {
    let major = major << 5;
    if argument < 24 {
        out.push(major | argument as u8);
    } else if let Ok(byte) = u8::try_from(argument) {
        out.extend_from_slice(&[major | 24, byte]);
    } else if let Ok(short) = u16::try_from(argument) {
        out.push(major | 25);
        out.extend_from_slice(&short.to_be_bytes());
    } else if let Ok(word) = u32::try_from(argument) {
        out.push(major | 26);
        out.extend_from_slice(&word.to_be_bytes());
    } else {
        out.push(major | 27);
        out.extend_from_slice(&argument.to_be_bytes());
    }
}

fn item(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.push(0xf6),
        Value::Bool(false) => out.push(0xf4),
        Value::Bool(true) => out.push(0xf5),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(positive), _) => head(0, positive, out),
            // -1 is 0, -2 is 1 and so on.
            (None, Some(negative)) => head(1, (-1 - negative).unsigned_abs(), out),
            (None, None) => float(number.as_f64().unwrap_or(0.0), out),
        },
        Value::String(text) => {
            head(2, text.len() as u64, out);
            out.extend_from_slice(text.as_bytes());
        }
        Value::Array(items) => {
            head(4, items.len() as u64, out);
            items.iter().for_each(|i| item(i, out));
        }
        Value::Object(members) => {
            head(5, members.len() as u64, out);
            let mut sorted: Vec<(&Name, &Value)> = members.iter().collect();
            // The encodings of shorter keys sort first, since their length comes before their text.
            sorted.sort_by(|(a, _), (b, _)| (a.len(), a).cmp(&(b.len(), b)));
            for (key, value) in sorted {
                head(2, key.len() as u64, out);
                out.extend_from_slice(key.as_bytes());
                item(value, out);
            }
        }
    }
}

/// A float in the smallest width that holds it.
fn float(value: f64, out: &mut Vec<u8>) {
    let single = value as f32;
    if f64::from(single) != value {
        out.push(0xfb);
        out.extend_from_slice(&value.to_be_bytes());
    } else if let Some(half) = half(single) {
        out.push(0xf9);
        out.extend_from_slice(&half.to_be_bytes());
    } else {
        out.push(0xfa);
        out.extend_from_slice(&single.to_be_bytes());
    }
}

/// The bits of a half-precision float, if it holds the value.
fn half(value: f32) -> Option<u16> {
    let bits = value.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let exponent = ((bits >> 23) & 0xff) as i32 - 127;
    let fraction = bits & 0x7f_ffff;
    match exponent {
        _ if bits & 0x7fff_ffff == 0 => Some(sign),
        -14..=15 if fraction & 0x1fff == 0 => Some(sign | ((exponent + 15) as u16) << 10 | (fraction >> 13) as u16),
        -24..=-15 => {
            // Below the normal range: the leading one is written out.
            let whole = fraction | 0x80_0000;
            let shift = (-exponent - 1) as u32;
            (whole & ((1 << shift) - 1) == 0).then(|| sign | (whole >> shift) as u16)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn hex(value: &Value) -> String {
        let mut out = Vec::new();
        encode(value, &mut out);
        out.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn items_take_the_fewest_bytes() {
        for (value, text) in [
            (json!(null), "f6"),
            (json!(true), "f5"),
            (json!(23), "17"),
            (json!(24), "1818"),
            (json!(-1), "20"),
            (json!(-500), "3901f3"),
            (json!(i64::MIN), "3b7fffffffffffffff"),
            (json!(1.5), "f93e00"),
            (json!(5.960_464_477_539_063e-8), "f90001"),
            (json!(100_000.5), "fa47c35040"),
            (json!(1.1), "fb3ff199999999999a"),
            (json!("a"), "4161"),
            (json!([1, []]), "820180"),
            (json!({"bb": 1, "a": 2, "c": 3}), "a341610241630342626201"),
        ] {
            assert_eq!(hex(&value), format!("d9d9f7{text}"), "{value}");
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let value = json!({"kind": "Pod", "n": [1, -7, 2.5, 1e300, true, null, "\u{e4}"], "m": {"": {}}});
        let mut out = Vec::new();
        encode(&value, &mut out);
        assert_eq!(decode(&out).expect("our own"), value);
    }
}
