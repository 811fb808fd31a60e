//! How long a container that ended has to wait before it is started again.
//!
//! The runtime tells the end of a container by the wall clock, which may be set at any time. It is asked once how long ago
//! the end was; from then on a clock counts that nobody sets, so that a jump neither holds a container for long nor lets it
//! go at once.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use proto::api::core::v1::{Container, ResourceRequirements};

use crate::pleg::observed::{Observed, RunState};

use super::backoff::{Backoff, INITIAL};
use super::quantity::milli;
use super::resources::ResourceList;

/// A container that ran so long starts over: the kubelet's, which does not change with the longest delay.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// A moment by both clocks, in nanoseconds: [`crate::clock::unix_nanos`] and [`crate::clock::steady_nanos`].
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    pub unix: i64,
    pub steady: i64,
}

impl Moment {
    pub fn now() -> Self {
        Self { unix: crate::clock::unix_nanos(), steady: crate::clock::steady_nanos() }
    }
}

/// The waits of one pod's containers; owned by its worker.
#[derive(Debug)]
pub struct CrashLoop {
    backoff: Backoff<String>,
    /// When containers ended, by id and the steady clock.
    ends: HashMap<String, i64>,
}

impl CrashLoop {
    pub fn new(max: Duration) -> Self {
        Self { backoff: Backoff::new(INITIAL, max).forget_after(FORGOTTEN_AFTER), ends: HashMap::new() }
    }

    /// The rest of the container's wait and the whole of it, counted from its last end; `None` when it may start, which
    /// then counts as a start.
    pub fn hold(&mut self, container: &Container, observed: &Observed, now: Moment) -> Option<(Duration, Duration)> {
        let tries = observed.containers.iter().filter(|c| c.name == container.name);
        let last = tries.into_iter().find(|c| c.state == RunState::Exited)?;
        let ago = || now.unix.saturating_sub(last.finished_at).max(0);
        let ended = *self.ends.entry(last.id.clone()).or_insert_with(|| now.steady.saturating_sub(ago()));
        let key = key(container);
        let held = self.backoff.remaining(&key, ended, now.steady);
        if held.is_none() {
            self.backoff.next(key, ended, now.steady);
        }
        held
    }

    /// Forgets the ends of containers that the runtime has no more.
    pub fn keep_only(&mut self, alive: &HashSet<&str>) {
        self.ends.retain(|id, _| alive.contains(id.as_str()));
    }
}

/// What has a wait of its own: another image, or other resources, may be the end of the trouble. The pod is the owner's.
fn key(container: &Container) -> String {
    let list =
        |list: &ResourceList| list.iter().map(|(name, value)| format!("{name}={}", milli(value))).collect::<Vec<_>>();
    let empty = ResourceRequirements::default();
    let own = container.resources.as_ref().unwrap_or(&empty);
    let claims = own.claims.iter().map(|c| format!("{}/{}", c.name, c.request)).collect::<Vec<_>>();
    let parts = [list(&own.limits), list(&own.requests), claims].map(|part| part.join(","));
    format!("{}_{}_{}", container.name, container.image, parts.join(";"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pleg::observed::ContainerRecord;

    const SECOND: i64 = 1_000_000_000;

    fn ended(id: &str, finished_at: i64) -> Observed {
        let (id, name) = (id.into(), "c".into());
        let record = ContainerRecord { id, name, state: RunState::Exited, finished_at, ..Default::default() };
        Observed { sandboxes: vec![], containers: vec![record] }
    }

    /// A clock that was set back held the container until it had caught up.
    #[test]
    fn a_wait_is_as_long_as_it_is_whatever_happens_to_the_wall_clock() {
        let container = Container { name: "c".into(), ..Default::default() };
        for jump in [-100_000 * SECOND, 0, 100_000 * SECOND] {
            let mut waits = CrashLoop::new(Duration::from_secs(300));
            let start = 1_000_000 * SECOND;
            let at = |seconds: i64, jump| Moment { unix: start + seconds * SECOND + jump, steady: seconds * SECOND };
            assert_eq!(waits.hold(&container, &ended("first", start), at(0, 0)), None, "the first is free");
            let second = ended("second", start + SECOND);
            assert_eq!(waits.hold(&container, &second, at(2, 0)).unwrap().0, Duration::from_secs(9));
            assert_eq!(waits.hold(&container, &second, at(5, jump)).unwrap().0, Duration::from_secs(6));
            assert_eq!(waits.hold(&container, &second, at(11, jump)), None);
        }
    }

    /// With a short limit of the waits, a container that ran for twice as long was started at once each time.
    #[test]
    fn only_a_run_of_ten_minutes_starts_over_whatever_the_limit() {
        let container = Container { name: "c".into(), ..Default::default() };
        for max in [1, 10, 300] {
            let mut waits = CrashLoop::new(Duration::from_secs(max));
            let at = |seconds: i64| Moment { unix: seconds * SECOND, steady: seconds * SECOND };
            assert_eq!(waits.hold(&container, &ended("first", SECOND), at(1)), None);
            assert!(waits.hold(&container, &ended("second", 601 * SECOND), at(601)).is_some(), "{max}");
            assert!(waits.hold(&container, &ended("third", 602 * SECOND), at(602)).is_none(), "{max}");
        }
    }

    #[test]
    fn another_image_or_other_resources_wait_for_nothing() {
        let container = Container { name: "c".into(), image: "i".into(), ..Default::default() };
        let asking = |memory: &str| {
            let limits =
                [("memory".to_owned(), proto::apimachinery::pkg::api::resource::Quantity { string: memory.into() })];
            let resources = Some(ResourceRequirements { limits: limits.into(), ..Default::default() });
            Container { resources, ..container.clone() }
        };
        let mut waits = CrashLoop::new(Duration::from_secs(300));
        let at = |seconds: i64| Moment { unix: seconds * SECOND, steady: seconds * SECOND };
        assert!(waits.hold(&asking("1Mi"), &ended("first", SECOND), at(1)).is_none());
        let second = ended("second", 2 * SECOND);
        assert!(waits.hold(&asking("1Mi"), &second, at(2)).is_some());
        assert!(waits.hold(&asking("1024Ki"), &second, at(2)).is_some(), "the same amount in other words");
        assert!(waits.hold(&asking("2Mi"), &second, at(2)).is_none(), "a resize starts over");
        assert!(waits.hold(&Container { image: "j".into(), ..asking("1Mi") }, &second, at(2)).is_none());
    }
}
