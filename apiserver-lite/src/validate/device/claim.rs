//! What a claim asks for.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::rules::{self, Age, by_itself, by_name, configuration, fully_qualified, items, selectors, set};
use super::{has, list, text};
use crate::field_error::Report;
use crate::names;

const CONSTRAINTS: usize = 32;
const ALTERNATIVES: usize = 8;
const NO_REQUEST: &str =
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";

/// Names of requests, each with those of its alternatives.
pub struct Requests<'a>(HashMap<&'a str, HashSet<&'a str>>);

impl<'a> Requests<'a> {
    /// Of the spec of a claim.
    pub fn of(spec: &'a Value) -> Self {
        let alternatives = |request| list(request, "firstAvailable").iter().map(|sub| text(sub, "name")).collect();
        let requests = list(&spec["devices"], "requests").iter();
        Requests(requests.map(|request| (text(request, "name"), alternatives(request))).collect())
    }

    fn has(&self, name: &str) -> bool {
        match name.split_once('/') {
            None => self.0.contains_key(name),
            Some((request, alternative)) => self.0.get(request).is_some_and(|known| known.contains(alternative)),
        }
    }

    /// Checks a reference to a request, or to one of its alternatives.
    pub fn reference(&self, report: &mut Report, name: &str) {
        let parts: Vec<&str> = name.split('/').collect();
        if parts.len() <= 2 {
            parts.iter().for_each(|part| rules::label(report, part));
        }
        if parts.len() > 2 || !self.has(name) {
            report.invalid(name, NO_REQUEST);
        }
    }

    /// Checks the references in `requests` of an object.
    pub fn references(&self, report: &mut Report, object: &Value) {
        set(report, object, "requests", rules::REQUESTS, by_itself, |r, name| {
            self.reference(r, name.as_str().unwrap_or_default());
        });
    }
}

/// A spec that is new.
pub fn spec(report: &mut Report, spec: &Value) {
    let (devices, requests) = (&spec["devices"], Requests::of(spec));
    report.at("devices", |r| {
        set(r, devices, "requests", rules::REQUESTS, by_name, request);
        items(r, devices, "constraints", CONSTRAINTS, |r, constraint| {
            requests.references(r, constraint);
            let attribute = ["matchAttribute", "distinctAttribute"].into_iter().find(|name| has(constraint, name));
            match attribute {
                Some(name) => r.at(name, |r| fully_qualified(r, text(constraint, name))),
                // These are upstream's words for none at all.
                None => r.required(
                    "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set",
                ),
            }
        });
        items(r, devices, "config", rules::CONFIGS, |r, config| {
            requests.references(r, config);
            configuration(r, config, Age::New);
        });
    });
}

fn request(report: &mut Report, request: &Value) {
    report.at("name", |r| rules::label(r, text(request, "name")));
    match (request.get("exactly").filter(|e| e.is_object()), list(request, "firstAvailable")) {
        (None, []) => report.required("exactly one of `exactly` or `firstAvailable` is required"),
        (Some(_), [_, ..]) => {
            let why = "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
            report.invalid(&Value::Null, why);
        }
        (Some(exactly), []) => report.at("exactly", |r| devices(r, exactly)),
        (None, _) => set(report, request, "firstAvailable", ALTERNATIVES, by_name, |r, alternative| {
            r.at("name", |r| rules::label(r, text(alternative, "name")));
            devices(r, alternative);
        }),
    }
}

/// How many devices of which class.
fn devices(report: &mut Report, request: &Value) {
    report.need_named(request, "deviceClassName", names::dns_subdomain);
    selectors(report, request, Age::New);
    let count = request["count"].as_i64().unwrap_or(0);
    match text(request, "allocationMode") {
        "All" if count != 0 => report.bad("count", count, "must not be specified when allocationMode is 'All'"),
        "ExactCount" if count <= 0 => report.bad("count", count, "must be greater than zero"),
        "All" | "ExactCount" => {}
        other => report.at("allocationMode", |r| r.not_supported(other, &["All", "ExactCount"])),
    }
    report.each(request, "tolerations", rules::toleration);
}
