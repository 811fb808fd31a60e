//! The node agent: takes pods from the API server, static files and an HTTP source, and runs them over the CRI.
//! The thin binary `node-agent`.

pub mod api;
pub mod backoff;
pub mod cgroups;
pub mod cli;
mod clock;
pub mod config;
pub mod cri;
pub mod daemon;
pub mod device_plugins;
pub mod dns_hosts;
mod document;
pub mod env;
pub mod events;
mod file_watch;
pub mod images;
mod local_sockets;
pub mod log_level;
pub mod metrics;
pub mod node;
pub mod objects;
pub mod pleg;
pub mod plugin_registry;
pub mod pod;
pub mod pod_resources;
pub mod pods;
pub mod pods_api;
pub mod probes;
pub mod server;
pub mod sockets;
pub mod sources;
mod stats;
pub mod status;
pub mod tools;
pub mod volumes;
pub mod wire_json;
