//! How far the sandboxes and containers of a pod have come, as one look at the runtime has it: small to keep, and enough
//! to tell whether somebody who knows the pod has to look again.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proto::cri;
use tokio::time::Instant;

/// A sandbox or a container and its state, in the CRI's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// A hash of the id, which is 64 letters long.
    id: u64,
    state: i32,
}

/// The parts of a pod, by their ids.
pub type Parts = Arc<[Part]>;

impl Part {
    pub fn new(id: &str, state: i32) -> Self {
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        Self { id: hasher.finish(), state }
    }

    /// Whether this is what came before `now`: a sandbox is ready and then never again, a container is made, runs and has
    /// ended. Of what the runtime does not know itself nobody can tell.
    fn comes_before(self, now: Part) -> bool {
        self.state < now.state && now.state != cri::ContainerState::ContainerUnknown as i32
    }
}

/// The parts in their order.
pub fn parts(mut parts: Vec<Part>) -> Parts {
    parts.sort_unstable();
    parts.into()
}

/// When somebody who knows the parts of a pod looked at them: at all of it once, at single ones again since.
#[derive(Debug, Clone)]
pub struct Looked {
    all: Instant,
    /// The ids of those that were looked at since, and when; few, as the next look at all of it clears them.
    since: Vec<(u64, Instant)>,
}

impl Looked {
    /// The look at all of the pod began at `begun`.
    pub fn at_all(begun: Instant) -> Self {
        Self { all: begun, since: Vec::new() }
    }

    /// Since then there was a look at the part `id`, which began at `begun`.
    pub fn at(&mut self, id: &str, begun: Instant) {
        self.since.push((Part::new(id, 0).id, begun));
    }

    fn of(&self, id: u64) -> Instant {
        self.since.iter().rev().find(|(of, _)| *of == id).map_or(self.all, |(_, begun)| *begun)
    }
}

/// Since when something is so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    /// All of the pod was listed; that began then.
    Listed(Instant),
    /// The runtime told of it by itself, of one sandbox and what is in it, at some time.
    Told,
}

/// What somebody saw of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    parts: Parts,
    when: When,
}

impl Seen {
    /// All that a list had of the pod; the runtime was asked for it at `begun`.
    pub fn listed(parts: Parts, begun: Instant) -> Self {
        Self { parts, when: When::Listed(begun) }
    }

    /// What the runtime said of a part of the pod.
    pub fn told(parts: Parts) -> Self {
        Self { parts, when: When::Told }
    }

    /// Whether it says nothing new to who knows `known`, which was `looked` at then. What he did himself since an earlier
    /// list began is not in that list yet; whatever has gone further than he knows is news, however old.
    pub fn is_known(&self, known: &[Part], looked: &Looked) -> bool {
        let is_old = |id| match self.when {
            When::Listed(begun) => begun < looked.of(id),
            When::Told => true,
        };
        let known_of = |part: &Part| {
            find(known, part.id).is_some_and(|now| now.state == part.state || is_old(part.id) && part.comes_before(now))
        };
        let has_gone = |part: &Part| find(&self.parts, part.id).is_none() && !is_old(part.id);
        self.parts.iter().all(known_of) && !known.iter().any(has_gone)
    }

    /// Whether nothing in it is alive in another way than when `known` was seen: what a pod that has ended left may only end,
    /// and go.
    pub fn is_as_dead_as(&self, known: &[Part]) -> bool {
        let (ended, lost) = (cri::ContainerState::ContainerExited as i32, cri::ContainerState::ContainerUnknown as i32);
        let is_no_news = |part: &Part| {
            find(known, part.id)
                .is_some_and(|then| part.state == ended || part.state == then.state && then.state != lost)
        };
        self.parts.iter().all(is_no_news)
    }

    /// Whether nothing in it is strange to who knows `known`, in whatever state it is now.
    pub fn is_of(&self, known: &[Part]) -> bool {
        self.parts.iter().all(|part| find(known, part.id).is_some())
    }
}

