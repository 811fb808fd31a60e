//! JSON Patch (RFC 6902), as the library that upstream uses understands it.
//!
//! It differs from the RFC where clients may have come to rely on it: text before the first `/` of a path is ignored,
//! `replace` of a missing member sets it, `copy` of one copies null, negative list positions count from the end, and the
//! whole document can be replaced and tested but not added or removed. Why a patch does not apply is not told to
//! clients, so errors here carry no text.

use serde_json::{Map, Value};

use super::{Format, wrong_type};
use crate::status::ApiError;

#[derive(Debug, Clone)]
pub struct Operation {
    op: String,
    path: String,
    from: String,
    value: Value,
}

impl Operation {
    /// Whether the operation neither looks at `metadata.managedFields` nor writes them.
    pub(super) fn leaves_owners(&self) -> bool {
        let elsewhere = |path: &str| {
            let mut steps = path.split('/').skip(1);
            match (steps.next(), steps.next()) {
                (Some("metadata"), step) => step.is_some_and(|s| s != "managedFields" && !s.contains('~')),
                (first, _) => first.is_some_and(|s| !s.contains('~')),
            }
        };
        elsewhere(&self.path) && (!matches!(self.op.as_str(), "move" | "copy") || elsewhere(&self.from))
    }
}

/// Most operations that one patch may have.
const MAX_OPERATIONS: usize = 10_000;
/// Bytes that the copies of one patch may add up to.
const MAX_COPIED: usize = 3 << 20;

impl Operation {
    pub(super) fn is_test(&self) -> bool {
        self.op == "test"
    }

    /// Why the operation cannot be applied, in the words of the library that upstream uses.
    pub(super) fn complaint(&self) -> String {
        let path = &self.path;
        match self.op.as_str() {
            "add" => format!("add operation does not apply: doc is missing path: {path:?}: missing value"),
            "remove" => format!("remove operation does not apply: doc is missing path: {path:?}: missing value"),
            "replace" => format!("replace operation does not apply: doc is missing path: {path}: missing value"),
            "move" => format!("move operation does not apply: doc is missing from path: {}: missing value", self.from),
            "copy" => format!("copy operation does not apply: doc is missing from path: {}: missing value", self.from),
            "test" => format!("testing value {path} failed: test failed"),
            other => format!("Unexpected kind: {other}"),
        }
    }
}

/// Reads a patch; members of operations that mean nothing are noted in `strict`.
///
/// # Errors
/// 400 when it is no list of operations, 413 when it has too many.
pub(super) fn parse(patch: Value, strict: &mut Vec<String>) -> Result<Vec<Operation>, ApiError> {
    let list = match patch {
        Value::Array(list) => list,
        Value::Null => Vec::new(),
        other => return Err(wrong_type(&other, "Go value of type []handlers.jsonPatchOp")),
    };
    if list.len() > MAX_OPERATIONS {
        let text = format!("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}", list.len());
        return Err(ApiError::new(413, "RequestEntityTooLarge", text));
    }
    strict.iter_mut().for_each(|complaint| complaint.insert_str(0, "json patch "));
    list.into_iter().enumerate().map(|(index, item)| operation(index, item, strict)).collect()
}

fn operation(index: usize, item: Value, strict: &mut Vec<String>) -> Result<Operation, ApiError> {
    let mut members = match item {
        Value::Object(members) => members,
        Value::Null => Map::new(),
        other => return Err(wrong_type(&other, "Go value of type handlers.jsonPatchOp")),
    };
    let mut text = |key: &str| match members.remove(key) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(wrong_type(&other, &format!("Go struct field jsonPatchOp.{key} of type string"))),
    };
    let (op, path, from) = (text("op")?, text("path")?, text("from")?);
    let value = members.remove("value").unwrap_or(Value::Null);
    strict.extend(members.keys().map(|key| format!("json patch unknown field \"[{index}].{key}\"")));
    Ok(Operation { op, path, from, value })
}

/// An operation that cannot be applied; the document may be changed in part and must not be used.
#[derive(Debug, PartialEq)]
pub(super) struct Refused;

type Applied<T = ()> = Result<T, Refused>;

/// Applies the operations in order.
pub(super) fn apply(document: &mut Value, patch: &[Operation]) -> Applied {
    let mut copied = 0;
    patch.iter().try_for_each(|operation| one(document, operation, &mut copied))
}

