//! The images that the runtime has, for the status: listed beside the reports, which never wait for it.

use std::sync::Arc;
use std::time::Duration;

use proto::cri;
use serde_json::Value;
use tokio::sync::watch;

use super::{RuntimeState, status};
use crate::cri::CriClient;

/// The kubelet lists images this often for the status.
const PERIOD: Duration = Duration::from_secs(30);

/// As the status shows them.
pub type Images = watch::Receiver<Arc<Vec<Value>>>;

/// Lists the images whenever it is time and the runtime is up, until nobody wants them any more. At most `limit` are
/// shown, all when it is negative.
pub async fn follow(
    cri: CriClient,
    mut runtime: watch::Receiver<Arc<RuntimeState>>,
    limit: i32,
    images: watch::Sender<Arc<Vec<Value>>>,
) {
    while !images.is_closed() {
        // A runtime that is not up would only keep the question until it is late.
        if runtime.wait_for(|runtime| runtime.is_ready()).await.is_err() {
            return;
        }
        match cri.list_images(cri::ListImagesRequest::default()).await {
            Ok(list) => {
                let new = status::images(&list.images, limit);
                images.send_if_modified(|known| {
                    let changed = **known != new;
                    if changed {
                        *known = Arc::new(new);
                    }
                    changed
                });
            }
            Err(error) => tracing::debug!(%error, "cannot list images for the node's status"),
        }
        tokio::time::sleep(PERIOD).await;
    }
}
