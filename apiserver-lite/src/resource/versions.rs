//! The two kinds that are served in more than one version.

use serde_json::{Map, Value, json};

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

/// autoscaling/v2 HorizontalPodAutoscaler to v1: the CPU target has a field, the rest goes into annotations.
pub fn autoscaler_to_v1(value: &mut Value) {
    let mut rest = Vec::new();
    let mut target = None;
    if let Some(metrics) = value["spec"].as_object_mut().and_then(|s| s.remove("metrics")) {
        for metric in metrics.as_array().cloned().unwrap_or_default() {
            let cpu = metric["type"] == "Resource" && metric["resource"]["name"] == "cpu";
            match metric["resource"]["target"]["averageUtilization"].as_i64().filter(|_| cpu) {
                Some(percent) => target = Some(percent),
                None => rest.push(metric),
            }
        }
    }
    if let Some(percent) = target {
        value["spec"]["targetCPUUtilizationPercentage"] = percent.into();
    }
    let mut annotate = |key: &str, what: &Value| {
        value["metadata"]["annotations"][key] = what.to_string().into();
    };
    if !rest.is_empty() {
        annotate("autoscaling.alpha.kubernetes.io/metrics", &json!(rest));
    }
    let status = value["status"].as_object_mut();
    let conditions =
        status.and_then(|s| s.remove("conditions")).filter(|c| c.as_array().is_some_and(|a| !a.is_empty()));
    if let Some(conditions) = conditions {
        value["metadata"]["annotations"]["autoscaling.alpha.kubernetes.io/conditions"] = conditions.to_string().into();
    }
    if let Some(behavior) = value["spec"].as_object_mut().and_then(|s| s.remove("behavior")) {
        value["metadata"]["annotations"]["autoscaling.alpha.kubernetes.io/behavior"] = behavior.to_string().into();
    }
    if let Some(status) = value["status"].as_object_mut() {
        status.remove("currentMetrics");
    }
}

/// autoscaling/v1 HorizontalPodAutoscaler to v2.
pub fn autoscaler_to_v2(value: &mut Value) {
    let percent = value["spec"].as_object_mut().and_then(|s| s.remove("targetCPUUtilizationPercentage"));
    let mut metrics: Vec<Value> = Vec::new();
    if let Some(percent) = percent {
        metrics.push(json!({"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": percent}}}));
    }
    if let Some(annotations) = value["metadata"]["annotations"].as_object_mut() {
        let mut take = |key: &str| {
            let text = annotations.remove(&format!("autoscaling.alpha.kubernetes.io/{key}"))?;
            serde_json::from_str::<Value>(text.as_str()?).ok()
        };
        if let Some(Value::Array(rest)) = take("metrics") {
            metrics.extend(rest);
        }
        let behavior = take("behavior");
        if let Some(behavior) = behavior {
            value["spec"]["behavior"] = behavior;
        }
    }
    if !metrics.is_empty() {
        value["spec"]["metrics"] = metrics.into();
    }
}
