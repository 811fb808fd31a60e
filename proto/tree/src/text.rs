//! Trees as serde has them: read from whatever it reads, written to whatever it writes.

use std::fmt::{self, Formatter};

use real::Error;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};

use crate::{Map, Name, Value};

/// The tree of something that can be written.
///
/// # Errors
/// Where it cannot be written as JSON.
pub fn to_value(of: impl Serialize) -> Result<Value, Error> {
    real::to_value(of).map(Value::from)
}

/// Something that can be read, of its tree.
///
/// # Errors
/// Where the tree is of another shape.
pub fn from_value<T: DeserializeOwned>(value: Value) -> Result<T, Error> {
    real::from_value(value.into())
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Null => serializer.serialize_unit(),
            Value::Bool(truth) => serializer.serialize_bool(*truth),
            Value::Number(number) => number.serialize(serializer),
            Value::String(text) => serializer.serialize_str(text),
            Value::Array(items) => items.serialize(serializer),
            Value::Object(map) => map.serialize(serializer),
        }
    }
}

impl Serialize for Map<String, Value> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self)
    }
}

/// Makes a tree of what it is shown.
struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Value, E> {
        Ok(truth.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, some: D) -> Result<Value, D::Error> {
        Value::deserialize(some)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<Value, A::Error> {
        ObjectReader.visit_map(object).map(Value::Object)
    }
}

/// Makes an object of what it is shown.
struct ObjectReader;

impl<'de> Visitor<'de> for ObjectReader {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_unit<E>(self) -> Result<Map<String, Value>, E> {
        Ok(Map::new())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Map<String, Value>, A::Error> {
        let mut map = Map::new();
        while let Some((name, value)) = object.next_entry::<Name, Value>()? {
            map.insert(name, value);
        }
        Ok(map)
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

impl<'de> Deserialize<'de> for Map<String, Value> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectReader)
    }
}
