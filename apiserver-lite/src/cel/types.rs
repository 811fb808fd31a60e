//! Types of expressions, and types made of the schemas of objects.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::words::is_taken;

/// Types share their parts; what is the same in memory is equal without a look at it, as `Eq` has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Bytes,
    Timestamp,
    Duration,
    /// The type of a type.
    Kind,
    List(Arc<Type>),
    Map(Arc<Type>, Arc<Type>),
    Object(Arc<ObjectType>),
    Optional(Arc<Type>),
    /// A type of Kubernetes' libraries, such as `kubernetes.Quantity`.
    Opaque(&'static str),
    /// What expressions make themselves to change an object: `Object`, `Object.spec`, `JSONPatch`.
    Made(Arc<str>),
    /// A type parameter of a function.
    Parameter(char),
    /// Of what is not there, such as the items of an empty list: whatever the other one is where two are joined.
    Free,
}

/// An object whose fields are known.
#[derive(Debug, PartialEq, Eq, Default)]
pub struct ObjectType {
    pub name: String,
    /// By the name that expressions use.
    pub fields: BTreeMap<String, Field>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Field {
    /// The name in JSON.
    pub json: String,
    pub ty: Type,
    /// Of a list.
    pub order: Order,
}

/// How the items of a list are told apart.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Order {
    /// By their places.
    #[default]
    Said,
    /// By what they are.
    Set,
    /// By these members.
    Keys(Vec<Box<str>>),
}

/// The order of most lists.
pub static IN_ORDER: Order = Order::Said;

impl Field {
    pub fn new(json: &str, ty: Type) -> Self {
        Field { json: json.into(), ty, order: Order::Said }
    }
}

/// Parts of the largest type that an expression may have.
pub const MOST_PARTS: usize = 1000;
/// Parts that messages show.
const MOST_SHOWN: usize = 250;

impl Type {
    pub fn list(item: Type) -> Self {
        Type::List(Arc::new(item))
    }

    pub fn map(value: Type) -> Self {
        Type::Map(Arc::new(Type::Text), Arc::new(value))
    }

    pub fn optional(inner: Type) -> Self {
        Type::Optional(Arc::new(inner))
    }

    pub fn made(name: &str) -> Self {
        Type::Made(name.into())
    }

    /// An object of fields that go by their own names.
    pub fn object(name: &str, fields: &[(&str, Type)]) -> Self {
        let field = |(json, ty): &(&str, Type)| ((*json).to_owned(), Field::new(json, ty.clone()));
        Type::Object(Arc::new(ObjectType { name: name.into(), fields: fields.iter().map(field).collect() }))
    }

    /// Whether a type has more parts than what can be looked at whole. The parts of objects do not count.
    pub fn is_large(&self) -> bool {
        fn count(ty: &Type, left: usize) -> Option<usize> {
            let left = left.checked_sub(1)?;
            match ty {
                Type::List(inner) | Type::Optional(inner) => count(inner, left),
                Type::Map(key, value) => count(value, count(key, left)?),
                _ => Some(left),
            }
        }
        count(self, MOST_PARTS).is_none()
    }

    /// The type with nothing free in it any more.
    pub fn settled(self) -> Self {
        fn is_open(ty: &Type) -> bool {
            match ty {
                Type::Free => true,
                Type::List(inner) | Type::Optional(inner) => is_open(inner),
                Type::Map(key, value) => is_open(key) || is_open(value),
                _ => false,
            }
        }
        let part = |part: Arc<Type>| if is_open(&part) { Arc::new((*part).clone().settled()) } else { part };
        match self {
            Type::Free => Type::Dyn,
            Type::List(item) => Type::List(part(item)),
            Type::Optional(inner) => Type::Optional(part(inner)),
            Type::Map(key, value) => Type::Map(part(key), part(value)),
            other => other,
        }
    }

    /// The name without what is in it, as the values of the type have it.
    pub fn name(&self) -> String {
        match self {
            Type::List(_) => "list".into(),
            Type::Map(..) => "map".into(),
            Type::Optional(_) => "optional_type".into(),
            other => other.runtime_name(),
        }
    }

    /// The name as messages about a result have it, which is not always the one that the checker shows.
    pub fn runtime_name(&self) -> String {
        match self {
            Type::Null => "null_type".into(),
            Type::Timestamp => "google.protobuf.Timestamp".into(),
            Type::Duration => "google.protobuf.Duration".into(),
            Type::List(item) => format!("list({})", item.runtime_name()),
            Type::Map(key, value) => format!("map({}, {})", key.runtime_name(), value.runtime_name()),
            Type::Optional(inner) => format!("optional_type({})", inner.runtime_name()),
            other => other.to_string(),
        }
    }
}

impl Type {
    fn show(&self, f: &mut fmt::Formatter<'_>, left: &mut usize) -> fmt::Result {
        let Some(rest) = left.checked_sub(1) else { return f.write_str("...") };
        *left = rest;
        match self {
            Type::Dyn => f.write_str("dyn"),
            Type::Null => f.write_str("null"),
            Type::Bool => f.write_str("bool"),
            Type::Int => f.write_str("int"),
            Type::Uint => f.write_str("uint"),
            Type::Double => f.write_str("double"),
            Type::Text => f.write_str("string"),
            Type::Bytes => f.write_str("bytes"),
            Type::Timestamp => f.write_str("timestamp"),
            Type::Duration => f.write_str("duration"),
            Type::Kind => f.write_str("type"),
            Type::List(item) => {
                f.write_str("list(")?;
                item.show(f, left)?;
                f.write_str(")")
            }
            Type::Map(key, value) => {
                f.write_str("map(")?;
                key.show(f, left)?;
                f.write_str(", ")?;
                value.show(f, left)?;
                f.write_str(")")
            }
            Type::Object(object) => f.write_str(&object.name),
            Type::Optional(inner) => {
                f.write_str("optional_type(")?;
                inner.show(f, left)?;
                f.write_str(")")
            }
            Type::Opaque(name) => f.write_str(name),
            Type::Made(name) => f.write_str(name),
            Type::Free => f.write_str("dyn"),
            Type::Parameter(name) => write!(f, "{name}"),
        }
    }
}

/// Types as a complaint about all of them names them: however many there are, they have a bounded number of parts in
/// common that are shown.
pub struct Shown<'a>(pub &'a [Type]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = MOST_SHOWN;
        for (at, ty) in self.0.iter().enumerate() {
            f.write_str(if at > 0 { ", " } else { "" })?;
            ty.show(f, &mut left)?;
            if left == 0 {
                break;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.show(f, &mut MOST_SHOWN.clone())
    }
}

/// The name that expressions use for a field; None for one that cannot be named.
pub fn escape(name: &str) -> Option<String> {
    if is_taken(name) {
        return Some(format!("__{name}__"));
    }
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if !name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/')) {
        return None;
    }
    let escaped = name.replace("__", "__underscores__");
    Some(escaped.replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__"))
}
