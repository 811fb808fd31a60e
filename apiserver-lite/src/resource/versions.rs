//! The kinds that are served in more than one version with different fields.

use serde_json::{Map, Value, json};

pub use super::devices::{from_v1beta1 as devices_from_v1beta1, to_v1beta1 as devices_to_v1beta1};

/// From the version an object says it is in to the one that its resource is stored in.
pub fn to_stored(resource: &super::Resource, value: &mut Value) {
    // What a webhook converts stays in the version of the request until it is stored.
    let by_webhook = resource.definition.as_ref().is_some_and(|definition| definition.is_converted());
    if by_webhook || value["apiVersion"] == *resource.storage_version {
        return;
    }
    match (&*resource.group, &*resource.version, &*resource.plural) {
        ("events.k8s.io", _, "events") => event_to_old(value),
        ("autoscaling", ..) => autoscaler_to_v2(value),
        ("resource.k8s.io", "v1beta1", _) => devices_from_v1beta1(value),
        _ => {}
    }
    value["apiVersion"] = (&*resource.storage_version).into();
}

/// From the version that a resource is stored in to the one that it is served in.
pub fn to_served(resource: &super::Resource, value: &mut Value) {
    let wanted = resource.api_version();
    if value["apiVersion"] == wanted.as_str() {
        return;
    }
    match (&*resource.group, &*resource.version, &*resource.plural) {
        ("events.k8s.io", _, "events") => event_to_new(value),
        ("autoscaling", "v1", _) => autoscaler_to_v1(value),
        ("resource.k8s.io", "v1beta1", _) => devices_to_v1beta1(value),
        _ => {}
    }
    value["apiVersion"] = wanted.into();
}

fn rename(object: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = object.remove(from) {
        object.insert(to.into(), value);
    }
}

/// Names of an event's fields in core/v1 and in events.k8s.io/v1.
const EVENT_FIELDS: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

/// core/v1 Event to events.k8s.io/v1.
pub fn event_to_new(value: &mut Value) {
    if let Some(object) = value.as_object_mut() {
        EVENT_FIELDS.iter().for_each(|(old, new)| rename(object, old, new));
        if let Some(series) = object.get_mut("series").and_then(Value::as_object_mut) {
            rename(series, "lastObservedTime", "lastObservedTime");
        }
    }
}

/// events.k8s.io/v1 Event to core/v1.
pub fn event_to_old(value: &mut Value) {
    if let Some(object) = value.as_object_mut() {
        EVENT_FIELDS.iter().for_each(|(old, new)| rename(object, new, old));
    }
}

/// What a metric is called in autoscaling/v1, in the order it is written there, and where it is in v2. What a status
/// shows has `current` for `target`.
const METRICS: &[(&str, &[(&str, &str)])] = &[
    (
        "object",
        &[
            ("target", "/describedObject"),
            ("metricName", "/metric/name"),
            ("targetValue", "/target/value"),
            ("selector", "/metric/selector"),
            ("averageValue", "/target/averageValue"),
        ],
    ),
    (
        "pods",
        &[
            ("metricName", "/metric/name"),
            ("targetAverageValue", "/target/averageValue"),
            ("selector", "/metric/selector"),
        ],
    ),
    (
        "resource",
        &[
            ("name", "/name"),
            ("targetAverageUtilization", "/target/averageUtilization"),
            ("targetAverageValue", "/target/averageValue"),
        ],
    ),
    (
        "containerResource",
        &[
            ("name", "/name"),
            ("targetAverageUtilization", "/target/averageUtilization"),
            ("targetAverageValue", "/target/averageValue"),
            ("container", "/container"),
        ],
    ),
    (
        "external",
        &[
            ("metricName", "/metric/name"),
            ("metricSelector", "/metric/selector"),
            ("targetValue", "/target/value"),
            ("targetAverageValue", "/target/averageValue"),
        ],
    ),
];

/// The names of a metric's fields, as they are in a specification or in a status.
fn metric_fields(fields: &[(&'static str, &'static str)], status: bool) -> Vec<(String, String)> {
    let shown = |text: &str| if status { text.replace("target", "current") } else { text.to_owned() };
    // What an object metric describes is its target in both.
    let name = |text: &str| if text == "target" { text.to_owned() } else { shown(text) };
    fields.iter().map(|(old, new)| (name(old), shown(new))).collect()
}

