//! Carrying out a resize: the cgroup of the pod grows before its containers do and shrinks after them; the runtime is
//! told of every step.
//!
//! Followed: kuberuntime `doPodResizeAction`.

use proto::api::core::v1::{Container, Pod};
use proto::cri::{self, LinuxContainerResources};

use crate::cgroups::{Limits, pod_limits};
use crate::pod::memory_qos::Kept;
use crate::pod::resize::{Amounts, Plan, Resource, Update};
use crate::pod::resources::{container_resources, sandbox_overhead};
use crate::pod::spec::{PodExt, find_container};

use super::Shared;

/// No limit, as it is written and as it compares.
const UNLIMITED: i64 = -1;

/// A resize of one pod while it is carried out.
pub struct Resizing<'a> {
    pub shared: &'a Shared,
    pub pod: &'a Pod,
    pub sandbox_id: &'a str,
}

impl Resizing<'_> {
    /// # Errors
    /// The text of the condition; what was done stays done, and the rest is planned again.
    pub async fn run(&self, plan: Plan) -> Result<(), String> {
        let before = self.shared.allocations.given_to(self.pod);
        // Without a limit of its own a pod keeps what its cgroup has.
        let mut now = self.limits(before.as_ref().unwrap_or(self.pod));
        let wanted = self.limits(self.pod);
        self.check_memory(&plan, wanted.memory.filter(|wanted| now.memory.is_none_or(|now| now > *wanted))).await?;
        if !plan.memory.is_empty() || plan.pod {
            let (more, less) = renewals(now.memory_kept.unwrap_or_default(), wanted.memory_kept.unwrap_or_default());
            self.keep(more).await?;
            let (from, to) = (now.memory, wanted.memory.or(now.memory));
            let set = Limits { memory: to, ..Limits::default() };
            if greater(to, from) {
                self.set(&mut now, set.clone()).await?;
            }
            self.update(&plan.memory, Resource::Memory).await?;
            if greater(from, to) {
                self.set(&mut now, set).await?;
            }
            self.keep(less).await?;
        }
        if !plan.cpu.is_empty() || plan.pod {
            let (from, to) = (now.cpu_quota, wanted.cpu_quota.or(now.cpu_quota));
            let limit = Limits { cpu_quota: to, ..Limits::default() };
            let (shares_from, shares_to) = (now.cpu_shares, wanted.cpu_shares);
            let weight = Limits { cpu_shares: shares_to, ..Limits::default() };
            if greater(to.map(|q| q.0), from.map(|q| q.0)) {
                self.set(&mut now, limit.clone()).await?;
            }
            if greater(shares_to, shares_from) {
                self.set(&mut now, weight.clone()).await?;
            }
            self.update(&plan.cpu, Resource::Cpu).await?;
            if greater(shares_from, shares_to) {
                self.set(&mut now, weight).await?;
            }
            if greater(from.map(|q| q.0), to.map(|q| q.0)) {
                self.set(&mut now, limit).await?;
            }
        }
        self.shared.allocations.give_pod(self.pod.uid(), self.pod.spec().resources.clone());
        Ok(())
    }

    /// What the pod's cgroup is to have for `pod`. CPUs that are a container's own limit it by themselves.
    fn limits(&self, pod: &Pod) -> Limits {
        let mut limits = pod_limits(pod, &self.shared.config.resources, 0);
        if self.shared.managers.lifts_quota(self.pod) {
            limits.cpu_quota = limits.cpu_quota.map(|(_, period)| (UNLIMITED, period));
        }
        limits
    }

    /// A limit below what is in use would end in an out-of-memory kill. `whole_pod`: the pod's, where it shrinks or
    /// is the first.
    async fn check_memory(&self, plan: &Plan, whole_pod: Option<i64>) -> Result<(), String> {
        let mut refused = Vec::new();
        if let Some((wanted, used)) = whole_pod.zip(self.shared.cgroups.memory_usage(self.pod)) {
            refused.extend(below_usage("pod", wanted, used));
        }
        for update in plan.memory.iter().filter(|u| shrinks(u)) {
            // What the runtime does not tell says nothing against it.
            let request = cri::ContainerStatsRequest { container_id: update.container_id.clone() };
            let Ok(answer) = self.shared.cri.container_stats(request).await else { continue };
            let Some(used) = answer.stats.and_then(|stats| used(&stats.memory?)) else { continue };
            refused.extend(below_usage(&format!("container {:?}", update.name), update.desired.memory_limit, used));
        }
        cannot_decrease(&refused)
    }

    /// Memory that is kept for the pod, of which the runtime knows nothing.
    async fn keep(&self, kept: Option<Kept>) -> Result<(), String> {
        let Some(kept) = kept else { return Ok(()) };
        let part = Limits { memory_kept: Some(kept), ..Limits::default() };
        self.shared.cgroups.set(self.pod, &part).await.map_err(|e| e.to_string())
    }

    /// Sets part of the pod's cgroup and tells the runtime, which may not care.
    async fn set(&self, now: &mut Limits, part: Limits) -> Result<(), String> {
        self.shared.cgroups.set(self.pod, &part).await.map_err(|e| e.to_string())?;
        now.memory = part.memory.or(now.memory);
        now.cpu_quota = part.cpu_quota.or(now.cpu_quota);
        now.cpu_shares = part.cpu_shares.or(now.cpu_shares);
        let request = cri::UpdatePodSandboxResourcesRequest {
            pod_sandbox_id: self.sandbox_id.to_owned(),
            overhead: Some(sandbox_overhead(self.pod, &self.shared.config.resources)),
            resources: Some(LinuxContainerResources {
                cpu_period: now.cpu_quota.map_or(0, |q| q.1),
                cpu_quota: now.cpu_quota.map_or(0, |q| q.0),
                cpu_shares: now.cpu_shares.unwrap_or(0),
                memory_limit_in_bytes: now.memory.unwrap_or(0),
                ..Default::default()
            }),
        };
        if let Err(error) = self.shared.cri.update_pod_sandbox_resources(request).await {
            tracing::debug!(%error, pod = self.pod.name(), "the runtime did not take the resources of a sandbox");
        }
        Ok(())
    }

    async fn update(&self, updates: &[Update], what: Resource) -> Result<(), String> {
        for update in updates {
            let Some((_, container)) = find_container(self.pod.spec(), &update.name) else { continue };
            // Memory goes first: then CPU is still the old one, and memory the new one when CPU follows.
            let cpu = if what == Resource::Memory { update.current } else { update.desired };
            let amounts = Amounts::mixed(cpu, update.desired);
            let given = amounts.put_into(&container.resources.clone().unwrap_or_default());
            let changed = Container { resources: Some(given.clone()), ..container.into_owned() };
            let mut resources = container_resources(self.pod, &changed, &self.shared.config.resources);
            let managers = &self.shared.managers;
            if managers.lifts_quota(self.pod) && !managers.exclusive(self.pod, &changed).is_empty() {
                lift_quota(&mut resources);
            }
            let request = cri::UpdateContainerResourcesRequest {
                container_id: update.container_id.clone(),
                linux: Some(resources),
                ..Default::default()
            };
            self.shared.cri.update_container_resources(request).await.map_err(|e| e.message)?;
            self.shared.allocations.give(self.pod.uid(), &update.name, given);
        }
        Ok(())
    }
}

