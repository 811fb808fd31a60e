//! Webhook configurations and admission policies.

use std::collections::HashSet;

use serde_json::Value;

use super::{has, list, selector, text, texts};
use crate::admission::policy as policies;
use crate::cel;
use crate::field_error::Report;
use crate::go_url;
use crate::names;

const FAILURES: [&str; 2] = ["Fail", "Ignore"];
const MATCHES: [&str; 2] = ["Equivalent", "Exact"];

pub fn check(report: &mut Report, plural: &str, object: &Value) {
    match plural {
        "validatingwebhookconfigurations" | "mutatingwebhookconfigurations" => {
            let mut seen = HashSet::new();
            report.each(object, "webhooks", |r, hook| {
                webhook(r, hook);
                review_versions(r, hook);
                let name = text(hook, "name");
                if !name.is_empty() && !seen.insert(name) {
                    r.at("name", |r| r.duplicate(name));
                }
            });
        }
        "validatingadmissionpolicies" | "mutatingadmissionpolicies" => report.at("spec", |r| {
            policy(r, &object["spec"], plural == "mutatingadmissionpolicies", text(&object["metadata"], "name"));
        }),
        "validatingadmissionpolicybindings" | "mutatingadmissionpolicybindings" => {
            report.at("spec", |r| binding(r, &object["spec"], plural.starts_with("validating")));
        }
        _ => {}
    }
}

fn webhook(report: &mut Report, hook: &Value) {
    let name = text(hook, "name");
    report.at("name", |r| match name {
        "" => r.required(""),
        name => r.complaints(name, names::fully_qualified(name)),
    });
    report.each(hook, "rules", rule);
    report.maybe_choice(hook, "failurePolicy", &FAILURES);
    report.maybe_choice(hook, "matchPolicy", &MATCHES);
    if has(hook, "sideEffects") {
        report.maybe_choice(hook, "sideEffects", &["None", "NoneOnDryRun"]);
    } else {
        report.miss("sideEffects", "must specify one of None, NoneOnDryRun");
    }
    if let Some(seconds) = hook["timeoutSeconds"].as_i64().filter(|s| !(1..=30).contains(s)) {
        report.bad("timeoutSeconds", seconds, "the timeout value must be between 1 and 30 seconds");
    }
    for name in ["namespaceSelector", "objectSelector"] {
        report.with(hook, name, selector::check);
    }
    report.maybe_choice(hook, "reinvocationPolicy", &["IfNeeded", "Never"]);
    let client = &hook["clientConfig"];
    report.at("clientConfig", |r| match (client["url"].as_str(), client["service"].is_object()) {
        (Some(_), true) | (None, false) => r.required("exactly one of url or service is required"),
        (Some(url), false) => r.at("url", |r| webhook_url(r, url)),
        (None, true) => r.at("service", |r| webhook_service(r, &client["service"])),
    });
    match_conditions(report, hook, false);
}

fn webhook_url(report: &mut Report, url: &str) {
    match go_url::webhook_faults(url) {
        Ok(faults) => faults.iter().for_each(|(part, why)| report.invalid(&**part, why)),
        Err(why) => report.required(&why),
    }
}

pub fn webhook_service(report: &mut Report, service: &Value) {
    let why = |what: &str| format!("service {what} is required");
    for name in ["name", "namespace"] {
        if text(service, name).is_empty() {
            report.miss(name, &why(name));
        }
    }
    if let Some(port) = service.get("port").and_then(Value::as_i64).filter(|p| !(1..=65535).contains(p)) {
        report.bad("port", port, "port is not valid: must be between 1 and 65535, inclusive");
    }
    let Some(path) = service.get("path").and_then(Value::as_str) else { return };
    report.at("path", |r| {
        if path.is_empty() || path == "/" || path == "//" {
            return if path == "//" {
                r.invalid(path, "segment[0] may not be empty")
            };
        }
        if !path.starts_with('/') {
            r.invalid(path, "must start with a '/'");
        }
        let inner = path.strip_prefix('/').unwrap_or(path);
        let inner = inner.strip_suffix('/').unwrap_or(inner);
        for (index, segment) in inner.split('/').enumerate() {
            if segment.is_empty() {
                r.invalid(path, format_args!("segment[{index}] may not be empty"));
                continue;
            }
            for why in names::dns_subdomain(segment) {
                r.invalid(path, format_args!("segment[{index}]: {why}"));
            }
        }
    });
}

