//! Pods that the API server has bound to this node.

use proto::api::core::v1::Pod;
use tokio::sync::mpsc;

use crate::api::{Change, Client, Reflector};

use super::{Source, Update};

/// Follows the pods of `node` until the receiver is gone.
pub async fn follow(client: Client, node: String, updates: mpsc::Sender<Update>) {
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
