//! Waiting until the volume of a driver that has to attach it is attached to this node.
//!
//! A node may get the object of its own attachment, and neither list nor watch: it looks again, ever more seldom.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::volumes::claims::Claims;

const FIRST_LOOK: Duration = Duration::from_millis(200);
const LAST_LOOK: Duration = Duration::from_secs(4);
/// gRPC's `ResourceExhausted`: the attacher's word that the node can have no further volume of this driver.
const RESOURCE_EXHAUSTED: i32 = 8;

/// Why a volume is not attached; the text is the attacher's, or the kubelet's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotAttached {
    pub why: String,
    /// The node has reached its limit.
    pub exhausted: bool,
}

impl From<String> for NotAttached {
    fn from(why: String) -> Self {
        Self { why, exhausted: false }
    }
}

/// What the attacher has to say to the driver on this node, once the volume is attached.
///
/// # Errors
/// The attacher's own, or it takes longer than `patience`.
pub async fn wait(api: &dyn Claims, name: &str, patience: Duration) -> Result<BTreeMap<String, String>, NotAttached> {
    let waited = tokio::time::timeout(patience, async {
        let mut wait = FIRST_LOOK;
        loop {
            match api.attachment(name).await {
                Ok(found) => {
                    let status = found.status.unwrap_or_default();
                    if let Some(error) = status.attach_error {
                        let exhausted = error.error_code == Some(RESOURCE_EXHAUSTED);
                        return Err(NotAttached { why: error.message, exhausted });
                    }
                    if status.attached {
                        return Ok(status.attachment_metadata);
                    }
                }
                // The controller has not made it yet; before that the authorizer may not know it either.
                Err(error) if error.is_not_found() || error.code() == 403 => {}
                Err(error) => return Err(format!("volume attachment {name} cannot be read: {error}").into()),
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LAST_LOOK);
        }
    });
    let late = || format!("timed out waiting for external-attacher of volume attachment {name}").into();
    waited.await.unwrap_or_else(|_| Err(late()))
}
