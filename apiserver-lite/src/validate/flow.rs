//! Flow schemas and priority levels.

use serde_json::Value;

use super::{has, list, text, texts};
use crate::field_error::Report;
use crate::names;

pub fn schema(report: &mut Report, object: &Value) {
    let (name, spec) = (text(&object["metadata"], "name"), &object["spec"]);
    report.at("spec", |r| {
        let precedence = spec["matchingPrecedence"].as_i64().unwrap_or(0);
        if precedence <= 0 {
            r.bad("matchingPrecedence", precedence, "must be a positive value");
        }
        if precedence > 10000 {
            r.bad("matchingPrecedence", precedence, "must not be greater than 10000");
        }
        if precedence == 1 && name != "exempt" {
            let why = "only the schema named 'exempt' may have matchingPrecedence 1";
            r.bad("matchingPrecedence", precedence, why);
        }
        r.with(spec, "distinguisherMethod", |r, method| {
            let kind = text(method, "type");
            if !["ByNamespace", "ByUser"].contains(&kind) {
                let shown = format!("{{\"Type\":{}}}", crate::status::quote(kind));
                r.at("type", |r| r.unsupported(&shown, "\"ByNamespace\", \"ByUser\""));
            }
        });
        r.at("priorityLevelConfiguration", |r| match text(&spec["priorityLevelConfiguration"], "name") {
            "" => r.miss("name", "must reference a priority level"),
            name => r.at("name", |r| r.complaints(name, names::dns_subdomain(name))),
        });
        r.each(spec, "rules", |r, rule| {
            if list(rule, "subjects").is_empty() {
                r.miss("subjects", "subjects must contain at least one value");
            }
            r.each(rule, "subjects", subject);
            if list(rule, "resourceRules").is_empty() && list(rule, "nonResourceRules").is_empty() {
                r.required("at least one of resourceRules and nonResourceRules has to be non-empty");
            }
            r.each(rule, "resourceRules", resource_rule);
            r.each(rule, "nonResourceRules", |r, rule| {
                verbs(r, rule);
                if alone(
                    r,
                    rule,
                    "nonResourceURLs",
                    "nonResourceURLs must contain at least one value",
                    "non-resource URLs",
                ) {
                    r.each(rule, "nonResourceURLs", |r, url| path(r, url.as_str().unwrap_or_default()));
                }
            });
        });
    });
    conditions(report, &object["status"]);
}

fn conditions(report: &mut Report, status: &Value) {
    let mut seen: Vec<&str> = Vec::new();
    report.at("status", |r| {
        r.each(status, "conditions", |r, condition| {
            let kind = text(condition, "type");
            if seen.contains(&kind) {
                r.at("type", |r| r.duplicate(kind));
            }
            seen.push(kind);
            if kind.is_empty() {
                r.miss("type", "must not be empty");
            }
        });
    });
}

fn subject(report: &mut Report, subject: &Value) {
    const KINDS: [(&str, &str); 3] = [("ServiceAccount", "serviceAccount"), ("User", "user"), ("Group", "group")];
    let kind = text(subject, "kind");
    let Some((_, own)) = KINDS.iter().find(|(name, _)| *name == kind) else {
        return report.at("kind", |r| r.not_supported(kind, &["Group", "ServiceAccount", "User"]));
    };
    match subject.get(*own).filter(|s| s.is_object()) {
        None => report.miss(own, &format!("{own} is required when subject kind is '{kind}'")),
        Some(named) => report.at(own, |r| {
            if r.need(named, "name") && *own == "serviceAccount" && text(named, "name") != "*" {
                r.named(named, "name", names::dns_subdomain);
            }
            if *own == "serviceAccount" {
                match text(named, "namespace") {
                    "" => r.miss("namespace", "must specify namespace for service account"),
                    namespace => r.at("namespace", |r| r.complaints(namespace, names::dns_label(namespace))),
                }
            }
        }),
    }
    for (name, field) in KINDS.iter().filter(|(_, field)| field != own && has(subject, field)) {
        report.refuse(field, &format!("{field} is forbidden when subject kind is not '{name}'"));
    }
}

/// A list in which `*` stands alone. True when its items have to be looked at.
fn alone(report: &mut Report, rule: &Value, name: &str, missing: &str, what: &str) -> bool {
    let items = texts(rule, name);
    if items.is_empty() {
        report.miss(name, missing);
    } else if items.contains(&"*") {
        if items.len() > 1 {
            report.bad(name, &rule[name], format_args!("if '*' is present, must not specify other {what}"));
        }
    } else {
        return true;
    }
    false
}

fn verbs(report: &mut Report, rule: &Value) {
    const VERBS: [&str; 9] =
        ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];
    if alone(report, rule, "verbs", "verbs must contain at least one value", "verbs")
        && texts(rule, "verbs").iter().any(|v| !VERBS.contains(v))
    {
        let known: Vec<String> = VERBS.iter().map(|v| crate::status::quote(v)).collect();
        report.at("verbs", |r| r.unsupported(&rule["verbs"].to_string(), &known.join(", ")));
    }
}

