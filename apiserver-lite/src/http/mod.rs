//! HTTP: listening, bodies, negotiation, and turning results into responses.

mod body;
pub mod cbor;
mod host;
mod keepalive;
mod negotiate;
pub mod respond;
mod serve;
mod suites;
mod unread;

pub use body::{Body, Broken, Pieces, Response};
pub use negotiate::{
    Accepted, Form, Media, aggregated, body_media, for_error, media_types, negotiate, pretty, route_accepts,
    route_produces,
};
pub use serve::{Peer, serve};
pub(crate) use suites::provider;
pub use unread::{SILENCE, Unread};
