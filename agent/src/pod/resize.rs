//! In-place resize: which running containers must be updated, or started over, so that they have what is allocated.
//!
//! Pure: the allocated pod, what runs, and what each container and the pod as a whole were given last. Lesser amounts come before greater ones,
//! so that the pod as a whole never has more than the larger of both.
//!
//! Followed: kuberuntime `computePodResizeAction`.

use proto::api::core::v1::{Container, Pod, ResourceRequirements};
use proto::apimachinery::pkg::api::resource::Quantity;
use proto::quantity::Format;

use crate::pleg::observed::{Observed, RunState};

use super::resources::{bytes_of, milli_of};
use super::spec::PodExt;
use super::step::{Actions, Kill, KillReason};

/// What a resize is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    Memory,
    Cpu,
}

/// Amounts of one container: bytes and thousandths of a CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amounts {
    pub memory_request: i64,
    pub memory_limit: i64,
    pub cpu_request: i64,
    pub cpu_limit: i64,
}

impl Amounts {
    pub fn of(requirements: &ResourceRequirements) -> Self {
        Self {
            memory_request: bytes_of(&requirements.requests, "memory"),
            memory_limit: bytes_of(&requirements.limits, "memory"),
            cpu_request: milli_of(&requirements.requests, "cpu"),
            cpu_limit: milli_of(&requirements.limits, "cpu"),
        }
    }

    /// The CPU of one and the memory of the other.
    pub fn mixed(cpu: Self, memory: Self) -> Self {
        Self { cpu_request: cpu.cpu_request, cpu_limit: cpu.cpu_limit, ..memory }
    }

    /// A container's requirements with these amounts in place of its own; what is zero is left out.
    pub fn put_into(self, requirements: &ResourceRequirements) -> ResourceRequirements {
        let mut out = requirements.clone();
        let cpu = |v| proto::quantity::Quantity::from_milli(v, Format::DecimalSi).to_string();
        let bytes = |v| proto::quantity::Quantity::from_integer(v, Format::BinarySi).to_string();
        put(&mut out.requests, "cpu", self.cpu_request, cpu(self.cpu_request));
        put(&mut out.requests, "memory", self.memory_request, bytes(self.memory_request));
        put(&mut out.limits, "cpu", self.cpu_limit, cpu(self.cpu_limit));
        put(&mut out.limits, "memory", self.memory_limit, bytes(self.memory_limit));
        out
    }
}

fn put(list: &mut std::collections::BTreeMap<String, Quantity>, name: &str, value: i64, text: String) {
    if value == 0 {
        list.remove(name);
    } else {
        list.insert(name.to_owned(), Quantity { string: text });
    }
}

/// A running container that gets other amounts.
#[derive(Debug, Clone, PartialEq)]
pub struct Update {
    pub container_id: String,
    pub name: String,
    pub current: Amounts,
    pub desired: Amounts,
}

/// What a resize takes. Containers that start over are in the actions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// In the order of doing.
    pub memory: Vec<Update>,
    pub cpu: Vec<Update>,
    /// The cgroup of the pod changes though no container is updated.
    pub pod: bool,
}

impl Plan {
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty() && self.cpu.is_empty() && !self.pod
    }
}

/// What was given last; nothing is known of what an earlier agent gave without a note of it.
pub struct Given<'a> {
    pub containers: &'a dyn Fn(&str) -> Option<ResourceRequirements>,
    /// For the pod as a whole.
    pub pod: Option<ResourceRequirements>,
}

impl Given<'_> {
    /// What the pod as a whole has and is to have, where these differ and something of it runs.
    fn whole_pod(&self, pod: &Pod, observed: &Observed) -> Option<(Amounts, Amounts)> {
        let (has, wanted) = (self.pod.as_ref()?, pod.spec().resources.as_ref()?);
        let runs = observed.containers.iter().any(|r| r.state == RunState::Running);
        let (has, wanted) = (Amounts::of(has), Amounts::of(wanted));
        (runs && has != wanted).then_some((has, wanted))
    }
}

/// Whether some running container, or the pod as a whole, has other amounts than are allocated. As in [`plan`] only what can be
/// resized counts, and nothing is as much as none.
pub fn in_progress(pod: &Pod, observed: &Observed, given: &Given<'_>) -> bool {
    if given.whole_pod(pod, observed).is_some() {
        return true;
    }
    let empty = ResourceRequirements::default();
    pod.spec().init_containers.iter().chain(&pod.spec().containers).any(|container| {
        let runs = observed.container(&container.name).is_some_and(|r| r.state == RunState::Running);
        let wanted = || Amounts::of(container.resources.as_ref().unwrap_or(&empty));
        runs && (given.containers)(&container.name).is_some_and(|has| Amounts::of(&has) != wanted())
    })
}

