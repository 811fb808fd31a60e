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
use super::{CsiError, context, data};

/// A volume that could not grow is tried again at the first sync after this.
pub const RETRY: Duration = Duration::from_secs(60);

/// The size that a claim shows.
fn shown(claim: &PersistentVolumeClaim) -> Option<i64> {
    claim.status.as_ref()?.capacity.get("storage").map(whole)
}

/// The size that a volume has and its claim does not show yet, or this node, where it has `size`, has not yet; `None`
/// when they agree.
fn grown<'a>(volume: &'a PersistentVolume, claim: &PersistentVolumeClaim, size: i64) -> Option<&'a str> {
    let wanted = volume.spec.as_ref()?.capacity.get("storage")?;
    (whole(wanted) > shown(claim)?.min(size)).then_some(wanted.string.as_str())
}

const UNDER_WAY: &str = "NodeResizeInProgress";
const INFEASIBLE: &str = "NodeResizeInfeasible";

/// Who says in the claim how far growing has come.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Progress {
    /// Nobody: the controller is of old, and the node just grows what is larger.
    Unsaid,
    /// The controller, and it is the node's turn; whether the claim says already that the node is at it.
    Ours { begun: bool },
    /// The controller, and it is its own turn.
    Theirs,
    /// Another node, which has grown the volume already: nothing is left to say.
    Said,
}

/// `size` is what the volume has.
fn progress(claim: &PersistentVolumeClaim, size: i64) -> Progress {
    let Some(status) = &claim.status else { return Progress::Unsaid };
    match status.allocated_resource_statuses.get("storage").map_or("", String::as_str) {
        "" if shown(claim).is_some_and(|shown| shown >= size) => Progress::Said,
        "" if status.allocated_resources.is_empty() => Progress::Unsaid,
        "NodeResizePending" => Progress::Ours { begun: false },
        UNDER_WAY => Progress::Ours { begun: true },
        _ => Progress::Theirs,
    }
}

/// Whether somebody has asked for another size since the volume got the one that it has.
fn wants_another(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let asked = claim.spec.as_ref().and_then(|s| s.resources.as_ref()?.requests.get("storage")).map_or(0, whole);
    asked != required(volume)
}

fn required(volume: &PersistentVolume) -> i64 {
    volume.spec.as_ref().and_then(|s| s.capacity.get("storage")).map_or(0, whole)
}

fn code(error: &CsiError) -> Code {
    match error {
        CsiError::Refused(status) => status.code(),
        CsiError::Missing(_) | CsiError::Dial(_) => Code::Unavailable,
    }
}

/// The volume cannot have that size, however often the driver is asked.
fn is_infeasible(code: Code) -> bool {
    matches!(code, Code::InvalidArgument | Code::OutOfRange | Code::NotFound)
}

/// The driver is not at it any more.
fn is_final(code: Code) -> bool {
    !matches!(
        code,
        Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::ResourceExhausted | Code::Aborted
    )
}

