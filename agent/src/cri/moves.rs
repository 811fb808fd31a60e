//! Whether anything has moved in the runtime since somebody looked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A count of what has moved. Clones share it.
///
/// Who lists what the runtime has, and finds the count as it was before, has the list that he would get again: what this
/// agent has done is counted when it is done, all else when [`crate::pleg::watch`] notices.
#[derive(Debug, Clone, Default)]
pub struct Moves(Arc<Counted>);

#[derive(Debug, Default)]
struct Counted {
    count: AtomicU64,
    /// Somebody compares, and the runtime answers him.
    watched: AtomicBool,
}

impl Moves {
    /// `None` while nobody would notice: before the first list, and while the runtime does not answer. To be taken before
    /// the list that it is to stand for.
    pub fn count(&self) -> Option<u64> {
        self.0.watched.load(Ordering::Acquire).then(|| self.0.count.load(Ordering::Acquire))
    }

    /// Something moved.
    pub fn stir(&self) {
        self.0.count.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether what is there is compared now and then. When that ends or begins, what was seen before stands no more.
    pub fn set_watched(&self, watched: bool) {
        if self.0.watched.swap(watched, Ordering::AcqRel) != watched {
            self.stir();
        }
    }

    /// For the time of somebody who compares: at its end nobody does.
    pub fn watching(&self) -> Watching {
        Watching(self.clone())
    }

    /// For the time of a call that moves something: counted at its end, however it ends.
    pub(super) fn moving(&self) -> Moving {
        Moving(self.clone())
    }
}

/// See [`Moves::watching`].
pub struct Watching(Moves);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.set_watched(false);
    }
}

pub(super) struct Moving(Moves);

impl Drop for Moving {
    fn drop(&mut self) {
        self.0.stir();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_watches_is_never_as_it_was() {
        let moves = Moves::default();
        assert_eq!(moves.count(), None);
        moves.set_watched(true);
        let before = moves.count();
        assert!(before.is_some());
        moves.set_watched(true);
        assert_eq!(moves.clone().count(), before, "another look at the same");
        drop(moves.moving());
        let after = moves.count();
        assert_ne!(after, before);
        // What went on while the runtime was away has not been seen.
        moves.set_watched(false);
        assert_eq!(moves.count(), None);
        moves.set_watched(true);
        assert_ne!(moves.count(), after);
        drop(moves.watching());
        assert_eq!(moves.count(), None, "he has gone");
    }
}
