//! From what pods use to how many there should be.
//!
//! Follows `pkg/controller/podautoscaler/replica_calculator.go`: pods that are over are passed over, those that have just
//! begun or whose use is not known count as if they used what makes for the smaller change.

use std::collections::BTreeMap;

/// A pod of the target.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pod {
    /// What it uses, in the unit of the target; None where that is not known.
    pub used: Option<i64>,
    /// What it asks for; what it uses is a part of that where the target is a percentage.
    pub requested: i64,
    /// It has not been ready yet, or began a moment ago.
    pub unready: bool,
}

/// What a metric should be at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Target {
    /// Per cent of what is requested.
    Utilization(i64),
    /// For each pod.
    Average(i64),
}

/// What came of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    pub replicas: i64,
    /// Per cent of what is requested, where that is the target.
    pub utilization: Option<i64>,
    /// For each pod whose use is known.
    pub average: i64,
}

/// How far the use may be from the target before anything is done about it: above, and below.
#[derive(Debug, Clone, Copy)]
pub struct Tolerance {
    pub up: f64,
    pub down: f64,
}

impl Tolerance {
    /// What holds for who says nothing.
    pub const USUAL: Tolerance = Tolerance { up: 0.1, down: 0.1 };

    fn covers(self, ratio: f64) -> bool {
        1.0 - self.down <= ratio && ratio <= 1.0 + self.up
    }
}

#[expect(clippy::cast_precision_loss, reason = "amounts of a cluster are far below 2^53")]
fn ratio(used: i64, wanted: i64) -> f64 {
    if wanted == 0 { 0.0 } else { used as f64 / wanted as f64 }
}

fn sum(amounts: impl Iterator<Item = i64>) -> i64 {
    amounts.fold(0, i64::saturating_add)
}

/// The use by the target's measure: how many times the target it is, and in per cent of the requests.
fn measure(pods: &BTreeMap<usize, (i64, i64)>, target: Target) -> (f64, Option<i64>) {
    let used = sum(pods.values().map(|(used, _)| *used));
    match target {
        Target::Utilization(percent) => {
            let requested = sum(pods.values().map(|(_, requested)| *requested));
            let utilization = if requested == 0 { 0 } else { used.saturating_mul(100) / requested };
            (ratio(utilization, percent), Some(utilization))
        }
        Target::Average(wanted) => {
            let count = i64::try_from(pods.len()).unwrap_or(i64::MAX).max(1);
            (ratio(used / count, wanted), None)
        }
    }
}

#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "as above; floats saturate")]
fn ceil(ratio: f64, count: usize) -> i64 {
    (ratio * count as f64).ceil() as i64
}

/// The replicas that bring a metric to its target.
///
/// # Errors
/// When nothing is known of any pod.
pub fn replicas(all: &[Pod], current: i64, target: Target, tolerance: Tolerance) -> Result<Outcome, &'static str> {
    let known = |pod: &Pod| Some((pod.used?, pod.requested));
    let ready = all.iter().enumerate().filter(|(_, pod)| !pod.unready);
    let mut counted: BTreeMap<usize, (i64, i64)> = ready.filter_map(|(at, pod)| Some((at, known(pod)?))).collect();
    if counted.is_empty() {
        return Err("did not receive metrics for targeted pods (pods might be unready)");
    }
    let (first, utilization) = measure(&counted, target);
    let count = i64::try_from(counted.len()).unwrap_or(i64::MAX);
    let average = sum(counted.values().map(|(used, _)| *used)) / count;
    let outcome = |replicas: i64| Ok(Outcome { replicas, utilization, average });
    let is_near = |ratio: f64| tolerance.covers(ratio);
    let missing: Vec<usize> = (0..all.len()).filter(|at| !all[*at].unready && all[*at].used.is_none()).collect();
    let unready: Vec<usize> = (0..all.len()).filter(|at| all[*at].unready).collect();
    let fill = !unready.is_empty() && first > 1.0;
    if !fill && missing.is_empty() {
        return outcome(if is_near(first) { current } else { ceil(first, counted.len()) });
    }
    for at in missing {
        let used = match target {
            _ if first > 1.0 => 0,
            // All that it asks for, or what it should use where that is more.
            Target::Utilization(percent) => all[at].requested.saturating_mul(percent.max(100)) / 100,
            Target::Average(wanted) => wanted,
        };
        if first != 1.0 {
            counted.insert(at, (used, all[at].requested));
        }
    }
    if fill {
        counted.extend(unready.into_iter().map(|at| (at, (0, all[at].requested))));
    }
    let (second, _) = measure(&counted, target);
    if is_near(second) || first < 1.0 && second > 1.0 || first > 1.0 && second < 1.0 {
        return outcome(current);
    }
    let wanted = ceil(second, counted.len());
    let backwards = second < 1.0 && wanted > current || second > 1.0 && wanted < current;
    outcome(if backwards { current } else { wanted })
}