/// Plans the updates of what runs on; containers whose policy wants a restart are added to the actions.
pub fn plan(pod: &Pod, observed: &Observed, given: &Given<'_>, actions: &mut Actions) -> Plan {
    let mut plan = Plan::default();
    if pod.is_static() || actions.kill_pod || !actions.reset.is_empty() {
        return plan;
    }
    let spec = pod.spec();
    let whole_pod = given.whole_pod(pod, observed);
    plan.pod = whole_pod.is_some();
    let indexed = spec.init_containers.iter().enumerate().map(|(i, c)| (true, i, c));
    for (init, i, container) in indexed.chain(spec.containers.iter().enumerate().map(|(i, c)| (false, i, c))) {
        let Some(record) = observed.container(&container.name).filter(|r| r.state == RunState::Running) else {
            continue;
        };
        if actions.kill.iter().any(|k| k.container_id == record.id) {
            continue;
        }
        // What a container has that an earlier agent started is what its spec says.
        let Some(has) = (given.containers)(&container.name) else { continue };
        let empty = ResourceRequirements::default();
        let (current, desired) = (Amounts::of(&has), Amounts::of(container.resources.as_ref().unwrap_or(&empty)));
        if current == desired {
            let update = Update { container_id: record.id.clone(), name: container.name.clone(), current, desired };
            inherit(&mut plan, &update, whole_pod);
            continue;
        }
        let memory = current.memory_limit != desired.memory_limit || current.memory_request != desired.memory_request;
        let cpu = current.cpu_limit != desired.cpu_limit || current.cpu_request != desired.cpu_request;
        if memory && restarts(container, "memory") || cpu && restarts(container, "cpu") {
            actions.kill.push(Kill {
                container_id: record.id.clone(),
                name: container.name.clone(),
                message: format!("Container {} resize requires restart", container.name),
                reason: KillReason::Unknown,
            });
            let starts = if init { &mut actions.start_init } else { &mut actions.start };
            starts.push(i);
            starts.sort_unstable();
            plan.pod = true;
            continue;
        }
        let update = Update { container_id: record.id.clone(), name: container.name.clone(), current, desired };
        let first_difference = |limits: (i64, i64), requests: (i64, i64)| {
            if limits.0 != limits.1 { limits } else { requests }
        };
        if memory {
            let limits = (current.memory_limit, desired.memory_limit);
            let change = first_difference(limits, (current.memory_request, desired.memory_request));
            in_order(&mut plan.memory, update.clone(), change);
        }
        if cpu {
            let limits = (current.cpu_limit, desired.cpu_limit);
            let change = first_difference(limits, (current.cpu_request, desired.cpu_request));
            in_order(&mut plan.cpu, update, change);
        }
    }
    plan
}

/// A container without a limit of its own has that of the pod, and so gets another when the pod does.
fn inherit(plan: &mut Plan, update: &Update, whole_pod: Option<(Amounts, Amounts)>) {
    let Some((from, to)) = whole_pod else { return };
    if update.desired.memory_limit == 0 && from.memory_limit != to.memory_limit {
        in_order(&mut plan.memory, update.clone(), (from.memory_limit, to.memory_limit));
    }
    if update.desired.cpu_limit == 0 && from.cpu_limit != to.cpu_limit {
        in_order(&mut plan.cpu, update.clone(), (from.cpu_limit, to.cpu_limit));
    }
}

fn in_order(updates: &mut Vec<Update>, update: Update, (from, to): (i64, i64)) {
    if to < from {
        updates.insert(0, update);
    } else {
        updates.push(update);
    }
}

