//! Claims: from a persistent volume claim in a pod, its own or a generic ephemeral one, to the volume that it is bound to;
//! and the other objects of the API that volumes depend on.
//!
//! The API is asked anew at each look, because a claim may be bound, or be deleted, while a pod waits for it.
//!
//! Followed: kubelet `desired_state_of_world_populator.go`.

use std::future::Future;
use std::pin::Pin;

use proto::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use proto::api::storage::v1::{CsiDriver, VolumeAttachment};

use crate::api::{ApiError, Client, PatchType};
use crate::pod::spec::PodExt;

/// Where claims and volumes come from. What an implementation does not have is as without an API server.
pub trait Claims: Send + Sync {
    fn claim<'a>(&'a self, namespace: &'a str, name: &'a str) -> Found<'a, PersistentVolumeClaim>;
    fn volume<'a>(&'a self, name: &'a str) -> Found<'a, PersistentVolume>;
    /// What a storage driver says of itself.
    fn driver<'a>(&'a self, _name: &'a str) -> Found<'a, CsiDriver> {
        Box::pin(std::future::ready(Err(ApiError::Standalone)))
    }
    /// How far a volume is attached to this node.
    fn attachment<'a>(&'a self, _name: &'a str) -> Found<'a, VolumeAttachment> {
        Box::pin(std::future::ready(Err(ApiError::Standalone)))
    }
    /// A strategic merge patch of a claim's status.
    fn patch_claim<'a>(
        &'a self,
        _namespace: &'a str,
        _name: &'a str,
        _patch: String,
    ) -> Found<'a, PersistentVolumeClaim> {
        Box::pin(std::future::ready(Err(ApiError::Standalone)))
    }
}

pub type Found<'a, T> = Pin<Box<dyn Future<Output = Result<T, ApiError>> + Send + 'a>>;

impl Claims for Client {
    fn claim<'a>(&'a self, namespace: &'a str, name: &'a str) -> Found<'a, PersistentVolumeClaim> {
        Box::pin(self.get::<PersistentVolumeClaim>(namespace, name))
    }
    fn volume<'a>(&'a self, name: &'a str) -> Found<'a, PersistentVolume> {
        Box::pin(self.get::<PersistentVolume>("", name))
    }
    fn driver<'a>(&'a self, name: &'a str) -> Found<'a, CsiDriver> {
        Box::pin(self.get::<CsiDriver>("", name))
    }
    fn attachment<'a>(&'a self, name: &'a str) -> Found<'a, VolumeAttachment> {
        Box::pin(self.get::<VolumeAttachment>("", name))
    }
    fn patch_claim<'a>(&'a self, namespace: &'a str, name: &'a str, patch: String) -> Found<'a, PersistentVolumeClaim> {
        Box::pin(self.patch::<PersistentVolumeClaim>(namespace, name, "status", PatchType::StrategicMerge, patch))
    }
}

/// A claim and its volume, and whether the pod may only read it.
#[derive(Debug, Clone)]
pub struct Bound {
    pub claim: PersistentVolumeClaim,
    pub volume: PersistentVolume,
    pub read_only: bool,
}

/// The name of the claim behind a volume, if there is one: of its own where the pod brings it along.
pub fn name(pod: &Pod, volume: &Volume) -> Option<String> {
    let source = volume.volume_source.as_ref()?;
    let of_pod = || source.ephemeral.as_ref().map(|_| format!("{}-{}", pod.name(), volume.name));
    source.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.clone()).or_else(of_pod)
}

/// The namespace and the name of a claim.
pub fn place(claim: &PersistentVolumeClaim) -> Option<(String, String)> {
    claim.metadata.as_ref().map(|meta| (meta.namespace.clone(), meta.name.clone()))
}

/// Follows a volume of a pod to the persistent volume behind it; `None` when it is no claim.
///
/// # Errors
/// The kubelet's text: the claim is not there, not bound, being deleted or another pod's.
pub async fn resolve(claims: &dyn Claims, pod: &Pod, volume: &Volume) -> Result<Option<Bound>, String> {
    let Some(name) = name(pod, volume) else { return Ok(None) };
    let of_claim = volume.volume_source.as_ref().and_then(|source| source.persistent_volume_claim.as_ref());
    let (read_only, own) = (of_claim.is_some_and(|claim| claim.read_only), of_claim.is_none());
    let place = format!("{}/{name}", pod.namespace());
    let failed = |why: String| format!("error processing PVC {place}: {why}");
    let claim = claims
        .claim(pod.namespace(), &name)
        .await
        .map_err(|e| failed(format!("failed to fetch PVC from API server: {e}")))?;
    if own && !owned_by(&claim, pod) {
        return Err(failed(format!(
            "PVC {place} was not created for pod {}/{} (pod is not owner)",
            pod.namespace(),
            pod.name()
        )));
    }
    if claim.metadata.as_ref().is_some_and(|m| m.deletion_timestamp.is_some()) {
        return Err(failed("PVC is being deleted".into()));
    }
    let bound_to = claim.spec.as_ref().map_or("", |s| &s.volume_name);
    let phase = claim.status.as_ref().map_or("", |s| &s.phase);
    if phase != "Bound" || bound_to.is_empty() {
        return Err(failed("PVC is not bound".into()));
    }
    let found = claims.volume(bound_to).await.map_err(|e| {
        format!("error processing PVC {place}: error processing PV {bound_to}: failed to fetch PV {bound_to} from API server: {e}")
    })?;
    let claim_ref = found.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
    let uid = claim.metadata.as_ref().map_or("", |m| &m.uid);
    match claim_ref {
        None => {
            return Err(failed(format!(
                "found PV object {bound_to} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
            )));
        }
        Some(reference) if reference.uid != uid => {
            return Err(failed(format!(
                "found PV object {bound_to} but its pv.Spec.ClaimRef.UID {} does not point to claim.UID {uid}",
                reference.uid
            )));
        }
        Some(_) => {}
    }
    Ok(Some(Bound { claim, volume: found, read_only }))
}

