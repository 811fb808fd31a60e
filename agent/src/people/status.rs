//! `node-agent status`: the node at a glance.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use proto::api::core::v1::{Node, Pod, PodStatus};
use serde_json::{Map, Value, json};

use crate::wire_json::to_value;

use super::bars::{self, Pressure};
use super::client::{Agent, AskError, Known};
use super::table::{printable, render};
use super::{Common, Output, pods};

/// Conditions that a pod has to meet before it is ready.
const CHECKED: [&str; 4] = ["PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady"];
const RESOURCES: [&str; 3] = ["cpu", "memory", "io"];

pub async fn run(common: &Common) -> Result<(), AskError> {
    let agent = Agent::connect(&common.root_dir).await?;
    let node = agent.node().await?;
    let trouble = agent.trouble().await;
    // Without the runtime the node can be told all the same.
    // Programs get the pods whole.
    let mask = (common.output == Output::Text).then_some(pods::MASK);
    let (pods, known) = match agent.pods_or_recalled(mask).await {
        Ok((pods, known)) => (Some(pods), known),
        Err(AskError::Refused(_)) => (None, Known::Recalled),
        Err(error) => return Err(error),
    };
    let pressure = RESOURCES.map(|name| (name, bars::read(Path::new("/"), name)));
    let text = match common.output {
        Output::Json => format!("{}\n", document(&node, trouble.as_deref(), pods.as_deref(), &pressure)),
        Output::Text => page(&node, trouble.as_deref(), pods.as_deref(), &pressure),
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    if known == Known::Recalled && pods.is_some() {
        eprintln!("{}", pods::RECALLED);
    }
    Ok(())
}

type Pressures = [(&'static str, Option<Pressure>); 3];

fn document(node: &Node, trouble: Option<&str>, pods: Option<&[Pod]>, pressure: &Pressures) -> Value {
    let told = pressure.iter().filter_map(|(name, p)| Some(((*name).to_owned(), (*p)?.to_json())));
    json!({
        "node": to_value("k8s.io.api.core.v1.Node", node),
        "pressure": told.collect::<Map<_, _>>(),
        "pods": pods.map(pods::list),
        "apiServer": {"reached": trouble.is_none(), "trouble": trouble},
    })
}

fn page(node: &Node, unheard: Option<&str>, pods: Option<&[Pod]>, pressure: &Pressures) -> String {
    let status = node.status.clone().unwrap_or_default();
    let info = status.node_info.clone().unwrap_or_default();
    let name = node.metadata.as_ref().map_or("", |m| &m.name);
    let mut out = format!(
        "Node      {}\nSystem    {}, Linux {}, {}\nVersion   {}\n",
        printable(name),
        printable(&info.os_image),
        printable(&info.kernel_version),
        printable(&info.container_runtime_version),
        printable(&info.kubelet_version)
    );
    if let Some(why) = unheard {
        out.push_str(&format!("API       not reached: {}\n", printable(why)));
    }
    out.push('\n');
    let conditions: Vec<Vec<String>> = status
        .conditions
        .iter()
        .map(|c| vec![c.r#type.clone(), c.status.clone(), c.reason.clone(), c.message.clone()])
        .collect();
    out.push_str(&render(&["CONDITION", "STATUS", "REASON", "MESSAGE"], &conditions));
    out.push('\n');
    for (name, pressure) in pressure {
        match pressure {
            Some(p) => out.push_str(&format!(
                "Pressure  {name:<7} {} some {:5.1}%  full {:5.1}%  (10 s; 60 s {:.1}%, 300 s {:.1}%)\n",
                bars::bar(p.some[0]),
                p.some[0],
                p.full[0],
                p.some[1],
                p.some[2]
            )),
            None => out.push_str(&format!("Pressure  {name:<7} not told by this kernel\n")),
        }
    }
    out.push('\n');
    let amount = |map: &BTreeMap<String, _>, key: &str| {
        map.get(key)
            .map_or_else(|| "0".to_owned(), |q: &proto::apimachinery::pkg::api::resource::Quantity| q.string.clone())
    };
    let resources: Vec<Vec<String>> = status
        .capacity
        .keys()
        .map(|name| vec![name.clone(), amount(&status.capacity, name), amount(&status.allocatable, name)])
        .collect();
    out.push_str(&render(&["RESOURCE", "CAPACITY", "ALLOCATABLE"], &resources));
    out.push('\n');
    let Some(all) = pods else {
        out.push_str("Pods      not known: the container runtime has not answered since the agent started\n");
        return out;
    };
    let mut phases: BTreeMap<String, usize> = BTreeMap::new();
    for pod in all {
        *phases.entry(pod.status.as_ref().map_or_else(String::new, |s| s.phase.clone())).or_default() += 1;
    }
    let counts: Vec<String> =
        phases.iter().map(|(phase, n)| format!("{n} {}", if phase.is_empty() { "unknown" } else { phase })).collect();
    out.push_str(&format!(
        "Pods      {}: {}\n",
        all.len(),
        if counts.is_empty() { "none".into() } else { counts.join(", ") }
    ));
    let troubled: Vec<Vec<String>> = all.iter().filter_map(trouble).collect();
    if !troubled.is_empty() {
        out.push('\n');
        out.push_str(&render(&["POD", "STATUS", "WHY"], &troubled));
    }
    out
}

/// A row for a pod that is neither well nor done.
fn trouble(pod: &Pod) -> Option<Vec<String>> {
    let status = pod.status.clone().unwrap_or_default();
    let word = pods::Shown::of(pod).word;
    // One that nobody can tell the readiness of is no trouble while it runs.
    let well =
        |c: &proto::api::core::v1::PodCondition| c.status == "True" || c.status == "Unknown" && word == "Running";
    let ready = status.conditions.iter().any(|c| c.r#type == "Ready" && well(c));
    if ready || matches!(word.as_str(), "Succeeded" | "Completed") {
        return None;
    }
    let why = why(&status, &word);
    let meta = pod.metadata.clone().unwrap_or_default();
    Some(vec![format!("{}/{}", meta.namespace, meta.name), word, why])
}

/// The first thing that says more than a word: of the pod, of its containers, of what it waits for. A reason comes with it
/// where `word` is another; without any message the first reason says it alone.
fn why(status: &PodStatus, word: &str) -> String {
    let mut told = vec![(status.reason.clone(), status.message.clone())];
    for container in status.init_container_statuses.iter().chain(&status.container_statuses) {
        let state = container.state.clone().unwrap_or_default();
        told.extend(state.waiting.map(|waiting| (waiting.reason, waiting.message)));
        if let Some(ended) = state.terminated.filter(|ended| ended.exit_code != 0 || !ended.message.is_empty()) {
            let how = format!("container {} ended with exit code {}", container.name, ended.exit_code);
            told.push((ended.reason, if ended.message.is_empty() { how } else { ended.message }));
        }
    }
    // Whether it is ready sums up the others.
    let (ready, others): (Vec<_>, Vec<_>) =
        status.conditions.iter().filter(|c| c.status != "True").partition(|c| c.r#type == "Ready");
    let waits = others.into_iter().filter(|c| CHECKED.contains(&c.r#type.as_str()));
    told.extend(ready.into_iter().chain(waits).map(|c| (c.reason.clone(), c.message.clone())));
    match told.iter().find(|(_, message)| !message.is_empty()) {
        Some((reason, message)) if reason.is_empty() || reason == word => message.clone(),
        Some((reason, message)) => format!("{reason}: {message}"),
        None => told.into_iter().map(|(reason, _)| reason).find(|reason| !reason.is_empty()).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_tells_conditions_pressure_and_pods_in_trouble() {
        let node: Node = crate::wire_json::from_value(
            "k8s.io.api.core.v1.Node",
            &json!({"metadata": {"name": "n1"}, "status": {"capacity": {"cpu": "2"}, "allocatable": {"cpu": "1"},
                "conditions": [{"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "runtime down"}]}}),
        )
        .unwrap();
        let bad: Pod = crate::wire_json::from_value(
            "k8s.io.api.core.v1.Pod",
            &json!({"metadata": {"name": "p", "namespace": "ns"}, "status": {"phase": "Failed", "reason": "Evicted", "message": "too big"}}),
        )
        .unwrap();
        let pressure = [("cpu", Some(Pressure { some: [50.0; 3], full: [0.0; 3] })), ("memory", None), ("io", None)];
        assert!(!page(&node, None, None, &pressure).contains("API "));
        let page = page(&node, Some("connection refused"), Some(&[bad]), &pressure);
        for want in [
            "API       not reached: connection refused",
            "Node      n1",
            "runtime down",
            "[##########..........]",
            "cpu        2          1",
            "1: 1 Failed",
            "ns/p   Evicted   too big",
        ] {
            assert!(page.contains(want), "{want} in\n{page}");
        }
    }

    /// A pod whose containers say nothing used to have no reason at all.
    #[test]
    fn a_pod_in_trouble_has_a_reason() {
        let of = |status: Value| {
            let status: PodStatus = crate::wire_json::from_value("k8s.io.api.core.v1.PodStatus", &status).unwrap();
            why(&status, "Pending")
        };
        let unready = |reason: &str, message: &str| json!({"type": "Ready", "status": "False", "reason": reason, "message": message});
        let container = |state: Value| json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
        assert_eq!(of(json!({})), "");
        assert_eq!(of(json!({"conditions": [unready("ContainersNotReady", "")]})), "ContainersNotReady");
        let gates = of(json!({"conditions": [unready("ReadinessGatesNotReady", "gate \"x\" is not true")]}));
        assert_eq!(gates, "ReadinessGatesNotReady: gate \"x\" is not true");
        let unscheduled =
            json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"});
        assert_eq!(of(json!({"conditions": [unscheduled]})), "Unschedulable: no node");
        let states = [container(json!({"terminated": {"exitCode": 3, "reason": "Error"}}))];
        assert_eq!(of(json!({"containerStatuses": states})), "Error: container c ended with exit code 3");
        let waiting = [container(json!({"waiting": {"reason": "ErrImagePull", "message": "no such image"}}))];
        assert_eq!(of(json!({"reason": "Pending", "containerStatuses": waiting})), "ErrImagePull: no such image");
        assert_eq!(of(json!({"reason": "Pending", "message": "wait"})), "wait");
    }
}
