//! The starts of a pod's containers that are under way.
//!
//! A start is not called off when the pod ends meanwhile: runtimes leave such a container half started, and it can be
//! neither stopped nor removed for a while. So a start outlives what called for it, and whoever stops the container lets
//! it come to its end first.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;

/// The containers, by their ids, that the runtime was asked to start and has not answered for.
#[derive(Debug, Default, Clone)]
pub struct Starts(Arc<watch::Sender<BTreeSet<String>>>);

/// One start; it is over when this is dropped.
pub struct UnderWay {
    starts: Starts,
    id: String,
}

impl Starts {
    /// The start of container `id` begins.
    pub fn begin(&self, id: &str) -> UnderWay {
        self.0.send_modify(|ids| {
            ids.insert(id.to_owned());
        });
        UnderWay { starts: self.clone(), id: id.to_owned() }
    }

    pub fn under_way(&self) -> BTreeSet<String> {
        self.0.borrow().clone()
    }

    /// Returns when the start of container `id` is over; at once where none is under way.
    pub async fn over(&self, id: &str) {
        let mut now = self.0.subscribe();
        // The sender is our own.
        let _ = now.wait_for(|ids| !ids.contains(id)).await;
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.starts.0.send_modify(|ids| {
            ids.remove(&self.id);
        });
    }
}
