//! What is wrong with one field of an object, in the words of Go's `field` package.
//!
//! Validation walks an object with one [`Report`], which keeps the path in a single buffer: a valid object costs no
//! allocation for the fields it passes. Clients and people match on these texts, so they are upstream's to the letter.

use std::collections::HashSet;
use std::fmt::{Display, Write};

use serde_json::{Map, Name, Value};

use crate::go_value::{Shape, shown};
use crate::status::{Cause, quote};

/// Why a changed field is refused.
pub const IMMUTABLE: &str = "field is immutable";

/// Equal as Go's semantic equality sees it: an absent value is the same as an empty list or object.
pub fn same(a: &Value, b: &Value) -> bool {
    let empty = |v: &Value| match v {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    a == b || empty(a) && empty(b)
}

/// One complaint.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldError {
    pub reason: &'static str,
    /// Dotted path such as `spec.containers[0].name`; `[]` for the object as a whole.
    pub field: String,
    /// The kind of error, the value where it is shown, and the explanation.
    pub message: String,
}

impl From<FieldError> for Cause {
    fn from(error: FieldError) -> Self {
        Cause { reason: error.reason.into(), message: error.message, field: error.field }
    }
}

/// What feature gates make of the rules.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rules {
    /// An autoscaler may have nobody run (gate `HPAScaleToZero`).
    pub scales_to_zero: bool,
    /// Tolerations may compare numbers (gate `TaintTolerationComparisonOperators`, or the stored object does already).
    pub compares_tolerations: bool,
    /// Addresses and ranges may be spelled as they always could (gate `StrictIPCIDRValidation` is off).
    pub spells_addresses_freely: bool,
}

/// The complaints so far, and where in the object the walk is.
#[derive(Debug, Default)]
pub struct Report {
    path: String,
    pub errors: Vec<FieldError>,
    pub rules: Rules,
    /// Addresses and ranges that the stored object has already and that nobody may write anew.
    pub kept: HashSet<String>,
}

impl Report {
    pub fn by(rules: Rules) -> Self {
        Report { rules, ..Report::default() }
    }

    /// What a walk over an object complains of, each with its field before it.
    pub fn told(walk: impl FnOnce(&mut Self)) -> Vec<String> {
        let mut report = Report::default();
        walk(&mut report);
        report.errors.into_iter().map(|e| format!("{}: {}", e.field, e.message)).collect()
    }

    /// Walks a property.
    pub fn at<T>(&mut self, name: &str, walk: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        if length > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        let result = walk(self);
        self.path.truncate(length);
        result
    }

    /// Walks one item of a list.
    pub fn index<T>(&mut self, index: usize, walk: impl FnOnce(&mut Self) -> T) -> T {
        let number = |path: &mut String| match u32::try_from(index).ok().and_then(|index| char::from_digit(index, 10)) {
            // A path is put together for each item of each list, and few have more than ten.
            Some(digit) => path.push(digit),
            // Writing into a String cannot fail.
            None => drop(write!(path, "{index}")),
        };
        self.bracket(number, walk)
    }

    /// Walks one entry of a map.
    pub fn key<T>(&mut self, key: &str, walk: impl FnOnce(&mut Self) -> T) -> T {
        self.bracket(|path| path.push_str(key), walk)
    }

    fn bracket<T>(&mut self, inside: impl FnOnce(&mut String), walk: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        self.path.push('[');
        inside(&mut self.path);
        self.path.push(']');
        let result = walk(self);
        self.path.truncate(length);
        result
    }

    /// Walks down several properties.
    pub fn down<T>(&mut self, names: &[&str], walk: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        for name in names {
            if !self.path.is_empty() {
                self.path.push('.');
            }
            self.path.push_str(name);
        }
        let result = walk(self);
        self.path.truncate(length);
        result
    }

    /// Each item of a list property; nothing where it is absent.
    pub fn each<'v>(&mut self, object: &'v Value, name: &str, mut walk: impl FnMut(&mut Self, &'v Value)) {
        self.items(object, name, |report, _, item| walk(report, item));
    }