fn one(document: &mut Value, Operation { op, path, from, value }: &Operation, copied: &mut usize) -> Applied {
    match op.as_str() {
        "add" => add(document, path, value.clone()),
        "remove" => remove(document, path).map(drop),
        "replace" if path.is_empty() => match value {
            Value::Object(_) | Value::Array(_) => {
                document.clone_from(value);
                Ok(())
            }
            _ => Err(Refused),
        },
        "replace" => match fits(path, value).and_then(|()| parent(document, path))? {
            (Value::Object(map), key) => {
                map.insert(key.into(), value.clone());
                Ok(())
            }
            (Value::Array(list), key) => {
                let at = position(&key, list.len()).filter(|at| *at < list.len()).ok_or(Refused)?;
                list[at].clone_from(value);
                Ok(())
            }
            _ => Err(Refused),
        },
        "move" => {
            let moved = remove(document, from)?;
            add(document, path, moved)
        }
        "copy" => {
            let found = find(document, from)?.cloned().unwrap_or(Value::Null);
            let mut text = Vec::new();
            proto::json::write_sorted(&found, &mut text);
            *copied += text.len();
            if *copied > MAX_COPIED {
                return Err(Refused);
            }
            add(document, path, found)
        }
        "test" if path.is_empty() => {
            if document == value {
                Ok(())
            } else {
                Err(Refused)
            }
        }
        "test" => {
            let found = find(document, path)?;
            if found.unwrap_or(&Value::Null) == value { Ok(()) } else { Err(Refused) }
        }
        _ => Err(Refused),
    }
}

/// The steps of a path; what stands before the first slash does not count.
pub(super) fn steps(path: &str) -> impl DoubleEndedIterator<Item = String> {
    path.split('/').skip(1).map(|s| s.replace("~1", "/").replace("~0", "~")).collect::<Vec<_>>().into_iter()
}

/// A list position; negative ones count from the end.
fn position(step: &str, length: usize) -> Option<usize> {
    match step.strip_prefix('-') {
        Some(back) => length.checked_sub(back.parse().ok()?),
        None => step.strip_prefix('+').unwrap_or(step).parse().ok(),
    }
}

/// The container of what a path names, and its name there.
fn parent<'a>(document: &'a mut Value, path: &str) -> Applied<(&'a mut Value, String)> {
    let mut steps = steps(path);
    let last = steps.next_back().ok_or(Refused)?;
    let into = |value: &'a mut Value, step: String| match value {
        Value::Object(map) => map.get_mut(&step),
        Value::Array(list) => position(&step, list.len()).and_then(|at| list.get_mut(at)),
        _ => None,
    };
    let parent = steps.try_fold(document, into).ok_or(Refused)?;
    Ok((parent, last))
}

/// What a path names; None for a member that is not there.
fn find<'a>(document: &'a mut Value, path: &str) -> Applied<Option<&'a Value>> {
    match parent(document, path)? {
        (Value::Object(map), key) => Ok(map.get(&key)),
        (Value::Array(list), key) => {
            let at = position(&key, list.len()).ok_or(Refused)?;
            list.get(at).map(Some).ok_or(Refused)
        }
        _ => Err(Refused),
    }
}

/// Whether a value may stand at a path: operations could nest a document in itself until it is too deep to be walked.
fn fits(path: &str, value: &Value) -> Applied {
    fn depth(value: &Value) -> usize {
        match value {
            Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or_default(),
            Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or_default(),
            _ => 0,
        }
    }
    if steps(path).count() + depth(value) > proto::json::max_depth() { Err(Refused) } else { Ok(()) }
}

fn add(document: &mut Value, path: &str, value: Value) -> Applied {
    fits(path, &value)?;
    match parent(document, path)? {
        (Value::Object(map), key) => {
            map.insert(key.into(), value);
            Ok(())
        }
        (Value::Array(list), key) => {
            // Positions count in the list as it will be.
            let at = if key == "-" { Some(list.len()) } else { position(&key, list.len() + 1) };
            let at = at.filter(|at| *at <= list.len()).ok_or(Refused)?;
            list.insert(at, value);
            Ok(())
        }
        _ => Err(Refused),
    }
}

fn remove(document: &mut Value, path: &str) -> Applied<Value> {
    match parent(document, path)? {
        (Value::Object(map), key) => map.remove(&key).ok_or(Refused),
        (Value::Array(list), key) => {
            let at = position(&key, list.len()).filter(|at| *at < list.len()).ok_or(Refused)?;
            Ok(list.remove(at))
        }
        _ => Err(Refused),
    }
}

impl Format {
    /// Whether a patch looked into the container at `path`, which upstream then prints with its keys sorted.
    pub(super) fn touches(&self, path: &[&str]) -> bool {
        match self {
            Format::Json(operations) => path.is_empty() || operations.iter().any(|o| o.leads_through(path)),
            Format::Merge(patch) | Format::Strategic(patch) => {
                path.iter().try_fold(patch, |at, step| at.get(step)).is_some_and(Value::is_object)
            }
        }
    }
}