/// Metrics as v1 keeps them in an annotation.
fn old_metrics(metrics: &[Value], status: bool) -> String {
    let one = |metric: &Value| {
        let mut parts = vec![format!("\"type\":{}", metric["type"])];
        for (kind, fields) in METRICS {
            let Some(source) = metric.get(*kind).filter(|s| s.is_object()) else { continue };
            let fields: Vec<String> = metric_fields(fields, status)
                .iter()
                .filter_map(|(old, new)| Some(format!("\"{old}\":{}", source.pointer(new)?)))
                .collect();
            parts.push(format!("\"{kind}\":{{{}}}", fields.join(",")));
        }
        format!("{{{}}}", parts.join(","))
    };
    format!("[{}]", metrics.iter().map(one).collect::<Vec<_>>().join(","))
}

/// A metric out of such an annotation.
fn new_metric(old: &Value, status: bool) -> Value {
    let mut out = json!({"type": old["type"]});
    for (kind, fields) in METRICS {
        let Some(source) = old.get(*kind).filter(|s| s.is_object()) else { continue };
        let mut metric = json!({});
        for (old_name, path) in metric_fields(fields, status) {
            let Some(value) = source.get(&old_name).filter(|v| !v.is_null()) else { continue };
            let mut at = &mut metric;
            for key in path.split('/').skip(1) {
                at = &mut at[key];
            }
            *at = value.clone();
        }
        if !status {
            let has = |name: &str| !metric["target"][name].is_null();
            let target = match () {
                () if has("averageUtilization") => "Utilization",
                () if has("averageValue") => "AverageValue",
                () => "Value",
            };
            metric["target"]["type"] = target.into();
        }
        out[*kind] = metric;
    }
    out
}

/// An object as text, with its fields renamed and in this order; those that are absent are null.
fn renamed(value: &Value, fields: &[(&str, &str)], inner: impl Fn(&str, &Value) -> String) -> String {
    if !value.is_object() {
        return "null".into();
    }
    let fields = fields.iter().map(|(old, new)| format!("\"{old}\":{}", inner(new, &value[*new])));
    format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
}

/// How an autoscaler behaves, by the names of Go's fields: upstream writes its own type into the annotation.
fn behavior_text(behavior: &Value) -> String {
    const POLICY: [(&str, &str); 3] = [("Type", "type"), ("Value", "value"), ("PeriodSeconds", "periodSeconds")];
    const RULES: [(&str, &str); 4] = [
        ("StabilizationWindowSeconds", "stabilizationWindowSeconds"),
        ("SelectPolicy", "selectPolicy"),
        ("Policies", "policies"),
        ("Tolerance", "tolerance"),
    ];
    let plain = |_: &str, value: &Value| value.to_string();
    let rule = |_: &str, rules: &Value| {
        renamed(rules, &RULES, |name, value| match value.as_array().filter(|_| name == "policies") {
            Some(list) => {
                format!("[{}]", list.iter().map(|p| renamed(p, &POLICY, plain)).collect::<Vec<_>>().join(","))
            }
            None => value.to_string(),
        })
    };
    renamed(behavior, &[("ScaleUp", "scaleUp"), ("ScaleDown", "scaleDown")], rule)
}

/// The names of Go's fields become those of JSON.
fn lower_names(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(lower_names).collect(),
        Value::Object(map) => map
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| {
                let mut letters = key.chars();
                let key = letters.next().map(|c| c.to_ascii_lowercase()).into_iter().chain(letters).collect::<String>();
                (key, lower_names(value))
            })
            .collect(),
        other => other,
    }
}

const PREFIX: &str = "autoscaling.alpha.kubernetes.io/";

