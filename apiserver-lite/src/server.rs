//! The server's parts in one value, shared by every request and controller.

use crate::store::Store;

pub struct ApiServer {
    pub store: Store,
}
