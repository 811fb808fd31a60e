//! Defaults of a schema fit it themselves.

use serde_json::Value;

use super::found::Found;
use crate::crd::schema::Schema;
use crate::crd::{check, prune, rules};

/// Checks every default. The schema is structural.
pub fn check(schema: &Value, path: &str, found: &mut Found) {
    walk(schema, path, false, true, found);
}

fn walk(schema: &Value, path: &str, in_meta: bool, root: bool, found: &mut Found) {
    let embedded = root || schema["x-kubernetes-embedded-resource"] == true;
    let in_meta = in_meta && !embedded;
    let default = &schema["default"];
    if !default.is_null() {
        one(schema, default, &format!("{path}.default"), in_meta, found);
    }
    // Below `additionalProperties` there are no defaults to follow.
    if schema["items"].is_object() {
        walk(&schema["items"], &format!("{path}.items"), in_meta, false, found);
    }
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        let in_meta = in_meta || embedded && matches!(&**name, "metadata" | "apiVersion" | "kind");
        walk(member, &format!("{path}.properties[{name}]"), in_meta, false, found);
    }
}

fn one(schema: &Value, default: &Value, path: &str, in_meta: bool, found: &mut Found) {
    let parsed = Schema::parse(schema);
    let shown = || default.as_str().map_or_else(|| default.to_string(), crate::status::quote);
    if !in_meta {
        let mut pruned = default.clone();
        prune::prune_value(&mut pruned, &parsed);
        if pruned != *default {
            found.invalid(path, &shown(), "must not have unknown fields");
        }
    }
    if let Err(why) = prune::embedded(&mut default.clone(), &parsed, "", &mut Vec::new()) {
        found.invalid(path, &shown(), &format!("must result in valid metadata: {why}"));
        return;
    }
    let problems = check::check(&parsed, "", default, None);
    if problems.is_empty() {
        // Rules see the default as it stands, without the defaults inside of it.
        for mut cause in rules::check_at(&parsed, parsed.embedded, default, None) {
            cause.field = join(path, &cause.field);
            found.causes.push(cause);
        }
    }
    for problem in problems {
        let field = problem.field.as_deref().unwrap_or_default();
        found.causes.push(crate::status::Cause {
            reason: problem.reason.into(),
            message: problem.message,
            field: join(path, field),
        });
    }
}

fn join(path: &str, field: &str) -> String {
    match field {
        "" | "<nil>" => path.to_owned(),
        field if field.starts_with('[') => format!("{path}{field}"),
        field => format!("{path}.{field}"),
    }
}
