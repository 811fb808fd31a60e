//! Values of expressions. Members of objects are looked at where they lie, as what their schema says.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::net::IpAddr;
use std::sync::Arc;

use proto::quantity::Quantity;
use serde_json::{Map, Value as Json};

use super::authz::{Check, Decision};
use super::semver::Version;
use super::text::Text;
use super::types::{IN_ORDER, Order, Type};

#[derive(Debug, Clone)]
pub enum Value<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Text<'a>),
    Bytes(Arc<[u8]>),
    /// Nanoseconds since 1970.
    Timestamp(i128),
    /// Nanoseconds.
    Duration(i64),
    /// A type by its name.
    Kind(Cow<'static, str>),
    List(Arc<[Value<'a>]>),
    Map(Arc<[(Value<'a>, Value<'a>)]>),
    /// Items of a type in JSON, and how they are told apart.
    Items(&'a [Json], &'a Type, &'a Order),
    /// An object or map in JSON; the type is that of the whole.
    Members(&'a Map<String, Json>, &'a Type),
    Optional(Option<Arc<Value<'a>>>),
    Quantity(Quantity),
    Ip(IpAddr),
    Cidr(IpAddr, u8),
    Url(Arc<str>),
    Format(&'static str),
    Semver(Arc<Version>),
    /// What to ask an authorizer.
    Check(Arc<Check>),
    Decision(Arc<Decision>),
    /// A message that an expression made: the name of its type, and its fields.
    Made(Arc<str>, Arc<[(String, Value<'a>)]>),
}

/// What lies in an object, its type, and the order of a list.
type Lent<'a> = (&'a Json, &'a Type, &'a Order);

impl<'a> Value<'a> {
    /// A JSON value as a type has it.
    pub fn of(json: &'a Json, ty: &'a Type) -> Self {
        Value::ordered(json, ty, &IN_ORDER)
    }

    /// The same, of which a list has an order of its own.
    pub fn ordered(json: &'a Json, ty: &'a Type, order: &'a Order) -> Self {
        match (json, ty) {
            (Json::Null, _) => Value::Null,
            (Json::Bool(truth), _) => Value::Bool(*truth),
            (Json::Number(number), Type::Double) => Value::Double(number.as_f64().unwrap_or_default()),
            (Json::Number(number), _) => match (number.as_i64(), number.as_f64()) {
                (Some(whole), _) => Value::Int(whole),
                (None, Some(float)) if *ty == Type::Int => Value::Int(float as i64),
                (None, float) => Value::Double(float.unwrap_or_default()),
            },
            (Json::String(text), Type::Timestamp) => match timestamp(text) {
                Some(nanoseconds) => Value::Timestamp(nanoseconds),
                None => Value::Text(text.as_str().into()),
            },
            (Json::String(text), Type::Duration) => match proto::duration::parse(text) {
                Ok(nanoseconds) => Value::Duration(nanoseconds),
                Err(_) => Value::Text(text.as_str().into()),
            },
            (Json::String(text), Type::Bytes) => {
                use base64::Engine as _;
                match base64::engine::general_purpose::STANDARD.decode(text) {
                    Ok(bytes) => Value::Bytes(bytes.into()),
                    Err(_) => Value::Text(text.as_str().into()),
                }
            }
            (Json::String(text), _) => Value::Text(text.as_str().into()),
            (Json::Array(items), Type::List(item)) => Value::Items(items, item, order),
            (Json::Array(items), _) => Value::Items(items, &Type::Dyn, order),
            (Json::Object(map), ty) => Value::Members(map, ty),
        }
    }

    pub fn text(text: impl Into<Text<'a>>) -> Self {
        Value::Text(text.into())
    }

    pub fn list(items: Vec<Value<'a>>) -> Self {
        Value::List(items.into())
    }

    pub fn some(value: Value<'a>) -> Self {
        Value::Optional(Some(Arc::new(value)))
    }

    /// Items of a list, or keys of a map, one after the other; None for what has none.
    pub fn walk<'s>(&'s self) -> Option<Box<dyn Iterator<Item = Value<'a>> + 's>> {
        Some(match self {
            Value::List(items) => Box::new(items.iter().cloned()),
            Value::Items(items, ty, _) => Box::new(items.iter().map(|item| Value::of(item, ty))),
            Value::Map(entries) => Box::new(entries.iter().map(|(key, _)| key.clone())),
            Value::Made(_, fields) => Box::new(fields.iter().map(|(name, _)| Value::text(name.clone()))),
            Value::Members(map, _) => Box::new(map.keys().map(|key| Value::text(key.as_str()))),
            _ => return None,
        })
    }

    /// Items of a list, or keys of a map.
    pub fn members(&self) -> Option<Vec<Value<'a>>> {
        self.walk().map(Iterator::collect)
    }

    /// Bytes that were decoded to have this, if it was looked at where it lies.
    pub fn decoded(&self) -> usize {
        match self {
            Value::Bytes(bytes) => bytes.len(),
            Value::Optional(Some(inner)) => inner.decoded(),
            _ => 0,
        }
    }

    /// How many items, entries or fields there are.
    pub fn count(&self) -> usize {
        match self {
            Value::List(items) => items.len(),
            Value::Items(items, ..) => items.len(),
            Value::Map(entries) => entries.len(),
            Value::Members(map, _) => map.len(),
            Value::Made(_, fields) => fields.len(),
            _ => 0,
        }
    }

    /// The item of a list at a place.
    pub fn item(&self, at: usize) -> Option<Value<'a>> {
        match self {
            Value::List(items) => items.get(at).cloned(),
            Value::Items(items, ty, _) => items.get(at).map(|item| Value::of(item, ty)),
            _ => None,
        }
    }

    /// What it takes to find a key, in parts of a value that are compared in the same time: entries that expressions made
    /// are gone through.
    pub fn effort(&self) -> usize {
        match self {
            Value::Map(entries) => entries.len() / 16,
            Value::Made(_, fields) => fields.len() / 16,
            _ => 0,
        }
    }

    /// Whether it can be a key of a map.
    pub fn is_key(&self) -> bool {
        !(self.is_list() || self.is_map() || matches!(self, Value::Optional(_) | Value::Bytes(_)))
    }

    pub fn is_map(&self) -> bool {
        matches!(self, Value::Map(_) | Value::Members(..) | Value::Made(..))
    }

    pub fn is_list(&self) -> bool {
        matches!(self, Value::List(_) | Value::Items(..))
    }

    /// Whether its parts lie in an object, and are made into values whenever they are looked at.
    pub fn is_lent(&self) -> bool {
        match self {
            Value::Items(..) | Value::Members(..) => true,
            Value::Optional(Some(inner)) => inner.is_lent(),
            _ => false,
        }
    }

    /// What lies in an object as one of its fields, its type, and the order of a list.
    fn lent_field(&self, name: &str) -> Option<Lent<'a>> {
        let Value::Members(map, ty) = self else { return None };
        match ty {
            Type::Object(object) => {
                let field = object.fields.get(name)?;
                Some((map.get(&field.json)?, &field.ty, &field.order))
            }
            Type::Map(_, value) => Some((map.get(name)?, value, &IN_ORDER)),
            _ => Some((map.get(name)?, &Type::Dyn, &IN_ORDER)),
        }
    }

    /// The same under a key, as which fields of objects have their names in JSON.
    fn lent_entry(&self, key: &str) -> Option<Lent<'a>> {
        let Value::Members(map, Type::Object(object)) = self else { return self.lent_field(key) };
        // Most fields go by their own name.
        let field = object.fields.get(key).filter(|f| f.json == key);
        let field = field.or_else(|| object.fields.values().find(|f| f.json == key))?;
        Some((map.get(key)?, &field.ty, &field.order))
    }

    /// Whether there is a field, or a key of a map.
    pub fn has_field(&self, name: &str) -> bool {
        match self {
            Value::Members(..) => self.lent_field(name).is_some(),
            other => other.field(name).is_some(),
        }
    }

    /// Whether there is a key, which may be of any type.
    pub fn has_entry(&self, key: &Value<'_>) -> bool {
        match (self, key) {
            (Value::Members(..), Value::Text(key)) => self.lent_entry(key).is_some(),
            (other, key) => other.entry(key).is_some(),
        }
    }

    /// A field of an object or the value of a map's key; None where there is none.
    pub fn field(&self, name: &str) -> Option<Value<'a>> {
        match self {
            Value::Members(..) => self.lent_field(name).map(|(json, ty, order)| Value::ordered(json, ty, order)),
            Value::Map(entries) => {
                entries.iter().find(|(key, _)| matches!(key, Value::Text(k) if **k == *name)).map(|(_, v)| v.clone())
            }
            Value::Made(_, fields) => fields.iter().find(|(key, _)| key == name).map(|(_, v)| v.clone()),
            _ => None,
        }
    }

    /// The value of a key, which may be of any type.
    pub fn entry(&self, key: &Value<'_>) -> Option<Value<'a>> {
        match (self, key) {
            (Value::Members(..), Value::Text(key)) => {
                self.lent_entry(key).map(|(json, ty, order)| Value::ordered(json, ty, order))
            }
            (Value::Made(..), Value::Text(key)) => self.field(key),
            (Value::Map(entries), key) => entries.iter().find(|(k, _)| k.is_same(key)).map(|(_, v)| v.clone()),
            _ => None,
        }
    }

    /// The name of the value's type.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Null => "null_type",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Uint(_) => "uint",
            Value::Double(_) => "double",
            Value::Text(_) => "string",
            Value::Bytes(_) => "bytes",
            Value::Timestamp(_) => "google.protobuf.Timestamp",
            Value::Duration(_) => "google.protobuf.Duration",
            Value::Kind(_) => "type",
            Value::List(_) | Value::Items(..) => "list",
            Value::Map(_) | Value::Members(..) => "map",
            Value::Optional(_) => "optional_type",
            Value::Quantity(_) => "kubernetes.Quantity",
            Value::Ip(_) => "net.IP",
            Value::Cidr(..) => "net.CIDR",
            Value::Url(_) => "kubernetes.URL",
            Value::Format(_) => "kubernetes.NamedFormat",
            Value::Semver(_) => "kubernetes.Semver",
            Value::Check(check) => check.kind(),
            Value::Decision(_) => "kubernetes.authorization.Decision",
            Value::Made(..) => "Object",
        }
    }

    /// Equality of values without parts, as expressions see it: numbers of different types are equal when they are the
    /// same number. What has parts is compared by [`super::equal`].
    pub fn is_same(&self, other: &Value<'_>) -> bool {
        match (self, other) {
            (Value::Null, Value::Null) | (Value::Optional(None), Value::Optional(None)) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Text(a), Value::Text(b)) => **a == **b,
            (Value::Bytes(a), Value::Bytes(b)) => a == b,
            (Value::Timestamp(a), Value::Timestamp(b)) => a == b,
            (Value::Duration(a), Value::Duration(b)) => a == b,
            (Value::Kind(a), Value::Kind(b)) => a == b,
            (Value::Quantity(a), Value::Quantity(b)) => a.cmp(b).is_eq(),
            (Value::Ip(a), Value::Ip(b)) => a == b,
            (Value::Cidr(a, m), Value::Cidr(b, n)) => a == b && m == n,
            (Value::Url(a), Value::Url(b)) => a == b,
            (Value::Format(a), Value::Format(b)) => a == b,
            (Value::Semver(a), Value::Semver(b)) => a.cmp(b).is_eq(),
            (Value::Check(a), Value::Check(b)) => a == b,
            (Value::Decision(a), Value::Decision(b)) => a == b,
            (a, b) => a.compare(b) == Some(Ordering::Equal) && a.is_number() && b.is_number(),
        }
    }

    fn is_number(&self) -> bool {
        matches!(self, Value::Int(_) | Value::Uint(_) | Value::Double(_))
    }

    /// Order of two values; None where there is none.
    pub fn compare(&self, other: &Value<'_>) -> Option<Ordering> {
        Some(match (self, other) {
            (Value::Int(a), Value::Int(b)) => a.cmp(b),
            (Value::Uint(a), Value::Uint(b)) => a.cmp(b),
            (Value::Double(a), Value::Double(b)) => return a.partial_cmp(b),
            (Value::Int(a), Value::Uint(b)) => i128::from(*a).cmp(&i128::from(*b)),
            (Value::Uint(a), Value::Int(b)) => i128::from(*a).cmp(&i128::from(*b)),
            (Value::Int(a), Value::Double(b)) => return (*a as f64).partial_cmp(b),
            (Value::Double(a), Value::Int(b)) => return a.partial_cmp(&(*b as f64)),
            (Value::Uint(a), Value::Double(b)) => return (*a as f64).partial_cmp(b),
            (Value::Double(a), Value::Uint(b)) => return a.partial_cmp(&(*b as f64)),
            (Value::Text(a), Value::Text(b)) => (**a).cmp(b),
            (Value::Bytes(a), Value::Bytes(b)) => a.cmp(b),
            (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
            (Value::Timestamp(a), Value::Timestamp(b)) => a.cmp(b),
            (Value::Duration(a), Value::Duration(b)) => a.cmp(b),
            _ => return None,
        })
    }
}

