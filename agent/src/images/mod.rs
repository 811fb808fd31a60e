//! Images: names, pull policies, credentials and back-off.

pub mod reference;
