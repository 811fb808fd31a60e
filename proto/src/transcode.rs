//! JSON to protobuf in one pass over the text, without a tree in between.
//!
//! In: the JSON of a struct as [`json::write`](crate::json::write) writes it, which is how objects are kept. Out: the
//! bytes that [`protobuf::encode`](crate::protobuf::encode) gives for the decoded tree.
//!
//! Members come in the order of the text, fields leave in the order of their numbers, with a zero for what is absent
//! and with inlined messages around their part. So a struct's members are written one after the other, then put in
//! order from a second buffer; each byte is copied once per level, which is cheap beside reading it.
//!
//! Limits: text of any JSON (`RawExtension`, `FieldsV1`) is passed on as it stands, so keys in another order than ours
//! stay in theirs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;

use crate::duration;
use crate::json::SyntaxError;
use crate::json::lexer::Lexer;
use crate::protobuf::encode::{put_integer, put_time_text, put_value};
use crate::protobuf::wire::{FIXED64, VARINT, put_bytes, put_message, put_tag};
use crate::schema::{Prop, Struct, StructId, Type, TypeId, TypeSet};

/// The text is not a struct's JSON as we write it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TranscodeError {
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// A value has another type than its field.
    #[error("a value does not fit its field of {0}")]
    Type(Box<str>),
}

type Result<T> = std::result::Result<T, TranscodeError>;

/// Appends a struct's message, without an envelope.
///
/// # Errors
/// When the text is not what [`json::write`](crate::json::write) writes for the struct; `out` then ends with part of a
/// message.
pub fn json_to_protobuf(set: &TypeSet, id: StructId, json: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let mut writer = Writer { set, lexer: Lexer::new(json), scratch: Vec::new() };
    writer.structure(id, out)?;
    writer.lexer.end()?;
    Ok(())
}

/// Properties that a struct has at most to have its parts kept on the stack.
const FEW: usize = 64;

/// Where each property's fields lie in the buffer.
type Part = (u32, u32);

struct Writer<'a, 's> {
    set: &'s TypeSet,
    lexer: Lexer<'a>,
    /// Fields of the struct that is put in order; empty in between.
    scratch: Vec<u8>,
}

