//! Objects that `kubectl apply` made before it applied on the server: their annotation says what the client applied, and
//! what it applied is no conflict with its own successor.

use proto::schema::{StructId, TypeSet};
use serde_json::Value;

use super::collect::fields;
use super::compare::compare;
use super::conflict::Conflict;
use super::set::Set;
use super::track::Writer;

const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Bytes that the annotations of an object may have together.
const MAX_ANNOTATIONS: usize = 256 * 1024;

fn annotation(value: &Value) -> Option<&str> {
    value["metadata"]["annotations"][ANNOTATION].as_str().filter(|text| !text.is_empty())
}

/// Whether all conflicts are about fields that the client applied and nobody changed since.
///
/// # Errors
/// The conflicts that are not.
pub fn excuse<'a>(
    writer: Writer<'_>,
    set: &TypeSet,
    id: StructId,
    live: &Value,
    conflicts: Vec<Conflict<'a>>,
) -> Result<(), Vec<Conflict<'a>>> {
    let Some(config) = annotation(live).and_then(|text| serde_json::from_str::<Value>(text).ok()) else {
        return Err(conflicts);
    };
    let readable = config["apiVersion"] == *writer.resource.api_version()
        && config.as_object().is_some_and(|c| super::check::complaints(set, set.get(id), c).is_none());
    if !readable {
        return Err(conflicts);
    }
    let (Ok(applied), Ok(changes)) = (fields(set, id, &config), compare(set, id, &config, live)) else {
        return Err(conflicts);
    };
    let allowed: Set<'_> = applied.difference(&changes.changed).difference(&changes.removed);
    let left: Vec<Conflict<'a>> = conflicts
        .into_iter()
        .filter_map(|mut conflict| {
            conflict.fields = conflict.fields.difference(&allowed);
            (!conflict.fields.is_empty()).then_some(conflict)
        })
        .collect();
    if left.is_empty() { Ok(()) } else { Err(left) }
}

/// Keeps the annotation up to date for clients that still read it.
pub fn renew(value: &mut Value, config: &Value) {
    if annotation(value).is_none() {
        return;
    }
    let mut config = config.clone();
    let annotations = config.get_mut("metadata").and_then(|m| m.get_mut("annotations"));
    if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
        annotations.remove(ANNOTATION);
    }
    let mut text = Vec::new();
    proto::json::write_sorted(&config, &mut text);
    text.push(b'\n');
    let Some(annotations) = value["metadata"]["annotations"].as_object_mut() else { return };
    annotations.insert(ANNOTATION.into(), String::from_utf8(text).unwrap_or_default().into());
    let size: usize = annotations.iter().map(|(k, v)| k.len() + v.as_str().map_or(0, str::len)).sum();
    if size > MAX_ANNOTATIONS {
        annotations.remove(ANNOTATION);
    }
}