impl Value<'_> {
    /// Whether the value takes no more than so many bytes as JSON, about. Values share their parts, and written out one
    /// may be larger than anything.
    pub fn is_within(&self, bytes: usize) -> bool {
        self.weigh(bytes).is_some()
    }

    /// What is left of some bytes after the value.
    fn weigh(&self, left: usize) -> Option<usize> {
        let left = left.checked_sub(1)?;
        match self {
            Value::Text(text) => left.checked_sub(text.len()),
            Value::Bytes(bytes) => left.checked_sub(bytes.len()),
            Value::Optional(inner) => inner.as_ref().map_or(Some(left), |inner| inner.weigh(left)),
            Value::List(items) => items.iter().try_fold(left, |left, item| item.weigh(left)),
            Value::Items(items, ..) => items.iter().try_fold(left, |left, item| weigh(item, left)),
            Value::Members(map, _) => {
                map.iter().try_fold(left, |left, (key, value)| weigh(value, left.checked_sub(key.len())?))
            }
            Value::Map(entries) => entries.iter().try_fold(left, |left, (key, value)| value.weigh(key.weigh(left)?)),
            Value::Made(_, fields) => {
                fields.iter().try_fold(left, |left, (name, value)| value.weigh(left.checked_sub(name.len())?))
            }
            _ => Some(left),
        }
    }

    /// The value in JSON, as what it would be in an object; None for what has no place in one.
    pub fn to_json(&self) -> Option<Json> {
        Some(match self {
            Value::Null => Json::Null,
            Value::Bool(truth) => (*truth).into(),
            Value::Int(number) => (*number).into(),
            Value::Uint(number) => (*number).into(),
            Value::Double(number) => {
                // Whole numbers are whole in JSON, too.
                let whole = number.fract() == 0.0 && number.abs() < 9e15;
                if whole { (*number as i64).into() } else { serde_json::Number::from_f64(*number)?.into() }
            }
            Value::Text(text) => (**text).into(),
            Value::Bytes(bytes) => {
                use base64::Engine as _;
                base64::engine::general_purpose::STANDARD.encode(bytes).into()
            }
            Value::Timestamp(_) | Value::Duration(_) | Value::Ip(_) | Value::Cidr(..) => {
                super::calls::shown(self).into()
            }
            Value::List(items) => Json::Array(items.iter().map(Value::to_json).collect::<Option<_>>()?),
            Value::Items(items, ..) => Json::Array(items.to_vec()),
            Value::Members(map, _) => Json::Object((*map).clone()),
            Value::Map(entries) => {
                let mut out = Map::new();
                for (key, value) in entries.iter() {
                    let Value::Text(key) = key else { return None };
                    out.insert(key.to_string().into(), value.to_json()?);
                }
                Json::Object(out)
            }
            Value::Made(_, fields) => {
                let fields = fields.iter().map(|(name, value)| Some((name.clone(), value.to_json()?)));
                Json::Object(fields.collect::<Option<_>>()?)
            }
            Value::Optional(inner) => inner.as_ref().map_or(Some(Json::Null), |inner| inner.to_json())?,
            Value::Quantity(quantity) => quantity.to_string().into(),
            Value::Url(text) => (&**text).into(),
            Value::Kind(_) | Value::Format(_) | Value::Semver(_) | Value::Check(_) | Value::Decision(_) => return None,
        })
    }
}

/// As [`Value::weigh`], of what lies in an object.
fn weigh(json: &Json, left: usize) -> Option<usize> {
    let left = left.checked_sub(1)?;
    match json {
        Json::String(text) => left.checked_sub(text.len()),
        Json::Array(items) => items.iter().try_fold(left, |left, item| weigh(item, left)),
        Json::Object(map) => map.iter().try_fold(left, |left, (key, value)| weigh(value, left.checked_sub(key.len())?)),
        _ => Some(left),
    }
}

/// Nanoseconds of an RFC 3339 time, or of a date alone.
pub fn timestamp(text: &str) -> Option<i128> {
    let whole = match text.len() {
        10 => Cow::Owned(format!("{text}T00:00:00Z")),
        _ => Cow::Borrowed(text),
    };
    let format = &time::format_description::well_known::Rfc3339;
    time::OffsetDateTime::parse(&whole, format).ok().map(time::OffsetDateTime::unix_timestamp_nanos)
}
