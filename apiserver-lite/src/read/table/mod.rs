//! Tables: what `kubectl get` shows, made on the server.
//!
//! A kind has columns and a function that fills a row's cells; kinds without get the name and the time of creation.

mod apps;
mod core;
mod endpoints;
mod extension;
mod others;

use proto::time::{Timestamp, parse_rfc3339};
use serde_json::{Value, json};

use crate::crd::Looks;
use crate::http::{Accepted, Media, Response, respond};
use crate::request::Query;
use crate::resource::Resource;
use crate::status::{ApiError, Result, quote};
use crate::store::ObjectRef;

/// A column: name, type, and priority (1 is shown with `-o wide` only).
pub(super) struct Column(pub &'static str, pub &'static str, pub u8);

pub(super) type Cells = fn(&Value) -> Vec<Value>;

/// The columns after the name, and what fills them.
fn printer(resource: &Resource) -> Option<(&'static [Column], Cells)> {
    match (&*resource.group, &*resource.plural) {
        // Events are told apart by their stored form, which is the core one.
        ("events.k8s.io", "events") => core::printer("events"),
        ("", plural) => {
            core::printer(plural).or_else(|| others::printer("", plural)).or_else(|| endpoints::printer("", plural))
        }
        ("apps" | "batch", plural) => apps::printer(plural),
        (group, plural) => others::printer(group, plural)
            .or_else(|| endpoints::printer(group, plural))
            .or_else(|| extension::printer(group, plural)),
    }
}

/// The columns as JSON, properties in the order of Go's struct.
fn definitions(resource: &Resource) -> Vec<u8> {
    let column = |name: &str, kind: &str, format: &str, priority: u8| {
        let mut description = Vec::new();
        proto::json::write_string(describe(resource, name), &mut description);
        let description = String::from_utf8(description).unwrap_or_default();
        format!(
            r#"{{"name":"{name}","type":"{kind}","format":"{format}","description":{description},"priority":{priority}}}"#
        )
    };
    let mut out = Vec::new();
    if resource.custom || &*resource.plural != "events" {
        out.push(column("Name", "string", format(resource, "Name"), 0));
    }
    if let Some(definition) = &resource.definition {
        out.extend(definition.columns.iter().map(custom_column));
        return format!("[{}]", out.join(",")).into_bytes();
    }
    match printer(resource) {
        Some((columns, _)) => out.extend(columns.iter().map(|c| column(c.0, c.1, format(resource, c.0), c.2))),
        None => out.push(column("Created At", "date", "", 0)),
    }
    format!("[{}]", out.join(",")).into_bytes()
}

/// The format of a column: a few hold the name of an object.
fn format(resource: &Resource, column: &str) -> &'static str {
    match (&*resource.plural, column) {
        ("scales" | "storageversionmigrations", "Name") if !resource.custom => "",
        (_, "Name") | ("volumeattachments", "Attacher") => "name",
        _ => "",
    }
}

/// What upstream tells of a column, where every kind or one that people look at often has it.
fn describe(resource: &Resource, column: &str) -> &'static str {
    match (&*resource.plural, column) {
        (_, "Name") => NAME_DESCRIPTION,
        (_, "Age" | "Created At") => AGE_DESCRIPTION,
        ("configmaps", "Data") => DATA_DESCRIPTION,
        _ => "",
    }
}

/// A column that a definition asks for; its texts are a client's.
fn custom_column(column: &crate::crd::Column) -> String {
    let text = |text: &str| {
        let mut out = Vec::new();
        proto::json::write_string(text, &mut out);
        String::from_utf8(out).unwrap_or_default()
    };
    let (name, kind, format, description) =
        (text(&column.name), text(&column.ty), text(&column.format), text(&column.description));
    let priority = column.priority;
    format!(r#"{{"name":{name},"type":{kind},"format":{format},"description":{description},"priority":{priority}}}"#)
}

const NAME_DESCRIPTION: &str = "Name must be unique within a namespace. Is required when creating resources, although \
                                some resources may allow a client to request the generation of an appropriate name \
                                automatically. Name is primarily intended for creation idempotence and configuration \
                                definition. Cannot be updated. More info: \
                                https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";

const AGE_DESCRIPTION: &str = "CreationTimestamp is a timestamp representing the server time when this object was \
                               created. It is not guaranteed to be set in happens-before order across separate \
                               operations. Clients may not set this value. It is represented in RFC3339 form and is \
                               in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: \
                               https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

const DATA_DESCRIPTION: &str = "Data contains the configuration data. Each key must consist of alphanumeric characters, \
                                '-', '_' or '.'. Values with non-UTF-8 byte sequences must use the BinaryData field. The \
                                keys stored in Data must not overlap with the keys in the BinaryData field, this is \
                                enforced during validation process.";

/// What a row holds beside its cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Include {
    Metadata,
    Object,
    Nothing,
}

