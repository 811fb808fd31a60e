//! One APIService for each group version that is served here, as the aggregation layer shows them.

use proto::time::Timestamp;
use serde_json::{Value, json};

use crate::resource::Set;

/// Where a group stands in discovery (kube-apiserver's table): larger comes first.
pub fn priority(group: &str) -> i64 {
    match group {
        "" => 18_000,
        "apps" => 17_800,
        "events.k8s.io" => 17_750,
        "authentication.k8s.io" => 17_700,
        "authorization.k8s.io" => 17_600,
        "autoscaling" => 17_500,
        "batch" => 17_400,
        "certificates.k8s.io" => 17_300,
        "networking.k8s.io" => 17_200,
        "policy" => 17_100,
        "rbac.authorization.k8s.io" => 17_000,
        "storage.k8s.io" => 16_800,
        "admissionregistration.k8s.io" | "apiextensions.k8s.io" => 16_700,
        "scheduling.k8s.io" => 16_600,
        "coordination.k8s.io" => 16_500,
        "node.k8s.io" => 16_300,
        "discovery.k8s.io" | "resource.k8s.io" => 16_200,
        "flowcontrol.apiserver.k8s.io" => 16_100,
        "internal.apiserver.k8s.io" => 16_000,
        "storagemigration.k8s.io" => 15_800,
        "apiregistration.k8s.io" => 17_900,
        _ => 1_000,
    }
}

/// The objects and their status, which is written after them.
pub(super) fn all(set: &Set) -> Vec<Value> {
    let groups = set.groups().into_iter().filter(|g| *g != "apiregistration.k8s.io");
    let versions = groups.flat_map(|group| {
        let mut versions = set.versions(group);
        versions.sort_unstable();
        versions.into_iter().enumerate().map(move |(index, version)| (group, version, index)).collect::<Vec<_>>()
    });
    versions
        .map(|(group, version, index)| {
            let mut spec = json!({"version": version, "groupPriorityMinimum": priority(group), "versionPriority": 15 * (index + 1)});
            if group.is_empty() {
                spec["versionPriority"] = 1.into();
            } else {
                spec["group"] = group.into();
            }
            json!({
                "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
                "metadata": {"name": format!("{version}.{group}"), "labels": {"kube-aggregator.kubernetes.io/automanaged": "onstart"}},
                "spec": spec,
            })
        })
        .collect()
}

/// The status of a group version that is served by this process.
pub fn available() -> Value {
    json!({"conditions": [{"type": "Available", "status": "True", "lastTransitionTime": Timestamp::now().to_seconds_text(),
        "reason": "Local", "message": "Local APIServices are always available"}]})
}
