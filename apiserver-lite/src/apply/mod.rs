//! Field ownership and server-side apply.
//!
//! Every write records in `metadata.managedFields` which fields its manager set. An apply patch merges a configuration
//! into the object by the schema, takes back what the manager applied before and no longer does, and refuses to change
//! what others own. Rules and texts are those of structured-merge-diff; the code works on trees and a schema table, so
//! built-in and custom resources share it.

mod check;
mod collect;
mod compare;
mod configuration;
mod conflict;
mod element;
mod fresh;
mod last_applied;
mod managed;
mod merge;
mod overlay;
mod owners;
mod prune;
mod reconcile;
mod reset;
pub mod scale;
mod set;
mod spelling;
mod track;
mod versions;
mod view;

#[cfg(test)]
mod tests;

pub use compare::same_struct_but;
pub use configuration::apply;
pub use overlay::overlay;
pub use owners::Owners;
pub use spelling::spell_like;
pub use track::{Writer, created, keep_times, put, updated};
