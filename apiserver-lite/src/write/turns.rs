//! Who tries again, and when, after somebody else changed an object first.
//!
//! A write reads, computes and commits on the condition that nothing came in between: of many that read the same state
//! one goes through. One that names no version tries again until its request has no time left, as upstream does; one that
//! names a version has one attempt.
//!
//! Whoever was beaten gets in line for the object and tries again alone, so that N writers that come at once take about
//! 2 N attempts, each with its admission, and not N² / 2. Nobody looks at a line before it was beaten: a write that has the
//! object to itself costs nothing here. A first attempt may thus come in between; whoever has the turn keeps it then.
//!
//! A turn only saves work: no write is wrong without one. And what is done in a turn may wait for others: a webhook may
//! itself write the object that it is asked about, and a quota is written while something is charged to it. So nobody
//! waits in a line that does not move: after [`STILL`] a write goes on without a turn, as all of them do upstream. Whoever
//! waits for whom in a circle, it ends with that.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::update::Target;
use crate::server::ApiServer;
use crate::store::{Key, ResourceId};

/// How long a line may stand still before those who wait go on without a turn: longer than a slow disk takes, and far
/// shorter than the 10 s that a webhook has.
const STILL: Duration = Duration::from_millis(500);

/// How long writes of the server itself try again, which no request gives a time: as long as upstream's evictions try.
const OWN_TIME: Duration = Duration::from_secs(10);

/// The lines of objects that several want to change.
#[derive(Debug, Default)]
pub struct Turns(Mutex<HashMap<Object, Waiting>>);

type Object = (ResourceId, Key);

#[derive(Debug)]
struct Waiting {
    line: Arc<Line>,
    /// With the one whose turn it is; the line goes with the last of them.
    members: usize,
}

#[derive(Debug)]
struct Line {
    turn: Semaphore,
    /// Turns that have ended.
    ended: AtomicU64,
}

impl Turns {
    /// Gets in line; nothing is waited for yet.
    fn join(&self, object: Object) -> Place<'_> {
        let new = || Waiting { line: Arc::new(Line { turn: Semaphore::new(1), ended: AtomicU64::new(0) }), members: 0 };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = all.entry(object.clone()).or_insert_with(new);
        waiting.members += 1;
        Place { turns: self, object, line: waiting.line.clone(), has_turn: false }
    }
}

/// A place in the line of an object, and the turn once it is there; both end when it is dropped.
#[derive(Debug)]
struct Place<'a> {
    turns: &'a Turns,
    object: Object,
    line: Arc<Line>,
    has_turn: bool,
}

impl Place<'_> {
    /// Waits for the turn, not longer than until `end` and not in a line that stands still.
    async fn wait(&mut self, end: Instant) {
        let line = self.line.clone();
        let mut turn = pin!(line.turn.acquire());
        loop {
            let ended = line.ended.load(Ordering::Relaxed);
            let until = end.min(Instant::now() + STILL);
            match timeout_at(until, turn.as_mut()).await {
                Ok(Ok(permit)) => {
                    permit.forget();
                    self.has_turn = true;
                    return;
                }
                // Nobody closes it.
                Ok(Err(_)) => return,
                Err(_) if until == end || line.ended.load(Ordering::Relaxed) == ended => return,
                Err(_) => {}
            }
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.has_turn {
            self.line.ended.fetch_add(1, Ordering::Relaxed);
            self.line.turn.add_permits(1);
        }
        let mut all = self.turns.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiting) = all.get_mut(&self.object) {
            waiting.members -= 1;
            if waiting.members == 0 {
                all.remove(&self.object);
            }
        }
    }
}

/// The attempts of one write of an object.
pub(super) struct Attempts<'a> {
    turns: &'a Turns,
    target: Target<'a>,
    until: Option<Instant>,
    place: Option<Place<'a>>,
}

impl<'a> Attempts<'a> {
    /// `until` is when the answer has to be there; None for writes of the server itself.
    pub fn new(server: &'a ApiServer, target: Target<'a>, until: Option<Instant>) -> Self {
        Attempts { turns: &server.turns, target, until, place: None }
    }

