//! JSON Patch, with the complaints of the library that upstream uses.

use serde_json::Value;

use crate::status::ApiError;

#[derive(Debug, Clone)]
pub struct Operation {
    op: String,
    path: String,
    from: Option<String>,
    value: Option<Value>,
}

/// Most operations that one patch may have, as upstream.
const MAX_OPERATIONS: usize = 10_000;

/// Reads a patch.
///
/// # Errors
/// 400 when it is no list of operations, 413 when it has too many.
pub fn parse_json_patch(body: &[u8]) -> Result<Vec<Operation>, ApiError> {
    let parsed =
        proto::json::parse(body).map_err(|e| ApiError::bad_request(format!("error decoding patch: {e}")))?.value;
    let wrong = |what: &str| {
        ApiError::bad_request(format!(
            "error decoding patch: json: cannot unmarshal {what} into Go value of type []handlers.jsonPatchOp"
        ))
    };
    let list = match parsed {
        Value::Array(list) => list,
        Value::Object(_) => return Err(wrong("object")),
        Value::String(_) => return Err(wrong("string")),
        Value::Number(_) => return Err(wrong("number")),
        Value::Bool(_) => return Err(wrong("bool")),
        Value::Null => Vec::new(),
    };
    if list.len() > MAX_OPERATIONS {
        let text = format!("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}", list.len());
        return Err(ApiError::new(413, "RequestEntityTooLarge", text));
    }
    let text = |item: &Value, key: &str| item[key].as_str().unwrap_or_default().to_owned();
    Ok(list
        .iter()
        .map(|item| Operation {
            op: text(item, "op"),
            path: text(item, "path"),
            from: item["from"].as_str().map(Into::into),
            value: item.get("value").cloned(),
        })
        .collect())
}

/// Applies the operations in order.
///
/// # Errors
/// 422 for an operation that cannot be applied; the document may be changed in part and must not be used.
pub fn apply_json_patch(document: &mut Value, patch: &[Operation]) -> Result<(), ApiError> {
    for operation in patch {
        one(document, operation).map_err(|text| ApiError::new(422, "Invalid", text))?;
    }
    Ok(())
}

type Applied<T = ()> = Result<T, String>;

fn one(document: &mut Value, operation: &Operation) -> Applied {
    let Operation { op, path, from, value } = operation;
    let missing = |what: &str| format!("{op} operation does not apply: doc is missing {what}: {path}");
    match op.as_str() {
        "add" => add(document, path, value.clone().unwrap_or(Value::Null)),
        "remove" => remove(document, path, "remove").map(|_| ()),
        "replace" => {
            let place = find(document, path).ok_or_else(|| missing("key"))?;
            *place = value.clone().unwrap_or(Value::Null);
            Ok(())
        }
        "move" => {
            let moved = remove(document, from.as_deref().unwrap_or_default(), "move")?;
            add(document, path, moved)
        }
        "copy" => {
            let from = from.as_deref().unwrap_or_default();
            let copied = find(document, from)
                .ok_or_else(|| format!("copy operation does not apply: doc is missing from path: {from}"))?;
            let copied = copied.clone();
            add(document, path, copied)
        }
        "test" => {
            let wanted = value.clone().unwrap_or(Value::Null);
            let found = find(document, path).map_or(Value::Null, |v| v.clone());
            if found == wanted { Ok(()) } else { Err(format!("testing value {path} failed: test failed")) }
        }
        other => Err(format!("Unexpected kind: {other}")),
    }
}

/// The elements of a JSON pointer; None for text that is none.
fn steps(path: &str) -> Option<Vec<String>> {
    if path.is_empty() {
        return Some(Vec::new());
    }
    let rest = path.strip_prefix('/')?;
    Some(rest.split('/').map(|s| s.replace("~1", "/").replace("~0", "~")).collect())
}

