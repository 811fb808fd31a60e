//! How large volumes are on this node. One that several nodes have is made larger on each of them, while its claim
//! shows but that one of them has done so.
//!
//! After a start of the agent the claims count again, as with the kubelet.
//!
//! Followed: kubelet `actual_state_of_world.go` (`InitializeClaimSize`, `volumeNeedsExpansion`).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// In bytes, by the unique names of volumes.
#[derive(Default)]
pub struct Sizes(Mutex<HashMap<String, i64>>);

impl Sizes {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, i64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The size of a volume; one that the node came to have since it was asked last has what its claim shows.
    pub fn of(&self, volume: &str, shown: i64) -> i64 {
        *self.lock().entry(volume.to_owned()).or_insert(shown)
    }

    /// A volume has grown.
    pub fn note(&self, volume: &str, size: i64) {
        self.lock().insert(volume.to_owned(), size);
    }

    /// The node has the volume no more.
    pub fn forget(&self, volume: &str) {
        self.lock().remove(volume);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_has_the_size_that_its_claim_showed_first_until_it_grows_or_goes() {
        let sizes = Sizes::default();
        assert_eq!((sizes.of("a", 1), sizes.of("a", 2), sizes.of("b", 2)), (1, 1, 2));
        sizes.note("a", 3);
        assert_eq!(sizes.of("a", 2), 3);
        sizes.forget("a");
        assert_eq!(sizes.of("a", 2), 2);
    }
}
