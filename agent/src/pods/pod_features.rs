//! Whether the node has the features that a pod asks for, by gates and by what the runtime can do.
//!
//! Pure. The last of the pod's own traits that are looked at; only a node that shuts down is asked after it.
//!
//! Followed: `pkg/kubelet/lifecycle` (`features_linux.go`, `declaredFeaturesAdmitHandler`), and
//! `component-helpers/nodedeclaredfeatures` for which pods need which feature.

use proto::api::core::v1::Pod;
use proto::cri::RuntimeFeatures;

use crate::config::FeatureGates;
use crate::node::{RESTART_ALL_CONTAINERS, USER_NAMESPACES_HOST_NETWORK, declared_by_gates, declared_features};
use crate::pod::spec::PodExt;

use super::admission::Rejection;

/// What the gates have to say of it.
#[derive(Debug, Clone, Default)]
pub struct PodFeatures {
    pod_level_resources: bool,
    /// What the node declares of features, by its gates; `None` where it declares none (`NodeDeclaredFeatures`).
    declared: Option<Vec<&'static str>>,
}

impl PodFeatures {
    pub fn of(gates: &FeatureGates) -> Self {
        Self {
            pod_level_resources: gates.enabled("PodLevelResources"),
            declared: gates.enabled("NodeDeclaredFeatures").then(|| declared_by_gates(gates)),
        }
    }
}

/// Refuses a pod that asks for what the node does not have; `runtime` is what the runtime says that it can do.
pub fn check(pod: &Pod, features: &PodFeatures, runtime: Option<&RuntimeFeatures>) -> Result<(), Rejection> {
    if !features.pod_level_resources && asks_as_a_whole(pod) {
        return Err(Rejection {
            reason: "PodLevelResourcesNotSupported".into(),
            message: "PodLevelResources feature gate is disabled".into(),
        });
    }
    let Some(by_gates) = &features.declared else { return Ok(()) };
    let declared = declared_features(by_gates, runtime);
    let missing: Vec<&str> = required(pod).into_iter().filter(|feature| !declared.contains(feature)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Rejection {
        reason: "PodFeatureUnsupported".into(),
        message: format!("Pod requires node features that are not available: {}", missing.join(", ")),
    })
}

/// Whether the pod has amounts of its own of a resource that pods may have as a whole.
fn asks_as_a_whole(pod: &Pod) -> bool {
    let of_pods = |name: &String| matches!(name.as_str(), "cpu" | "memory") || name.starts_with("hugepages-");
    pod.spec().resources.as_ref().is_some_and(|own| own.requests.keys().chain(own.limits.keys()).any(of_pods))
}

/// Features without which the pod cannot run as it is meant to, sorted. The other declared ones matter to changes of a pod
/// alone.
fn required(pod: &Pod) -> Vec<&'static str> {
    let spec = pod.spec();
    let mut all = spec.containers.iter().chain(&spec.init_containers);
    let restarts_all = all.any(|c| c.restart_policy_rules.iter().any(|rule| rule.action == "RestartAllContainers"));
    let own_users_on_host = spec.host_network && spec.host_users == Some(false);
    [(RESTART_ALL_CONTAINERS, restarts_all), (USER_NAMESPACES_HOST_NETWORK, own_users_on_host)]
        .into_iter()
        .filter_map(|(feature, needed)| needed.then_some(feature))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{Container, ContainerRestartRule, PodSpec, ResourceRequirements};
    use proto::apimachinery::pkg::api::resource::Quantity;

    fn pod(spec: PodSpec) -> Pod {
        Pod { spec: Some(spec), ..Default::default() }
    }

    #[test]
    fn amounts_of_the_whole_pod_need_their_gate() {
        let asking = |name: &str| {
            let requests = [(name.to_owned(), Quantity { string: "1".into() })].into();
            let resources = Some(ResourceRequirements { requests, ..Default::default() });
            pod(PodSpec { resources, ..Default::default() })
        };
        let off = PodFeatures::default();
        for name in ["cpu", "memory", "hugepages-2Mi"] {
            let refused = check(&asking(name), &off, None).unwrap_err();
            assert_eq!(refused.reason, "PodLevelResourcesNotSupported", "{name}");
            assert_eq!(refused.message, "PodLevelResources feature gate is disabled");
        }
        assert_eq!(check(&asking("example.com/gpu"), &off, None), Ok(()));
        assert_eq!(check(&pod(PodSpec::default()), &off, None), Ok(()));
        assert_eq!(check(&asking("cpu"), &PodFeatures { pod_level_resources: true, declared: None }, None), Ok(()));
    }

    #[test]
    fn what_the_node_does_not_declare_keeps_pods_out_that_need_it() {
        let rule = ContainerRestartRule { action: "RestartAllContainers".into(), ..Default::default() };
        let container = Container { restart_policy_rules: vec![rule], ..Default::default() };
        let both = pod(PodSpec {
            init_containers: vec![container],
            host_network: true,
            host_users: Some(false),
            ..Default::default()
        });
        let refused = |declared: Option<Vec<&'static str>>, runtime: Option<RuntimeFeatures>| {
            let features = PodFeatures { pod_level_resources: true, declared };
            check(&both, &features, runtime.as_ref()).map_err(|refused| (refused.reason, refused.message))
        };
        let able = RuntimeFeatures { user_namespaces_host_network: true, ..Default::default() };
        let told = |names: &str| {
            let message = format!("Pod requires node features that are not available: {names}");
            Err(("PodFeatureUnsupported".to_owned(), message))
        };
        let all = || Some(vec![RESTART_ALL_CONTAINERS, USER_NAMESPACES_HOST_NETWORK]);
        assert_eq!(refused(all(), Some(able)), Ok(()));
        assert_eq!(refused(all(), None), told("UserNamespacesHostNetworkSupport"), "the gate alone is not enough");
        assert_eq!(
            refused(Some(vec![]), Some(able)),
            told("RestartAllContainersOnContainerExits, UserNamespacesHostNetworkSupport")
        );
        assert_eq!(refused(None, None), Ok(()), "a node that declares nothing judges nobody");
    }
}
