//! Amounts of resources as the scheduler counts them: milli-CPUs, bytes, and whole units of everything else.

use std::borrow::Cow;
use std::str::FromStr;

use proto::quantity::Quantity;
use serde_json::{Name, Value};

use crate::admission::resources::is_resize_infeasible;
use crate::validate::quantity;

/// Assumed of a container that asks for nothing, in scores only.
pub const DEFAULT_MILLI_CPU: i64 = 100;
pub const DEFAULT_MEMORY: i64 = 200 << 20;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    pub milli_cpu: i64,
    pub memory: i64,
    pub ephemeral_storage: i64,
    /// Extended resources, huge pages and such, sorted by name.
    pub others: Vec<(Box<str>, i64)>,
}

impl Resources {
    /// A `ResourceList`; `pods` is left out, it is counted apart.
    pub fn parse(list: &Value) -> Self {
        let mut out = Resources::default();
        for (name, amount) in list.as_object().into_iter().flatten() {
            let Some(amount) = amount.as_str().and_then(|t| Quantity::from_str(t).ok()) else { continue };
            match name.as_str() {
                "cpu" => out.milli_cpu = amount.milli_value(),
                "pods" => {}
                name => *out.amount_mut(name) = amount.value(),
            }
        }
        out
    }

    fn amount_mut(&mut self, name: &str) -> &mut i64 {
        match name {
            "cpu" => &mut self.milli_cpu,
            "memory" => &mut self.memory,
            "ephemeral-storage" => &mut self.ephemeral_storage,
            name => {
                let at = match self.others.binary_search_by(|(n, _)| (**n).cmp(name)) {
                    Ok(at) => at,
                    Err(at) => {
                        self.others.insert(at, (name.into(), 0));
                        at
                    }
                };
                &mut self.others[at].1
            }
        }
    }

    pub fn other(&self, name: &str) -> i64 {
        self.others.binary_search_by(|(n, _)| (**n).cmp(name)).map_or(0, |at| self.others[at].1)
    }

    pub fn add(&mut self, more: &Resources) {
        self.combine(more, i64::saturating_add);
    }

    pub fn subtract(&mut self, less: &Resources) {
        self.combine(less, i64::saturating_sub);
    }

    /// Whether it is less of anything.
    pub fn lacks(&self, of: &Resources) -> bool {
        self.milli_cpu < of.milli_cpu
            || self.memory < of.memory
            || self.ephemeral_storage < of.ephemeral_storage
            || of.others.iter().any(|(name, amount)| self.other(name) < *amount)
    }

    /// The larger amount of each.
    pub fn raise_to(&mut self, least: &Resources) {
        self.combine(least, i64::max);
    }

    fn combine(&mut self, with: &Resources, how: impl Fn(i64, i64) -> i64) {
        self.milli_cpu = how(self.milli_cpu, with.milli_cpu);
        self.memory = how(self.memory, with.memory);
        self.ephemeral_storage = how(self.ephemeral_storage, with.ephemeral_storage);
        for (name, amount) in &with.others {
            let mine = self.amount_mut(name);
            *mine = how(*mine, *amount);
        }
    }

    /// Takes over the amounts that a list names.
    fn replace(&mut self, list: &Value) {
        let amounts = Resources::parse(list);
        for name in list.as_object().into_iter().flatten().map(|(name, _)| name) {
            *self.amount_mut(name) = match name.as_str() {
                "cpu" => amounts.milli_cpu,
                "memory" => amounts.memory,
                "ephemeral-storage" => amounts.ephemeral_storage,
                name => amounts.other(name),
            };
        }
    }
}

/// What a pod asks of a node: the larger of what its containers need together and what its init containers need in
/// turn (sidecars stay), or what the pod as a whole asks for, and its overhead. With `least`, containers that ask for
/// no CPU or memory count as asking for a little.
pub fn pod_requests(pod: &Value, least: bool) -> Resources {
    let spec = &pod["spec"];
    let mut together = Resources::default();
    for container in spec["containers"].as_array().into_iter().flatten() {
        together.add(&container_requests(pod, "containerStatuses", container, least));
    }
    let (mut sidecars, mut in_turn) = (Resources::default(), Resources::default());
    for container in spec["initContainers"].as_array().into_iter().flatten() {
        let mut needs = container_requests(pod, "initContainerStatuses", container, least);
        if container["restartPolicy"] == "Always" {
            together.add(&needs);
            sidecars.add(&needs);
            needs = sidecars.clone();
        } else {
            needs.add(&sidecars);
        }
        in_turn.raise_to(&needs);
    }
    together.raise_to(&in_turn);
    together.replace(&whole(pod));
    together.add(&Resources::parse(&spec["overhead"]));
    together
}

/// What a pod asks for of one resource, in thousandths; None where it says nothing of it anywhere.
pub fn requested(pod: &Value, resource: &str) -> Option<i64> {
    let spec = &pod["spec"];
    let containers = ["containers", "initContainers"];
    let mut containers = containers.into_iter().flat_map(|list| spec[list].as_array().into_iter().flatten());
    let said = |list: &Value| !list[resource].is_null();
    let is_said = said(&spec["resources"]["requests"])
        || said(&spec["overhead"])
        || containers.any(|c| said(&c["resources"]["requests"]));
    let all = pod_requests(pod, false);
    is_said.then(|| match resource {
        "cpu" => all.milli_cpu,
        "memory" => all.memory.saturating_mul(1000),
        "ephemeral-storage" => all.ephemeral_storage.saturating_mul(1000),
        other => all.other(other).saturating_mul(1000),
    })
}

