//! Flow control: every request belongs to a flow of a FlowSchema and runs on seats of that schema's priority level, so
//! that no client keeps the others from being served.
//!
//! Schemas and levels are objects like others. They are compiled when one of them changes ([`table`]), followed by
//! [`keeper`]. A request of an exempt level costs the comparison of its user's groups and a few additions; one of a limited
//! level takes a lock twice for some more ([`pool`]). Follows `k8s.io/apiserver/pkg/util/flowcontrol`.
//!
//! Limits: seats that a write takes after its answer, for the watches it wakes, are not counted, since one event is
//! encoded once for all of them; dumps of requests show those that wait and not those that run.

mod backoff;
pub mod bootstrap;
mod counters;
mod estimate;
mod keeper;
mod level;
mod pool;
mod schema;
mod shown;
mod table;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use http::{HeaderMap, HeaderName};
use tokio::time::Instant;

use self::backoff::Backoff;
use self::counters::Reason;
use self::pool::{Answer, Held, Pool, Shown};
use self::schema::Schema;
use self::table::Table;
use crate::server::{ApiServer, Request};
use crate::store::Store;

pub use keeper::run;
pub use shown::{answer, metrics};

// Copies of these are no allocation.
static SCHEMA_HEADER: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
static LEVEL_HEADER: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

pub struct FlowControl {
    table: ArcSwap<Table>,
    pool: Pool,
    /// Seats of all levels together.
    seats: u32,
    /// How long a request waits in a queue.
    patience: Duration,
    backoff: Backoff,
}

/// What a request runs with; what it holds is given back when this is dropped.
pub struct Ticket {
    schema: Arc<Schema>,
    seats: u32,
    since: Instant,
    held: Option<Held>,
    over: bool,
}

/// A request that is sent away.
pub struct Rejected {
    schema: Arc<Schema>,
    /// In how many seconds its client may come back.
    pub retry_after: u64,
}

impl FlowControl {
    /// `seats` requests at the same time; one waits for a quarter of the time that a request has. Knows what is stored
    /// after [`FlowControl::read`].
    pub fn new(store: &Store, seats: u32, request_timeout: Duration) -> Self {
        let pool = Pool::default();
        let table = ArcSwap::from_pointee(Table::read(store, &pool, seats, None));
        FlowControl { table, pool, seats, patience: request_timeout / 4, backoff: Backoff::default() }
    }

    /// Takes over what is stored now. Called by one task at a time.
    pub fn read(&self, store: &Store) {
        let before = self.table.load_full();
        self.table.store(Arc::new(Table::read(store, &self.pool, self.seats, Some(&before))));
    }

    /// Waits for the seats that a request needs.
    ///
    /// # Errors
    /// When there are none and it cannot wait, has waited for too long or has no client any more.
    pub async fn admit(&self, server: &ApiServer, request: &mut Request) -> Result<Ticket, Rejected> {
        let Request { user, info, query, .. } = &*request;
        let schema = self.table.load().classify(user, info).clone();
        let Some(slot) = schema.level.slot else { return Ok(Ticket::new(schema, 1, Duration::ZERO, None)) };
        let seats = estimate::seats(server, info, query, schema.level.widest);
        let shown = || Shown {
            schema: schema.name.clone(),
            flow: schema.flow(user, info).into(),
            arrived: SystemTime::now(),
            user: user.name.as_str().into(),
            verb: info.verb.as_str().into(),
            path: info.path.as_str().into(),
        };
        let reason = match self.pool.ask(slot, seats, shown) {
            Answer::Seated(held) => return Ok(Ticket::new(schema, seats, Duration::ZERO, Some(held))),
            Answer::QueueFull => Reason::QueueFull,
            Answer::NoSeats => Reason::ConcurrencyLimit,
            Answer::Waits(waiting) => {
                let begun = Instant::now();
                let patience = begun + self.patience;
                let until = request.deadline().map_or(patience, |deadline| deadline.min(patience));
                let gone = request.client_gone();
                let counted = Queued::new(&schema, seats);
                let seated = waiting.seated_before(until, gone).await;
                drop(counted);
                let reason = match seated {
                    Ok(held) => {
                        let waited = begun.elapsed();
                        crate::metrics::apart::waited(waited);
                        return Ok(Ticket::new(schema, seats, waited, Some(held)));
                    }
                    Err(reason) => reason,
                };
                schema.counters.reject(reason, begun.elapsed());
                if reason == Reason::Cancelled {
                    // Nobody reads this, and it says nothing of how full the level is.
                    return Err(Rejected { schema, retry_after: 1 });
                }
                return Err(self.rejected(schema));
            }
        };
        schema.counters.reject(reason, Duration::ZERO);
        Err(self.rejected(schema))
    }

    fn rejected(&self, schema: Arc<Schema>) -> Rejected {
        let retry_after = self.backoff.dropped(&schema.level.name);
        Rejected { schema, retry_after }
    }
}

/// A request that is counted as waiting, until this is dropped.
struct Queued<'a> {
    schema: &'a Schema,
    seats: u32,
}

impl<'a> Queued<'a> {
    fn new(schema: &'a Schema, seats: u32) -> Self {
        schema.counters.waiting.fetch_add(1, Relaxed);
        schema.counters.waiting_seats.fetch_add(i64::from(seats), Relaxed);
        Queued { schema, seats }
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        let counters = &self.schema.counters;
        counters.waiting.fetch_sub(1, Relaxed);
        counters.waiting_seats.fetch_sub(i64::from(self.seats), Relaxed);
    }
}

fn tell(schema: &Schema, headers: &mut HeaderMap) {
    headers.insert(SCHEMA_HEADER.clone(), schema.uid.clone());
    headers.insert(LEVEL_HEADER.clone(), schema.level.uid.clone());
}

impl Ticket {
    fn new(schema: Arc<Schema>, seats: u32, waited: Duration, held: Option<Held>) -> Self {
        let counters = &schema.counters;
        counters.dispatched.fetch_add(1, Relaxed);
        counters.executing.fetch_add(1, Relaxed);
        counters.executing_seats.fetch_add(i64::from(seats), Relaxed);
        counters.served_wait.observe(waited);
        Ticket { schema, seats, since: Instant::now(), held, over: false }
    }

    /// Says in an answer how its request was classified.
    pub fn tell(&self, headers: &mut HeaderMap) {
        tell(&self.schema, headers);
    }

    /// Gives the seats back before the request is answered; it runs on without.
    pub fn let_go(&mut self) {
        if self.over {
            return;
        }
        self.over = true;
        self.held = None;
        let counters = &self.schema.counters;
        counters.executing.fetch_sub(1, Relaxed);
        counters.executing_seats.fetch_sub(i64::from(self.seats), Relaxed);
        counters.execution.observe(self.since.elapsed());
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Rejected {
    /// Says in an answer how its request was classified.
    pub fn tell(&self, headers: &mut HeaderMap) {
        tell(&self.schema, headers);
    }
}

#[cfg(test)]
mod tests;