impl Include {
    /// # Errors
    /// 400 for a word that is none of upstream's.
    pub fn parse(query: &Query) -> Result<Self> {
        match query.get("includeObject").unwrap_or_default() {
            "" | "Metadata" => Ok(Include::Metadata),
            "Object" => Ok(Include::Object),
            "None" => Ok(Include::Nothing),
            other => Err(ApiError::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {}: must be 'Metadata', \
                 'Object', 'None', or empty",
                quote(other)
            ))),
        }
    }
}

/// A row as JSON. Embedded objects are in the order of their schema. `looks` is what the rows of a table share.
fn row(resource: &Resource, accepted: Accepted, value: Value, include: Include, looks: &Looks, out: &mut Vec<u8>) {
    let mut cells = Vec::new();
    if resource.custom || &*resource.plural != "events" {
        cells.push(name(resource, &value));
    }
    match printer(resource) {
        _ if resource.definition.is_some() => {
            let columns = resource.definition.iter().flat_map(|d| &d.columns);
            cells.extend(columns.map(|column| column.cell(&value, looks)));
        }
        // Columns show an object as it is stored, whatever version was asked for.
        Some((_, fill)) if matches!(&*resource.plural, "events" | "horizontalpodautoscalers") => {
            let mut stored = value.clone();
            crate::resource::versions::to_stored(resource, &mut stored);
            cells.extend(fill(&stored).into_iter().map(written));
        }
        Some((_, fill)) => cells.extend(fill(&value).into_iter().map(written)),
        // Go's zero time, for the empty object of a bookmark.
        None => cells.push(match &value["metadata"]["creationTimestamp"] {
            Value::Null => "0001-01-01T00:00:00Z".into(),
            time => time.clone(),
        }),
    }
    out.extend_from_slice(b"{\"cells\":");
    proto::json::write_sorted(&cells.into(), out);
    if let Some(conditions) = conditions(resource, &value) {
        out.extend_from_slice(b",\"conditions\":");
        proto::json::write_sorted(&conditions, out);
    }
    out.extend_from_slice(b",\"object\":");
    match include {
        Include::Nothing => out.extend_from_slice(b"null"),
        Include::Object if resource.custom => proto::json::write_sorted(&value, out),
        Include::Object => proto::json::write(resource.schema.set(), resource.schema.id, &value, out),
        Include::Metadata => {
            let tree = super::form::metadata_tree(accepted, value);
            out.extend_from_slice(&super::form::metadata_bytes(Media::Json, &tree));
        }
    }
    out.push(b'}');
}

/// Text that an object lacks is empty in a cell.
fn written(cell: Value) -> Value {
    if cell.is_null() { "".into() } else { cell }
}

/// Annotations of the classes that claims and ingresses without one get.
const DEFAULT_CLASS: [&str; 4] = [
    "ingressclass.kubernetes.io/is-default-class",
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
    "volumeattributesclass.alpha.kubernetes.io/is-default-class",
];

/// The first cell: the name, and for a class whether it is the default one.
fn name(resource: &Resource, value: &Value) -> Value {
    let name = value["metadata"]["name"].as_str().unwrap_or_default();
    let prefix = match (&*resource.group, &*resource.plural) {
        ("networking.k8s.io", "ingressclasses") => "ingressclass.",
        ("storage.k8s.io", "storageclasses") => "storageclass.",
        ("storage.k8s.io", "volumeattributesclasses") => "volumeattributesclass.",
        _ => return name.into(),
    };
    let annotations = &value["metadata"]["annotations"];
    let is_default = DEFAULT_CLASS.iter().any(|key| key.starts_with(prefix) && annotations[*key] == "true");
    if is_default { format!("{name} (default)").into() } else { name.into() }
}

