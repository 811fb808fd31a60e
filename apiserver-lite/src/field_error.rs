//! What is wrong with one field of an object, in the words of Go's `field` package.
//!
//! Validation walks an object with one [`Report`], which keeps the path in a single buffer: a valid object costs no
//! allocation for the fields it passes. Clients and people match on these texts, so they are upstream's to the letter.

use std::fmt::{Display, Write};

use serde_json::Value;

use crate::status::{Cause, quote};

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

/// The complaints so far, and where in the object the walk is.
#[derive(Debug, Default)]
pub struct Report {
    path: String,
    pub errors: Vec<FieldError>,
}

impl Report {
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
        self.bracket(index, walk)
    }

    /// Walks one entry of a map.
    pub fn key<T>(&mut self, key: &str, walk: impl FnOnce(&mut Self) -> T) -> T {
        self.bracket(key, walk)
    }

    fn bracket<T>(&mut self, inside: impl Display, walk: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        // Writing into a String cannot fail.
        let _ = write!(self.path, "[{inside}]");
        let result = walk(self);
        self.path.truncate(length);
        result
    }

    /// Each item of a list property; nothing where it is absent.
    pub fn each(&mut self, object: &Value, name: &str, mut walk: impl FnMut(&mut Self, &Value)) {
        let Some(items) = object.get(name).and_then(Value::as_array).filter(|i| !i.is_empty()) else { return };
        self.at(name, |report| {
            for (index, item) in items.iter().enumerate() {
                report.index(index, |report| walk(report, item));
            }
        });
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
        let message = format!("Unsupported value: {}: supported values: {}", quote(value), list.join(", "));
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

impl Shown for i64 {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Shown for &Value {
    fn shown(&self) -> String {
        match self {
            Value::String(text) => quote(text),
            other => other.to_string(),
        }
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
        });
        report.too_long(1);
        let texts: Vec<String> = report.errors.iter().map(|e| format!("{}: {}", e.field, e.message)).collect();
        assert_eq!(
            texts,
            [
                "spec.containers[1].name: Duplicate value: \"a\"",
                "spec.limits[cpu]: Invalid value: -1: must be greater than or equal to 0",
                "spec.type: Unsupported value: \"X\": supported values: \"A\", \"B\"",
                "[]: Too long: may not be more than 1 byte",
            ]
        );
    }
}
