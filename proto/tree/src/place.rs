//! What names a part of a value: the name of a member, or the number of an item.

use std::ops::{Index, IndexMut};

use crate::{Map, Name, Value};

/// A text for a member of an object, a number for an item of a list.
pub trait Place {
    /// The part that is there.
    fn of<'v>(&self, value: &'v Value) -> Option<&'v Value>;

    /// The same, to be changed.
    fn of_mut<'v>(&self, value: &'v mut Value) -> Option<&'v mut Value>;

    /// The same, made where it is not there: a member, and the object for it where there is nothing.
    ///
    /// # Panics
    /// Where it cannot be made.
    fn made<'v>(&self, value: &'v mut Value) -> &'v mut Value;
}

impl Place for str {
    fn of<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        value.as_object()?.get(self)
    }

    fn of_mut<'v>(&self, value: &'v mut Value) -> Option<&'v mut Value> {
        value.as_object_mut()?.get_mut(self)
    }

    fn made<'v>(&self, value: &'v mut Value) -> &'v mut Value {
        if value.is_null() {
            *value = Value::Object(Map::new());
        }
        match value {
            Value::Object(map) => map.member(self),
            other => panic!("cannot access key {self:?} in JSON {}", kind(other)),
        }
    }
}

macro_rules! texts {
    ($($text:ty)*) => {$(
        impl Place for $text {
            fn of<'v>(&self, value: &'v Value) -> Option<&'v Value> {
                self.as_str().of(value)
            }

            fn of_mut<'v>(&self, value: &'v mut Value) -> Option<&'v mut Value> {
                self.as_str().of_mut(value)
            }

            fn made<'v>(&self, value: &'v mut Value) -> &'v mut Value {
                self.as_str().made(value)
            }
        }
    )*};
}

texts! { String Name }

impl Place for usize {
    fn of<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        value.as_array()?.get(*self)
    }

    fn of_mut<'v>(&self, value: &'v mut Value) -> Option<&'v mut Value> {
        value.as_array_mut()?.get_mut(*self)
    }

    fn made<'v>(&self, value: &'v mut Value) -> &'v mut Value {
        match value {
            Value::Array(items) => {
                let length = items.len();
                let item = items.get_mut(*self);
                item.unwrap_or_else(|| panic!("cannot access index {self} of JSON array of length {length}"))
            }
            other => panic!("cannot access index {self} of JSON {}", kind(other)),
        }
    }
}

impl<P: Place + ?Sized> Place for &P {
    fn of<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        (**self).of(value)
    }

    fn of_mut<'v>(&self, value: &'v mut Value) -> Option<&'v mut Value> {
        (**self).of_mut(value)
    }

    fn made<'v>(&self, value: &'v mut Value) -> &'v mut Value {
        (**self).made(value)
    }
}

impl<P: Place> Index<P> for Value {
    type Output = Value;

    /// The part, null where it is not there.
    fn index(&self, place: P) -> &Value {
        static NULL: Value = Value::Null;
        place.of(self).unwrap_or(&NULL)
    }
}

impl<P: Place> IndexMut<P> for Value {
    /// # Panics
    /// As [`Place::made`].
    fn index_mut(&mut self, place: P) -> &mut Value {
        place.made(self)
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