impl<'s> Writer<'_, 's> {
    fn structure(&mut self, id: StructId, out: &mut Vec<u8>) -> Result<()> {
        let shape = self.set.get(id);
        let count = shape.props.len();
        let (mut few, mut many);
        let parts: &mut [Part] = if count <= FEW {
            few = [(0, 0); FEW];
            &mut few[..count]
        } else {
            many = vec![(0, 0); count];
            &mut many
        };
        let start = out.len();
        self.expect(b'{', shape)?;
        self.lexer.open()?;
        let (mut first, mut last, mut in_order) = (true, 0, true);
        while let Some(key) = self.lexer.key(&mut first, true)? {
            let Some((index, prop)) = shape.prop(&key) else {
                self.lexer.skip()?;
                continue;
            };
            let number = shape.numbers[index];
            let begin = out.len();
            if number == 0 {
                self.lexer.skip()?;
            } else {
                self.member(shape, prop, number, out)?;
                in_order &= number > last;
                last = number;
            }
            parts[index] = (offset(begin - start), offset(out.len() - start));
        }
        if in_order && self.is_whole(shape, parts) {
            return Ok(());
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.extend_from_slice(&out[start..]);
        out.truncate(start);
        self.arrange(shape, parts, &scratch, out);
        scratch.clear();
        self.scratch = scratch;
        Ok(())
    }

    /// Whether fields that were written in order of their numbers are the message as it stands.
    fn is_whole(&self, shape: &Struct, parts: &[Part]) -> bool {
        shape.wires.iter().all(|wire| {
            let at = usize::from(wire.prop);
            wire.inline.is_none() && (parts[at].1 > parts[at].0 || self.may_be_absent(&shape.props[at]))
        })
    }

    fn may_be_absent(&self, prop: &Prop) -> bool {
        prop.pointer || matches!(self.set.ty(prop.ty), Type::Bytes | Type::List(_) | Type::Map(_))
    }

    /// Writes the fields of a struct in order from where they were put; `parts` are those of its own properties.
    fn arrange(&self, shape: &Struct, parts: &[Part], fields: &[u8], out: &mut Vec<u8>) {
        for wire in &shape.wires {
            let at = usize::from(wire.prop);
            match wire.inline {
                Some(inner) => {
                    let inner = self.set.get(inner);
                    put_message(wire.number, out, |out| self.arrange(inner, &parts[at..], fields, out));
                }
                None => {
                    let (begin, end) = parts[at];
                    let prop = &shape.props[at];
                    if end > begin {
                        out.extend_from_slice(&fields[begin as usize..end as usize]);
                    } else if !self.may_be_absent(prop) {
                        put_value(self.set, prop.ty, wire.number, &Value::Null, out);
                    }
                }
            }
        }
    }

    fn expect(&mut self, byte: u8, shape: &Struct) -> Result<()> {
        if self.lexer.peek()? == byte { Ok(()) } else { Err(mismatch(shape)) }
    }

    /// The fields of one property; none for null.
    fn member(&mut self, shape: &'s Struct, prop: &'s Prop, number: u32, out: &mut Vec<u8>) -> Result<()> {
        match (self.lexer.peek()?, self.set.ty(prop.ty)) {
            (b'n', _) => {
                self.lexer.literal()?;
            }
            (b'[', Type::List(list)) if !list.wrapped => {
                self.each_element(|writer, out| writer.element(shape, list.element, number, out), out)?;
            }
            (b'{', Type::Map(map)) => {
                self.lexer.open()?;
                let mut first = true;
                while let Some(key) = self.lexer.key(&mut first, false)? {
                    message(number, out, |out| {
                        put_bytes(1, key.as_bytes(), out);
                        self.element(shape, map.value, 2, out)
                    })?;
                }
            }
            _ => self.value(shape, prop.ty, number, out)?,
        }
        Ok(())
    }

    fn each_element(
        &mut self,
        mut element: impl FnMut(&mut Self, &mut Vec<u8>) -> Result<()>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        self.lexer.open()?;
        let mut index = 0;
        while self.lexer.element(index)? {
            element(self, out)?;
            index += 1;
        }
        Ok(())
    }

    /// A value of a list or a map, where null is a zero.
    fn element(&mut self, shape: &'s Struct, ty: TypeId, number: u32, out: &mut Vec<u8>) -> Result<()> {
        if self.lexer.peek()? == b'n' {
            self.lexer.literal()?;
            put_value(self.set, ty, number, &Value::Null, out);
            return Ok(());
        }
        self.value(shape, ty, number, out)
    }

    fn value(&mut self, shape: &'s Struct, ty: TypeId, number: u32, out: &mut Vec<u8>) -> Result<()> {
        match (self.set.ty(ty), self.lexer.peek()?) {
            (Type::String, b'"') => put_bytes(number, self.lexer.string()?.as_bytes(), out),
            (Type::Bytes, b'"') => {
                let bytes = BASE64.decode(&*self.lexer.string()?).unwrap_or_default();
                put_bytes(number, &bytes, out);
            }
            (Type::Bool, first @ (b't' | b'f')) => {
                self.lexer.literal()?;
                put_tag(number, VARINT, out);
                out.push(u8::from(first == b't'));
            }
            (Type::Int32 | Type::Int64, b'-' | b'0'..=b'9') => put_integer(number, self.integer()?, out),
            (Type::Double, b'-' | b'0'..=b'9') => {
                let double: f64 = self.lexer.number()?.parse().unwrap_or_default();
                put_tag(number, FIXED64, out);
                out.extend_from_slice(&double.to_bits().to_le_bytes());
            }
            (Type::Quantity, b'"') => {
                let text = self.lexer.string()?;
                put_message(number, out, |out| put_bytes(1, text.as_bytes(), out));
            }
            (Type::Time | Type::MicroTime, b'"') => {
                let text = self.lexer.string()?;
                put_message(number, out, |out| put_time_text(&text, out));
            }
            (Type::Duration, b'"') => {
                let nanos = duration::parse(&self.lexer.string()?).unwrap_or_default();
                put_message(number, out, |out| put_integer(1, nanos, out));
            }
            (Type::IntOrString, b'"') => {
                let text = self.lexer.string()?;
                put_int_or_string(number, true, 0, text.as_bytes(), out);
            }
            (Type::IntOrString, b'-' | b'0'..=b'9') => put_int_or_string(number, false, self.integer()?, b"", out),
            (Type::Raw | Type::Json | Type::Fields, _) => {
                let text = self.lexer.raw()?;
                put_message(number, out, |out| put_bytes(1, text, out));
            }
            (Type::SchemaOrArray(id), b'[') => {
                let id = *id;
                message(number, out, |out| {
                    self.each_element(|w, out| message(2, out, |out| w.structure(id, out)), out)
                })?;
            }
            (Type::SchemaOrArray(id) | Type::SchemaOrStrings(id), b'{') => {
                message(number, out, |out| message(1, out, |out| self.structure(*id, out)))?;
            }
            (Type::SchemaOrBool(id), b'{') => message(number, out, |out| {
                put_integer(1, 1, out);
                message(2, out, |out| self.structure(*id, out))
            })?,
            (Type::SchemaOrBool(_), first @ (b't' | b'f')) => {
                self.lexer.literal()?;
                put_message(number, out, |out| put_integer(1, i64::from(first == b't'), out));
            }
            (Type::SchemaOrStrings(_), b'[') => self.strings(shape, number, 2, out)?,
            (Type::Struct(id) | Type::AtomicStruct(id), b'{') => message(number, out, |out| self.structure(*id, out))?,
            (Type::List(list), b'[') if list.wrapped => self.strings(shape, number, 1, out)?,
            _ => return Err(mismatch(shape)),
        }
        Ok(())
    }

    /// A message with a list of strings in one of its fields.
    fn strings(&mut self, shape: &'s Struct, number: u32, field: u32, out: &mut Vec<u8>) -> Result<()> {
        message(number, out, |out| {
            self.each_element(
                |writer, out| {
                    writer.expect(b'"', shape)?;
                    put_bytes(field, writer.lexer.string()?.as_bytes(), out);
                    Ok(())
                },
                out,
            )
        })
    }

    fn integer(&mut self) -> Result<i64> {
        Ok(self.lexer.number()?.parse().unwrap_or_default())
    }
}

fn put_int_or_string(number: u32, is_text: bool, value: i64, text: &[u8], out: &mut Vec<u8>) {
    put_message(number, out, |out| {
        put_integer(1, i64::from(is_text), out);
        put_integer(2, value, out);
        put_bytes(3, text, out);
    });
}

/// [`put_message`] around something that may fail.
fn message(number: u32, out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>) -> Result<()>) -> Result<()> {
    let mut result = Ok(());
    put_message(number, out, |out| result = body(out));
    result
}

fn mismatch(shape: &Struct) -> TranscodeError {
    TranscodeError::Type(shape.name.clone())
}

/// Objects are limited to a few MiB long before this.
fn offset(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}