/// autoscaling/v2 HorizontalPodAutoscaler to v1: the CPU target has a field, the rest goes into annotations.
pub fn autoscaler_to_v1(value: &mut Value) {
    let take = |value: &mut Value, part: &str, key: &str| -> Option<Value> {
        value.get_mut(part)?.as_object_mut()?.remove(key)
    };
    let list = |value: Option<Value>| match value {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    };
    let cpu = |metric: &Value, path: &str| {
        let cpu = metric["type"] == "Resource" && metric["resource"]["name"] == "cpu";
        metric.pointer(path).and_then(Value::as_i64).filter(|_| cpu)
    };
    let mut annotations: Vec<(&str, String)> = Vec::new();
    let mut rest = Vec::new();
    for metric in list(take(value, "spec", "metrics")) {
        match cpu(&metric, "/resource/target/averageUtilization") {
            Some(percent) => value["spec"]["targetCPUUtilizationPercentage"] = percent.into(),
            None => rest.push(metric),
        }
    }
    if !rest.is_empty() {
        annotations.push(("metrics", old_metrics(&rest, false)));
    }
    let current = list(take(value, "status", "currentMetrics"));
    if let Some(percent) = current.iter().find_map(|m| cpu(m, "/resource/current/averageUtilization")) {
        value["status"]["currentCPUUtilizationPercentage"] = percent.into();
    }
    if !current.is_empty() {
        annotations.push(("current-metrics", old_metrics(&current, true)));
    }
    let conditions = list(take(value, "status", "conditions"));
    if !conditions.is_empty() {
        let fields = ["type", "status", "lastTransitionTime", "reason", "message"];
        let one = |c: &Value| {
            let fields = fields.iter().filter_map(|key| Some(format!("\"{key}\":{}", c.get(*key)?)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        };
        annotations.push(("conditions", format!("[{}]", conditions.iter().map(one).collect::<Vec<_>>().join(","))));
    }
    if let Some(behavior) = take(value, "spec", "behavior").filter(Value::is_object) {
        annotations.push(("behavior", behavior_text(&behavior)));
    }
    for (key, text) in annotations {
        value["metadata"]["annotations"][format!("{PREFIX}{key}")] = text.into();
    }
}

/// autoscaling/v1 HorizontalPodAutoscaler to v2.
pub fn autoscaler_to_v2(value: &mut Value) {
    let take = |value: &mut Value, part: &str, key: &str| -> Option<Value> {
        value.get_mut(part)?.as_object_mut()?.remove(key)
    };
    let mut metrics: Vec<Value> = Vec::new();
    if let Some(percent) = take(value, "spec", "targetCPUUtilizationPercentage") {
        metrics.push(json!({"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": percent}}}));
    }
    take(value, "status", "currentCPUUtilizationPercentage");
    // An annotation that cannot be read is dropped, as upstream does.
    let annotation = |value: &mut Value, key: &str| {
        let text = value.pointer_mut("/metadata/annotations")?.as_object_mut()?.remove(&format!("{PREFIX}{key}"))?;
        serde_json::from_str::<Value>(text.as_str()?).ok()
    };
    if let Some(Value::Array(rest)) = annotation(value, "metrics") {
        metrics.extend(rest.iter().map(|m| new_metric(m, false)));
    }
    if let Some(behavior) = annotation(value, "behavior").filter(Value::is_object) {
        value["spec"]["behavior"] = lower_names(behavior);
    }
    if let Some(Value::Array(current)) = annotation(value, "current-metrics") {
        value["status"]["currentMetrics"] = current.iter().map(|m| new_metric(m, true)).collect();
    }
    if let Some(conditions @ Value::Array(_)) = annotation(value, "conditions") {
        value["status"]["conditions"] = conditions;
    }
    if !metrics.is_empty() {
        value["spec"]["metrics"] = metrics.into();
    }
    if value.pointer("/metadata/annotations").and_then(Value::as_object).is_some_and(Map::is_empty) {
        take(value, "metadata", "annotations");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_autoscaler_survives_the_older_version() {
        let metrics = json!([
            {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}},
            {"type": "Pods", "pods": {"metric": {"name": "q"}, "target": {"type": "AverageValue", "averageValue": "5"}}},
        ]);
        let rules = json!({"selectPolicy": "Max", "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}]});
        let new = json!({"metadata": {"name": "a"}, "spec": {"metrics": metrics, "behavior": {"scaleUp": rules}}});
        let mut value = new.clone();
        autoscaler_to_v1(&mut value);
        assert_eq!(value["spec"], json!({"targetCPUUtilizationPercentage": 80}));
        let annotation = |key: &str| value["metadata"]["annotations"][format!("{PREFIX}{key}")].as_str().unwrap();
        assert_eq!(annotation("metrics"), r#"[{"type":"Pods","pods":{"metricName":"q","targetAverageValue":"5"}}]"#);
        assert_eq!(
            annotation("behavior"),
            r#"{"ScaleUp":{"StabilizationWindowSeconds":null,"SelectPolicy":"Max","Policies":[{"Type":"Pods","Value":4,"PeriodSeconds":15}],"Tolerance":null},"ScaleDown":null}"#
        );
        autoscaler_to_v2(&mut value);
        assert_eq!(value, new);
    }
}
