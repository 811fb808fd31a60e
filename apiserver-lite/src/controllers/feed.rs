//! The events of several resources as one stream: first everything that is there, then every change.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

use crate::store::{EventKind, EventRef, Expired, ObjectRef, ResourceId, Store, Watcher};

/// Something that happened to an object.
#[derive(Clone, Copy)]
pub struct Change<'a> {
    /// Which of the feed's resources, in the order given.
    pub resource: usize,
    pub kind: EventKind,
    /// The new state, or the last one.
    pub object: &'a ObjectRef,
    /// The state before; none for what was there at the beginning.
    pub previous: Option<&'a ObjectRef>,
}

impl Change<'_> {
    pub fn deleted(&self) -> bool {
        self.kind == EventKind::Deleted
    }
}

/// A cursor in the history of each of several resources.
pub struct Feed {
    watchers: Vec<Watcher>,
    initial: Vec<(usize, ObjectRef)>,
    events: Vec<EventRef>,
    /// Rung after each change of one of the resources.
    bell: Arc<Notify>,
    /// Any write to the store, for a feed of so many resources that most writes concern it.
    any: Option<watch::Receiver<u64>>,
}

/// Feeds of more resources wait for any write: those that follow everything, not those that pick what they need.
const FEW: usize = 16;

impl Feed {
    pub fn open(store: &Store, resources: &[ResourceId]) -> Self {
        // Before the watchers: a write that they are to tell of rings it then, however late.
        let any = (resources.len() > FEW).then(|| store.subscribe_revision());
        let bell = Arc::new(Notify::new());
        if any.is_none() {
            store.ring(resources, &bell);
        }
        loop {
            let revision = store.revision();
            // Both fail only when history moved on between the lines: then there is a newer revision to begin at.
            let watchers: Result<Vec<_>, _> = resources.iter().map(|r| store.watch(r, revision)).collect();
            let snapshots: Result<Vec<_>, _> = resources.iter().map(|r| store.snapshot_at(r, revision)).collect();
            if let (Ok(watchers), Ok(snapshots)) = (watchers, snapshots) {
                let numbered = snapshots.iter().enumerate();
                let initial = numbered.flat_map(|(i, s)| s.range(None, None).map(move |o| (i, o.clone()))).collect();
                return Feed { watchers, initial, events: Vec::new(), bell, any };
            }
        }
    }

    /// Hands out what happened since the last call, without waiting.
    ///
    /// # Errors
    /// [`Expired`] when events were lost: open a new feed.
    pub fn drain(&mut self, mut take: impl FnMut(Change<'_>)) -> Result<(), Expired> {
        if let Some(any) = &mut self.any {
            any.mark_unchanged();
        }
        for (resource, object) in std::mem::take(&mut self.initial) {
            take(Change { resource, kind: EventKind::Added, object: &object, previous: None });
        }
        for (resource, watcher) in self.watchers.iter_mut().enumerate() {
            // Most writes concern one of the resources.
            while watcher.was_told() && watcher.ready(&mut self.events)? {
                for event in self.events.drain(..) {
                    let previous = event.previous.as_ref();
                    take(Change { resource, kind: event.kind, object: &event.object, previous });
                }
            }
        }
        Ok(())
    }

    /// Waits until there is something to hand out.
    pub async fn changed(&mut self) {
        if !self.initial.is_empty() {
            return;
        }
        if let Some(any) = &mut self.any {
            if any.changed().await.is_err() {
                // The store is gone: nothing will change.
                std::future::pending::<()>().await;
            }
            return;
        }
        // A bell that rang for what was handed out already rings once more here.
        while !self.watchers.iter().any(Watcher::was_told) {
            self.bell.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proto::json::Slotted;
    use tokio::time::timeout;

    use super::*;
    use crate::store::{Change as Stored, Encoded, Expect, Key, Keys, Write};

    async fn put(store: &Store, resource: &str, name: &str) {
        let json = Slotted { json: br#"{"metadata":{"resourceVersion":""}}"#.to_vec(), offset: 32 };
        let change = Stored::Put(Encoded { json, keys: Keys::default(), tree: None });
        let write = Write { resource: resource.into(), key: Key::new("", name), expect: Expect::Absent, change };
        store.commit(write).await.expect("written");
    }

    fn taken(feed: &mut Feed) -> Vec<(usize, String)> {
        let mut all = Vec::new();
        feed.drain(|change| all.push((change.resource, change.object.key.name.to_string()))).expect("in time");
        all
    }

    #[tokio::test(start_paused = true)]
    async fn a_feed_waits_for_any_of_its_resources_and_for_no_others() {
        let store = Store::open(None).expect("memory opens");
        let mut feed = Feed::open(&store, &["a".into(), "b".into()]);
        let waits = async |feed: &mut Feed| timeout(Duration::from_millis(50), feed.changed()).await.is_err();
        assert!(waits(&mut feed).await, "there was nothing");
        for (resource, name) in [("a", "1"), ("b", "2"), ("a", "3")] {
            put(&store, resource, name).await;
            assert!(!waits(&mut feed).await && !waits(&mut feed).await, "it is told until it has looked");
            assert_eq!(taken(&mut feed), [(usize::from(resource == "b"), name.to_owned())]);
            assert!(waits(&mut feed).await, "of what was handed out nothing is told again");
        }
        put(&store, "c", "4").await;
        assert!(waits(&mut feed).await && taken(&mut feed).is_empty());
        let mut other = Feed::open(&store, &["a".into()]);
        assert_eq!(taken(&mut other), [(0, "1".to_owned()), (0, "3".to_owned())]);
        drop(feed);
        let woken = tokio::spawn(async move {
            other.changed().await;
            taken(&mut other)
        });
        tokio::task::yield_now().await;
        put(&store, "a", "5").await;
        assert_eq!(woken.await.expect("no panic"), [(0, "5".to_owned())]);
    }
}
