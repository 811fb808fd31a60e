//! What is told of a pod that has an end at the API server: somebody else may tell one of a pod that runs. The agent ends the
//! pod when it hears of it, and until then knows of one that runs, which nobody is to be told any more.
//!
//! Followed: status manager `mergePodStatus`.

use proto::api::core::v1::{Pod, PodCondition, PodStatus};

use crate::pod::spec::PodExt;

use super::conditions::{CONTAINERS_READY, READY};
use super::phase::{FAILED, is_terminal};

/// Keeps the end that the API server has of a pod in the status that it is to be told, and tells of none that is ready. A
/// mirror keeps none: its static pod goes on after what ended it, as a shutdown of the node does.
pub fn keep(api: &Pod, told: &mut PodStatus) {
    let none = PodStatus::default();
    let current = api.status.as_ref().unwrap_or(&none);
    if is_terminal(&current.phase) && !is_terminal(&told.phase) && !api.is_mirror() {
        told.phase.clone_from(&current.phase);
        told.reason.clone_from(&current.reason);
        told.message.clone_from(&current.message);
    }
    if is_terminal(&told.phase) {
        end_readiness(current, told);
    }
}

fn end_readiness(current: &PodStatus, told: &mut PodStatus) {
    let is_of_readiness = |c: &PodCondition| c.r#type == READY || c.r#type == CONTAINERS_READY;
    if !told.conditions.iter().any(|c| is_of_readiness(c) && c.status == "True") {
        return;
    }
    let reason = if told.phase == FAILED { "PodFailed" } else { "PodCompleted" };
    for condition in told.conditions.iter_mut().filter(|c| is_of_readiness(c)) {
        let same = current.conditions.iter().find(|c| c.r#type == condition.r#type && c.status == "False");
        condition.last_transition_time =
            same.and_then(|c| c.last_transition_time).or_else(|| Some(crate::clock::now()));
        condition.status = "False".into();
        condition.reason = reason.into();
        condition.message.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::labels;
    use proto::apimachinery::pkg::apis::meta::v1::Time;

    fn status(phase: &str, reason: &str, ready: &str) -> PodStatus {
        let ready = PodCondition { r#type: READY.into(), status: ready.into(), ..Default::default() };
        let conditions = vec![PodCondition { last_transition_time: Some(Time { seconds: 7, nanos: 0 }), ..ready }];
        PodStatus { phase: phase.into(), reason: reason.into(), conditions, ..Default::default() }
    }

    /// Such a pod was told to run once more before it was told to have ended.
    #[test]
    fn what_somebody_else_has_ended_does_not_run_again() {
        let kept = |api: &PodStatus, is_mirror: bool, told: &str| {
            let mut pod = Pod { status: Some(api.clone()), ..Default::default() };
            let mirror = (labels::CONFIG_MIRROR.to_owned(), String::new());
            pod.metadata.get_or_insert_default().annotations.extend(is_mirror.then_some(mirror));
            let mut told = status(told, "Ours", "True");
            keep(&pod, &mut told);
            told
        };
        let ready = |status: &PodStatus| {
            let ready = status.conditions[0].clone();
            (ready.status, ready.reason, ready.last_transition_time.map(|time| time.seconds == 7))
        };
        for (phase, reason) in [(FAILED, "PodFailed"), ("Succeeded", "PodCompleted")] {
            let told = kept(&status(phase, "NodeLost", "True"), false, "Running");
            assert_eq!((told.phase.as_str(), told.reason.as_str()), (phase, "NodeLost"));
            assert_eq!(ready(&told), ("False".into(), reason.into(), Some(false)));
            let again = kept(&status(phase, "NodeLost", "False"), false, "Running");
            assert_eq!(ready(&again), ("False".into(), reason.into(), Some(true)), "it became so only once");
        }
        let ours = |told: &PodStatus, ready: &str| told.reason == "Ours" && told.conditions[0].status == ready;
        assert!(ours(&kept(&status("Running", "", "True"), false, "Running"), "True"));
        assert!(ours(&kept(&status(FAILED, "Evicted", "True"), false, FAILED), "False"), "ours is an end too");
        assert!(ours(&kept(&status(FAILED, "Terminated", "True"), true, "Running"), "True"), "a mirror");
    }
}
