//! Pods that the API server has bound to this node.
//!
//! They are judged by the node's labels and taints, which others may have written: none is asked for before it is known what
//! the API server has of the node.

use proto::api::core::v1::Pod;
use tokio::sync::mpsc;

use crate::api::{Change, Client, Reflector};

use super::{Source, Update};

/// Follows the pods of `node` until the receiver is gone, from when `known` is over.
pub async fn follow(client: Client, node: String, known: impl Future<Output = ()>, updates: mpsc::Sender<Update>) {
    known.await;
    let mut pods: Reflector<Pod> = Reflector::new(client, "", &format!("spec.nodeName={node}"));
    loop {
        let update = match pods.next().await {
            Change::Listed(pods) => Update::Listed(Source::Api, pods),
            Change::Applied(pod) => Update::Applied(pod),
            Change::Deleted(pod) => Update::Deleted(pod),
        };
        if updates.send(update).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use bytes::Bytes;
    use http::{Request, Response};
    use tokio::sync::oneshot;

    use super::*;
    use crate::api::{ApiError, Body, ClientOptions, Transport};

    /// Notes that it was asked.
    #[derive(Default)]
    struct Asked(AtomicBool);

    impl Transport for Asked {
        fn send<'a>(
            &'a self,
            _: Request<Bytes>,
        ) -> Pin<Box<dyn Future<Output = Result<Response<Body>, ApiError>> + Send + 'a>> {
            self.0.store(true, Ordering::Relaxed);
            Box::pin(std::future::ready(Err(ApiError::Connect("refused".into()))))
        }
    }

    /// Pods that came before the node were judged by the labels that the agent would give it, and ended.
    #[tokio::test(start_paused = true)]
    async fn no_pod_is_asked_for_before_the_node_is_known() {
        let asked = Arc::new(Asked::default());
        let client = Client::new(asked.clone(), &ClientOptions::default());
        let (tell, known) = oneshot::channel::<()>();
        let (updates, _queue) = mpsc::channel(1);
        let known = async { known.await.unwrap() };
        let following = tokio::spawn(follow(client, "n".into(), known, updates));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!asked.0.load(Ordering::Relaxed));
        tell.send(()).unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(asked.0.load(Ordering::Relaxed));
        following.abort();
    }
}
