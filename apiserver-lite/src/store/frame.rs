//! The bytes of the log and of snapshots: frames with a length and a checksum around batches of changes.
//!
//! A frame is `length: u32, crc32 of the payload: u32, payload`, little endian. A payload is `count: u32` and as many
//! changes. One commit batch is one frame, so a batch is in the log as a whole or not at all.

use std::sync::Arc;

use super::object::{Key, Keys, Mark, ResourceId, StoredObject};
use super::text::intern;

/// Larger than any batch: a length beyond it means that the frame's head is not ours.
const MAX_FRAME: usize = 1 << 30;

/// One change as the log has it.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one is there at a time, and nearly all are the large one")]
pub(super) enum Change {
    Put(ResourceId, StoredObject),
    Delete(ResourceId, Key, u64),
    /// The store's revision where a snapshot or a segment begins.
    Revision(u64),
    /// The end of a snapshot and the number of objects in it.
    End(u64),
}

/// What follows in the bytes at hand.
pub(super) enum Next<'a> {
    /// A whole frame's payload and the number of bytes it took.
    Frame(&'a [u8], usize),
    /// The bytes end inside a frame, or the checksum is wrong.
    Broken,
    End,
}

pub(super) fn next(bytes: &[u8]) -> Next<'_> {
    if bytes.is_empty() {
        return Next::End;
    }
    let (Some(length), Some(sum)) = (u32_at(bytes, 0), u32_at(bytes, 4)) else { return Next::Broken };
    let length = length as usize;
    if length > MAX_FRAME || bytes.len() < 8 + length {
        return Next::Broken;
    }
    let payload = &bytes[8..8 + length];
    if checksum(payload) == sum { Next::Frame(payload, 8 + length) } else { Next::Broken }
}

/// Whether a whole frame starts anywhere in the bytes: then what lies before it is damage, not a torn tail.
pub(super) fn has_frame(bytes: &[u8]) -> bool {
    (0..bytes.len().saturating_sub(12))
        .any(|at| u32_at(bytes, at).is_some_and(|length| length >= 12) && matches!(next(&bytes[at..]), Next::Frame(..)))
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Builds one frame.
pub(super) struct Writer {
    bytes: Vec<u8>,
    count: u32,
}

impl Writer {
    pub fn new() -> Self {
        Writer { bytes: vec![0; 12], count: 0 }
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn put(&mut self, resource: &ResourceId, object: &StoredObject) {
        // The keys are short beside it.
        self.bytes.reserve(object.json.len() + 1024);
        self.bytes.push(1);
        self.text(&resource.0);
        self.text(&object.key.namespace);
        self.text(&object.key.name);
        self.bytes.extend_from_slice(&object.revision.to_le_bytes());
        self.text(&object.keys.uid);
        for pairs in [&object.keys.labels, &object.keys.fields] {
            self.size(pairs.len());
            for (key, value) in pairs {
                self.text(key);
                self.text(value);
            }
        }
        self.size(object.keys.owners.len());
        for owner in &object.keys.owners {
            self.text(owner);
        }
        self.bytes.push(u8::from(object.keys.deleting));
        self.size(object.json.len());
        object.json.append_from(0, &mut self.bytes);
        self.count += 1;
    }

    pub fn delete(&mut self, resource: &ResourceId, key: &Key, revision: u64) {
        self.bytes.push(2);
        self.text(&resource.0);
        self.text(&key.namespace);
        self.text(&key.name);
        self.bytes.extend_from_slice(&revision.to_le_bytes());
        self.count += 1;
    }

    pub fn revision(&mut self, revision: u64) {
        self.bytes.push(3);
        self.bytes.extend_from_slice(&revision.to_le_bytes());
        self.count += 1;
    }

    pub fn end(&mut self, objects: u64) {
        self.bytes.push(4);
        self.bytes.extend_from_slice(&objects.to_le_bytes());
        self.count += 1;
    }

    fn size(&mut self, size: usize) {
        // Bodies are limited to a few MiB long before this.
        self.bytes.extend_from_slice(&u32::try_from(size).unwrap_or(u32::MAX).to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.size(text.len());
        self.bytes.extend_from_slice(text.as_bytes());
    }

    /// The frame's bytes.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes[8..12].copy_from_slice(&self.count.to_le_bytes());
        let length = u32::try_from(self.bytes.len() - 8).unwrap_or(u32::MAX);
        let sum = checksum(&self.bytes[8..]);
        self.bytes[..4].copy_from_slice(&length.to_le_bytes());
        self.bytes[4..8].copy_from_slice(&sum.to_le_bytes());
        self.bytes
    }
}

/// Reads the changes of a payload; None where it is not one of ours (the checksum was right, so a bug or another
/// version wrote it).
pub(super) fn changes(payload: &[u8]) -> Option<Vec<Change>> {
    let mut reader = Reader { bytes: payload };
    let count = reader.size()?;
    let mut out = Vec::with_capacity(count.min(4096));
    for _ in 0..count {
        out.push(match reader.take(1)?[0] {
            1 => {
                let resource = ResourceId(reader.text()?.into());
                let key = Key { namespace: reader.text()?.into(), name: reader.text()?.into() };
                let revision = reader.u64()?;
                let uid = reader.text()?.into();
                let (labels, fields) = (reader.pairs()?, reader.pairs()?);
                let owners = (0..reader.size()?).map(|_| reader.text().map(Into::into)).collect::<Option<_>>()?;
                let deleting = reader.take(1)?[0] != 0;
                let length = reader.size()?;
                let json = reader.take(length)?.to_vec();
                let keys = Keys { uid, labels, fields, owners, deleting, mark: Mark::default() };
                Change::Put(resource, StoredObject::new(key, revision, keys, json))
            }
            2 => {
                let resource = ResourceId(reader.text()?.into());
                let key = Key { namespace: reader.text()?.into(), name: reader.text()?.into() };
                Change::Delete(resource, key, reader.u64()?)
            }
            3 => Change::Revision(reader.u64()?),
            4 => Change::End(reader.u64()?),
            _ => return None,
        });
    }
    reader.bytes.is_empty().then_some(out)
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(head)
    }

    fn size(&mut self) -> Option<usize> {
        let bytes = self.take(4)?;
        usize::try_from(u32_at(bytes, 0)?).ok()
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn text(&mut self) -> Option<&'a str> {
        let count = self.size()?;
        std::str::from_utf8(self.take(count)?).ok()
    }

    #[expect(clippy::type_complexity, reason = "the shape of `Keys::labels`")]
    fn pairs(&mut self) -> Option<Box<[(Arc<str>, Arc<str>)]>> {
        (0..self.size()?).map(|_| Some((intern(self.text()?), intern(self.text()?)))).collect()
    }
}