fn review_versions(report: &mut Report, hook: &Value) {
    let versions = texts(hook, "admissionReviewVersions");
    if versions.is_empty() {
        return report.miss("admissionReviewVersions", "must specify one of v1, v1beta1");
    }
    let mut seen = HashSet::new();
    report.items(hook, "admissionReviewVersions", |r, index, _| {
        let version = versions[index];
        if !seen.insert(version) {
            r.invalid(version, "duplicate version");
        } else {
            r.complaints(version, names::dns_1035_label(version));
        }
    });
    if !versions.iter().any(|v| ["v1", "v1beta1"].contains(v)) {
        let why = "must include at least one of v1, v1beta1";
        report.bad("admissionReviewVersions", &hook["admissionReviewVersions"], why);
    }
}

/// Which requests are meant: operations, groups, versions and resources.
fn rule(report: &mut Report, rule: &Value) {
    let alone = |report: &mut Report, name: &str, what: &str| {
        let items = texts(rule, name);
        if items.is_empty() {
            report.miss(name, "");
        }
        if items.len() > 1 && items.contains(&"*") {
            let why = format!("if '*' is present, must not specify other {what}");
            report.bad(name, &rule[name], why);
        }
    };
    alone(report, "operations", "operations");
    report.each(rule, "operations", |r, operation| {
        const ALL: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
        let operation = operation.as_str().unwrap_or_default();
        if !ALL.contains(&operation) {
            r.not_supported(operation, &ALL);
        }
    });
    alone(report, "apiGroups", "API groups");
    alone(report, "apiVersions", "API versions");
    report.each(rule, "apiVersions", |r, version| {
        if version == "" {
            r.required("");
        }
    });
    resources(report, rule);
    report.maybe_choice(rule, "scope", &["*", "Cluster", "Namespaced"]);
}

fn resources(report: &mut Report, rule: &Value) {
    let all = texts(rule, "resources");
    if all.is_empty() {
        report.miss("resources", "");
    }
    let (mut with_parts, mut with_all) = (HashSet::new(), HashSet::new());
    let mut plain = false;
    report.items(rule, "resources", |r, index, _| {
        let said = all[index];
        if said.is_empty() {
            return r.required("");
        }
        let Some((resource, part)) = said.split_once('/') else {
            plain = said != "*";
            return;
        };
        if with_parts.contains(resource) {
            r.invalid(said, format_args!("if '{resource}/*' is present, must not specify {said}"));
        }
        if with_all.contains(part) {
            r.invalid(said, format_args!("if '*/{part}' is present, must not specify {said}"));
        }
        if part == "*" {
            with_parts.insert(resource);
        }
        if resource == "*" {
            with_all.insert(part);
        }
    });
    if all.len() > 1 && all.contains(&"*/*") {
        let why = "if '*/*' is present, must not specify other resources";
        report.bad("resources", &rule["resources"], why);
    }
    if all.contains(&"*") && plain {
        let why = "if '*' is present, must not specify other resources without subresources";
        report.bad("resources", &rule["resources"], why);
    }
}

