//! Admission policies: expressions that clients store, and that decide about or change what others write.
//!
//! A policy does nothing without a binding, which says where it applies and with which parameters. Policies are compiled
//! when they first matter, and again when they change.

mod check;
mod compiled;
mod expression;
mod mutating;
mod params;
mod typed;
mod validating;
mod variables;

pub use check::{Checked, check_conditions, check_policy};
pub use compiled::{Binding, Compiled, Policy};
pub use expression::{Conditions, Environment, Facts, Seen};
pub use mutating::mutate;
pub use typed::type_warnings;
pub use validating::validate;

use serde_json::Value;

use super::attributes::Attributes;
use super::subject::Subject;
use crate::resource::Resource;
use crate::status::{ApiError, Result};
use crate::store::ResourceId;

/// Whether policies leave a request alone: those that answer questions, and what decides about requests.
pub fn leaves_alone(attributes: &Attributes<'_>) -> bool {
    let group = &*attributes.call.resource.group;
    matches!(group, "authentication.k8s.io" | "authorization.k8s.io") || super::matching::is_exempt(attributes)
}

/// Why the expressions of a policy could not look at a request.
enum Unseen {
    /// The answer, whatever the policy says about failures.
    Refused(ApiError),
    /// An object could not be brought into the version that the policy is for.
    Unconverted(String),
}

impl Unseen {
    fn unconverted(error: ApiError) -> Self {
        Unseen::Unconverted(error.status().message.clone())
    }
}

/// Puts together what the expressions of a policy see of a request, and evaluates some.
///
/// # Errors
/// 404 when the namespace of the object is gone; what cannot be converted for the policy.
fn look<T>(
    policy: &Compiled,
    attributes: &Attributes<'_>,
    resource: &Resource,
    subject: &Subject<'_>,
    params: Option<&Value>,
    evaluate: impl for<'a> FnOnce(&Facts<'a>, &'a Compiled) -> T,
) -> Result<T, Unseen> {
    let mut namespace = None;
    if let Some(name) = attributes.containing_namespace() {
        let found = attributes.call.server.store.get(&ResourceId::from("namespaces"), "", name);
        let found = found.ok_or_else(|| Unseen::Refused(ApiError::not_found("", "namespaces", name)))?;
        namespace = policy.uses_namespace.then(|| found.value());
    }
    let request = policy.uses_request.then(|| attributes.request(resource));
    let object = if policy.uses_object { subject.shown(attributes, resource) } else { Ok(None) };
    let old = if policy.uses_old { attributes.old(resource) } else { Ok(None) };
    let seen = Seen {
        object: object.map_err(Unseen::unconverted)?,
        old: old.map_err(Unseen::unconverted)?,
        params,
        request: request.as_ref(),
        namespace: namespace.as_ref(),
    };
    Ok(evaluate(&Facts::new(attributes, resource, &policy.variables, &seen), policy))
}
