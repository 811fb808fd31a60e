//! `ValidatingAdmissionPolicy`: asks every policy that is about a request, and refuses it, warns, or takes a note.
//!
//! Follows `apiserver/pkg/admission/plugin/policy/validating`. The first denial names the answer; all warnings are
//! given.

use serde_json::{Value, json};

use super::super::attributes::Attributes;
use super::super::matching::Matched;
use super::super::subject::Subject;
use super::compiled::{Binding, Compiled, Policy, Validation};
use super::expression::{BUDGET, Facts, Wrong};
use super::params::{self, Unbound};
use super::{Unseen, look};
use crate::cel::{self, Budget};
use crate::status::{ApiError, Result};

/// Longest text that a message expression may make.
const LONGEST_MESSAGE: usize = 5 << 10;
/// Longest note in the audit log.
const LONGEST_NOTE: usize = 10 << 10;

/// Something against the request.
struct Denial {
    message: String,
    /// Empty for the usual one.
    reason: String,
}

impl Denial {
    fn new(message: impl Into<String>) -> Self {
        Denial { message: message.into(), reason: String::new() }
    }
}

/// What came of a policy with one binding and one state of parameters.
#[derive(Default)]
struct Outcome {
    /// By the place of the expression.
    denials: Vec<(usize, Denial)>,
    /// What denies whatever the binding's actions are.
    hard: Vec<Denial>,
    notes: Vec<(String, String)>,
}

/// # Errors
/// The first denial; 404 when the namespace of the object is gone.
pub fn validate(policies: &[Policy], attributes: &Attributes<'_>, subject: &Subject<'_>) -> Result<()> {
    if policies.is_empty() || super::leaves_alone(attributes) {
        return Ok(());
    }
    let mut first: Option<ApiError> = None;
    let new = subject.value();
    let call = attributes.call;
    for policy in policies {
        let compiled = &*policy.compiled;
        let mut refuse = |binding: Option<&Binding>, denial: Denial| {
            first.get_or_insert_with(|| denied(attributes, new, &compiled.name, binding, &denial));
        };
        let matched = match compiled.constraints.matches(attributes, new) {
            Ok(Some(matched)) => matched,
            Ok(None) => continue,
            Err(error) => {
                if compiled.fail {
                    let why = format!("failed to configure policy: {}", error.status().message);
                    refuse(None, Denial::new(why));
                }
                continue;
            }
        };
        let mut notes: Vec<(String, Vec<String>)> = Vec::new();
        for binding in &policy.bindings {
            let fits = binding.constraints.as_ref().map_or(Ok(true), |c| Ok(c.matches(attributes, new)?.is_some()));
            let trees = match fits {
                Ok(false) => continue,
                Ok(true) => params::collect(attributes, compiled, binding),
                Err(error) => Err(Unbound::Binding(ApiError::status(&error).message.clone())),
            };
            let trees = match trees {
                Ok(trees) => trees,
                Err(_) if !compiled.fail => continue,
                Err(Unbound::Policy(why)) => {
                    refuse(None, Denial::new(format!("failed to configure policy: {why}")));
                    break;
                }
                Err(Unbound::Binding(why)) => {
                    refuse(Some(binding), Denial::new(format!("failed to configure binding: {why}")));
                    continue;
                }
            };
            for params in &trees {
                let outcome = match ask(compiled, attributes, &matched, subject, params.as_ref()) {
                    Ok(outcome) => outcome,
                    Err(Unseen::Refused(error)) => return Err(error),
                    Err(Unseen::Unconverted(why)) => {
                        if compiled.fail {
                            let why = format!("failed to configure binding: failed to convert object version: {why}");
                            refuse(Some(binding), Denial::new(why));
                        }
                        break;
                    }
                };
                for (index, denial) in outcome.denials {
                    for action in &binding.actions {
                        match action.as_str() {
                            "Warn" => crate::warning::add(format!(
                                "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {}",
                                compiled.name, binding.name, denial.message
                            )),
                            "Audit" => note_failure(compiled, binding, index, &denial.message),
                            _ => refuse(
                                Some(binding),
                                Denial { message: denial.message.clone(), reason: denial.reason.clone() },
                            ),
                        }
                    }
                }
                for denial in outcome.hard {
                    refuse(Some(binding), denial);
                }
                for (key, value) in outcome.notes {
                    match notes.iter_mut().find(|(known, _)| *known == key) {
                        Some((_, values)) if values.contains(&value) => {}
                        Some((_, values)) => values.push(value),
                        None => notes.push((key, vec![value])),
                    }
                }
            }
        }
        for (key, values) in notes {
            super::super::note(&format!("{}/{key}", compiled.name), &values.join(", "));
        }
    }
    tracing::trace!(resource = %call.resource.plural, refused = first.is_some(), "asked the policies");
    first.map_or(Ok(()), Err)
}

