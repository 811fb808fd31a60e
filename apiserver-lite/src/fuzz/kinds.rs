//! Objects of every kind that can be served, made up from its schema: a body means the same in every media type.

#[path = "../../../proto/tests/random/mod.rs"]
mod random;

use serde_json::Value;

use self::random::{Fill, Random, object};
use super::setting;
use crate::http::cbor;
use crate::resource::{Resource, table};
use crate::write::{FieldValidation, WriteOptions, decode_object};

/// Objects of each kind.
const ROUNDS: u64 = 6;

/// An object as protobuf can have it: typed objects inside it have no kind there.
fn made_up(resource: &Resource, random: &mut Random, fill: Fill) -> Value {
    let (set, id) = (resource.schema.set(), resource.schema.id);
    let mut bytes = Vec::new();
    proto::protobuf::encode(set, id, &object(set, id, fill, random), &mut bytes);
    let mut made = proto::protobuf::decode(set, id, &bytes).expect("what we write is protobuf");
    made["kind"] = (&*resource.kind).into();
    made["apiVersion"] = resource.api_version().into();
    made
}

#[test]
fn objects_of_every_kind_are_the_same_in_every_media_type() {
    let seed = setting("FUZZ_SEED", 0x5eed);
    let options = WriteOptions { validation: FieldValidation::Strict, ..WriteOptions::default() };
    let resources: Vec<Resource> =
        table::built_in().into_iter().chain(table::optional().into_iter().map(|o| o.1)).collect();
    assert!(resources.len() > 60, "only {} kinds are known", resources.len());
    for (number, resource) in (1_u64..).zip(&resources) {
        let (set, id) = (resource.schema.set(), resource.schema.id);
        let written = |value: &Value| {
            let mut text = Vec::new();
            proto::json::write(set, id, value, &mut text);
            text
        };
        for round in 0..ROUNDS {
            let fill = if round == 0 { Fill::All } else { Fill::Some };
            let made = made_up(resource, &mut Random::new(seed.wrapping_mul(number) + round), fill);
            let json = written(&made);
            let tree = proto::json::parse(&json).expect("what we write is JSON").value;
            let (mut yaml, mut bytes) = (Vec::new(), Vec::new());
            proto::yaml::write(&tree, &mut yaml);
            proto::cbor::encode(&tree, &mut bytes);
            let from_cbor = cbor::body(&bytes).expect("what we write is CBOR").to_vec();
            let protobuf = proto::protobuf::encode_enveloped(set, id, &made, &resource.api_version(), &resource.kind);
            for (format, media, body) in [
                ("JSON", "application/json", &json),
                ("YAML", "application/yaml", &yaml),
                ("CBOR", "application/json", &from_cbor),
                ("protobuf", "application/vnd.kubernetes.protobuf", &protobuf),
            ] {
                let what = format!("{} {} as {format}, round {round}", resource.api_version(), resource.kind);
                let read = decode_object(resource, media, body, &options);
                let read = read.unwrap_or_else(|e| panic!("{what}: {}", e.status().message));
                let again = written(&read);
                assert_eq!(String::from_utf8_lossy(&again), String::from_utf8_lossy(&json), "{what}");
            }
        }
    }
}
