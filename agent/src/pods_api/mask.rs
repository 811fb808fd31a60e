//! Field masks over encoded pods: what is asked for is copied, the rest is stepped over.
//!
//! A path names fields as JSON does (`status.podIPs`), or in the spelling with underscores that protobuf's own JSON
//! mapping makes of it. It may end at any field; lists and maps are taken whole. Paths are resolved once, by the schema
//! table, into field numbers; applying a mask reads the tags of the messages on its paths and nothing else.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use bytes::{BufMut, Bytes, BytesMut};
use proto::schema::{Struct, StructId, Type, TypeSet};

const POD: &str = "k8s.io.api.core.v1.Pod";
/// Paths of one mask; a pod has some hundred fields that can be named.
const MAX_PATHS: usize = 10_000;
/// Characters of a bad path that are told; no field of a pod has a longer one.
const MAX_NAMED: usize = 256;

/// A mask that cannot be used; the client's to mend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MaskError {
    #[error("invalid field mask path {0:?}: no such field of a pod")]
    BadPath(String),
    #[error("field mask has {0} paths, at most {MAX_PATHS} are allowed")]
    TooManyPaths(usize),
    #[error("field mask is no google.protobuf.FieldMask: {0}")]
    Encoding(String),
}

/// Fields to keep by number; `None` keeps a field whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mask {
    fields: BTreeMap<u32, Option<Mask>>,
}

impl MaskError {
    /// Named as far as an answer's head can hold it for every client: gRPC's take eight kilobytes.
    fn bad_path(path: &str) -> Self {
        match path.char_indices().nth(MAX_NAMED) {
            Some((end, _)) => MaskError::BadPath(format!("{}...", &path[..end])),
            None => MaskError::BadPath(path.to_owned()),
        }
    }
}

impl Mask {
    /// Resolves paths against the Pod type. No path at all, or `*`, is no mask.
    ///
    /// # Errors
    /// See [`MaskError`]; the first bad path is named.
    pub fn parse<'a>(paths: impl IntoIterator<Item = &'a str>) -> Result<Option<Self>, MaskError> {
        // Found by going through all types, which is done once.
        static ROOT: LazyLock<Option<StructId>> = LazyLock::new(|| TypeSet::built_in().struct_named(POD));
        let set = TypeSet::built_in();
        let (mut mask, mut count, mut whole) = (Self::default(), 0_usize, false);
        for path in paths {
            count += 1;
            if count > MAX_PATHS {
                return Err(MaskError::TooManyPaths(count));
            }
            if path == "*" {
                whole = true;
                continue;
            }
            let pod = ROOT.ok_or_else(|| MaskError::bad_path(path))?;
            let numbers = resolve(set, pod, path).ok_or_else(|| MaskError::bad_path(path))?;
            mask.keep(&numbers);
        }
        Ok((count > 0 && !whole).then_some(mask))
    }

    fn keep(&mut self, numbers: &[u32]) {
        match numbers {
            [] => {}
            [last] => {
                self.fields.insert(*last, None);
            }
            [first, rest @ ..] => {
                // A field that is kept whole already needs nothing more.
                if let Some(below) = self.fields.entry(*first).or_insert_with(|| Some(Self::default())) {
                    below.keep(rest);
                }
            }
        }
    }

    /// The message with the fields of the mask only. What is no message comes out empty from the point of damage on.
    pub fn apply(&self, message: &[u8]) -> Bytes {
        let mut out = BytesMut::with_capacity(self.length(message));
        self.copy(message, &mut out);
        out.freeze()
    }

    /// Appends what [`Mask::apply`] makes of a message as a field.
    pub fn put(&self, number: u32, message: &[u8], out: &mut BytesMut) {
        put_head(number, self.length(message), out);
        self.copy(message, out);
    }

    /// Bytes that [`Mask::copy`] writes. Messages on the paths are few and lie in few others: to walk them twice costs less
    /// than to put each together by itself.
    fn length(&self, mut message: &[u8]) -> usize {
        let mut sum = 0;
        while let Some(field) = Field::take(&mut message) {
            sum += match self.fields.get(&field.number) {
                None => 0,
                Some(Some(below)) if let Some(inner) = field.nested => {
                    let length = below.length(inner);
                    varint_length(u64::from(field.number) << 3) + varint_length(length as u64) + length
                }
                Some(_) => field.whole.len(),
            };
        }
        sum
    }

    fn copy(&self, mut message: &[u8], out: &mut BytesMut) {
        while let Some(field) = Field::take(&mut message) {
            match self.fields.get(&field.number) {
                None => {}
                Some(Some(below)) if let Some(inner) = field.nested => {
                    below.put(field.number, inner, out);
                }
                Some(_) => out.put_slice(field.whole),
            }
        }
    }
}

