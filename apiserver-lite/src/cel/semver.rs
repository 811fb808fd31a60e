//! Semantic versions, and the escaping of keys in JSON patches.
//!
//! Follows `apiserver/pkg/cel/library/semverlib.go` with the messages of the parser that it uses.

use std::cmp::Ordering;
use std::sync::Arc;

use super::eval::Failure;
use super::value::Value;

/// A version; what it was built from plays no part in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    numbers: [u64; 3],
    /// Empty for a release.
    before: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Number(u64),
    Word(String),
}

impl PartialOrd for Part {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Part {
    /// Numbers come before words.
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Part::Number(a), Part::Number(b)) => a.cmp(b),
            (Part::Number(_), Part::Word(_)) => Ordering::Less,
            (Part::Word(_), Part::Number(_)) => Ordering::Greater,
            (Part::Word(a), Part::Word(b)) => a.cmp(b),
        }
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        let released = |version: &Version| version.before.is_empty();
        self.numbers.cmp(&other.numbers).then_with(|| match (released(self), released(other)) {
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            _ => self.before.cmp(&other.before),
        })
    }
}

fn number(text: &str, which: &str) -> Result<u64, String> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("Invalid character(s) found in {which} number {text:?}"));
    }
    if text.len() > 1 && text.starts_with('0') {
        return Err(format!("{} number must not contain leading zeroes {text:?}", capital(which)));
    }
    text.parse().map_err(|_| format!("strconv.ParseUint: parsing {text:?}: value out of range"))
}

fn capital(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map(|first| first.to_ascii_uppercase().to_string() + chars.as_str()).unwrap_or_default()
}

pub fn parse(text: &str) -> Result<Version, String> {
    if text.is_empty() {
        return Err("Version string empty".into());
    }
    let mut parts = text.splitn(3, '.');
    let (Some(major), Some(minor), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
        return Err("No Major.Minor.Patch elements found".into());
    };
    let (major, minor) = (number(major, "major")?, number(minor, "minor")?);
    let (rest, build) = rest.split_once('+').map_or((rest, None), |(rest, build)| (rest, Some(build)));
    let (patch, before) = rest.split_once('-').map_or((rest, None), |(patch, before)| (patch, Some(before)));
    let patch = number(patch, "patch")?;
    let sound = |part: &str| part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let mut pre = Vec::new();
    for part in before.into_iter().flat_map(|b| b.split('.')) {
        if part.is_empty() {
            return Err("Prerelease is empty".into());
        }
        if part.bytes().all(|b| b.is_ascii_digit()) {
            if part.len() > 1 && part.starts_with('0') {
                return Err(format!("Numeric PreRelease version must not contain leading zeroes {part:?}"));
            }
            let value = part.parse().map_err(|_| format!("strconv.ParseUint: parsing {part:?}: value out of range"))?;
            pre.push(Part::Number(value));
        } else if sound(part) {
            pre.push(Part::Word(part.into()));
        } else {
            return Err(format!("Invalid character(s) found in prerelease {part:?}"));
        }
    }
    for part in build.into_iter().flat_map(|b| b.split('.')) {
        if part.is_empty() {
            return Err("Build meta data is empty".into());
        }
        if !sound(part) {
            return Err(format!("Invalid character(s) found in build meta data {part:?}"));
        }
    }
    Ok(Version { numbers: [major, minor, patch], before: pre })
}

/// The same for what people write: a `v` in front, leading zeroes, fewer than three numbers.
fn parse_loosely(text: &str) -> Result<Version, String> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let mut parts: Vec<String> = text
        .splitn(3, '.')
        .map(|part| {
            let bare = part.trim_start_matches('0');
            match part.len() > 1 {
                true if !bare.starts_with(|c: char| c.is_ascii_digit()) => format!("0{bare}"),
                true => bare.to_owned(),
                false => part.to_owned(),
            }
        })
        .collect();
    if parts.len() < 3 {
        if parts.last().is_some_and(|last| last.contains(['+', '-'])) {
            return Err("short version cannot contain PreRelease/Build meta data".into());
        }
        parts.resize(3, "0".to_owned());
    }
    parse(&parts.join("."))
}

/// Calls a function of this module; None for others.
pub fn call<'a>(name: &str, args: &[Value<'a>]) -> Option<Result<Value<'a>, Failure>> {
    use Value::{Bool, Int, Semver, Text};
    let read = |text: &str, loosely: bool| if loosely { parse_loosely(text) } else { parse(text) };
    let int = |number: u64| Int(i64::try_from(number).unwrap_or(i64::MAX));
    Some(Ok(match (name, args) {
        ("semver", [Text(text), rest @ ..]) => match read(text, matches!(rest, [Bool(true)])) {
            Ok(version) => Semver(Arc::new(version)),
            Err(why) => return Some(Err(Failure::new(why))),
        },
        ("isSemver", [Text(text), rest @ ..]) => Bool(read(text, matches!(rest, [Bool(true)])).is_ok()),
        ("major", [Semver(version)]) => int(version.numbers[0]),
        ("minor", [Semver(version)]) => int(version.numbers[1]),
        ("patch", [Semver(version)]) => int(version.numbers[2]),
        ("isLessThan", [Semver(a), Semver(b)]) => Bool(a < b),
        ("isGreaterThan", [Semver(a), Semver(b)]) => Bool(a > b),
        ("compareTo", [Semver(a), Semver(b)]) => Int(a.cmp(b) as i64),
        ("jsonpatch.escapeKey", [Text(key)]) => Value::text(key.replace('~', "~0").replace('/', "~1")),
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_semver_says() {
        let ordered = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-rc.1", "1.0.0", "1.0.1", "1.10.0"];
        let versions: Vec<Version> = ordered.iter().map(|text| parse(text).expect("sound")).collect();
        assert!(versions.is_sorted());
        assert_eq!(parse("1.0.0+a").map(|v| v.cmp(&versions[4])), Ok(Ordering::Equal));
    }

    #[test]
    fn what_people_write_is_read_only_when_asked_to() {
        for text in ["v1.2", "1.02.3", "1", "v01.0.0"] {
            assert!(parse(text).is_err() && parse_loosely(text).is_ok(), "{text}");
        }
        assert_eq!(parse("1.2"), Err("No Major.Minor.Patch elements found".to_owned()));
        assert!(parse_loosely("1.2-rc").is_err());
    }
}
