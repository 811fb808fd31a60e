//! Forms of objects other than the stored one: items of lists, metadata only, and other versions of a kind.

use proto::json;
use proto::schema::TypeSet;
use serde_json::{Map, Value, json as tree};

use crate::http::{Accepted, Media, Response, respond};
use crate::resource::Resource;
use crate::store::ObjectRef;

/// A stored tree in the version that a resource serves.
pub fn convert(resource: &Resource, mut value: Value) -> Value {
    if let Some(definition) = &resource.definition {
        definition.convert(resource, &mut value);
        return value;
    }
    crate::resource::versions::to_served(resource, &mut value);
    value
}

pub(super) fn strip_type(value: &mut Value) {
    if let Some(object) = value.as_object_mut() {
        object.remove("kind");
        object.remove("apiVersion");
    }
}

/// Where the stored JSON goes on behind its kind and apiVersion, which items of built-in lists lack.
fn behind_type(object: &ObjectRef) -> usize {
    let json = object.json.begin();
    // Built-in objects are stored with these two properties first, each a plain string.
    let mut at = 1;
    for key in [&b"\"kind\":\""[..], b"\"apiVersion\":\""] {
        let Some(rest) = json.get(at..).and_then(|rest| rest.strip_prefix(key)) else { break };
        let Some(end) = rest.iter().position(|b| *b == b'"') else { break };
        at += key.len() + end + 1;
        if json.get(at) == Some(&b',') {
            at += 1;
        }
    }
    at.min(json.len())
}

/// Appends the stored JSON as an item of a list.
pub(super) fn append_item(object: &ObjectRef, out: &mut Vec<u8>) {
    out.push(b'{');
    object.json.append_from(behind_type(object), out);
}

/// How many bytes [`append_item`] appends.
pub(super) fn item_length(object: &ObjectRef) -> usize {
    1 + object.json.len() - behind_type(object)
}

/// `metadata` of a list in schema order.
pub(super) fn write_list_meta(metadata: &Value, out: &mut Vec<u8>) {
    let set = TypeSet::built_in();
    match set.struct_named("k8s.io.apimachinery.pkg.apis.meta.v1.ListMeta") {
        Some(id) => json::write(set, id, metadata, out),
        None => json::write_sorted(metadata, out),
    }
}

/// `PartialObjectMetadata` of an object, without kind and version.
fn metadata_of(object: Value) -> Value {
    let mut out = Map::new();
    if let Value::Object(mut whole) = object
        && let Some(metadata) = whole.remove("metadata")
    {
        out.insert("metadata".into(), metadata);
    }
    Value::Object(out)
}

fn schema(name: &str) -> Option<crate::resource::Schema> {
    let id = TypeSet::built_in().struct_named(name)?;
    Some(crate::resource::Schema { set: crate::resource::SchemaSet::BuiltIn, id })
}

const PARTIAL: &str = "k8s.io.apimachinery.pkg.apis.meta.v1.PartialObjectMetadata";
const PARTIAL_LIST: &str = "k8s.io.apimachinery.pkg.apis.meta.v1.PartialObjectMetadataList";

/// An object's metadata as a tree with kind and version.
pub(super) fn metadata_tree(accepted: Accepted, object: Value) -> Value {
    let mut value = metadata_of(object);
    value["kind"] = "PartialObjectMetadata".into();
    value["apiVersion"] = format!("meta.k8s.io/{}", accepted.form_version).into();
    value
}

/// The metadata of an object that is not stored.
pub(super) fn metadata_of_answer(code: u16, accepted: Accepted, value: Value) -> Response {
    respond::tree(code, accepted, schema(PARTIAL).as_ref(), &metadata_tree(accepted, value))
}

pub(super) fn metadata_response(code: u16, accepted: Accepted, object: &ObjectRef) -> Response {
    respond::tree(code, accepted, schema(PARTIAL).as_ref(), &metadata_tree(accepted, object.value()))
}

/// A metadata tree as bytes of a watch event's object.
pub(super) fn metadata_bytes(media: Media, value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    let text = |key: &str| value[key].as_str().unwrap_or_default();
    match schema(PARTIAL) {
        Some(schema) if media == Media::Protobuf => {
            proto::protobuf::encode_enveloped(schema.set(), schema.id, value, text("apiVersion"), text("kind"))
        }
        Some(schema) => {
            json::write(schema.set(), schema.id, value, &mut out);
            out
        }
        None => out,
    }
}

pub(super) fn metadata_list(accepted: Accepted, objects: &[ObjectRef], metadata: &Value) -> Response {
    let value = tree!({
        "kind": "PartialObjectMetadataList",
        "apiVersion": format!("meta.k8s.io/{}", accepted.form_version),
        "metadata": metadata,
        "items": objects.iter().map(|o| metadata_tree(accepted, o.value())).collect::<Vec<_>>(),
    });
    respond::tree(200, accepted, schema(PARTIAL_LIST).as_ref(), &value)
}
