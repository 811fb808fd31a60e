//! What the state of the node has to say to a pod that wants in: pressure and shutdown.
//!
//! Followed: `Admit` of `pkg/kubelet/eviction/eviction_manager.go` and `pkg/kubelet/nodeshutdown`.

use proto::api::core::v1::{Pod, Taint};

use crate::node::NodeSignals;
use crate::pod::resources::{QosClass, qos_class};
use crate::pod::spec::PodExt;

use super::admission::{Rejection, tolerates};

/// # Errors
/// The node lacks something, and the pod is one of those that have to wait for better times.
pub fn check_pressure(pod: &Pod, signals: &NodeSignals) -> Result<(), Rejection> {
    let conditions = [
        (signals.memory_pressure, "MemoryPressure"),
        (signals.disk_pressure, "DiskPressure"),
        (signals.pid_pressure, "PIDPressure"),
    ];
    let there: Vec<&str> = conditions.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
    if there.is_empty() || pod.is_critical() {
        return Ok(());
    }
    if there == ["MemoryPressure"] {
        let taint = Taint {
            key: "node.kubernetes.io/memory-pressure".into(),
            effect: "NoSchedule".into(),
            ..Default::default()
        };
        let tolerated = pod.spec().tolerations.iter().any(|t| tolerates(t, &taint));
        if tolerated || qos_class(pod) != QosClass::BestEffort {
            return Ok(());
        }
    }
    let message = format!("The node had condition: [{}]. ", there.join(" "));
    Err(Rejection { reason: "Evicted".into(), message })
}

/// # Errors
/// The machine goes down.
pub fn check_shutdown(signals: &NodeSignals) -> Result<(), Rejection> {
    if !signals.shutting_down {
        return Ok(());
    }
    let message = "Pod was rejected as the node is shutting down.".to_owned();
    Err(Rejection { reason: "NodeShutdown".into(), message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{Container, PodSpec, ResourceRequirements, Toleration};
    use proto::apimachinery::pkg::api::resource::Quantity;

    fn pod(memory: Option<&str>) -> Pod {
        let requests = memory.map(|m| ("memory".to_owned(), Quantity { string: m.into() })).into_iter().collect();
        let resources = Some(ResourceRequirements { requests, ..Default::default() });
        let container = Container { resources, ..Default::default() };
        Pod { spec: Some(PodSpec { containers: vec![container], ..Default::default() }), ..Default::default() }
    }

    #[test]
    fn memory_pressure_keeps_out_those_that_ask_for_nothing() {
        let signals = NodeSignals { memory_pressure: true, ..NodeSignals::default() };
        let refused = check_pressure(&pod(None), &signals).unwrap_err();
        assert_eq!(
            (refused.reason.as_str(), refused.message.as_str()),
            ("Evicted", "The node had condition: [MemoryPressure]. ")
        );
        assert!(check_pressure(&pod(Some("1Mi")), &signals).is_ok());
        let mut tolerant = pod(None);
        tolerant.spec.as_mut().unwrap().tolerations = vec![Toleration {
            key: "node.kubernetes.io/memory-pressure".into(),
            operator: "Exists".into(),
            ..Default::default()
        }];
        assert!(check_pressure(&tolerant, &signals).is_ok());
    }

    #[test]
    fn other_pressure_keeps_out_all_but_the_critical() {
        let signals = NodeSignals { memory_pressure: true, disk_pressure: true, ..NodeSignals::default() };
        let mut pod = pod(Some("1Mi"));
        let refused = check_pressure(&pod, &signals).unwrap_err();
        assert_eq!(refused.message, "The node had condition: [MemoryPressure DiskPressure]. ");
        pod.spec.as_mut().unwrap().priority = Some(2_000_000_000);
        assert!(check_pressure(&pod, &signals).is_ok());
        assert!(check_shutdown(&signals).is_ok());
        let signals = NodeSignals { shutting_down: true, ..NodeSignals::default() };
        assert_eq!(check_shutdown(&signals).unwrap_err().reason, "NodeShutdown");
    }
}
