//! The authorizer as policies see it: a chain of calls says what is asked, and `check` asks it.
//!
//! Follows `apiserver/pkg/cel/library/authz.go`. Nothing is asked here; the evaluation's host does that.

use std::sync::Arc;

use super::eval::{Budget, Failure};
use super::value::Value;
use crate::names;

pub const AUTHORIZER: &str = "kubernetes.authorization.Authorizer";
pub const PATH_CHECK: &str = "kubernetes.authorization.PathCheck";
pub const GROUP_CHECK: &str = "kubernetes.authorization.GroupCheck";
pub const RESOURCE_CHECK: &str = "kubernetes.authorization.ResourceCheck";
pub const DECISION: &str = "kubernetes.authorization.Decision";

/// A question, as far as it has been put together.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Check {
    /// Namespace and name of the service account that it is asked for; else for who sent the request.
    pub account: Option<(String, String)>,
    pub asked: Asked,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub enum Asked {
    /// Nothing yet.
    #[default]
    Nothing,
    Path(String),
    Group(String),
    Resource {
        group: String,
        resource: String,
        subresource: String,
        namespace: String,
        name: String,
        field_selector: String,
        label_selector: String,
    },
}

/// An authorizer's answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Decision {
    pub allowed: bool,
    pub reason: String,
    /// Empty for none.
    pub error: String,
}

impl Check {
    /// The name of its type.
    pub fn kind(&self) -> &'static str {
        match self.asked {
            Asked::Nothing => AUTHORIZER,
            Asked::Path(_) => PATH_CHECK,
            Asked::Group(_) => GROUP_CHECK,
            Asked::Resource { .. } => RESOURCE_CHECK,
        }
    }

    /// Bytes of all that was said.
    fn size(&self) -> usize {
        let asked = match &self.asked {
            Asked::Nothing => 0,
            Asked::Path(text) | Asked::Group(text) => text.len(),
            Asked::Resource { group, resource, subresource, namespace, name, field_selector, label_selector } => {
                [group, resource, subresource, namespace, name, field_selector, label_selector]
                    .map(String::len)
                    .iter()
                    .sum()
            }
        };
        asked + self.account.as_ref().map_or(0, |(namespace, name)| namespace.len() + name.len())
    }

    fn of<'a>(&self, asked: Asked) -> Value<'a> {
        Value::Check(Arc::new(Check { account: self.account.clone(), asked }))
    }
}

/// Bytes that are copied for the price of a step.
const BYTES: usize = 10;

type Out<'a> = Result<Value<'a>, Failure>;

/// Calls a function of this module; None for others.
pub fn call<'a>(name: &str, args: &[Value<'a>], budget: &mut Budget) -> Option<Out<'a>> {
    match args {
        [Value::Check(check), rest @ ..] => {
            let texts: Option<Vec<&str>> =
                rest.iter().map(|arg| if let Value::Text(text) = arg { Some(&**text) } else { None }).collect();
            let texts = texts?;
            // Each link of the chain copies what was said so far; names are short, and cost nothing.
            let said = texts.iter().map(|text| text.len()).fold(check.size(), usize::saturating_add);
            if let Err(failure) = budget.spend(said / BYTES) {
                return Some(Err(failure));
            }
            extend(check, name, &texts)
        }
        [Value::Decision(decision)] => {
            let told = |text: &str, budget: &mut Budget| {
                budget.spend(text.len() / BYTES)?;
                Ok(Value::text(text.to_owned()))
            };
            Some(match name {
                "allowed" => Ok(Value::Bool(decision.allowed)),
                "reason" => told(&decision.reason, budget),
                "errored" => Ok(Value::Bool(!decision.error.is_empty())),
                "error" => told(&decision.error, budget),
                _ => return None,
            })
        }
        _ => None,
    }
}

fn extend<'a>(check: &Check, name: &str, texts: &[&str]) -> Option<Out<'a>> {
    let refused = |why: &str| Some(Err(Failure::new(why)));
    let asked = match (&check.asked, name, texts) {
        (Asked::Nothing, "path", [path]) if path.trim().is_empty() => return refused("path must not be empty"),
        (Asked::Nothing, "path", [path]) => Asked::Path((*path).into()),
        (Asked::Nothing, "group", [group]) => Asked::Group((*group).into()),
        (Asked::Nothing, "serviceAccount", [namespace, account]) => {
            if !names::dns_subdomain(account).is_empty() {
                return refused("Invalid service account name");
            }
            if !names::dns_label(namespace).is_empty() {
                return refused("Invalid service account namespace");
            }
            let account = Some(((*namespace).to_owned(), (*account).to_owned()));
            return Some(Ok(Value::Check(Arc::new(Check { account, asked: Asked::Nothing }))));
        }
        (Asked::Group(_), "resource", [resource]) if resource.trim().is_empty() => {
            return refused("resource must not be empty");
        }
        (Asked::Group(group), "resource", [resource]) => Asked::Resource {
            group: group.clone(),
            resource: (*resource).into(),
            subresource: String::new(),
            namespace: String::new(),
            name: String::new(),
            field_selector: String::new(),
            label_selector: String::new(),
        },
        (asked @ Asked::Resource { .. }, part, [text]) => {
            let mut asked = asked.clone();
            if let Asked::Resource { subresource, namespace, name, field_selector, label_selector, .. } = &mut asked {
                let place = match part {
                    "subresource" => subresource,
                    "namespace" => namespace,
                    "name" => name,
                    "fieldSelector" => field_selector,
                    "labelSelector" => label_selector,
                    _ => return None,
                };
                (*text).clone_into(place);
            }
            asked
        }
        _ => return None,
    };
    Some(Ok(check.of(asked)))
}