/// # Errors
/// All that was refused, in the kubelet's words.
fn cannot_decrease(refused: &[String]) -> Result<(), String> {
    let all = match refused {
        [] => return Ok(()),
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    };
    Err(format!("cannot decrease memory limits: {all}"))
}

fn shrinks(update: &Update) -> bool {
    let (from, to) = (update.current.memory_limit, update.desired.memory_limit);
    to != 0 && to < from
}

/// Bytes in use, as the runtime tells them; older ones tell only what cannot be given back.
fn used(memory: &cri::MemoryUsage) -> Option<i64> {
    let bytes = memory.usage_bytes.as_ref().or(memory.working_set_bytes.as_ref())?.value;
    i64::try_from(bytes).ok()
}

fn below_usage(what: &str, wanted: i64, used: i64) -> Option<String> {
    (used >= wanted).then(|| format!("attempting to set {what} memory limit ({wanted}) below current usage ({used})"))
}

/// As the container was created: its CPUs, which are its own, limit it.
fn lift_quota(resources: &mut LinuxContainerResources) {
    if resources.cpu_quota > 0 {
        resources.cpu_quota = UNLIMITED;
    }
}

/// Whether one limit is above another. A first limit is above none, as the kubelet counts: it is set before the containers
/// change. One that is taken away is neither, and stays.
fn greater(a: Option<i64>, b: Option<i64>) -> bool {
    a.is_some_and(|a| a > b.unwrap_or(UNLIMITED))
}

