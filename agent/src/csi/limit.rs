//! How many volumes of a driver this node takes, as its CSINode says it: kept up to date where the driver wants it.
//!
//! A driver whose CSIDriver has a `nodeAllocatableUpdatePeriodSeconds` is asked at that period, and at once when its attacher
//! found the node full. What it says is written where the scheduler looks. The registry of plugins keeps one of these for
//! each driver, from its registration to its end.
//!
//! Followed: `pkg/volume/csi/csi_plugin.go`, `nodeinfomanager` (`UpdateCSIDriver`).

use std::sync::Arc;
use std::time::Duration;

use proto::api::storage::v1::{CsiDriver, CsiNode};
use proto::csi::NodeGetInfoResponse;
use serde_json::json;
use tokio::time::Instant;

use super::Drivers;
use crate::api::{Change, Client, PatchType, Reflector};

/// The limit of a driver that has one.
pub fn count(info: &NodeGetInfoResponse) -> Option<i32> {
    (info.max_volumes_per_node > 0).then(|| i32::try_from(info.max_volumes_per_node).unwrap_or(i32::MAX))
}

/// A driver's limit.
pub struct Limit {
    pub client: Client,
    pub node: String,
    pub driver: String,
    pub drivers: Arc<Drivers>,
    /// What the CSINode says.
    pub written: Option<i32>,
}

impl Limit {
    /// Keeps it until dropped.
    pub async fn keep(mut self) {
        let full = self.drivers.full(&self.driver);
        let by_name = format!("metadata.name={}", self.driver);
        let mut objects: Reflector<CsiDriver> = Reflector::new(self.client.clone(), "", &by_name);
        let (mut every, mut due) = (None, None);
        loop {
            tokio::select! {
                change = objects.next() => {
                    let now = period(change);
                    if every != now {
                        every = now;
                        due = next(every);
                    }
                    continue;
                }
                () = full.notified() => {}
                () = until(due) => {}
            }
            if let Err(error) = self.update().await {
                tracing::warn!(error, driver = self.driver, "cannot bring the limit of a storage driver up to date");
            }
            due = next(every);
        }
    }

    async fn update(&mut self) -> Result<(), String> {
        let info = self.drivers.get(&self.driver).map_err(|e| e.to_string())?.info().await;
        let now = count(&info.map_err(|e| e.to_string())?);
        if now == self.written {
            return Ok(());
        }
        // Without one the driver has no limit any more. What else its entry says stays as it was registered.
        let allocatable = now.map(|count| json!({"count": count}));
        let driver = json!({"name": self.driver, "allocatable": allocatable});
        let body = json!({"spec": {"drivers": [driver]}}).to_string();
        let written = self.client.patch::<CsiNode>("", &self.node, "", PatchType::StrategicMerge, body).await;
        written.map_err(|e| e.to_string())?;
        tracing::info!(driver = self.driver, before = self.written, now, "a storage driver has another limit");
        self.written = now;
        Ok(())
    }
}

/// How often the driver wants to be asked.
fn period(change: Change<CsiDriver>) -> Option<Duration> {
    let driver = match change {
        Change::Applied(driver) => Some(driver),
        Change::Listed(drivers) => drivers.into_iter().next(),
        Change::Deleted(_) => None,
    };
    let seconds = driver?.spec?.node_allocatable_update_period_seconds?;
    u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
}

