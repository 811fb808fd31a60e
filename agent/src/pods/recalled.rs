//! Pods that no source has told of yet, as far as the runtime and the agent's checkpoints remember them: what people see
//! after a restart of the agent while the control plane is gone.
//!
//! The runtime knows names, labels, annotations, containers and addresses; `allocated_pods_state` the names and
//! resources of the containers. Probes, restart policy and volumes are in the pod's object alone, so readiness is
//! not known, and a container that ended well before all others began counts as an init container.

use std::collections::{BTreeMap, HashMap, HashSet};

use proto::api::core::v1::{Container, Pod, PodSpec, PodStatus};
use proto::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use proto::cri;

use super::handle::{FindError, Handle};
use crate::pleg::observed::{Observed, RunState, observe};
use crate::pod::allocation::Allocation;
use crate::pod::labels;
use crate::probes::Verdicts;
use crate::status::{Inputs, generate};

impl Handle {
    /// Every pod that anything here knows of: those of the sources with their newest statuses, and the rest as the
    /// runtime remembers them.
    ///
    /// # Errors
    /// [`FindError::Runtime`] when it does not answer.
    pub async fn recalled(&self) -> Result<Vec<Pod>, FindError> {
        let told = self.shared.feed.pods().into_iter().map(|known| match known.status {
            Some(status) => Pod { status: Some((*status).clone()), ..(*known.pod).clone() },
            None => (*known.pod).clone(),
        });
        let mut pods: Vec<Pod> = told.collect();
        let names: HashSet<String> = pods.iter().map(|p| crate::pod::spec::PodExt::uid(p).to_owned()).collect();
        let mut newest: BTreeMap<String, cri::PodSandbox> = BTreeMap::new();
        for sandbox in self.shared.cri.list_pod_sandboxes(None).await.map_err(FindError::Runtime)? {
            let Some(owner) = labels::owner(&sandbox.labels).filter(|o| !names.contains(o.uid)) else { continue };
            match newest.get_mut(owner.uid) {
                Some(known) if known.created_at >= sandbox.created_at => {}
                Some(known) => *known = sandbox,
                None => {
                    newest.insert(owner.uid.to_owned(), sandbox);
                }
            }
        }
        let host_ips = self.shared.host_ips();
        for (uid, sandbox) in newest {
            let observed = observe(&self.shared.cri, &uid, &Observed::default()).await.map_err(FindError::Runtime)?;
            let allocated = self.shared.allocations.allocated(&uid).unwrap_or_default();
            let mut pod = skeleton(sandbox, &observed, &allocated, &self.shared.config.node_name);
            pod.status = Some(status(&pod, &observed, &self.shared.runtime_name, &host_ips));
            pods.push(pod);
        }
        Ok(pods)
    }
}

/// The object without what only its source knows.
fn skeleton(sandbox: cri::PodSandbox, observed: &Observed, allocated: &Allocation, node: &str) -> Pod {
    let mut own_labels = sandbox.labels;
    let mut label = |name: &str| own_labels.remove(name).unwrap_or_default();
    let metadata = ObjectMeta {
        name: label(labels::POD_NAME),
        namespace: label(labels::POD_NAMESPACE),
        uid: label(labels::POD_UID),
        labels: own_labels,
        annotations: sandbox.annotations,
        ..Default::default()
    };
    let (init, regular): (Vec<_>, Vec<_>) =
        names(observed, allocated).into_iter().partition(|name| was_init(observed, name));
    let container = |name: String| Container {
        image: observed.container(&name).map(|c| c.image.clone()).unwrap_or_default(),
        resources: allocated.containers.get(&name).cloned(),
        name,
        ..Default::default()
    };
    let spec = PodSpec {
        node_name: node.into(),
        host_network: observed.sandboxes.first().is_some_and(|s| s.network_mode == cri::NamespaceMode::Node as i32),
        init_containers: init.into_iter().map(container).collect(),
        containers: regular.into_iter().map(container).collect(),
        resources: allocated.pod.clone(),
        ..Default::default()
    };
    Pod { metadata: Some(metadata), spec: Some(spec), status: None }
}

/// The containers in the order in which they first began; those that have not yet at the end.
fn names(observed: &Observed, allocated: &Allocation) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let begun = observed.containers.iter().rev().map(|c| &c.name);
    for name in begun.chain(allocated.containers.keys()) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