    /// As [`Self::each`], with the place of each item.
    pub fn items<'v>(&mut self, object: &'v Value, name: &str, mut walk: impl FnMut(&mut Self, usize, &'v Value)) {
        let Some(items) = object.get(name).and_then(Value::as_array).filter(|i| !i.is_empty()) else { return };
        self.at(name, |report| {
            for (index, item) in items.iter().enumerate() {
                report.index(index, |report| walk(report, index, item));
            }
        });
    }

    /// Walks a property that is there.
    pub fn with<'v>(&mut self, object: &'v Value, name: &str, walk: impl FnOnce(&mut Self, &'v Value)) {
        if let Some(value) = object.get(name).filter(|v| !v.is_null()) {
            self.at(name, |report| walk(report, value));
        }
    }

    /// True when `walk` has nothing to complain about.
    pub fn sound(&mut self, walk: impl FnOnce(&mut Self)) -> bool {
        let before = self.errors.len();
        walk(self);
        self.errors.len() == before
    }

    /// Complains about one property.
    pub fn bad(&mut self, name: &str, value: impl Shown, why: impl Display) {
        self.at(name, |report| report.invalid(value, why));
    }

    /// Complains that one property is there.
    pub fn refuse(&mut self, name: &str, why: &str) {
        self.at(name, |report| report.forbidden(why));
    }

    /// Complains that one property is not there.
    pub fn miss(&mut self, name: &str, why: &str) {
        self.at(name, |report| report.required(why));
    }

    /// A text that has to be there.
    pub fn need(&mut self, object: &Value, name: &str) -> bool {
        let found = object.get(name).and_then(Value::as_str).is_some_and(|t| !t.is_empty());
        if !found {
            self.miss(name, "");
        }
        found
    }

    /// A text with rules of its own, where it is there.
    pub fn named(&mut self, object: &Value, name: &str, rule: impl FnOnce(&str) -> Vec<String>) {
        if let Some(text) = object.get(name).and_then(Value::as_str).filter(|t| !t.is_empty()) {
            self.at(name, |report| report.complaints(text, rule(text)));
        }
    }

    /// A text with rules of its own that has to be there.
    pub fn need_named(&mut self, object: &Value, name: &str, rule: impl FnOnce(&str) -> Vec<String>) {
        if self.need(object, name) {
            self.named(object, name, rule);
        }
    }

    /// One of a few texts; has to be there.
    pub fn choice(&mut self, object: &Value, name: &str, supported: &[&str]) {
        if self.need(object, name) {
            self.maybe_choice(object, name, supported);
        }
    }

    /// One of a few texts; has to be there, and an empty one is there and none of them.
    pub fn said_choice(&mut self, object: &Value, name: &str, supported: &[&str]) {
        match object.get(name).is_none_or(Value::is_null) {
            true => self.miss(name, ""),
            false => self.maybe_choice(object, name, supported),
        }
    }

    /// One of a few texts, where it is there.
    pub fn maybe_choice(&mut self, object: &Value, name: &str, supported: &[&str]) {
        if let Some(text) = object.get(name).and_then(Value::as_str).filter(|t| !supported.contains(t)) {
            self.at(name, |report| report.not_supported(text, supported));
        }
    }

    pub fn not_negative(&mut self, object: &Value, name: &str) {
        if let Some(number) = object.get(name).and_then(Value::as_i64).filter(|n| *n < 0) {
            self.bad(name, number, "must be greater than or equal to 0");
        }
    }

    /// A number within bounds, where it is there.
    pub fn between(&mut self, object: &Value, name: &str, low: i64, high: i64) {
        if let Some(number) = object.get(name).and_then(Value::as_i64).filter(|n| !(low..=high).contains(n)) {
            self.bad(name, number, format_args!("must be between {low} and {high}, inclusive"));
        }
    }

    /// Complains about each of these properties that is there.
    pub fn forbid(&mut self, object: &Value, names: &[&str], why: &str) {
        for name in names {
            self.with(object, name, |report, _| report.forbidden(why));
        }
    }

    /// Complains when a property is not what it was.
    pub fn immutable(&mut self, new: &Value, old: &Value, name: &str) {
        let (new, old) = (&new[name], &old[name]);
        if !same(new, old) {
            self.bad(name, new, IMMUTABLE);
        }
    }

