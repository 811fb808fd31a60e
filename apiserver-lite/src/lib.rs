//! A compact Kubernetes API server: one generic path from bytes to store and back for every resource, with the
//! controllers and the scheduler that a small cluster needs.

pub mod admin;
mod admission;
mod aggregate;
mod apply;
mod aside;
mod audit;
pub mod auth;
pub mod bootstrap;
mod bootstrap_token;
mod cel;
mod client;
mod components;
pub mod config;
mod controllers;
mod crd;
mod defaults;
mod discovery;
mod field_error;
mod flow;
#[cfg(test)]
mod fuzz;
mod go_address;
mod go_schema;
mod go_url;
mod go_value;
mod go_x509;
mod health;
pub mod http;
pub mod kubeconfig;
mod limits;
pub mod metrics;
mod names;
mod openapi;
mod openid;
mod outgoing;
mod patch;
pub mod pki;
pub mod proxy;
mod quiet;
mod random;
pub mod read;
pub mod request;
pub mod resource;
mod routing;
mod scheduler;
mod selectors;
pub mod serve;
pub mod server;
mod service_ip;
pub mod status;
mod status_pages;
pub mod store;
mod tree;
mod validate;
mod warning;
mod watchdog;
pub mod write;
mod zone;

use aside::{aside, wait_for};

/// What a stack of the server's threads has to hold: a tree that is nested as deep as may be is walked by those that read,
/// change, check and drop it. No more of it takes memory than was used. A machine with less memory than this has no such
/// threads at all.
pub const STACK: usize = if cfg!(debug_assertions) { 256 << 20 } else { 128 << 20 };

/// A thread that trees may be handed to.
pub(crate) fn thread(name: &str) -> std::thread::Builder {
    std::thread::Builder::new().name(name.into()).stack_size(STACK)
}

/// What a panic said.
pub(crate) fn panic_text(payload: &(dyn std::any::Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("it panicked without a word")
}
