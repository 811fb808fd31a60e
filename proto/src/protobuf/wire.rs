//! Varints, tags, lengths and the envelope.

use super::DecodeError;

const MAGIC: &[u8] = b"k8s\0";

/// Wire types that Kubernetes messages use.
pub(crate) const VARINT: u8 = 0;
pub(crate) const FIXED64: u8 = 1;
pub(crate) const BYTES: u8 = 2;
const FIXED32: u8 = 5;

/// `runtime.Unknown`: what is inside the envelope.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Unknown<'a> {
    pub api_version: &'a str,
    pub kind: &'a str,
    pub raw: &'a [u8],
    pub content_encoding: &'a str,
    pub content_type: &'a str,
}

pub(crate) fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(crate) fn put_tag(number: u32, wire: u8, out: &mut Vec<u8>) {
    put_varint(u64::from(number) << 3 | u64::from(wire), out);
}

/// Writes a field of bytes or text.
pub fn put_bytes(number: u32, bytes: &[u8], out: &mut Vec<u8>) {
    put_tag(number, BYTES, out);
    put_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Writes a message field whose length is known only afterwards: one byte is kept for it, and longer bodies move.
pub fn put_message(number: u32, out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    put_tag(number, BYTES, out);
    let at = out.len();
    out.push(0);
    body(out);
    let length = out.len() - at - 1;
    if length < 0x80 {
        out[at] = length as u8;
        return;
    }
    let mut rest = length as u64 >> 7;
    out[at] = (length & 0x7f) as u8 | 0x80;
    let (mut prefix, mut more) = ([0; 9], 0);
    while rest > 0 {
        prefix[more] = (rest & 0x7f) as u8 | if rest >= 0x80 { 0x80 } else { 0 };
        rest >>= 7;
        more += 1;
    }
    let end = out.len();
    out.resize(end + more, 0);
    out.copy_within(at + 1..end, at + 1 + more);
    out[at + 1..at + 1 + more].copy_from_slice(&prefix[..more]);
}

pub(crate) struct Cursor<'a> {
    pub bytes: &'a [u8],
}

/// A field's payload.
pub(crate) enum Payload<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
}

impl<'a> Cursor<'a> {
    fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let (&byte, rest) = self.bytes.split_first().ok_or(DecodeError::Truncated)?;
            self.bytes = rest;
            if shift < 64 {
                value |= u64::from(byte & 0x7f) << shift;
            }
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(DecodeError::Overflow)
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8], DecodeError> {
        let count = usize::try_from(count).map_err(|_| DecodeError::Truncated)?;
        if count > self.bytes.len() {
            return Err(DecodeError::Truncated);
        }
        let (head, rest) = self.bytes.split_at(count);
        self.bytes = rest;
        Ok(head)
    }

    /// The next field, or None at the end. Groups, which no Kubernetes message has, are refused.
    pub fn field(&mut self) -> Result<Option<(u32, Payload<'a>)>, DecodeError> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok().filter(|n| *n > 0).ok_or(DecodeError::BadTag(tag))?;
        let payload = match (tag & 7) as u8 {
            VARINT => Payload::Varint(self.varint()?),
            FIXED64 => {
                let bytes = self.take(8)?;
                Payload::Fixed64(u64::from_le_bytes(bytes.try_into().map_err(|_| DecodeError::Truncated)?))
            }
            BYTES => {
                let count = self.varint()?;
                Payload::Bytes(self.take(count)?)
            }
            FIXED32 => {
                let bytes = self.take(4)?;
                Payload::Fixed64(u64::from(u32::from_le_bytes(bytes.try_into().map_err(|_| DecodeError::Truncated)?)))
            }
            _ => return Err(DecodeError::BadTag(tag)),
        };
        Ok(Some((number, payload)))
    }
}

/// Appends `raw` in an envelope.
pub fn write_envelope(api_version: &str, kind: &str, raw: &[u8], out: &mut Vec<u8>) {
    write_envelope_around(api_version, kind, raw.len(), |out| out.extend_from_slice(raw), out);
}

/// The same for a message of a length that is written by `raw`.
pub fn write_envelope_around(
    api_version: &str,
    kind: &str,
    length: usize,
    raw: impl FnOnce(&mut Vec<u8>),
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(MAGIC);
    put_message(1, out, |out| {
        put_bytes(1, api_version.as_bytes(), out);
        put_bytes(2, kind.as_bytes(), out);
    });
    put_tag(2, BYTES, out);
    put_varint(length as u64, out);
    raw(out);
    put_bytes(3, b"", out);
    put_bytes(4, b"", out);
}

