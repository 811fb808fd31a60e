//! JSON as Kubernetes reads and writes it: strict typed decoding by the schema table with the error texts of Go's
//! decoder, and compact writing in schema order with Go's escaping.
//!
//! Trees are `serde_json::Value`. A decoded tree is normalised: unknown fields dropped, nulls and empty optional values
//! left out, quantities and times in canonical form. [`write`] adds what Go writes for absent values, so a tree need not
//! spell them out.

mod compact;
mod fields;
mod form;
pub(crate) mod lexer;
mod parts;
mod scan;
mod shown;
mod slot;
mod typed;
mod write;

use std::cell::Cell;

use serde_json::Value;

use crate::schema::{StructId, TypeSet};

use form::Form;

pub use fields::{compare as compare_field_elements, compare_values};
pub use lexer::SyntaxError;
pub use parts::{Walk, member};
pub use shown::shown;
pub use slot::{Known, Slotted, write_with_version_slot};
pub use write::{indent, write, write_sorted, write_string};

/// Appends a `metav1.FieldsV1` in its own order.
pub fn write_fields(value: &Value, out: &mut Vec<u8>) {
    fields::write_fields(value, out);
}

/// Nesting deeper than this is refused on any thread; real objects stay below 50.
pub const MAX_DEPTH: usize = 200;

/// Nesting deeper than this is refused on threads that [`read_deep`]; Go's limit, whose stacks grow.
pub const DEEPEST: usize = 10_000;

/// What an object at rest may have more: those around it, and the owners of its fields, which are as deep as it is.
const AT_REST: usize = 64;

thread_local! {
    static LIMIT: Cell<usize> = const { Cell::new(MAX_DEPTH) };
}

/// Lets this thread read documents that are nested as deep as Go reads them. Whoever walks a tree recurses, so its stack has
/// to be made for that, and so have those of the threads that it hands trees to.
pub fn read_deep() {
    LIMIT.set(DEEPEST);
}

/// How deep documents may be nested that this thread reads.
pub fn max_depth() -> usize {
    LIMIT.get()
}

/// A document without a schema.
#[derive(Debug)]
pub struct Parsed {
    pub value: Value,
    /// `duplicate field "a.b"`, in document order.
    pub duplicates: Vec<String>,
}

/// A document read by a schema.
#[derive(Debug)]
pub struct Decoded {
    pub value: Value,
    /// What strict field validation objects to, in document order: `unknown field "spec.foo"`, `duplicate field "data.a"`.
    pub strict: Vec<String>,
}

/// Why a document does not decode. The text is Go's; the client sent bad data, so a retry does not help.
#[derive(Debug, thiserror::Error, Clone, PartialEq)]
pub enum DecodeError {
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// A value of the wrong type, such as `json: cannot unmarshal string into Go struct field ...`.
    #[error("{0}")]
    Type(String),
}

/// Reads any JSON document; of duplicate keys the last one counts.
///
/// # Errors
/// When the text is not one JSON value, with the text of Go's `encoding/json`.
pub fn parse(text: &[u8]) -> Result<Parsed, SyntaxError> {
    if let Some(value) = compact::any(text) {
        return Ok(Parsed { value, duplicates: Vec::new() });
    }
    let mut lexer = lexer::Lexer::new(text);
    let value = lexer.any().and_then(|v| lexer.end().map(|()| v));
    // Go checks the whole text before it looks at values, so its complaint is always the first broken byte.
    let value = value.map_err(|error| lexer::check(text).err().unwrap_or(error))?;
    Ok(Parsed { value, duplicates: lexer.take_strict() })
}

/// Reads an object at rest, which was read before and may have got a little deeper since.
///
/// # Errors
/// As [`parse`].
pub fn parse_at_rest(text: &[u8]) -> Result<Value, SyntaxError> {
    if let Some(value) = compact::any(text) {
        return Ok(value);
    }
    let mut lexer = lexer::Lexer::new(text).at_rest();
    lexer.any().and_then(|v| lexer.end().map(|()| v))
}

/// Reads an object at rest but for its `metadata.managedFields`.
///
/// # Errors
/// As [`parse`].
pub fn parse_without_owners(text: &[u8]) -> Result<Value, SyntaxError> {
    compact::without_owners(text, false).map_or_else(|| slowly_without_owners(text), Ok)
}

/// The same such that copies of the tree have its objects in common ([`Value::share`]).
///
/// # Errors
/// As [`parse`].
pub fn parse_shared_without_owners(text: &[u8]) -> Result<Value, SyntaxError> {
    if let Some(value) = compact::without_owners(text, true) {
        return Ok(value);
    }
    let mut value = slowly_without_owners(text)?;
    value.share();
    Ok(value)
}

fn slowly_without_owners(text: &[u8]) -> Result<Value, SyntaxError> {
    let mut lexer = lexer::Lexer::new(text).at_rest();
    let value = lexer.without_owners().and_then(|v| lexer.end().map(|()| v));
    value.map_err(|error| lexer::check(text).err().unwrap_or(error))
}

/// Reads a document whole but keeps only the named members of an object at its top.
///
/// # Errors
/// As [`parse`].
pub fn parse_members(text: &[u8], names: &[&str]) -> Result<Value, SyntaxError> {
    let mut lexer = lexer::Lexer::new(text);
    let value = lexer.members(names).and_then(|v| lexer.end().map(|()| v));
    value.map_err(|error| lexer::check(text).err().unwrap_or(error))
}

/// Reads an object of a struct type.
///
/// # Errors
/// [`DecodeError::Syntax`] for broken JSON, [`DecodeError::Type`] for a value that does not fit its field.
pub fn decode(set: &TypeSet, id: StructId, text: &[u8]) -> Result<Decoded, DecodeError> {
    typed::decode(set, id, text)
}

/// Gives a tree the form that [`decode`] gives a document, where that takes no more than to leave something out; else the
/// tree stays as it was, and [`conform`] makes another. `like` is an object of the type that was decoded before, as it is at
/// rest: what the tree shares with it stays as it is there.
pub fn settle(set: &TypeSet, id: StructId, value: &mut Value, like: Option<&Value>) -> bool {
    let form = form::of(set, id, value, like);
    if form == Form::Spelled {
        form::unspell(set, id, value);
    }
    form != Form::Other
}

/// Gives a tree the form that [`decode`] gives a document.
///
/// # Errors
/// As [`decode`], without syntax errors.
pub fn conform(set: &TypeSet, id: StructId, value: &Value) -> Result<Decoded, DecodeError> {
    if form::of(set, id, value, None) == Form::Normal {
        return Ok(Decoded { value: value.clone(), strict: Vec::new() });
    }
    let mut text = Vec::with_capacity(4096);
    write_sorted(value, &mut text);
    typed::decode(set, id, &text)
}

#[cfg(test)]
mod tests;
