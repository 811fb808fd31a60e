//! Events go after a while, as kube-apiserver's `--event-ttl` has it. Not one of kube-controller-manager's controllers: it
//! cannot be switched off.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::feed::Feed;
use crate::client::Client;
use crate::store::{EventKind, Key};

/// Runs until the runtime ends. An event lives for `life` after it was last written.
pub async fn run(client: Client, life: Duration) {
    loop {
        let mut feed = Feed::open(client.store(), &["events".into()]);
        // Every write of an event, oldest first; an event that was written again since is not due yet.
        let mut line: VecDeque<(Instant, Key, u64)> = VecDeque::new();
        loop {
            let now = Instant::now();
            let taken = feed.drain(|change| {
                if change.kind != EventKind::Deleted {
                    line.push_back((now + life, change.object.key.clone(), change.object.revision));
                }
            });
            if taken.is_err() {
                break;
            }
            while line.front().is_some_and(|(due, ..)| *due <= now) {
                let Some((_, key, revision)) = line.pop_front() else { break };
                let current = client.get("events", &key.namespace, &key.name);
                if let Some(event) = current.filter(|e| e.revision == revision)
                    && let Err(error) = client.expire("events", &event).await
                {
                    tracing::debug!(%error, event = %key.name, "an old event stays");
                }
            }
            match line.front() {
                Some((due, ..)) => tokio::select! {
                    () = feed.changed() => {}
                    () = tokio::time::sleep_until(*due) => {}
                },
                None => feed.changed().await,
            }
        }
    }
}
