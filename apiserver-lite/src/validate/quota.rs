//! Limit ranges and resource quotas.

use std::collections::BTreeSet;

use serde_json::{Name, Value};

use super::{amounts, list, text, texts};
use crate::field_error::Report;
use crate::go_value::{Field, Shape, shown};
use crate::names;

pub fn limit_range(report: &mut Report, spec: &Value) {
    let mut seen: Vec<&str> = Vec::new();
    report.at("spec", |r| {
        r.each(spec, "limits", |r, limit| {
            let kind = text(limit, "type");
            r.at("type", |r| {
                let complaints = names::qualified_name(kind);
                if complaints.is_empty()
                    && !kind.contains('/')
                    && !["Pod", "Container", "PersistentVolumeClaim"].contains(&kind)
                {
                    r.invalid(kind, "must be a standard limit type or fully qualified");
                }
                r.complaints(kind, complaints);
                if seen.contains(&kind) {
                    r.duplicate(kind);
                }
            });
            seen.push(kind);
            limits(r, limit, kind);
        });
    });
}

fn limits(report: &mut Report, limit: &Value, kind: &str) {
    let mut keys: BTreeSet<&str> = BTreeSet::new();
    let mut named = |report: &mut Report, part: &'static str| {
        for (name, _) in limit[part].as_object().into_iter().flatten() {
            let check = if ["Pod", "Container"].contains(&kind) { amounts::container_name } else { amounts::name };
            report.at(part, |r| r.key(name, |r| check(r, name)));
            keys.insert(name);
        }
    };
    named(report, "max");
    named(report, "min");
    for part in ["default", "defaultRequest"] {
        if kind != "Pod" {
            named(report, part);
        } else if limit[part].as_object().is_some_and(|m| !m.is_empty()) {
            report.refuse(part, "may not be specified when `type` is 'Pod'");
        }
    }
    let storage = |part: &str| !limit[part]["storage"].is_null();
    if kind == "PersistentVolumeClaim" && !storage("min") && !storage("max") {
        let why = "either minimum or maximum storage value is required, but neither was provided";
        report.miss("limits", why);
    }
    named(report, "maxLimitRequestRatio");
    for key in keys {
        relations(report, limit, key, kind == "Pod");
    }
}

/// Minimum, defaults and maximum of one resource have to rise, and the ratio has to be possible.
fn relations(report: &mut Report, limit: &Value, key: &str, is_pod: bool) {
    let amount = |part: &str| amounts::quantity(&limit[part][key]);
    let (min, max, ratio) = (amount("min"), amount("max"), amount("maxLimitRequestRatio"));
    let default = amount("default").filter(|_| !is_pod);
    let request = amount("defaultRequest").filter(|_| !is_pod);
    let wrong = |report: &mut Report, part: &str, shown: &str, why: String| {
        report.at(part, |r| r.key(key, |r| r.invalid(&limit[shown][key], why)));
    };
    let above = |low: Option<_>, high: Option<_>| low.zip(high).filter(|(low, high)| low > high);
    if let Some((min, max)) = above(min, max) {
        wrong(report, "min", "min", format!("min value {min} is greater than max value {max}"));
    }
    if let Some((min, request)) = above(min, request) {
        let why = format!("min value {min} is greater than default request value {request}");
        wrong(report, "defaultRequest", "defaultRequest", why);
    }
    if let Some((request, max)) = above(request, max) {
        let why = format!("default request value {request} is greater than max value {max}");
        wrong(report, "defaultRequest", "defaultRequest", why);
    }
    if let Some((request, default)) = above(request, default) {
        let why = format!("default request value {request} is greater than default limit value {default}");
        wrong(report, "defaultRequest", "defaultRequest", why);
    }
    if let Some((min, default)) = above(min, default) {
        wrong(report, "default", "min", format!("min value {min} is greater than default value {default}"));
    }
    if let Some((default, max)) = above(default, max) {
        wrong(report, "default", "max", format!("default value {default} is greater than max value {max}"));
    }
    let part = "maxLimitRequestRatio";
    if let Some(ratio) = ratio {
        if ratio.milli_value() < 1000 {
            wrong(report, part, part, format!("ratio {ratio} is less than 1"));
        }
        if let (Some(min), Some(max)) = (min, max) {
            #[expect(clippy::cast_precision_loss, reason = "upstream compares floats here")]
            let (most, said) =
                (max.milli_value() as f64 / min.milli_value() as f64, ratio.milli_value() as f64 / 1000.0);
            if said > most {
                wrong(report, part, part, format!("ratio {ratio} is greater than max/min = {most:.6}"));
            }
        }
    }
    if let (Some(default), Some(request)) = (default, request)
        && !amounts::may_overcommit(key)
        && default != request
    {
        let why = format!("default value {default} must equal to defaultRequest value {request} in {key}");
        wrong(report, "defaultRequest", "defaultRequest", why);
    }
}

