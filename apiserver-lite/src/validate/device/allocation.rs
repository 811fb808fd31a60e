//! The status of a claim: what it got, who may use it, and how the devices are.

use std::collections::HashSet;

use serde_json::Value;

use super::claim::Requests;
use super::rules::{self, Age, by_itself, configuration, items, set};
use super::shapes::ALLOCATION;
use super::{has, list, text};
use crate::field_error::Report;
use crate::validate::{ip, meta, scheduling, volume};

const RESERVATIONS: usize = 256;
const RESULTS: usize = 32;
const CONDITIONS: usize = 8;
const ADDRESSES: usize = 16;
/// Bytes of the name of a network interface, and of a hardware address.
const INTERFACE_NAME: usize = 256;
const HARDWARE_ADDRESS: usize = 128;

/// A status that replaces another one.
pub fn status(report: &mut Report, new: &Value, old: &Value) {
    let (status, was) = (&new["status"], &old["status"]);
    let reserved = |user: &Value| text(user, "uid").to_owned();
    set(report, status, "reservedFor", RESERVATIONS, reserved, |r, user| {
        for name in ["resource", "name", "uid"] {
            r.need(user, name);
        }
    });
    let allocation = status.get("allocation").filter(|a| a.is_object());
    let results = list(&status["allocation"]["devices"], "results").iter();
    let allocated: HashSet<String> = results.map(device_id).collect();
    set(report, status, "devices", usize::MAX, device_id, |r, device| one_device(r, device, &allocated));
    let users = list(status, "reservedFor");
    if !users.is_empty() {
        let before = list(was, "reservedFor");
        let deleted = has(&new["metadata"], "deletionTimestamp");
        if allocation.is_none() {
            report.refuse("reservedFor", "may not be specified when `allocated` is not set");
        } else if deleted && users.iter().any(|user| !before.contains(user)) {
            let why = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
            report.refuse("reservedFor", why);
        }
    }
    match allocation {
        // What was allocated once is not checked again: rules for new results are stricter.
        Some(_) if was["allocation"].is_object() => report.immutable_as(status, was, "allocation", &ALLOCATION),
        Some(allocation) => report.at("allocation", |r| allocated_devices(r, allocation, &Requests::of(&new["spec"]))),
        None => {}
    }
}

/// A device, or a share of one, in all its parts.
fn device_id(device: &Value) -> String {
    let parts = ["driver", "pool", "device", "shareID"].map(|name| text(device, name));
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/")
}

fn allocated_devices(report: &mut Report, allocation: &Value, requests: &Requests<'_>) {
    let devices = &allocation["devices"];
    report.at("devices", |r| {
        items(r, devices, "results", RESULTS, |r, result| {
            r.at("request", |r| requests.reference(r, text(result, "request")));
            place(r, result);
            rules::binding(r, result);
            r.each(result, "tolerations", rules::toleration);
            share(r, result);
        });
        // Those of the classes and those of the claim.
        items(r, devices, "config", 2 * rules::CONFIGS, |r, config| {
            match text(config, "source") {
                "" => r.miss("source", ""),
                _ => r.maybe_choice(config, "source", &["FromClaim", "FromClass"]),
            }
            requests.references(r, config);
            configuration(r, config, Age::New);
        });
    });
    report.with(allocation, "nodeSelector", scheduling::node_selector);
}

/// Which device.
fn place(report: &mut Report, device: &Value) {
    report.at("driver", |r| volume::driver(r, text(device, "driver")));
    report.at("pool", |r| rules::pool(r, text(device, "pool")));
    report.at("device", |r| rules::label(r, text(device, "device")));
}

fn share(report: &mut Report, device: &Value) {
    report.with(device, "shareID", |r, id| rules::share(r, id.as_str().unwrap_or_default()));
}

fn one_device(report: &mut Report, device: &Value, allocated: &HashSet<String>) {
    place(report, device);
    share(report, device);
    let id = device_id(device);
    if !allocated.contains(&id) {
        report.invalid(id.as_str(), "must be an allocated device in the claim");
    }
    let count = list(device, "conditions").len();
    if count > CONDITIONS {
        report.at("conditions", |r| r.too_many(count, CONDITIONS));
    } else {
        meta::conditions(report, device);
    }
    report.with(device, "data", |r, data| rules::raw(r, data, Age::New));
    report.with(device, "networkData", |r, network| {
        for (name, most) in [("interfaceName", INTERFACE_NAME), ("hardwareAddress", HARDWARE_ADDRESS)] {
            if text(network, name).len() > most {
                r.at(name, |r| r.too_long(most));
            }
        }
        set(r, network, "ips", ADDRESSES, by_itself, |r, address| {
            let address = address.as_str().unwrap_or_default();
            r.complaints(address, ip::interface(address));
        });
    });
}
