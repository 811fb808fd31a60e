//! Flow schemas and priority levels.

use serde_json::{Name, Value};

use super::{has, list, text, texts};
use crate::field_error::{Report, same};
use crate::flow::bootstrap::mandatory;
use crate::go_value::{Field, Shape, shown};
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
    if mandatory(false, name).is_some_and(|fixed| !same_but_empty(&fixed["spec"], spec)) {
        report.bad("spec", shown(spec, &SCHEMA), format_args!("spec of '{name}' must equal the fixed value"));
    }
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
            r.bad("type", kind, "must be 'Exempt' if and only if name is 'exempt'");
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
    if let Some(fixed) = mandatory(true, name) {
        let (mut wanted, mut is) = (fixed["spec"].clone(), spec.clone());
        let mut but = "";
        // How much of the rest this level takes or lends is the administrator's.
        if name == "exempt" {
            but = " except the 'spec.exempt' field";
            for spec in [&mut wanted, &mut is] {
                spec.as_object_mut().map(|spec| spec.remove("exempt"));
            }
        }
        if !same_but_empty(&wanted, &is) {
            report.bad("spec", shown(spec, &LEVEL), format_args!("spec of '{name}'{but} must equal the fixed value"));
        }
    }
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

/// Conditions, of which there is one of each type.
pub fn status(report: &mut Report, status: &Value) {
    let mut seen: Vec<&str> = Vec::new();
    report.each(status, "conditions", |r, condition| {
        let kind = text(condition, "type");
        if seen.contains(&kind) {
            r.at("type", |r| r.duplicate(kind));
        }
        seen.push(kind);
        if kind.is_empty() {
            r.miss("type", "must not be empty");
        }
    });
}

/// Equal but for members that say nothing.
fn same_but_empty(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let fits = |(key, value): (&Name, &Value)| same_but_empty(value, b.get(key).unwrap_or(&Value::Null));
            let nothing = |(key, value): (&Name, &Value)| a.contains_key(key) || says_nothing(value);
            a.iter().all(fits) && b.iter().all(nothing)
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_but_empty(a, b)),
        _ => a == b || says_nothing(a) && says_nothing(b),
    }
}

fn says_nothing(value: &Value) -> bool {
    same(value, &Value::Null) || *value == false || value == ""
}

const TEXTS: Shape = Shape::List(&Shape::Text);
const NUMBER: Shape = Shape::Pointer(&Shape::Number);
const NAMED: Shape = Shape::Pointer(&Shape::Struct(&[Field("Name", "name", Shape::Text)]));
const ACCOUNT: Shape =
    Shape::Struct(&[Field("Namespace", "namespace", Shape::Text), Field("Name", "name", Shape::Text)]);
const SUBJECT: Shape = Shape::Struct(&[
    Field("Kind", "kind", Shape::Text),
    Field("User", "user", NAMED),
    Field("Group", "group", NAMED),
    Field("ServiceAccount", "serviceAccount", Shape::Pointer(&ACCOUNT)),
]);
const RESOURCE_RULE: Shape = Shape::Struct(&[
    Field("Verbs", "verbs", TEXTS),
    Field("APIGroups", "apiGroups", TEXTS),
    Field("Resources", "resources", TEXTS),
    Field("ClusterScope", "clusterScope", Shape::Flag),
    Field("Namespaces", "namespaces", TEXTS),
]);
const OTHER_RULE: Shape =
    Shape::Struct(&[Field("Verbs", "verbs", TEXTS), Field("NonResourceURLs", "nonResourceURLs", TEXTS)]);