fn resource_rule(report: &mut Report, rule: &Value) {
    verbs(report, rule);
    alone(report, rule, "apiGroups", "resource rules must supply at least one api group", "api groups");
    alone(report, rule, "resources", "resource rules must supply at least one resource", "resources");
    if list(rule, "namespaces").is_empty() && rule["clusterScope"] == true {
        return;
    }
    let missing = "resource rules that are not cluster scoped must supply at least one namespace";
    if alone(report, rule, "namespaces", missing, "namespaces") {
        report.each(rule, "namespaces", |r, namespace| {
            let namespace = namespace.as_str().unwrap_or_default();
            for why in names::dns_label(namespace) {
                r.invalid(namespace, format_args!("each member of this list must be '*' or a DNS-1123 label; {why}"));
            }
        });
    }
}

fn path(report: &mut Report, path: &str) {
    let stars = path.matches('*').count();
    let why = if path.is_empty() {
        "must not be empty"
    } else if path == "/" {
        return;
    } else if !path.starts_with('/') {
        "must start with slash"
    } else if path.contains(' ') {
        "must not contain white-space"
    } else if path.contains("//") {
        "must not contain double slash"
    } else if stars > 1 || stars == 1 && !path.ends_with("/*") {
        "wildcard can only do suffix matching"
    } else {
        return;
    };
    report.invalid(path, why);
}

pub fn priority_level(report: &mut Report, object: &Value) {
    let (name, spec) = (text(&object["metadata"], "name"), &object["spec"]);
    let kind = text(spec, "type");
    report.at("spec", |r| {
        if (name == "exempt") != (kind == "Exempt") {
            r.bad("type", kind, "type must be 'Exempt' if and only if name is 'exempt'");
        }
        match kind {
            "Exempt" => {
                r.forbid(spec, &["limited"], "must be nil if the type is not Limited");
                r.with(spec, "exempt", shares);
            }
            "Limited" => {
                r.forbid(spec, &["exempt"], "must be nil if the type is Limited");
                match spec.get("limited").filter(|l| l.is_object()) {
                    None => r.miss("limited", "must not be empty when type is Limited"),
                    Some(limited) => r.at("limited", |r| limited_level(r, limited)),
                }
            }
            other => r.at("type", |r| r.not_supported(other, &["Exempt", "Limited"])),
        }
    });
    conditions(report, &object["status"]);
}

fn shares(report: &mut Report, level: &Value) {
    if let Some(shares) = level["nominalConcurrencyShares"].as_i64().filter(|s| *s < 0) {
        report.bad("nominalConcurrencyShares", shares, "must be a non-negative integer");
    }
    if let Some(percent) = level["lendablePercent"].as_i64().filter(|p| !(0..=100).contains(p)) {
        report.bad("lendablePercent", percent, "must be between 0 and 100, inclusive");
    }
}

fn limited_level(report: &mut Report, limited: &Value) {
    shares(report, limited);
    if let Some(percent) = limited["borrowingLimitPercent"].as_i64().filter(|p| *p < 0) {
        report.bad("borrowingLimitPercent", percent, "if specified, must be a non-negative integer");
    }
    let response = &limited["limitResponse"];
    report.at("limitResponse", |r| match text(response, "type") {
        "Reject" => r.forbid(response, &["queuing"], "must be nil if limited.limitResponse.type is not Limited"),
        "Queue" => match response.get("queuing").filter(|q| q.is_object()) {
            None => r.miss("queuing", "must not be empty if limited.limitResponse.type is Limited"),
            Some(queuing) => r.at("queuing", |r| queues(r, queuing)),
        },
        other => r.at("type", |r| r.not_supported(other, &["Queue", "Reject"])),
    });
}

fn queues(report: &mut Report, queuing: &Value) {
    let number = |name: &str| queuing[name].as_i64().unwrap_or(0);
    if number("queueLengthLimit") <= 0 {
        report.bad("queueLengthLimit", number("queueLengthLimit"), "must be positive");
    }
    let queues = number("queues");
    if queues <= 0 {
        report.bad("queues", queues, "must be positive");
    } else if queues > 10_000_000 {
        report.bad("queues", queues, "must not be greater than 10000000");
    }
    let hand = number("handSize");
    if hand <= 0 {
        report.bad("handSize", hand, "must be positive");
    } else if hand > queues {
        report.bad("handSize", hand, format_args!("should not be greater than queues ({queues})"));
    } else {
        // A hand is dealt from one hash: every card takes the bits of what is left of the deck.
        #[expect(clippy::cast_precision_loss, reason = "a deck has at most ten million cards")]
        let bits: f64 = (0..hand).map(|card| ((queues - card) as f64).log2()).sum();
        if bits.ceil() > 60.0 {
            let why =
                format!("required entropy bits of deckSize {queues} and handSize {hand} should not be greater than 60");
            report.bad("handSize", hand, why);
        }
    }
}
