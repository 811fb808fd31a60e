//! Which pods end together, and how long each group has. Lower priorities go first.

use std::sync::Arc;
use std::time::Duration;

use proto::api::core::v1::Pod;

use crate::config::{Configuration, FeatureGates};
use crate::pod::spec::PodExt;

/// From here on a pod is critical to the system.
const CRITICAL: i32 = 2_000_000_000;

/// The time that pods of a priority have, up to the next higher one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    pub priority: i32,
    pub seconds: i64,
}

/// The periods of a configuration, lowest priority first; none when the node is not to wait for pods.
pub fn periods(config: &Configuration, gates: &FeatureGates) -> Vec<Period> {
    if !gates.enabled("GracefulNodeShutdown") {
        return Vec::new();
    }
    let by_priority = &config.shutdown_grace_period_by_pod_priority;
    if gates.enabled("GracefulNodeShutdownBasedOnPodPriority") && !by_priority.is_empty() {
        let period = |p: &crate::config::ShutdownGracePeriod| Period {
            priority: p.priority,
            seconds: p.shutdown_grace_period_seconds,
        };
        let mut periods: Vec<Period> = by_priority.iter().map(period).collect();
        periods.sort_by_key(|p| p.priority);
        return periods;
    }
    let (all, critical) = (config.shutdown_grace_period.get(), config.shutdown_grace_period_critical_pods.get());
    let seconds = |d: Duration| i64::try_from(d.as_secs()).unwrap_or(i64::MAX);
    match all.checked_sub(critical) {
        Some(others) if !all.is_zero() => vec![
            Period { priority: 0, seconds: seconds(others) },
            Period { priority: CRITICAL, seconds: seconds(critical) },
        ],
        _ => Vec::new(),
    }
}

/// All periods together: what logind has to wait for.
pub fn total(periods: &[Period]) -> Duration {
    Duration::from_secs(periods.iter().fold(0, |sum: u64, p| sum.saturating_add(p.seconds.max(0).unsigned_abs())))
}

/// Puts each pod into the group of the highest priority that is not above its own, or into the lowest.
pub fn group(periods: &[Period], pods: Vec<Arc<Pod>>) -> Vec<(Period, Vec<Arc<Pod>>)> {
    let mut groups: Vec<(Period, Vec<Arc<Pod>>)> = periods.iter().map(|p| (*p, Vec::new())).collect();
    for pod in pods {
        let priority = pod.spec().priority.unwrap_or(0);
        let at = groups.partition_point(|(p, _)| p.priority <= priority).saturating_sub(1);
        if let Some((_, members)) = groups.get_mut(at) {
            members.push(pod);
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::PodSpec;

    fn config(text: &str) -> Configuration {
        serde_json::from_str(text).expect("a configuration")
    }

    #[test]
    fn two_numbers_make_two_groups() {
        let gates = FeatureGates::default();
        let found =
            periods(&config(r#"{"shutdownGracePeriod": "30s", "shutdownGracePeriodCriticalPods": "10s"}"#), &gates);
        assert_eq!(found, [Period { priority: 0, seconds: 20 }, Period { priority: CRITICAL, seconds: 10 }]);
        assert_eq!(total(&found), Duration::from_secs(30));
        assert!(periods(&config("{}"), &gates).is_empty());
    }

    #[test]
    fn pods_fall_into_the_group_below_them() {
        let text = r#"{"shutdownGracePeriodByPodPriority": [
            {"priority": 1000, "shutdownGracePeriodSeconds": 5}, {"priority": 10, "shutdownGracePeriodSeconds": 7}]}"#;
        let found = periods(&config(text), &FeatureGates::default());
        assert_eq!(found.iter().map(|p| p.seconds).collect::<Vec<_>>(), [7, 5]);
        let pod =
            |priority| Arc::new(Pod { spec: Some(PodSpec { priority, ..Default::default() }), ..Default::default() });
        let groups = group(&found, vec![pod(None), pod(Some(10)), pod(Some(999)), pod(Some(1000)), pod(Some(5000))]);
        assert_eq!(groups.iter().map(|(_, pods)| pods.len()).collect::<Vec<_>>(), [3, 2]);
    }
}
