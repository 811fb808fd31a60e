//! Admission webhooks: servers that clients register, and that decide about or change what others write.
//!
//! Mutating webhooks are asked one after the other, in the order of their configurations' names; validating ones all at
//! once. What a webhook says about the object is a patch, which is applied to the version that the webhook asked for.
//! Follows `apiserver/pkg/admission/plugin/webhook`.

mod answer;
mod call;
mod certificate;
mod client;
mod compiled;
mod logins;
mod mutating;
mod review;
mod trust;
mod validating;

pub use answer::{Expected, failure_words};
pub use client::{Asker, Clients, Endpoint};
pub use compiled::Webhook;
pub use logins::Logins;
pub use mutating::mutate;
pub use trust::{connector, explain as handshake_words, verifier};
pub use validating::validate;
