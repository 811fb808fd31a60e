//! A compact Kubernetes API server: one generic path from bytes to store and back for every resource, with the
//! controllers and the scheduler that a small cluster needs.

pub mod auth;
pub mod config;
pub mod kubeconfig;
pub mod pki;
pub mod request;
pub mod resource;
pub mod server;
pub mod status;
pub mod store;
