//! The server's seats: who has how many, who waits for some, and who is next.
//!
//! One lock guards the counts of all levels, so that seats can go from one to another; it is held for a few additions,
//! and never while anything waits. A level that is full takes over seats that others may lend and do not use; one that
//! has lent seats gets them back at once when it needs them, even those that requests still run on. Until those end more
//! seats are in use than there are.
//!
//! Within a level requests wait in queues. Each flow is dealt a hand of them (shuffle sharding), so that a flow with very
//! many requests fills its own hand and others still find a queue; the queues take turns by the work they have had
//! (start-time fair queuing).
//!
//! Unlike upstream, seats are lent at the moment they are needed and not by the averages of ten seconds.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::counters::Reason;
use super::level::{Queuing, Share};

/// The seats of all limited levels; clones share them.
#[derive(Clone, Default)]
pub struct Pool(Arc<Mutex<Seats>>);

#[derive(Default)]
struct Seats {
    /// Never gets shorter: a place that was given out stays one.
    levels: Vec<State>,
    /// Requests that wait, on all levels.
    waiting: usize,
    /// Number of the last request that waited.
    last: u64,
}

/// What is known of a level now.
#[derive(Default)]
struct State {
    share: Share,
    queuing: Option<Queuing>,
    /// Seats it has now, lent ones left out and borrowed ones included.
    limit: u32,
    in_use: u32,
    executing: u32,
    /// No configuration names it any more; its place is free for another when nobody is left in it.
    retired: bool,
    /// Queues that somebody waits in.
    queues: BTreeMap<u32, VecDeque<Waiter>>,
    /// Work that each queue has been given, where that is more than what the level has come to.
    given: HashMap<u32, f64>,
    /// Work that the level has come to.
    now: f64,
    totals: Totals,
}

/// What became of a level's requests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Totals {
    pub dispatched: u64,
    pub rejected: u64,
    pub timed_out: u64,
    pub cancelled: u64,
}

struct Waiter {
    id: u64,
    seats: u32,
    /// Tells it that it has its seats.
    go: oneshot::Sender<()>,
    shown: Shown,
}

/// A waiting request as the dumps show it.
#[derive(Debug, Clone)]
pub struct Shown {
    pub schema: Box<str>,
    pub flow: Box<str>,
    pub arrived: SystemTime,
    pub user: Box<str>,
    pub verb: Box<str>,
    pub path: Box<str>,
}

/// Seats that are given back when dropped.
pub struct Held {
    pool: Pool,
    slot: usize,
    seats: u32,
}

/// A request in a queue; it leaves the queue when dropped.
pub struct Waiting {
    pool: Pool,
    slot: usize,
    seats: u32,
    queue: u32,
    id: u64,
    go: oneshot::Receiver<()>,
    /// Whether its seats are its own by now.
    done: bool,
}

/// What a request gets that asks for seats.
pub enum Answer {
    Seated(Held),
    Waits(Waiting),
    /// Its queue is full.
    QueueFull,
    /// Nothing to wait in.
    NoSeats,
}

/// A level as the dumps and metrics show it.
#[derive(Debug, Clone, Default)]
pub struct View {
    pub share: Share,
    pub limit: u32,
    pub in_use: u32,
    pub executing: u32,
    pub waiting: usize,
    pub retired: bool,
    pub totals: Totals,
    pub queues: Vec<QueueView>,
}

#[derive(Debug, Clone, Default)]
pub struct QueueView {
    pub index: u32,
    /// The work at which its next request is due.
    pub next: f64,
    pub requests: Vec<(Shown, u32)>,
}

impl State {
    fn waiting(&self) -> usize {
        self.queues.values().map(VecDeque::len).sum()
    }

    /// A request that is wider than the level may still run alone.
    fn fits(&self, seats: u32) -> bool {
        self.in_use.saturating_add(seats) <= self.limit || self.executing == 0
    }

    fn take(&mut self, seats: u32) {
        self.in_use += seats;
        self.executing += 1;
        self.totals.dispatched += 1;
    }

    /// Seats that others can have now.
    fn idle(&self) -> u32 {
        if !self.queues.is_empty() {
            return 0;
        }
        self.limit.saturating_sub(self.share.min.max(self.in_use))
    }

    /// The work at which the first request of a queue is due.
    fn due(&self, queue: u32) -> f64 {
        self.given.get(&queue).copied().unwrap_or(0.0).max(self.now)
    }

