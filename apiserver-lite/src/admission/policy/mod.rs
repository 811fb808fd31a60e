//! Admission policies: expressions that clients store, and that decide about or change what others write.
//!
//! A policy does nothing without a binding, which says where it applies and with which parameters. Policies are compiled
//! when they first matter, and again when they change.

mod check;
mod compiled;
mod expression;
mod params;
mod validating;

pub use check::{Checked, check_conditions, check_policy};
pub use compiled::{Binding, Compiled, Policy};
pub use expression::{Conditions, Environment, Facts, Seen};
pub use validating::validate;

use super::attributes::Attributes;

/// Whether policies leave a request alone: those that answer questions, and what decides about requests.
pub fn leaves_alone(attributes: &Attributes<'_>) -> bool {
    let group = &*attributes.call.resource.group;
    matches!(group, "authentication.k8s.io" | "authorization.k8s.io") || super::matching::is_exempt(attributes)
}
