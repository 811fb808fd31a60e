//! Kinds that every version of every group has: those of what is sent with a delete and of what a watch tells.
//!
//! Upstream's documents name them in all versions that its Go types are registered in, served or not.

use std::collections::BTreeSet;

use proto::schema::TypeSet;
use serde_json::{Value, json};

/// Versions that upstream registers beside those whose kinds are known here.
const UNSERVED: [(&str, &str); 24] = [
    ("admission.k8s.io", "v1"),
    ("admission.k8s.io", "v1beta1"),
    ("apiextensions.k8s.io", "v1beta1"),
    ("apiregistration.k8s.io", "v1beta1"),
    ("apps", "v1beta1"),
    ("apps", "v1beta2"),
    ("authentication.k8s.io", "v1alpha1"),
    ("authentication.k8s.io", "v1beta1"),
    ("authorization.k8s.io", "v1beta1"),
    ("batch", "v1beta1"),
    ("discovery.k8s.io", "v1beta1"),
    ("events.k8s.io", "v1beta1"),
    ("extensions", "v1beta1"),
    ("flowcontrol.apiserver.k8s.io", "v1beta1"),
    ("flowcontrol.apiserver.k8s.io", "v1beta2"),
    ("flowcontrol.apiserver.k8s.io", "v1beta3"),
    ("imagepolicy.k8s.io", "v1alpha1"),
    ("node.k8s.io", "v1alpha1"),
    ("node.k8s.io", "v1beta1"),
    ("policy", "v1beta1"),
    ("rbac.authorization.k8s.io", "v1alpha1"),
    ("rbac.authorization.k8s.io", "v1beta1"),
    ("scheduling.k8s.io", "v1beta1"),
    ("storage.k8s.io", "v1alpha1"),
];
/// The group of a file of the kubelet, which no API has.
const FILES: &str = "kubelet.config.k8s.io";

/// Group, version and kind in all versions; None for a type, by its full name, that is of one version only.
pub(super) fn kinds(type_name: &str) -> Option<Vec<Value>> {
    let kind = type_name.strip_prefix("k8s.io.apimachinery.pkg.apis.meta.v1.")?;
    if !matches!(kind, "DeleteOptions" | "WatchEvent") {
        return None;
    }
    let own = TypeSet::built_in().kinds.iter().map(|entry| (&*entry.group, &*entry.version));
    let all: BTreeSet<(&str, &str)> = own.filter(|(group, _)| *group != FILES).chain(UNSERVED).collect();
    Some(all.iter().map(|(group, version)| json!({"group": group, "version": version, "kind": kind})).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_everywhere_is_named_in_every_version() {
        for kind in ["DeleteOptions", "WatchEvent"] {
            let all = kinds(&format!("k8s.io.apimachinery.pkg.apis.meta.v1.{kind}")).expect("in all versions");
            assert_eq!(all.len(), 60, "as many as upstream 1.36 has");
            assert_eq!(all[0], json!({"group": "", "version": "v1", "kind": kind}));
        }
        assert_eq!(kinds("k8s.io.apimachinery.pkg.apis.meta.v1.Status"), None);
        assert_eq!(kinds("k8s.io.api.core.v1.WatchEvent"), None);
    }
}