/// Conditions; `params` for a policy that has parameters.
fn match_conditions(report: &mut Report, object: &Value, params: bool) {
    let conditions = list(object, "matchConditions");
    if conditions.len() > 64 {
        report.at("matchConditions", |r| r.too_many(conditions.len(), 64));
    }
    let mut seen = HashSet::new();
    report.each(object, "matchConditions", |r, condition| {
        match text(condition, "expression").trim() {
            "" => r.miss("expression", ""),
            said => complain(r, "expression", said, policies::check_conditions(said, params)),
        }
        r.need_named(condition, "name", names::qualified_name);
        let name = text(condition, "name");
        if !name.is_empty() && !seen.insert(name) {
            r.at("name", |r| r.duplicate(name));
        }
    });
}

fn match_resources(report: &mut Report, object: &Value) {
    report.said_choice(object, "matchPolicy", &MATCHES);
    for name in ["namespaceSelector", "objectSelector"] {
        match object.get(name).filter(|s| s.is_object()) {
            None => report.miss(name, ""),
            Some(selected) => report.at(name, |r| selector::check(r, selected)),
        }
    }
    for name in ["resourceRules", "excludeResourceRules"] {
        report.each(object, name, |r, named| {
            let (all, mut seen) = (texts(named, "resourceNames"), HashSet::new());
            r.items(named, "resourceNames", |r, index, _| {
                r.complaints(all[index], names::path_segment(all[index]));
                if !seen.insert(all[index]) {
                    r.duplicate(all[index]);
                }
            });
            rule(r, named);
        });
    }
}

fn param_kind(report: &mut Report, kind: &Value) {
    let said = text(kind, "apiVersion");
    if report.need(kind, "apiVersion") {
        let (group, version) = said.split_once('/').unwrap_or(("", said));
        report.at("apiVersion", |r| {
            if version.contains('/') {
                return r.invalid(said, format_args!("unexpected GroupVersion string: {said}"));
            }
            let complaints = names::dns_subdomain(group);
            if !group.is_empty() && !complaints.is_empty() {
                r.invalid(group, complaints.join(","));
            }
            let complaints = names::dns_1035_label(version);
            if version.is_empty() {
                r.invalid(said, "version must be specified");
            } else if !complaints.is_empty() {
                r.invalid(version, complaints.join(","));
            }
        });
    }
    if report.need(kind, "kind") {
        let said = text(kind, "kind");
        let complaints = names::dns_1035_label(&said.to_lowercase());
        if !complaints.is_empty() {
            let why = format!("may have mixed case, but should otherwise match: {}", complaints.join(","));
            report.bad("kind", said, why);
        }
    }
}

/// A deletion has nothing to change; upstream names the rules without saying which.
fn no_deletions(report: &mut Report, matched: &Value) {
    const ALL: [&str; 4] = ["*", "CONNECT", "CREATE", "UPDATE"];
    let rules = list(matched, "resourceRules").iter();
    let wrong = rules.flat_map(|rule| texts(rule, "operations")).filter(|operation| !ALL.contains(operation));
    report.down(&["resourceRules", "operations"], |r| wrong.for_each(|operation| r.not_supported(operation, &ALL)));
}

/// Reports what is wrong with an expression.
fn complain(report: &mut Report, field: &str, said: &str, complaint: Option<String>) {
    if let Some(why) = complaint {
        report.bad(field, said, why);
    }
}

