//! What a driver offers: a slice of a pool of devices.

use serde_json::Value;

use super::rules::{self, by_name, items, set};
use super::{capacity, has, list, text};
use crate::field_error::{Raw, Report};
use crate::names;
use crate::validate::{scheduling, volume};

const DEVICES: usize = 128;
/// Devices in a slice where some have taints or share counters.
const ADVANCED_DEVICES: usize = 64;
const COUNTER_SETS: usize = 8;
const COUNTERS: usize = 32;
/// Counter sets that one device takes from.
const CONSUMED_SETS: usize = 2;
const TAINTS: usize = 16;
/// Attributes and capacities of a device.
const PROPERTIES: usize = 32;
/// Bytes of an attribute that is a text or a version.
const ATTRIBUTE_TEXT: usize = 64;

/// `old` is null for a slice that is new.
pub fn spec(report: &mut Report, spec: &Value, old: &Value) {
    report.at("driver", |r| volume::driver(r, text(spec, "driver")));
    report.at("pool", |r| pool(r, &spec["pool"]));
    if old.is_object() {
        report.at("pool", |r| r.immutable(&spec["pool"], &old["pool"], "name"));
        report.immutable(spec, old, "driver");
        report.immutable(spec, old, "nodeName");
    }
    nodes(report, spec);
    if has(spec, "sharedCounters") && has(spec, "devices") {
        report.invalid("", "only one of `sharedCounters` or `devices` is allowed");
    }
    let advanced = |device: &Value| !list(device, "taints").is_empty() || !list(device, "consumesCounters").is_empty();
    let most = if list(spec, "devices").iter().any(advanced) { ADVANCED_DEVICES } else { DEVICES };
    let chosen = spec["perDeviceNodeSelection"] == true;
    set(report, spec, "devices", most, by_name, |r, device| {
        let before = list(old, "devices").iter().find(|d| text(d, "name") == text(device, "name"));
        one_device(r, device, before.unwrap_or(&Value::Null), chosen);
    });
    set(report, spec, "sharedCounters", COUNTER_SETS, by_name, |r, counters| counter_set(r, counters, "name"));
}

fn pool(report: &mut Report, pool: &Value) {
    report.at("name", |r| rules::pool(r, text(pool, "name")));
    let number = |name: &str| pool[name].as_i64().unwrap_or(0);
    if number("resourceSliceCount") <= 0 {
        report.bad("resourceSliceCount", number("resourceSliceCount"), "must be greater than zero");
    }
    if number("generation") < 0 {
        report.bad("generation", number("generation"), "must be greater than or equal to zero");
    }
}

/// A switch that is on or not there; its name where it is on.
fn switch(report: &mut Report, object: &Value, name: &str) -> Option<String> {
    match object[name].as_bool() {
        Some(false) => report.bad(name, false, "must be either unset or set to true"),
        Some(true) => return Some(format!("`{name}`")),
        None => {}
    }
    None
}

/// The name of the node where one is given; `why` is what is said of an empty one.
fn node_name(report: &mut Report, object: &Value, why: &str) -> Option<String> {
    let name = object["nodeName"].as_str()?;
    if name.is_empty() {
        report.bad("nodeName", name, why);
        return None;
    }
    report.at("nodeName", |r| r.complaints(name, names::dns_subdomain(name)));
    Some("`nodeName`".into())
}

fn node_selector(report: &mut Report, object: &Value) -> Option<String> {
    let selector = object.get("nodeSelector").filter(|s| s.is_object())?;
    report.at("nodeSelector", |r| scheduling::node_selector(r, selector));
    Some("`nodeSelector`".into())
}

/// Which nodes reach the devices: told in one way.
fn nodes(report: &mut Report, spec: &Value) {
    let mut ways = Vec::new();
    ways.extend(node_name(report, spec, "must be either unset or set to a non-empty string"));
    ways.extend(node_selector(report, spec));
    let terms = &spec["nodeSelector"]["nodeSelectorTerms"];
    if spec["nodeSelector"].is_object() && list(&spec["nodeSelector"], "nodeSelectorTerms").len() != 1 {
        let why = "must have exactly one node selector term";
        report.at("nodeSelector", |r| r.bad("nodeSelectorTerms", terms, why));
    }
    ways.extend(switch(report, spec, "allNodes"));
    ways.extend(switch(report, spec, "perDeviceNodeSelection"));
    let one = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    match ways.len() {
        0 => report.required(one),
        1 => {}
        _ => {
            let shown = format!("{{{}}}", ways.join(", "));
            report.invalid(shown.as_str(), format_args!("{one}, but multiple fields are set"));
        }
    }
}

