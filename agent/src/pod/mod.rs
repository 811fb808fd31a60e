//! One pod: its spec as the runtime takes it, and what to do next with it.
//!
//! Everything here but the worker is a pure function of spec, node settings and what was observed.

pub mod allocation;
pub mod backoff;
pub mod container_config;
pub mod container_path;
pub mod crash_loop;
pub mod expand;
pub mod grace;
pub mod hash;
pub mod labels;
pub mod memory_qos;
pub mod placement;
pub mod quantity;
pub mod resize;
pub mod resources;
pub mod restart;
pub mod sandbox_config;
pub mod seccomp;
pub mod security;
pub mod spec;
pub mod step;
pub mod sysctl;

#[cfg(test)]
mod model;
#[cfg(test)]
mod step_tests;
