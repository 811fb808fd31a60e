//! Objects of every kind that can be served, made up from its schema: a body means the same in every media type.

#[path = "../../../proto/tests/random/mod.rs"]
mod random;

use serde_json::Value;

use self::random::{Fill, Random, object};
use super::setting;
use crate::field_error::Rules;
use crate::http::{Accepted, Form, cbor};
use crate::request::Query;
use crate::resource::{Resource, table};
use crate::validate;
use crate::write::{FieldValidation, WriteOptions, decode_object};

/// Objects of each kind.
const ROUNDS: u64 = 6;

fn resources() -> Vec<Resource> {
    table::built_in().into_iter().chain(table::optional().into_iter().map(|o| o.1)).collect()
}

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
    let resources = resources();
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

/// What no field of an object expects, or few do.
const ODD: &[&str] = &[
    "null",
    "[null]",
    "[null,null]",
    "[{}]",
    "[]",
    "{}",
    r#"{"":null}"#,
    "true",
    "0",
    "-1",
    "4294967296",
    "1e300",
    "0.5",
    r#""""#,
    r#""*""#,
    r#""/""#,
    r#""a/b""#,
    r#""-5m""#,
    r#""10Ei""#,
    r#""é""#,
    r#""100%""#,
    r#""1.2.3.4/33""#,
    r#""::1""#,
    r#""(""#,
    r#""2020-01-01T00:00:00Z""#,
    r#"["*","*/*"]"#,
    r#"["",""]"#,
];

/// Puts something odd somewhere into a tree.
fn spoil(value: &mut Value, random: &mut super::Random) {
    let deeper = random.below(10) > 0;
    match value {
        Value::Object(map) if deeper && !map.is_empty() => {
            let at = random.below(map.len());
            map.values_mut().nth(at).into_iter().for_each(|inner| spoil(inner, random));
        }
        Value::Array(list) if deeper && !list.is_empty() => {
            let at = random.below(list.len());
            spoil(&mut list[at], random);
        }
        place => {
            let odd: &&str = random.pick(ODD);
            *place = serde_json::from_str(odd).expect("JSON");
        }
    }
}

/// Whatever can be read goes through everything that looks at an object before it is stored, and when it is shown.
#[test]
fn objects_of_every_kind_are_judged_whatever_they_hold() {
    let resources = resources();
    let options = WriteOptions { validation: FieldValidation::Ignore, ..WriteOptions::default() };
    let shown = Accepted { form: Form::Table, ..Accepted::JSON };
    super::rounds(resources.len() * 8, |random| {
        let resource = random.pick(&resources);
        let (set, id) = (resource.schema.set(), resource.schema.id);
        let fill = if random.below(2) == 0 { Fill::All } else { Fill::Some };
        let made = made_up(resource, &mut Random::new(random.next()), fill);
        let mut text = Vec::new();
        proto::json::write(set, id, &made, &mut text);
        let whole = proto::json::parse(&text).expect("what we write is JSON").value;
        let mut read = || {
            let mut tree = whole.clone();
            for _ in 0..=random.below(5) {
                spoil(&mut tree, random);
            }
            let _ = tree.as_object()?;
            tree["kind"] = made["kind"].clone();
            tree["apiVersion"] = made["apiVersion"].clone();
            decode_object(resource, "application/json", tree.to_string().as_bytes(), &options).ok()
        };
        let (Some(mut new), Some(mut old)) = (read(), read()) else { return };
        for value in [&mut new, &mut old] {
            crate::write::to_stored_version(resource, value);
            crate::defaults::apply(resource, value);
        }
        if crate::crd::is_definition(resource) {
            crate::crd::prepare_definition(&mut new, None);
            drop(crate::crd::check_definition(&new, None));
            drop(crate::crd::check_definition(&new, Some(&old)));
        }
        let rules = Rules::default();
        drop(validate::create(resource, &new, rules));
        drop(validate::warnings(resource, &new, None));
        drop(validate::warnings(resource, &new, Some(&old)));
        for subresource in ["", "status", "ephemeralcontainers", "resize", "approval", "finalize"] {
            drop(validate::update(resource, subresource, &new, &old, rules));
        }
        drop(crate::read::value_response(shown, resource, new, &Query::parse("includeObject=Object")));
    });
}
