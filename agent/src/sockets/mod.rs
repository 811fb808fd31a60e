//! gRPC on unix sockets of the node: listening, serving, and a codec that leaves messages encoded.
//!
//! Every service here is local and for root. A client can hold no more than a fixed share: so many connections per
//! socket, so many calls per connection, so many bytes that it has not read.

mod authority;
mod bucket;
mod dial;
mod listen;
mod raw;

pub use bucket::Bucket;
pub use dial::{UnixConnector, channel};
pub use listen::{Reply, bind, serve, unimplemented};
pub use raw::RawCodec;
