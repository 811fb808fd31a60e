//! `MutatingAdmissionPolicy`: lets every policy that is about a request change its object, one after the other.
//!
//! Follows `apiserver/pkg/admission/plugin/policy/mutating`. Which policies are about a request is settled before the
//! first one changes something; their conditions see what the ones before have changed.

use std::borrow::Cow;

use serde_json::Value;

use super::super::attributes::Attributes;
use super::super::changes::{self, Rounds};
use super::super::matching::Matched;
use super::super::subject::Subject;
use super::compiled::{Binding, Compiled, Mutation, Policy};
use super::expression::{BUDGET, Facts};
use super::params::{self, Unbound};
use super::{Unseen, look};
use crate::cel::{self, Budget};
use crate::patch::Operations;
use crate::resource::Resource;
use crate::status::{ApiError, Result, quote};

/// Bytes of a patch; a request has no more.
const LARGEST_PATCH: usize = 3 << 20;

/// A policy with one binding and one state of parameters.
struct Invocation<'a> {
    policy: &'a Compiled,
    binding: &'a Binding,
    matched: Matched,
    params: Option<Value>,
}

/// What a policy has against the request.
struct Complaint {
    text: String,
    reason: &'static str,
}

/// # Errors
/// What cannot be evaluated or applied, where failures count; 404 when the namespace of the object is gone.
pub fn mutate(
    policies: &[Policy],
    attributes: &Attributes<'_>,
    new: &mut Subject<'_>,
    rounds: &mut Rounds,
) -> Result<()> {
    if policies.is_empty() || super::leaves_alone(attributes) {
        return Ok(());
    }
    let mut complaints = Vec::new();
    let invocations = invocations(policies, attributes, new.value(), &mut complaints);
    rounds.begin(new.value());
    for invocation in &invocations {
        let (binding, why, reason) = match invoke(invocation, attributes, new, rounds) {
            Ok(None) => continue,
            Ok(Some(why)) => (Some(invocation.binding), why, "Invalid"),
            Err(Unseen::Unconverted(why)) => (None, format!("failed to configure policy: {why}"), "Forbidden"),
            Err(Unseen::Refused(error)) => return Err(error),
        };
        if invocation.policy.fail {
            complaints.push(Complaint { text: shown(invocation.policy, binding, &why), reason });
        }
    }
    rounds.end(new.value());
    let Some(first) = complaints.first() else { return Ok(()) };
    let error = attributes.call.refuse(new.value(), "").as_kind(403, first.reason).with_message(&first.text);
    Err(complaints.iter().fold(error, |error, complaint| error.with_cause("", &complaint.text, "")))
}

fn shown(policy: &Compiled, binding: Option<&Binding>, why: &str) -> String {
    match binding {
        Some(binding) => format!("policy '{}' with binding '{}' denied request: {why}", policy.name, binding.name),
        None => format!("policy {} denied request: {why}", quote(&policy.name)),
    }
}

fn invocations<'a>(
    policies: &'a [Policy],
    attributes: &Attributes<'_>,
    new: Option<&Value>,
    complaints: &mut Vec<Complaint>,
) -> Vec<Invocation<'a>> {
    let mut out = Vec::new();
    for Policy { compiled: policy, bindings } in policies {
        let mut complain = |binding: Option<&Binding>, why: &str| {
            if policy.fail {
                let part = if binding.is_some() { "binding" } else { "policy" };
                let text = shown(policy, binding, &format!("failed to configure {part}: {why}"));
                complaints.push(Complaint { text, reason: "Forbidden" });
            }
        };
        let matched = match policy.constraints.matches(attributes, new) {
            Ok(Some(matched)) => matched,
            Ok(None) => continue,
            Err(error) => {
                complain(None, &error.status().message);
                continue;
            }
        };
        for binding in bindings {
            match binding.constraints.as_ref().map_or(Ok(true), |c| Ok(c.matches(attributes, new)?.is_some())) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => {
                    complain(Some(binding), &ApiError::status(&error).message);
                    continue;
                }
            }
            match params::collect(attributes, policy, binding) {
                Ok(all) => out.extend(all.into_iter().map(|params| Invocation {
                    policy,
                    binding,
                    matched: matched.clone(),
                    params,
                })),
                Err(Unbound::Policy(why)) => {
                    complain(None, &why);
                    break;
                }
                Err(Unbound::Binding(why)) => complain(Some(binding), &why),
            }
        }
    }
    out
}