/// Evaluates a policy for one state of its parameters.
fn ask(
    policy: &Compiled,
    attributes: &Attributes<'_>,
    matched: &Matched,
    subject: &Subject<'_>,
    params: Option<&Value>,
) -> Result<Outcome, Unseen> {
    look(policy, attributes, matched.resource(attributes), subject, params, decide)
}

/// What the expressions of a policy say.
fn decide<'a>(facts: &Facts<'a>, policy: &'a Compiled) -> Outcome {
    let mut out = Outcome::default();
    // What cannot be evaluated denies only where failures count.
    let failed = |why: String| policy.fail.then(|| Denial::new(why));
    match policy.conditions.hold(facts, policy.fail) {
        Ok(true) => {}
        Ok(false) => return out,
        Err(why) => {
            out.denials.extend(failed(why).map(|denial| (0, denial)));
            return out;
        }
    }
    let mut budget = Budget::new(BUDGET);
    let mut messages = Vec::new();
    for (index, validation) in policy.validations.iter().enumerate() {
        match facts.evaluate(&validation.expression, &mut budget) {
            Ok(cel::Value::Bool(true)) => {}
            Ok(_) => messages.push((index, validation)),
            Err(Wrong::Budget) => {
                out.denials = failed(Wrong::Budget.to_string()).map(|denial| (0, denial)).into_iter().collect();
                return out;
            }
            Err(Wrong::Expression(why)) => out.denials.extend(failed(why).map(|denial| (index, denial))),
        }
    }
    for (index, validation) in messages {
        match message(validation, facts, &mut budget) {
            Ok(message) => {
                out.denials.push((index, Denial { message, reason: validation.reason.clone() }));
            }
            Err(why) => out.denials.extend(failed(why).map(|denial| (index, denial))),
        }
    }
    out.denials.sort_by_key(|(index, _)| *index);
    notes(policy, facts, &mut out);
    out
}

/// What a validation that does not hold has to say.
fn message<'a>(
    validation: &'a Validation,
    facts: &Facts<'a>,
    budget: &mut Budget,
) -> std::result::Result<String, String> {
    if let Some(expression) = &validation.message_expression {
        match facts.evaluate(expression, budget) {
            Ok(cel::Value::Text(said)) => {
                let said = said.trim();
                if !said.is_empty() && said.len() <= LONGEST_MESSAGE && !said.contains('\n') {
                    return Ok(said.to_owned());
                }
            }
            Err(Wrong::Budget) => return Err(format!("failed messageExpression: {}", Wrong::Budget)),
            _ => {}
        }
    }
    if !validation.message.is_empty() {
        return Ok(validation.message.clone());
    }
    Ok(format!("failed expression: {}", validation.expression.text.trim()))
}

/// Notes for the audit log.
fn notes<'a>(policy: &'a Compiled, facts: &Facts<'a>, out: &mut Outcome) {
    let mut budget = Budget::new(BUDGET);
    for (key, expression) in &policy.annotations {
        match facts.evaluate(expression, &mut budget) {
            Ok(cel::Value::Text(value)) if !value.trim().is_empty() => {
                let mut end = value.trim().len().min(LONGEST_NOTE);
                while !value.trim().is_char_boundary(end) {
                    end -= 1;
                }
                out.notes.push((key.clone(), value.trim()[..end].to_owned()));
            }
            Ok(cel::Value::Text(_) | cel::Value::Null) => {}
            Ok(other) => out.hard.push(Denial::new(format!(
                "valueExpression '{}' resulted in unsupported return type: {}. Return type must be either string or null.",
                expression.text,
                other.kind()
            ))),
            Err(_) if !policy.fail => {}
            Err(why) => out.hard.push(Denial::new(why.to_string())),
        }
    }
}

fn note_failure(policy: &Compiled, binding: &Binding, index: usize, message: &str) {
    let text = |text: &str| Value::from(text).to_string();
    // In the order of upstream's.
    let failure = format!(
        "[{{\"message\":{},\"policy\":{},\"binding\":{},\"expressionIndex\":{index},\"validationActions\":{}}}]",
        text(message),
        text(&policy.name),
        text(&binding.name),
        json!(binding.actions)
    );
    super::super::note("validation.policy.admission.k8s.io/validation_failure", &failure);
}

/// The answer to a request that a policy denies; its code is that of the reason.
fn denied(
    attributes: &Attributes<'_>,
    new: Option<&Value>,
    policy: &str,
    binding: Option<&Binding>,
    denial: &Denial,
) -> ApiError {
    let with = binding.map(|b| format!(" with binding '{}'", b.name)).unwrap_or_default();
    let message = format!("ValidatingAdmissionPolicy '{policy}'{with} denied request: {}", denial.message);
    let (code, reason) = match denial.reason.as_str() {
        "Forbidden" => (403, "Forbidden"),
        "Unauthorized" => (401, "Unauthorized"),
        "RequestEntityTooLarge" => (413, "RequestEntityTooLarge"),
        _ => (422, "Invalid"),
    };
    attributes.call.refuse(new, &message).as_kind(code, reason).with_cause("", &message, "")
}
