//! Time that a request spends waiting for what is not the server's own: webhooks, and its turn. It does not count for
//! `apiserver_request_sli_duration_seconds`. Follows `apiserver/pkg/endpoints/request/webhook_duration.go`.

use std::cell::Cell;
use std::future::Future;
use std::time::Duration;

tokio::task_local! {
    static APART: Apart;
}

#[derive(Debug, Default)]
struct Apart {
    /// One after another.
    in_turn: Cell<Duration>,
    /// The longest of those that were asked at once.
    at_once: Cell<Duration>,
}

/// Adds waits within the future's task; gives what it made, and how long it waited.
pub async fn counted<F: Future>(work: F) -> (F::Output, Duration) {
    let counted = async {
        let made = work.await;
        (made, APART.with(|apart| apart.in_turn.get() + apart.at_once.get()))
    };
    APART.scope(Apart::default(), counted).await
}

/// A wait for a webhook that changes objects, or for a turn.
pub fn waited(time: Duration) {
    // Work of the server's own is no request.
    let _ = APART.try_with(|apart| apart.in_turn.set(apart.in_turn.get() + time));
}

/// A wait for a webhook that is asked beside others.
pub fn waited_beside(time: Duration) {
    let _ = APART.try_with(|apart| apart.at_once.set(apart.at_once.get().max(time)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waits_in_turn_add_up_and_the_longest_counts_of_those_at_once() {
        let second = Duration::from_secs(1);
        waited(second);
        let work = async {
            waited(second);
            waited(second);
            waited_beside(3 * second);
            waited_beside(5 * second);
        };
        assert_eq!(counted(work).await.1, 7 * second);
        assert_eq!(counted(async {}).await.1, Duration::ZERO);
    }
}
