//! The agent's own memory: what the start needed goes back to the machine, and what later bursts leave behind.

use std::time::Duration;

use service::memory;

/// The start is over by then: status, images and static pods have been seen to.
const START: Duration = Duration::from_secs(15);
/// How often the agent looks whether it has grown. Seldom enough to cost nothing.
const PERIOD: Duration = Duration::from_secs(600);
/// Growth that is not worth the page faults that giving back costs.
const NOT_WORTH_IT: u64 = 2 << 20;

/// Keeps the process small; never returns.
pub async fn keep_small() {
    tokio::time::sleep(START).await;
    let mut last = 0;
    loop {
        let now = memory::resident_bytes().unwrap_or(0);
        if now > last + NOT_WORTH_IT {
            // It reads the kernel's list of mappings and waits for the allocator.
            if tokio::task::spawn_blocking(memory::give_back).await.is_err() {
                return;
            }
            last = memory::resident_bytes().unwrap_or(0);
            tracing::debug!(before = now, after = last, "memory was given back");
        }
        tokio::time::sleep(PERIOD).await;
    }
}