/// What the pod as a whole asks for; while it is being resized, the larger of what it has and what it is to have, if it
/// can have that at all.
fn whole(pod: &Value) -> Cow<'_, Value> {
    let requests = &pod["spec"]["resources"]["requests"];
    let (Some(list), status) = (requests.as_object(), &pod["status"]) else { return Cow::Borrowed(requests) };
    if !status["resources"].is_object() {
        return Cow::Borrowed(requests);
    }
    let had = [&status["resources"]["requests"], &status["allocatedResources"]];
    let infeasible = is_resize_infeasible(pod);
    let largest = |(name, wanted): (&Name, &Value)| {
        let wanted = (!infeasible).then_some(wanted);
        let all = had.iter().map(|had| &had[name]).chain(wanted).filter_map(|q| Some((quantity(q)?, q)));
        Some((name.clone(), all.max_by_key(|(quantity, _)| *quantity)?.1.clone()))
    };
    Cow::Owned(list.iter().filter_map(largest).collect())
}

/// A container's requests; while it is being resized, the larger of what it has and what it is to have, if it can have
/// that at all.
fn container_requests(pod: &Value, statuses: &str, container: &Value, least: bool) -> Resources {
    let requests = &container["resources"]["requests"];
    let mut out = Resources::parse(requests);
    let status = pod["status"][statuses].as_array().into_iter().flatten().find(|s| s["name"] == container["name"]);
    if let Some(status) = status {
        if status["resources"].is_object() && is_resize_infeasible(pod) {
            out = Resources::default();
        }
        out.raise_to(&Resources::parse(&status["allocatedResources"]));
        out.raise_to(&Resources::parse(&status["resources"]["requests"]));
    }
    if least {
        if requests["cpu"].is_null() {
            out.milli_cpu = out.milli_cpu.max(DEFAULT_MILLI_CPU);
        }
        if requests["memory"].is_null() {
            out.memory = out.memory.max(DEFAULT_MEMORY);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn container(cpu: &str) -> Value {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu}}})
    }

    #[test]
    fn init_containers_count_when_they_need_more_than_all_others() {
        let pod =
            json!({"spec": {"containers": [container("1"), container("500m")], "initContainers": [container("2")]}});
        assert_eq!(pod_requests(&pod, false).milli_cpu, 2000);
        let pod =
            json!({"spec": {"containers": [container("2"), container("500m")], "initContainers": [container("2")]}});
        assert_eq!(pod_requests(&pod, false).milli_cpu, 2500);
    }

    #[test]
    fn sidecars_count_beside_containers_and_later_init_containers() {
        let mut sidecar = container("1");
        sidecar["restartPolicy"] = "Always".into();
        let pod = json!({"spec": {"containers": [container("1")], "initContainers": [sidecar, container("3")]}});
        assert_eq!(pod_requests(&pod, false).milli_cpu, 4000);
    }

    #[test]
    fn the_pods_own_request_and_overhead_count() {
        let pod = json!({"spec": {"containers": [container("1")], "overhead": {"cpu": "250m"},
            "resources": {"requests": {"cpu": "3", "memory": "1Gi"}}}});
        let requests = pod_requests(&pod, false);
        assert_eq!((requests.milli_cpu, requests.memory), (3250, 1 << 30));
        // It is being made smaller in CPU and larger in memory.
        let mut resized = pod.clone();
        resized["status"] = json!({"resources": {"requests": {"cpu": "4", "memory": "512Mi", "pods": "1"}},
            "allocatedResources": {"cpu": "3500m", "memory": "512Mi"}});
        let requests = pod_requests(&resized, false);
        assert_eq!((requests.milli_cpu, requests.memory), (4250, 1 << 30));
    }

    /// The node was full of what nobody had.
    #[test]
    fn what_a_pod_will_never_get_does_not_count() {
        let status = json!({"name": "c", "allocatedResources": {"cpu": "1"}, "resources": {"requests": {"cpu": "1"}}});
        let mut pod = json!({"spec": {"containers": [container("100")]},
            "status": {"containerStatuses": [status], "conditions": [{"type": "PodResizePending", "reason": "Deferred"}]}});
        assert_eq!(pod_requests(&pod, false).milli_cpu, 100_000);
        pod["status"]["conditions"][0]["reason"] = "Infeasible".into();
        assert_eq!(pod_requests(&pod, false).milli_cpu, 1000);
        pod["spec"]["resources"]["requests"]["cpu"] = "200".into();
        pod["status"]["resources"]["requests"]["cpu"] = "2".into();
        assert_eq!(pod_requests(&pod, false).milli_cpu, 2000);
    }

    #[test]
    fn scores_assume_a_little_where_nothing_is_asked() {
        let pod = json!({"spec": {"containers": [{"name": "c"}]}});
        assert_eq!(pod_requests(&pod, false), Resources::default());
        let assumed = pod_requests(&pod, true);
        assert_eq!((assumed.milli_cpu, assumed.memory), (DEFAULT_MILLI_CPU, DEFAULT_MEMORY));
    }
}
