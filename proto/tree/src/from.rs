//! Trees of other things, and what they equal.

use std::borrow::Cow;

use real::Number;

use crate::{Map, Name, Value};

macro_rules! of_numbers {
    ($($kind:ty)*) => {$(
        impl From<$kind> for Value {
            fn from(number: $kind) -> Self {
                Value::Number(number.into())
            }
        }
    )*};
}

of_numbers! { i8 i16 i32 i64 isize u8 u16 u32 u64 usize Number }

impl From<f64> for Value {
    /// What is no number in JSON is null.
    fn from(number: f64) -> Self {
        Number::from_f64(number).map_or(Value::Null, Value::Number)
    }
}

impl From<f32> for Value {
    fn from(number: f32) -> Self {
        f64::from(number).into()
    }
}

impl From<bool> for Value {
    fn from(truth: bool) -> Self {
        Value::Bool(truth)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::String(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::String(text.to_owned())
    }
}

impl From<Cow<'_, str>> for Value {
    fn from(text: Cow<'_, str>) -> Self {
        Value::String(text.into_owned())
    }
}

impl From<Name> for Value {
    fn from(name: Name) -> Self {
        Value::String(name.into())
    }
}

impl From<&Name> for Value {
    fn from(name: &Name) -> Self {
        Value::String(name.into())
    }
}

impl From<Map<String, Value>> for Value {
    fn from(map: Map<String, Value>) -> Self {
        Value::Object(map)
    }
}

impl<T: Into<Value>> From<Vec<T>> for Value {
    fn from(items: Vec<T>) -> Self {
        items.into_iter().collect()
    }
}

impl<T: Into<Value>, const N: usize> From<[T; N]> for Value {
    fn from(items: [T; N]) -> Self {
        items.into_iter().collect()
    }
}

impl<T: Clone + Into<Value>> From<&[T]> for Value {
    fn from(items: &[T]) -> Self {
        items.iter().cloned().collect()
    }
}

impl From<()> for Value {
    fn from((): ()) -> Self {
        Value::Null
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(some: Option<T>) -> Self {
        some.map_or(Value::Null, Into::into)
    }
}

impl<T: Into<Value>> FromIterator<T> for Value {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Value::Array(items.into_iter().map(Into::into).collect())
    }
}

impl<K: Into<Name>, V: Into<Value>> FromIterator<(K, V)> for Value {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(members: I) -> Self {
        Value::Object(members.into_iter().map(|(name, value)| (name, value.into())).collect())
    }
}

/// The same tree of the other crate.
impl From<real::Value> for Value {
    fn from(value: real::Value) -> Self {
        match value {
            real::Value::Null => Value::Null,
            real::Value::Bool(truth) => Value::Bool(truth),
            real::Value::Number(number) => Value::Number(number),
            real::Value::String(text) => Value::String(text),
            real::Value::Array(items) => items.into_iter().map(Value::from).collect(),
            real::Value::Object(map) => map.into_iter().collect(),
        }
    }
}

impl From<Value> for real::Value {
    fn from(value: Value) -> Self {
        match value {
            Value::Null => real::Value::Null,
            Value::Bool(truth) => real::Value::Bool(truth),
            Value::Number(number) => real::Value::Number(number),
            Value::String(text) => real::Value::String(text),
            Value::Array(items) => items.into_iter().map(real::Value::from).collect(),
            Value::Object(map) => {
                map.into_iter().map(|(name, value)| (String::from(name), real::Value::from(value))).collect()
            }
        }
    }
}

impl PartialEq<str> for Value {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == Some(other)
    }
}

impl PartialEq<&str> for Value {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == Some(*other)
    }
}

impl PartialEq<String> for Value {
    fn eq(&self, other: &String) -> bool {
        self.as_str() == Some(other)
    }
}

impl PartialEq<Name> for Value {
    fn eq(&self, other: &Name) -> bool {
        self.as_str() == Some(other)
    }
}

impl PartialEq<Value> for str {
    fn eq(&self, other: &Value) -> bool {
        other == self
    }
}

impl PartialEq<Value> for &str {
    fn eq(&self, other: &Value) -> bool {
        other == *self
    }
}

impl PartialEq<Value> for String {
    fn eq(&self, other: &Value) -> bool {
        other == self
    }
}

macro_rules! equal_to {
    ($($as:ident: $wide:ty, $($kind:ty)*;)*) => {$($(
        impl PartialEq<$kind> for Value {
            fn eq(&self, other: &$kind) -> bool {
                self.$as().is_some_and(|own| <$wide>::try_from(*other).is_ok_and(|other| own == other))
            }
        }

        impl PartialEq<Value> for $kind {
            fn eq(&self, other: &Value) -> bool {
                other == self
            }
        }

        impl PartialEq<$kind> for &Value {
            fn eq(&self, other: &$kind) -> bool {
                **self == *other
            }
        }

        impl PartialEq<$kind> for &mut Value {
            fn eq(&self, other: &$kind) -> bool {
                **self == *other
            }
        }
    )*)*};
}

equal_to! {
    as_i64: i64, i8 i16 i32 i64 isize;
    as_u64: u64, u8 u16 u32 u64 usize;
    as_f64: f64, f32 f64;
    as_bool: bool, bool;
}
