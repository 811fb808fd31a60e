//! The loop that every controller runs in: take in events, work on keys one after another, sleep.
//!
//! Before each key all events up to now are taken in. Since a write is visible to watchers before it returns, a
//! controller always sees its own writes, and needs no bookkeeping of what it expects to see.

use std::fmt::Debug;
use std::future::Future;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::Instant;

use super::feed::{Change, Feed};
use super::queue::Queue;
use crate::status::Result;
use crate::store::{ResourceId, Store};

/// A controller: what it watches, which keys an event concerns, and what to do about a key.
pub trait Controller: Send + 'static {
    /// kube-controller-manager's name for it.
    const NAME: &'static str;
    type Key: Clone + Eq + Hash + Ord + Debug + Send;

    /// Names of the resources it watches.
    fn watched(&self) -> Vec<ResourceId>;

    /// Whether it watches the wrong resources by now and has to be made again.
    fn stale(&self) -> bool {
        false
    }

    /// Takes note of an event and queues the keys that it concerns.
    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Self::Key>);

    /// Brings what a key names to what it should be; a time when it has to be looked at again.
    fn sync(&mut self, key: &Self::Key) -> impl Future<Output = Result<Option<Duration>>> + Send;
}

/// Runs a controller until the runtime ends; `make` builds it again after a panic, or after events were lost.
pub async fn run<C: Controller>(store: Store, make: impl Fn() -> C + Send + Sync + 'static) {
    loop {
        // What a panic left behind goes with the controller; the store's own locks bear one.
        let work = async { follow(store.clone(), make()).await };
        if let Err(panic) = AssertUnwindSafe(work).catch_unwind().await {
            let why = crate::panic_text(&*panic);
            tracing::error!(controller = C::NAME, why, "a controller failed and begins again; this is a bug");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

/// Runs many controllers as one task. A write concerns a dozen of them, and each task that it wakes may wake a thread.
/// What one of them waits for, others work through. Only [`crate::wait_for`] holds up all: a webhook that has to convert
/// parameters of policies, or that is asked for access by an expression; who asks it by himself is a task of his own.
pub async fn run_all(all: Vec<BoxFuture<'static, ()>>) {
    let mut all: FuturesUnordered<_> = all.into_iter().collect();
    while all.next().await.is_some() {}
}

/// Works until events are lost.
async fn follow<C: Controller>(store: Store, mut controller: C) {
    let mut feed = Feed::open(&store, &controller.watched());
    let mut queue = Queue::default();
    loop {
        loop {
            if feed.drain(|change| controller.observe(change, &mut queue)).is_err() {
                tracing::info!(controller = C::NAME, "fell behind the store's history, looks at everything again");
                return;
            }
            if controller.stale() {
                return;
            }
            let Some(key) = queue.pop(Instant::now()) else { break };
            match controller.sync(&key).await {
                Ok(again) => {
                    queue.succeeded(&key);
                    if let Some(wait) = again {
                        queue.add_after(key, wait);
                    }
                }
                Err(error) => {
                    tracing::debug!(controller = C::NAME, ?key, %error, "tried again later");
                    queue.failed(key);
                }
            }
            // A controller with much to do lets others work too.
            tokio::task::yield_now().await;
        }
        match queue.next_due() {
            Some(due) => tokio::select! {
                () = feed.changed() => {}
                () = tokio::time::sleep_until(due) => {}
            },
            None => feed.changed().await,
        }
    }
}
