//! Strategic merge patches with every directive, against a model.

use serde_json::{Map, Value, json};

use super::{Fields, KINDS, Kind, Shape, chance, item, members, places, value, words};
use crate::fuzz::{Random, rounds};
use crate::patch::Patch;
use crate::write::FieldValidation;

const MEDIA: &str = "application/strategic-merge-patch+json";

/// The patch cannot be applied.
#[derive(Debug)]
struct Refused;

type Result<T> = std::result::Result<T, Refused>;

fn order_of(name: &str) -> String {
    format!("$setElementOrder/{name}")
}

fn deletes_from(name: &str) -> String {
    format!("$deleteFromPrimitiveList/{name}")
}

/// A new value: what says how to patch is not part of it.
fn plain(value: &Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Object(map) if map.contains_key("$patch") => None,
        Value::Object(map) => {
            Some(map.iter().filter_map(|(k, v)| Some((k.clone(), plain(v)?))).collect::<Map<_, _>>().into())
        }
        Value::Array(list) => Some(list.iter().filter_map(plain).collect()),
        other => Some(other.clone()),
    }
}

fn patched(fields: &dyn Fn(&str) -> Option<&'static Shape>, have: &Value, patch: &Value) -> Result<Value> {
    match patch.get("$patch").map(|d| d.as_str().unwrap_or_default()) {
        Some("replace") => {
            let mut whole = patch.clone();
            whole.as_object_mut().expect("an object").remove("$patch");
            return Ok(whole);
        }
        Some("delete") => return Ok(json!({})),
        Some(_) => return Err(Refused),
        None => {}
    }
    let mut out = have.as_object().cloned().unwrap_or_default();
    let patch = patch.as_object().expect("an object");
    if let Some(keep) = patch.get("$retainKeys") {
        let keep = keep.as_array().ok_or(Refused)?;
        let kept = |name: &str| keep.iter().any(|k| k == name);
        if patch.iter().any(|(name, value)| !name.starts_with('$') && !value.is_null() && !kept(name)) {
            return Err(Refused);
        }
        out.retain(|name, _| kept(name));
    }
    let mut names: Vec<&str> =
        patch.keys().map(|key| key.split_once('/').filter(|_| key.starts_with('$')).map_or(&**key, |n| n.1)).collect();
    names.retain(|name| !name.starts_with('$'));
    names.sort_unstable();
    names.dedup();
    for name in names {
        let (change, order, gone) = (patch.get(name), patch.get(&order_of(name)), patch.get(&deletes_from(name)));
        let after = match (fields(name), change, out.get(name)) {
            (_, Some(Value::Null), _) => None,
            (Some(Shape::Items(keys, inner)), change, have) => items(keys[0].0, inner, have, change, order)?,
            (Some(Shape::Values), change, have) => values(have, change, order, gone)?,
            (_, None, have) => have.cloned(),
            (_, Some(change), None) => plain(change),
            (Some(Shape::Struct(inner) | Shape::Whole(inner)), Some(change), Some(have)) => {
                Some(patched(&|name| inner.iter().find(|f| f.0 == name).map(|f| &f.1), have, change)?)
            }
            (Some(Shape::Labels | Shape::Selector), Some(change), Some(have)) => {
                Some(patched(&|_| Some(&Shape::Text), have, change)?)
            }
            (_, Some(change), Some(_)) => Some(change.clone()),
        };
        match after {
            Some(after) => out.insert(name.into(), after),
            None => out.remove(name),
        };
    }
    Ok(out.into())
}

fn list(value: Option<&Value>) -> Vec<Value> {
    value.and_then(Value::as_array).cloned().unwrap_or_default()
}

/// Each item that the patch does not name goes right in front of the first one named that it stood before; where there
/// is none, to the end.
fn weave(named: &[Value], others: &[Value], before: &[Value], key: &dyn Fn(&Value) -> Value) -> Vec<Value> {
    let place = |item: &Value| before.iter().position(|b| key(b) == key(item));
    let waits_for = |item: &Value| named.iter().position(|n| place(n) > place(item));
    let mut out = Vec::new();
    for (at, next) in named.iter().enumerate() {
        out.extend(others.iter().filter(|o| waits_for(o) == Some(at)).cloned());
        out.push(next.clone());
    }
    out.extend(others.iter().filter(|o| waits_for(o).is_none()).cloned());
    out
}

/// Puts the items that `order` names into that order.
fn in_order(merged: Vec<Value>, order: &[Value], before: &[Value], key: &dyn Fn(&Value) -> Value) -> Vec<Value> {
    let of = |name: &Value| merged.iter().filter(|m| key(m) == key(name)).cloned().collect::<Vec<_>>();
    let named: Vec<Value> = order.iter().flat_map(of).collect();
    let mut others: Vec<Value> = merged.iter().filter(|m| !order.iter().any(|o| key(o) == key(m))).cloned().collect();
    others.sort_by_key(|other| before.iter().position(|b| key(b) == key(other)));
    weave(&named, &others, before, key)
}

