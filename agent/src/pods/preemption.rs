//! Room for a critical pod: who has to go when there is none.
//!
//! As few Guaranteed pods as possible, then as few Burstable, then as few BestEffort ones. Among equals the one goes
//! that comes closest to what is missing, and of those the smallest.
//!
//! Followed: `pkg/kubelet/preemption`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proto::api::core::v1::Pod;

use crate::pod::resources::{QosClass, counted_requests, qos_class};
use crate::pod::spec::PodExt;
use crate::status::generate::Override;

use super::admission::Shortage;
use super::mailbox::End;

pub const REASON: &str = "Preempting";
pub const MESSAGE: &str = "Preempted in order to admit critical pod";
/// The least that a pod is waited for.
const LEAST_WAIT: Duration = Duration::from_secs(10);

/// A pod that ends for another.
pub struct Victim {
    end: End,
    /// One that does not end in this time does not hold up the critical pod any more.
    patience: Duration,
}

impl Victim {
    pub fn new(pod: &Pod, end: End) -> Self {
        let grace = pod.spec().termination_grace_period_seconds.unwrap_or(30).max(0).unsigned_abs();
        let patience = Duration::from_secs(grace.saturating_add(grace / 2)).max(LEAST_WAIT);
        Victim { end, patience }
    }
}

/// Returns when all have ended, or have had their time.
pub async fn wait_for(victims: Vec<Victim>) {
    let waits = victims.into_iter().map(|v| tokio::time::timeout(v.patience, v.end.come()));
    futures_util::future::join_all(waits).await;
}

/// What the end of a victim is told as.
pub fn imposed() -> Override {
    Override { reason: REASON.into(), message: MESSAGE.into(), disruption: Some("TerminationByKubelet".into()) }
}

/// The pods that have to go so that `pod` gets what is missing.
///
/// # Errors
/// There are not enough that may; the text names what is missing then.
pub fn choose(pod: &Pod, holders: &[Arc<Pod>], missing: &[Shortage]) -> Result<Vec<Arc<Pod>>, String> {
    let class = |class: QosClass| -> Vec<Candidate> {
        let chosen = holders.iter().filter(|o| may_preempt(pod, o) && qos_class(o) == class);
        chosen.map(|o| Candidate { pod: o.clone(), requests: counted_requests(o) }).collect()
    };
    let [lowest, middle, highest] = [QosClass::BestEffort, QosClass::Burstable, QosClass::Guaranteed].map(class);
    let wanted = Wanted(missing.iter().map(|m| (m.resource.clone(), m.missing())).collect());
    let all = wanted.without(lowest.iter().chain(&middle).chain(&highest));
    if !all.0.is_empty() {
        return Err(all.not_found());
    }
    // Each class gives only what all lower ones together cannot.
    let of_highest = closest(highest, wanted.without(lowest.iter().chain(&middle)))?;
    let of_middle = closest(middle, wanted.without(lowest.iter().chain(&of_highest)))?;
    let of_lowest = closest(lowest, wanted.without(of_middle.iter().chain(&of_highest)))?;
    Ok(of_lowest.into_iter().chain(of_middle).chain(of_highest).map(|c| c.pod).collect())
}

fn may_preempt(pod: &Pod, other: &Pod) -> bool {
    if pod.is_critical() && !other.is_critical() {
        return true;
    }
    matches!((pod.spec().priority, other.spec().priority), (Some(own), Some(others)) if own > others)
}

struct Candidate {
    pod: Arc<Pod>,
    /// As messages count them.
    requests: BTreeMap<String, i64>,
}

impl Candidate {
    fn request(&self, resource: &str) -> i64 {
        if resource == "pods" { 1 } else { self.requests.get(resource).copied().unwrap_or(0) }
    }

    fn size(&self) -> (i64, i64) {
        (self.request("memory"), self.request("cpu"))
    }
}

/// Resources and how much of each is still missing.
struct Wanted(Vec<(String, i64)>);