    /// The queue whose turn it is.
    fn next(&self) -> Option<(u32, u32)> {
        let due = self.queues.iter().filter_map(|(queue, all)| Some((self.due(*queue), *queue, all.front()?.seats)));
        due.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, queue, seats)| (queue, seats))
    }

    /// The queue of a flow's hand with the fewest seats asked for in it.
    fn choose(&self, queuing: Queuing, schema: &str, flow: &str) -> u32 {
        let mut hasher = DefaultHasher::new();
        (schema, flow).hash(&mut hasher);
        let load = |queue: &u32| self.queues.get(queue).map_or(0, |all| all.iter().map(|w| w.seats).sum());
        deal(hasher.finish(), queuing).into_iter().min_by_key(load).unwrap_or(0)
    }

    /// Takes a queue's first request out of it and counts its work.
    fn pop(&mut self, queue: u32) -> Option<Waiter> {
        let due = self.due(queue);
        let all = self.queues.get_mut(&queue)?;
        let waiter = all.pop_front()?;
        if all.is_empty() {
            self.queues.remove(&queue);
        }
        self.now = due;
        self.given.insert(queue, due + f64::from(waiter.seats));
        if self.queues.is_empty() {
            // Nobody is behind anybody.
            self.given.clear();
            self.now = 0.0;
        }
        Some(waiter)
    }

    /// Takes a request out of its queue that does not wait any longer; false when it is not in it.
    fn leave(&mut self, queue: u32, id: u64) -> bool {
        let Some(all) = self.queues.get_mut(&queue) else { return false };
        let Some(at) = all.iter().position(|w| w.id == id) else { return false };
        all.remove(at);
        if all.is_empty() {
            self.queues.remove(&queue);
        }
        true
    }
}

/// The queues that a flow may wait in: as many different ones as the hand has, each choice of them as likely as another.
fn deal(mut hash: u64, queuing: Queuing) -> Vec<u32> {
    let mut hand: Vec<u32> = Vec::with_capacity(queuing.hand as usize);
    for dealt in 0..queuing.hand.min(queuing.queues) {
        let left = u64::from(queuing.queues - dealt);
        // Less than the number of queues.
        let mut card = u32::try_from(hash % left).unwrap_or(0);
        hash /= left;
        // The card counts those that are still in the deck; `hand` is sorted.
        for taken in &hand {
            if card >= *taken {
                card += 1;
            }
        }
        let at = hand.partition_point(|taken| *taken < card);
        hand.insert(at, card);
    }
    hand
}

impl Seats {
    /// Gets a level seats of others, as far as it needs and may have them: those that nobody uses, and when it has lent
    /// some itself, those that others have of it.
    fn grow(&mut self, slot: usize, seats: u32) {
        let level = &self.levels[slot];
        let wanted = level.in_use.saturating_add(seats).min(level.share.max);
        let nominal = level.share.nominal;
        let mut need = wanted.saturating_sub(level.limit);
        let others = self.levels.iter_mut().enumerate().filter(|(at, _)| *at != slot);
        let mut got = 0;
        for (_, other) in others {
            let part = other.idle().min(need);
            other.limit -= part;
            need -= part;
            got += part;
        }
        self.levels[slot].limit += got;
        let mut back = nominal.saturating_sub(self.levels[slot].limit).min(need);
        let others = self.levels.iter_mut().enumerate().filter(|(at, _)| *at != slot);
        let mut got = 0;
        for (_, other) in others {
            let part = other.limit.saturating_sub(other.share.nominal).min(back);
            other.limit -= part;
            back -= part;
            got += part;
        }
        self.levels[slot].limit += got;
    }

    /// Whether a level has seats for a request, its own or borrowed ones.
    fn room(&mut self, slot: usize, seats: u32) -> bool {
        if !self.levels[slot].fits(seats) {
            self.grow(slot, seats);
        }
        self.levels[slot].fits(seats)
    }

    /// Seats whoever is next on a level, as long as there is room.
    fn dispatch(&mut self, slot: usize) {
        while let Some((queue, seats)) = self.levels[slot].next() {
            if !self.room(slot, seats) {
                return;
            }
            let Some(waiter) = self.levels[slot].pop(queue) else { return };
            self.waiting -= 1;
            // One that went away just now gives its seats back when it is dropped.
            if waiter.go.send(()).is_ok() {
                self.levels[slot].take(seats);
            }
        }
    }

