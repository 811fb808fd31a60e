//! Work that takes longer than a few milliseconds, in the middle of a request.

use std::future::Future;

use tokio::runtime::{Handle, RuntimeFlavor};

/// Runs something while the other tasks of this thread go on elsewhere, where there is an elsewhere.
pub fn aside<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// Waits for an answer from elsewhere in the middle of plain code; None where there is but one thread, which would never
/// get it.
pub fn wait_for<T>(work: impl Future<Output = T>) -> Option<T> {
    let runtime = Handle::try_current().ok().filter(|r| r.runtime_flavor() == RuntimeFlavor::MultiThread)?;
    Some(tokio::task::block_in_place(|| runtime.block_on(work)))
}
