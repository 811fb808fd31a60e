//! The heartbeat: a Lease of the node's name in `kube-node-lease`, renewed at a quarter of its duration.
//!
//! The lease is written as it was last seen, without reading it first; only when that fails it is read again.

use std::sync::Arc;
use std::time::Duration;

use proto::api::coordination::v1::{Lease, LeaseSpec};
use proto::api::core::v1::Node;
use proto::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};
use tokio::sync::{Notify, watch};

use crate::api::{ApiError, Client, Kind};
use crate::backoff::{Backoff, jitter};
use crate::daemon::Beat;

pub const NAMESPACE: &str = "kube-node-lease";
const TRIES: u32 = 5;

/// Renews until the task is dropped, and at once when there is a sign that the server is gone. `reach` hears how it went.
pub async fn renew(
    client: Client,
    node: String,
    duration_seconds: i32,
    (progress, reach): (Beat, watch::Sender<Option<String>>),
    silence: Arc<Notify>,
) {
    let interval = Duration::from_secs(u64::try_from(duration_seconds).unwrap_or(40)) / 4;
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(7));
    let mut known: Option<Lease> = None;
    loop {
        progress.begin().await;
        let renewed = beat(&client, &node, duration_seconds, known.take()).await;
        progress.end();
        // An answer that the node is not there is an answer: it is about to be registered.
        let trouble = renewed.as_ref().err().filter(|error| !error.is_not_found());
        super::note_reach(&reach, trouble.map(ToString::to_string));
        match renewed {
            Ok(lease) => {
                known = Some(lease);
                backoff.reset();
                tokio::select! {
                    () = tokio::time::sleep(jitter(interval, 0.04)) => {}
                    () = silence.notified() => {}
                }
            }
            Err(error) => {
                let wait = backoff.next_wait();
                tracing::warn!(%error, ?wait, "cannot renew the node's lease");
                tokio::time::sleep(wait).await;
            }
        }
    }
}

async fn beat(client: &Client, node: &str, seconds: i32, known: Option<Lease>) -> Result<Lease, ApiError> {
    let mut lease = match known {
        Some(lease) => lease,
        None => match client.get::<Lease>(NAMESPACE, node).await {
            Ok(lease) => lease,
            Err(error) if error.is_not_found() => return create(client, node, seconds).await,
            Err(error) => return Err(error),
        },
    };
    for attempt in 1.. {
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        spec.holder_identity = Some(node.to_owned());
        spec.lease_duration_seconds = Some(seconds);
        spec.renew_time = Some(now());
        if lease.metadata().is_none_or(|m| m.owner_references.is_empty()) {
            // One that cannot be read now will be found at a later beat.
            let _ = own(&mut lease, client, node).await;
        }
        match client.update("", &lease).await {
            Ok(lease) => return Ok(lease),
            Err(error) if error.is_conflict() && attempt < TRIES => {
                lease = client.get(NAMESPACE, node).await?;
            }
            Err(error) if error.is_not_found() => return create(client, node, seconds).await,
            Err(error) if error.is_retriable() && attempt < TRIES => {
                tracing::debug!(%error, attempt, "renewing the lease again");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(lease)
}

async fn create(client: &Client, node: &str, seconds: i32) -> Result<Lease, ApiError> {
    let mut lease = Lease {
        spec: Some(LeaseSpec {
            holder_identity: Some(node.to_owned()),
            lease_duration_seconds: Some(seconds),
            renew_time: Some(now()),
            ..LeaseSpec::default()
        }),
        ..Lease::default()
    };
    let metadata = lease.metadata_mut();
    metadata.name = node.to_owned();
    metadata.namespace = NAMESPACE.to_owned();
    own(&mut lease, client, node).await?;
    client.create(NAMESPACE, &lease).await
}

/// Makes the lease go with its node. A new one waits for it: nothing would clear away what belongs to nobody.
async fn own(lease: &mut Lease, client: &Client, node: &str) -> Result<(), ApiError> {
    let object = client.get::<Node>("", node).await?;
    lease.metadata_mut().owner_references = vec![OwnerReference {
        api_version: Node::API_VERSION.into(),
        kind: Node::KIND.into(),
        name: node.to_owned(),
        uid: object.uid().to_owned(),
        ..OwnerReference::default()
    }];
    Ok(())
}

fn now() -> MicroTime {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    MicroTime {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        // The API keeps microseconds.
        nanos: i32::try_from(since.subsec_micros() * 1000).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::atomic::{AtomicBool, Ordering};

    use bytes::Bytes;
    use http::{Request, Response, header};
    use http_body_util::{BodyExt as _, Full};

    use super::*;
    use crate::api::{Body, ClientOptions, Transport};
    use crate::daemon::Progress;

    /// A server that has one lease, as long as it is there.
    struct Server(AtomicBool);

    impl Transport for Server {
        fn send<'a>(
            &'a self,
            _: Request<Bytes>,
        ) -> Pin<Box<dyn Future<Output = Result<Response<Body>, ApiError>> + Send + 'a>> {
            const LEASE: &str = r#"{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"n",
                "ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"u"}]},"spec":{}}"#;
            let answer = match self.0.load(Ordering::Relaxed) {
                true => Response::builder()
                    .header(header::CONTENT_TYPE, "application/json")
                    .body(Full::new(Bytes::from_static(LEASE.as_bytes())).map_err(Into::into).boxed_unsync())
                    .map_err(|e| ApiError::Malformed(e.to_string())),
                false => Err(ApiError::Connect("refused".into())),
            };
            Box::pin(std::future::ready(answer))
        }
    }

    /// That the server was gone used to be known when the next renewal was due, ten seconds later.
    #[tokio::test(start_paused = true)]
    async fn a_sign_that_the_server_is_gone_is_looked_into_at_once() {
        let server = Arc::new(Server(AtomicBool::new(true)));
        let client = Client::new(server.clone(), &ClientOptions::default());
        let (reach, mut reached) = watch::channel(Some("nothing yet".to_owned()));
        let silence = Arc::new(Notify::new());
        let beat = Progress::default().register("lease", Duration::from_secs(60));
        tokio::spawn(renew(client, "n".into(), 40, (beat, reach), silence.clone()));
        reached.wait_for(Option::is_none).await.expect("it goes on");
        server.0.store(false, Ordering::Relaxed);
        let began = tokio::time::Instant::now();
        silence.notify_one();
        reached.wait_for(Option::is_some).await.expect("it goes on");
        assert!(began.elapsed() < Duration::from_secs(1));
    }
}