    fn release(&mut self, slot: usize, seats: u32) {
        let level = &mut self.levels[slot];
        level.in_use = level.in_use.saturating_sub(seats);
        level.executing = level.executing.saturating_sub(1);
        if self.waiting == 0 {
            return;
        }
        self.dispatch(slot);
        // What this level does not need may be what another waits for.
        for other in (0..self.levels.len()).filter(|other| *other != slot) {
            if self.levels[other].queues.is_empty() || self.levels[slot].idle() == 0 {
                continue;
            }
            self.dispatch(other);
        }
    }
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, Seats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives every level its seats. `levels` are the places of known levels, or none for new ones; returns the places.
    /// Levels that are not among them go away when nobody is left in them.
    pub fn arrange(&self, levels: &[(Option<usize>, Share, Option<Queuing>)]) -> Vec<usize> {
        let mut seats = self.lock();
        let known: Vec<usize> = levels.iter().filter_map(|(slot, ..)| *slot).collect();
        for (slot, level) in seats.levels.iter_mut().enumerate() {
            level.retired = !known.contains(&slot);
        }
        let mut places = Vec::with_capacity(levels.len());
        for (slot, share, queuing) in levels {
            let free = |level: &State| level.retired && level.executing == 0 && level.queues.is_empty();
            let slot = slot.or_else(|| seats.levels.iter().position(free)).unwrap_or_else(|| {
                seats.levels.push(State::default());
                seats.levels.len() - 1
            });
            let level = &mut seats.levels[slot];
            if level.retired {
                *level = State::default();
            }
            // What was lent is forgotten; it is lent again where it is needed.
            (level.share, level.limit, level.queuing) = (*share, share.nominal, *queuing);
            places.push(slot);
        }
        for slot in 0..seats.levels.len() {
            seats.dispatch(slot);
        }
        places
    }

    /// Asks for seats on a level.
    pub fn ask(&self, slot: usize, seats: u32, shown: impl FnOnce() -> Shown) -> Answer {
        let mut all = self.lock();
        if all.levels[slot].queues.is_empty() && all.room(slot, seats) {
            all.levels[slot].take(seats);
            return Answer::Seated(Held { pool: self.clone(), slot, seats });
        }
        let Some(queuing) = all.levels[slot].queuing else {
            all.levels[slot].totals.rejected += 1;
            return Answer::NoSeats;
        };
        let shown = shown();
        let queue = all.levels[slot].choose(queuing, &shown.schema, &shown.flow);
        let length = all.levels[slot].queues.get(&queue).map_or(0, VecDeque::len);
        if length >= queuing.length as usize {
            all.levels[slot].totals.rejected += 1;
            return Answer::QueueFull;
        }
        all.last += 1;
        all.waiting += 1;
        let id = all.last;
        let (go, wait) = oneshot::channel();
        all.levels[slot].queues.entry(queue).or_default().push_back(Waiter { id, seats, go, shown });
        // Others may wait because the first of them needs many seats.
        all.dispatch(slot);
        Answer::Waits(Waiting { pool: self.clone(), slot, seats, queue, id, go: wait, done: false })
    }

    pub fn view(&self, slot: usize) -> View {
        let all = self.lock();
        let Some(level) = all.levels.get(slot) else { return View::default() };
        let queues = level.queues.iter().map(|(index, waiters)| QueueView {
            index: *index,
            next: level.due(*index),
            requests: waiters.iter().map(|w| (w.shown.clone(), w.seats)).collect(),
        });
        View {
            share: level.share,
            limit: level.limit,
            in_use: level.in_use,
            executing: level.executing,
            waiting: level.waiting(),
            retired: level.retired,
            totals: level.totals,
            queues: queues.collect(),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.pool.lock().release(self.slot, self.seats);
    }
}

impl Waiting {
    /// Waits for its seats; None when the pool is gone.
    pub async fn seated(&mut self) -> Option<Held> {
        (&mut self.go).await.ok()?;
        self.done = true;
        Some(Held { pool: self.pool.clone(), slot: self.slot, seats: self.seats })
    }

