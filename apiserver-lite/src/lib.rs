//! A compact Kubernetes API server: one generic path from bytes to store and back for every resource, with the
//! controllers and the scheduler that a small cluster needs.

mod admission;
mod apply;
pub mod auth;
pub mod bootstrap;
mod client;
pub mod config;
mod controllers;
mod defaults;
mod discovery;
mod field_error;
mod health;
pub mod http;
pub mod kubeconfig;
pub mod metrics;
mod names;
mod openapi;
mod patch;
pub mod pki;
pub mod proxy;
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
mod validate;
mod warning;
pub mod write;
