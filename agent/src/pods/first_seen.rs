//! What of a pod's object stays as it was when this node first saw it.
//!
//! The kubelet takes over of a newer object what it acts on; version, managers of fields, owners and finalizers stay, and
//! that is what `/pods` and events show. Followed: kubelet `config.checkAndUpdatePod`.

use std::sync::Arc;

use proto::api::core::v1::Pod;
use proto::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The newer object of a pod that is known.
pub(super) fn kept(known: &Pod, mut newer: Arc<Pod>) -> Arc<Pod> {
    let Some(first) = &known.metadata else { return newer };
    let pod = Arc::make_mut(&mut newer);
    if let Some(now) = pod.metadata.take() {
        pod.metadata = Some(ObjectMeta {
            labels: now.labels,
            annotations: now.annotations,
            deletion_timestamp: now.deletion_timestamp,
            deletion_grace_period_seconds: now.deletion_grace_period_seconds,
            generation: now.generation,
            ..first.clone()
        });
    }
    newer
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::PodSpec;
    use proto::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;

    /// Every status that this node sent came back as another manager of the pod's fields.
    #[test]
    fn managers_and_version_stay_and_what_is_acted_on_is_the_newer() {
        let pod = |version: &str, generation, managers: &[&str]| Pod {
            metadata: Some(ObjectMeta {
                uid: "u".into(),
                resource_version: version.into(),
                generation,
                labels: [("version".to_owned(), version.to_owned())].into(),
                managed_fields: managers
                    .iter()
                    .map(|name| ManagedFieldsEntry { manager: (*name).into(), ..Default::default() })
                    .collect(),
                ..Default::default()
            }),
            spec: Some(PodSpec { node_name: version.into(), ..Default::default() }),
            status: None,
        };
        let now = kept(&pod("1", 1, &["kubectl"]), Arc::new(pod("2", 2, &["kubectl", "node"])));
        let meta = now.metadata.as_ref().unwrap();
        assert_eq!((meta.resource_version.as_str(), meta.managed_fields.len()), ("1", 1));
        assert_eq!((meta.generation, meta.labels["version"].as_str()), (2, "2"));
        assert_eq!(now.spec.as_ref().unwrap().node_name, "2");
    }
}
