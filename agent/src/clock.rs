//! The wall clock, in the units of the runtime and the API, and one that never goes back.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use proto::apimachinery::pkg::apis::meta::v1::Time;

/// Unix nanoseconds.
pub fn unix_nanos() -> i64 {
    let now = proto::time::Timestamp::now();
    now.seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(now.nanos))
}

/// [`since_start`] in nanoseconds; what was before is negative.
pub fn steady_nanos() -> i64 {
    i64::try_from(since_start().as_nanos()).unwrap_or(i64::MAX)
}

/// Now, as `metav1.Time` keeps it.
pub fn now() -> Time {
    Time { seconds: proto::time::Timestamp::now().seconds, nanos: 0 }
}

/// Time since this was first asked; whatever becomes of the wall clock.
pub fn since_start() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}
