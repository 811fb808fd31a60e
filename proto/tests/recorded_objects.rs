//! Real objects that Kubernetes sent as JSON and as protobuf convert each way without a difference. The objects lie
//! beside the checkout and the test says so where they do not.

use base64::Engine as _;
use proto::schema::TypeSet;
use proto::{json, protobuf};
use serde_json::Value;

fn pairs() -> Option<Vec<Value>> {
    let shared = std::env::var("ORCHESTRATOR_SHARED")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared").into());
    let text = std::fs::read(format!("{shared}/wire/pairs.json")).ok()?;
    Some(serde_json::from_slice(&text).expect("pairs.json is a list"))
}

#[test]
fn recorded_objects_convert_each_way() {
    let Some(pairs) = pairs() else {
        println!("skipped: no recorded objects beside the checkout");
        return;
    };
    let set = TypeSet::built_in();
    let mut wrong = Vec::new();
    for pair in &pairs {
        let gvk = pair["gvk"].as_str().expect("a pair has its kind");
        let mut parts = gvk.rsplitn(3, '/');
        let (kind, version) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let group = parts.next().unwrap_or_default();
        let Some(id) = set.kind(group, version, kind) else {
            wrong.push(format!("{gvk}: unknown"));
            continue;
        };
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(pair["protobuf"].as_str().expect("base64"))
            .expect("base64");
        let unknown = protobuf::read_envelope(&bytes).expect("an envelope");
        let want = serde_json::to_vec(&pair["json"]).expect("JSON");
        let decoded = json::decode(set, id, &want).unwrap_or_else(|e| panic!("{gvk}: {e}"));
        if !decoded.strict.is_empty() {
            wrong.push(format!("{gvk}: {:?}", decoded.strict));
        }
        // JSON to JSON.
        let mut written = Vec::new();
        json::write(set, id, &decoded.value, &mut written);
        let written: Value = serde_json::from_slice(&written).expect("JSON");
        if written != pair["json"] {
            wrong.push(format!("{gvk} JSON\n  {written}\n  {}", pair["json"]));
        }
        // Protobuf to tree.
        let mut from_wire = protobuf::decode(set, id, unknown.raw).unwrap_or_else(|e| panic!("{gvk}: {e}"));
        from_wire["apiVersion"] = unknown.api_version.into();
        from_wire["kind"] = unknown.kind.into();
        let (mut a, mut b) = (Vec::new(), Vec::new());
        json::write(set, id, &from_wire, &mut a);
        // Protobuf has a kind only in the envelope, so templates of claims come without theirs.
        let mut named = decoded.value.clone();
        for template in
            named.pointer_mut("/spec/volumeClaimTemplates").and_then(Value::as_array_mut).into_iter().flatten()
        {
            template
                .as_object_mut()
                .expect("a template is an object")
                .retain(|key, _| key != "kind" && key != "apiVersion");
        }
        json::write(set, id, &named, &mut b);
        if a != b {
            wrong.push(format!(
                "{gvk} from protobuf\n  {}\n  {}",
                String::from_utf8_lossy(&a),
                String::from_utf8_lossy(&b)
            ));
        }
        // Tree to the very bytes.
        let again = protobuf::encode_enveloped(set, id, &decoded.value, unknown.api_version, unknown.kind);
        if again != bytes {
            let at = again.iter().zip(&bytes).position(|(a, b)| a != b).unwrap_or(again.len().min(bytes.len()));
            let near =
                |b: &[u8]| String::from_utf8_lossy(&b[at.saturating_sub(40)..(at + 40).min(b.len())]).into_owned();
            wrong.push(format!("{gvk} to protobuf at {at}\n  {:?}\n  {:?}", near(&again), near(&bytes)));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), pairs.len(), wrong.join("\n"));
}
