//! A part of a collection: objects whose uid or namespace hashes into given ranges (gate `ShardedListAndWatch`).
//!
//! `shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')`, several joined by `||`. The hash is
//! 64-bit FNV-1a, a range holds its start and not its end, which may be 2^64.

use crate::status::{ApiError, Result};
use crate::store::StoredObject;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Uid,
    Namespace,
}

impl Field {
    fn path(self) -> &'static str {
        match self {
            Field::Uid => "object.metadata.uid",
            Field::Namespace => "object.metadata.namespace",
        }
    }
}

/// The ranges of one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    field: Field,
    /// Start and end; wide enough for 2^64.
    ranges: Vec<(u128, u128)>,
}

impl Shard {
    /// Reads a selector.
    ///
    /// # Errors
    /// 500 without a reason, as upstream wraps the parser's complaint.
    pub fn parse(text: &str) -> Result<Self> {
        parse(text.trim()).map_err(|why| ApiError::new(500, "", format!("invalid shard selector: {why}")))
    }

    pub fn matches(&self, object: &StoredObject) -> bool {
        let hash = u128::from(fnv_1a(match self.field {
            Field::Uid => &object.keys.uid,
            Field::Namespace => &object.key.namespace,
        }));
        self.ranges.iter().any(|(start, end)| (*start..*end).contains(&hash))
    }

    /// The selector as upstream writes it.
    pub fn text(&self) -> String {
        let range = |(start, end): &(u128, u128)| {
            format!("shardRange({}, '0x{start:016x}', '0x{end:016x}')", self.field.path())
        };
        self.ranges.iter().map(range).collect::<Vec<_>>().join(" || ")
    }
}

fn fnv_1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn parse(text: &str) -> std::result::Result<Shard, String> {
    if text.is_empty() {
        return Err("empty shard selector is not allowed; omit the parameter for unfiltered lists".into());
    }
    let mut shard: Option<Shard> = None;
    for call in text.split("||") {
        let (field, start, end) = range(call.trim())?;
        match &mut shard {
            None => shard = Some(Shard { field, ranges: vec![(start, end)] }),
            Some(shard) if shard.field == field => shard.ranges.push((start, end)),
            Some(shard) => {
                let (one, other) = (shard.field.path(), field.path());
                return Err(format!("all shard ranges must use the same field, got {one:?} and {other:?}"));
            }
        }
    }
    shard.ok_or_else(|| "no range".into())
}

/// `shardRange(FIELD, START, END)`, perhaps in parentheses.
fn range(text: &str) -> std::result::Result<(Field, u128, u128), String> {
    if let Some(inner) = text.strip_prefix('(').and_then(|t| t.strip_suffix(')')) {
        return range(inner.trim());
    }
    let Some((name, rest)) = text.split_once('(') else {
        return Err(format!("CEL parse error: Syntax error: {text:?} is no call of shardRange()"));
    };
    if name.trim() != "shardRange" {
        return Err(format!("unsupported function {:?}; only shardRange() and || are allowed", name.trim()));
    }
    let Some(inner) = rest.trim_end().strip_suffix(')') else {
        return Err("CEL parse error: Syntax error: missing ')' at '<EOF>'".into());
    };
    let parts: Vec<&str> = inner.split(',').map(str::trim).collect();
    let [field, start, end] = parts.as_slice() else {
        let count = parts.iter().filter(|p| !p.is_empty()).count();
        return Err(format!("shardRange() requires exactly 3 arguments, got {count}"));
    };
    let field = match *field {
        "object.metadata.uid" => Field::Uid,
        "object.metadata.namespace" => Field::Namespace,
        other => {
            let known = "object.metadata.uid, object.metadata.namespace";
            return Err(format!("unsupported field path {other:?}; supported: {known}"));
        }
    };
    let (first, last) = (literal(start, "hexStart")?, literal(end, "hexEnd")?);
    if first >= last {
        let bare = |text: &str| text[1..text.len() - 1].to_owned();
        return Err(format!("shard range start {} must be less than end {}", bare(start), bare(end)));
    }
    Ok((field, first, last))
}

/// `'0x…'` with sixteen digits, or 2^64.
fn literal(text: &str, name: &str) -> std::result::Result<u128, String> {
    let quoted = ['\'', '"'].into_iter().find_map(|q| text.strip_prefix(q)?.strip_suffix(q));
    let Some(value) = quoted else {
        return Err(format!("{name} must be a string literal (e.g. '0xff')"));
    };
    let Some(digits) = value.strip_prefix("0x") else {
        return Err(format!("{name} must have '0x' prefix, got {value:?}"));
    };
    if digits.is_empty() {
        return Err(format!("{name}: hex value is required after '0x'"));
    }
    if digits.len() > 17 {
        return Err(format!("{name}: hex value too long ({} chars, max 17): {digits:?}", digits.len()));
    }
    if let Some(wrong) = digits.chars().find(|c| !matches!(c, '0'..='9' | 'a'..='f')) {
        return Err(format!("{name}: invalid hex character {:?} in {value:?}", wrong.to_string()));
    }
    if digits.len() == 17 && value != "0x10000000000000000" {
        return Err(format!("{name}: 17-digit hex value must be '0x10000000000000000' (2^64), got {value:?}"));
    }
    if digits.len() < 16 {
        let padded = format!("0x{digits:0>16}");
        return Err(format!(
            "{name} must be a 0x-prefixed 16-digit hex value, got {value:?} (did you mean {padded:?}?)"
        ));
    }
    u128::from_str_radix(digits, 16).map_err(|e| format!("{name}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_parsed_is_written_again() {
        for text in [
            "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')",
            "shardRange(object.metadata.namespace, '0x0000000000000000', '0x4000000000000000') || \
             shardRange(object.metadata.namespace, '0xc000000000000000', '0x10000000000000000')",
        ] {
            let shard = parse(text).expect(text);
            assert_eq!(shard.text(), text);
            assert_eq!(parse(&shard.text()), Ok(shard));
        }
    }

    #[test]
    fn two_halves_are_the_whole() {
        let halves = [("0x0000000000000000", "0x8000000000000000"), ("0x8000000000000000", "0x10000000000000000")];
        let halves = halves.map(|(a, b)| parse(&format!("shardRange(object.metadata.uid,'{a}','{b}')")).expect("fine"));
        for text in ["", "a", "b0a1", "8c5d3d4e-1111-4e5f-9f00-2f5c1b6e7a90"] {
            let hash = u128::from(fnv_1a(text));
            let held = halves.iter().filter(|h| h.ranges.iter().any(|(s, e)| (*s..*e).contains(&hash))).count();
            assert_eq!(held, 1, "{text}");
        }
        assert_eq!(fnv_1a("a"), 0xaf63_dc4c_8601_ec8c);
    }

    #[test]
    fn wrong_selectors_say_what_is_wrong() {
        for (text, why) in [
            ("", "empty shard selector"),
            ("shardRange(object.metadata.name, '0x0000000000000000', '0x8000000000000000')", "unsupported field path"),
            ("shardRange(object.metadata.uid, '0x0', '0x8000000000000000')", "did you mean \"0x0000000000000000\"?"),
            ("shardRange(object.metadata.uid, '0x8000000000000000', '0x8000000000000000')", "must be less than end"),
            ("shardRange(object.metadata.uid, '0x8000000000000000')", "exactly 3 arguments, got 2"),
            ("other(1)", "unsupported function \"other\""),
        ] {
            let error = parse(text).expect_err(why);
            assert!(error.contains(why), "{error}");
        }
    }
}
