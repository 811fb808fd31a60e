//! The body of a request that nobody may ever ask for.
//!
//! A connection that closes on a client that still sends takes the answer with it. So a body that a handler left where it
//! was (a media type it does not take, a name that may not be) is read on for a while, as Go's server does.

use std::time::Duration;

use http::HeaderMap;
use http::header::EXPECT;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use tokio::time::timeout;

/// How much is read on, as in Go.
const MOST: usize = 256 << 10;
/// A client that is silent for so long has noticed, or waits for its answer.
pub const SILENCE: Duration = Duration::from_millis(500);
/// Longest time for all of it: one that sends a byte now and then is not waited for.
pub const LINGER: Duration = Duration::from_secs(5);

/// Reads on what is left of it when it is dropped.
pub struct Unread {
    body: Option<Incoming>,
    /// The client waits for leave to send it; reading would give that leave.
    awaited: bool,
}

impl Unread {
    pub fn new(body: Incoming, headers: &HeaderMap) -> Self {
        Unread { body: Some(body), awaited: headers.contains_key(EXPECT) }
    }

    /// The body, once.
    pub fn take(&mut self) -> Option<Incoming> {
        self.body.take()
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let Some(mut body) = self.body.take().filter(|body| !self.awaited && !body.is_end_stream()) else { return };
        // Without a runtime the server has ended, and the connection with it.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let mut read = 0;
            let rest = async {
                while read < MOST
                    && let Ok(Some(Ok(frame))) = timeout(SILENCE, body.frame()).await
                {
                    read += frame.data_ref().map_or(0, |data| data.len());
                }
            };
            // What is left then goes with the connection.
            let _ = timeout(LINGER, rest).await;
        });
    }
}
