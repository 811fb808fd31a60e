//! The node agent: takes pods from the API server, static files and an HTTP source, and runs them over the CRI.
//! The thin binary `node-agent`.

pub mod api;
pub mod backoff;
pub mod cri;
mod document;
pub mod images;
pub mod objects;
pub mod pleg;
pub mod pod;
pub mod wire_json;
