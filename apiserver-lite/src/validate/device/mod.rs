//! Dynamic resource allocation: what pods claim ([`claim`]), what was allocated ([`allocation`]), what drivers offer
//! ([`slice`], [`capacity`]) and the classes in between. Follows `pkg/apis/resource/validation`.
//!
//! Limits: lists as attributes are behind a gate that is off.

mod allocation;
mod capacity;
mod claim;
mod rules;
mod shapes;
mod slice;

use serde_json::Value;

use super::{claim::template_metadata, has, list, text};
use crate::field_error::{IMMUTABLE, Report, same};
pub use rules::DEVICE as DEVICE_VARIABLES;
use rules::{Age, configuration, selectors};

/// All but the metadata of a new object.
pub fn create(report: &mut Report, plural: &str, object: &Value) {
    let spec = &object["spec"];
    report.at("spec", |r| match plural {
        "resourceclaims" => claim::spec(r, spec),
        "resourceclaimtemplates" => {
            r.at("metadata", |r| template_metadata(r, &spec["metadata"]));
            r.at("spec", |r| claim::spec(r, &spec["spec"]));
        }
        "resourceslices" => slice::spec(r, spec, &Value::Null),
        "deviceclasses" => class(r, spec, &Value::Null),
        "devicetaintrules" => taint_rule(r, spec, &Value::Null),
        "resourcepoolstatusrequests" => pool_question(r, spec),
        _ => {}
    });
}

/// All but the metadata of a changed object.
pub fn update(report: &mut Report, plural: &str, new: &Value, old: &Value) {
    let (spec, was) = (&new["spec"], &old["spec"]);
    match plural {
        // Nothing else can be wrong with a spec that was right before.
        "resourceclaims" => report.immutable_as(new, old, "spec", &shapes::CLAIM),
        "resourceclaimtemplates" if !same(spec, was) => report.bad("spec", shapes::template(spec), IMMUTABLE),
        "resourcepoolstatusrequests" if !same(spec, was) => {
            let kind = "k8s.io.api.resource.v1alpha3.ResourcePoolStatusRequestSpec";
            report.bad("spec", crate::go_schema::shown(kind, spec), IMMUTABLE);
        }
        "resourceslices" => report.at("spec", |r| slice::spec(r, spec, was)),
        "deviceclasses" => report.at("spec", |r| class(r, spec, was)),
        "devicetaintrules" => report.at("spec", |r| taint_rule(r, spec, was)),
        _ => {}
    }
}

/// A status that was written.
pub fn status(report: &mut Report, plural: &str, new: &Value, old: &Value) {
    report.at("status", |r| match plural {
        "resourceclaims" => allocation::status(r, new, old),
        "devicetaintrules" => {
            let count = list(&new["status"], "conditions").len();
            if count > 8 {
                r.at("conditions", |r| r.too_many(count, 8));
            } else {
                super::meta::conditions(r, &new["status"]);
            }
        }
        "resourcepoolstatusrequests" if old["status"]["observationTime"].is_null() => pool_answer(r, &new["status"]),
        // What was answered stays.
        "resourcepoolstatusrequests" if !crate::field_error::same(&new["status"], &old["status"]) => {
            r.invalid(&new["status"], crate::field_error::IMMUTABLE);
        }
        _ => {}
    });
}

/// Which pools somebody wants to know about.
fn pool_question(report: &mut Report, spec: &Value) {
    match text(spec, "driver") {
        "" => report.miss("driver", "driver name is required"),
        driver => report.at("driver", |r| super::volume::driver(r, driver)),
    }
    if !text(spec, "poolName").is_empty() {
        report.at("poolName", |r| rules::pool(r, text(spec, "poolName")));
    }
    match spec["limit"].as_i64() {
        Some(limit) if limit < 1 => report.bad("limit", limit, "must be at least 1"),
        Some(limit) if limit > 1000 => report.bad("limit", limit, "must not exceed 1000"),
        _ => {}
    }
}

/// How full pools are found to be.
fn pool_answer(report: &mut Report, status: &Value) {
    report.each(status, "pools", |r, pool| {
        if r.need(pool, "driver") {
            r.at("driver", |r| super::volume::driver(r, text(pool, "driver")));
        }
        if r.need(pool, "poolName") {
            r.at("poolName", |r| rules::pool(r, text(pool, "poolName")));
        }
        r.named(pool, "nodeName", crate::names::dns_subdomain);
        for name in ["totalDevices", "allocatedDevices", "availableDevices", "unavailableDevices"] {
            counted(r, pool, name);
        }
        let slices = pool["sliceCount"].as_i64().unwrap_or(0);
        if slices < 1 {
            r.bad("sliceCount", slices, "must be at least 1");
        }
        counted(r, pool, "generation");
    });
    super::meta::conditions(report, status);
    counted(report, status, "totalMatchingPools");
}

fn counted(report: &mut Report, object: &Value, name: &str) {
    if let Some(count) = object[name].as_i64().filter(|count| *count < 0) {
        report.bad(name, count, "must be non-negative");
    }
}

/// A class of devices. What is as it was is not compiled again.
fn class(report: &mut Report, spec: &Value, old: &Value) {
    let age = |name: &str| if old.is_object() && spec[name] == old[name] { Age::Stored } else { Age::New };
    selectors(report, spec, age("selectors"));
    rules::items(report, spec, "config", rules::CONFIGS, |r, config| configuration(r, config, age("config")));
    if let Some(name) = spec["extendedResourceName"].as_str().filter(|name| !super::amounts::is_extended(name)) {
        report.bad("extendedResourceName", name, "must be a valid extended resource name");
    }
}

fn taint_rule(report: &mut Report, spec: &Value, old: &Value) {
    report.with(spec, "deviceSelector", |r, selector| {
        r.with(selector, "driver", |r, name| super::volume::driver(r, name.as_str().unwrap_or_default()));
        r.with(selector, "pool", |r, name| rules::pool(r, name.as_str().unwrap_or_default()));
        if has(selector, "device") {
            r.at("device", |r| rules::label(r, text(selector, "device")));
        }
    });
    report.at("taint", |r| rules::taint(r, &spec["taint"], &old["taint"]));
}

#[cfg(test)]
mod tests;