impl Wanted {
    fn without<'a>(&self, pods: impl Iterator<Item = &'a Candidate> + Clone) -> Wanted {
        let left = self.0.iter().map(|(resource, amount)| {
            let given = pods.clone().fold(0i64, |sum, c| sum.saturating_add(c.request(resource)));
            (resource.clone(), amount.saturating_sub(given))
        });
        Wanted(left.filter(|(_, amount)| *amount > 0).collect())
    }

    /// How far a pod is from giving all of it: zero when it does, at most one for each resource.
    fn distance(&self, candidate: &Candidate) -> f64 {
        let part = |(resource, amount): &(String, i64)| {
            let left = amount.saturating_sub(candidate.request(resource)).max(0);
            #[expect(clippy::cast_precision_loss, reason = "only compared")]
            let share = left as f64 / *amount as f64;
            share * share
        };
        self.0.iter().map(part).sum()
    }

    fn not_found(&self) -> String {
        let parts: String =
            self.0.iter().map(|(resource, amount)| format!("(res: {resource}, q: {amount}), ")).collect();
        format!("no set of running pods found to reclaim resources: [{parts}]")
    }
}

/// Takes the closest pod again and again until nothing is missing.
fn closest(mut pods: Vec<Candidate>, mut wanted: Wanted) -> Result<Vec<Candidate>, String> {
    let mut taken = Vec::new();
    while !wanted.0.is_empty() {
        let nearer =
            |a: &(usize, f64, (i64, i64)), b: &(usize, f64, (i64, i64))| a.1.total_cmp(&b.1).then(a.2.cmp(&b.2));
        let best = pods.iter().enumerate().map(|(at, c)| (at, wanted.distance(c), c.size())).min_by(nearer);
        let Some((at, ..)) = best else { return Err(wanted.not_found()) };
        let pod = pods.swap_remove(at);
        wanted = wanted.without(std::iter::once(&pod));
        taken.push(pod);
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::core::v1::{Container, PodSpec, ResourceRequirements};
    use proto::apimachinery::pkg::api::resource::Quantity;
    use proto::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    fn pod(name: &str, priority: i32, cpu: &str, guaranteed: bool) -> Arc<Pod> {
        let list = |names: &[&str]| names.iter().map(|n| ((*n).to_owned(), Quantity { string: cpu.into() })).collect();
        let limits = if guaranteed { list(&["cpu", "memory"]) } else { Default::default() };
        let requests = if guaranteed { list(&["cpu", "memory"]) } else { list(&["cpu"]) };
        let resources = (cpu != "0").then(|| ResourceRequirements { requests, limits, ..Default::default() });
        let containers = vec![Container { resources, ..Default::default() }];
        Arc::new(Pod {
            metadata: Some(ObjectMeta { name: name.into(), uid: name.into(), ..Default::default() }),
            spec: Some(PodSpec { containers, priority: Some(priority), ..Default::default() }),
            ..Default::default()
        })
    }

    const CRITICAL: i32 = 2_000_000_000;

    fn chosen(holders: &[Arc<Pod>], missing: i64) -> Result<Vec<String>, String> {
        let shortage = Shortage { resource: "cpu".into(), requested: missing, used: 0, capacity: 0 };
        let found = choose(&pod("new", CRITICAL, "1", false), holders, &[shortage])?;
        Ok(found.iter().map(|p| p.name().to_owned()).collect())
    }

    #[test]
    fn the_closest_of_the_lowest_class_goes() {
        let holders = [
            pod("guaranteed", 0, "2", true),
            pod("large", 0, "1", false),
            pod("right", 0, "500m", false),
            pod("small", 0, "100m", false),
            pod("nothing", 0, "0", false),
        ];
        assert_eq!(chosen(&holders, 500).unwrap(), ["right"]);
        assert_eq!(chosen(&holders, 600).unwrap(), ["large"]);
        assert_eq!(chosen(&holders, 1550).unwrap(), ["large", "right", "small"]);
        assert_eq!(chosen(&holders, 1700).unwrap(), ["guaranteed"], "it gives enough, so nobody else has to go");
    }

    #[test]
    fn critical_pods_stay_and_what_cannot_be_had_is_told() {
        let holders = [pod("critical", CRITICAL, "1", false), pod("other", 0, "100m", false)];
        assert_eq!(
            chosen(&holders, 500).unwrap_err(),
            "no set of running pods found to reclaim resources: [(res: cpu, q: 400), ]"
        );
        assert!(may_preempt(&pod("a", CRITICAL + 1, "1", false), &holders[0]), "a higher priority counts");
    }
}
