//! Decoding by schema in one pass over the text: types are checked, unknown members dropped and noted, the result
//! normalised. Follows the behaviour of `sigs.k8s.io/json` over Go structs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value};

use super::lexer::{Lexer, SyntaxError, check, number_value};
use super::{DecodeError, Decoded};
use crate::quantity::Quantity;
use crate::schema::{Prop, Struct, StructId, Type, TypeId, TypeSet};
use crate::{duration, go_base64, time};

pub(super) fn decode(set: &TypeSet, id: StructId, text: &[u8]) -> Result<Decoded, DecodeError> {
    let mut reader = Reader { set, lexer: Lexer::new(text) };
    let start = Place { owner: None, steps: 0 };
    let value = reader.structure(id, &start).and_then(|v| Ok(reader.lexer.end().map(|()| v)?));
    match value {
        Ok(value) => Ok(Decoded {
            value: value.unwrap_or_else(|| Value::Object(Map::new())),
            strict: reader.lexer.take_strict(),
        }),
        // Go checks the syntax of the whole text first, so a broken byte anywhere wins over a wrong type.
        Err(error) => Err(check(text).err().map_or(error, DecodeError::Syntax)),
    }
}

struct Reader<'a, 's> {
    set: &'s TypeSet,
    lexer: Lexer<'a>,
}

/// The struct field a value belongs to, for messages; elements of its lists and maps share it.
#[derive(Clone, Copy)]
struct Place<'s> {
    owner: Option<&'s Struct>,
    /// Length of the reader's path at the field.
    steps: usize,
}

type Read = Result<Option<Value>, DecodeError>;