fn step<'a>(value: &'a mut Value, step: &str) -> Option<&'a mut Value> {
    match value {
        Value::Object(map) => map.get_mut(step),
        Value::Array(list) => {
            let index = index(step, list.len())?;
            list.get_mut(index)
        }
        _ => None,
    }
}

/// A list position; negative ones count from the end, as upstream's library allows.
fn index(step: &str, length: usize) -> Option<usize> {
    match step.strip_prefix('-') {
        Some(back) => length.checked_sub(back.parse().ok()?),
        None => step.parse().ok(),
    }
}

fn find<'a>(document: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    steps(path)?.iter().try_fold(document, |value, s| step(value, s))
}

fn parent<'a>(document: &'a mut Value, path: &str, op: &str) -> Applied<(&'a mut Value, String)> {
    let missing =
        || format!("{op} operation does not apply: doc is missing path: {}: missing value", crate::status::quote(path));
    let mut steps = steps(path).ok_or_else(missing)?;
    let last = steps.pop().ok_or_else(missing)?;
    let parent = steps.iter().try_fold(document, |value, s| step(value, s)).ok_or_else(missing)?;
    Ok((parent, last))
}

fn add(document: &mut Value, path: &str, value: Value) -> Applied {
    if path.is_empty() {
        *document = value;
        return Ok(());
    }
    let (parent, last) = parent(document, path, "add")?;
    match parent {
        Value::Object(map) => {
            map.insert(last, value);
            Ok(())
        }
        Value::Array(list) => {
            let at = if last == "-" { Some(list.len()) } else { index(&last, list.len()) };
            let at = at.filter(|at| *at <= list.len());
            let at = at.ok_or_else(|| {
                format!("add operation does not apply: doc is missing path: {path}: invalid index referenced")
            })?;
            list.insert(at, value);
            Ok(())
        }
        _ => Err(format!(
            "add operation does not apply: doc is missing path: {}: missing value",
            crate::status::quote(path)
        )),
    }
}

fn remove(document: &mut Value, path: &str, op: &str) -> Applied<Value> {
    let (parent, last) = parent(document, path, op)?;
    let removed = match parent {
        Value::Object(map) => map.remove(&last),
        Value::Array(list) => index(&last, list.len()).filter(|i| *i < list.len()).map(|i| list.remove(i)),
        _ => None,
    };
    removed.ok_or_else(|| format!("{op} operation does not apply: doc is missing key: {path}: missing value"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn patched(document: Value, patch: Value) -> Result<Value, ApiError> {
        let mut document = document;
        let operations = parse_json_patch(patch.to_string().as_bytes())?;
        apply_json_patch(&mut document, &operations).map(|()| document)
    }

    #[test]
    fn operations_apply_in_order() {
        let patch = json!([{"op": "add", "path": "/a/-", "value": 3}, {"op": "remove", "path": "/a/0"},
            {"op": "replace", "path": "/b~1c", "value": "y"}, {"op": "copy", "from": "/b~1c", "path": "/d"},
            {"op": "move", "from": "/d", "path": "/e"}, {"op": "test", "path": "/e", "value": "y"}]);
        assert_eq!(
            patched(json!({"a": [1, 2], "b/c": "x"}), patch).expect("applies"),
            json!({"a": [2, 3], "b/c": "y", "e": "y"})
        );
    }

    #[test]
    fn what_does_not_apply_is_invalid() {
        for patch in [
            json!([{"op": "remove", "path": "/x"}]),
            json!([{"op": "replace", "path": "/x", "value": 1}]),
            json!([{"op": "test", "path": "/a", "value": 1}]),
            json!([{"op": "add", "path": "/x/y", "value": 1}]),
            json!([{"op": "add", "path": "/a/9", "value": 1}]),
            json!([{"op": "fly", "path": "/a"}]),
        ] {
            assert_eq!(patched(json!({"a": []}), patch).expect_err("refused").code(), 422);
        }
    }
}