    /// Waits for its seats until it takes too long or nobody wants them any more. Seats that are there are taken first.
    ///
    /// # Errors
    /// Why it gave up.
    pub async fn seated_before(mut self, until: Instant, gone: impl Future<Output = ()>) -> Result<Held, Reason> {
        let reason = tokio::select! {
            biased;
            seated = timeout_at(until, self.seated()) => match seated {
                Ok(Some(held)) => return Ok(held),
                Ok(None) | Err(_) => Reason::TimeOut,
            },
            () = gone => Reason::Cancelled,
        };
        let mut all = self.pool.lock();
        let totals = &mut all.levels[self.slot].totals;
        match reason {
            Reason::Cancelled => totals.cancelled += 1,
            _ => totals.timed_out += 1,
        }
        drop(all);
        Err(reason)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        // Closed under the lock: either it is still in its queue, or it has its seats.
        let mut all = self.pool.lock();
        if all.levels[self.slot].leave(self.queue, self.id) {
            all.waiting -= 1;
            // Who is behind it may need less.
            all.dispatch(self.slot);
        } else if self.go.try_recv().is_ok() {
            all.release(self.slot, self.seats);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUING: Queuing = Queuing { queues: 16, hand: 2, length: 3 };

    fn shown(flow: &str) -> impl FnOnce() -> Shown {
        let flow = flow.into();
        move || Shown {
            schema: "s".into(),
            flow,
            arrived: SystemTime::UNIX_EPOCH,
            user: "".into(),
            verb: "get".into(),
            path: "/".into(),
        }
    }

    fn pool(levels: &[(u32, u32, u32, Option<Queuing>)]) -> Pool {
        let pool = Pool::default();
        let levels: Vec<_> =
            levels.iter().map(|&(nominal, min, max, queuing)| (None, Share { nominal, min, max }, queuing)).collect();
        assert_eq!(pool.arrange(&levels), (0..levels.len()).collect::<Vec<_>>());
        pool
    }

    fn seated(pool: &Pool, slot: usize, seats: u32) -> Option<Held> {
        match pool.ask(slot, seats, shown("a")) {
            Answer::Seated(held) => Some(held),
            _ => None,
        }
    }

    fn waits(pool: &Pool, flow: &str) -> Option<Waiting> {
        match pool.ask(0, 1, shown(flow)) {
            Answer::Waits(waiting) => Some(waiting),
            _ => None,
        }
    }

    #[test]
    fn a_level_without_queues_sends_away_who_finds_no_seat() {
        let pool = pool(&[(2, 2, 2, None)]);
        let (one, two) = (seated(&pool, 0, 1), seated(&pool, 0, 1));
        assert!(one.is_some() && two.is_some());
        assert!(matches!(pool.ask(0, 1, shown("a")), Answer::NoSeats));
        drop(one);
        assert!(seated(&pool, 0, 1).is_some());
        let view = pool.view(0);
        assert_eq!((view.in_use, view.totals.dispatched, view.totals.rejected), (1, 3, 1));
    }

    #[test]
    fn a_request_wider_than_the_level_runs_alone() {
        let pool = pool(&[(2, 2, 2, None)]);
        let wide = seated(&pool, 0, 5);
        assert!(wide.is_some() && seated(&pool, 0, 1).is_none());
        drop(wide);
        assert!(seated(&pool, 0, 1).is_some());
    }

    #[test]
    fn idle_seats_are_lent_and_come_back_when_they_are_needed() {
        let pool = pool(&[(2, 0, 4, None), (2, 2, 10, None)]);
        let borrowed: Vec<_> = (0..5).map_while(|_| seated(&pool, 1, 1)).collect();
        assert_eq!(borrowed.len(), 4, "its own two and the two that may be lent");
        // The lender's first request runs at once, because nothing runs there; the second has to wait for a seat.
        assert!(seated(&pool, 0, 1).is_some());
        let first = seated(&pool, 0, 1);
        assert!(first.is_some() && seated(&pool, 0, 2).is_none());
        assert_eq!(pool.view(1).limit, 2, "no seat is lent any more");
        drop(borrowed);
        assert!(seated(&pool, 0, 1).is_some(), "they were given back");
        let limits = pool.view(0).limit + pool.view(1).limit;
        assert_eq!(limits, 4, "no seat is lost or made up");
    }

    #[test]
    fn a_level_borrows_no_more_than_it_may() {
        let pool = pool(&[(10, 0, 10, None), (2, 2, 3, None)]);
        let all: Vec<_> = (0..5).map_while(|_| seated(&pool, 1, 1)).collect();
        assert_eq!(all.len(), 3);
    }

    #[tokio::test]
    async fn who_waits_is_seated_in_turn_and_a_greedy_flow_does_not_starve_others() {
        let pool = pool(&[(1, 1, 1, Some(QUEUING))]);
        let held = seated(&pool, 0, 1);
        let greedy: Vec<Waiting> = (0..20).map_while(|_| waits(&pool, "greedy")).collect();
        assert_eq!(greedy.len(), 6, "two queues of three, and no more");
        assert!(matches!(pool.ask(0, 1, shown("greedy")), Answer::QueueFull));
        let mut other = (0..10).find_map(|n| waits(&pool, &format!("other{n}"))).expect("another hand");
        assert_eq!(pool.view(0).waiting, 7);
        drop(held);
        let mut served = 0;
        let mut greedy: VecDeque<Waiting> = greedy.into();
        while other.go.try_recv().is_err() {
            let at = greedy.iter_mut().position(|w| w.go.try_recv().is_ok()).expect("somebody is served");
            let waiting = greedy.remove(at).expect("is there");
            // What try_recv took is accounted for by hand.
            let mut waiting = waiting;
            waiting.done = true;
            pool.lock().release(0, 1);
            served += 1;
        }
        other.done = true;
        assert!(served <= 3, "{served} of the greedy flow came first");
    }

    #[tokio::test]
    async fn who_goes_away_leaves_no_trace() {
        let pool = pool(&[(1, 1, 1, Some(QUEUING))]);
        let held = seated(&pool, 0, 1);
        let first = waits(&pool, "a").expect("waits");
        let mut second = waits(&pool, "b").expect("waits");
        drop(first);
        assert_eq!(pool.view(0).waiting, 1);
        drop(held);
        let seat = second.seated().await.expect("is seated");
        assert_eq!((pool.view(0).in_use, pool.view(0).waiting), (1, 0));
        drop(second);
        drop(seat);
        assert_eq!((pool.view(0).in_use, pool.lock().waiting), (0, 0));
        // One that was told just before it went away gives its seat back.
        let held = seated(&pool, 0, 1);
        let told = waits(&pool, "a").expect("waits");
        drop(held);
        assert_eq!(pool.view(0).in_use, 1);
        drop(told);
        assert_eq!(pool.view(0).in_use, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_longer_than_its_time_or_its_client() {
        use std::future::{pending, ready};
        use std::time::Duration;

        let pool = pool(&[(1, 1, 1, Some(QUEUING))]);
        let held = seated(&pool, 0, 1);
        let begun = Instant::now();
        let until = begun + Duration::from_secs(3);
        let late = waits(&pool, "a").expect("waits").seated_before(until, pending()).await;
        assert_eq!((late.err(), begun.elapsed()), (Some(Reason::TimeOut), Duration::from_secs(3)));
        let until = Instant::now() + Duration::from_secs(3);
        let begun = Instant::now();
        let left = waits(&pool, "a").expect("waits").seated_before(until, ready(())).await;
        assert_eq!((left.err(), begun.elapsed()), (Some(Reason::Cancelled), Duration::ZERO));
        let view = pool.view(0);
        assert_eq!((view.waiting, view.totals.timed_out, view.totals.cancelled), (0, 1, 1));
        // Who has its seats by then has them, and gives them back at its end.
        let told = waits(&pool, "a").expect("waits");
        drop(held);
        let seat = told.seated_before(until, ready(())).await.ok();
        assert_eq!((seat.is_some(), pool.view(0).in_use), (true, 1));
        drop(seat);
        assert_eq!((pool.view(0).in_use, pool.lock().waiting), (0, 0));
    }

    #[test]
    fn a_hand_has_different_queues_and_all_of_them_are_dealt() {
        let queuing = Queuing { queues: 8, hand: 3, length: 1 };
        let mut seen = [0; 8];
        for hash in 0..8 * 7 * 6 {
            let hand = deal(hash, queuing);
            assert_eq!(hand.len(), 3);
            assert!(hand.windows(2).all(|pair| pair[0] < pair[1]), "{hand:?}");
            hand.iter().for_each(|card| seen[*card as usize] += 1);
        }
        assert_eq!(seen, [126; 8], "each as often as another");
    }

    #[test]
    fn a_level_that_is_gone_leaves_its_place_when_nobody_is_left_in_it() {
        let pool = pool(&[(1, 1, 1, None), (1, 1, 1, None)]);
        let held = seated(&pool, 0, 1);
        let share = Share { nominal: 5, min: 5, max: 5 };
        assert_eq!(pool.arrange(&[(Some(1), share, None), (None, share, None)]), [1, 2]);
        drop(held);
        assert_eq!(pool.arrange(&[(Some(1), share, None), (Some(2), share, None), (None, share, None)]), [1, 2, 0]);
    }
}