impl<'s> Reader<'_, 's> {
    /// Reads a value of a type; None for null.
    fn value(&mut self, ty: TypeId, place: &Place<'s>) -> Read {
        if self.lexer.peek()? == b'n' {
            self.lexer.literal()?;
            return Ok(None);
        }
        match self.set.ty(ty) {
            Type::String => match self.lexer.peek()? {
                b'"' => Ok(Some(Value::String(self.lexer.string()?.into_owned()))),
                _ => self.mismatch("string", place),
            },
            Type::Bool => match self.lexer.peek()? {
                b't' | b'f' => Ok(Some(self.lexer.literal()?)),
                _ => self.mismatch("bool", place),
            },
            Type::Int32 => self.integer("int32", i64::from(i32::MIN)..=i64::from(i32::MAX), place),
            Type::Int64 => self.integer("int64", i64::MIN..=i64::MAX, place),
            Type::Double => match self.lexer.peek()? {
                b'-' | b'0'..=b'9' => Ok(Some(number_value(self.lexer.number()?)?)),
                _ => self.mismatch("float64", place),
            },
            Type::Bytes => self.bytes(place),
            Type::Quantity => self.quantity(),
            Type::Time => self.time(|t| time::parse_rfc3339(t).map(|t| t.to_seconds_text())),
            Type::MicroTime => self.time(|t| time::parse_micros(t).map(|t| t.to_micros_text())),
            Type::Duration => self.duration(place),
            Type::IntOrString => self.int_or_string(),
            Type::Raw | Type::Json => Ok(Some(self.lexer.any()?)),
            Type::Fields => self.object_of_any(place),
            Type::SchemaOrArray(id) => match self.lexer.peek()? {
                b'[' => self.list(place, |r, place| Ok(Some(r.structure(*id, place)?.unwrap_or_else(empty)))),
                b'{' => self.structure(*id, place),
                _ => self.mismatch("JSONSchemaPropsOrArray", place),
            },
            Type::SchemaOrBool(id) => match self.lexer.peek()? {
                b'{' => self.structure(*id, place),
                b't' | b'f' => Ok(Some(self.lexer.literal()?)),
                _ => Err(DecodeError::Type("boolean or JSON schema expected".into())),
            },
            Type::SchemaOrStrings(id) => match self.lexer.peek()? {
                b'{' => self.structure(*id, place),
                b'[' => self.list(place, |r, place| match r.lexer.peek()? {
                    b'"' => Ok(Some(Value::String(r.lexer.string()?.into_owned()))),
                    _ => r.mismatch("string", place),
                }),
                _ => self.mismatch("[]string", place),
            },
            Type::Struct(id) | Type::AtomicStruct(id) => self.structure(*id, place),
            Type::List(list) => self.list_of(list.element, place),
            Type::Map(map) => self.map_of(map.value, place),
        }
    }

    fn list_of(&mut self, element: TypeId, place: &Place<'s>) -> Read {
        if self.lexer.peek()? != b'[' {
            let name = format!("[]{}", self.go_name(element));
            return self.mismatch(&name, place);
        }
        self.list(place, |r, place| {
            let value = r.value(element, place)?;
            // Go's lists have no place for nothing; custom resources are no Go values.
            Ok(if r.set.is_custom() { value } else { Some(value.unwrap_or_else(|| zero(r.set, element))) })
        })
    }

    fn list(&mut self, place: &Place<'s>, read: impl Fn(&mut Self, &Place<'s>) -> Read) -> Read {
        let mut out = Vec::new();
        self.lexer.open()?;
        while self.lexer.element(out.len())? {
            out.push(read(self, place)?.unwrap_or(Value::Null));
        }
        Ok(Some(Value::Array(out)))
    }

    fn map_of(&mut self, element: TypeId, place: &Place<'s>) -> Read {
        if self.lexer.peek()? != b'{' {
            let name = format!("map[string]{}", self.go_name(element));
            return self.mismatch(&name, place);
        }
        let (mut out, mut first) = (Map::new(), true);
        self.lexer.open()?;
        while let Some(key) = self.lexer.key(&mut first, false)? {
            let value = self.value(element, place)?.unwrap_or_else(|| zero(self.set, element));
            if out.insert(key.into(), value).is_some() {
                self.lexer.complain("duplicate");
            }
        }
        Ok(Some(Value::Object(out)))
    }

    fn structure(&mut self, id: StructId, place: &Place<'s>) -> Read {
        let set = self.set;
        let shape = set.get(id);
        match self.lexer.peek()? {
            b'{' => {}
            b'n' => {
                self.lexer.literal()?;
                return Ok(None);
            }
            _ => return self.mismatch(&go_struct_name(shape), place),
        }
        let (mut out, mut seen, mut first) = (Map::new(), Seen::default(), true);
        self.lexer.open()?;
        while let Some(key) = self.lexer.key(&mut first, true)? {
            let Some((index, prop)) = shape.prop(&key) else {
                if shape.open {
                    let value = self.lexer.any()?;
                    out.insert(key.into(), value);
                } else {
                    self.lexer.complain("unknown");
                    self.lexer.skip()?;
                }
                continue;
            };
            if !seen.first(index) {
                self.lexer.complain("duplicate");
            }
            let here = Place { owner: Some(shape), steps: self.lexer.depth_of_path() };
            match self.value(prop.ty, &here)? {
                Some(value) if keeps(set, prop, &value) => {
                    out.insert(prop.name.clone(), value);
                }
                // Null, and what Go would leave out, are the same as absent.
                _ => {
                    out.remove(&*key);
                }
            }
        }
        Ok(Some(Value::Object(out)))
    }

    fn object_of_any(&mut self, place: &Place<'s>) -> Read {
        match self.lexer.peek()? {
            b'{' => Ok(Some(self.lexer.any()?)),
            _ => self.mismatch("map[string]interface {}", place),
        }
    }

    fn integer(&mut self, name: &str, range: std::ops::RangeInclusive<i64>, place: &Place<'s>) -> Read {
        match self.lexer.peek()? {
            b'-' | b'0'..=b'9' => {
                let text = self.lexer.number()?;
                match text.parse::<i64>() {
                    Ok(number) if range.contains(&number) => Ok(Some(number.into())),
                    _ => Err(type_error(&self.lexer, &format!("number {text}"), name, place)),
                }
            }
            _ => self.mismatch(name, place),
        }
    }

    fn bytes(&mut self, place: &Place<'s>) -> Read {
        if self.lexer.peek()? != b'"' {
            return self.mismatch("[]uint8", place);
        }
        let text = self.lexer.string()?;
        if BASE64.decode(&*text).is_ok() {
            return Ok(Some(Value::String(text.into_owned())));
        }
        match go_base64::standard(&text) {
            // Some bytes can be spelled in several ways; they are kept in the usual one.
            Ok(bytes) => Ok(Some(Value::String(BASE64.encode(bytes)))),
            Err(at) => Err(DecodeError::Type(format!("illegal base64 data at input byte {at}"))),
        }
    }

    fn quantity(&mut self) -> Read {
        let text = match self.lexer.peek()? {
            b'"' => self.lexer.string()?.into_owned(),
            b'-' | b'0'..=b'9' => self.lexer.number()?.to_owned(),
            _ => {
                self.lexer.skip()?;
                "{".to_owned()
            }
        };
        match text.parse::<Quantity>() {
            Ok(quantity) => Ok(Some(Value::String(quantity.to_string()))),
            Err(error) => Err(DecodeError::Type(error.to_string())),
        }
    }

    fn time(&mut self, canonical: impl Fn(&str) -> Result<String, time::ParseError>) -> Read {
        match self.lexer.peek()? {
            b'"' => {
                let text = self.lexer.string()?;
                let text = canonical(&text).map_err(|e| DecodeError::Type(e.to_string()))?;
                Ok(Some(Value::String(text)))
            }
            _ => {
                let what = self.shape()?;
                Err(DecodeError::Type(format!("json: cannot unmarshal {what} into Go value of type string")))
            }
        }
    }

    fn duration(&mut self, _place: &Place<'s>) -> Read {
        match self.lexer.peek()? {
            b'"' => {
                let text = self.lexer.string()?;
                let parsed = duration::parse(&text).map_err(|e| DecodeError::Type(e.to_string()))?;
                Ok(Some(Value::String(duration::format(parsed))))
            }
            _ => {
                let what = self.shape()?;
                Err(DecodeError::Type(format!("json: cannot unmarshal {what} into Go value of type string")))
            }
        }
    }

    fn int_or_string(&mut self) -> Read {
        match self.lexer.peek()? {
            b'"' => Ok(Some(Value::String(self.lexer.string()?.into_owned()))),
            b'-' | b'0'..=b'9' => {
                let text = self.lexer.number()?;
                match text.parse::<i32>() {
                    Ok(number) => Ok(Some(number.into())),
                    Err(_) => Err(DecodeError::Type(format!(
                        "json: cannot unmarshal number {text} into Go value of type int32"
                    ))),
                }
            }
            _ => {
                let what = self.shape()?;
                Err(DecodeError::Type(format!("json: cannot unmarshal {what} into Go value of type int32")))
            }
        }
    }

    /// Skips the value at hand and says what it was.
    fn shape(&mut self) -> Result<&'static str, SyntaxError> {
        let what = match self.lexer.peek()? {
            b'"' => "string",
            b'{' => "object",
            b'[' => "array",
            b't' | b'f' => "bool",
            _ => "number",
        };
        self.lexer.skip()?;
        Ok(what)
    }

    fn mismatch(&mut self, expected: &str, place: &Place<'s>) -> Read {
        let steps = place.steps;
        let what = self.shape()?;
        Err(type_error(&self.lexer, what, expected, &Place { owner: place.owner, steps }))
    }

    /// A type as Go's `reflect.Type` prints it.
    fn go_name(&self, ty: TypeId) -> String {
        match self.set.ty(ty) {
            Type::String => "string".into(),
            Type::Bytes => "[]uint8".into(),
            Type::Bool => "bool".into(),
            Type::Int32 => "int32".into(),
            Type::Int64 => "int64".into(),
            Type::Double => "float64".into(),
            Type::Quantity => "resource.Quantity".into(),
            Type::Time => "v1.Time".into(),
            Type::MicroTime => "v1.MicroTime".into(),
            Type::Duration => "v1.Duration".into(),
            Type::IntOrString => "intstr.IntOrString".into(),
            Type::Raw => "runtime.RawExtension".into(),
            Type::Fields => "v1.FieldsV1".into(),
            Type::Json => "v1.JSON".into(),
            Type::SchemaOrArray(_) => "v1.JSONSchemaPropsOrArray".into(),
            Type::SchemaOrBool(_) => "v1.JSONSchemaPropsOrBool".into(),
            Type::SchemaOrStrings(_) => "v1.JSONSchemaPropsOrStringArray".into(),
            Type::Struct(id) | Type::AtomicStruct(id) => go_struct_name(self.set.get(*id)),
            Type::List(list) => format!("[]{}", self.go_name(list.element)),
            Type::Map(map) => format!("map[string]{}", self.go_name(map.value)),
        }
    }
}

