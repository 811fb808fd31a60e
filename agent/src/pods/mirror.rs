//! Mirror pods: the API server's picture of static pods.
//!
//! A static pod has one mirror with the hash of the pod in an annotation; one with another hash is deleted and made
//! anew, one of a static pod that is gone is deleted (grace 0, uid precondition).

use std::sync::Arc;

use proto::api::core::v1::{Node, Pod, PodStatus};
use proto::apimachinery::pkg::apis::meta::v1::{DeleteOptions, OwnerReference, Preconditions};

use crate::api::{ApiError, Client};
use crate::pod::labels;
use crate::pod::spec::PodExt;

/// The object to create for a static pod.
pub fn mirror_of(pod: &Pod, node: &Node) -> Pod {
    let mut mirror = pod.clone();
    mirror.status = Some(PodStatus::default());
    let meta = mirror.metadata.get_or_insert_default();
    let hash = meta.annotations.get(labels::CONFIG_HASH).cloned().unwrap_or_default();
    meta.annotations.insert(labels::CONFIG_MIRROR.into(), hash);
    meta.uid.clear();
    meta.resource_version.clear();
    meta.creation_timestamp = None;
    if let Some(owner) = node.metadata.as_ref().filter(|m| !m.uid.is_empty()) {
        meta.owner_references = vec![OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
            controller: Some(true),
            block_owner_deletion: None,
        }];
    }
    mirror
}

/// Whether a mirror shows this very static pod.
pub fn shows(mirror: &Pod, pod: &Pod) -> bool {
    !mirror.is_deleted() && mirror.annotation(labels::CONFIG_MIRROR) == pod.annotation(labels::CONFIG_HASH)
}

pub async fn create(client: &Client, pod: &Pod, node: &Node) -> Result<Option<Arc<Pod>>, ApiError> {
    let mirror = mirror_of(pod, node);
    match client.create::<Pod>(pod.namespace(), &mirror).await {
        Ok(made) => Ok(Some(Arc::new(made))),
        // The watch will bring what is there.
        Err(e) if e.is_already_exists() => Ok(None),
        Err(e) => Err(e),
    }
}

pub async fn delete(client: &Client, mirror: &Pod) -> Result<(), ApiError> {
    let options = DeleteOptions {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid: Some(mirror.uid().to_owned()), ..Default::default() }),
        ..Default::default()
    };
    match client.delete::<Pod>(mirror.namespace(), mirror.name(), &options).await {
        Err(e) if !e.is_not_found() && !e.is_conflict() => Err(e),
        _ => Ok(()),
    }
}
