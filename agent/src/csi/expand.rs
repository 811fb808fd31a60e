//! Growing the file system of a volume that its controller has made larger.

use std::time::Duration;

use proto::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use proto::csi::node_service_capability::rpc::Type as RpcType;
use proto::csi::{CapacityRange, NodeExpandVolumeRequest};
use serde_json::json;
use tokio::time::Instant;

use crate::pod::quantity::whole;
use crate::pod::spec::PodExt;

use super::context;
use super::volumes::Volumes;
use super::wanted::Wanted;

/// A volume that could not grow is tried again at the first sync after this.
pub const RETRY: Duration = Duration::from_secs(60);

/// The size that a volume has and its claim does not show yet; `None` when they agree.
fn grown<'a>(volume: &'a PersistentVolume, claim: &PersistentVolumeClaim) -> Option<&'a str> {
    let size = volume.spec.as_ref()?.capacity.get("storage")?;
    let shown = claim.status.as_ref()?.capacity.get("storage")?;
    (whole(size) > whole(shown)).then_some(size.string.as_str())
}

impl Volumes {
    /// Lets the driver grow what the pod has, and writes the new size into the claim. Nothing happens when the sizes
    /// agree, or the driver needs no help on the node.
    ///
    /// # Errors
    /// The driver's or the API server's word; the pod keeps its volume as it is.
    pub async fn expand(
        &self,
        wanted: &Wanted<'_>,
        volume: &PersistentVolume,
        claim: &PersistentVolumeClaim,
    ) -> Result<(), String> {
        let Some(size) = grown(volume, claim).filter(|_| !wanted.read_only) else { return Ok(()) };
        if self.tried(wanted, Instant::now()) {
            return Ok(());
        }
        let turn = self.turn(&wanted.driver, &wanted.handle);
        let _turn = turn.lock().await;
        let driver = self.deps.drivers.get(&wanted.driver).map_err(|e| e.to_string())?;
        let capabilities = driver.capabilities().await.map_err(|e| e.to_string())?;
        if !capabilities.has(RpcType::ExpandVolume) {
            return Ok(());
        }
        let (target, staging) = match wanted.block {
            true => (
                self.places.block_publish(&wanted.name).join(wanted.pod.uid()),
                self.places.block_staging(&wanted.name),
            ),
            false => (
                self.places.of_pod(wanted.pod.uid()).join(&wanted.name).join("mount"),
                self.places.staged(&wanted.driver, &wanted.handle).join("globalmount"),
            ),
        };
        let required = volume.spec.as_ref().and_then(|s| s.capacity.get("storage")).map_or(0, whole);
        let request = NodeExpandVolumeRequest {
            volume_id: wanted.handle.clone(),
            volume_path: target.display().to_string(),
            capacity_range: Some(CapacityRange { required_bytes: required, limit_bytes: 0 }),
            staging_target_path: staging.display().to_string(),
            volume_capability: Some(wanted.capability(&capabilities, None)),
            secrets: context::secret(self.objects(), &wanted.expand_secret).await?,
        };
        driver.expand(request).await.map_err(|e| format!("NodeExpandVolume failed: {e}"))?;
        let patch = json!({"status": {
            "capacity": {"storage": size},
            "allocatedResourceStatuses": {"storage": null},
            "conditions": [
                {"$patch": "delete", "type": "FileSystemResizePending"},
                {"$patch": "delete", "type": "Resizing"},
            ],
        }});
        let metadata = claim.metadata.clone().unwrap_or_default();
        let written = self.api.patch_claim(&metadata.namespace, &metadata.name, patch.to_string()).await;
        written.map_err(|e| format!("the claim cannot be told of its new size: {e}"))?;
        tracing::info!(claim = metadata.name, size, "a volume has grown");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{PersistentVolumeClaimStatus, PersistentVolumeSpec};
    use proto::apimachinery::pkg::api::resource::Quantity;

    #[test]
    fn a_claim_that_shows_less_than_its_volume_has_is_to_grow() {
        let sized = |text: &str| [("storage".to_owned(), Quantity { string: text.into() })].into();
        let volume = PersistentVolume {
            spec: Some(PersistentVolumeSpec { capacity: sized("2Gi"), ..Default::default() }),
            ..Default::default()
        };
        let claim = |text: &str| PersistentVolumeClaim {
            status: Some(PersistentVolumeClaimStatus { capacity: sized(text), ..Default::default() }),
            ..Default::default()
        };
        assert_eq!(grown(&volume, &claim("1Gi")), Some("2Gi"));
        assert_eq!(grown(&volume, &claim("2048Mi")), None);
        assert_eq!(grown(&volume, &PersistentVolumeClaim::default()), None);
    }
}
