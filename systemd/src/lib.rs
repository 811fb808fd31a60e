//! What both daemons need as services of systemd, whose units stand beside this crate: log lines for the journal, words
//! for the notify socket, sockets that systemd hands over, settings in TOML with drop-ins, memory that is given back. And of HTTP
//! and TLS what both are asked for: parts of contents, and servers that nobody knows.
//!
//! Nothing in here knows Kubernetes or either daemon; why it is a crate is told in `docs/decisions/service-crate.md`.

pub mod activation;
pub mod any_certificate;
pub mod bodiless;
pub mod content_ranges;
pub mod journal;
pub mod memory;
pub mod notify;
pub mod own_certificate;
pub mod plain_http;
pub mod refusal;
pub mod settings;
