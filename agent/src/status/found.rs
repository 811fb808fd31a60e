//! What a probe finds while the worker of its pod is busy, as with a hook that takes long: it is told at once and by itself.
//!
//! Followed: status manager `SetContainerReadiness` and `SetContainerStartup`.

use proto::api::core::v1::{Pod, PodStatus};
use proto::apimachinery::pkg::apis::meta::v1::Time;

use crate::probes::{ProbeKind, Verdict};

use super::conditions::renew_readiness;

/// The status with what the probe has found; `None` where that changes nothing of it.
pub fn with_verdict(pod: &Pod, status: &PodStatus, verdict: &Verdict, now: Time) -> Option<PodStatus> {
    let mut status = status.clone();
    let mut all = status.init_container_statuses.iter_mut().chain(&mut status.container_statuses);
    let is_meant = |id: &str| id.split_once("://").is_some_and(|(_, id)| id == verdict.container_id);
    let container = all.find(|container| is_meant(&container.container_id))?;
    // A word of one that has ended since comes too late.
    container.state.as_ref()?.running.as_ref()?;
    match verdict.kind {
        ProbeKind::Readiness if container.ready != verdict.success => container.ready = verdict.success,
        ProbeKind::Startup if container.started != Some(verdict.success) => container.started = Some(verdict.success),
        ProbeKind::Readiness | ProbeKind::Startup | ProbeKind::Liveness => return None,
    }
    if verdict.kind == ProbeKind::Readiness {
        renew_readiness(pod, &mut status, now);
    }
    Some(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{Container, ContainerState, ContainerStatus, PodCondition, PodSpec};

    #[test]
    fn a_pod_is_as_ready_as_the_probe_last_found() {
        let containers = vec![Container { name: "a".into(), ..Default::default() }];
        let pod = Pod { spec: Some(PodSpec { containers, ..Default::default() }), ..Default::default() };
        let (before, now) = (Time { seconds: 1, nanos: 0 }, Time { seconds: 2, nanos: 0 });
        let condition = |kind: &str| PodCondition {
            r#type: kind.into(),
            status: "True".into(),
            last_transition_time: Some(before),
            ..Default::default()
        };
        let container = ContainerStatus {
            name: "a".into(),
            container_id: "r://1".into(),
            ready: true,
            started: Some(true),
            state: Some(ContainerState { running: Some(Default::default()), ..Default::default() }),
            ..Default::default()
        };
        let told = PodStatus {
            phase: "Running".into(),
            conditions: ["Ready", "ContainersReady", "Initialized"].map(condition).into(),
            container_statuses: vec![container],
            ..Default::default()
        };
        let verdict = |id: &str, kind, success| Verdict { uid: String::new(), container_id: id.into(), kind, success };
        let status = with_verdict(&pod, &told, &verdict("1", ProbeKind::Readiness, false), now).unwrap();
        assert!(!status.container_statuses[0].ready);
        for condition in &status.conditions {
            let is_new = condition.r#type != "Initialized";
            assert_eq!((condition.status == "False", condition.last_transition_time == Some(now)), (is_new, is_new));
        }
        assert_eq!(status.conditions[0].message, "containers with unready status: [a]");
        let again = with_verdict(&pod, &status, &verdict("1", ProbeKind::Readiness, true), now).unwrap();
        assert!(again.conditions.iter().all(|c| c.status == "True"));
        let mut over = told.clone();
        over.container_statuses[0].state = None;
        assert!(with_verdict(&pod, &over, &verdict("1", ProbeKind::Readiness, false), now).is_none());
        for (id, kind, success) in [
            ("1", ProbeKind::Readiness, true),
            ("1", ProbeKind::Startup, true),
            ("1", ProbeKind::Liveness, false),
            ("2", ProbeKind::Readiness, false),
        ] {
            assert!(with_verdict(&pod, &told, &verdict(id, kind, success), now).is_none(), "{id} {kind:?}");
        }
    }
}