fn counter_set(report: &mut Report, set: &Value, name: &str) {
    report.need_named(set, name, names::dns_label);
    let counters = set["counters"].as_object().filter(|c| !c.is_empty());
    let Some(counters) = counters else { return report.miss("counters", "") };
    report.at("counters", |r| {
        if counters.len() > COUNTERS {
            return r.too_many(counters.len(), COUNTERS);
        }
        counters.keys().for_each(|name| rules::label(r, name));
    });
}

/// `old` is the device as it was, null for a new one. `chosen`: devices say for themselves which nodes reach them.
fn one_device(report: &mut Report, device: &Value, old: &Value, chosen: bool) {
    report.at("name", |r| rules::label(r, text(device, "name")));
    let count = |name: &str| device[name].as_object().map_or(0, serde_json::Map::len);
    let properties = count("attributes") + count("capacity");
    if properties > PROPERTIES {
        let why = format!("the total number of attributes and capacities must not exceed {PROPERTIES}");
        report.invalid(Raw(properties.to_string()), why);
    }
    for (name, attribute) in device["attributes"].as_object().into_iter().flatten() {
        report.at("attributes", |r| {
            rules::qualified(r, name);
            r.key(&shortened(name), |r| self::attribute(r, attribute));
        });
    }
    if !old.is_object() || old["capacity"] != device["capacity"] {
        let shared = device["allowMultipleAllocations"] == true;
        for (name, amount) in device["capacity"].as_object().into_iter().flatten() {
            report.at("capacity", |r| {
                rules::qualified(r, name);
                r.key(&shortened(name), |r| capacity::check(r, amount, shared));
            });
        }
    }
    if !old.is_object() || old["taints"] != device["taints"] {
        items(report, device, "taints", TAINTS, |r, taint| rules::taint(r, taint, &Value::Null));
    }
    let of_set = |consumed: &Value| text(consumed, "counterSet").to_owned();
    set(report, device, "consumesCounters", CONSUMED_SETS, of_set, |r, consumed| {
        counter_set(r, consumed, "counterSet");
    });
    if chosen {
        own_nodes(report, device);
    } else if ["nodeName", "nodeSelector", "allNodes"].into_iter().any(|name| has(device, name)) {
        let why = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true \
                   in the ResourceSlice spec";
        report.invalid(&Value::Null, why);
    }
    rules::binding(report, device);
}

fn own_nodes(report: &mut Report, device: &Value) {
    let mut ways = Vec::new();
    ways.extend(node_name(report, device, "must not be empty"));
    ways.extend(node_selector(report, device));
    ways.extend(switch(report, device, "allNodes"));
    let one = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set \
               to true in the ResourceSlice spec";
    match ways.len() {
        0 => report.required(one),
        1 => {}
        _ => report.invalid(format!("{{{}}}", ways.join(", ")).as_str(), one),
    }
}

fn attribute(report: &mut Report, attribute: &Value) {
    let kinds = ["bool", "int", "string", "version"];
    let set = kinds.into_iter().filter(|kind| has(attribute, kind)).count();
    for name in ["string", "version"].into_iter().filter(|name| has(attribute, name)) {
        let value = text(attribute, name);
        report.at(name, |r| {
            if name == "version" && !names::is_semantic_version(value) {
                r.invalid(value, "must be a string compatible with semver.org spec 2.0.0");
            }
            if value.len() > ATTRIBUTE_TEXT {
                r.too_long(ATTRIBUTE_TEXT);
            }
        });
    }
    match set {
        0 => report.invalid("", "exactly one value must be specified"),
        1 => {}
        _ => report.invalid(attribute, "exactly one value must be specified"),
    }
}

/// A key as a path shows it: of a long one the middle is left out.
fn shortened(name: &str) -> String {
    // A domain, a slash and an identifier, each as long as it may be.
    const LONGEST: usize = 63 + 1 + 32;
    if name.len() <= LONGEST {
        return name.to_owned();
    }
    let rest = LONGEST - 3;
    let (start, end) = (rest.div_ceil(2), name.len() - rest / 2);
    match (name.get(..start), name.get(end..)) {
        (Some(start), Some(end)) => format!("{start}...{end}"),
        _ => name.to_owned(),
    }
}