fn policy(report: &mut Report, spec: &Value, mutating: bool, name: &str) {
    report.said_choice(spec, "failurePolicy", &FAILURES);
    report.with(spec, "paramKind", param_kind);
    match spec.get("matchConstraints").filter(|c| c.is_object()) {
        None => report.miss("matchConstraints", ""),
        Some(constraints) => report.at("matchConstraints", |r| {
            match_resources(r, constraints);
            if list(constraints, "resourceRules").is_empty() {
                r.miss("resourceRules", "");
            }
            if mutating {
                no_deletions(r, constraints);
            }
        }),
    }
    match_conditions(report, spec, spec["paramKind"].is_object());
    let mut checked = policies::check_policy(spec);
    let mut seen = HashSet::new();
    report.each(spec, "variables", |r, variable| {
        let name = text(variable, "name");
        if name.trim().is_empty() {
            r.miss("name", "name is not specified");
        } else if !cel::is_identifier(name) {
            r.bad("name", name, "must be a valid CEL identifier");
        }
        match text(variable, "expression") {
            said if said.trim().is_empty() => r.miss("expression", "expression is not specified"),
            said => complain(r, "expression", said, checked.variable(name, said)),
        }
        if !name.is_empty() && !seen.insert(name) {
            r.at("name", |r| r.duplicate(name));
        }
    });
    if mutating {
        return mutations(report, spec, &checked);
    }
    if list(spec, "validations").is_empty() && list(spec, "auditAnnotations").is_empty() {
        let why = "validations or auditAnnotations must contain at least one item";
        report.miss("validations", why);
        return report.miss("auditAnnotations", why);
    }
    report.each(spec, "validations", |r, validation| {
        match text(validation, "expression") {
            said if said.trim().is_empty() => r.miss("expression", "expression is not specified"),
            said => complain(r, "expression", said, checked.validation(said)),
        }
        match text(validation, "messageExpression") {
            "" => {}
            said if said.trim().is_empty() => r.bad("messageExpression", said, "must be non-empty if specified"),
            said => complain(r, "messageExpression", said, checked.message(said)),
        }
        let message = text(validation, "message");
        if !message.is_empty() && message.trim().is_empty() {
            r.bad("message", message, "message must be non-empty if specified");
        } else if message.trim().contains(['\n', '\r']) {
            r.bad("message", message, "message must not contain line breaks");
        }
        r.maybe_choice(validation, "reason", &["Forbidden", "Invalid", "RequestEntityTooLarge"]);
    });
    let annotations = list(spec, "auditAnnotations");
    if annotations.len() > 20 {
        report.bad("auditAnnotations", &spec["auditAnnotations"], "must not have more than 20 auditAnnotations");
    }
    let mut seen = HashSet::new();
    report.each(spec, "auditAnnotations", |r, annotation| {
        let key = text(annotation, "key");
        if name.is_empty() {
            r.bad("key", key, "requires metadata.name be non-empty");
        } else {
            let whole = format!("{name}/{key}");
            r.at("key", |r| r.complaints(&whole, names::qualified_name(&whole)));
        }
        let expression = text(annotation, "valueExpression").trim();
        if expression.is_empty() {
            r.miss("valueExpression", "valueExpression is not specified");
        } else if expression.len() > 5 << 10 {
            r.miss("valueExpression", "must not exceed 5120 bytes in length");
        } else {
            let said = text(annotation, "valueExpression");
            complain(r, "valueExpression", said, checked.annotation(expression));
        }
        if !seen.insert(key) {
            r.at("key", |r| r.duplicate(key));
        }
    });
}

fn mutations(report: &mut Report, spec: &Value, checked: &policies::Checked) {
    if list(spec, "mutations").is_empty() {
        report.miss("mutations", "mutations must contain at least one item");
    }
    report.each(spec, "mutations", |r, mutation| {
        let kind = text(mutation, "patchType");
        let (own, other) = match kind {
            "" => return r.miss("patchType", ""),
            "JSONPatch" => ("jsonPatch", "applyConfiguration"),
            "ApplyConfiguration" => ("applyConfiguration", "jsonPatch"),
            _ => return r.at("patchType", |r| r.not_supported(kind, &["ApplyConfiguration", "JSONPatch"])),
        };
        if mutation[own].is_null() {
            r.miss(own, &format!("must be specified when patchType is {kind}"));
        } else {
            r.at(own, |r| match text(&mutation[own], "expression").trim() {
                "" => r.miss("expression", ""),
                said => complain(r, "expression", said, checked.mutation(said, kind == "JSONPatch")),
            });
        }
        if !mutation[other].is_null() {
            // What stands for the value is a word of upstream's.
            let (value, why) = (format!("{{{other}}}"), format!("must not be specified when patchType is {kind}"));
            r.bad(other, value.as_str(), why);
        }
    });
    report.choice(spec, "reinvocationPolicy", &["IfNeeded", "Never"]);
}