impl Volumes {
    /// Lets the driver grow what the pod has, and writes the new size into the claim unless another node has; whether
    /// it did. Nothing happens when the sizes agree, the driver needs no help on the node, or it is the controller's
    /// turn. `claim` is afterwards as the API server last showed it.
    ///
    /// # Errors
    /// The driver's or the API server's word; the pod keeps its volume as it is.
    pub async fn expand(
        &self,
        wanted: &Wanted<'_>,
        volume: &PersistentVolume,
        claim: &mut PersistentVolumeClaim,
    ) -> Result<bool, String> {
        let Some(shown) = shown(claim) else { return Ok(false) };
        let name = data::unique_name(&wanted.driver, &wanted.handle);
        let has = self.sizes.of(&name, shown);
        let Some(size) = grown(volume, claim, has).filter(|_| !wanted.read_only) else { return Ok(false) };
        let progress = progress(claim, required(volume));
        let before = self.refused_growth(wanted);
        // What cannot grow while it is used is not asked again for as long as it is.
        if progress == Progress::Theirs
            || before == Some(Code::FailedPrecondition)
            || self.tried(wanted, Instant::now())
        {
            return Ok(false);
        }
        let turn = self.turn(&wanted.driver, &wanted.handle);
        let _turn = turn.lock().await;
        let driver = self.deps.drivers.get(&wanted.driver).map_err(|e| e.to_string())?;
        let capabilities = driver.capabilities().await.map_err(|e| e.to_string())?;
        if !capabilities.has(RpcType::ExpandVolume) {
            // What the claim shows already has grown without this node, and there is nothing left to ask for.
            if progress == Progress::Said {
                self.sizes.note(&name, required(volume));
            }
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
        let request = NodeExpandVolumeRequest {
            volume_id: wanted.handle.clone(),
            volume_path: target.display().to_string(),
            capacity_range: Some(CapacityRange { required_bytes: required(volume), limit_bytes: 0 }),
            staging_target_path: staging.display().to_string(),
            volume_capability: Some(wanted.capability(&capabilities, None)),
            secrets: context::secret(self.objects(), &wanted.expand_secret).await?,
        };
        // The controller waits for a word on the old size, to go on with the one that is wanted now.
        let given_up = before.is_some() && wants_another(volume, claim);
        if progress == (Progress::Ours { begun: false }) {
            self.write(claim, json!({"allocatedResourceStatuses": {"storage": UNDER_WAY}})).await?;
        }
        if let Err(error) = driver.expand(request).await {
            let code = code(&error);
            let colon = if is_infeasible(code) { "" } else { ": " };
            let why = format!("Expander.NodeExpand failed to expand the volume {colon}{error}");
            if is_final(code) {
                self.note_refused_growth(wanted, Some(code));
                if progress != Progress::Unsaid {
                    self.write_failure(claim, &why, is_infeasible(code) || given_up).await;
                }
            }
            if code == Code::FailedPrecondition {
                tracing::info!(%error, volume = wanted.name, "a volume does not grow while it is used");
                return Ok(false);
            }
            return Err(why);
        }
        self.note_refused_growth(wanted, None);
        self.sizes.note(&name, required(volume));
        if progress == Progress::Said {
            tracing::info!(volume = wanted.name, size, "a volume has grown on this node as well");
            return Ok(true);
        }
        let conditions = ["FileSystemResizePending", "Resizing", "ControllerResizeError", "NodeResizeError"];
        let mut status = json!({
            "capacity": {"storage": size},
            "conditions": conditions.map(|name| json!({"$patch": "delete", "type": name})),
        });
        if progress != Progress::Unsaid {
            status["allocatedResourceStatuses"] = json!({"storage": null});
        }
        self.write(claim, status).await?;
        tracing::info!(claim = claim.metadata.as_ref().map_or("", |m| &m.name), size, "a volume has grown");
        Ok(true)
    }

    /// What the driver said is told to the caller, whether or not the claim can be told of it.
    async fn write_failure(&self, claim: &mut PersistentVolumeClaim, why: &str, infeasible: bool) {
        let condition = json!({
            "type": "NodeResizeError",
            "status": "True",
            "lastTransitionTime": proto::time::Timestamp::now().to_seconds_text(),
            "message": format!("failed to expand pvc with {why}"),
        });
        let mut status = json!({"conditions": [condition]});
        if infeasible {
            status["allocatedResourceStatuses"] = json!({"storage": INFEASIBLE});
        }
        if let Err(why) = self.write(claim, status).await {
            tracing::warn!(why, "a volume has not grown");
        }
    }

    async fn write(&self, claim: &mut PersistentVolumeClaim, status: serde_json::Value) -> Result<(), String> {
        let metadata = claim.metadata.clone().unwrap_or_default();
        let patch = json!({"status": status}).to_string();
        let written = self.api.patch_claim(&metadata.namespace, &metadata.name, patch).await;
        *claim = written.map_err(|e| format!("the claim cannot be told of its size: {e}"))?;
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
        assert_eq!(grown(&volume, &claim("1Gi"), 2 << 30), Some("2Gi"));
        assert_eq!(grown(&volume, &claim("2048Mi"), 2 << 30), None);
        assert_eq!(grown(&volume, &claim("2Gi"), 1 << 30), Some("2Gi"), "this node has not grown it");
        assert_eq!(grown(&volume, &PersistentVolumeClaim::default(), 0), None);
    }

    #[test]
    fn a_claim_says_whose_turn_it_is() {
        let of_size = |stage: &str, allocated: bool, size: i64| {
            let mut status = PersistentVolumeClaimStatus::default();
            if !stage.is_empty() {
                status.allocated_resource_statuses.insert("storage".into(), stage.into());
            }
            if allocated {
                status.allocated_resources.insert("storage".into(), Quantity::default());
            }
            status.capacity.insert("storage".into(), Quantity { string: "1".into() });
            progress(&PersistentVolumeClaim { status: Some(status), ..Default::default() }, size)
        };
        let claim = |stage: &str, allocated: bool| of_size(stage, allocated, 2);
        assert_eq!(claim("", false), Progress::Unsaid);
        assert_eq!(claim("", true), Progress::Theirs, "a controller of today has not come to the node");
        assert_eq!(claim("NodeResizePending", true), Progress::Ours { begun: false });
        assert_eq!(claim(UNDER_WAY, true), Progress::Ours { begun: true });
        assert_eq!(claim(INFEASIBLE, true), Progress::Theirs);
        assert_eq!(claim("ControllerResizeInProgress", true), Progress::Theirs);
        assert_eq!(of_size("", true, 1), Progress::Said);
        assert_eq!(of_size("ControllerResizeInProgress", true, 1), Progress::Theirs, "it is to grow further");
    }
}
