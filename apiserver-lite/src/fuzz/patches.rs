//! Patches and applied configurations: broken ones, and the laws of good ones.

use serde_json::{Map, Value, json};

use super::{JSON, Random, corpus, feed, setting};
use crate::apply::{Writer, apply};
use crate::patch::Patch;
use crate::resource::{Resource, Resources};
use crate::write::FieldValidation;
use std::sync::Arc;

const STRATEGIC: &str = "application/strategic-merge-patch+json";
const MERGE: &str = "application/merge-patch+json";
const OPERATIONS: &str = "application/json-patch+json";

fn pods() -> Arc<Resource> {
    Resources::built_in().lookup("", "v1", "pods").expect("is served")
}

/// The first kept object.
fn pod() -> Value {
    let kept = corpus("json");
    let pods = kept.iter().filter_map(|text| proto::json::parse(text).ok()).map(|parsed| parsed.value);
    pods.into_iter().find(|value| value["kind"] == "Pod").expect("a pod is kept")
}

/// A patch applied to a pod; None where it is refused.
fn patched(media: &str, text: &[u8], object: &Value) -> Option<Value> {
    let resource = pods();
    let patch = Patch::parse(media, text, FieldValidation::Ignore).ok()??;
    let json = || object.to_string().into_bytes();
    let done = patch.apply(&resource.schema, ("", "v1", "Pod"), object.clone(), None, json, FieldValidation::Ignore);
    match done {
        Ok(done) => Some(done.value),
        Err(error) => {
            assert!((400..=500).contains(&error.code()), "{}", error.status().message);
            None
        }
    }
}

#[test]
fn operations_are_applied_or_refused() {
    let object = pod();
    feed("json_patch", JSON, |input| drop(patched(OPERATIONS, input, &object)));
}

#[test]
fn a_merge_patch_applied_twice_is_one_applied_once() {
    let object = pod();
    feed("merge_patch", JSON, |input| {
        let Some(once) = patched(MERGE, input, &object) else { return };
        assert_eq!(patched(MERGE, input, &once), Some(once));
    });
}

#[test]
fn a_strategic_patch_applied_twice_is_one_applied_once() {
    let object = pod();
    feed("strategic_patch", JSON, |input| {
        let Some(once) = patched(STRATEGIC, input, &object) else { return };
        // Directives speak of the object as it was.
        if !input.contains(&b'$') {
            assert_eq!(patched(STRATEGIC, input, &once), Some(once));
        }
    });
}

/// A configuration applied by `ann`, without the times of who owns what.
fn applied(live: Option<&Value>, config: &Value) -> Option<Value> {
    let resource = pods();
    let writer = Writer { resource: &resource, subresource: "", manager: "ann" };
    let mut object = apply(writer, live, config, true).ok()?;
    for entry in object["metadata"]["managedFields"].as_array_mut().into_iter().flatten() {
        entry["time"] = "2026-01-01T00:00:00Z".into();
    }
    Some(object)
}

#[test]
fn a_configuration_applied_twice_is_one_applied_once() {
    feed("apply", JSON, |input| {
        let Ok(config) = proto::json::parse(input) else { return };
        let Some(once) = applied(None, &config.value) else { return };
        assert_eq!(applied(Some(&once), &config.value), Some(once));
    });
}

#[test]
fn owners_of_fields_that_make_no_sense_are_no_reason_to_fail() {
    let config = pod();
    feed("managed", JSON, |input| {
        let Ok(fields) = proto::json::parse(input) else { return };
        let mut live = pod();
        live["metadata"]["managedFields"] = json!([
            {"manager": "ann", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields.value},
            {"manager": "bob", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields.value},
        ]);
        if let Some(once) = applied(Some(&live), &config) {
            assert_eq!(applied(Some(&once), &config), Some(once));
        }
    });
}

/// Any tree without null, which a merge patch cannot set.
fn tree(random: &mut Random, depth: usize) -> Value {
    match random.below(if depth == 0 { 4 } else { 6 }) {
        0 => random.below(9).into(),
        1 => (random.below(2) == 0).into(),
        2 => format!("text {}", random.below(9)).into(),
        3 => json!(-0.5),
        4 => (0..random.below(4)).map(|_| tree(random, depth - 1)).collect(),
        _ => {
            let names = ["a", "b", "c~/d", "", "0"];
            let members = (0..random.below(5)).map(|_| ((*random.pick(&names)).to_owned(), tree(random, depth - 1)));
            Value::Object(members.collect::<Vec<_>>().into_iter().collect())
        }
    }
}

/// The merge patch that makes one of the other (RFC 7396 backwards).
fn difference(from: &Map<String, Value>, to: &Map<String, Value>) -> Value {
    let mut out = Map::new();
    for key in from.keys().filter(|key| !to.contains_key(*key)) {
        out.insert(key.clone(), Value::Null);
    }
    for (key, value) in to {
        let change = match (from.get(key), value) {
            (Some(old), new) if old == new => continue,
            (Some(Value::Object(old)), Value::Object(new)) => difference(old, new),
            // An empty object would change nothing where there was one; elsewhere it replaces what was there.
            (_, new) => new.clone(),
        };
        out.insert(key.clone(), change);
    }
    out.into()
}

#[test]
fn the_difference_of_two_trees_makes_one_of_the_other() {
    let mut random = Random::new(setting("FUZZ_SEED", 0x5eed));
    for round in 0..500 {
        let object = |random: &mut Random| match tree(random, 4) {
            Value::Object(map) => map,
            other => Map::from_iter([("only".to_owned(), other)]),
        };
        let (from, to) = (object(&mut random), object(&mut random));
        let patch = difference(&from, &to);
        let mut value = Value::Object(from);
        crate::patch::apply_merge(&mut value, &patch);
        assert_eq!(value, Value::Object(to), "round {round}: {patch}");
    }
}

#[test]
fn what_an_operation_adds_another_takes_away() {
    use crate::patch::Operations;
    let mut random = Random::new(setting("FUZZ_SEED", 0x5eed));
    for round in 0..500 {
        let document = json!({"top": tree(&mut random, 4), "list": [tree(&mut random, 2), tree(&mut random, 2)]});
        let value = tree(&mut random, 3);
        for path in ["/new", "/list/0", "/list/1", "/list/2", "/top~1~0"] {
            let there = document.pointer(path).is_some() && !path.starts_with("/list");
            assert!(!there, "round {round}");
            let patch = json!([
                {"op": "add", "path": path, "value": value}, {"op": "test", "path": path, "value": value},
                {"op": "move", "from": path, "path": "/elsewhere"}, {"op": "copy", "from": "/elsewhere", "path": "/twice"},
                {"op": "test", "path": "/twice", "value": value}, {"op": "remove", "path": "/elsewhere"},
                {"op": "remove", "path": "/twice"},
            ]);
            let mut changed = document.clone();
            let done = Operations::parse(patch).expect("a patch").apply(&mut changed);
            assert!(done.is_ok(), "round {round} {path}: {:?}", done.err());
            assert_eq!(changed, document, "round {round} {path}");
        }
    }
}
