//! Complaints with their paths.

use crate::status::{Cause, quote};

#[derive(Debug, Default)]
pub struct Found {
    pub causes: Vec<Cause>,
}

impl Found {
    fn push(&mut self, path: &str, reason: &str, mut message: String, why: &str) {
        if !why.is_empty() {
            message.push_str(": ");
            message.push_str(why);
        }
        self.causes.push(Cause { reason: reason.into(), message, field: path.into() });
    }

    pub fn required(&mut self, path: &str, why: &str) {
        self.push(path, "FieldValueRequired", "Required value".into(), why);
    }

    pub fn forbidden(&mut self, path: &str, why: &str) {
        self.push(path, "FieldValueForbidden", "Forbidden".into(), why);
    }

    /// `shown` is the value as Go prints it.
    pub fn invalid(&mut self, path: &str, shown: &str, why: &str) {
        self.push(path, "FieldValueInvalid", format!("Invalid value: {shown}"), why);
    }

    pub fn duplicate(&mut self, path: &str, shown: &str) {
        self.push(path, "FieldValueDuplicate", format!("Duplicate value: {shown}"), "");
    }

    pub fn too_many(&mut self, path: &str, count: usize, most: usize) {
        self.push(path, "FieldValueTooMany", format!("Too many: {count}: must have at most {most} items"), "");
    }

    pub fn not_supported(&mut self, path: &str, value: &str, supported: &[&str]) {
        let list: Vec<String> = supported.iter().map(|s| quote(s)).collect();
        let message = format!("Unsupported value: {}: supported values: {}", quote(value), list.join(", "));
        self.push(path, "FieldValueNotSupported", message, "");
    }

    /// Brings the complaints from a place on into the order of their text.
    pub fn sort_from(&mut self, start: usize) {
        self.causes[start..].sort_by_key(|c| format!("{}: {}", c.field, c.message));
    }
}
