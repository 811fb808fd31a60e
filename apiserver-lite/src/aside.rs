//! Work that takes longer than a few milliseconds, in the middle of a request.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Runs something while the other tasks of this thread go on elsewhere, where there is an elsewhere.
pub fn aside<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}
