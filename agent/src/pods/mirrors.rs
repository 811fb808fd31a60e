//! Keeps one mirror pod for each static pod: which there are, and the calls that make and delete them.
//!
//! One call per pod at a time; what could not be done is tried again with growing pauses.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use proto::api::core::v1::Pod;
use tokio::task::{self, JoinSet};

use crate::backoff::Backoff;
use crate::pod::spec::PodExt;

use super::manager::key;
use super::{Shared, mirror};

/// Between tries to make or delete a mirror pod.
const RETRY: Duration = Duration::from_millis(250);
const LAST_RETRY: Duration = Duration::from_secs(10);

/// A call that came to an end.
struct Done {
    uid: String,
    change: Change,
    backoff: Backoff,
    /// What stood in the way, or nothing.
    trouble: String,
}

enum Change {
    Made(Arc<Pod>),
    Deleted(Arc<Pod>),
    /// To be looked at again.
    NotYet,
}

enum Work {
    Delete(Arc<Pod>),
    Create(Arc<Pod>),
}

/// What the API server has of static pods.
#[derive(Default)]
pub(super) struct Mirrors {
    /// By namespace and name.
    known: HashMap<(String, String), Arc<Pod>>,
    calls: JoinSet<Done>,
    /// Whom each call is for.
    busy: HashMap<task::Id, String>,
    /// Of mirrors that could not be adjusted yet, with what stood in the way last.
    backoffs: HashMap<String, (Backoff, String)>,
}

impl Mirrors {
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    pub(super) fn insert(&mut self, mirror: Pod) {
        self.known.insert(key(&mirror), Arc::new(mirror));
    }

    /// Forgets all but the named.
    pub(super) fn keep_only(&mut self, names: &HashSet<(String, String)>) {
        self.known.retain(|name, _| names.contains(name));
    }

    /// Forgets this very mirror, not a newer one of its name.
    pub(super) fn forget(&mut self, mirror: &Pod) {
        let name = key(mirror);
        if self.known.get(&name).is_some_and(|known| known.uid() == mirror.uid()) {
            self.known.remove(&name);
        }
    }

    /// Adjusts mirrors to the static pods. Those of no static pod go only when `all_known`: every source has spoken.
    pub(super) fn reconcile(&mut self, shared: &Arc<Shared>, statics: &[(String, Arc<Pod>)], all_known: bool) {
        let mut work: Vec<(String, Work)> = Vec::new();
        let mut shown = HashSet::new();
        for (uid, pod) in statics {
            let name = key(pod);
            match self.known.get(&name) {
                Some(found) if mirror::shows(found, pod) => shared.status.observe(uid, Some(found)),
                Some(found) => work.push((uid.clone(), Work::Delete(found.clone()))),
                None => {
                    shared.status.observe(uid, None);
                    work.push((uid.clone(), Work::Create(pod.clone())));
                }
            }
            shown.insert(name);
        }
        if all_known {
            let others = self.known.iter().filter(|(name, _)| !shown.contains(*name));
            work.extend(others.map(|(_, mirror)| (mirror.uid().to_owned(), Work::Delete(mirror.clone()))));
        }
        for (uid, work) in work {
            if self.busy.values().any(|other| *other == uid) {
                continue;
            }
            let before = self.backoffs.remove(&uid).unwrap_or_else(|| (Backoff::new(RETRY, LAST_RETRY), String::new()));
            let call = self.calls.spawn(call(shared.clone(), uid.clone(), work, before));
            self.busy.insert(call.id(), uid);
        }
    }

    /// Waits for the next call to end, for ever while there is none. Whoever waits reconciles next.
    pub(super) async fn next(&mut self) {
        match self.calls.join_next_with_id().await {
            Some(Ok((id, done))) => {
                self.busy.remove(&id);
                self.note(done);
            }
            Some(Err(error)) => {
                self.busy.remove(&error.id());
                tracing::error!(%error, "a call for a mirror pod broke off");
            }
            None => std::future::pending().await,
        }
    }

    fn note(&mut self, done: Done) {
        match done.change {
            Change::Made(made) => {
                self.known.insert(key(&made), made);
            }
            // The watch may have told already, while this was under way.
            Change::Deleted(old) => self.forget(&old),
            Change::NotYet => {
                self.backoffs.insert(done.uid, (done.backoff, done.trouble));
            }
        }
    }
}

async fn call(shared: Arc<Shared>, uid: String, work: Work, (mut backoff, before): (Backoff, String)) -> Done {
    let (what, pod) = match &work {
        Work::Delete(pod) => ("failed deleting a mirror pod", pod.clone()),
        Work::Create(pod) => ("failed creating a mirror pod", pod.clone()),
    };
    let result = match work {
        Work::Delete(old) => mirror::delete(&shared.client, &old).await.map(|()| Change::Deleted(old)),
        // One that is there already has yet to come by the watch.
        Work::Create(pod) => {
            let node = shared.node.borrow().clone();
            mirror::create(&shared.client, &pod, &node).await.map(|made| made.map_or(Change::NotYet, Change::Made))
        }
    };
    let (change, trouble) = match result {
        Ok(change) => (change, String::new()),
        Err(error) => (Change::NotYet, error.to_string()),
    };
    if is_news(&before, &trouble) {
        tracing::error!(error = trouble, pod = pod.name(), namespace = pod.namespace(), "{what}");
    }
    if matches!(change, Change::NotYet) {
        tokio::time::sleep(backoff.next_wait()).await;
    }
    Done { uid, change, backoff, trouble }
}

/// Whether a trouble is to be told: a pod that nobody else sees runs on, so once, but not at every try.
fn is_news(before: &str, trouble: &str) -> bool {
    !trouble.is_empty() && before != trouble
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nobody heard of a static pod that the API server refuses.
    #[test]
    fn a_trouble_is_told_once() {
        let told: Vec<&str> =
            ["", "a", "a", "b", ""].windows(2).filter(|w| is_news(w[0], w[1])).map(|w| w[1]).collect();
        assert_eq!(told, ["a", "b"]);
    }
}