/// Whether the items come in the order that is asked for.
fn agrees(change: &[Value], order: &[Value], key: &dyn Fn(&Value) -> Value) -> bool {
    let mut order = order.iter();
    change.iter().all(|item| order.any(|o| key(o) == key(item)))
}

fn items(
    merge_key: &str,
    inner: Fields,
    have: Option<&Value>,
    change: Option<&Value>,
    order: Option<&Value>,
) -> Result<Option<Value>> {
    let key = |item: &Value| item[merge_key].clone();
    let before = list(have);
    let mut merged = before.clone();
    let changes = list(change);
    let directive = |item: &Value| item.get("$patch").is_some();
    let told: Vec<Value> = changes.iter().filter(|item| !directive(item)).cloned().collect();
    if let Some(order) = order {
        // Nothing follows an order.
        if change.is_none() && have.is_none() {
            return Ok(None);
        }
        if !list(Some(order)).is_empty() && !agrees(&told, &list(Some(order)), &key) {
            return Err(Refused);
        }
        if changes.is_empty() && before.is_empty() {
            return Err(Refused);
        }
    }
    match (have, change) {
        (Some(_), Some(_)) => {
            for item in changes.iter().filter(|item| directive(item)) {
                match item["$patch"].as_str() {
                    Some("delete") => merged.retain(|m| key(m) != key(item)),
                    Some("replace") => {}
                    _ => return Err(Refused),
                }
            }
            if changes.iter().any(|item| item["$patch"] == "replace") {
                merged = told;
            } else {
                let fields = |name: &str| inner.iter().find(|f| f.0 == name).map(|f| &f.1).or(Some(&Shape::Text));
                for item in &told {
                    match merged.iter_mut().find(|m| key(m) == key(item)) {
                        Some(old) => *old = patched(&fields, old, item)?,
                        None => merged.push(item.clone()),
                    }
                }
                let left: Vec<Value> =
                    merged.iter().filter(|m| told.iter().any(|t| key(t) == key(m))).cloned().collect();
                if left.len() < told.len() {
                    // A patch of an item that says to delete its members leaves nothing to find it by.
                    return Err(Refused);
                }
                merged = in_order(merged, &told, &before, &key);
            }
        }
        (None, Some(change)) => merged = list(plain(change).as_ref()),
        (_, None) => {}
    }
    if let Some(order) = order {
        merged = in_order(merged, &list(Some(order)), &before, &key);
    }
    Ok(if have.is_none() && change.is_none() { None } else { Some(merged.into()) })
}

fn values(
    have: Option<&Value>,
    change: Option<&Value>,
    order: Option<&Value>,
    gone: Option<&Value>,
) -> Result<Option<Value>> {
    let (before, told) = (list(have), list(change));
    let mut merged = before.clone();
    if let Some(order) = order.map(|o| list(Some(o))) {
        if change.is_none() && have.is_none() {
            return Ok(None);
        }
        if !order.is_empty() && !agrees(&told, &order, &Value::clone) || before.is_empty() && told.is_empty() {
            return Err(Refused);
        }
        merged.extend(told.iter().filter(|t| !before.contains(t)).cloned());
        if have.is_some() && change.is_some() {
            merged = in_order(merged, &told, &before, &Value::clone);
        }
        merged = in_order(merged, &order, &before, &Value::clone);
    } else if have.is_some() {
        merged.extend(told.iter().filter(|t| !before.contains(t)).cloned());
        merged = in_order(merged, &told, &before, &Value::clone);
    } else {
        merged = told;
    }
    merged.retain(|m| !list(gone).contains(m));
    Ok(if have.is_none() && change.is_none() { None } else { Some(merged.into()) })
}

/// A patch for an object or a part of one; `keys` are not changed.
fn patch(random: &mut Random, fields: Fields, have: Option<&Value>, top: bool) -> Map<String, Value> {
    let mut out = Map::new();
    if !top && chance(random, 4) {
        out = members(random, fields, 30);
        out.insert("$patch".into(), "replace".into());
        return out;
    }
    if !top && chance(random, 2) {
        let directive = if chance(random, 80) { "delete" } else { "merge" };
        return Map::from_iter([("$patch".to_owned(), directive.into())]);
    }
    for (name, shape) in fields {
        if !chance(random, 45) {
            continue;
        }
        let have = have.and_then(|h| h.get(*name));
        if !top && chance(random, 10) {
            out.insert((*name).into(), Value::Null);
            continue;
        }
        match shape {
            Shape::Struct(inner) | Shape::Whole(inner) => {
                out.insert((*name).into(), patch(random, inner, have, *name == "metadata").into());
            }
            Shape::Labels | Shape::Selector => {
                let mut labels = value(random, shape);
                for (_, label) in labels.as_object_mut().into_iter().flatten() {
                    if chance(random, 30) {
                        *label = Value::Null;
                    }
                }
                if chance(random, 5) {
                    labels["$patch"] = "replace".into();
                    labels.as_object_mut().expect("a map").retain(|_, label| !label.is_null());
                }
                out.insert((*name).into(), labels);
            }
            Shape::Items(keys, inner) => items_patch(random, name, keys, inner, have, &mut out),
            Shape::Values => values_patch(random, name, have, &mut out),
            _ => drop(out.insert((*name).into(), value(random, shape))),
        }
    }
    if !top && chance(random, 8) {
        let mut keep: Vec<Value> =
            out.iter().filter(|(n, _)| !n.starts_with('$')).map(|(n, _)| n.as_str().into()).collect();
        keep.extend(fields.iter().filter(|_| chance(random, 40)).map(|f| Value::from(f.0)));
        if chance(random, 10) && !keep.is_empty() {
            keep.remove(random.below(keep.len()));
        }
        out.insert("$retainKeys".into(), keep.into());
    }
    out
}