fn was_init(observed: &Observed, name: &str) -> bool {
    let Some(own) = observed.container(name).filter(|c| c.state == RunState::Exited && c.exit_code == 0) else {
        return false;
    };
    let mut others = observed.containers.iter().filter(|c| c.name != name && c.created_at > own.created_at).peekable();
    others.peek().is_some() && others.all(|c| c.created_at >= own.finished_at)
}

fn status(pod: &Pod, observed: &Observed, runtime: &str, host_ips: &[String]) -> PodStatus {
    let begun = observed.sandboxes.last().map_or(0, |s| s.created_at);
    let start_time = (begun > 0).then_some(Time { seconds: begun / 1_000_000_000, nanos: 0 });
    let old = PodStatus { start_time, ..Default::default() };
    let verdicts = Verdicts::default();
    let mut status = generate(&Inputs {
        pod,
        observed,
        old: &old,
        start_errors: &HashMap::new(),
        probes: &verdicts.of(pod),
        runtime,
        host_ips,
        terminal: false,
        imposed: None,
        recursive_read_only: false,
        stop_signals: false,
        resize: Vec::new(),
        now: crate::clock::now(),
    });
    let of_readiness = |kind: &str| matches!(kind, "Ready" | "ContainersReady");
    for condition in status.conditions.iter_mut().filter(|c| c.status == "True" && of_readiness(&c.r#type)) {
        condition.status = "Unknown".into();
        condition.reason = "PodNotSeen".into();
        condition.message = "the pod's object and its probes have not been seen since the agent started".into();
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pleg::observed::{ContainerRecord, Sandbox};

    fn record(name: &str, state: RunState, created: i64, finished: i64) -> ContainerRecord {
        let (id, name) = (format!("{name}-{created}"), name.to_owned());
        let started_at = created;
        ContainerRecord {
            id,
            name,
            state,
            created_at: created,
            started_at,
            finished_at: finished,
            ..Default::default()
        }
    }

    #[test]
    fn a_pod_is_recalled_with_what_runs_what_has_ended_and_what_never_began() {
        let sandbox =
            Sandbox { ready: true, ips: vec!["10.0.0.7".into()], created_at: 5_000_000_000, ..Default::default() };
        let observed = Observed {
            sandboxes: vec![sandbox],
            // Newest first.
            containers: vec![
                record("web", RunState::Running, 40, 0),
                record("setup", RunState::Exited, 20, 30),
                record("setup", RunState::Exited, 10, 15),
            ],
        };
        let own = [(labels::POD_UID, "u"), (labels::POD_NAME, "p"), (labels::POD_NAMESPACE, "n"), ("app", "x")];
        let labels = own.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let given = ["web", "late"].map(|name| (name.to_owned(), Default::default())).into();
        let allocated = Allocation { containers: given, pod: None };
        let sandbox = cri::PodSandbox { labels, ..Default::default() };
        let pod = skeleton(sandbox, &observed, &allocated, "node");
        let meta = pod.metadata.as_ref().unwrap();
        assert_eq!((meta.name.as_str(), meta.uid.as_str(), meta.labels.len()), ("p", "u", 1));
        let names = |list: &[Container]| list.iter().map(|c| c.name.clone()).collect::<Vec<_>>();
        let spec = pod.spec.as_ref().unwrap();
        assert_eq!(
            (names(&spec.init_containers), names(&spec.containers)),
            (vec!["setup".to_owned()], vec!["web".to_owned(), "late".to_owned()])
        );
        let status = status(&pod, &observed, "containerd", &[]);
        assert_eq!((status.pod_ip.as_str(), status.start_time.map(|t| t.seconds)), ("10.0.0.7", Some(5)));
        let web = status.container_statuses.iter().find(|c| c.name == "web").unwrap();
        assert!(web.state.as_ref().is_some_and(|s| s.running.is_some()));
        assert!(status.conditions.iter().all(|c| c.r#type != "Ready" || c.status != "True"));
    }

    #[test]
    fn one_that_ended_while_others_ran_is_no_init_container() {
        let containers = vec![record("b", RunState::Running, 12, 0), record("a", RunState::Exited, 10, 20)];
        assert!(!was_init(&Observed { sandboxes: Vec::new(), containers }, "a"));
    }
}
