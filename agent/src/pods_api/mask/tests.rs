//! Masks over encoded pods give what masks over decoded pods give.

use prost::Message as _;
use proto::api::core::v1::Pod;
use serde_json::{Map, Value, json};

use super::*;

fn sample() -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "ns1", "uid": "u", "labels": {"app": "web", "": "x"},
            "creationTimestamp": "2026-01-02T03:04:05Z", "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "2"}]},
        "spec": {"nodeName": "node-a", "restartPolicy": "Always", "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsUser": 0, "fsGroup": 5, "seccompProfile": {"type": "RuntimeDefault"}, "sysctls": [{"name": "a", "value": "b"}]},
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [{"key": "k", "operator": "Exists"}]}]}}},
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
            "containers": [{"name": "a", "image": "i", "livenessProbe": {"httpGet": {"path": "/", "port": 80}}}, {"name": "b", "image": "j"}],
            "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "::1"}], "startTime": "2026-01-02T03:04:06Z",
            "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [{"name": "a", "ready": true, "restartCount": 3, "image": "i", "imageID": ""}]}
    })
}

fn bytes(pod: &Value) -> Vec<u8> {
    crate::wire_json::from_value::<Pod>(POD, pod).unwrap().encode_to_vec()
}

fn decoded(bytes: &[u8]) -> Value {
    pruned(crate::wire_json::to_value(POD, &Pod::decode(bytes).unwrap())).unwrap_or(json!({}))
}

/// Without what is empty: protobuf does not tell it from what is absent.
fn pruned(value: Value) -> Option<Value> {
    match value {
        Value::Object(map) => {
            let map: Map<_, _> = map.into_iter().filter_map(|(k, v)| Some((k, pruned(v)?))).collect();
            (!map.is_empty()).then_some(Value::Object(map))
        }
        Value::Array(list) => {
            (!list.is_empty()).then(|| Value::Array(list.into_iter().map(|v| pruned(v).unwrap_or(json!({}))).collect()))
        }
        Value::String(text) => (!text.is_empty()).then_some(Value::String(text)),
        Value::Null => None,
        other => Some(other),
    }
}

/// A mask over the tree: the plain way to do it.
fn masked_tree(pod: &Value, paths: &[String]) -> Value {
    let mut out = json!({});
    for path in paths {
        let names: Vec<&str> = path.split('.').collect();
        let mut from = Some(pod);
        for name in &names {
            from = from.and_then(|v| v.get(name));
        }
        let Some(found) = from else { continue };
        let mut into = &mut out;
        for name in &names {
            into = into.as_object_mut().unwrap().entry(*name).or_insert(json!({}));
        }
        *into = found.clone();
    }
    pruned(out).unwrap_or(json!({}))
}

/// Every path that a mask may name, from the schema.
fn all_paths(set: &TypeSet, id: StructId, prefix: &str, depth: u32, out: &mut Vec<String>) {
    for prop in &set.get(id).props {
        let path = if prefix.is_empty() { prop.name.to_string() } else { format!("{prefix}.{}", prop.name) };
        if path == "kind" || path == "apiVersion" {
            continue;
        }
        out.push(path.clone());
        if let Type::Struct(inner) | Type::AtomicStruct(inner) = set.ty(prop.ty)
            && depth > 0
        {
            all_paths(set, *inner, &path, depth - 1, out);
        }
    }
}

#[test]
fn masking_encoded_bytes_equals_masking_the_decoded_pod() {
    let set = TypeSet::built_in();
    let mut paths = Vec::new();
    all_paths(set, set.struct_named(POD).unwrap(), "", 6, &mut paths);
    assert!(paths.len() > 100, "{}", paths.len());
    let pod = sample();
    let encoded = bytes(&pod);
    let whole = decoded(&encoded);
    // A fixed walk through pairs and triples of paths: nested, equal, and of one branch.
    let mut state = 7_u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(state >> 33).unwrap() % below
    };
    let mut choices: Vec<Vec<String>> = paths.iter().map(|p| vec![p.clone()]).collect();
    for _ in 0..2000 {
        let count = 2 + next(4);
        choices.push((0..count).map(|_| paths[next(paths.len())].clone()).collect());
    }
    for chosen in choices {
        let mask = Mask::parse(chosen.iter().map(String::as_str)).unwrap().unwrap();
        // Longest first, so that in the tree a whole field wins over its parts.
        let mut sorted = chosen.clone();
        sorted.sort_by_key(|p| std::cmp::Reverse(p.len()));
        assert_eq!(decoded(&mask.apply(&encoded)), masked_tree(&whole, &sorted), "{chosen:?}");
        let (mut at_once, mut apart) = (BytesMut::new(), BytesMut::new());
        mask.put(1, &encoded, &mut at_once);
        put_delimited(1, &mask.apply(&encoded), &mut apart);
        assert_eq!(at_once, apart, "{chosen:?}");
    }
}

#[test]
fn bad_paths_are_named_and_none_is_the_whole_pod() {
    let bad = |path: &str| Mask::parse([path]).unwrap_err();
    for path in ["status.nope", "nope", "status.podIPs.ip", "metadata.labels.app", "", "status.", ".status", "spec..x"]
    {
        assert_eq!(bad(path), MaskError::BadPath(path.into()));
    }
    assert_eq!(Mask::parse([]).unwrap(), None);
    assert_eq!(Mask::parse(["status.phase", "*"]).unwrap(), None);
    assert_eq!(Mask::parse(["status.pod_i_ps"]).unwrap(), Mask::parse(["status.podIPs"]).unwrap());
    assert!(Mask::parse(["kind"]).unwrap().is_some());
    let many = vec!["status.phase"; MAX_PATHS + 1];
    assert_eq!(Mask::parse(many), Err(MaskError::TooManyPaths(MAX_PATHS + 1)));
}

#[test]
fn damaged_messages_do_not_hurt() {
    let encoded = bytes(&sample());
    let mask = Mask::parse(["status.phase", "metadata"]).unwrap().unwrap();
    for end in 0..encoded.len() {
        mask.apply(&encoded[..end]);
        let mut flipped = encoded.clone();
        flipped[end] ^= 0xff;
        mask.apply(&flipped);
    }
}

/// The answer's head was longer than clients take, who then saw a broken stream and not what is wrong.
#[test]
fn a_long_bad_path_is_told_as_far_as_its_beginning() {
    let error = Mask::parse([&*"status.".repeat(3000)]).expect_err("no such field").to_string();
    assert!(error.contains("status.status") && error.len() < 400, "{error}");
    let error = Mask::parse([&*"\u{e9}".repeat(300)]).expect_err("no such field").to_string();
    assert!(error.len() < 2000, "{error}");
}
