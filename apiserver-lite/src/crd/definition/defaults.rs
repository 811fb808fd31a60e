//! Defaults of a schema fit it themselves.
//!
//! Follows `apiserver/schema/defaulting/validation.go`. A default inside of an object's own metadata is judged with an
//! object around it; others stand for themselves, without the defaults inside of them.

use std::cell::OnceCell;

use serde_json::{Value, json};

use super::found::Found;
use crate::cel::Budget;
use crate::crd::schema::Schema;
use crate::crd::{check, object, prune, rules};
use crate::status::{Cause, aggregate, quote};

/// Checks every default. The schema is structural.
pub fn check(schema: &Value, path: &str, found: &mut Found) {
    // Whole objects have metadata like those inside of others.
    let mut whole = schema.clone();
    whole["x-kubernetes-embedded-resource"] = true.into();
    let mut walk = Walk { found, budget: Budget::new(rules::BUDGET), steps: Vec::new() };
    walk.node(&whole, &Root::new(&whole), path, false);
}

/// The schema of an object with metadata of its own, read when a default in the metadata first asks for it.
struct Root<'s> {
    said: &'s Value,
    read: OnceCell<Schema>,
}

impl<'s> Root<'s> {
    fn new(said: &'s Value) -> Self {
        Root { said, read: OnceCell::new() }
    }

    fn schema(&self) -> &Schema {
        self.read.get_or_init(|| Schema::parse(self.said))
    }
}

struct Walk<'a> {
    found: &'a mut Found,
    /// Left for the rules about all defaults.
    budget: Budget,
    /// From the nearest object with metadata of its own to the node: names of members, None for an item.
    steps: Vec<Option<String>>,
}

impl Walk<'_> {
    /// `root` is the nearest object with metadata of its own, `in_meta` whether the node is a part of these.
    fn node(&mut self, schema: &Value, root: &Root<'_>, path: &str, in_meta: bool) {
        let embedded = schema["x-kubernetes-embedded-resource"] == true;
        if embedded && !self.steps.is_empty() {
            let outer = std::mem::take(&mut self.steps);
            self.node(schema, &Root::new(schema), path, false);
            self.steps = outer;
            return;
        }
        let in_meta = in_meta && !embedded;
        if !schema["default"].is_null() {
            self.one(schema, Some(root).filter(|_| in_meta), &format!("{path}.default"));
        }
        if self.budget.is_exhausted() {
            return;
        }
        // Below `additionalProperties` there are no defaults to follow.
        if schema["items"].is_object() {
            self.below(None, &schema["items"], root, &format!("{path}.items"), in_meta);
        }
        for (name, member) in schema["properties"].as_object().into_iter().flatten() {
            let in_meta = in_meta || embedded && matches!(&**name, "metadata" | "apiVersion" | "kind");
            self.below(Some(name), member, root, &format!("{path}.properties[{name}]"), in_meta);
        }
    }

    fn below(&mut self, step: Option<&str>, schema: &Value, root: &Root<'_>, path: &str, in_meta: bool) {
        self.steps.push(step.map(str::to_owned));
        self.node(schema, root, path, in_meta);
        self.steps.pop();
    }

    /// Checks the default of a node. `around` is the schema of the object whose metadata it is a part of.
    fn one(&mut self, schema: &Value, around: Option<&Root<'_>>, path: &str) {
        let default = &schema["default"];
        let parsed = Schema::parse(schema);
        let shown = || default.as_str().map_or_else(|| default.to_string(), quote);
        if let Some(root) = around {
            if let Some(why) = self.in_metadata(default, root.schema()) {
                let why = format!("must result in valid metadata: {why}");
                return self.found.invalid(path, &shown(), &why);
            }
        } else {
            let mut pruned = default.clone();
            prune::prune_value(&mut pruned, &parsed);
            if pruned != *default {
                self.found.invalid(path, &shown(), "must not have unknown fields");
            }
            if let Err(why) = prune::embedded(&mut default.clone(), &parsed, path, &mut Vec::new()) {
                let (field, message) = why.split_once(": ").unwrap_or((path, &why));
                let cause = Cause { reason: "FieldValueInvalid".into(), message: message.into(), field: field.into() };
                return self.found.causes.push(cause);
            }
            let causes = object::embedded(&parsed, path, default);
            if !causes.is_empty() {
                return self.found.causes.extend(causes);
            }
        }
        let problems = check::check(&parsed, "", default, None);
        if problems.is_empty() {
            return self.rules(&parsed, default, path);
        }
        for problem in problems {
            let field = join(path, problem.field.as_deref().unwrap_or_default());
            self.found.causes.push(Cause { reason: problem.reason.into(), message: problem.message, field });
        }
    }

    /// A default has to hold both where it stays and where it comes anew.
    fn rules(&mut self, schema: &Schema, default: &Value, path: &str) {
        let before = self.budget;
        let mut causes = rules::check_at(schema, schema.embedded, default, Some(default), &mut self.budget);
        if causes.is_empty() {
            let mut anew = before;
            causes = rules::check_at(schema, schema.embedded, default, None, &mut anew);
            self.budget = Budget::least(self.budget, anew);
        }
        for mut cause in causes {
            cause.field = join(path, &cause.field);
            self.found.causes.push(cause);
        }
    }

    /// What is wrong with the metadata of an object that has nothing but a default in it.
    fn in_metadata(&self, default: &Value, root: &Schema) -> Option<String> {
        let mut object = self.steps.iter().rev().fold(default.clone(), |inner, step| match step {
            Some(name) => json!({name.as_str(): inner}),
            None => json!([inner]),
        });
        for (key, value) in [("apiVersion", "validation/v1"), ("kind", "Validation")] {
            if object[key].is_null() {
                object[key] = value.into();
            }
        }
        if let Err(why) = prune::embedded(&mut object, root, "", &mut Vec::new()) {
            return Some(why);
        }
        let causes = object::embedded(root, "", &object);
        let texts: Vec<String> = causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        (!texts.is_empty()).then(|| aggregate(&texts))
    }
}

fn join(path: &str, field: &str) -> String {
    match field {
        "" | "<nil>" => path.to_owned(),
        field if field.starts_with('[') => format!("{path}{field}"),
        field => format!("{path}.{field}"),
    }
}