impl Operation {
    fn leads_through(&self, path: &[&str]) -> bool {
        let through = |text: &str| {
            let steps: Vec<String> = steps(text).collect();
            steps.len() > path.len() && path.iter().zip(&steps).all(|(a, b)| a == b)
        };
        through(&self.path) || through(&self.from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn patched(mut document: Value, patch: Value) -> Option<Value> {
        let operations = parse(patch, &mut Vec::new()).expect("operations");
        apply(&mut document, &operations).ok().map(|()| document)
    }

    #[test]
    fn operations_apply_in_order() {
        let patch = json!([{"op": "add", "path": "/a/-", "value": 3}, {"op": "remove", "path": "/a/0"},
            {"op": "replace", "path": "/b~1c", "value": "y"}, {"op": "copy", "from": "/b~1c", "path": "/d"},
            {"op": "move", "from": "/d", "path": "/e"}, {"op": "test", "path": "/e", "value": "y"}]);
        assert_eq!(patched(json!({"a": [1, 2], "b/c": "x"}), patch), Some(json!({"a": [2, 3], "b/c": "y", "e": "y"})));
    }

    #[test]
    fn what_does_not_apply_is_refused() {
        for patch in [
            json!([{"op": "remove", "path": "/x"}]),
            json!([{"op": "test", "path": "/a", "value": 1}]),
            json!([{"op": "add", "path": "/x/y", "value": 1}]),
            json!([{"op": "add", "path": "/a/9", "value": 1}]),
            json!([{"op": "replace", "path": "/a/0", "value": 1}]),
            json!([{"op": "add", "path": "", "value": {}}]),
            json!([{"op": "add", "value": 1}]),
            json!([{"op": "fly", "path": "/a"}]),
        ] {
            assert_eq!(patched(json!({"a": []}), patch.clone()), None, "{patch}");
        }
    }

    #[test]
    fn the_library_bends_the_rules() {
        for (patch, result) in [
            (json!([{"op": "replace", "path": "/x", "value": 1}]), json!({"a": [1, 2], "x": 1})),
            (json!([{"op": "copy", "from": "/x", "path": "/y"}]), json!({"a": [1, 2], "y": null})),
            (json!([{"op": "add", "path": "/a/-1", "value": 3}]), json!({"a": [1, 2, 3]})),
            (json!([{"op": "remove", "path": "/a/-1"}]), json!({"a": [1]})),
            (json!([{"op": "test", "path": "/x"}]), json!({"a": [1, 2]})),
            (json!([{"op": "replace", "path": "", "value": {"b": 1}}]), json!({"b": 1})),
            (json!([{"op": "remove", "path": "any/a"}]), json!({})),
        ] {
            assert_eq!(patched(json!({"a": [1, 2]}), patch.clone()), Some(result), "{patch}");
        }
    }

    #[test]
    fn operations_of_wrong_types_are_named() {
        let refused = |patch| parse(patch, &mut Vec::new()).expect_err("refused").status().message.clone();
        assert_eq!(
            refused(json!([{"op": 1}])),
            "error decoding patch: json: cannot unmarshal number into Go struct field jsonPatchOp.op of type string"
        );
        assert!(refused(json!({})).ends_with("object into Go value of type []handlers.jsonPatchOp"));
        let mut strict = Vec::new();
        parse(json!([{"op": "test", "path": "/a", "foo": 1}]), &mut strict).expect("operations");
        assert_eq!(strict, ["json patch unknown field \"[0].foo\""]);
    }

    /// A document could be copied into itself, which made it twice as deep each time, until the stack of the thread ended
    /// that dropped it, and the server with it.
    #[test]
    fn a_document_copied_into_itself_does_not_become_too_deep() {
        let mut operations = vec![json!({"op": "add", "path": "/x", "value": {"a": null}})];
        for doubling in 0..16 {
            operations.push(json!({"op": "copy", "from": "/x", "path": format!("/x{}", "/a".repeat(1 << doubling))}));
        }
        let few = |count: usize| {
            let mut document = json!({});
            let parsed = parse(operations[..count].to_vec().into(), &mut Vec::new()).expect("a patch");
            apply(&mut document, &parsed).map(|()| document)
        };
        assert!(few(7).is_ok());
        assert_eq!(few(17), Err(Refused));
        let deep = few(7).expect("64 levels")["x"].clone();
        let mut document = json!({"a": {"b": deep}});
        for _ in 0..3 {
            let grows = json!([{"op": "replace", "path": "/a/b", "value": document.clone()}]);
            let parsed = parse(grows, &mut Vec::new()).expect("a patch");
            apply(&mut document, &parsed).expect("it is still shallow enough");
        }
        let many = json!([{"op": "move", "from": "/a/b", "path": format!("/a{}", "/c".repeat(300))}]);
        let parsed = parse(many, &mut Vec::new()).expect("a patch");
        assert_eq!(apply(&mut document, &parsed), Err(Refused));
    }
}