/// Which properties of a struct were read already.
#[derive(Default)]
struct Seen([u64; 2]);

impl Seen {
    /// Marks a property; false when it was marked before.
    fn first(&mut self, index: usize) -> bool {
        let (word, bit) = (index / 64 % 2, 1u64 << (index % 64));
        let first = self.0[word] & bit == 0;
        self.0[word] |= bit;
        first
    }
}

/// Lists that mean something else when they are there without items: owners of fields are forgotten, and an autoscaler's
/// rules are refused instead of defaulted.
const EMPTY_IS_SAID: [&str; 2] = ["managedFields", "policies"];

/// Whether Go would write a property with this value, or leaves it out as empty.
pub(super) fn keeps(set: &TypeSet, prop: &Prop, value: &Value) -> bool {
    if prop.always || set.is_custom() {
        return true;
    }
    match value {
        Value::String(text) => prop.pointer || !text.is_empty() || !is_plain(set, prop),
        Value::Bool(truth) => prop.pointer || *truth || !is_plain(set, prop),
        Value::Number(number) => prop.pointer || number.as_f64() != Some(0.0) || !is_plain(set, prop),
        // An empty list in a field of any JSON is a value like others.
        Value::Array(list) => {
            !list.is_empty() || EMPTY_IS_SAID.contains(&&*prop.name) || !matches!(set.ty(prop.ty), Type::List(_))
        }
        Value::Object(map) => !map.is_empty() || !matches!(set.ty(prop.ty), Type::Map(_)),
        Value::Null => false,
    }
}

