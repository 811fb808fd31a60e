//! A tree.

use std::borrow::Cow;
use std::fmt::{self, Debug, Display, Formatter};
use std::str::FromStr;

/// JSON that is handed on as it is.
#[cfg(feature = "raw_value")]
pub use real::value::RawValue;
use real::{Error, Number};

use crate::{Map, Place};

/// Any value of JSON.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub enum Value {
    #[default]
    Null,
    Bool(bool),
    Number(Number),
    String(String),
    Array(Vec<Value>),
    Object(Map<String, Value>),
}

impl Value {
    /// A member of an object or an item of a list.
    pub fn get<P: Place>(&self, place: P) -> Option<&Value> {
        place.of(self)
    }

    /// The same, to be changed.
    pub fn get_mut<P: Place>(&mut self, place: P) -> Option<&mut Value> {
        place.of_mut(self)
    }

    pub fn is_object(&self) -> bool {
        matches!(self, Value::Object(_))
    }

    pub fn as_object(&self) -> Option<&Map<String, Value>> {
        if let Value::Object(map) = self { Some(map) } else { None }
    }

    pub fn as_object_mut(&mut self) -> Option<&mut Map<String, Value>> {
        if let Value::Object(map) = self { Some(map) } else { None }
    }

    pub fn is_array(&self) -> bool {
        matches!(self, Value::Array(_))
    }

    pub fn as_array(&self) -> Option<&Vec<Value>> {
        if let Value::Array(items) = self { Some(items) } else { None }
    }

    pub fn as_array_mut(&mut self) -> Option<&mut Vec<Value>> {
        if let Value::Array(items) = self { Some(items) } else { None }
    }

    pub fn is_string(&self) -> bool {
        matches!(self, Value::String(_))
    }

    pub fn as_str(&self) -> Option<&str> {
        if let Value::String(text) = self { Some(text) } else { None }
    }

    pub fn is_number(&self) -> bool {
        matches!(self, Value::Number(_))
    }

    pub fn as_number(&self) -> Option<&Number> {
        if let Value::Number(number) = self { Some(number) } else { None }
    }

    pub fn is_i64(&self) -> bool {
        self.as_number().is_some_and(Number::is_i64)
    }

    pub fn is_u64(&self) -> bool {
        self.as_number().is_some_and(Number::is_u64)
    }

    pub fn is_f64(&self) -> bool {
        self.as_number().is_some_and(Number::is_f64)
    }

    pub fn as_i64(&self) -> Option<i64> {
        self.as_number().and_then(Number::as_i64)
    }

    pub fn as_u64(&self) -> Option<u64> {
        self.as_number().and_then(Number::as_u64)
    }

    pub fn as_f64(&self) -> Option<f64> {
        self.as_number().and_then(Number::as_f64)
    }

    pub fn is_boolean(&self) -> bool {
        matches!(self, Value::Bool(_))
    }

    pub fn as_bool(&self) -> Option<bool> {
        if let Value::Bool(truth) = self { Some(*truth) } else { None }
    }

    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// What a JSON pointer (RFC 6901) leads to.
    pub fn pointer(&self, pointer: &str) -> Option<&Value> {
        steps(pointer)?.try_fold(self, |value, step| match value {
            Value::Object(map) => map.get(&step),
            Value::Array(items) => items.get(number(&step)?),
            _ => None,
        })
    }

    /// The same, to be changed.
    pub fn pointer_mut(&mut self, pointer: &str) -> Option<&mut Value> {
        steps(pointer)?.try_fold(self, |value, step| match value {
            Value::Object(map) => map.get_mut(&step),
            Value::Array(items) => items.get_mut(number(&step)?),
            _ => None,
        })
    }

    /// Lets copies of the tree have its objects in common, each until it is changed ([`Map::share`]).
    pub fn share(&mut self) {
        match self {
            Value::Object(map) => map.share(),
            Value::Array(items) => items.iter_mut().for_each(Value::share),
            _ => {}
        }
    }

    /// Leaves a null in its place.
    pub fn take(&mut self) -> Value {
        std::mem::take(self)
    }
}

/// The steps of a JSON pointer; None for what is none.
fn steps(pointer: &str) -> Option<impl Iterator<Item = Cow<'_, str>>> {
    if !pointer.is_empty() && !pointer.starts_with('/') {
        return None;
    }
    Some(pointer.split('/').skip(1).map(|step| match step.contains('~') {
        true => step.replace("~1", "/").replace("~0", "~").into(),
        false => step.into(),
    }))
}

/// The place of an item as a pointer spells it.
fn number(step: &str) -> Option<usize> {
    let plain = !step.starts_with('+') && (step == "0" || !step.starts_with('0'));
    step.parse().ok().filter(|_| plain)
}

impl Debug for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("Null"),
            Value::Bool(truth) => write!(f, "Bool({truth})"),
            Value::Number(number) => Debug::fmt(number, f),
            Value::String(text) => write!(f, "String({text:?})"),
            Value::Array(items) => {
                f.write_str("Array ")?;
                Debug::fmt(items, f)
            }
            Value::Object(map) => {
                f.write_str("Object ")?;
                Debug::fmt(map, f)
            }
        }
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let text = if f.alternate() { real::to_string_pretty(self) } else { real::to_string(self) };
        f.write_str(&text.map_err(|_| fmt::Error)?)
    }
}

impl FromStr for Value {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        real::from_str(text)
    }
}