/// Opens an envelope.
///
/// # Errors
/// When the magic bytes are missing or the envelope is cut short.
pub fn read_envelope(bytes: &[u8]) -> Result<Unknown<'_>, DecodeError> {
    let mut cursor = Cursor { bytes: bytes.strip_prefix(MAGIC).ok_or(DecodeError::NoMagic)? };
    let mut unknown = Unknown::default();
    while let Some((number, payload)) = cursor.field()? {
        let Payload::Bytes(bytes) = payload else { continue };
        match number {
            1 => {
                let mut meta = Cursor { bytes };
                while let Some((number, payload)) = meta.field()? {
                    let Payload::Bytes(bytes) = payload else { continue };
                    match number {
                        1 => unknown.api_version = text(bytes)?,
                        2 => unknown.kind = text(bytes)?,
                        _ => {}
                    }
                }
            }
            2 => unknown.raw = bytes,
            3 => unknown.content_encoding = text(bytes)?,
            4 => unknown.content_type = text(bytes)?,
            _ => {}
        }
    }
    Ok(unknown)
}

fn text(bytes: &[u8]) -> Result<&str, DecodeError> {
    std::str::from_utf8(bytes).map_err(|_| DecodeError::Utf8)
}

/// A `metav1.WatchEvent` with an object in its envelope, after its length in four bytes (big endian).
pub fn watch_frame(kind: &str, object: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 4];
    put_bytes(1, kind.as_bytes(), &mut out);
    put_message(2, &mut out, |out| put_bytes(1, object, out));
    let length = u32::try_from(out.len() - 4).unwrap_or(u32::MAX);
    out[..4].copy_from_slice(&length.to_be_bytes());
    out
}

/// A list in its envelope but for its items: what stands before them, and what behind. `items` are the lengths of those
/// that come in between, each behind its [`begin_item`].
pub fn list_frame(
    api_version: &str,
    kind: &str,
    meta: &[u8],
    items: impl Iterator<Item = usize>,
) -> (Vec<u8>, Vec<u8>) {
    let mut list = Vec::with_capacity(meta.len() + 8);
    put_bytes(1, meta, &mut list);
    let length = list.len() + items.map(item_length).sum::<usize>();
    let mut before = Vec::with_capacity(64 + list.len());
    before.extend_from_slice(MAGIC);
    put_message(1, &mut before, |out| {
        put_bytes(1, api_version.as_bytes(), out);
        put_bytes(2, kind.as_bytes(), out);
    });
    put_tag(2, BYTES, &mut before);
    put_varint(length as u64, &mut before);
    before.append(&mut list);
    let mut behind = Vec::new();
    put_bytes(3, b"", &mut behind);
    put_bytes(4, b"", &mut behind);
    (before, behind)
}

/// Bytes that a message takes as an item of a list.
pub fn item_length(message: usize) -> usize {
    let bits = usize::BITS - (message | 1).leading_zeros();
    1 + bits.div_ceil(7) as usize + message
}

/// Appends what stands before a message of a length that is an item of a list.
pub fn begin_item(message: usize, out: &mut Vec<u8>) {
    put_tag(2, BYTES, out);
    put_varint(message as u64, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_put_together_from_its_parts_is_as_long_as_it_says() {
        for sizes in [&[][..], &[0], &[1, 127, 128, 300], &[16_383, 16_384, 5], &[2_097_151, 2_097_152]] {
            let items: Vec<Vec<u8>> = sizes.iter().map(|size| vec![7; *size]).collect();
            let (mut all, behind) = list_frame("v1", "PodList", b"meta", items.iter().map(Vec::len));
            let before = all.len();
            for item in &items {
                begin_item(item.len(), &mut all);
                all.extend_from_slice(item);
            }
            assert_eq!(all.len() - before, sizes.iter().map(|size| item_length(*size)).sum::<usize>());
            all.extend_from_slice(&behind);
            let unknown = read_envelope(&all).expect("an envelope");
            assert_eq!((unknown.api_version, unknown.kind), ("v1", "PodList"));
            let (mut list, mut found) = (Cursor { bytes: unknown.raw }, Vec::new());
            while let Some((number, Payload::Bytes(bytes))) = list.field().expect("whole fields") {
                found.push((number, bytes.to_vec()));
            }
            let wanted = [(1, b"meta".to_vec())].into_iter().chain(items.into_iter().map(|item| (2, item)));
            assert!(found.into_iter().eq(wanted), "{sizes:?}");
        }
    }
}
