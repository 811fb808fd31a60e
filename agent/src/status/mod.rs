//! The status of a pod: computed from spec and observation, and sent to the API server when it changes.
//!
//! [`generate`] is pure; [`manager`] owns what was sent.

pub mod conditions;
mod containers;
mod end;
mod finish;
mod found;
pub mod generate;
mod in_use;
pub mod manager;
mod patch;
mod phase;
pub mod start_time;
mod wording;

pub use containers::container_id;
pub use finish::terminate;
pub use found::with_verdict;
pub use generate::{Inputs, StartError, generate};
pub use in_use::in_use;
