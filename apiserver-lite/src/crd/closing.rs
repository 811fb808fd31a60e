//! Tells those who follow the objects of a definition that it is served in another way from now on, or no more.
//!
//! What they follow with was made for a definition as it was. Upstream ends every watch of a custom kind when what its
//! definition says, or the names that it has, change: clients come back from their last version and meet what is served
//! then.

use tokio::sync::watch;

/// Held by who serves a definition. Followers go when it is dropped.
#[derive(Debug, Default)]
pub struct Keeper(watch::Sender<Option<u64>>);

/// What a follower looks at.
#[derive(Debug, Clone)]
pub struct Closing(watch::Receiver<Option<u64>>);

impl Keeper {
    pub fn closing(&self) -> Closing {
        Closing(self.0.subscribe())
    }

    /// Followers take nothing that comes after this revision, and wait for their end.
    pub fn begin(&self, revision: u64) {
        self.0.send_replace(Some(revision));
    }
}

impl Closing {
    /// Whether what comes now may be of another state of the definition.
    pub fn has_begun(&self) -> bool {
        self.last().is_some()
    }

    /// The revision up to which everything is of the state that is followed; None while that goes on. Zero for who came
    /// when it was over.
    pub fn last(&self) -> Option<u64> {
        let last = *self.0.borrow();
        last.or_else(|| self.0.has_changed().is_err().then_some(0))
    }

    /// Waits until the next state of the definition is what everybody meets. Cancel safe.
    pub async fn ended(&mut self) {
        while self.0.changed().await.is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn followers_wait_from_the_begin_to_the_end() {
        let keeper = Keeper::default();
        let (mut early, other) = (keeper.closing(), keeper.closing());
        assert!(!early.has_begun());
        keeper.begin(7);
        assert_eq!(early.last(), Some(7));
        assert!(early.has_begun() && keeper.closing().has_begun());
        let waits = tokio::time::timeout(std::time::Duration::from_millis(20), early.ended()).await;
        assert!(waits.is_err(), "nothing new is served yet");
        drop(keeper);
        early.ended().await;
        assert!(early.has_begun() && other.has_begun());
    }
}