fn restarts(container: &Container, resource: &str) -> bool {
    let policy = container.resize_policy.iter().find(|p| p.resource_name == resource);
    policy.is_some_and(|p| p.restart_policy == "RestartContainer")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pleg::observed::ContainerRecord;
    use proto::api::core::v1::{ContainerResizePolicy, PodSpec};

    fn needs(cpu: &str, memory: &str) -> ResourceRequirements {
        let list = |entries: [(&str, &str); 2]| {
            entries.into_iter().map(|(k, v)| (k.to_owned(), Quantity { string: v.to_owned() })).collect()
        };
        let limits = list([("cpu", cpu), ("memory", memory)]);
        ResourceRequirements { limits, ..Default::default() }
    }

    fn pod(containers: Vec<Container>) -> (Pod, Observed) {
        let running = |c: &Container| ContainerRecord {
            id: format!("id-{}", c.name),
            name: c.name.clone(),
            state: RunState::Running,
            ..Default::default()
        };
        let observed = Observed { containers: containers.iter().map(running).collect(), ..Default::default() };
        (Pod { spec: Some(PodSpec { containers, ..Default::default() }), ..Default::default() }, observed)
    }

    fn container(name: &str, resources: ResourceRequirements) -> Container {
        Container { name: name.into(), resources: Some(resources), ..Default::default() }
    }

    #[test]
    fn what_shrinks_comes_before_what_grows() {
        let (pod, observed) =
            pod(vec![container("grow", needs("2", "1Mi")), container("shrink", needs("500m", "1Mi"))]);
        let given = Given { containers: &|_| Some(needs("1", "1Mi")), pod: None };
        assert!(in_progress(&pod, &observed, &given));
        let mut actions = Actions::default();
        let plan = plan(&pod, &observed, &given, &mut actions);
        assert_eq!(plan.cpu.iter().map(|u| u.name.as_str()).collect::<Vec<_>>(), ["shrink", "grow"]);
        assert!(plan.memory.is_empty() && actions.is_empty());
    }

    #[test]
    fn a_policy_may_want_a_restart() {
        let mut main = container("main", needs("1", "2Mi"));
        main.resize_policy =
            vec![ContainerResizePolicy { resource_name: "memory".into(), restart_policy: "RestartContainer".into() }];
        let (pod, observed) = pod(vec![main]);
        let mut actions = Actions::default();
        let plan = plan(&pod, &observed, &Given { containers: &|_| Some(needs("1", "1Mi")), pod: None }, &mut actions);
        assert_eq!(actions.kill[0].message, "Container main resize requires restart");
        assert_eq!((actions.start, plan.pod), (vec![0], true));
    }

    #[test]
    fn nothing_is_done_where_nothing_changed_or_nothing_is_known() {
        let (pod, observed) = pod(vec![container("main", needs("1", "1Mi"))]);
        let mut actions = Actions::default();
        let mut planned = |has: Option<ResourceRequirements>| {
            plan(&pod, &observed, &Given { containers: &|_| has.clone(), pod: None }, &mut actions)
        };
        assert!(planned(Some(needs("1000m", "1Mi"))).is_empty());
        assert!(planned(None).is_empty());
    }

    /// What was noted of such a container had no request, so its resize never came to its end.
    #[test]
    fn a_request_for_nothing_is_as_none() {
        let mut wanted = needs("1", "1Mi");
        wanted.requests.insert("cpu".into(), Quantity { string: "0".into() });
        let (mut pod, observed) = pod(vec![container("main", wanted.clone())]);
        let noted = Amounts::of(&wanted).put_into(&wanted);
        assert!(noted.requests.is_empty());
        let given = Given { containers: &|_| Some(noted.clone()), pod: Some(noted.clone()) };
        pod.spec.get_or_insert_default().resources = Some(wanted);
        assert!(!in_progress(&pod, &observed, &given));
        assert!(plan(&pod, &observed, &given, &mut Actions::default()).is_empty());
    }

    #[test]
    fn a_pod_may_be_resized_as_a_whole_and_what_has_no_limit_of_its_own_with_it() {
        let (mut pod, mut observed) =
            pod(vec![container("own", needs("1", "1Mi")), container("none", ResourceRequirements::default())]);
        pod.spec.get_or_insert_default().resources = Some(needs("2", "8Mi"));
        let spec = pod.spec.clone().unwrap();
        let containers = |name: &str| spec.containers.iter().find(|c| c.name == name).and_then(|c| c.resources.clone());
        let given = |whole_pod| Given { containers: &containers, pod: whole_pod };
        let mut actions = Actions::default();
        assert!(!in_progress(&pod, &observed, &given(None)), "nobody knows what it had");
        assert!(plan(&pod, &observed, &given(Some(needs("2000m", "8Mi"))), &mut actions).is_empty());
        let before = given(Some(needs("3", "8Mi")));
        assert!(in_progress(&pod, &observed, &before));
        let planned = plan(&pod, &observed, &before, &mut actions);
        assert!(planned.pod && planned.memory.is_empty() && actions.is_empty());
        assert_eq!(planned.cpu.iter().map(|u| u.name.as_str()).collect::<Vec<_>>(), ["none"]);
        let first = plan(&pod, &observed, &given(Some(ResourceRequirements::default())), &mut actions);
        assert!(first.pod && first.memory.len() == 1 && first.cpu.len() == 1, "it had none");
        observed.containers.iter_mut().for_each(|c| c.state = RunState::Exited);
        assert!(!in_progress(&pod, &observed, &before), "what starts next starts with it");
    }

    #[test]
    fn amounts_replace_their_like_and_leave_the_rest() {
        let mut before = needs("1", "1Mi");
        before.limits.insert("hugepages-2Mi".into(), Quantity { string: "4Mi".into() });
        let amounts = Amounts { cpu_limit: 250, ..Amounts::of(&before) };
        let after = amounts.put_into(&before);
        assert_eq!(after.limits["cpu"].string, "250m");
        assert_eq!((after.limits["memory"].string.as_str(), after.limits.len()), ("1Mi", 3));
    }
}
