//! What is wrong with the expressions of a policy or webhook that somebody writes.

use serde_json::Value;

use super::expression::{Environment, Expression};
use crate::cel::Type;

/// Expressions of a policy, checked one after the other as their places in it come up: variables are known to what
/// follows them.
pub struct Checked {
    environment: Environment,
}

/// Begins to check a policy.
pub fn check_policy(spec: &Value) -> Checked {
    let params = spec["paramKind"].is_object();
    let composed = spec["variables"].as_array().is_some_and(|v| !v.is_empty());
    Checked {
        environment: Environment {
            params,
            authorizer: true,
            variables: composed.then(Vec::new),
            ..Environment::default()
        },
    }
}

fn complaint(expression: &Expression) -> Option<String> {
    expression.complaint().map(Into::into)
}

impl Checked {
    pub fn variable(&mut self, name: &str, text: &str) -> Option<String> {
        complaint(&self.environment.variable(name, text))
    }

    pub fn validation(&self, text: &str) -> Option<String> {
        complaint(&self.environment.compile(text, &[Type::Bool]))
    }

    pub fn message(&self, text: &str) -> Option<String> {
        let environment = Environment { authorizer: false, ..self.environment.clone() };
        complaint(&environment.compile(text, &[Type::Text]))
    }

    pub fn annotation(&self, text: &str) -> Option<String> {
        complaint(&self.environment.compile(text, &[Type::Text, Type::Null]))
    }

    /// An expression that makes a patch of some form.
    pub fn mutation(&self, text: &str, json_patch: bool) -> Option<String> {
        let environment = Environment { patches: true, ..self.environment.clone() };
        let wanted = if json_patch { Type::list(Type::made("JSONPatch")) } else { Type::made("Object") };
        complaint(&environment.compile(text, &[wanted]))
    }
}

/// A condition of a policy or webhook, which knows no variables.
pub fn check_conditions(text: &str, params: bool) -> Option<String> {
    let environment = Environment { params, authorizer: true, ..Environment::default() };
    complaint(&environment.compile(text, &[Type::Bool]))
}