/// Types whose zero Go's `omitempty` leaves out.
fn is_plain(set: &TypeSet, prop: &Prop) -> bool {
    matches!(set.ty(prop.ty), Type::String | Type::Bool | Type::Int32 | Type::Int64 | Type::Double | Type::Bytes)
}

fn empty() -> Value {
    Value::Object(Map::new())
}

/// What Go holds for a null inside a list or a map of non-pointers.
fn zero(set: &TypeSet, ty: TypeId) -> Value {
    match set.ty(ty) {
        Type::String | Type::Bytes => Value::String(String::new()),
        Type::Bool => Value::Bool(false),
        Type::Int32 | Type::Int64 | Type::Double => 0.into(),
        Type::Quantity => "0".into(),
        Type::Struct(_) | Type::AtomicStruct(_) => empty(),
        _ => Value::Null,
    }
}

/// `v1.PodSpec`: the last element of the Go package path and the type.
fn go_struct_name(shape: &Struct) -> String {
    let mut parts = shape.name.rsplit('.');
    let name = parts.next().unwrap_or_default();
    let package = parts.next().unwrap_or_default();
    format!("{package}.{name}")
}

fn type_error(lexer: &Lexer<'_>, what: &str, expected: &str, place: &Place<'_>) -> DecodeError {
    DecodeError::Type(match place.owner {
        None => format!("json: cannot unmarshal {what} into Go value of type {expected}"),
        Some(owner) => {
            let name = owner.name.rsplit('.').next().unwrap_or_default();
            let field = lexer.field_up_to(place.steps);
            format!("json: cannot unmarshal {what} into Go struct field {name}.{field} of type {expected}")
        }
    })
}