fn binding(report: &mut Report, spec: &Value, validating: bool) {
    report.need_named(spec, "policyName", names::dns_subdomain);
    report.with(spec, "paramRef", |r, reference| {
        let (name, selected) = (text(reference, "name"), has(reference, "selector"));
        if !name.is_empty() {
            r.named(reference, "name", names::path_segment);
            if selected {
                r.refuse("name", "name and selector are mutually exclusive");
            }
        }
        r.with(reference, "selector", |r, selector_said| {
            selector::check(r, selector_said);
            if !name.is_empty() {
                r.forbidden("name and selector are mutually exclusive");
            }
        });
        if name.is_empty() && !selected {
            r.required("one of name or selector must be specified");
        }
        if has(reference, "parameterNotFoundAction") {
            r.maybe_choice(reference, "parameterNotFoundAction", &["Deny", "Allow"]);
        } else {
            r.miss("parameterNotFoundAction", "");
        }
    });
    if spec["matchResources"].is_object() {
        report.at("matchResources", |r| {
            match_resources(r, &spec["matchResources"]);
            if !validating {
                no_deletions(r, &spec["matchResources"]);
            }
        });
    }
    if !validating {
        return;
    }
    let actions = texts(spec, "validationActions");
    let mut seen = HashSet::new();
    report.items(spec, "validationActions", |r, index, _| {
        let action = actions[index];
        if !["Audit", "Deny", "Warn"].contains(&action) {
            r.not_supported(action, &["Audit", "Deny", "Warn"]);
        }
        if !seen.insert(action) {
            r.duplicate(action);
        }
    });
    if actions.contains(&"Deny") && actions.contains(&"Warn") {
        let why = "must not contain both Deny and Warn (repeating the same validation failure information in the API \
                   response and headers serves no purpose)";
        report.bad("validationActions", &spec["validationActions"], why);
    }
    if actions.is_empty() {
        report.miss("validationActions", "at least one validation action is required");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_message_has_one_line_and_a_note_the_name_of_its_policy() {
        let spec = json!({"validations": [{"expression": "true", "message": "a\rb"}],
            "auditAnnotations": [{"key": "k", "valueExpression": "'v'"}]});
        let told = |name: &str| {
            let mut report = Report::default();
            check(&mut report, "validatingadmissionpolicies", &json!({"metadata": {"name": name}, "spec": spec}));
            let found = report.errors.into_iter().map(|e| format!("{}: {}", e.field, e.message));
            found.filter(|told| told.contains("validations") || told.contains("auditAnn")).collect::<Vec<_>>()
        };
        let lines = "spec.validations[0].message: Invalid value: \"a\\rb\": message must not contain line breaks";
        assert_eq!(told("p"), [lines]);
        let key = "spec.auditAnnotations[0].key: Invalid value: \"k\": requires metadata.name be non-empty";
        assert_eq!(told(""), [lines, key]);
    }

    /// Decoding leaves none, but what is stored may be older than that.
    #[test]
    fn nothing_where_a_text_belongs_is_one_without_letters() {
        let rule = json!({"apiGroups": [null], "apiVersions": [null], "operations": [null], "resources": ["a", null]});
        let mut named = rule.clone();
        named["resourceNames"] = json!([null, null]);
        let spec =
            json!({"policyName": "p", "validationActions": [null], "matchResources": {"resourceRules": [named]}});
        let hook = json!({"name": "a.b.c", "rules": [rule], "admissionReviewVersions": ["v1", null]});
        for (plural, object) in [
            ("validatingadmissionpolicybindings", json!({"metadata": {"name": "b"}, "spec": spec})),
            ("validatingwebhookconfigurations", json!({"metadata": {"name": "b"}, "webhooks": [hook]})),
        ] {
            let mut report = Report::default();
            check(&mut report, plural, &object);
            let found: Vec<String> = report.errors.into_iter().map(|e| format!("{}: {}", e.field, e.message)).collect();
            assert!(found.iter().any(|told| told.contains("ules[0].resources[1]: Required value")), "{found:?}");
        }
    }

    #[test]
    fn bindings_are_told_of_in_upstreams_words() {
        let object = json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny", "Deny"],
            "paramRef": {"name": "n", "parameterNotFoundAction": "Maybe"},
            "matchResources": {"matchPolicy": "Exact", "namespaceSelector": {}, "objectSelector": {},
                "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]}}});
        let mut report = Report::default();
        check(&mut report, "validatingadmissionpolicybindings", &object);
        let found: Vec<String> = report.errors.into_iter().map(|e| format!("{}: {}", e.field, e.message)).collect();
        assert_eq!(
            found,
            [
                "spec.paramRef.parameterNotFoundAction: Unsupported value: \"Maybe\": supported values: \"Deny\", \"Allow\"",
                "spec.matchResources.resourceRules[0].operations: Required value",
                "spec.validationActions[1]: Duplicate value: \"Deny\"",
            ]
        );
    }

    #[test]
    fn a_mutation_is_what_its_type_says() {
        let told = |spec: serde_json::Value| {
            let mut report = Report::default();
            check(&mut report, "mutatingadmissionpolicies", &json!({"metadata": {"name": "p"}, "spec": spec}));
            let found = report.errors.into_iter().map(|e| format!("{}: {}", e.field, e.message));
            found.filter(|told| told.contains("mutations") || told.contains("perations")).collect::<Vec<_>>()
        };
        let mutations = json!([
            {},
            {"patchType": "JSONPatch", "applyConfiguration": {"expression": "Object{}"}},
            {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": " "}, "jsonPatch": {}},
        ]);
        assert_eq!(
            told(json!({"mutations": mutations})),
            [
                "spec.mutations[0].patchType: Required value",
                "spec.mutations[1].jsonPatch: Required value: must be specified when patchType is JSONPatch",
                "spec.mutations[1].applyConfiguration: Invalid value: \"{applyConfiguration}\": must not be specified \
                 when patchType is JSONPatch",
                "spec.mutations[2].applyConfiguration.expression: Required value",
                "spec.mutations[2].jsonPatch: Invalid value: \"{jsonPatch}\": must not be specified when patchType is \
                 ApplyConfiguration",
            ]
        );
        let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE", "DELETE"]});
        let found = told(json!({"mutations": [], "matchConstraints": {"resourceRules": [rule]}}));
        let deletion = "spec.matchConstraints.resourceRules.operations: Unsupported value: \"DELETE\": supported values: \
                        \"*\", \"CONNECT\", \"CREATE\", \"UPDATE\"";
        assert_eq!(found, [deletion, "spec.mutations: Required value: mutations must contain at least one item"]);
    }

    #[test]
    fn names_of_variables_are_unique() {
        let variables = json!([
            {"name": "a", "expression": "1"},
            {"name": "a", "expression": "variables.a + 1"},
            {"name": "b", "expression": "variables.a"},
        ]);
        let object = json!({"metadata": {"name": "p"}, "spec": {"variables": variables}});
        for plural in ["validatingadmissionpolicies", "mutatingadmissionpolicies"] {
            let mut report = Report::default();
            check(&mut report, plural, &object);
            let found = report.errors.into_iter().map(|e| format!("{}: {}", e.field, e.message));
            let found: Vec<String> = found.filter(|told| told.contains("variables")).collect();
            assert_eq!(found, ["spec.variables[1].name: Duplicate value: \"a\""]);
        }
    }
}
