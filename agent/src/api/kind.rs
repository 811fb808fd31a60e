//! The kinds that the agent handles as values, and where the API serves them.

use proto::api::{
    authentication::v1 as authentication, authorization::v1 as authorization, certificates::v1 as certificates,
    certificates::v1beta1 as certificates_beta, coordination::v1 as coordination, core::v1 as core, node::v1 as node,
    resource::v1 as resource, storage::v1 as storage,
};
use proto::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

/// An API object type: its names and its metadata.
pub trait Kind: prost::Message + Default + Clone + Send + Sync + 'static {
    /// Empty for the core group.
    const GROUP: &'static str;
    const VERSION: &'static str;
    /// `v1`, or `group/v1`.
    const API_VERSION: &'static str;
    const KIND: &'static str;
    const PLURAL: &'static str;
    const NAMESPACED: bool;

    fn metadata(&self) -> Option<&ObjectMeta>;
    /// The metadata, created empty when absent.
    fn metadata_mut(&mut self) -> &mut ObjectMeta;

    /// Empty when absent, as for all metadata strings.
    fn name(&self) -> &str {
        self.metadata().map_or("", |m| &m.name)
    }
    fn namespace(&self) -> &str {
        self.metadata().map_or("", |m| &m.namespace)
    }
    fn uid(&self) -> &str {
        self.metadata().map_or("", |m| &m.uid)
    }
    fn resource_version(&self) -> &str {
        self.metadata().map_or("", |m| &m.resource_version)
    }
}

macro_rules! kinds {
    ($($ty:path, $group:literal, $version:literal, $api_version:literal, $kind:literal, $plural:literal, $ns:literal;)*) => {
        /// Group, version and kind of all of them.
        #[cfg(test)]
        const KINDS: &[(&str, &str, &str)] = &[$(($group, $version, $kind)),*];

        $(impl Kind for $ty {
            const GROUP: &'static str = $group;
            const VERSION: &'static str = $version;
            const API_VERSION: &'static str = $api_version;
            const KIND: &'static str = $kind;
            const PLURAL: &'static str = $plural;
            const NAMESPACED: bool = $ns;

            fn metadata(&self) -> Option<&ObjectMeta> {
                self.metadata.as_ref()
            }
            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                self.metadata.get_or_insert_with(ObjectMeta::default)
            }
        })*
    };
}

kinds! {
    core::Pod, "", "v1", "v1", "Pod", "pods", true;
    core::Node, "", "v1", "v1", "Node", "nodes", false;
    core::Namespace, "", "v1", "v1", "Namespace", "namespaces", false;
    core::ConfigMap, "", "v1", "v1", "ConfigMap", "configmaps", true;
    core::Secret, "", "v1", "v1", "Secret", "secrets", true;
    core::Service, "", "v1", "v1", "Service", "services", true;
    core::ServiceAccount, "", "v1", "v1", "ServiceAccount", "serviceaccounts", true;
    core::Event, "", "v1", "v1", "Event", "events", true;
    core::PersistentVolume, "", "v1", "v1", "PersistentVolume", "persistentvolumes", false;
    core::PersistentVolumeClaim, "", "v1", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", true;
    coordination::Lease, "coordination.k8s.io", "v1", "coordination.k8s.io/v1", "Lease", "leases", true;
    node::RuntimeClass, "node.k8s.io", "v1", "node.k8s.io/v1", "RuntimeClass", "runtimeclasses", false;
    storage::CsiNode, "storage.k8s.io", "v1", "storage.k8s.io/v1", "CSINode", "csinodes", false;
    storage::CsiDriver, "storage.k8s.io", "v1", "storage.k8s.io/v1", "CSIDriver", "csidrivers", false;
    storage::VolumeAttachment, "storage.k8s.io", "v1", "storage.k8s.io/v1", "VolumeAttachment", "volumeattachments", false;
    resource::ResourceClaim, "resource.k8s.io", "v1", "resource.k8s.io/v1", "ResourceClaim", "resourceclaims", true;
    resource::ResourceSlice, "resource.k8s.io", "v1", "resource.k8s.io/v1", "ResourceSlice", "resourceslices", false;
    certificates::CertificateSigningRequest, "certificates.k8s.io", "v1", "certificates.k8s.io/v1", "CertificateSigningRequest", "certificatesigningrequests", false;
    certificates_beta::ClusterTrustBundle, "certificates.k8s.io", "v1beta1", "certificates.k8s.io/v1beta1", "ClusterTrustBundle", "clustertrustbundles", false;
    authentication::TokenRequest, "authentication.k8s.io", "v1", "authentication.k8s.io/v1", "TokenRequest", "tokenrequests", true;
    authentication::TokenReview, "authentication.k8s.io", "v1", "authentication.k8s.io/v1", "TokenReview", "tokenreviews", false;
    authorization::SubjectAccessReview, "authorization.k8s.io", "v1", "authorization.k8s.io/v1", "SubjectAccessReview", "subjectaccessreviews", false;
}

/// A moment as the API carries it: whole seconds, as `metav1.Time` keeps no more.
pub fn timestamp(at: std::time::SystemTime) -> Time {
    let seconds = at.duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    Time { seconds: i64::try_from(seconds).unwrap_or(i64::MAX), nanos: 0 }
}

/// The path of a collection, such as `/api/v1/namespaces/ns/pods`; an empty namespace means all.
pub(super) fn collection_path<T: Kind>(namespace: &str) -> String {
    let mut path = String::with_capacity(64);
    if T::GROUP.is_empty() {
        path.push_str("/api/");
    } else {
        path.push_str("/apis/");
        path.push_str(T::GROUP);
        path.push('/');
    }
    path.push_str(T::VERSION);
    if T::NAMESPACED && !namespace.is_empty() {
        path.push_str("/namespaces/");
        escape(namespace, &mut path);
    }
    path.push('/');
    path.push_str(T::PLURAL);
    path
}

/// Percent-encodes a path segment or query value.
pub(super) fn escape(text: &str, out: &mut String) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(HEX[usize::from(byte >> 4)]));
            out.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_follow_group_and_scope() {
        assert_eq!(collection_path::<core::Pod>("a b"), "/api/v1/namespaces/a%20b/pods");
        assert_eq!(collection_path::<core::Pod>(""), "/api/v1/pods");
        assert_eq!(collection_path::<core::Node>("ignored"), "/api/v1/nodes");
        assert_eq!(
            collection_path::<coordination::Lease>("kube-node-lease"),
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        );
    }

    #[test]
    fn every_kind_can_be_written_in_json() {
        let set = proto::schema::TypeSet::built_in();
        for (group, version, kind) in KINDS {
            assert!(set.kind(group, version, kind).is_some(), "no schema of {group}/{version} {kind}");
        }
    }
}