fn counted(report: &mut Report, object: &Value, name: &str) {
    report.at(name, |r| {
        for (resource, amount) in object[name].as_object().into_iter().flatten() {
            r.key(resource, |r| {
                amounts::quota_name(r, resource);
                amounts::amount(r, resource, amount);
            });
        }
    });
}

pub fn resource_quota(report: &mut Report, object: &Value) {
    let spec = &object["spec"];
    report.at("spec", |r| {
        counted(r, spec, "hard");
        scopes(r, spec);
        r.with(spec, "scopeSelector", |r, selector| scope_selector(r, selector, spec));
    });
    report.at("status", |r| status(r, &object["status"]));
}

pub fn status(report: &mut Report, status: &Value) {
    counted(report, status, "hard");
    counted(report, status, "used");
}

const SCOPES: [&str; 7] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];

/// Whether a scope narrows the counting of a resource.
fn applies(scope: &str, resource: &str) -> bool {
    const COMPUTE: [&str; 6] = ["cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"];
    match scope {
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => ["persistentvolumeclaims", "requests.storage", "storage"].contains(&resource),
        "Terminating" | "NotTerminating" | "NotBestEffort" | "PriorityClass" | "CrossNamespacePodAffinity" => {
            resource == "pods" || COMPUTE.contains(&resource)
        }
        _ => true,
    }
}

fn misapplied<'a>(spec: &'a Value, scope: &'a str) -> impl Iterator<Item = &'a Name> + 'a {
    let hard = spec["hard"].as_object().into_iter().flatten();
    hard.map(|(name, _)| name).filter(move |n| amounts::is_quota_standard(n) && !applies(scope, n))
}

fn conflicting(scopes: &[&str]) -> usize {
    let pairs = [["BestEffort", "NotBestEffort"], ["Terminating", "NotTerminating"]];
    pairs.iter().filter(|pair| pair.iter().all(|s| scopes.contains(s))).count()
}

fn scopes(report: &mut Report, spec: &Value) {
    let said = texts(spec, "scopes");
    report.at("scopes", |r| {
        for scope in &said {
            if !SCOPES.contains(scope) {
                r.invalid(&spec["scopes"], "unsupported scope");
            }
            misapplied(spec, scope).for_each(|_| r.invalid(&spec["scopes"], "unsupported scope applied to resource"));
        }
        (0..conflicting(&said)).for_each(|_| r.invalid(&spec["scopes"], "conflicting scopes"));
    });
}

const EXPRESSION: Shape = Shape::Struct(&[
    Field("ScopeName", "scopeName", Shape::Text),
    Field("Operator", "operator", Shape::Text),
    Field("Values", "values", Shape::List(&Shape::Text)),
]);
const SELECTOR: Shape = Shape::Struct(&[Field("MatchExpressions", "matchExpressions", Shape::List(&EXPRESSION))]);

fn scope_selector(report: &mut Report, selector: &Value, spec: &Value) {
    let expressions = list(selector, "matchExpressions");
    report.at("matchExpressions", |r| {
        for expression in expressions {
            let (scope, operator) = (text(expression, "scopeName"), text(expression, "operator"));
            let values = list(expression, "values");
            if !SCOPES.contains(&scope) {
                r.bad("scopeName", scope, "unsupported scope");
            }
            for _ in misapplied(spec, scope) {
                r.invalid(shown(selector, &SELECTOR), "unsupported scope applied to resource");
            }
            let exists_only =
                ["BestEffort", "NotBestEffort", "Terminating", "NotTerminating", "CrossNamespacePodAffinity"];
            if exists_only.contains(&scope) && operator != "Exists" {
                let why = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, \
                           ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, \
                           ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
                r.bad("operator", operator, why);
            }
            match operator {
                "In" | "NotIn" if values.is_empty() => {
                    let why = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                    r.miss("values", why);
                }
                "Exists" | "DoesNotExist" if !values.is_empty() => {
                    let why = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                    r.bad("values", &expression["values"], why);
                }
                "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
                other => r.bad("operator", other, "not a valid selector operator"),
            }
        }
        let said: Vec<&str> = expressions.iter().map(|e| text(e, "scopeName")).collect();
        (0..conflicting(&said)).for_each(|_| r.invalid(&spec["scopes"], "conflicting scopes"));
    });
}

/// A quota's scopes are for ever.
pub fn update(report: &mut Report, new: &Value, old: &Value) {
    let set = |object: &Value| texts(&object["spec"], "scopes").into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
    if set(new) != set(old) {
        report.at("spec", |r| r.bad("scopes", &new["spec"]["scopes"], crate::field_error::IMMUTABLE));
    }
}