    /// As [`Self::immutable`], for a value that upstream shows in the words of its own type.
    pub fn immutable_as(&mut self, new: &Value, old: &Value, name: &str, shape: &Shape) {
        let (new, old) = (&new[name], &old[name]);
        if !same(new, old) {
            self.bad(name, shown(new, shape), IMMUTABLE);
        }
    }

    /// As [`Self::immutable`], where the values are not properties of the same two objects.
    pub fn immutable_from(&mut self, name: &str, new: &Value, old: &Value) {
        if !same(new, old) {
            self.bad(name, new, IMMUTABLE);
        }
    }

    /// Complains without showing the value.
    pub fn wrong(&mut self, why: &str) {
        self.push("FieldValueInvalid", explained("Invalid value".into(), why));
    }

    /// As [`Self::not_supported`] for a value and a list that are texts already.
    pub fn unsupported(&mut self, shown: &str, known: &str) {
        self.push("FieldValueNotSupported", format!("Unsupported value: {shown}: supported values: {known}"));
    }

    fn push_reason(&mut self, reason: &'static str, head: String, why: &str) {
        self.push(reason, explained(head, why));
    }

    pub fn duplicate_because(&mut self, value: impl Shown, why: &str) {
        self.push_reason("FieldValueDuplicate", format!("Duplicate value: {}", value.shown()), why);
    }

    pub fn not_found_because(&mut self, value: impl Shown, why: &str) {
        self.push_reason("FieldValueNotFound", format!("Not found: {}", value.shown()), why);
    }

    /// More items than allowed.
    pub fn too_many(&mut self, found: usize, most: usize) {
        let unit = if most == 1 { "item" } else { "items" };
        self.push("FieldValueTooMany", format!("Too many: {found}: must have at most {most} {unit}"));
    }

    fn push(&mut self, reason: &'static str, message: String) {
        let field = if self.path.is_empty() { "[]".to_owned() } else { self.path.clone() };
        self.errors.push(FieldError { reason, field, message });
    }

    pub fn required(&mut self, why: &str) {
        self.push("FieldValueRequired", explained("Required value".into(), why));
    }

    pub fn forbidden(&mut self, why: &str) {
        self.push("FieldValueForbidden", explained("Forbidden".into(), why));
    }

    pub fn invalid(&mut self, value: impl Shown, why: impl Display) {
        self.push("FieldValueInvalid", explained(format!("Invalid value: {}", value.shown()), &why.to_string()));
    }

    pub fn duplicate(&mut self, value: impl Shown) {
        self.push("FieldValueDuplicate", format!("Duplicate value: {}", value.shown()));
    }

    pub fn not_found(&mut self, value: impl Shown) {
        self.push("FieldValueNotFound", format!("Not found: {}", value.shown()));
    }

    /// `supported` in the order that upstream lists them for this field.
    pub fn not_supported(&mut self, value: &str, supported: &[&str]) {
        let list: Vec<String> = supported.iter().map(|s| quote(s)).collect();
        let message = format!("Unsupported value: {}: supported values: {}", escaped(quote(value)), list.join(", "));
        self.push("FieldValueNotSupported", message);
    }

    pub fn too_long(&mut self, bytes: usize) {
        let unit = if bytes == 1 { "byte" } else { "bytes" };
        self.push("FieldValueTooLong", format!("Too long: may not be more than {bytes} {unit}"));
    }

    /// Every complaint about a text, as the functions in [`crate::names`] return them.
    pub fn complaints(&mut self, value: &str, complaints: Vec<String>) {
        for why in complaints {
            self.invalid(value, why);
        }
    }
}

fn explained(mut head: String, why: &str) -> String {
    if !why.is_empty() {
        head.push_str(": ");
        head.push_str(why);
    }
    head
}

/// How a wrong value is printed: text quoted, numbers bare, everything else as compact JSON.
pub trait Shown {
    fn shown(&self) -> String;
}

impl Shown for &str {
    fn shown(&self) -> String {
        quote(self)
    }
}

/// A text that is shown as it is: a value that is JSON already.
pub struct Raw(pub String);

impl Shown for Raw {
    fn shown(&self) -> String {
        self.0.clone()
    }
}

