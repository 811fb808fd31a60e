//! JSON to protobuf without a tree gives the bytes that the way through a tree gives, for objects of every type and for
//! recorded ones, and broken text is refused without a panic.

mod random;

use proto::schema::{StructId, TypeSet};
use proto::{json, protobuf, transcode};
use random::{Fill, Random, object};
use serde_json::Value;

/// The bytes by both ways for an object as it is stored.
fn both(set: &TypeSet, id: StructId, text: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let value = json::parse(text).expect("we wrote it").value;
    let (mut tree, mut stream) = (Vec::new(), Vec::new());
    protobuf::encode(set, id, &value, &mut tree);
    transcode::json_to_protobuf(set, id, text, &mut stream).unwrap_or_else(|e| panic!("{}: {e}", set.get(id).name));
    (tree, stream)
}

/// Structs that JSON writes as objects; the rest show inside them.
fn structs(set: &TypeSet) -> impl Iterator<Item = StructId> {
    let fields = |id: &StructId| set.get(*id).props.iter().all(|p| &*p.name != "-");
    (0..set.structs.len()).filter_map(|id| StructId::try_from(id).ok()).filter(fields)
}

#[test]
fn objects_of_every_type_get_the_same_bytes() {
    let set = TypeSet::built_in();
    let mut wrong = Vec::new();
    for id in structs(set) {
        for seed in 0..6 {
            let fill = if seed < 2 { Fill::All } else { Fill::Some };
            let value = object(set, id, fill, &mut Random::new(seed * 32_452_843 + u64::from(id) + 1));
            let mut text = Vec::new();
            json::write(set, id, &value, &mut text);
            let (tree, stream) = both(set, id, &text);
            if tree != stream {
                let at = tree.iter().zip(&stream).position(|(a, b)| a != b).unwrap_or(tree.len().min(stream.len()));
                wrong.push(format!("{} at {at}: {}", set.get(id).name, String::from_utf8_lossy(&text)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}: {}", wrong.len(), wrong[..wrong.len().min(5)].join("\n"));
}

#[test]
fn recorded_objects_get_the_recorded_bytes() {
    let shared = std::env::var("ORCHESTRATOR_SHARED")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared").into());
    let Ok(text) = std::fs::read(format!("{shared}/wire/pairs.json")) else {
        println!("skipped: no recorded objects beside the checkout");
        return;
    };
    let pairs: Vec<Value> = serde_json::from_slice(&text).expect("pairs.json is a list");
    let set = TypeSet::built_in();
    for pair in &pairs {
        let gvk = pair["gvk"].as_str().expect("a pair has its kind");
        let mut parts = gvk.rsplitn(3, '/');
        let (kind, version) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let id = set.kind(parts.next().unwrap_or_default(), version, kind).expect("a known kind");
        let decoded = json::decode(set, id, pair["json"].to_string().as_bytes()).expect("a sound object");
        let mut text = Vec::new();
        json::write(set, id, &decoded.value, &mut text);
        let (tree, stream) = both(set, id, &text);
        assert_eq!(tree, stream, "{gvk}");
    }
}

#[test]
fn broken_text_is_refused_without_a_panic() {
    let set = TypeSet::built_in();
    let mut random = Random::new(23);
    for id in structs(set).step_by(2) {
        let value = object(set, id, Fill::Some, &mut random);
        let mut text = Vec::new();
        json::write(set, id, &value, &mut text);
        for _ in 0..8 {
            let at = usize::try_from(random.below(text.len() as u64)).expect("small");
            let mut broken = text.clone();
            match random.below(3) {
                0 => broken.truncate(at),
                1 => broken[at] = b"{}[]\":,n1t"[usize::try_from(random.below(10)).expect("small")],
                _ => drop(broken.remove(at)),
            }
            let refused = transcode::json_to_protobuf(set, id, &broken, &mut Vec::new()).is_err();
            assert!(refused || json::parse(&broken).is_ok(), "{}", String::from_utf8_lossy(&broken));
        }
        // The right text of the wrong type.
        let other = StructId::try_from(random.below(set.structs.len() as u64)).expect("small");
        let _ = transcode::json_to_protobuf(set, other, &text, &mut Vec::new());
    }
}
