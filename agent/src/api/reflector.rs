//! List, then watch from there, for ever: the stream of changes to a set of objects.
//!
//! The caller keeps what it needs of the objects; nothing is cached here. A broken watch resumes at the last version
//! seen, bookmarks included; when that version is gone (410) the set is listed again. Failures wait with back-off
//! inside [`Reflector::next`], so a server that is away costs a connection attempt every half minute at most.

use std::sync::Arc;
use std::time::Duration;

use proto::apimachinery::pkg::apis::meta::v1::Status;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{ApiError, Client, Kind, List, ListOptions, Watch, WatchEvent, WatchOptions};
use crate::backoff::Backoff;

/// client-go's reflector: 800 ms doubling to 30 s, forgotten after two good minutes.
const FIRST_WAIT: Duration = Duration::from_millis(800);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
const FORGET_AFTER: Duration = Duration::from_secs(120);
/// Watches are asked to end after 5 to 10 minutes, so that a fleet spreads over the servers again.
const WATCH_SECONDS: u32 = 300;

#[derive(Debug, Clone)]
pub enum Change<T> {
    /// The whole set as it is now; what is not in it is gone.
    Listed(Vec<T>),
    /// Added or modified.
    Applied(T),
    /// The last state of an object that is gone, or left the selector.
    Deleted(T),
}

/// Follows the objects of one kind that match a selector.
pub struct Reflector<T> {
    client: Client,
    namespace: String,
    field_selector: String,
    /// The newest version seen; empty before the first list.
    version: String,
    /// The next list must come from the store itself: the version before was refused.
    exact: bool,
    watch: Option<(Watch<T>, Instant)>,
    backoff: Backoff,
    wait_until: Option<Instant>,
    /// Hears of each time that the server does not answer.
    silence: Option<Arc<Notify>>,
}

impl<T: Kind> Reflector<T> {
    /// An empty namespace follows all of them, an empty field selector everything.
    pub fn new(client: Client, namespace: &str, field_selector: &str) -> Self {
        Reflector {
            client,
            namespace: namespace.to_owned(),
            field_selector: field_selector.to_owned(),
            version: String::new(),
            exact: false,
            watch: None,
            backoff: Backoff::new(FIRST_WAIT, LONGEST_WAIT).forget_after(FORGET_AFTER),
            wait_until: None,
            silence: None,
        }
    }

    /// The same, which tells `silence` each time that the server does not answer.
    #[must_use]
    pub fn telling(mut self, silence: Arc<Notify>) -> Self {
        self.silence = Some(silence);
        self
    }

    /// The next change; the first one is always [`Change::Listed`]. Waits out failures by itself, so it only returns
    /// with news. Cancel safe.
    pub async fn next(&mut self) -> Change<T> {
        loop {
            if let Some(until) = self.wait_until {
                tokio::time::sleep_until(until).await;
                self.wait_until = None;
            }
            match self.step().await {
                Ok(Some(change)) => return change,
                Ok(None) => {}
                Err(error) => {
                    let wait = error.retry_after().unwrap_or_default().max(self.backoff.next_wait());
                    tracing::warn!(%error, kind = T::KIND, ?wait, "cannot follow objects of the API server");
                    self.wait_until = Some(Instant::now() + wait);
                    if let Some(silence) = self.silence.as_ref().filter(|_| error.code() == 0) {
                        silence.notify_one();
                    }
                }
            }
        }
    }

    async fn step(&mut self) -> Result<Option<Change<T>>, ApiError> {
        if self.version.is_empty() || self.exact {
            return self.list().await.map(Some);
        }
        if self.watch.is_none() {
            let options = WatchOptions {
                field_selector: self.field_selector.clone(),
                resource_version: self.version.clone(),
                timeout_seconds: WATCH_SECONDS + crate::backoff::random_below(WATCH_SECONDS),
                ..WatchOptions::default()
            };
            match self.client.watch(&self.namespace, &options).await {
                Ok(watch) => self.watch = Some((watch, Instant::now())),
                Err(error) => return self.refused(error),
            }
        }
        let Some((watch, opened)) = &mut self.watch else { return Ok(None) };
        let opened = *opened;
        match watch.next().await {
            Ok(Some(WatchEvent::Bookmark(version))) => {
                self.version = version;
                Ok(None)
            }
            Ok(Some(WatchEvent::Error(status))) => {
                self.watch = None;
                self.refused(ApiError::Status(status))
            }
            Ok(Some(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                self.version = object.resource_version().to_owned();
                Ok(Some(Change::Applied(object)))
            }
            Ok(Some(WatchEvent::Deleted(object))) => {
                self.version = object.resource_version().to_owned();
                Ok(Some(Change::Deleted(object)))
            }
            Ok(None) => {
                self.watch = None;
                if opened.elapsed() < Duration::from_secs(1) {
                    return Err(ApiError::Broken("the watch ended at once".into()));
                }
                Ok(None)
            }
            Err(error) => {
                self.watch = None;
                Err(error)
            }
        }
    }

    async fn list(&mut self) -> Result<Change<T>, ApiError> {
        // From the server's cache, but never older than what was seen already.
        let resource_version = match (self.exact, self.version.is_empty()) {
            (true, _) => String::new(),
            (false, true) => "0".to_owned(),
            (false, false) => self.version.clone(),
        };
        let mut options =
            ListOptions { field_selector: self.field_selector.clone(), resource_version, ..ListOptions::default() };
        let mut list: List<T> = self.client.list(&self.namespace, &options).await?;
        let mut items = std::mem::take(&mut list.items);
        while !list.continue_token.is_empty() {
            options.resource_version = String::new();
            options.continue_token = std::mem::take(&mut list.continue_token);
            list = self.client.list(&self.namespace, &options).await?;
            items.append(&mut list.items);
        }
        self.version = list.resource_version;
        self.exact = false;
        Ok(Change::Listed(items))
    }

    /// A version that the server no longer or not yet has means a fresh list; anything else is for the back-off.
    fn refused(&mut self, error: ApiError) -> Result<Option<Change<T>>, ApiError> {
        if let ApiError::Status(status) = &error {
            if error.is_expired() {
                self.exact = true;
                return Ok(None);
            }
            if too_new(status) {
                self.exact = true;
            }
        }
        Err(error)
    }
}

/// The server has never seen our version: its store was replaced or restored.
fn too_new(status: &Status) -> bool {
    let causes = status.details.as_ref().map(|d| d.causes.as_slice()).unwrap_or_default();
    causes.iter().any(|c| c.reason == "ResourceVersionTooLarge")
        || status.message.contains("Too large resource version")
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use bytes::Bytes;
    use http::{Request, Response};
    use proto::api::core::v1::Node;

    use super::*;
    use crate::api::{Body, ClientOptions, Transport};

    struct Nobody;

    impl Transport for Nobody {
        fn send<'a>(
            &'a self,
            _: Request<Bytes>,
        ) -> Pin<Box<dyn Future<Output = Result<Response<Body>, ApiError>> + Send + 'a>> {
            Box::pin(std::future::ready(Err(ApiError::Connect("refused".into()))))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_answer_is_told_of() {
        let silence = Arc::new(Notify::new());
        let client = Client::new(Arc::new(Nobody), &ClientOptions::default());
        let mut nodes = Reflector::<Node>::new(client, "", "").telling(silence.clone());
        let told = tokio::select! {
            _ = nodes.next() => false,
            () = silence.notified() => true,
        };
        assert!(told);
    }
}
