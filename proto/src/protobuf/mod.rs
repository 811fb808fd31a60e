//! Kubernetes protobuf by the schema table: trees to bytes as gogo-proto writes them, and back.
//!
//! What is peculiar to it: non-pointer scalars and structs are always written, even when zero; fields come in ascending
//! number, map entries in key order; a whole object travels in an envelope (`k8s\0` and a `runtime.Unknown`).

mod decode;
pub(crate) mod encode;
pub(crate) mod wire;

use crate::schema::{StructId, TypeSet};

pub use decode::{DecodeError, decode};
pub use encode::{encode, put_integer};
pub use wire::{
    Unknown, begin_item, item_length, list_frame, put_bytes, put_message, read_envelope, watch_frame, write_envelope,
    write_envelope_around,
};

/// Media type of an object in the envelope.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
/// Our own name for the same.
pub const MEDIA_TYPE_ALIAS: &str = "application/vnd.orchestrator.protobuf";

/// Encodes an object and puts it into the envelope.
pub fn encode_enveloped(
    set: &TypeSet,
    id: StructId,
    value: &serde_json::Value,
    api_version: &str,
    kind: &str,
) -> Vec<u8> {
    let mut raw = Vec::with_capacity(1024);
    encode(set, id, value, &mut raw);
    let mut out = Vec::with_capacity(raw.len() + 64);
    write_envelope(api_version, kind, &raw, &mut out);
    out
}