/// Never where the period is longer than the clock.
fn next(every: Option<Duration>) -> Option<Instant> {
    every.and_then(|every| Instant::now().checked_add(every))
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::Mutex;

    use bytes::Bytes;
    use http::{Method, Request, Response, header};
    use http_body_util::{BodyExt as _, Full};
    use proto::api::storage::v1::CsiDriverSpec;

    use super::super::tests::World;
    use super::*;
    use crate::api::{ApiError, Body, ClientOptions, Transport};

    /// A server with a driver that wants to be asked every second; it notes what is patched.
    #[derive(Default)]
    struct Server(Mutex<Vec<String>>);

    impl Transport for Server {
        fn send<'a>(
            &'a self,
            request: Request<Bytes>,
        ) -> Pin<Box<dyn Future<Output = Result<Response<Body>, ApiError>> + Send + 'a>> {
            let answer = if request.method() == Method::PATCH {
                self.0.lock().unwrap().push(String::from_utf8_lossy(request.body()).into_owned());
                r#"{"kind":"CSINode","apiVersion":"storage.k8s.io/v1","metadata":{"name":"n"},"spec":{"drivers":[]}}"#
            } else if request.uri().query().is_some_and(|query| query.contains("watch=")) {
                return Box::pin(std::future::pending());
            } else {
                r#"{"kind":"CSIDriverList","apiVersion":"storage.k8s.io/v1","metadata":{"resourceVersion":"7"},
                    "items":[{"metadata":{"name":"folder.example.com"},
                    "spec":{"nodeAllocatableUpdatePeriodSeconds":1}}]}"#
            };
            let answer = Response::builder()
                .header(header::CONTENT_TYPE, "application/json")
                .body(Full::new(Bytes::from_static(answer.as_bytes())).map_err(Into::into).boxed_unsync())
                .map_err(|e| ApiError::Malformed(e.to_string()));
            Box::pin(std::future::ready(answer))
        }
    }

    /// The limit was that of the registration for ever: a node with fewer slots left was given volumes that it could not have.
    #[tokio::test]
    async fn the_limit_follows_what_the_driver_says_at_its_period_and_when_the_node_is_full() {
        let world = World::new("limit", CsiDriverSpec::default());
        let server = Arc::new(Server::default());
        let limit = Limit {
            client: Client::new(server.clone(), &ClientOptions::default()),
            node: "n".into(),
            driver: "folder.example.com".into(),
            drivers: world.drivers.clone(),
            written: Some(5),
        };
        let patches = || std::mem::take(&mut *server.0.lock().unwrap());
        let patched = async || {
            let begun = Instant::now();
            while server.0.lock().unwrap().is_empty() && begun.elapsed().as_secs() < 20 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            (patches(), begun.elapsed())
        };
        let entry = |allocatable: &str| {
            vec![format!(r#"{{"spec":{{"drivers":[{{"allocatable":{allocatable},"name":"folder.example.com"}}]}}}}"#)]
        };
        *world.book.most.lock().unwrap() = 3;
        let keeping = tokio::spawn(limit.keep());
        assert_eq!(patched().await.0, entry(r#"{"count":3}"#));
        *world.book.most.lock().unwrap() = 0;
        world.drivers.full("folder.example.com").notify_one();
        let (told, after) = patched().await;
        assert!(after < Duration::from_millis(900), "{after:?}");
        assert_eq!(told, entry("null"));
        tokio::time::sleep(Duration::from_millis(1200)).await;
        assert_eq!(patches(), Vec::<String>::new(), "nothing is written that is there");
        keeping.abort();
        world.end();
    }

    #[test]
    fn a_period_is_what_the_object_says_while_it_is_there() {
        let driver = |seconds| CsiDriver {
            spec: Some(CsiDriverSpec { node_allocatable_update_period_seconds: seconds, ..CsiDriverSpec::default() }),
            ..CsiDriver::default()
        };
        assert_eq!(period(Change::Applied(driver(Some(60)))), Some(Duration::from_secs(60)));
        assert_eq!(period(Change::Listed(vec![driver(Some(60))])), Some(Duration::from_secs(60)));
        for change in [
            Change::Applied(driver(None)),
            Change::Applied(driver(Some(0))),
            Change::Applied(driver(Some(-1))),
            Change::Deleted(driver(Some(60))),
            Change::Listed(Vec::new()),
        ] {
            assert_eq!(period(change), None);
        }
        assert_eq!(next(Some(Duration::from_secs(u64::MAX))), None);
    }
}