/// What is kept for a pod before its containers change, and what after: never less than they may have.
fn renewals(from: Kept, to: Kept) -> (Option<Kept>, Option<Kept>) {
    let most = Kept { min: from.min.max(to.min), low: from.low.max(to.low) };
    (Some(most).filter(|most| *most != from), Some(to).filter(|to| *to != most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_below_what_is_in_use_is_refused_by_name() {
        let update = |from: i64, to: i64| Update {
            container_id: String::new(),
            name: "main".into(),
            current: Amounts { memory_limit: from, ..Amounts::default() },
            desired: Amounts { memory_limit: to, ..Amounts::default() },
        };
        assert!(shrinks(&update(2, 1)) && !shrinks(&update(1, 2)) && !shrinks(&update(1, 0)));
        let told = "attempting to set container \"main\" memory limit (10) below current usage (10)";
        assert_eq!(below_usage("container \"main\"", 10, 10).as_deref(), Some(told));
        assert_eq!(below_usage("pod", 10, 9), None);
        let refused = |all: &[&str]| {
            let all: Vec<String> = all.iter().map(|why| (*why).to_owned()).collect();
            cannot_decrease(&all).err().unwrap_or_default()
        };
        assert_eq!(refused(&["a"]), "cannot decrease memory limits: a");
        assert_eq!(
            (refused(&["a", "b"]), refused(&[])),
            ("cannot decrease memory limits: [a, b]".into(), String::new())
        );
        let told = |usage: Option<u64>, set: Option<u64>| {
            let value = |value: u64| cri::UInt64Value { value };
            used(&cri::MemoryUsage {
                usage_bytes: usage.map(value),
                working_set_bytes: set.map(value),
                ..Default::default()
            })
        };
        assert_eq!([told(Some(3), Some(2)), told(None, Some(2)), told(None, None)], [Some(3), Some(2), None]);
    }

    /// Where the last container without a limit got one, the cgroup of the pod never did.
    #[test]
    fn a_first_limit_is_set_before_the_containers_change() {
        assert!(greater(Some(1), None) && !greater(None, Some(1)));
        assert!(greater(Some(2), Some(1)) && !greater(Some(1), Some(2)) && !greater(Some(1), Some(1)));
        assert!(!greater(Some(UNLIMITED), None) && !greater(None, None), "nothing is limited before or after");
        assert!(greater(Some(1), Some(UNLIMITED)) && !greater(Some(UNLIMITED), Some(1)));
    }

    /// Other memory used to come with a quota, which such a container was created without.
    #[test]
    fn a_container_on_its_own_cpus_gets_no_quota_with_other_memory() {
        let quota = |before: i64| {
            let mut resources = LinuxContainerResources { cpu_quota: before, cpu_shares: 7, ..Default::default() };
            lift_quota(&mut resources);
            assert_eq!(resources.cpu_shares, 7);
            resources.cpu_quota
        };
        assert_eq!([quota(200_000), quota(0), quota(UNLIMITED)], [UNLIMITED, 0, UNLIMITED]);
    }

    #[test]
    fn memory_that_is_kept_grows_first_and_shrinks_last() {
        let kept = |min, low| Kept { min, low };
        assert_eq!(renewals(kept(1, 0), kept(3, 0)), (Some(kept(3, 0)), None));
        assert_eq!(renewals(kept(0, 3), kept(0, 1)), (None, Some(kept(0, 1))));
        assert_eq!(renewals(kept(1, 3), kept(2, 1)), (Some(kept(2, 3)), Some(kept(2, 1))));
        assert_eq!(renewals(kept(1, 3), kept(1, 3)), (None, None));
        assert_eq!(renewals(kept(0, 3), kept(0, 0)), (None, Some(kept(0, 0))), "nothing is kept any more");
    }
}
