//! Fields that an apply wants to change and others own.

use std::collections::BTreeMap;

use super::managed::{Entry, Operation};
use super::set::Set;
use crate::status::{ApiError, Cause, Details, quote};

/// What one manager owns of the changed fields.
pub struct Conflict<'a> {
    /// How upstream tells the manager from others; conflicts are listed in this order.
    identity: String,
    /// How the manager is shown.
    shown: String,
    pub fields: Set<'a>,
}

impl<'a> Conflict<'a> {
    pub fn new(owner: &Entry<'_>, fields: Set<'a>) -> Self {
        let mut shown = quote(&owner.manager);
        if !owner.subresource.is_empty() {
            shown = format!("{shown} with subresource {}", quote(&owner.subresource));
        }
        if owner.operation == Operation::Update {
            shown = format!("{shown} using {}", owner.api_version);
        }
        Conflict { identity: owner.identity(), shown, fields }
    }
}

/// The answer to an apply that would change fields of others.
pub fn error(conflicts: Vec<Conflict<'_>>) -> ApiError {
    let mut by_owner: BTreeMap<String, (String, Vec<String>)> = BTreeMap::new();
    for conflict in conflicts {
        by_owner.entry(conflict.identity).or_insert((conflict.shown, Vec::new())).1.extend(conflict.fields.paths());
    }
    let count: usize = by_owner.values().map(|(_, paths)| paths.len()).sum();
    let mut causes = Vec::with_capacity(count);
    let mut lines = Vec::new();
    for (shown, paths) in by_owner.values() {
        lines.push(format!("conflicts with {shown}:"));
        for path in paths {
            lines.push(format!("- {path}"));
            causes.push(Cause {
                reason: "FieldManagerConflict".into(),
                message: format!("conflict with {shown}"),
                field: path.clone(),
            });
        }
    }
    let text = match &causes[..] {
        [only] => format!("Apply failed with 1 conflict: {}: {}", only.message, only.field),
        _ => format!("Apply failed with {count} conflicts: {}", lines.join("\n")),
    };
    ApiError::new(409, "Conflict", text).with_details(Details { causes, ..Details::default() })
}