/// Lets a policy change the object; what went wrong, if something did.
fn invoke(
    invocation: &Invocation<'_>,
    attributes: &Attributes<'_>,
    new: &mut Subject<'_>,
    rounds: &mut Rounds,
) -> Result<Option<String>, Unseen> {
    let Invocation { policy, binding, matched, params } = invocation;
    let (resource, params) = (matched.resource(attributes), params.as_ref());
    if !policy.conditions.0.is_empty() {
        let held = look(policy, attributes, resource, new, params, |facts, policy| {
            policy.conditions.hold(facts, policy.fail)
        })?;
        match held {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(why) => return Ok(Some(why)),
        }
    }
    let of_params = params.map_or("", |p| p["metadata"]["name"].as_str().unwrap_or_default());
    let id = format!("{}/{}/{of_params}", policy.name, binding.name);
    if rounds.skips(&id) {
        return Ok(None);
    }
    let (mut changed, mut wrong) = (false, None);
    for index in 0..policy.mutations.len() {
        match patched(policy, index, attributes, resource, new, params)? {
            Ok(Some(value)) => changed |= new.set(value),
            Ok(None) => {}
            Err(why) => wrong = wrong.or(Some(why)),
        }
    }
    rounds.ran(&id, policy.again, changed);
    Ok(wrong)
}

/// The object after one mutation; None when there is none, or a test of its patch says that it is not to be applied.
fn patched(
    policy: &Compiled,
    index: usize,
    attributes: &Attributes<'_>,
    resource: &Resource,
    subject: &Subject<'_>,
    params: Option<&Value>,
) -> Result<std::result::Result<Option<Value>, String>, Unseen> {
    let Some(object) = subject.value() else { return Ok(Ok(None)) };
    let made =
        look(policy, attributes, resource, subject, params, |facts, policy| make(facts, &policy.mutations[index]))?;
    let patch = match made {
        Ok(patch) => patch,
        Err(why) => return Ok(Err(why)),
    };
    let json_patch = policy.mutations[index].json_patch;
    let seen = match json_patch {
        true => subject.shown(attributes, resource).map(|seen| seen.unwrap_or(object).clone()),
        false => attributes.versioned(object, resource).map(Cow::into_owned),
    };
    let mut value = seen.map_err(Unseen::unconverted)?;
    if json_patch {
        let operations = match Operations::parse(patch) {
            Ok(operations) => operations,
            Err(error) => return Ok(Err(error.status().message.clone())),
        };
        match operations.apply(&mut value) {
            Ok(()) => {}
            Err(refused) if refused.test => return Ok(Ok(None)),
            Err(refused) => return Ok(Err(format!("JSON Patch: {}", refused.why))),
        }
    } else {
        let schema = &resource.schema;
        if let Err(why) = crate::apply::overlay(schema.set(), schema.id, &mut value, &patch) {
            return Ok(Err(format!("error applying patch: {why}")));
        }
    }
    let settled = changes::settle(attributes, resource, value, json_patch).map_err(Unseen::Refused);
    settled.map(|value| Ok(Some(value)))
}

/// Evaluates a mutation to the patch that it is.
fn make<'a>(facts: &Facts<'a>, mutation: &'a Mutation) -> std::result::Result<Value, String> {
    if let Some(why) = mutation.expression.complaint() {
        return Err(why.to_owned());
    }
    let made = facts.evaluate(&mutation.expression, &mut Budget::new(BUDGET)).map_err(|wrong| wrong.to_string())?;
    // No object can have what is larger than any request.
    if !made.is_within(LARGEST_PATCH) {
        return Err(format!("the patch is larger than {LARGEST_PATCH} bytes"));
    }
    let mut misplaced = Vec::new();
    if mutation.json_patch {
        for operation in made.members().unwrap_or_default() {
            if let Some(value @ cel::Value::Made(name, _)) = operation.field("value").as_ref() {
                check_names(value, name, &mut misplaced);
            }
        }
    } else {
        check_names(&made, "Object", &mut misplaced);
    }
    if !misplaced.is_empty() {
        return Err(format!("type mismatch: {}", misplaced.join("\n")));
    }
    made.to_json().ok_or_else(|| "the patch has values that no object can have".to_owned())
}

/// The types of what expressions make are named after their place in the object.
fn check_names(value: &cel::Value<'_>, path: &str, found: &mut Vec<String>) {
    match value {
        cel::Value::Made(name, fields) => {
            if **name != *path {
                let (name, path) = (quote(name), quote(path));
                found.push(format!(
                    "unexpected type name {name}, expected {path}, which matches field name path from root Object type"
                ));
            }
            fields.iter().for_each(|(field, value)| check_names(value, &format!("{path}.{field}"), found));
        }
        cel::Value::List(items) => items.iter().for_each(|item| check_names(item, path, found)),
        cel::Value::Map(entries) => entries.iter().for_each(|(_, value)| check_names(value, path, found)),
        _ => {}
    }
}
