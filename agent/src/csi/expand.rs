//! Growing the file system of a volume that its controller has made larger.
//!
//! What comes of it stands in the claim, for its controller: under way, done, or that this size cannot be had, after which
//! nobody tries until the controller has thought of another.
//!
//! Followed: `node_expander.go`, `resize_util.go`.

use std::time::Duration;

use proto::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use proto::csi::node_service_capability::rpc::Type as RpcType;
use proto::csi::{CapacityRange, NodeExpandVolumeRequest};
use serde_json::json;
use tokio::time::Instant;
use tonic::Code;

use crate::pod::quantity::whole;
use crate::pod::spec::PodExt;

use super::volumes::Volumes;
use super::wanted::Wanted;
use super::{CsiError, context};

/// A volume that could not grow is tried again at the first sync after this.
pub const RETRY: Duration = Duration::from_secs(60);

/// The size that a volume has and its claim does not show yet; `None` when they agree.
fn grown<'a>(volume: &'a PersistentVolume, claim: &PersistentVolumeClaim) -> Option<&'a str> {
    let size = volume.spec.as_ref()?.capacity.get("storage")?;
    let shown = claim.status.as_ref()?.capacity.get("storage")?;
    (whole(size) > whole(shown)).then_some(size.string.as_str())
}

const UNDER_WAY: &str = "NodeResizeInProgress";
const INFEASIBLE: &str = "NodeResizeInfeasible";

/// How far the claim says that growing has come; empty where no controller of today says anything.
fn stage(claim: &PersistentVolumeClaim) -> &str {
    let stages = claim.status.as_ref().map(|status| &status.allocated_resource_statuses);
    stages.and_then(|stages| stages.get("storage")).map_or("", String::as_str)
}

/// The volume cannot have that size, however often the driver is asked.
fn is_infeasible(error: &CsiError) -> bool {
    matches!(error, CsiError::Refused(status)
        if matches!(status.code(), Code::InvalidArgument | Code::OutOfRange | Code::NotFound))
}

/// The volume cannot grow while a pod has it, which is no failure.
fn is_in_use(error: &CsiError) -> bool {
    matches!(error, CsiError::Refused(status) if status.code() == Code::FailedPrecondition)
}

impl Volumes {
    /// Lets the driver grow what the pod has, and writes the new size into the claim; whether it did. Nothing happens when
    /// the sizes agree, the driver needs no help on the node, or it is the controller's turn.
    ///
    /// # Errors
    /// The driver's or the API server's word; the pod keeps its volume as it is.
    pub async fn expand(
        &self,
        wanted: &Wanted<'_>,
        volume: &PersistentVolume,
        claim: &PersistentVolumeClaim,
    ) -> Result<bool, String> {
        let Some(size) = grown(volume, claim).filter(|_| !wanted.read_only) else { return Ok(false) };
        let stage = stage(claim);
        if !matches!(stage, "" | "NodeResizePending" | UNDER_WAY) || self.tried(wanted, Instant::now()) {
            return Ok(false);
        }
        let turn = self.turn(&wanted.driver, &wanted.handle);
        let _turn = turn.lock().await;
        let driver = self.deps.drivers.get(&wanted.driver).map_err(|e| e.to_string())?;
        let capabilities = driver.capabilities().await.map_err(|e| e.to_string())?;
        if !capabilities.has(RpcType::ExpandVolume) {
            return Ok(false);
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
        if stage != UNDER_WAY {
            self.write(claim, json!({"allocatedResourceStatuses": {"storage": UNDER_WAY}})).await?;
        }
        if let Err(error) = driver.expand(request).await {
            if is_in_use(&error) {
                tracing::info!(%error, volume = wanted.name, "a volume does not grow while it is used");
                return Ok(false);
            }
            let colon = if is_infeasible(&error) { "" } else { ": " };
            let why = format!("Expander.NodeExpand failed to expand the volume {colon}{error}");
            if is_infeasible(&error) {
                let condition = json!({
                    "type": "NodeResizeError",
                    "status": "True",
                    "lastTransitionTime": proto::time::Timestamp::now().to_seconds_text(),
                    "message": format!("failed to expand pvc with {why}"),
                });
                let status = json!({"allocatedResourceStatuses": {"storage": INFEASIBLE}, "conditions": [condition]});
                self.write(claim, status).await?;
            }
            return Err(why);
        }
        let conditions = ["FileSystemResizePending", "Resizing", "ControllerResizeError", "NodeResizeError"];
        let status = json!({
            "capacity": {"storage": size},
            "allocatedResourceStatuses": {"storage": null},
            "conditions": conditions.map(|name| json!({"$patch": "delete", "type": name})),
        });
        self.write(claim, status).await?;
        tracing::info!(claim = claim.metadata.as_ref().map_or("", |m| &m.name), size, "a volume has grown");
        Ok(true)
    }

    async fn write(&self, claim: &PersistentVolumeClaim, status: serde_json::Value) -> Result<(), String> {
        let metadata = claim.metadata.clone().unwrap_or_default();
        let patch = json!({"status": status}).to_string();
        let written = self.api.patch_claim(&metadata.namespace, &metadata.name, patch).await;
        written.map(|_| ()).map_err(|e| format!("the claim cannot be told of its size: {e}"))
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