    /// There is only one.
    pub fn one(server: &'a ApiServer, target: Target<'a>) -> Self {
        Attempts { turns: &server.turns, target, until: Some(Instant::now()), place: None }
    }

    /// Whether somebody who was beaten may try again; waits until that makes sense.
    pub async fn again(&mut self) -> bool {
        let now = Instant::now();
        let until = *self.until.get_or_insert(now + OWN_TIME);
        if now >= until {
            return false;
        }
        if !self.place.as_ref().is_some_and(|place| place.has_turn) {
            // Who waited in vain gets in line behind the others.
            self.place = None;
            let Target { resource, namespace, name, .. } = self.target;
            let object = (resource.storage.clone(), Key::new(namespace, name));
            self.place.insert(self.turns.join(object)).wait(until).await;
        }
        Instant::now() < until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str) -> Object {
        ("configmaps".into(), Key::new("n", name))
    }

    fn later(time: Duration) -> Instant {
        Instant::now() + time
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_wait_for_an_object_get_it_one_after_another() {
        let (turns, order) = (Turns::default(), Mutex::new(Vec::new()));
        let work = async |name: &'static str, number: u32| {
            let mut place = turns.join(object(name));
            place.wait(later(Duration::from_secs(60))).await;
            assert!(place.has_turn, "a line that moves is waited in");
            // Together longer than a line may stand still.
            tokio::time::sleep(STILL / 2).await;
            order.lock().expect("one thread").push((name, number));
        };
        let began = Instant::now();
        tokio::join!(work("a", 1), work("a", 2), work("a", 3), work("b", 4), work("a", 5));
        assert_eq!(began.elapsed(), STILL * 2, "other objects have lines of their own");
        let order = order.into_inner().expect("one thread");
        let of_a: Vec<u32> = order.iter().filter(|(name, _)| *name == "a").map(|(_, number)| *number).collect();
        assert_eq!(of_a, [1, 2, 3, 5]);
        assert!(turns.0.lock().expect("one thread").is_empty(), "a line goes with the last who was in it");
    }

    /// What a webhook writes waits for the write that asked the webhook, which waits for the webhook.
    #[tokio::test(start_paused = true)]
    async fn nobody_waits_in_a_line_that_stands_still() {
        let turns = Turns::default();
        let mut first = turns.join(object("a"));
        first.wait(later(STILL)).await;
        let began = Instant::now();
        let mut second = turns.join(object("a"));
        second.wait(later(Duration::from_secs(60))).await;
        assert!(first.has_turn && !second.has_turn);
        assert_eq!(began.elapsed(), STILL);
        // Nor beyond its own time.
        let mut third = turns.join(object("a"));
        third.wait(later(STILL / 5)).await;
        assert!(!third.has_turn && began.elapsed() == STILL + STILL / 5);
        drop((second, third));
        drop(first);
        let mut last = turns.join(object("a"));
        last.wait(later(STILL)).await;
        assert!(last.has_turn, "who went on without a turn takes none along");
    }

    #[tokio::test]
    async fn attempts_end_with_the_time_of_the_request() {
        let server = crate::serve::testing::server().await;
        tokio::time::pause();
        let resource = server.resources.lookup("", "v1", "configmaps").expect("built in");
        let target = Target { resource: &resource, subresource: "", namespace: "default", name: "a" };
        let mut attempts = Attempts::new(&server, target, Some(later(STILL * 3)));
        let mut others = Attempts::new(&server, target, None);
        assert!(others.again().await && others.again().await, "a turn is kept for the next attempt");
        // The others keep it for ever, and this one goes on without.
        assert!(attempts.again().await && attempts.again().await);
        assert!(!attempts.again().await, "its time is over");
        drop(attempts);
        tokio::time::advance(OWN_TIME).await;
        assert!(!others.again().await, "the server's own writes have an end as well");
        drop(others);
        assert!(server.turns.0.lock().expect("one thread").is_empty());
    }
}