/// Field numbers of a path; empty for a field that protobuf does not carry.
fn resolve(set: &TypeSet, root: StructId, path: &str) -> Option<Vec<u32>> {
    let (mut at, mut numbers, mut segments) = (root, Vec::new(), path.split('.').peekable());
    while let Some(segment) = segments.next() {
        let entry = set.get(at);
        let (index, prop) = entry.prop(segment).or_else(|| entry.prop(&lower_camel(segment)))?;
        let more = segments.peek().is_some();
        if !locate(set, entry, index, &mut numbers) {
            return (!more && numbers.is_empty()).then(Vec::new);
        }
        if more {
            match set.ty(prop.ty) {
                Type::Struct(id) | Type::AtomicStruct(id) => at = *id,
                _ => return None,
            }
        }
    }
    Some(numbers)
}

/// Appends the field numbers of a property; several where the message that holds it is inlined in JSON.
fn locate(set: &TypeSet, entry: &Struct, index: usize, numbers: &mut Vec<u32>) -> bool {
    for wire in &entry.wires {
        let first = usize::from(wire.prop);
        match wire.inline {
            None if first == index => {
                numbers.push(wire.number);
                return true;
            }
            Some(inner) if index >= first && index - first < set.get(inner).props.len() => {
                numbers.push(wire.number);
                return locate(set, set.get(inner), index - first, numbers);
            }
            _ => {}
        }
    }
    false
}

/// `pod_i_ps` as `podIPs`.
fn lower_camel(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut raise = false;
    for c in text.chars() {
        match c {
            '_' => raise = true,
            c if raise => {
                out.push(c.to_ascii_uppercase());
                raise = false;
            }
            c => out.push(c),
        }
    }
    out
}

/// One field of an encoded message.
struct Field<'a> {
    number: u32,
    /// With its tag.
    whole: &'a [u8],
    /// Content of a length-delimited field.
    nested: Option<&'a [u8]>,
}

impl<'a> Field<'a> {
    /// Takes the next field off the front; `None` at the end or when the rest is no message.
    fn take(rest: &mut &'a [u8]) -> Option<Self> {
        let begin = *rest;
        let tag = varint(rest)?;
        let mut nested = None;
        match tag & 7 {
            0 => {
                varint(rest)?;
            }
            1 => *rest = rest.get(8..)?,
            2 => {
                let length = usize::try_from(varint(rest)?).ok()?;
                nested = Some(rest.get(..length)?);
                *rest = &rest[length..];
            }
            5 => *rest = rest.get(4..)?,
            _ => return None,
        }
        let whole = &begin[..begin.len() - rest.len()];
        Some(Self { number: u32::try_from(tag >> 3).ok()?, whole, nested })
    }
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, tail) = rest.split_first()?;
        *rest = tail;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Appends a length-delimited field.
pub fn put_delimited(number: u32, content: &[u8], out: &mut BytesMut) {
    put_head(number, content.len(), out);
    out.put_slice(content);
}

/// What a length-delimited field begins with.
fn put_head(number: u32, length: usize, out: &mut BytesMut) {
    put_varint(u64::from(number) << 3 | 2, out);
    put_varint(length as u64, out);
}

/// Bytes of a base-128 number.
fn varint_length(value: u64) -> usize {
    (70 - (value | 1).leading_zeros() as usize) / 7
}

/// Appends a base-128 number.
pub fn put_varint(mut value: u64, out: &mut BytesMut) {
    while value >= 0x80 {
        out.put_u8((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8((value & 0x7f) as u8);
}

#[cfg(test)]
mod tests;