/// The replicas that bring a value, which they have all together, to its target; `ready` are those that count.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "as above; floats saturate")]
pub fn proportional(used: i64, wanted: i64, current: i64, ready: i64, tolerance: Tolerance) -> i64 {
    let ratio = ratio(used, wanted);
    match current {
        // There is nobody yet whose share this could be.
        0 => ratio.ceil() as i64,
        _ if tolerance.covers(ratio) => current,
        _ => (ratio * ready as f64).ceil() as i64,
    }
}

/// The replicas of which each has its target as its share of a value.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "as above; floats saturate")]
pub fn shared(used: i64, wanted: i64, running: i64, tolerance: Tolerance) -> i64 {
    let share = ratio(used, wanted.saturating_mul(running));
    // Without replicas any value is too much.
    if running > 0 && tolerance.covers(share) {
        return running;
    }
    if wanted == 0 { running } else { (used as f64 / wanted as f64).ceil() as i64 }
}

/// The share of each, rounded up.
pub fn divided(used: i64, running: i64) -> i64 {
    match running {
        ..=0 => 0,
        _ => used.div_euclid(running) + i64::from(used.rem_euclid(running) != 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(used: i64) -> Pod {
        Pod { used: Some(used), requested: 100, unready: false }
    }

    fn wanted(pods: &[Pod], current: i64) -> i64 {
        replicas(pods, current, Target::Utilization(50), Tolerance::USUAL).expect("known").replicas
    }

    #[test]
    fn replicas_follow_the_use() {
        assert_eq!(wanted(&[pod(100), pod(100)], 2), 4);
        assert_eq!(wanted(&[pod(53), pod(52)], 2), 2, "near enough");
        assert_eq!(wanted(&[pod(10), pod(10), pod(10)], 3), 1);
        let by_average = replicas(&[pod(300), pod(100)], 2, Target::Average(100), Tolerance::USUAL).expect("known");
        assert_eq!(by_average, Outcome { replicas: 4, utilization: None, average: 200 });
    }

    #[test]
    fn what_is_not_known_makes_for_the_smaller_change() {
        let unknown = Pod { used: None, requested: 100, unready: false };
        assert_eq!(wanted(&[pod(100), unknown.clone()], 2), 2, "it may use nothing");
        assert_eq!(wanted(&[pod(10), unknown.clone(), unknown.clone()], 3), 3, "they may use all they ask for");
        let unready = Pod { unready: true, ..pod(100) };
        assert_eq!(wanted(&[pod(100), unready.clone(), unready.clone()], 3), 3);
        assert!(replicas(&[unknown, unready], 2, Target::Utilization(50), Tolerance::USUAL).is_err());
    }

    /// Beside a target of twice the requests, a pod that is not known made the workload shrink.
    #[test]
    fn a_pod_that_is_not_known_uses_no_less_than_it_should() {
        let unknown = Pod { used: None, requested: 100, unready: false };
        let all = [pod(100), unknown.clone(), unknown];
        let twice = replicas(&all, 3, Target::Utilization(200), Tolerance::USUAL).expect("known");
        assert_eq!(twice.replicas, 3, "500 of 600");
    }

    #[test]
    fn values_of_all_replicas_together_are_shared_out() {
        assert_eq!(proportional(20_000, 10_000, 3, 2, Tolerance::USUAL), 4, "twice as much as two can do");
        assert_eq!(proportional(10_500, 10_000, 3, 2, Tolerance::USUAL), 3, "near enough");
        assert_eq!(proportional(25_000, 10_000, 0, 0, Tolerance::USUAL), 3);
        let eager = Tolerance { up: 0.0, down: 0.5 };
        assert_eq!(proportional(10_500, 10_000, 3, 3, eager), 4, "more at once");
        assert_eq!(proportional(6_000, 10_000, 3, 3, eager), 3, "less only when it is half");
        assert_eq!(shared(90_000, 30_000, 1, Tolerance::USUAL), 3);
        assert_eq!(shared(61_000, 30_000, 2, Tolerance::USUAL), 2, "near enough");
        assert_eq!(shared(0, 30_000, 2, Tolerance::USUAL), 0);
        assert_eq!((divided(10, 3), divided(9, 3), divided(9, 0)), (4, 3, 0));
    }
}
