//! The loop that every controller runs in: take in events, work on keys, sleep.
//!
//! Before each key all events up to now are taken in. Since a write is visible to watchers before it returns, a
//! controller always sees its own writes, and needs no bookkeeping of what it expects to see. Some work on several keys at
//! once, because a webhook may keep one of them waiting; never on the same key twice at a time.

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
    type Key: Clone + Eq + Hash + Ord + Debug + Send + 'static;

    /// Names of the resources it watches.
    fn watched(&self) -> Vec<ResourceId>;

    /// Whether it watches the wrong resources by now and has to be made again.
    fn stale(&self) -> bool {
        false
    }

    /// Takes note of an event and queues the keys that it concerns.
    fn observe(&mut self, change: Change<'_>, queue: &mut Queue<Self::Key>);

    /// Brings what a key names to what it should be; a time when it has to be looked at again. Nothing else is done
    /// meanwhile.
    fn sync(&mut self, key: &Self::Key) -> impl Future<Output = Result<Option<Duration>>> + Send {
        let work = self.begin(key);
        async move {
            match work {
                Some(work) => work.await,
                None => Ok(None),
            }
        }
    }

    /// The same in place of [`Controller::sync`], for a controller that takes from its state now what the work needs: then
    /// up to [`AT_ONCE`] keys are worked on at the same time.
    fn begin(&mut self, _key: &Self::Key) -> Option<Work> {
        None
    }
}

/// Work on a key.
pub type Work = BoxFuture<'static, Result<Option<Duration>>>;

/// Keys that a controller works on at once, as upstream's `--concurrent-*-syncs` of most workloads; of daemon sets upstream
/// works on two.
pub const AT_ONCE: usize = 5;

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
    let mut working: FuturesUnordered<BoxFuture<'static, Done<C::Key>>> = FuturesUnordered::new();
    loop {
        let lost = feed.drain(|change| controller.observe(change, &mut queue)).is_err();
        if lost {
            tracing::info!(controller = C::NAME, "fell behind the store's history, looks at everything again");
        }
        if lost || controller.stale() {
            // What was begun is brought to its end: the next controller begins with the same keys.
            while let Some((_, result)) = working.next().await {
                result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).ok();
            }
            return;
        }
        let is_free = working.len() < AT_ONCE;
        if let Some(key) = is_free.then(|| queue.pop(Instant::now())).flatten() {
            match controller.begin(&key) {
                // Another one may panic as well: what is begun with it goes on.
                Some(work) => working.push(AssertUnwindSafe(work).catch_unwind().map(|result| (key, result)).boxed()),
                None => {
                    let result = controller.sync(&key).await;
                    settle::<C>(&mut queue, key, result);
                    // A controller with much to do lets others work too.
                    tokio::task::yield_now().await;
                }
            }
            continue;
        }
        // With all hands full nothing that falls due can be begun.
        let due = queue.next_due().filter(|_| is_free);
        let wait = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            Some((key, result)) = working.next(), if !working.is_empty() => {
                match result {
                    Ok(result) => settle::<C>(&mut queue, key, result),
                    Err(panic) => {
                        while working.next().await.is_some() {}
                        std::panic::resume_unwind(panic);
                    }
                }
                tokio::task::yield_now().await;
            }
            () = feed.changed() => {}
            () = wait => {}
        }
    }
}

/// A key and how work on it went, or what it panicked with.
type Done<K> = (K, std::thread::Result<Result<Option<Duration>>>);

