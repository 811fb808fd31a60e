//! The node agent: takes pods from the API server, static files and an HTTP source, and runs them over the CRI.

pub mod cri;
pub mod images;
pub mod pleg;
pub mod pod;
pub mod wire_json;