/// Marks rows that no longer change: pods that ended.
fn conditions(resource: &Resource, value: &Value) -> Option<Value> {
    if !resource.group.is_empty() || &*resource.plural != "pods" {
        return None;
    }
    let (reason, message) = match value["status"]["phase"].as_str()? {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(json!([{"type": "Completed", "status": "True", "reason": reason, "message": message}]))
}

/// A table's JSON with its properties in the order of Go's struct.
fn write(accepted: Accepted, metadata: &Value, columns: Option<Vec<u8>>, rows: Vec<u8>) -> Vec<u8> {
    let mut out =
        format!("{{\"kind\":\"Table\",\"apiVersion\":\"meta.k8s.io/{}\",\"metadata\":", accepted.form_version)
            .into_bytes();
    super::form::write_list_meta(metadata, &mut out);
    out.extend_from_slice(b",\"columnDefinitions\":");
    out.extend_from_slice(columns.as_deref().unwrap_or(b"null"));
    out.extend_from_slice(b",\"rows\":[");
    out.extend_from_slice(&rows);
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
) -> Result<Response> {
    let include = Include::parse(query)?;
    let looks = Looks::of_page();
    let mut rows = Vec::with_capacity(objects.len() * 256);
    let ordered;
    let objects = match is_flow_schema(resource) {
        true => {
            ordered = by_precedence(objects, |object| object.value());
            ordered.as_slice()
        }
        false => objects,
    };
    for (index, object) in objects.iter().enumerate() {
        if index > 0 {
            rows.push(b',');
        }
        row(resource, accepted, super::convert(resource, object.value()), include, &looks, &mut rows);
    }
    let body = write(accepted, &metadata, Some(definitions(resource)), rows);
    Ok(respond::json_bytes(code, accepted, body.into()))
}

/// The one kind whose rows are in another order than its objects.
fn is_flow_schema(resource: &Resource) -> bool {
    (&*resource.group, &*resource.plural) == ("flowcontrol.apiserver.k8s.io", "flowschemas")
}

/// Flow schemas in the order in which they are asked whether a request is theirs.
fn by_precedence<T: Clone>(objects: &[T], value: impl Fn(&T) -> Value) -> Vec<T> {
    let mut ordered = objects.to_vec();
    ordered.sort_by_cached_key(|object| {
        let value = value(object);
        let name = value["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        (value["spec"]["matchingPrecedence"].as_i64().unwrap_or_default(), name)
    });
    ordered
}

/// An object that is not stored, as a table of one row.
pub(super) fn of_value(accepted: Accepted, resource: &Resource, value: Value, query: &Query) -> Result<Response> {
    let include = Include::parse(query)?;
    let metadata = json!({"resourceVersion": value["metadata"]["resourceVersion"]});
    let mut rows = Vec::new();
    row(resource, accepted, value, include, &Looks::of_page(), &mut rows);
    let body = write(accepted, &metadata, Some(definitions(resource)), rows);
    Ok(respond::json_bytes(200, accepted, body.into()))
}

/// One object as a table of one row; the columns come with the first event only.
pub(super) fn event(accepted: Accepted, resource: &Resource, object: Value, first: bool, include: Include) -> Vec<u8> {
    let metadata = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
    let mut rows = Vec::new();
    row(resource, accepted, object, include, &Looks::of_page(), &mut rows);
    write(accepted, &metadata, first.then(|| definitions(resource)), rows)
}

/// The age of an object.
pub(super) fn age(value: &Value) -> Value {
    since(&value["metadata"]["creationTimestamp"])
}

/// Time since a timestamp as people read it, `<unknown>` without one.
pub fn since(time: &Value) -> Value {
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
    use serde_json::json;

    use super::{Value, by_precedence, definitions, human_duration, is_flow_schema, name};
    use crate::resource::Resources;

    #[test]
    fn columns_of_names_are_told_from_others() {
        let formats = |group: &str, plural: &str| -> Vec<String> {
            let kind = Resources::built_in().current().lookup(group, "v1", plural).expect("built in");
            let columns: Value = serde_json::from_slice(&definitions(&kind)).expect("JSON");
            let columns = columns.as_array().expect("a list").iter();
            columns.map(|c| format!("{}:{}", c["name"], c["format"]).replace('"', "")).collect()
        };
        assert_eq!(formats("storage.k8s.io", "volumeattachments")[..3], ["Name:name", "Attacher:name", "PV:"]);
        assert_eq!(formats("", "configmaps"), ["Name:name", "Data:", "Age:"]);
    }

    #[test]
    fn flow_schemas_are_shown_in_the_order_of_matching() {
        let schema = |name: &str, precedence: u64| json!({"metadata": {"name": name}, "spec": {"matchingPrecedence": precedence}});
        let listed = [schema("catch-all", 10_000), schema("exempt", 1), schema("probes", 2), schema("alike", 2)];
        let shown = by_precedence(&listed, Value::clone);
        let names: Vec<&str> = shown.iter().filter_map(|schema| schema["metadata"]["name"].as_str()).collect();
        assert_eq!(names, ["exempt", "alike", "probes", "catch-all"]);
        let kind = Resources::built_in().current();
        let kind = kind.lookup("flowcontrol.apiserver.k8s.io", "v1", "flowschemas").expect("built in");
        assert!(is_flow_schema(&kind));
    }

    #[test]
    fn the_class_that_is_meant_without_a_word_is_marked() {
        let shown = |group: &str, plural: &str, key: &str, said: &str| {
            let class = Resources::built_in().current().lookup(group, "v1", plural).expect("built in");
            name(&class, &json!({"metadata": {"name": "a", "annotations": {key: said}}}))
        };
        const STORAGE: &str = "storageclass.kubernetes.io/is-default-class";
        const INGRESS: &str = "ingressclass.kubernetes.io/is-default-class";
        for (group, plural, own, other) in [
            ("storage.k8s.io", "storageclasses", STORAGE, INGRESS),
            ("networking.k8s.io", "ingressclasses", INGRESS, STORAGE),
        ] {
            assert_eq!(shown(group, plural, own, "true"), "a (default)");
            assert_eq!(shown(group, plural, own, "false"), "a");
            assert_eq!(shown(group, plural, other, "true"), "a");
        }
    }

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
