//! Tables: what `kubectl get` shows, made on the server.
//!
//! A kind has columns and a function that fills a row's cells; kinds without get the name and the time of creation.

mod apps;
mod core;

use proto::time::{Timestamp, parse_rfc3339};
use serde_json::{Value, json};

use crate::http::{Accepted, Body, Media, Response, respond};
use crate::request::Query;
use crate::resource::Resource;
use crate::store::ObjectRef;

/// A column: name, type, and priority (1 is shown with `-o wide` only).
pub(super) struct Column(pub &'static str, pub &'static str, pub u8);

pub(super) type Cells = fn(&Value) -> Vec<Value>;

/// The columns after the name, and what fills them.
fn printer(resource: &Resource) -> Option<(&'static [Column], Cells)> {
    match (&*resource.group, &*resource.plural) {
        ("", plural) => core::printer(plural),
        ("apps" | "batch", plural) => apps::printer(plural),
        _ => None,
    }
}

fn definitions(resource: &Resource) -> Value {
    let column = |name: &str, kind: &str, format: &str, priority: u8| json!({"name": name, "type": kind, "format": format, "description": "", "priority": priority});
    let mut out = Vec::new();
    if &*resource.plural != "events" {
        out.push(column("Name", "string", "name", 0));
    }
    match printer(resource) {
        Some((columns, _)) => {
            out.extend(columns.iter().map(|c| column(c.0, c.1, if c.0 == "Name" { "name" } else { "" }, c.2)))
        }
        None => out.push(column("Created At", "date", "", 0)),
    }
    out.into()
}

fn row(resource: &Resource, accepted: Accepted, object: &ObjectRef, include: &str) -> Value {
    let value = super::convert(resource, object.value());
    let mut cells = Vec::new();
    if &*resource.plural != "events" {
        cells.push(value["metadata"]["name"].clone());
    }
    match printer(resource) {
        Some((_, fill)) => cells.extend(fill(&value)),
        None => cells.push(value["metadata"]["creationTimestamp"].clone()),
    }
    let embedded = match include {
        "None" => Value::Null,
        "Object" => value,
        _ => super::form::metadata_tree(accepted, object),
    };
    json!({"cells": cells, "object": embedded})
}

/// A table's JSON with its properties in the order of Go's struct.
fn write(accepted: Accepted, metadata: &Value, columns: Option<Value>, rows: &[Value]) -> Vec<u8> {
    let mut out =
        format!("{{\"kind\":\"Table\",\"apiVersion\":\"meta.k8s.io/{}\",\"metadata\":", accepted.form_version)
            .into_bytes();
    super::form::write_list_meta(metadata, &mut out);
    out.extend_from_slice(b",\"columnDefinitions\":");
    proto::json::write_sorted(&columns.unwrap_or(Value::Null), &mut out);
    out.extend_from_slice(b",\"rows\":[");
    for (index, row) in rows.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        proto::json::write_sorted(row, &mut out);
    }
    out.extend_from_slice(b"]}");
    out
}

pub(super) fn response(
    code: u16,
    accepted: Accepted,
    resource: &Resource,
    objects: &[ObjectRef],
    metadata: Value,
    query: &Query,
) -> Response {
    let include = query.get("includeObject").unwrap_or_default();
    let rows: Vec<Value> = objects.iter().map(|o| row(resource, accepted, o, include)).collect();
    let body = write(accepted, &metadata, Some(definitions(resource)), &rows);
    if accepted.media == Media::Json && !accepted.pretty {
        return respond::with_type(
            code,
            Media::Json.name(),
            Body::Chunks([body.into(), bytes::Bytes::from_static(b"\n")].into()),
        );
    }
    respond::json_bytes(code, accepted, body.into())
}

/// One object as a table of one row; the columns come with the first event only.
pub(super) fn event(accepted: Accepted, resource: &Resource, object: &ObjectRef, first: bool) -> Vec<u8> {
    let metadata = json!({"resourceVersion": object.revision.to_string()});
    write(accepted, &metadata, first.then(|| definitions(resource)), &[row(resource, accepted, object, "")])
}

pub(super) fn bookmark(accepted: Accepted, object: &Value, first: bool, resource: &Resource) -> Vec<u8> {
    let metadata = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
    write(accepted, &metadata, first.then(|| definitions(resource)), &[])
}

/// The age of an object.
pub(super) fn age(value: &Value) -> Value {
    since(&value["metadata"]["creationTimestamp"])
}

/// Time since a timestamp as people read it, `<unknown>` without one.
pub(super) fn since(time: &Value) -> Value {
    match time.as_str().and_then(|t| parse_rfc3339(t).ok()) {
        Some(then) => human_duration(Timestamp::now().seconds - then.seconds).into(),
        None => "<unknown>".into(),
    }
}

/// Seconds as kubectl shows them: two units at most, fewer digits as it gets longer.
pub(super) fn human_duration(seconds: i64) -> String {
    if seconds < -1 {
        return "<invalid>".into();
    }
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let pair = |large: i64, a: &str, small: i64, b: &str| {
        if small == 0 { format!("{large}{a}") } else { format!("{large}{a}{small}{b}") }
    };
    if seconds < 120 {
        format!("{seconds}s")
    } else if minutes < 10 {
        pair(minutes, "m", seconds % 60, "s")
    } else if minutes < 180 {
        format!("{minutes}m")
    } else if hours < 8 {
        pair(hours, "h", minutes % 60, "m")
    } else if hours < 48 {
        format!("{hours}h")
    } else if days < 8 {
        pair(days, "d", hours % 24, "h")
    } else if days < 730 {
        format!("{days}d")
    } else if days < 8 * 365 {
        pair(days / 365, "y", days % 365, "d")
    } else {
        format!("{}y", days / 365)
    }
}

/// Text of a value, or `<none>`.
pub(super) fn or_none(value: &Value) -> Value {
    match value.as_str() {
        Some(text) if !text.is_empty() => text.into(),
        _ => "<none>".into(),
    }
}

/// `a=b,c=d`, or `<none>`.
pub(super) fn pairs(value: &Value) -> Value {
    let text: Vec<String> = value
        .as_object()
        .into_iter()
        .flatten()
        .map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default()))
        .collect();
    if text.is_empty() { "<none>".into() } else { text.join(",").into() }
}

/// A property of every item, joined by commas.
pub(super) fn joined(list: &Value, property: &str) -> Value {
    let items: Vec<&str> = list.as_array().into_iter().flatten().filter_map(|i| i[property].as_str()).collect();
    items.join(",").into()
}

#[cfg(test)]
mod tests {
    use super::human_duration;

    #[test]
    fn ages_lose_precision_as_they_grow() {
        for (seconds, text) in [
            (-5, "<invalid>"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (10_800, "3h"),
            (10_900, "3h1m"),
            (172_800, "2d"),
            (900_000, "10d"),
            (70_000_000, "2y80d"),
        ] {
            assert_eq!(human_duration(seconds), text);
        }
    }
}