impl Shown for bool {
    fn shown(&self) -> String {
        self.to_string()
    }
}

/// A value of a type that upstream prints by its Go names: fields in the order of the struct.
pub fn go_struct(fields: &[(&str, &Value)]) -> Raw {
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    Raw(escaped(format!("{{{}}}", fields.join(","))))
}

/// JSON as Go writes it, which is safe inside of HTML.
pub fn escaped(json: String) -> String {
    if !json.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return json;
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        match c {
            '<' => out.push_str("\\u003c"),
            '>' => out.push_str("\\u003e"),
            '&' => out.push_str("\\u0026"),
            '\u{2028}' => out.push_str("\\u2028"),
            '\u{2029}' => out.push_str("\\u2029"),
            other => out.push(other),
        }
    }
    out
}

/// An object whose fields print in the order of `keys`; others are left out.
pub fn ordered(value: &Value, keys: &[&str]) -> Raw {
    let fields = keys.iter().filter_map(|key| Some(format!("\"{key}\":{}", value.get(*key).filter(|v| !v.is_null())?)));
    Raw(escaped(format!("{{{}}}", fields.collect::<Vec<_>>().join(","))))
}

impl Shown for i64 {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Shown for &Value {
    fn shown(&self) -> String {
        match self {
            Value::String(text) => quote(text),
            other => escaped(other.to_string()),
        }
    }
}

/// Whether two trees are equal when `resources` without members count as absent: a container always has them, whether
/// the tree says so or not.
pub fn same_but_resources(a: &Value, b: &Value) -> bool {
    let nothing = |key: &str, value: &Value| key == "resources" && value.as_object().is_some_and(Map::is_empty);
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let fits = |(key, value): (&Name, &Value)| match b.get(key) {
                Some(other) => same_but_resources(value, other),
                None => nothing(key, value),
            };
            a.iter().all(fits) && b.iter().all(|(key, value)| a.contains_key(key) || nothing(key, value))
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_but_resources(a, b))
        }
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_texts_read_as_upstream_writes_them() {
        let mut report = Report::default();
        report.at("spec", |r| {
            r.at("containers", |r| r.index(1, |r| r.at("name", |r| r.duplicate("a"))));
            r.at("limits", |r| r.key("cpu", |r| r.invalid(-1, "must be greater than or equal to 0")));
            r.at("type", |r| r.not_supported("X", &["A", "B"]));
            r.at("list", |r| [0, 9, 10, 123].map(|at| r.index(at, |r| r.required(""))));
        });
        report.too_long(1);
        let texts: Vec<String> = report.errors.iter().map(|e| format!("{}: {}", e.field, e.message)).collect();
        assert_eq!(
            texts,
            [
                "spec.containers[1].name: Duplicate value: \"a\"",
                "spec.limits[cpu]: Invalid value: -1: must be greater than or equal to 0",
                "spec.type: Unsupported value: \"X\": supported values: \"A\", \"B\"",
                "spec.list[0]: Required value",
                "spec.list[9]: Required value",
                "spec.list[10]: Required value",
                "spec.list[123]: Required value",
                "[]: Too long: may not be more than 1 byte",
            ]
        );
    }

    #[test]
    fn shown_json_is_safe_inside_of_html() {
        let value = serde_json::json!({"a<b": ["x&y>"]});
        assert_eq!((&value).shown(), r#"{"a\u003cb":["x\u0026y\u003e"]}"#);
        assert_eq!("<a>".shown(), "\"<a>\"", "a plain text is no JSON");
        assert_eq!(ordered(&value, &["a<b"]).0, (&value).shown());
    }

    #[test]
    fn resources_without_members_count_as_absent_at_any_depth() {
        let with = serde_json::json!({"spec": {"containers": [{"name": "a", "resources": {}}]}});
        let without = serde_json::json!({"spec": {"containers": [{"name": "a"}]}});
        let other = serde_json::json!({"spec": {"containers": [{"name": "a", "resources": {"claims": []}}]}});
        assert!(same_but_resources(&with, &without) && same_but_resources(&without, &with));
        assert!(!same_but_resources(&with, &other) && !same_but_resources(&other, &without));
    }
}
