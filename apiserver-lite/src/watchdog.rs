//! Tells systemd that the server lives (`WatchdogSec=` of the unit). Without `WATCHDOG_USEC` nothing happens here.
//!
//! A beat is sent only when this task gets its turn, the store answers, and it takes writes: a server that hangs, or
//! whose log failed, is started again, and reads back what it had acknowledged.

use std::time::Duration;

use service::notify::{self, NotifyState};

use crate::store::Store;

/// The store answers from memory, at once.
const PATIENCE: Duration = Duration::from_secs(5);

/// Starts the beat when systemd waits for it. It ends with the runtime.
pub fn start(store: &Store) {
    if let Some(limit) = notify::watchdog_enabled().filter(|limit| !limit.is_zero()) {
        tokio::spawn(beat(store.clone(), limit / 2));
    }
}

async fn beat(store: Store, period: Duration) {
    loop {
        if lives(&store).await {
            notify::tell(&[NotifyState::Watchdog]);
        } else {
            tracing::error!("the store takes no writes; systemd is not told that the server is well");
        }
        tokio::time::sleep(period).await;
    }
}

/// Whether the store can be asked and written to.
async fn lives(store: &Store) -> bool {
    let asked = store.clone();
    let answer = tokio::task::spawn_blocking(move || asked.revision());
    matches!(tokio::time::timeout(PATIENCE, answer).await, Ok(Ok(_))) && store.is_healthy()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_store_that_works_is_alive() {
        let store = Store::open(None).expect("memory opens");
        assert!(lives(&store).await);
    }
}
