//! What is carried through for a pod though it is to end meanwhile.
//!
//! The kubelet's pods end between two syncs: the sandbox that is being made, the containers that are due, a postStart
//! hook and what is stopped while the pod goes on come to their end first. So they do here. A pull is the exception: it
//! may take minutes, and nobody needs what it brings any more. Whoever does such things says so with a [`Guard`], and
//! whoever would break them off waits with [`Carried::over`].
//!
//! Followed: kubelet `SyncPod`, which hands the runtime a context that nothing cancels.

use std::sync::Arc;

use tokio::sync::watch;

/// What is going on of either kind.
#[derive(Debug, Default)]
struct Now {
    carried: usize,
    aside: usize,
}

/// Whether something is being carried through; the clones are one.
#[derive(Debug, Clone, Default)]
pub struct Carried(Arc<watch::Sender<Now>>);

/// What it says holds until it is dropped.
pub struct Guard {
    carried: Carried,
    aside: bool,
}

impl Carried {
    /// From now on nothing is broken off.
    pub fn begin(&self) -> Guard {
        self.0.send_modify(|now| now.carried += 1);
        Guard { carried: self.clone(), aside: false }
    }

    /// What comes now may be given up, whatever it is a part of.
    pub fn aside(&self) -> Guard {
        self.0.send_modify(|now| now.aside += 1);
        Guard { carried: self.clone(), aside: true }
    }

    /// Returns when nothing is carried through; at once where nothing is.
    pub async fn over(&self) {
        let mut now = self.0.subscribe();
        // The sender is our own.
        let _ = now.wait_for(|now| now.carried == 0 || now.aside > 0).await;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.carried.0.send_modify(|now| {
            let count = if self.aside { &mut now.aside } else { &mut now.carried };
            *count = count.saturating_sub(1);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    #[test]
    fn what_is_carried_through_is_waited_for_but_for_what_may_be_given_up() {
        let carried = Carried::default();
        let over = || carried.over().now_or_never().is_some();
        assert!(over());
        let whole = carried.begin();
        assert!(!over());
        let pull = carried.clone().aside();
        assert!(over());
        drop(pull);
        assert!(!over());
        // Whatever is given up first.
        let pull = carried.aside();
        drop(whole);
        drop(pull);
        assert!(over());
    }
}
