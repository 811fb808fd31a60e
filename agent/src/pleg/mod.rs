//! Pod lifecycle events: what the runtime has, and when it changes.

pub mod observed;
mod termination_message;
