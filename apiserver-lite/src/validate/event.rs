//! Events of both groups. They are stored in the form of the core group; what is asked of them depends on the group that
//! the client speaks.

use serde_json::Value;

use super::shapes::{EVENT_SOURCE, OBJECT};
use super::{meta, text};
use crate::field_error::Report;
use crate::go_value::Shape;
use crate::names;

pub fn create(report: &mut Report, event: &Value, core: bool) {
    always(report, event, core);
    if core {
        return;
    }
    report.at("metadata", |r| meta::check(r, "events.k8s.io", "events", &event["metadata"]));
    series(report, event);
    if event["eventTime"].is_null() {
        report.miss("eventTime", "");
    }
    let kind = text(event, "type");
    if !["Normal", "Warning"].contains(&kind) {
        report.bad("type", "", format_args!("has invalid value: {kind}"));
    }
    let source = &event["source"];
    let unset = [
        ("firstTimestamp", event["firstTimestamp"].is_null()),
        ("lastTimestamp", event["lastTimestamp"].is_null()),
        ("count", event["count"].as_i64().unwrap_or(0) == 0),
        ("source", text(source, "component").is_empty() && text(source, "host").is_empty()),
    ];
    for (name, _) in unset.into_iter().filter(|(_, unset)| !unset) {
        report.bad(name, "", "needs to be unset");
    }
}

pub fn update(report: &mut Report, new: &Value, old: &Value, core: bool) {
    always(report, new, core);
    if core {
        return;
    }
    report.at("metadata", |r| meta::update(r, "events.k8s.io", &new["metadata"], &old["metadata"]));
    if new["series"] != old["series"] {
        series(report, new);
    }
    let count = |event: &Value| Value::from(event["count"].as_i64().unwrap_or(0));
    for name in [
        "involvedObject",
        "reason",
        "message",
        "source",
        "firstTimestamp",
        "lastTimestamp",
        "count",
        "reason",
        "type",
        "eventTime",
        "action",
        "related",
        "reportingComponent",
        "reportingInstance",
    ] {
        let shown = if name == "reportingComponent" { "reportingController" } else { name };
        match name {
            "involvedObject" => report.immutable_as(new, old, name, &OBJECT),
            "related" => report.immutable_as(new, old, name, &Shape::Pointer(&OBJECT)),
            "source" => report.immutable_as(new, old, name, &EVENT_SOURCE),
            // These are texts and numbers that are there in any case.
            "count" => report.immutable_from(shown, &count(new), &count(old)),
            "firstTimestamp" | "lastTimestamp" | "eventTime" => report.immutable_from(shown, &new[name], &old[name]),
            _ => report.immutable_from(shown, &text(new, name).into(), &text(old, name).into()),
        }
    }
}

fn series(report: &mut Report, event: &Value) {
    let series = &event["series"];
    if !series.is_object() {
        return;
    }
    if series["count"].as_i64().unwrap_or(0) < 2 {
        report.bad("series.count", "", "should be at least 2");
    }
    if series["lastObservedTime"].is_null() {
        report.miss("series.lastObservedTime", "");
    }
}

/// What every event is checked for.
fn always(report: &mut Report, event: &Value, core: bool) {
    let namespace = text(&event["metadata"], "namespace");
    let object = text(&event["involvedObject"], "namespace");
    let old = event["eventTime"].is_null();
    let fits = match (object.is_empty(), old) {
        (true, true) => ["", "default"].contains(&namespace),
        (true, false) => ["default", "kube-system"].contains(&namespace),
        (false, true) => object == namespace,
        (false, false) => true,
    };
    if !fits {
        report.down(&["involvedObject", "namespace"], |r| r.invalid(object, "does not match event.namespace"));
    }
    if !old {
        let long = |report: &mut Report, name: &str, text: &str, most: usize| {
            if text.len() > most {
                report.bad(name, "", format_args!("can have at most {most} characters"));
            }
        };
        let controller = text(event, "reportingComponent");
        let name = if core { "reportingComponent" } else { "reportingController" };
        if controller.is_empty() {
            report.miss(name, "");
        }
        report.at(name, |r| r.complaints(controller, names::qualified_name(controller)));
        for name in ["reportingInstance", "action", "reason"] {
            report.need(event, name);
            long(report, name, text(event, name), 128);
        }
        long(report, "message", text(event, "message"), 1024);
    }
    report.at("namespace", |r| r.complaints(namespace, names::dns_subdomain(namespace)));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_an_event_does_not_say_is_empty() {
        let event = |more: Value| {
            let mut event = json!({"metadata": {"name": "e", "namespace": "n", "resourceVersion": "1"},
                "involvedObject": {"namespace": "n"}, "reason": "R"});
            more.as_object().into_iter().flatten().for_each(|(key, value)| event[key] = value.clone());
            event
        };
        let told = |new: Value, old: Value| Report::told(|r| update(r, &event(new), &event(old), false));
        assert!(told(json!({"reportingComponent": "", "count": 0}), json!({})).is_empty());
        assert_eq!(
            told(json!({}), json!({"reportingComponent": "c"})),
            ["reportingController: Invalid value: \"\": field is immutable"]
        );
    }
}
