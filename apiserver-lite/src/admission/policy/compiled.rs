//! A policy with its bindings, ready to be asked.

use std::sync::Arc;

use serde_json::Value;

use super::super::matching::Constraints;
use super::expression::{Conditions, Environment, Expression};
use crate::cel::Type;
use crate::selectors::LabelSelector;

/// A policy and where it applies.
pub struct Policy {
    pub compiled: Arc<Compiled>,
    pub bindings: Vec<Binding>,
}

/// What does not depend on bindings.
pub struct Compiled {
    pub name: String,
    /// The version that this was made of.
    pub revision: u64,
    /// What cannot be evaluated counts against the request.
    pub fail: bool,
    pub constraints: Constraints,
    /// `apiVersion` and `kind` of the parameters.
    pub params: Option<(String, String)>,
    pub conditions: Conditions,
    pub variables: Vec<(String, Expression)>,
    pub validations: Vec<Validation>,
    pub annotations: Vec<(String, Expression)>,
    pub mutations: Vec<Mutation>,
    /// Wants to see what others made of the object after it.
    pub again: bool,
    /// Whether any expression looks at the object, at the one before it, at the request, or at the namespace.
    pub uses_object: bool,
    pub uses_old: bool,
    pub uses_request: bool,
    pub uses_namespace: bool,
}

/// An expression that makes a patch.
pub struct Mutation {
    /// A list of operations, and not a configuration to apply.
    pub json_patch: bool,
    pub expression: Expression,
}

pub struct Validation {
    pub expression: Expression,
    pub message_expression: Option<Expression>,
    pub message: String,
    /// Empty for the usual one.
    pub reason: String,
}

pub struct Binding {
    pub name: String,
    pub constraints: Option<Constraints>,
    pub reference: Option<Reference>,
    pub actions: Vec<String>,
}

/// `paramRef`.
pub struct Reference {
    pub name: String,
    pub namespace: String,
    pub selector: Option<LabelSelector>,
    /// Without parameters the request is refused.
    pub deny: bool,
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value[name].as_array().into_iter().flatten()
}

impl Compiled {
    pub fn new(policy: &Value, revision: u64) -> Self {
        let spec = &policy["spec"];
        let params = spec["paramKind"].is_object();
        let mut environment =
            Environment { params, authorizer: true, variables: Some(Vec::new()), ..Environment::default() };
        let mut variables = Vec::new();
        for variable in list(spec, "variables") {
            let name = text(variable, "name");
            variables.push((name.to_owned(), environment.variable(name, text(variable, "expression"))));
        }
        let conditions = Conditions::compile(&spec["matchConditions"], &environment);
        let for_messages = Environment { authorizer: false, ..environment.clone() };
        let validations: Vec<Validation> = list(spec, "validations")
            .map(|validation| Validation {
                expression: environment.compile(text(validation, "expression"), &[Type::Bool]),
                message_expression: Some(text(validation, "messageExpression"))
                    .filter(|said| !said.is_empty())
                    .map(|said| for_messages.compile(said, &[Type::Text])),
                message: text(validation, "message").trim().to_owned(),
                reason: text(validation, "reason").to_owned(),
            })
            .collect();
        let annotations: Vec<(String, Expression)> = list(spec, "auditAnnotations")
            .map(|annotation| {
                let value = environment.compile(text(annotation, "valueExpression"), &[Type::Text, Type::Null]);
                (text(annotation, "key").to_owned(), value)
            })
            .collect();
        let for_patches = Environment { patches: true, ..environment.clone() };
        let mutations: Vec<Mutation> = list(spec, "mutations")
            .map(|mutation| {
                let json_patch = mutation["patchType"] == "JSONPatch";
                let (own, wanted) = match json_patch {
                    true => ("jsonPatch", Type::list(Type::made("JSONPatch"))),
                    false => ("applyConfiguration", Type::made("Object")),
                };
                let expression = for_patches.compile(text(&mutation[own], "expression"), &[wanted]);
                Mutation { json_patch, expression }
            })
            .collect();
        let uses = |name: &str| {
            let named = variables.iter().chain(&annotations).map(|(_, expression)| expression);
            let mut all = named.chain(mutations.iter().map(|mutation| &mutation.expression));
            all.any(|expression| expression.uses(name))
                || conditions.use_name(name)
                || validations
                    .iter()
                    .any(|v| v.expression.uses(name) || v.message_expression.as_ref().is_some_and(|m| m.uses(name)))
        };
        Compiled {
            name: text(&policy["metadata"], "name").to_owned(),
            revision,
            fail: spec["failurePolicy"] != "Ignore",
            constraints: Constraints::of_policy(&spec["matchConstraints"]),
            params: params
                .then(|| (text(&spec["paramKind"], "apiVersion").into(), text(&spec["paramKind"], "kind").into())),
            uses_object: uses("object"),
            uses_old: uses("oldObject"),
            uses_request: uses("request"),
            uses_namespace: uses("namespaceObject"),
            again: spec["reinvocationPolicy"] == "IfNeeded",
            conditions,
            variables,
            validations,
            annotations,
            mutations,
        }
    }
}

impl Binding {
    pub fn new(binding: &Value) -> Self {
        let spec = &binding["spec"];
        let said = &spec["paramRef"];
        Binding {
            name: text(&binding["metadata"], "name").to_owned(),
            constraints: spec["matchResources"].is_object().then(|| Constraints::of_policy(&spec["matchResources"])),
            reference: said.is_object().then(|| Reference {
                name: text(said, "name").to_owned(),
                namespace: text(said, "namespace").to_owned(),
                selector: said["selector"].is_object().then(|| LabelSelector::parse(&said["selector"])),
                deny: said["parameterNotFoundAction"] == "Deny",
            }),
            actions: list(spec, "validationActions").filter_map(Value::as_str).map(Into::into).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_expressions_name_is_made_for_them() {
        let uses = |spec: Value| {
            let policy = Compiled::new(&json!({"metadata": {"name": "p"}, "spec": spec}), 1);
            (policy.uses_object, policy.uses_old, policy.uses_request, policy.uses_namespace)
        };
        let validation = |text: &str| json!({"validations": [{"expression": text}]});
        assert_eq!(uses(validation("request.operation == 'CREATE'")), (false, false, true, false));
        assert_eq!(uses(validation("has(object.spec) || oldObject == null")), (true, true, false, false));
        assert_eq!(uses(validation("[1].all(n, n < object.spec.replicas)")), (true, false, false, false));
        for spec in [
            json!({"variables": [{"name": "v", "expression": "object.spec"}]}),
            json!({"matchConditions": [{"name": "c", "expression": "object.kind == 'Pod'"}]}),
        ] {
            assert_eq!(uses(spec.clone()), (true, false, false, false), "{spec}");
        }
        assert_eq!(uses(json!({})), (false, false, false, false));
    }
}
