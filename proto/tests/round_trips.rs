//! Values of every schema type survive each codec, and no input makes one panic. Seeded: a failure names its seed.

mod random;

use proto::schema::{StructId, TypeSet};
use proto::{cbor, json, protobuf, yaml};
use random::{Fill, Random, object};
use serde_json::Value;

fn structs() -> impl Iterator<Item = StructId> {
    let count = TypeSet::built_in().structs.len();
    (0..count).filter_map(|id| StructId::try_from(id).ok())
}

/// Types that JSON writes as something other than an object have no decoder of their own.
fn is_plain(id: StructId) -> bool {
    let name = &*TypeSet::built_in().get(id).name;
    let last = name.rsplit('.').next().unwrap_or_default();
    !matches!(
        last,
        "Quantity"
            | "QuantityValue"
            | "Time"
            | "MicroTime"
            | "Timestamp"
            | "Duration"
            | "IntOrString"
            | "RawExtension"
            | "FieldsV1"
            | "JSON"
            | "JSONSchemaPropsOrArray"
            | "JSONSchemaPropsOrBool"
            | "JSONSchemaPropsOrStringArray"
            | "Verbs"
            | "ExtraValue"
            | "PodSignature"
            | "Unknown"
    )
}

#[test]
fn values_survive_json() {
    let set = TypeSet::built_in();
    let mut wrong = Vec::new();
    for id in structs().filter(|id| is_plain(*id)) {
        for seed in 0..6 {
            let fill = if seed == 0 { Fill::All } else { Fill::Some };
            let value = object(set, id, fill, &mut Random::new(seed * 7919 + u64::from(id)));
            let mut text = Vec::new();
            json::write(set, id, &value, &mut text);
            let decoded = match json::decode(set, id, &text) {
                Ok(decoded) => decoded,
                Err(error) => {
                    wrong.push(format!("{} seed {seed}: {error}", set.get(id).name));
                    continue;
                }
            };
            let mut again = Vec::new();
            json::write(set, id, &decoded.value, &mut again);
            if !decoded.strict.is_empty() || again != text {
                wrong.push(format!(
                    "{} seed {seed} {:?}\n  {}\n  {}",
                    set.get(id).name,
                    decoded.strict,
                    String::from_utf8_lossy(&text),
                    String::from_utf8_lossy(&again)
                ));
            }
            let conformed = json::conform(set, id, &value).expect("a tree in normal form conforms");
            again.clear();
            json::write(set, id, &conformed.value, &mut again);
            if again != text {
                let at = again.iter().zip(&text).position(|(a, b)| a != b).unwrap_or(0);
                let near =
                    |b: &[u8]| String::from_utf8_lossy(&b[at.saturating_sub(60)..(at + 60).min(b.len())]).into_owned();
                wrong.push(format!("{} from a tree\n  {}\n  {}", set.get(id).name, near(&text), near(&again)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}: {}", wrong.len(), wrong[..wrong.len().min(5)].join("\n"));
}

#[test]
fn values_survive_protobuf() {
    let set = TypeSet::built_in();
    let mut wrong = Vec::new();
    for id in structs().filter(|id| is_plain(*id)) {
        // Kind and version live in the envelope, so nested typed objects lose them on the way.
        for seed in 0..6 {
            let fill = if seed == 0 { Fill::All } else { Fill::Some };
            let mut value = object(set, id, fill, &mut Random::new(seed * 104_729 + u64::from(id)));
            let (mut first, mut text) = (Vec::new(), Vec::new());
            protobuf::encode(set, id, &value, &mut first);
            let decoded = match protobuf::decode(set, id, &first) {
                Ok(decoded) => decoded,
                Err(error) => {
                    wrong.push(format!("{} seed {seed}: {error}", set.get(id).name));
                    continue;
                }
            };
            let mut second = Vec::new();
            protobuf::encode(set, id, &decoded, &mut second);
            json::write(set, id, &decoded, &mut text);
            without_kinds(set, id, &mut value);
            let mut wanted = Vec::new();
            json::write(set, id, &value, &mut wanted);
            if first != second || text != wanted {
                wrong.push(format!(
                    "{} seed {seed} bytes {}\n  {}\n  {}",
                    set.get(id).name,
                    first == second,
                    String::from_utf8_lossy(&wanted),
                    String::from_utf8_lossy(&text)
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}: {}", wrong.len(), wrong[..wrong.len().min(5)].join("\n"));
}

/// Whether a tree is normal already is told without writing it; what comes out must be the same as by way of text.
#[test]
fn trees_conform_as_their_text_decodes() {
    let set = TypeSet::built_in();
    let mut random = Random::new(11);
    for id in structs().filter(|id| is_plain(*id)) {
        for round in 0..6 {
            let mut value = object(set, id, if round == 0 { Fill::All } else { Fill::Some }, &mut random);
            for _ in 0..round / 2 {
                spoil(&mut value, &mut random);
            }
            let mut text = Vec::new();
            json::write_sorted(&value, &mut text);
            match (json::conform(set, id, &value), json::decode(set, id, &text)) {
                (Ok(tree), Ok(read)) => {
                    assert_eq!(tree.value, read.value, "{}: {value}", set.get(id).name);
                    assert_eq!(tree.strict, read.strict, "{}: {value}", set.get(id).name);
                }
                (tree, read) => assert_eq!(tree.err(), read.err(), "{}: {value}", set.get(id).name),
            }
        }
    }
}

/// Puts something else in a random place of a tree.
fn spoil(value: &mut Value, random: &mut Random) {
    let other = match random.below(8) {
        0 => Value::Null,
        1 => 1.0.into(),
        2 => Value::from(u64::MAX),
        3 => "1.50".into(),
        4 => Value::Array(Vec::new()),
        5 => serde_json::json!({}),
        6 => serde_json::json!({"unknown": [1e30]}),
        _ => false.into(),
    };
    let below = |len: usize, random: &mut Random| usize::try_from(random.below(len as u64)).expect("small");
    match value {
        Value::Object(map) if !map.is_empty() && random.chance(90) => {
            let at = below(map.len(), random);
            if let Some(inner) = map.values_mut().nth(at) {
                spoil(inner, random);
            }
        }
        Value::Array(list) if !list.is_empty() && random.chance(90) => {
            let at = below(list.len(), random);
            spoil(&mut list[at], random);
        }
        place => *place = other,
    }
}

/// Takes out kind and version of typed structs, which protobuf does not carry.
fn without_kinds(set: &TypeSet, id: StructId, value: &mut Value) {
    use proto::schema::{Type, TypeId};
    fn visit(set: &TypeSet, ty: TypeId, value: &mut Value) {
        match (set.ty(ty), value) {
            (Type::Struct(id) | Type::AtomicStruct(id), value) => without_kinds(set, *id, value),
            (
                Type::SchemaOrArray(id) | Type::SchemaOrBool(id) | Type::SchemaOrStrings(id),
                value @ Value::Object(_),
            ) => {
                without_kinds(set, *id, value);
            }
            (Type::List(list), Value::Array(items)) => items.iter_mut().for_each(|v| visit(set, list.element, v)),
            (Type::Map(map), Value::Object(items)) => items.values_mut().for_each(|v| visit(set, map.value, v)),
            _ => {}
        }
    }
    let Value::Object(map) = value else { return };
    let shape = set.get(id);
    if shape.typed {
        map.remove("kind");
        map.remove("apiVersion");
    }
    for prop in &shape.props {
        if let Some(value) = map.get_mut(&*prop.name) {
            visit(set, prop.ty, value);
        }
    }
}

#[test]
fn broken_input_never_panics() {
    let set = TypeSet::built_in();
    let mut random = Random::new(42);
    for id in structs().filter(|id| is_plain(*id)).step_by(3) {
        let value = object(set, id, Fill::Some, &mut random);
        let (mut text, mut bytes, mut document) = (Vec::new(), Vec::new(), Vec::new());
        json::write(set, id, &value, &mut text);
        protobuf::encode(set, id, &value, &mut bytes);
        yaml::write(&value, &mut document);
        for _ in 0..6 {
            let _ = json::decode(set, id, &broken(&text, &mut random));
            let _ = json::parse(&broken(&text, &mut random));
            let _ = protobuf::decode(set, id, &broken(&bytes, &mut random));
            let _ = protobuf::read_envelope(&broken(&bytes, &mut random));
            let _ = yaml::parse(&broken(&document, &mut random));
        }
        // The right bytes of the wrong type.
        let other = StructId::try_from(random.below(set.structs.len() as u64)).expect("small");
        let _ = protobuf::decode(set, other, &bytes);
        let _ = json::decode(set, other, &text);
        let _ = json::conform(set, other, &value);
        protobuf::encode(set, other, &value, &mut Vec::new());
        json::write(set, other, &value, &mut Vec::new());
    }
}

/// Flips, drops, doubles and cuts bytes.
fn broken(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for _ in 0..=random.below(3) {
        if out.is_empty() {
            out.push(random.next() as u8);
        }
        let at = usize::try_from(random.below(out.len() as u64)).expect("small");
        match random.below(5) {
            0 => out[at] = random.next() as u8,
            1 => out[at] ^= 1 << random.below(8),
            2 => out.truncate(at),
            3 => drop(out.remove(at)),
            _ => out.insert(at, b"{}[]\":,-\\\n \x80\xff0e"[usize::try_from(random.below(15)).expect("small")]),
        }
    }
    out
}

/// Objects as an answer has them, by way of a format that knows nothing of types, and read again by the schema.
fn survive(format: impl Fn(&Value) -> Result<Value, String>) {
    let set = TypeSet::built_in();
    let mut wrong = Vec::new();
    for id in structs().filter(|id| is_plain(*id)) {
        for seed in 0..6 {
            let fill = if seed == 0 { Fill::All } else { Fill::Some };
            let value = object(set, id, fill, &mut Random::new(seed * 15_485_863 + u64::from(id)));
            let mut text = Vec::new();
            json::write(set, id, &value, &mut text);
            let tree = json::parse(&text).expect("what we write is JSON").value;
            let name = &set.get(id).name;
            let read = match format(&tree) {
                Ok(read) => read,
                Err(error) => {
                    wrong.push(format!("{name} seed {seed}: {error}"));
                    continue;
                }
            };
            let mut sorted = Vec::new();
            json::write_sorted(&read, &mut sorted);
            let decoded = json::decode(set, id, &sorted).unwrap_or_else(|e| panic!("{name} seed {seed}: {e}"));
            let mut again = Vec::new();
            json::write(set, id, &decoded.value, &mut again);
            if read != tree || !decoded.strict.is_empty() || again != text {
                wrong.push(format!("{name} seed {seed} {:?}\n  {tree}\n  {read}", decoded.strict));
            }
        }
    }
    assert!(wrong.is_empty(), "{}: {}", wrong.len(), wrong[..wrong.len().min(5)].join("\n"));
}

#[test]
fn values_survive_yaml() {
    survive(|tree| {
        let mut text = Vec::new();
        yaml::write(tree, &mut text);
        yaml::parse(&text).map_err(|e| format!("{e}\n{}", String::from_utf8_lossy(&text)))
    });
}

#[test]
fn values_survive_cbor() {
    survive(|tree| {
        let mut bytes = Vec::new();
        cbor::encode(tree, &mut bytes);
        let read = cbor::decode(&bytes).map_err(|e| e.to_string())?;
        let mut again = Vec::new();
        cbor::encode(&read, &mut again);
        if again == bytes { Ok(read) } else { Err(format!("other bytes for {tree}")) }
    });
}