/// Notes how work on a key went.
fn settle<C: Controller>(queue: &mut Queue<C::Key>, key: C::Key, result: Result<Option<Duration>>) {
    queue.done(&key);
    match result {
        Ok(again) => {
            queue.succeeded(&key);
            if let Some(wait) = again {
                queue.look_again(key, wait);
            }
        }
        Err(error) => {
            tracing::debug!(controller = C::NAME, ?key, %error, "tried again later");
            queue.failed(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::{mpsc, oneshot};

    use super::*;
    use crate::status::ApiError;

    type Begun = mpsc::UnboundedSender<(u32, oneshot::Sender<Result<Option<Duration>>>)>;

    /// Its keys are there from the beginning; a test says when and how work on each of them ends.
    struct Trial {
        begun: Begun,
    }

    impl Controller for Trial {
        const NAME: &'static str = "trial";
        type Key = u32;

        fn watched(&self) -> Vec<ResourceId> {
            vec!["pods".into()]
        }

        fn observe(&mut self, change: Change<'_>, queue: &mut Queue<u32>) {
            let (from, to) = change.object.key.name.split_once('-').expect("two numbers");
            (from.parse().expect("one")..to.parse().expect("another")).for_each(|key| queue.add(key));
        }

        fn begin(&mut self, key: &u32) -> Option<Work> {
            let (end, ended) = oneshot::channel();
            let _ = self.begun.send((*key, end));
            Some(ended.map(|end| end.expect("the test says how")).boxed())
        }
    }

    async fn put(store: &Store, name: &str) {
        use crate::store::{Change as Stored, Encoded, Expect, Key, Keys, Write};

        let json = br#"{"metadata":{"resourceVersion":""}}"#.to_vec();
        let json = proto::json::Slotted { json, offset: 32 };
        let change = Stored::Put(Encoded { json, keys: Keys::default(), tree: None });
        let write = Write { resource: "pods".into(), key: Key::new("", name), expect: Expect::Absent, change };
        store.commit(write).await.expect("written");
    }

    /// Work on one key held up all others of its controller.
    #[tokio::test(start_paused = true)]
    async fn five_keys_are_worked_on_at_once_and_none_twice() {
        let store = Store::open(None).expect("memory opens");
        let (begun, mut line) = mpsc::unbounded_channel();
        let trial = Trial { begun };
        let running = tokio::spawn(follow(store.clone(), trial));
        put(&store, "0-6").await;
        let mut ends = Vec::new();
        for key in 0..5 {
            let (begun, end) = line.recv().await.expect("it runs");
            assert_eq!(begun, key, "in order");
            ends.push(end);
        }
        // The first is wanted again while it is worked on: not before its end, and behind the one that waits already.
        put(&store, "0-1").await;
        let idle = tokio::time::timeout(Duration::from_secs(60), line.recv());
        assert!(idle.await.is_err(), "five are enough");
        let _ = ends.remove(0).send(Ok(None));
        let (next, last) = line.recv().await.expect("it runs");
        assert_eq!(next, 5);
        let _ = last.send(Err(ApiError::internal("it fails")));
        let (next, again) = line.recv().await.expect("it runs");
        assert_eq!(next, 0);
        let _ = again.send(Ok(Some(Duration::from_secs(9))));
        let (next, last) = line.recv().await.expect("it runs");
        assert_eq!(next, 5, "what failed is tried again");
        let _ = last.send(Ok(None));
        assert_eq!(line.recv().await.expect("it runs").0, 0, "another look after a while");
        running.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_controller_begins_again_after_a_panic_and_what_it_began_is_done_first() {
        static LIVES: AtomicUsize = AtomicUsize::new(0);
        let store = Store::open(None).expect("memory opens");
        let (begun, mut line) = mpsc::unbounded_channel();
        put(&store, "0-2").await;
        let make = move || {
            LIVES.fetch_add(1, Ordering::Relaxed);
            Trial { begun: begun.clone() }
        };
        let running = tokio::spawn(run(store, make));
        let (first, second) = (line.recv().await.expect("it runs"), line.recv().await.expect("it runs"));
        // Dropped: the work panics.
        drop(first.1);
        let idle = tokio::time::timeout(Duration::from_secs(60), line.recv());
        assert!(idle.await.is_err(), "the second is not done");
        let _ = second.1.send(Ok(None));
        assert_eq!(line.recv().await.expect("it runs").0, 0);
        assert_eq!(LIVES.load(Ordering::Relaxed), 2);
        running.abort();
    }
}
