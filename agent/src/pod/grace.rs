//! How long an end may take.
//!
//! Followed: `pod_workers.go` and `setTerminationGracePeriod`.

use proto::api::core::v1::{Container, Pod};

use super::spec::PodExt;
use super::step::KillReason;

/// The API's default for `terminationGracePeriodSeconds`.
pub const DEFAULT_SECONDS: i64 = 30;
/// A container always gets this long between SIGTERM and SIGKILL.
pub const MINIMUM_STOP_SECONDS: i64 = 2;

/// The grace of a whole pod's end: the least of what its deletion leaves and of what is `imposed` on it, by eviction and the
/// like; what its spec says counts where nobody says anything else. At least one second.
pub fn pod_grace(pod: &Pod, imposed: Option<i64>) -> i64 {
    let meta = pod.meta();
    let by_delete = meta.deletion_grace_period_seconds.filter(|_| pod.is_deleted());
    let least = [by_delete, imposed].into_iter().flatten().min();
    let seconds = least.or(pod.spec().termination_grace_period_seconds).unwrap_or(DEFAULT_SECONDS);
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

/// When the end of a pod began, as an agent leaves it for the next one: by the clock of the machine's uptime, which nobody
/// sets and which goes on without the agent. It says nothing after a reboot.
#[derive(Debug, Clone, PartialEq)]
pub struct Begun {
    pub boot_id: String,
    pub uptime_seconds: f64,
}

impl Begun {
    /// Now, from the kernel.
    ///
    /// # Errors
    /// The kernel's, or it says something else than since ever.
    pub fn now() -> std::io::Result<Self> {
        let uptime = std::fs::read_to_string("/proc/uptime")?;
        let uptime = uptime.split_whitespace().next().and_then(|seconds| seconds.parse().ok());
        let uptime_seconds = uptime.ok_or_else(|| std::io::Error::other("/proc/uptime has no number"))?;
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        Ok(Self { boot_id, uptime_seconds })
    }

    /// The file's text.
    pub fn to_text(&self) -> String {
        format!("{} {}\n", self.boot_id, self.uptime_seconds)
    }

    /// `None` for anything that was not written by [`Self::to_text`].
    pub fn parse(text: &str) -> Option<Self> {
        let (boot_id, uptime) = text.strip_suffix('\n')?.split_once(' ')?;
        Some(Self { boot_id: boot_id.to_owned(), uptime_seconds: uptime.parse().ok().filter(|s: &f64| s.is_finite())? })
    }

    /// How long before `now` that was; nothing when another boot lies between.
    pub fn passed(&self, now: &Self) -> std::time::Duration {
        let seconds = if self.boot_id == now.boot_id { now.uptime_seconds - self.uptime_seconds } else { 0.0 };
        std::time::Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }
}

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
    fn whoever_leaves_least_counts_and_nothing_is_less_than_a_second() {
        let spec = PodSpec { termination_grace_period_seconds: Some(20), ..Default::default() };
        let mut pod = Pod { spec: Some(spec), ..Default::default() };
        assert_eq!(pod_grace(&pod, None), 20);
        assert_eq!(pod_grace(&pod, Some(3)), 3);
        assert_eq!(pod_grace(&pod, Some(40)), 40);
        for (by_delete, imposed, grace) in
            [(0, Some(3), 1), (60, Some(3), 3), (2, Some(3), 2), (60, None, 60), (60, Some(0), 1)]
        {
            pod.metadata = Some(ObjectMeta {
                deletion_timestamp: Some(Time::default()),
                deletion_grace_period_seconds: Some(by_delete),
                ..Default::default()
            });
            assert_eq!(pod_grace(&pod, imposed), grace, "{by_delete} {imposed:?}");
        }
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
    fn the_next_agent_knows_when_an_end_began_unless_the_machine_has_booted_since() {
        let at = |boot: &str, uptime_seconds| Begun { boot_id: boot.into(), uptime_seconds };
        let begun = Begun::parse(&at("a", 12.5).to_text()).unwrap();
        assert_eq!(begun.passed(&at("a", 20.0)).as_secs_f64(), 7.5);
        assert!(begun.passed(&at("b", 20.0)).is_zero() && begun.passed(&at("a", 1.0)).is_zero());
        for text in ["", "a", "a 12", "a inf\n", "a -\n"] {
            assert_eq!(Begun::parse(text), None, "{text:?}");
        }
        let now = Begun::now().unwrap();
        assert!(Begun::parse(&now.to_text()) == Some(now.clone()) && now.passed(&now).is_zero());
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
