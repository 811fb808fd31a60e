//! What the black-box tests share: starting the real daemons in a folder of their own, and asking them things.
//!
//! Nothing here knows the daemons' insides. The binaries are the release ones that `make test` builds first.

pub mod agent;
pub mod clock;
pub mod daemon;
pub mod health;
pub mod hook;
pub mod images;
pub mod listener;
pub mod node;
pub mod pods;
pub mod process;
pub mod raw;
pub mod registry;
pub mod runtime;
pub mod spread;
pub mod storage_driver;
pub mod traces;
pub mod twins;
pub mod wants;

pub use daemon::{ApiServer, free_port, release_binary, repository, scratch};
pub use hook::Hook;
pub use raw::{Api, Connection};
pub use spread::Clients;
pub use wants::{no_node, python, recordings, skipped};
