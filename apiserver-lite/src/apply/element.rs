//! One step of a field path: a field's name, the keys of a list item, the value of a set item or an index.
//!
//! Elements borrow from the trees and the schema they come from, so a field set of an object costs no text copies.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

use proto::json::{compare_values, write_sorted};
use serde_json::Value;

/// Names and values of the keys of a list item, sorted by name.
pub type Keys<'a> = Box<[(Cow<'a, str>, Cow<'a, Value>)]>;

#[derive(Debug, Clone, PartialEq)]
pub enum Element<'a> {
    Name(Cow<'a, str>),
    Keys(Keys<'a>),
    Value(Cow<'a, Value>),
    Index(i64),
}

/// Text that is no element. Elements of a kind that is not known yet are no error, see [`Element::parse`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a path element")]
pub struct BadElement {
    text: String,
}

impl BadElement {
    pub(super) fn of(text: String) -> Self {
        BadElement { text }
    }
}

impl<'a> Element<'a> {
    pub fn name(name: &'a str) -> Self {
        Element::Name(Cow::Borrowed(name))
    }

    /// Reads the text form, such as `f:spec` or `k:{"name":"a"}`; None for a kind that a later version may know.
    ///
    /// # Errors
    /// Text without a kind, or with a content that the kind does not allow.
    pub fn parse(text: &'a str) -> Result<Option<Self>, BadElement> {
        let bad = || BadElement::of(text.into());
        let Some((kind, rest)) = text.split_at_checked(2) else { return Err(bad()) };
        Ok(Some(match kind {
            "f:" => Element::name(rest),
            "k:" => {
                let Ok(Value::Object(map)) = serde_json::from_str(rest) else { return Err(bad()) };
                Element::Keys(map.into_iter().map(|(k, v)| (Cow::Owned(k.into()), Cow::Owned(v))).collect())
            }
            "v:" => Element::Value(Cow::Owned(serde_json::from_str(rest).map_err(|_| bad())?)),
            "i:" => Element::Index(rest.parse().map_err(|_| bad())?),
            _ if kind.ends_with(':') => return Ok(None),
            _ => return Err(bad()),
        }))
    }

    /// Whether a text is this element's text form.
    pub fn is(&self, text: &str) -> bool {
        match self {
            Element::Name(name) => text.strip_prefix("f:").is_some_and(|rest| *rest == **name),
            other => other.text() == text,
        }
    }

    /// The same without anything borrowed.
    pub fn into_owned(self) -> Element<'static> {
        match self {
            Element::Name(name) => Element::Name(Cow::Owned(name.into_owned())),
            Element::Keys(keys) => Element::Keys(
                keys.into_iter().map(|(k, v)| (Cow::Owned(k.into_owned()), Cow::Owned(v.into_owned()))).collect(),
            ),
            Element::Value(value) => Element::Value(Cow::Owned(value.into_owned())),
            Element::Index(index) => Element::Index(index),
        }
    }

    /// The text form; Go's JSON inside.
    pub fn text(&self) -> String {
        // One or two short keys.
        let mut out = Vec::with_capacity(64);
        match self {
            Element::Name(name) => return format!("f:{name}"),
            Element::Index(index) => return format!("i:{index}"),
            Element::Value(value) => {
                out.extend_from_slice(b"v:");
                write_sorted(value, &mut out);
            }
            Element::Keys(keys) => {
                out.extend_from_slice(b"k:{");
                for (at, (name, value)) in keys.iter().enumerate() {
                    if at > 0 {
                        out.push(b',');
                    }
                    proto::json::write_string(name, &mut out);
                    out.push(b':');
                    write_sorted(value, &mut out);
                }
                out.push(b'}');
            }
        }
        // Our JSON writer writes UTF-8 only.
        String::from_utf8(out).unwrap_or_default()
    }

    /// Appends the text form as a key of JSON.
    pub fn write(&self, out: &mut Vec<u8>) {
        let Element::Name(name) = self else { return proto::json::write_string(&self.text(), out) };
        out.extend_from_slice(b"\"f");
        let quote = out.len();
        proto::json::write_string(name, out);
        // The quote that a text begins with stands before the kind already.
        out[quote] = b':';
    }

    fn rank(&self) -> u8 {
        match self {
            Element::Name(_) => 0,
            Element::Keys(_) => 1,
            Element::Value(_) => 2,
            Element::Index(_) => 3,
        }
    }
}

impl Eq for Element<'_> {}

impl PartialOrd for Element<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Element<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Element::Name(a), Element::Name(b)) => a.cmp(b),
            (Element::Keys(a), Element::Keys(b)) => {
                let pairs = a.iter().zip(b.iter());
                let mut orders = pairs.map(|(a, b)| a.0.cmp(&b.0).then_with(|| compare_values(&a.1, &b.1)));
                orders.find(|o| o.is_ne()).unwrap_or_else(|| a.len().cmp(&b.len()))
            }
            (Element::Value(a), Element::Value(b)) => compare_values(a, b),
            (Element::Index(a), Element::Index(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

/// As people read paths: `.spec`, `[name="a"]`, `[="x"]`, `[0]`.
impl fmt::Display for Element<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Element::Name(name) => write!(f, ".{name}"),
            Element::Keys(keys) => {
                f.write_str("[")?;
                for (at, (name, value)) in keys.iter().enumerate() {
                    let comma = if at > 0 { "," } else { "" };
                    write!(f, "{comma}{name}={}", Shown(value))?;
                }
                f.write_str("]")
            }
            Element::Value(value) => write!(f, "[={}]", Shown(value)),
            Element::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// A value inside a path.
struct Shown<'a>(&'a Value);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::String(text) => f.write_str(&crate::status::quote(text)),
            Value::Array(list) => {
                f.write_str("[")?;
                for (at, value) in list.iter().enumerate() {
                    write!(f, "{}{}", if at > 0 { "," } else { "" }, Shown(value))?;
                }
                f.write_str("]")
            }
            Value::Object(map) => map.iter().try_for_each(|(key, value)| write!(f, "{key}={}", Shown(value))),
            other => write!(f, "{other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_know_their_text() {
        for text in ["f:spec", r#"k:{"a":1}"#, r#"v:"x""#, "i:3"] {
            let element = Element::parse(text).expect("an element").expect("of a known kind");
            assert!(element.is(text) && !element.is("f:") && !element.is("spec"));
            assert_eq!(element.clone().into_owned(), element);
        }
    }

    #[test]
    fn elements_read_back_as_they_are_written() {
        for text in
            ["f:spec", "f:", r#"k:{"containerPort":80,"protocol":"TCP"}"#, r#"v:"example.com/a""#, "i:3", "v:1.5"]
        {
            let element = Element::parse(text).expect("an element").expect("of a known kind");
            assert_eq!(element.text(), text);
            let (mut key, mut same) = (Vec::new(), Vec::new());
            element.write(&mut key);
            proto::json::write_string(text, &mut same);
            assert_eq!(key, same);
        }
        assert_eq!(Element::parse("x:later"), Ok(None));
        for bad in ["", "f", "k:{", "k:1", "v:", "i:one", "é:x"] {
            assert!(Element::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_sort_by_number_and_after_names() {
        let parse = |text| Element::parse(text).expect("an element").expect("of a known kind");
        assert!(parse(r#"k:{"port":80}"#) < parse(r#"k:{"port":443}"#));
        assert!(parse("f:z") < parse(r#"k:{"a":1}"#));
        assert!(parse(r#"k:{"a":1}"#) < parse(r#"k:{"a":1,"b":1}"#));
        assert!(parse(r#"v:"a""#) < parse("i:0"));
    }

    #[test]
    fn paths_read_as_upstream_prints_them() {
        let parse = |text| Element::parse(text).expect("an element").expect("of a known kind").to_string();
        assert_eq!(parse(r#"k:{"containerPort":80,"protocol":"TCP"}"#), r#"[containerPort=80,protocol="TCP"]"#);
        assert_eq!(parse(r#"v:"a""#), r#"[="a"]"#);
        assert_eq!(parse("f:a") + &parse("i:0"), ".a[0]");
    }
}
