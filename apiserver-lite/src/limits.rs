//! How much work the server takes on at once, how long a request may take, and the end of all of it.
//!
//! Without flow control ([`crate::flow`]) requests that change something and requests that do not have a limit each
//! (`--max-mutating-requests-inflight`, `--max-requests-inflight`); who comes when it is reached waits a moment for a place
//! and is then told to come back. Requests that live as long as the client likes, such as watches, count for neither and
//! have no deadline; they end when the server stops. Members of `system:masters` always get an answer. Follows
//! `k8s.io/apiserver/pkg/server/filters`.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::request::{Query, RequestInfo, User};
use crate::status::{ApiError, Details, Result};

/// How long a request waits for a place before it is sent away.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a client that was sent away is told.
pub const TOO_MANY: &str = "Too many requests, please try again later.\n";

pub struct Limits {
    /// None for no limit.
    reading: Option<Arc<Semaphore>>,
    changing: Option<Arc<Semaphore>>,
    /// Longest time for a request that is not long-running.
    timeout: Duration,
}

/// A place among the running requests; free again when dropped.
pub struct Place(#[expect(dead_code, reason = "held for its drop")] Option<OwnedSemaphorePermit>);

/// Whether a request goes on until the client or the server ends it.
pub fn is_long_running(info: &RequestInfo) -> bool {
    matches!(info.verb.as_str(), "watch" | "proxy")
        || info.is_resource && matches!(info.subresource.as_str(), "attach" | "exec" | "log" | "portforward" | "proxy")
}

/// Whether a request is part of a flow: all but those that go on without end, of which watches have a beginning.
pub fn has_flow(info: &RequestInfo) -> bool {
    info.verb == "watch" || !is_long_running(info)
}

impl Limits {
    /// `reading` and `changing` requests at the same time, zero for no limit.
    pub fn new(reading: usize, changing: usize, timeout: Duration) -> Self {
        let semaphore = |limit: usize| (limit > 0).then(|| Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS))));
        Limits { reading: semaphore(reading), changing: semaphore(changing), timeout }
    }

    /// A place for a request; None when there is none to be had.
    pub async fn place(&self, info: &RequestInfo, user: &User) -> Option<Place> {
        if is_long_running(info) || user.in_group("system:masters") {
            return Some(Place(None));
        }
        let limit = match info.verb.as_str() {
            "get" | "list" | "watch" | "head" => &self.reading,
            _ => &self.changing,
        };
        let Some(limit) = limit else { return Some(Place(None)) };
        let permit = match limit.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => tokio::time::timeout(PATIENCE, limit.clone().acquire_owned()).await.ok()?.ok()?,
        };
        Some(Place(Some(permit)))
    }

    /// Time that a request has; None without end. A client may ask for less than the server's limit, not for more.
    ///
    /// # Errors
    /// 400 when the client's wish is no duration.
    pub fn time(&self, info: &RequestInfo, query: &Query) -> Result<Option<Duration>> {
        if is_long_running(info) {
            return Ok(None);
        }
        let Some(text) = query.get("timeout").filter(|t| !t.is_empty()) else { return Ok(Some(self.timeout)) };
        let nanos = proto::duration::parse(text)
            .map_err(|e| ApiError::bad_request(format!("invalid timeout specified in the request URL - {e}")))?;
        let wish = u64::try_from(nanos).ok().filter(|n| *n > 0).map(Duration::from_nanos);
        Ok(Some(wish.map_or(self.timeout, |w| w.min(self.timeout))))
    }
}

/// The answer to a request that took too long.
pub fn timed_out() -> ApiError {
    ApiError::new(504, "Timeout", "Timeout: request did not complete within the allotted timeout")
        .with_details(Details::default())
}

/// Tells everything that goes on without end that the server stops.
#[derive(Debug)]
pub struct Shutdown(watch::Sender<bool>);

impl Default for Shutdown {
    fn default() -> Self {
        Shutdown(watch::Sender::new(false))
    }
}

impl Shutdown {
    pub fn begin(&self) {
        self.0.send_replace(true);
    }

    /// Waits until the server stops.
    pub fn begun(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut stopping = self.0.subscribe();
        async move {
            // Without a server there is nothing to wait for either.
            let _ = stopping.wait_for(|s| *s).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(verb: &str, subresource: &str) -> RequestInfo {
        RequestInfo { is_resource: true, verb: verb.into(), subresource: subresource.into(), ..RequestInfo::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_place_is_sent_away_after_a_moment() {
        let limits = Limits::new(1, 1, Duration::from_secs(60));
        let (nobody, master) = (User::default(), User::system("admin"));
        let held = limits.place(&info("create", ""), &nobody).await;
        assert!(held.is_some());
        assert!(limits.place(&info("delete", ""), &nobody).await.is_none(), "no place left");
        assert!(limits.place(&info("list", ""), &nobody).await.is_some(), "reads have places of their own");
        assert!(limits.place(&info("watch", ""), &nobody).await.is_some(), "watches need none");
        assert!(limits.place(&info("create", "exec"), &nobody).await.is_some(), "neither does exec");
        assert!(limits.place(&info("create", ""), &master).await.is_some(), "administrators always get in");
        drop(held);
        assert!(limits.place(&info("delete", ""), &nobody).await.is_some());
    }

    #[test]
    fn clients_may_ask_for_less_time_but_not_for_more() {
        let limits = Limits::new(0, 0, Duration::from_secs(60));
        let time = |query: &str| limits.time(&info("get", ""), &Query::parse(query));
        assert_eq!(time("").expect("fine"), Some(Duration::from_secs(60)));
        assert_eq!(time("timeout=5s").expect("fine"), Some(Duration::from_secs(5)));
        assert_eq!(time("timeout=5m").expect("fine"), Some(Duration::from_secs(60)));
        assert_eq!(time("timeout=0s").expect("fine"), Some(Duration::from_secs(60)));
        assert_eq!(time("timeout=soon").expect_err("no duration").code(), 400);
        assert_eq!(limits.time(&info("watch", ""), &Query::default()).expect("fine"), None);
    }

    #[tokio::test]
    async fn what_waits_for_the_end_hears_of_it() {
        let shutdown = Shutdown::default();
        let waiting = tokio::spawn(shutdown.begun());
        shutdown.begin();
        waiting.await.expect("it ends");
        shutdown.begun().await;
    }
}