fn items_patch(
    random: &mut Random,
    name: &str,
    keys: Fields,
    inner: Fields,
    have: Option<&Value>,
    out: &mut Map<String, Value>,
) {
    let merge_key = keys[0].0;
    let mut changes = Vec::new();
    for place in places(random, &keys[0].1) {
        let old = list(have).into_iter().find(|h| h[merge_key] == place);
        changes.push(match &old {
            _ if chance(random, 15) => json!({"$patch": "delete", merge_key: place}),
            None => item(random, keys, &place, inner),
            Some(old) => {
                let mut change = patch(random, inner, Some(old), true);
                change.insert(merge_key.into(), place);
                if chance(random, 10) {
                    let names = change.keys().filter(|k| !k.starts_with('$')).map(|k| Value::from(&**k));
                    let others = keys[1..].iter().map(|k| Value::from(k.0));
                    let keep: Vec<Value> = names.chain(others).collect();
                    change.insert("$retainKeys".into(), keep.into());
                }
                change.into()
            }
        });
    }
    if chance(random, 5) {
        let directive = if chance(random, 80) { "replace" } else { "merge" };
        changes.insert(random.below(changes.len() + 1), json!({"$patch": directive}));
    }
    if chance(random, 35) {
        let told = changes.iter().filter(|c| c.get("$patch").is_none()).map(|c| c[merge_key].clone()).collect();
        let more = places(random, &keys[0].1);
        let order = order(random, told, more);
        out.insert(order_of(name).into(), order.into_iter().map(|place| json!({merge_key: place})).collect());
    }
    if !changes.is_empty() || chance(random, 10) {
        out.insert(name.into(), changes.into());
    }
}

fn values_patch(random: &mut Random, name: &str, have: Option<&Value>, out: &mut Map<String, Value>) {
    let told = words(random);
    if chance(random, 30) {
        let gone: Vec<Value> = list(have).into_iter().chain(words(random)).filter(|v| !told.contains(v)).collect();
        out.insert(deletes_from(name).into(), gone.into());
    }
    if chance(random, 35) {
        let more = words(random);
        let order = order(random, told.clone(), more);
        out.insert(order_of(name).into(), order.into());
    }
    if !told.is_empty() {
        out.insert(name.into(), told.into());
    }
}

/// Both together, the first mostly in its own order.
fn order(random: &mut Random, mut told: Vec<Value>, more: Vec<Value>) -> Vec<Value> {
    for other in more {
        if !told.contains(&other) {
            told.insert(random.below(told.len() + 1), other);
        }
    }
    if chance(random, 10) && told.len() > 1 {
        told.swap(0, 1);
    }
    told
}

fn real(kind: &Kind, object: &Value, patch: &Value) -> std::result::Result<Value, String> {
    let text = patch.to_string();
    let parsed = Patch::parse(MEDIA, text.as_bytes(), FieldValidation::Ignore).expect("a patch").expect("a known one");
    let json = || object.to_string().into_bytes();
    let name = (kind.group, "v1", kind.kind);
    let done = parsed.apply(&kind.resource().schema, name, object.clone(), None, json, FieldValidation::Ignore);
    done.map(|done| done.value).map_err(|error| error.status().message.clone())
}

#[test]
fn strategic_patches_do_what_their_model_does() {
    let (mut applied, mut refused) = (0, 0);
    rounds(4000, |random| {
        let kind = random.pick(&KINDS);
        let object = kind.object(members(random, kind.fields, 80));
        let patch: Value = patch(random, kind.fields, Some(&object), true).into();
        let model = patched(&|name| kind.fields.iter().find(|f| f.0 == name).map(|f| &f.1), &object, &patch);
        match (model, real(kind, &object, &patch)) {
            (Ok(model), Ok(real)) => {
                assert_eq!(real, kind.normal(model), "\n{object}\n{patch}");
                applied += 1;
            }
            (Err(Refused), Err(_)) => refused += 1,
            (model, real) => panic!("the model says {model:?}, the server {real:?}\n{object}\n{patch}"),
        }
    });
    assert!(applied > 1000 && refused > 10, "{applied} patches were applied and {refused} refused");
}