const RULE: Shape = Shape::Struct(&[
    Field("Subjects", "subjects", Shape::List(&SUBJECT)),
    Field("ResourceRules", "resourceRules", Shape::List(&RESOURCE_RULE)),
    Field("NonResourceRules", "nonResourceRules", Shape::List(&OTHER_RULE)),
]);
/// The spec of a flow schema.
const SCHEMA: Shape = Shape::Struct(&[
    Field(
        "PriorityLevelConfiguration",
        "priorityLevelConfiguration",
        Shape::Struct(&[Field("Name", "name", Shape::Text)]),
    ),
    Field("MatchingPrecedence", "matchingPrecedence", Shape::Number),
    Field(
        "DistinguisherMethod",
        "distinguisherMethod",
        Shape::Pointer(&Shape::Struct(&[Field("Type", "type", Shape::Text)])),
    ),
    Field("Rules", "rules", Shape::List(&RULE)),
]);
const QUEUING: Shape = Shape::Struct(&[
    Field("Queues", "queues", Shape::Number),
    Field("HandSize", "handSize", Shape::Number),
    Field("QueueLengthLimit", "queueLengthLimit", Shape::Number),
]);
const LIMITED: Shape = Shape::Struct(&[
    Field("NominalConcurrencyShares", "nominalConcurrencyShares", Shape::Number),
    Field(
        "LimitResponse",
        "limitResponse",
        Shape::Struct(&[Field("Type", "type", Shape::Text), Field("Queuing", "queuing", Shape::Pointer(&QUEUING))]),
    ),
    Field("LendablePercent", "lendablePercent", NUMBER),
    Field("BorrowingLimitPercent", "borrowingLimitPercent", NUMBER),
]);
const EXEMPT: Shape = Shape::Struct(&[
    Field("NominalConcurrencyShares", "nominalConcurrencyShares", NUMBER),
    Field("LendablePercent", "lendablePercent", NUMBER),
]);
/// The spec of a priority level.
const LEVEL: Shape = Shape::Struct(&[
    Field("Type", "type", Shape::Text),
    Field("Limited", "limited", Shape::Pointer(&LIMITED)),
    Field("Exempt", "exempt", Shape::Pointer(&EXEMPT)),
]);

#[cfg(test)]
mod tests {
    use super::*;

    fn told(check: fn(&mut Report, &Value), object: &Value) -> Vec<String> {
        Report::told(|r| check(r, object))
    }

    #[test]
    fn mandatory_objects_are_as_they_are() {
        for name in ["exempt", "catch-all"] {
            let mut level = mandatory(true, name).unwrap();
            let mut flow = mandatory(false, name).unwrap();
            assert_eq!(told(priority_level, &level), [""; 0]);
            assert_eq!(told(schema, &flow), [""; 0]);
            flow["spec"]["distinguisherMethod"] = serde_json::json!({"type": "ByNamespace"});
            flow["spec"]["rules"] = Value::Null;
            let precedence = if name == "exempt" { 1 } else { 10000 };
            let shown = format!(
                "{{\"PriorityLevelConfiguration\":{{\"Name\":\"{name}\"}},\"MatchingPrecedence\":{precedence},\
                 \"DistinguisherMethod\":{{\"Type\":\"ByNamespace\"}},\"Rules\":null}}"
            );
            let expected = format!("spec: Invalid value: {shown}: spec of '{name}' must equal the fixed value");
            assert_eq!(told(schema, &flow), [expected]);
            if name == "exempt" {
                level["spec"]["exempt"]["nominalConcurrencyShares"] = 7.into();
                assert_eq!(told(priority_level, &level), [""; 0]);
                level["spec"]["type"] = "Limited".into();
                let last = told(priority_level, &level).pop().unwrap();
                assert!(last.ends_with("spec of 'exempt' except the 'spec.exempt' field must equal the fixed value"));
            } else {
                level["spec"]["limited"]["nominalConcurrencyShares"] = 6.into();
                let shown = r#"{"Type":"Limited","Limited":{"NominalConcurrencyShares":6,"LimitResponse":{"Type":"Reject","Queuing":null},"LendablePercent":0,"BorrowingLimitPercent":null},"Exempt":null}"#;
                let expected = format!("spec: Invalid value: {shown}: spec of 'catch-all' must equal the fixed value");
                assert_eq!(told(priority_level, &level), [expected]);
            }
        }
    }
}
