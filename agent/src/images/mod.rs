//! Images: names, pull policies, credentials and back-off.

pub mod credentials;
pub mod gc;
pub mod node_credentials;
pub mod providers;
pub mod puller;
pub mod records;
pub mod reference;
