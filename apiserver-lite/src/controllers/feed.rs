//! The events of several resources as one stream: first everything that is there, then every change.

use futures_util::future::select_all;
use tokio::sync::watch;

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
    /// Any write to the store, for a feed of so many resources that most writes concern it.
    any: Option<watch::Receiver<u64>>,
}

/// Feeds of more resources wait for any write: those that follow everything, not those that pick what they need.
const FEW: usize = 16;

impl Feed {
    pub fn open(store: &Store, resources: &[ResourceId]) -> Self {
        loop {
            let revision = store.revision();
            // Both fail only when history moved on between the lines: then there is a newer revision to begin at.
            let watchers: Result<Vec<_>, _> = resources.iter().map(|r| store.watch(r, revision)).collect();
            let snapshots: Result<Vec<_>, _> = resources.iter().map(|r| store.snapshot_at(r, revision)).collect();
            if let (Ok(watchers), Ok(snapshots)) = (watchers, snapshots) {
                let numbered = snapshots.iter().enumerate();
                let initial = numbered.flat_map(|(i, s)| s.range(None, None).map(move |o| (i, o.clone()))).collect();
                let any = (resources.len() > FEW).then(|| store.subscribe_revision());
                return Feed { watchers, initial, events: Vec::new(), any };
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
        let waits: Vec<_> = self.watchers.iter_mut().map(|w| Box::pin(w.changed())).collect();
        if waits.is_empty() {
            return std::future::pending().await;
        }
        select_all(waits).await;
    }
}