fn find(all: &[Part], id: u64) -> Option<Part> {
    all.binary_search_by_key(&id, |part| part.id).ok().map(|at| all[at])
}

/// What the runtime had of each pod last; clones share it. It holds while somebody watches the runtime, which
/// [`crate::cri::Moves::count`] tells.
#[derive(Clone, Default)]
pub struct Latest(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    /// When the last list was asked for.
    listed: Option<Instant>,
    pods: HashMap<String, Has>,
}

enum Has {
    /// In the last list.
    Listed(Parts),
    /// Told since then.
    Told(Parts),
    /// Something has gone since then, nobody knows what.
    Less,
}

impl Latest {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All pods of a list that was asked for at `begun`.
    pub fn set<'a>(&self, begun: Instant, pods: impl Iterator<Item = (&'a str, &'a Parts)>) {
        let pods = pods.map(|(uid, parts)| (uid.to_owned(), Has::Listed(parts.clone()))).collect();
        *self.inner() = Inner { listed: Some(begun), pods };
    }

    /// What the runtime told of one pod; `None` where something of it has gone.
    pub fn told(&self, uid: &str, parts: Option<&Parts>) {
        self.inner().pods.insert(uid.to_owned(), parts.map_or(Has::Less, |parts| Has::Told(parts.clone())));
    }

    /// Whether the runtime has what somebody knows of a pod, who `looked` at it then; see [`Seen::is_known`].
    pub fn agrees(&self, uid: &str, known: &[Part], looked: &Looked) -> bool {
        let inner = self.inner();
        let Some(begun) = inner.listed else { return false };
        let seen = match inner.pods.get(uid) {
            Some(Has::Listed(parts)) => Seen::listed(parts.clone(), begun),
            Some(Has::Told(parts)) => Seen::told(parts.clone()),
            Some(Has::Less) => return false,
            None => Seen::listed(Parts::from([]), begun),
        };
        seen.is_known(known, looked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const READY: i32 = cri::PodSandboxState::SandboxReady as i32;
    const NOT_READY: i32 = cri::PodSandboxState::SandboxNotready as i32;
    const CREATED: i32 = cri::ContainerState::ContainerCreated as i32;
    const RUNNING: i32 = cri::ContainerState::ContainerRunning as i32;
    const EXITED: i32 = cri::ContainerState::ContainerExited as i32;
    const UNKNOWN: i32 = cri::ContainerState::ContainerUnknown as i32;

    fn of(list: &[(&str, i32)]) -> Parts {
        parts(list.iter().map(|(id, state)| Part::new(id, *state)).collect())
    }

    #[test]
    fn an_old_list_has_no_news_in_what_has_gone_on_since_and_a_new_one_in_all_that_differs() {
        let known = of(&[("s", READY), ("c", RUNNING)]);
        let same: &[(&str, i32)] = &[("c", RUNNING), ("s", READY)];
        // What a list has; whether one that is older than the look says nothing new, and one that is younger.
        for (seen, old, young) in [
            (same, true, true),
            (&[("s", READY), ("c", CREATED)], true, false),
            (&[("s", READY)], true, false),
            (&[], true, false),
            (&[("s", READY), ("c", EXITED)], false, false),
            (&[("s", NOT_READY), ("c", RUNNING)], false, false),
            (&[("s", READY), ("c", UNKNOWN)], false, false),
            (&[("s", READY), ("c", RUNNING), ("d", CREATED)], false, false),
        ] {
            let begun = Instant::now();
            let of_list = Seen::listed(of(seen), begun);
            let (at, after) = (Looked::at_all(begun), Looked::at_all(begun + Duration::from_millis(1)));
            assert_eq!((of_list.is_known(&known, &after), of_list.is_known(&known, &at)), (old, young), "{seen:?}");
            // The runtime tells of one sandbox, and may tell late.
            assert_eq!(Seen::told(of(seen)).is_known(&known, &at), old, "{seen:?}");
        }
        let lost = of(&[("c", UNKNOWN)]);
        let looked = Looked::at_all(Instant::now() + Duration::from_millis(1));
        let running = Seen::listed(of(&[("c", RUNNING)]), Instant::now());
        assert!(!running.is_known(&lost, &looked), "what nobody knew is known again");
    }

    /// A container that was removed by hand while another one of its pod was started used to be missed: the look at the new
    /// one counted as a look at both.
    #[test]
    fn a_look_at_one_part_makes_no_list_old_for_the_others() {
        let known = of(&[("s", READY), ("c", RUNNING), ("new", RUNNING)]);
        let begun = Instant::now();
        let (listed, at) = (begun + Duration::from_millis(1), begun + Duration::from_millis(2));
        let mut looked = Looked::at_all(begun);
        looked.at("new", at);
        let is_known = |list: &[(&str, i32)], looked: &Looked| Seen::listed(of(list), listed).is_known(&known, looked);
        assert!(is_known(&[("s", READY), ("c", RUNNING)], &looked), "it was made since");
        assert!(is_known(&[("s", READY), ("c", RUNNING), ("new", CREATED)], &looked), "it has started since");
        assert!(!is_known(&[("s", READY)], &looked), "the other one has gone");
        assert!(!is_known(&[("s", READY), ("new", RUNNING)], &looked));
        looked.at("c", at);
        assert!(is_known(&[("s", READY)], &looked), "it was there later than that");
        assert!(!Seen::listed(of(&[("s", READY), ("c", RUNNING)]), at).is_known(&known, &looked));
    }

    #[test]
    fn what_is_strange_is_told_from_what_has_gone_on() {
        let known = of(&[("s", READY), ("c", RUNNING)]);
        let is_of = |list: &[(&str, i32)]| Seen::told(of(list)).is_of(&known);
        assert!(is_of(&[]) && is_of(&[("s", NOT_READY), ("c", EXITED)]));
        assert!(!is_of(&[("s", READY), ("late", CREATED)]));
    }

    /// Each container that was cleared up after a pod had ended had its worker look at all of the pod.
    #[test]
    fn of_a_pod_that_has_ended_only_what_lives_is_news() {
        let known = of(&[("s", NOT_READY), ("c", EXITED), ("made", CREATED), ("lost", UNKNOWN)]);
        let same: &[(&str, i32)] = &[("s", NOT_READY), ("c", EXITED), ("made", CREATED)];
        for (seen, is_no_news) in [
            (same, true),
            (&[], true),
            (&[("s", NOT_READY)], true),
            (&[("made", EXITED), ("lost", EXITED)], true),
            (&[("made", RUNNING)], false),
            (&[("lost", RUNNING)], false),
            (&[("c", RUNNING)], false),
            (&[("s", READY)], false),
            (&[("late", CREATED)], false),
            (&[("late", READY)], false),
            (&[("late", EXITED)], false),
        ] {
            assert_eq!(Seen::told(of(seen)).is_as_dead_as(&known), is_no_news, "{seen:?}");
        }
    }

    #[test]
    fn the_last_list_tells_of_pods_that_it_does_not_have_too() {
        let latest = Latest::default();
        let (known, begun) = (of(&[("s", READY)]), Instant::now());
        let last = begun + Duration::from_millis(2);
        let (before, after) = (&Looked::at_all(begun), &Looked::at_all(last));
        assert!(!latest.agrees("a", &[], after), "nothing was listed");
        let listed = begun + Duration::from_millis(1);
        latest.set(listed, [("a", &known)].into_iter());
        assert!(latest.agrees("a", &known, before) && latest.agrees("b", &[], before));
        assert!(!latest.agrees("b", &known, before), "it has gone");
        assert!(latest.agrees("b", &known, after), "it was made since");
        latest.told("a", Some(&of(&[("s", NOT_READY)])));
        assert!(!latest.agrees("a", &known, after));
        latest.told("b", None);
        assert!(!latest.agrees("b", &[], after), "nobody knows what has gone");
        latest.set(last, std::iter::empty());
        assert!(latest.agrees("b", &[], after) && !latest.agrees("a", &known, before));
    }
}
