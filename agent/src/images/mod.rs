//! Images: names, pull policies, credentials and back-off.

pub mod credentials;
pub mod gc;
pub mod puller;
pub mod reference;
