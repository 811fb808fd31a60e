//! How long an end may take.
//!
//! Followed: `pod_workers.go` and `setTerminationGracePeriod`.

use proto::api::core::v1::{Container, Pod};

use super::spec::PodExt;
use super::step::KillReason;

/// The API's default for `terminationGracePeriodSeconds`.
const DEFAULT_SECONDS: i64 = 30;
/// A container always gets this long between SIGTERM and SIGKILL.
pub const MINIMUM_STOP_SECONDS: i64 = 2;

/// The grace of a whole pod's end; `imposed` comes from eviction and the like. At least one second.
pub fn pod_grace(pod: &Pod, imposed: Option<i64>) -> i64 {
    let meta = pod.meta();
    let by_delete = meta.deletion_grace_period_seconds.filter(|_| pod.is_deleted());
    let seconds = by_delete.or(imposed).or(pod.spec().termination_grace_period_seconds).unwrap_or(DEFAULT_SECONDS);
    seconds.max(1)
}

/// The grace of one container while the pod goes on.
pub fn container_grace(pod: &Pod, container: &Container, reason: KillReason) -> i64 {
    if reason == KillReason::RestartAll {
        return 0;
    }
    if let Some(seconds) = pod.meta().deletion_grace_period_seconds {
        return seconds;
    }
    let probe = match reason {
        KillReason::LivenessProbe => container.liveness_probe.as_ref(),
        KillReason::StartupProbe => container.startup_probe.as_ref(),
        _ => None,
    };
    let own = probe.and_then(|p| p.termination_grace_period_seconds);
    own.or(pod.spec().termination_grace_period_seconds).unwrap_or(DEFAULT_SECONDS)
}

/// The time that the end of a pod may take: it only ever shrinks, and what has passed is not given again.
#[derive(Debug, Default)]
pub struct Budget(Option<i64>);

impl Budget {
    /// What is allowed as a whole, in seconds, now that `wanted` is asked for.
    pub fn allow(&mut self, wanted: i64) -> i64 {
        let allowed = self.0.map_or(wanted, |before| wanted.min(before));
        self.0 = Some(allowed);
        allowed
    }

    /// What is left of it after `passed` seconds; a try that was cut short gets a second at least.
    pub fn left(&self, passed: i64) -> i64 {
        let allowed = self.0.unwrap_or_default();
        if passed == 0 { allowed } else { allowed.saturating_sub(passed).max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{PodSpec, Probe};
    use proto::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

    #[test]
    fn the_delete_call_wins_and_nothing_is_less_than_a_second() {
        let spec = PodSpec { termination_grace_period_seconds: Some(20), ..Default::default() };
        let mut pod = Pod { spec: Some(spec), ..Default::default() };
        assert_eq!(pod_grace(&pod, None), 20);
        assert_eq!(pod_grace(&pod, Some(3)), 3);
        pod.metadata = Some(ObjectMeta {
            deletion_timestamp: Some(Time::default()),
            deletion_grace_period_seconds: Some(0),
            ..Default::default()
        });
        assert_eq!(pod_grace(&pod, Some(3)), 1);
    }

    /// Deletions, evictions and failed tries in any order, at any time.
    #[test]
    fn whoever_asks_for_what_no_grace_is_exceeded() {
        let mut random = 0x9E37_79B9_7F4A_7C15_u64;
        let mut chance = |below: i64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            i64::try_from(random >> 1).unwrap_or_default() % below
        };
        for _ in 0..2000 {
            let (mut budget, mut least, mut passed) = (Budget::default(), i64::MAX, 0);
            for _ in 0..chance(8) + 1 {
                let wanted = chance(60) + 1;
                least = least.min(wanted);
                assert_eq!(budget.allow(wanted), least, "a later demand gives no more time");
                let left = budget.left(passed);
                assert!(passed + left <= least.max(passed + 1), "{left} s after {passed} of {least}");
                assert!(left >= 1);
                passed += chance(20);
            }
        }
    }

    #[test]
    fn a_probe_may_have_its_own_grace() {
        let spec = PodSpec { termination_grace_period_seconds: Some(20), ..Default::default() };
        let pod = Pod { spec: Some(spec), ..Default::default() };
        let probe = Probe { termination_grace_period_seconds: Some(5), ..Default::default() };
        let container = Container { liveness_probe: Some(probe), ..Default::default() };
        assert_eq!(container_grace(&pod, &container, KillReason::LivenessProbe), 5);
        assert_eq!(container_grace(&pod, &container, KillReason::StartupProbe), 20);
    }
}
