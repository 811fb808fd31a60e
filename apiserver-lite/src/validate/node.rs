//! Nodes.

use std::collections::HashSet;

use serde_json::Value;

use super::{amounts, ip, list, scheduling, text, texts};
use crate::field_error::{Report, go_struct};
use crate::names;

fn taints(report: &mut Report, spec: &Value) {
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for (index, taint) in list(spec, "taints").iter().enumerate() {
        let (key, value, effect) = (text(taint, "key"), text(taint, "value"), text(taint, "effect"));
        // Upstream reports these under the metadata.
        report.down(&["metadata", "taints"], |r| {
            r.index(index, |r| {
                r.at("key", |r| r.complaints(key, names::qualified_name(key)));
                let complaints = names::label_value(value);
                if !complaints.is_empty() {
                    r.bad("value", value, complaints.join(";"));
                }
                r.choice(taint, "effect", &scheduling::EFFECTS);
                if seen.contains(&(effect, key)) {
                    let empty = Value::String(String::new());
                    let shown = go_struct(&[
                        ("Key", &taint["key"]),
                        ("Value", if taint["value"].is_null() { &empty } else { &taint["value"] }),
                        ("Effect", &taint["effect"]),
                        ("TimeAdded", &taint["timeAdded"]),
                    ]);
                    r.duplicate_because(shown, "taints must be unique by key and effect pair");
                } else {
                    seen.push((effect, key));
                }
            });
        });
    }
}

fn resources(report: &mut Report, object: &Value) {
    for name in ["capacity", "allocatable"] {
        for (resource, amount) in object["status"][name].as_object().into_iter().flatten() {
            report.down(&["status", name, resource], |r| amounts::amount(r, resource, amount));
        }
    }
}

pub fn check(report: &mut Report, object: &Value) {
    let spec = &object["spec"];
    taints(report, spec);
    resources(report, object);
    let ranges = texts(spec, "podCIDRs");
    report.at("spec", |r| {
        r.each(spec, "podCIDRs", |r, range| {
            let range = range.as_str().unwrap_or_default();
            r.complaints(range, ip::range(range));
        });
        if ranges.len() < 2 {
            return;
        }
        if ranges.len() > 2 || !ip::is_dual_stack(ranges.iter().copied()) {
            r.bad("podCIDRs", &spec["podCIDRs"], "may specify no more than one CIDR for each IP family");
        }
        for index in (0..ranges.len()).filter(|i| ranges[..*i].contains(&ranges[*i])) {
            r.at("podCIDRs", |r| r.index(index, |r| r.duplicate(ranges[index])));
        }
    });
}

pub fn update(report: &mut Report, new: &Value, old: &Value) {
    resources(report, new);
    report.at("status", |r| {
        let mut seen = HashSet::new();
        r.items(&new["status"], "addresses", |r, _, address| {
            if !seen.insert(address) {
                r.duplicate(go_struct(&[("Type", &address["type"]), ("Address", &address["address"])]));
            }
        });
    });
    let (now, before) = (&new["spec"], &old["spec"]);
    report.at("spec", |r| {
        let (ranges, had) = (texts(now, "podCIDRs"), texts(before, "podCIDRs"));
        let why = "node updates may not change podCIDR except from \"\" to valid";
        if !had.is_empty() && had.len() != ranges.len() {
            r.refuse("podCIDRs", why);
        } else {
            for _ in had.iter().zip(&ranges).filter(|(a, b)| a != b) {
                r.refuse("podCIDRs", why);
            }
        }
        let had = text(before, "providerID");
        if !had.is_empty() && had != text(now, "providerID") {
            r.refuse("providerID", "node updates may not change providerID except from \"\" to valid");
        }
    });
    taints(report, now);
    if text(now, "externalID") != text(before, "externalID") {
        report.at("spec", |r| r.refuse("externalID", "may not be updated"));
    }
}