fn owned_by(claim: &PersistentVolumeClaim, pod: &Pod) -> bool {
    let owners = claim.metadata.iter().flat_map(|m| &m.owner_references);
    owners.into_iter().any(|o| o.controller == Some(true) && o.kind == "Pod" && o.uid == pod.uid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{
        EphemeralVolumeSource, ObjectReference, PersistentVolumeClaimSpec, PersistentVolumeClaimStatus,
        PersistentVolumeClaimVolumeSource, PersistentVolumeSpec, VolumeSource,
    };
    use proto::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

    struct Fixed(PersistentVolumeClaim, PersistentVolume);

    impl Claims for Fixed {
        fn claim<'a>(&'a self, _: &'a str, _: &'a str) -> Found<'a, PersistentVolumeClaim> {
            Box::pin(std::future::ready(Ok(self.0.clone())))
        }
        fn volume<'a>(&'a self, _: &'a str) -> Found<'a, PersistentVolume> {
            Box::pin(std::future::ready(Ok(self.1.clone())))
        }
    }

    fn fixed() -> Fixed {
        let claim = PersistentVolumeClaim {
            metadata: Some(ObjectMeta { uid: "c".into(), ..Default::default() }),
            spec: Some(PersistentVolumeClaimSpec { volume_name: "v".into(), ..Default::default() }),
            status: Some(PersistentVolumeClaimStatus { phase: "Bound".into(), ..Default::default() }),
        };
        let claim_ref = Some(ObjectReference { uid: "c".into(), ..Default::default() });
        let spec = Some(PersistentVolumeSpec { claim_ref, ..Default::default() });
        Fixed(claim, PersistentVolume { spec, ..Default::default() })
    }

    fn pod() -> Pod {
        let metadata = ObjectMeta { name: "p".into(), namespace: "n".into(), uid: "u".into(), ..Default::default() };
        Pod { metadata: Some(metadata), ..Default::default() }
    }

    fn volume(source: VolumeSource) -> Volume {
        Volume { name: "data".into(), volume_source: Some(source) }
    }

    fn claimed() -> Volume {
        let claim = PersistentVolumeClaimVolumeSource { claim_name: "c1".into(), read_only: true };
        volume(VolumeSource { persistent_volume_claim: Some(claim), ..Default::default() })
    }

    #[tokio::test]
    async fn a_bound_claim_leads_to_its_volume() {
        let bound = resolve(&fixed(), &pod(), &claimed()).await.unwrap().unwrap();
        assert!(bound.read_only && bound.volume.spec.is_some());
        assert!(resolve(&fixed(), &pod(), &volume(VolumeSource::default())).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_claim_that_is_not_ready_says_why() {
        let mut pending = fixed();
        pending.0.status = None;
        let why = resolve(&pending, &pod(), &claimed()).await.unwrap_err();
        assert_eq!(why, "error processing PVC n/c1: PVC is not bound");
        let mut other = fixed();
        other.1.spec.as_mut().unwrap().claim_ref.as_mut().unwrap().uid = "x".into();
        assert!(resolve(&other, &pod(), &claimed()).await.unwrap_err().contains("does not point to claim.UID c"));
    }

    #[tokio::test]
    async fn an_ephemeral_volume_must_be_the_pods_own() {
        let source = VolumeSource { ephemeral: Some(EphemeralVolumeSource::default()), ..Default::default() };
        let why = resolve(&fixed(), &pod(), &volume(source.clone())).await.unwrap_err();
        assert_eq!(why, "error processing PVC n/p-data: PVC n/p-data was not created for pod n/p (pod is not owner)");
        let mut own = fixed();
        let owner =
            OwnerReference { kind: "Pod".into(), uid: "u".into(), controller: Some(true), ..Default::default() };
        own.0.metadata.as_mut().unwrap().owner_references = vec![owner];
        assert!(resolve(&own, &pod(), &volume(source)).await.unwrap().is_some());
    }
}
